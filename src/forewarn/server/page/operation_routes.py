"""One operation: a page of its own, or the panel beside another page."""

from typing import Any, Final

from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from forewarn.maintenance import model
from forewarn.server.operator import views
from forewarn.server.page import routes
from forewarn.server.page.routes import ThePage
from forewarn.vocabulary import ErrorCode


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
    }
    return await page.show(request, "operation.html", lambda: shown)


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
