"""What a request is answered with, in the order of protocol.md section 3, rule 6.

The transport's limits are over when a head comes here. `admit` goes from the path to the version,
looks the caller up, and takes the request out of its rate: all of that before any body is read.
`answer` has the body.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.maintenance.model import Machine, Refused
from forewarn.protocol import exchange, instance, refusals, text
from forewarn.protocol.exchange import GetDocument, PostApproval, Rules, ValidRequest
from forewarn.protocol.identity import Claim
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.server.guest import machines
from forewarn.server.guest.counters import Counters
from forewarn.server.guest.documents import Documents
from forewarn.server.guest.enablement import DelayedAnswer, Enabler
from forewarn.server.guest.limits import Limiter, Reason
from forewarn.server.guest.long_poll import LongPoll
from forewarn.server.guest.machines import Registry, Source
from forewarn.store.port import OutcomeUnknown, StoreError
from forewarn.vocabulary import ErrorCode

RETRY_AFTER_SECONDS: Final = 5
"""When to come back after 503: a poll or two later, when a short outage is over."""

_log = structlog.get_logger(__name__)


class GuestApprovals(Protocol):
    """Where approvals go."""

    def approve(
        self, scope: str, event_ids: Sequence[str], *, by: str, address: str
    ) -> "Future[Any]":
        """Approve events for a machine of this scope, by the scope's key and the machine's name.

        The future is done, on any thread, once the approval is durable. It raises Refused
        (NOT_FOUND) with the `event_id` that the scope never published, Refused (NOT_ELIGIBLE) where
        the machine is not served here any more, or a StoreError.
        """
        ...


class Admitted(msgspec.Struct):
    """A request in which nothing is wrong so far: what is left is its body."""

    wanted: ValidRequest
    machine: Machine
    source: Source


class PendingApproval(msgspec.Struct, eq=False):
    """An approval to be submitted in its turn: `GuestEndpoint.approve`, then `settle`.

    Its body is read only then: a thousand EventIds take more memory, and longer, than all else.
    """

    machine: Machine
    address: str
    body: bytes
    entries: int = 0
    """How many EventIds the control plane has of it."""


Outcome: TypeAlias = "Reply | LongPoll | PendingApproval | DelayedAnswer"
"""An answer; or a request that waits for one, whose answer is `look`'s or `settle`'s."""


@dataclass(eq=False, repr=False)
class GuestEndpoint:
    """Answers requests from memory, and has approvals approved; used on the event loop alone."""

    registry: Registry
    documents: Documents
    approvals: GuestApprovals
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
    """Returns what is done once it is known whether an address has a machine that has just moved
    here, None where that is known. None where all machines are known before they ask."""

    def is_stranger(self, source: Source) -> bool:
        """Return whether an address is that of no registered machine."""
        return self.registry.at(source) is None

    def admit(self, head: HttpRequest, source: Source) -> Reply | Admitted | DelayedAnswer:
        """Judge a request by its head: path to version, caller, rate.

        It is to be judged again when a DelayedAnswer is done: who asks may be known by then.
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
            facts["instance_id"] = text.shown(told.id.decode("utf-8", "replace"))
        elif told is not None:
            facts["name"] = text.shown(told)
        now = self.monotonic()
        self.counters.refuse(reason, source.listener, source.address, now, **facts)

    def answer(self, admitted: Admitted, body: bytes) -> Outcome:
        """Answer a whole request."""
        try:
            return self._answer(admitted, body)
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("could not answer a request", wanted=repr(admitted.wanted)[:500])
            return exchange.refuse(refusals.INTERNAL)

    def _answer(self, admitted: Admitted, body: bytes) -> Outcome:
        match admitted.wanted:
            case exchange.GetVersions():
                return exchange.VERSIONS_REPLY
            case exchange.GetInstance() as wanted:
                scope = self.documents.scope(admitted.machine.scope)
                tree = instance.tree(machines.described(admitted.machine, scope))
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
                        turning_on.add_done_callback(
                            lambda _: delayed.set_result(self._answer_late(admitted, body))
                        )
                        return delayed
                return self._serve(admitted, body)

    def _serve(self, admitted: Admitted, body: bytes) -> Reply | LongPoll | PendingApproval:
        wanted, machine, source = admitted.wanted, admitted.machine, admitted.source
        if isinstance(wanted, GetDocument):
            page = self.documents.page(machine.scope, wanted.version)
            if seconds := exchange.hold_seconds(wanted, page.incarnation):
                return LongPoll(wanted, source, machine.key, machine.scope, seconds)
            return exchange.document_reply(wanted, page.incarnation, page.body, waits=True)
        return PendingApproval(machine, source.address, body)

    def _answer_late(self, admitted: Admitted, body: bytes) -> Reply | LongPoll | PendingApproval:
        """Answer a request that turned its scope on.

        Who asks is looked up again: the answer may have been held back for minutes, in which the
        machine may have moved to another scope, or have been removed.
        """
        machine = self.registry.machines.get(admitted.machine.key)
        if machine is None:
            return exchange.unknown_caller(admitted.source.address, admitted.wanted.machine)
        try:
            return self._serve(Admitted(admitted.wanted, machine, admitted.source), body)
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("could not answer a request that turned its scope on")
            return exchange.refuse(refusals.INTERNAL)

    def scope_of(self, machine_key: str) -> str | None:
        """Return the key of a machine's scope, None where there is no such machine."""
        machine = self.registry.machines.get(machine_key)
        return None if machine is None else machine.scope

    def look(self, poll: LongPoll, *, waits: bool = True) -> Reply | None:
        """Return what a waiting request is answered with now, None while nothing is new for it."""
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
        """Answer a request at once that was not let wait."""
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
        machine = request.machine
        try:
            submitted = self.approvals.approve(
                machine.scope, event_ids, by=machine.name, address=request.address
            )
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("could not submit an approval")
            return exchange.refuse(refusals.INTERNAL)
        request.body = b""
        request.entries = len(event_ids)
        return submitted

    def settle(self, done: "Future[Any]", address: str) -> Reply:
        """Answer an approval that came from an address and is done, well or not."""
        error = CancelledError() if done.cancelled() else done.exception(timeout=0)
        if error is None:
            return exchange.APPROVED
        if isinstance(error, OutcomeUnknown):
            seconds = RETRY_AFTER_SECONDS
            return exchange.refuse(refusals.UNKNOWN_OUTCOME, retry_after_seconds=seconds)
        if isinstance(error, (StoreError, CancelledError)):
            return exchange.refuse(refusals.UNAVAILABLE, retry_after_seconds=RETRY_AFTER_SECONDS)
        if isinstance(error, Refused):
            refused = _refusal_of(error, address)
            if refused is not None:
                # Its frames hold the future that holds it: a guest who is refused again and again
                # would fill the memory until the collector comes by.
                error.__traceback__ = None
                return refused
        _log.error("an approval failed", exc_info=error)
        return exchange.refuse(refusals.INTERNAL)


def _refusal_of(error: Refused, address: str) -> Reply | None:
    if error.code is ErrorCode.NOT_FOUND and "event_id" in error.facts:
        return exchange.refuse(refusals.UNKNOWN_EVENT, event_id=str(error.facts["event_id"]))
    return exchange.unknown_caller(address) if error.code is ErrorCode.NOT_ELIGIBLE else None
