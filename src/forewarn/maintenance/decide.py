"""What follows from a cause: `decide(snapshot, cause, now, mint)`, and `wakeup_at(operation)`.

Both are pure. A decision is made of new values for what changed; the snapshot stays as it was,
and a refusal leaves nothing behind. An operation starts when it is ready (approved in each of its
events, or its NotBefore has come), nothing holds it, and nothing is in its way: one update domain
of a scope is down at a time. What is ready and must wait says for what, and is looked at again when
that has ended.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import assert_never

import msgspec

from forewarn.maintenance import model, notice, planner
from forewarn.maintenance.commands import (
    AcknowledgeFailures,
    AdvanceTime,
    ApproveEvents,
    CancelOperations,
    ClaimTasks,
    Command,
    ExtendNotices,
    FinishTask,
    PlaceHold,
    PostponeOperations,
    RecordRequests,
    ReleaseHold,
    ReleaseLeases,
    RenewLease,
    ReportUnknownOutcome,
    RequestMaintenance,
    ResolveOutcome,
    ResumeRolling,
)
from forewarn.maintenance.lifecycle import Trigger
from forewarn.maintenance.model import (
    AuditAction,
    Hold,
    Lost,
    Operation,
    Policy,
    Refused,
    Snapshot,
    Verdict,
    key,
)
from forewarn.maintenance.working_set import EXEMPT, MAX_OUTCOME, Decision, WorkingSet, in_turn
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType

ALWAYS_ON = Policy()
"""The rules where the settings say nothing."""

AT_ONCE = datetime(1970, 1, 1, tzinfo=UTC)
"""The wakeup of what is approved and needs no time: no clock that was set back comes before it."""

replace = msgspec.structs.replace


def wakeup_at(operation: Operation) -> datetime | None:
    """Return when time alone makes this operation do something; None if it never does.

    One that is ready and waits for another is woken by that one's end, not by time. The NotBefore
    of a held one moves on when it comes, unless no guest reads it.
    """
    if operation.status is not EventStatus.SCHEDULED or operation.waits_for:
        return None
    if operation.held_at is not None and operation.silent:
        return None
    if operation.approved and operation.held_at is None:
        return AT_ONCE
    return operation.not_before


def decide(
    snapshot: Snapshot,
    cause: Command,
    now: datetime,
    mint: Callable[[], str],
    policy: Policy = ALWAYS_ON,
) -> Decision:
    """Return what follows from a cause.

    Args:
        snapshot: The scopes that it touches and all that is live in them, and what the cause
            itself asks for (see `causes`).
        cause: What happened.
        now: When; aware.
        mint: Gives a new GUID at each call, for events that are announced.
        policy: What the settings say.

    Raises:
        Refused: The rules do not allow it; nothing follows.
    """
    bench = WorkingSet(snapshot, now, mint, policy)
    match cause:
        case RequestMaintenance():
            return _request(bench, cause)
        case ResumeRolling():
            return _resume(bench, cause)
        case ApproveEvents():
            about = _approve(bench, cause)
        case CancelOperations():
            about = _cancel(bench, cause)
        case (
            ClaimTasks()
            | RenewLease()
            | ReleaseLeases()
            | FinishTask()
            | ReportUnknownOutcome()
            | ResolveOutcome()
        ):
            about = follow(bench, cause)
        case PlaceHold() | ReleaseHold() | PostponeOperations() | AcknowledgeFailures():
            about = _steer(bench, cause)
        case AdvanceTime() | ExtendNotices() | RecordRequests():
            about = _go_by(bench, cause)
        case _:
            assert_never(cause)
    return bench.decision(about)


def _steer(
    bench: WorkingSet, cause: PlaceHold | ReleaseHold | PostponeOperations | AcknowledgeFailures
) -> list[str]:
    match cause:
        case PlaceHold():
            return _hold(bench, cause.hold)
        case ReleaseHold():
            return _unhold(bench, cause.hold)
        case PostponeOperations():
            return _postpone(bench, cause)
        case AcknowledgeFailures():
            return _note(bench, cause)


def _go_by(bench: WorkingSet, cause: AdvanceTime | ExtendNotices | RecordRequests) -> list[str]:
    match cause:
        case AdvanceTime():
            return _pass(bench, cause)
        case ExtendNotices():
            return _lapse(bench, cause)
        case RecordRequests():
            return _ask(bench, cause)


def _request(bench: WorkingSet, cause: RequestMaintenance) -> Decision:
    request = cause.request
    maintenance, steps = planner.plan(bench.snapshot, request, number=cause.number, now=bench.now)
    for ordinal, step in enumerate(steps, 1):
        _make_way(bench, step, request, f"{cause.number}.{ordinal}")
    _judge_enablement(bench, steps, request)
    _judge_user_limit(bench, steps, request)
    bench.maintenances[maintenance.number] = maintenance
    about = [
        bench.announce(maintenance.number, step, request.not_before, no_notice=request.no_notice)
        for step in steps
    ]
    return bench.decision(about, maintenance.number)


def _judge_enablement(
    bench: WorkingSet, steps: list[planner.PlannedOperation], request: planner.Request
) -> None:
    off = {scope for step in steps for scope in bench.off(step)}
    if off and not (request.without_notice or request.no_notice):
        name = bench.scopes[min(off)].name
        message = (
            f"{name} is off: none of its machines has asked for events lately, so they would be "
            "stopped without notice; say --without-notice if that is meant"
        )
        raise Refused(ErrorCode.NOT_ELIGIBLE, message, scope=name)


def _judge_user_limit(
    bench: WorkingSet, steps: list[planner.PlannedOperation], request: planner.Request
) -> None:
    limit = bench.policy.user_initiated_limit
    if not limit or request.source is not EventSource.USER:
        return
    more = sum(len({machine.scope for machine in step.machines}) for step in steps)
    pending = bench.snapshot.user_events_pending
    if pending + more > limit:
        message = (
            f"{pending} events of users' own maintenance are pending and {more} would be added; "
            f"at most {limit} (user_initiated_limit): wait until some have started"
        )
        raise Refused(ErrorCode.LIMIT, message, pending=pending, limit=limit)


def _make_way(
    bench: WorkingSet, step: planner.PlannedOperation, request: planner.Request, successor: str
) -> None:
    """Cancel what is pending for the same machines, or refuse where that must not be.

    A failure, a preemption and a deletion supersede; any other overlap is refused by name.
    """
    supersedes = request.no_notice or request.event_type in EXEMPT
    while (found := bench.in_the_way(step)) is not None:
        other, event, name = found
        scheduled = other.status is EventStatus.SCHEDULED
        if not (supersedes and scheduled):
            message = (
                f"{name} has a live event already: {other.event_type} {event.id} of operation "
                f"{other.id} is {other.status}; "
                + ("cancel it first" if scheduled else "wait until it is over")
            )
            raise Refused(
                ErrorCode.CONFLICT, message, machine=name, event_id=event.id, operation=other.id
            )
        bench.end(other, Trigger.CANCEL, f"superseded by {successor}")


def _approve(bench: WorkingSet, cause: ApproveEvents) -> list[str]:
    by_event = {
        event.id: operation
        for operation in bench.operations.values()
        for event in operation.events
        if cause.scope is None or (event.scope == cause.scope and not event.silent)
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
            replace(event, approval=cause.approval)
            if event.id in wanted and event.approval is None
            else event
            for event in operation.events
        )
        if events != operation.events:
            bench.put(replace(operation, events=events))
            bench.start_if_ready(bench.operations[operation_id])
    return about


def _cancel(bench: WorkingSet, cause: CancelOperations) -> list[str]:
    whole = cause.maintenance is not None
    cancelled = 0
    if cause.maintenance is not None and cause.maintenance in bench.maintenances:
        cancelled += bench.end_walks(cause.maintenance, cause.reason)
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        if whole and operation.status is not EventStatus.SCHEDULED:
            continue
        bench.end(operation, Trigger.CANCEL, cause.reason)
        cancelled += 1
    if not cancelled:
        message = "nothing of this is still to come: what has started or is over stays so"
        raise Refused(ErrorCode.TOO_LATE, message)
    return list(cause.operations)


def _resume(bench: WorkingSet, cause: ResumeRolling) -> Decision:
    known = cause.maintenance in bench.maintenances
    if not known or not bench.resume_walks(cause.maintenance, cause.by):
        message = f"nothing of maintenance {cause.maintenance} has stopped: nothing to resume"
        raise Refused(ErrorCode.TOO_LATE, message, maintenance=cause.maintenance)
    fresh = [o for o in bench.operations if o not in bench.snapshot.operations]
    return bench.decision(fresh, cause.maintenance)


def _pass(bench: WorkingSet, cause: AdvanceTime) -> list[str]:
    known = bench.operations
    looked_at = known if cause.operations is None else cause.operations
    due = [
        operation
        for operation in map(known.__getitem__, looked_at)
        if (at := wakeup_at(operation)) is not None and at <= bench.now
    ]
    for operation in sorted(due, key=in_turn):
        if operation.held_at is not None:
            bench.move_on(operation)
        else:
            bench.start_if_ready(operation)
    return [operation.id for operation in due]


def _hold(bench: WorkingSet, hold: Hold) -> list[str]:
    for other in bench.holds:
        if (other.kind, other.name) == (hold.kind, hold.name):
            message = (
                f"{_spoken(hold)} is held already, by {other.by or 'somebody'} since "
                f"{notice.spoken(other.at)}: release it first to give another reason"
            )
            raise Refused(ErrorCode.CONFLICT, message)
    bench.holds.append(hold)
    about = [o for o in bench.operations.values() if model.covers(hold, o) and _pending(o)]
    note = _spoken(hold) + (f": {hold.reason}" if hold.reason else "")
    for operation in about:
        bench.intervene(operation, AuditAction.HOLD, hold.by, note)
        bench.hold(bench.operations[operation.id])
    return [operation.id for operation in about]


def _unhold(bench: WorkingSet, hold: Hold) -> list[str]:
    found = [h for h in bench.holds if (h.kind, h.name) == (hold.kind, hold.name)]
    if not found:
        message = f"nothing holds {_spoken(hold)}: see 'forewarn hold list'"
        raise Refused(ErrorCode.NOT_FOUND, message)
    bench.holds.remove(found[0])
    about = [o for o in bench.operations.values() if model.covers(hold, o) and _pending(o)]
    for operation in sorted(about, key=in_turn):
        bench.intervene(operation, AuditAction.RELEASE, hold.by, _spoken(hold))
        bench.release(bench.operations[operation.id])
    return [operation.id for operation in about]


def _postpone(bench: WorkingSet, cause: PostponeOperations) -> list[str]:
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        if not _pending(operation) or operation.approved:
            state = "approved" if _pending(operation) else str(operation.status)
            message = (
                f"operation {operation_id} is {state}: only what is Scheduled and not approved "
                "can be postponed; hold it to keep an approved one from starting"
            )
            raise Refused(ErrorCode.TOO_LATE, message, operation=operation_id)
        not_before = notice.later(cause.not_before, operation.not_before, bench.now)
        later = replace(operation, not_before=not_before, waits_for="")
        if operation.held_at is not None:
            left = -(-(not_before - bench.now).total_seconds() // 1)
            later = replace(later, notice_left_seconds=int(left))
        bench.intervene(
            later, AuditAction.POSTPONE, cause.by, f"not before {notice.spoken(not_before)}"
        )
    return list(cause.operations)


def _note(bench: WorkingSet, cause: AcknowledgeFailures) -> list[str]:
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        if operation.status is not EventStatus.FAILED:
            message = f"operation {operation_id} is {operation.status}: only a failure is noted"
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        bench.put(replace(operation, acknowledged_by=operation.acknowledged_by or cause.by))
    return list(cause.operations)


def _lapse(bench: WorkingSet, cause: ExtendNotices) -> list[str]:
    about = [o for o in bench.operations.values() if _pending(o) and not o.silent]
    for operation in about:
        later = notice.whole_seconds(operation.not_before + cause.length)
        due = operation.approved or later <= bench.now
        waits_for = operation.waits_for if due else ""
        bench.put(replace(operation, not_before=later, waits_for=waits_for))
    for name, scope in bench.scopes.items():
        if scope.asked_at is not None:
            bench.scopes[name] = replace(scope, asked_at=scope.asked_at + cause.length)
    return [operation.id for operation in about]


def _ask(bench: WorkingSet, cause: RecordRequests) -> list[str]:
    """Write down when scopes were asked; a clock that was set back makes it no earlier."""
    for name in cause.scopes:
        scope = bench.scopes[name]
        if scope.asked_at is None or scope.asked_at < bench.now:
            bench.scopes[name] = replace(scope, asked_at=bench.now)
    return []


def _pending(operation: Operation) -> bool:
    return operation.status is EventStatus.SCHEDULED


def _spoken(hold: Hold) -> str:
    return f"{hold.kind} {hold.name}".rstrip()


MAX_STRANGERS = 10
"""How many names are quoted of what an outcome speaks of and the operation does not have."""

NO_REASON = "nobody knows whether it was carried out"
"""A doubt whose reason was not given: `Operation.doubt` is never empty where there is one."""


def follow(
    bench: WorkingSet,
    cause: ClaimTasks
    | RenewLease
    | ReleaseLeases
    | FinishTask
    | ReportUnknownOutcome
    | ResolveOutcome,
) -> list[str]:
    """Let a cause take its effect on the bench; return the operations that it is about.

    Raises:
        Refused: The attempt is stale, the operation cannot be claimed, or there is no doubt.
    """
    match cause:
        case ClaimTasks():
            return _claim(bench, cause)
        case RenewLease():
            operation = bench.claimed(cause.operation, cause.attempt)
            bench.put(replace(operation, lease_until=bench.now + cause.lease))
            return [operation.id]
        case ReleaseLeases():
            for operation_id in cause.operations:
                bench.put(replace(bench.named(operation_id), lease_until=None))
            return list(cause.operations)
        case FinishTask():
            return _finish(bench, cause)
        case ReportUnknownOutcome():
            operation = bench.claimed(cause.operation, cause.attempt)
            doubt = cause.message[-MAX_OUTCOME:] or NO_REASON
            bench.put(replace(operation, outcome_unknown=doubt, lease_until=None))
            return [operation.id]
        case ResolveOutcome():
            return _resolve(bench, cause)
        case _:
            assert_never(cause)


def _claim(bench: WorkingSet, cause: ClaimTasks) -> list[str]:
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        held = operation.lease_until is not None and operation.lease_until > bench.now
        if operation.status is not EventStatus.STARTED or held or operation.outcome_unknown:
            message = (
                f"operation {operation_id} is {operation.status}"
                + (f" and held by {operation.executor}" if held else "")
                + (" and in doubt" if operation.outcome_unknown else "")
                + ": only a Started one that nobody holds can be claimed"
            )
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        bench.put(
            replace(
                operation,
                attempt=operation.attempt + 1,
                executor=cause.executor,
                lease_until=bench.now + cause.lease,
            )
        )
    return list(cause.operations)


def _finish(bench: WorkingSet, cause: FinishTask) -> list[str]:
    operation = bench.claimed(cause.operation, cause.attempt)
    own = {key(name) for name in operation.machines}
    strangers = [name for name in cause.hosts if key(name) not in own]
    message = cause.message
    if strangers:
        named = ", ".join(strangers[:MAX_STRANGERS]) + ", ..." * (len(strangers) > MAX_STRANGERS)
        message = f"{message}\nhosts were named for {named}: no machine of this operation".strip()
    _settle(bench, operation, cause.hosts, succeeded=cause.succeeded)
    bench.end(operation, Trigger.SUCCEED if cause.succeeded else Trigger.FAIL, message)
    _lose(bench, operation, succeeded=cause.succeeded)
    return [operation.id]


def _resolve(bench: WorkingSet, cause: ResolveOutcome) -> list[str]:
    operation = bench.named(cause.operation)
    if not operation.outcome_unknown:
        message = (
            f"there is no doubt about operation {operation.id}, which is {operation.status}: "
            "only one in doubt can be resolved"
        )
        raise Refused(ErrorCode.CONFLICT, message, operation=operation.id)
    if cause.verdict is Verdict.REPEAT:
        repeated = replace(
            operation, outcome_unknown="", lease_until=None, repeat_after=operation.attempt
        )
        bench.intervene(repeated, AuditAction.REPEAT, cause.by, operation.outcome_unknown)
        return [operation.id]
    succeeded = cause.verdict is Verdict.SUCCEEDED
    who = cause.by or "an operator"
    outcome = f"{cause.verdict}, says {who}; before that: {operation.outcome_unknown}"
    _settle(bench, operation, {}, succeeded=succeeded)
    bench.end(operation, Trigger.SUCCEED if succeeded else Trigger.FAIL, outcome[:MAX_OUTCOME])
    _lose(bench, operation, succeeded=succeeded)
    return [operation.id]


def _settle(
    bench: WorkingSet, operation: Operation, hosts: dict[str, str], *, succeeded: bool
) -> None:
    """Let an operation's machines be on the hosts where it left them.

    A host that is named is taken even from a failure: some machines may have moved before it. After
    a Redeploy that succeeded a machine whose host is not named is on an unknown one.
    """
    if succeeded and operation.event_type in EXEMPT:
        return
    named = {key(name): host for name, host in hosts.items()}
    moved = succeeded and operation.event_type is EventType.REDEPLOY
    for name in {key(name) for name in operation.machines} & bench.machines.keys():
        machine = bench.machines[name]
        host = named.get(name, "" if moved else machine.host)
        if host != machine.host:
            bench.machines[name] = replace(machine, host=host)


def _lose(bench: WorkingSet, operation: Operation, *, succeeded: bool) -> None:
    """Take the machines that an operation deleted out of the fleet."""
    if succeeded and operation.event_type in EXEMPT:
        bench.lost.extend(
            Lost(name=name, event_type=operation.event_type, operation=operation.id, at=bench.now)
            for name in operation.machines
        )
