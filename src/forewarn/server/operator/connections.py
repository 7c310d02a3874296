"""The operators' connections: uvicorn's, with a limit on strangers, slow heads and slow readers.

With TLS a connection counts from its first byte on, and its handshake has the time of a head:
asyncio's own servers take any number of handshakes, a minute each.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable, Coroutine, Generator, Iterator
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import h11
import structlog
import uvicorn
from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from forewarn.server import sockets
from forewarn.server.operator import auth
from forewarn.server.process import LimitLog

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

MAX_CONNECTIONS: Final = 512
"""Connections at once: operators' tools are few. One more closes the oldest that has no request
under way that `auth.AuthMiddleware` let through; where all have one, it is answered 503."""

HEAD_SECONDS: Final = 5.0
"""The longest time for a request's head, from the connection's start or the head's first bytes."""

MAX_HEAD_BYTES: Final = 128 * 1024
"""The longest head of a request: its path may name `schemas.MAX_REMOVED` machines."""

IDLE_SECONDS: Final = 75
"""The longest silence of a connection between requests."""

PART_BYTES: Final = 64 * 1024
"""The most bytes of an answer that are handed over at once, and that may wait there when the next
are: no more of a large answer is copied or encrypted than its reader takes."""

SLOW_SECONDS: Final = 30.0
"""The longest time for which a reader may keep a part waiting, so it takes some 4 kB a second. Then
it is disconnected; a reader of the news may resume."""

LOOK_SECONDS: Final = 0.05
"""The interval at which a draining server checks for open connections."""

DATE_SECONDS: Final = 1.0
"""The interval at which the Date of answers is renewed."""

FIRST_REQUEST_SECONDS: Final = 1.0
"""The time for the first request of a connection that has sent none when the service stops."""

FINISH_SECONDS: Final = 5
"""The longest time for requests under way to finish once the service stops."""


_log = structlog.get_logger(__name__)


class OperatorLimit(StrEnum):
    """A limit that an operator's connection reached: a metric's label."""

    CONNECTIONS = "connections"
    SLOW_REQUEST = "slow-request"
    SLOW_READER = "slow-reader"
    """Too little was read of an answer for a long time."""
    FAULTY_REQUEST = "faulty-request"
    """A head that is too long, or not HTTP; a handshake that is not TLS."""


class ReachedLimits:
    """Counts the limits that a plane's connections reached, and logs each once a minute."""

    def __init__(self, plane: str = "operator") -> None:
        self._plane = plane
        self.counter = Counter(
            f"forewarn_{plane}_refusals",
            f"Connections of {plane}s that were closed or refused by a limit.",
            ("reason",),
            registry=None,
        )
        for limit in OperatorLimit:
            self.counter.labels(limit)
        self._log = LimitLog()

    def add(self, limit: OperatorLimit, address: str, now: float) -> None:
        """Count who reached a limit: an address, or `unix`; `now` is in seconds."""
        self.counter.labels(limit).inc()
        event = f"a connection of the {self._plane} plane reached a limit"
        self._log.warn(event, limit, now, reason=str(limit), address=address)


class _Config(uvicorn.Config):
    """The state that a server's connections share."""

    order: "dict[OperatorConnection | TlsHandshake, None]"
    """The open ones, oldest first."""
    tls: Callable[[], ssl.SSLContext] | None
    """Returns the context of new connections; None for plain HTTP."""
    reached: ReachedLimits
    head_seconds: float
    slow_seconds: float
    most: int
    """The most connections."""


class OperatorConnection(H11Protocol):
    """uvicorn's connection, but a head has its time, and who has shown no right gives way first.

    Without these, some hundred strangers that send half a head each keep operators out.
    """

    config: _Config
    _late: asyncio.TimerHandle | None = None
    _slow: asyncio.TimerHandle | None = None
    _early = b""
    """Bytes that came with the end of a TLS handshake."""
    lost: asyncio.Future[None]
    """Done once it is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a peer in, and close the oldest one without a right if there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        self.transport.set_write_buffer_limits(PART_BYTES)  # with TLS it would be half a megabyte
        self.lost = self.loop.create_future()
        self.app_state = {**self.app_state, auth.LOST: self.lost}
        if (peer := _peer_of(transport)) is not None:
            self.app_state[auth.PEER] = peer
        self._begin_head()
        if not _make_room(self.config, self):
            self.reach(OperatorLimit.CONNECTIONS)  # uvicorn answers it 503
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        if cast("asyncio.Transport | None", self.transport) is None:
            self._early += data
            return
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._end_head()
        elif self._late is None:
            self._begin_head()

    def pause_writing(self) -> None:
        """Wait until the peer has taken most of what is sent."""
        super().pause_writing()
        seconds = self.config.slow_seconds
        self._slow = self.loop.call_later(seconds, self.cut_off, OperatorLimit.SLOW_READER)

    def resume_writing(self) -> None:
        """Send on."""
        super().resume_writing()
        if self._slow is not None:
            self._slow.cancel()

    def send_400_response(self, msg: str) -> None:
        """Refuse what h11 could not read."""
        self.reach(OperatorLimit.FAULTY_REQUEST)
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer."""
        if cast("asyncio.Transport | None", self.transport) is None:
            return  # during the handshake
        self._end_head()
        if self._slow is not None:
            self._slow.cancel()
        self.lost.set_result(None)
        self.config.order.pop(self, None)
        super().connection_lost(exc)

    def is_admitted(self) -> bool:
        """Return whether a request is under way that `auth.AuthMiddleware` let through."""
        # uvicorn has none before the first request, whatever its annotation says.
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is None or cycle.response_complete:
            return False
        return bool(cycle.scope.get(auth.ADMITTED))

    def is_idle(self) -> bool:
        """Return whether its peer may send its next request, and has not begun to."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is not None and cycle.response_complete and self.conn.their_state is h11.IDLE

    def shutdown(self) -> None:
        """Close as soon as the request is answered that is under way, or about to come."""
        if cast("RequestResponseCycle | None", self.cycle) is None:
            self._end_head()
            self._late = self.loop.call_later(FIRST_REQUEST_SECONDS, self.transport.close)
        else:
            super().shutdown()

    def _begin_head(self) -> None:
        seconds = self.config.head_seconds
        self._late = self.loop.call_later(seconds, self.cut_off, OperatorLimit.SLOW_REQUEST)

    def _end_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def reach(self, limit: OperatorLimit) -> None:
        """Count a limit that it reached."""
        address = self.client[0] if self.client else "unix"
        self.config.reached.add(limit, address, self.loop.time())

    def cut_off(self, limit: OperatorLimit) -> None:
        """Close at once, and say why."""
        self.reach(limit)
        # Not only once the loop says that it is lost: others count it before that.
        self.config.order.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()


class _Begun:
    """A coroutine that has run up to its first wait, for a task to go on with."""

    def __init__(self, coroutine: Coroutine[Any, Any, asyncio.Transport | None]) -> None:
        self._coroutine = coroutine
        self._waits_for = coroutine.send(None)

    def __await__(self) -> Generator[Any, Any, asyncio.Transport | None]:
        """Go on until it returns."""
        waits_for = self._waits_for
        while True:
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 - a cancellation is one
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, None)
            try:
                waits_for = step()
            except StopIteration as end:
                found: asyncio.Transport | None = end.value
                return found


class TlsHandshake(asyncio.Protocol):
    """A connection until its TLS handshake is done; then an `OperatorConnection` has it."""

    def __init__(self, config: _Config, **given: Any) -> None:  # noqa: ANN401 - uvicorn's
        self._config = config
        self._inner = OperatorConnection(config=config, **given)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a peer in, and begin the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        if not _make_room(self._config, self):
            self.cut_off(OperatorLimit.CONNECTIONS)
            return
        assert self._config.tls is not None
        loop = asyncio.get_running_loop()
        # Begun here, before anything is read: a client's first bytes, which come at once, would
        # reach this protocol in place of TLS's, and be lost.
        handshake = loop.start_tls(
            self._transport, self._inner, self._config.tls(), server_side=True
        )
        begun = _Begun(handshake)
        self._task = loop.create_task(self._shake_hands(self._transport, begun))

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer."""
        del exc
        self._config.order.pop(self, None)

    def is_admitted(self) -> bool:
        """Return False: nobody is known yet."""
        return False

    def cut_off(self, limit: OperatorLimit) -> None:
        """Close at once, and say why."""
        peer = self._transport.get_extra_info("peername") if self._transport else None
        address = str(peer[0]) if peer else "unix"
        self._config.reached.add(limit, address, asyncio.get_running_loop().time())
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        self._config.order.pop(self, None)
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    async def _shake_hands(self, transport: asyncio.Transport, begun: "_Begun") -> None:
        try:
            async with asyncio.timeout(self._config.head_seconds):
                secured = await begun
        except TimeoutError:
            self.cut_off(OperatorLimit.SLOW_REQUEST)
        except OSError:  # of which TLS's own errors are some
            self.cut_off(OperatorLimit.FAULTY_REQUEST)
        else:
            self._config.order.pop(self, None)
            if secured is None:
                transport.abort()
            else:
                self._inner.connection_made(secured)


def _make_room(config: _Config, new: OperatorConnection | TlsHandshake) -> bool:
    """Add a connection; if there are too many, close the oldest one without a right.

    Returns:
        False where no older one gives way.
    """
    order = config.order
    order[new] = None
    if len(order) > config.most:
        oldest = next((each for each in order if not each.is_admitted()), new)
        if oldest is new:
            return False
        oldest.cut_off(OperatorLimit.CONNECTIONS)
    return True


def _peer_of(transport: asyncio.BaseTransport) -> auth.UnixPeer | None:
    """Return who connected to a unix socket; None over TCP."""
    opened = transport.get_extra_info("socket")
    if opened is None or opened.family != getattr(socket, "AF_UNIX", None):
        return None
    if not hasattr(socket, "SO_PEERCRED"):
        # Where the kernel is not asked that way, the file's mode lets in nobody but this user.
        return auth.UnixPeer(os.geteuid())
    told = opened.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user_id, _ = struct.unpack("3i", told)
    return auth.UnixPeer(user_id)


def _in_parts(application: ASGIApp) -> ASGIApp:
    """Return an application whose answers are sent in parts, as their readers take them."""

    async def parted(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            left = memoryview(message.get("body", b""))
            while len(left) > PART_BYTES:
                await send({**message, "body": bytes(left[:PART_BYTES]), "more_body": True})
                left = left[PART_BYTES:]
            await send({**message, "body": bytes(left)} if left else message)

        await application(scope, receive, send_parts)

    return parted


class Server(uvicorn.Server):
    """uvicorn within our process, which handles signals itself; `should_exit` stops it."""

    def __init__(
        self,
        application: ASGIApp,
        reached: ReachedLimits,
        head_seconds: float = HEAD_SECONDS,
        most: int = MAX_CONNECTIONS,
        tls: Callable[[], ssl.SSLContext] | None = None,
        *,
        slow_seconds: float = SLOW_SECONDS,
    ) -> None:
        config = _Config(
            _in_parts(application),
            http=OperatorConnection
            if tls is None
            else TlsHandshake,  # h11 limits a head's size; operators need no faster parser
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            limit_concurrency=most + 1,  # from this many on it answers 503
            backlog=sockets.BACKLOG,  # uvicorn listens again, and would set its own
        )
        config.order, config.reached, config.head_seconds = {}, reached, head_seconds
        config.slow_seconds, config.most = slow_seconds, most
        config.tls = tls
        self._exit = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """Return whether it is to stop; set on the loop, it stops at once."""
        return self._exit.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._exit.set()
        else:
            self._exit.clear()

    async def main_loop(self) -> None:
        """Keep the answers' date right until `should_exit` is set.

        uvicorn's own looks at `should_exit` each 0.1 s.
        """
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._exit.wait()

    async def drain(self, seconds: float) -> None:
        """Make each answer the last of its connection, until none is idle or the time is over."""
        for headers in (self.config.encoded_headers, self.server_state.default_headers):
            headers.append((b"connection", b"close"))
        connections = cast("set[OperatorConnection]", self.server_state.connections)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            if not any(each.is_idle() for each in connections):
                break
            await asyncio.sleep(LOOK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, and return once the requests under way are answered.

        As uvicorn does, which ends no handshakes, and looks at what is left each 0.1 s.
        """
        for each in [*cast("_Config", self.config).order]:
            if isinstance(each, TlsHandshake):
                each.abort()
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        connections = cast("set[OperatorConnection]", self.server_state.connections)
        for connection in [*connections]:
            connection.shutdown()
        tasks = self.server_state.tasks
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                while left := [*(each.lost for each in connections), *tasks]:
                    await asyncio.wait(left)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            _log.warning("requests under way were cut off", requests=len(tasks))
            for task in tasks:
                task.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals alone."""
        yield
