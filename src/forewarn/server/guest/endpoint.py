"""What a request is answered with, in the order of protocol.md section 3, rule 6.

The transport's limits are over when a request comes here. `exchange.judge` goes from the path to
the version, then the caller is looked up, then its rate is, then the body is read.
"""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeAlias

import structlog

from forewarn.clock import Clock
from forewarn.maintenance.model import Machine, Refused
from forewarn.protocol import exchange, text
from forewarn.protocol.exchange import DocumentWanted, Reply, Request, Rules, Wanted
from forewarn.protocol.identity import Claim
from forewarn.server.guest import instances, refusals
from forewarn.server.guest.asking import Askings, Held
from forewarn.server.guest.callers import Registry, Source
from forewarn.server.guest.documents import Documents
from forewarn.server.guest.rate import Limiter
from forewarn.server.guest.strangers import Strangers
from forewarn.server.guest.tally import Reason
from forewarn.server.guest.waiting import Wait
from forewarn.store.port import StoreError
from forewarn.vocabulary import ErrorCode

Outcome: TypeAlias = "Reply | Wait | Future[Any]"
"""An answer; a request that is to wait for one, which is `Endpoint.look`'s; or an approval under
way, whose answer is `Endpoint.settle`."""

_log = structlog.get_logger(__name__)


class Approvals(Protocol):
    """What the guest plane asks of the control plane."""

    def approve(
        self, scope: str, event_ids: tuple[str, ...], *, by: str, address: str
    ) -> "Future[Any]":
        """Approve events of a scope: all of them or none (protocol.md section 5).

        Args:
            scope: The scope's key.
            event_ids: Upper-case ids.
            by: The name of the machine whose word it is.
            address: Where its word came from.

        Returns:
            A future that is done once the approval is durable. It raises Refused with NOT_FOUND
            and `facts["event_id"]` for an event that the scope never published, StoreError while
            the store is away.
        """
        ...


class Endpoint:
    """Answers requests from memory, and has approvals approved.

    Args:
        registry: Who asks.
        documents: What they read.
        approvals: Who approves.
        rules: What the settings decide about requests.
        clock: Tells when a machine was last seen.
        limiter: How often a machine may ask.
        monotonic: Real seconds that never go back, which rates are measured by.
        askings: Turns scopes on; None where all are always on.
    """

    def __init__(
        self,
        registry: Registry,
        documents: Documents,
        approvals: Approvals,
        *,
        rules: Rules,
        clock: Clock,
        limiter: Limiter,
        monotonic: Callable[[], float],
        askings: Askings | None = None,
    ) -> None:
        self._registry = registry
        self._documents = documents
        self._approvals = approvals
        self._rules = rules
        self._clock = clock
        self._askings = askings
        self._strangers = Strangers()
        self._limiter = limiter
        self._monotonic = monotonic

    def judge(self, request: Request, source: Source) -> Reply | Wanted:
        """Judge a request by itself; never raises, whatever the request."""
        return exchange.judge(request, source, self._rules)

    def answer(self, wanted: Reply | Wanted, body: bytes, source: Source) -> Outcome:
        """Answer a whole request.

        Args:
            wanted: What `judge` returned of it; a refusal is the answer.
            body: Its body.
            source: Where it came from.
        """
        if isinstance(wanted, Reply):
            return wanted
        try:
            return self._answer(wanted, body, source)
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("a request could not be answered", wanted=repr(wanted)[:500])
            return exchange.internal()

    def refusal(self, head: Request, source: Source) -> Reply | None:
        """Tell what is wrong with a request of which only the head has come; None if nothing.

        Asked before a client is told to go on with its body.
        """
        wanted = exchange.judge(head, source, self._rules)
        if isinstance(wanted, Reply):
            return wanted
        admitted = self._admit(wanted, source)
        return admitted if isinstance(admitted, Reply) else None

    def _answer(self, wanted: Wanted, body: bytes, source: Source) -> Outcome:
        machine = self._admit(wanted, source)
        if isinstance(machine, Reply):
            return machine
        over = self._rated(wanted, source, machine)
        if over is not None:
            return over
        match wanted:
            case DocumentWanted() | exchange.ApprovalWanted():
                self._saw(machine, wanted.version.name)
                if self._askings is not None:
                    return self._ask(wanted, body, machine, source)
                return self._serve(wanted, body, machine, source)
            case exchange.InstanceWanted():
                scope = self._documents.scope(machine.scope)
                return exchange.instance_reply(wanted, instances.tree(machine, scope))
            case exchange.VersionsWanted():
                return exchange.versions_reply()

    def _serve(
        self,
        wanted: DocumentWanted | exchange.ApprovalWanted,
        body: bytes,
        machine: Machine,
        source: Source,
    ) -> Outcome:
        """Answer about events, as of now."""
        if isinstance(wanted, DocumentWanted):
            return self._read(wanted, machine, source)
        return self._approve(body, machine, source)

    def _read(self, wanted: DocumentWanted, machine: Machine, source: Source) -> Reply | Wait:
        incarnation, body = self._documents.read(machine.scope, wanted.version)
        if exchange.holds(wanted, incarnation):
            return Wait(wanted, source, machine.key, machine.scope)
        return exchange.document_reply(wanted, incarnation, body, waits=True)

    def scope_of(self, machine_key: str) -> str | None:
        """Return the key of a machine's scope, None where there is no such machine."""
        machine = self._registry.machines.get(machine_key)
        return None if machine is None else machine.scope

    def look(self, wait: Wait, *, waits: bool = True) -> Reply | None:
        """Return what a waiting request is answered with now, None while nothing is new for it.

        Args:
            wait: The request; one that is over is always answered.
            waits: Whether it was let wait at all.
        """
        wanted = wait.wanted
        scope = self.scope_of(wait.machine)
        if scope is None:
            return exchange.unknown_caller(wait.source.address, wanted.machine)
        try:
            incarnation, body = self._documents.read(scope, wanted.version)
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("a waiting request could not be answered")
            return exchange.internal()
        if exchange.holds(wanted, incarnation) and not wait.is_over:
            return None
        return exchange.document_reply(wanted, incarnation, body, waits=waits)

    def refuse_to_wait(self, wait: Wait) -> Reply:
        """Answer a request at once that was not let wait."""
        wait.is_over = True
        reply = self.look(wait, waits=False)
        assert reply is not None  # it is over
        return reply

    def _ask(
        self,
        wanted: DocumentWanted | exchange.ApprovalWanted,
        body: bytes,
        machine: Machine,
        source: Source,
    ) -> Outcome:
        """Answer at once if the machine's scope is on, else when the request has turned it on.

        Who asks is looked up anew then: the answer may be held back for minutes, in which the
        machine may move to another scope or be removed.
        """
        assert self._askings is not None
        turning = self._askings.note(machine.scope)
        if turning is None:
            return self._serve(wanted, body, machine, source)
        held = Held(self._askings.delay_seconds)

        def answer() -> Outcome:
            now = self._registry.machines.get(machine.key)
            if now is None:
                return exchange.unknown_caller(source.address, wanted.machine)
            return self._serve(wanted, body, now, source)

        turning.add_done_callback(lambda _: self._answer_held(held, answer))
        return held

    def _answer_held(self, held: Held, answer: Callable[[], Outcome]) -> None:
        try:
            outcome = answer()
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("a request that turned its scope on could not be answered")
            outcome = exchange.internal()
        if isinstance(outcome, (Reply, Wait)):
            held.set_result(outcome)
        else:
            outcome.add_done_callback(lambda done: held.set_result(self.settle(done)))

    def _admit(self, wanted: Wanted, source: Source) -> Machine | Reply:
        found = self._registry.caller(source, wanted.machine)
        if isinstance(found, Reason):
            self._note(wanted, source, found)
            return exchange.unknown_caller(source.address, wanted.machine)
        return found

    def _rated(self, wanted: Wanted, source: Source, machine: Machine) -> Reply | None:
        """Return the refusal of a request that is over its machine's rate, None of one within."""
        if not exchange.is_rated(wanted):
            return None
        seconds = self._limiter.take(self._registry.asked(machine), self._monotonic())
        return exchange.admit(wanted, source, machine, seconds)

    def _note(self, wanted: Wanted, source: Source, reason: Reason) -> None:
        facts: dict[str, str] = {"reason": reason}
        told = wanted.machine
        if isinstance(told, Claim):
            facts["instance_id"] = text.shown(told.id.decode("utf-8", "replace"))
        elif told is not None:
            facts["name"] = text.shown(told)
        self._strangers.note(source.listener, source.address, self._monotonic(), **facts)

    def _saw(self, machine: Machine, version: str) -> None:
        self._registry.saw(machine, self._clock.now().replace(microsecond=0), version)

    def _approve(self, body: bytes, machine: Machine, source: Source) -> Outcome:
        event_ids = exchange.start_requests(body)
        if isinstance(event_ids, Reply):
            return event_ids
        if not event_ids:
            return exchange.approved()
        return self._approvals.approve(
            machine.scope, event_ids, by=machine.name, address=source.address
        )

    def settle(self, approval: "Future[Any]") -> Reply | Wait:
        """Answer an approval that is done, well or not, or a request that was held back.

        Returns:
            The answer; a request that was held back may still have to wait for its own.
        """
        try:
            result = approval.result(timeout=0)
        except Refused as refused:
            if refused.code is ErrorCode.NOT_FOUND and "event_id" in refused.facts:
                return exchange.unknown_event(str(refused.facts["event_id"]))
            _log.exception("the plane refused an approval for a reason that guests have not")
            return exchange.internal()
        except (StoreError, CancelledError):
            return exchange.unavailable(refusals.RETRY_AFTER_SECONDS)
        except Exception:  # noqa: BLE001 - the guest gets an answer, the log the details
            _log.exception("an approval failed")
            return exchange.internal()
        return result if isinstance(result, (Reply, Wait)) else exchange.approved()
