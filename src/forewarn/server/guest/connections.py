"""All connections of the guest plane together: how many, of whom, and whose time is up."""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from forewarn.protocol.exchange import Reply
from forewarn.server.guest import refusals
from forewarn.server.guest.callers import Source
from forewarn.server.guest.endpoint import Endpoint
from forewarn.server.guest.limits import Limits
from forewarn.server.guest.repeats import Repeats
from forewarn.server.guest.tally import EVENTS, Answers, Reason, Tally
from forewarn.server.guest.waiting import Waiting
from forewarn.server.guest.writing import Writer

NEVER = math.inf
"""The deadline of a connection that waits for nothing of its peer's."""


class Timed(Protocol):
    """A connection as this room sees it."""

    deadline: float
    """When its time is up, by `Connections.monotonic`."""

    def expire(self) -> None:
        """Its time is up."""
        ...

    def retire(self) -> None:
        """Close when no request is under way."""
        ...

    def abort(self) -> None:
        """Close now, whatever is under way."""
        ...

    def have_turn(self) -> None:
        """Answer some more of what was pipelined."""
        ...


class Connections:
    """What all connections share, and the one sweep that keeps their times.

    Args:
        endpoint: Answers requests.
        writer: Writes the answers.
        limits: What a connection may use.
        tally: Where those are counted that were turned away.
        loop: The event loop that all of them run on.
        repeats: Remembers requests.
        monotonic: Seconds that never go back, real ones: a connection lives in real time even
            where the service's clock is scaled. The loop's own if left out.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        writer: Writer,
        *,
        limits: Limits,
        tally: Tally,
        loop: asyncio.AbstractEventLoop,
        repeats: Repeats,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.writer = writer
        self.limits = limits
        self.tally = tally
        self.loop = loop
        self.monotonic = monotonic or loop.time
        self.repeats = repeats
        self.answers = Answers()
        self.event_answers = self.answers.counts[EVENTS]
        """Those of them that were asked for events."""
        self.accepted = 0
        """How many connections there were so far."""
        self.waiting = Waiting(endpoint, limits.waiters, tally, loop)
        """Requests that wait for their document to change."""
        self.retiring = False
        """Whether the plane stops: each answer is then the last of its connection."""
        self._all: set[Timed] = set()
        self._of_address: dict[tuple[str, str], int] = {}
        self._emptied: asyncio.Future[None] | None = None
        self._queued: deque[Timed] = deque()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._all)

    def admit(self, connection: Timed, source: Source) -> Reply | None:
        """Take a new connection in.

        Returns:
            The refusal if there are too many; the connection is not taken in then.
        """
        limits = self.limits
        self.accepted += 1
        if len(self._all) >= limits.connections:
            self.tally[Reason.CONNECTIONS] += 1
            return refusals.too_many_connections(limits.connections, "this service")
        # On a loopback listener, and behind a proxy, every machine has the same address.
        if not source.is_shared:
            place = (source.listener, source.address)
            of_address = self._of_address.get(place, 0)
            if of_address >= limits.connections_per_address:
                self.tally[Reason.CONNECTIONS_OF_ADDRESS] += 1
                return refusals.too_many_connections(limits.connections_per_address, "this address")
            self._of_address[place] = of_address + 1
        self._all.add(connection)
        return None

    def forget(self, connection: Timed, source: Source) -> None:
        """Leave a connection out that is gone; one that was never taken in is no matter."""
        if connection not in self._all:
            return
        self._all.remove(connection)
        if not source.is_shared:
            place = (source.listener, source.address)
            left = self._of_address[place] - 1
            if left:
                self._of_address[place] = left
            else:
                del self._of_address[place]
        if not self._all and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def queue(self, connection: Timed) -> None:
        """Let a connection have a turn, when those have had theirs that came before.

        There is one turn in each of the loop's rounds, so that whoever asks for one thing is
        answered within a round or two, however many others pipeline.
        """
        self._queued.append(connection)
        if len(self._queued) == 1:
            self.loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        connection = self._queued.popleft()
        if self._queued:
            self.loop.call_soon(self._next_turn)
        connection.have_turn()

    def sweep(self, now: float) -> None:
        """End what took too long.

        Args:
            now: By the same clock as `monotonic`.
        """
        for connection in [each for each in self._all if each.deadline <= now]:
            connection.expire()

    async def retire(self, seconds: float) -> int:
        """Close what is idle, let requests under way be answered, then close the rest.

        Args:
            seconds: How long requests under way may take, in real time.

        Returns:
            How many connections had to be cut off.
        """
        self.retiring = True
        self.repeats.close()
        for connection in list(self._all):
            connection.retire()
        if self._all:
            self._emptied = self.loop.create_future()
            await asyncio.wait([self._emptied], timeout=seconds)
        cut_off = list(self._all)
        for connection in cut_off:
            connection.abort()
        return len(cut_off)
