"""The client over sockets: `Client` and `Watch`. No asyncio, no threads of its own."""

import threading
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, Self, TypeVar

from forewarn.client import errands, event, opening, watch
from forewarn.client.errands import Errand
from forewarn.client.errors import Misuse
from forewarn.client.opening import OnTrouble
from forewarn.client.pace import Pace
from forewarn.client.sockets import Closed, Line
from forewarn.client.terms import Terms
from forewarn.client.watch import Watcher

T = TypeVar("T")

MAX_IDLE: Final = 2
"""Connections that are kept for the next question; a third thread's is closed after its own."""


class Client:
    """A machine's client of scheduled events, on Azure and on Forewarn alike.

    Any thread may use it. It opens nothing before it is asked for something.

    Args:
        endpoint: The address, such as `http://127.0.0.1:8080/vm/web-0`. None: the environment's
            FOREWARN_ENDPOINT, else the first that answers of `http://169.254.169.254`, the
            environment's SCHEDULEDEVENTSIP, and option 245 of the machine's DHCP leases.
        name: This machine's name as it stands in an event's resources. None: the endpoint is asked.
        pace: How often is asked and how long is waited.

    Raises:
        Misuse: The address or the name is none.
    """

    def __init__(
        self, endpoint: str | None = None, *, name: str | None = None, pace: Pace | None = None
    ) -> None:
        self._terms = opening.terms(pace, endpoint, name)
        self._guard = threading.RLock()  # a signal's handler may close what its thread is opening
        self._lines: weakref.WeakSet[Line] = weakref.WeakSet()
        self._idle: list[Line] = []
        self._closed = False

    @property
    def endpoint(self) -> str:
        """The address that is asked, as a URL; the first of several until one has answered."""
        return str(self._terms.endpoint)

    @property
    def name(self) -> str | None:
        """This machine's name, as it was given or learnt; None while it is not known."""
        return self._terms.name

    def document(self) -> event.Document:
        """Return what the endpoint says now.

        Raises:
            Unreachable: No answer came, after some tries.
            BadAnswer: What came is no document, or says that there is none.
            Refused: The server refuses to say.
            Misuse: The client is closed.
        """
        return self._run(errands.document(self._terms))

    def events(self, *, mine: bool = False) -> tuple[event.Event, ...]:
        """Return the events of now.

        Args:
            mine: Whether to leave out those that are known not to concern this machine.

        Raises:
            Unreachable, BadAnswer, Refused, Misuse: As for `document`.
        """
        events = self.document().events
        return tuple(each for each in events if not mine or each.concerns_me is not False)

    def approve(self, *events: event.Event | str, within_seconds: float | None = None) -> None:
        """Let events start before their notice is over (protocol.md section 5).

        Returns once the server has said that it is approved. An answer that is lost is asked for
        again, which counts once, until the event is over.

        Args:
            *events: Events or their ids; all or none of them are approved.
            within_seconds: How long to try; None for the pace's `approve_seconds`.

        Raises:
            Refused: The server refuses it, as for an id that it never published.
            Unreachable, BadAnswer: It was not confirmed in its time.
            Misuse: There is nothing to approve, or the client is closed.
        """
        self._run(errands.approval(self._terms, events, within_seconds, opening.moment()))

    def machine(self) -> event.Machine:
        """Return what this machine is called.

        Raises:
            Unreachable, BadAnswer, Refused, Misuse: As for `document`.
        """
        return self._run(errands.machine(self._terms))

    def watch(
        self,
        *,
        since: str | None = None,
        types: Iterable[str] | None = None,
        mine: bool = False,
        on_trouble: OnTrouble | None = None,
    ) -> "Watch":
        """Return the changes of the events, as they happen, until the watch or the client closes.

        Args:
            since: What an earlier watch's `since` was, to go on from there; None to begin: each
                event of now appears.
            types: The event types that are told of; None for all.
            mine: Whether to leave out events that are known not to concern this machine.
            on_trouble: Called once for each change of the reason why no good answer comes. What it
                raises ends the watch.

        Raises:
            Misuse: `since` or `types` is none, or the client is closed.
        """
        wanted = watch.wishes(types, mine=mine)
        watcher = Watcher(self._terms, wanted, since, opening.moment())
        return Watch(self._line(), watcher, self._terms, on_trouble)

    def documents(self, *, on_trouble: OnTrouble | None = None) -> "Documents":
        """Return each new document, whole, until the iterator or the client closes.

        The first comes at once, the others when an event of theirs is new, has changed or is over.
        An event stays in it until a second document confirms its end.

        Args:
            on_trouble: As for `watch`.

        Raises:
            Misuse: The client is closed.
        """
        watcher = Watcher(self._terms, watch.Wishes(), None, opening.moment())
        return Documents(self._line(), watcher, self._terms, on_trouble)

    def close(self) -> None:
        """End every watch and every question at once. Any thread may, and a signal's handler."""
        with self._guard:
            self._closed = True
            lines = list(self._lines)
            self._idle.clear()
        for line in lines:
            line.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _line(self) -> Line:
        line = Line(self._terms)
        with self._guard:
            self._lines.add(line)
            if not self._closed:
                return line
        line.close()
        message = "the client is closed: make another"
        raise Misuse(message)

    def _run(self, errand: Errand[T]) -> T:
        with self._guard:
            line = self._idle.pop() if self._idle else self._line()
        try:
            wanted = next(errand)
            while True:
                wanted = errand.send(line.do(wanted))
        except StopIteration as done:
            result: T = done.value
            return result
        except Closed as closed:
            message = "the client was closed meanwhile"
            raise Misuse(message) from closed
        finally:
            with self._guard:
                if not self._closed and len(self._idle) < MAX_IDLE:
                    self._idle.append(line)
                else:
                    line.close()


class _Answers(Iterator[T]):
    """What a watcher takes from one answer after another."""

    def __init__(
        self, line: Line, watcher: Watcher, terms: Terms, on_trouble: OnTrouble | None
    ) -> None:
        self._line = line
        self._watcher = watcher
        self._terms = terms
        self._on_trouble = on_trouble

    @abstractmethod
    def _take(self) -> T | None: ...

    def __next__(self) -> T:
        """Return the next one, however long it takes; stop once closed."""
        while True:
            while (trouble := self._watcher.tell()) is not None:
                opening.tell(trouble, self._terms, self._on_trouble)
            taken = self._take()
            if taken is not None:
                return taken
            try:
                self._watcher.heard(self._line.do(self._watcher.step(opening.moment())))
            except Closed as closed:
                raise StopIteration from closed

    def close(self) -> None:
        """End it at once. Any thread may, and a signal's handler."""
        self._line.close()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


class Watch(_Answers[event.Change]):
    """Changes as they happen; made by `Client.watch`."""

    @property
    def since(self) -> str:
        """All that the watch knows after the change that it gave last, as JSON.

        Keep it, and give it to `Client.watch` to go on from there in another process.
        """
        return self._watcher.since

    def _take(self) -> event.Change | None:
        return self._watcher.take()


class Documents(_Answers[event.Document]):
    """Documents as they change; made by `Client.documents`."""

    @property
    def answered_at(self) -> float | None:
        """When the last good answer came, by the monotonic clock; None before the first."""
        return self._watcher.answered_at

    def _take(self) -> event.Document | None:
        return self._watcher.take_document()
