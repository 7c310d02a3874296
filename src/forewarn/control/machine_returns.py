"""Has operations looked at again when machines that they await have asked.

Guests' requests are noted in memory alone (`Sightings`). While an operation awaits machines, this
compares those notes with what it awaits, four times a second, and asks the plane to decide only
when something is new: a guest's request costs nothing for it.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta

from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.control.rounds import LONGEST_NAP, Rounds
from forewarn.maintenance import decide
from forewarn.maintenance.model import Changes, Operation, Sightings, key
from forewarn.vocabulary import EventStatus

LOOK_EVERY = timedelta(seconds=0.25)
"""Between two looks: the next update domain is announced so much later at most."""

ASK_AGAIN_EVERY = 1.0
"""Seconds between two ends of the waiting requests of machines that have to ask again."""


class ReturnWatch(Rounds):
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
        super().__init__("machines that are back", clock)
        self._plane = plane
        self._sighting = sighting
        self._ask_again = ask_again
        self._awaiting: dict[str, Operation] = {}
        self._of_machine: dict[str, set[str]] = {}
        """Ids of operations by the keys of the machines that they await."""
        self._news: set[str] = set()
        """Operations that await a machine which has left the fleet."""
        self._asked_again = 0.0

    def fill(self, operations: Iterable[Operation]) -> None:
        """Take over what is live; each is looked at once, for machines may have left meanwhile."""
        for operation in operations:
            self._put(operation)
        self._news.update(self._awaiting)

    def learn(self, changes: Changes) -> None:
        """Follow what changed."""
        is_idle = not self._awaiting
        for operation in changes.operations:
            self._put(operation)
        for machine in changes.removed_machines:
            self._news.update(self._of_machine.get(machine, ()))
        if is_idle and self._awaiting:
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

    async def _round(self) -> timedelta:
        if not self._awaiting:
            return LONGEST_NAP
        await self.look()
        return LOOK_EVERY

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
