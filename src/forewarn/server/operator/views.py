"""The rules' values as the API shows them."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from forewarn.control.relay_watch import RelayWatch
from forewarn.control.replicas import LIVE
from forewarn.maintenance import accounts, alerts, fleet_file, model, planner, standing
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.units import MaintenanceState, Unit, UnitKind, UnitState
from forewarn.protocol.versions import VERSION_BY_NAME
from forewarn.server.operator import maintenance_schemas, schemas
from forewarn.server.operator.inventory import Inventory
from forewarn.store.port import Replica
from forewarn.vocabulary import AgentStatus, EventStatus, EventType, Priority


def names(listed: Iterable[str]) -> schemas.Names:
    """Return the first names, and how many there are."""
    all_names = tuple(listed)
    return schemas.Names(count=len(all_names), names=all_names[: schemas.MAX_NAMES])


# The fleet.

FLEET_CHANGES: Final = ("added", "changed", "removed", "missing")


def fleet_change(
    applied: fleet_file.Applied, *, dry_run: bool, listeners: Collection[str]
) -> schemas.FleetChange:
    """Return the changes of applying or removing; `listeners` are the service's, by name."""
    return schemas.FleetChange(
        dry_run=dry_run,
        **{what: names(getattr(applied, what)) for what in FLEET_CHANGES},
        tombstones=names(applied.lost),
        unchanged=applied.unchanged,
        warnings=(*_without_listener(applied.placed, listeners), *map(_still_held, applied.held)),
    )


def fleet_in_one_line(applied: fleet_file.Applied) -> str:
    """Return the changes of applying or removing in one line, for the audit log."""
    told = {what: getattr(applied, what) for what in FLEET_CHANGES[:3]}
    parts = (f"{what} {model.listed(found)}" for what, found in told.items() if found)
    return "; ".join(parts) or "no machine changed"


def in_one_line(made: planner.Plan | model.Maintenance) -> str:
    """Return a maintenance in one line, for the audit log."""
    asked = made.maintenance if isinstance(made, planner.Plan) else made
    return f"maintenance {asked.number}: {asked.event_type} of {model.listed(asked.targets)}"


def tokens(found: Iterable[accounts.Token], now: datetime) -> tuple[schemas.TokenView, ...]:
    """Return tokens as the API shows them."""
    shape = schemas.TokenView
    return tuple(model.mapped(shape, token, expired=token.expired(now)) for token in found)


def _without_listener(
    placed: Collection[model.Machine], listeners: Collection[str]
) -> Iterator[str]:
    """Yield a warning for each listener that machines name and the service does not have."""
    missing: dict[str, list[str]] = {}
    for machine in placed:
        if machine.listener not in listeners and (machine.listener or machine.address):
            missing.setdefault(machine.listener, []).append(machine.name)
    known = ", ".join(repr(name) for name in sorted(listeners) if name)
    for listener, machines_there in sorted(missing.items()):
        if not listeners:
            why = "the service has no listener for guests"
        elif listener:
            there = f"it has {known}" if known else "its listeners have no names"
            why = f"the service has no listener {listener!r} ({there})"
        else:
            why = f"all of the service's listeners have names ({known})"
        answer = "403" if listeners else "no answer"
        yield f"{why}: requests from {model.listed(machines_there)} get {answer}"


def _still_held(hold: model.Hold) -> str:
    because = f" ({hold.reason})" if hold.reason else ""
    return (
        f"{hold.kind} {hold.name} stays held, by {hold.by or 'somebody'}{because}: whatever is "
        f"added under that name is held too; 'forewarn release {hold.kind} {hold.name}' ends it"
    )


def machines(found: list[model.Machine], inventory: Inventory) -> tuple[schemas.MachineView, ...]:
    """Return machines as lists show them."""
    events = inventory.events_by(
        (machine.key for machine in found), lambda event: map(model.key, event.machines)
    )
    return tuple(
        model.mapped(
            schemas.MachineView,
            machine,
            scope=inventory.name_of_scope(machine.scope),
            kind=inventory.scopes[machine.scope].kind,
            last_seen=(seen := inventory.sighting(machine.key))
            and model.mapped(schemas.LastSeen, seen, at=seen.asked_at),
            events=tuple(events[machine.key]),
        )
        for machine in found
    )


def machine_detail(machine: model.Machine, inventory: Inventory) -> schemas.MachineDetail:
    """Return all that is known of a machine."""
    (listed,) = machines([machine], inventory)
    return model.mapped(
        schemas.MachineDetail,
        machine,
        **msgspec.structs.asdict(listed),
        tags=dict(machine.tags),
        profile=msgspec.structs.asdict(machine.profile),
    )


def scopes(found: list[model.Scope], inventory: Inventory) -> tuple[schemas.ScopeView, ...]:
    """Return scopes as lists show them."""
    keys = [scope.key for scope in found]
    sizes = inventory.sizes(keys)
    events = inventory.events_by(keys, lambda event: (event.scope,))
    return tuple(
        model.mapped(
            schemas.ScopeView,
            scope,
            priority=scope.priority or Priority.REGULAR,
            machines=sizes[scope.key],
            events=tuple(events[scope.key]),
        )
        for scope in found
    )


def scope_detail(scope: model.Scope, inventory: Inventory) -> schemas.ScopeDetail:
    """Return a scope with its machines by update domain."""
    (listed,) = scopes([scope], inventory)
    members = [m for m in inventory.machines.values() if m.scope == scope.key]
    members.sort(key=planner.natural)
    return schemas.ScopeDetail(
        **msgspec.structs.asdict(listed),
        domains=tuple(
            schemas.UpdateDomain(
                number=number, machines=names(m.name for m in members if m.update_domain == number)
            )
            for number in range(scope.update_domains)
        ),
    )


# Maintenance.


def maintenance(
    value: model.Maintenance,
    counted: Mapping[EventStatus, int],
    operations: Iterable[model.Operation],
    inventory: Inventory,
    now: datetime,
) -> maintenance_schemas.MaintenanceView:
    """Return a maintenance as lists show it.

    `counted` is how many of its operations have each status, `operations` at least the live ones.
    """
    counts = Counter(unit.state.value for unit in value.units)
    detail = standing.of_maintenance(value, now)
    if not detail and value.state in {MaintenanceState.ANNOUNCED, MaintenanceState.RUNNING}:
        holds = inventory.holds.values()
        detail = standing.of_progress(operations, inventory.operations, holds, now)
    return model.mapped(
        maintenance_schemas.MaintenanceView,
        value,
        status=value.state,
        status_detail=detail,
        wave=value.wave + 1,
        waves=max((unit.wave for unit in value.units), default=-1) + 1,
        unconfirmed=value.unconfirmed,
        units=maintenance_schemas.UnitCounts(**counts),
        operations=counted,
    )


def units(
    value: model.Maintenance, inventory: Inventory
) -> tuple[maintenance_schemas.UnitView, ...]:
    """Return the units of a maintenance, in the order of their turns."""
    return tuple(
        model.mapped(
            maintenance_schemas.UnitView,
            unit,
            status=unit.state,
            status_detail=unit.reason,
            wave=unit.wave + 1,
            operation=f"{value.number}.{unit.operation}" if unit.operation else "",
            machines=names(one.name for one in left),
        )
        for unit, left in zip(value.units, _left(value.units, inventory), strict=True)
    )


def _left(every: Sequence[Unit], inventory: Inventory) -> Iterator[list[model.Machine]]:
    """Yield the machines that each unit has still to take, if it waits, from one look at all."""
    there: dict[tuple[str, int | None], list[model.Machine]] = {
        _place(unit): [] for unit in every if unit.state is UnitState.WAITING
    }
    for machine in inventory.machines.values() if there.keys() - {NOWHERE} else ():
        for place in ((machine.scope, machine.update_domain), (machine.host, None)):
            if place in there:
                there[place].append(machine)
    done = {name for unit in every for name in unit.done}
    for unit in every:
        named = [inventory.machines[n] for n in unit.machines if n in inventory.machines]
        its = named or there.get(_place(unit), []) if unit.state is UnitState.WAITING else []
        over = unit.done if unit.kind is UnitKind.HOST else done
        left = (one for one in its if one.key not in over and unit.fits(one.tags))
        yield sorted(left, key=planner.natural)


NOWHERE: Final = ("", 0)


def _place(unit: Unit) -> tuple[str, int | None]:
    """Return where its machines are; NOWHERE if it names them."""
    return (unit.name, None) if unit.kind is UnitKind.HOST else (unit.scope, unit.update_domain)


def operations(
    values: Iterable[model.Operation], inventory: Inventory, now: datetime
) -> tuple[schemas.OperationView, ...]:
    """Return operations with their events."""
    return tuple(
        model.mapped(
            schemas.OperationView,
            value,
            **_announced(value),
            notice_left_seconds=_notice_left(value, now),
            status_detail=_status_detail(value, inventory, now),
            took_seconds=value.started_at
            and value.ended_at
            and round(max(0.0, (value.ended_at - value.started_at).total_seconds()), 3),
            events=[_event(event, inventory) for event in value.events],
        )
        for value in values
    )


def _announced(value: model.Operation) -> dict[str, datetime | None]:
    """Return when it was announced, and its NotBefore: it gets both when its turn has come."""
    shown = any(event.published or event.silent for event in value.events)
    if value.status is EventStatus.QUEUED or (value.status is EventStatus.CANCELED and not shown):
        return {"announced_at": None, "not_before": None}
    return {"announced_at": value.announced_at, "not_before": value.not_before}


def _event(event: model.OperationEvent, inventory: Inventory) -> dict[str, object]:
    return msgspec.structs.asdict(event) | {"scope": inventory.name_of_scope(event.scope)}


def live_event(
    of: model.Operation, event: model.OperationEvent, inventory: Inventory, now: datetime
) -> schemas.LiveEvent:
    """Return a live event, and how many of its machines can read it."""
    seen = _seen(event.machines, inventory)
    return model.mapped(
        schemas.LiveEvent,
        of,
        **_event(event, inventory),
        **_announced(of),
        operation=of.id,
        notice_left_seconds=_notice_left(of, now),
        status_detail=_status_detail(of, inventory, now),
        shown_to=schemas.ShownTo(
            machines=len(event.machines), seen=len(seen), showing=_showing(seen, of.event_type)
        ),
        agents=tuple(
            schemas.AgentWord(machine=name, status=each.agent, reason=each.reason)
            for name, each in seen.items()
            if each.agent is not None
        ),
    )


def audience(operation: model.Operation, inventory: Inventory, now: datetime) -> alerts.Audience:
    """Return how many of an operation's machines can read its events; any thread may ask."""
    named = [name for event in operation.events if not event.silent for name in event.machines]
    seen = _seen(named, inventory)
    lately = now - model.LISTENING
    asking = {name: each for name, each in seen.items() if each.asked_at > lately}
    held = tuple(
        f"{name} ({each.reason})" if each.reason else name
        for name, each in seen.items()
        if each.agent is AgentStatus.HELD
    )
    showing = _showing(asking, operation.event_type)
    return alerts.Audience(machines=len(named), asking=len(asking), seeing=showing, held=held)


def holds(values: Iterable[model.Hold], inventory: Inventory) -> Iterator[schemas.HoldView]:
    """Yield holds with the operations that each keeps from starting."""
    held = [o for o in inventory.operations.values() if o.held_at is not None]
    name_of = {
        model.HoldKind.SCOPE: inventory.name_of_scope,
        model.HoldKind.MACHINE: inventory.name_of_machine,
    }
    for value in values:
        name = name_of.get(value.kind, str)(value.name)
        covered = names(operation.id for operation in held if value.covers(operation))
        yield model.mapped(schemas.HoldView, value, name=name, operations=covered)


# Hosts.


def host(
    name: str,
    survey: HostSurvey,
    drains: Mapping[str, model.Drain],
    watch: RelayWatch | None,
    now: datetime,
) -> schemas.HostView:
    """Return a host, as a look at it, its latest drain and its relay tell."""
    facts, drain = survey.of(name), drains.get(name)
    return model.mapped(
        schemas.HostView,
        facts,
        name=name,
        status=drain.state if drain else model.HostState.UP,
        status_detail=standing.of_host(drain, now) if drain else "",
        changed_at=drain.changed_at if drain else None,
        closed=drain is not None and drain.closed,
        running=sum(guest.running for guest in facts.guests),
        relay=relay(name, watch, now),
    )


def relay(host: str, watch: RelayWatch | None, now: datetime) -> schemas.RelayView | None:
    """Return the relay of a host; None where it has no token, or none is known here."""
    own = watch.tokens_of(host) if watch is not None else []
    if watch is None or not own:
        return None
    used = [token for token in own if token.used_at is not None]
    heard = watch.relays.get(host)
    return schemas.RelayView(
        state=presence(host, watch, now),
        up_to_date=heard is not None and watch.has_all(heard),
        version=heard.version if heard else "",
        replica=heard.replica if heard else "",
        heard_at=heard.heard_at if heard else None,
        started_at=heard.started_at if heard else None,
        machines=heard.machines if heard else 0,
        token_created_at=(used or own)[-1].created_at,
        token_unused=bool(used) and own[-1].used_at is None,
    )


def presence(host: str, watch: RelayWatch, now: datetime) -> schemas.RelayPresence:
    """Return the presence of the relay of a host that has a token for one."""
    heard = watch.relays.get(host)
    if heard is None:
        return schemas.RelayPresence.EXPECTED
    away = watch.is_away(heard, now)
    return schemas.RelayPresence.AWAY if away else schemas.RelayPresence.PRESENT


def guests(name: str, survey: HostSurvey, inventory: Inventory) -> tuple[schemas.HostGuest, ...]:
    """Return the machines that a host has, by name."""
    found = sorted(survey.of(name).guests, key=lambda guest: guest.name)
    keys = survey.keys
    return tuple(
        model.mapped(
            schemas.HostGuest,
            guest,
            machine=inventory.name_of_machine(keys[guest.vm_id]) if guest.vm_id in keys else "",
        )
        for guest in found
    )


def drain(
    value: model.Drain,
    operations: Mapping[str, model.Operation],
    inventory: Inventory,
    now: datetime,
) -> schemas.DrainDetail:
    """Return a drain; the operations are its own, by id."""

    def move(number: int) -> schemas.DrainMove | None:
        id_ = f"{number}.1"
        known = operations.get(id_)
        detail = _status_detail(known, inventory, now) if known is not None else ""
        status = known.status if known is not None else None
        told = schemas.DrainMove(operation=id_, status=status, status_detail=detail)
        return told if number else None

    machines = tuple(
        model.mapped(
            schemas.DrainedMachine,
            guest,
            host=_host_of(guest.name, inventory),
            leaves_by=move(guest.leaves_by),
            returns_by=move(guest.returns_by),
        )
        for guest in value.guests
    )
    return model.mapped(schemas.DrainDetail, value, machines=machines)


def _host_of(name: str, inventory: Inventory) -> str:
    machine = inventory.machines.get(model.key(name))
    return machine.host if machine is not None else ""


def _seen(machine_names: Iterable[str], inventory: Inventory) -> dict[str, model.Sighting]:
    found = {name: inventory.sighting(model.key(name)) for name in machine_names}
    return {name: each for name, each in found.items() if each is not None}


def _showing(seen: Mapping[str, model.Sighting], event_type: EventType) -> int:
    asked_by = (VERSION_BY_NAME.get(each.version) for each in seen.values())
    return sum(version is not None and event_type in version.event_types for version in asked_by)


def _status_detail(value: model.Operation, inventory: Inventory, now: datetime) -> str:
    return standing.of_operation(value, inventory.operations, inventory.holds.values(), now)


def _notice_left(value: model.Operation, now: datetime) -> int | None:
    if value.status is not EventStatus.SCHEDULED:
        return None
    left = max(0, math.ceil((value.not_before - now).total_seconds()))
    if value.held_at is None or value.approved:
        return left
    return max(left, value.notice_left_seconds)


# Replicas.


def replicas(
    rows: Sequence[Replica], own: Replica, inventory: Inventory
) -> tuple[schemas.ReplicaView, ...]:
    """Return the replicas by their rows; their claims are what memory has of operations."""
    claims = Counter(
        operation.executor
        for operation in inventory.operations.values()
        if operation.lease_until is not None
    )
    newest = max(row.beat_at for row in rows)
    return tuple(
        model.mapped(
            schemas.ReplicaView,
            row,
            this=row.name == own.name,
            live=newest - row.beat_at <= LIVE,
            claims=claims[row.name],
        )
        for row in rows
    )
