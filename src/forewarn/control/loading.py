"""What of the store a decision or a connector gets to see, and what a reference means.

Each question goes to the unit of work, which asks the store only for what it has not read yet.
"""

import re
from collections.abc import Iterable

import msgspec

from forewarn.connectors.port import Task
from forewarn.control.unit_of_work import Needs, UnitOfWork
from forewarn.maintenance.model import (
    Hold,
    HoldKind,
    Machine,
    Maintenance,
    Operation,
    Refused,
    RollingState,
    RollingUpdate,
    Snapshot,
    key,
)
from forewarn.maintenance.planner import Request
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus

EVENT = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
OPERATION = re.compile(r"[0-9]{1,15}\.[0-9]{1,6}")
MAINTENANCE = re.compile(r"[0-9]{1,15}")


def resolve(unit: UnitOfWork, reference: str) -> dict[str, Operation]:
    """Return the operations that a reference means.

    Args:
        unit: Where to look.
        reference: An event's id, an operation (`12.1`) or a maintenance (`12`).

    Raises:
        Refused: INVALID if it is none of these, NOT_FOUND if there is no such thing.
    """
    if EVENT.fullmatch(reference):
        found = unit.operations_of_events([reference.upper()])
    elif OPERATION.fullmatch(reference):
        found = unit.operations([reference])
    elif MAINTENANCE.fullmatch(reference):
        found = unit.store.operations_of_maintenance(int(reference))
    else:
        message = (
            f"invalid reference {reference!r}: expected an event's id, an operation such as 12.1, "
            "or a maintenance such as 12"
        )
        raise Refused(ErrorCode.INVALID, message)
    if not found:
        message = f"{reference} is unknown, or history no longer holds it: see 'forewarn history'"
        raise Refused(ErrorCode.NOT_FOUND, message, reference=reference)
    return found


def read_ahead(unit: UnitOfWork, needs: Iterable[Needs]) -> None:
    """Read at once what the jobs of a batch will ask for one by one."""
    named = [need for need in needs if need.events or need.operations]
    found = unit.operations_of_events([event_id for need in named for event_id in need.events])
    around(unit, found)
    may_end = [id_ for need in named if need.ending for id_ in need.operations]
    unit.operations([id_ for need in named for id_ in need.operations])
    if may_end:
        ending(unit, unit.operations(may_end))


def around(
    unit: UnitOfWork, operations: dict[str, Operation], *, rolling: bool = False
) -> Snapshot:
    """Return these operations with their scopes and all that is live in those.

    Args:
        unit: Where to look.
        operations: What the command is about.
        rolling: Whether one of them may end, so that rolling updates go on: then the machines of
            those are needed too.
    """
    scopes = _scopes_of(operation for operation in operations.values() if operation.status.visible)
    return _snapshot(unit, operations, scopes, rolling=rolling)


def ending(unit: UnitOfWork, operations: dict[str, Operation]) -> Snapshot:
    """Return what the end of operations may concern: rolling updates, and their own machines."""
    snapshot = around(unit, operations, rolling=True)
    machines = snapshot.machines | unit.machines(_machines_of(operations))
    return msgspec.structs.replace(snapshot, machines=machines)


def for_request(unit: UnitOfWork, request: Request, *, limited: bool = False) -> Snapshot:
    """Return what a request may concern: its machines, their scopes, and what is live there.

    Args:
        unit: Where to look.
        request: What is asked.
        limited: Whether users' pending events have a limit, and so are counted.
    """
    if request.scope:
        machines = unit.machines_of({key(request.scope)})
        scopes = {key(request.scope)}
    elif request.host:
        machines = unit.machines_on({request.host})
        scopes = {machine.scope for machine in machines.values()}
    else:
        machines = unit.machines([key(name) for name in request.machines])
        scopes = {machine.scope for machine in machines.values()}
    snapshot = _snapshot(unit, {}, scopes, machines=machines, rolling=True)
    if not limited or request.source is not EventSource.USER:
        return snapshot
    return msgspec.structs.replace(snapshot, user_events_pending=_pending_of_users(unit))


def for_maintenance(unit: UnitOfWork, number: int) -> Snapshot:
    """Return a maintenance's operations, and all that its rolling updates need to go on."""
    operations = unit.store.operations_of_maintenance(number)
    scopes = _scopes_of(operations.values())
    return _snapshot(unit, operations, scopes, rolling=True)


def for_hold(unit: UnitOfWork, hold: Hold) -> Snapshot:
    """Return what is live where a hold is put or released.

    Raises:
        Refused: NOT_FOUND: there is no such scope or machine, and nothing on such a host.
    """
    scopes: set[str] = set()
    match hold.kind:
        case HoldKind.SCOPE:
            scopes = set(unit.scopes([hold.name]))
        case HoldKind.MACHINE:
            scopes = {machine.scope for machine in unit.machines([hold.name]).values()}
        case HoldKind.HOST:
            scopes = {machine.scope for machine in unit.machines_on({hold.name}).values()}
        case HoldKind.EVERYTHING:
            return around(unit, unit.live_operations())
    if not scopes and all((h.kind, h.name) != (hold.kind, hold.name) for h in unit.holds()):
        message = f"no {hold.kind} named {hold.name!r}: see 'forewarn fleet list'"
        raise Refused(ErrorCode.NOT_FOUND, message, what=str(hold.kind), name=hold.name)
    on_host = hold.kind is HoldKind.HOST
    live = unit.live_operations() if on_host else {}
    held = {i: o for i, o in live.items() if hold.name in o.hosts} if on_host else {}
    return _snapshot(unit, held, scopes | _scopes_of(held.values()))


def task(operation: Operation, machines: dict[str, Machine]) -> Task:
    """Return what a connector is told of a claimed operation; machines may be gone by now."""
    assert operation.started_at is not None
    known = [machines.get(key(name)) for name in operation.machines]
    return Task(
        operation=operation.id,
        attempt=operation.attempt,
        event_type=operation.event_type,
        source=operation.source,
        machines=operation.machines,
        hosts=tuple(machine.host if machine else "" for machine in known),
        duration_seconds=operation.duration_seconds,
        started_at=operation.started_at,
        repeat_after=operation.repeat_after,
    )


def _snapshot(
    unit: UnitOfWork,
    operations: dict[str, Operation],
    scopes: set[str],
    *,
    machines: dict[str, Machine] | None = None,
    rolling: bool = False,
) -> Snapshot:
    maintenances: dict[int, Maintenance] = {}
    known = dict(machines or {})
    if rolling:
        # What may end here is in other scopes too, and so may hold up a rolling update there.
        scopes = scopes | _scopes_of(unit.live_operations(scopes).values() if scopes else ())
        maintenances, walked = _open_rolling_updates(unit, scopes, operations)
        known |= walked
        scopes = scopes | {machine.scope for machine in known.values()}
    live = unit.live_operations(scopes) if scopes else {}
    beyond = scopes | _scopes_of(live.values())
    if beyond != scopes:
        # What waits here may start in other scopes too: what is down there must be known.
        live = unit.live_operations(beyond)
    return Snapshot(
        scopes=unit.scopes(beyond) if beyond else {},
        machines=known,
        operations=live | operations,
        maintenances=maintenances,
        holds=unit.holds(),
    )


def _open_rolling_updates(
    unit: UnitOfWork, scopes: set[str], operations: dict[str, Operation]
) -> tuple[dict[int, Maintenance], dict[str, Machine]]:
    """Return the open maintenances that may go on here, and the machines that they reach."""
    numbers = {operation.maintenance for operation in operations.values()}
    concerned: dict[int, Maintenance] = {}
    walks: list[RollingUpdate] = []
    for number, maintenance in unit.open_maintenances().items():
        left = [
            walk for walk in maintenance.rolling_updates if walk.state is not RollingState.FINISHED
        ]
        if number in numbers or any(walk.host or walk.scope in scopes for walk in left):
            concerned[number] = maintenance
            walks.extend(left)
    walked = unit.machines_of({walk.scope for walk in walks if walk.scope})
    walked |= unit.machines_on({walk.host for walk in walks if walk.host})
    return concerned, walked


def _pending_of_users(unit: UnitOfWork) -> int:
    return sum(
        len(operation.events)
        for operation in unit.live_operations().values()
        if operation.source is EventSource.USER and operation.status is EventStatus.SCHEDULED
    )


def _scopes_of(operations: Iterable[Operation]) -> set[str]:
    return {event.scope for operation in operations for event in operation.events}


def _machines_of(operations: dict[str, Operation]) -> set[str]:
    return {key(name) for operation in operations.values() for name in operation.machines}
