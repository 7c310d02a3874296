"""Time: the only file of the package that reads a clock.

A `Clock` tells the time of day and waits. Deciders take `now` as an argument. Shells take a
`Clock`, so that a test can shorten fifteen minutes' notice.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


def monotonic() -> float:
    """Return the machine's monotonic seconds.

    Libraries that freeze time for tests replace `time.monotonic`, also for the threads of others:
    a handler would never ask again, and the emulator never give up.
    """
    if sys.platform == "win32":
        return time.monotonic()
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Knows the time and waits for it."""

    def now(self) -> datetime:
        """Return the time of day, aware and in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds of this clock from an origin of its own; it never goes back."""
        ...

    async def wait(self, seconds: float, wake: "asyncio.Event | None" = None) -> None:
        """Return when `seconds` of this clock are over, or at once when `wake` is set.

        0 seconds or less return at the loop's next turn. `wake` is left as it is.
        """
        ...


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return monotonic()

    async def wait(self, seconds: float, wake: "asyncio.Event | None" = None) -> None:
        import asyncio  # noqa: PLC0415 - a process that only reads the time has no use for it

        if wake is None or seconds <= 0:
            await asyncio.sleep(max(0.0, seconds))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):  # wait_for would make a task of the waiting
                await wake.wait()


class ManualClock:
    """A clock that shows its start until a test or a simulation moves it."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, by: timedelta) -> None:
        """Advance the clock, and end the waits that are over by then; `jump` sets a clock back."""
        assert by >= timedelta(0)
        self._now += by
        self._monotonic += by.total_seconds()
        over = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._monotonic]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._monotonic]
        for _, rouse in over:
            rouse()

    def jump(self, by: timedelta) -> None:
        """Set the time of day, forward or back, without any time passing."""
        self._now += by

    async def wait(self, seconds: float, wake: "asyncio.Event | None" = None) -> None:
        """Wait until `advance` has passed `seconds`, or `wake` is set."""
        import asyncio  # noqa: PLC0415 - a process that only reads the time has no use for it

        if seconds <= 0:
            await asyncio.sleep(0)
            return
        roused = asyncio.Event()
        sleeper = (self._monotonic + seconds, roused.set)
        self._sleepers.append(sleeper)
        tasks = [asyncio.ensure_future(event.wait()) for event in (roused, wake) if event]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(ValueError):
                self._sleepers.remove(sleeper)
