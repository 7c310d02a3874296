"""Maintenance: request, list, show; what is live, and history."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from litestar import get, post
from litestar.params import FromQuery, JSONBody, PathParameter, QueryParameter

from forewarn.maintenance import planner
from forewarn.maintenance.model import Maintenance, Operation, Refused, key
from forewarn.server.operator import bodies, schemas, views
from forewarn.server.operator.desk import AtDesk, Desk
from forewarn.store.port import HistoryQuery, Page, Reading
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

Limit = Annotated[int, QueryParameter(ge=1, le=schemas.MAX_LIMIT)]
InScope = Annotated[str, QueryParameter(name="scope")]
Number = Annotated[int | None, QueryParameter(ge=1, le=schemas.MAX_NUMBER)]
ByNumber = Annotated[int, PathParameter(le=schemas.MAX_NUMBER)]

TAGS = ["maintenance"]
NOBODY = "operator"
"""Who is written down where nobody says who asks."""


@post(
    "/v1/maintenance",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="requestMaintenance",
    status_code=201,
    dto=bodies.Strict[schemas.MaintenanceRequest],
    return_dto=None,
)
async def request_maintenance(
    desk: AtDesk,
    *,
    data: JSONBody[schemas.MaintenanceRequest],
    dry_run: FromQuery[bool] = False,
) -> schemas.Plan:
    """Ask for maintenance; the answer is the operations and events that it became."""
    request = planner.Request(
        event_type=data.event_type,
        machines=data.machines,
        scope=data.scope,
        host=data.host,
        source=data.source,
        not_before=data.not_before and bodies.judge_moment(data.not_before, "not_before"),
        duration_seconds=data.duration_seconds,
        description=data.description,
        live_migration=data.live_migration,
        no_notice=data.no_notice,
        without_notice=data.without_notice,
        indivisible=data.indivisible,
        requested_by=bodies.judge_text(data.by, "by") or NOBODY,
    )
    plan = await desk.done(desk.plane.request(request, dry_run=dry_run))
    now = desk.now()
    further = views.further([plan.maintenance], desk.roster)[plan.maintenance.number]
    return schemas.Plan(
        dry_run=dry_run,
        maintenance=views.maintenance(plan.maintenance, further, desk.roster),
        further=further,
        operations=views.operations(plan.operations, desk.roster.name_of_scope, now),
        superseded=views.operations(plan.superseded, desk.roster.name_of_scope, now),
    )


@get("/v1/maintenance", tags=TAGS, responses=bodies.REFUSALS, operation_id="listMaintenances")
async def list_maintenances(
    desk: AtDesk, cursor: FromQuery[str] = "", limit: Limit = schemas.DEFAULT_LIMIT
) -> schemas.MaintenancePage:
    """List what was asked for, the newest first."""
    before = _number(cursor) if cursor else None
    found = await desk.read(lambda reading: reading.latest_maintenances(before, limit + 1))
    page = found[:limit]
    further = views.further(page, desk.roster)
    return schemas.MaintenancePage(
        maintenances=tuple(
            views.maintenance(one, further[one.number], desk.roster) for one in page
        ),
        next=str(page[-1].number) if len(found) > limit else "",
    )


@get(
    "/v1/maintenance/{number:int}",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="showMaintenance",
)
async def show_maintenance(desk: AtDesk, number: ByNumber) -> schemas.MaintenanceDetail:
    """Show what was asked for and what it became."""

    def question(reading: Reading) -> tuple[Maintenance | None, dict[str, Operation]]:
        found = reading.maintenances([number]).get(number)
        return found, reading.operations_of_maintenance(number)

    maintenance, operations = await desk.read(question)
    if maintenance is None:
        message = f"there is no maintenance {number}: see 'forewarn history'"
        raise Refused(ErrorCode.NOT_FOUND, message, maintenance=number)
    further = views.further([maintenance], desk.roster)[number]
    return schemas.MaintenanceDetail(
        maintenance=views.maintenance(maintenance, further, desk.roster),
        further=further,
        operations=_shown(desk, operations.values()),
    )


@get("/v1/events", tags=TAGS, responses=bodies.REFUSALS, operation_id="listEvents")
async def list_events(
    desk: AtDesk, in_scope: InScope = "", machine: FromQuery[str] = ""
) -> schemas.EventList:
    """List what guests see, or would see by a version that shows it, by NotBefore."""
    roster = desk.roster
    for what, name, known in (
        ("scope", in_scope, roster.scopes),
        ("machine", machine, roster.machines),
    ):
        if name and key(name) not in known:
            message = f"no {what} of the fleet is called {name!r}: see 'forewarn fleet list'"
            raise Refused(ErrorCode.NOT_FOUND, message, what=what, name=name)
    now = desk.now()
    found = [
        views.live_event(operation, event, roster, desk.callers, now)
        for operation, event in roster.live(scope=key(in_scope), machine=key(machine))
    ]
    found.sort(key=lambda event: (event.not_before, event.maintenance, event.operation, event.id))
    return schemas.EventList(now=now, events=tuple(found))


@get("/v1/history", tags=TAGS, responses=bodies.REFUSALS, operation_id="readHistory")
async def read_history(  # noqa: PLR0913 - the filters are the query's parameters
    desk: AtDesk,
    *,
    machine: FromQuery[str] = "",
    in_scope: InScope = "",
    maintenance: Number = None,
    event_type: FromQuery[list[EventType] | None] = None,
    status: FromQuery[list[EventStatus] | None] = None,
    since: FromQuery[datetime | None] = None,
    until: FromQuery[datetime | None] = None,
    cursor: FromQuery[str] = "",
    limit: Limit = schemas.DEFAULT_LIMIT,
) -> schemas.HistoryPage:
    """List operations, the newest announcement first, with who approved and how they ended."""
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            message = f"at {name}: {moment.isoformat()} names no time zone: add one, as Z"
            raise Refused(ErrorCode.INVALID, message, parameter=name)
    query = HistoryQuery(
        machine=key(machine),
        scope=key(in_scope),
        maintenance=maintenance,
        event_types=tuple(event_type or ()),
        statuses=tuple(status or ()),
        since=since,
        until=until,
        cursor=cursor,
        limit=limit,
    )

    def question(reading: Reading) -> Page:
        return reading.history(query)

    page = await desk.read(question)
    return schemas.HistoryPage(operations=_shown(desk, page.operations), next=page.next)


def _shown(desk: Desk, operations: Iterable[Operation]) -> tuple[schemas.Operation, ...]:
    return views.operations(operations, desk.roster.name_of_scope, desk.now())


def _number(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 15:
        message = f"the cursor {cursor[:40]!r} is none that a page of maintenances ended with"
        raise Refused(ErrorCode.INVALID, message, cursor=cursor[:40])
    return int(cursor)
