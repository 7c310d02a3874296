"""The operators' API: what each route does.

docs/reference/api.md describes each route; a test compares.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import structlog
from litestar import MediaType, Request, Response, get, put
from litestar.datastructures import State
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, PathParameter, QueryParameter

from forewarn.control import relay_watch
from forewarn.control.accounts import OperatorRequest
from forewarn.maintenance import fleet, host_drain, model, planner
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.relays import RelayToken
from forewarn.server import secret_files
from forewarn.server.operator import (
    metrics,
    requests,
    routing,
    schemas,
    views,
)
from forewarn.server.operator.errors import RESPONSES, RETRY_SECONDS
from forewarn.server.operator.requests import (
    Backend,
    EncodedBody,
    TheBackend,
    TheCaller,
    one_line,
)
from forewarn.store.port import HistoryQuery, Reading
from forewarn.version import __version__
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

InScope = Annotated[str, QueryParameter(name="scope")]
Number = Annotated[int | None, QueryParameter(ge=1, le=schemas.MAX_NUMBER)]
ByNumber = Annotated[int, PathParameter(le=schemas.MAX_NUMBER)]

UNKNOWN: Final = "unknown"
"""The filter for machines without a known host, as after a Redeploy that named no new one."""

_log = structlog.get_logger(__name__)


# The fleet.


@put(
    "/v1/fleet",
    tags=[routing.FLEET],
    responses=RESPONSES,
    dto=EncodedBody[fleet.Fleet],
    return_dto=None,
    request_max_body_size=requests.MAX_FLEET_BODY,
)
async def apply_fleet(
    backend: TheBackend,
    caller: TheCaller,
    *,
    data: JSONBody[bytes],
    prune: FromQuery[bool] = False,
    again: FromQuery[bool] = False,
    allow_empty: FromQuery[bool] = False,
    dry_run: FromQuery[bool] = False,
) -> schemas.FleetChange:
    """Make the fleet match the body, all or nothing; only `prune` removes machines.

    A `prune` that would leave no machine is refused without `allow_empty`. Machines that were
    preempted or terminated are left out unless `again` adds them.
    """
    wanted = await asyncio.to_thread(requests.decoded_fleet, data)
    plane = backend.plane if dry_run else backend.changing(caller, told=views.fleet_in_one_line)
    applied = await backend.done(
        plane.apply_fleet(
            wanted, prune=prune, again=again, allow_empty=allow_empty, dry_run=dry_run
        )
    )
    # Not on the loop: it looks at every machine.
    return await asyncio.to_thread(_changed, backend, applied, caller, dry_run=dry_run)


@routing.get("/v1/fleet", routing.FLEET)
async def export_fleet(backend: TheBackend) -> fleet.Fleet:
    """Return the fleet as its file; to apply it changes nothing."""
    inventory = backend.inventory
    scopes, machines = tuple(inventory.scopes.values()), tuple(inventory.machines.values())
    return await asyncio.to_thread(fleet.exported, scopes, machines)


@routing.delete("/v1/fleet/machines", routing.FLEET)
async def remove_machines(
    backend: TheBackend,
    caller: TheCaller,
    name: routing.Names,
) -> schemas.FleetChange:
    """Remove machines, all or none, and the scopes that this leaves empty; repeat `name`."""
    plane = backend.changing(caller, model.listed(name), told=views.fleet_in_one_line)
    applied = await backend.done(plane.remove_machines(name))
    return _changed(backend, applied, caller, dry_run=False)


def _changed(
    backend: Backend, applied: fleet.Applied, caller: OperatorRequest, *, dry_run: bool
) -> schemas.FleetChange:
    """Return and log who changed what; the log has more names than the audit log."""
    change = views.fleet_change(applied, dry_run=dry_run, listeners=backend.listeners)
    names = {"added": change.added, "changed": change.changed, "removed": change.removed}
    told = {what: each.names for what, each in names.items() if each.count}
    if told and not change.dry_run:
        _log.info("an operator changed the fleet", by=caller.by, **told)
    return change


@routing.get("/v1/fleet/machines", routing.FLEET)
async def list_machines(
    backend: TheBackend,
    *,
    in_scope: InScope = "",
    host: FromQuery[str] = "",
    cursor: FromQuery[str] = "",
    limit: routing.Limit = schemas.DEFAULT_LIMIT,
) -> schemas.MachinePage:
    """List machines, of one scope or on one host if given; host `unknown`: without a known host."""
    if in_scope:
        _scope(backend, in_scope)
    hosts = {host, ""} if host == UNKNOWN else {host}
    fitting = (
        machine
        for machine in backend.inventory.machines_after(requests.key_before("machines", cursor))
        if (not in_scope or machine.scope == model.key(in_scope))
        and (not host or machine.host in hosts)
    )
    found, following = requests.page("machines", fitting, limit, lambda machine: machine.key)
    return schemas.MachinePage(machines=views.machines(found, backend.inventory), next=following)


@routing.get("/v1/fleet/machines/{name:str}", routing.FLEET)
async def show_machine(backend: TheBackend, name: FromPath[str]) -> schemas.MachineDetail:
    """Show all that is known of a machine."""
    machine = backend.inventory.machines.get(model.key(name))
    if machine is None:
        raise model.unknown("machine", name)
    return views.machine_detail(machine, backend.inventory)


@routing.get("/v1/fleet/tombstones", routing.FLEET)
async def list_tombstones(
    backend: TheBackend, cursor: FromQuery[str] = "", limit: routing.Limit = schemas.DEFAULT_LIMIT
) -> schemas.TombstonePage:
    """List machines that were preempted or terminated, and so left the fleet."""
    after = requests.key_before("tombstones", cursor)
    tombstones = await backend.read(lambda reading: reading.tombstones())
    deleted = sorted(k for k, tombstone in tombstones.items() if tombstone.event_type and k > after)
    found, following = requests.page("tombstones", deleted, limit, str)
    return schemas.TombstonePage(
        tombstones=tuple(tombstones[name] for name in found), next=following
    )


@routing.get("/v1/fleet/scopes", routing.FLEET)
async def list_scopes(
    backend: TheBackend, cursor: FromQuery[str] = "", limit: routing.Limit = schemas.DEFAULT_LIMIT
) -> schemas.ScopePage:
    """List scopes."""
    scopes = backend.inventory.scopes_after(requests.key_before("scopes", cursor))
    found, following = requests.page("scopes", scopes, limit, lambda scope: scope.key)
    return schemas.ScopePage(scopes=views.scopes(found, backend.inventory), next=following)


@routing.get("/v1/fleet/scopes/{name:str}", routing.FLEET)
async def show_scope(backend: TheBackend, name: FromPath[str]) -> schemas.ScopeDetail:
    """Show a scope with its machines by update domain."""
    return views.scope_detail(_scope(backend, name), backend.inventory)


def _scope(backend: Backend, name: str) -> model.Scope:
    scope = backend.inventory.scopes.get(model.key(name))
    if scope is None:
        raise model.unknown("scope", name)
    return scope


# Maintenance.


@routing.post("/v1/maintenance", schemas.MaintenanceRequest, status=201)
async def request_maintenance(
    backend: TheBackend,
    caller: TheCaller,
    *,
    data: JSONBody[schemas.MaintenanceRequest],
    dry_run: FromQuery[bool] = False,
) -> schemas.MaintenancePlan:
    """Request maintenance; the answer is the operations and events that it became."""
    request = model.mapped(
        planner.Request,
        data,
        not_before=data.not_before and requests.in_utc(data.not_before, "not_before"),
        opens_at=data.opens_at and requests.in_utc(data.opens_at, "opens_at"),
        closes_at=data.closes_at and requests.in_utc(data.closes_at, "closes_at"),
        requested_by=caller.by,
    )
    plane = backend.plane if dry_run else backend.changing(caller, told=views.plan_in_one_line)
    plan = await backend.done(plane.request(request, dry_run=dry_run))
    ((view, further),) = views.maintenances([plan.maintenance], backend.inventory)
    return schemas.MaintenancePlan(
        dry_run=dry_run,
        maintenance=view,
        further=further,
        operations=_shown(backend, plan.operations),
        superseded=_shown(backend, plan.superseded),
    )


@routing.get("/v1/maintenance")
async def list_maintenances(
    backend: TheBackend, cursor: FromQuery[str] = "", limit: routing.Limit = schemas.DEFAULT_LIMIT
) -> schemas.MaintenancePage:
    """List what was asked for, newest first."""
    before = requests.key_before("maintenances", cursor)
    latest = await backend.read(
        lambda reading: reading.latest_maintenances(int(before) if before else None, limit + 1)
    )
    found, following = requests.page("maintenances", latest, limit, lambda one: str(one.number))
    shown = views.maintenances(found, backend.inventory)
    return schemas.MaintenancePage(maintenances=tuple(one for one, _ in shown), next=following)


@routing.get("/v1/maintenance/{number:int}")
async def show_maintenance(backend: TheBackend, number: ByNumber) -> schemas.MaintenanceDetail:
    """Show what was asked for and what it became."""

    def question(reading: Reading) -> tuple[model.Maintenance | None, dict[str, model.Operation]]:
        found = reading.maintenances([number]).get(number)
        return found, reading.operations_of_maintenance(number)

    maintenance, operations = await backend.read(question)
    if maintenance is None:
        message = f"no maintenance {number}: see 'forewarn maintenance list'"
        raise model.Refused(ErrorCode.NOT_FOUND, message, maintenance=number)
    ((view, further),) = views.maintenances([maintenance], backend.inventory)
    return schemas.MaintenanceDetail(
        maintenance=view, further=further, operations=_shown(backend, operations.values())
    )


@routing.get("/v1/events")
async def list_events(
    backend: TheBackend, in_scope: InScope = "", machine: FromQuery[str] = ""
) -> schemas.EventList:
    """List the events of what is not over, by NotBefore, also those that no guest sees."""
    inventory = backend.inventory
    if in_scope:
        _scope(backend, in_scope)
    if machine and model.key(machine) not in inventory.machines:
        raise model.unknown("machine", machine)
    now = backend.now()
    found = [
        views.live_event(operation, event, inventory, now)
        for operation, event in inventory.live(
            scope=model.key(in_scope), machine=model.key(machine)
        )
    ]
    found.sort(key=lambda event: (event.not_before, event.maintenance, event.operation, event.id))
    return schemas.EventList(now=now, events=tuple(found))


@routing.get("/v1/history")
async def read_history(  # noqa: PLR0913 - the filters are the query's parameters
    backend: TheBackend,
    *,
    machine: FromQuery[str] = "",
    in_scope: InScope = "",
    maintenance: Number = None,
    event_type: FromQuery[tuple[EventType, ...]] = (),
    status: FromQuery[tuple[EventStatus, ...]] = (),
    since: FromQuery[datetime | None] = None,
    until: FromQuery[datetime | None] = None,
    cursor: FromQuery[str] = "",
    limit: routing.Limit = schemas.DEFAULT_LIMIT,
) -> schemas.HistoryPage:
    """List operations, the newest announcement first, with who approved and how they ended."""
    query = HistoryQuery(
        machine=model.key(machine),
        scope=model.key(in_scope),
        maintenance=maintenance,
        event_types=event_type,
        statuses=status,
        since=since and requests.in_utc(since, "since"),
        until=until and requests.in_utc(until, "until"),
        after=requests.place_before(cursor),
        limit=limit,
    )
    page = await backend.read(lambda reading: reading.history(query))
    following = requests.history_cursor(page)
    return schemas.HistoryPage(operations=_shown(backend, page.operations), next=following)


# What operators do to pending maintenance.


@routing.post("/v1/approvals", schemas.ApprovalRequest)
async def approve(
    backend: TheBackend,
    caller: TheCaller,
    request: Request[Any, Any, Any],
    data: JSONBody[schemas.ApprovalRequest],
) -> schemas.OperationList:
    """Approve for the guests: all references or, if one is unknown, none."""
    address = request.client.host if request.client else ""
    plane = backend.changing(caller, model.listed(data.references, routing.MAX_LISTED))
    approved = plane.approve_for_guests(data.references, by=caller.by, address=address)
    return await _listed(backend, approved)


@routing.post("/v1/cancellations", schemas.CancellationRequest)
async def cancel(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.CancellationRequest]
) -> schemas.OperationList:
    """Cancel what has not started: all references or, if one is refused, none."""
    why = one_line(data.reason, "reason")
    reason = f"cancelled by {caller.by}" + (f": {why}" if why else "")
    plane = backend.changing(caller, model.listed(data.references, routing.MAX_LISTED))
    return await _listed(backend, plane.cancel(data.references, reason=reason))


@routing.post("/v1/maintenance/{number:int}/resume", schemas.ResumptionRequest)
async def resume(
    backend: TheBackend,
    caller: TheCaller,
    number: ByNumber,
    data: JSONBody[schemas.ResumptionRequest],
) -> schemas.OperationList:
    """Resume the paused rolling updates of a maintenance; the answer is what was announced."""
    del data  # it is empty
    plane = backend.changing(caller, str(number))
    return await _listed(backend, plane.resume(number, by=caller.by))


@routing.post("/v1/postponements", schemas.PostponementRequest)
async def postpone(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.PostponementRequest]
) -> schemas.OperationList:
    """Move Scheduled events later, all of them or none."""
    later = requests.in_utc(data.not_before, "not_before")
    named = model.listed(data.references, routing.MAX_LISTED)
    plane = backend.changing(caller, f"{named} to {later.isoformat()}")
    postponed = plane.postpone(data.references, later, by=caller.by)
    return await _listed(backend, postponed)


@routing.get("/v1/holds")
async def list_holds(backend: TheBackend) -> schemas.HoldList:
    """List all holds, oldest first, with the operations that each keeps from starting."""
    holds = await backend.read(lambda reading: reading.holds())
    return schemas.HoldList(holds=tuple(views.holds(holds, backend.inventory)))


@routing.post("/v1/holds", schemas.HoldRequest, status=201)
async def hold(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.HoldRequest]
) -> schemas.OperationList:
    """Block maintenance from starting until released; the answer is what is held now."""
    _judge_place(data.kind, data.name)
    reason = one_line(data.reason, "reason")
    plane = backend.changing(caller, f"{data.kind} {data.name}".rstrip())
    held = plane.hold(data.kind, data.name, reason=reason, by=caller.by)
    return await _listed(backend, held)


@routing.delete("/v1/holds")
async def release(
    backend: TheBackend, caller: TheCaller, kind: FromQuery[model.HoldKind], name: routing.Name = ""
) -> schemas.OperationList:
    """Release a hold; the answer is what it covered."""
    _judge_place(kind, name)
    plane = backend.changing(caller, f"{kind} {name}".rstrip())
    released = plane.release(kind, name, by=caller.by)
    return await _listed(backend, released)


@routing.get("/v1/alerts")
async def list_alerts(backend: TheBackend) -> schemas.AlertList:
    """List what needs an operator, oldest first."""
    now = backend.now()
    found = await backend.alerts(now)
    return schemas.AlertList(now=now, count=len(found), items=tuple(found[: schemas.MAX_ITEMS]))


@routing.post("/v1/acknowledgements", schemas.AcknowledgementRequest)
async def acknowledge(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.AcknowledgementRequest]
) -> schemas.OperationList:
    """End the alerts, and the wait for machines, after operations: all of them or none."""
    plane = backend.changing(caller, model.listed(data.references, routing.MAX_LISTED))
    noted = plane.acknowledge(data.references, caller.by)
    return await _listed(backend, noted)


@routing.post("/v1/resolutions", schemas.ResolutionRequest)
async def resolve(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.ResolutionRequest]
) -> schemas.OperationList:
    """Record the result of operations whose outcome is unknown, or run them again; all or none."""
    named = model.listed(data.references, routing.MAX_LISTED)
    plane = backend.changing(caller, f"{named}: {data.verdict}")
    resolved = plane.resolve(data.references, data.verdict, caller.by)
    return await _listed(backend, resolved)


def _judge_place(kind: model.HoldKind, name: str) -> None:
    if (kind is model.HoldKind.EVERYTHING) == bool(name):
        message = (
            f"at name: 'everything' takes no name, got {name!r}"
            if name
            else f"at name: expected the {kind}'s name"
        )
        raise model.Refused(ErrorCode.INVALID, message, where="name")


def _shown(
    backend: Backend, operations: Iterable[model.Operation]
) -> tuple[schemas.OperationView, ...]:
    return views.operations(operations, backend.inventory, backend.now())


async def _listed(
    backend: Backend, changed: "Future[tuple[model.Operation, ...]]"
) -> schemas.OperationList:
    operations = await backend.done(changed)
    return schemas.OperationList(operations=_shown(backend, operations))


# Hosts.


@routing.get("/v1/hosts", routing.HOSTS)
async def list_hosts(backend: TheBackend) -> schemas.HostList:
    """List the hosts that the connector knows, as a look at them shows them now."""
    survey = await backend.hosts.recent_survey()
    drains = backend.hosts.drains
    open_drains = {name for name, drain in drains.items() if drain.state is not model.HostState.UP}
    watch = backend.relays
    relayed = {token.host for token in watch.tokens.values()} if watch is not None else set()
    names = sorted(survey.hosts.keys() | open_drains | relayed)
    return schemas.HostList(
        now=backend.now(),
        trouble=survey.trouble,
        hosts=tuple(
            views.host(name, survey, drains.get(name), views.relay(name, watch)) for name in names
        ),
    )


@routing.get("/v1/hosts/{name:str}", routing.HOSTS)
async def show_host(backend: TheBackend, name: FromPath[str]) -> schemas.HostDetail:
    """Show a host, the machines on it, and its latest drain."""
    survey = await backend.hosts.recent_survey()
    relay = views.relay(name, backend.relays)
    if name not in survey.hosts and name not in backend.hosts.drains and relay is None:
        raise model.unknown("host", name)
    return await _host(backend, name, survey)


@routing.post("/v1/hosts/drain", schemas.HostDrainRequest, routing.HOSTS)
async def drain_hosts(
    backend: TheBackend,
    caller: TheCaller,
    *,
    data: JSONBody[schemas.HostDrainRequest],
    dry_run: FromQuery[bool] = False,
) -> schemas.HostDrainPlans:
    """Drain hosts, one after another; the answer is the plan, and in a dry run nothing more."""
    survey = await backend.hosts.survey()
    now = backend.now()
    wanted = [
        model.mapped(
            model.Drain,
            data,
            host=host,
            state=model.HostState.UP,
            after=before,
            requested_by=caller.by,
            requested_at=now,
            changed_at=now,
        )
        for before, host in zip(("", *data.hosts), data.hosts, strict=False)
    ]
    plans = await backend.done(backend.plane.plan_drains(wanted, survey))
    if not dry_run:
        plane = backend.changing(caller, model.listed(data.hosts, routing.MAX_LISTED))
        await backend.done(plane.drain_hosts(wanted, survey))
    return schemas.HostDrainPlans(
        dry_run=dry_run,
        plans=plans,
        states=tuple(
            views.host(one.host, survey, backend.hosts.drains.get(one.host)) for one in wanted
        ),
    )


@routing.post("/v1/hosts/{name:str}/orders", schemas.HostOrder, routing.HOSTS)
async def order_drain(
    backend: TheBackend,
    caller: TheCaller,
    name: FromPath[str],
    data: JSONBody[schemas.HostOrder],
) -> schemas.HostDetail:
    """Say how the drain of a host goes on; the answer is the host after it."""
    kind = schemas.HostOrderKind
    if (data.order in {kind.SKIP, kind.STOP}) != bool(data.machine):
        message = f"at machine: '{data.order}' " + (
            "takes no machine" if data.machine else "needs the name of a machine"
        )
        raise model.Refused(ErrorCode.INVALID, message, where="machine")
    action = model.AuditAction(data.order)

    def order(view: host_drain.DrainView, now: datetime) -> host_drain.DrainStep:
        return host_drain.order(view, action, caller.by, now, data.machine)

    _log.info("an operator orders", host=name, order=data.order, by=caller.by)
    plane = backend.changing(caller, f"{data.order} {data.machine}".rstrip())
    await backend.done(plane.order_drain(name, order))
    return await _host(backend, name, await backend.hosts.recent_survey())


async def _host(backend: Backend, name: str, survey: HostSurvey) -> schemas.HostDetail:
    drain = backend.hosts.drains.get(name)
    ids = [f"{number}.1" for number in drain.maintenances] if drain is not None else []
    operations = await backend.read(lambda reading: reading.operations(ids))
    return schemas.HostDetail(
        host=views.host(name, survey, drain, views.relay(name, backend.relays)),
        guests=views.guests(name, survey, backend.inventory),
        drain=views.drain(drain, operations, backend.inventory) if drain is not None else None,
    )


@routing.post("/v1/relays/tokens", schemas.RelayTokenRequest, routing.HOSTS, status=201)
async def create_relay_token(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.RelayTokenRequest]
) -> schemas.NewRelayToken:
    """Make a token for the relay of a host; the answer is the only one that ever shows it.

    The token that the relay uses stays valid until the new one is used.
    """
    host, token = one_line(data.host, "host"), backend.make_token()
    made = RelayToken(
        digest=secret_files.digest(token.encode()),
        host=host,
        created_by=caller.by,
        created_at=backend.now(),
    )
    plane = backend.changing(caller, host)
    made = await backend.done(plane.order(relay_watch.create_token, made))
    _log.info("an operator made a token for a relay", host=host, by=made.created_by)
    return schemas.NewRelayToken(host=host, token=token, created_at=made.created_at)


@routing.delete("/v1/relays/tokens", routing.HOSTS)
async def revoke_relay_tokens(
    backend: TheBackend, caller: TheCaller, host: FromQuery[str]
) -> schemas.VoidRelayTokens:
    """Revoke all tokens of a host's relay: it is refused from now on."""
    plane = backend.changing(caller, host)
    revoked = await backend.done(plane.order(relay_watch.revoke_tokens, host))
    _log.info("an operator revoked the tokens of a relay", host=host, by=caller.by)
    return schemas.VoidRelayTokens(host=host, revoked=revoked)


# The service itself.


@routing.get("/v1/replicas", routing.SERVICE)
async def list_replicas(backend: TheBackend) -> schemas.ReplicaList:
    """List the replicas that share the database: by their rows, each as of its last beat."""
    rows = backend.replicas.all()
    return schemas.ReplicaList(
        now=backend.now(), replicas=views.replicas(rows, backend.replicas.own, backend.inventory)
    )


@routing.get("/v1/clock", routing.SERVICE)
async def clock(backend: TheBackend) -> schemas.ServiceTime:
    """Tell the service's own time, which all its times are in."""
    return _service_time(backend)


@routing.post("/v1/clock", schemas.ClockRequest, routing.SERVICE)
async def trust_clock(
    backend: TheBackend, caller: TheCaller, data: JSONBody[schemas.ClockRequest]
) -> schemas.ServiceTime:
    """Trust the machine's clock as it is; the time that it is ahead lengthens every notice."""
    assert data.trust  # the schema takes nothing else
    _log.warning("an operator trusts the clock", by=caller.by)
    await asyncio.shield(backend.heartbeat.believe())
    return _service_time(backend)


def _service_time(backend: Backend) -> schemas.ServiceTime:
    doubt = backend.heartbeat.clock_doubt()
    return schemas.ServiceTime(
        now=backend.now(), scale=backend.scale, doubt=doubt.message if doubt else ""
    )


@get("/healthz", tags=[routing.SERVICE])
async def health() -> schemas.Health:
    """Tell that the process is alive."""
    return schemas.Health(status="alive", version=__version__)


@get(
    "/readyz",
    tags=[routing.SERVICE],
    responses={
        503: ResponseSpec(schemas.Readiness, generate_examples=False, description="Not ready")
    },
)
async def readiness(backend: TheBackend) -> Response[schemas.Readiness]:
    """Tell whether the service does all its work, and why not."""
    reasons = (await backend.readiness()).reasons
    answer = schemas.Readiness(ready=not reasons, reasons=reasons)
    if not reasons:
        return Response(answer)
    return Response(answer, status_code=503, headers={"Retry-After": str(RETRY_SECONDS)})


@get("/metrics", tags=[routing.SERVICE], include_in_schema=False)
async def scrape(backend: TheBackend) -> Response[bytes]:
    """Return every figure of the service for Prometheus."""
    # As a header: the framework would add a second charset to a media type.
    return Response(await metrics.render(backend), headers={"content-type": metrics.CONTENT_TYPE})


@get("/v1/schema", tags=[routing.SERVICE], include_in_schema=False)
async def schema(request: Request[Any, Any, State]) -> Response[bytes]:
    """Return this API as OpenAPI, in JSON."""
    described = msgspec.json.encode(request.app.openapi_schema.to_schema())
    return Response(described, media_type=MediaType.JSON)
