"""The pages of maintenance and of rollouts: lists, one of each, forms, and orders about them.

A form that asks for something new is filled in, then planned, then started; an order about what is
there already is asked once more. Both are sent once each, and shown again with the reason if they
are refused.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, QueryParameter
from litestar.response import Redirect

from forewarn.control import lookup
from forewarn.control.accounts import OperatorRequest
from forewarn.maintenance import model
from forewarn.maintenance.rollout_model import UnitState
from forewarn.maintenance.rollout_plan import PlannedWave
from forewarn.server.operator import api, errors, rollout_schemas, routing, schemas, views
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.routing import Backend, TheBackend, TheCaller
from forewarn.server.page import forms, orders
from forewarn.server.page.forms import FieldGroup, FilledForm
from forewarn.server.page.orders import OperatorOrder, Standing, Subject
from forewarn.server.page.routes import PageContext, ThePage, get, post
from forewarn.settings import Mistake
from forewarn.store.port import Reading
from forewarn.vocabulary import AccessRole, ErrorCode, EventStatus

Answer: TypeAlias = Response[Any] | Redirect

BACK: Final = re.compile(r"/operations/[0-9]{1,15}\.[0-9]{1,9}")
"""Where an order about an operation may lead to in place of its maintenance."""

RECENT: Final = 30
"""Maintenances of one page of the list."""

OPEN: Final = 100
"""The most open ones above it, newest first: of more, their number is told."""

SHOWN_OPERATIONS: Final = 200
"""The most operations of a maintenance's page, the latest; the history has all of them."""

LISTED: Final = 50
"""Rollouts of one page of the list."""

SHOWN_UNITS: Final = 200
"""The most units of a rollout's page at once."""

PLANNED_NAMES: Final = 6
"""Names of units in a wave's line of a plan."""

FIRST: Final = ("failed", "blocked", "running")
"""The units that are shown before all others."""

UnitFilter = Annotated[str, QueryParameter(name="units", max_length=20)]
Offset = Annotated[int, QueryParameter(name="from", ge=0, le=100_000)]


# Forms that ask for something new.


class PlannedForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form that is filled in, then planned, then started: as the API's route does it."""

    template: str
    """What the names of its two templates begin with."""
    groups: tuple[FieldGroup, ...]
    read: Callable[[FilledForm, datetime], Any]
    """Returns the body of the route's request."""
    route: HTTPRouteHandler
    address: Callable[[Any], str]
    """Returns the page of what was started, from the route's answer."""
    plan: Callable[[Any, Any], Mapping[str, Any]]
    """Returns what the plan's template needs, from the request and the answer to a dry run."""


async def _begin(
    request: "Request[Any, Any, Any]", page: PageContext, planned: PlannedForm, **given: str
) -> Response[str]:
    """Show an empty form, but for what the link to it fills in."""
    texts = {name: text for name, text in given.items() if text}
    form = forms.default(planned.groups).filled(**texts, key=page.backend.make_token())
    return await _form(request, page, planned, form)


async def _plan_or_start(
    request: "Request[Any, Any, Any]", caller: OperatorRequest, page: PageContext, kind: PlannedForm
) -> Answer:
    """Show the form again, or what it would come to, or start it."""
    backend = page.backend
    form = forms.sent(await request.body())
    action = form.text("action")
    if action != "start":
        caller.recorded = True  # it changes nothing
    if action == "change":
        return await _form(request, page, kind, form.filled(key=backend.make_token()))
    try:
        now = backend.now()
        asked = kind.read(form, now)
        if action == "start":

            async def act() -> str:
                return kind.address(await kind.route.fn(backend, caller, data=asked))

            led = await page.sent.once(caller, asked.idempotency_key, act, form.pairs())
            return Redirect(led, status_code=303)
        planned = await kind.route.fn(backend, caller, data=asked, dry_run=True)
    except forms.REFUSED as error:
        mistake = forms.mistake_of(error, form, kind.groups)
        if isinstance(error, model.Refused):  # nothing came of it: what follows is another request
            form = form.filled(key=backend.make_token())
        caller.outcome = errors.code_of(error)
        status = errors.STATUS[caller.outcome]
        return await _form(request, page, kind, form, mistake=mistake, status=status)
    values = {"form": forms.settled(form, now), "asked": asked, **kind.plan(asked, planned)}
    return await page.show(request, f"{kind.template}_plan.html", lambda: values)


async def _form(
    request: "Request[Any, Any, Any]",
    page: PageContext,
    kind: PlannedForm,
    form: FilledForm,
    *,
    mistake: Mistake | None = None,
    status: int = 200,
) -> Response[str]:
    checks = sorted(page.backend.rollouts.checks.names)
    groups = forms.suggesting(kind.groups, "check", checks)
    values = {"form": form, "groups": groups, "mistake": mistake}
    return await page.show(request, f"{kind.template}_form.html", lambda: values, status=status)


# Maintenance.


class ListedMaintenance(msgspec.Struct, frozen=True):
    """A maintenance as the list shows it."""

    view: schemas.MaintenanceView
    standing: Standing
    counts: Mapping[str, int]
    """How many machines its operations have, by how far they are."""


@get("/maintenance", AccessRole.VIEWER)
async def list_maintenances(
    request: "Request[Any, Any, Any]", backend: TheBackend, page: ThePage, cursor: routing.Name = ""
) -> Response[str]:
    """List what is open, and what was asked for, newest first."""
    inventory, now = backend.inventory.snapshot(), backend.now()
    before = routing.key_before("maintenances", cursor)
    live: dict[int, list[model.Operation]] = {}
    for operation in inventory.operations.values():
        live.setdefault(operation.maintenance, []).append(operation)

    def question(reading: Reading) -> Mapping[str, Any]:
        latest = reading.latest_maintenances(int(before) if before else None, RECENT + 1)
        found, following = routing.page("maintenances", latest, RECENT, lambda m: str(m.number))
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
    how = orders.maintenance_standing(view, shown)
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


@get("/maintenance/{number:int}", AccessRole.VIEWER)
async def show_maintenance(
    request: "Request[Any, Any, Any]", backend: TheBackend, page: ThePage, number: api.ByNumber
) -> Response[str]:
    """Show a maintenance with its operations, and what can be done about it."""
    inventory, now = backend.inventory.snapshot(), backend.now()

    def question(reading: Reading) -> Mapping[str, Any]:
        known = reading.maintenances([number])
        if number not in known:
            message = f"no maintenance {number}: it may be older than the history"
            raise model.Refused(ErrorCode.NOT_FOUND, message, maintenance=number)
        its = sorted(reading.operations_of_maintenance(number).values(), key=_ordinal)
        operations = views.operations(its, inventory, now)
        ((view, further),) = views.maintenances([known[number]], inventory)
        return {
            "one": view,
            "standing": orders.maintenance_standing(view, operations),
            "counts": _counts(operations, further),
            "operations": operations[-SHOWN_OPERATIONS:],
            "more": max(0, len(operations) - SHOWN_OPERATIONS),
            "further": further,
            "orders": orders.of_maintenance(view, operations),
        }

    found = await page.once(("maintenance", number), lambda: backend.read(question))
    return await page.show(request, "maintenance.html", lambda: found)


def _ordinal(operation: model.Operation) -> int:
    return int(operation.id.partition(".")[2])


def _maintenance_plan(
    asked: schemas.MaintenanceRequest, planned: schemas.MaintenancePlan
) -> dict[str, Any]:
    found = orders.concerned(planned.operations)
    count = found.unstarted + found.started + orders.still_to_come(planned.further)
    return {"plan": planned, "button": orders.happens(asked.event_type, count)}


MAINTENANCE_FORM: Final = PlannedForm(
    template="maintenance",
    groups=forms.MAINTENANCE,
    read=forms.maintenance,
    route=api.request_maintenance,
    address=lambda made: f"/maintenance/{made.maintenance.number}",
    plan=_maintenance_plan,
)


@get("/maintenance/new", AccessRole.VIEWER)
async def begin_maintenance(
    request: "Request[Any, Any, Any]",
    page: ThePage,
    kind: routing.Name = "",
    targets: routing.Name = "",
) -> Response[str]:
    """Show the form that asks for maintenance."""
    return await _begin(request, page, MAINTENANCE_FORM, kind=kind, targets=targets)


@post("/page/maintenance", AccessRole.VIEWER)
async def send_maintenance(
    request: "Request[Any, Any, Any]", caller: TheCaller, page: ThePage
) -> Answer:
    """Show the form again, what it would come to, or start it."""
    return await _plan_or_start(request, caller, page, MAINTENANCE_FORM)


# One operation: a page of its own, or the panel beside another page.


@get("/operations/{reference:str}", AccessRole.VIEWER)
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
    shown = {"operation": view, "audience": {event.id: event for event in live}}
    return await page.show(request, "operation.html", lambda: shown)


async def _operation(page: PageContext, reference: str) -> model.Operation:
    known = page.backend.inventory.operations.get(reference)
    if known is not None:
        return known
    found = await page.backend.read(lambda reading: reading.operations([reference]))
    if reference not in found:
        message = f"no operation {reference[:80]!r}: see History"
        raise model.Refused(ErrorCode.NOT_FOUND, message)
    return found[reference]


# Rollouts.


class ListedRollout(msgspec.Struct, frozen=True):
    """A rollout as the list shows it."""

    view: rollout_schemas.RolloutView
    standing: Standing


class ListedUnit(msgspec.Struct, frozen=True):
    """A unit as its rollout's page shows it."""

    view: rollout_schemas.RolloutUnitView
    standing: Standing
    orders: tuple[str, ...]


class ListedWave(msgspec.Struct, frozen=True):
    """A wave of a rollout: how far its units are."""

    number: int
    units: rollout_schemas.RolloutUnits
    count: int
    is_current: bool


@get("/rollouts", AccessRole.VIEWER)
async def list_rollouts(
    request: "Request[Any, Any, Any]", backend: TheBackend, page: ThePage, cursor: routing.Name = ""
) -> Response[str]:
    """List rollouts, the newest first."""
    before = routing.key_before("rollouts", cursor)
    known = dict(backend.rollouts.rollouts)

    def make() -> Mapping[str, Any]:
        numbers = sorted((n for n in known if not before or n < int(before)), reverse=True)
        found, following = routing.page("rollouts", numbers, LISTED, str)
        shown = [views.rollout(known[number]) for number in found]
        return {
            "rollouts": [ListedRollout(view, orders.rollout_standing(view)) for view in shown],
            "next": following,
            "cursor": cursor,
        }

    return await page.show(request, "rollouts.html", make)


@get("/rollouts/{number:int}", AccessRole.VIEWER)
async def show_rollout(
    request: "Request[Any, Any, Any]",
    backend: TheBackend,
    page: ThePage,
    *,
    number: api.ByNumber,
    units: UnitFilter = "",
    offset: Offset = 0,
) -> Response[str]:
    """Show a rollout: its waves, its units, what is blocked and why, and what can be done."""
    rollout = backend.rollouts.rollouts.get(number)
    if rollout is None:
        raise views.unknown_rollout(number)

    def make() -> Mapping[str, Any]:
        detail = views.rollout_detail(rollout)
        listed = [_unit(each) for each in detail.units]
        counts = Counter(each.standing.word for each in listed)
        fitting = [each for each in listed if not units or each.standing.word == units]
        if not units:
            fitting.sort(key=_precedence)
        return {
            "one": detail.rollout,
            "task": detail.task,
            "policy": detail.policy,
            "standing": orders.rollout_standing(detail.rollout),
            "waves": _waves(detail),
            "counts": counts,
            "filter": units,
            "units": fitting[offset : offset + SHOWN_UNITS],
            "fitting": len(fitting),
            "offset": offset,
            "following": offset + SHOWN_UNITS if offset + SHOWN_UNITS < len(fitting) else 0,
            "orders": orders.of_rollout(detail.rollout),
            "consequences": {
                name: orders.ORDERS[name].consequence(
                    orders.Subject(
                        reference=str(number), address=f"/rollouts/{number}", rollout=detail.rollout
                    )
                )
                for name in orders.of_rollout(detail.rollout)
            },
            "key": backend.make_token(),
        }

    return await page.show(request, "rollout.html", make)


def _unit(unit: rollout_schemas.RolloutUnitView) -> ListedUnit:
    possible: tuple[str, ...] = ()
    if unit.state in {UnitState.FAILED, UnitState.SKIPPED}:
        possible = ("retry-unit",)
    if unit.state in {UnitState.FAILED, UnitState.WAITING}:
        possible = (*possible, "skip-unit")
    return ListedUnit(unit, orders.unit_standing(unit), possible)


def _precedence(unit: ListedUnit) -> tuple[int, int]:
    word = unit.standing.word
    return FIRST.index(word) if word in FIRST else len(FIRST), unit.view.wave


def _waves(detail: rollout_schemas.RolloutDetail) -> list[ListedWave]:
    states: dict[int, Counter[str]] = {}
    for unit in detail.units:
        states.setdefault(unit.wave, Counter())[unit.state.value] += 1
    return [
        ListedWave(
            number=number,
            units=rollout_schemas.RolloutUnits(**counts),
            count=counts.total(),
            is_current=number == detail.rollout.wave and not detail.rollout.state.over,
        )
        for number, counts in sorted(states.items())
    ]


def _rollout_plan(
    asked: rollout_schemas.RolloutRequest, planned: rollout_schemas.RolloutPlan
) -> dict[str, Any]:
    plan = planned.plan
    units = f"{plan.units} unit" if plan.units == 1 else f"{plan.units} units"
    done = orders.VERBS[asked.event_type][2]
    return {
        "plan": plan,
        "waves": [(wave, _names(wave)) for wave in plan.waves],
        "button": f"Start: {units}, {orders.machines(plan.machines)} {done}",
    }


def _names(wave: PlannedWave) -> tuple[Collection[str], int]:
    names = wave.units[:PLANNED_NAMES]
    return names, len(wave.units) - len(names)


ROLLOUT_FORM: Final = PlannedForm(
    template="rollout",
    groups=forms.ROLLOUT,
    read=forms.rollout,
    route=api.start_rollout,
    address=lambda made: f"/rollouts/{made.rollout.number}",
    plan=_rollout_plan,
)


@get("/rollouts/new", AccessRole.VIEWER)
async def begin_rollout(request: "Request[Any, Any, Any]", page: ThePage) -> Response[str]:
    """Show the form that starts a rollout."""
    return await _begin(request, page, ROLLOUT_FORM)


@post("/page/rollouts", AccessRole.VIEWER)
async def send_rollout(
    request: "Request[Any, Any, Any]", caller: TheCaller, page: ThePage
) -> Answer:
    """Show the form again, how the rollout would go, or start it."""
    return await _plan_or_start(request, caller, page, ROLLOUT_FORM)


# Orders about what is there already.


@get("/orders/{order:str}", AccessRole.OPERATOR)
async def ask(
    request: "Request[Any, Any, Any]",
    page: ThePage,
    *,
    order: FromPath[str],
    reference: routing.Name = "",
    rollout: routing.Name = "",
    unit: routing.Name = "",
    back: routing.Name = "",
) -> Response[str]:
    """Ask once more whether an order is meant."""
    form = forms.of_pairs(
        [("reference", reference), ("rollout", rollout), ("unit", unit), ("back", back)]
    )
    return await _asked(request, page, order, form.filled(key=page.backend.make_token()))


@post("/page/orders/{order:str}", AccessRole.OPERATOR)
async def do(
    request: "Request[Any, Any, Any]",
    backend: TheBackend,
    caller: TheCaller,
    page: ThePage,
    order: FromPath[str],
) -> Answer:
    """Carry out an order, and lead to what it was about."""
    form = forms.sent(await request.body())
    wanted = _order(order)
    subject = await _subject(backend, form)

    async def act() -> str:
        await wanted.act(
            orders.SentOrder(backend=backend, caller=caller, request=request, form=form)
        )
        return subject.address

    try:
        said = [("order", order), *form.pairs()]
        return Redirect(await page.sent.once(caller, form.text("key"), act, said), status_code=303)
    except forms.REFUSED as error:
        mistake = forms.mistake_of(error, form, wanted.groups)
        caller.outcome = errors.code_of(error)
        status = errors.STATUS[caller.outcome]
        return await _asked(request, page, order, form, mistake=mistake, status=status)


async def _asked(
    request: "Request[Any, Any, Any]",
    page: PageContext,
    order: str,
    form: FilledForm,
    *,
    mistake: Mistake | None = None,
    status: int = 200,
) -> Response[str]:
    wanted = _order(order)
    subject = await _subject(page.backend, form)

    def make() -> Mapping[str, Any]:
        return {
            "name": order,
            "order": wanted,
            "subject": subject,
            "consequence": wanted.consequence(subject),
            "form": form,
            "mistake": mistake,
        }

    return await page.show(request, "order.html", make, status=status)


def _order(name: str) -> OperatorOrder:
    found = orders.ORDERS.get(name)
    if found is None:
        raise model.Refused(ErrorCode.NOT_FOUND, f"no action is named {name[:80]!r}")
    return found


async def _subject(backend: Backend, form: FilledForm) -> Subject:
    if form.text("rollout"):
        return _of_rollout(backend, form)
    reference = form.text("reference")
    kind, _, name = reference.partition(" ")
    if kind in {each.value for each in model.HoldKind}:
        return _of_hold(backend, reference, model.HoldKind(kind), name)
    inventory, now = backend.inventory.snapshot(), backend.now()

    def question(reading: Reading) -> tuple[tuple[schemas.OperationView, ...], int]:
        if not lookup.MAINTENANCE.fullmatch(reference):
            return views.operations(reading.operations([reference]).values(), inventory, now), 0
        number = forms.number(reference)
        found = reading.operations_of_maintenance(number)
        asked = reading.maintenances([number]).values()
        further = [step for _, steps in views.maintenances(asked, inventory) for step in steps]
        return views.operations(found.values(), inventory, now), orders.still_to_come(further)

    operations, further = await backend.read(question)
    number, _, part = reference.partition(".")
    back = form.text("back")
    if not operations and (part or not number.isdecimal()):
        message = f"no operation {reference[:80]!r}: see the history"
        raise model.Refused(ErrorCode.NOT_FOUND, message)
    return Subject(
        reference=reference,
        address=back if BACK.fullmatch(back) else f"/maintenance/{number}",
        operations=operations,
        further=further,
    )


def _of_rollout(backend: Backend, form: FilledForm) -> Subject:
    number = forms.number(form.text("rollout"))
    found = backend.rollouts.rollouts.get(number)
    if found is None:
        raise views.unknown_rollout(number)
    return Subject(
        reference=str(number),
        address=f"/rollouts/{number}",
        rollout=views.rollout(found),
        unit=form.text("unit"),
    )


def _of_hold(backend: Backend, reference: str, kind: model.HoldKind, name: str) -> Subject:
    now = backend.now()
    key = name if kind is model.HoldKind.HOST else model.key(name)
    hold = model.Hold(kind=kind, name=key, reason="", by="", at=now)
    covered = [each for each in backend.inventory.operations.values() if hold.covers(each)]
    return Subject(
        reference=reference,
        address=orders.address_of_hold(kind, name),
        operations=views.operations(covered, backend.inventory, now),
    )
