"""The operators' API: what each route about machines and their maintenance does.

`administration` has the routes about the service. docs/reference/api.md describes each route; a
test compares.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import structlog
from starlette.requests import Request
from starlette.responses import Response

from forewarn import times
from forewarn.control import lookup, maintenances
from forewarn.control.plane import Plane
from forewarn.maintenance import fleet_file, host_drain, host_plan, model, planner
from forewarn.maintenance.accounts import Deed
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.units import TurnOrder, TurnPolicy
from forewarn.maintenance.world import World
from forewarn.server.operator import fields, maintenance_schemas, routing, schemas, table, views
from forewarn.server.operator.errors import as_json
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.routing import Backend, OperatorCall, one_line
from forewarn.server.operator.table import API
from forewarn.store.port import HistoryQuery
from forewarn.store.queries import Reading
from forewarn.vocabulary import AccessRole, ErrorCode, EventStatus, EventType

Number = Annotated[int, msgspec.Meta(ge=1, le=schemas.MAX_NUMBER)] | None
ByNumber = Annotated[int, msgspec.Meta(le=schemas.MAX_NUMBER)]

OF_A_MACHINE = frozenset({host_drain.DrainOrder.SKIP, host_drain.DrainOrder.STOP})
"""The orders about a drain that name a machine."""

OF_A_UNIT = frozenset({MaintenanceOrder.SKIP, MaintenanceOrder.RETRY})
"""The orders about a maintenance that name a unit."""

FOR_ONE: Final = (*fields.FOR_ONE, "host_boot_id")
"""The fields of a request that is announced at once; refused where units have a policy."""

NEEDED: Final = {
    "zone": "windows",
    "cutoff_seconds": "windows",
    "pause_seconds": "waves",
    "check_tries": "check",
    "check_within_seconds": "check",
}
"""The fields of a policy that do nothing without another one."""

HOSTS_AT_ONCE: Final = 50
"""The most hosts that are shown in one turn of the loop, in a millisecond or, where the documents
of their relays have to be made, some more: guests wait meanwhile."""

_log = structlog.get_logger(__name__)


# The fleet.


@API.route(
    "PUT",
    "/v1/fleet",
    AccessRole.VIEWER,
    table.FLEET,
    body=fleet_file.Fleet,
    max_body=routing.MAX_FLEET_BODY,
)
async def apply_fleet(
    call: OperatorCall,
    *,
    data: bytes,
    prune: bool = False,
    re_add: bool = False,
    allow_empty: bool = False,
    based_on: routing.Name = "",
    dry_run: bool = False,
) -> schemas.FleetChange:
    """Make the fleet match the body, all or nothing; only `prune` removes machines.

    A `prune` that would leave no machine is refused without `allow_empty`. Machines that were
    preempted or terminated are left out unless `re_add` adds them. With `based_on`, the SHA-256 of
    an answer to the GET, it is refused if that would be another by now.
    """
    backend = call.backend
    wanted = await backend.beside(routing.decoded_fleet, data)
    asked: dict[str, Any] = {
        "prune": prune,
        "again": re_add,
        "allow_empty": allow_empty,
        "based_on": based_on,
    }
    if dry_run:  # not by the writer, which viewers may not occupy
        tombstones = await backend.read(Reading.tombstones)
        state = msgspec.structs.replace(backend.live_state(), tombstones=tombstones)

        def suppose() -> fleet_file.Applied:
            return fleet_file.apply(World(state), wanted, mint=backend.plane.mint, **asked)

        async with backend.whole:
            applied = await backend.beside(suppose)
    else:
        plane = call.changing(Deed.APPLY_FLEET, told=views.fleet_in_one_line)
        applied = await backend.done(plane.apply_fleet(wanted, **asked))
    # Not on the loop: it looks at every machine.
    return await backend.beside(partial(_changed, call, applied, dry_run=dry_run))


@API.route("GET", "/v1/fleet", AccessRole.VIEWER, table.FLEET, answer=fleet_file.Fleet)
async def export_fleet(backend: Backend) -> Response:
    """Return the fleet as its file; to apply it changes nothing."""

    def exported() -> Response:
        fleet = fleet_file.exported(
            tuple(inventory.scopes.values()), tuple(inventory.machines.values())
        )
        return as_json(fleet)

    async with backend.whole:
        inventory = backend.inventory.snapshot()
        return await backend.beside(exported)


@API.route("DELETE", "/v1/fleet/machines", AccessRole.OPERATOR, table.FLEET)
async def remove_machines(call: OperatorCall, name: routing.Names) -> schemas.FleetChange:
    """Remove machines, all or none, and the scopes that this leaves empty; repeat `name`."""
    plane = call.changing(Deed.REMOVE_MACHINES, model.listed(name), told=views.fleet_in_one_line)
    applied = await call.backend.done(plane.remove_machines(name))
    return _changed(call, applied, dry_run=False)


def _changed(
    call: OperatorCall, applied: fleet_file.Applied, *, dry_run: bool
) -> schemas.FleetChange:
    """Return and log who changed what; the log has more names than the audit log."""
    listeners = frozenset(each.name for each in call.backend.settings.guest.listener)
    change = views.fleet_change(applied, dry_run=dry_run, listeners=listeners)
    names = {"added": change.added, "changed": change.changed, "removed": change.removed}
    told = {what: each.names for what, each in names.items() if each.count}
    if told and not change.dry_run:
        _log.info("an operator changed the fleet", by=call.by, **told)
    return change


@API.route("GET", "/v1/fleet/machines", AccessRole.VIEWER, table.FLEET)
async def list_machines(
    backend: Backend,
    *,
    scope: str = "",
    host: str = "",
    cursor: str = "",
    limit: routing.Limit = schemas.DEFAULT_LIMIT,
) -> schemas.MachinePage:
    """List machines, of one scope or on one host if given; host `unknown`: without a known host."""
    inventory, after = backend.inventory.snapshot(), routing.key_before("machines", cursor)
    if scope:
        inventory.scope(scope)
    fitting = await backend.search.find(inventory, "", after, limit + 1, scope=scope, host=host)
    found, following = routing.page("machines", fitting, limit, lambda machine: machine.key)
    shown = await backend.beside(views.machines, found, inventory)  # it looks at every event
    return schemas.MachinePage(machines=shown, next=following)


@API.route("GET", "/v1/fleet/machines/{name}", AccessRole.VIEWER, table.FLEET)
async def show_machine(backend: Backend, name: str) -> schemas.MachineDetail:
    """Show all that is known of a machine."""
    inventory = backend.inventory.snapshot()
    return await backend.beside(views.machine_detail, inventory.machine(name), inventory)


@API.route("GET", "/v1/fleet/tombstones", AccessRole.VIEWER, table.FLEET)
async def list_tombstones(
    backend: Backend, cursor: str = "", limit: routing.Limit = schemas.DEFAULT_LIMIT
) -> schemas.TombstonePage:
    """List machines that were preempted or terminated, and so left the fleet."""
    after = routing.key_before("tombstones", cursor)

    def question(reading: Reading) -> schemas.TombstonePage:  # there may be any number
        known = reading.tombstones()
        deleted = sorted(k for k, one in known.items() if one.event_type and k > after)
        found, following = routing.page("tombstones", deleted, limit, str)
        return schemas.TombstonePage(tombstones=tuple(known[k] for k in found), next=following)

    return await backend.read(question)


@API.route("GET", "/v1/fleet/scopes", AccessRole.VIEWER, table.FLEET)
async def list_scopes(
    backend: Backend, cursor: str = "", limit: routing.Limit = schemas.DEFAULT_LIMIT
) -> schemas.ScopePage:
    """List scopes."""
    inventory, after = backend.inventory.snapshot(), routing.key_before("scopes", cursor)

    def listed() -> schemas.ScopePage:
        keys = sorted(key for key in inventory.scopes if key > after)
        found, following = routing.page("scopes", keys, limit, str)
        scopes = views.scopes([inventory.scopes[key] for key in found], inventory)
        return schemas.ScopePage(scopes=scopes, next=following)

    return await backend.beside(listed)  # it looks at every machine


@API.route("GET", "/v1/fleet/scopes/{name}", AccessRole.VIEWER, table.FLEET)
async def show_scope(backend: Backend, name: str) -> schemas.ScopeDetail:
    """Show a scope with its machines by update domain."""
    inventory = backend.inventory.snapshot()
    return await backend.beside(views.scope_detail, inventory.scope(name), inventory)


# Maintenance.


@API.route("POST", "/v1/maintenances", AccessRole.VIEWER, status=201)
async def request_maintenance(
    call: OperatorCall,
    *,
    data: maintenance_schemas.MaintenanceRequest,
    dry_run: bool = False,
) -> maintenance_schemas.MaintenancePlan:
    """Request maintenance; the answer is what it became, and in a dry run nothing more."""
    data = _with_scopes(data, call.backend.inventory)
    plane = call.backend.plane if dry_run else _requesting(call, data)
    if (
        data.to_host
        and not await has_host(call.backend, data.to_host)
        and (await call.backend.hosts.recent_survey()).hosts  # else nobody can tell
    ):
        raise model.unknown("host", data.to_host)
    request = model.mapped(
        planner.Request,
        data,
        scope="".join(data.scopes),
        host="".join(data.hosts),
        requested_by=call.by,
        idempotency_key="" if dry_run else data.idempotency_key,
    )
    if data.has_units:
        return await _start(call, data, request, plane, dry_run=dry_run)
    if dry_run:
        state, now = call.backend.live_state(), call.backend.now()
        suppose = partial(maintenances.supposed, plane, state, request, now)
        async with call.backend.whole:
            plan = await call.backend.beside(suppose)
    else:
        plan = await call.backend.done(plane.request(request))
    detail = await _detail(call.backend, plan.maintenance, plan.operations)
    return maintenance_schemas.MaintenancePlan(
        **msgspec.structs.asdict(detail),
        dry_run=dry_run,
        superseded=await _shown(call.backend, plan.superseded),
        plan=None,
    )


def _with_scopes(
    data: maintenance_schemas.MaintenanceRequest, inventory: Inventory
) -> maintenance_schemas.MaintenanceRequest:
    """Return a request in which a name that a scope has, and no machine, is among the scopes."""
    names = {model.key(name): name for name in data.machines}
    scopes = {key for key in names if key in inventory.scopes and key not in inventory.machines}
    if not scopes:
        return data
    machines = tuple(name for key, name in names.items() if key not in scopes)
    scopes -= {*map(model.key, data.scopes)}
    named = (*data.scopes, *(name for key, name in names.items() if key in scopes))
    return msgspec.structs.replace(data, machines=machines, scopes=named)


def _requesting(call: OperatorCall, data: maintenance_schemas.MaintenanceRequest) -> Plane:
    """Return the plane for a request; the audit log names the targets also where it is refused."""
    targets = [*data.machines, *data.scopes, *data.hosts, *map("=".join, data.tags.items())]
    asked = f"{data.event_type} of {model.listed(targets) if targets else 'all hosts'}"
    return call.changing(Deed.REQUEST, asked, views.in_one_line)


async def _start(
    call: OperatorCall,
    data: maintenance_schemas.MaintenanceRequest,
    request: planner.Request,
    plane: Plane,
    *,
    dry_run: bool,
) -> maintenance_schemas.MaintenancePlan:
    """Prepare the units of a maintenance, and start it."""
    one_line(data.description or "", "description")
    for name in FOR_ONE:
        if getattr(data, name):
            message = f"at {name}: it is for named machines, one scope or one host, and no policy"
            raise model.Refused(ErrorCode.INVALID, message, where=name)
    if data.drain and (
        data.event_type is not EventType.REBOOT or not (data.hosts or data.all_hosts)
    ):
        message = "at drain: it is for a Reboot of hosts"
        raise model.Refused(ErrorCode.INVALID, message, where="drain")
    asked = maintenances.Asked(
        request=msgspec.structs.replace(request, machines=(), scope="", host="", notice_seconds=0),
        targets=model.mapped(maintenances.UnitTargets, data, tags=tuple(sorted(data.tags.items()))),
        policy=_policy(data),
        draining=model.DrainOptions(reboot=True) if data.drain else None,
    )
    made, plan = None, None
    if not dry_run:  # what was granted is not judged again: the fleet may be another by now
        made = await _granted(call.backend, asked)
    if made is None:
        survey = None
        if data.drain or (dry_run and call.backend.drains):
            survey = await call.backend.survey(dry_run=dry_run)
        made, planned = await _prepared(call.backend, asked, survey)
        async with call.backend.whole if dry_run else nullcontext():  # as for drains
            plan = await call.backend.beside(partial(planned, to_the_end=dry_run))
        if not dry_run:
            made = await call.backend.done(plane.order(maintenances.start, made, asked))
    number = made.number
    found = await call.backend.read(lambda r: r.operations_of_maintenance(number))
    detail = await _detail(call.backend, made, found.values())
    return maintenance_schemas.MaintenancePlan(
        **msgspec.structs.asdict(detail), dry_run=dry_run, superseded=(), plan=plan
    )


async def _granted(backend: Backend, asked: maintenances.Asked) -> model.Maintenance | None:
    """Return the maintenance that was started under the idempotency key of a request."""
    return await backend.read(lambda r: lookup.granted(r, asked.request, *asked.more))


async def _prepared(
    backend: Backend, asked: maintenances.Asked, survey: HostSurvey | None
) -> tuple[model.Maintenance, Callable[..., PlannedTurns]]:
    check = asked.policy.check
    if check and check not in backend.maintenances.checks.names:
        message = f"no check named {check!r} in the service's settings"
        raise model.Refused(ErrorCode.NOT_FOUND, message, what="check", name=check)
    state, policy = backend.live_state(), backend.settings.rules.policy
    now = backend.now()
    return await backend.beside(
        partial(maintenances.prepared, state, asked, policy, now=now, survey=survey)
    )


def _policy(data: maintenance_schemas.MaintenanceRequest) -> TurnPolicy:
    default = maintenance_schemas.PolicyBody()
    given = data.policy or default
    for name, needed in NEEDED.items():
        if getattr(given, name) != getattr(default, name) and not getattr(given, needed):
            message = f"at policy.{name}: it does nothing without {needed}"
            raise model.Refused(ErrorCode.INVALID, message, where=f"policy.{name}")
    notice_seconds = given.notice_seconds or data.notice_seconds
    return model.mapped(TurnPolicy, given, notice_seconds=notice_seconds)


@API.route("GET", "/v1/maintenances", AccessRole.VIEWER)
async def list_maintenances(
    backend: Backend, cursor: str = "", limit: routing.Limit = schemas.DEFAULT_LIMIT
) -> maintenance_schemas.MaintenancePage:
    """List what was asked for, newest first."""
    before, now = routing.key_before("maintenances", cursor), backend.now()
    inventory = backend.inventory.snapshot()

    def question(reading: Reading) -> maintenance_schemas.MaintenancePage:
        latest = reading.latest_maintenances(int(before) if before else None, limit + 1)
        found, following = routing.page("maintenances", latest, limit, lambda one: str(one.number))
        counts, live = reading.outcomes([one.number for one in found]), inventory.by_maintenance()
        shown = tuple(
            views.maintenance(
                one, counts.get(one.number, {}), live.get(one.number, ()), inventory, now
            )
            for one in found
        )
        return maintenance_schemas.MaintenancePage(maintenances=shown, next=following)

    return await backend.read(question)


@API.route("GET", "/v1/maintenances/{number:digits}", AccessRole.VIEWER)
async def show_maintenance(
    backend: Backend, number: ByNumber
) -> maintenance_schemas.MaintenanceDetail:
    """Show what was asked for, its units, and the operations that it became."""

    def question(reading: Reading) -> tuple[model.Maintenance | None, dict[str, model.Operation]]:
        found = reading.maintenances([number]).get(number)
        return found, reading.operations_of_maintenance(number)

    maintenance, operations = await backend.read(question)
    if maintenance is None:
        raise model.no_maintenance(number)
    return await _detail(backend, maintenance, operations.values())


@API.route("POST", "/v1/maintenances/{number:digits}/orders", AccessRole.OPERATOR)
async def order_maintenance(
    call: OperatorCall,
    number: ByNumber,
    data: maintenance_schemas.MaintenanceOrderRequest,
) -> maintenance_schemas.MaintenanceDetail:
    """Say how a maintenance goes on; the answer is the maintenance after it."""
    _judge_name("unit", data.order, data.unit, needed=data.order in OF_A_UNIT)
    plane = call.changing(
        Deed.ORDER, f"{data.order} {data.unit}".rstrip() + f" of maintenance {number}"
    )
    ordered = plane.order(maintenances.order, number, data.order, data.unit, by=call.by)
    await call.backend.done(ordered)
    return await show_maintenance(call.backend, number)


async def _detail(
    backend: Backend, value: model.Maintenance, operations: Iterable[model.Operation]
) -> maintenance_schemas.MaintenanceDetail:
    """Show one on another thread: while it goes on, this looks at every machine."""
    inventory, operations = backend.inventory.snapshot(), tuple(operations)
    counted = Counter(one.status for one in operations)
    return maintenance_schemas.MaintenanceDetail(
        maintenance=views.maintenance(value, counted, operations, inventory, backend.now()),
        policy=value.policy,
        units=await backend.beside(views.units, value, inventory),
        operations=await _shown(backend, operations),
    )


@API.route("GET", "/v1/events", AccessRole.VIEWER)
async def list_events(backend: Backend, scope: str = "", machine: str = "") -> schemas.EventList:
    """List the events of what is not over, by NotBefore, those that no guest sees yet last."""
    inventory = backend.inventory.snapshot()
    if scope:
        inventory.scope(scope)
    if machine:
        inventory.machine(machine)
    now = backend.now()

    def listed() -> schemas.EventList:
        live = inventory.live(scope=model.key(scope), machine=model.key(machine))
        found = [views.live_event(operation, event, inventory, now) for operation, event in live]
        last = datetime.max.replace(tzinfo=UTC)
        found.sort(key=lambda one: (one.not_before or last, *_numbers(one.operation), one.id))
        return schemas.EventList(now=now, events=tuple(found))

    return await backend.beside(listed)  # there may be one for each machine


def _numbers(operation: str) -> tuple[int, ...]:
    """Return the numbers in the id of an operation: 1.10 comes after 1.9."""
    return tuple(map(int, operation.split(".")))


@API.route("GET", "/v1/history", AccessRole.VIEWER)
async def read_history(  # noqa: PLR0913 - the filters are the query's parameters
    backend: Backend,
    *,
    machine: str = "",
    scope: str = "",
    maintenance: Number = None,
    event_type: tuple[EventType, ...] = (),
    status: tuple[EventStatus, ...] = (),
    since: schemas.Moment | None = None,
    until: schemas.Moment | None = None,
    cursor: str = "",
    limit: routing.Limit = schemas.DEFAULT_LIMIT,
) -> schemas.HistoryPage:
    """List operations, the newest announcement first, with who approved and how they ended."""
    routing.check_span(since, until)
    query = HistoryQuery(
        machine=model.key(machine),
        scope=model.key(scope),
        maintenance=maintenance,
        event_types=event_type,
        statuses=status,
        since=since,
        until=until,
        after=routing.place_before(cursor),
        limit=limit,
    )
    page = await backend.read(lambda reading: reading.history(query))
    if not page.operations and not cursor:  # a name that nobody has is a mistake
        if machine:
            backend.inventory.machine(machine)
        if scope:
            backend.inventory.scope(scope)
    following = routing.history_cursor(page)
    return schemas.HistoryPage(operations=await _shown(backend, page.operations), next=following)


# What operators do to pending maintenance.


@API.route("POST", "/v1/approvals", AccessRole.OPERATOR)
async def approve(
    call: OperatorCall, request: Request, data: schemas.ApprovalRequest
) -> schemas.OperationList:
    """Approve for the guests: all references or, if one is unknown, none."""
    address = request.client.host if request.client else ""
    plane = call.changing(Deed.APPROVE, data.references)
    approved = plane.approve_for_guests(data.references, by=call.by, address=address)
    return await _listed(call, approved)


@API.route("POST", "/v1/cancellations", AccessRole.OPERATOR)
async def cancel(call: OperatorCall, data: schemas.CancellationRequest) -> schemas.OperationList:
    """Cancel what has not started: all references or, if one is refused, none."""
    why = one_line(data.reason, "reason")
    reason = f"cancelled by {call.by}" + (f": {why}" if why else "")
    plane = call.changing(Deed.CANCEL, data.references, more=f": {why}" if why else "")
    return await _listed(call, plane.cancel(data.references, reason=reason, by=call.by))


@API.route("POST", "/v1/postponements", AccessRole.OPERATOR)
async def postpone(call: OperatorCall, data: schemas.PostponementRequest) -> schemas.OperationList:
    """Move Scheduled events later, all of them or none."""
    brief = times.brief(data.not_before, call.backend.now())
    plane = call.changing(Deed.POSTPONE, data.references, more=f" to {brief}")
    postponed = plane.postpone(data.references, data.not_before)
    return await _listed(call, postponed)


@API.route("GET", "/v1/holds", AccessRole.VIEWER)
async def list_holds(backend: Backend) -> schemas.HoldList:
    """List all holds, oldest first, with the operations that each keeps from starting."""
    holds = await backend.read(lambda reading: reading.holds())
    inventory = backend.inventory.snapshot()
    # It looks at every operation for each hold.
    shown = await backend.beside(lambda: tuple(views.holds(holds, inventory)))
    return schemas.HoldList(holds=shown)


@API.route("POST", "/v1/holds", AccessRole.OPERATOR, status=201)
async def hold(call: OperatorCall, data: schemas.HoldRequest) -> schemas.OperationList:
    """Block maintenance from starting until it ends; the answer is what is held now."""
    _judge_name("name", data.kind, data.name, needed=data.kind is not model.HoldKind.EVERYTHING)
    reason = one_line(data.reason, "reason")
    place = f"{data.kind} {data.name}".rstrip()
    ends = f" until {times.brief(data.until, call.backend.now())}" if data.until else ""
    plane = call.changing(Deed.HOLD, f"{place}{ends}: {reason}".removesuffix(": "))
    is_known = data.kind is model.HoldKind.HOST and await has_host(call.backend, data.name)
    held = plane.hold(
        data.kind,
        data.name,
        reason=reason,
        by=call.by,
        until=data.until,
        hosts=(data.name,) * is_known,
    )
    return await _listed(call, held)


async def has_host(backend: Backend, name: str) -> bool:
    """Tell whether a host of this name has machines, is drained, or is known to the connector."""
    machines = backend.inventory.snapshot().machines.values()
    there = name in backend.hosts.drains or await backend.beside(
        lambda: any(machine.host == name for machine in machines)
    )
    # Some may not answer for long, and a hold is in a hurry.
    return there or name in (await backend.hosts.recent_survey()).hosts


@API.route("DELETE", "/v1/holds", AccessRole.OPERATOR)
async def release(
    call: OperatorCall, kind: model.HoldKind, name: routing.Name = ""
) -> schemas.OperationList:
    """Release a hold; the answer is what it covered."""
    _judge_name("name", kind, name, needed=kind is not model.HoldKind.EVERYTHING)
    plane = call.changing(Deed.RELEASE, f"{kind} {name}".rstrip())
    released = plane.release(kind, name)
    return await _listed(call, released)


@API.route("GET", "/v1/alerts", AccessRole.VIEWER)
async def list_alerts(backend: Backend) -> schemas.AlertList:
    """List what needs an operator, oldest first."""
    now = backend.now()
    found = await backend.alerts(now)
    return schemas.AlertList(now=now, count=len(found), items=tuple(found[: schemas.MAX_ITEMS]))


@API.route("POST", "/v1/acknowledgements", AccessRole.OPERATOR)
async def acknowledge(
    call: OperatorCall, data: schemas.AcknowledgementRequest
) -> schemas.OperationList:
    """End the alerts, and the wait for machines, after operations: all of them or none."""
    even = ", even if down" if data.even_if_down else ""
    plane = call.changing(Deed.ACKNOWLEDGE, data.references, more=even)
    noted = plane.acknowledge(data.references, call.by, even_if_down=data.even_if_down)
    return await _listed(call, noted)


@API.route("POST", "/v1/resolutions", AccessRole.OPERATOR)
async def resolve(call: OperatorCall, data: schemas.ResolutionRequest) -> schemas.OperationList:
    """Record the result of operations whose outcome is unknown, or run them again; all or none."""
    plane = call.changing(Deed.RESOLVE, data.references, more=f": {data.verdict}")
    resolved = plane.resolve(data.references, data.verdict, call.by)
    return await _listed(call, resolved)


def _judge_name(where: str, what: str, name: str, *, needed: bool) -> None:
    """Refuse (INVALID) a name where none is taken, and none where one is needed."""
    if needed != bool(name):
        wanted = f"needs a {where}" if needed else f"takes no {where}, got {name!r}"
        message = f"at {where}: '{what}' {wanted}"
        raise model.Refused(ErrorCode.INVALID, message, where=where)


async def _shown(
    backend: Backend, operations: Iterable[model.Operation]
) -> tuple[schemas.OperationView, ...]:
    """Show operations, on another thread: a maintenance may have ten thousand."""
    inventory, now = backend.inventory.snapshot(), backend.now()
    return await backend.beside(views.operations, tuple(operations), inventory, now)


async def _listed(
    call: OperatorCall, changed: "Future[tuple[model.Operation, ...]]"
) -> schemas.OperationList:
    operations = await call.backend.done(changed)
    return schemas.OperationList(operations=await _shown(call.backend, operations))


# Hosts.


@API.route("GET", "/v1/hosts", AccessRole.VIEWER, table.HOSTS)
async def list_hosts(backend: Backend) -> schemas.HostList:
    """List the hosts that the connector knows, as a look at them shows them now."""
    survey = await backend.hosts.recent_survey()
    drains = backend.hosts.drains.items()
    open_drains = {name for name, drain in drains if drain.state is not model.HostState.UP}
    watch = backend.relays
    relayed = {token.host for token in watch.tokens.values()} if watch is not None else set()
    names = sorted(survey.hosts.keys() | open_drains | relayed)
    shown = await shown_hosts(backend, names, survey)
    return schemas.HostList(now=backend.now(), trouble=survey.trouble, hosts=shown)


async def shown_hosts(
    backend: Backend, names: Iterable[str], survey: HostSurvey
) -> tuple[schemas.HostView, ...]:
    """Show hosts, a few in each turn of the loop, whose state drains and relays are."""
    shown: list[schemas.HostView] = []
    for name in names:
        drains, watch = backend.hosts.drains, backend.relays
        shown.append(views.host(name, survey, drains, watch, backend.now()))
        if len(shown) % HOSTS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return tuple(shown)


@API.route("GET", "/v1/hosts/{name}", AccessRole.VIEWER, table.HOSTS)
async def show_host(backend: Backend, name: str) -> schemas.HostDetail:
    """Show a host, the machines on it, and its latest drain."""
    survey = await backend.hosts.recent_survey()
    relay = views.relay(name, backend.relays, backend.now())
    if name not in survey.hosts and name not in backend.hosts.drains and relay is None:
        raise model.unknown("host", name)
    return await _host(backend, name, survey)


@API.route("POST", "/v1/hosts/drain", AccessRole.VIEWER, table.HOSTS)
async def drain_hosts(
    call: OperatorCall,
    *,
    data: schemas.HostDrainRequest,
    dry_run: bool = False,
) -> schemas.HostDrainPlans:
    """Drain a host, or several as units of a maintenance; in a dry run, tell the plan only."""
    backend = call.backend
    # First: the audit log names the hosts where anything below refuses it, too.
    plane = backend.plane if dry_run else call.changing(Deed.DRAIN, data.hosts)
    survey = await backend.survey(dry_run=dry_run)
    now = backend.now()
    wanted = [
        model.mapped(
            model.Drain,
            data,
            host=host,
            state=model.HostState.UP,
            requested_by=call.by,
            requested_at=now,
            changed_at=now,
        )
        for host in data.hosts
    ]
    asked = _asked_of(data, call.by)
    is_started = not dry_run and len(wanted) > 1
    made = await _granted(backend, asked) if is_started else None
    async with backend.whole if dry_run else nullcontext():  # a change waits for no dry run
        state, judge = backend.live_state(), not dry_run and made is None
        plan = partial(host_plan.planned, state, wanted, survey, judge=judge)
        plans = await backend.beside(plan)  # of a thousand hosts it takes seconds
    if is_started and made is None:
        made, _ = await _prepared(backend, asked, survey)
        made = await backend.done(plane.order(maintenances.start, made, asked))
    elif not dry_run and made is None:
        await backend.done(plane.drain_host(wanted[0], survey))
    return schemas.HostDrainPlans(
        dry_run=dry_run,
        plans=plans,
        maintenance=made.number if made is not None else None,
        states=await shown_hosts(backend, data.hosts, survey),
    )


def _asked_of(data: schemas.HostDrainRequest, by: str) -> maintenances.Asked:
    """Return the maintenance that drains several hosts, in the order in which they are named."""
    moves = {} if data.reboot else {"event_type": EventType.FREEZE, "live_migration": True}
    request = model.mapped(planner.Request, data, **{"event_type": EventType.REBOOT, **moves})
    return maintenances.Asked(
        request=msgspec.structs.replace(request, requested_by=by),
        targets=maintenances.UnitTargets(hosts=data.hosts),
        policy=TurnPolicy(order=TurnOrder.LISTED),
        draining=model.mapped(model.DrainOptions, data),
    )


@API.route("POST", "/v1/hosts/{name}/orders", AccessRole.OPERATOR, table.HOSTS)
async def order_drain(call: OperatorCall, name: str, data: schemas.HostOrder) -> schemas.HostDetail:
    """Say how the drain of a host goes on; the answer is the host after it."""
    _judge_name("machine", data.order, data.machine, needed=data.order in OF_A_MACHINE)

    def order(view: host_drain.DrainView, now: datetime) -> host_drain.DrainStep:
        return host_drain.order(view, data.order, now, data.machine)

    _log.info("an operator orders", host=name, order=data.order, by=call.by)
    ordered = f"{data.order} {data.machine}".rstrip()
    plane = call.changing(Deed.ORDER_DRAIN, f"{ordered} in the drain of {name}")
    await call.backend.done(plane.order_drain(name, order))
    return await _host(call.backend, name, await call.backend.hosts.recent_survey())


async def _host(backend: Backend, name: str, survey: HostSurvey) -> schemas.HostDetail:
    """Show a host, with its drain as the store has it: another replica may have just begun it."""

    def question(reading: Reading) -> tuple[model.Drain | None, dict[str, model.Operation]]:
        drain = reading.drain(name)
        ids = [f"{number}.1" for number in drain.maintenances] if drain is not None else []
        return drain, reading.operations(ids)

    drain, operations = await backend.read(question)
    inventory, now = backend.inventory.snapshot(), backend.now()
    drains = {name: drain} if drain is not None else {}
    return schemas.HostDetail(
        host=views.host(name, survey, drains, backend.relays, now),
        # Not on the loop: the first look-up in a survey goes over all machines.
        guests=await backend.beside(views.guests, name, survey, inventory),
        drain=views.drain(drain, operations, inventory, now) if drain is not None else None,
    )
