"""The standing of operations, maintenances and units on the page, and operators' orders about them.

A standing is a word and its reason. An order that affects machines must be confirmed on a page of
its own, which says how many machines; the others are a button. Each calls its route of the API.
"""

from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request

from forewarn import times
from forewarn.maintenance import model
from forewarn.maintenance.host_drain import DrainOrder
from forewarn.maintenance.standing import of_hold
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.server.operator import administration, api, fields, schemas
from forewarn.server.operator.fields import Field, FieldGroup, row
from forewarn.server.operator.maintenance_schemas import MaintenanceView, UnitView
from forewarn.server.operator.table import API
from forewarn.server.page import forms
from forewarn.server.page.forms import FilledForm
from forewarn.vocabulary import AccessRole, ErrorCode, EventStatus, EventType

# Status.


class Tone(StrEnum):
    """The tone in which a word is drawn; the word itself makes the colour unnecessary."""

    QUIET = "quiet"
    NOTICE = "notice"
    DOWN = "down"
    DONE = "done"
    LOOK = "look"
    """Somebody should look."""
    FAILED = "failed"


class Standing(msgspec.Struct, frozen=True):
    """The state of something: a word, its tone, and the reason."""

    word: str
    tone: Tone
    why: str = ""
    """The reason why it waits, or its result; `""` if the word says it all."""


WORST: Final = (Tone.DOWN, Tone.LOOK, Tone.FAILED, Tone.NOTICE)
"""The tones by which an operation stands for its whole maintenance, the first that there is."""

WORDS: Final = {
    EventStatus.QUEUED: ("queued", Tone.QUIET),
    EventStatus.SCHEDULED: ("under notice", Tone.NOTICE),
    EventStatus.STARTED: ("down", Tone.DOWN),
    EventStatus.RETURNING: ("returning", Tone.DOWN),
    EventStatus.COMPLETED: ("done", Tone.DONE),
    EventStatus.FAILED: ("failed", Tone.FAILED),
    EventStatus.CANCELED: ("cancelled", Tone.QUIET),
}
"""The word and the tone of a status, where nothing else matters more."""


def operation_standing(operation: schemas.OperationView) -> Standing:
    """Return how an operation is."""
    word, tone = WORDS[operation.status]
    why = operation.status_detail
    match operation.status:
        case EventStatus.QUEUED | EventStatus.SCHEDULED if operation.held_at is not None:
            return Standing("held", Tone.LOOK, why.removeprefix("held").strip())
        case EventStatus.SCHEDULED if not operation.waits_for:
            if all(event.approval for event in operation.events):
                word, why = "approved", why.removeprefix("approved").lstrip(", ")
        case EventStatus.STARTED | EventStatus.RETURNING if operation.outcome_unknown:
            return Standing("outcome unknown", Tone.LOOK, operation.outcome_unknown)
        case EventStatus.STARTED:
            return Standing(word, tone)
        case EventStatus.COMPLETED:
            why = why or operation.outcome
        case EventStatus.FAILED:
            return Standing(
                word, Tone.QUIET if operation.acknowledged_by else tone, operation.outcome
            )
        case EventStatus.CANCELED:
            why = operation.outcome
    return Standing(word, tone, why)


def maintenance_standing(
    maintenance: MaintenanceView, operations: Collection[schemas.OperationView]
) -> Standing:
    """Return how a maintenance is; of its operations those that are live are enough.

    Where all units are done in the end, failures on the way were repaired.
    """
    if maintenance.status is MaintenanceState.HALTED:
        return Standing("halted", Tone.FAILED, maintenance.status_detail)
    if maintenance.status is MaintenanceState.PAUSED:
        return Standing("paused", Tone.LOOK, maintenance.status_detail)
    if maintenance.unconfirmed:
        return Standing("waits for you", Tone.LOOK, maintenance.status_detail)
    standings = [operation_standing(operation) for operation in operations]
    units = maintenance.units
    is_repaired = maintenance.status.over and units.done and not (units.failed or units.skipped)
    if is_repaired:
        standings = [standing for standing in standings if standing.word != "failed"]
    first = {standing.tone: standing for standing in reversed(standings)}
    if found := next(filter(None, map(first.get, WORST)), None):
        return found
    if units.running:
        return Standing("running", Tone.DOWN, maintenance.status_detail)
    if units.waiting and not maintenance.status.over:
        why = maintenance.status_detail or "the next unit is announced when nothing blocks it"
        return Standing("waiting", Tone.QUIET, why)
    if maintenance.status is MaintenanceState.STOPPED:
        return Standing("stopped", Tone.QUIET, maintenance.status_detail)
    if queued := [standing for standing in standings if standing.word == "queued"]:
        return queued[0]
    words = set() if is_repaired else {WORDS[status][0] for status in maintenance.operations}
    if maintenance.status is MaintenanceState.DONE:
        words.add("done")
    for word, tone in (("failed", Tone.QUIET), ("done", Tone.DONE)):
        if word in words:
            return Standing(word, tone)
    return Standing("cancelled", Tone.QUIET) if words else Standing("forgotten", Tone.QUIET)


UNIT_TONES = {
    UnitState.WAITING: Tone.QUIET,
    UnitState.RUNNING: Tone.DOWN,
    UnitState.DONE: Tone.DONE,
    UnitState.FAILED: Tone.FAILED,
    UnitState.SKIPPED: Tone.QUIET,
}


def unit_standing(unit: UnitView) -> Standing:
    """Return how a unit of a maintenance is; one that waits for a reason is blocked."""
    blocked = unit.status is UnitState.WAITING and bool(unit.status_detail)
    if blocked:
        return Standing("blocked", Tone.LOOK, unit.status_detail)
    return Standing(unit.status.value, UNIT_TONES[unit.status], unit.status_detail)


def of_unit(unit: UnitView) -> list[str]:
    """Return the orders that a unit of a maintenance can be given now."""
    retry = ["retry"] * (unit.status in {UnitState.FAILED, UnitState.SKIPPED})
    return retry + ["skip"] * (unit.status in {UnitState.FAILED, UnitState.WAITING})


# What an order comes to.

VERBS: Final = {
    EventType.FREEZE: ("is frozen", "are frozen", "frozen"),
    EventType.REBOOT: ("reboots", "reboot", "rebooted"),
    EventType.REDEPLOY: ("moves to another host", "move to another host", "moved"),
    EventType.PREEMPT: ("is deleted", "are deleted", "deleted"),
    EventType.TERMINATE: ("is deleted", "are deleted", "deleted"),
}
"""The verb for a machine, for several, and the participle."""


def machines(count: int) -> str:
    """Return `1 machine` or `4 machines`."""
    return f"{count} machine" if count == 1 else f"{count} machines"


def happens(event_type: EventType, count: int) -> str:
    """Return a number of machines with their verb, such as `4 machines reboot`."""
    one, several, _ = VERBS[event_type]
    return f"{machines(count)} {one if count == 1 else several}"


class Concerned(msgspec.Struct, frozen=True):
    """The machines of operations, by how far they are."""

    unstarted: int = 0
    unapproved: int = 0
    """Those of the unstarted ones that are announced and not approved."""
    started: int = 0
    over: int = 0
    failed: int = 0
    """Those that are over and failed, and nobody acknowledged it."""

    @property
    def already(self) -> str:
        """The machines that an order comes too late for; `""` if there are none."""
        parts = [
            f"{count} {what}"
            for count, what in ((self.started, "already started"), (self.over, "already over"))
            if count
        ]
        return "".join(f", {part}" for part in parts)


def concerned(operations: Collection[schemas.OperationView]) -> Concerned:
    """Count the machines of operations."""
    counts = dict.fromkeys(Concerned.__struct_fields__, 0)
    for operation in operations:
        many = len(operation.machines)
        if operation.status in {EventStatus.QUEUED, EventStatus.SCHEDULED}:
            counts["unstarted"] += many
            if operation.status is EventStatus.SCHEDULED:
                counts["unapproved"] += sum(
                    len(event.machines) for event in operation.events if event.approval is None
                )
        elif operation.status.over:
            counts["over"] += many
            if operation.status is EventStatus.FAILED and not operation.acknowledged_by:
                counts["failed"] += many
        else:
            counts["started"] += many
    return Concerned(**counts)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of an order."""

    reference: str
    """A maintenance (`12`), an operation (`12.1`), or what is held (`scope web`)."""
    address: str
    """The page that shows it."""
    operations: tuple[schemas.OperationView, ...] = ()
    further: int = 0
    """The number of its machines that are not announced yet."""
    things: tuple[object, ...] = ()
    """The machines on a host, or a token: an order is asked again where they have changed."""
    maintenance: MaintenanceView | None = None
    """None where it is about an operation or a hold."""
    hold: model.Hold | None = None
    """The hold that there is, where it is about one."""
    unit: str = ""

    @property
    def name(self) -> str:
        """Its name in a sentence."""
        return f"maintenance {self.reference}" if self.reference.isdecimal() else self.reference

    @property
    def event_type(self) -> EventType:
        """The event type of its first operation; Reboot if it has none."""
        return self.operations[0].event_type if self.operations else EventType.REBOOT

    @property
    def concerned(self) -> Concerned:
        """Its machines, by how far they are."""
        return concerned(self.operations)

    def happens(self, count: int) -> str:
        """Return a number of its machines with their verb, such as `4 machines reboot`."""
        return happens(self.event_type, count)

    def units(self) -> str:
        """Return how far the units of a maintenance are; Refused (NOT_FOUND) if there is none."""
        units = self.known_maintenance.units
        failed = f", {units.failed} failed" if units.failed else ""
        return f"Units: {units.waiting} waiting, {units.running} under way{failed}."

    @property
    def known_maintenance(self) -> MaintenanceView:
        """Its maintenance; Refused (NOT_FOUND) if there is none."""
        if self.maintenance is None:
            message = f"no maintenance {self.reference[:80]!r}: it may be older than the history"
            raise model.Refused(ErrorCode.NOT_FOUND, message, where="reference")
        return self.maintenance


Reader = Callable[[FilledForm], dict[str, object]]
"""Reads what an order is about, by the names that the API has for it."""


def _references(form: FilledForm) -> dict[str, object]:
    return {"references": form.all("reference")}


def _held(form: FilledForm) -> dict[str, object]:
    kind, _, name = form.whole("reference").partition(" ")
    return {"kind": kind, "name": name}


def _drain_order(order: DrainOrder) -> Reader:
    return lambda form: {"name": _held(form)["name"], "order": order}


def _maintenance_order(order: MaintenanceOrder) -> Reader:
    return lambda form: {
        "number": forms.number(form.text("reference")),
        "order": order,
        "unit": form.text("unit"),
    }


class OperatorOrder(msgspec.Struct, frozen=True):
    """Something that an operator does about a subject."""

    label: str
    """The text of the link to its page."""
    handler: Callable[..., Awaitable[msgspec.Struct]]
    """The API's."""
    about: Reader = _references
    says: Callable[[Subject], str] = lambda _: ""
    """Returns whom it concerns; `""` if its name says it all."""
    more: str = ""
    """A further warning or hint."""
    fields: tuple[Field, ...] = ()
    needs: AccessRole = AccessRole.OPERATOR
    is_dangerous: bool = False
    """True if it is asked again where its consequence has changed since it was shown."""

    @property
    def groups(self) -> tuple[FieldGroup, ...]:
        """Its fields, as a form has them."""
        return (FieldGroup("", self.fields),) if self.fields else ()

    async def carry_out(self, request: Request, form: FilledForm, now: datetime) -> None:
        """Do what the API's route does with what was typed."""
        typed = {field.name: forms.value(field, form, now) for field in self.fields}
        await API.call(self.handler, request, {**self.about(form), **typed})


def _cancelled(it: Subject) -> str:
    return f"{machines(it.concerned.unstarted + it.further)}{it.concerned.already}."


def _postponed(it: Subject) -> str:
    return f"{machines(it.concerned.unstarted)}{it.concerned.already}."


def _acknowledged(it: Subject) -> str:
    failed = it.concerned.failed
    return f"{machines(failed)} failed." if failed else "The wait for its machines ends."


def _resolved(it: Subject) -> str:
    unknown = [f"attempt {o.attempt} of {o.id}" for o in it.operations if o.outcome_unknown]
    if not unknown:
        return ""
    twice = it.happens(it.concerned.started)
    return f"Unknown: {', '.join(unknown)}. To repeat it may mean that {twice} twice."


def _held_up(it: Subject) -> str:
    waits = it.concerned.unstarted
    return f"{machines(waits)} under notice wait." if waits else ""


def _released(it: Subject) -> str:
    waits = it.concerned.unstarted
    goes_on = f"The notice of {machines(waits)} goes on." if waits else ""
    held = f"{of_hold(it.hold, times.precise)}. " if it.hold else ""
    return held + goes_on


def _resumed(it: Subject) -> str:
    maintenance = it.known_maintenance
    return f"Wave {maintenance.wave} begins." if maintenance.unconfirmed else it.units()


ORDERS: Final = {
    "approve": OperatorOrder(
        "Approve",
        api.approve,
        says=lambda it: f"{it.happens(it.concerned.unapproved)} at once.",
        more="It counts as the approval of their guests, who may not be ready. What is held, or "
        "has a window, starts when it may.",
        is_dangerous=True,
    ),
    "cancel": OperatorOrder(
        "Cancel",
        api.cancel,
        says=_cancelled,
        more="What has started goes on. Cancelled events disappear, and nothing happens to their "
        "machines.",
        fields=(fields.REASON,),
        is_dangerous=True,
    ),
    "postpone": OperatorOrder(
        "Postpone",
        api.postpone,
        says=_postponed,
        more="Guests read the new NotBefore. What they approve starts all the same.",
        fields=(
            row(
                "not_before",
                "Later than guests have read: 2026-11-22T22:00Z, or +20m from now.",
                read=times.moment,
                required=True,
            ),
        ),
    ),
    "pause": OperatorOrder(
        "Pause",
        api.order_maintenance,
        _maintenance_order(MaintenanceOrder.PAUSE),
        says=Subject.units,
        more="What is announced already goes on.",
    ),
    "resume": OperatorOrder(
        "Resume",
        api.order_maintenance,
        _maintenance_order(MaintenanceOrder.RESUME),
        says=_resumed,
        more="Failed units stay failed: retry them to give them another turn.",
        is_dangerous=True,
    ),
    "skip": OperatorOrder(
        "Skip",
        api.order_maintenance,
        _maintenance_order(MaintenanceOrder.SKIP),
        says=lambda it: f"{it.name} leaves it out.",
        more="You can retry it later.",
        is_dangerous=True,
    ),
    "retry": OperatorOrder(
        "Retry",
        api.order_maintenance,
        _maintenance_order(MaintenanceOrder.RETRY),
        says=lambda it: f"{it.name} gives it another turn.",
    ),
    "acknowledge": OperatorOrder(
        "Acknowledge",
        api.acknowledge,
        says=_acknowledged,
        more="The alert ends, and the update domain counts as up: another one may go down.",
        fields=(fields.EVEN_IF_DOWN,),
        is_dangerous=True,
    ),
    "resolve": OperatorOrder(
        "Resolve",
        api.resolve,
        says=_resolved,
        more="Nobody knows whether it was carried out: look at its machines first.",
        fields=(
            row(
                "verdict",
                "What its machines show.",
                "Result",
                choices=(
                    (model.Verdict.SUCCEEDED.value, "It was carried out"),
                    (model.Verdict.FAILED.value, "It failed"),
                    (model.Verdict.REPEAT.value, "Run it again where the result is unknown"),
                ),
            ),
        ),
        is_dangerous=True,
    ),
    "hold": OperatorOrder(
        "Hold",
        api.hold,
        _held,
        says=_held_up,
        more="Its maintenance starts only when the hold has ended.",
        fields=(fields.REASON, fields.UNTIL),
    ),
    "release": OperatorOrder(
        "Release",
        api.release,
        _held,
        says=_released,
        more="What is approved starts at once.",
        is_dangerous=True,
    ),
    "drain": OperatorOrder(
        "Drain",
        api.drain_hosts,
        lambda form: {"hosts": [_held(form)["name"]]},
        says=lambda it: f"{happens(EventType.REDEPLOY, it.further)}, each after its notice.",
        more="No machine may move there until you reopen the host.",
        fields=(
            row("--reboot", "Reboot the host once it is empty, and bring its machines home."),
            fields.MAINTENANCE["without_notice"],
        ),
        is_dangerous=True,
    ),
    "reopen": OperatorOrder(
        "Reopen",
        api.order_drain,
        _drain_order(DrainOrder.UNDRAIN),
        more="Its machines stay where they are.",
    ),
    "bring-home": OperatorOrder(
        "Bring home",
        api.order_drain,
        _drain_order(DrainOrder.RETURN),
        more="The host opens, and its machines move back.",
    ),
    "retry-drain": OperatorOrder(
        "Retry",
        api.order_drain,
        _drain_order(DrainOrder.RETRY),
        more="The drain tries again what failed.",
    ),
    "revoke": OperatorOrder(
        "Revoke",
        administration.revoke_tokens,
        lambda form: {"name": form.all("reference")},
        more="Requests with this token are refused from now on.",
        needs=AccessRole.ADMIN,
        is_dangerous=True,
    ),
}
"""By the last part of their addresses."""


def changed_since() -> model.Refused:
    """Return the refusal of what would do something else than somebody was shown."""
    message = "it has changed since you were asked: look at it again"
    return model.Refused(ErrorCode.CONFLICT, message)


def address_of_hold(kind: model.HoldKind, name: str) -> str:
    """Return the page that shows what a hold covers."""
    match kind:
        case model.HoldKind.EVERYTHING:
            return "/maintenance"
        case model.HoldKind.MACHINE:
            return f"/machines/{quote(name, safe='')}"
        case _:
            return f"/machines?{urlencode({kind.value: name})}"


def of_operation(operation: schemas.OperationView) -> list[str]:
    """Return the orders that an operation can be given now."""
    if operation.status is EventStatus.SCHEDULED:
        approved = all(event.approval for event in operation.events)
        return [*([] if approved else ["approve"]), "postpone", "cancel"]
    if operation.status is EventStatus.QUEUED:
        return ["cancel"]
    if operation.outcome_unknown:
        return ["resolve"]
    if operation.status.over and operation.awaited:
        return ["acknowledge"]
    if operation.status is EventStatus.FAILED and not operation.acknowledged_by:
        return ["acknowledge"]
    return []


def of_maintenance(
    maintenance: MaintenanceView, operations: Collection[schemas.OperationView]
) -> list[str]:
    """Return the orders that a whole maintenance can be given now."""
    found: list[str] = []
    if maintenance.unconfirmed or maintenance.status in _RESTING:
        found.append("resume")
    if maintenance.status is MaintenanceState.RUNNING:
        found.append("pause")
    each = {order for operation in operations for order in of_operation(operation)}
    found += [order for order in ("approve", "postpone", "acknowledge") if order in each]
    return [*found, "cancel"] if not maintenance.status.over or "cancel" in each else found


_RESTING: Final = frozenset((MaintenanceState.PAUSED, MaintenanceState.HALTED))


def label_of(order: str) -> str:
    """Return the text of the button of an order."""
    return ORDERS[order].label


OF_HOST: Final = {
    model.HostState.UP: ["drain"],
    model.HostState.STUCK: ["retry-drain", "reopen"],
    model.HostState.EMPTY: ["bring-home", "reopen"],
    model.HostState.DRAINING: ["reopen"],
}
"""The orders that the drain of a host can be given in a state."""


def of_host(host: schemas.HostView) -> list[str]:
    """Return the orders that the drain of a host can be given now."""
    return OF_HOST.get(host.status, [])


FILTERS: Final = MappingProxyType(
    {"standing": operation_standing, "orders_of": of_operation, "label_of": label_of}
    | {"orders_of_host": of_host, "standing_of_unit": unit_standing, "orders_of_unit": of_unit}
)
"""By the names that templates call them."""
