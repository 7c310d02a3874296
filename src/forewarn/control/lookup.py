"""What a reference means, and what drains, rollouts and connectors get to see."""

import re
from collections.abc import Callable, Container, Iterable, Mapping

from forewarn.connectors.port import Task
from forewarn.control.unit_of_work import UnitOfWork
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
    StartCause,
    key,
    mapped,
)
from forewarn.maintenance.planner import Request, natural
from forewarn.maintenance.rollout import UnitNews
from forewarn.maintenance.rollout_model import Rollout, RolloutUnit, UnitState
from forewarn.vocabulary import ErrorCode, TargetKind

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
        found = unit.operations_of_maintenance(int(reference))
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


def known_maintenance(unit: UnitOfWork, number: int) -> None:
    """Refuse (NOT_FOUND) a maintenance that is not there."""
    if not unit.maintenances([number]):
        message = f"no maintenance {number}: see 'forewarn maintenance list'"
        raise Refused(ErrorCode.NOT_FOUND, message, reference=str(number))


def known_place(unit: UnitOfWork, hold: Hold) -> None:
    """Refuse (NOT_FOUND) a hold of what is not there, unless there is one already."""
    world = unit.world
    places: dict[HoldKind, Container[str]] = {
        HoldKind.EVERYTHING: ("",),
        HoldKind.SCOPE: world.scopes,
        HoldKind.MACHINE: world.machines,
        HoldKind.HOST: world.on_host,
    }
    there = hold.name in places[hold.kind]
    if not there and (hold.kind, hold.name) not in world.holds:
        message = f"no {hold.kind} named {hold.name!r}: see 'forewarn fleet list'"
        raise Refused(ErrorCode.NOT_FOUND, message, what=str(hold.kind), name=hold.name)


def tasks(unit: UnitOfWork, operations: Iterable[Operation]) -> tuple[Task, ...]:
    """Return what a connector is told of claimed operations; machines may be gone by now."""
    operations = tuple(operations)
    known = unit.world.machines
    held = (hold.name for hold in host_plan.of_hosts(unit.holds()))
    closed = tuple(sorted({*host_drain.closed(unit.drains().values()), *held}))
    return tuple(_task(operation, known, closed) for operation in operations)


def rollout_news(unit: UnitOfWork, rollout: Rollout) -> UnitNews:
    """Return what there is to know of the units of a rollout that are under way."""
    running = [one for one in rollout.units if one.state is UnitState.RUNNING]
    numbers = {one.maintenance for one in running if one.maintenance}
    maintenances = unit.maintenances(numbers)
    ids = [f"{n}.{step}" for n, m in maintenances.items() for step in range(1, m.announced + 1)]
    operations: dict[int, list[Operation]] = {number: [] for number in numbers}
    for operation in unit.operations(ids).values():
        operations[operation.maintenance].append(operation)
    drains = unit.drains() if any(one.drain for one in running) else {}
    return UnitNews(maintenances=maintenances, operations=operations, drains=drains)


def machines_of_unit(unit: UnitOfWork, one: RolloutUnit) -> list[Machine]:
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


def _task(operation: Operation, known: Mapping[str, Machine], closed: tuple[str, ...]) -> Task:
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
