"""HTTP over h11, and connections over plain sockets, with a limit on all that is read.

HttpExchange       one connection's requests and responses, without the socket
SocketConnection   the client's connection: asks, waits and pauses, and ends at once when closed
request            one HTTP request to any address: the operator plane, a peer, a webhook

No proxy is ever used and no redirect followed: the metadata service is one hop away, and what
answers in its place is not it. Nothing here imports asyncio.
"""

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import h11

from forewarn import clock
from forewarn.client import discovery
from forewarn.client.discovery import EndpointAddress
from forewarn.client.errors import Misuse
from forewarn.client.event import Trouble
from forewarn.client.responses import ClockReading, FailedAnswer
from forewarn.client.session import Attempt, Pace, Pause, Question, Session
from forewarn.protocol.message import Reply
from forewarn.version import __version__

if TYPE_CHECKING:
    import ssl

MAX_HEAD_BYTES: Final = 16 * 1024
"""Of a response's status line and headers: the usual limit."""

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Of a response's body: ten thousand events."""

MAX_PIECES: Final = 20_000
"""Of a body, as chunks and reads cut it: each costs 20 microseconds of the processor. A body that
may be long may have a piece for each 512 bytes: network packets have three times as many."""

MAX_INTERIM: Final = 8
"""Interim responses (1xx) before the one that counts: a server has reason for one at most."""

READ_BYTES: Final = 64 * 1024
"""How much one read takes at most."""

KEEPALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
"""Seconds of silence, seconds between probes, probes without an echo: a server that dies without a
word while it holds an answer is noticed within half a minute, not at the end of the wait."""

USER_AGENT: Final = f"Forewarn/{__version__}".encode()
LOGGER: Final = "forewarn.client"
"""The name of the client's log."""

OnTrouble: TypeAlias = Callable[[Trouble], None]
"""What is called once for each change of the reason why no good answer comes."""

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

_clock: Final = clock.SystemClock()


class ConnectionBroken(Exception):  # noqa: N818 - between a shell and here; callers never see it
    """No answer comes on this connection any more.

    Args:
        failure: Why.
        stale: Whether the connection had served before and ended before any part of an answer
            came, like one that the server closed meanwhile: the question may be asked again.
    """

    def __init__(self, failure: FailedAnswer, *, stale: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.stale = stale


class ConnectionClosed(Exception):  # noqa: N818 - the clients turn it into Misuse or an end
    """The client closed the connection, maybe in another thread or task."""


class RequestFailed(Exception):  # noqa: N818 - named for what is the matter
    """A `request` without a response; the operating system's error, if any, is its cause.

    Args:
        failure: Why: `invalid-request`, `no-connection`, `no-answer`, `cut`, `no-http` or
            `too-large`.
    """

    def __init__(self, failure: FailedAnswer) -> None:
        super().__init__(failure.message)
        self.reason = failure.reason


class HttpExchange:
    """One connection's requests and responses.

    Args:
        endpoint: Where the connection leads.
        max_body: The most bytes of a response's body.
    """

    def __init__(self, endpoint: EndpointAddress, max_body: int = MAX_BODY_BYTES) -> None:
        self.endpoint = endpoint
        self._max_body = max_body
        self._max_pieces = max(MAX_PIECES, max_body // 512)
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._answered = 0
        self._forget()

    def _forget(self) -> None:
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._interim = self._pieces = 0
        self._began = False

    @property
    def fresh(self) -> bool:
        """Whether no response has come on it yet."""
        return self._answered == 0

    def ask(self, question: Question) -> bytes:
        """Return a question's bytes; headers that hold on this connection only if it is not fresh.

        The connection must be reusable, and the response before be taken.
        """
        headers = [(b"Metadata", b"true"), *(() if self.fresh else question.held)]
        body = question.body if question.method == b"POST" else None
        if body is not None:
            headers.append((b"Content-Type", b"application/json"))
        target = self.endpoint.prefix + question.target
        return self.write(question.method, target, headers, body)

    def write(self, method: bytes, target: str, headers: Headers, body: bytes | None) -> bytes:
        """Return a request's bytes; its headers replace those that every request has.

        Args:
            method: Such as `GET`.
            target: Path and query.
            headers: Names in any case.
            body: None for none.
        """
        complete = {
            b"host": (b"Host", self.endpoint.authority.encode()),
            b"user-agent": (b"User-Agent", USER_AGENT),
            b"accept": (b"Accept", b"*/*"),
        }
        complete.update((each[0].lower(), each) for each in headers)
        if body is not None:
            complete[b"content-length"] = (b"Content-Length", b"%d" % len(body))
        headers = list(complete.values())
        head = h11.Request(method=method, target=target.encode(), headers=headers)
        sent = self._h11.send(head) or b""
        if body:
            sent += self._h11.send(h11.Data(data=body)) or b""
        return sent + (self._h11.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> Reply | None:
        """Take what was read; return the response once it is whole.

        Args:
            data: `b""` where the server has closed.

        Raises:
            ConnectionBroken: It is not a response, is over a limit, or was cut off.
        """
        self._began = self._began or bool(data)
        if not self._began:
            raise self.cut("the server closed the connection without an answer")
        try:
            self._h11.receive_data(data)
            return self._read(ended=not data)
        except h11.RemoteProtocolError as error:
            if not data:
                raise self.cut(
                    "the server closed the connection in the middle of an answer"
                ) from error
            reason = "too-large" if error.error_status_hint == 431 else "no-http"
            raise _broken(reason, f"the answer is not valid HTTP: {error}") from error

    def _read(self, *, ended: bool) -> Reply | None:
        while True:
            part = self._h11.next_event()
            if part is h11.NEED_DATA or part is h11.PAUSED:
                return None
            if isinstance(part, h11.InformationalResponse):
                self._interim += 1
                if self._interim > MAX_INTERIM:
                    raise _broken("no-http", f"more than {MAX_INTERIM} interim answers")
            elif isinstance(part, h11.Response):
                self._head = part
            elif isinstance(part, h11.Data):
                self._body += part.data
                self._pieces += 1
                if len(self._body) > self._max_body:
                    raise _broken("too-large", f"the answer is over {self._max_body} bytes")
                if self._pieces > self._max_pieces:
                    message = f"the answer comes in over {self._max_pieces} pieces"
                    raise _broken("too-large", message)
            elif isinstance(part, h11.EndOfMessage):
                return self._whole()
            elif ended:
                raise self.cut("the server closed the connection without an answer")

    def _whole(self) -> Reply:
        assert self._head is not None  # h11 ends no message that did not begin
        reply = Reply(self._head.status_code, bytes(self._body), tuple(self._head.headers))
        self._forget()
        self._answered += 1
        return reply

    def reuse(self) -> bool:
        """Prepare for the next question; tell whether the connection may have one."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        if self._h11.trailing_data[0]:
            return False  # what nobody asked for must not become the next answer
        self._h11.start_next_cycle()
        return True

    def cut(self, message: str) -> ConnectionBroken:
        """Return what an end of the connection means now."""
        failure = FailedAnswer(reason="cut", message=message)
        return ConnectionBroken(failure, stale=not self.fresh and not self._began)


def _broken(reason: str, message: str) -> ConnectionBroken:
    return ConnectionBroken(FailedAnswer(reason=reason, message=message, answered=True))


def no_connection(where: object, error: Exception) -> ConnectionBroken:
    """Return the failure to connect."""
    message = f"no connection to {where}: {str(error) or type(error).__name__}"
    return ConnectionBroken(FailedAnswer(reason="no-connection", message=message))


def no_answer(where: object, seconds: float) -> ConnectionBroken:
    """Return the failure to answer in time."""
    message = f"no answer from {where} in {seconds:g} s"
    return ConnectionBroken(FailedAnswer(reason="no-answer", message=message))


def open_session(pace: Pace | None, address: str | None, name: str | None) -> Session:
    """Return what a client knows of the server before its first question.

    Args:
        pace: The client's times.
        address: The endpoint's; None to find it.
        name: The machine's name; None to learn it.

    Raises:
        Misuse: The address, or one in the environment, is invalid; or the name is empty.
    """
    if name is not None and not name.strip():
        raise Misuse("name= is empty: leave it out to learn the name from the endpoint")
    try:
        found = discovery.find(address, os.environ, _clock.now())
    except discovery.BadAddress as error:
        raise Misuse(str(error)) from error
    return Session(pace or Pace(), found, name)


def clock_reading() -> ClockReading:
    """Return the time by the machine's clocks."""
    return ClockReading(_clock.now(), _clock.monotonic())


def attempt(outcome: Reply | FailedAnswer | None, *, held: bool = False) -> Attempt:
    """Return what was done, with the time and a random number; a forked process draws others."""
    drawn = os.urandom(4)  # noqa: TID251 - the client's one source of chance
    return Attempt(outcome, clock_reading(), int.from_bytes(drawn, "big") / 2.0**32, held)


def tune(connected: socket.socket) -> None:
    """Send at once, and notice a peer that dies without a word, as far as the system can."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def report(trouble: Trouble, session: Session, on_trouble: OnTrouble | None) -> None:
    """Log a trouble, and tell the caller."""
    import logging  # noqa: PLC0415 - most clients never meet trouble, and start sooner without

    level = logging.INFO if trouble.over else logging.WARNING
    log = logging.getLogger(LOGGER)
    log.log(level, "%s: %s (%s)", session.endpoint, trouble.message, trouble.reason)
    if on_trouble is not None:
        on_trouble(trouble)


_SELECTOR: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""Not select where there is better: a process with many files has numbers over its limit."""


class SocketConnection:
    """One connection at a time to the endpoint, and a bell that ends every wait.

    One thread asks; any thread, and a signal's handler, may close.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._socket: socket.socket | None = None
        self._exchange = HttpExchange(session.endpoint)
        self._busy = threading.Lock()
        self._closing = False
        self._bell, self._rope = socket.socketpair()

    def do(self, wanted: Question | Pause) -> Attempt:
        """Ask, or pause.

        Raises:
            ConnectionClosed: It is closed, or was meanwhile.
            Misuse: Another thread asks on it already.
        """
        if not self._busy.acquire(blocking=False):
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
            raise ConnectionClosed
        if isinstance(wanted, Pause):
            self._wait(None, clock.monotonic() + wanted.seconds)
            return attempt(None)
        while True:
            try:
                return self._ask_once(wanted)
            except ConnectionBroken as broken:
                self._hang_up()
                if not broken.stale:  # and a fresh connection never is
                    return attempt(broken.failure)

    def close(self) -> None:
        """End every wait at once, and for ever."""
        self._closing = True
        with contextlib.suppress(OSError):  # it is closed already
            self._rope.send(b"!")
        self._release_if_closing()

    def _release_if_closing(self) -> None:
        """Give back what it holds, unless a thread is using it, which will do so then."""
        if self._closing and self._busy.acquire(blocking=False):
            try:
                self._hang_up()
                self._bell.close()
                self._rope.close()
            finally:
                self._busy.release()

    def __del__(self) -> None:
        """Close what was forgotten."""
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
                raise no_answer(question.endpoint, seconds)
            try:
                if unsent:
                    unsent = unsent[connected.send(unsent) :]
                    continue
                data = connected.recv(READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._exchange.cut(f"the connection broke: {error}") from error
            reply = self._exchange.receive(data)
        if not self._exchange.reuse():
            self._hang_up()
        return attempt(reply, held=held)

    def _connect(self, endpoint: EndpointAddress) -> socket.socket:
        deadline = clock.monotonic() + self._session.pace.connect_seconds
        error: OSError = TimeoutError("it took too long")
        try:  # a name is looked up to the end, however long: the system offers no other way
            places = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as unknown:  # UnicodeError: a name that no resolver takes
            raise no_connection(endpoint, unknown) from unknown
        for family, kind, protocol, _, place in places:
            try:
                made = self._socket = socket.socket(family, kind, protocol)
                made.setblocking(False)  # noqa: FBT003 - the socket module takes it so
                with contextlib.suppress(BlockingIOError):
                    made.connect(place)
                if self._wait(made, deadline, writing=True):
                    failed = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                    if not failed:
                        tune(made)
                        self._exchange = HttpExchange(endpoint)
                        return made
                    error = OSError(failed, os.strerror(failed))
            except OSError as refused:
                error = refused
            self._hang_up()
        raise no_connection(endpoint, error) from error

    def _wait(
        self, connected: socket.socket | None, deadline: float, *, writing: bool = False
    ) -> bool:
        """Wait until a socket is ready, or a time; tell whether it is.

        Args:
            connected: The socket; None to wait for the time alone.
            deadline: By the monotonic clock.
            writing: Whether to wait until it takes bytes, and not until it has some.

        Raises:
            ConnectionClosed: The bell rang.
        """
        with _SELECTOR() as selector:
            bell = selector.register(self._bell, selectors.EVENT_READ)
            if connected is not None:
                wanted = selectors.EVENT_WRITE if writing else selectors.EVENT_READ
                selector.register(connected, wanted)
            seconds = 0.0 if self._closing else max(0.0, deadline - clock.monotonic())
            ready = selector.select(seconds)
            if self._closing or any(key is bell for key, _ in ready):
                raise ConnectionClosed
            return bool(ready)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def request(  # noqa: PLR0913 - all but the first two by name
    method: str,
    url: str,
    *,
    seconds: float,
    connect_seconds: float | None = None,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    unix_socket: str = "",
    max_body: int = MAX_BODY_BYTES,
    tls: "ssl.SSLContext | None" = None,
    opened: Callable[[socket.socket], None] = lambda _: None,
) -> Reply:
    """Send one HTTP request and return the response, whatever its status.

    Args:
        method: Such as `GET`.
        url: `http://` or `https://`, with path and query. With `unix_socket` its host and port
            count for the Host header only.
        seconds: For all of it, from the connection to the last byte.
        connect_seconds: For the connection alone; None for `seconds`.
        headers: Beside Host, User-Agent, Accept and Connection, or instead of them.
        body: Sent with its length; None for none.
        unix_socket: A path to connect to instead of the URL's host.
        max_body: The most bytes of the response's body.
        tls: How to check the server of an https URL; None for the system's certificates.
        opened: Gets the socket before it connects: another thread that shuts it down ends the
            request at once.

    Raises:
        RequestFailed: There was no whole response; its `__cause__` is the system's error, if any.
    """
    try:
        exchange, sent = _prepared(method, url, headers, body, max_body)
    except (ValueError, h11.LocalProtocolError) as error:
        failure = FailedAnswer(reason="invalid-request", message=f"invalid request: {error}")
        raise RequestFailed(failure) from error
    endpoint = exchange.endpoint
    until = clock.monotonic() + seconds
    places = _places(endpoint, unix_socket)
    try:
        with contextlib.ExitStack() as stack:
            limit = seconds if connect_seconds is None else min(seconds, connect_seconds)
            connected = stack.enter_context(_connected(places, limit, opened))
            if url[:6].lower() == "https:":
                connected = stack.enter_context(_secured(connected, endpoint.host, tls))
                opened(connected)
            return _answered(connected, exchange, sent, until, seconds)
    except ConnectionBroken as broken:
        raise RequestFailed(broken.failure) from broken.__cause__
    except (OSError, UnicodeError) as error:
        failure = no_connection(unix_socket or endpoint, error).failure
        raise RequestFailed(failure) from error


def _prepared(
    method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes | None, max_body: int
) -> tuple[HttpExchange, bytes]:
    import urllib.parse  # noqa: PLC0415 - the client itself starts sooner without

    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"the URL {url!r} is not http://HOST or https://HOST")
    port = parts.port or (443 if parts.scheme == "https" else discovery.PORT)
    exchange = HttpExchange(EndpointAddress(parts.hostname, port), max_body)
    encoded = [(b"Connection", b"close")]
    encoded.extend((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return exchange, exchange.write(method.encode(), target, encoded, body)


_Place: TypeAlias = tuple[int, str | tuple[Any, ...]]
"""An address family, and an address of it."""


def _places(endpoint: EndpointAddress, unix_socket: str) -> Iterable[_Place]:
    if unix_socket:
        yield socket.AF_UNIX, unix_socket
        return
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    yield from ((family, place) for family, _, _, _, place in found)


def _connected(
    places: Iterable[_Place], seconds: float, opened: Callable[[socket.socket], None]
) -> socket.socket:
    until = clock.monotonic() + seconds
    error: OSError = TimeoutError("it took too long")
    for family, place in places:
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened(made)
            made.settimeout(_left(until))
            made.connect(place)
        except OSError as refused:
            made.close()
            error = refused
        else:
            return made
    raise error


def _secured(connected: socket.socket, host: str, tls: "ssl.SSLContext | None") -> socket.socket:
    import ssl  # noqa: PLC0415 - for https alone

    return (tls or ssl.create_default_context()).wrap_socket(connected, server_hostname=host)


def _answered(
    connected: socket.socket, exchange: HttpExchange, sent: bytes, until: float, seconds: float
) -> Reply:
    try:
        connected.settimeout(_left(until))
        connected.sendall(sent)
        while clock.monotonic() < until:
            connected.settimeout(_left(until))
            reply = exchange.receive(connected.recv(READ_BYTES))
            if reply is not None:
                return reply
    except TimeoutError as error:
        raise no_answer(exchange.endpoint, seconds) from error
    except OSError as error:
        raise exchange.cut(f"the connection broke: {error}") from error
    raise no_answer(exchange.endpoint, seconds)


def _left(until: float) -> float:
    """Return the seconds that are left; never 0, which would mean not to wait at all."""
    return max(0.001, until - clock.monotonic())
