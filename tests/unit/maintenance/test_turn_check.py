"""The check of a maintenance, and the approval that it requires."""

from typing import Any

import msgspec

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import turn_check, turns
from forewarn.maintenance.model import Maintenance
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turn_check import CheckResult
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Check, Done, Obstacle, Stop, Wait
from forewarn.maintenance.units import CONFIRM, CheckProgress, MaintenanceState, Unit, UnitKind
from forewarn.vocabulary import EventType
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

# The check.


def checked(*names: str, **policy: Any) -> World:
    policy = {"check": "smoke", "check_tries": 3, "check_within_seconds": 300} | policy
    return World(maintenance(*names, **policy))


PASSED, BAD = CheckResult(passed=True), CheckResult(passed=False, message="exit status 1")


def test_after_a_unit_the_check_has_to_pass_before_the_next_goes() -> None:
    world = checked("h0", "h1")
    assert world.asked() == ["h0"]
    world.ends("h0")
    run = world.begins_check()
    assert (run.name, run.maintenance, run.number, run.wave, run.seconds) == ("smoke", 1, 1, 1, 100)
    assert world.waits() is Obstacle.CHECK
    assert world.maintenance.reason
    world.check_ends(run, PASSED)
    assert world.asked() == ["h1"]


def test_the_check_of_the_last_unit_has_to_pass_before_the_maintenance_is_done() -> None:
    world = checked("h0")
    world.asked()
    world.ends("h0")
    run = world.begins_check()
    world.check_ends(run, PASSED)
    assert isinstance(world.step(), Done)


def test_a_failed_check_is_tried_again_and_halts_the_maintenance_when_it_failed_too_often() -> None:
    world = checked("h0", "h1", "h2", at_once="2")
    world.asked()
    world.ends("h0")
    for failed in (1, 2):
        world.check_ends(world.begins_check(), BAD)
        step = world.step()
        assert isinstance(step, Wait)
        assert step.obstacle is Obstacle.CHECK
        assert step.until == NOW + failed * 100 * SECOND
        assert "exit status 1" in step.why
        world.now = step.until
    world.check_ends(world.begins_check(), BAD)
    step = world.step()
    assert isinstance(step, Stop)
    assert "smoke" in step.reason
    assert "exit status 1" in step.reason
    assert world.maintenance.state is MaintenanceState.HALTED
    assert turns.to_recall(world.maintenance) == ["1.2"]


def test_a_check_that_passes_at_last_has_all_its_tries_the_next_time() -> None:
    world = checked("h0", "h1", check_tries=2)
    for name in ("h0", "h1"):
        assert world.asked() == [name]
        world.ends(name)
        world.check_ends(world.begins_check(), BAD)
        world.now += 150 * SECOND
        world.check_ends(world.begins_check(), PASSED)
        assert not isinstance(world.step(), Stop)


def test_a_slow_try_that_fails_is_followed_by_the_next_at_once() -> None:
    world = checked("h0", "h1")
    world.asked()
    world.ends("h0")
    run = world.begins_check()
    world.now += 101 * SECOND
    world.check_ends(run, BAD)
    assert world.begins_check().number == run.number + 1


def test_a_unit_that_ends_while_the_check_runs_is_checked_too() -> None:
    world = checked(at_once="2")
    world.asked()
    world.ends("h0")
    first = world.begins_check()
    world.ends("h1")
    assert world.waits() is Obstacle.CHECK
    world.check_ends(first, PASSED)
    second = world.begins_check()
    assert second.number == first.number + 1
    world.check_ends(second, PASSED)
    assert world.asked() == ["h2", "h3"]


def test_a_unit_whose_window_closed_is_checked_too() -> None:
    world = checked("h0", "h1")
    world.asked()
    world.ends("h0", WAITING)
    assert isinstance(world.step(), Check)


def test_a_check_whose_runner_was_lost_runs_again_and_that_is_no_failed_try() -> None:
    world = checked("h0", "h1", check_tries=1)
    world.asked()
    world.ends("h0")
    lost = world.begins_check()
    world.now += 300 * SECOND + MARGIN - SECOND
    assert world.waits() is Obstacle.CHECK
    world.now += SECOND
    again = world.begins_check()
    world.check_ends(lost, BAD)  # it comes too late
    assert world.waits() is Obstacle.CHECK
    world.maintenance = turn_check.released(world.maintenance)
    third = world.begins_check()
    world.check_ends(again, BAD)
    world.check_ends(third, PASSED)
    world.check_ends(third, BAD)
    assert world.asked() == ["h1"]


def test_a_resumed_maintenance_runs_its_check_again() -> None:
    world = checked("h0", "h1", check_tries=1)
    world.asked()
    world.ends("h0")
    world.check_ends(world.begins_check(), BAD)
    assert isinstance(world.step(), Stop)
    assert world.waits() is Obstacle.OPERATOR
    world.order(MaintenanceOrder.RESUME)
    world.now += 300 * SECOND
    world.check_ends(world.begins_check(), PASSED)
    assert world.asked() == ["h1"]


def test_no_check_begins_while_an_operator_has_paused_the_maintenance() -> None:
    world = checked("h0", "h1")
    world.asked()
    world.order(MaintenanceOrder.PAUSE)
    world.ends("h0")
    assert world.waits() is Obstacle.OPERATOR
    world.order(MaintenanceOrder.RESUME)
    assert isinstance(world.step(), Check)


def test_a_failed_unit_counts_before_its_check() -> None:
    world = checked("h0", "h1")
    world.asked()
    world.ends("h0", FAILED)
    assert isinstance(world.step(), Stop)
    world.order(MaintenanceOrder.RESUME)
    assert isinstance(world.step(), Check)


def test_a_pause_between_waves_begins_when_the_check_has_passed_and_ends_with_another() -> None:
    world = checked("h0", "h1", "h2", waves={"h1": 1, "h2": 1}, pause_seconds=600)
    world.asked()
    world.ends("h0")
    world.check_ends(world.begins_check(), PASSED)
    assert world.waits() is Obstacle.PAUSE
    world.now += 600 * SECOND
    world.check_ends(world.begins_check(), PASSED)
    assert world.asked() == ["h1"]
    world.ends("h1")
    world.now += SECOND
    world.check_ends(world.begins_check(), PASSED)
    assert world.asked() == ["h2"]


def test_a_wave_that_an_operator_confirms_is_not_checked_again() -> None:
    for pause in (CONFIRM, 600):
        world = checked("h0", "h1", waves={"h1": 1}, pause_seconds=pause)
        world.asked()
        world.ends("h0")
        world.check_ends(world.begins_check(), PASSED)
        world.waits()
        world.now += SECOND
        world.order(MaintenanceOrder.RESUME)
        assert world.asked() == ["h1"]


def test_without_a_pause_the_next_wave_is_not_checked_again() -> None:
    world = checked("h0", "h1", waves={"h1": 1})
    world.asked()
    world.ends("h0")
    run = world.begins_check()
    world.now += SECOND
    world.check_ends(run, PASSED)
    assert world.asked() == ["h1"]


def test_after_the_shortest_pause_a_wave_is_checked_again() -> None:
    world = checked("h0", "h1", waves={"h1": 1}, pause_seconds=1)
    world.asked()
    world.ends("h0")
    world.check_ends(world.begins_check(), PASSED)
    assert world.waits() is Obstacle.PAUSE
    world.now += SECOND
    assert isinstance(world.step(), Check)


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


def test_drains_do_not_wait_for_approval() -> None:
    world = windowed(approval_until=OPENS + 48 * HOUR)
    units = tuple(msgspec.structs.replace(unit, drain=True) for unit in world.maintenance.units)
    world.maintenance = msgspec.structs.replace(world.maintenance, units=units)
    world.now = OPENS
    assert world.asked() == ["h0"]


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
