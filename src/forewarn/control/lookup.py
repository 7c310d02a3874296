"""The operations that a reference names, and the views that drains and connectors get."""

import re
from collections.abc import Callable, Container, Iterable, Mapping

from forewarn.connectors.port import Task
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import host_plan, planner, relays
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
    unknown,
)
from forewarn.maintenance.planner import Request
from forewarn.store.queries import Reading
from forewarn.vocabulary import ErrorCode

EVENT = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
OPERATION = re.compile(r"[0-9]{1,15}\.[0-9]{1,12}")
MAINTENANCE = re.compile(r"[0-9]{1,15}")


def resolve(unit: UnitOfWork, *references: str) -> dict[str, Operation]:
    """Return the operations that references mean: those of an event, an id or a maintenance."""
    named = (_resolved(unit, reference) for reference in references)
    return {name: operation for found in named for name, operation in found.items()}


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
    if not found and MAINTENANCE.fullmatch(reference) and unit.maintenance(int(reference)):
        message = f"nothing of maintenance {reference} is announced yet"
        raise Refused(ErrorCode.CONFLICT, message, reference=reference)
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


def granted(store: Reading, request: Request, *more: object) -> Maintenance | None:
    """Return the maintenance requested with this idempotency key, as long as history has it.

    `more` is what it asked for besides, as `planner.digest` takes it.

    Raises:
        Refused: It was another request (CONFLICT).
    """
    asked_by = request.idempotency_key
    found = store.maintenance_of_key(asked_by) if asked_by else None
    if found is not None and found.request_digest != planner.digest(request, *more):
        message = (
            f"the idempotency key {asked_by!r} was used for another request, maintenance "
            f"{found.number}: choose a new one"
        )
        raise Refused(ErrorCode.CONFLICT, message, maintenance=found.number)
    return found


def known_place(unit: UnitOfWork, hold: Hold, hosts: Container[str] = ()) -> None:
    """Refuse (NOT_FOUND) a hold of an unknown thing, unless there is one already.

    A host may have no machine: it is drained, has a relay, or is one of `hosts`.
    """
    world = unit.world
    places: dict[HoldKind, tuple[Container[str], ...]] = {
        HoldKind.EVERYTHING: (("",),),
        HoldKind.SCOPE: (world.scopes,),
        HoldKind.MACHINE: (world.machines,),
        HoldKind.HOST: (world.on_host, world.drains, world.tokens_of_host, hosts),
    }
    # Machines whose host is unknown are on "".
    is_named = hold.kind is HoldKind.EVERYTHING or hold.name
    there = is_named and any(hold.name in place for place in places[hold.kind])
    if not there and (hold.kind, hold.name) not in world.holds:
        raise unknown(hold.kind, hold.name)


def tasks(unit: UnitOfWork, operations: Iterable[Operation]) -> tuple[Task, ...]:
    """Return the tasks of claimed operations for a connector; machines may be gone by now."""
    operations = tuple(operations)
    known = unit.world.machines
    closed = tuple(sorted(host_plan.closed(unit.world)))
    return tuple(_task(operation, known, closed) for operation in operations)


def drain(unit: UnitOfWork, host: str, survey: HostSurvey | None) -> DrainView:
    """Return the view that a decision about the drain of a host is based on.

    Raises:
        Refused: The host was never drained (NOT_FOUND).
    """
    drains = unit.world.drains
    if host not in drains:
        message = f"host {host!r} is not drained: see 'forewarn host list'"
        raise Refused(ErrorCode.NOT_FOUND, message, what="host", name=host)
    unit.operations([f"{number}.1" for number in drains[host].maintenances])
    relay = unit.store.relays([host]).get(host)
    made = [token.created_at for token in unit.world.tokens_of(host)]
    if relay is not None and not relays.is_guarded(relay, min(made, default=None)):
        relay = None
    return DrainView(world=unit.world, drain=drains[host], survey=survey, relay=relay)


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
