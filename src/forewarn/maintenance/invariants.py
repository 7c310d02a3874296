"""What must hold of every snapshot, whatever happened: checked after each decision.

A breach is a defect of Forewarn and never the user's fault: the transaction is rolled back, and the
request is answered with an internal error.
"""

from collections.abc import Iterable
from datetime import datetime

from forewarn.maintenance.model import Changes, Operation, Snapshot, StartCause
from forewarn.maintenance.working_set import EXEMPT
from forewarn.vocabulary import EventStatus


class InvariantBroken(AssertionError):  # noqa: N818 - reads as what happened
    """A decision would break what must always hold."""


def check(snapshot: Snapshot, changed: Iterable[Operation] | None = None) -> None:
    """Check the operations of a snapshot, and the scopes that they share.

    Args:
        snapshot: What will be saved, with all that is live in its scopes.
        changed: What a decision changed of it; the rest was checked when it was saved. None to
            check all of it.

    Raises:
        InvariantBroken: Something does not hold; the message says what, and of which operation.
    """
    if changed is None:
        looked_at, concerned = list(snapshot.operations.values()), None
    else:
        fresh = list(changed)
        concerned = {event.scope for operation in fresh for event in operation.events}
        looked_at = [
            operation
            for operation in snapshot.operations.values()
            if any(event.scope in concerned for event in operation.events)
        ]
        for operation in fresh:
            check_operation(operation)
    live: dict[str, list[Operation]] = {}
    for operation in looked_at:
        if changed is None:
            check_operation(operation)
        for event in operation.events:
            scope = snapshot.scopes.get(event.scope)
            if scope is not None and operation.status.visible:
                # An operation that is over may belong to an earlier scope of this name.
                _hold(
                    (event.published == 0)
                    if event.silent
                    else (0 < event.published <= scope.incarnation),
                    operation,
                    f"event {event.id} was published at {event.published}, and its scope is at "
                    f"{scope.incarnation}",
                )
            if operation.status.visible and (concerned is None or event.scope in concerned):
                live.setdefault(event.scope, []).append(operation)
    for operations in live.values():
        _check_domains(operations)
        _check_machines(operations)


def check_operation(operation: Operation) -> None:
    """Check one operation by itself: its events, its times, why it started.

    Raises:
        InvariantBroken: Something does not hold.
    """
    _hold(bool(operation.events), operation, "it has no event")
    for event in operation.events:
        _hold(bool(event.machines), operation, f"event {event.id} has no machine")
    scopes = [(event.scope, event.update_domain) for event in operation.events]
    _hold(len(set(scopes)) == len(scopes), operation, "two events in one update domain")
    _hold(operation.not_before.microsecond == 0, operation, "NotBefore is not a whole second")
    started = operation.status in {
        EventStatus.STARTED,
        EventStatus.COMPLETED,
        EventStatus.FAILED,
    }
    _hold(
        started == (operation.started_at is not None) == (operation.start_cause is not None),
        operation,
        "its status, its start and its start cause disagree",
    )
    _hold(
        operation.status.over == (operation.ended_at is not None),
        operation,
        "its status and its end disagree",
    )
    pending = operation.status is EventStatus.SCHEDULED
    _hold(not operation.waits_for or pending, operation, "it waits although it is not Scheduled")
    _hold(
        operation.held_at is None or (pending and not operation.waits_for),
        operation,
        "it is held although it is not Scheduled, or waits besides",
    )
    _hold(
        not operation.outcome_unknown or operation.status is EventStatus.STARTED,
        operation,
        "its outcome is unknown although it is not Started",
    )
    if operation.started_at is not None:
        _check_never_early(operation, operation.started_at)


def check_succession(before: Snapshot, after: Snapshot, changes: Changes | None = None) -> None:
    """Check what one decision changed: never backwards, and incarnations only up.

    Args:
        before: The state before it.
        after: The state after it.
        changes: What the decision changed; nothing else is checked. None to check everything.

    Raises:
        InvariantBroken: Something does not hold.
    """
    changed: set[str] = set()
    for new in after.operations.values() if changes is None else changes.operations:
        old = before.operations.get(new.id)
        if new is old:
            continue
        changed |= _scopes_changed(old, new)
        if old is None:
            continue
        same = new.status is old.status
        forward = not old.status.over and new.status is not EventStatus.SCHEDULED
        _hold(same or forward, new, f"it went from {old.status} to {new.status}")
        _hold(new.attempt >= old.attempt, new, "its fencing number went back")
        _hold(
            new.not_before >= old.not_before,
            new,
            f"its NotBefore went from {old.not_before} back to {new.not_before}",
        )
        _hold(_fixed(old) == _fixed(new), new, "its events or their machines changed")
        kept = zip(old.events, new.events, strict=True)
        _hold(
            all(e.approval is None or f.approval == e.approval for e, f in kept),
            new,
            "an approval was lost",
        )
    looked_at: Iterable[str] = before.scopes
    if changes is not None:
        looked_at = changed.union(scope.key for scope in changes.scopes)
    for scope_key in looked_at:
        other = scope_key in changed
        moved = after.scopes[scope_key].incarnation - before.scopes[scope_key].incarnation
        if moved < 0 or (moved > 0) != other:
            message = (
                f"scope {scope_key}: its events {'changed' if other else 'did not change'} "
                f"and its incarnation moved by {moved}"
            )
            raise InvariantBroken(message)


def _check_never_early(operation: Operation, started_at: datetime) -> None:
    if operation.start_cause is StartCause.APPROVED:
        _hold(operation.approved, operation, "it started as approved without an approval")
    elif operation.start_cause is StartCause.NOTICE_OVER:
        _hold(started_at >= operation.not_before, operation, "it started before its NotBefore")
    elif operation.start_cause is StartCause.SILENT:
        _hold(operation.silent, operation, "it started as silent although guests see it")


def _check_domains(operations: Iterable[Operation]) -> None:
    down: dict[str, int] = {}
    for operation in operations:
        exempt = operation.event_type in EXEMPT or operation.start_cause is StartCause.NO_NOTICE
        if operation.status is not EventStatus.STARTED or exempt:
            continue
        for event in operation.events:
            domain = down.setdefault(event.scope, event.update_domain)
            _hold(
                domain == event.update_domain,
                operation,
                f"update domains {domain} and {event.update_domain} of {event.scope} are down",
            )


def _check_machines(operations: Iterable[Operation]) -> None:
    taken: dict[str, str] = {}
    for operation in operations:
        for name in operation.machines:
            other = taken.setdefault(name, operation.id)
            _hold(other == operation.id, operation, f"{name} is also in operation {other}")


def _fixed(operation: Operation) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return what never changes of an operation's events, in their order."""
    return [(event.id, event.scope, event.machines) for event in operation.events]


def _scopes_changed(old: Operation | None, new: Operation) -> set[str]:
    """Return the scopes whose guests see a change between two values of an operation."""
    if _read(old) == _read(new):
        return set()
    return {event.scope for event in new.events if not event.silent}


def _read(operation: Operation | None) -> tuple[EventStatus, datetime | None] | None:
    """Return what guests can see change of an operation; None where they see nothing of it."""
    if operation is None or not operation.status.visible:
        return None
    scheduled = operation.status is EventStatus.SCHEDULED
    return operation.status, operation.not_before if scheduled else None


def _hold(truth: bool, operation: Operation, message: str) -> None:  # noqa: FBT001 - an assertion
    if not truth:
        text = f"operation {operation.id}: {message}"
        raise InvariantBroken(text)
