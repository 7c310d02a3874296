"""The pages of maintenance: the list, one of it with its units, the form, and orders about it.

A form that asks for something new is filled in, then planned, then started; an order about what is
there already is asked once more. Both are shown again with the reason if they are refused.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from starlette.responses import RedirectResponse, Response

from forewarn.maintenance import model
from forewarn.maintenance.turn_plan import PlannedWave
from forewarn.maintenance.units import UnitState
from forewarn.server import secret_files
from forewarn.server.operator import (
    api,
    auth,
    fields,
    maintenance_schemas,
    routing,
    schemas,
    table,
    views,
)
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.routing import Backend
from forewarn.server.operator.table import PAGE
from forewarn.server.page import forms, machines, orders
from forewarn.server.page.forms import Draft, FilledForm
from forewarn.server.page.orders import OperatorOrder, Standing, Subject
from forewarn.server.page.routes import PageRequest
from forewarn.store.queries import Reading
from forewarn.vocabulary import AccessRole, ErrorCode, EventStatus

BACK: Final = re.compile(
    r"/(operations/[0-9]{1,15}\.[0-9]{1,9}|maintenance/[0-9]{1,15}|machines/[\w.%-]+|holds|hosts)"
)
"""Where an order may lead back to, in place of what it is about."""

RECENT: Final = 30
"""Maintenances of one page of the list."""

OPEN: Final = 100
"""The most open ones above it, newest first; pages of the list have the others."""

SHOWN_OPERATIONS: Final = 200
"""The most operations of a maintenance's page, the latest; the history has all of them."""

SHOWN_UNITS: Final = 200
"""The most units of a maintenance's page at once."""

FIRST: Final = ("failed", "blocked", "running")
"""The units that are shown before all others."""

PROGRESS: Final = {
    EventStatus.COMPLETED: "done",
    EventStatus.STARTED: "down",
    EventStatus.RETURNING: "down",
    EventStatus.FAILED: "failed",
    EventStatus.CANCELED: "cancelled",
}
"""The count that a machine adds to, by the status of its operation; else it is under notice."""

replace = msgspec.structs.replace

Reference = Annotated[str, msgspec.Meta(max_length=len("machine ") + model.MAX_TEXT)]
UnitFilter = Annotated[str, msgspec.Meta(max_length=20)]
Offset = Annotated[int, msgspec.Meta(extra={table.NAME: "from"}, ge=0, le=100_000)]


# Forms that ask for something new.


async def _form(page: PageRequest, draft: Draft) -> Response:
    checks = sorted(page.backend.maintenances.checks.names)
    inventory = page.backend.inventory.snapshot()

    def make() -> Mapping[str, Any]:
        known = {"check": checks, **machines.places(inventory)}
        return {"groups": forms.suggesting(fields.GROUPS, known)}

    return await page.show("maintenance_form.html", make, draft)


# Maintenance.


Listed = tuple[maintenance_schemas.MaintenanceView, Standing]


@PAGE.route("GET", "/maintenance", AccessRole.VIEWER)
async def list_maintenances(page: PageRequest, cursor: str = "") -> Response:
    """List what is open, and what was asked for, newest first.

    Operations that are over are only counted: a maintenance may have ten thousand.
    """
    backend = page.backend
    inventory, now = backend.inventory.snapshot(), backend.now()
    before = routing.key_before("maintenances", cursor)

    def question(reading: Reading) -> Mapping[str, Any]:
        live = inventory.by_maintenance()
        latest = reading.latest_maintenances(int(before) if before else None, RECENT + 1)
        found, following = routing.page("maintenances", latest, RECENT, lambda m: str(m.number))
        opened = reading.open_maintenances()
        numbers = sorted(live.keys() | opened.keys(), reverse=True)
        known = opened | reading.maintenances(numbers[:OPEN])
        upper = [known[n] for n in numbers[:OPEN] if n in known and not cursor]
        lower = [one for one in found if cursor or one.number not in numbers[:OPEN]]

        counts = reading.outcomes([one.number for one in (*upper, *lower)])

        def listed(value: model.Maintenance) -> Listed:
            operations, counted = live.get(value.number, ()), counts.get(value.number, {})
            view = views.maintenance(value, counted, operations, inventory, now)
            shown = views.operations(operations, inventory, now)
            return view, orders.maintenance_standing(view, shown)

        return {
            "open": [*map(listed, upper)],
            "more_open": max(0, len(numbers) - OPEN),
            "recent": [*map(listed, lower)],
            "next": following,
            "cursor": cursor,
            "holds": [h for h in reading.holds() if h.kind is model.HoldKind.EVERYTHING],
        }

    found = await page.once(("maintenances", cursor), lambda: backend.read(question))
    return await page.show("maintenances.html", lambda: found)


def _counts(
    again: Collection[str], operations: Iterable[schemas.OperationView], further: int
) -> Counter[str]:
    """Return how many machines are done, down, failed, cancelled, and still to come.

    Each counts once, by its latest operation; those of a unit that has another turn are to come:
    `again` has the ids of its operations.
    """
    latest: dict[str, str] = {}
    for operation in sorted(operations, key=_ordinal):
        name = PROGRESS.get(operation.status, "notice")
        has_another = operation.id in again and name in {"failed", "cancelled"}
        latest |= dict.fromkeys(operation.machines, "" if has_another else name)
    counts = Counter(filter(None, latest.values()))
    counts["notice"] += further
    return counts


@PAGE.route("GET", "/maintenance/{number:digits}", AccessRole.VIEWER)
async def show_maintenance(
    page: PageRequest,
    *,
    number: api.ByNumber,
    units: UnitFilter = "",
    offset: Offset = 0,
) -> Response:
    """Show a maintenance with its units and operations, and what can be done about it."""
    backend = page.backend
    found = await page.once(("maintenance", number), lambda: api.show_maintenance(backend, number))
    inventory = backend.inventory.snapshot()

    def make() -> Mapping[str, Any]:
        view, every = found.maintenance, found.units
        operations = sorted(found.operations, key=_ordinal)
        again = {unit.operation for unit in every if unit.status is UnitState.WAITING}
        further = sum(unit.machines.count for unit in every)
        return {
            "one": view,
            "policy": found.policy,
            "standing": orders.maintenance_standing(view, operations),
            "counts": _counts(again, operations, further),
            "holds": [*views.holds(_holds_of(view, inventory), inventory)],
            "taken": {one.id: one.machines for one in operations},
            "operations": operations[-SHOWN_OPERATIONS:],
            "more": max(0, len(operations) - SHOWN_OPERATIONS),
            "orders": orders.of_maintenance(view, operations),
            "waves": _waves(view, every),
            **_units(every, units, offset),
        }

    return await page.show("maintenance.html", make)


def _holds_of(view: maintenance_schemas.MaintenanceView, inventory: Inventory) -> list[model.Hold]:
    """Return the holds that keep operations of it, or its targets, from starting."""
    live = inventory.operations.values()
    unstarted = [one for one in live if one.maintenance == view.number and one.unstarted]
    if view.status.over and not unstarted:
        return []
    names = {*view.targets, *map(model.key, view.targets)}
    return [
        hold
        for hold in inventory.holds.values()
        if any(map(hold.covers, unstarted))
        or (view.target.startswith(hold.kind) and hold.name in names)
        or hold.kind is model.HoldKind.EVERYTHING
    ]


def _ordinal(operation: schemas.OperationView) -> int:
    return int(operation.id.partition(".")[2])


def _units(
    every: Collection[maintenance_schemas.UnitView], wanted: str, offset: int
) -> dict[str, Any]:
    """Return the units that a page shows, and how many there are of each kind."""
    words = [(orders.unit_standing(unit).word, unit) for unit in every]
    fitting = [unit for word, unit in words if wanted in {"", word}]
    if not wanted:
        fitting.sort(key=_precedence)
    following = offset + SHOWN_UNITS
    return {
        "unit_counts": Counter(word for word, _ in words),
        "filter": wanted,
        "units": fitting[offset:following],
        "fitting": len(fitting),
        "offset": offset,
        "following": following if following < len(fitting) else 0,
    }


def _precedence(unit: maintenance_schemas.UnitView) -> tuple[int, int]:
    word = orders.unit_standing(unit).word
    return FIRST.index(word) if word in FIRST else len(FIRST), unit.wave


def _waves(
    view: maintenance_schemas.MaintenanceView, every: Collection[maintenance_schemas.UnitView]
) -> list[tuple[int, Counter[str], bool]]:
    """Return the waves, where there are several: their units by state, and the current one."""
    states: dict[int, Counter[str]] = {}
    for unit in every if view.waves > 1 else ():
        states.setdefault(unit.wave, Counter())[unit.status.value] += 1
    current = 0 if view.status.over else view.wave
    return [(number, counts, number == current) for number, counts in sorted(states.items())]


def _plan(
    asked: maintenance_schemas.MaintenanceRequest, planned: maintenance_schemas.MaintenancePlan
) -> dict[str, Any]:
    """Return the values for the plan's template, from a request and the answer to its dry run."""
    found = orders.concerned(planned.operations)
    count = found.unstarted + found.started + sum(u.machines.count for u in planned.units)
    says = f"{orders.happens(asked.event_type, count)}."
    waves: Iterable[PlannedWave] = ()
    if (plan := planned.plan) is not None:
        units = f"{plan.units} unit" if plan.units == 1 else f"{plan.units} units"
        done = orders.VERBS[asked.event_type][2]
        says = f"{units}, {orders.machines(plan.machines)} {done}."
        waves = plan.waves
    return {
        "plan": planned,
        "further": [unit for unit in planned.units if unit.machines.count],
        "waves": waves,
        "says": says,
        "shown": _shown(
            says,
            *(operation.machines for operation in planned.operations),
            *((unit.name, unit.machines) for unit in planned.units),
            *(operation.id for operation in planned.superseded),
            *(wave.units for wave in waves),
        ),
    }


def _shown(says: str, *what: object) -> str:
    """Return the memory of a form of all that it showed: other machines may be as many."""
    return f"{says} {secret_files.digest(repr(what).encode())[:16]}".strip()


@PAGE.route("GET", "/maintenance/new", AccessRole.VIEWER)
async def begin_maintenance(
    page: PageRequest,
    *,
    machines: routing.Name = "",
    scopes: routing.Name = "",
    hosts: routing.Name = "",
) -> Response:
    """Show the form that asks for maintenance, with what the link to it fills in."""
    texts = {"machines": machines, "scopes": scopes, "hosts": hosts}
    given = {name: text for name, text in texts.items() if text}
    form = forms.default(fields.GROUPS).filled(**given, key=secret_files.new_token())
    whole = ((forms.TICKED, name) for name in given)
    return await _form(page, Draft(FilledForm([*form.pairs, *whole])))


@PAGE.route("POST", "/page/maintenance", AccessRole.VIEWER)
async def send_maintenance(page: PageRequest) -> Response:
    """Show the form again, or what it would come to, or start it."""
    backend, caller, form = page.backend, page.caller, await page.form()
    action = form.text("action")
    if action != "start":
        caller.recorded = True  # it changes nothing
    if action == "change":
        return await _form(page, Draft(form.filled(key=secret_files.new_token())))
    starts, shown, values = action == "start", form.text("shown"), dict[str, Any]()
    try:
        now = backend.now()
        asked = forms.maintenance(form, now)
        # What was started already may not be planned again: the request itself knows its key.
        with suppress(model.Refused) if starts else nullcontext():
            if shown or not starts:
                planned = await api.request_maintenance(page.call, data=asked, dry_run=True)
                values = await backend.beside(_plan, asked, planned)
        if starts and values.get("shown", shown) == shown:
            made = await api.request_maintenance(page.call, data=asked)
            return RedirectResponse(f"/maintenance/{made.maintenance.number}", status_code=303)
    except forms.REFUSED as error:
        draft = page.refused(error, form, fields.GROUPS)
        if isinstance(error, model.Refused):  # nothing came of it: what follows is another request
            form = form.filled(key=secret_files.new_token())
        return await _form(page, draft._replace(form=form))
    draft = Draft(forms.settled(form, now).filled(shown=values["shown"]))
    if starts:
        draft = page.refused(orders.changed_since(), draft.form, ())
    return await page.show("maintenance_plan.html", lambda: {"asked": asked, **values}, draft)


# One operation: a page of its own, or the panel beside another page.


@PAGE.route("GET", "/operations/{reference}", AccessRole.VIEWER)
async def show_operation(page: PageRequest, reference: str) -> Response:
    """Show all that is known of an operation."""
    backend, now = page.backend, page.backend.now()
    operation = await _operation(backend, reference)
    inventory = backend.inventory.snapshot()

    def make() -> Mapping[str, Any]:
        (view,) = views.operations([operation], inventory, now)
        events = () if operation.status.over else operation.events
        live = [views.live_event(operation, event, inventory, now) for event in events]
        holds = inventory.holds.values() if operation.unstarted else ()
        return {
            "operation": view,
            "audience": {event.id: event for event in live},
            "holds": [*views.holds([h for h in holds if h.covers(operation)], inventory)],
        }

    return await page.show("operation.html", make)


async def _operation(backend: Backend, reference: str) -> model.Operation:
    known = backend.inventory.operations.get(reference)
    if known is not None:
        return known
    found = await backend.read(lambda reading: reading.operations([reference]))
    if reference not in found:
        message = f"no operation {reference[:80]!r}: see History"
        raise model.Refused(ErrorCode.NOT_FOUND, message)
    return found[reference]


# Orders about what is there already.


@PAGE.route("GET", "/orders/{order}", AccessRole.OPERATOR)
async def ask(
    page: PageRequest,
    *,
    order: str,
    reference: Reference = "",
    unit: routing.Name = "",
    back: routing.Name = "",
) -> Response:
    """Ask once more whether an order is meant."""
    auth.require(page.caller, _order(order).needs)
    form = FilledForm([("reference", reference), ("unit", unit), ("back", back)])
    return await _asked(page, order, Draft(form))


@PAGE.route("POST", "/page/orders/{order}", AccessRole.OPERATOR)
async def do(page: PageRequest, order: str) -> Response:
    """Carry out an order, and lead to what it was about."""
    form, wanted = await page.form(), _order(order)
    auth.require(page.caller, wanted.needs)
    subject = await _subject(page.backend, form, order)
    try:
        shown = form.text("shown")
        if wanted.is_dangerous and shown and shown != _shown_of(order, subject):
            raise orders.changed_since()
        await wanted.carry_out(page.request, form, page.backend.now())
        return RedirectResponse(subject.address, status_code=303)
    except forms.REFUSED as error:
        return await _asked(page, order, page.refused(error, form, wanted.groups))


async def _asked(page: PageRequest, order: str, draft: Draft) -> Response:
    wanted = _order(order)
    subject = await _subject(page.backend, draft.form, order)

    def make() -> Mapping[str, Any]:
        return {
            "name": order,
            "order": wanted,
            "subject": subject,
            "says": wanted.says(subject),
            "form": draft.form.filled(shown=_shown_of(order, subject)),
        }

    return await page.show("order.html", make, draft)


def _shown_of(order: str, subject: Subject) -> str:
    ids = [o.id for o in subject.operations if subject.hold or order in orders.of_operation(o)]
    return _shown(_order(order).says(subject), *ids, *subject.things)


def _order(name: str) -> OperatorOrder:
    found = orders.ORDERS.get(name)
    if found is None:
        raise model.Refused(ErrorCode.NOT_FOUND, f"no action is named {name[:80]!r}")
    return found


async def _subject(backend: Backend, form: FilledForm, order: str) -> Subject:
    reference = form.whole("reference")
    kind, _, name = reference.partition(" ")
    if order == "revoke":
        token = backend.accounts.tokens.get(reference)
        return Subject(reference=reference, address="/tokens", things=(token,))
    back = form.text("back")
    if kind in {each.value for each in model.HoldKind}:
        inventory, now = backend.inventory.snapshot(), backend.now()
        found = await backend.beside(
            partial(_of_hold, inventory, reference, model.HoldKind(kind), name, now=now)
        )
        return replace(found, address=back) if BACK.fullmatch(back) else found
    subject = Subject(
        reference=reference,
        address=back if BACK.fullmatch(back) else f"/maintenance/{reference.partition('.')[0]}",
        unit=form.text("unit"),
    )
    if not reference.isdecimal():
        operation = await _operation(backend, reference)
        operations = views.operations([operation], backend.inventory, backend.now())
        return replace(subject, operations=operations)
    detail = await api.show_maintenance(backend, forms.number(reference))
    return replace(
        subject,
        operations=detail.operations,
        further=sum(unit.machines.count for unit in detail.units),
        maintenance=detail.maintenance,
    )


def _of_hold(
    inventory: Inventory, reference: str, kind: model.HoldKind, name: str, *, now: datetime
) -> Subject:
    key = name if kind is model.HoldKind.HOST else model.key(name)
    hold = model.Hold(kind=kind, name=key, reason="", by="", at=now)
    there = sorted(m.key for m in inventory.machines.values() if kind == "host" and m.host == name)
    covered = [each for each in inventory.operations.values() if hold.covers(each)]
    return Subject(
        reference=reference,
        address=orders.address_of_hold(kind, name),
        operations=views.operations(covered, inventory, now),
        further=len(there),
        things=tuple(there),
        hold=inventory.holds.get((kind, key)),
    )
