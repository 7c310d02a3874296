"""The invariants, checked after each decision.

A breach is a defect of Forewarn and never the user's fault: the transaction is rolled back, and the
request is answered with an internal error.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from forewarn.maintenance.model import Changes, Operation, StartCause, key
from forewarn.maintenance.planner import ALL_DOMAINS_AT_ONCE
from forewarn.maintenance.world import Name, World
from forewarn.vocabulary import EventStatus

_ORDER = {status: place for place, status in enumerate(EventStatus)}


class InvariantBroken(AssertionError):  # noqa: N818 - reads as what happened
    """A decision would break an invariant."""


def check(world: World, changed: Iterable[Operation] | None = None) -> None:
    """Check operations, alone and beside those that share a scope or a machine with them.

    `changed` are the operations that a decision changed: the others were checked when they were
    saved. None to check all. InvariantBroken names the invariant and the operation.
    """
    for operation in world.operations.values() if changed is None else changed:
        check_operation(operation)
        _check_hosts(operation, world)
        _check_published(operation, world)
        _check_domains(operation, world)
        _check_machines(operation, world)


def _check_published(operation: Operation, world: World) -> None:
    """Check that guests see its events since an incarnation that existed."""
    for event in () if operation.status.over else operation.events:
        hidden = event.silent or operation.status is EventStatus.QUEUED
        scope = world.scopes.get(event.scope)
        if scope is not None and (
            event.published > scope.incarnation or hidden == bool(event.published)
        ):
            raise _broken(
                operation,
                f"event {event.id} was published at {event.published}, and its scope is at "
                f"{scope.incarnation}",
            )


def check_operation(operation: Operation) -> None:
    """Check one operation by itself: its events, its times, why it started."""
    _check_window(operation)
    events, status, awaited = operation.events, operation.status, operation.awaited
    places = {(event.scope, event.update_domain) for event in events}
    unstarted = operation.unstarted
    started = not unstarted and status is not EventStatus.CANCELED
    returning = status is EventStatus.RETURNING
    start, cause = operation.started_at, operation.start_cause
    for holds, message in (
        (events, "it has no event"),
        (all(event.machines for event in events), "an event of it has no machine"),
        (len(places) == len(events), "two events in one update domain"),
        (operation.not_before.microsecond == 0, "NotBefore is not a whole second"),
        (
            started == (start is not None) == (cause is not None),
            "its status, its start and its start cause disagree",
        ),
        (status.over == (operation.ended_at is not None), "its status and its end disagree"),
        (unstarted or not operation.waits_for, "it waits although it has started"),
        (
            unstarted or not operation.arrived,
            "it has started although machines of its host had no notice",
        ),
        (
            not operation.gives_way or operation.held_at or operation.opens_at,
            "it is Queued and waits for nothing",
        ),
        (
            not returning or (operation.carried_out_at and awaited and operation.back_by),
            "it is Returning without being carried out, without a machine or without an end",
        ),
        (not awaited or started, "it awaits machines although it has not started"),
        (
            {*awaited, *operation.reporting} <= {*operation.machines},
            "it awaits machines that are not its own",
        ),
        (
            operation.up_at is None or (status is EventStatus.COMPLETED and not awaited),
            "its domains come up although machines are awaited",
        ),
        (
            operation.held_at is None or (unstarted and not operation.waits_for),
            "it is held although it has started, or waits besides",
        ),
        (
            status is EventStatus.STARTED or not operation.outcome_unknown,
            "its outcome is unknown although it is not Started",
        ),
        (
            cause is not StartCause.APPROVED or operation.approved,
            "it started as approved without an approval",
        ),
        (
            cause is not StartCause.NOTICE_OVER
            or (start is not None and start >= operation.not_before),
            "it started before its NotBefore",
        ),
        (
            cause is not StartCause.SILENT or operation.silent,
            "it started as silent although guests see it",
        ),
    ):
        _hold(holds, operation, message)


def _check_hosts(operation: Operation, world: World) -> None:
    """Check `hosts`, by which holds of hosts apply: until it starts, its machines are there."""
    if not operation.unstarted:
        return
    machines = [world.machines.get(key(name)) for name in operation.machines]
    hosts = {machine.host for machine in machines if machine and machine.host}
    known = None not in machines
    _hold(not known or {*operation.hosts} == hosts, operation, "its machines are on other hosts")


def _check_window(operation: Operation) -> None:
    start, opens = operation.started_at, operation.opens_at
    if start is not None:
        _hold(opens is None or start >= opens, operation, "it started before its window opened")
        _hold(not operation.closed(start), operation, "it started after its window closed")
    elif operation.pending and opens is not None:
        _hold(operation.not_before >= opens, operation, "its NotBefore is before its window opens")


def check_succession(world: World, before: Mapping[Name, Any], changes: Changes) -> None:
    """Check the changes of one decision: never backwards, and incarnations only up.

    `before` are their earlier values, as `World.since` returned them.
    """
    moved: set[str] = set()
    for new in changes.operations:
        if ("operations", new.id) not in before:
            continue
        old = before["operations", new.id]
        moved.update(new.moved_from(old))
        if new.started_at is not None and (old is None or old.started_at is None):
            held = new.start_cause is not StartCause.NO_NOTICE and [
                hold for hold in world.holds.values() if hold.covers(new)
            ]
            _hold(not held, new, "it started although a hold covers it")
        if old is not None:
            _check_forward(old, new)
        else:
            removed = set(map(key, new.machines)).intersection(changes.removed_machines)
            _hold(not removed, new, "it takes machines that the same decision removes")
    for name in moved.union(scope.key for scope in changes.scopes):
        after = world.scopes[name]
        steps = after.incarnation - before.get(("scopes", name), after).incarnation
        if steps < 0 or (steps > 0) != (name in moved):
            message = (
                f"scope {name}: its events {'changed' if name in moved else 'did not change'} "
                f"and its incarnation moved by {steps}"
            )
            raise InvariantBroken(message)


def _check_forward(old: Operation, new: Operation) -> None:
    if old.status is not new.status and (
        old.status.over or _ORDER[new.status] < _ORDER[old.status]
    ):
        raise _broken(new, f"it went from {old.status} to {new.status}")
    if new.not_before < old.not_before:
        raise _broken(new, f"its NotBefore went from {old.not_before} back to {new.not_before}")
    _hold(new.attempt >= old.attempt, new, "its fencing number went back")
    same_window = new.opens_at == old.opens_at and new.closes_at == old.closes_at
    _hold(same_window, new, "its window changed")
    if new.events is old.events:
        return
    fixed = [[(event.id, event.scope) for event in (*o.dropped, *o.events)] for o in (old, new)]
    _hold(sorted(fixed[0]) == sorted(fixed[1]), new, "its events or their machines changed")
    kept = {event.id: event for event in (*new.dropped, *new.events)}
    for was in (*old.dropped, *old.events):
        now = kept[was.id]
        lost = was.approval is not None and now.approval != was.approval
        _hold(not lost, new, "an approval was lost")
        left = [name for name in was.machines if name in now.machines]
        may_leave = old.unstarted and bool(old.on_host)
        same = now.machines == was.machines or (may_leave and tuple(left) == now.machines)
        _hold(same, new, "its events or their machines changed")


def _check_domains(operation: Operation, world: World) -> None:
    if not operation.down or _is_exempt(operation):
        return
    for event in operation.events:
        for other in world.down_in(event.scope):
            if event.is_apart(other.events) and not _is_exempt(other):
                message = f"{other.id} has another update domain of {event.scope} down"
                raise _broken(operation, message)


def _is_exempt(operation: Operation) -> bool:
    return (
        operation.event_type in ALL_DOMAINS_AT_ONCE or operation.start_cause is StartCause.NO_NOTICE
    )


def _check_machines(operation: Operation, world: World) -> None:
    for name in () if operation.status.over else operation.machines:
        for other in world.live_on(key(name)):
            if other.id != operation.id and not other.status.over and name in other.machines:
                raise _broken(operation, f"{name} is also in operation {other.id}")


def _hold(truth: object, operation: Operation, message: str) -> None:
    if not truth:
        raise _broken(operation, message)


def _broken(operation: Operation, message: str) -> InvariantBroken:
    return InvariantBroken(f"operation {operation.id}: {message}")
