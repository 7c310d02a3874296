"""What a maintenance whose units take turns says and follows, beside the stories of turns.txt."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import footprints, turn_check, turn_plan, turns, units
from forewarn.maintenance.footprints import SEVERAL, Footprint
from forewarn.maintenance.model import (
    Drain,
    DrainGuest,
    HoldKind,
    HostState,
    Maintenance,
    Refused,
    Way,
)
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turn_check import CheckResult
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Ask, Obstacle, Start, Wait
from forewarn.maintenance.units import (
    CheckProgress,
    MaintenanceState,
    MaintenanceTrigger,
    TurnPolicy,
    Unit,
    UnitKind,
    UnitState,
)
from forewarn.vocabulary import ErrorCode, EventStatus, EventType
from turn_world import (
    ALWAYS,
    FAILED,
    HOUR,
    MARGIN,
    OPENS,
    RUNNING,
    WAITING,
    World,
    maintenance,
    windowed,
)

# Windows.


def test_a_blackout_closes_a_window_and_delays_what_has_none() -> None:
    until = OPENS + 24 * HOUR
    blackouts = (Span(NOW, until),)
    world = windowed(blackouts=blackouts)
    step = world.step()
    assert isinstance(step, Wait)
    assert step.until is not None
    assert until - HOUR < step.until < until
    always = World(maintenance(blackouts=blackouts))
    step = always.step()
    assert isinstance(step, Wait)
    assert step.obstacle is Obstacle.WINDOW
    always.now = until
    assert always.asked() == ["h0"]


@pytest.mark.parametrize(
    ("day", "hours"),
    [
        (datetime(2026, 3, 28, 12, tzinfo=UTC), 2),  # 02:00 to 05:00, and 02:00 is left out
        (datetime(2026, 10, 24, 12, tzinfo=UTC), 4),  # 02:00 to 05:00, and 02:00 comes twice
        (datetime(2026, 10, 25, 12, tzinfo=UTC), 3),
    ],
)
def test_in_a_night_in_which_the_clocks_change_the_window_is_as_long_as_it_is(
    day: datetime, hours: int
) -> None:
    names = [f"h{n}" for n in range(20)]
    world = World(maintenance(*names, windows=("daily 02:00-05:00",), zone="Europe/Berlin"))
    world.now = day
    started: list[datetime] = []
    while len(started) < len(names) and world.now < day + 24 * HOUR:
        step = world.step()
        if isinstance(step, Ask):
            (index,) = step.units
            start = max(world.now + 15 * MINUTE, step.window.opens)
            started.append(start)
            world.maintenance = turns.asked(world.maintenance, {index: index + 1}, world.now)
            world.now = start
            world.end(world.maintenance.units[index].name)
        else:
            assert isinstance(step, Wait)
            assert step.until is not None
            world.now = step.until
    assert started[-1] - started[0] < hours * HOUR
    # A notice of 15 minutes each: four starts an hour, the first at the window's beginning.
    assert len(started) == pytest.approx(4 * hours, abs=1)


def test_a_unit_starts_in_the_window_and_after_the_longer_notice() -> None:
    world = windowed()
    start = turns.start_of(world.maintenance, Span(OPENS, OPENS + HOUR), NOW)
    assert start == Start(not_before=None, notice_seconds=0, opens_at=OPENS, closes_at=OPENS + HOUR)
    longer = turns.start_of(maintenance(notice_seconds=3600), ALWAYS, NOW)
    assert (longer.opens_at, longer.closes_at) == (None, None)
    assert longer.not_before is not None
    assert NOW + HOUR <= longer.not_before <= NOW + HOUR + SECOND


# What became of units.


def left(unit: Unit) -> bool:
    """No machine of any unit is left that is not done."""
    del unit
    return False


def followed(bench: Bench, unit: Unit, *, has_machines: bool = False, **more: Any) -> Unit:
    """A unit whose operation is 1.1 of the bench."""
    unit = msgspec.structs.replace(unit, state=RUNNING, operation=1)
    of = msgspec.structs.replace(maintenance(), units=(unit,))
    return turns.follow(
        of, bench.snapshot.operations, {}, lambda unit: has_machines, bench.now, **more
    ).units[0]


DOMAIN = Unit(name="web/0", kind=UnitKind.UPDATE_DOMAIN, scope="web")


def test_a_unit_is_done_when_its_operation_is_completed_and_its_domain_is_up() -> None:
    bench = Bench()
    bench.policy = msgspec.structs.replace(bench.policy, settle=MINUTE)
    bench.ask(EventType.REBOOT, "web-0", "web-3")
    bench.let_pass(15 * MINUTE)
    bench.finish("1.1")
    assert bench.operation("1.1").status is EventStatus.COMPLETED
    assert followed(bench, DOMAIN).state is RUNNING
    bench.let_pass(MINUTE)
    unit = followed(bench, DOMAIN)
    assert (unit.state, unit.done) == (UnitState.DONE, ("web-0", "web-3"))


def test_a_unit_that_has_more_machines_has_another_turn() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", "web-3")
    bench.let_pass(15 * MINUTE)
    assert followed(bench, DOMAIN, has_machines=True).state is RUNNING
    bench.finish("1.1")
    unit = followed(bench, DOMAIN, has_machines=True)
    assert (unit.state, unit.done) == (WAITING, ("web-0", "web-3"))


def test_a_unit_whose_operation_failed_has_failed() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    bench.finish("1.1", succeeded=False, message="no power")
    unit = followed(bench, DOMAIN)
    assert unit.state is FAILED
    assert "1.1" in unit.reason
    assert "no power" in unit.reason
    assert unit.changed_at == bench.now
    assert unit.done == ()


def test_a_unit_whose_window_closed_waits_again() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0", closes_at=NOW + HOUR)
    bench.hold(HoldKind.EVERYTHING)
    assert followed(bench, DOMAIN).state is RUNNING
    bench.let_pass(HOUR)
    unit = followed(bench, DOMAIN)
    assert (unit.state, unit.done) == (WAITING, ())
    assert unit.reason == bench.operation("1.1").outcome


def test_a_unit_that_was_recalled_waits_again_and_one_that_others_cancelled_has_failed() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    bench.cancel("1.1")
    assert followed(bench, msgspec.structs.replace(DOMAIN, recalled=True)).state is WAITING
    assert followed(bench, DOMAIN).state is FAILED


def test_the_unit_of_a_host_does_not_answer_for_machines_that_have_left_the_host() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, host="h0")
    bench.move(web_0="h1", web_3="h1")
    assert bench.operation("1.1").status is EventStatus.CANCELED
    unit = followed(bench, Unit(name="h0", kind=UnitKind.HOST))
    assert (unit.state, unit.reason, unit.done) == (UnitState.DONE, "", ())


def test_a_unit_that_history_has_forgotten_has_failed_and_one_not_recalled_yet_goes_on() -> None:
    assert followed(Bench(), DOMAIN).state is RUNNING
    assert followed(Bench(), DOMAIN, lost={"1.1"}).state is FAILED


@pytest.mark.parametrize(
    ("drain", "state"),
    [
        (None, FAILED),
        ({"state": HostState.DRAINING}, RUNNING),
        ({"state": HostState.STUCK, "reason": "no power"}, FAILED),
        ({"state": HostState.UP}, FAILED),
        ({"state": HostState.UP, "reboot_asked_at": NOW}, UnitState.DONE),
    ],
)
def test_a_unit_follows_the_drain_of_its_host(
    drain: dict[str, Any] | None, state: UnitState
) -> None:
    unit = Unit(name="h0", kind=UnitKind.HOST, drain=True, state=RUNNING)
    of = msgspec.structs.replace(maintenance(), units=(unit,))
    drains = {}
    if drain is not None:
        drains["h0"] = Drain(host="h0", requested_at=NOW, changed_at=NOW, **drain)
    assert turns.follow(of, {}, drains, left, NOW).units[0].state is state


def test_the_footprint_of_machines_is_their_domains_and_places() -> None:
    machines = Bench().snapshot.machines
    some = [machines[name] for name in ("web-0", "web-3", "batch_0")]
    takes = footprints.footprint(some, "host")
    assert takes.domains == {"web": 0, "batch": machines["batch_0"].update_domain}
    assert takes.places == {"h0"}
    several = footprints.footprint([machines["web-0"], machines["web-1"]], "fault-domain")
    assert several.domains == {"web": SEVERAL}
    assert several.places == {f"web/{machines[name].fault_domain}" for name in ("web-0", "web-1")}
    tagged = msgspec.structs.replace(machines["web-0"], tags=(("role", "leader"), ("x", "y")))
    assert footprints.footprint([tagged], "tag:role").places == {"leader"}


def test_tags_are_read_as_people_write_them() -> None:
    read = units.read_tags
    assert read([]) == {}
    assert read(["rack=r1", "os=", "query=a=b"]) == {"rack": "r1", "os": "", "query": "a=b"}
    for wrong in (["rack"], ["=r1"], ["rack=r1", "rack=r2"]):
        with pytest.raises(ValueError, match=wrong[-1]):
            read(wrong)


@pytest.mark.parametrize("state", [each for each in MaintenanceState if not each.over])
@pytest.mark.parametrize("trigger", MaintenanceTrigger)
def test_what_the_table_lacks_is_refused(
    state: MaintenanceState, trigger: MaintenanceTrigger
) -> None:
    before = msgspec.structs.replace(maintenance(), state=state)
    following = units.TRANSITIONS.get((state, trigger))
    if following is not None:
        assert turns.entered(before, trigger, NOW).state is following
        return
    with pytest.raises(Refused) as refusal:
        turns.entered(before, trigger, NOW)
    assert refusal.value.code is ErrorCode.CONFLICT


def refused(order: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as found:
        order()
    return found.value


# Orders.


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
        return footprints.in_the_way(unit, takes, live, (), domains)

    assert "1.1" in in_the_way("web-0", web=0)
    assert "1.1" in in_the_way("web-1", web=1)
    assert in_the_way("web-3", web=0) == ""
    assert in_the_way("batch_0", batch=0) == ""
    over = [msgspec.structs.replace(one, status=EventStatus.COMPLETED) for one in live]
    takes = Footprint(machines=("web-0",), domains={})
    assert footprints.in_the_way(unit, takes, over, (), ()) == ""


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
    takes = Footprint(machines=("own", "guest"), domains={})
    coming = drained("h1", state, other="h2")
    there = drained("h1", state, Guest="h3")
    elsewhere = drained("h1", state, other="h3")
    itself = drained("h2", state, own="h3")
    assert "h1" in footprints.in_the_way(unit, takes, (), [coming], ())
    assert "h1" in footprints.in_the_way(unit, takes, (), [elsewhere, there], ())
    assert footprints.in_the_way(unit, takes, (), [elsewhere, itself], ()) == ""
    ended = [drained("h1", end, guest="h2") for end in (HostState.UP, HostState.STUCK)]
    assert footprints.in_the_way(unit, takes, (), ended, ()) == ""
    stopped = Unit(name="h2", kind=UnitKind.HOST)
    assert footprints.in_the_way(stopped, takes, (), [coming], ()) == ""


def test_the_hosts_that_have_their_turn_soon_are_those_next_in_order() -> None:
    names = [f"h{n}" for n in range(8)]
    units = tuple(Unit(name=name, kind=UnitKind.HOST, drain=True) for name in names)
    units = (msgspec.structs.replace(units[0], state=UnitState.RUNNING), *units[1:])
    of = msgspec.structs.replace(maintenance(*names, at_once="2"), units=units)
    assert turn_plan.drained_soon(of, units[1]) == ("h2", "h3", "h4", "h5")
    stopped = msgspec.structs.replace(of, units=())
    assert turn_plan.drained_soon(stopped, units[1]) == ()


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


# The check.


def checked(*names: str, **policy: Any) -> World:
    policy = {"check": "smoke", "check_tries": 3, "check_within_seconds": 300} | policy
    return World(maintenance(*names, **policy))


PASSED, BAD = CheckResult(passed=True), CheckResult(passed=False, message="exit status 1")


def test_the_progress_of_a_check_tells_who_runs_it_and_why_it_failed() -> None:
    world = checked("h0", "h1")
    assert world.maintenance.check == CheckProgress()
    world.asked()
    world.ends("h0")
    run = world.begins_check()
    lease_until = NOW + 100 * SECOND + MARGIN
    under_way = CheckProgress(run=1, replica="r1", began_at=NOW, lease_until=lease_until)
    assert world.maintenance.check == under_way
    world.check_ends(run, BAD)
    assert (world.maintenance.check.failed, world.maintenance.check.reason) == (1, "exit status 1")
    assert world.maintenance.check.due
    again = turn_check.begin_again(world.maintenance)
    assert (again.check.failed, again.check.reason) == (0, "")
    world.now += 100 * SECOND
    world.check_ends(world.begins_check(), PASSED)
    passed = CheckProgress(run=2, replica="r1", began_at=world.now, passed_at=world.now)
    assert world.maintenance.check == passed
    assert turn_check.released(world.maintenance) is world.maintenance
    assert turn_check.begin_again(world.maintenance) is world.maintenance


# Approval.


def test_until_a_time_units_start_only_with_approval() -> None:
    until = NOW + 48 * HOUR
    world = World(maintenance("h0", approval_until=until))
    assert world.asked() == ["h0"]
    asked = turns.start_of(world.maintenance, ALWAYS, NOW)
    assert asked.not_before is not None
    assert until <= asked.not_before <= until + 2 * SECOND
    later = turns.start_of(world.maintenance, ALWAYS, until)
    assert later.not_before is not None
    assert later.not_before >= until + 15 * MINUTE


def test_a_window_that_closes_before_approval_is_optional_is_left_out() -> None:
    world = windowed(approval_until=OPENS + 2 * HOUR)
    step = world.step()
    assert isinstance(step, Wait)
    assert step.until is not None
    assert step.until.date() == (OPENS + 24 * HOUR).date()
    world = windowed(approval_until=OPENS + HOUR / 2)
    world.now = OPENS - 15 * MINUTE
    assert world.asked() == ["h0"]
    window = Span(OPENS, OPENS + HOUR)
    asked = turns.start_of(world.maintenance, window, world.now)
    assert asked.not_before is not None
    assert asked.opens_at == OPENS
    assert OPENS + HOUR / 2 <= asked.not_before < OPENS + HOUR


def test_a_unit_that_ends_makes_the_check_due_and_one_under_way_does_not() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    unit = Unit(name="web-0", kind=UnitKind.MACHINES, state=RUNNING, operation=1)
    of = msgspec.structs.replace(maintenance(check="smoke"), units=(unit,))

    def due(of: Maintenance) -> bool:
        following = turns.follow(of, bench.snapshot.operations, {}, lambda unit: False, bench.now)
        return following.check.due

    assert not due(of)
    bench.let_pass(15 * MINUTE)
    bench.finish("1.1")
    assert due(of)
    without = msgspec.structs.replace(maintenance(), units=(unit,))
    assert not due(without)


@pytest.mark.parametrize(
    ("read", "right", "wrong"),
    [
        (units.read_amount, ("1", "99999", "1%", "10%", "100%"), ("", "0", "0%", "101%", "rest")),
        (units.read_spread, ("", "host", "tag:rack"), ("tag:", "Host", "rack")),
        (
            units.read_waves,
            ([], ["rest"], ["1", "10%", "rest"], ["1", "2"]),
            (["0"], ["0", "rest"], ["rest", "1"], ["1", "0"]),
        ),
    ],
)
def test_amounts_waves_and_places_are_read_as_people_write_them(
    read: Callable[[Any], Any], right: tuple[Any, ...], wrong: tuple[Any, ...]
) -> None:
    for each in right:
        assert read(each) == each
    for each in wrong:
        with pytest.raises(ValueError, match="expected"):
            read(each)
