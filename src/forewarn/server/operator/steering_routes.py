"""An operator's word: approve, cancel, resume, postpone, hold, release; and what needs one."""

from datetime import datetime
from typing import Any

from litestar import Request, delete, get, post
from litestar.params import FromPath, JSONBody

from forewarn.maintenance import alerts
from forewarn.maintenance.model import HoldKind, Operation, Refused, covers
from forewarn.server.operator import bodies, schemas, steering, views
from forewarn.server.operator.desk import AtDesk, Desk
from forewarn.server.operator.maintenance_routes import NOBODY, TAGS, ByNumber
from forewarn.store.port import Reading
from forewarn.vocabulary import ErrorCode, EventStatus


@post(
    "/v1/approvals",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="approve",
    status_code=200,
    dto=bodies.Strict[steering.ApprovalRequest],
    return_dto=None,
)
async def approve(
    desk: AtDesk, request: Request[Any, Any, Any], data: JSONBody[steering.ApprovalRequest]
) -> schemas.OperationList:
    """Approve on the guests' behalf: all of it or, if one is unknown, nothing."""
    by = bodies.judge_text(data.by, "by") or NOBODY
    address = request.client.host if request.client else ""
    approved = await desk.done(
        desk.plane.approve_for_guests(data.references, by=by, address=address)
    )
    return _told(desk, approved)


@post(
    "/v1/cancellations",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="cancel",
    status_code=200,
    dto=bodies.Strict[steering.CancellationRequest],
    return_dto=None,
)
async def cancel(
    desk: AtDesk, data: JSONBody[steering.CancellationRequest]
) -> schemas.OperationList:
    """Withdraw what has not started."""
    by = bodies.judge_text(data.by, "by") or NOBODY
    why = bodies.judge_text(data.reason, "reason")
    reason = f"cancelled by {by}" + (f": {why}" if why else "")
    cancelled = await desk.done(desk.plane.cancel(data.reference, reason=reason))
    return _told(desk, cancelled)


@post(
    "/v1/maintenance/{number:int}/resume",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="resume",
    status_code=200,
    dto=bodies.Strict[steering.ResumptionRequest],
    return_dto=None,
)
async def resume(
    desk: AtDesk, number: ByNumber, data: JSONBody[steering.ResumptionRequest]
) -> schemas.OperationList:
    """Let the stopped walks of a maintenance go on; the answer is what that announced."""
    by = bodies.judge_text(data.by, "by") or NOBODY
    return _told(desk, await desk.done(desk.plane.resume(number, by=by)))


@post(
    "/v1/postponements",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="postpone",
    status_code=200,
    dto=bodies.Strict[steering.PostponementRequest],
    return_dto=None,
)
async def postpone(
    desk: AtDesk, data: JSONBody[steering.PostponementRequest]
) -> schemas.OperationList:
    """Move what is Scheduled later, all of it or nothing."""
    later = bodies.judge_moment(data.not_before, "not_before")
    by = bodies.judge_text(data.by, "by") or NOBODY
    return _told(desk, await desk.done(desk.plane.postpone(data.reference, later, by=by)))


@get("/v1/holds", tags=TAGS, responses=bodies.REFUSALS, operation_id="listHolds")
async def list_holds(desk: AtDesk) -> steering.HoldList:
    """List what is held, the oldest first, with what that keeps from starting."""
    holds = await desk.read(lambda reading: reading.holds())
    held = [o for o in desk.roster.operations.values() if o.held_at is not None]
    return steering.HoldList(
        holds=tuple(
            steering.Hold(
                kind=hold.kind,
                name=views.held_name(hold, desk.roster),
                reason=hold.reason,
                by=hold.by,
                at=hold.at,
                operations=views.names(o.id for o in held if covers(hold, o)),
            )
            for hold in holds
        )
    )


@post(
    "/v1/holds",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="hold",
    status_code=201,
    dto=bodies.Strict[steering.HoldRequest],
    return_dto=None,
)
async def hold(desk: AtDesk, data: JSONBody[steering.HoldRequest]) -> schemas.OperationList:
    """Let nothing of this start until it is released; the answer is what that holds now."""
    _judge_place(data)
    by = bodies.judge_text(data.by, "by") or NOBODY
    reason = bodies.judge_text(data.reason, "reason")
    held = await desk.done(desk.plane.hold(data.kind, data.name, reason=reason, by=by))
    return _told(desk, held)


@delete(
    "/v1/holds",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="release",
    status_code=200,
    dto=bodies.Strict[steering.ReleaseRequest],
    return_dto=None,
)
async def release(desk: AtDesk, data: JSONBody[steering.ReleaseRequest]) -> schemas.OperationList:
    """Take a hold back; the answer is what it covered."""
    _judge_place(data)
    by = bodies.judge_text(data.by, "by") or NOBODY
    return _told(desk, await desk.done(desk.plane.release(data.kind, data.name, by=by)))


async def needs(desk: Desk, now: datetime) -> list[alerts.Alert]:
    """Return what needs an operator, the oldest first.

    Raises:
        StoreError: The store is away.
    """
    clock = desk.time.clock_doubt()
    live = tuple(desk.roster.operations.values())

    def question(reading: Reading) -> list[alerts.Alert]:
        failed = reading.unnoted_failures(steering.MAX_FAILURES)
        sights = {
            operation.id: views.sight(operation, desk.callers)
            for operation in live
            if operation.status is EventStatus.SCHEDULED and not operation.silent
        }
        return alerts.items(
            (*live, *failed.values()),
            reading.open_maintenances().values(),
            reading.holds(),
            sights,
            now,
            up_since=desk.up_since,
            clock=clock,
        )

    return await desk.read(question)


@get("/v1/attention", tags=TAGS, responses=bodies.REFUSALS, operation_id="listAttention")
async def list_attention(desk: AtDesk) -> steering.AttentionList:
    """List what needs an operator, the oldest first."""
    now = desk.now()
    found = await needs(desk, now)
    return steering.AttentionList(
        now=now,
        count=len(found),
        items=tuple(
            steering.AttentionItem(
                kind=item.kind, about=item.about, message=item.message, since=item.since
            )
            for item in found[: steering.MAX_ITEMS]
        ),
    )


@post(
    "/v1/notes",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="note",
    status_code=200,
    dto=bodies.Strict[steering.NoteRequest],
    return_dto=None,
)
async def note(desk: AtDesk, data: JSONBody[steering.NoteRequest]) -> schemas.OperationList:
    """Take note of failures, so that they no longer need attention: all of them or none."""
    by = bodies.judge_text(data.by, "by") or NOBODY
    return _told(desk, await desk.done(desk.plane.note(data.references, by)))


@post(
    "/v1/operations/{operation:str}/resolution",
    tags=TAGS,
    responses=bodies.REFUSALS,
    operation_id="resolve",
    status_code=200,
    dto=bodies.Strict[steering.ResolutionRequest],
    return_dto=None,
)
async def resolve(
    desk: AtDesk, operation: FromPath[str], data: JSONBody[steering.ResolutionRequest]
) -> schemas.OperationList:
    """Say what became of an operation that is in doubt, or let it be carried out again."""
    by = bodies.judge_text(data.by, "by") or NOBODY
    resolved = await desk.done(desk.plane.resolve(operation, data.verdict, by))
    return _told(desk, (resolved,))


def _told(desk: Desk, operations: tuple[Operation, ...]) -> schemas.OperationList:
    told = views.operations(operations, desk.roster.name_of_scope, desk.now())
    return schemas.OperationList(operations=told)


def _judge_place(place: steering.HoldPlace) -> None:
    if (place.kind is HoldKind.EVERYTHING) == bool(place.name):
        message = (
            f"everything has no name: leave {place.name!r} out, or say what kind it is"
            if place.name
            else f"at name: say which {place.kind}"
        )
        raise Refused(ErrorCode.INVALID, message, where="name")
