"""All connections: their limits and accounts, and the one sweep that keeps their times."""

import asyncio
import math
import socket
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

import structlog

from forewarn import clock
from forewarn.protocol import exchange, refusals
from forewarn.protocol.message import Reply
from forewarn.server.guest.connection import PEER_SECONDS, Connection, Tap, end_side
from forewarn.server.guest.endpoint import (
    EVENTS,
    RETRY_AFTER_SECONDS,
    Counters,
    GuestEndpoint,
    LongPolls,
    Polls,
)
from forewarn.server.guest.http import AnswerWriter
from forewarn.server.guest.limits import (
    ACCEPT_SECONDS,
    GUEST_SHARE,
    REFUSED_CONNECTIONS,
    REFUSED_STRANGERS,
    STRANGERS_SHARE,
    TOTAL_SHARE,
    Account,
    FairQueue,
    Limits,
    Reason,
)
from forewarn.server.guest.listener import DROP_SECONDS, ConnectionFilter, take_filter_off
from forewarn.server.guest.machines import Source

FIRST_BYTES: Final = 2048
"""The bytes that are read of a connection as it is accepted: clients send under 1 KiB."""

LOOK_SECONDS: Final = 0.02
"""The pause between two looks of a plane that stops at open connections: 0.5 ms for 10,000 of them.
"""

_log = structlog.get_logger(__name__)


class EarlyTransport(asyncio.Transport):
    """A new connection's socket, until the loop has a transport for it.

    Most connections are one request, which is there when they are accepted, and one answer. Such a
    one is over before the loop makes a transport, a handle and a task for it, which cost as much as
    all the rest of it. It is read once; writes go out at once. Everything that has to last, or to
    be waited for, is handed over to the loop's transport.
    """

    __slots__ = ("_has_ended", "_is_aborted", "_is_closing", "_socket", "_unsent")

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._unsent = b""
        self._has_ended = False
        self._is_closing = False
        self._is_aborted = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the socket; there is nothing else."""
        return self._socket if name == "socket" else default

    def read(self, most: int) -> bytes:
        """Return the received bytes, if there are any; OSError if the peer has gone."""
        try:
            return self._socket.recv(most)
        except BlockingIOError:
            return b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes that the peer takes at once."""
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError:  # the peer has gone
                self.abort()
        if sent < len(data):
            self._unsent += bytes(data[sent:])

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the peer did not take at once."""
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is one answer, or little more."""

    def can_write_eof(self) -> bool:
        """Return True: it can end its side alone."""
        return True

    def write_eof(self) -> None:
        """End this side of the connection."""
        self._has_ended = True

    def pause_reading(self) -> None:
        """Do nothing: it is read once."""

    resume_reading = pause_reading

    def is_closing(self) -> bool:
        """Return True if it was closed."""
        return self._is_closing

    def close(self) -> None:
        """Close it once all is sent."""
        self._is_closing = True

    def abort(self) -> None:
        """Close it, with unsent bytes or without."""
        self._is_closing = self._is_aborted = True

    def is_over(self) -> bool:
        """Return True if it was closed, and nothing is left to be sent."""
        return self._is_closing and (self._is_aborted or not self._unsent)

    def hand_over(self, transport: asyncio.Transport) -> None:
        """Hand the rest over to the loop's transport."""
        if self._is_aborted:
            transport.abort()
            return
        if self._unsent:
            transport.write(self._unsent)
        if self._has_ended:
            end_side(transport)
        if self._is_closing:
            transport.close()


@dataclass(eq=False, repr=False)
class Connections:
    """The state that all connections share, and the one sweep that keeps their times."""

    endpoint: GuestEndpoint
    writer: AnswerWriter
    limits: Limits
    counters: Counters
    loop: asyncio.AbstractEventLoop
    polls: Polls
    on_turn: Callable[[float], None]
    """Called at each turn of a guest, with the time of the same clock as `monotonic`."""
    monotonic: Callable[[], float] = clock.monotonic
    """Seconds that never go back, real ones: a connection lives in real time even where the
    service's clock is scaled."""
    tap: Tap | None = None
    draining: bool = False
    """True if the plane is about to stop: each answer is then the last of its connection."""
    suspended: bool = False
    """True if nobody is answered for now: every connection is closed without an answer."""
    peers_until: float = math.inf
    """The end of the peers' part where the plane stops, by `monotonic`."""
    _all: set[Connection] = field(default_factory=set)
    _starting: dict[Connection, asyncio.Task[None]] = field(default_factory=dict)
    """Those of them that have no transport yet."""
    _strangers: int = 0
    _all_guests: Account = field(default_factory=lambda: Account(share=TOTAL_SHARE))
    _emptied: asyncio.Future[None] | None = None
    _sweeping: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        """Make the parts that depend on these."""
        everybody = self._all_guests
        self._accounts = defaultdict[Hashable, Account](lambda: Account(everybody))
        self._of_strangers = defaultdict[str, Account](lambda: Account(everybody, STRANGERS_SHARE))
        self.event_answers = self.counters.answers[EVENTS]
        self.long_polls = LongPolls(self.endpoint, self.loop)
        self.fair_queue = FairQueue(self.loop.call_soon, self.monotonic)
        self.filter = ConnectionFilter(self.loop)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._all)

    @property
    def retiring(self) -> bool:
        """True if it accepts no more: idle connections are closed, and none begins to wait."""
        return self.peers_until < math.inf

    def accept(self, accepted: socket.socket, source: Source) -> None:
        """Take a connection in, and answer the bytes that came with it.

        Most end with that: they need no transport, which costs more than all else of a poll.
        """
        self.counters.accepted += 1
        if self.filter.is_active:
            if self.filter.drops(source.listener, self.endpoint.registry.network(source)):
                accepted.close()
                return
            take_filter_off(accepted)
        accepted.settimeout(0)
        connection = Connection(self, source)
        early = EarlyTransport(accepted)
        try:
            # Also of who is refused: what is not read becomes a reset, which takes the answer away.
            data = early.read(FIRST_BYTES)
            connection.connection_made(early)
            connection.early = early
            if data and not early.is_closing():
                connection.data_received(data)
        except OSError:  # its peer has gone
            early.abort()
        except Exception:  # noqa: BLE001 - one connection's fault is not the others'
            _log.exception("could not answer a new connection")
            early.abort()
        if early.is_over():
            accepted.close()
            connection.connection_lost(None)
        else:
            self._starting[connection] = self.loop.create_task(self._start(connection, accepted))

    async def _start(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:
            pass  # its peer has gone
        finally:
            if self._starting.pop(connection, None):  # it never had a transport
                accepted.close()
                connection.connection_lost(None)

    def has_started(self, connection: Connection) -> None:
        """Note that a connection has its transport."""
        self._starting.pop(connection, None)

    def add(self, connection: Connection) -> Reply | None:
        """Take a new connection in, or return the refusal if there are too many."""
        limits, source = self.limits, connection.source
        # Where many machines share an address, who asks is known by its requests alone, and then
        # counts: see `attribute`.
        network = self.endpoint.registry.network(source)
        account = connection.account = self._accounts[(source.listener, network)]
        if not source.is_shared:
            now = self.monotonic()
            self.on_turn(now)
            account.group = self._all_guests
            account.free_at = max(account.free_at, now) + ACCEPT_SECONDS / GUEST_SHARE
            self.count_connections(connection)
            if self.endpoint.registry.at(source) is None:
                connection.is_stranger = True
                account.group = self._of_strangers[source.listener]
                account.group.charge(ACCEPT_SECONDS, now)
        reason = self._limit_reached(connection)
        if reason is None:
            account.connections += 1
            self._strangers += connection.is_stranger
            self._all.add(connection)
            return None
        self.turn_away(connection, reason)
        if reason is Reason.CONNECTIONS_OF_STRANGERS:
            self.count_connections(connection, REFUSED_STRANGERS)
            return exchange.refuse(refusals.STRANGERS, retry_after_seconds=RETRY_AFTER_SECONDS)
        self.count_connections(connection, REFUSED_CONNECTIONS)
        is_of_address = reason is Reason.CONNECTIONS_OF_ADDRESS
        return exchange.refuse(
            refusals.CONNECTIONS,
            retry_after_seconds=RETRY_AFTER_SECONDS,
            limit=limits.connections_per_address if is_of_address else limits.connections,
            whose="This address" if is_of_address else "This service",
        )

    def _limit_reached(self, connection: Connection) -> Reason | None:
        limits, account = self.limits, connection.account
        if len(self._all) >= limits.connections:
            return Reason.CONNECTIONS
        if connection.source.is_shared:
            return None
        if account.connections >= limits.connections_per_address:
            return Reason.CONNECTIONS_OF_ADDRESS
        if connection.is_stranger and (
            self._strangers >= limits.stranger_connections
            # Their share is used up: their requests are not parsed.
            or self._of_strangers[connection.source.listener].is_greedy(self.monotonic())
        ):
            return Reason.CONNECTIONS_OF_STRANGERS
        return None

    def count_connections(self, connection: Connection, count: int = 1) -> None:
        """Count new connections of an address, and have the kernel drop more if there are many."""
        source = connection.source
        if source.is_shared or connection.account.may_connect(count, self.monotonic()):
            return
        if self.filter.drop(source.listener, self.endpoint.registry.network(source)):
            connection.account.connected_until += DROP_SECONDS
            self.turn_away(connection, Reason.CONNECTION_RATE)

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is gone, or was never taken in."""
        if connection not in self._all:
            return
        self._all.remove(connection)
        self._strangers -= connection.is_stranger
        connection.account.connections -= 1
        if not self._all and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def attribute(self, connection: Connection, machine_key: str) -> bool:
        """Count a connection for its machine; return True if that may have so many."""
        account = self._accounts[machine_key]
        if account is not connection.account:
            connection.account.connections -= 1
            account.connections += 1
            connection.account = account
        if account.connections <= self.limits.connections_per_address:
            return True
        self.turn_away(connection, Reason.CONNECTIONS_OF_ADDRESS)
        return False

    def turn_away(self, connection: Connection, reason: Reason) -> None:
        """Count a guest that is refused, and log it once a minute."""
        source = connection.source
        self.counters.refuse(reason, source.listener, source.address, self.monotonic())

    def sweep(self, now: float) -> None:
        """End stages that took too long, and forget strangers that are gone."""
        for connection in [each for each in self._all if each.deadline <= now]:
            connection.expire()
        for key in [key for key, account in self._accounts.items() if account.is_unused(now)]:
            del self._accounts[key]

    def sweep_from_now_on(self) -> None:
        """Sweep again and again, until `retire` is over."""
        # The next one is set first: a fault in this one must not be the last of all times.
        self._sweeping = self.loop.call_later(self.limits.sweep_seconds, self.sweep_from_now_on)
        self.sweep(self.monotonic())

    def suspend(self) -> None:
        """Close every connection, and all that come until `resume`, without an answer.

        An error in JSON would not do: one client takes any for "no events".
        """
        self.suspended = True
        for connection in list(self._all):
            connection.abort()

    def resume(self) -> None:
        """Answer again."""
        self.suspended = False

    async def drain(self, seconds: float) -> None:
        """Make each answer the last of its connection, until none is idle or the time is over.

        A client that asks again by a connection that is closed at that moment loses a request. All
        are served meanwhile, new ones included, and waiting requests go on waiting.
        """
        self.draining = True
        self.polls.close()
        until = self.loop.time() + seconds
        while self.loop.time() < until:
            if not any(each.is_idle for each in self._all):
                break
            await asyncio.sleep(LOOK_SECONDS)

    async def retire(self, seconds: float) -> int:
        """Close idle connections, answer all others, then cut the rest off.

        The listeners are closed: a connection that has not been accepted yet is not ours to answer.

        Returns:
            The number of connections that were cut off after so many seconds of real time.
        """
        self.draining = True
        self.peers_until = self.monotonic() + PEER_SECONDS
        self.polls.close()
        if self.endpoint.enabler is not None:
            self.endpoint.enabler.stopping.set()
        for connection in list(self._all):
            connection.retire()
        self._emptied = self.loop.create_future()
        until = self.loop.time() + seconds
        while self._all and self.loop.time() < until:
            await asyncio.wait([self._emptied], timeout=LOOK_SECONDS)
            self.sweep(self.monotonic())
        cut_off = list(self._all)
        for connection in cut_off:
            connection.abort()
        if self._starting:
            await asyncio.wait(list(self._starting.values()))
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        if cut_off:
            _log.warning("connections were cut off at the stop", connections=len(cut_off))
        return len(cut_off)
