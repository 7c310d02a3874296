"""One connection: what its peer sends is read, answered in order, and kept to its times.

    FRESH    nothing came yet                   head_seconds, then closed without a word
    HEAD     the head is incomplete             head_seconds, then 408
    BODY     the body is incomplete             body_seconds, then 408
    APPROVING  the plane has the approval       approval_seconds, then cut off
    WAITING  for the document to change         as long as the client asked, then 304
    CHOKED   the peer does not take its answers write_seconds, then cut off
    QUEUED   its turn for what it pipelined     as long as others' turns take
    IDLE     between two requests               idle_seconds, then closed without a word
    CLOSING  the last answer is given           linger_seconds, then cut off

Pipelined requests are read one at a time, and those behind the first wait for a turn, of which one
connection has one at a time: a peer that sends many never holds up those that send one. What
follows the request that is being answered stays in `_unread`, at most one read's worth, for reading
is paused while anything is in it. A connection that waits for its document reads on, for a few
requests' worth, to notice when its client has gone.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from enum import IntEnum, auto
from typing import Any, Final, TypeAlias, cast

import structlog

from forewarn.protocol import exchange
from forewarn.protocol.exchange import Reply, Request
from forewarn.server.guest import callers, tally
from forewarn.server.guest.asking import Held
from forewarn.server.guest.callers import Source
from forewarn.server.guest.connections import NEVER, Connections
from forewarn.server.guest.endpoint import Outcome
from forewarn.server.guest.reading import Reader
from forewarn.server.guest.repeats import Place, Repeat
from forewarn.server.guest.tally import Reason
from forewarn.server.guest.waiting import Wait
from forewarn.server.guest.writing import CONTINUE

SourceOf: TypeAlias = Callable[[str], Source]
"""Tells where a connection comes from, by its peer's address."""

UNREAD_BYTES: Final = 4096
"""What is read of requests behind one that waits: a few, so that only who sends more than anybody
does is noticed no sooner than at its wait's end when it has gone."""

_log = structlog.get_logger(__name__)


class Stage(IntEnum):
    """What a connection waits for; from CLOSING on it answers nothing more."""

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


class Connection(asyncio.Protocol):
    """Speaks HTTP/1.1 and HTTP/1.0 with one peer.

    Args:
        shared: What all connections share.
        source_of: Tells where a connection comes from.
    """

    __slots__ = (
        "_approval",
        "_at_end",
        "_choked",
        "_discarded",
        "_paused",
        "_place",
        "_reader",
        "_repeat",
        "_shared",
        "_source",
        "_source_of",
        "_stage",
        "_transport",
        "_unread",
        "_waiting",
        "_yielded",
        "deadline",
    )

    _transport: asyncio.Transport
    _source: Source
    _place: Place

    def __init__(self, shared: Connections, source_of: SourceOf) -> None:
        self._shared = shared
        self._source_of = source_of
        self._reader = Reader(shared.limits)
        self._stage = Stage.FRESH
        self._unread = b""
        self._approval: Future[Any] | None = None
        self._waiting: Wait | None = None
        self._repeat: Repeat | None = None
        self._choked = False
        self._yielded = False
        self._paused = False
        self._at_end = False
        self._discarded = 0
        self.deadline = NEVER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a peer in, or tell it that there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._source = self._source_of(callers.peer_host(transport.get_extra_info("peername")))
        self._place = self._shared.repeats.place(self._source)
        refusal = self._shared.admit(self, self._source)
        if refusal is None:
            limits = self._shared.limits
            self._transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
            self._wait(Stage.FRESH, limits.head_seconds)
        else:
            self._send(refusal, last=True)
            # Lingering would let it have the place that it was refused.
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer; an approval under way stands, it only has no one to tell."""
        del exc
        self._stage = Stage.LOST
        self.deadline = NEVER
        self._unread = b""
        self._approval = None
        if self._waiting is not None:
            self._shared.waiting.forget(self._waiting)
            self._waiting = None
        self._shared.forget(self, self._source)

    def data_received(self, data: bytes) -> None:
        """Read on, unless something must be over first."""
        stage = self._stage
        if (stage is _IDLE or stage is _FRESH) and self._answer_again(data):
            return
        if stage >= Stage.CLOSING:
            self._discard(len(data))
        elif self._held() or self._unread:
            self._unread += data  # it was on its way when reading was paused
            if self._waiting is not None and len(self._unread) > UNREAD_BYTES:
                self._read_on(not_now=True)
        else:
            self._take(data)

    def _answer_again(self, data: bytes) -> bool:
        """Answer a request that was judged before, to the byte; return whether it was one."""
        shared = self._shared
        repeats = shared.repeats
        repeat = self._repeat
        if repeat is None or repeat.generation != repeats.generation or repeat.data != data:
            repeat = self._repeat = repeats.find(self._place, self._source.address, data)
            if repeat is None:
                return False
        now = shared.monotonic()
        answer = repeats.answer(repeat, now)
        if answer is None:
            return False
        shared.event_answers[repeat.status] += 1
        self._transport.write(answer)
        if repeat.is_last:
            self._close(lingers=False)
        elif self._choked:
            self._settle_down(began_anew=True)
        else:
            self._stage = _IDLE
            self.deadline = now + shared.limits.idle_seconds
        return True

    def eof_received(self) -> bool:
        """Note that the peer sends no more: what it has sent is still answered.

        One that waits is answered now: nothing tells whether its client still listens.

        Returns:
            Whether the connection stays open for the answers.
        """
        self._at_end = True
        if self._waiting is not None:
            self._shared.waiting.end(self._waiting)
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
            self._approval is not None or self._waiting is not None or self._choked or self._yielded
        )

    def _go_on(self) -> None:
        """Take what came meanwhile, if nothing else is in its way."""
        if self._stage < Stage.CLOSING and not self._held():
            data, self._unread = self._unread, b""
            self._take(data)

    def _take(self, data: bytes, most: int = 1) -> None:
        """Read and answer until the data is used up or something must be over first.

        Args:
            data: What came, behind all that was taken before.
            most: How many requests are answered now; the rest waits for a turn.
        """
        reader = self._reader
        position = 0
        size = len(data)
        answered = 0
        while position < size and not self._held():
            if answered == most:
                self._yielded = True
                self._shared.queue(self)
                break
            start, is_new = position, not reader.started
            position = reader.read(data, position)
            if reader.fault is not None:
                self._refuse(reader.fault, Reason.FAULTY_REQUEST)
            elif reader.awaits_continue:
                self._answer_expectation()
            elif reader.request is not None:
                is_whole = is_new and start == 0 and position == size
                self._answer(reader.request, data if is_whole else None)
                answered += 1
            if self._stage >= Stage.CLOSING:
                return
        self._unread = data[position:] if position < size else b""
        self._settle_down(began_anew=answered > 0)

    def have_turn(self) -> None:
        """Answer some more of what was pipelined."""
        self._yielded = False
        if self._stage < Stage.CLOSING:
            data, self._unread = self._unread, b""
            self._take(data, self._shared.limits.messages_per_turn)

    def _settle_down(self, *, began_anew: bool) -> None:
        """Wait for what comes next, and read only if that is more from the peer."""
        limits = self._shared.limits
        waiting = self._waiting
        reads_on = waiting is not None and len(self._unread) <= UNREAD_BYTES
        self._read_on(not_now=self._held() and not reads_on)
        if waiting is not None:
            self._wait(Stage.WAITING, waiting.wanted.wait_seconds)
        elif self._approval is not None:
            held = self._approval.seconds if isinstance(self._approval, Held) else 0.0
            self._wait(Stage.APPROVING, limits.approval_seconds + held)
        elif self._choked:
            self._wait(Stage.CHOKED, limits.write_seconds)
        elif self._yielded:
            self._stage = Stage.QUEUED
            self.deadline = NEVER
        elif self._at_end:
            self._end()
        elif not self._reader.started:
            if self._shared.retiring:
                self._close_quietly()
            else:
                self._wait(Stage.IDLE, limits.idle_seconds)
        elif self._reader.in_body:
            if began_anew or self._stage is not Stage.BODY:
                self._wait(Stage.BODY, limits.body_seconds)
        elif began_anew or self._stage is not Stage.HEAD:
            self._wait(Stage.HEAD, limits.head_seconds)

    def _wait(self, stage: Stage, seconds: float) -> None:
        self._stage = stage
        self.deadline = self._shared.monotonic() + seconds

    def _read_on(self, *, not_now: bool = False) -> None:
        if not_now is not self._paused and not self._transport.is_closing():
            self._paused = not_now
            if not_now:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _answer(self, request: Request, data: bytes | None) -> None:
        """Answer a request.

        Args:
            request: As it was read.
            data: Its bytes, if it came whole and alone; None if not.
        """
        shared = self._shared
        reader = self._reader
        wanted = shared.endpoint.judge(request, self._source)
        outcome = shared.endpoint.answer(wanted, request.body, self._source)
        # By HTTP/1.0 an answer reads otherwise where the connection stays.
        is_usual = not reader.in_body and not (reader.is_http_1_0 and reader.keeps_alive)
        if data is not None and is_usual and isinstance(outcome, Reply):
            shared.repeats.remember(
                self._place, data, wanted, outcome, is_last=not reader.keeps_alive
            )
        self._give(outcome)

    def _give(self, outcome: Outcome) -> None:
        """Send an answer, or wait for it."""
        if isinstance(outcome, Reply):
            self._send(outcome)
        elif isinstance(outcome, Wait):
            self._let_wait(outcome)
        else:
            self._approval = outcome
            outcome.add_done_callback(self._approval_is_done)

    def _let_wait(self, wait: Wait) -> None:
        shared = self._shared
        if shared.retiring or self._at_end or not shared.waiting.admit(wait, self):
            self._send(shared.endpoint.refuse_to_wait(wait))
        else:
            self._waiting = wait
            self._reader.shed()

    def wake(self, reply: Reply) -> None:
        """Answer the request that waited."""
        self._waiting = None
        self._send(reply, asked_for=tally.EVENTS)  # the reader has let go of what was asked for
        self._carry_on()

    def _approval_is_done(self, approval: "Future[Any]") -> None:
        """Come back to the event loop; called by whoever finishes the approval."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the connection
            self._shared.loop.call_soon_threadsafe(self._tell_approval, approval)

    def _tell_approval(self, approval: "Future[Any]") -> None:
        if self._approval is approval:
            self._approval = None
            self._give(self._shared.endpoint.settle(approval))
            self._carry_on()

    def _carry_on(self) -> None:
        """Go on after an answer that was given late, or wait for what is in the way now."""
        if self._stage < Stage.CLOSING and self._held():
            self._settle_down(began_anew=True)
        else:
            self._go_on()

    def _answer_expectation(self) -> None:
        """Let the client send its body, or give it the final answer instead.

        After that answer nobody knows whether the body still comes, so it is the last one.
        """
        self._reader.awaits_continue = False
        refusal = self._shared.endpoint.refusal(self._reader.head, self._source)
        if refusal is None:
            self._transport.write(CONTINUE)
        else:
            self._send(refusal, last=True)

    def _refuse(self, refusal: Reply, reason: Reason) -> None:
        self._shared.tally[reason] += 1
        self._send(refusal, last=True)

    def _send(self, reply: Reply, *, last: bool = False, asked_for: str = "") -> None:
        """Write an answer, and close if it is the last one.

        Args:
            reply: The answer.
            last: Whether the connection ends with it, whatever the peer would like.
            asked_for: One of `tally.RESOURCES`; `""` where the request is still there to tell.
        """
        if self._transport.is_closing():
            return
        reader = self._reader
        asked_for = asked_for or tally.asked_for(reader.method, reader.target)
        self._shared.answers.note(asked_for, reply.status)
        keep = reader.keeps_alive and not last and not self._shared.retiring
        self._transport.write(
            self._shared.writer.render(
                reply,
                self._shared.monotonic(),
                to_head=reader.method == b"HEAD",
                keep=keep,
                is_http_1_0=reader.is_http_1_0,
            )
        )
        if keep:
            reader.next()
        else:
            # Behind a whole request with `Connection: close` nothing more comes.
            whole = reader.request is not None and reader.method != b"CONNECT"
            self._close(lingers=last or reader.keeps_alive or not whole)

    def _end(self) -> None:
        """Close after the peer has: with a word if that was in the middle of a request."""
        if self._reader.started:
            unfinished = exchange.malformed("the connection ended before the request did")
            self._refuse(unfinished, Reason.FAULTY_REQUEST)
        else:
            self._close_quietly()

    def _close(self, *, lingers: bool = True) -> None:
        """Close behind the last answer, in stages where the peer may still be sending.

        Args:
            lingers: Whether it may: a reset would then take the answer away (RFC 9112 section 9.6).
        """
        limits = self._shared.limits
        transport = self._transport
        self._unread = b""
        is_taken = transport.get_write_buffer_size() == 0
        self._wait(Stage.CLOSING, limits.linger_seconds if is_taken else limits.write_seconds)
        if not lingers or self._at_end or not transport.can_write_eof():
            transport.close()
        else:
            transport.write_eof()
            self._read_on()

    def _close_quietly(self) -> None:
        self._wait(Stage.CLOSING, self._shared.limits.linger_seconds)
        self._transport.close()

    def _discard(self, length: int) -> None:
        self._discarded += length
        if self._discarded > self._shared.limits.linger_bytes:
            self._transport.abort()

    def expire(self) -> None:
        """End what took too long, with a word where a request was begun."""
        match self._stage:
            case Stage.FRESH | Stage.IDLE:
                self._close_quietly()
            case Stage.HEAD | Stage.BODY:
                self._refuse(exchange.too_slow(), Reason.SLOW_REQUEST)
            case Stage.APPROVING:
                self._shared.tally[Reason.APPROVAL_TIMEOUT] += 1
                _log.error("an approval was not answered in time", address=self._source.address)
                self._transport.abort()
            case Stage.WAITING:
                assert self._waiting is not None
                self.deadline = NEVER
                self._shared.waiting.end(self._waiting)
            case Stage.CHOKED:
                self._shared.tally[Reason.SLOW_READER] += 1
                self._transport.abort()
            case _:
                self._transport.abort()

    def retire(self) -> None:
        """Close if no request is under way; the answer to one that is will be the last."""
        if self._stage in {Stage.FRESH, Stage.IDLE}:
            self._close_quietly()
        elif self._waiting is not None:
            self._shared.waiting.end(self._waiting)

    def abort(self) -> None:
        """Close now, whatever is under way."""
        self._transport.abort()
