"""The client over sockets: `Client`, `Watch`, `Documents`. No asyncio, no threads of its own."""

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Final, Self, TypeVar

from forewarn import clock
from forewarn.client import event, session, transport
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import Misuse
from forewarn.client.session import Attempt, Dialogue, Pause, Question, Session
from forewarn.client.transport import OnTrouble
from forewarn.client.watch import Watcher
from forewarn.client.watch_file import SavePath, Unsaved

T = TypeVar("T")


class Client(transport.AnyClient["SocketConnection"]):
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

    def report(self, status: str, reason: str = "") -> None:
        """Tell Forewarn how this machine fares, now and with each later look.

        Operators see it, and Forewarn takes no other update domain down until a machine that was
        stopped has said `back`. Other servers are told nothing. If no answer comes, the next look
        tells it.

        Args:
            status: `preparing`, `ready`, `held`, `recovering` or `back` (protocol.md section 10).
            reason: Why, for operators; cut after 200 bytes.

        Raises:
            Misuse: The status is none of these, or the client is closed.
        """
        self._run(self._report(status, reason))

    def machine(self) -> event.Machine:
        """Return what this machine is called.

        Raises:
            Unreachable, BadAnswer, Refused, Misuse: As for `document`.
        """
        return self._run(session.machine(self._session, transport.clock_reading()))

    def watch(
        self,
        *,
        since: SavePath | None = None,
        types: Iterable[str] | None = None,
        mine: bool = False,
        on_trouble: OnTrouble | None = None,
    ) -> "Watch":
        """Return the changes of the events, as they happen, until the watch or the client closes.

        Args:
            since: A file of this handler's own, on a disk that outlives a reboot, in which the
                watch saves what it has reported. The next process resumes from there: it is told
                `gone` of what ended meanwhile, and `appeared` again only of an event that has not
                started, and whose `appeared` the handler was not done with. A change is done with
                when the next one is asked for. A relative path begins in the environment's
                STATE_DIRECTORY (systemd's `StateDirectory=`), else in the current folder. None to
                begin with the events of now.
            types: The event types to report; None for all.
            mine: Whether to leave out events that concern other machines only.
            on_trouble: Called once for each change of the reason why no good answer comes, and when
                the file cannot be written, which does not stop the watch. What it raises ends the
                watch.

        Raises:
            Misuse: `types` or the content of the file is invalid, the file cannot be used (a full
                disk is a trouble instead), or the client is closed.
        """
        watcher, file = self._watcher(since, types, mine=mine)
        return Watch(self._connection(), watcher, watcher.take, on_trouble, file)

    def documents(
        self, *, known: Iterable[event.Event] = (), on_trouble: OnTrouble | None = None
    ) -> "Documents":
        """Return each new document, whole, until the iterator or the client closes.

        The first comes at once, the next ones when an event is new, has changed or is over. An
        event stays in the document until a second answer confirms its end.

        Args:
            known: Events that the caller saw before, as in an earlier process: the first document
                comes when a second answer has confirmed the end of those that it does not list.
            on_trouble: As for `watch`.

        Raises:
            Misuse: The client is closed.
        """
        watcher = Watcher(self._session, None, None, transport.clock_reading(), known)
        return Documents(self._connection(), watcher, watcher.take_document, on_trouble)

    def close(self) -> None:
        """End every watch and every question at once. Any thread may, and a signal's handler."""
        self._close()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _connect(self) -> "SocketConnection":
        return SocketConnection(self._session)

    def _run(self, dialogue: Dialogue[T]) -> T:
        with self._lent() as connection:
            try:
                wanted = next(dialogue)
                while True:
                    wanted = dialogue.send(connection.do(wanted))
            except StopIteration as done:
                result: T = done.value
                return result


class _Answers(transport.AnyAnswers["SocketConnection", T], Iterator[T]):
    def __next__(self) -> T:
        """Return the next one, however long it takes; stop once closed."""
        while isinstance(found := self._next(), Question | Pause | Unsaved):
            if isinstance(found, Unsaved):
                self._saved(found.file.write(found.text))
                continue
            try:
                self._heard(self._connection.do(found))
            except transport.ConnectionClosed as closed:
                raise StopIteration from closed
        return found

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

    def done(self) -> None:
        """Save that the last change is done with, before a handler ends without another."""
        self._watcher.settle()
        if (unsaved := self._unsaved()) is not None:
            self._saved(unsaved.file.write(unsaved.text))


class Documents(transport.AnyDocuments["SocketConnection"], _Answers[event.Document]):
    """Documents as they change; made by `Client.documents`."""


_SELECTOR: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Not select where there is better: a process with many files has numbers over its limit."""


class SocketConnection:
    """One connection at a time; one thread asks, and any, or a signal's handler, may close."""

    def __init__(self, session: Session) -> None:
        self._closing = False
        self._begin(session)

    def _begin(self, session: Session) -> None:
        self._session = session
        self._socket: socket.socket | None = None
        self._exchange = transport.HttpExchange(session.endpoint)
        self._busy = threading.Lock()
        self._bell, self._rope = socket.socketpair()

    def do(self, wanted: Question | Pause) -> Attempt:
        """Ask, or pause; one thread at a time, until it is closed."""
        if not self._busy.acquire(blocking=False):
            if self._closing:  # the thread that closes it has it for a moment
                raise transport.ConnectionClosed
            raise Misuse("two threads at once: give each its own watch")
        try:
            return self._do(wanted)
        except BaseException:
            self._hang_up()
            raise
        finally:
            self._busy.release()
            self._release_if_closing()

    def _do(self, wanted: Question | Pause) -> Attempt:
        if self._closing:
            raise transport.ConnectionClosed
        if isinstance(wanted, Pause):
            self._wait(None, clock.monotonic() + wanted.seconds)
            return transport.attempt(None)
        while True:
            try:
                return self._ask_once(wanted)
            except transport.RequestFailed as broken:
                self._hang_up()
                if not broken.stale:  # and a fresh connection never is
                    return transport.attempt(broken.failure)

    def close(self) -> None:
        """End every wait at once, and for ever."""
        self._closing = True
        with contextlib.suppress(OSError):  # it is closed already
            self._rope.send(b"!")
        self._release_if_closing()

    def leave_to_parent(self) -> None:
        """Begin without a connection in a forked process: what is open is the parent's."""
        self._hang_up()
        self._bell.close()
        self._rope.close()
        if not self._closing:
            self._begin(self._session)

    def _release_if_closing(self) -> None:
        """Close its sockets, unless a thread is using them: that thread then closes them."""
        if self._closing and self._busy.acquire(blocking=False):
            try:
                self._hang_up()
                self._bell.close()
                self._rope.close()
            finally:
                self._busy.release()

    def __del__(self) -> None:
        """Close a connection that nobody has closed."""
        with contextlib.suppress(AttributeError):  # there were no files left to make it of
            self.close()

    def _ask_once(self, question: Question) -> Attempt:
        if self._exchange.endpoint != question.endpoint:
            self._hang_up()
        connected = self._socket or self._connect(question.endpoint)
        held = bool(question.held) and not self._exchange.fresh
        seconds = question.answer_seconds + (question.held_seconds if held else 0.0)
        deadline = clock.monotonic() + seconds
        unsent = memoryview(self._exchange.ask(question))
        reply = None
        while reply is None:
            late = clock.monotonic() >= deadline  # also while data keeps coming
            if late or not self._wait(connected, deadline, writing=bool(unsent)):
                raise transport.no_answer(question.endpoint, seconds)
            try:
                if unsent:
                    unsent = unsent[connected.send(unsent) :]
                    continue
                data = connected.recv(transport.READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._exchange.cut(f"the connection broke: {error}") from error
            reply = self._exchange.receive(data)
        if not self._exchange.reuse():
            self._hang_up()
        return transport.attempt(reply, held=held)

    def _connect(self, endpoint: EndpointAddress) -> socket.socket:
        deadline = clock.monotonic() + self._session.pace.connect_seconds
        error: OSError = TimeoutError()
        try:
            place_of = (endpoint.host, endpoint.port)
            places = transport.look_up(place_of, self._session.pace.connect_seconds)
        except (OSError, UnicodeError) as unknown:  # UnicodeError: a name that no resolver takes
            raise transport.no_endpoint(endpoint, unknown) from unknown
        for (family, place), seconds in transport.shares(places, deadline):
            try:
                made = self._socket = socket.socket(family, socket.SOCK_STREAM)
                made.setblocking(False)  # noqa: FBT003 - the socket module takes it so
                with contextlib.suppress(BlockingIOError):
                    made.connect(place)
                if self._wait(made, clock.monotonic() + seconds, writing=True):
                    failed = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not failed:
                        transport.probe(made, transport.PROBES)
                        self._exchange = transport.HttpExchange(endpoint)
                        return made
                    error = OSError(failed, os.strerror(failed))
            except OSError as refused:
                error = refused
            self._hang_up()
        raise transport.no_endpoint(endpoint, error) from error

    def _wait(
        self, connected: socket.socket | None, deadline: float, *, writing: bool = False
    ) -> bool:
        # Tell whether a socket is ready before the deadline, by the monotonic clock.
        with _SELECTOR() as selector:
            bell = selector.register(self._bell, selectors.EVENT_READ)
            if connected is not None:
                wanted = selectors.EVENT_WRITE if writing else selectors.EVENT_READ
                selector.register(connected, wanted)
            seconds = 0.0 if self._closing else max(0.0, deadline - clock.monotonic())
            ready = selector.select(seconds)
            if self._closing or any(key is bell for key, _ in ready):
                raise transport.ConnectionClosed
            return bool(ready)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
