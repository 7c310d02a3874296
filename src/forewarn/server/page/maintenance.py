"""The pages of maintenance: what is open and what was, one with its operations, and the form."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler

from forewarn.maintenance import model
from forewarn.server.operator import api, requests, routing, schemas, views
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.requests import TheBackend, TheCaller
from forewarn.server.page import forms, orders, sending, standing
from forewarn.server.page.routes import ThePage, get, post
from forewarn.server.page.standing import Standing
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


def _plan(asked: schemas.MaintenanceRequest, planned: schemas.MaintenancePlan) -> dict[str, Any]:
    found = orders.concerned(planned.operations)
    count = found.unstarted + found.started + orders.still_to_come(planned.further)
    return {"plan": planned, "button": orders.happens(asked.event_type, count)}


FORM: Final = sending.PlannedForm(
    template="maintenance",
    groups=forms.MAINTENANCE,
    read=forms.maintenance,
    route=api.request_maintenance,
    address=lambda made: f"/maintenance/{made.maintenance.number}",
    plan=_plan,
)


@get("/maintenance/new")
async def begin(
    request: "Request[Any, Any, Any]",
    page: ThePage,
    kind: routing.Name = "",
    targets: routing.Name = "",
) -> Response[str]:
    """Show the form that asks for maintenance."""
    return await sending.begin(request, page, FORM, kind=kind, targets=targets)


@post("/page/maintenance")
async def plan_or_start(
    request: "Request[Any, Any, Any]", caller: TheCaller, page: ThePage
) -> sending.Answer:
    """Show the form again, what it would come to, or start it."""
    return await sending.plan_or_start(request, caller, page, FORM)


ROUTES: Final = tuple(each for each in vars().values() if isinstance(each, HTTPRouteHandler))
