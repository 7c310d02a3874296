"""What changed, told to the process's own memory after the commit, in the order of the commits.

Whatever the listeners keep belongs to one thread: the event loop's, once `deliver_on` was called.
A commit is told in one callback there, to all listeners in the order of their subscription, so a
handler on the loop meets memory before a commit or after it and never between. Other threads get
immutable values that were taken on the loop.

A listener that raises has left memory different from the store, and nobody can tell how far it
came. Reading the store again would run the same code over the same values while handlers answer
from the rest, so the feed ends instead, and the service with it (`ended`): a start fills all memory
from the store before a socket opens.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from typing import Final, TypeVar

import msgspec
import structlog

from forewarn.maintenance.model import Changes
from forewarn.store.port import StoreUnavailable

ASK_SECONDS: Final = 30.0
"""How long the loop may take to answer: many times the longest that a whole fleet holds it up."""

Listener = Callable[[Changes], None]


class Reached(msgspec.Struct, frozen=True):
    """A place in the outbox: all changes up to it were published."""

    sequence: int
    news: bytes | None = None
    """What its transaction tells outsiders; None where the store has to be asked."""
    lost: bool = False
    """Whether the store had lost its last changes: what was told before may not have happened."""


T = TypeVar("T")

_log = structlog.get_logger(__name__)


class Changefeed:
    """Tells changes before the requests that caused them are answered.

    So whoever has an answer on the loop finds its effect in every listener's memory.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._counting: list[Callable[[int], None]] = []
        self._telling: list[Callable[[Reached], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.ended: Future[None] = Future()
        """Raises what a listener raised; done for no other reason."""
        self.ended.set_running_or_notify_cancel()

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` with every change from now on, after those that subscribed before."""
        self._listeners.append(listener)

    def count(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with the number of each change, after all that it changed was told."""
        self._counting.append(listener)

    def tell(self, listener: Callable[[Reached], None]) -> None:
        """Call `listener` with each place that is reached, after what `count` has called."""
        self._telling.append(listener)

    def deliver_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call listeners on this loop's thread from now on."""
        self._loop = loop

    def ask(self, question: Callable[[], T]) -> T:
        """Return what memory answers once it has everything that was published before.

        Never on the loop's thread, which is waited for.

        Raises:
            StoreUnavailable: The loop has ended, or does not answer.
        """
        if self._loop is None:
            return question()
        answer: Future[T] = Future()

        def deliver() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001 - whoever asked gets it
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(deliver)
            return answer.result(ASK_SECONDS)
        except (RuntimeError, TimeoutError) as error:
            message = "memory cannot be asked now: the event loop has ended or is held up"
            raise StoreUnavailable(message) from error

    def publish(self, changes: Changes) -> None:
        """Tell every listener; any thread may."""
        if self._loop is None:
            self._deliver(changes)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(self._deliver, changes)

    def reach(self, reached: Reached) -> None:
        """Tell that all changes up to this place were published."""
        if not self._counting and not self._telling:
            return
        if self._loop is None:
            self._deliver_place(reached)
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver_place, reached)

    def _deliver_place(self, reached: Reached) -> None:
        self._call(self._counting, reached.sequence)
        self._call(self._telling, reached)

    def _deliver(self, changes: Changes) -> None:
        self._call(self._listeners, changes)

    def _call(self, listeners: Iterable[Callable[[T], None]], told: T) -> None:
        if self.ended.done():
            return
        try:
            for listener in listeners:
                listener(told)
        except Exception as error:  # noqa: BLE001 - whatever it is, memory is not to be trusted
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End, because memory does not follow the store any more."""
        _log.error("memory could not follow the store; the service must end", exc_info=error)
        with contextlib.suppress(InvalidStateError):  # the first error is the one to tell
            self.ended.set_exception(error)
