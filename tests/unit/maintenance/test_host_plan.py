"""What of a drain can be told, or is refused, before it begins."""

import msgspec
import pytest

from builders import NOW
from forewarn.maintenance import host_plan
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Drain,
    DrainGuest,
    Hold,
    HoldKind,
    HostState,
    Refused,
    Stay,
    Way,
)
from forewarn.vocabulary import ErrorCode
from unit.maintenance.host_world import World

EMPTY = HostSurvey(began_at=NOW, hosts={}, keys={})


def wanted(*hosts: str, reboot: bool = True, state: HostState = HostState.UP) -> list[Drain]:
    return [
        Drain(host=host, state=state, reboot=reboot, requested_at=NOW, changed_at=NOW)
        for host in hosts
    ]


def refusal(
    world: World, drains: list[Drain], survey: HostSurvey | None = None, *before: Drain
) -> Refused:
    known = {drain.host: drain for drain in before}
    with pytest.raises(Refused) as caught:
        host_plan.check(drains, known, survey or world.survey(), world.machines())
    return caught.value


def test_a_host_that_no_look_found_does_not_answer() -> None:
    facts = EMPTY.of("h1")
    assert not facts.answers
    assert facts.why
    assert msgspec.structs.replace(EMPTY, trouble="no library").of("h1").why == "no library"


def test_machines_move_to_hosts_to_avoid_only_if_no_other_has_room() -> None:
    world = World()

    def targets(*avoid: str) -> set[str]:
        plan = host_plan.plan("h1", world.survey(), world.machines(), stay=Stay.REFUSE, avoid=avoid)
        assert not plan.problems
        return {guest.to_host for guest in plan.guests}

    assert targets("h2") == {"h3"}
    assert targets("h3") == {"h2"}
    assert targets("h2", "h3") == {"h3"}
    assert targets("h3", "h2") == {"h2"}
    world.free["h3"] = 4096
    assert targets("h2") == {"h2", "h3"}


def test_machines_of_one_update_domain_leave_one_after_another() -> None:
    world = World()
    world.where |= {world.id_of(f"web-{n}"): "h1" for n in range(6)}
    world.memory |= {f"web-{n}": 1024 * (n + 1) for n in range(6)}
    plan = host_plan.plan("h1", world.survey(), world.machines(), stay=Stay.REFUSE)
    order = [guest.name for guest in plan.guests if guest.name.startswith("web")]
    assert order == ["web-3", "web-0", "web-4", "web-1", "web-5", "web-2"]


def test_hosts_that_come_back_are_targets_of_those_after_them_and_others_are_not() -> None:
    world = World()
    planned = host_plan.plans(wanted("h2", "h1"), {}, world.survey(), world.machines())
    assert [plan.host for plan in planned] == ["h2", "h1"]
    assert "h2" in {guest.to_host for guest in planned[1].guests}
    planned = host_plan.plans(
        wanted("h2", "h1", reboot=False), {}, world.survey(), world.machines()
    )
    assert {guest.to_host for guest in planned[1].guests} == {"h3"}
    (draining,) = wanted("h3", state=HostState.DRAINING)
    (plan,) = host_plan.plans(wanted("h1"), {"h3": draining}, world.survey(), world.machines())
    assert {guest.to_host for guest in plan.guests} == {"h2"}


def test_the_memory_that_a_drain_has_chosen_for_its_machines_is_no_other_drains() -> None:
    world = World()
    world.free = {"h1": 20_000, "h2": 20_000, "h3": 6000}
    (draining,) = wanted("h1", state=HostState.DRAINING)
    moving = DrainGuest(
        name="db-0", vm_id=world.id_of("db-0"), memory_mib=4096, way=Way.LIVE, to_host="h3"
    )
    draining = msgspec.structs.replace(draining, guests=(moving,))

    def refused(drain: Drain) -> bool:
        survey, machines = world.survey(), world.machines()
        (plan,) = host_plan.plans(wanted("h2"), {"h1": drain}, survey, machines)
        return any("memory" in problem for problem in plan.problems)

    assert refused(draining)
    world.where[moving.vm_id] = "h3"  # it has arrived, and h3 tells what it has left
    assert not refused(draining)
    returning = msgspec.structs.replace(draining, state=HostState.RETURNING)
    world.free = {"h1": 6000, "h2": 20_000, "h3": 0}
    assert refused(returning)
    left_before = msgspec.structs.replace(moving, way=Way.GONE)  # its drain was stuck since
    assert refused(msgspec.structs.replace(returning, guests=(left_before,)))
    world.where[moving.vm_id] = "h1"
    assert not refused(returning)


def test_hosts_that_stay_empty_leave_their_machines_memory_to_nobody() -> None:
    world = World()
    world.free = {"h1": 0, "h2": 0, "h3": 9000}
    survey, machines = world.survey(), world.machines()
    for reboot in (True, False):
        first, second = host_plan.plans(wanted("h1", "h2", reboot=reboot), {}, survey, machines)
        assert not first.problems
        assert bool(second.problems) is not reboot


def held(host: str, reason: str = "its relay is away") -> Hold:
    return Hold(kind=HoldKind.HOST, name=host, reason=reason, by="relay", at=NOW)


def test_no_machine_moves_to_a_host_that_is_held() -> None:
    world = World()
    (plan,) = host_plan.plans(
        wanted("h1"), {}, world.survey(), world.machines(), [held("h2"), held("h1")]
    )
    assert {guest.to_host for guest in plan.guests} == {"h3"}
    assert plan.problems == ()
    everything = Hold(kind=HoldKind.EVERYTHING, name="", reason="", by="ann", at=NOW)
    host_plan.check(wanted("h1"), {}, world.survey(), world.machines(), [everything])


def test_a_refusal_for_lack_of_room_names_the_hosts_that_are_held() -> None:
    world = World()
    survey, machines = world.survey(), world.machines()
    with pytest.raises(Refused) as caught:
        host_plan.check(wanted("h1"), {}, survey, machines, [held("h2"), held("h3", "a fan")])
    assert caught.value.code is ErrorCode.NOT_ELIGIBLE
    assert "host h2 is held: its relay is away" in caught.value.message
    assert "host h3 is held: a fan" in caught.value.message
    world.obstacles["db-0"] = ("a device",)
    with pytest.raises(Refused) as caught:
        host_plan.check(wanted("h1"), {}, world.survey(), machines, [held("h2")])
    assert "held" not in caught.value.message  # h3 has the room


def test_a_machine_that_was_to_be_looked_at_again_and_does_not_run_is_gone() -> None:
    world = World()
    world.off.add(world.id_of("db-0"))
    guests = [
        DrainGuest(name=name, vm_id=world.id_of(name), way=way, to_host="h3")
        for name, way in (("db-0", Way.UNDECIDED), ("db-3", Way.UNDECIDED), ("web-0", Way.LIVE))
    ]
    found = host_plan.plan("h1", world.survey(), world.machines(), stay=Stay.REFUSE, known=guests)
    ways = {guest.name: (guest.way, guest.to_host) for guest in found.guests}
    assert ways == {
        "web-0": (Way.LIVE, "h3"),
        "db-0": (Way.GONE, "h3"),
        "db-3": (Way.LIVE, "h2"),
        "web-3": (Way.LIVE, "h2"),
    }


def test_a_target_is_the_host_with_most_memory_and_the_first_of_equals() -> None:
    world = World()
    world.obstacles["db-0"] = ("a device",)
    for free, to_host in (((4096, 5000), "h3"), ((5000, 5000), "h2")):
        world.free = {"h1": 0, "h2": free[0], "h3": free[1]}
        found = host_plan.plan("h1", world.survey(), world.machines(), stay=Stay.REDEPLOY)
        assert found.guests[0] == DrainGuest(
            name="db-0",
            vm_id=world.id_of("db-0"),
            memory_mib=4096,
            obstacles=("a device",),
            way=Way.REDEPLOY,
            to_host=to_host,
        )
    world.free = {"h1": 0, "h2": 0, "h3": 0}
    found = host_plan.plan("h1", world.survey(), world.machines(), stay=Stay.REDEPLOY)
    assert {guest.name: guest.way for guest in found.guests}["db-0"] is Way.REDEPLOY


def test_one_host_or_several_different_ones_can_be_drained() -> None:
    world = World()
    host_plan.check(wanted("h1"), {}, world.survey(), world.machines())
    host_plan.check(wanted("h1", "h2"), {}, world.survey(), world.machines())
    assert refusal(world, wanted("h1", "h1")).code is ErrorCode.INVALID


def test_hosts_that_nobody_knows_are_refused_by_name() -> None:
    world = World()
    refused = refusal(world, wanted("h1", "h9"))
    assert (refused.code, refused.facts) == (
        ErrorCode.NOT_FOUND,
        {"what": "host", "name": "h9"},
    )
    assert refusal(world, wanted("h1"), EMPTY).code is ErrorCode.NOT_ELIGIBLE
    troubled = msgspec.structs.replace(EMPTY, trouble="no library")
    refused = refusal(world, wanted("h1"), troubled)
    assert refused.code is ErrorCode.NOT_ELIGIBLE
    assert "no library" in refused.message


def test_what_keeps_a_host_from_being_drained_refuses_it_unless_it_is_drained_already() -> None:
    world = World()
    world.can_reboot = False
    refused = refusal(world, wanted("h1"))
    assert (refused.code, refused.facts) == (ErrorCode.NOT_ELIGIBLE, {"host": "h1"})
    host_plan.check(wanted("h1", reboot=False), {}, world.survey(), world.machines())
    (draining,) = wanted("h1", state=HostState.DRAINING)
    host_plan.check(wanted("h1"), {"h1": draining}, world.survey(), world.machines())
    (over,) = wanted("h1")
    assert refusal(world, wanted("h1"), None, over).code is ErrorCode.NOT_ELIGIBLE
    world = World()
    world.silent.add("h1")
    assert "no route" in refusal(world, wanted("h1", reboot=False)).message
    world = World()
    world.obstacles["db-0"] = ("a device", "a folder")
    message = refusal(world, wanted("h1")).message
    assert "a device; a folder" in message
