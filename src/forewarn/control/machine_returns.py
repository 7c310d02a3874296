"""Has operations looked at again when machines that they await have asked.

Guests' requests are noted in memory alone (`Sightings`). While an operation awaits machines, this
compares those notes with what it awaits, four times a second, and asks the plane to decide only
when something is new: a guest's request costs nothing for it.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.maintenance import decide
from forewarn.maintenance.model import Changes, Operation, Sightings, key
from forewarn.store.port import StoreError
from forewarn.vocabulary import EventStatus

LOOK_EVERY = 0.25
"""Seconds between two looks: the next update domain is announced so much later at most."""

ASK_AGAIN_EVERY = 1.0
"""Seconds between two ends of the waiting requests of machines that have to ask again."""

AFTER_TROUBLE = 1.0
"""Seconds to wait after the store was away."""

_log = structlog.get_logger(__name__)


class ReturnWatch:
    """Watches for machines that are awaited. Lives on the event loop's thread.

    `ask_again` ends the waiting requests of an operation's machines: one that was only paused would
    not ask again until its wait is over.
    """

    def __init__(
        self,
        plane: Plane,
        clock: Clock,
        sighting: Sightings,
        ask_again: Callable[[Operation], None],
    ) -> None:
        self._plane = plane
        self._clock = clock
        self._sighting = sighting
        self._ask_again = ask_again
        self._awaiting: dict[str, Operation] = {}
        self._of_machine: dict[str, set[str]] = {}
        """Ids of operations by the keys of the machines that they await."""
        self._news: set[str] = set()
        """Operations that await a machine which has left the fleet."""
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._asked_again = 0.0

    def fill(self, operations: Iterable[Operation]) -> None:
        """Take over what is live; each is looked at once, for machines may have left meanwhile."""
        for operation in operations:
            self._put(operation)
        self._news.update(self._awaiting)

    def learn(self, changes: Changes) -> None:
        """Follow what changed."""
        for operation in changes.operations:
            self._put(operation)
        for machine in changes.removed_machines:
            self._news.update(self._of_machine.get(machine, ()))
        if self._awaiting:
            self._wake.set()

    def _put(self, operation: Operation) -> None:
        before = self._awaiting.pop(operation.id, None)
        for name in before.awaited if before else ():
            self._of_machine[key(name)].discard(operation.id)
        # What runs awaits machines too, but nobody can come back before it is carried out.
        if operation.awaited and operation.status is not EventStatus.STARTED:
            self._awaiting[operation.id] = operation
            for name in operation.awaited:
                self._of_machine.setdefault(key(name), set()).add(operation.id)

    def stop(self) -> None:
        """Make `run` return after what is under way."""
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        """Look for machines that are back, until `stop`."""
        while not self._stop.is_set():
            if not self._awaiting:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                await self.look()
                nap = LOOK_EVERY
            except StoreError as error:
                _log.warning("machines that are back wait for the store", reason=error)
                nap = AFTER_TROUBLE
            except Exception:  # noqa: BLE001 - the next look may succeed
                _log.exception("could not record which machines are back")
                nap = AFTER_TROUBLE
            await self._clock.wait(nap, self._stop)

    async def look(self) -> None:
        """Look once; after StoreError the next look finds the same."""
        if news := self.take_news():
            try:
                await asyncio.wrap_future(self._plane.record_returns(news))
            except BaseException:
                self._news.update(news)
                raise
        now = self._clock.monotonic()
        if now - self._asked_again >= ASK_AGAIN_EVERY:
            self._asked_again = now
            for operation in self._awaiting.values():
                if operation.status is EventStatus.RETURNING:
                    self._ask_again(operation)

    def take_news(self) -> list[str]:
        """Return the operations that the plane has to look at again; each is returned once."""
        news = self._news & self._awaiting.keys()
        news.update(
            operation.id
            for operation in self._awaiting.values()
            if decide.has_returned(operation, self._sighting)
        )
        self._news = set()  # what comes while the plane decides is for the next look
        return sorted(news)
