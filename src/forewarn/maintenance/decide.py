"""What follows from a command: `decide(snapshot, command, now, mint)`, and `wakeup_at(operation)`.

Both are pure. A decision consists of new values for what changed; the snapshot stays as it was, and
a refused command changes nothing.

An operation is ready when each of its events is approved or its NotBefore has come. A ready one
starts unless a hold covers it or another update domain of one of its scopes is down; then it
records which operation it waits for, and is looked at again when that one ends. `working_set` has
these checks (`start_if_ready`).

An executor's claim is a lease with a fencing number: a report under an older number is refused. An
operation whose outcome is unknown stays Started, and nobody may claim it, until an operator
resolves it.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

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
    Operation,
    Policy,
    Refused,
    Snapshot,
    Tombstone,
    Verdict,
    key,
)
from forewarn.maintenance.working_set import EXEMPT, MAX_OUTCOME, Decision, WorkingSet, start_order
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType

ALWAYS_ON = Policy()
"""The rules where the settings say nothing."""

AT_ONCE = datetime(1970, 1, 1, tzinfo=UTC)
"""The wakeup of an approved operation: it is due whatever the clock says, even one set back."""

MAX_NAMES_QUOTED = 10
"""How many unknown machine names of a connector's result are quoted in the outcome."""

NO_REASON = "nobody knows whether it was carried out"
"""Stands in `Operation.outcome_unknown`, which is never empty there, where no reason was given."""

replace = msgspec.structs.replace


def wakeup_at(operation: Operation) -> datetime | None:
    """Return when time alone makes this operation do something; None if it never does.

    An operation that is ready and waits for another wakes at that one's end, not by time. A held
    one wakes at its NotBefore, which then moves on, unless no guest reads it.
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
    command: Command,
    now: datetime,
    mint: Callable[[], str],
    policy: Policy = ALWAYS_ON,
) -> Decision:
    """Return what follows from a command.

    Args:
        snapshot: The scopes that it touches, all that is live in them, and whatever the command's
            own docstring names.
        command: What was asked or reported.
        now: When; aware.
        mint: Returns a new GUID at each call, for events that are announced.
        policy: What the settings say.

    Raises:
        Refused: The rules do not allow it; nothing changes.
    """
    working = WorkingSet(snapshot, now, mint, policy)
    if isinstance(command, RequestMaintenance):
        return _request(working, command)
    if isinstance(command, ResumeRolling):
        return _resume(working, command)
    return working.decision(_RULES[type(command)](working, command))


def _request(working: WorkingSet, command: RequestMaintenance) -> Decision:
    request = command.request
    maintenance, steps = planner.plan(
        working.snapshot, request, number=command.number, now=working.now
    )
    # A cancelled operation may let a rolling update go on with a machine of an earlier step.
    while any(
        _make_way(working, step, request, f"{command.number}.{ordinal}")
        for ordinal, step in enumerate(steps, 1)
    ):
        pass
    _check_enablement(working, steps, request)
    _check_user_limit(working, steps, request)
    working.maintenances[maintenance.number] = maintenance
    about = [
        working.announce(maintenance.number, step, request.not_before, no_notice=request.no_notice)
        for step in steps
    ]
    return working.decision(about, maintenance.number)


def _check_enablement(
    working: WorkingSet, steps: list[planner.PlannedOperation], request: planner.Request
) -> None:
    off = {scope for step in steps for scope in working.off(step)}
    if off and not (request.without_notice or request.no_notice):
        name = working.scopes[min(off)].name
        message = (
            f"scope {name} is off: none of its machines has asked for events lately, so they would "
            "stop without notice; add --without-notice to do it anyway"
        )
        raise Refused(ErrorCode.NOT_ELIGIBLE, message, scope=name)


def _check_user_limit(
    working: WorkingSet, steps: list[planner.PlannedOperation], request: planner.Request
) -> None:
    limit = working.policy.user_initiated_limit
    if not limit or request.source is not EventSource.USER:
        return
    more = sum(len({machine.scope for machine in step.machines}) for step in steps)
    pending = working.snapshot.user_events_pending
    if pending + more > limit:
        message = (
            f"too many pending events of user-initiated maintenance: {pending} now, {more} more "
            f"asked for, at most {limit} allowed (user_initiated_limit); wait until some start"
        )
        raise Refused(ErrorCode.LIMIT, message, pending=pending, limit=limit)


def _make_way(
    working: WorkingSet, step: planner.PlannedOperation, request: planner.Request, successor: str
) -> bool:
    """Cancel what is pending for the same machines, or refuse the request; tell if any was.

    A failure, a preemption and a deletion supersede pending operations; nothing else does.
    """
    supersedes = request.no_notice or request.event_type in EXEMPT
    cancelled = False
    while (found := working.conflicting(step)) is not None:
        other, event, name = found
        scheduled = other.status is EventStatus.SCHEDULED
        if not (supersedes and scheduled):
            message = (
                f"{name} already has a live event: {other.event_type} {event.id} of operation "
                f"{other.id} is {other.status}; "
                + ("cancel it first" if scheduled else "wait until it is over")
            )
            raise Refused(
                ErrorCode.CONFLICT, message, machine=name, event_id=event.id, operation=other.id
            )
        working.end(other, Trigger.CANCEL, f"superseded by {successor}")
        cancelled = True
    return cancelled


def _resume(working: WorkingSet, command: ResumeRolling) -> Decision:
    known = command.maintenance in working.maintenances
    if not known or not working.resume_rolling_updates(command.maintenance, command.by):
        message = f"maintenance {command.maintenance} is not paused"
        raise Refused(ErrorCode.TOO_LATE, message, maintenance=command.maintenance)
    announced = [o for o in working.operations if o not in working.snapshot.operations]
    return working.decision(announced, command.maintenance)


def _approve(working: WorkingSet, command: ApproveEvents) -> list[str]:
    by_event = {
        event.id: operation
        for operation in working.operations.values()
        for event in operation.events
        if command.scope is None or (event.scope == command.scope and not event.silent)
    }
    named = dict.fromkeys(event_id.upper() for event_id in command.event_ids)
    for event_id in named:
        if event_id not in by_event:
            message = f"event {event_id} was never published here, or its history has been purged"
            raise Refused(ErrorCode.NOT_FOUND, message, event_id=event_id)
    about = list(dict.fromkeys(by_event[event_id].id for event_id in named))
    for operation_id in about:
        operation = working.operations[operation_id]
        if operation.status is not EventStatus.SCHEDULED:
            continue
        events = tuple(
            replace(event, approval=command.approval)
            if event.id in named and event.approval is None
            else event
            for event in operation.events
        )
        if events != operation.events:
            working.put(replace(operation, events=events))
            working.start_if_ready(working.operations[operation_id])
    return about


def _cancel(working: WorkingSet, command: CancelOperations) -> list[str]:
    whole = command.maintenance is not None
    cancelled = 0
    if command.maintenance is not None and command.maintenance in working.maintenances:
        cancelled += working.finish_rolling_updates(command.maintenance, command.reason)
    for operation_id in command.operations:
        operation = working.named(operation_id)
        if whole and operation.status is not EventStatus.SCHEDULED:
            continue
        working.end(operation, Trigger.CANCEL, command.reason)
        cancelled += 1
    if not cancelled:
        message = "nothing left to cancel: everything has started or finished"
        raise Refused(ErrorCode.TOO_LATE, message)
    return list(command.operations)


def _advance(working: WorkingSet, command: AdvanceTime) -> list[str]:
    operations = working.operations
    due = [
        operation
        for operation in map(
            operations.__getitem__,
            operations if command.operations is None else command.operations,
        )
        if (at := wakeup_at(operation)) is not None and at <= working.now
    ]
    for operation in sorted(due, key=start_order):
        if operation.held_at is not None:
            working.push_back(operation)
        else:
            working.start_if_ready(operation)
    return [operation.id for operation in due]


def _place_hold(working: WorkingSet, command: PlaceHold) -> list[str]:
    hold = command.hold
    for other in working.holds:
        if (other.kind, other.name) == (hold.kind, hold.name):
            message = (
                f"{_spoken(hold)} is already on hold, by {other.by or 'somebody'} since "
                f"{notice.spoken(other.at)}: release it first to change the reason"
            )
            raise Refused(ErrorCode.CONFLICT, message)
    working.holds.append(hold)
    covered = [o for o in working.operations.values() if _pending(o) and model.covers(hold, o)]
    detail = _spoken(hold) + (f": {hold.reason}" if hold.reason else "")
    for operation in covered:
        working.record_intervention(operation, AuditAction.HOLD, hold.by, detail)
        working.hold(working.operations[operation.id])
    return [operation.id for operation in covered]


def _release_hold(working: WorkingSet, command: ReleaseHold) -> list[str]:
    hold = command.hold
    found = [h for h in working.holds if (h.kind, h.name) == (hold.kind, hold.name)]
    if not found:
        message = f"{_spoken(hold)} is not on hold: see 'forewarn hold list'"
        raise Refused(ErrorCode.NOT_FOUND, message)
    working.holds.remove(found[0])
    covered = [o for o in working.operations.values() if _pending(o) and model.covers(hold, o)]
    for operation in sorted(covered, key=start_order):
        working.record_intervention(operation, AuditAction.RELEASE, hold.by, _spoken(hold))
        working.release(working.operations[operation.id])
    return [operation.id for operation in covered]


def _postpone(working: WorkingSet, command: PostponeOperations) -> list[str]:
    for operation_id in command.operations:
        operation = working.named(operation_id)
        if not _pending(operation) or operation.approved:
            state = "approved" if _pending(operation) else str(operation.status)
            message = (
                f"operation {operation_id} is {state}: only a Scheduled operation that is not "
                "approved can be postponed; place a hold to keep an approved one from starting"
            )
            raise Refused(ErrorCode.TOO_LATE, message, operation=operation_id)
        not_before = notice.later(command.not_before, operation.not_before, working.now)
        later = replace(operation, not_before=not_before, waits_for="")
        if operation.held_at is not None:
            left = -(-(not_before - working.now).total_seconds() // 1)
            later = replace(later, notice_left_seconds=int(left))
        working.record_intervention(
            later, AuditAction.POSTPONE, command.by, f"not before {notice.spoken(not_before)}"
        )
    return list(command.operations)


def _acknowledge(working: WorkingSet, command: AcknowledgeFailures) -> list[str]:
    for operation_id in command.operations:
        operation = working.named(operation_id)
        if operation.status is not EventStatus.FAILED:
            message = (
                f"operation {operation_id} is {operation.status}: only a failed operation can be "
                "acknowledged"
            )
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        working.put(replace(operation, acknowledged_by=operation.acknowledged_by or command.by))
    return list(command.operations)


def _extend_notices(working: WorkingSet, command: ExtendNotices) -> list[str]:
    about = [o for o in working.operations.values() if _pending(o) and not o.silent]
    for operation in about:
        later = notice.whole_seconds(operation.not_before + command.length)
        ready = operation.approved or later <= working.now
        waits_for = operation.waits_for if ready else ""
        working.put(replace(operation, not_before=later, waits_for=waits_for))
    for name, scope in working.scopes.items():
        if scope.asked_at is not None:
            working.scopes[name] = replace(scope, asked_at=scope.asked_at + command.length)
    return [operation.id for operation in about]


def _record_requests(working: WorkingSet, command: RecordRequests) -> list[str]:
    """Record when scopes were asked for; a clock that was set back makes it no earlier."""
    for name in command.scopes:
        scope = working.scopes[name]
        if scope.asked_at is None or scope.asked_at < working.now:
            working.scopes[name] = replace(scope, asked_at=working.now)
    return []


def _claim(working: WorkingSet, command: ClaimTasks) -> list[str]:
    for operation_id in command.operations:
        operation = working.named(operation_id)
        leased = operation.lease_until is not None and operation.lease_until > working.now
        if operation.status is not EventStatus.STARTED or leased or operation.outcome_unknown:
            message = (
                f"operation {operation_id} cannot be claimed: it is {operation.status}"
                + (f", leased to {operation.executor}" if leased else "")
                + (", and its outcome is unknown" if operation.outcome_unknown else "")
            )
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        working.put(
            replace(
                operation,
                attempt=operation.attempt + 1,
                executor=command.executor,
                lease_until=working.now + command.lease,
            )
        )
    return list(command.operations)


def _renew(working: WorkingSet, command: RenewLease) -> list[str]:
    operation = working.claimed(command.operation, command.attempt)
    working.put(replace(operation, lease_until=working.now + command.lease))
    return [operation.id]


def _release_leases(working: WorkingSet, command: ReleaseLeases) -> list[str]:
    for operation_id in command.operations:
        working.put(replace(working.named(operation_id), lease_until=None))
    return list(command.operations)


def _finish(working: WorkingSet, command: FinishTask) -> list[str]:
    operation = working.claimed(command.operation, command.attempt)
    own = {key(name) for name in operation.machines}
    others = [name for name in command.hosts if key(name) not in own]
    message = command.message
    if others:
        more = ", ..." * (len(others) > MAX_NAMES_QUOTED)
        quoted = ", ".join(others[:MAX_NAMES_QUOTED]) + more
        message = f"{message}\nignored hosts of {quoted}: not a machine of this operation".strip()
    _record_end(working, operation, command.hosts, message, succeeded=command.succeeded)
    return [operation.id]


def _report_unknown_outcome(working: WorkingSet, command: ReportUnknownOutcome) -> list[str]:
    operation = working.claimed(command.operation, command.attempt)
    why = command.message[-MAX_OUTCOME:] or NO_REASON
    working.put(replace(operation, outcome_unknown=why, lease_until=None))
    return [operation.id]


def _resolve(working: WorkingSet, command: ResolveOutcome) -> list[str]:
    operation = working.named(command.operation)
    if not operation.outcome_unknown:
        message = (
            f"the outcome of operation {operation.id} is not unknown: it is {operation.status}"
        )
        raise Refused(ErrorCode.CONFLICT, message, operation=operation.id)
    if command.verdict is Verdict.REPEAT:
        repeated = replace(
            operation, outcome_unknown="", lease_until=None, repeat_after=operation.attempt
        )
        working.record_intervention(
            repeated, AuditAction.REPEAT, command.by, operation.outcome_unknown
        )
        return [operation.id]
    who = command.by or "an operator"
    outcome = f"{command.verdict}, says {who}; before that: {operation.outcome_unknown}"
    succeeded = command.verdict is Verdict.SUCCEEDED
    _record_end(working, operation, {}, outcome[:MAX_OUTCOME], succeeded=succeeded)
    return [operation.id]


def _record_end(
    working: WorkingSet,
    operation: Operation,
    hosts: dict[str, str],
    outcome: str,
    *,
    succeeded: bool,
) -> None:
    deleted = succeeded and operation.event_type in EXEMPT
    if not deleted:
        _record_hosts(working, operation, hosts, succeeded=succeeded)
    working.end(operation, Trigger.SUCCEED if succeeded else Trigger.FAIL, outcome)
    if deleted:
        event_type = operation.event_type
        working.tombstones.extend(
            Tombstone(name=name, event_type=event_type, operation=operation.id, at=working.now)
            for name in operation.machines
        )


def _record_hosts(
    working: WorkingSet, operation: Operation, hosts: dict[str, str], *, succeeded: bool
) -> None:
    """Record which hosts an operation left its machines on.

    A host that is named counts even after a failure: some machines may have moved before it. After
    a successful Redeploy, a machine whose host is not named is on an unknown one.
    """
    named = {key(name): host for name, host in hosts.items()}
    moved = succeeded and operation.event_type is EventType.REDEPLOY
    for name in {key(name) for name in operation.machines} & working.machines.keys():
        machine = working.machines[name]
        host = named.get(name, "" if moved else machine.host)
        if host != machine.host:
            working.machines[name] = replace(machine, host=host)


def _pending(operation: Operation) -> bool:
    return operation.status is EventStatus.SCHEDULED


def _spoken(hold: Hold) -> str:
    return f"{hold.kind} {hold.name}".rstrip()


_RULES: Final[Mapping[type, Callable[[WorkingSet, Any], list[str]]]] = MappingProxyType(
    {
        ApproveEvents: _approve,
        CancelOperations: _cancel,
        AdvanceTime: _advance,
        PlaceHold: _place_hold,
        ReleaseHold: _release_hold,
        PostponeOperations: _postpone,
        AcknowledgeFailures: _acknowledge,
        ExtendNotices: _extend_notices,
        RecordRequests: _record_requests,
        ClaimTasks: _claim,
        RenewLease: _renew,
        ReleaseLeases: _release_leases,
        FinishTask: _finish,
        ReportUnknownOutcome: _report_unknown_outcome,
        ResolveOutcome: _resolve,
    }
)
"""By the command: takes effect on the working set, and returns the ids of the operations it is
about. A request and a resumption answer with their maintenance too, and are called by name."""
