"""The operators' connections: uvicorn's, with a time for each head and a limit on strangers."""

import asyncio
import contextlib
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Final, cast

import h11
import uvicorn
from prometheus_client import Counter
from uvicorn.protocols.http.h11_impl import H11Protocol

from forewarn.server.guest.counters import LimitLog
from forewarn.server.operator import auth

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

MAX_CONNECTIONS: Final = 512
"""Connections at once: operators' tools are few. One more closes the oldest that has no request
under way that `auth.Gate` let through; where all have one, it is answered 503."""

HEAD_SECONDS: Final = 5.0
"""How long a request's head may take, from the connection's start or the head's first bytes."""

MAX_HEAD_BYTES: Final = 128 * 1024
"""The longest head of a request: its path may name `schemas.MAX_REMOVED` machines."""

IDLE_SECONDS: Final = 75
"""How long a connection may be silent between requests."""

LOOK_SECONDS: Final = 0.05
"""How often a server that drains looks at what is still open."""

FIRST_REQUEST_SECONDS: Final = 1.0
"""How long a connection that was accepted last has for its first request."""

FINISH_SECONDS: Final = 5
"""How long requests under way may take to finish once the service stops."""


class OperatorLimit(StrEnum):
    """A limit that an operator's connection reached: a metric's label."""

    CONNECTIONS = "connections"
    SLOW_REQUEST = "slow-request"
    FAULTY_REQUEST = "faulty-request"
    """A head that is too long, or not HTTP."""


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
    """What a server's connections share."""

    order: "dict[OperatorConnection, None]"
    """The open ones, oldest first."""
    reached: ReachedLimits
    head_seconds: float
    most: int
    """How many connections there may be."""


class OperatorConnection(H11Protocol):
    """uvicorn's connection, but a head has its time, and who has shown no right gives way first.

    Without these, some hundred strangers that send half a head each keep operators out.
    """

    config: _Config
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a peer in, and close the oldest one without a right if there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._begin_head()
        order = self.config.order
        order[self] = None
        if len(order) > self.config.most:
            oldest = next((each for each in order if not each.is_admitted()), self)
            if oldest is self:
                self._reach(OperatorLimit.CONNECTIONS)  # uvicorn answers it 503
            else:
                oldest.cut_off(OperatorLimit.CONNECTIONS)

    def data_received(self, data: bytes) -> None:
        """Read on."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._end_head()
        elif self._late is None:
            self._begin_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what h11 could not read."""
        self._reach(OperatorLimit.FAULTY_REQUEST)
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer."""
        self._end_head()
        self.config.order.pop(self, None)
        super().connection_lost(exc)

    def is_admitted(self) -> bool:
        """Return whether a request is under way that `auth.Gate` let through."""
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

    def _reach(self, limit: OperatorLimit) -> None:
        address = self.client[0] if self.client else "unix"
        self.config.reached.add(limit, address, self.loop.time())

    def cut_off(self, limit: OperatorLimit) -> None:
        """Close at once, and say why."""
        self._reach(limit)
        # Not only once the loop says that it is lost: others count it before that.
        self.config.order.pop(self, None)
        self.connections.discard(self)
        self.transport.abort()


class Server(uvicorn.Server):
    """uvicorn within our process, which handles signals itself; `should_exit` stops it."""

    def __init__(
        self,
        application: auth.Application,
        reached: ReachedLimits,
        head_seconds: float = HEAD_SECONDS,
        most: int = MAX_CONNECTIONS,
    ) -> None:
        config = _Config(
            application,
            http=OperatorConnection,  # h11 limits a head's size; operators need no faster parser
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=FINISH_SECONDS,
            limit_concurrency=most + 1,  # from this many on it answers 503
        )
        config.order, config.reached, config.head_seconds = {}, reached, head_seconds
        config.most = most
        super().__init__(config)

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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals alone."""
        yield
