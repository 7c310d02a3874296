"""Changes, published to the process's own memory after the commit, in the order of the commits.

The state of every listener belongs to one thread: the event loop's, once `deliver_on` was called. A
commit (other replicas' too, by `outbox`) is published in one callback there, to all listeners in
the order of their subscription, so a handler on the loop meets memory before a commit or after it
and never between. Other threads get immutable values that were taken on the loop.

A listener that raises has left memory different from the store, and nobody can tell how far it
came. Reading the store again would run the same code over the same values while handlers answer
from the rest, so the feed ends instead, and the service with it (`ended`): a start fills all memory
from the store before a socket opens.

`NewsTail` has the latest news for any number of followers, who so cost the store nothing. The
writer's own news comes with the changefeed. Commits of other replicas, and news that was too large
to hand over, are read from the store in one piece for all followers, on another thread. Without
followers, nothing is kept. Each follower has a place of its own: its unread news is in this memory
or in the store, never in a queue of its own, so a slow one holds nothing up.
"""

import asyncio
import bisect
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, TypeAlias

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.maintenance import news
from forewarn.maintenance.model import Changes
from forewarn.maintenance.news import NumberedNews
from forewarn.store.port import StoreError
from forewarn.store.queries import Reading

Listener = Callable[[Changes], None]


class Reached(msgspec.Struct, frozen=True):
    """A place in the outbox: all changes up to it were published."""

    sequence: int
    news: bytes | None = None
    """The news of its transaction; None where it has to be read from the store."""
    lost: bool = False
    """True if the store had lost its last changes: earlier publications may not have happened."""


_log = structlog.get_logger(__name__)


class Changefeed:
    """Publishes changes before the requests that caused them are answered.

    So a caller on the loop that has its answer finds the effect in every listener's memory.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._telling: list[Callable[[Reached], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ended: Future[None] = Future()
        """Raises what a listener raised; done for no other reason."""
        self.ended.set_running_or_notify_cancel()

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every change from now on, after those that subscribed before."""
        self._listeners.append(listener)

    def tell(self, listener: Callable[[Reached], None]) -> None:
        """Call `listener` with each place that is reached, after the changes up to it."""
        self._telling.append(listener)

    def deliver_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call listeners on this loop's thread from now on."""
        self._loop = loop

    def publish(self, saved: Sequence[Changes], reached: Reached) -> None:
        """Pass the changes of a commit to every listener, then its place; any thread may."""
        if self._loop is None:
            self._call(saved, reached)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._call, saved, reached)

    def _call(self, saved: Sequence[Changes], reached: Reached) -> None:
        if self.ended.done():
            return
        try:
            for changes in saved:
                for listener in self._listeners:
                    listener(changes)
            for tell in self._telling:
                tell(reached)
        except Exception as error:  # noqa: BLE001 - whatever it is, memory is not to be trusted
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End, because memory does not follow the store any longer."""
        _log.error("memory could not follow the store; the service must end", exc_info=error)
        with contextlib.suppress(InvalidStateError):  # the first error is the one to tell
            self.ended.set_exception(error)


MAX_KEPT_BYTES: Final = 4 * 1024 * 1024
"""The most JSON that is kept; then the older half goes. A follower that is further behind asks the
store."""

MAX_HANDED_OVER: Final = 64 * 1024
"""The longest news of one transaction that is taken apart on the loop: a millisecond. Longer news
is read from the store on another thread."""

MAX_ROWS: Final = 20
"""The most transactions whose news is read from the store at once."""

MAX_READ_BYTES: Final = 1024 * 1024
"""The news after which no more is kept of them: one transaction may have 2 MB, and each follower
holds what it has read until it is sent."""

AFTER_TROUBLE_SECONDS: Final = 1.0

Ask: TypeAlias = "Callable[[Callable[[Reading], Any]], Awaitable[Any]]"
"""Asks the store, on another thread."""


class Told(msgspec.Struct, frozen=True):
    """The news of one transaction."""

    sequence: int
    items: tuple[NumberedNews, ...]


class Some(msgspec.Struct, frozen=True):
    """News after a place, in order, and the place after it."""

    told: tuple[Told, ...]
    sequence: int
    """Up to this transaction nothing is missing."""


class NewsTail:
    """The news of the latest transactions; on the event loop's thread."""

    def __init__(self, ask: Ask, real: Clock) -> None:
        self._ask = ask
        self._real = real
        self._told: list[Told] = []
        self._bytes = 0
        self._from = 0
        """All news after this transaction is in `_told`."""
        self._to = 0
        """Up to this transaction."""
        self._filling: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closed = False
        self.reached = 0
        """The last transaction whose changes this process has been told."""
        self.followers = 0
        """The number of followers; without one, nothing is kept."""
        self.losses = 0
        """The number of times that the store turned out to have lost its last changes."""

    def begin(self, sequence: int) -> None:
        """Go on from this transaction: memory was filled in the snapshot that had it."""
        self.reached = sequence
        self._forget()

    def learn(self, reached: Reached) -> None:
        """Take over a publication of the changefeed: a transaction, and its news if it is known."""
        sequence, stored = reached.sequence, reached.news
        self.reached = sequence
        if reached.lost:
            self.losses += 1
            self._forget()
            self._rouse()
        elif not self.followers:
            self._forget()
        elif (
            self._filling is None
            and stored is not None
            and sequence == self._to + 1
            and len(stored) <= MAX_HANDED_OVER
        ):
            self._to = sequence
            if stored:
                self._keep(Told(sequence, news.numbered(sequence, stored)))
                self._rouse()
        elif self._filling is None:
            self._filling = asyncio.get_running_loop().create_task(self._fill())

    async def after(self, sequence: int) -> Some:
        """Return news after this transaction, as much as is read at once; empty if there is none.

        Raises:
            StoreError: It is not in memory, and the store is away.
        """
        if sequence < self._from:
            return await self._read(sequence, self._from)
        first = bisect.bisect_right(self._told, sequence, key=lambda told: told.sequence)
        end = first + MAX_ROWS
        place = self._told[end - 1].sequence if end < len(self._told) else self._to
        return Some(tuple(self._told[first:end]), max(sequence, place))

    async def wait(self, seconds: float) -> None:
        """Wait so many real seconds for news, or a shorter time until there is some."""
        await self._real.wait(seconds, self._wake)

    @property
    def closed(self) -> bool:
        """True if the service is stopping."""
        return self._closed

    def close(self) -> None:
        """End the waits of all followers."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
        self._rouse()

    def _forget(self) -> None:
        self._told, self._bytes = [], 0
        self._from = self._to = self.reached

    def _keep(self, told: Told) -> None:
        self._told.append(told)
        self._bytes += _size(told)
        if self._bytes > MAX_KEPT_BYTES and len(self._told) > 1:
            half = len(self._told) // 2
            self._from = self._told[half - 1].sequence
            self._told = self._told[half:]
            self._bytes = sum(map(_size, self._told))

    def _rouse(self) -> None:
        self._wake.set()
        self._wake = asyncio.Event()

    async def _fill(self) -> None:
        """Read the news that was not handed over, until nothing is missing."""
        try:
            while self._to < self.reached and not self._closed:
                losses = self.losses
                try:
                    some = await self._read(self._to, self.reached)
                except StoreError as error:
                    _log.warning("news cannot be read now", why=str(error))
                    await self._real.wait(AFTER_TROUBLE_SECONDS)
                    continue
                if losses != self.losses:
                    continue
                for told in some.told:
                    self._keep(told)
                self._to = some.sequence
                self._rouse()
        finally:
            self._filling = None

    async def _read(self, sequence: int, until: int) -> Some:
        def question(reading: Reading) -> Some:
            told, size, place = list[Told](), 0, until
            for row in reading.news_after(sequence, MAX_ROWS):
                if row.sequence > until:
                    break
                told.append(Told(row.sequence, news.numbered(row.sequence, row.items)))
                size += len(row.items)
                if len(told) == MAX_ROWS or size >= MAX_READ_BYTES:
                    place = row.sequence
                    break
            return Some(tuple(told), place)

        some: Some = await self._ask(question)
        return some


def _size(told: Told) -> int:
    return sum(len(item.json) for item in told.items)
