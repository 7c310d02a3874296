"""What of the store a decision or a connector gets to see, and what a reference means.

Each question goes to the unit of work, which asks the store only for what it has not read yet.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from forewarn.connectors.port import Task
from forewarn.control.unit_of_work import Needs, UnitOfWork
from forewarn.maintenance import host_drain, host_plan, planner, relays
from forewarn.maintenance.host_drain import DrainView
from forewarn.maintenance.host_plan import HostSurvey
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
    StartCause,
    key,
    mapped,
)
from forewarn.maintenance.planner import Request, natural
from forewarn.maintenance.rollout import UnitNews
from forewarn.maintenance.rollout_model import Rollout, RolloutUnit, UnitState
from forewarn.store.port import Reading
from forewarn.vocabulary import ErrorCode, EventSource, EventType, TargetKind

MOVING = {EventType.REDEPLOY, *planner.ALL_DOMAINS_AT_ONCE}
"""After these, machines are on other hosts or gone."""

FIRST_AHEAD = 8
"""How many units of a rollout are read at first."""

EVENT = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
OPERATION = re.compile(r"[0-9]{1,15}\.[0-9]{1,6}")
MAINTENANCE = re.compile(r"[0-9]{1,15}")


def resolve(unit: UnitOfWork, *references: str) -> dict[str, Operation]:
    """Return the operations that references mean: those of an event, an id or a maintenance."""
    found: dict[str, Operation] = {}
    for reference in references:
        found |= _resolved(unit, reference)
    return found


def _resolved(unit: UnitOfWork, reference: str) -> dict[str, Operation]:
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


def chosen(
    unit: UnitOfWork, references: Iterable[str], meant: Callable[[Operation], bool]
) -> dict[str, Operation]:
    """Return the operations that references mean: of a maintenance those that fit, if any does."""
    found: dict[str, Operation] = {}
    for reference in references:
        named = resolve(unit, reference)
        if MAINTENANCE.fullmatch(reference):
            named = {i: o for i, o in named.items() if meant(o)} or named
        found |= named
    return found


def read_ahead(unit: UnitOfWork, needs: Iterable[Needs]) -> None:
    """Read at once what the jobs of a batch will ask for one by one."""
    named = [need for need in needs if need.events or need.operations]
    unit.live_operations({scope for need in named for scope in need.scopes})
    around(unit, unit.operations_of_events([id_ for need in named for id_ in need.events]))
    unit.operations([id_ for need in named for id_ in need.operations])
    may_end = [id_ for need in named if need.ending for id_ in need.operations]
    if may_end:
        ending(unit, unit.operations(may_end))


def around(
    unit: UnitOfWork, operations: dict[str, Operation], *, rolling: bool = False
) -> Snapshot:
    """Return these operations with their scopes and all that is live in those.

    Where one of them may end, `rolling` adds what the rolling updates need that go on then.
    """
    live = (operation for operation in operations.values() if operation.live)
    return _snapshot(unit, operations, _scopes_of(live), {}, rolling=rolling)


def ending(
    unit: UnitOfWork, operations: dict[str, Operation], hosts: Collection[str] = ()
) -> Snapshot:
    """Return what the end of operations may concern: rolling updates, and their own machines.

    Where these have other `hosts` afterwards, it has what is on all of them, too.
    """
    live = (operation for operation in operations.values() if operation.live)
    own = _machines_of(unit, operations.values())
    if hosts or any(o.live_migration or o.event_type in MOVING for o in operations.values()):
        own = own | unit.machines_on({*hosts, *(m.host for m in own.values())} - {""})
    return _snapshot(unit, operations, _scopes_of(live), own, rolling=True)


def for_request(unit: UnitOfWork, request: Request, *, limited: bool) -> Snapshot:
    """Return what a request may concern: its machines, their scopes, and what is live there.

    Users' pending events are counted where they are limited.
    """
    if request.scope:
        machines = unit.machines_of({key(request.scope)})
    elif request.host:
        machines = unit.machines_on({request.host})
    else:
        machines = unit.machines([key(name) for name in request.machines])
    scopes = {machine.scope for machine in machines.values()}
    if request.scope:
        scopes.add(key(request.scope))  # it may have no machine
    snapshot = _snapshot(unit, {}, scopes, machines, rolling=True)
    if not limited or request.source is not EventSource.USER:
        return snapshot
    pending = sum(
        len(operation.events)
        for operation in unit.live_operations().values()
        if operation.source is EventSource.USER and operation.unstarted
    )
    return msgspec.structs.replace(snapshot, user_events_pending=pending)


def granted(unit: UnitOfWork, request: Request) -> Maintenance | None:
    """Return what the request with this idempotency key became, as long as history has it.

    Raises:
        Refused: It was another request (CONFLICT).
    """
    found = unit.store.maintenance_of_key(request.idempotency_key)
    if found is None:
        return None
    if found.request_digest != planner.digest(request):
        message = (
            f"the idempotency key {request.idempotency_key!r} was used for another request, "
            f"maintenance {found.number}: choose a new one"
        )
        raise Refused(ErrorCode.CONFLICT, message, maintenance=found.number)
    return found


def for_maintenance(unit: UnitOfWork, number: int) -> Snapshot:
    """Return a maintenance's operations, and all that its rolling updates need to go on."""
    if not unit.store.maintenances([number]):
        message = f"no maintenance {number}: see 'forewarn maintenance list'"
        raise Refused(ErrorCode.NOT_FOUND, message, reference=str(number))
    operations = unit.store.operations_of_maintenance(number)
    return _snapshot(unit, operations, _scopes_of(operations.values()), {}, rolling=True)


def for_hold(unit: UnitOfWork, hold: Hold) -> Snapshot:
    """Return what is live where a hold is put or released; refuse a place that is not there."""
    scopes: set[str] = set()
    match hold.kind:
        case HoldKind.SCOPE:
            scopes = set(unit.scopes([hold.name]))
        case HoldKind.MACHINE:
            scopes = {machine.scope for machine in unit.machines([hold.name]).values()}
        case HoldKind.HOST:
            scopes = {machine.scope for machine in unit.machines_on({hold.name}).values()}
        case HoldKind.EVERYTHING:
            return around(unit, unit.live_operations(), rolling=True)
    if not scopes and all((h.kind, h.name) != (hold.kind, hold.name) for h in unit.holds()):
        message = f"no {hold.kind} named {hold.name!r}: see 'forewarn fleet list'"
        raise Refused(ErrorCode.NOT_FOUND, message, what=str(hold.kind), name=hold.name)
    if hold.kind is HoldKind.HOST:
        return for_host_hold(unit, hold)
    return _snapshot(unit, {}, scopes, {}, rolling=True)


def for_host_hold(unit: UnitOfWork, hold: Hold) -> Snapshot:
    """Return what is live where a hold of a host is put or released, machines there or none."""
    scopes = {machine.scope for machine in unit.machines_on({hold.name}).values()}
    held = {i: o for i, o in unit.live_operations().items() if hold.covers(o)}
    return _snapshot(unit, held, scopes | _scopes_of(held.values()), {}, rolling=True)


def for_moves(unit: UnitOfWork, moved: Mapping[str, Machine | None]) -> Snapshot:
    """Return what is live around machines that have moved, by key, and on their hosts.

    They are where they are now; None stands for one that is gone.
    """
    new = {name: machine for name, machine in moved.items() if machine is not None}
    places = (*unit.machines(list(moved)).values(), *new.values())
    around_them = unit.machines_on({machine.host for machine in places if machine.host})
    scopes = {machine.scope for machine in (*places, *around_them.values())}
    snapshot = _snapshot(unit, {}, scopes, {}, rolling=True)
    known = snapshot.machines | _machines_of(unit, snapshot.operations.values()) | around_them
    left = {name: machine for name, machine in known.items() if name not in moved}
    return msgspec.structs.replace(snapshot, machines=left | new)


def wider(unit: UnitOfWork, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with other scopes of what is in it, too, for a decision that goes there.

    It has twice as many where there are so many: a chain of hosts is walked in a few turns.
    """
    assert snapshot.loaded is not None
    scopes, operations = {*snapshot.loaded}, snapshot.operations
    while (more := scopes | _scopes_of(operations.values())) != scopes:
        scopes, operations = more, unit.live_operations(more)
        if len(scopes) >= 2 * len(snapshot.loaded):
            break
    whole = _snapshot(unit, snapshot.operations, scopes, snapshot.machines, rolling=True)
    return msgspec.structs.replace(whole, user_events_pending=snapshot.user_events_pending)


def tasks(unit: UnitOfWork, operations: Iterable[Operation]) -> tuple[Task, ...]:
    """Return what a connector is told of claimed operations; machines may be gone by now."""
    operations = tuple(operations)
    known = _machines_of(unit, operations)
    held = (hold.name for hold in host_plan.of_hosts(unit.holds()))
    closed = tuple(sorted({*host_drain.closed(unit.drains().values()), *held}))
    return tuple(_task(operation, known, closed) for operation in operations)


def rollout_news(unit: UnitOfWork, rollout: Rollout) -> UnitNews:
    """Return what there is to know of the units of a rollout that are under way."""
    running = [one for one in rollout.units if one.state is UnitState.RUNNING]
    numbers = {one.maintenance for one in running if one.maintenance}
    maintenances = unit.store.maintenances(numbers) if numbers else {}
    ids = [f"{n}.{step}" for n, m in maintenances.items() for step in range(1, m.announced + 1)]
    operations: dict[int, list[Operation]] = {number: [] for number in numbers}
    for operation in unit.operations(ids).values():
        operations[operation.maintenance].append(operation)
    drains = unit.drains() if any(one.drain for one in running) else {}
    return UnitNews(maintenances=maintenances, operations=operations, drains=drains)


def machines_of_unit(unit: Reading | UnitOfWork, one: RolloutUnit) -> list[Machine]:
    """Return the machines of a unit of a rollout, in the order of their names."""
    if one.kind is TargetKind.HOST:
        found = unit.machines_on({one.name})
        its = unit.drains().get(one.name) if one.drain else None
        if its is not None and (one.state is UnitState.RUNNING or not host_plan.is_up(its)):
            # Those that have moved away come home: until then it takes their update domains, also
            # where somebody else has drained it before the unit's turn.
            found |= unit.machines([key(guest.name) for guest in its.guests])
    elif one.kind is TargetKind.SCOPE:
        found = unit.machines_of({one.key})
    else:
        found = unit.machines([one.key])
    return sorted(found.values(), key=natural)


class UnitReader:
    """Reads what the units of a rollout take, ever more of them at a time.

    Most steps look at a few units; where all of them are blocked, a query for each is too slow.
    """

    def __init__(self, unit: UnitOfWork, rollout: Rollout) -> None:
        self._unit = unit
        self._units = rollout.units
        self._places = {one.key: place for place, one in enumerate(rollout.units)}
        self._known: set[str] = set()
        self._ahead = FIRST_AHEAD

    def machines(self, one: RolloutUnit) -> list[Machine]:
        """Return the machines of a unit, in the order of their names."""
        if one.key not in self._known:
            place = self._places[one.key]
            self._read(self._units[place : place + self._ahead])
            self._ahead *= 2
        return machines_of_unit(self._unit, one)

    def _read(self, units: Iterable[RolloutUnit]) -> None:
        names: dict[TargetKind, set[str]] = {kind: set() for kind in TargetKind}
        for one in units:
            if not one.state.over:
                names[one.kind].add(one.key)
                self._known.add(one.key)
        found = (
            self._unit.machines_on(names[TargetKind.HOST])
            | self._unit.machines_of(names[TargetKind.SCOPE])
            | self._unit.machines(names[TargetKind.MACHINES])
        )
        self._unit.live_operations({machine.scope for machine in found.values()})


def drain(unit: UnitOfWork, host: str, survey: HostSurvey | None) -> DrainView:
    """Return what a decision about the drain of a host may look at.

    Raises:
        Refused: The host was never drained (NOT_FOUND).
    """
    drains = unit.drains()
    if host not in drains:
        message = f"host {host!r} is not drained: see 'forewarn host list'"
        raise Refused(ErrorCode.NOT_FOUND, message, what="host", name=host)
    its = drains[host]
    names = {key(guest.name) for guest in its.guests}
    operations = unit.operations([f"{number}.1" for number in its.maintenances])
    relay = unit.store.relays([host]).get(host)
    made = [token.created_at for token in unit.store.relay_tokens([host]).values()]
    if relay is not None and not relays.is_guarded(relay, min(made, default=None)):
        relay = None
    return DrainView(
        drain=its,
        machines=on_hosts(unit, survey, names),
        operations={operation.maintenance: operation for operation in operations.values()},
        drains=drains,
        holds=unit.holds(),
        survey=survey,
        relay=relay,
    )


def on_hosts(
    unit: UnitOfWork, survey: HostSurvey | None, names: Iterable[str] = ()
) -> dict[str, Machine]:
    """Return the machines that a look at the hosts found, and these (keys), by their GUIDs."""
    found = survey.keys.values() if survey is not None else ()
    return {machine.vm_id: machine for machine in unit.machines({*names, *found}).values()}


def _task(operation: Operation, known: dict[str, Machine], closed: tuple[str, ...]) -> Task:
    assert operation.started_at is not None
    machines = [known.get(key(name)) for name in operation.machines]
    return mapped(
        Task,
        operation,
        operation=operation.id,
        machines=operation.machines,
        # Of a host's maintenance never another host, wherever a machine may be by now.
        hosts=tuple(operation.on_host or (machine.host if machine else "") for machine in machines),
        vm_ids=tuple(machine.vm_id if machine else "" for machine in machines),
        unforeseen=operation.start_cause is StartCause.NO_NOTICE,
        # A host may have been closed or held since it was chosen: the connector chooses another.
        to_host="" if operation.to_host in closed else operation.to_host,
        closed_hosts=closed,
        claimed_elsewhere=tuple(n for n in operation.claimed_by if n != operation.executor),
    )


def _snapshot(
    unit: UnitOfWork,
    operations: dict[str, Operation],
    scopes: set[str],
    machines: dict[str, Machine],
    *,
    rolling: bool = False,
) -> Snapshot:
    maintenances: dict[int, Maintenance] = {}
    if rolling:
        maintenances, walked = _open_rolling_updates(unit, scopes, operations)
        machines = walked | machines
        # A host's turn may be under way in a scope that the host has no machine of any more.
        turns = [f"{n}.{m.announced}" for n, m in maintenances.items() if m.rolling_updates[0].host]
        operations = unit.operations(turns) | operations
        scopes = scopes | {machine.scope for machine in machines.values()}
    return Snapshot(
        loaded=frozenset(scopes),
        scopes=unit.scopes(scopes),
        machines=machines,
        operations=unit.live_operations(scopes) | operations,
        maintenances=maintenances,
        holds=unit.holds(),
    )


def _machines_of(unit: UnitOfWork, operations: Iterable[Operation]) -> dict[str, Machine]:
    return unit.machines({key(name) for each in operations for name in each.machines})


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
    if not walks:
        return concerned, {}
    walked = unit.machines_of({walk.scope for walk in walks if walk.scope})
    return concerned, walked | unit.machines_on({walk.host for walk in walks if walk.host})


def _scopes_of(operations: Iterable[Operation]) -> set[str]:
    return {event.scope for operation in operations for event in operation.events}
