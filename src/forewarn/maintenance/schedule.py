"""What follows from a cause: `decide(snapshot, cause, now)`, and `wakeup_at(operation)`.

Both are pure. A decision is made of new values for what changed; the snapshot stays as it was,
and a refusal leaves nothing behind. An operation starts when it is ready (approved in each of its
events, or its NotBefore has come) and nothing is in its way: one update domain of a scope is down
at a time. What is ready and must wait says for what, and is looked at again when that has ended.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

import msgspec

from forewarn.maintenance import lifecycle, planner
from forewarn.maintenance.causes import (
    Approved,
    Canceled,
    Cause,
    Claimed,
    Finished,
    Passed,
    Released,
    Renewed,
    Requested,
)
from forewarn.maintenance.errors import Refused
from forewarn.maintenance.lifecycle import Trigger
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Event,
    Maintenance,
    Operation,
    Scope,
    Snapshot,
    StartCause,
    key,
)
from forewarn.vocabulary import ApproverKind, ErrorCode, EventStatus, EventType

EXEMPT = frozenset({EventType.PREEMPT, EventType.TERMINATE})
"""What waits for no other update domain: the machine is lost in any case."""

MAX_OUTCOME = 2000
"""The most characters of an outcome that are kept: the end of a program's complaint."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a cause."""

    changes: Changes
    """New values for what changed; nothing where the cause changed nothing."""
    operations: tuple[Operation, ...] = ()
    """The operations that the cause was about, as they are now, changed or not."""
    maintenance: Maintenance | None = None
    """What was requested, for a request."""


def wakeup_at(operation: Operation) -> datetime | None:
    """Return when time alone makes this operation do something; None if it never does.

    One that is ready and waits for another is woken by that one's end, not by time.
    """
    if operation.status is not EventStatus.SCHEDULED or operation.waits_for:
        return None
    return operation.announced_at if operation.approved else operation.not_before


def decide(snapshot: Snapshot, cause: Cause, now: datetime) -> Decision:
    """Return what follows from a cause.

    Args:
        snapshot: The scopes that it touches and all that is live in them, and what the cause
            itself asks for (see `causes`).
        cause: What happened.
        now: When; aware.

    Raises:
        Refused: The rules do not allow it; nothing follows.
    """
    bench = _Bench(snapshot, now)
    match cause:
        case Requested():
            return _request(bench, snapshot, cause)
        case Approved():
            about = _approve(bench, cause)
        case Canceled():
            about = _cancel(bench, cause)
        case Passed():
            about = _pass(bench)
        case Claimed():
            about = _claim(bench, cause)
        case Renewed():
            about = _renew(bench, cause)
        case Released():
            about = _release(bench, cause)
        case Finished():
            about = _finish(bench, cause)
        case _:
            assert_never(cause)
    return bench.decision(about)


def _request(bench: "_Bench", snapshot: Snapshot, cause: Requested) -> Decision:
    plan = planner.plan(
        snapshot, cause.request, number=cause.number, mint=cause.mint, now=bench.now
    )
    for operation in plan.operations:
        _make_way(bench, operation, cause.request)
    for operation in plan.operations:
        if cause.request.no_notice:
            bench.strike(operation)
        elif planner.approves_itself(cause.request, bench.scopes[operation.events[0].scope]):
            bench.start_if_free(_approved_automatically(operation, bench), Trigger.STRIKE)
        else:
            bench.announce(operation)
    return bench.decision([o.id for o in plan.operations], plan.maintenance)


def _make_way(bench: "_Bench", operation: Operation, request: planner.Request) -> None:
    """Cancel what is pending for the same machines, or refuse where that must not be.

    A failure, a preemption and a deletion supersede; any other overlap is refused by name.
    """
    supersedes = request.no_notice or operation.event_type in EXEMPT
    names = set(operation.machines)
    for event in operation.events:
        for other in bench.live_in(event.scope):
            shared = sorted(names.intersection(other.machines))
            if not shared:
                continue
            if supersedes and other.status is EventStatus.SCHEDULED:
                bench.cancel(other, f"superseded by {operation.id}")
                continue
            in_the_way = _event_of(other, shared[0])
            message = (
                f"{shared[0]} has a live event already: {other.event_type} {in_the_way.id} of "
                f"operation {other.id} is {other.status}; "
                + (
                    "cancel it first"
                    if other.status is EventStatus.SCHEDULED
                    else "wait until it is over"
                )
            )
            raise Refused(
                ErrorCode.CONFLICT,
                message,
                machine=shared[0],
                event_id=in_the_way.id,
                operation=other.id,
            )


def _approve(bench: "_Bench", cause: Approved) -> list[str]:
    by_event = {
        event.id: operation
        for operation in bench.operations.values()
        for event in operation.events
        if cause.scope is None or event.scope == cause.scope
    }
    wanted = dict.fromkeys(event_id.upper() for event_id in cause.event_ids)
    for event_id in wanted:
        if event_id not in by_event:
            message = f"no event {event_id} was published here, or history no longer holds it"
            raise Refused(ErrorCode.NOT_FOUND, message, event_id=event_id)
    about = list(dict.fromkeys(by_event[event_id].id for event_id in wanted))
    for operation_id in about:
        operation = bench.operations[operation_id]
        if operation.status is not EventStatus.SCHEDULED:
            continue
        events = tuple(
            msgspec.structs.replace(event, approval=cause.approval)
            if event.id in wanted and event.approval is None
            else event
            for event in operation.events
        )
        if events != operation.events:
            bench.put(msgspec.structs.replace(operation, events=events))
            bench.start_if_ready(bench.operations[operation_id])
    return about


def _cancel(bench: "_Bench", cause: Canceled) -> list[str]:
    cancelled = 0
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        if cause.lenient and operation.status is not EventStatus.SCHEDULED:
            continue
        bench.cancel(operation, cause.reason)
        cancelled += 1
    if not cancelled:
        message = "nothing of this is still Scheduled: what has started or is over stays so"
        raise Refused(ErrorCode.TOO_LATE, message)
    return list(cause.operations)


def _pass(bench: "_Bench") -> list[str]:
    due = [
        operation
        for operation in bench.operations.values()
        if (at := wakeup_at(operation)) is not None and at <= bench.now
    ]
    for operation in sorted(due, key=_in_turn):
        bench.start_if_ready(operation)
    return [operation.id for operation in due]


def _claim(bench: "_Bench", cause: Claimed) -> list[str]:
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        held = operation.lease_until is not None and operation.lease_until > bench.now
        if operation.status is not EventStatus.STARTED or held:
            message = (
                f"operation {operation_id} is {operation.status}"
                + (f" and held by {operation.executor}" if held else "")
                + ": only a Started one that nobody holds can be claimed"
            )
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        bench.put(
            msgspec.structs.replace(
                operation,
                attempt=operation.attempt + 1,
                executor=cause.executor,
                lease_until=bench.now + cause.lease,
            )
        )
    return list(cause.operations)


def _renew(bench: "_Bench", cause: Renewed) -> list[str]:
    operation = bench.held(cause.operation, cause.attempt)
    bench.put(msgspec.structs.replace(operation, lease_until=bench.now + cause.lease))
    return [operation.id]


def _release(bench: "_Bench", cause: Released) -> list[str]:
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        bench.put(msgspec.structs.replace(operation, lease_until=None))
    return list(cause.operations)


def _finish(bench: "_Bench", cause: Finished) -> list[str]:
    operation = bench.held(cause.operation, cause.attempt)
    trigger = Trigger.SUCCEED if cause.succeeded else Trigger.FAIL
    bench.end(operation, trigger, cause.message)
    return [operation.id]


class _Bench:
    """The working copy of one decision: the snapshot's values, and what became of them."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self.now = now
        self.scopes = dict(snapshot.scopes)
        self.operations = dict(snapshot.operations)
        self._before = snapshot
        self._changed: dict[str, None] = {}
        self._by_scope: dict[str, dict[str, None]] = {}
        for operation in snapshot.operations.values():
            self._index(operation)

    def live_in(self, scope: str) -> list[Operation]:
        """Return what is Scheduled or Started in a scope."""
        ids = self._by_scope.get(scope, ())
        return [o for o in map(self.operations.__getitem__, ids) if o.status.visible]

    def named(self, operation_id: str) -> Operation:
        operation = self.operations.get(operation_id)
        if operation is None:
            message = f"there is no operation {operation_id}: see 'forewarn history'"
            raise Refused(ErrorCode.NOT_FOUND, message, operation=operation_id)
        return operation

    def held(self, operation_id: str, attempt: int) -> Operation:
        """Return a Started operation that this attempt holds; a later claim refuses the older."""
        operation = self.named(operation_id)
        if operation.status is not EventStatus.STARTED or operation.attempt != attempt:
            message = (
                f"attempt {attempt} at operation {operation_id} is stale: it is "
                f"{operation.status} at attempt {operation.attempt}"
            )
            raise Refused(ErrorCode.STALE, message, operation=operation_id, attempt=attempt)
        return operation

    def put(self, operation: Operation) -> None:
        if operation.id not in self.operations:
            self._index(operation)
        self.operations[operation.id] = operation
        self._changed[operation.id] = None

    def announce(self, operation: Operation) -> None:
        status = lifecycle.step(operation.id, None, Trigger.ANNOUNCE)
        self.put(msgspec.structs.replace(operation, status=status))

    def strike(self, operation: Operation) -> None:
        self._start(operation, Trigger.STRIKE, StartCause.NO_NOTICE)

    def start_if_ready(self, operation: Operation) -> None:
        if operation.approved or operation.not_before <= self.now:
            self.start_if_free(operation, Trigger.START)

    def start_if_free(self, operation: Operation, trigger: Trigger) -> None:
        """Start what is ready, or write down what it waits for."""
        obstacle = self._obstacle(operation)
        if obstacle is None:
            approved = operation.approved
            self._start(
                operation, trigger, StartCause.APPROVED if approved else StartCause.NOTICE_OVER
            )
            return
        waiting = msgspec.structs.replace(operation, waits_for=obstacle.id)
        if trigger is Trigger.STRIKE:
            self.announce(waiting)
        else:
            self.put(waiting)

    def cancel(self, operation: Operation, reason: str) -> None:
        self.end(operation, Trigger.CANCEL, reason)

    def end(self, operation: Operation, trigger: Trigger, outcome: str) -> None:
        """End it, and look again at what waited for it."""
        status = lifecycle.step(operation.id, operation.status, trigger)
        self.put(
            msgspec.structs.replace(
                operation,
                status=status,
                ended_at=self.now,
                waits_for="",
                lease_until=None,
                outcome=outcome[-MAX_OUTCOME:],
            )
        )
        waiting = [o for o in self.operations.values() if o.waits_for == operation.id]
        for other in sorted(waiting, key=_in_turn):
            self.start_if_free(msgspec.structs.replace(other, waits_for=""), Trigger.START)

    def decision(self, about: Iterable[str], maintenance: Maintenance | None = None) -> Decision:
        """Return the result, each scope moved on whose visible events changed, and no other."""
        moved = self._moved()
        changed = []
        for operation_id in self._changed:
            operation = self.operations[operation_id]
            if any(event.published == 0 for event in operation.events):
                operation = msgspec.structs.replace(
                    operation, events=tuple(_published(e, moved) for e in operation.events)
                )
                self.operations[operation_id] = operation
            changed.append(operation)
        return Decision(
            changes=Changes(
                maintenances=(maintenance,) if maintenance else (),
                operations=tuple(changed),
                scopes=tuple(moved.values()),
            ),
            operations=tuple(self.operations[operation_id] for operation_id in about),
            maintenance=maintenance,
        )

    def _moved(self) -> dict[str, Scope]:
        moved: dict[str, Scope] = {}
        for operation_id in self._changed:
            before = self._before.operations.get(operation_id)
            after = self.operations[operation_id]
            if _shown(before) == _shown(after):
                continue
            for event in after.events:
                scope = self.scopes[event.scope]
                moved[event.scope] = msgspec.structs.replace(
                    scope, incarnation=self._before.scopes[event.scope].incarnation + 1
                )
        return moved

    def _start(self, operation: Operation, trigger: Trigger, cause: StartCause) -> None:
        before = None if trigger is Trigger.STRIKE else operation.status
        status = lifecycle.step(operation.id, before, trigger)
        self.put(
            msgspec.structs.replace(
                operation, status=status, start_cause=cause, started_at=self.now, waits_for=""
            )
        )

    def _obstacle(self, operation: Operation) -> Operation | None:
        """Return a Started operation in another update domain of one of its scopes."""
        if operation.event_type in EXEMPT:
            return None
        for event in operation.events:
            for other in self.live_in(event.scope):
                if other.status is EventStatus.STARTED and any(
                    theirs.scope == event.scope and theirs.update_domain != event.update_domain
                    for theirs in other.events
                ):
                    return other
        return None

    def _index(self, operation: Operation) -> None:
        for event in operation.events:
            self._by_scope.setdefault(event.scope, {})[operation.id] = None


def _approved_automatically(operation: Operation, bench: _Bench) -> Operation:
    events = tuple(
        msgspec.structs.replace(
            event,
            approval=Approval(
                kind=ApproverKind.AUTOMATIC, by=bench.scopes[event.scope].name, at=bench.now
            ),
        )
        for event in operation.events
    )
    return msgspec.structs.replace(operation, events=events)


def _shown(operation: Operation | None) -> EventStatus | None:
    """Return what of an operation a guest can see change: the rest is fixed for its life."""
    if operation is None or operation.status.over:
        return None
    return operation.status


def _published(event: Event, moved: dict[str, Scope]) -> Event:
    return msgspec.structs.replace(event, published=moved[event.scope].incarnation)


def _event_of(operation: Operation, machine: str) -> Event:
    wanted = key(machine)
    return next(e for e in operation.events if wanted in map(key, e.machines))


def _in_turn(operation: Operation) -> tuple[datetime, int, str]:
    return operation.not_before, operation.maintenance, operation.id
