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

from forewarn.maintenance import carrying, holds, notice, planner
from forewarn.maintenance.bench import EXEMPT, Bench, Decision, in_turn
from forewarn.maintenance.causes import (
    Approved,
    Asked,
    Canceled,
    Cause,
    Claimed,
    Doubted,
    Finished,
    Held,
    Lapsed,
    Noted,
    Passed,
    Postponed,
    Released,
    Renewed,
    Requested,
    Resolved,
    Resumed,
    Unheld,
)
from forewarn.maintenance.errors import Refused
from forewarn.maintenance.lifecycle import Trigger
from forewarn.maintenance.model import Deed, Hold, Operation, Snapshot
from forewarn.maintenance.policy import Policy
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus

ALWAYS_ON = Policy()
"""The rules where the settings say nothing."""

AT_ONCE = datetime(1970, 1, 1, tzinfo=UTC)
"""The wakeup of what is approved and needs no time: no clock that was set back comes before it."""

replace = msgspec.structs.replace


def wakeup_at(operation: Operation) -> datetime | None:
    """Return when time alone makes this operation do something; None if it never does.

    One that is ready and waits for another is woken by that one's end, not by time. The NotBefore
    of a held one moves on when it comes.
    """
    if operation.status is not EventStatus.SCHEDULED or operation.waits_for:
        return None
    if operation.approved and operation.held_at is None:
        return AT_ONCE
    return operation.not_before


def decide(
    snapshot: Snapshot,
    cause: Cause,
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
    bench = Bench(snapshot, now, mint, policy)
    match cause:
        case Requested():
            return _request(bench, cause)
        case Resumed():
            return _resume(bench, cause)
        case Approved():
            about = _approve(bench, cause)
        case Canceled():
            about = _cancel(bench, cause)
        case Claimed() | Renewed() | Released() | Finished() | Doubted() | Resolved():
            about = carrying.follow(bench, cause)
        case Held() | Unheld() | Postponed() | Noted():
            about = _steer(bench, cause)
        case Passed() | Lapsed() | Asked():
            about = _go_by(bench, cause)
        case _:
            assert_never(cause)
    return bench.decision(about)


def _steer(bench: Bench, cause: Held | Unheld | Postponed | Noted) -> list[str]:
    match cause:
        case Held():
            return _hold(bench, cause.hold)
        case Unheld():
            return _unhold(bench, cause.hold)
        case Postponed():
            return _postpone(bench, cause)
        case Noted():
            return _note(bench, cause)


def _go_by(bench: Bench, cause: Passed | Lapsed | Asked) -> list[str]:
    match cause:
        case Passed():
            return _pass(bench, cause)
        case Lapsed():
            return _lapse(bench, cause)
        case Asked():
            return _ask(bench, cause)


def _request(bench: Bench, cause: Requested) -> Decision:
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


def _judge_enablement(bench: Bench, steps: list[planner.Step], request: planner.Request) -> None:
    off = {scope for step in steps for scope in bench.off(step)}
    if off and not (request.without_notice or request.no_notice):
        name = bench.scopes[min(off)].name
        message = (
            f"{name} is off: none of its machines has asked for events lately, so they would be "
            "stopped without notice; say --without-notice if that is meant"
        )
        raise Refused(ErrorCode.NOT_ELIGIBLE, message, scope=name)


def _judge_user_limit(bench: Bench, steps: list[planner.Step], request: planner.Request) -> None:
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


def _make_way(bench: Bench, step: planner.Step, request: planner.Request, successor: str) -> None:
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


def _approve(bench: Bench, cause: Approved) -> list[str]:
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


def _cancel(bench: Bench, cause: Canceled) -> list[str]:
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


def _resume(bench: Bench, cause: Resumed) -> Decision:
    known = cause.maintenance in bench.maintenances
    if not known or not bench.resume_walks(cause.maintenance, cause.by):
        message = f"nothing of maintenance {cause.maintenance} has stopped: nothing to resume"
        raise Refused(ErrorCode.TOO_LATE, message, maintenance=cause.maintenance)
    fresh = [o for o in bench.operations if o not in bench.snapshot.operations]
    return bench.decision(fresh, cause.maintenance)


def _pass(bench: Bench, cause: Passed) -> list[str]:
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


def _hold(bench: Bench, hold: Hold) -> list[str]:
    for other in bench.holds:
        if (other.kind, other.name) == (hold.kind, hold.name):
            message = (
                f"{_spoken(hold)} is held already, by {other.by or 'somebody'} since "
                f"{notice.spoken(other.at)}: release it first to give another reason"
            )
            raise Refused(ErrorCode.CONFLICT, message)
    bench.holds.append(hold)
    about = [o for o in bench.operations.values() if holds.covers(hold, o) and _pending(o)]
    note = _spoken(hold) + (f": {hold.reason}" if hold.reason else "")
    for operation in about:
        bench.intervene(operation, Deed.HOLD, hold.by, note)
        bench.hold(bench.operations[operation.id])
    return [operation.id for operation in about]


def _unhold(bench: Bench, hold: Hold) -> list[str]:
    found = [h for h in bench.holds if (h.kind, h.name) == (hold.kind, hold.name)]
    if not found:
        message = f"nothing holds {_spoken(hold)}: see 'forewarn hold list'"
        raise Refused(ErrorCode.NOT_FOUND, message)
    bench.holds.remove(found[0])
    about = [o for o in bench.operations.values() if holds.covers(hold, o) and _pending(o)]
    for operation in sorted(about, key=in_turn):
        bench.intervene(operation, Deed.RELEASE, hold.by, _spoken(hold))
        bench.release(bench.operations[operation.id])
    return [operation.id for operation in about]


def _postpone(bench: Bench, cause: Postponed) -> list[str]:
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
        bench.intervene(later, Deed.POSTPONE, cause.by, f"not before {notice.spoken(not_before)}")
    return list(cause.operations)


def _note(bench: Bench, cause: Noted) -> list[str]:
    for operation_id in cause.operations:
        operation = bench.named(operation_id)
        if operation.status is not EventStatus.FAILED:
            message = f"operation {operation_id} is {operation.status}: only a failure is noted"
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        bench.put(replace(operation, seen_by=operation.seen_by or cause.by))
    return list(cause.operations)


def _lapse(bench: Bench, cause: Lapsed) -> list[str]:
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


def _ask(bench: Bench, cause: Asked) -> list[str]:
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
