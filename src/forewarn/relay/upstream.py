"""Requests to the service's replicas: one after another is asked until one answers.

A replica that answered last is asked first the next time. Each address of a replica's name is tried
by itself, so that one that is dead does not hold up the others.

`HostReader` keeps one request waiting at a replica, for a minute or so, for any change. The system
notices if the path to it still works: it probes an idle connection, and ends one whose probes
nobody answers. Where none of them answers, they are asked again after a pause that grows and
differs from relay to relay: a thousand of them come back to a service that starts.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from forewarn.client import session
from forewarn.client.transport import Place, Probes, RequestFailed
from forewarn.clock import Clock
from forewarn.protocol.message import Reply
from forewarn.relay import streams
from forewarn.relay.cache import DocumentRefused, Freshness
from forewarn.relay.settings import ReplicaAddress, UpstreamSettings
from forewarn.relay.streams import ReplicaConnection
from forewarn.server import relay_feed, secret_files
from forewarn.server.process import LimitLog
from forewarn.server.relay_feed import HostDocument, RelayRefusal, RelayState, Unreadable
from forewarn.server.secret_files import SecretUnusable
from forewarn.vocabulary import ErrorCode

CONNECT_SECONDS: Final = 3.0
"""The time for a connection to one address, TLS included: three round trips around the world."""

RESOLVE_SECONDS: Final = 12.0
"""The time for the addresses of a name: the system asks the next name server after 5 s, and two may
be away."""

MAX_AT_ONCE: Final = 16
"""Requests under way at once, beside the one for the host; others wait for their turns. This many
commit together, and more would cost the service a handshake each when all guests approve."""

IDLE_SECONDS: Final = 20.0
"""The time for which one of them is kept: servers close theirs after a minute or more."""

ANSWER_SECONDS: Final = 70.0
"""The time limit of a request that waits: services of any release let it wait for a minute or less.
"""

FIRST_SECONDS: Final = 10.0
"""The time limit of a request that does not wait: a host of thousands of machines."""

FIRST_PAUSE: Final = 0.25
"""Seconds before the replicas are tried again when none of them answered, doubled each time."""

LONGEST_PAUSE: Final = 3.0
"""The longest of these pauses: within it a service that came back finds the relay again."""

PROBES: Final = Probes(silent_seconds=3, between_seconds=1, most=2)
"""A dead path is noticed within `cache.DARK_SECONDS`."""

NOT_HEARD: Final = "waiting for the service"
"""The trouble before a replica has answered, or failed to."""

Body: TypeAlias = Callable[[], bytes]

_log = structlog.get_logger(__name__)


class UpstreamFailed(Exception):  # noqa: N818 - named for what is the matter
    """No replica answered as it should.

    `maybe_done` says that one may have done the work: its answer did not come.
    """

    def __init__(self, message: str, *, maybe_done: bool = False) -> None:
        super().__init__(message)
        self.maybe_done = maybe_done


class Credentials:
    """The host's credentials, and the certificates that it trusts; read again after a change."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        names = (settings.token_file, settings.ca_file)
        self._files = [Path(name) for name in names if name]
        self._read_at: tuple[tuple[int, int, int], ...] = ()
        self._context: ssl.SSLContext | None = None
        self.headers: tuple[tuple[bytes, bytes], ...] = ()

    def refresh(self) -> None:
        """Read the files if any has changed; UpstreamFailed if one cannot be used."""
        try:
            found = [path.stat() for path in self._files]
            marks = tuple((each.st_ctime_ns, each.st_size, each.st_ino) for each in found)
            if marks != self._read_at or self._context is None:
                self._read()
                self._read_at = marks
        except SecretUnusable as error:
            raise UpstreamFailed(str(error)) from error
        except OSError as error:  # an SSLError is one too
            where = error.filename or "upstream.ca_file"
            message = f"{where} cannot be used: {error.strerror or error}"
            raise UpstreamFailed(message) from error

    def _read(self) -> None:
        settings = self._settings
        token = secret_files.host_token(Path(settings.token_file))
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._context = context
        self.headers = ((b"Authorization", b"Bearer " + token.encode()),)

    def context(self, replica: ReplicaAddress) -> ssl.SSLContext | None:
        """Return the TLS context of connections to a replica; None for plain HTTP."""
        return self._context if replica.tls else None


@dataclass(eq=False, repr=False)
class Upstream:
    """The replicas, as one service; used on the event loop alone."""

    replicas: Sequence[ReplicaAddress]
    credentials: Credentials
    max_body: int
    first: int = 0
    """The number of the one that is asked first; relays begin with different ones."""
    _places: dict[ReplicaAddress, Sequence[Place]] = field(default_factory=dict)
    """The addresses of names, as of the last lookup."""
    _idle: list[ReplicaConnection] = field(default_factory=list)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_AT_ONCE))

    @property
    def now_first(self) -> ReplicaAddress:
        """The replica that is asked first."""
        return self.replicas[self.first]

    def pass_over(self) -> None:
        """Ask the next replica first from now on."""
        self.first = (self.first + 1) % len(self.replicas)
        self.close()

    def is_current(self, connection: ReplicaConnection) -> bool:
        """Return True if a new connection would be made with the same files as this one."""
        with contextlib.suppress(UpstreamFailed):
            self.credentials.refresh()
        return connection.context is self.credentials.context(connection.replica)

    async def connect(self, replica: ReplicaAddress, *, looks_up: bool = True) -> ReplicaConnection:
        """Return a new connection; UpstreamFailed if no address of the replica accepts one.

        Without `looks_up` the name's known addresses are used, if there are any; so they are where
        no name server answers.
        """
        self.credentials.refresh()
        context = self.credentials.context(replica)
        try:
            places = self._places.get(replica)
            if looks_up or places is None:
                try:
                    places = await streams.addresses(replica, RESOLVE_SECONDS)
                    self._places[replica] = places
                except OSError:
                    if places is None:
                        raise
            return await streams.connect(
                replica,
                context,
                CONNECT_SECONDS,
                places=places,
                max_body=self.max_body,
                probes=PROBES,
            )
        except (OSError, UnicodeError) as error:  # an SSLError is an OSError too
            raise UpstreamFailed(f"no connection to {replica}: {spoken(error)}") from error

    async def ask(self, path: str, body: Body, seconds: float, *, each_seconds: float) -> Reply:
        """POST to one replica after another until one answers, in turn; return its answer.

        The body is made as it is sent, each time: the ages in it are those of then. An answer of
        500 or above counts as none, except for the last one's. A request may so be carried out
        twice: it must be idempotent.

        It takes `seconds` in all, and `each_seconds` for one replica if there are others.

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

    async def _ask(self, path: str, body: Body, until: float, each_seconds: float) -> Reply:
        headers = ((b"Content-Type", b"application/json"),)
        last: UpstreamFailed | None = None
        answer: Reply | None = None
        maybe_done = False
        loop = asyncio.get_running_loop()
        for offset in range(2 * len(self.replicas)):
            left = until - loop.time()
            if left <= 0:
                break
            replica = self.replicas[(self.first + offset) % len(self.replicas)]
            sent = False
            try:
                async with asyncio.timeout(min(each_seconds, left)):
                    connection = await self._lend(replica, loop.time())
                    sent = True
                    reply = await connection.ask(
                        b"POST", path, (*self.credentials.headers, *headers), body()
                    )
            except UpstreamFailed as error:
                last = error
                continue
            except (RequestFailed, TimeoutError) as error:
                last = UpstreamFailed(f"no answer from {replica}: {spoken(error)}")
                maybe_done |= sent
                continue
            self._give_back(connection, loop.time())
            if reply.status < 500:
                return reply
            answer = reply
            maybe_done |= refusal(reply).code == ErrorCode.UNKNOWN_OUTCOME
        if answer is not None and not maybe_done:
            return answer
        message = "the time limit has passed" if last is None else str(last)
        raise UpstreamFailed(message, maybe_done=maybe_done) from last

    async def _lend(self, replica: ReplicaAddress, now: float) -> ReplicaConnection:
        while self._idle:
            connection = self._idle.pop()
            is_young = now - connection.idle_since < IDLE_SECONDS
            is_usable = is_young and connection.is_open
            if connection.replica == replica and is_usable and self.is_current(connection):
                return connection
            connection.close()
        return await self.connect(replica, looks_up=False)

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


def spoken(error: Exception | None) -> str:
    """Describe a failure for people."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid here: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def refusal(reply: Reply) -> RelayRefusal:
    """Return the refusal in an answer of 400 or above; INTERNAL for an unreadable one."""
    try:
        return relay_feed.decode_refusal(reply.body)
    except Unreadable:
        message = "this is not Forewarn's relay plane: check the address"
        return RelayRefusal(code=ErrorCode.INTERNAL, message=message)


class TokenRefused(UpstreamFailed):
    """The replica does not accept this host's token."""


@dataclass(eq=False, repr=False, kw_only=True)
class HostReader:
    """Asks for the host; lives on the event loop."""

    upstream: Upstream
    etag: Callable[[], str]
    """Returns that of the relay's documents, `""` for none."""
    state: Callable[[], RelayState]
    take: Callable[[str, HostDocument], Awaitable[None]]
    """Takes a document over."""
    told: Callable[[RelayState], None]
    """Called with a state that the service has received."""
    before: Callable[[], Awaitable[None]]
    """Awaited before the first request of each connection."""
    chance: Callable[[], float]
    clock: Clock
    freshness: Freshness = field(init=False)
    service_time: tuple[datetime, float] | None = None
    """The service's latest time of day, and when it came by the monotonic clock."""
    trouble: str = NOT_HEARD
    """The reason why no replica is connected, for people; `""` while one is."""
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a replica has answered, or none of them did."""
    rounds_failed: int = 0
    """The number of rounds in a row without an answer."""
    failures: int = 0
    answers: int = 0
    _connection: ReplicaConnection | None = None
    _asks_again: bool = False
    _at_once: bool = True
    """The next answer is to come at once: nobody has answered since something failed, so it shows
    that the service knows us, and that it is there."""
    _asked_at: float = 0.0
    _log: LimitLog = field(default_factory=LimitLog)
    _refusals: int = 0

    def __post_init__(self) -> None:
        """Begin without documents."""
        self.freshness = Freshness(true_until=self.clock.monotonic())

    async def run(self) -> None:
        """Ask until it is cancelled."""
        failed = 0
        while True:
            heard = self.answers
            self._asks_again = False
            try:
                await self._read_on()
            except (UpstreamFailed, RequestFailed, TimeoutError, DocumentRefused) as error:
                self._at_once = True
                if self._asks_again:
                    continue
                failed = 1 if self.answers > heard else failed + 1
                self._fail(error)
                self.upstream.pass_over()
            if failed >= len(self.upstream.replicas):
                failed = 0
                await self._pause()

    async def _pause(self) -> None:
        now = self.clock.monotonic()
        if self._refusals:
            self.freshness = self.freshness.refused(now)
        self._refusals = 0
        self.tried.set()
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.rounds_failed, 10))
        self.rounds_failed += 1
        await self.clock.wait(longest * (1 + self.chance()) / 2)

    def _fail(self, error: Exception) -> None:
        now = self.clock.monotonic()
        self.failures += 1
        is_dark = not isinstance(error, TimeoutError)  # that is our own limit for the answer
        self.freshness = self.freshness.lost(now, self._asked_at, is_dark=is_dark)
        self._refusals += isinstance(error, TokenRefused)
        where = str(self.upstream.now_first)
        why = spoken(error)
        self.trouble = f"{where}: {why}"
        what = "cannot take" if isinstance(error, DocumentRefused) else "cannot read"
        self._log.warn(f"{what} the host", (where, what, why[:100]), now, replica=where, why=why)

    async def _read_on(self) -> None:
        """Ask the replica that is first until it fails."""
        began = self.clock.monotonic()
        try:
            connection = await self.upstream.connect(self.upstream.now_first)
        except UpstreamFailed:  # nothing was heard while it tried
            self.freshness = self.freshness.lost(self.clock.monotonic(), began, is_dark=False)
            raise
        self._connection = connection
        try:
            await self.before()
            # At least once: one that has ended by now must fail, or nothing would pause.
            while True:
                await self._ask(connection)
                # Behind some proxies each connection has one answer: the next one waits all the
                # same, or a thousand relays would ask as fast as they can.
                self._at_once = not self.upstream.is_current(connection)
                if self._at_once or not connection.is_open:
                    break
        finally:
            connection.close()
            self._connection = None

    async def _ask(self, connection: ReplicaConnection) -> None:
        etag, state = self.etag(), self.state()
        asked = relay_feed.HOST_PATH + (f"?{relay_feed.AT_ONCE}" if self._at_once else "")
        has = ((b"If-None-Match", f'"{etag}"'.encode("ascii")),) if etag else ()
        self._asked_at = self.clock.monotonic()
        async with asyncio.timeout(FIRST_SECONDS if self._at_once else ANSWER_SECONDS):
            reply = await connection.ask(
                b"GET",
                asked,
                (
                    *self.upstream.credentials.headers,
                    *has,
                    (relay_feed.STATE_HEADER.encode(), relay_feed.encode(state)),
                ),
            )
        found = document_of(reply)
        if (sent := session.server_time(reply, relay_feed.TIME_HEADER)) is not None:
            self.service_time = sent, self.clock.monotonic()
        if found is not None:
            await self.take(*found)
        self._heard(state)

    def _heard(self, state: RelayState) -> None:
        now = self.clock.monotonic()
        was_true = self.freshness.is_true
        if not was_true:
            _log.info(
                "the service answers",
                replica=str(self.upstream.now_first),
                after_seconds=round(self.freshness.age(now), 1),
            )
        self.freshness = self.freshness.heard(now)
        self.told(state)
        self.answers += 1
        self.trouble = ""
        self._refusals = self.rounds_failed = 0
        self.tried.set()

    def ask_again(self, true_until: float) -> None:
        """Ask at once, so that the service hears of a stall, and this relay of missed changes.

        The documents of then are certain until `true_until`.
        """
        self.freshness = self.freshness.lost(self.clock.monotonic(), true_until, is_dark=False)
        if self._connection is not None:
            self._asks_again, self.trouble = True, NOT_HEARD
            self._connection.close()


def document_of(reply: Reply) -> tuple[str, HostDocument] | None:
    """Return the ETag and the document in an answer, None for an answer without a change.

    UpstreamFailed for any other answer; TokenRefused where the replica does not know this host.
    Only its own word counts for that: a gateway before it may refuse requests, too.
    """
    if reply.status == 304:
        return None
    if reply.status == 200:
        etag = (session.header(reply, b"etag") or b"").decode("ascii", "replace").strip('"')
        try:
            return etag, relay_feed.decode_host(reply.body)
        except Unreadable as error:
            raise UpstreamFailed(f"its answer is no host's document: {error}") from error
    told = refusal(reply)
    if told.code == ErrorCode.UNAUTHORIZED:
        raise TokenRefused(f"it does not know this host: {told.message}")
    raise UpstreamFailed(f"it answers {reply.status}: {told.message or told.code}")
