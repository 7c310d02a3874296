"""Every limit of the guest plane by name, with its default and why; rates, and fair shares.

Nothing heavy is imported here: the settings are made of these.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from forewarn.protocol import refusals
from forewarn.settings import FieldError

if TYPE_CHECKING:
    from forewarn.server.guest.connection import Connection


MAX_LIMIT: Final = 2**31
"""The largest limit: a larger one would not limit anything."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a connection; each of these is a setting."""

    head_bytes: int = refusals.MAX_HEAD_BYTES
    """A request's first line and headers, blank lines before it counted (protocol.md section 9).
    Clients send under 1 KiB; 16 KiB is what other servers allow at most. More is answered 431."""

    body_bytes: int = refusals.MAX_BODY_BYTES
    """A request's body as it is after chunked coding (protocol.md section 9). 1,000 approvals, the
    most that one body may hold, are 60 KB. More is answered 413."""

    chunked_bytes: int = 128 * 1024
    """A chunked body as it is on the wire, with sizes, extensions and trailers: twice a body, so
    that nobody can send bytes forever that do not count as a body. More is answered 413."""

    connections: int = 10_000
    """Connections in all: 100,000 machines that poll by short connections have far fewer open at
    once, and 10,000 idle ones take under 50 MB. One more is answered 503 and closed. Addresses of
    no registered machine have a quarter of them together."""

    connections_per_address: int = 64
    """Connections from one address, so that one guest cannot take everybody's: three agents on one
    machine need three. Of addresses of no registered machine, an IPv6 /64 without any counts as
    one. Where machines share an address, on a loopback listener and behind a proxy, it counts for
    each machine, and so it does for requests that wait."""

    waiters: int = 9_000
    """Requests that wait for their document to change (protocol.md section 10); one more is
    answered at once, and its client polls. Below `connections`, so that waiters never keep other
    requests out."""

    messages_per_turn: int = 16
    """Pipelined requests answered in one turn, half a millisecond; of all connections that have
    some, one has a turn at a time."""

    write_buffer_bytes: int = 64 * 1024
    """Answers that the peer has not taken yet; above it nothing more is read from that peer."""

    linger_bytes: int = 256 * 1024
    """Bytes that are still read and thrown away after a last answer, so that the answer is not lost
    to a reset (RFC 9112 section 9.6)."""

    head_seconds: float = 5.0
    """From a head's first byte to its end, and from a new connection to its first byte."""

    body_seconds: float = 10.0
    """From a head's end to the end of its body, a client's wait for `100 Continue` included."""

    idle_seconds: float = 75.0
    """Between two requests: clients that poll once a minute keep their connection."""

    write_seconds: float = 30.0
    """For the peer to take answers once they pile up: no client in the field waits longer than
    24 s for an answer."""

    approval_seconds: float = 60.0
    """For the plane to answer an approval. Nobody knows then whether it was stored, so the
    connection is closed without an answer."""

    linger_seconds: float = 5.0
    """For the peer to close its side after the last answer."""

    sweep_seconds: float = 1.0
    """The pause between two looks at all connections for those whose time is up; every time above
    is kept to this exactness, late and never early."""

    def __post_init__(self) -> None:
        """Refuse limits that are not positive, and those without any effect."""
        for name in Limits.__struct_fields__:
            if not 0 < getattr(self, name) <= MAX_LIMIT:
                raise FieldError(name, f"must be more than 0 and at most {MAX_LIMIT}")

    @property
    def stranger_connections(self) -> int:
        """Return how many connections addresses of no registered machine may have together.

        A machine that is being registered retries; a network full of strangers must not keep the
        fleet out.
        """
        return max(1, self.connections // 4)


class Reason(StrEnum):
    """The reasons for refusing a guest: a closed list, for metrics."""

    UNKNOWN_ADDRESS = "unknown-address"
    """A request from an address that no machine has."""
    UNKNOWN_NAME = "unknown-name"
    """A request as `/vm/NAME` with a name that no machine has."""
    UNKNOWN_INSTANCE = "unknown-instance"
    """A request that a trusted proxy signed, for a machine that there is not."""
    WRONG_SIGNATURE = "wrong-signature"
    """A request from a trusted proxy's address that none of the secrets has signed."""
    CONNECTIONS = "connections"
    """A connection above the limit in all."""
    CONNECTIONS_OF_ADDRESS = "connections-of-address"
    """A connection above the limit of its address, or of its machine behind a proxy."""
    CONNECTIONS_OF_STRANGERS = "connections-of-strangers"
    """A connection above the common limit of addresses of no registered machine, or while they have
    used their share of the loop."""
    CONNECTION_RATE = "connection-rate"
    """An address that opened so many connections that the kernel drops more for some seconds."""
    FAULTY_REQUEST = "faulty-request"
    """A request over a limit, or bytes that are not HTTP."""
    SLOW_REQUEST = "slow-request"
    """A request that did not arrive in its time."""
    SLOW_READER = "slow-reader"
    """A peer that did not take its answers in time."""
    RATE = "rate"
    """A request over its machine's rate."""
    WAITERS = "waiters"
    """A request that was not allowed to wait, for too many do; it was answered at once."""
    LOOP_SHARE = "loop-share"
    """Requests that had to wait for their turn, for their guest had used its share of the loop."""
    BODIES = "bodies"
    """Bodies that were not read before others of their guest were answered or submitted."""
    APPROVAL_TIMEOUT = "approval-timeout"
    """An approval that the plane did not answer in time."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of a machine's requests (protocol.md section 9); `server.settings` sets it."""

    per_second: float = 0.0
    """The number of requests that it gains in a second; 0 is no limit."""
    burst: int = 1


UNLIMITED: Final = Rate()

SLACK: Final = 0.001
"""A part of a request: more than sums of fractions are ever wrong by, so that the last of a burst,
and a client that keeps to the rate to the millisecond, is not refused."""


@dataclass(slots=True)
class Bucket:
    """A machine's token bucket as one number: no timer, and no bucket before the first request."""

    full_at: float = -math.inf
    """When it will be full, in monotonic seconds."""


class Limiter:
    """Takes requests out of buckets."""

    def __init__(self, rate: Rate) -> None:
        self._interval = 1 / rate.per_second if rate.per_second else 0.0
        most = rate.burst - 1 + SLACK
        self._tolerance = most * self._interval if rate.per_second else math.inf

    def allows(self, bucket: Bucket, now: float) -> bool:
        """Take one request out, if there is one; return True if there was."""
        full_at = bucket.full_at
        if full_at <= now:
            full_at = now
        elif full_at - now > self._tolerance:
            return False
        bucket.full_at = full_at + self._interval
        return True

    def retry_after_seconds(self, bucket: Bucket, now: float) -> int:
        """Return the whole seconds until a bucket that is empty has a request."""
        return math.ceil(bucket.full_at - now - self._tolerance)


GUEST_SHARE: Final = 0.05
"""The share of the loop's time that one guest may use before its requests wait for turns. A machine
that polls 50 times a second uses 0.003."""

STRANGERS_SHARE: Final = 0.1
"""The same of all unregistered addresses of a listener together: as much as two machines use."""

TOTAL_SHARE: Final = 0.5
"""The same of all guests together, repeated polls apart: many that each use little use much."""

BURST_SECONDS: Final = 0.005
"""The loop's time that may be used at once, by a guest that has not used it: a burst of the rate.
"""

ACCEPT_SECONDS: Final = 50e-6
"""The cost of a new connection for the loop, about: most of it is spent before we are asked."""

CONNECTIONS_PER_SECOND: Final = 1000
"""New connections of one address in a second, and as many at once: ten times those of a machine
that polls 50 times a second, by a new connection each time, and has two agents more that do so."""

REFUSED_CONNECTIONS: Final = 50
"""The count of a connection that was refused, or ended by a refusal, so 20 a second: a refused
client gets the advice to come again after 5 s."""

REFUSED_RATE: Final = 10
"""The count of a request over its machine's rate, so 100 a second. Twenty guests that opened a
connection for each of 500 requests a second kept others waiting in the queue of new connections,
which knows no turns."""

REFUSED_STRANGERS: Final = 250
"""The same for a stranger's where strangers have all that they may, so 4 a second."""

BYTE_SECONDS: Final = 6e-9
"""The cost of a received byte for the loop beside our own time, 0.1 ms for 16 KiB: the kernel
copies it, and receives the peer's next bytes."""

TURN_SECONDS: Final = 0.0005
"""After this no further pipelined request is answered in a turn."""

TURNS: Final = 16
"""The most turns in one of the loop's rounds, and approvals that are submitted in one. A round
costs more than a turn where another thread computes, for it waits for the interpreter."""

ROUND_SECONDS: Final = 0.001
"""After this the next turn is in the next round."""

MAX_CHARGE_SECONDS: Final = 0.002
"""The most that one turn is charged with: nobody pays for a pause of the process. A thousand
EventIds take 2.5 ms, and no request much more, but for bodies of 64 KiB: 6 ms."""

MAX_APPROVALS_IN_FLIGHT: Final = 200
"""EventIds of approvals that the control plane has at a time, but for those of a large one. A guest
whose turn comes waits for the commit of half of them and of the other half, some 50 ms; more of
them would cost no less processor each.
"""

LARGE_APPROVAL_BYTES: Final = 4096
"""A body from this size on, of some 70 EventIds, is large: 1,000 take the control plane 10 ms and
more, so it has one such body at a time, and a neighbour's single approval waits for no second. It
goes first where it may, so that small ones never keep it out."""

ENTRY_SECONDS: Final = 0.001
"""The time by which an EventId in an approval delays its guest's next one behind other guests'."""

MAX_BODY_BYTES_HELD: Final = 4 * refusals.MAX_BODY_BYTES
"""The most bytes of one guest's bodies that are being read or wait for their turn. Agents send a
few hundred bytes, which never wait; 64 bodies of 64 KiB from each of twenty guests were 80 MiB."""


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """The use of one guest: an address, strangers' IPv6 /64, or a machine where some share one.

    What it uses counts for its group as well: all strangers of a listener, and all guests.
    """

    group: "Account | None" = None
    share: float = GUEST_SHARE
    connections: int = 0
    waiters: int = 0
    free_at: float = -math.inf
    """The time at which it will have paid for the loop's time that it used, in monotonic seconds.
    """
    is_approving: bool = False
    approved_until: float = -math.inf
    """The time at which it will have made up for the EventIds that it approved, in monotonic
    seconds: its next approval waits in line as if it had come only then."""
    body_bytes: int = 0
    """The bytes of its bodies that are being read or wait for a turn."""
    connected_until: float = -math.inf
    """The time at which it may have its full number of new connections at once again, in monotonic
    seconds."""

    def must_wait(self, now: float) -> bool:
        """Return True if it, or a group that it is in, has used its share of the loop."""
        is_over = (self.free_at - now) * self.share > BURST_SECONDS
        return is_over or (self.group is not None and self.group.must_wait(now))

    def is_greedy(self, now: float) -> bool:
        """Return the same, but for the group of all guests."""
        is_over = (self.free_at - now) * self.share > BURST_SECONDS
        return self.group is not None and (is_over or self.group.is_greedy(now))

    def charge(self, seconds: float, now: float) -> None:
        """Take the loop's time that it used out of its share, and out of its groups'."""
        self.free_at = max(self.free_at, now) + seconds / self.share
        if self.group is not None:
            self.group.charge(seconds, now)

    def may_connect(self, count: int, now: float) -> bool:
        """Count new connections; return True if they are within the limit of one address."""
        self.connected_until = max(self.connected_until, now) + count / CONNECTIONS_PER_SECOND
        return self.connected_until <= now + 1

    def has_room(self, size: int) -> bool:
        """Return True if it may hold so many bytes more of bodies; one body always has room."""
        return not self.body_bytes or self.body_bytes + size <= MAX_BODY_BYTES_HELD

    def is_unused(self, now: float) -> bool:
        """Return True if nothing need be kept of it."""
        return (
            not self.connections
            and not self.is_approving
            and max(self.free_at, self.approved_until, self.connected_until) <= now
        )


class Line:
    """Accounts that wait: by turns the one that waits longest goes, and the one that came last.

    So an account behind a crowd of ten thousand does not wait for all of it, and nobody in the
    crowd waits for all who come behind it.
    """

    def __init__(self) -> None:
        self._places: dict[Account, int] = {}
        self._numbers = itertools.count()
        self._oldest: list[tuple[float, int, Account]] = []
        """A heap by the time since when they wait, with places that are taken no more: nobody
        looks through it for these."""
        self._newest: dict[Account, None] = {}
        self._is_newest_next = False

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._places)

    def __contains__(self, account: Account) -> bool:
        """Return True if an account waits here."""
        return account in self._places

    def add(self, account: Account, since: float, *, is_new: bool) -> None:
        """Add an account; one that has just had a turn, or has to make up for some, is not new."""
        number = self._places[account] = next(self._numbers)
        heapq.heappush(self._oldest, (since, number, account))
        if is_new:
            self._newest[account] = None

    def remove(self, account: Account) -> None:
        """Remove an account, if it waits here."""
        self._newest.pop(account, None)
        if self._places.pop(account, None) is not None and not self._places:
            self._oldest.clear()

    def take(self) -> Account:
        """Remove the account whose turn it is, and return it."""
        self._is_newest_next = not self._is_newest_next
        account = None
        if self._newest and not self._is_newest_next:
            account = next(reversed(self._newest))
        while account is None:
            _, number, oldest = heapq.heappop(self._oldest)
            if self._places.get(oldest) == number:
                account = oldest
        self.remove(account)
        return account


@dataclass(eq=False, repr=False)
class FairQueue:
    """Gives guests their turns of the loop, and of the control plane; used on the loop alone.

    Waiting work is kept here by its account: there are as many as machines, and few have any.
    """

    call_soon: Callable[[Callable[[], None]], object]
    monotonic: Callable[[], float]
    _queued: dict[Account, dict["Connection", None]] = field(default_factory=dict)
    """Connections that wait for a turn."""
    _modest: Line = field(default_factory=Line)
    _greedy: Line = field(default_factory=Line)
    """Their accounts; those that are greedy have theirs last."""
    _at_turn: Account | None = None
    _is_turn_soon: bool = False
    _bodies: dict[Account, dict["Connection", int]] = field(default_factory=dict)
    """Connections that wait to read a body of so many bytes."""
    _in_flight: int = 0
    """EventIds that the control plane has, but for those of a large body."""
    _has_large: bool = False
    _approving: dict[Account, dict["Connection", int]] = field(default_factory=dict)
    """Connections whose approval waits for a turn, and how many bytes each has."""
    _lines: tuple[Line, Line] = field(default_factory=lambda: (Line(), Line()))
    """Their accounts that have no approval in flight; the second is of those whose first body is
    large."""
    _is_approving_soon: bool = False

    @property
    def is_crowded(self) -> bool:
        """Return True if more wait for turns than the next round has: nobody overtakes them."""
        return len(self._modest) > TURNS

    def queue(self, connection: "Connection") -> None:
        """Queue a connection for a turn, when its account's turn comes.

        There are few turns in each of the loop's rounds, and each account has one before any has
        two: a guest with one request is answered soon, however much others pipeline.
        """
        account = connection.account
        if account not in self._queued:
            self._queued[account] = {}
            self._line_up(account, is_new=account is not self._at_turn)
        self._queued[account][connection] = None
        self._turn_soon()

    def _line_up(self, account: Account, *, is_new: bool) -> None:
        now = self.monotonic()
        lane = self._greedy if account.is_greedy(now) else self._modest
        lane.add(account, now, is_new=is_new)

    def _turn_soon(self) -> None:
        if self._queued and not self._is_turn_soon:
            self._is_turn_soon = True
            self.call_soon(self._next)

    def _next(self) -> None:
        self._is_turn_soon = False
        self._few(self._have_turn)

    def _few(self, act: Callable[[], bool]) -> None:
        until = self.monotonic() + ROUND_SECONDS
        for _ in range(TURNS):
            if not act() or self.monotonic() > until:
                break

    def _have_turn(self) -> bool:
        lane = self._modest or self._greedy
        if not lane:
            return False
        account = self._at_turn = lane.take()
        queued = self._queued[account]
        connection = next(iter(queued))
        del queued[connection]
        if queued:
            self._line_up(account, is_new=False)
        else:
            del self._queued[account]
        self._turn_soon()
        connection.have_turn()
        self._at_turn = None
        return True

    def may_take_body(self, connection: "Connection", size: int) -> bool:
        """Return True if a body may be read now; otherwise its connection is called when it may."""
        account = connection.account
        if account in self._bodies or not account.has_room(size):
            self._bodies.setdefault(account, {})[connection] = size
            return False
        account.body_bytes += size
        return True

    def drop_body(self, account: Account, size: int) -> None:
        """Note that a body is held no longer, and read those that have room now."""
        account.body_bytes -= size
        while waiting := self._bodies.get(account):
            connection, wanted = next(iter(waiting.items()))
            if not account.has_room(wanted):
                break
            self.forget(connection)
            account.body_bytes += wanted
            connection.have_room(wanted)

    def may_approve(self, account: Account, size: int) -> bool:
        """Return True if a guest's approval, a body of so many bytes, need not wait for a turn."""
        is_free = not self._approving and not account.is_approving
        return is_free and self._has_capacity(is_large=size >= LARGE_APPROVAL_BYTES)

    def _has_capacity(self, *, is_large: bool) -> bool:
        return not self._has_large if is_large else self._in_flight < MAX_APPROVALS_IN_FLIGHT

    def wait_to_approve(self, connection: "Connection", size: int) -> None:
        """Queue a connection's approval, a body of so many bytes, for its turn.

        A guest has one in flight at a time, and waits longer the more it has approved of late.
        """
        account = connection.account
        self._approving.setdefault(account, {})[connection] = size
        self._keep_in_line(account)
        self._approve_soon()

    def _keep_in_line(self, account: Account) -> None:
        """Keep an account in the line of its first approval, or in none if that may not go."""
        waiting = self._approving.get(account)
        line = None
        if waiting is not None and not account.is_approving:
            line = self._lines[next(iter(waiting.values())) >= LARGE_APPROVAL_BYTES]
        for each in self._lines:
            if each is not line:
                each.remove(account)
        if line is not None and account not in line:
            now = self.monotonic()
            is_new = account.approved_until <= now
            line.add(account, max(account.approved_until, now), is_new=is_new)

    def submitted(self, account: Account, entries: int, size: int) -> None:
        """Note that the control plane has an approval of so many EventIds and bytes."""
        account.is_approving = True
        now = self.monotonic()
        account.approved_until = max(account.approved_until, now) + entries * ENTRY_SECONDS
        if size >= LARGE_APPROVAL_BYTES:
            self._has_large = True
        else:
            self._in_flight += entries
        self._keep_in_line(account)

    def decided(self, entries: int, size: int) -> None:
        """Note that the control plane has answered."""
        if size >= LARGE_APPROVAL_BYTES:
            self._has_large = False
        else:
            self._in_flight -= entries
        self._approve_soon()

    def finished(self, account: Account) -> None:
        """Note that the guest has its answer, and may have the next approval in flight."""
        account.is_approving = False
        self._keep_in_line(account)
        self._approve_soon()

    def forget(self, connection: "Connection") -> None:
        """Drop a connection's body or approval that waits: it has no answer any more."""
        account = connection.account
        for queues in (self._bodies, self._approving):
            queues.get(account, {}).pop(connection, None)
            if not queues.get(account, True):
                del queues[account]
        self._keep_in_line(account)

    def _approve_soon(self) -> None:
        if self._approving and not self._is_approving_soon:
            self._is_approving_soon = True
            self.call_soon(self._approve_next)

    def _approve_next(self) -> None:
        self._is_approving_soon = False
        self._few(self._approve)

    def _approve(self) -> bool:
        for is_large in (True, False):
            line = self._lines[is_large]
            if line and self._has_capacity(is_large=is_large):
                connection = next(iter(self._approving[line.take()]))
                self.forget(connection)
                self._approve_soon()
                connection.submit()
                return True
        return False  # `decided` and `finished` come back to those that wait
