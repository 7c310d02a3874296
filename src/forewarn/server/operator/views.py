"""The rules' values as the API shows them."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import Protocol

import msgspec

from forewarn.maintenance import alerts, fleet, model, planner
from forewarn.protocol import versions
from forewarn.server.operator import cautions, schemas
from forewarn.server.operator.roster import Roster
from forewarn.vocabulary import EventStatus, EventType


class Callers(Protocol):
    """Who has asked for events."""

    def seen(self, machine_key: str) -> tuple[datetime, str] | None:
        """Return when a machine last asked and by which api-version, None if it never did."""
        ...


OVER = model.RollingState.FINISHED

ScopeNames = Callable[[str], str]
"""From a scope's key to its name."""


def names(all_of_them: Iterable[str]) -> schemas.Names:
    """Return the first names, and how many there are."""
    listed = tuple(all_of_them)
    return schemas.Names(count=len(listed), names=listed[: schemas.MAX_NAMES])


def fleet_change(
    applied: fleet.Applied, *, dry_run: bool, listeners: Collection[str]
) -> schemas.FleetChange:
    """Return what applying or removing came to.

    Args:
        applied: What changes, or would.
        dry_run: Whether nothing was changed.
        listeners: The names of the service's listeners.
    """
    return schemas.FleetChange(
        dry_run=dry_run,
        added=names(applied.added),
        changed=names(applied.changed),
        removed=names(applied.removed),
        missing=names(applied.missing),
        lost=names(applied.lost),
        unchanged=applied.unchanged,
        warnings=cautions.of_change(applied, listeners),
    )


def machines(
    found: list[model.Machine], roster: Roster, callers: Callers
) -> tuple[schemas.Machine, ...]:
    """Return machines as lists show them."""
    events = roster.events_of(found)
    return tuple(
        schemas.Machine(
            name=machine.name,
            scope=roster.name_of_scope(machine.scope),
            kind=roster.scopes[machine.scope].kind,
            update_domain=machine.update_domain,
            fault_domain=machine.fault_domain,
            host=machine.host,
            address=machine.address,
            listener=machine.listener,
            last_seen=_seen(callers, machine.key),
            events=tuple(events.get(machine.key, ())),
        )
        for machine in found
    )


def machine_detail(
    machine: model.Machine, roster: Roster, callers: Callers
) -> schemas.MachineDetail:
    """Return all that is known of a machine."""
    (listed,) = machines([machine], roster, callers)
    return schemas.MachineDetail(
        **msgspec.structs.asdict(listed),
        vm_id=machine.vm_id,
        role=machine.role,
        tags=dict(machine.tags),
        profile=msgspec.structs.asdict(machine.profile),
    )


def scopes(found: list[model.Scope], roster: Roster) -> tuple[schemas.Scope, ...]:
    """Return scopes as lists show them."""
    keys = [scope.key for scope in found]
    sizes = roster.sizes(keys)
    events = roster.events_in(keys)
    return tuple(
        schemas.Scope(
            name=scope.name,
            kind=scope.kind,
            update_domains=scope.update_domains,
            incarnation=scope.incarnation,
            priority=scope.priority,
            automatically_approve=scope.automatically_approve,
            terminate_notice_minutes=scope.terminate_notice_minutes,
            machines=sizes[scope.key],
            events=tuple(events[scope.key]),
        )
        for scope in found
    )


def scope_detail(scope: model.Scope, roster: Roster) -> schemas.ScopeDetail:
    """Return a scope with its machines, domain by domain."""
    (listed,) = scopes([scope], roster)
    members = sorted(roster.machines_of(scope.key), key=planner.natural)
    return schemas.ScopeDetail(
        **msgspec.structs.asdict(listed),
        domains=tuple(
            schemas.UpdateDomain(
                number=number,
                machines=names(m.name for m in members if m.update_domain == number),
            )
            for number in range(scope.update_domains)
        ),
    )


def maintenance(
    value: model.Maintenance, further: Iterable[schemas.FurtherStep], roster: Roster
) -> schemas.Maintenance:
    """Return what was asked for.

    Args:
        value: What was asked for.
        further: What its walks have still to announce.
        roster: For names as they were written.
    """
    unfinished = {step.rolling_update for step in further}
    return schemas.Maintenance(
        number=value.number,
        event_type=value.event_type,
        source=value.source,
        targets=value.targets,
        requested_by=value.requested_by,
        requested_at=value.requested_at,
        description=value.description,
        duration_seconds=value.duration_seconds,
        without_notice=value.without_notice,
        announced=value.announced,
        rolling_updates=tuple(
            schemas.Walk(
                scope=roster.name_of_scope(walk.scope),
                host=walk.host,
                state=walk.state,
                reason=walk.reason,
                done=names(map(roster.name_of_machine, walk.done)),
                more=index in unfinished,
            )
            for index, walk in enumerate(value.rolling_updates)
        ),
        interventions=_interventions(value.interventions),
    )


def further(
    values: Collection[model.Maintenance], roster: Roster
) -> dict[int, tuple[schemas.FurtherStep, ...]]:
    """Return the steps that walks have still to announce, in the fleet of now, by maintenance."""
    going = {
        value.number: [(n, w) for n, w in enumerate(value.rolling_updates) if w.state is not OVER]
        for value in values
    }
    concerned = roster.walked([walk for walks in going.values() for _, walk in walks])
    return {
        number: tuple(
            _further_step(index, step, roster)
            for index, walk in walks
            for step in _left(walk, concerned[walk.scope, walk.host])
        )
        for number, walks in going.items()
    }


def _left(
    walk: model.RollingUpdate, there: list[model.Machine]
) -> Iterator[tuple[model.Machine, ...]]:
    while step := planner.next_step(walk, there):
        yield step
        walk = planner.after(walk, step)


def _further_step(walk: int, step: Iterable[model.Machine], roster: Roster) -> schemas.FurtherStep:
    places: dict[tuple[str, int], list[str]] = {}
    for machine in step:
        places.setdefault((machine.scope, machine.update_domain), []).append(machine.name)
    return schemas.FurtherStep(
        rolling_update=walk,
        places=tuple(
            schemas.FurtherPlace(
                scope=roster.name_of_scope(scope), update_domain=domain, machines=names(there)
            )
            for (scope, domain), there in places.items()
        ),
    )


def operation(value: model.Operation, scope_names: ScopeNames, now: datetime) -> schemas.Operation:
    """Return an operation with its events."""
    took = None
    if value.started_at is not None and value.ended_at is not None:
        took = round((value.ended_at - value.started_at).total_seconds(), 3)
    return schemas.Operation(
        id=value.id,
        maintenance=value.maintenance,
        event_type=value.event_type,
        source=value.source,
        description=value.description,
        duration_seconds=value.duration_seconds,
        status=value.status,
        announced_at=value.announced_at,
        not_before=value.not_before,
        notice_left_seconds=_notice_left(value, now),
        start_cause=value.start_cause,
        started_at=value.started_at,
        ended_at=value.ended_at,
        took_seconds=took,
        waits_for=value.waits_for,
        held_at=value.held_at,
        hosts=value.hosts,
        rolling_update=value.rolling_update,
        outcome_unknown=value.outcome_unknown,
        outcome=value.outcome,
        acknowledged_by=value.acknowledged_by,
        attempt=value.attempt,
        interventions=_interventions(value.interventions),
        events=tuple(
            schemas.Event(
                id=event.id,
                scope=scope_names(event.scope),
                update_domain=event.update_domain,
                machines=event.machines,
                approval=_approval(event.approval),
                silent=event.silent,
            )
            for event in value.events
        ),
    )


def operations(
    values: Iterable[model.Operation], scope_names: ScopeNames, now: datetime
) -> tuple[schemas.Operation, ...]:
    """Return operations with their events."""
    return tuple(operation(value, scope_names, now) for value in values)


def _interventions(
    values: Iterable[model.Intervention],
) -> tuple[schemas.Intervention, ...]:
    return tuple(
        schemas.Intervention(action=one.action, by=one.by, at=one.at, detail=one.detail)
        for one in values
    )


def live_event(
    of: model.Operation, event: model.Event, roster: Roster, callers: Callers, now: datetime
) -> schemas.LiveEvent:
    """Return a live event, and how many of its machines can read of it."""
    seen = [name for name in event.machines if callers.seen(model.key(name))]
    showing = _showing(event.machines, of.event_type, callers)
    return schemas.LiveEvent(
        id=event.id,
        operation=of.id,
        maintenance=of.maintenance,
        event_type=of.event_type,
        source=of.source,
        status=of.status,
        scope=roster.name_of_scope(event.scope),
        update_domain=event.update_domain,
        machines=event.machines,
        description=of.description,
        duration_seconds=of.duration_seconds,
        announced_at=of.announced_at,
        not_before=of.not_before,
        notice_left_seconds=_notice_left(of, now),
        started_at=of.started_at,
        approval=_approval(event.approval),
        waits_for=of.waits_for,
        held_at=of.held_at,
        hosts=of.hosts,
        outcome_unknown=of.outcome_unknown,
        silent=event.silent,
        shown_to=schemas.ShownTo(
            machines=len(event.machines), seen=len(seen), showing=len(showing)
        ),
    )


def sight(operation: model.Operation, callers: Callers) -> alerts.AlertSources:
    """Return how many of the machines whose guests are told can read of an operation."""
    named = [name for event in operation.events if not event.silent for name in event.machines]
    asking = sum(callers.seen(model.key(name)) is not None for name in named)
    seeing = len(_showing(named, operation.event_type, callers))
    return alerts.AlertSources(machines=len(named), asking=asking, seeing=seeing)


def held_name(hold: model.Hold, roster: Roster) -> str:
    """Return the name of what is held as it was written."""
    match hold.kind:
        case model.HoldKind.SCOPE:
            return roster.name_of_scope(hold.name)
        case model.HoldKind.MACHINE:
            return roster.name_of_machine(hold.name)
        case _:
            return hold.name


def _showing(names: Iterable[str], event_type: EventType, callers: Callers) -> list[str]:
    """Return the machines whose last request was by a version that shows events of this type."""
    showing = []
    for name in names:
        seen = callers.seen(model.key(name))
        version = versions.BY_NAME.get(seen[1]) if seen else None
        if version is not None and versions.shows(version, event_type):
            showing.append(name)
    return showing


def _approval(value: model.Approval | None) -> schemas.Approval | None:
    return None if value is None else schemas.Approval(**msgspec.structs.asdict(value))


def _seen(callers: Callers, machine_key: str) -> schemas.Seen | None:
    found = callers.seen(machine_key)
    return None if found is None else schemas.Seen(at=found[0], version=found[1])


def _notice_left(value: model.Operation, now: datetime) -> int | None:
    if value.status is not EventStatus.SCHEDULED:
        return None
    left = max(0, math.ceil((value.not_before - now).total_seconds()))
    if value.held_at is None or value.approved:
        return left
    return max(left, value.notice_left_seconds)
