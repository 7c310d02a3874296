"""A connector that touches nothing: a task lasts as long as the settings say, and succeeds."""

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
"""How long a task of each type takes by default: about as long as a real one."""


class SimulatedConnector:
    """Waits out a task's duration from its start: DURATIONS for the types that are left out.

    It keeps nothing: how far a task is follows from when it started, so a restart goes on where
    the process before would be.
    """

    def __init__(self, clock: Clock, durations: Mapping[EventType, timedelta]) -> None:
        self._clock = clock
        self._durations = {**DURATIONS, **durations}

    async def perform(self, task: Task) -> Outcome:
        """Return when the task's duration since its start is over."""
        never = asyncio.Event()
        while (left := self._left(task)) > timedelta(0):
            await self._clock.wait(left.total_seconds(), never)
        return Outcome(succeeded=True)

    async def check(self, task: Task) -> Outcome | Found:
        """Tell that it is done if its duration is over."""
        return Outcome(succeeded=True) if self._left(task) <= timedelta(0) else Found.NOT_DONE

    async def forget(self, task: Task) -> None:
        """Do nothing: nothing is kept."""

    async def sweep(self, live: Collection[str]) -> None:
        """Do nothing: nothing is kept."""

    def _left(self, task: Task) -> timedelta:
        over = task.started_at + self._durations[task.event_type]
        return over - self._clock.now()
