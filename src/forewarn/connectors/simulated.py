"""A connector that touches nothing: an act lasts as long as the settings say, and succeeds."""

import asyncio
from collections.abc import Collection, Mapping
from datetime import timedelta

from forewarn.clock import Clock
from forewarn.connectors.port import Found, Outcome, Task
from forewarn.vocabulary import EventType

DURATIONS: Mapping[EventType, timedelta] = {
    EventType.FREEZE: timedelta(seconds=9),
    EventType.REBOOT: timedelta(seconds=90),
    EventType.REDEPLOY: timedelta(minutes=3),
    EventType.PREEMPT: timedelta(seconds=30),
    EventType.TERMINATE: timedelta(seconds=30),
}
"""How long an act of each type takes where the settings say nothing: about what a real one does."""


class Simulated:
    """Waits out an act's duration from its start.

    It keeps nothing: how far an act is follows from when it started, so a restart goes on where
    the process before would be.

    Args:
        clock: Whose time acts take.
        durations: By type; DURATIONS for those that are left out.
    """

    def __init__(self, clock: Clock, durations: Mapping[EventType, timedelta]) -> None:
        self._clock = clock
        self._durations = {**DURATIONS, **durations}

    async def perform(self, act: Task) -> Outcome:
        """Return when the act's duration since its start is over."""
        never = asyncio.Event()
        while (left := self._left(act)) > timedelta(0):
            await self._clock.wait(left.total_seconds(), never)
        return Outcome(succeeded=True)

    async def check(self, act: Task) -> Outcome | Found:
        """Tell that it is done if its duration is over."""
        return Outcome(succeeded=True) if self._left(act) <= timedelta(0) else Found.NOT_DONE

    async def forget(self, act: Task) -> None:
        """Do nothing: nothing is kept."""

    async def sweep(self, live: Collection[str]) -> None:
        """Do nothing: nothing is kept."""

    def _left(self, act: Task) -> timedelta:
        over = act.started_at + self._durations[act.event_type]
        return over - self._clock.now()
