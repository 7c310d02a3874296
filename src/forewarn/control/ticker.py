"""Waits for the next wake-up, and asks the plane to advance what is due."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from forewarn.clock import Clock
from forewarn.control.plane import ADVANCE_BATCH, PURGE_BATCH, TRIM_BATCH, Plane
from forewarn.control.rounds import LONGEST_NAP, Rounds
from forewarn.maintenance import decide
from forewarn.maintenance.model import Changes

WHILE_HALTED = timedelta(seconds=1)
"""How long to wait until asking again whether anything may start."""

OUTBOX_KEPT = timedelta(hours=1)
"""How long a change stays in the outbox: a replica that stood still for longer reads all again."""

PURGE_EVERY = timedelta(hours=1)
"""How often history is searched for what is too old."""


class Ticker(Rounds):
    """Makes time pass for the plane, and keeps history, the audit log and news for as long as told.

    Lives on the event loop's thread.
    """

    def __init__(
        self,
        plane: Plane,
        clock: Clock,
        keep: timedelta,
        may_start: Callable[[], bool] = lambda: True,
        *,
        keep_audit: timedelta = timedelta(days=365),
        keep_news: timedelta = timedelta(days=7),
    ) -> None:
        super().__init__("time", clock)
        self._plane = plane
        self._may_start = may_start
        self._keep = keep
        self._keep_audit = keep_audit
        self._keep_news = keep_news
        self.next_wakeup: datetime | None = None
        """The earliest time that it knows of at which something is due."""
        self._purged: float | None = None

    def learn(self, changes: Changes) -> None:
        """Wake up for what is due earlier than what was known."""
        for operation in changes.operations:
            if self._due(decide.wakeup_at(operation)):
                self._wake.set()

    async def _round(self) -> timedelta:
        if not self._may_start():
            return WHILE_HALTED
        await self._look()
        if self.next_wakeup is not None and self.next_wakeup <= self._clock.now():
            while await asyncio.wrap_future(self._plane.advance()) == ADVANCE_BATCH:
                pass
            await self._look()
        await self._purge()
        self._wake.clear()  # what woke it meanwhile is counted in
        if self.next_wakeup is None:
            return LONGEST_NAP
        return max(timedelta(0), min(self.next_wakeup - self._clock.now(), LONGEST_NAP))

    async def _look(self) -> None:
        """Ask the store: replicas that have nothing to start do not wait for whoever writes."""
        # Forgotten before the store is asked, not after: what `learn` hears of while the answer is
        # on its way may not be in the answer.
        self.next_wakeup = None
        self._due(await asyncio.wrap_future(self._plane.next_wakeup()))

    def _due(self, at: datetime | None) -> bool:
        """Take a time into account; return whether it is the earliest now."""
        if at is None or (self.next_wakeup is not None and at >= self.next_wakeup):
            return False
        self.next_wakeup = at
        return True

    async def _purge(self) -> None:
        passed = self._clock.monotonic()
        if self._purged is not None and passed - self._purged < PURGE_EVERY.total_seconds():
            return
        while await asyncio.wrap_future(self._plane.purge(self._keep)) == PURGE_BATCH:
            pass
        while await asyncio.wrap_future(self._plane.purge_audit(self._keep_audit)) == PURGE_BATCH:
            pass
        while await asyncio.wrap_future(self._plane.trim(OUTBOX_KEPT)) == TRIM_BATCH:
            pass
        while await asyncio.wrap_future(self._plane.trim_news(self._keep_news)) == TRIM_BATCH:
            pass
        self._purged = passed
