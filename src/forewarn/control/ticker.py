"""Waits for the next wake-up, and asks the plane to advance what is due."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog

from forewarn.clock import Clock
from forewarn.control.plane import ADVANCE_BATCH, PURGE_BATCH, TRIM_BATCH, Plane
from forewarn.maintenance import decide
from forewarn.maintenance.model import Changes
from forewarn.store.port import StoreError

LONGEST_NAP = timedelta(seconds=30)
"""The longest wait between two looks, so that a time of day that was set forward is noticed."""

AFTER_TROUBLE = timedelta(seconds=1)
"""How long to wait after the store was away."""

WHILE_HALTED = timedelta(seconds=1)
"""How long to wait until asking again whether anything may start."""

OUTBOX_KEPT = timedelta(hours=1)
"""How long a change stays in the outbox: a replica that stood still for longer reads all again."""

PURGE_EVERY = timedelta(hours=1)
"""How often history is searched for what is too old."""

_log = structlog.get_logger(__name__)


class Ticker:
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
        self._plane = plane
        self._may_start = may_start
        self._clock = clock
        self._keep = keep
        self._keep_audit = keep_audit
        self._keep_news = keep_news
        self._wake = asyncio.Event()
        self.next_wakeup: datetime | None = None
        """The earliest time that it knows of at which something is due."""
        self._stopping = False
        self._purged: float | None = None

    async def run(self) -> None:
        """Advance what is due, until `stop`."""
        while not self._stopping:
            # Forgotten before the store is asked, not after: what `learn` hears of while the
            # answer is on its way may not be in the answer.
            self.next_wakeup = None
            try:
                nap = await self._tick()
            except StoreError as error:
                _log.warning("the store is away; nothing starts until it is back", reason=error)
                nap = AFTER_TROUBLE
            except Exception:  # noqa: BLE001 - time goes on whatever failed
                _log.exception("advancing what is due failed")
                nap = AFTER_TROUBLE
            self._wake.clear()
            if not self._stopping:
                await self._clock.wait(nap.total_seconds(), self._wake)

    def stop(self) -> None:
        """Make `run` return after what is under way."""
        self._stopping = True
        self._wake.set()

    def learn(self, changes: Changes) -> None:
        """Wake up for what is due earlier than what was known."""
        for operation in changes.operations:
            if self._due(decide.wakeup_at(operation)):
                self._wake.set()

    async def _tick(self) -> timedelta:
        if not self._may_start():
            return WHILE_HALTED
        await self._look()
        if self.next_wakeup is not None and self.next_wakeup <= self._clock.now():
            self.next_wakeup = None
            while await asyncio.wrap_future(self._plane.advance()) == ADVANCE_BATCH:
                pass
            await self._look()
        await self._purge()
        if self.next_wakeup is None:
            return LONGEST_NAP
        return max(timedelta(0), min(self.next_wakeup - self._clock.now(), LONGEST_NAP))

    async def _look(self) -> None:
        """Ask the store: replicas that have nothing to start do not wait for whoever writes."""
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
