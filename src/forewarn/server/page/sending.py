"""How the page's forms are sent: once each, and shown again with the reason if they are refused."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Redirect

from forewarn.control import loading
from forewarn.control.accounts import OperatorRequest
from forewarn.maintenance import model
from forewarn.server.operator import errors, rollout_routes, routing, schemas, views
from forewarn.server.operator.requests import Backend, TheBackend, TheCaller
from forewarn.server.page import forms, orders
from forewarn.server.page.forms import FieldGroup, FilledForm
from forewarn.server.page.orders import OperatorOrder, Subject
from forewarn.server.page.routes import PageContext, ThePage, get, post
from forewarn.settings import Mistake
from forewarn.store.port import OutcomeUnknown, Reading, StoreError
from forewarn.vocabulary import ErrorCode

Answer: TypeAlias = Response[Any] | Redirect


def mistake_of(error: Exception, form: FilledForm, groups: "tuple[FieldGroup, ...]") -> Mistake:
    """Return why a form was refused: by the rules, or because the store is away."""
    if isinstance(error, model.Refused):
        return Mistake(forms.field_of(error, form, groups), error.message)
    return Mistake("", str(error))


def status_of(error: Exception, caller: OperatorRequest) -> int:
    """Return the status of a refused form, which the audit log is told, too."""
    code = ErrorCode.UNAVAILABLE
    if isinstance(error, model.Refused):
        code = error.code
    elif isinstance(error, OutcomeUnknown):
        code = ErrorCode.UNKNOWN_OUTCOME
    caller.outcome = code
    return errors.STATUS[code]


BACK: Final = re.compile(r"/operations/[0-9]{1,15}\.[0-9]{1,9}")
"""Where an order about an operation may lead to in place of its maintenance."""

REFUSED: Final = (model.Refused, StoreError)
"""What a form is shown again after."""


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


async def begin(
    request: "Request[Any, Any, Any]", page: PageContext, planned: PlannedForm, **given: str
) -> Response[str]:
    """Show an empty form, but for what the link to it fills in."""
    texts = {name: text for name, text in given.items() if text}
    form = forms.default(planned.groups).filled(**texts, key=page.backend.make_token())
    return await _form(request, page, planned, form)


async def plan_or_start(
    request: "Request[Any, Any, Any]", caller: OperatorRequest, page: PageContext, kind: PlannedForm
) -> Answer:
    """Show the form again, or what it would come to, or start it."""
    backend = page.backend
    form = forms.sent(await request.body())
    action = form.text("action")
    if action == "change":
        caller.recorded = True
        return await _form(request, page, kind, form)
    try:
        now = backend.now()
        asked = kind.read(form, now)
        if action == "start":

            async def act() -> str:
                return kind.address(await kind.route.fn(backend, caller, data=asked))

            led = await page.sent.once(caller, asked.idempotency_key, act)
            return Redirect(led, status_code=303)
        planned = await kind.route.fn(backend, caller, data=asked, dry_run=True)
    except REFUSED as error:
        mistake = mistake_of(error, form, kind.groups)
        status = status_of(error, caller)
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


# Orders about what is there already.


@get("/orders/{order:str}")
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
        [("reference", reference), ("rollout", rollout), ("unit", unit), ("back", back)],
    )
    return await _asked(request, page, order, form.filled(key=page.backend.make_token()))


@post("/page/orders/{order:str}")
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
        return Redirect(await page.sent.once(caller, form.text("key"), act), status_code=303)
    except REFUSED as error:
        mistake = mistake_of(error, form, wanted.groups)
        status = status_of(error, caller)
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
        raise model.Refused(ErrorCode.NOT_FOUND, f"no order is called {name[:80]!r}")
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
        if not loading.MAINTENANCE.fullmatch(reference):
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
        raise rollout_routes.unknown(number)
    return Subject(
        reference=str(number),
        address=f"/rollouts/{number}",
        rollout=rollout_routes.view(found),
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


ROUTES: Final = tuple(each for each in vars().values() if isinstance(each, HTTPRouteHandler))
