"""What of a drain can be told, or is refused, before it begins."""

from typing import Any

import msgspec
import pytest

from builders import NOW, Bench
from forewarn.maintenance import fleet_file, host_plan
from forewarn.maintenance.host_plan import HostPlan, HostSurvey
from forewarn.maintenance.model import (
    Drain,
    DrainGuest,
    GuestFacts,
    Hold,
    HoldKind,
    HostFacts,
    HostState,
    Refused,
    Stay,
    Way,
)
from forewarn.vocabulary import ErrorCode, EventType

FLEET = msgspec.convert(
    {
        "availability_set": [
            {
                "name": "web",
                "update_domains": 3,
                "machines": [
                    {"name": f"web-{n}", "host": f"h{1 + n % 3}", "update_domain": n % 3}
                    for n in range(6)
                ],
            }
        ],
        "machine": [{"name": f"db-{n}", "host": f"h{1 + n % 3}"} for n in range(4)],
    },
    fleet_file.Fleet,
)
"""On h1: web-0, web-3, db-0, db-3; on h2: web-1, web-4, db-1; on h3: web-2, web-5, db-2."""


class World:
    """A fleet, and where its machines really are: what a look at the hosts finds."""

    def __init__(self) -> None:
        self.bench = Bench(FLEET)
        machines = self.bench.snapshot.machines.values()
        self.where = {machine.vm_id: machine.host for machine in machines}
        self.off: set[str] = set()
        self.obstacles: dict[str, tuple[str, ...]] = {}
        self.memory = {"db-0": 4096, "web-3": 2048}
        self.free = {"h1": 64_000, "h2": 64_000, "h3": 32_000}
        self.silent: set[str] = set()
        self.can_reboot = True

    @property
    def world(self) -> Any:
        return self.bench.world()

    @property
    def drains(self) -> dict[str, Drain]:
        drains: dict[str, Drain] = self.world.drains
        return drains

    def id_of(self, name: str) -> str:
        return self.bench.snapshot.machines[name].vm_id

    def survey(self) -> HostSurvey:
        machines = {m.vm_id: m for m in self.bench.snapshot.machines.values()}
        found: dict[str, list[GuestFacts]] = {host: [] for host in self.free}
        for vm_id, host in self.where.items():
            name = machines[vm_id].name
            found[host].append(
                GuestFacts(
                    vm_id=vm_id,
                    name=name,
                    running=vm_id not in self.off,
                    memory_mib=self.memory.get(name, 1024),
                    obstacles=self.obstacles.get(name, ()),
                )
            )
        facts = {
            host: HostFacts(
                answers=host not in self.silent,
                why="no route to host" if host in self.silent else "",
                boot_id="1",
                free_memory_mib=self.free[host],
                can_reboot=self.can_reboot,
                guests=tuple(guests),
            )
            for host, guests in found.items()
        }
        keys = {m.vm_id: m.key for m in machines.values()}
        return HostSurvey(began_at=NOW, hosts=facts, keys=keys)


EMPTY = HostSurvey(began_at=NOW, hosts={}, keys={})


def wanted(*hosts: str, **more: Any) -> list[Drain]:
    usual = {"state": HostState.UP, "reboot": True} | more
    return [Drain(host=host, requested_at=NOW, changed_at=NOW, **usual) for host in hosts]


def planned(world: World, drains: list[Drain]) -> tuple[HostPlan, ...]:
    return host_plan.plans(world.world, drains, world.survey())


def check(world: World, drains: list[Drain]) -> None:
    host_plan.check(world.world, drains, world.survey())


def refusal(world: World, drains: list[Drain], survey: HostSurvey | None = None) -> Refused:
    with pytest.raises(Refused) as caught:
        host_plan.check(world.world, drains, survey or world.survey())
    return caught.value


def test_a_host_that_no_look_found_does_not_answer() -> None:
    facts = EMPTY.of("h1")
    assert not facts.answers
    assert facts.why
    assert msgspec.structs.replace(EMPTY, trouble="no library").of("h1").why == "no library"


def test_the_plan_moves_the_largest_first_to_where_most_memory_is_left() -> None:
    world = World()
    (found,) = planned(world, wanted("h1"))
    assert [guest.name for guest in found.guests] == ["db-0", "web-3", "db-3", "web-0"]
    assert {guest.to_host for guest in found.guests} == {"h2"}
    world.free = {"h1": 0, "h2": 5000, "h3": 4096}
    (found,) = planned(world, wanted("h1"))
    assert [guest.to_host for guest in found.guests] == ["h2", "h3", "h3", "h3"]
    assert not found.problems


def test_machines_that_cannot_move_are_shut_down_last_and_of_one_update_domain_only() -> None:
    world = World()
    world.obstacles["db-0"] = ("a device",)
    (found,) = planned(world, wanted("h1", stay=Stay.STOP))
    assert [guest.name for guest in found.guests][-1] == "db-0"
    assert not found.problems
    world.where[world.id_of("web-1")] = "h1"
    world.obstacles = {"web-0": ("a device",), "web-1": ("a device",)}
    (found,) = planned(world, wanted("h1", stay=Stay.STOP))
    assert len(found.problems) == 1


def test_a_machine_that_the_drain_of_another_host_moved_here_visits() -> None:
    world = World()
    moved = DrainGuest(name="db-1", vm_id=world.id_of("db-1"), way=Way.LIVE)
    world.where[moved.vm_id] = "h1"
    for state, visits in ((HostState.EMPTY, {"db-1"}), (HostState.UP, set())):
        (world.drains["h2"],) = wanted("h2", state=state, guests=(moved,))
        (found,) = planned(world, wanted("h1"))
        assert {guest.name for guest in found.guests if guest.visits} == visits


def test_machines_move_to_hosts_to_avoid_only_if_no_other_has_room() -> None:
    world = World()

    def targets(*avoid: str) -> set[str]:
        (plan,) = planned(world, wanted("h1", avoid=avoid))
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
    (plan,) = planned(world, wanted("h1"))
    order = [guest.name for guest in plan.guests if guest.name.startswith("web")]
    assert order == ["web-3", "web-0", "web-4", "web-1", "web-5", "web-2"]


def test_hosts_that_come_back_are_targets_of_those_after_them_and_others_are_not() -> None:
    world = World()
    found = planned(world, wanted("h2", "h1"))
    assert [plan.host for plan in found] == ["h2", "h1"]
    assert "h2" in {guest.to_host for guest in found[1].guests}
    found = planned(world, wanted("h2", "h1", reboot=False))
    assert {guest.to_host for guest in found[1].guests} == {"h3"}
    (world.drains["h3"],) = wanted("h3", state=HostState.DRAINING)
    (plan,) = planned(world, wanted("h1"))
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
        world.drains["h1"] = drain
        (plan,) = planned(world, wanted("h2"))
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


@pytest.mark.parametrize("state", [HostState.STUCK, HostState.UP, HostState.RETURNING])
def test_the_memory_of_a_move_under_way_is_kept_whatever_its_drain_does(state: HostState) -> None:
    world = World()
    world.free = {"h1": 0, "h2": 20_000, "h3": 6000}
    world.bench.ask(EventType.FREEZE, "db-0", live_migration=True, to_host="h3")
    moving = DrainGuest(
        name="db-0", vm_id=world.id_of("db-0"), memory_mib=4096, way=Way.LIVE, leaves_by=1
    )
    (world.drains["h1"],) = wanted("h1", state=state, guests=(moving,))
    assert planned(world, wanted("h2"))[0].problems
    world.bench.cancel("1.1")
    assert not planned(world, wanted("h2"))[0].problems


def test_hosts_that_stay_empty_leave_their_machines_memory_to_nobody() -> None:
    world = World()
    world.free = {"h1": 0, "h2": 0, "h3": 9000}
    for reboot in (True, False):
        first, second = planned(world, wanted("h1", "h2", reboot=reboot))
        assert not first.problems
        assert bool(second.problems) is not reboot


def hold(world: World, *hosts: str, kind: HoldKind = HoldKind.HOST, reason: str = "a fan") -> None:
    for host in hosts:
        held = Hold(kind=kind, name=host, reason=reason, by="relay", at=NOW)
        world.world.holds[kind, host] = held


def test_no_machine_moves_to_a_host_that_is_held() -> None:
    world = World()
    hold(world, "h2", "h1")
    (plan,) = planned(world, wanted("h1"))
    assert {guest.to_host for guest in plan.guests} == {"h3"}
    assert plan.problems == ()
    hold(world, "", kind=HoldKind.EVERYTHING)
    check(world, wanted("h1"))


def test_a_refusal_for_lack_of_room_names_the_hosts_that_are_held() -> None:
    world = World()
    hold(world, "h2", reason="its relay is away")
    world.obstacles["db-0"] = ("a device",)
    assert "held" not in refusal(world, wanted("h1")).message  # h3 has the room
    world.obstacles.clear()
    hold(world, "h3")
    refused = refusal(world, wanted("h1"))
    assert refused.code is ErrorCode.NOT_ELIGIBLE
    assert "host h2 is held: its relay is away" in refused.message
    assert "host h3 is held: a fan" in refused.message


def test_a_machine_that_was_to_be_looked_at_again_and_does_not_run_is_gone() -> None:
    world = World()
    world.off.add(world.id_of("db-0"))
    guests = tuple(
        DrainGuest(name=name, vm_id=world.id_of(name), way=way, to_host="h3")
        for name, way in (("db-0", Way.UNDECIDED), ("db-3", Way.UNDECIDED), ("web-0", Way.LIVE))
    )
    (found,) = planned(world, wanted("h1", guests=guests))
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
        (found,) = planned(world, wanted("h1", stay=Stay.REDEPLOY))
        assert found.guests[0] == DrainGuest(
            name="db-0",
            vm_id=world.id_of("db-0"),
            memory_mib=4096,
            obstacles=("a device",),
            way=Way.REDEPLOY,
            to_host=to_host,
        )
    world.free = {"h1": 0, "h2": 0, "h3": 0}
    (found,) = planned(world, wanted("h1", stay=Stay.REDEPLOY))
    assert {guest.name: guest.way for guest in found.guests}["db-0"] is Way.REDEPLOY


def test_one_host_or_several_different_ones_can_be_drained() -> None:
    world = World()
    check(world, wanted("h1"))
    check(world, wanted("h1", "h2"))
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
    check(world, wanted("h1", reboot=False))
    (draining,) = wanted("h1", state=HostState.DRAINING)
    world.drains["h1"] = draining
    check(world, wanted("h1"))
    (world.drains["h1"],) = wanted("h1")
    assert refusal(world, wanted("h1")).code is ErrorCode.NOT_ELIGIBLE
    world = World()
    world.silent.add("h1")
    assert "no route" in refusal(world, wanted("h1", reboot=False)).message
    world = World()
    world.obstacles["db-0"] = ("a device", "a folder")
    message = refusal(world, wanted("h1")).message
    assert "a device; a folder" in message
