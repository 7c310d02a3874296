"""The operators' API: its routes put together, and every failure answered in one form.

The routes, and what each takes and answers (`schemas`, `steering`):

    PUT    /v1/fleet?prune=&allow_empty=&again=&dry_run=&by=  fleet.Fleet  -> FleetChange
    GET    /v1/fleet/lost?cursor=&limit=                               -> LostPage
    GET    /v1/fleet/machines?scope=&host=&cursor=&limit=              -> MachinePage
    GET    /v1/fleet/machines/{name}                                   -> MachineDetail
    DELETE /v1/fleet/machines                   Removal                -> FleetChange
    GET    /v1/fleet/scopes?cursor=&limit=                             -> ScopePage
    GET    /v1/fleet/scopes/{name}                                     -> ScopeDetail
    POST   /v1/maintenance?dry_run=             MaintenanceRequest     -> Plan
    GET    /v1/maintenance?cursor=&limit=                              -> MaintenancePage
    GET    /v1/maintenance/{number}                                    -> MaintenanceDetail
    POST   /v1/maintenance/{number}/resume      ResumptionRequest      -> OperationList
    GET    /v1/events?scope=&machine=                                  -> EventList
    POST   /v1/approvals                        ApprovalRequest        -> OperationList
    POST   /v1/cancellations                    CancellationRequest    -> OperationList
    POST   /v1/postponements                    PostponementRequest    -> OperationList
    GET    /v1/holds                                                   -> HoldList
    POST   /v1/holds                            HoldRequest            -> OperationList
    DELETE /v1/holds                            HoldPlace              -> OperationList
    GET    /v1/attention                                               -> AttentionList
    POST   /v1/notes                            NoteRequest            -> OperationList
    POST   /v1/operations/{operation}/resolution  ResolutionRequest    -> OperationList
    GET    /v1/history?machine=&scope=&maintenance=&event_type=&status=&since=&until=&cursor=&limit=
                                                                       -> HistoryPage
    GET    /v1/clock                                                   -> Time
    POST   /v1/clock                            ClockRequest           -> Time
    GET    /v1/schema                           OpenAPI of all this, as JSON
    GET    /metrics                             for Prometheus         text
    GET    /healthz                             the process is alive   -> Health
    GET    /readyz                              503 with the reasons   -> Readiness
"""

import asyncio
from typing import Any, Final

import msgspec
import structlog
from litestar import Litestar, MediaType, Request, Response, get, post
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Components, SecurityScheme, Tag
from litestar.params import JSONBody

from forewarn.maintenance.model import Refused
from forewarn.server.operator import (
    bodies,
    fleet_routes,
    maintenance_routes,
    metrics_routes,
    schemas,
    steering_routes,
    vitals,
)
from forewarn.server.operator.desk import AtDesk, Desk
from forewarn.store.port import StoreError
from forewarn.version import __version__
from forewarn.vocabulary import ErrorCode

RETRY_SECONDS: Final = 1
"""When to ask again after the store was away: most troubles of a disk are over or are not."""

_log = structlog.get_logger(__name__)


@get("/v1/clock", tags=["service"], responses=bodies.REFUSALS, operation_id="clock")
async def clock(desk: AtDesk) -> vitals.Time:
    """Tell the service's own time, in which all its times are."""
    return vitals.Time(now=desk.now(), scale=desk.scale, doubt=desk.time.doubt())


@post(
    "/v1/clock",
    tags=["service"],
    responses=bodies.REFUSALS,
    operation_id="trustClock",
    status_code=200,
    dto=bodies.Strict[vitals.ClockRequest],
    return_dto=None,
)
async def trust_clock(desk: AtDesk, data: JSONBody[vitals.ClockRequest]) -> vitals.Time:
    """Say that the machine's clock is right as it is; what it is ahead lengthens every notice."""
    assert data.trust  # the schema takes nothing else
    _log.warning("an operator trusts the clock", by=bodies.judge_text(data.by, "by"))
    await asyncio.shield(desk.time.believe())
    return vitals.Time(now=desk.now(), scale=desk.scale, doubt=desk.time.doubt())


@get("/v1/schema", tags=["service"], include_in_schema=False)
async def schema(request: Request[Any, Any, State]) -> Response[bytes]:
    """Describe this API as OpenAPI, in JSON."""
    described = msgspec.json.encode(request.app.openapi_schema.to_schema())
    return Response(described, media_type=MediaType.JSON)


@get("/healthz", tags=["service"], operation_id="health")
async def healthz() -> vitals.Health:
    """Tell that the process is alive."""
    return vitals.Health(status="alive", version=__version__)


@get(
    "/readyz",
    tags=["service"],
    operation_id="readiness",
    responses={
        503: ResponseSpec(vitals.Readiness, generate_examples=False, description="Not ready")
    },
)
async def readyz(desk: AtDesk) -> Response[vitals.Readiness]:
    """Tell whether the service does all its work, and why not."""
    reasons = await desk.ready()
    answer = vitals.Readiness(ready=not reasons, reasons=reasons)
    if not reasons:
        return Response(answer)
    return Response(answer, status_code=503, headers={"Retry-After": str(RETRY_SECONDS)})


ROUTES: Final = (
    fleet_routes.apply_fleet,
    fleet_routes.remove_machines,
    fleet_routes.list_lost,
    fleet_routes.list_machines,
    fleet_routes.show_machine,
    fleet_routes.list_scopes,
    fleet_routes.show_scope,
    maintenance_routes.request_maintenance,
    maintenance_routes.list_maintenances,
    maintenance_routes.show_maintenance,
    maintenance_routes.list_events,
    steering_routes.approve,
    steering_routes.cancel,
    steering_routes.resume,
    steering_routes.postpone,
    steering_routes.list_holds,
    steering_routes.hold,
    steering_routes.release,
    steering_routes.list_attention,
    steering_routes.note,
    steering_routes.resolve,
    maintenance_routes.read_history,
    clock,
    trust_clock,
    schema,
    metrics_routes.scrape,
    healthz,
    readyz,
)


def application(desk: Desk) -> Litestar:
    """Return the API over these rooms; `auth.Gate` stands before it."""

    def the_desk() -> Desk:
        return desk

    return Litestar(
        list(ROUTES),
        dependencies={"desk": Provide(the_desk, sync_to_thread=False, use_cache=True)},
        before_request=bodies.judge_query,
        exception_handlers={Exception: _answer_failure},
        request_max_body_size=bodies.MAX_BODY,
        logging_config=None,
        debug=False,
        openapi_config=OpenAPIConfig(
            title="Forewarn",
            version=__version__,
            description="Notice of maintenance for virtual machines: the operators' API. Every "
            "answer that is no success has a Failure as its body.",
            path="/v1/openapi-unused",
            render_plugins=[],
            security=[{}, {"token": []}],
            components=Components(
                security_schemes={
                    "token": SecurityScheme(
                        type="http",
                        scheme="bearer",
                        description="On TCP; the unix socket wants none.",
                    )
                }
            ),
            tags=[
                Tag(name="fleet", description="Machines and what makes them share a document."),
                Tag(name="maintenance", description="What happens to them, and what did."),
                Tag(name="service", description="The service itself."),
            ],
        ),
    )


def _answer_failure(request: Request[Any, Any, Any], error: Exception) -> Response[schemas.Failure]:
    """Answer what was raised, with the status of its code."""
    headers = {}
    match error:
        case Refused():
            status = schemas.STATUS[error.code]
            failure = schemas.Error(code=error.code, message=error.message, facts=error.facts)
        case StoreError():
            status = 503
            failure = schemas.Error(code=ErrorCode.UNAVAILABLE, message=str(error))
            headers["Retry-After"] = str(RETRY_SECONDS)
        case HTTPException() if error.status_code < 500:
            status = error.status_code
            headers.update(error.headers or {})
            failure = schemas.Error(code=_code(status), message=_message(request, error))
        case _:
            status = 500
            message = "this is Forewarn's own fault; its log has the details"
            failure = schemas.Error(code=ErrorCode.INTERNAL, message=message)
            _log.error(
                "a request failed", method=request.method, path=request.url.path, exc_info=error
            )
    return Response(schemas.Failure(error=failure), status_code=status, headers=headers)


def _code(status: int) -> ErrorCode:
    return {404: ErrorCode.NOT_FOUND, 413: ErrorCode.LIMIT}.get(status, ErrorCode.INVALID)


def _message(request: Request[Any, Any, Any], error: HTTPException) -> str:
    """Say what the framework refused in the words of the rest."""
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        if any(one.get("key") == "data" for one in error.extra):
            return "the body is empty: this wants JSON, such as /v1/schema describes"
        told = [(one.get("key", "the query"), one["message"]) for one in error.extra]
        return "; ".join(f"at {name}: {bodies.judged(request, name, what)}" for name, what in told)
    path = request.url.path
    if error.status_code == 404:
        return f"there is nothing at {path}: see /v1/schema for what there is"
    if error.status_code == 405:
        return f"{request.method} is not for {path}: see /v1/schema for what is"
    if error.status_code == 413:
        most = request.route_handler.resolve_request_max_body_size()
        return f"the body is over {most} bytes, the most that is taken here"
    return error.detail
