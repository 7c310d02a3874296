"""One connection: its requests are read, answered in order, and kept to their times.

    FRESH    nothing came yet                   head_seconds, then closed without a word
    HEAD     the head is incomplete             head_seconds, then 408
    BODY     the body is incomplete             body_seconds, then 408
    APPROVING  the plane has the approval       approval_seconds, then cut off; 503 before it has it
    WAITING  for the document to change         as long as the client asked, then 304
    CHOKED   the peer does not take its answers write_seconds, then cut off
    QUEUED   its turn, or room for its body     as long as others' turns take
    IDLE     between two requests               idle_seconds, then closed without a word
    CLOSING  the last answer is given           linger_seconds, then cut off

The caller is judged when the head is complete, before any of the body is read: a request that is
refused by its head ends the connection if a body was to come, and so does one of a stranger.

Pipelined requests are read one at a time, and those behind the first wait for a turn; one
connection has one turn at a time. So do all requests of a guest that has used its share of the
loop. Bytes behind the request that is being answered stay in `_unread`, at most one read's worth,
for reading is paused while anything is in it. A connection that waits for its document reads on,
for a few requests' worth, to notice when its client has gone.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from forewarn.protocol import exchange, refusals
from forewarn.protocol.message import Reply
from forewarn.server import sockets
from forewarn.server.guest.documents import DelayedAnswer
from forewarn.server.guest.endpoint import (
    APPROVALS,
    EVENTS,
    OTHER,
    RETRY_AFTER_SECONDS,
    Admitted,
    LongPoll,
    Outcome,
    PendingApproval,
    Poll,
    resource_of,
)
from forewarn.server.guest.http import CHUNKED, CONTINUE, Head, RequestReader
from forewarn.server.guest.limits import (
    BYTE_SECONDS,
    LARGE_APPROVAL_BYTES,
    MAX_CHARGE_SECONDS,
    REFUSED_CONNECTIONS,
    REFUSED_RATE,
    TURN_SECONDS,
    Account,
    Reason,
)
from forewarn.server.guest.machines import Source

if TYPE_CHECKING:
    from forewarn.server.guest.connections import Connections, EarlyTransport

NEVER: Final = math.inf
"""The deadline of a connection that waits for nothing of its peer's."""

UNREAD_BYTES: Final = 4096
"""The most bytes that are read of requests behind one that waits; the departure of a client that
sends more is noticed only at the end of its wait."""

REFUSAL_SECONDS: Final = 0.02
"""An approval of an unknown event is answered at a multiple of this. The store takes 1.4 ms longer
to refuse an event of another scope than one that never was, and guests must not learn which."""

PROBE_SECONDS: Final = 0.05
"""The time for a client that has ended its side to show that it is still there: a round trip."""

PEER_SECONDS: Final = 1.0
"""The time for the peers' part where the plane stops: to send a first request, or the rest of one,
and to take the answer. A lost packet takes as long to come again; others wait for the next process
meanwhile."""

LAST_SECONDS: Final = 0.1
"""The time that a connection lingers where the plane stops, once its peer has the answer: many
round trips within a site."""


class Stage(IntEnum):
    """The stages of a connection; from CLOSING on it answers nothing more."""

    FRESH = auto()
    HEAD = auto()
    BODY = auto()
    APPROVING = auto()
    WAITING = auto()
    CHOKED = auto()
    QUEUED = auto()
    IDLE = auto()
    CLOSING = auto()
    LOST = auto()


_IDLE: Final = Stage.IDLE
_FRESH: Final = Stage.FRESH


class TappedRequest(Protocol):
    """A request that a tap has met, until its answer goes out."""

    is_held: bool
    """True if it waits for `Connection.judge`, or for `Connection.answer`."""
    seconds: float
    """The longest such wait."""

    def on_answer(self, give: Callable[[], None]) -> None:
        """Call `give` once all has happened that the plane does now: the answer is there."""
        ...

    def before_write(self, answer: bytes) -> tuple[bytes, bool]:
        """Return the bytes to send as the answer, and True if the connection ends with it."""
        ...


Tap: TypeAlias = Callable[["Connection", Head, bytes], TappedRequest]
"""Meets each whole request before it is judged: an emulator's record and faults come in here."""


def end_side(transport: asyncio.Transport) -> None:
    """End our side of a connection."""
    with contextlib.suppress(OSError):  # the peer has reset it, and nobody has read so yet
        transport.write_eof()


@dataclass(slots=True, eq=False, repr=False)
class Connection(asyncio.Protocol):
    """Speaks HTTP/1.1 and HTTP/1.0 with one peer."""

    _shared: "Connections"
    source: Source
    _reader: RequestReader = field(init=False)
    _transport: asyncio.Transport = field(init=False)
    account: Account = field(init=False)
    _stage: Stage = Stage.FRESH
    _unread: bytes = b""
    _admitted: Admitted | None = None
    _pending: PendingApproval | DelayedAnswer | TappedRequest | None = None
    _tapped: TappedRequest | None = None
    _long_poll: LongPoll | None = None
    _poll: Poll | None = None
    _choked: bool = False
    _yielded: bool = False
    _queued_at: float = 0.0
    """The time from which it waits for a turn: that wait is not its client's."""
    _paused: bool = False
    _at_end: bool = False
    _is_last: bool = False
    _discarded: int = 0
    _body_bytes: int = 0
    _is_probed: bool = False
    early: "EarlyTransport | None" = None
    """The transport that took it in, where the loop had none for it yet."""
    is_stranger: bool = False
    """True if it came from an address of no registered machine."""
    deadline: float = NEVER
    """The end of its time, by `Connections.monotonic`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a peer in, or refuse it if there are too many; go on with one that was taken in."""
        limits = self._shared.limits
        self._transport = cast("asyncio.Transport", transport)
        if self.early is not None:
            self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
            self._shared.has_started(self)
            self.early.hand_over(self._transport)
            self.early = None
            if self._paused:  # the loop begins to read after this call
                self._shared.loop.call_soon(self._pause)
            return
        self._reader = RequestReader(limits)
        if self._shared.suspended:
            self.abort()
            return
        refusal = self._shared.add(self)
        if refusal is None:
            self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
            self._wait(Stage.FRESH, limits.head_seconds)
        else:
            self._send(refusal, last=True, resource=OTHER)
            # Lingering would let it have the place that it was refused.
            self._transport.close()

    def _pause(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer; an approval that the plane has stands, without anyone to answer."""
        del exc
        self._stage = Stage.LOST
        self.deadline = NEVER
        self._unread = b""
        if self._admitted is not None or self._pending is not None:
            self._shared.fair_queue.forget(self)
        self._drop_body()
        self._pending = None
        if self._long_poll is not None:
            self._forget_long_poll()
        self._shared.remove(self)

    def data_received(self, data: bytes) -> None:
        """Read on, unless earlier work must be over first."""
        stage = self._stage
        if (stage is _IDLE or stage is _FRESH) and self._answer_poll(data):
            return
        if stage >= Stage.CLOSING:
            self._discard(len(data))
        elif self._held() or self._unread:
            self._unread += data  # it was on its way when reading was paused
            if self._awaits_news() and len(self._unread) > UNREAD_BYTES:
                self._read_on(not_now=True)
        else:
            self._take(data)

    def _answer_poll(self, data: bytes) -> bool:
        shared = self._shared
        polls = shared.polls
        poll = self._poll
        if poll is None or poll.generation != polls.generation or poll.known.data != data:
            poll = self._poll = polls.find(self.source, data)
            if poll is None:
                return False
        now = shared.monotonic()
        shared.on_turn(now)
        answer = polls.answer(poll, now)
        if answer is None:
            return False
        shared.event_answers[poll.status] += 1
        self._transport.write(answer)
        if poll.known.is_last:
            self._close(lingers=False)
        elif self._choked:
            self._settle_down(restarted=True)
        else:
            self._stage = _IDLE
            self.deadline = now + shared.limits.idle_seconds
        return True

    def eof_received(self) -> bool:
        """Note that the peer has ended its side: its requests are still answered.

        One that waits is answered now: it is unknown if its client still listens.
        """
        self._at_end = True
        if self._long_poll is not None:
            self._shared.long_polls.end(self._long_poll)
        if self._stage < Stage.CLOSING:
            if self._held() or self._unread:
                return True
            self._end()
        return False

    def pause_writing(self) -> None:
        """Read nothing more until the peer takes its answers."""
        self._choked = True

    def resume_writing(self) -> None:
        """Read on: the peer has taken its answers."""
        self._choked = False
        self._go_on()

    def _held(self) -> bool:
        return (
            self._pending is not None
            or self._long_poll is not None
            or self._choked
            or self._yielded
        )

    def _awaits_news(self) -> bool:
        """Return whether it reads on although it is held: its client may leave any time."""
        is_tapped = self._tapped is not None and self._pending is self._tapped
        return is_tapped or self._long_poll is not None

    def _go_on(self) -> None:
        if self._stage < Stage.CLOSING and not self._held():
            data, self._unread = self._unread, b""
            self._take(data)

    def _take(self, data: bytes) -> None:
        shared = self._shared
        now = shared.monotonic()
        shared.on_turn(now)
        if data:
            is_over = self.account.must_wait(now)
            if is_over and self.account.is_greedy(now):  # else it is the others' doing
                shared.turn_away(self, Reason.LOOP_SHARE)
            if is_over or shared.fair_queue.is_crowded:
                self._unread = data
                self._queue()
                self._read_on(not_now=True)
                self._wait_for_rest(restarted=False)
                return
        self._read(data, 1, now)

    def have_turn(self) -> None:
        """Answer some more of the received requests."""
        self._yielded = False
        if self._stage < Stage.CLOSING:
            data, self._unread = self._unread, b""
            now = self._shared.monotonic()
            self._shared.on_turn(now)
            self.deadline += now - self._queued_at
            self._read(data, self._shared.limits.messages_per_turn, now)

    def _queue(self) -> None:
        self._yielded = True
        self._queued_at = self._shared.monotonic()
        self._shared.fair_queue.queue(self)

    def _read(self, data: bytes, most: int, began: float) -> None:
        shared, reader = self._shared, self._reader
        position = 0
        size = len(data)
        answered = 0
        while position < size and not self._held():
            if answered and (answered == most or shared.monotonic() - began > TURN_SECONDS):
                self._queue()
                break
            start, is_new = position, not reader.started
            position = reader.read(data, position)
            if reader.fault is not None:
                if not self._is_refused_by_its_head():
                    self._refuse(reader.fault, Reason.FAULTY_REQUEST)
            elif reader.head.is_complete and (shared.tap is None or self._passes(shared.tap)):
                if self._admitted is None and not self._admit():
                    answered += 1
                elif reader.body is not None:
                    is_whole = is_new and start == 0 and position == size
                    self._answer(data if is_whole and shared.tap is None else None)
                    answered += 1
            if self._stage >= Stage.CLOSING:
                break
        if self._stage < Stage.CLOSING:
            self._unread = data[position:] if position < size else b""
            self._settle_down(restarted=answered > 0)
        used = size * BYTE_SECONDS + shared.monotonic() - began
        self.account.charge(min(used, MAX_CHARGE_SECONDS), began)

    def _passes(self, tap: Tap) -> bool:
        """Show a whole request to the tap, once; return whether it is judged now."""
        reader, head = self._reader, self._reader.head
        body = reader.body
        if body is None:
            if not head.expects_continue:
                return False
            refusal = self._shared.endpoint.admit(head.request, self.source)
            if not isinstance(refusal, Reply):
                head.expects_continue = False
                self._transport.write(CONTINUE)
                return False
            body = b""
        tapped = self._tapped = tap(self, head, body)
        if tapped.is_held:
            self._pending = tapped
        return not tapped.is_held

    def judge(self, tapped: TappedRequest) -> bool:
        """Judge a request that the tap has held; return whether its client was still there."""
        is_there = self._pending is tapped
        self._admit_again(tapped)
        return is_there

    def answer(self, tapped: TappedRequest, data: bytes) -> None:
        """Answer a request that the tap has held, in place of the plane."""
        if self._pending is tapped:
            keep = self._reader.head.keeps_alive
            self._pending = self._tapped = None
            self._transport.write(data)
            if keep:
                self._reader.next()
            else:
                self._close(lingers=False)
            self._carry_on()

    def _admit(self) -> bool:
        shared = self._shared
        head = self._reader.head
        admitted = shared.endpoint.admit(head.request, self.source)
        if isinstance(admitted, DelayedAnswer):
            self._pending = admitted
            loop = shared.loop
            admitted.add_done_callback(lambda done: loop.call_soon(self._admit_again, done))
            return False
        if isinstance(admitted, Reply):
            # Nobody knows whether a body still comes, and a stranger is not to keep its place.
            is_last = head.length != 0 or admitted.status == 403
            if admitted.status == 429:
                shared.count_connections(self, REFUSED_RATE)
            if is_last:
                shared.count_connections(self, REFUSED_CONNECTIONS)
            self._send(admitted, last=is_last)
            return False
        if self.source.is_shared and not shared.attribute(self, admitted.machine.key):
            self._is_last = True
        self._admitted = admitted
        if self._reader.body is None:
            size = shared.limits.body_bytes if head.length == CHUNKED else head.length
            if shared.fair_queue.may_take_body(self, size):
                self._take_body(size)
            else:
                self._yielded = True
                shared.turn_away(self, Reason.BODIES)
        return True

    def _take_body(self, size: int) -> None:
        self._body_bytes = size
        if self._reader.head.expects_continue:
            self._transport.write(CONTINUE)

    def _drop_body(self) -> None:
        if self._body_bytes:
            size, self._body_bytes = self._body_bytes, 0
            self._shared.fair_queue.drop_body(self.account, size)

    def have_room(self, size: int) -> None:
        """Take in the body that waited until its guest held fewer bytes."""
        self._take_body(size)
        self._queue()

    def _settle_down(self, *, restarted: bool) -> None:
        limits = self._shared.limits
        long_poll = self._long_poll
        reads_on = self._awaits_news() and len(self._unread) <= UNREAD_BYTES
        self._read_on(not_now=self._held() and not reads_on)
        if long_poll is not None:
            self._wait(Stage.WAITING, long_poll.seconds)
        elif self._pending is not None:
            self._wait(Stage.APPROVING, limits.approval_seconds + self._pending.seconds)
        elif self._choked:
            self._wait(Stage.CHOKED, limits.write_seconds)
        elif self._yielded:
            self._stage = Stage.QUEUED
            self.deadline = NEVER
        elif self._at_end:
            self._end()
        elif not self._reader.started:
            if self._shared.retiring:
                self._close(lingers=False)
            elif restarted or self._stage not in {_IDLE, _FRESH}:
                self._wait(_IDLE, limits.idle_seconds)
        else:
            self._wait_for_rest(restarted=restarted)

    def _wait_for_rest(self, *, restarted: bool) -> None:
        """Give the peer time to send its head or body, and no more time for one under way."""
        limits = self._shared.limits
        stage, seconds = Stage.HEAD, limits.head_seconds
        if self._reader.in_body:
            stage, seconds = Stage.BODY, limits.body_seconds
        if restarted or self._stage is not stage:
            self._wait(stage, seconds)

    def _wait(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self.deadline = self._shared.monotonic() + seconds
        if self._shared.retiring and stage is not Stage.APPROVING:
            self._hurry()

    def _read_on(self, *, not_now: bool = False) -> None:
        if not_now is not self._paused and not self._transport.is_closing():
            self._paused = not_now
            if not_now:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _answer(self, data: bytes | None) -> None:
        shared, reader = self._shared, self._reader
        admitted, body, head = self._admitted, reader.body, reader.head
        assert admitted is not None
        assert body is not None
        self._admitted = None
        outcome = shared.endpoint.answer(admitted, body)
        # By HTTP/1.0 an answer reads otherwise where the connection stays.
        is_usual = head.length == 0 and not (head.is_http_1_0 and head.keeps_alive)
        if data is not None and is_usual and isinstance(outcome, Reply) and not self._is_last:
            is_last = not head.keeps_alive
            shared.polls.remember(data, self.source, admitted.wanted, outcome, is_last=is_last)
        self._give(outcome)

    def _give(self, outcome: Outcome) -> None:
        if isinstance(outcome, Reply):
            self._send(outcome)
        elif isinstance(outcome, LongPoll):
            self._let_wait(outcome)
        elif isinstance(outcome, PendingApproval):
            self._approve(outcome)
        else:
            self._pending = outcome
            loop = self._shared.loop
            outcome.add_done_callback(lambda done: loop.call_soon(self._give_delayed, done))

    def _let_wait(self, poll: LongPoll) -> None:
        shared, limits = self._shared, self._shared.limits
        is_one_too_many = (
            len(shared.long_polls) >= limits.waiters
            or self.account.waiters >= limits.connections_per_address
        )
        if is_one_too_many:
            shared.turn_away(self, Reason.WAITERS)
        if shared.retiring or self._at_end or is_one_too_many:
            self._send(shared.endpoint.refuse_to_wait(poll))
        else:
            self._drop_body()
            self._long_poll = poll
            self.account.waiters += 1
            shared.long_polls.add(poll, self)
            self._reader.shed_head()

    def _forget_long_poll(self) -> None:
        assert self._long_poll is not None
        self._shared.long_polls.forget(self._long_poll)
        self._long_poll = None
        self.account.waiters -= 1

    def wake(self, reply: Reply) -> None:
        """Answer the request that waited."""
        self._forget_long_poll()
        self._send(reply, resource=EVENTS)  # the reader has let go of what was asked for
        self._carry_on()

    def _approve(self, request: PendingApproval) -> None:
        self._pending = request
        self._is_probed = False
        if self._shared.fair_queue.may_approve(self.account, len(request.body)):
            self._submit(request)
        else:
            self._shared.fair_queue.wait_to_approve(self, len(request.body))

    def submit(self) -> None:
        """Submit the approval, now that its guest's turn has come, unless its client has gone.

        A client that has gone looks like one that only sends no more, and still wants its answer:
        both have sent a FIN. One that had more to send looks alive: its system sends that first. So
        either is sent an interim answer, which the system of one that has gone answers by a reset;
        the latter only where a large body is saved by it. Nobody else gets one unasked: Node's
        fetch fails by it, and nginx takes it for the answer.
        """
        request = self._pending
        assert isinstance(request, PendingApproval)
        state = sockets.tcp_state(self._transport.get_extra_info("socket"))
        if state == sockets.TCP_CLOSE:
            self._transport.abort()
            return
        may_probe = not self._is_probed and not self._reader.head.is_http_1_0
        is_hidden = bool(self._unread) and len(request.body) >= LARGE_APPROVAL_BYTES
        if may_probe and (is_hidden or state == sockets.TCP_CLOSE_WAIT):
            self._is_probed = True
            self._transport.write(CONTINUE)
            self._shared.loop.call_later(PROBE_SECONDS, self._submit_later, request)
            return
        began = self._shared.monotonic()
        self._submit(request)
        self.account.charge(self._shared.monotonic() - began, began)
        if self._pending is not request:
            self._carry_on()

    def _submit_later(self, request: PendingApproval) -> None:
        if self._pending is request:
            self._shared.fair_queue.wait_to_approve(self, len(request.body))

    def _submit(self, request: PendingApproval) -> None:
        shared, account, size = self._shared, self.account, len(request.body)
        submitted = shared.endpoint.approve(request)
        self._drop_body()
        if isinstance(submitted, Reply):
            self._pending = None
            self._send(submitted, resource=APPROVALS)
            return

        began = shared.loop.time()

        def finish(reply: Reply) -> None:
            shared.fair_queue.finished(account)
            if self._pending is request:
                self._pending = None
                self._send(reply, resource=APPROVALS)
                self._carry_on()

        def approved(done: "Future[Any]") -> None:
            shared.fair_queue.decided(request.entries, size)
            reply = shared.endpoint.settle(done, request)
            if reply.status == 400:
                taken = (shared.loop.time() - began) % REFUSAL_SECONDS
                shared.loop.call_later(REFUSAL_SECONDS - taken, finish, reply)
            else:
                finish(reply)

        def come_back(done: "Future[Any]") -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the connection
                shared.loop.call_soon_threadsafe(approved, done)

        shared.fair_queue.submitted(account, request.entries, size)
        submitted.add_done_callback(come_back)

    def _give_delayed(self, delayed: "Future[Any]") -> None:
        if self._pending is delayed:
            self._pending = None
            # Judged now: a change between that and the wait would not wake it.
            self._give(delayed.result(timeout=0)())
            self._carry_on()

    def _admit_again(self, delayed: "Future[Any] | TappedRequest") -> None:
        if self._pending is delayed:
            self._pending = None
            if self._admit() and self._reader.body is not None:
                self._answer(None)
            self._carry_on()

    def _carry_on(self) -> None:
        if self._stage < Stage.CLOSING and self._held():
            self._settle_down(restarted=True)
        else:
            self._go_on()

    def _refuse(self, refusal: Reply, reason: Reason) -> None:
        self._shared.turn_away(self, reason)
        self._shared.count_connections(self, REFUSED_CONNECTIONS)
        self._send(refusal, last=True, resource=OTHER)

    def _send(self, reply: Reply, *, last: bool = False, resource: str = "") -> None:
        """Write an answer, and close if it is the last one; what a tap has met waits for the tap.

        `last` is True if the connection ends with it, regardless of the peer's wish; `resource` is
        one of `RESOURCES`, or `""` where the request is still there to tell.
        """
        tapped = self._tapped
        if tapped is None:
            self._write(reply, last=last, resource=resource)
            return

        def give() -> None:
            if self._pending is tapped:
                self._pending = None
                self._write(reply, last=last, resource=resource)
                self._carry_on()

        self._pending = tapped
        tapped.on_answer(give)

    def _write(self, reply: Reply, *, last: bool, resource: str) -> None:
        if self._transport.is_closing():  # the peer has reset it
            self._stage = Stage.CLOSING
            return
        self._drop_body()
        shared, reader = self._shared, self._reader
        head = reader.head
        resource = resource or resource_of(head.method, head.target)
        shared.counters.answers[resource][reply.status] += 1
        keep = head.keeps_alive and not last and not self._is_last and not shared.draining
        answer = shared.writer.render(reply, shared.monotonic(), head, keep=keep)
        is_cut = False
        if self._tapped is not None:
            answer, is_cut = self._tapped.before_write(answer)
            self._tapped = None
        self._transport.write(answer)
        if is_cut:
            self._close(lingers=False)
        elif keep:
            reader.next()
        else:
            # Behind a whole request with `Connection: close` nothing more comes, and who has no
            # right to a place does not keep it to send more.
            is_whole = reader.body is not None and head.method != b"CONNECT"
            has_place = reply.status != 403 and not self._is_last
            self._close(lingers=not is_whole or (head.keeps_alive and has_place))

    def _is_refused_by_its_head(self) -> bool:
        """Refuse an unfinished request by its head, which was not judged if a tap waits for it."""
        head = self._reader.head
        is_unjudged = self._shared.tap is not None and self._admitted is None
        return is_unjudged and head.is_complete and head.fault is None and not self._admit()

    def _end(self) -> None:
        if not self._reader.started:
            self._close(lingers=False)
        elif not self._is_refused_by_its_head():
            unfinished = exchange.refuse(
                refusals.MALFORMED, what="the connection ended before the request did"
            )
            self._refuse(unfinished, Reason.FAULTY_REQUEST)

    def _close(self, *, lingers: bool = True) -> None:
        """Close behind the last answer, in stages where the peer may still be sending.

        Args:
            lingers: True if it may: a reset would then take the answer away (RFC 9112 section 9.6).
        """
        limits, transport = self._shared.limits, self._transport
        self._unread = b""
        is_taken = transport.get_write_buffer_size() == 0
        self._wait(Stage.CLOSING, limits.linger_seconds if is_taken else limits.write_seconds)
        if not lingers or self._at_end or not transport.can_write_eof():
            transport.close()
        else:
            end_side(transport)
            self._read_on()

    def _discard(self, length: int) -> None:
        self._discarded += length
        now = self._shared.monotonic()
        self.account.charge(length * BYTE_SECONDS, now)
        is_too_much = self._discarded > self._shared.limits.linger_bytes
        if is_too_much or self.account.is_greedy(now):
            self._transport.abort()

    def expire(self) -> None:
        """End a stage that took too long, with an answer where a request was begun."""
        match self._stage:
            case Stage.FRESH | Stage.IDLE:
                self._close(lingers=False)
            case Stage.HEAD | Stage.BODY if self._yielded:
                pass  # what it has sent waits for its turn, which gives it that time back
            case Stage.HEAD | Stage.BODY:
                if not self._is_refused_by_its_head():
                    self._refuse(exchange.refuse(refusals.TOO_SLOW), Reason.SLOW_REQUEST)
            case Stage.APPROVING:
                self._shared.turn_away(self, Reason.APPROVAL_TIMEOUT)
                request = self._pending
                if isinstance(request, PendingApproval) and not request.entries:
                    self._shared.fair_queue.forget(self)
                    self._pending = None
                    again = RETRY_AFTER_SECONDS
                    self._send(exchange.refuse(refusals.UNAVAILABLE, retry_after_seconds=again))
                    self._carry_on()
                else:  # nobody knows whether it was stored
                    self._transport.abort()
            case Stage.WAITING:
                assert self._long_poll is not None
                self.deadline = NEVER
                self._shared.long_polls.end(self._long_poll)
            case Stage.CHOKED:
                self._shared.turn_away(self, Reason.SLOW_READER)
                self._transport.abort()
            case _:
                self._transport.abort()

    def retire(self) -> None:
        """Close an idle connection, and answer a request that waits: the listeners are closed.

        A connection that was accepted a moment ago is about to send its request, and has time to.
        """
        match self._stage:
            case Stage.IDLE:
                self._close()
            case Stage.WAITING:
                assert self._long_poll is not None
                self._shared.long_polls.end(self._long_poll)
            case Stage.FRESH | Stage.HEAD | Stage.BODY | Stage.CHOKED | Stage.CLOSING:
                self._hurry()

    def _hurry(self) -> None:
        now = self._shared.monotonic()
        is_taken = self._transport.get_write_buffer_size() == 0
        until = now if is_taken and self._stage is Stage.CLOSING else self._shared.peers_until
        self.deadline = min(self.deadline, max(until, now + LAST_SECONDS))

    @property
    def is_idle(self) -> bool:
        """Return True if its peer may send its next request, and has not begun to."""
        return self._stage is Stage.IDLE

    def abort(self) -> None:
        """Close now, whatever the stage."""
        self._transport.abort()
