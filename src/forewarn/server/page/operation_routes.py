"""One operation: a page of its own, or the panel beside another page; and what one can do to it."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Redirect

from forewarn.control.plane import Plane
from forewarn.maintenance import model
from forewarn.server.operator import views
from forewarn.server.operator.requests import TheCaller
from forewarn.server.page import routes
from forewarn.server.page.routes import ThePage
from forewarn.vocabulary import ErrorCode, EventStatus

POSTPONE_MINUTES: Final = (15, 60, 240, 1440)
"""By how much a form postpones; for any other time there is `forewarn postpone`."""

Operations = tuple[model.Operation, ...]


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator can do to an operation."""

    label: str
    fits: Callable[[model.Operation], bool]
    """Whether it makes sense for an operation, as it is."""
    do: "Callable[[Plane, model.Operation, str, str], Future[Operations]]"
    """Does it: the plane, the operation, who asks, and what the form says."""
    confirm: str = ""
    """What the browser asks first; `""` for nothing."""
    choices: tuple[tuple[str, str], ...] = ()
    """What the form may say, and how it is shown."""
    danger: bool = False


def _postpone(plane: Plane, operation: model.Operation, by: str, said: str) -> "Future[Operations]":
    later = operation.not_before + timedelta(minutes=int(said))
    return plane.postpone([operation.id], later, by=by)


def _is_unapproved(operation: model.Operation) -> bool:
    return operation.pending and not operation.approved


VERBS: Final = MappingProxyType(
    {
        "approve": Verb(
            label="Approve",
            fits=_is_unapproved,
            do=lambda plane, of, by, _: plane.approve_for_guests([of.id], by=by),
            confirm="Approve for the guests? It starts as soon as it can.",
        ),
        "postpone": Verb(
            label="Postpone",
            fits=_is_unapproved,
            do=_postpone,
            choices=tuple(
                (str(minutes), f"by {minutes} min" if minutes < 60 else f"by {minutes // 60} h")
                for minutes in POSTPONE_MINUTES
            ),
        ),
        "cancel": Verb(
            label="Cancel",
            fits=lambda of: of.unstarted,
            do=lambda plane, of, by, _: plane.cancel([of.id], reason=f"cancelled by {by}"),
            confirm="Cancel it?",
            danger=True,
        ),
        "acknowledge": Verb(
            label="Acknowledge",
            fits=lambda of: of.status is EventStatus.FAILED and not of.acknowledged_by,
            do=lambda plane, of, by, _: plane.acknowledge([of.id], by),
        ),
        "resolve": Verb(
            label="Record",
            fits=lambda of: bool(of.outcome_unknown),
            do=lambda plane, of, by, said: plane.resolve([of.id], model.Verdict(said), by),
            choices=(
                (model.Verdict.SUCCEEDED, "it was done"),
                (model.Verdict.FAILED, "it failed"),
                (model.Verdict.REPEAT, "repeat it"),
            ),
        ),
    }
)
"""By the last part of a form's address."""


@routes.get("/operations/{reference:str}")
async def show_operation(
    request: "Request[Any, Any, Any]", page: ThePage, reference: FromPath[str]
) -> Response[str]:
    """Show all that is known of an operation."""
    backend, now = page.backend, page.backend.now()
    operation = await _operation(page, reference)
    (view,) = views.operations([operation], backend.inventory, now)
    live = [
        views.live_event(operation, event, backend.inventory, now)
        for event in (() if operation.status.over else operation.events)
    ]
    shown = {
        "operation": view,
        "audience": {event.id: event for event in live},
        "verbs": [(name, verb) for name, verb in VERBS.items() if verb.fits(operation)],
    }
    return await page.show(request, "operation.html", lambda: shown)


@routes.post("/page/operations/{reference:str}/{verb:str}")
async def change_operation(
    request: "Request[Any, Any, Any]",
    caller: TheCaller,
    page: ThePage,
    reference: FromPath[str],
    verb: FromPath[str],
) -> Redirect:
    """Do what a button of an operation says, and show the operation again."""
    chosen = VERBS.get(verb)
    if chosen is None:
        raise model.Refused(ErrorCode.NOT_FOUND, f"no such action: {verb[:80]!r}")
    said = str((await request.form()).get("choice", ""))
    if chosen.choices and said not in dict(chosen.choices):
        raise model.Refused(ErrorCode.INVALID, f"at choice: {said[:80]!r} is none of the form's")
    operation = await _operation(page, reference)
    plane = page.backend.changing(caller, f"{verb} {operation.id} {said}".rstrip())
    await page.backend.done(chosen.do(plane, operation, caller.by, said))
    return Redirect(f"/operations/{quote(operation.id)}", status_code=303)


async def _operation(page: routes.PageContext, reference: str) -> model.Operation:
    known = page.backend.inventory.operations.get(reference)
    if known is not None:
        return known
    found = await page.backend.read(lambda reading: reading.operations([reference]))
    if reference not in found:
        message = f"no operation {reference[:80]!r}: see History"
        raise model.Refused(ErrorCode.NOT_FOUND, message)
    return found[reference]


ROUTES: Final = tuple(each for each in vars().values() if isinstance(each, HTTPRouteHandler))
