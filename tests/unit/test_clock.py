"""The clock of tests: when a wait is over."""

import asyncio
from datetime import UTC, datetime, timedelta

import patience
from forewarn import clock


async def test_a_wait_ends_when_its_time_has_passed_and_not_before() -> None:
    manual = clock.ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    waiting = asyncio.ensure_future(manual.wait(seconds=10, wake=asyncio.Event()))
    seen = []
    for step in (0, 9, 1):
        manual.advance(timedelta(seconds=step))
        await patience.settled()
        seen.append(waiting.done())
    assert seen == [False, False, True]
