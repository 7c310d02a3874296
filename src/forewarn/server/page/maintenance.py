"""The pages of maintenance: what is open and what was, one with its operations, and the form."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.response import Redirect

from forewarn.maintenance import model
from forewarn.server.operator import api, requests, routing, schemas, views
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.requests import TheBackend, TheCaller
from forewarn.server.page import forms, orders, sending, standing
from forewarn.server.page.routes import PageContext, ThePage, get, post
from forewarn.server.page.standing import Standing
from forewarn.settings import Mistake
from forewarn.store.port import Reading
from forewarn.vocabulary import ErrorCode, EventStatus

RECENT: Final = 30
"""Maintenances of one page of the list."""

OPEN: Final = 100
"""The most open ones above it, newest first: of more, their number is told."""

SHOWN_OPERATIONS: Final = 200
"""The most operations of a maintenance's page, the latest; the history has all of them."""


class ListedMaintenance(msgspec.Struct, frozen=True):
    """A maintenance as the list shows it."""

    view: schemas.MaintenanceView
    standing: Standing
    counts: Mapping[str, int]
    """How many machines its operations have, by how far they are."""


@get("/maintenance")
async def list_maintenances(
    request: "Request[Any, Any, Any]", backend: TheBackend, page: ThePage, cursor: routing.Name = ""
) -> Response[str]:
    """List what is open, and what was asked for, newest first."""
    inventory, now = backend.inventory.snapshot(), backend.now()
    before = requests.key_before("maintenances", cursor)
    live: dict[int, list[model.Operation]] = {}
    for operation in inventory.operations.values():
        live.setdefault(operation.maintenance, []).append(operation)

    def question(reading: Reading) -> Mapping[str, Any]:
        latest = reading.latest_maintenances(int(before) if before else None, RECENT + 1)
        found, following = requests.page("maintenances", latest, RECENT, lambda m: str(m.number))
        opened = reading.open_maintenances()
        numbers = sorted(live.keys() | opened.keys(), reverse=True)
        known = opened | reading.maintenances(numbers[:OPEN])
        upper = [known[number] for number in numbers[:OPEN] if number in known]
        if cursor:
            upper = []
        lower = [one for one in found if one.number not in numbers]

        def operations_of(view: schemas.MaintenanceView) -> Collection[model.Operation]:
            alive = live.get(view.number, [])
            if len(alive) == view.announced:
                return alive  # all of them: the store need not be asked
            return reading.operations_of_maintenance(view.number).values()

        def listed(values: Collection[model.Maintenance]) -> list[ListedMaintenance]:
            return [
                _listed(view, further, operations_of(view), inventory, now)
                for view, further in views.maintenances(values, inventory)
            ]

        return {
            "open": listed(upper),
            "more_open": max(0, len(numbers) - OPEN),
            "recent": listed(lower),
            "next": following,
            "cursor": cursor,
            "held": [h for h in reading.holds() if h.kind is model.HoldKind.EVERYTHING],
        }

    found = await page.once(("maintenances", cursor), lambda: backend.read(question))
    return await page.show(request, "maintenances.html", lambda: found)


def _listed(
    view: schemas.MaintenanceView,
    further: Collection[schemas.FurtherStep],
    operations: Collection[model.Operation],
    inventory: Inventory,
    now: datetime,
) -> ListedMaintenance:
    shown = views.operations(operations, inventory, now)
    how = standing.of_maintenance(view, shown)
    return ListedMaintenance(view, how, _counts(shown, further))


def _counts(
    operations: Collection[schemas.OperationView], further: Collection[schemas.FurtherStep]
) -> dict[str, int]:
    """Return how many machines are done, down, failed, cancelled, and still to come."""
    counts = dict.fromkeys(("done", "down", "failed", "cancelled", "notice"), 0)
    for operation in operations:
        name = {
            EventStatus.COMPLETED: "done",
            EventStatus.STARTED: "down",
            EventStatus.RETURNING: "down",
            EventStatus.FAILED: "failed",
            EventStatus.CANCELED: "cancelled",
        }.get(operation.status, "notice")
        counts[name] += sum(len(event.machines) for event in operation.events)
    counts["notice"] += orders.still_to_come(further)
    return counts


@get("/maintenance/{number:int}")
async def show_maintenance(
    request: "Request[Any, Any, Any]", backend: TheBackend, page: ThePage, number: api.ByNumber
) -> Response[str]:
    """Show a maintenance with its operations, and what can be done about it."""
    inventory, now = backend.inventory.snapshot(), backend.now()

    def question(reading: Reading) -> Mapping[str, Any]:
        known = reading.maintenances([number])
        if number not in known:
            message = f"no maintenance {number}: the history may have forgotten it"
            raise model.Refused(ErrorCode.NOT_FOUND, message, maintenance=number)
        its = sorted(reading.operations_of_maintenance(number).values(), key=_ordinal)
        operations = views.operations(its, inventory, now)
        ((view, further),) = views.maintenances([known[number]], inventory)
        done = [(str(number), one) for one in view.interventions]
        done += [(each.id, one) for each in operations for one in each.interventions]
        return {
            "one": view,
            "standing": standing.of_maintenance(view, operations),
            "counts": _counts(operations, further),
            "operations": operations[-SHOWN_OPERATIONS:],
            "more": max(0, len(operations) - SHOWN_OPERATIONS),
            "further": further,
            "interventions": sorted(done, key=lambda pair: pair[1].at),
            "orders": orders.of_maintenance(view, operations),
        }

    found = await page.once(("maintenance", number), lambda: backend.read(question))
    return await page.show(request, "maintenance.html", lambda: found)


def _ordinal(operation: model.Operation) -> int:
    return int(operation.id.partition(".")[2])


@get("/maintenance/new")
async def begin_maintenance(
    request: "Request[Any, Any, Any]",
    page: ThePage,
    event_type: routing.Name = "",
    kind: routing.Name = "",
    targets: routing.Name = "",
) -> Response[str]:
    """Show the form that asks for maintenance."""
    given = {"event_type": event_type, "kind": kind, "targets": targets}
    form = forms.default(forms.MAINTENANCE).filled(
        **{name: text for name, text in given.items() if text},
        key=page.backend.make_token(),
    )
    return await _form(request, page, form)


@post("/page/maintenance")
async def plan_or_start(
    request: "Request[Any, Any, Any]", backend: TheBackend, caller: TheCaller, page: ThePage
) -> sending.Answer:
    """Show the form again, what it would come to, or start it."""
    form = forms.sent(await request.body())
    action = form.text("action")
    if action == "change":
        caller.recorded = True
        return await _form(request, page, form)
    try:
        asked = forms.maintenance(form, backend.now())
        if action == "start":

            async def act() -> str:
                made = await api.request_maintenance.fn(backend, caller, data=asked)
                return f"/maintenance/{made.maintenance.number}"

            led = await page.sent.once(caller, asked.idempotency_key, act)
            return Redirect(led, status_code=303)
        planned = await api.request_maintenance.fn(backend, caller, data=asked, dry_run=True)
    except sending.REFUSED as error:
        mistake = sending.mistake_of(error, form, forms.MAINTENANCE)
        status = sending.status_of(error, caller)
        return await _form(request, page, form, mistake=mistake, status=status)
    found = orders.concerned(planned.operations)
    count = found.unstarted + found.started + orders.still_to_come(planned.further)
    values = {
        "form": forms.settled(form, asked),
        "asked": asked,
        "plan": planned,
        "button": orders.happens(asked.event_type, count),
    }
    return await page.show(request, "maintenance_plan.html", lambda: values)


async def _form(
    request: "Request[Any, Any, Any]",
    page: PageContext,
    form: forms.FilledForm,
    *,
    mistake: Mistake | None = None,
    status: int = 200,
) -> Response[str]:
    values = {"form": form, "groups": forms.MAINTENANCE, "mistake": mistake}
    return await page.show(request, "maintenance_form.html", lambda: values, status=status)


ROUTES: Final = tuple(each for each in vars().values() if isinstance(each, HTTPRouteHandler))
