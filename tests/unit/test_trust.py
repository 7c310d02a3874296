"""Whether the time of day can be trusted, look by look."""

from datetime import timedelta

import pytest

from builders import NOW, SECOND
from forewarn.clock import ManualClock
from forewarn.control import service_clock
from forewarn.control.service_clock import Look, Trust

HOUR = timedelta(hours=1)


def look(clock: ManualClock) -> Look:
    return Look(clock.now(), clock.monotonic())


def after(clock: ManualClock, known: Trust) -> Trust:
    return service_clock.judge(known, look(clock))[0]


@pytest.mark.parametrize("jump", [2 * SECOND, -2 * SECOND, 0 * SECOND])
def test_clocks_that_part_by_two_seconds_are_still_trusted(jump: timedelta) -> None:
    clock = ManualClock(NOW)
    known = Trust(agreed=look(clock))
    clock.jump(jump)
    known, owed = service_clock.judge(known, look(clock))
    assert known.since is None
    assert not owed


@pytest.mark.parametrize("jump", [24 * HOUR, -HOUR, 2.001 * SECOND, -2.001 * SECOND])
def test_clocks_that_part_by_more_are_doubted_since_the_reckoned_time(jump: timedelta) -> None:
    clock = ManualClock(NOW)
    known = Trust(agreed=look(clock))
    clock.advance(HOUR)
    clock.jump(jump)
    known, owed = service_clock.judge(known, look(clock))
    assert known.since == NOW + HOUR
    assert known.ahead == jump
    assert not owed
    clock.advance(HOUR)
    known = after(clock, known)
    assert known.since == NOW + HOUR
    assert service_clock.reckoned(known, clock.monotonic()) == NOW + 2 * HOUR


def test_slow_drift_between_looks_never_adds_up() -> None:
    clock = ManualClock(NOW)
    known = Trust(agreed=look(clock))
    for _ in range(100):
        clock.advance(SECOND)
        clock.jump(1.5 * SECOND)
        known = after(clock, known)
        assert known.since is None


def test_the_doubt_ends_when_the_clocks_agree_again() -> None:
    clock = ManualClock(NOW)
    known = Trust(agreed=look(clock))
    clock.jump(24 * HOUR)
    known = after(clock, known)
    clock.advance(HOUR)
    clock.jump(-24 * HOUR)
    known, owed = service_clock.judge(known, look(clock))
    assert known.since is None
    assert not owed
    assert service_clock.reckoned(known, clock.monotonic()) == clock.now()


@pytest.mark.parametrize(("jump", "owed"), [(24 * HOUR, 24 * HOUR), (-HOUR, 0 * SECOND)])
def test_an_operators_word_owes_what_the_clock_is_ahead_and_nothing_for_a_step_back(
    jump: timedelta, owed: timedelta
) -> None:
    clock = ManualClock(NOW)
    known = Trust(agreed=look(clock))
    clock.jump(jump)
    known = after(clock, known)
    clock.advance(HOUR)
    known, later = service_clock.believe(known, look(clock))
    assert later == owed
    assert known.since is None
    assert after(clock, known).since is None


# After a start.


def test_a_start_after_another_tells_how_long_the_service_was_away() -> None:
    clock = ManualClock(NOW)
    known, away = service_clock.resume(look(clock), NOW - HOUR, doubted=False)
    assert away == HOUR
    assert known.since is None


@pytest.mark.parametrize("ahead", [SECOND, 2 * SECOND])
def test_a_little_behind_the_last_time_written_down_is_no_matter(ahead: timedelta) -> None:
    clock = ManualClock(NOW)
    known, away = service_clock.resume(look(clock), NOW + ahead, doubted=False)
    assert not away
    assert known.since is None


def test_a_clock_behind_the_last_time_written_down_is_doubted_until_it_has_come_right() -> None:
    clock = ManualClock(NOW - 1000 * HOUR)
    known, away = service_clock.resume(look(clock), NOW, doubted=False)
    assert not away
    assert known.since == NOW
    clock.advance(10 * SECOND)
    known = after(clock, known)
    assert known.since == NOW
    assert service_clock.reckoned(known, clock.monotonic()) == NOW + 10 * SECOND
    clock.jump(1002 * HOUR)
    known, owed = service_clock.judge(known, look(clock))
    assert known.since is None
    assert owed == 2 * HOUR
    assert service_clock.judge(known, look(clock)) == (known, timedelta(0))


def test_a_doubt_that_is_older_than_the_start_is_ended_by_an_operator_alone() -> None:
    clock = ManualClock(NOW)
    known, away = service_clock.resume(look(clock), NOW - HOUR, doubted=True)
    assert away == HOUR
    assert known.since == NOW
    clock.advance(HOUR)
    known = after(clock, known)
    assert known.since == NOW
    known, owed = service_clock.believe(known, look(clock))
    assert (known.since, owed) == (None, timedelta(0))


def test_a_doubt_that_is_older_and_behind_is_ended_by_an_operator_alone() -> None:
    clock = ManualClock(NOW - HOUR)
    known, _ = service_clock.resume(look(clock), NOW, doubted=True)
    clock.jump(2 * HOUR)
    known = after(clock, known)
    assert known.since == NOW
    known, owed = service_clock.believe(known, look(clock))
    assert (known.since, owed) == (None, HOUR)
