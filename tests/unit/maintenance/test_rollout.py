"""What a rollout asks for, and what it waits for."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, Bench
from forewarn.maintenance import planner, rollout_model
from forewarn.maintenance import rollout as deciding
from forewarn.maintenance.model import (
    Drain,
    Hold,
    HoldKind,
    HostState,
    Operation,
    Refused,
    RollingState,
)
from forewarn.maintenance.rollout import (
    Ask,
    Done,
    Footprint,
    Obstacle,
    RolloutOrderKind,
    Stop,
    UnitNews,
    Wait,
)
from forewarn.maintenance.rollout_model import (
    CONFIRM,
    RolloutPolicy,
    RolloutState,
    RolloutUnit,
    UnitState,
)
from forewarn.maintenance.time_windows import Span
from forewarn.vocabulary import ErrorCode, EventStatus, EventType, TargetKind
from rollout_world import ALWAYS, FAILED, HOUR, OPENS, RUNNING, WAITING, World, rollout, windowed


def test_by_default_one_unit_goes_after_another_and_then_it_is_done() -> None:
    world = World(rollout("h0", "h1"))
    assert world.asked() == ["h0"]
    assert world.waits() is Obstacle.AT_ONCE
    world.end("h0")
    assert world.asked() == ["h1"]
    world.end("h1")
    assert isinstance(world.step(), Done)
    assert world.rollout.state is RolloutState.DONE


@pytest.mark.parametrize(("at_once", "count"), [("2", 2), ("50%", 2), ("100%", 4), ("1%", 1)])
def test_so_many_go_at_once_as_the_policy_says(at_once: str, count: int) -> None:
    assert len(World(rollout(at_once=at_once)).asked()) == count


def test_two_units_that_take_two_domains_of_a_scope_do_not_go_at_once() -> None:
    world = World(rollout(at_once="4"), h0={"web": 0}, h1={"web": 1}, h2={"web": 0}, h3={"db": 1})
    assert world.asked() == ["h0", "h2", "h3"]
    assert world.waits() is Obstacle.UPDATE_DOMAIN
    assert "h" in world.unit("h1").reason
    world.end("h0")
    assert world.asked() == []
    world.end("h2")
    assert world.asked() == ["h1"]


def test_a_unit_with_several_domains_of_a_scope_goes_alone_there() -> None:
    several = {"web": deciding.SEVERAL}
    world = World(rollout("h0", "h1", at_once="4"), h0=several, h1=several)
    assert world.asked() == ["h0"]
    assert world.waits() is Obstacle.UPDATE_DOMAIN


def test_of_each_place_one_unit_goes_at_a_time() -> None:
    world = World(rollout(at_once="4", spread="fault-domain"))
    world.places = {"h0": {"rack1"}, "h1": {"rack1"}, "h2": {"rack2"}, "h3": {"rack2", "rack1"}}
    assert world.asked() == ["h0", "h2"]
    assert world.waits() is Obstacle.SPREAD


def test_a_blocked_unit_says_why_and_keeps_no_other_from_going() -> None:
    world = World(rollout("h0", "h1"))
    world.other = {"h0": "web-0 has 12.1"}
    assert world.asked() == ["h1"]
    assert world.unit("h0").reason == "web-0 has 12.1"
    world.end("h1")
    step = world.step()
    assert isinstance(step, Wait)
    assert step.obstacle is Obstacle.MAINTENANCE
    assert step.until == NOW + deciding.LOOK_AGAIN_AFTER
    assert "h0" in world.rollout.reason
    world.other = {}
    assert world.asked() == ["h0"]


def test_what_the_rules_refuse_is_asked_again_later() -> None:
    world = World(rollout("h0", "h1"))
    refusal = Refused(ErrorCode.NOT_ELIGIBLE, "scope web is off")
    world.rollout = deciding.refused(world.rollout, 0, refusal, NOW)
    assert world.asked() == ["h1"]
    assert world.unit("h0").reason == "scope web is off"
    world.end("h1")
    assert world.waits() is Obstacle.REFUSED
    world.now += deciding.ASK_AGAIN_AFTER
    assert world.asked() == ["h0"]
    assert world.unit("h0").retry_at is None


def test_a_wave_begins_when_the_one_before_is_over() -> None:
    world = World(rollout("h0", "h1", "h2", waves={"h1": 1, "h2": 1}, at_once="3"))
    assert world.asked() == ["h0"]
    assert world.waits() is Obstacle.UNITS
    world.end("h0")
    assert world.asked() == ["h1", "h2"]


def test_a_pause_lies_between_two_waves() -> None:
    world = World(rollout("h0", "h1", waves={"h1": 1}, pause_seconds=600))
    world.asked()
    world.end("h0")
    step = world.step()
    assert isinstance(step, Wait)
    assert step.obstacle is Obstacle.PAUSE
    assert step.until == NOW + 10 * MINUTE
    world.now += 10 * MINUTE
    assert world.asked() == ["h1"]


def test_a_wave_that_has_to_be_confirmed_waits_for_an_operator() -> None:
    world = World(rollout("h0", "h1", waves={"h1": 1}, pause_seconds=CONFIRM))
    world.asked()
    with pytest.raises(Refused):
        world.order(RolloutOrderKind.RESUME)
    world.end("h0")
    assert world.waits() is Obstacle.CONFIRMATION
    world.now += 1000 * HOUR
    assert world.waits() is Obstacle.CONFIRMATION
    world.order(RolloutOrderKind.RESUME)
    assert world.asked() == ["h1"]


def test_resuming_ends_a_pause_between_waves_early() -> None:
    world = World(rollout("h0", "h1", waves={"h1": 1}, pause_seconds=600))
    world.asked()
    world.end("h0")
    assert world.waits() is Obstacle.PAUSE
    world.order(RolloutOrderKind.RESUME)
    assert world.asked() == ["h1"]


def test_the_first_failure_halts_it_and_recalls_what_has_not_started() -> None:
    world = World(rollout(at_once="2"))
    world.asked()
    world.end("h0", FAILED, "1.1 is Failed: no power")
    step = world.step()
    assert isinstance(step, Stop)
    assert "h0" in step.reason
    assert world.rollout.state is RolloutState.HALTED
    assert deciding.to_recall(world.rollout) == [2]
    assert world.waits() is Obstacle.OPERATOR


def test_a_failure_of_the_last_unit_halts_it_until_an_operator_decides() -> None:
    world = World(rollout("h0"))
    world.asked()
    world.end("h0", FAILED)
    assert isinstance(world.step(), Stop)
    assert world.waits() is Obstacle.OPERATOR
    world.order(RolloutOrderKind.RESUME)
    assert isinstance(world.step(), Done)
    assert world.unit("h0").state is FAILED


def test_so_many_failures_halt_it_as_the_policy_says() -> None:
    world = World(rollout(stop_after=2))
    for name in ("h0", "h1"):
        assert world.asked() == [name]
        world.end(name, FAILED)
    assert isinstance(world.step(), Stop)


def test_a_failure_that_was_accepted_does_not_halt_it_again() -> None:
    world = World(rollout())
    world.asked()
    world.end("h0", FAILED)
    world.step()
    world.order(RolloutOrderKind.RESUME)
    assert world.asked() == ["h1"]
    world.end("h1", FAILED)
    assert isinstance(world.step(), Stop)


def test_a_failed_unit_is_retried_or_skipped() -> None:
    world = World(rollout("h0", "h1"))
    world.asked()
    world.end("h0", FAILED)
    world.step()
    world.order(RolloutOrderKind.RETRY, "h0")
    world.order(RolloutOrderKind.RESUME)
    assert world.asked() == ["h0"]
    world.end("h0", FAILED)
    world.step()
    world.order(RolloutOrderKind.SKIP, "H0".lower())
    world.order(RolloutOrderKind.RESUME)
    assert world.asked() == ["h1"]
    world.end("h1")
    assert isinstance(world.step(), Done)


def test_a_unit_that_waits_is_skipped_and_one_under_way_is_not() -> None:
    world = World(rollout("h0", "h1"))
    world.asked()
    world.order(RolloutOrderKind.SKIP, "h1")
    with pytest.raises(Refused) as refused:
        world.order(RolloutOrderKind.SKIP, "h0")
    assert refused.value.code is ErrorCode.CONFLICT
    with pytest.raises(Refused) as refused:
        world.order(RolloutOrderKind.SKIP, "h9")
    assert refused.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(Refused) as refused:
        world.order(RolloutOrderKind.SKIP, "h1")
    assert refused.value.code is ErrorCode.CONFLICT


def test_a_pause_leaves_what_is_announced_and_asks_for_nothing_further() -> None:
    world = World(rollout())
    world.asked()
    world.order(RolloutOrderKind.PAUSE)
    assert deciding.to_recall(world.rollout) == []
    world.end("h0")
    assert world.waits() is Obstacle.OPERATOR
    with pytest.raises(Refused):
        world.order(RolloutOrderKind.PAUSE)
    world.order(RolloutOrderKind.RESUME)
    assert world.asked() == ["h1"]


def test_a_stop_recalls_what_is_announced_and_is_final() -> None:
    world = World(rollout())
    world.asked()
    world.order(RolloutOrderKind.STOP)
    assert deciding.to_recall(world.rollout) == [1]
    assert isinstance(world.step(), Done)
    assert world.rollout.goes_on
    world.end("h0", WAITING)
    assert not world.rollout.goes_on
    for kind in RolloutOrderKind:
        with pytest.raises(Refused) as refused:
            world.order(kind, "h0")
        assert refused.value.code is ErrorCode.TOO_LATE


def test_a_unit_without_machines_is_left_out() -> None:
    world = World(rollout("h0", "h1"))
    gone = Footprint(machines=(), domains={})
    world.rollout, step = deciding.step(
        world.rollout,
        lambda unit: gone if unit.name == "h0" else world.footprint(unit),
        lambda unit, takes: "",
        NOW,
    )
    assert isinstance(step, Ask)
    assert step.units == (1,)
    assert world.unit("h0").state is UnitState.SKIPPED


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


def test_no_unit_is_asked_for_whose_notice_ends_after_the_window() -> None:
    world = windowed()
    world.now = OPENS + 44 * MINUTE
    assert world.asked() == ["h0"]
    world.end("h0")
    world.now = OPENS + 45 * MINUTE
    assert world.waits() is Obstacle.WINDOW


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
    always = World(rollout(blackouts=blackouts))
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
    world = World(rollout(*names, windows=("daily 02:00-05:00",), zone="Europe/Berlin"))
    world.now = day
    started: list[datetime] = []
    while len(started) < len(names) and world.now < day + 24 * HOUR:
        step = world.step()
        if isinstance(step, Ask):
            (index,) = step.units
            start = max(world.now + 15 * MINUTE, step.window.opens)
            started.append(start)
            world.rollout = deciding.asked(world.rollout, index, index + 1, world.now)
            world.now = start
            world.end(world.rollout.units[index].name)
        else:
            assert isinstance(step, Wait)
            assert step.until is not None
            world.now = step.until
    assert started[-1] - started[0] < hours * HOUR
    # A notice of 15 minutes each: four starts an hour, the first at the window's beginning.
    assert len(started) == pytest.approx(4 * hours, abs=1)


def test_a_drain_begins_in_the_window() -> None:
    world = windowed()
    units = tuple(msgspec.structs.replace(unit, drain=True) for unit in world.rollout.units)
    world.rollout = msgspec.structs.replace(world.rollout, units=units)
    step = world.step()
    assert isinstance(step, Wait)
    assert step.until == OPENS
    world.now = OPENS
    assert world.asked() == ["h0"]


def test_a_policy_whose_windows_are_too_short_says_so() -> None:
    world = World(rollout(windows=("daily 22:00-22:10",), notice_seconds=3600))
    world.now = OPENS - HOUR - timedelta(seconds=1)
    assert world.asked() == ["h0"]  # announced an hour before
    short = World(rollout(windows=("daily 22:00-22:10",), cutoff_seconds=3600))
    step = short.step()
    assert isinstance(step, Wait)
    assert step.why == deciding.NO_WINDOW


def test_what_is_asked_for_carries_the_window_and_the_longer_notice() -> None:
    world = windowed()
    unit, window = world.unit("h0"), Span(OPENS, OPENS + HOUR)
    asked = deciding.request(world.rollout, unit, world.footprint(unit), window, NOW)
    assert (asked.opens_at, asked.closes_at, asked.not_before) == (OPENS, OPENS + HOUR, None)
    assert (asked.host, asked.machines, asked.scope) == ("h0", (), "")
    longer = World(rollout(notice_seconds=3600))
    asked = deciding.request(longer.rollout, unit, world.footprint(unit), ALWAYS, NOW)
    assert (asked.opens_at, asked.closes_at) == (None, None)
    assert asked.not_before is not None
    assert asked.not_before >= NOW + HOUR


def test_a_scope_whose_machines_are_partly_done_asks_for_the_others() -> None:
    unit = RolloutUnit(name="Web", kind=TargetKind.SCOPE, done=("web-0",))
    takes = Footprint(machines=("web-0", "Web-1"), domains={})
    asked = deciding.request(rollout(), unit, takes, ALWAYS, NOW)
    assert (asked.scope, asked.machines) == ("", ("Web-1",))
    fresh = RolloutUnit(name="Web", kind=TargetKind.SCOPE)
    assert deciding.request(rollout(), fresh, takes, ALWAYS, NOW).scope == "Web"


def test_a_host_whose_machines_are_partly_done_asks_for_the_others() -> None:
    unit = RolloutUnit(name="h0", kind=TargetKind.HOST, done=("web-0",))
    takes = Footprint(machines=("web-0", "web-1"), domains={})
    asked = deciding.request(rollout(), unit, takes, ALWAYS, NOW)
    assert (asked.host, asked.machines) == ("", ("web-1",))


def test_a_unit_of_which_nothing_is_left_is_done() -> None:
    world = World(rollout("h0"))
    units = tuple(msgspec.structs.replace(unit, done=("on-h0",)) for unit in world.rollout.units)
    world.rollout = msgspec.structs.replace(world.rollout, units=units)
    assert isinstance(world.step(), Wait)
    assert world.unit("h0").state is UnitState.DONE
    assert isinstance(world.step(), Done)


@pytest.mark.parametrize(
    "policy",
    [
        {"windows": ("never",)},
        {"zone": "Nowhere"},
        {"at_once": "rest"},
        {"blackouts": (Span(NOW, NOW),)},
    ],
)
def test_a_policy_that_cannot_be_read_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        deciding.check_policy(RolloutPolicy(**policy))
    assert refused.value.code is ErrorCode.INVALID


# What became of units.


def followed(bench: Bench, unit: RolloutUnit) -> RolloutUnit:
    """A unit that asked for maintenance 1 of the bench."""
    unit = msgspec.structs.replace(unit, state=RUNNING, maintenance=1)
    of = msgspec.structs.replace(rollout(), units=(unit,))
    operations: list[Operation] = list(bench.snapshot.operations.values())
    news = UnitNews(maintenances=bench.snapshot.maintenances, operations={1: operations}, drains={})
    return deciding.follow(of, news, bench.now).units[0]


SCOPE = RolloutUnit(name="web", kind=TargetKind.SCOPE)


def test_a_unit_is_done_when_its_last_domain_is_up_again() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, scope="web")
    for step in ("1.1", "1.2", "1.3"):
        assert followed(bench, SCOPE).state is RUNNING
        bench.let_pass(15 * MINUTE)
        bench.finish(step)
    assert followed(bench, SCOPE).state is UnitState.DONE


def test_a_unit_whose_operation_failed_has_failed() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, scope="web")
    bench.let_pass(15 * MINUTE)
    bench.finish("1.1", succeeded=False, message="no power")
    unit = followed(bench, SCOPE)
    assert unit.state is FAILED
    assert "no power" in unit.reason
    assert unit.changed_at == bench.now


def test_a_unit_whose_window_closed_waits_again_and_knows_what_is_done() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, scope="web", closes_at=NOW + HOUR)
    bench.let_pass(50 * MINUTE)
    bench.finish("1.1")
    unit = followed(bench, SCOPE)
    assert (unit.state, unit.done) == (WAITING, ("web-0", "web-3"))
    held = Bench()
    held.ask(EventType.REBOOT, "web-0", closes_at=NOW + HOUR)
    held.hold(HoldKind.EVERYTHING)
    assert "held" in followed(held, SCOPE).reason
    held.let_pass(HOUR)
    assert followed(held, SCOPE).state is WAITING


def test_a_unit_that_its_rollout_recalled_waits_again_and_one_that_others_cancelled_failed() -> (
    None
):
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    bench.cancel(maintenance=1)
    assert followed(bench, msgspec.structs.replace(SCOPE, recalled=True)).state is WAITING
    assert followed(bench, SCOPE).state is FAILED


def test_a_unit_whose_rolling_update_is_paused_has_failed() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, scope="web")
    bench.cancel("1.1")
    assert bench.snapshot.maintenances[1].rolling_updates[0].state is RollingState.PAUSED
    assert followed(bench, SCOPE).state is FAILED


def test_a_unit_that_history_has_forgotten_has_failed() -> None:
    assert followed(Bench(), SCOPE).state is FAILED


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
    unit = RolloutUnit(name="h0", kind=TargetKind.HOST, drain=True, state=RUNNING)
    of = msgspec.structs.replace(rollout(), units=(unit,))
    drains = {}
    if drain is not None:
        drains["h0"] = Drain(host="h0", requested_at=NOW, changed_at=NOW, **drain)
    news = UnitNews(maintenances={}, operations={}, drains=drains)
    assert deciding.follow(of, news, NOW).units[0].state is state


def test_the_footprint_of_machines_is_their_domains_and_places() -> None:
    machines = Bench().snapshot.machines
    some = [machines[name] for name in ("web-0", "web-3", "batch_0")]
    takes = deciding.footprint(some, "host")
    assert takes.domains == {"web": 0, "batch": machines["batch_0"].update_domain}
    assert takes.places == {"h0"}
    several = deciding.footprint([machines["web-0"], machines["web-1"]], "fault-domain")
    assert several.domains == {"web": deciding.SEVERAL}
    assert all(place.startswith("web/") for place in several.places)
    tagged = msgspec.structs.replace(machines["web-0"], tags=(("role", "leader"), ("x", "y")))
    assert deciding.footprint([tagged], "tag:role").places == {"leader"}


def test_nothing_but_a_terminal_status_ends_a_unit() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    assert followed(bench, SCOPE).state is RUNNING
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert followed(bench, SCOPE).state is RUNNING
    bench.finish("1.1")
    assert followed(bench, SCOPE).state is UnitState.DONE


def test_tags_are_read_as_people_write_them() -> None:
    read = rollout_model.read_tags
    assert read([]) == {}
    assert read(["rack=r1", "os=", "query=a=b"]) == {"rack": "r1", "os": "", "query": "a=b"}
    for wrong in (["rack"], ["=r1"], ["rack=r1", "rack=r2"]):
        with pytest.raises(ValueError, match=wrong[-1]):
            read(wrong)


@pytest.mark.parametrize(
    "policy", [{"zone": "Mars/Olympus"}, {"windows": ("some other day",)}], ids=str
)
def test_a_policy_that_can_not_be_read_any_more_halts_the_rollout(policy: dict[str, Any]) -> None:
    """It could when the rollout began: the machine's time zones are others now."""
    world = World(rollout("h0", "h1"))
    assert world.asked() == ["h0"]
    broken = msgspec.structs.replace(world.rollout.policy, **policy)
    world.rollout = msgspec.structs.replace(world.rollout, policy=broken)
    for _ in range(2):
        step = world.step()
        assert isinstance(step, Stop)
        assert world.rollout.state is RolloutState.HALTED
        assert next(iter(policy)) in step.reason
        world.order(RolloutOrderKind.RESUME)


HOLDS = [
    (HoldKind.EVERYTHING, "", True),
    (HoldKind.SCOPE, "web", True),
    (HoldKind.SCOPE, "batch", False),
    (HoldKind.HOST, "h0", True),
    (HoldKind.HOST, "h1", False),
    (HoldKind.MACHINE, "web-0", True),
    (HoldKind.MACHINE, "web-1", False),
]


@pytest.mark.parametrize(("kind", "name", "covers"), HOLDS)
def test_a_hold_is_in_the_way_of_what_it_would_cover(
    kind: HoldKind, name: str, *, covers: bool
) -> None:
    machine = Bench().snapshot.machines["web-0"]
    hold = Hold(kind=kind, name=name, reason="storm", by="ann", at=NOW)
    said = planner.on_hold([machine], [hold])
    assert said == (f"{hold} is on hold, by ann" if covers else "")
