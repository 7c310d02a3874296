"""The fleet: apply, list, show, remove."""

from typing import Annotated

import msgspec
import structlog
from litestar import delete, get, put
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter

from forewarn.maintenance import fleet
from forewarn.maintenance.model import Refused, Scope, key
from forewarn.server.operator import bodies, cursors, schemas, views
from forewarn.server.operator.desk import AtDesk, Desk
from forewarn.vocabulary import ErrorCode

Limit = Annotated[int, QueryParameter(ge=1, le=schemas.MAX_LIMIT)]
WhoAsks = Annotated[str, QueryParameter(max_length=256)]
InScope = Annotated[str, QueryParameter(name="scope")]

TAGS = ["fleet"]

_log = structlog.get_logger(__name__)


@put(
    "/v1/fleet",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="applyFleet",
    dto=bodies.Strict[fleet.Fleet],
    return_dto=None,
    request_max_body_size=bodies.MAX_FLEET_BODY,
)
async def apply_fleet(
    desk: AtDesk,
    *,
    data: JSONBody[fleet.Fleet],
    prune: FromQuery[bool] = False,
    again: FromQuery[bool] = False,
    allow_empty: FromQuery[bool] = False,
    dry_run: FromQuery[bool] = False,
    by: WhoAsks = "",
) -> schemas.FleetChange:
    """Make the fleet be as the body says, all or nothing; only `prune` removes.

    A `prune` that would leave no machine at all is refused, unless `allow_empty` means it.
    Machines that were preempted or terminated are left out, unless `again` adds them.
    """
    bodies.judge_text(by, "by")
    applied = await desk.done(
        desk.plane.apply_fleet(
            data, prune=prune, again=again, allow_empty=allow_empty, dry_run=dry_run
        )
    )
    change = views.fleet_change(applied, dry_run=dry_run, listeners=desk.listeners)
    return _told(change, by)


@delete(
    "/v1/fleet/machines",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="removeMachines",
    status_code=200,
    dto=bodies.Strict[schemas.Removal],
    return_dto=None,
)
async def remove_machines(desk: AtDesk, data: JSONBody[schemas.Removal]) -> schemas.FleetChange:
    """Take machines out of the fleet, all or none, with scopes that they leave empty."""
    bodies.judge_text(data.by, "by")
    applied = await desk.done(desk.plane.remove_machines(data.names))
    change = views.fleet_change(applied, dry_run=False, listeners=desk.listeners)
    return _told(change, data.by)


@get("/v1/fleet/machines", tags=TAGS, responses=bodies.REFUSALS, operation_id="listMachines")
async def list_machines(
    desk: AtDesk,
    *,
    in_scope: InScope = "",
    host: FromQuery[str] = "",
    cursor: FromQuery[str] = "",
    limit: Limit = schemas.DEFAULT_LIMIT,
) -> schemas.MachinePage:
    """List machines, of one scope or on one host if asked so; `unknown` for no known host."""
    if in_scope:
        _scope(desk, in_scope)
    found, following = desk.roster.page_of_machines(
        scope=key(in_scope), host=host, after=cursors.place("machines", cursor), limit=limit
    )
    return schemas.MachinePage(
        machines=views.machines(found, desk.roster, desk.callers),
        next=cursors.after("machines", following),
    )


@get(
    "/v1/fleet/machines/{name:str}",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="showMachine",
)
async def show_machine(desk: AtDesk, name: FromPath[str]) -> schemas.MachineDetail:
    """Show all that is known of a machine."""
    machine = desk.roster.machines.get(key(name))
    if machine is None:
        raise _unknown("machine", name)
    return views.machine_detail(machine, desk.roster, desk.callers)


@get("/v1/fleet/lost", tags=TAGS, responses=bodies.REFUSALS, operation_id="listLost")
async def list_lost(
    desk: AtDesk, cursor: FromQuery[str] = "", limit: Limit = schemas.DEFAULT_LIMIT
) -> schemas.LostPage:
    """List machines that were preempted or terminated, and so left the fleet."""
    after = cursors.place("lost", cursor)
    lost = await desk.read(lambda reading: reading.lost())
    left = sorted(name for name in lost if name > after)
    page = left[:limit]
    return schemas.LostPage(
        lost=tuple(schemas.Lost(**msgspec.structs.asdict(lost[name])) for name in page),
        next=cursors.after("lost", page[-1]) if len(left) > limit else "",
    )


@get("/v1/fleet/scopes", tags=TAGS, responses=bodies.REFUSALS, operation_id="listScopes")
async def list_scopes(
    desk: AtDesk, cursor: FromQuery[str] = "", limit: Limit = schemas.DEFAULT_LIMIT
) -> schemas.ScopePage:
    """List scopes."""
    after = cursors.place("scopes", cursor)
    found, following = desk.roster.page_of_scopes(after=after, limit=limit)
    return schemas.ScopePage(
        scopes=views.scopes(found, desk.roster), next=cursors.after("scopes", following)
    )


@get("/v1/fleet/scopes/{name:str}", tags=TAGS, responses=bodies.REFUSALS, operation_id="showScope")
async def show_scope(desk: AtDesk, name: FromPath[str]) -> schemas.ScopeDetail:
    """Show a scope with its machines, domain by domain."""
    return views.scope_detail(_scope(desk, name), desk.roster)


def _told(change: schemas.FleetChange, by: str) -> schemas.FleetChange:
    """Log who changed what; the fleet's past is kept nowhere else."""
    names = {"added": change.added, "changed": change.changed, "removed": change.removed}
    told = {what: each.names for what, each in names.items() if each.count}
    if told and not change.dry_run:
        _log.info("an operator changed the fleet", by=by, **told)
    return change


def _scope(desk: Desk, name: str) -> Scope:
    scope = desk.roster.scopes.get(key(name))
    if scope is None:
        raise _unknown("scope", name)
    return scope


def _unknown(what: str, name: str) -> Refused:
    message = f"no {what} of the fleet is called {name!r}: see 'forewarn fleet list'"
    return Refused(ErrorCode.NOT_FOUND, message, what=what, name=name)
