"""The client over sockets: `Client`, `Watch`, `Documents`. No asyncio, no threads of its own."""

import threading
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Final, Self, TypeVar

from forewarn.client import event, session, transport, watch
from forewarn.client.errors import Misuse
from forewarn.client.session import Dialogue, Pace, Session
from forewarn.client.transport import ConnectionClosed, OnTrouble, SocketConnection
from forewarn.client.watch import Watcher

T = TypeVar("T")

MAX_IDLE: Final = 2
"""Connections that are kept for the next question; a third thread's is closed after its own."""


class Client:
    """Reads and approves a machine's scheduled events, on Azure and on Forewarn alike.

    Any thread may use it. It opens nothing before it is asked for something.

    Args:
        endpoint: The address, such as `http://127.0.0.1:8080/vm/web-0`. None: the environment's
            FOREWARN_ENDPOINT, else the first that answers of `http://169.254.169.254`, the
            environment's SCHEDULEDEVENTSIP, and option 245 of the machine's DHCP leases.
        name: This machine's name as in an event's resources. None: the client asks the endpoint.
        pace: How often the client asks, and how long it waits.

    Raises:
        Misuse: The address or the name is invalid.
    """

    def __init__(
        self, endpoint: str | None = None, *, name: str | None = None, pace: Pace | None = None
    ) -> None:
        self._session = transport.open_session(pace, endpoint, name)
        self._guard = threading.RLock()  # a signal's handler may close what its thread is opening
        self._connections: weakref.WeakSet[SocketConnection] = weakref.WeakSet()
        self._idle: list[SocketConnection] = []
        self._closed = False

    @property
    def endpoint(self) -> str:
        """The address that the client asks, as a URL; until one has answered, the one to try."""
        return str(self._session.endpoint)

    @property
    def name(self) -> str | None:
        """This machine's name, given or learnt; None while it is not known."""
        return self._session.name

    def document(self) -> event.Document:
        """Return what the endpoint says now.

        Raises:
            Unreachable: No answer came, after some tries within the pace's
                `first_answer_seconds`.
            BadAnswer: The answer is not a document.
            Refused: The server refuses the question.
            Misuse: The client is closed.
        """
        return self._run(session.document(self._session, transport.clock_reading()))

    def events(self, *, mine: bool = False) -> tuple[event.Event, ...]:
        """Return the events of now.

        Args:
            mine: Whether to leave out events that concern other machines only.

        Raises:
            Unreachable, BadAnswer, Refused, Misuse: As for `document`.
        """
        events = self.document().events
        return tuple(each for each in events if not mine or each.concerns_me is not False)

    def approve(self, *events: event.Event | str, within_seconds: float | None = None) -> None:
        """Let events start before their notice is over (protocol.md section 5).

        Returns once the server has confirmed the approval. An approval whose answer is lost is
        sent again until the event is over; it counts once.

        Args:
            *events: Events or their ids; all or none of them are approved.
            within_seconds: How long to try; None for the pace's `approve_seconds`.

        Raises:
            Refused: The server refuses it, for example an id that it never published.
            Unreachable, BadAnswer: It was not confirmed in time.
            Misuse: There is nothing to approve, or the client is closed.
        """
        at = transport.clock_reading()
        self._run(session.approval(self._session, events, within_seconds, at))

    def machine(self) -> event.Machine:
        """Return what this machine is called.

        Raises:
            Unreachable, BadAnswer, Refused, Misuse: As for `document`.
        """
        return self._run(session.machine(self._session))

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
            since: The `since` of an earlier watch, to resume from there; None to begin with the
                events of now.
            types: The event types to report; None for all.
            mine: Whether to leave out events that concern other machines only.
            on_trouble: Called once for each change of the reason why no good answer comes. What it
                raises ends the watch.

        Raises:
            Misuse: `since` or `types` is invalid, or the client is closed.
        """
        wanted = watch.event_filter(types, mine=mine)
        watcher = Watcher(self._session, wanted, since, transport.clock_reading())
        return Watch(self._connection(), watcher, self._session, on_trouble)

    def documents(self, *, on_trouble: OnTrouble | None = None) -> "Documents":
        """Return each new document, whole, until the iterator or the client closes.

        The first comes at once, the next ones when an event is new, has changed or is over. An
        event stays in the document until a second answer confirms its end.

        Args:
            on_trouble: As for `watch`.

        Raises:
            Misuse: The client is closed.
        """
        watcher = Watcher(self._session, None, None, transport.clock_reading())
        return Documents(self._connection(), watcher, self._session, on_trouble)

    def close(self) -> None:
        """End every watch and every question at once. Any thread may, and a signal's handler."""
        with self._guard:
            self._closed = True
            connections = list(self._connections)
            self._idle.clear()
        for connection in connections:
            connection.close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _connection(self) -> SocketConnection:
        connection = SocketConnection(self._session)
        with self._guard:
            self._connections.add(connection)
            if not self._closed:
                return connection
        connection.close()
        raise Misuse("the client is closed: make another")

    def _run(self, dialogue: Dialogue[T]) -> T:
        with self._guard:
            connection = self._idle.pop() if self._idle else self._connection()
        try:
            wanted = next(dialogue)
            while True:
                wanted = dialogue.send(connection.do(wanted))
        except StopIteration as done:
            result: T = done.value
            return result
        except ConnectionClosed as closed:
            raise Misuse("the client was closed meanwhile") from closed
        finally:
            with self._guard:
                if not self._closed and len(self._idle) < MAX_IDLE:
                    self._idle.append(connection)
                else:
                    connection.close()


class _Answers(Iterator[T]):
    """What a watcher takes from one answer after another."""

    def __init__(
        self,
        connection: SocketConnection,
        watcher: Watcher,
        known: Session,
        on_trouble: OnTrouble | None,
    ) -> None:
        self._connection = connection
        self._watcher = watcher
        self._session = known
        self._on_trouble = on_trouble

    @abstractmethod
    def _take(self) -> T | None: ...

    def __next__(self) -> T:
        """Return the next one, however long it takes; stop once closed."""
        while True:
            while (trouble := self._watcher.next_trouble()) is not None:
                transport.report(trouble, self._session, self._on_trouble)
            taken = self._take()
            if taken is not None:
                return taken
            wanted = self._watcher.step(transport.clock_reading())
            try:
                self._watcher.heard(self._connection.do(wanted))
            except ConnectionClosed as closed:
                raise StopIteration from closed

    def close(self) -> None:
        """End it at once. Any thread may, and a signal's handler."""
        self._connection.close()

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


class Watch(_Answers[event.Change]):
    """Changes as they happen; made by `Client.watch`."""

    @property
    def since(self) -> str:
        """The state of the watch after its last change, as JSON.

        Save it, and pass it to `Client.watch` to resume from there in another process.
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

    @property
    def looks(self) -> int:
        """How many good answers came, those without anything new included."""
        return self._watcher.looks

    def _take(self) -> event.Document | None:
        return self._watcher.take_document()
