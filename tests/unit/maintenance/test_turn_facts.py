"""What a maintenance says of itself after each step and order: reasons, times, refusals' facts."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import footprints, turn_plan, turns, units
from forewarn.maintenance.footprints import Footprint
from forewarn.maintenance.model import Drain, DrainGuest, HostState, Refused, Way
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Ask, Done, Obstacle, Start, Stop, Wait
from forewarn.maintenance.units import (
    CONFIRM,
    MaintenanceState,
    TurnPolicy,
    Unit,
    UnitKind,
    UnitState,
)
from forewarn.vocabulary import ErrorCode, EventStatus, EventType
from turn_world import ALWAYS, FAILED, HOUR, OPENS, RUNNING, World, maintenance, windowed


def left(unit: Unit) -> bool:
    """No machine of any unit is left that is not done."""
    del unit
    return False


def refused(order: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as found:
        order()
    return found.value


# Orders.


def test_a_pause_and_a_stop_tell_who_ordered_them_and_when() -> None:
    for kind, state in (
        (MaintenanceOrder.PAUSE, MaintenanceState.PAUSED),
        (MaintenanceOrder.STOP, MaintenanceState.STOPPED),
    ):
        world = World(maintenance())
        world.now += HOUR
        world.order(kind)
        assert world.maintenance.state is state
        assert "bob" in world.maintenance.reason
        assert (world.maintenance.changed_by, world.maintenance.changed_at) == ("bob", NOW + HOUR)


def test_an_order_that_leaves_the_state_leaves_its_time() -> None:
    world = World(maintenance())
    world.now += HOUR
    world.order(MaintenanceOrder.SKIP, "h1")
    assert (world.maintenance.changed_by, world.maintenance.changed_at) == ("bob", NOW)
    unit = world.unit("h1")
    assert "bob" in unit.reason
    assert unit.changed_at == NOW + HOUR


def test_a_unit_that_is_retried_is_as_new() -> None:
    world = World(maintenance("h0"))
    failed = Unit(
        name="h0",
        kind=UnitKind.HOST,
        state=FAILED,
        reason="no power",
        accepted=True,
        recalled=True,
        retry_at=NOW,
        changed_at=NOW,
    )
    world.maintenance = msgspec.structs.replace(world.maintenance, units=(failed,))
    world.now += HOUR
    world.order(MaintenanceOrder.RETRY, "h0")
    assert world.unit("h0") == Unit(name="h0", kind=UnitKind.HOST, changed_at=world.now)


def test_a_unit_that_was_asked_for_is_under_way_and_nothing_else() -> None:
    waiting = Unit(name="h0", kind=UnitKind.HOST, reason="blocked", recalled=True, retry_at=NOW)
    of = msgspec.structs.replace(maintenance(), units=(waiting,))
    (unit,) = turns.asked(of, {0: 7}, NOW).units
    assert unit == Unit(name="h0", kind=UnitKind.HOST, state=RUNNING, operation=7, changed_at=NOW)


def test_a_resumed_maintenance_has_no_reason_any_more() -> None:
    world = World(maintenance())
    world.order(MaintenanceOrder.PAUSE)
    world.order(MaintenanceOrder.RESUME)
    assert world.maintenance.reason == ""
    world = World(maintenance("h0", "h1", waves={"h1": 1}, pause_seconds=600))
    world.asked()
    world.end("h0")
    step = world.step()
    assert isinstance(step, Wait)
    assert "wave 2" in step.why
    assert world.maintenance.reason == step.why
    assert world.maintenance.confirmed is False
    world.order(MaintenanceOrder.RESUME)
    assert world.maintenance.reason == ""


def test_a_refused_order_names_the_maintenance_and_the_unit() -> None:
    world = World(maintenance("h0", "h1"))
    world.asked()
    skip, retry = MaintenanceOrder.SKIP, MaintenanceOrder.RETRY
    for kind, unit in ((skip, "h0"), (retry, "h1"), (skip, "h9")):
        assert refused(partial(world.order, kind, unit)).facts == {"maintenance": 1, "unit": unit}
    running = refused(lambda: world.order(skip, "h0"))
    assert "1.1" in running.message
    assert refused(lambda: world.order(MaintenanceOrder.RESUME)).facts == {"maintenance": 1}
    world.order(MaintenanceOrder.STOP)
    assert refused(lambda: world.order(skip, "h1")).facts == {"maintenance": 1}


# Steps.


def test_a_halt_says_what_failed_and_since_when() -> None:
    world = World(maintenance())
    world.asked()
    world.end("h0", FAILED, "no power")
    world.now += HOUR
    step = world.step()
    assert isinstance(step, Stop)
    assert "no power" in world.maintenance.reason
    assert world.maintenance.changed_at == NOW + HOUR
    waits = world.step()
    assert isinstance(waits, Wait)
    assert waits.why == world.maintenance.reason


def test_a_maintenance_that_is_done_says_since_when_and_no_reason() -> None:
    world = World(maintenance("h0", "h1", waves={"h1": 1}, pause_seconds=CONFIRM))
    world.asked()
    world.end("h0")
    step = world.step()
    assert isinstance(step, Wait)
    assert "wave 2" in step.why
    world.order(MaintenanceOrder.SKIP, "h1")
    world.now += HOUR
    assert isinstance(world.step(), Done)
    assert (world.maintenance.reason, world.maintenance.changed_at) == ("", NOW + HOUR)


def test_what_is_asked_for_ends_the_reason_of_the_wait() -> None:
    world = windowed()
    step = world.step()
    assert isinstance(step, Wait)
    assert step.why
    assert world.maintenance.reason == step.why
    assert step.until is not None
    world.now = step.until
    assert isinstance(world.step(), Ask)
    assert world.maintenance.reason == ""


def test_a_wait_for_units_has_no_reason_and_one_for_others_has() -> None:
    world = World(maintenance("h0", "h1", at_once="2"), h0={"web": 0}, h1={"web": 1})
    world.asked()
    step = world.step()
    assert isinstance(step, Wait)
    assert (step.obstacle, step.why) == (Obstacle.UPDATE_DOMAIN, "")


def test_units_without_machines_are_left_out_with_a_reason_and_the_next_step_follows_at_once() -> (
    None
):
    nothing = Footprint(machines=(), domains={})
    of, step = turns.step(maintenance("h0"), lambda unit: nothing, lambda unit, takes: "", NOW)
    assert step == Wait(obstacle=Obstacle.UNITS, until=NOW)
    (unit,) = of.units
    assert (unit.state, unit.changed_at) == (UnitState.SKIPPED, NOW)
    assert unit.reason
    partly = Unit(name="h0", kind=UnitKind.HOST, done=("web-0",))
    of = msgspec.structs.replace(maintenance(), units=(partly,))
    of, _ = turns.step(of, lambda unit: nothing, lambda unit, takes: "", NOW)
    assert (of.units[0].state, of.units[0].reason) == (UnitState.DONE, "")


def test_a_notice_that_ends_with_the_window_is_too_long() -> None:
    world = windowed()
    world.now = OPENS + 45 * MINUTE - SECOND
    assert world.waits() is Obstacle.WINDOW
    world.now -= SECOND
    assert world.asked() == ["h0"]


def test_without_a_window_that_is_long_enough_it_looks_again_a_day_later() -> None:
    step = World(maintenance(windows=("daily 22:00-22:10",), cutoff_seconds=3600)).step()
    assert isinstance(step, Wait)
    assert (step.until, step.why) == (NOW + timedelta(days=1), turns.NO_WINDOW)


# What is asked for.


@pytest.mark.parametrize(
    ("event_type", "minutes"),
    [
        (EventType.FREEZE, 15),
        (EventType.REBOOT, 15),
        (EventType.REDEPLOY, 10),
        (EventType.TERMINATE, 15),
    ],
)
def test_the_notice_is_that_of_the_type(event_type: EventType, minutes: int) -> None:
    of = msgspec.structs.replace(maintenance(), event_type=event_type)
    assert turns.notice_of(of) == minutes * MINUTE


def test_a_unit_that_waits_for_approval_starts_after_it_in_its_window() -> None:
    until = NOW + 9 * HOUR
    start = turns.start_of(maintenance(approval_until=until), Span(NOW, until + HOUR), NOW)
    assert start == Start(
        not_before=until + SECOND, notice_seconds=0, opens_at=None, closes_at=until + HOUR
    )


def test_only_a_policy_that_says_so_asks_for_a_later_start() -> None:
    assert turns.start_of(maintenance(), ALWAYS, NOW).not_before is None
    window = Span(NOW + 5 * HOUR, NOW + 6 * HOUR)
    ahead = turns.start_of(maintenance(notice_seconds=1800), window, NOW)
    assert (ahead.not_before, ahead.notice_seconds) == (window.opens, 1800)
    longer = turns.start_of(maintenance(notice_seconds=6 * 3600), window, NOW)
    assert (longer.not_before, longer.notice_seconds) == (NOW + 6 * HOUR + SECOND, 0)


def test_of_all_units_the_rest_is_one_at_least() -> None:
    assert [units.amount("rest", count) for count in (0, 1, 5)] == [1, 1, 5]


# What is in the way.


def test_live_operations_of_its_machines_and_of_other_domains_are_in_the_way() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    live = list(bench.snapshot.operations.values())
    unit = Unit(name="x", kind=UnitKind.MACHINES)

    def in_the_way(*machines: str, **domains: int) -> str:
        takes = Footprint(machines=machines, domains=domains)
        return footprints.in_the_way(unit, takes, live)

    assert "1.1" in in_the_way("WEB-0", web=0)
    assert "1.1" in in_the_way("web-1", web=1)
    assert in_the_way("web-3", web=0) == ""
    assert in_the_way("batch_0", batch=0) == ""
    over = [msgspec.structs.replace(one, status=EventStatus.COMPLETED) for one in live]
    assert footprints.in_the_way(unit, Footprint(machines=("web-0",), domains={}), over) == ""


def drained(host: str, state: HostState, **guests: str) -> Drain:
    return Drain(
        host=host,
        state=state,
        reboot=True,
        guests=tuple(
            DrainGuest(name=name, vm_id=name, way=Way.LIVE, to_host=to)
            for name, to in guests.items()
        ),
        requested_at=NOW,
        changed_at=NOW,
    )


@pytest.mark.parametrize("state", [HostState.DRAINING, HostState.REBOOTING, HostState.RETURNING])
def test_a_host_waits_for_drains_whose_machines_it_has_or_will_have(state: HostState) -> None:
    unit = Unit(name="h2", kind=UnitKind.HOST, drain=True)
    takes = Footprint(machines=("own", "Guest"), domains={})
    coming = drained("h1", state, other="h2")
    there = drained("h1", state, guest="h3")
    elsewhere = drained("h1", state, other="h3")
    itself = drained("h2", state, own="h3")
    assert "h1" in footprints.in_the_way(unit, takes, (), [coming])
    assert "h1" in footprints.in_the_way(unit, takes, (), [elsewhere, there])
    assert footprints.in_the_way(unit, takes, (), [elsewhere, itself]) == ""
    ended = [drained("h1", end, guest="h2") for end in (HostState.UP, HostState.STUCK)]
    assert footprints.in_the_way(unit, takes, (), ended) == ""
    stopped = Unit(name="h2", kind=UnitKind.HOST)
    assert footprints.in_the_way(stopped, takes, (), [coming]) == ""


def test_the_hosts_that_have_their_turn_soon_are_those_next_in_order() -> None:
    names = [f"h{n}" for n in range(8)]
    units = tuple(Unit(name=name, kind=UnitKind.HOST, drain=True) for name in names)
    units = (msgspec.structs.replace(units[0], state=UnitState.RUNNING), *units[1:])
    of = msgspec.structs.replace(maintenance(*names, at_once="2"), units=units)
    assert turn_plan.drained_soon(of, units[1]) == ("h2", "h3", "h4", "h5")
    stopped = msgspec.structs.replace(of, units=())
    assert turn_plan.drained_soon(stopped, units[1]) == ()


# What became of units.


def test_what_has_not_changed_is_the_same_value() -> None:
    of = maintenance()
    assert turns.follow(of, {}, {}, left, NOW) is of


def test_only_the_units_that_are_concerned_are_followed() -> None:
    running = [
        Unit(name=name, kind=UnitKind.HOST, drain=True, state=RUNNING) for name in ("h0", "h1")
    ]
    of = msgspec.structs.replace(maintenance(), units=tuple(running))
    following = turns.follow(of, {}, {}, left, NOW, concerned=[1])
    assert [unit.state for unit in following.units] == [RUNNING, FAILED]


@pytest.mark.parametrize("kind", [MaintenanceOrder.PAUSE, MaintenanceOrder.STOP])
def test_the_units_of_one_that_rests_say_nothing_old(kind: MaintenanceOrder) -> None:
    world = World(maintenance("h0", "h1", at_once="2"))
    world.other = {"h1": "web-0 has 12.1"}
    assert world.asked() == ["h0"]
    assert world.unit("h1").reason == "web-0 has 12.1"
    world.order(kind)
    assert "12.1" not in world.unit("h1").reason
    assert (world.unit("h1").state is UnitState.SKIPPED) is (kind is MaintenanceOrder.STOP)
    assert world.unit("h0").state is RUNNING


@pytest.mark.parametrize(
    ("drain", "told"),
    [
        ({"state": HostState.DRAINING, "reason": "web-0 moves"}, "draining: web-0 moves"),
        ({"state": HostState.DRAINING}, "draining"),
        ({"state": HostState.UP, "reboot_asked_at": NOW}, ""),
    ],
)
def test_a_unit_tells_what_the_drain_of_its_host_says(drain: dict[str, Any], told: str) -> None:
    unit = Unit(name="h0", kind=UnitKind.HOST, drain=True, state=RUNNING, reason="as before")
    of = msgspec.structs.replace(maintenance(), units=(unit,))
    drains = {"h0": Drain(host="h0", requested_at=NOW, changed_at=NOW, **drain)}
    assert turns.follow(of, {}, drains, left, NOW).units[0].reason == told


# Policies and requests.


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        ({"zone": "Mars/Olympus"}, "policy.zone"),
        ({"windows": ("some day",)}, "policy.windows"),
        ({"at_once": "rest"}, "policy.at_once"),
        ({"blackouts": (Span(NOW, NOW),)}, "policy.blackouts"),
    ],
)
def test_a_refused_policy_says_where(policy: dict[str, Any], where: str) -> None:
    refusal = refused(lambda: turns.check_policy(TurnPolicy(**policy)))
    assert (refusal.code, refusal.facts) == (ErrorCode.INVALID, {"where": where})
