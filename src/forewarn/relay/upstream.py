"""Requests to the service's replicas: one after another is asked until one answers.

A replica that answered last is asked first the next time. Each address of a replica's name is tried
by itself, so that one that is dead holds nothing up for longer than CONNECT_SECONDS. What the host
is known by, its token, is read again whenever its file changes.

A request for news waits at the replica, for a minute or so. Whether the path to it still works is
the system's to notice: it probes an idle connection, and ends one whose probes nobody answers.
"""

import asyncio
import contextlib
import socket
import ssl
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from forewarn.client.discovery import EndpointAddress
from forewarn.client.transport import HttpExchange, RequestFailed
from forewarn.protocol.message import Reply
from forewarn.relay.settings import ReplicaAddress, UpstreamSettings
from forewarn.server import relay_feed, secret_files, sockets
from forewarn.server.relay_feed import RelayRefusal
from forewarn.server.secret_files import SecretUnusable
from forewarn.server.sockets import Probes
from forewarn.vocabulary import ErrorCode

CONNECT_SECONDS: Final = 3.0
"""For a connection to one address, TLS included: three round trips around the world."""

RESOLVE_SECONDS: Final = 5.0
"""For the addresses of a name: a resolver asks the next server after as long."""

MAX_ADDRESSES: Final = 8
"""Addresses of one name that are tried."""

MAX_AT_ONCE: Final = 16
"""Requests under way at once, beside the one for news; others wait for their turns. So many commit
together, and more would cost the service a handshake each when all guests of a host approve."""

IDLE_SECONDS: Final = 20.0
"""How long one of them is kept: servers close theirs after a minute or more."""

READ_BYTES: Final = 64 * 1024
"""How much one read takes at most."""

PROBES: Final = Probes(silent_seconds=3, between_seconds=1, most=2)
"""A dead path is noticed within `freshness.DARK_SECONDS`."""


_log = structlog.get_logger(__name__)


class UpstreamFailed(Exception):  # noqa: N818 - named for what is the matter
    """No replica answered as it should.

    `maybe_done` says that one may have done what was asked: its answer did not come.
    """

    def __init__(self, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done


class Credentials:
    """What the host is known by, and whom it trusts, read again whenever a file has changed."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        names = (settings.token_file, settings.certificate, settings.key, settings.ca_file)
        self._files = [Path(name) for name in names if name]
        self._read_at: tuple[tuple[int, int, int], ...] = ()
        self._context: ssl.SSLContext | None = None
        self._trouble = ""
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        """Of each request."""

    def refresh(self) -> None:
        """Read the files if any has changed; UpstreamFailed if one cannot be used.

        A certificate goes on being used: its file and its key's are not replaced at one instant.
        """
        try:
            self._refresh()
        except UpstreamFailed as error:
            if self._context is None or not self._settings.certificate:
                raise
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.warning("the certificate before goes on being used", why=self._trouble)

    def _refresh(self) -> None:
        try:
            found = [path.stat() for path in self._files]
            marks = tuple((each.st_ctime_ns, each.st_size, each.st_ino) for each in found)
            if marks != self._read_at or self._context is None:
                self._read()
                self._read_at = marks
                self._trouble = ""
        except SecretUnusable as error:
            raise UpstreamFailed(str(error)) from error
        except OSError as error:  # an SSLError is one too
            where = error.filename or "upstream.ca_file"
            message = f"{where} cannot be used: {error.strerror or error}"
            raise UpstreamFailed(message) from error

    def _read(self) -> None:
        settings = self._settings
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if settings.certificate:
            key = Path(settings.key) if settings.key else None
            certificate = Path(settings.certificate)
            secret_files.load_certificate(context, certificate, key, "upstream.certificate")
        else:
            token = secret_files.host_token(Path(settings.token_file))
            headers = ((b"Authorization", b"Bearer " + token.encode()),)
        self._context, self.headers = context, headers

    def context(self, replica: ReplicaAddress) -> ssl.SSLContext | None:
        """Return what connections to a replica are encrypted by; None for none."""
        return self._context if replica.tls else None


@dataclass(eq=False, repr=False)
class ReplicaConnection:
    """One connection to a replica; one request at a time."""

    replica: ReplicaAddress
    context: ssl.SSLContext | None
    """By what it is encrypted, and shows who we are; None for plain HTTP."""
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _exchange: HttpExchange
    idle_since: float = 0.0
    is_open: bool = True

    async def ask(
        self,
        method: bytes,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | None = None,
    ) -> Reply:
        """Send a request and return the answer; RequestFailed, OSError or ValueError without one.

        After an error, or when the caller is cancelled, the connection is closed.
        """
        try:
            self._writer.write(self._exchange.write(method, target, headers, body))
            await self._writer.drain()
            while True:
                reply = self._exchange.receive(await self._reader.read(READ_BYTES))
                if reply is not None:
                    break
        except BaseException:
            self.close()
            raise
        if not self._exchange.reuse():
            self.close()
        return reply

    @property
    def is_fresh(self) -> bool:
        """Whether no answer has come on it yet."""
        return self._exchange.fresh

    def close(self) -> None:
        """Close it at once."""
        self.is_open = False
        self._writer.transport.abort()


@dataclass(eq=False, repr=False)
class Upstream:
    """The replicas, as one service; used on the event loop alone."""

    replicas: Sequence[ReplicaAddress]
    credentials: Credentials
    max_body: int
    _first: int = 0
    _idle: list[ReplicaConnection] = field(default_factory=list)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE))

    @property
    def now_first(self) -> ReplicaAddress:
        """The replica that is asked first."""
        return self.replicas[self._first]

    def begin_with(self, number: int) -> None:
        """Ask this replica first, by its number; relays begin with different ones."""
        self._first = number % len(self.replicas)

    def pass_over(self) -> None:
        """Ask the next replica first from now on."""
        self._first = (self._first + 1) % len(self.replicas)
        self.close()

    def is_current(self, connection: ReplicaConnection) -> bool:
        """Tell whether a connection is as a new one would be, by the files as they are now."""
        with contextlib.suppress(UpstreamFailed):
            self.credentials.refresh()
        return connection.context is self.credentials.context(connection.replica)

    async def connect(self, replica: ReplicaAddress) -> ReplicaConnection:
        """Return a new connection; UpstreamFailed if no address of the replica takes one."""
        self.credentials.refresh()
        context = self.credentials.context(replica)
        failed: Exception | None = None
        for family, place in await _addresses(replica):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(
                        place[0],
                        place[1],
                        family=family,
                        ssl=context,
                        server_hostname=replica.host if context else None,
                        limit=READ_BYTES,
                    )
            except (OSError, TimeoutError) as error:  # an SSLError is an OSError too
                failed = error
                continue
            _tune(writer)
            exchange = HttpExchange(EndpointAddress(replica.host, replica.port), self.max_body)
            return ReplicaConnection(replica, context, reader, writer, exchange)
        raise UpstreamFailed(f"no connection to {replica}: {spoken(failed)}") from failed

    async def ask(
        self,
        path: str,
        body: bytes,
        seconds: float,
        *,
        each_seconds: float,
    ) -> Reply:
        """POST to one replica after another until one answers, in turn; return its answer.

        An answer of 500 or above is taken for none, but for the last one's. What is asked may so be
        done twice: it must be something that is the same when done twice.

        Args:
            path: Which of `relay_feed`.
            body: JSON.
            seconds: For all of it.
            each_seconds: For one replica, if there are others.

        Raises:
            UpstreamFailed: None has answered.
        """
        until = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(until):
                await self._turns.acquire()
        except TimeoutError:
            raise UpstreamFailed("too many other requests wait for the service") from None
        try:
            each_seconds = each_seconds if len(self.replicas) > 1 else seconds
            return await self._ask(path, body, until, each_seconds)
        finally:
            self._turns.release()

    async def _ask(self, path: str, body: bytes, until: float, each_seconds: float) -> Reply:
        headers = ((b"Content-Type", b"application/json"),)
        last: UpstreamFailed | None = None
        answer: Reply | None = None
        maybe_done = False
        loop = asyncio.get_running_loop()
        for offset in range(2 * len(self.replicas)):
            left = until - loop.time()
            if left <= 0:
                break
            replica = self.replicas[(self._first + offset) % len(self.replicas)]
            sent = False
            try:
                async with asyncio.timeout(min(each_seconds, left)):
                    connection = await self._lend(replica, loop.time())
                    sent = True
                    reply = await connection.ask(
                        b"POST", path, (*self.credentials.headers, *headers), body
                    )
            except UpstreamFailed as error:
                last = error
                continue
            except (RequestFailed, OSError, ValueError, TimeoutError) as error:
                last = UpstreamFailed(f"no answer from {replica}: {spoken(error)}")
                is_stale = isinstance(error, RequestFailed) and error.stale
                maybe_done |= sent and not is_stale
                continue
            self._give_back(connection, loop.time())
            if reply.status < 500:
                return reply
            answer = reply
            maybe_done |= refusal(reply).code == ErrorCode.UNKNOWN_OUTCOME
        if answer is not None and not maybe_done:
            return answer
        message = "the time was over" if last is None else str(last)
        raise UpstreamFailed(message, maybe_done=maybe_done) from last

    async def _lend(self, replica: ReplicaAddress, now: float) -> ReplicaConnection:
        while self._idle:
            connection = self._idle.pop()
            is_young = now - connection.idle_since < IDLE_SECONDS
            if connection.replica == replica and is_young and self.is_current(connection):
                return connection
            connection.close()
        return await self.connect(replica)

    def _give_back(self, connection: ReplicaConnection, now: float) -> None:
        connection.idle_since = now
        if connection.is_open:
            self._idle.append(connection)
        while self._idle and now - self._idle[0].idle_since >= IDLE_SECONDS:
            self._idle.pop(0).close()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


async def _addresses(replica: ReplicaAddress) -> list[tuple[int, Any]]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(replica.host, replica.port, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        message = f"no address of {replica.host}: {spoken(error)}"
        raise UpstreamFailed(message) from error
    places = dict.fromkeys((family, place[:2]) for family, _, _, _, place in found)
    return [(int(family), place) for family, place in places][:MAX_ADDRESSES]


def _tune(writer: asyncio.StreamWriter) -> None:
    connected = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the peer has gone
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets.probe(connected, PROBES)


def spoken(error: Exception | None) -> str:
    """Return why something failed, for people."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid here: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def refusal(reply: Reply) -> RelayRefusal:
    """Return what an answer of 400 or above says; one that says nothing is INTERNAL."""
    try:
        return relay_feed.decode_refusal(reply.body)
    except msgspec.DecodeError:
        return RelayRefusal(code=ErrorCode.INTERNAL, message=f"it answers {reply.status}")


def target(path: str, **query: str) -> str:
    """Return the path of a request with its query."""
    told = {name: value for name, value in query.items() if value}
    return f"{path}?{urllib.parse.urlencode(told)}" if told else path
