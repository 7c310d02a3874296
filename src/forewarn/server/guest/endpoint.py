"""The answers to requests, in the order of protocol.md section 3, rule 6; and their times.

The transport's limits are over when a head comes here. `admit` goes from the path to the version,
looks the caller up, and takes the request out of its rate: all of that before any body is read.
`answer` has the body. `protocol.exchange` judges the faults of a request. `Counters` counts the
answers and the refusals, and logs the latter.

`LongPolls` has the requests that wait for their document to change (protocol.md section 10). Each
is an entry in a set: no task, no thread, no timer of its own. The changefeed wakes all that wait on
a scope in one pass, the sweep over connections ends those that waited long enough, and woken
requests are answered in slices, so that 9,000 answers never hold up the next guest's for long. If a
machine moves to another scope meanwhile, it is answered from there; if it is removed, it is
refused.

Pollers send the same bytes once a second, for ever. So `Polls` remembers bytes that were judged
once, and, for each connection, the result of its last request: the machine and the answer, until
anything changes in the fleet. The effects of a request besides its answer happen each time: it is
held to its machine's rate, turns its scope on, and the machine was seen. That is 6 us of the
processor for a poll instead of 38 (docs/internals/decisions/0015).

A poll is remembered if it is one whole GET of the events without a body, which came alone on a
connection between two requests (so no parser has half a head), was answered with 200 or 304, and
named nobody: no path of a machine, no proxy's claim. So it is judged alike wherever it comes from,
with two exceptions: a trusted proxy's requests are never remembered, and a loopback listener, which
refuses those of web pages, takes only requests that were judged on one. It is remembered as well if
its answer ends the connection. Anything else, and any doubt, goes the long way through
`GuestEndpoint`, which decides alone what is right.
"""

import asyncio
import functools
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.maintenance.model import Changes, Machine, Refused
from forewarn.protocol import exchange, instance, refusals
from forewarn.protocol.exchange import (
    Claim,
    GetDocument,
    PostApproval,
    Resource,
    Rules,
    ValidRequest,
)
from forewarn.protocol.message import HttpRequest, Reply, shown
from forewarn.server.guest import http, machines
from forewarn.server.guest.documents import DelayedAnswer, DocumentCache, Enabler
from forewarn.server.guest.http import AnswerWriter
from forewarn.server.guest.limits import Limiter, Reason
from forewarn.server.guest.machines import Caller, LastRequest, Registry, Source
from forewarn.server.process import LimitLog
from forewarn.store.port import OutcomeUnknown, StoreError
from forewarn.vocabulary import ErrorCode

if TYPE_CHECKING:
    from forewarn.server.guest.connection import Connection

RETRY_AFTER_SECONDS: Final = 5
"""When to come back after 503: a poll or two later, when a short outage is over."""

_log = structlog.get_logger(__name__)


OTHER: Final = "other"
"""The label of unknown resources, and of requests that the transport refused unjudged."""

EVENTS: Final = "events"
APPROVALS: Final = "approvals"

_RESOURCES: Final = {
    Resource.EVENTS: EVENTS,
    Resource.INSTANCE: "instance",
    Resource.VERSIONS: "versions",
}

RESOURCES: Final = (*_RESOURCES.values(), APPROVALS, OTHER)
"""The results of `resource_of`: a closed list, for metrics."""


def resource_of(method: bytes, target: bytes) -> str:
    """Return the label of an answer in metrics, from the request."""
    asked = exchange.read_target(target.partition(b"?")[0])
    if asked is None:
        return OTHER
    if asked.resource is Resource.EVENTS and method == b"POST":
        return APPROVALS
    return _RESOURCES.get(asked.resource, OTHER)


Figures: TypeAlias = Mapping[str, float | Mapping[tuple[str, ...], float]]
"""By the name of a metric: its value, or its values by their labels."""

_STRANGERS: Final = frozenset(
    (Reason.UNKNOWN_ADDRESS, Reason.UNKNOWN_NAME, Reason.UNKNOWN_INSTANCE, Reason.WRONG_SIGNATURE)
)


class Counters:
    """Counts answers and refusals, and logs the latter; used on the loop alone."""

    def __init__(self) -> None:
        self.answers: dict[str, Counter[int]] = {resource: Counter() for resource in RESOURCES}
        """By what was asked for, then by status."""
        self.refusals: Counter[Reason] = Counter()
        self.accepted = 0
        """Connections so far."""
        self._log = LimitLog()

    def refuse(
        self, reason: Reason, listener: str, address: str, now: float, **facts: object
    ) -> None:
        """Count a refusal, and log it unless that was done a moment ago."""
        self.refusals[reason] += 1
        is_stranger = reason in _STRANGERS
        self._log.warn(
            "a caller is no registered machine" if is_stranger else "a guest reached a limit",
            (listener, address, reason),
            now,
            reason=str(reason),
            address=address,
            listener=listener,
            **facts,
        )


class GuestBackend(Protocol):
    """The backend of the guest plane: a service's control plane, or a relay's connection."""

    def approve(
        self, scope: str, event_ids: Sequence[str], *, by: str, address: str
    ) -> "Future[Any]":
        """Approve events for a machine of this scope, by the scope's key and the machine's name.

        The future is done, on any thread, once the approval is durable. It raises Refused
        (NOT_FOUND) with the `event_id` that the scope never published, Refused (NOT_ELIGIBLE) where
        the machine is not served here any more, or a StoreError.
        """
        ...

    def record_requests(self, scopes: Collection[str]) -> "Future[None]":
        """Record that machines of these scopes (keys) asked for their events; then it is done."""
        ...


class Admitted(msgspec.Struct):
    """A request without a fault so far: its body is still to be judged."""

    wanted: ValidRequest
    machine: Machine
    source: Source


class LongPoll(msgspec.Struct, eq=False):
    """A request whose answer waits in `LongPolls`, by keys of machine and scope."""

    wanted: GetDocument
    source: Source
    machine: str
    scope: str
    seconds: int
    is_over: bool = False
    """True if it is to be answered even if nothing has changed."""
    is_queued: bool = False
    connection: "Connection | None" = None


class PendingApproval(msgspec.Struct, eq=False):
    """An approval to be submitted in its turn: `GuestEndpoint.approve`, then `settle`.

    Its body is read only then: a thousand EventIds take more memory, and longer, than all else.
    """

    admitted: Admitted
    body: bytes
    entries: int = 0
    """The number of its EventIds that the control plane has."""
    seconds: ClassVar[float] = 0.0
    """The time for which it is held back on purpose."""


Outcome: TypeAlias = "Reply | LongPoll | PendingApproval | DelayedAnswer"
"""An answer; or a request that waits for one, whose answer is `look`'s or `settle`'s."""


@dataclass(eq=False, repr=False)
class GuestEndpoint:
    """Answers requests from memory, and passes approvals on; used on the event loop alone."""

    registry: Registry
    documents: DocumentCache
    backend: GuestBackend
    rules: Rules
    clock: Clock
    """Tells when a machine was last seen."""
    limiter: Limiter
    monotonic: Callable[[], float]
    """Measures rates, in real seconds."""
    counters: Counters
    enabler: Enabler | None = None
    """None where all scopes are always on."""
    arrival: Callable[[Source], DelayedAnswer | None] | None = None
    """Returns an answer that is done once it is known if an address has a machine that has just
    moved here, None where that is known. None where all machines are known before they ask."""

    def admit(self, head: HttpRequest, source: Source) -> Reply | Admitted | DelayedAnswer:
        """Judge a request by its head: path to version, caller, rate.

        It is to be judged again when a DelayedAnswer is done: its caller may be known by then.
        """
        wanted = exchange.judge(head, source, self.rules)
        if isinstance(wanted, Reply):
            return wanted
        machine = self.registry.find(source, wanted.machine)
        if isinstance(machine, Reason):
            if machine is Reason.UNKNOWN_ADDRESS and self.arrival is not None:
                delayed = self.arrival(source)
                if delayed is not None:
                    return delayed
            self._count_stranger(wanted, source, machine)
            return exchange.unknown_caller(source.address, wanted.machine)
        if exchange.is_rated(wanted):
            caller, now = self.registry.caller(machine), self.monotonic()
            if not self.limiter.allows(caller, now):
                self.counters.refuse(Reason.RATE, source.listener, source.address, now)
                seconds = self.limiter.retry_after_seconds(caller, now)
                return exchange.refuse(refusals.TOO_MANY_REQUESTS, retry_after_seconds=seconds)
        return Admitted(wanted, machine, source)

    def _count_stranger(self, wanted: ValidRequest, source: Source, reason: Reason) -> None:
        facts: dict[str, str] = {}
        told = wanted.machine
        if isinstance(told, Claim):
            facts["instance_id"] = shown(told.id.decode("utf-8", "replace"))
        elif told is not None:
            facts["name"] = shown(told)
        now = self.monotonic()
        self.counters.refuse(reason, source.listener, source.address, now, **facts)

    def answer(self, admitted: Admitted, body: bytes, *, is_late: bool = False) -> Outcome:
        """Answer a whole request; `is_late` if it has waited until its scope was turned on."""
        try:
            gone = self._look_again(admitted)
            if gone is not None:
                return gone
            return self._serve(admitted, body) if is_late else self._answer(admitted, body)
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("could not answer a request", wanted=repr(admitted.wanted)[:500])
            return exchange.refuse(refusals.INTERNAL)

    def _look_again(self, admitted: Admitted) -> Reply | None:
        """Take the machine as it is by now, or return the refusal of one that was removed.

        Its head may have come minutes ago: its body was slow, or its answer held back.
        """
        machine = self.registry.machines.get(admitted.machine.key)
        if machine is None:
            return self._unknown(admitted)
        admitted.machine = machine
        return None

    def _unknown(self, admitted: Admitted) -> Reply:
        return exchange.unknown_caller(admitted.source.address, admitted.wanted.machine)

    def _answer(self, admitted: Admitted, body: bytes) -> Outcome:
        match admitted.wanted:
            case exchange.GetVersions():
                return exchange.VERSIONS_REPLY
            case exchange.GetInstance() as wanted:
                scope = self.documents.scope(admitted.machine.scope)
                described = machines.described(admitted.machine, scope)
                tree = instance.tree(described, wanted.version)
                return exchange.instance_reply(wanted, tree)
            case GetDocument() | PostApproval() as wanted:
                machine = admitted.machine
                second = self.clock.now().replace(microsecond=0)
                agent = wanted.agent if isinstance(wanted, GetDocument) else None
                self.registry.saw(machine, second, wanted.version.name, agent)
                if self.enabler is not None:
                    turning_on = self.enabler.note(machine.scope)
                    if turning_on is not None:
                        delayed = DelayedAnswer(self.enabler.delay_seconds)
                        late = functools.partial(self.answer, admitted, body, is_late=True)
                        turning_on.add_done_callback(lambda _: delayed.set_result(late))
                        return delayed
                return self._serve(admitted, body)

    def _serve(self, admitted: Admitted, body: bytes) -> Reply | LongPoll | PendingApproval:
        wanted, machine, source = admitted.wanted, admitted.machine, admitted.source
        if isinstance(wanted, GetDocument):
            page = self.documents.page(machine.scope, wanted.version)
            if seconds := exchange.hold_seconds(wanted, page.incarnation):
                return LongPoll(wanted, source, machine.key, machine.scope, seconds)
            return exchange.document_reply(wanted, page.incarnation, page.body, waits=True)
        return PendingApproval(admitted, body)

    def scope_of(self, machine_key: str) -> str | None:
        """Return the key of a machine's scope, None where there is no such machine."""
        machine = self.registry.machines.get(machine_key)
        return None if machine is None else machine.scope

    def look(self, poll: LongPoll, *, waits: bool = True) -> Reply | None:
        """Return the answer to a waiting request now, None while nothing is new for it."""
        wanted = poll.wanted
        scope = self.scope_of(poll.machine)
        if scope is None:
            return exchange.unknown_caller(poll.source.address, wanted.machine)
        try:
            page = self.documents.page(scope, wanted.version)
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("could not answer a waiting request")
            return exchange.refuse(refusals.INTERNAL)
        if exchange.hold_seconds(wanted, page.incarnation) and not poll.is_over:
            return None
        return exchange.document_reply(wanted, page.incarnation, page.body, waits=waits)

    def refuse_to_wait(self, poll: LongPoll) -> Reply:
        """Answer a request at once that is not allowed to wait."""
        poll.is_over = True
        reply = self.look(poll, waits=False)
        assert reply is not None  # it is over
        return reply

    def approve(self, request: PendingApproval) -> "Reply | Future[Any]":
        """Submit an approval; return the answer if the body is wrong or names no event.

        Otherwise the future is done, on another thread, once the approval is durable.
        """
        event_ids = exchange.start_requests(request.body)
        if isinstance(event_ids, Reply):
            return event_ids
        if not event_ids:
            return exchange.APPROVED
        gone = self._look_again(request.admitted)
        if gone is not None:
            return gone
        machine, address = request.admitted.machine, request.admitted.source.address
        try:
            submitted = self.backend.approve(
                machine.scope, event_ids, by=machine.name, address=address
            )
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("could not submit an approval")
            return exchange.refuse(refusals.INTERNAL)
        request.body = b""
        request.entries = len(event_ids)
        return submitted

    def settle(self, done: "Future[Any]", request: PendingApproval) -> Reply:
        """Answer an approval that is done, well or not."""
        error = CancelledError() if done.cancelled() else done.exception(timeout=0)
        if error is None:
            return exchange.APPROVED
        if isinstance(error, OutcomeUnknown):
            seconds = RETRY_AFTER_SECONDS
            return exchange.refuse(refusals.UNKNOWN_OUTCOME, retry_after_seconds=seconds)
        if isinstance(error, (StoreError, CancelledError)):
            return exchange.refuse(refusals.UNAVAILABLE, retry_after_seconds=RETRY_AFTER_SECONDS)
        if isinstance(error, Refused):
            refused = self._refusal_of(error, request.admitted)
            if refused is not None:
                # Its frames hold the future that holds it: a guest who is refused again and again
                # would fill the memory until the collector comes by.
                error.__traceback__ = None
                return refused
        _log.error("an approval failed", exc_info=error)
        return exchange.refuse(refusals.INTERNAL)

    def _refusal_of(self, error: Refused, admitted: Admitted) -> Reply | None:
        if error.code is ErrorCode.NOT_FOUND and "event_id" in error.facts:
            return exchange.refuse(refusals.UNKNOWN_EVENT, event_id=str(error.facts["event_id"]))
        return self._unknown(admitted) if error.code is ErrorCode.NOT_ELIGIBLE else None


MAX_POLL_BYTES: Final = 1024
"""The longest request that is remembered: clients send less."""

MAX_KNOWN_POLLS: Final = 2048
"""Requests that are remembered and were used lately, and as many older ones: a fleet's clients and
versions are dozens. All of them are under 5 MB, even if strangers fill them."""


SLICE: Final = 64
"""Waiting requests answered before other connections have their turn: about a millisecond."""


@dataclass(eq=False, repr=False)
class LongPolls:
    """All requests that wait; used on the event loop alone."""

    endpoint: GuestEndpoint
    loop: asyncio.AbstractEventLoop
    is_waking: bool = False
    """True if more are answered at the loop's next turn."""
    _of_scope: dict[str, set[LongPoll]] = field(default_factory=dict)
    _count: int = 0
    _woken: deque[LongPoll] = field(default_factory=deque)

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def add(self, poll: LongPoll, connection: "Connection") -> None:
        """Add a waiting request; its connection is woken to answer it."""
        poll.connection = connection
        self._put(poll)

    def forget(self, poll: LongPoll) -> None:
        """Forget a request that waits no longer, or is gone already."""
        group = self._of_scope.get(poll.scope)
        if group is None or poll not in group:
            return
        group.remove(poll)
        self._count -= 1
        if not group:
            del self._of_scope[poll.scope]

    def _put(self, poll: LongPoll) -> None:
        self._of_scope.setdefault(poll.scope, set()).add(poll)
        self._count += 1

    def learn(self, changes: Changes) -> None:
        """Wake those that a change concerns, once machines and documents have learned of it."""
        for scope in changes.scopes:
            for poll in self._of_scope.get(scope.key, ()):
                self._queue(poll)
        if changes.machines or changes.removed_machines:
            scope_of = self.endpoint.scope_of
            for key, group in self._of_scope.items():
                for poll in group:
                    if scope_of(poll.machine) != key:
                        self._queue(poll)
        self._wake()

    def end(self, poll: LongPoll) -> None:
        """Answer a request soon, with a change or without."""
        poll.is_over = True
        self._queue(poll)
        self._wake_soon()

    def end_all(self, scopes: Collection[str], machines: Collection[str]) -> None:
        """Answer the requests of these machines soon; they are found by their scopes (keys)."""
        for scope in scopes:
            for poll in [p for p in self._of_scope.get(scope, ()) if p.machine in machines]:
                self.end(poll)

    def _queue(self, poll: LongPoll) -> None:
        if not poll.is_queued:
            poll.is_queued = True
            self._woken.append(poll)

    def _wake_on(self) -> None:
        self.is_waking = False
        self._wake()

    def _wake(self) -> None:
        try:
            for _ in range(SLICE):
                if not self._woken:  # a request behind an answered one may have led to a change
                    break
                self._wake_one(self._woken.popleft())
        finally:  # a fault with one of them must not be the end of the others' waiting
            self._wake_soon()

    def _wake_soon(self) -> None:
        if self._woken and not self.is_waking:
            self.is_waking = True
            self.loop.call_soon(self._wake_on)

    def _wake_one(self, poll: LongPoll) -> None:
        poll.is_queued = False
        group = self._of_scope.get(poll.scope)
        if group is None or poll not in group:
            return  # its client has gone
        scope = self.endpoint.scope_of(poll.machine)
        reply = self.endpoint.look(poll)
        if reply is not None:
            self.forget(poll)
            assert poll.connection is not None  # `add` gave it
            poll.connection.wake(reply)
        elif scope is not None and scope != poll.scope:
            self.forget(poll)
            poll.scope = scope
            self._put(poll)


class KnownPoll(msgspec.Struct, eq=False):
    """The request that remembered bytes make."""

    data: bytes
    wanted: GetDocument
    is_last: bool
    on_loopback: bool
    last_request: LastRequest | None = None
    """Their latest arrival, and their version: one object for all that ask in a second."""


class Poll(msgspec.Struct, eq=False):
    """The result of a connection's last request, as of a generation of the fleet."""

    known: KnownPoll
    caller: Caller
    scope: str
    generation: int
    status: int
    ending: bytes
    """The answer without its beginning, which differs each time."""


@dataclass(eq=False, repr=False)
class Polls:
    """Remembers polls; used on the event loop alone."""

    registry: Registry
    documents: DocumentCache
    limiter: Limiter
    writer: AnswerWriter
    enabler: Enabler | None = None
    generation: int = 0
    """Grows with every change of the fleet; a poll of an older one is looked up again."""
    _known: dict[bytes, KnownPoll] = field(default_factory=dict)
    _earlier: dict[bytes, KnownPoll] = field(default_factory=dict)
    _is_closed: bool = False

    def learn(self) -> None:
        """Note that something has changed in the fleet."""
        self.generation += 1

    def close(self) -> None:
        """Remember nothing more: from now on each answer is the last of its connection."""
        self._is_closed = True
        self.generation += 1

    def remember(
        self, data: bytes, source: Source, wanted: ValidRequest, reply: Reply, *, is_last: bool
    ) -> None:
        """Remember a request that came whole and alone, if it qualifies."""
        if (
            len(data) <= MAX_POLL_BYTES
            and isinstance(wanted, GetDocument)
            and wanted.machine is None
            and not wanted.wait_seconds
            and reply.status in {200, 304}
        ):
            known = KnownPoll(data, wanted, is_last=is_last, on_loopback=source.vm_paths)
            self._put(known)

    def _put(self, known: KnownPoll) -> None:
        if len(self._known) >= MAX_KNOWN_POLLS:
            self.generation += 1  # connections look again, and so what they use stays remembered
            self._earlier, self._known = self._known, {}
        self._known[known.data] = known

    def find(self, source: Source, data: bytes) -> Poll | None:
        """Return the poll that these bytes from there make, None where the long way must decide."""
        known = self._known.get(data)
        if known is None:
            known = self._earlier.get(data)
            if known is None:
                return None
            self._put(known)
        if source.vm_paths and not known.on_loopback:
            return None
        machine = None if source.trusted_proxy or self._is_closed else self.registry.at(source)
        if machine is None:
            return None
        caller = self.registry.caller(machine)
        if caller.last_request is None:
            return None
        try:
            page = self.documents.page(machine.scope, known.wanted.version)
        except KeyError:
            return None
        if known.wanted.if_none_match.is_ahead_of(page.incarnation):
            return None  # the answer waits until this process has caught up
        is_held = known.wanted.if_none_match.matches(page.incarnation)
        ending = page.endings.get((is_held, known.is_last))
        if ending is None:
            reply = exchange.document_reply(known.wanted, page.incarnation, page.body)
            ending = http.ending(reply, keep=not known.is_last)
            page.endings[is_held, known.is_last] = ending
        return Poll(
            known,
            caller,
            machine.scope,
            self.generation,
            304 if is_held else 200,
            ending,
        )

    def answer(self, poll: Poll, now: float) -> bytes | None:
        """Carry out the side effects of a request, and return its answer.

        None, and nothing was done, where the long way must decide.
        """
        enabler = self.enabler
        if enabler is not None and not enabler.is_on(poll.scope):
            return None
        caller = poll.caller
        known = poll.known
        if known.wanted.agent is not None and known.wanted.agent != caller.agent:
            return None
        if not self.limiter.allows(caller, now):
            return None
        if enabler is not None:  # only now: who is over the rate did not ask
            enabler.note_on(poll.scope)
        writer = self.writer
        if now >= writer.until:
            writer.tick(now)
        last = known.last_request
        if last is None or last[0] is not writer.second:
            last = known.last_request = (writer.second, known.wanted.version.name)
        caller.last_request = last
        return writer.put(poll.status, poll.ending)
