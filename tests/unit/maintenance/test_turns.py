"""What a maintenance whose units take turns asks for, and what it waits for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import footprints, turns, units
from forewarn.maintenance.footprints import SEVERAL
from forewarn.maintenance.model import (
    Drain,
    HoldKind,
    HostState,
    Refused,
)
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Ask, Done, Obstacle, Start, Stop, Wait
from forewarn.maintenance.units import (
    CONFIRM,
    MaintenanceState,
    MaintenanceTrigger,
    Unit,
    UnitKind,
    UnitState,
)
from forewarn.vocabulary import ErrorCode, EventStatus, EventType
from turn_world import (
    ALWAYS,
    FAILED,
    HOUR,
    OPENS,
    RUNNING,
    WAITING,
    World,
    maintenance,
    windowed,
)


def test_by_default_one_unit_goes_after_another_and_then_it_is_done() -> None:
    world = World(maintenance("h0", "h1"))
    assert world.asked() == ["h0"]
    assert world.waits() is Obstacle.AT_ONCE
    world.end("h0")
    assert world.asked() == ["h1"]
    world.end("h1")
    assert isinstance(world.step(), Done)
    assert world.maintenance.state is MaintenanceState.DONE


@pytest.mark.parametrize(("at_once", "count"), [("2", 2), ("50%", 2), ("100%", 4), ("1%", 1)])
def test_so_many_go_at_once_as_the_policy_says(at_once: str, count: int) -> None:
    assert len(World(maintenance(at_once=at_once)).asked()) == count


def test_two_units_that_take_two_domains_of_a_scope_do_not_go_at_once() -> None:
    world = World(
        maintenance(at_once="4"), h0={"web": 0}, h1={"web": 1}, h2={"web": 0}, h3={"db": 1}
    )
    assert world.asked() == ["h0", "h2", "h3"]
    assert world.waits() is Obstacle.UPDATE_DOMAIN
    assert "web" in world.unit("h1").reason
    world.end("h0")
    assert world.asked() == []
    world.end("h2")
    assert world.asked() == ["h1"]


def test_a_unit_with_several_domains_of_a_scope_goes_alone_there() -> None:
    several = {"web": SEVERAL}
    world = World(maintenance("h0", "h1", at_once="4"), h0=several, h1=several)
    assert world.asked() == ["h0"]
    assert world.waits() is Obstacle.UPDATE_DOMAIN


def test_of_each_place_one_unit_goes_at_a_time() -> None:
    world = World(maintenance(at_once="4", spread="fault-domain"))
    world.places = {"h0": {"rack1"}, "h1": {"rack1"}, "h2": {"rack2"}, "h3": {"rack2", "rack1"}}
    assert world.asked() == ["h0", "h2"]
    assert world.waits() is Obstacle.SPREAD


def test_a_blocked_unit_says_why_and_keeps_no_other_from_going() -> None:
    world = World(maintenance("h0", "h1"))
    world.other = {"h0": "web-0 has 12.1"}
    assert world.asked() == ["h1"]
    assert world.unit("h0").reason == "web-0 has 12.1"
    world.end("h1")
    step = world.step()
    assert isinstance(step, Wait)
    assert step.obstacle is Obstacle.MAINTENANCE
    assert step.until == NOW + turns.LOOK_AGAIN_AFTER
    assert "h0" in world.maintenance.reason
    world.other = {}
    assert world.asked() == ["h0"]


def test_what_may_not_be_at_all_has_failed_and_a_host_that_cannot_be_drained_waits() -> None:
    world = World(maintenance("h0", "h1"))
    drained = msgspec.structs.replace(world.maintenance.units[1], drain=True)
    units = (world.maintenance.units[0], drained)
    world.maintenance = msgspec.structs.replace(world.maintenance, units=units)
    refusal = Refused(ErrorCode.NOT_ELIGIBLE, "it is off")
    world.maintenance = turns.refused(world.maintenance, {0: refusal, 1: refusal}, NOW)
    assert [unit.state for unit in world.maintenance.units] == [FAILED, WAITING]
    assert isinstance(world.step(), Stop)


def test_what_the_rules_refuse_is_asked_again_later() -> None:
    world = World(maintenance("h0", "h1"))
    refusal = Refused(ErrorCode.LIMIT, "too many pending events")
    world.maintenance = turns.refused(world.maintenance, {0: refusal}, NOW)
    assert world.asked() == ["h1"]
    assert world.unit("h0").reason == "too many pending events"
    world.end("h1")
    assert world.waits() is Obstacle.REFUSED
    world.now += turns.ASK_AGAIN_AFTER
    assert world.asked() == ["h0"]
    assert world.unit("h0").retry_at is None


def test_a_wave_begins_when_the_one_before_is_over() -> None:
    world = World(maintenance("h0", "h1", "h2", waves={"h1": 1, "h2": 1}, at_once="3"))
    assert world.asked() == ["h0"]
    assert world.waits() is Obstacle.UNITS
    world.end("h0")
    assert world.asked() == ["h1", "h2"]


def test_a_pause_lies_between_two_waves() -> None:
    world = World(maintenance("h0", "h1", waves={"h1": 1}, pause_seconds=600))
    world.asked()
    world.end("h0")
    step = world.step()
    assert isinstance(step, Wait)
    assert step.obstacle is Obstacle.PAUSE
    assert step.until == NOW + 10 * MINUTE
    world.now += 10 * MINUTE
    assert world.asked() == ["h1"]


def test_a_wave_that_has_to_be_confirmed_waits_for_an_operator() -> None:
    world = World(maintenance("h0", "h1", waves={"h1": 1}, pause_seconds=CONFIRM))
    world.asked()
    with pytest.raises(Refused):
        world.order(MaintenanceOrder.RESUME)
    world.end("h0")
    assert world.waits() is Obstacle.CONFIRMATION
    world.now += 1000 * HOUR
    assert world.waits() is Obstacle.CONFIRMATION
    world.order(MaintenanceOrder.RESUME)
    assert world.asked() == ["h1"]


def test_the_first_failure_halts_it_and_recalls_what_has_not_started() -> None:
    world = World(maintenance(at_once="2"))
    world.asked()
    world.end("h0", FAILED, "1.1 is Failed: no power")
    step = world.step()
    assert isinstance(step, Stop)
    assert "h0" in step.reason
    assert world.maintenance.state is MaintenanceState.HALTED
    assert turns.to_recall(world.maintenance) == ["1.2"]
    assert world.waits() is Obstacle.OPERATOR


def test_a_failure_of_the_last_unit_halts_it_until_an_operator_decides() -> None:
    world = World(maintenance("h0"))
    world.asked()
    world.end("h0", FAILED)
    assert isinstance(world.step(), Stop)
    assert world.waits() is Obstacle.OPERATOR
    world.order(MaintenanceOrder.RESUME)
    assert isinstance(world.step(), Done)
    assert world.unit("h0").state is FAILED


def test_so_many_failures_halt_it_as_the_policy_says() -> None:
    world = World(maintenance(stop_after=2))
    for name in ("h0", "h1"):
        assert world.asked() == [name]
        world.end(name, FAILED)
    assert isinstance(world.step(), Stop)


def test_a_failure_that_was_accepted_does_not_halt_it_again() -> None:
    world = World(maintenance())
    world.asked()
    world.end("h0", FAILED)
    world.step()
    world.order(MaintenanceOrder.RESUME)
    assert world.asked() == ["h1"]
    world.end("h1", FAILED)
    assert isinstance(world.step(), Stop)


def test_a_stop_recalls_what_is_announced_and_is_final() -> None:
    world = World(maintenance())
    world.asked()
    world.order(MaintenanceOrder.STOP)
    assert turns.to_recall(world.maintenance) == ["1.1"]
    assert isinstance(world.step(), Done)
    assert world.maintenance.open
    world.end("h0", WAITING)
    assert not world.maintenance.open
    for kind in MaintenanceOrder:
        with pytest.raises(Refused) as refused:
            world.order(kind, "h0")
        assert refused.value.code is ErrorCode.TOO_LATE


# Windows.


def test_a_unit_is_asked_for_so_early_that_its_notice_is_over_when_the_window_opens() -> None:
    world = windowed()
    step = world.step()
    assert isinstance(step, Wait)
    assert step.obstacle is Obstacle.WINDOW
    assert step.until is not None
    assert timedelta(0) < OPENS - step.until - 15 * MINUTE <= MINUTE
    world.now = step.until
    assert world.asked() == ["h0"]


def test_no_unit_is_asked_for_after_the_cutoff() -> None:
    world = windowed(cutoff_seconds=1800)
    world.now = OPENS + 31 * MINUTE
    assert world.waits() is Obstacle.WINDOW
    world.now = OPENS + 30 * MINUTE
    assert world.asked() == ["h0"]


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


def test_a_drain_begins_in_the_window() -> None:
    world = windowed()
    units = tuple(msgspec.structs.replace(unit, drain=True) for unit in world.maintenance.units)
    world.maintenance = msgspec.structs.replace(world.maintenance, units=units)
    step = world.step()
    assert isinstance(step, Wait)
    assert step.until == OPENS
    world.now = OPENS
    assert world.asked() == ["h0"]


def test_a_policy_whose_windows_are_too_short_says_so() -> None:
    world = World(maintenance(windows=("daily 22:00-22:10",), notice_seconds=3600))
    world.now = OPENS - HOUR - timedelta(seconds=1)
    assert world.asked() == ["h0"]  # announced an hour before
    short = World(maintenance(windows=("daily 22:00-22:10",), cutoff_seconds=3600))
    step = short.step()
    assert isinstance(step, Wait)
    assert step.why == turns.NO_WINDOW


def test_a_unit_starts_in_the_window_and_after_the_longer_notice() -> None:
    world = windowed()
    start = turns.start_of(world.maintenance, Span(OPENS, OPENS + HOUR), NOW)
    assert start == Start(not_before=None, notice_seconds=0, opens_at=OPENS, closes_at=OPENS + HOUR)
    longer = turns.start_of(maintenance(notice_seconds=3600), ALWAYS, NOW)
    assert (longer.opens_at, longer.closes_at) == (None, None)
    assert longer.not_before is not None
    assert NOW + HOUR <= longer.not_before <= NOW + HOUR + SECOND


def once(closes_at: datetime, **policy: Any) -> World:
    """A maintenance in one window of its own, which closes then."""
    of = maintenance("h0", "h1", **policy)
    return World(msgspec.structs.replace(of, opens_at=OPENS, closes_at=closes_at))


def test_the_window_of_the_maintenance_itself_goes_before_those_of_the_policy() -> None:
    world = once(OPENS + HOUR, windows=("daily 02:00-03:00",))
    step = world.step()
    assert isinstance(step, Wait)
    assert step.until is not None
    assert timedelta(0) < OPENS - step.until - 15 * MINUTE <= MINUTE
    world.now = step.until
    step = world.step()
    assert isinstance(step, Ask)
    assert step.window == Span(OPENS, OPENS + HOUR)


def test_of_several_places_that_are_taken_every_replica_names_the_same() -> None:
    world = World(maintenance("h0", "h1", "h2", spread="host", at_once="3"))
    world.places = {"h0": {"b"}, "h1": {"a"}, "h2": {"a", "b", "c"}}
    assert world.asked() == ["h0", "h1"]
    world.step()
    assert world.unit("h2").reason == "h1 is under way in a"


def test_a_host_is_not_drained_before_its_window_opens_though_others_are_announced() -> None:
    world = windowed()
    drained = msgspec.structs.replace(world.maintenance.units[0], drain=True)
    units = (drained, *world.maintenance.units[1:])
    world.maintenance = msgspec.structs.replace(world.maintenance, units=units)
    world.now = OPENS - MINUTE
    assert world.asked() == ["h1"]
    world.end("h1")
    world.now = OPENS
    assert world.asked() == ["h0"]


def test_a_window_that_closes_leaves_what_has_not_gone_skipped() -> None:
    world = once(OPENS + HOUR)
    world.now = OPENS
    assert world.asked() == ["h0"]
    world.now = OPENS + HOUR
    world.end("h0")
    assert world.step() == Wait(obstacle=Obstacle.WINDOW, until=world.now)
    skipped = world.unit("h1")
    assert (skipped.state, skipped.changed_at) == (UnitState.SKIPPED, world.now)
    assert "23:00" in skipped.reason
    assert world.unit("h0").state is UnitState.DONE
    assert isinstance(world.step(), Done)


def test_what_is_under_way_when_the_window_closes_is_not_skipped() -> None:
    world = once(OPENS + HOUR, at_once="2")
    world.takes = {"h0": {"web": 0}, "h1": {"web": 1}}
    world.now = OPENS
    assert world.asked() == ["h0"]
    world.now = OPENS + HOUR
    world.step()
    assert [unit.state for unit in world.maintenance.units] == [RUNNING, UnitState.SKIPPED]
    assert world.maintenance.state is MaintenanceState.RUNNING


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


@pytest.mark.parametrize(
    "policy", [{"zone": "Mars/Olympus"}, {"windows": ("some other day",)}], ids=str
)
def test_a_policy_that_can_not_be_read_any_more_halts_it(policy: dict[str, Any]) -> None:
    """It could when the maintenance began: the machine's time zones are others now."""
    world = World(maintenance("h0", "h1"))
    assert world.asked() == ["h0"]
    broken = msgspec.structs.replace(world.maintenance.policy, **policy)
    world.maintenance = msgspec.structs.replace(world.maintenance, policy=broken)
    for _ in range(2):
        step = world.step()
        assert isinstance(step, Stop)
        assert world.maintenance.state is MaintenanceState.HALTED
        assert next(iter(policy)) in step.reason
        world.order(MaintenanceOrder.RESUME)


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
