"""HTTP over h11, with a limit on everything that is read.

No redirect is followed, and no proxy used unless the caller of `request` gives one: the metadata
service is one hop away, and an answer in its place would be another's. Nothing here imports
asyncio.
"""

import contextlib
import math
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import h11

from forewarn import clock
from forewarn.client import discovery, session
from forewarn.client.discovery import EndpointAddress
from forewarn.protocol.message import Reply
from forewarn.version import __version__

if TYPE_CHECKING:
    import ssl

    from forewarn.client.proxies import Proxy

MAX_HEAD_BYTES: Final = 16 * 1024
"""The most bytes of a response's status line and headers: the usual limit."""

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""The most bytes of a response's body: ten thousand events."""

MAX_PIECES: Final = 20_000
"""The most pieces of a body, as chunks and reads: each costs 20 microseconds. A larger body may
have one for each 512 bytes, which is a third of a network packet."""

MAX_INTERIM: Final = 8
"""Interim responses (1xx) before the one that counts: one is usual."""

READ_BYTES: Final = 64 * 1024

USER_AGENT: Final = f"Forewarn/{__version__}".encode()
Place: TypeAlias = tuple[int, Any]
"""An address family, and an address in it to connect to."""

Places: TypeAlias = queue.SimpleQueue[list[Place] | Exception]
"""The queue in which a resolver puts the places that it finds, or its error."""

T = TypeVar("T")

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

_clock: Final = clock.SystemClock()


class Probes(NamedTuple):
    """TCP keepalive: the settings by which the system notices a dead path without traffic."""

    silent_seconds: int
    between_seconds: int
    most: int
    """The number of unanswered probes after which the connection ends."""

    @property
    def noticed_seconds(self) -> int:
        """The longest time in which a dead path is noticed."""
        return self.silent_seconds + self.between_seconds * self.most


PROBES: Final = Probes(silent_seconds=10, between_seconds=5, most=3)
"""A server that dies while it holds an answer is noticed within half a minute."""


class ConnectionClosed(Exception):  # noqa: N818 - the clients turn it into Misuse or an end
    """The client closed the connection, maybe in another thread."""


class RequestFailed(Exception):  # noqa: N818 - named for what is the matter
    """No whole response came; the operating system's error, if any, is its cause.

    The reason is `invalid-request`, `no-connection`, `no-answer`, `cut`, `no-http` or `too-large`.
    It is `stale` if the connection had served before and ended before any part of an answer came,
    as when the server has closed it: then the question may be asked again.
    """

    def __init__(self, failure: session.FailedAnswer, *, stale: bool = False) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.reason = failure.reason
        self.stale = stale


class HttpExchange:
    """The requests and responses of one connection, with a limit on each response."""

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
        """True if no response has come on it yet."""
        return self._answered == 0

    def ask(self, question: session.Question) -> bytes:
        """Return a question's bytes; the response before must be taken."""
        headers = [(b"Metadata", b"true"), *(() if self.fresh else question.held)]
        if question.report:
            headers.append((b"Forewarn-Agent", question.report.encode()))
        body = question.body if question.method == b"POST" else None
        if body is not None:
            headers.append((b"Content-Type", b"application/json"))
        target = self.endpoint.prefix + question.target
        return self.write(question.method, target, headers, body)

    def write(self, method: bytes, target: str, headers: Headers, body: bytes | None) -> bytes:
        """Return a request's bytes; its headers replace those that every request has."""
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
        """Take received bytes, `b""` for the end of the stream; return the response once whole."""
        self._began = self._began or bool(data)
        if not self._began:
            raise self.cut("the server closed the connection without an answer")
        try:
            self._h11.receive_data(data)
            return self._read(ended=not data)
        except h11.RemoteProtocolError as error:
            if not data:
                message = "the server closed the connection in the middle of an answer"
                raise self.cut(message) from error
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

    def take(self) -> Reply | None:
        """Return the response as far as it has come, without the body that was taken before.

        None before its head is there.
        """
        if self._head is None:
            return None
        piece, self._body, self._pieces = bytes(self._body), bytearray(), 0
        return Reply(self._head.status_code, piece, tuple(self._head.headers))

    def _whole(self) -> Reply:
        assert self._head is not None  # h11 ends no message that did not begin
        reply = Reply(self._head.status_code, bytes(self._body), tuple(self._head.headers))
        self._forget()
        self._answered += 1
        return reply

    def reuse(self) -> bool:
        """Prepare for the next question; return True if the connection may have one."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        if self._h11.trailing_data[0]:
            return False  # what nobody asked for must not become the next answer
        self._h11.start_next_cycle()
        return True

    def cut(self, message: str) -> RequestFailed:
        """Return the failure for a connection that ends now."""
        failure = session.FailedAnswer(reason="cut", message=message)
        return RequestFailed(failure, stale=not self.fresh and not self._began)


def _broken(reason: str, message: str) -> RequestFailed:
    return RequestFailed(session.FailedAnswer(reason=reason, message=message, answered=True))


def no_endpoint(endpoint: EndpointAddress, error: Exception) -> RequestFailed:
    """Return the failure to connect to the metadata endpoint."""
    advice = f"; check the address that was given, or {discovery.ENDPOINT_VARIABLE}"
    if endpoint.host == discovery.LINK_LOCAL:
        advice = f"; set {discovery.ENDPOINT_VARIABLE} if the endpoint is elsewhere"
    return no_connection(endpoint, error, advice)


def no_connection(where: object, error: Exception, advice: str = "") -> RequestFailed:
    """Return the failure to connect."""
    why = "it took too long" if isinstance(error, TimeoutError) else str(error)
    why = getattr(error, "strerror", None) or why  # without the number of the error
    message = f"no connection to {where}: {why or type(error).__name__}{advice}"
    return RequestFailed(session.FailedAnswer(reason="no-connection", message=message))


def no_answer(where: object, seconds: float) -> RequestFailed:
    """Return the failure to answer in time."""
    message = f"no answer from {where} in {seconds:g} s"
    return RequestFailed(session.FailedAnswer(reason="no-answer", message=message))


def clock_reading() -> session.ClockReading:
    """Return the time by the machine's clocks."""
    return session.ClockReading(_clock.now(), _clock.monotonic())


def attempt(outcome: Reply | session.FailedAnswer | None, *, held: bool = False) -> session.Attempt:
    """Return an outcome with the time and a random number; a forked process draws others."""
    drawn = os.urandom(4)  # noqa: TID251 - the client's one source of chance
    return session.Attempt(outcome, clock_reading(), int.from_bytes(drawn, "big") / 2.0**32, held)


def probe(opened: socket.socket, probes: Probes) -> None:
    """Set the system's keepalive on this connection, or those that a socket accepts.

    Data that was sent, and not acknowledged, counts as a probe. Nothing waits for more to be sent.
    """
    values = {
        "TCP_NODELAY": 1,
        "TCP_KEEPIDLE": probes.silent_seconds,
        "TCP_KEEPINTVL": probes.between_seconds,
        "TCP_KEEPCNT": probes.most,
        "TCP_USER_TIMEOUT": probes.noticed_seconds * 1000,
    }
    with contextlib.suppress(OSError):  # the peer has gone, as some systems say here
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in values.items():
            if hasattr(socket, option):
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def request(  # noqa: PLR0913 - all but the first two by name
    method: str,
    url: str,
    *,
    seconds: float,
    connect_seconds: float | None = None,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    unix_socket: str = "",
    tls: "ssl.SSLContext | None" = None,
    head_only: bool = False,
    max_body: int = MAX_BODY_BYTES,
    opened: Callable[[socket.socket], None] = lambda _: None,
    proxy: "Proxy | None" = None,
) -> Reply:
    """Send one HTTP request and return the response, whatever its status.

    `seconds` is for all of it, from the connection to the last byte, `connect_seconds` for the
    connection alone. `headers` are added to Host, User-Agent, Accept and Connection, or replace
    them. With the path of a `unix_socket` the URL's host is only for the Host header. A server with
    https is verified by the system's certificates unless a context for `tls` is given. With
    `head_only` no body is waited for, however long. `opened` gets the socket before it connects:
    another thread that shuts it down ends the request at once.

    Without a whole response it raises RequestFailed; the cause is the system's error, if any.
    """
    exchange, sent = prepared(method, url, headers, body, max_body=max_body)
    if proxy and url[:5].lower() == "http:":
        sent = proxy.forwarded(sent, exchange.endpoint)
    until = clock.monotonic() + seconds
    limit = seconds if connect_seconds is None else min(seconds, connect_seconds)
    place = unix_socket or exchange.endpoint
    with _connected(place, url, limit, tls, opened, proxy=proxy) as connected:
        pieces = _pieces(connected, exchange, sent, lambda: _left(until), seconds)
        replies = (whole or (exchange.take() if head_only else None) for whole in pieces)
        return next(filter(None, replies))


def stream(
    url: str,
    *,
    silence_seconds: float,
    connect_seconds: float,
    headers: Iterable[tuple[str, str]] = (),
    unix_socket: str = "",
    tls: "ssl.SSLContext | None" = None,
) -> Iterator[Reply]:
    """Send a GET and yield the response in pieces: its status, and the next part of the body.

    It ends with the response; closing the generator ends the connection. `silence_seconds` is the
    longest time without a byte. The rest is as for `request`.
    """
    exchange, sent = prepared("GET", url, headers)
    with _connected(unix_socket or exchange.endpoint, url, connect_seconds, tls) as connected:
        for whole in _pieces(connected, exchange, sent, lambda: silence_seconds, silence_seconds):
            piece = whole or exchange.take()
            if piece is not None:
                yield piece


@contextlib.contextmanager
def _connected(
    place: str | EndpointAddress,
    url: str,
    seconds: float,
    tls: "ssl.SSLContext | None",
    opened: Callable[[socket.socket], None] = lambda _: None,
    *,
    proxy: "Proxy | None" = None,
) -> Iterator[socket.socket]:
    """Connect to a place, with TLS if the URL says so."""
    until = clock.monotonic() + seconds
    try:
        with contextlib.ExitStack() as stack:
            first = proxy.endpoint if proxy else place
            where = first if isinstance(first, str) else (first.host, first.port)
            connected = stack.enter_context(connect(where, seconds, opened))
            if url[:6].lower() == "https:":
                import ssl  # noqa: PLC0415 - for https alone

                if proxy and not isinstance(place, str):
                    proxy.open_tunnel(connected, place, until)
                host = place if isinstance(place, str) else place.host
                connected = (tls or ssl.create_default_context()).wrap_socket(
                    connected, server_hostname=host.removesuffix("."), do_handshake_on_connect=False
                )
                stack.enter_context(connected)
                opened(connected)
                connected.do_handshake()
            yield connected
    except (OSError, UnicodeError) as error:
        raise no_connection(proxy.endpoint if proxy else place, error) from error


def prepared(
    method: str,
    url: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    *,
    max_body: int = MAX_BODY_BYTES,
) -> tuple[HttpExchange, bytes]:
    """Return the exchange for one request, and the bytes of it; RequestFailed if it is invalid."""
    try:
        endpoint, target = _parts(url)
        exchange = HttpExchange(endpoint, max_body)
        encoded = [(b"Connection", b"close")]
        encoded.extend((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
        return exchange, exchange.write(method.encode(), target, encoded, body)
    except (ValueError, h11.LocalProtocolError) as error:
        failure = session.FailedAnswer(
            reason="invalid-request", message=f"invalid request: {error}"
        )
        raise RequestFailed(failure) from error


def _parts(url: str) -> tuple[EndpointAddress, str]:
    import urllib.parse  # noqa: PLC0415 - the client itself starts sooner without

    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"the URL {url!r} is not http://HOST or https://HOST")
    port = parts.port or (443 if parts.scheme == "https" else discovery.PORT)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return EndpointAddress(discovery.host_of(parts.hostname), port, scheme=parts.scheme), target


def connect(
    address: str | tuple[str, int],
    seconds: float,
    opened: Callable[[socket.socket], None] = lambda _: None,
    places: Sequence[Place] | None = None,
) -> socket.socket:
    """Return a socket that is connected to the path of a unix socket, or to a host and a port.

    `opened` gets each socket before it connects; `places` are the host's addresses, None to look
    them up. Without a connection it raises OSError.
    """
    until = clock.monotonic() + seconds
    if isinstance(address, str):
        places = [(socket.AF_UNIX, address)]
    elif places is None:
        places = look_up(address, seconds)
    error: OSError = TimeoutError()
    for (family, place), share in shares(places, until):
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened(made)
            made.settimeout(share)
            made.connect(place)
        except OSError as refused:
            made.close()
            error = refused
        else:
            return made
    raise error


def look_up(
    address: tuple[str, int],
    seconds: float,
    resolve: Callable[..., list[Any]] = socket.getaddrinfo,
    found: Places | None = None,
) -> list[Place]:
    """Return the places of a host and a port; OSError or UnicodeError without any in time.

    The system's resolver cannot be interrupted: the thread of one that is late is left behind, and
    its answer counts for those who ask for the same meanwhile. An exception that any thread puts
    into `found` ends the wait for it.
    """
    answers: Places = found or queue.SimpleQueue()
    wanted = (address, resolve)
    with contextlib.suppress(socket.gaierror):  # it is a name
        return _resolved(wanted, socket.AI_NUMERICHOST)
    try:
        _look_ups.join(wanted, answers)
        answer = answers.get(timeout=max(0.0, seconds))
    except RuntimeError as error:  # the system gives no more threads
        raise OSError(str(error)) from error
    except queue.Empty:
        raise TimeoutError(f"the name {address[0]} was not looked up in {seconds:.3g} s") from None
    finally:
        _look_ups.leave(wanted, answers)
    if isinstance(answer, Exception):
        raise answer
    return answer


_Wanted: TypeAlias = tuple[tuple[str, int], Callable[..., list[Any]]]
"""A host and a port, and the resolver that looks them up."""


def _resolved(wanted: _Wanted, flags: int = 0) -> list[Place]:
    address, resolve = wanted
    answer = resolve(*address, type=socket.SOCK_STREAM, flags=flags)
    return [(family, place) for family, _, _, _, place in answer]


class _LookUps:
    """Look-ups under way, one of each name in so many seconds.

    An agent asks a hundred peers each second: while no name server answers, thousands of threads
    would wait, and the system would give none for an action. One that never ends holds up nobody.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        self._seconds = seconds
        self.begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        """Begin without any: a forked process lacks its parent's threads."""
        self._guard = threading.RLock()
        self._latest: dict[_Wanted, tuple[float, list[Places]]] = {}
        """When the latest began, and the queues for its answer."""

    def join(self, wanted: _Wanted, answers: Places) -> None:
        """Put the answer of a look-up into a queue; RuntimeError without a thread for it."""
        now = clock.monotonic()
        with self._guard:
            began, waiting = self._latest.get(wanted, (-math.inf, []))
            if now - began < self._seconds:
                waiting.append(answers)
                return
            waiting = [answers]
            threading.Thread(
                target=self._look_up, args=(wanted, waiting), name="resolver", daemon=True
            ).start()
            self._latest[wanted] = now, waiting

    def leave(self, wanted: _Wanted, answers: Places) -> None:
        """Wait no longer for an answer."""
        with self._guard:
            _, waiting = self._latest.get(wanted, (0.0, []))
            if answers in waiting:
                waiting.remove(answers)

    def _look_up(self, wanted: _Wanted, waiting: list[Places]) -> None:
        answer: list[Place] | Exception
        try:
            answer = _resolved(wanted)
        except Exception as error:  # noqa: BLE001 - raised in the threads that asked
            answer = error
        with self._guard:
            _, latest = self._latest.get(wanted, (0.0, []))
            if latest is waiting:
                del self._latest[wanted]
        for each in waiting:
            each.put(answer)


_look_ups: Final = _LookUps()


def shares(places: Sequence[T], until: float) -> Iterator[tuple[T, float]]:
    """Yield each place with the seconds that may be spent on it: its share of the time left.

    So a host whose IPv6 packets are lost on the way is reached by IPv4.
    """
    for number, place in enumerate(places):
        left = max(0.001, until - clock.monotonic())  # never 0, which would mean not to wait
        yield place, left / (len(places) - number)


def _pieces(
    connected: socket.socket,
    exchange: HttpExchange,
    sent: bytes,
    left: Callable[[], float],
    seconds: float,
) -> Iterator[Reply | None]:
    """Send a request, and yield after each read: the response once it is whole, before it None."""
    whole = None
    try:
        connected.settimeout(left())
        connected.sendall(sent)
        while whole is None:
            connected.settimeout(left())
            whole = exchange.receive(connected.recv(READ_BYTES))
            yield whole
    except TimeoutError as error:
        raise no_answer(exchange.endpoint, seconds) from error
    except OSError as error:
        raise exchange.cut(f"the connection broke: {error}") from error


def _left(until: float) -> float:
    seconds = until - clock.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
