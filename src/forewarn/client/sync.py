"""The client over sockets: `Client`, `Watch`, `Documents`. No asyncio.

`aio` runs the same in threads: only `_find` and calls through a connection's `do` wait.
"""

import contextlib
import os
import queue
import selectors
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Self, TypeAlias, TypeVar

from forewarn import clock
from forewarn.client import discovery, event, session, transport, watch
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import OVER, Misuse, Trouble
from forewarn.client.session import Attempt, Pause, Question, Session
from forewarn.client.watch import Watcher
from forewarn.client.watch_file import SAVED, SavePath, WatchFile

MAX_IDLE: Final = 2
"""Connections that a client keeps for later questions."""

LOGGER: Final = "forewarn.client"

OnTrouble: TypeAlias = Callable[[Trouble], None]
"""A callback for each new reason why no good answer comes, or why a state is not saved."""

T = TypeVar("T")


class Client:
    """Reads and approves a machine's scheduled events, on Azure and on Forewarn alike.

    Any thread may use it. It opens nothing before the first call.

    Args:
        endpoint: The address, such as `http://127.0.0.1:8080/vm/web-0`. None: the environment's
            FOREWARN_ENDPOINT, else the first that answers of `http://169.254.169.254`, the
            environment's SCHEDULEDEVENTSIP, and option 245 of the machine's DHCP leases.
        name: This machine's name as in an event's resources. None: the client asks the endpoint.
        pace: The intervals between the client's questions, and its time limits.

    Raises:
        Misuse: The address or the name is invalid.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        name: str | None = None,
        pace: session.Pace | None = None,
    ) -> None:
        if name is not None and not name.strip():
            raise Misuse("name= is empty: leave it out to learn the name from the endpoint")
        try:
            found = discovery.find(endpoint, os.environ, clock.SystemClock().now())
        except discovery.BadAddress as error:
            raise Misuse(str(error)) from error
        self._session = Session(pace or session.Pace(), found, name)
        self._guard = threading.RLock()  # a signal's handler may close what its thread is opening
        self._connections: weakref.WeakSet[SocketConnection] = weakref.WeakSet()
        self._idle: list[SocketConnection] = []
        self._closed = False
        _clients.add(self)

    @property
    def endpoint(self) -> str:
        """The address that the client asks, as a URL; until one has answered, the one to try."""
        return str(self._session.endpoint)

    @property
    def name(self) -> str | None:
        """This machine's name, given or learnt; None while it is not known."""
        return self._session.name

    def document(self) -> event.Document:
        """Return the current document.

        Raises:
            Unreachable: No answer came, after some tries within the pace's
                `first_answer_seconds`.
            BadAnswer: The answer is not a document.
            RequestRefused: The server refuses the question.
            Misuse: The client is closed.
        """
        return self._run(session.document)

    def events(self, *, mine: bool = False) -> tuple[event.Event, ...]:
        """Return the current events.

        Args:
            mine: True to leave out events that concern other machines only.

        Raises:
            Unreachable, BadAnswer, RequestRefused, Misuse: As for `document`.
        """
        return listed(self.document(), mine=mine)

    def approve(self, *events: event.Event | str, within_seconds: float | None = None) -> None:
        """Approve events, which may then start before their notice is over (protocol.md section 5).

        Returns once the server has confirmed the approval. An approval whose answer is lost is sent
        again until the event is over; it counts once.

        Args:
            *events: Events or their ids; all or none of them are approved.
            within_seconds: The time for all tries; None for the pace's `approve_seconds`.

        Raises:
            RequestRefused: The server refuses it, for example an id that it never published.
            Unreachable, BadAnswer: It was not confirmed in time.
            Misuse: There is nothing to approve, or the client is closed.
        """
        self._run(partial(session.approve, events=events, within_seconds=within_seconds))

    def report(self, status: str, reason: str = "") -> None:
        """Report this machine's state to Forewarn, now and with each later look.

        Operators see it, and Forewarn takes no other update domain down until a machine that was
        stopped has said `back`. Other servers get no report. If no answer comes, the next look
        carries it.

        Args:
            status: `preparing`, `ready`, `held`, `recovering` or `back` (protocol.md section 10).
            reason: The reason, for operators; cut after 200 bytes.

        Raises:
            Misuse: The status is none of these, or the client is closed.
        """
        self._run(partial(session.report, status=status, reason=reason))

    def machine(self) -> event.MachineIdentity:
        """Return this machine's names and place.

        Raises:
            Unreachable, BadAnswer, RequestRefused, Misuse: As for `document`.
        """
        return self._run(session.machine)

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
                watch saves what it has reported. The next process resumes from there: it gets
                `gone` for events that ended meanwhile, and `appeared` again only for an event that
                has not started, and whose `appeared` the handler was not done with. A change is
                done with when the next one is asked for. A relative path begins in the
                environment's STATE_DIRECTORY (systemd's `StateDirectory=`), else in the current
                folder. None to begin with the current events.
            types: The event types to report; None for all.
            mine: True to leave out events that concern other machines only. An event that this
                machine drops out of is `gone`.
            on_trouble: Called once for each change of the reason why no good answer comes, when the
                file cannot be written, and when the endpoint has another name for this machine than
                `name`; none of it stops the watch. An exception from it ends the watch.

        Raises:
            Misuse: `types` or the content of the file is invalid, the file cannot be used (a full
                or read-only disk is a trouble instead), or the client is closed.
            Unreachable: The process has no file left for a connection.
        """
        watcher, file = self._watcher(since, types, mine=mine)
        self._session.compare_name()
        return Watch(self._connection, watcher, watcher.take, on_trouble, file)

    def documents(
        self, *, known: Iterable[event.Event] = (), on_trouble: OnTrouble | None = None
    ) -> "Documents":
        """Return each new document, whole, until the iterator or the client closes.

        The first comes at once, the next ones when an event is new, has changed or is over. An
        event stays in the document until a second answer confirms its end.

        Args:
            known: Events that the caller saw before, as in an earlier process: if the first answer
                does not list all of them, the first document comes with the second, or if none
                comes. If it lists nothing, a second answer has to confirm their end.
            on_trouble: As for `watch`.

        Raises:
            Misuse: The client is closed.
            Unreachable: The process has no file left for a connection.
        """
        watcher = Watcher(self._session, None, None, transport.clock_reading(), known)
        self._session.compare_name()
        return Documents(self._connection, watcher, watcher.take_document, on_trouble)

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

    def _watcher(
        self, since: SavePath | None, types: Iterable[str] | None, *, mine: bool
    ) -> tuple[Watcher, WatchFile | None]:
        wanted = watch.event_filter(types, mine=mine)
        if since is None:
            return Watcher(self._session, wanted, None, transport.clock_reading()), None
        file = WatchFile(since)
        try:
            watcher = Watcher(self._session, wanted, file.text, transport.clock_reading())
        except Misuse as error:
            raise Misuse(f"{file.path}: {error}") from error
        file.check(watcher.since)
        return watcher, file

    def _connection(self) -> "SocketConnection":
        try:
            connection = SocketConnection(self._session)
        except OSError as error:  # the process has no files left
            raise transport.no_connection(self._session.endpoint, error).failure.error() from error
        with self._guard:
            self._connections.add(connection)
            if not self._closed:
                return connection
        connection.close()
        raise Misuse("the client is closed: make another")

    def _run(self, ask: session.Ask[T]) -> T:
        with self._lent() as connection:
            return connection.run(ask)

    @contextlib.contextmanager
    def _lent(self) -> "Iterator[SocketConnection]":
        with self._guard:
            connection = self._idle.pop() if self._idle else self._connection()
        try:
            yield connection
        except transport.ConnectionClosed as closed:
            raise Misuse("the client was closed meanwhile") from closed
        finally:
            with self._guard:
                if not connection.closing and not self._closed and len(self._idle) < MAX_IDLE:
                    self._idle.append(connection)
                else:
                    connection.close()

    def _leave_to_parent(self) -> None:
        """Share nothing with the process that this one was forked from, whatever it was doing."""
        self._guard = threading.RLock()
        for connection in self._connections:
            connection.leave_to_parent()


_clients: Final[weakref.WeakSet[Client]] = weakref.WeakSet()


def _forked() -> None:
    for client in _clients:
        client._leave_to_parent()  # noqa: SLF001 - its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def listed(document: event.Document, *, mine: bool) -> tuple[event.Event, ...]:
    """Return the events of a document, without those that concern other machines only."""
    return tuple(each for each in document.events if not mine or each.concerns_me is not False)


class _Answers(Iterator[T]):
    """The results that a watcher takes from one answer after another."""

    def __init__(
        self,
        connect: "Callable[[], SocketConnection]",
        watcher: Watcher,
        take: Callable[[], T | None],
        on_trouble: OnTrouble | None,
        file: WatchFile | None = None,
    ) -> None:
        self._connect = connect
        self._connection = connect()
        self._watcher = watcher
        self._take = take
        self._on_trouble = on_trouble
        self._file = file
        self._taken: T | None = None
        """The next one, until the caller has it."""
        self._trouble: Trouble | None = None
        """The trouble to report before it, until it is reported."""

    def __next__(self) -> T:
        """Return the next one, however long it takes; stop once closed."""
        self._find()
        while isinstance(found := self._give(), Trouble):
            self._report(found)
            self._find()
        if found is None:
            raise StopIteration
        return found

    def _find(self) -> None:
        """Wait for the next one, or for a trouble to report before it; for neither once closed."""
        connection = self._connection
        with contextlib.suppress(transport.ConnectionClosed):
            while self._trouble is None:
                self._trouble = self._prepare()
                if self._trouble is not None or self._taken is not None:
                    return
                self._watcher.step(connection.do, transport.clock_reading())
                if self._file is not None:
                    self._file.try_again()

    def _prepare(self) -> Trouble | None:
        """Take the next one if there is one; return a trouble to report before.

        The changes that the caller is done with are saved before the next one is taken, and the
        appearance of an event before the caller gets it.
        """
        if self._watcher.troubles:
            return self._watcher.troubles.popleft()
        if self._taken is None:
            if (trouble := self._settle()) is not None:
                return trouble
            self._taken = self._take()
        return self._save()

    def _give(self) -> T | Trouble | None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            return trouble
        taken, self._taken = self._taken, None
        return taken

    def _settle(self) -> Trouble | None:
        if self._taken is None:  # else the caller has not had the last one yet
            self._watcher.settle()
        return self._save()

    def _save(self) -> Trouble | None:
        if self._file is None or self._file.text == (text := self._watcher.since):
            return None
        return self._file.write(text)

    def _report(self, trouble: Trouble) -> None:
        import logging  # noqa: PLC0415 - most clients never meet trouble, and start sooner without

        level = logging.INFO if trouble.reason in {OVER, SAVED} else logging.WARNING
        log = logging.getLogger(LOGGER)
        log.log(level, "%s: %s (%s)", self._watcher.endpoint, trouble.message, trouble.reason)
        if self._on_trouble is not None:
            self._on_trouble(trouble)

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
        if (trouble := self._settle()) is not None:
            self._report(trouble)


class Documents(_Answers[event.Document]):
    """Documents as they change; made by `Client.documents`."""

    @property
    def answered_at(self) -> float | None:
        """Time of the last good answer, by the monotonic clock; None before the first."""
        return self._watcher.answered_at

    @property
    def looks(self) -> int:
        """The number of good answers, those without anything new included."""
        return self._watcher.looks


_SELECTOR: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Not select where there is better: a process with many files has numbers over its limit."""


class SocketConnection:
    """One connection at a time; one thread asks, and any, or a signal's handler, may close."""

    def __init__(
        self, session: Session, resolve: Callable[..., list[Any]] = socket.getaddrinfo
    ) -> None:
        self.closing = False
        """True once it was closed: `do` raises ConnectionClosed for ever."""
        self._resolve = resolve
        self._begin(session)

    def _begin(self, session: Session) -> None:
        self._session = session
        self._socket: socket.socket | None = None
        self._exchange = transport.HttpExchange(session.endpoint)
        self._busy = threading.Lock()
        self._places: transport.Places = queue.SimpleQueue()
        self._wakeup_r, self._wakeup_w = socket.socketpair()

    def run(self, ask: session.Ask[T]) -> T:
        """Ask until there is a result."""
        return ask(self._session, self.do, transport.clock_reading())

    def do(self, wanted: Question | Pause) -> Attempt:
        """Ask, or pause; one thread at a time, until it is closed."""
        if not self._busy.acquire(blocking=False):
            if self.closing:  # the thread that closes it has it for a moment
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
        if self.closing:
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
        self.closing = True
        self._places.put(transport.ConnectionClosed())
        with contextlib.suppress(OSError):  # it is closed already
            self._wakeup_w.send(b"!")
        self._release_if_closing()

    def leave_to_parent(self) -> None:
        """Begin without a connection in a forked process: open ones are the parent's."""
        self._hang_up()
        self._wakeup_r.close()
        self._wakeup_w.close()
        if not self.closing:
            self._begin(self._session)

    def _release_if_closing(self) -> None:
        """Close its sockets, unless a thread is using them: that thread then closes them."""
        if self.closing and self._busy.acquire(blocking=False):
            try:
                self._hang_up()
                self._wakeup_r.close()
                self._wakeup_w.close()
            finally:
                self._busy.release()

    def __del__(self) -> None:
        """Close a connection that its owner has not closed."""
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
        seconds = self._session.pace.connect_seconds
        deadline = clock.monotonic() + seconds
        error: OSError = TimeoutError()
        self._places = queue.SimpleQueue()
        if self.closing:  # and the queue before was told
            raise transport.ConnectionClosed
        try:
            where = (endpoint.host, endpoint.port)
            places = transport.look_up(where, seconds, self._resolve, self._places)
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
            bell = selector.register(self._wakeup_r, selectors.EVENT_READ)
            if connected is not None:
                wanted = selectors.EVENT_WRITE if writing else selectors.EVENT_READ
                selector.register(connected, wanted)
            seconds = 0.0 if self.closing else max(0.0, deadline - clock.monotonic())
            ready = selector.select(seconds)
            if self.closing or any(key is bell for key, _ in ready):
                raise transport.ConnectionClosed
            return bool(ready)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
