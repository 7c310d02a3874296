"""The drain of a host: its table, its plan, its order, and what never happens, whatever does."""

import re
from random import Random

import pytest

from builders import MINUTE, SECOND
from forewarn.maintenance import commands, host_drain, host_plan
from forewarn.maintenance.host_drain import DrainOrder, HostTrigger
from forewarn.maintenance.model import Drain, HoldKind, HostState, Refused, Stay, Way
from forewarn.vocabulary import ErrorCode, EventStatus, EventType
from house import tree
from unit.maintenance.host_world import HOST_BACK, World

ON_H1 = ("web-0", "web-3", "db-0", "db-3")


def planned(world: World, stay: Stay = Stay.REFUSE) -> host_plan.HostPlan:
    at = world.now
    wanted = Drain(host="h1", state=HostState.UP, stay=stay, requested_at=at, changed_at=at)
    return host_plan.plan(world.world, wanted, world.survey())


def test_the_plan_moves_the_largest_first_to_where_most_memory_is_left() -> None:
    world = World()
    found = planned(world)
    assert [guest.name for guest in found.guests] == ["db-0", "web-3", "db-3", "web-0"]
    assert {guest.to_host for guest in found.guests} == {"h2"}
    world.free = {"h1": 0, "h2": 5000, "h3": 4096}
    found = planned(world)
    assert [guest.to_host for guest in found.guests] == ["h2", "h3", "h3", "h3"]
    assert not found.problems


def test_machines_of_two_update_domains_are_not_shut_down_together() -> None:
    world = World()
    world.where[world.id_of("web-1")] = "h1"
    world.obstacles |= {"web-0": ("a device",), "web-1": ("a device",)}
    found = planned(world, Stay.STOP)
    assert len(found.problems) == 1


def test_a_machine_that_starts_on_an_empty_host_is_moved_before_the_reboot() -> None:
    world = World()
    world.bench.hold(HoldKind.HOST, "h1")
    world.drain("h1", reboot=True)
    for name in ON_H1:
        world.where[world.id_of(name)] = "h2"
    world.drive_all()
    assert world.state() is HostState.EMPTY
    assert not world.reboots
    world.where[world.id_of("db-0")] = "h1"
    world.bench.release(HoldKind.HOST, "h1")
    world.drive_all()
    assert world.state() is HostState.DRAINING
    world.go_on()
    assert world.reboots == {"h1": 1}


def test_what_cannot_move_is_shut_down_last_and_is_off_until_the_host_has_rebooted() -> None:
    world = World()
    world.obstacles["db-0"] = ("a device",)
    world.drain("h1", reboot=True, stay=Stay.STOP)
    world.drive_all()
    assert all("db-0" not in operation.machines for operation in world.live())
    world.approve()
    world.carry_all_out()
    world.drive_all()
    (stop,) = world.live()
    assert (stop.event_type, stop.host_boot_id) == (EventType.REBOOT, "h1-0")
    world.approve()
    world.drive_all()
    assert not world.reboots  # it has started, and the machine still runs
    with pytest.raises(Refused) as refusal:
        world.order("h1", host_drain.order, DrainOrder.UNDRAIN)
    assert refusal.value.code is ErrorCode.CONFLICT
    world.go_on()
    assert world.state() is HostState.UP
    assert world.reboots == {"h1": 1}
    assert not world.off
    assert world.hosts_of("db-0") == ["h1"]


def test_a_machine_with_a_live_event_has_its_turn_after_that() -> None:
    world = World()
    world.bench.ask(EventType.REBOOT, "db-0")
    world.drain("h1")
    step = world.drive("h1")
    assert step.wake_at is not None
    assert "db-0" in world.drains["h1"].reason
    assert len(world.bench.snapshot.maintenances) == 4
    world.go_on(20)
    assert world.state() is HostState.EMPTY


@pytest.mark.parametrize("silent", [False, True])
def test_a_reboot_that_nobody_knows_of_is_never_repeated_by_itself(silent: bool) -> None:
    world = World()
    world.lose_reboots = True
    world.drain("h1", reboot=True)
    world.go_on_until(HostState.REBOOTING)
    if silent:
        world.silent.add("h1")
    world.wait(HOST_BACK - MINUTE)
    assert world.state() is HostState.REBOOTING
    world.wait(MINUTE)
    assert (world.state(), world.reboots) == (HostState.STUCK, {"h1": 1})
    world.lose_reboots = False
    world.silent.clear()
    world.order("h1", host_drain.retry)
    world.go_on()
    assert (world.state(), world.reboots) == (HostState.UP, {"h1": 2})


def test_a_reboot_that_happened_after_all_is_not_repeated_by_a_retry() -> None:
    world = World()
    world.lose_reboots = True
    world.drain("h1", reboot=True)
    world.go_on_until(HostState.REBOOTING)
    world.wait(HOST_BACK)
    world.boots["h1"] += 1
    world.order("h1", host_drain.retry)
    world.go_on()
    assert (world.state(), world.reboots) == (HostState.UP, {"h1": 1})


def test_a_retry_of_a_host_that_rebooted_late_shuts_no_machine_down_again() -> None:
    world = World()
    world.obstacles["db-0"] = ("a device",)
    world.lose_reboots = True
    world.drain("h1", reboot=True, stay=Stay.STOP)
    world.go_on_until(HostState.REBOOTING)
    world.wait(HOST_BACK)
    assert world.state() is HostState.STUCK
    world.boots["h1"] += 1
    world.carry_all_out()  # its task saw the new boot id and started it
    assert world.id_of("db-0") not in world.off
    world.order("h1", host_drain.retry)
    world.go_on()
    assert (world.state(), world.reboots) == (HostState.UP, {"h1": 1})
    kinds = [o.event_type for o in world.bench.snapshot.operations.values()]
    assert kinds.count(EventType.REBOOT) == 1
    assert world.hosts_of(*ON_H1) == ["h1"] * 4


def test_a_machine_that_the_drain_of_its_own_host_brought_home_stays_there() -> None:
    world = World()
    for host in ("h1", "h2"):  # where those of h1 are by then
        world.drain(host)
        world.go_on_until(HostState.EMPTY, host)
    for host in ("h1", "h2"):
        world.order(host, host_drain.order, DrainOrder.RETURN)
        world.go_on_until(HostState.UP, host)
    assert world.hosts_of(*ON_H1, "web-1") == [*["h1"] * 4, "h2"]


def test_whatever_happens_no_host_is_rebooted_under_a_machine_and_every_drain_can_end() -> None:
    assert set().union(*map(play, range(40))) == set(HostState)


def play(seed: int) -> set[HostState]:
    """Play what chance brings to a few drains, then let all go well."""
    chance = Random(seed)
    world = World()
    if chance.random() < 0.3:
        world.obstacles["db-0"] = ("a device",)
    orders = 0
    names = chance.sample(["h1", "h2", "h3"], chance.randint(1, 2))
    world.drain(
        *names,
        reboot=chance.random() < 0.8,
        bring_home=chance.random() < 0.7,
        stay=chance.choice([*Stay]),
    )
    for _ in range(80):
        orders += happen(world, chance)
        if chance.random() < 0.7:
            world.drive_all()
    world.silent.clear()
    world.strangers.clear()
    world.lose_reboots = False
    for _ in range(6):
        world.go_on(20)
        world.wait(HOST_BACK)
        for host, drain in world.drains.items():
            if drain.state is HostState.STUCK:
                orders += attempt(world, host, host_drain.retry)
            if drain.state is HostState.EMPTY and not drain.reboot:
                world.boots[host] += 1  # by hand
        for operation in [*world.bench.snapshot.operations.values()]:
            if operation.down and operation.status.over:
                acknowledge = commands.acknowledge_failures
                world.bench.decide(acknowledge, [operation.id], "ann", even_if_down=True)
    world.go_on(20)
    for host, drain in [*world.drains.items()]:
        if drain.state is HostState.STUCK:  # a machine that cannot be moved, or is skipped
            assert any(word in drain.reason for word in ("not empty", "cannot be", "different"))
            world.order(host, host_drain.order, DrainOrder.UNDRAIN)
    world.go_on(20)
    resting = {HostState.UP, HostState.EMPTY}
    assert {drain.state for drain in world.drains.values()} <= resting, f"seed {seed}"
    assert all(count <= 1 + orders for count in world.reboots.values()), f"seed {seed}"
    assert not world.off or HostState.EMPTY in map(world.state, world.drains), f"seed {seed}"
    return world.states


def happen(world: World, chance: Random) -> int:
    """Let one thing happen; return how many orders operators gave."""
    started = [o for o in world.live() if o.status is EventStatus.STARTED]
    host = chance.choice([*world.drains])
    match chance.randrange(12):
        case 0 | 1:
            world.approve()
        case 2 | 3 | 4 if started:
            world.carry_out(chance.choice(started), succeeded=chance.random() < 0.85)
        case 5:
            world.silent ^= {chance.choice(["h1", "h2", "h3"])}
        case 6:
            if world.strangers:
                world.strangers.clear()
            elif chance.random() < 0.3:
                world.strangers["test-vm"] = chance.choice(["h1", "h2"])
        case 7:
            world.bench.let_pass(chance.choice([SECOND, MINUTE, 20 * MINUTE]))
        case 8:
            world.lose_reboots = chance.random() < 0.3
        case 9:
            if world.state(host) is HostState.STUCK:
                return attempt(world, host, host_drain.retry)
        case 10:
            order = chance.choice([DrainOrder.UNDRAIN, DrainOrder.RETURN])
            given = chance.random() < 0.2
            return attempt(world, host, host_drain.order, order) if given else 0
        case 11:
            guests = world.drains[host].guests
            if guests and chance.random() < 0.5:
                way = chance.choice([Way.SKIP, Way.STOP])
                return attempt(world, host, host_drain.look_after, chance.choice(guests).name, way)
    return 0


def attempt(world: World, host: str, order: object, *arguments: object) -> int:
    try:
        world.order(host, order, *arguments)
    except Refused:
        return 0
    return 1


def test_every_transition_leads_to_a_state_that_is_left_again() -> None:
    for state in HostState:
        assert any(before is state for before, _ in host_drain.TRANSITIONS)
        assert state in host_drain.TRANSITIONS.values()
    assert {trigger for _, trigger in host_drain.TRANSITIONS} == set(HostTrigger)


def test_the_guide_draws_the_table_and_nothing_else() -> None:
    page = (tree.ROOT / "docs" / "guides" / "hosts.md").read_text(encoding="utf-8")
    (drawing,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", page, re.DOTALL)
    drawn = re.findall(r"^ +(\w+) --> (\w+) : (\w+)$", drawing, re.MULTILINE)
    table = {
        (before.value, after.value, trigger.value)
        for (before, trigger), after in host_drain.TRANSITIONS.items()
    }
    assert len(drawn) == len(drawing.splitlines())
    assert set(drawn) == table
    for state in HostState:
        assert f"| `{state.value}` |" in page
