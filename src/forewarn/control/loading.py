"""What of the store a decision or a connector gets to see, and what a reference means."""

import re
from collections.abc import Collection, Iterable
from typing import Protocol

import msgspec

from forewarn.connectors.port import Task
from forewarn.maintenance.model import (
    Hold,
    HoldKind,
    Machine,
    Maintenance,
    Operation,
    Refused,
    RollingState,
    RollingUpdate,
    Scope,
    Snapshot,
    key,
)
from forewarn.maintenance.planner import Request
from forewarn.store.port import Reading
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus

EVENT = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
OPERATION = re.compile(r"[0-9]{1,15}\.[0-9]{1,6}")
MAINTENANCE = re.compile(r"[0-9]{1,15}")


class Sight(Protocol):
    """Of `store.port.Reading`, what a snapshot is made of: a store's, or a turn's own draft."""

    def scopes(self, keys: Collection[str]) -> dict[str, Scope]:
        """Return these scopes by key."""
        ...

    def machines(self, keys: Collection[str]) -> dict[str, Machine]:
        """Return these machines by key."""
        ...

    def machines_of(self, scopes: Collection[str]) -> dict[str, Machine]:
        """Return the machines of these scopes, by key."""
        ...

    def machines_on(self, hosts: Collection[str]) -> dict[str, Machine]:
        """Return the machines on these hosts, by key."""
        ...

    def live_operations(self, scopes: Collection[str]) -> dict[str, Operation]:
        """Return what is Scheduled or Started in these scopes, by id."""
        ...

    def open_maintenances(self) -> dict[int, Maintenance]:
        """Return all that `Maintenance.open` says of, by number, the oldest first."""
        ...

    def holds(self) -> tuple[Hold, ...]:
        """Return all holds."""
        ...


def resolve(reading: Reading, reference: str) -> dict[str, Operation]:
    """Return the operations that a reference means.

    Args:
        reading: Where to look.
        reference: An event's id, an operation (`12.1`) or a maintenance (`12`).

    Raises:
        Refused: INVALID if it is none of these, NOT_FOUND if there is no such thing.
    """
    if EVENT.fullmatch(reference):
        found = reading.operations_of_events([reference.upper()])
    elif OPERATION.fullmatch(reference):
        found = reading.operations([reference])
    elif MAINTENANCE.fullmatch(reference):
        found = reading.operations_of_maintenance(int(reference))
    else:
        message = (
            f"{reference!r} is no event's id, no operation (such as 12.1) and no maintenance "
            "(such as 12)"
        )
        raise Refused(ErrorCode.INVALID, message)
    if not found:
        message = f"there is no {reference}, or history no longer holds it: see 'forewarn history'"
        raise Refused(ErrorCode.NOT_FOUND, message, reference=reference)
    return found


def around(reading: Sight, operations: dict[str, Operation], *, walking: bool = False) -> Snapshot:
    """Return these operations with their scopes and all that is live in those.

    Args:
        reading: Where to look.
        operations: What the cause is about.
        walking: Whether one of them may end, so that walks go on: their machines are needed then.
    """
    scopes = _scopes_of(operation for operation in operations.values() if operation.status.visible)
    return _snapshot(reading, operations, scopes, walking=walking)


def ending(reading: Sight, operations: dict[str, Operation]) -> Snapshot:
    """Return what the end of operations may concern: `around`, walking, and their machines."""
    snapshot = around(reading, operations, walking=True)
    machines = snapshot.machines | reading.machines(_machines_of(operations))
    return msgspec.structs.replace(snapshot, machines=machines)


def endings(reading: Sight, operations: dict[str, Operation]) -> Snapshot:
    """Return what the ends of operations, one after another, may concern.

    One end may announce a step of a walk, which is live by the next one's. So scopes are followed
    through what is live in them and through the walks there, until no other scope is met: then
    `ending` of each finds all that it asks for in here, whatever the ones before it led to.
    """
    scopes = _scopes_of(operation for operation in operations.values() if operation.status.visible)
    known: set[str] = set()
    live: dict[str, Operation] = {}
    maintenances: dict[int, Maintenance] = {}
    walked: dict[str, Machine] = {}
    while more := scopes - known:
        live |= reading.live_operations(more)
        known |= more
        maintenances, walked = _open_walks(reading, known, operations)
        walking = {machine.scope for machine in walked.values()}
        scopes = known | _scopes_of(live.values()) | walking
    return Snapshot(
        scopes=reading.scopes(known) if known else {},
        machines=walked | reading.machines(_machines_of(operations)),
        operations=live | operations,
        maintenances=maintenances,
        holds=reading.holds(),
    )


def for_request(reading: Reading, request: Request, *, limited: bool = False) -> Snapshot:
    """Return what a request may concern: its machines, their scopes, and what is live there.

    Args:
        reading: Where to look.
        request: What is asked.
        limited: Whether users' pending events have a limit, and so are counted.
    """
    if request.scope:
        machines = reading.machines_of({key(request.scope)})
        scopes = {key(request.scope)}
    elif request.host:
        machines = reading.machines_on({request.host})
        scopes = {machine.scope for machine in machines.values()}
    else:
        machines = reading.machines([key(name) for name in request.machines])
        scopes = {machine.scope for machine in machines.values()}
    snapshot = _snapshot(reading, {}, scopes, machines=machines, walking=True)
    if not limited or request.source is not EventSource.USER:
        return snapshot
    return msgspec.structs.replace(snapshot, user_events_pending=_pending_of_users(reading))


def for_maintenance(reading: Reading, number: int) -> Snapshot:
    """Return a maintenance's operations, and all that its walks need to go on."""
    operations = reading.operations_of_maintenance(number)
    scopes = _scopes_of(operations.values())
    return _snapshot(reading, operations, scopes, walking=True)


def for_hold(reading: Reading, hold: Hold) -> Snapshot:
    """Return what is live where a hold is put or released.

    Raises:
        Refused: NOT_FOUND: there is no such scope or machine, and nothing on such a host.
    """
    scopes: set[str] = set()
    match hold.kind:
        case HoldKind.SCOPE:
            scopes = set(reading.scopes([hold.name]))
        case HoldKind.MACHINE:
            scopes = {machine.scope for machine in reading.machines([hold.name]).values()}
        case HoldKind.HOST:
            scopes = {machine.scope for machine in reading.machines_on({hold.name}).values()}
        case HoldKind.EVERYTHING:
            return around(reading, reading.live_operations())
    if not scopes and all((h.kind, h.name) != (hold.kind, hold.name) for h in reading.holds()):
        message = f"there is no {hold.kind} {hold.name!r} in the fleet: see 'forewarn fleet list'"
        raise Refused(ErrorCode.NOT_FOUND, message, what=str(hold.kind), name=hold.name)
    on_host = hold.kind is HoldKind.HOST
    live = reading.live_operations() if on_host else {}
    held = {i: o for i, o in live.items() if hold.name in o.hosts} if on_host else {}
    return _snapshot(reading, held, scopes | _scopes_of(held.values()))


def act(operation: Operation, machines: dict[str, Machine]) -> Task:
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
    reading: Sight,
    operations: dict[str, Operation],
    scopes: set[str],
    *,
    machines: dict[str, Machine] | None = None,
    walking: bool = False,
) -> Snapshot:
    maintenances: dict[int, Maintenance] = {}
    known = dict(machines or {})
    if walking:
        # What may end here is in other scopes too, and so may be in the way of their walks.
        scopes = scopes | _scopes_of(reading.live_operations(scopes).values() if scopes else ())
        maintenances, walked = _open_walks(reading, scopes, operations)
        known |= walked
        scopes = scopes | {machine.scope for machine in known.values()}
    live = reading.live_operations(scopes) if scopes else {}
    beyond = scopes | _scopes_of(live.values())
    if beyond != scopes:
        # What waits here may start in other scopes too: what is down there must be known.
        live = reading.live_operations(beyond)
    return Snapshot(
        scopes=reading.scopes(beyond) if beyond else {},
        machines=known,
        operations=live | operations,
        maintenances=maintenances,
        holds=reading.holds(),
    )


def _open_walks(
    reading: Sight, scopes: set[str], operations: dict[str, Operation]
) -> tuple[dict[int, Maintenance], dict[str, Machine]]:
    """Return the open maintenances that may go on here, and the machines that they walk."""
    numbers = {operation.maintenance for operation in operations.values()}
    concerned: dict[int, Maintenance] = {}
    walks: list[RollingUpdate] = []
    for number, maintenance in reading.open_maintenances().items():
        left = [
            walk for walk in maintenance.rolling_updates if walk.state is not RollingState.FINISHED
        ]
        if number in numbers or any(walk.host or walk.scope in scopes for walk in left):
            concerned[number] = maintenance
            walks.extend(left)
    walked = reading.machines_of({walk.scope for walk in walks if walk.scope})
    walked |= reading.machines_on({walk.host for walk in walks if walk.host})
    return concerned, walked


def _pending_of_users(reading: Reading) -> int:
    return sum(
        len(operation.events)
        for operation in reading.live_operations().values()
        if operation.source is EventSource.USER and operation.status is EventStatus.SCHEDULED
    )


def _scopes_of(operations: Iterable[Operation]) -> set[str]:
    return {event.scope for operation in operations for event in operation.events}


def _machines_of(operations: dict[str, Operation]) -> set[str]:
    return {key(name) for operation in operations.values() for name in operation.machines}
