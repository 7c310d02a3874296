"""The clocks: what they show, and when a wait is over."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import patience
from forewarn import clock

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_manual_clock_shows_the_time_that_it_was_advanced_to() -> None:
    manual = clock.ManualClock(START)
    manual.advance(timedelta(minutes=15))
    assert manual.now() == START + timedelta(minutes=15)
    assert manual.monotonic() == 900.0


def test_a_jump_moves_the_time_of_day_and_no_time_passes() -> None:
    manual = clock.ManualClock(START)
    manual.jump(-timedelta(hours=1))
    assert manual.now() == START - timedelta(hours=1)
    assert manual.monotonic() == 0.0


def test_a_manual_clock_never_runs_back() -> None:
    with pytest.raises(AssertionError):
        clock.ManualClock(START).advance(timedelta(seconds=-1))


async def test_a_wait_ends_when_its_time_has_passed_and_not_before() -> None:
    manual = clock.ManualClock(START)
    waiting = asyncio.ensure_future(manual.wait(seconds=10, wake=asyncio.Event()))
    seen = []
    for step in (0, 9, 1):
        manual.advance(timedelta(seconds=step))
        await patience.settled()
        seen.append(waiting.done())
    assert seen == [False, False, True]


async def test_a_wait_ends_when_it_is_woken() -> None:
    manual = clock.ManualClock(START)
    wake = asyncio.Event()
    waiting = asyncio.ensure_future(manual.wait(seconds=10, wake=wake))
    await patience.settled()
    wake.set()
    await waiting
    assert manual.monotonic() == 0.0
