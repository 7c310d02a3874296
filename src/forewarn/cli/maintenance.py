"""`forewarn schedule`, `rollout` and `maintenance`: ask for maintenance; list, show and steer it.

A rollout is maintenance whose units take their turns by a policy of the operator's.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from forewarn import times
from forewarn.cli import events, follow, output
from forewarn.cli.command import RequestCommand, asking, group, orders
from forewarn.cli.operator_client import OperatorClient
from forewarn.cli.options import DRY_RUN, WAIT, Choice, argument, flag, of_field
from forewarn.server.operator import fields
from forewarn.vocabulary import EventStatus, EventType, TargetKind

if TYPE_CHECKING:
    from forewarn.maintenance.turn_plan import PlannedTurns
    from forewarn.server.operator import maintenance_schemas

NEWS: Final = ("maintenance", "operation", "host")
"""The kinds of news that a maintenance makes."""

UNIT_STATES: Final = ("done", "running", "failed", "skipped", "waiting")
"""In the order in which they are counted."""

SHOWN_UNITS: Final = 6
"""Names of units in one line."""

ORDERS: Final = {
    "pause": "Announce no further unit; what is announced goes on.",
    "resume": "Go on after a pause or a halt, or begin the next wave.\n\n"
    "Units that failed stay failed, and no longer halt the maintenance.",
    "stop": "End a maintenance and cancel what has not started.\n\n"
    "Drains of hosts that have begun go on: 'forewarn host undrain' ends them.",
}
UNIT_ORDERS: Final = {"skip": "Leave a unit out.", "retry": "Try a failed or skipped unit again."}
"""The orders about a maintenance, and about a unit of it, and the help of each."""


ORDERED: Final = "/v1/maintenances/{number}/orders"
NUMBER: Final = argument("number NUMBER", "The maintenance.", fields.within(1))
UNIT: Final = argument(
    "unit UNIT", "A unit of it: a host, an update domain such as web/0, or a machine."
)
TYPE: Final = argument(
    "kind TYPE",
    "reboot or freeze (at least 15 minutes of notice), redeploy (10 minutes), preempt (30 "
    "seconds), or terminate (what its scale set sets).",
    Choice(EventType),
)
LONGEST_LEAST: Final = timedelta(minutes=15)
"""The longest of the least notices (protocol.md section 6)."""

BY_UNITS: Final = ("all_hosts", "drain")
"""The fields that go with a policy only, beside those of the policy."""

SCHEDULE: Final = tuple(
    of_field(field)
    for name, field in fields.MAINTENANCE.items()
    if name not in {"event_type", "machines", *BY_UNITS} and not field.in_policy
)
ROLLOUT: Final = tuple(
    of_field(field)
    for name, field in fields.MAINTENANCE.items()
    if name not in {"event_type", "machines", "drain"} and not field.for_one
)
MACHINES: Final = argument("machines [TARGET]...", fields.MAINTENANCE["machines"].help)


@asking(TYPE, MACHINES, *SCHEDULE, DRY_RUN, WAIT)
def schedule(
    service: OperatorClient,
    *,
    kind: str,
    dry_run: bool,
    wait: bool,
    **given: Any,  # noqa: ANN401 - the fields of the API's request
) -> None:
    """Schedule maintenance of machines, scopes or hosts.

    It is announced to the guests, and starts when they approve it or its notice is over. The
    update domains of a scope are taken one after another: the next is announced when the one
    before has ended well and its machines are back. The machines of a host go down together; if
    they are in several update domains of one scope, one domain goes after another, unless
    --indivisible is given.

    Several scopes or hosts, or a tag, are taken one after another, until one fails. 'forewarn
    rollout start' has more options, and 'forewarn maintenance show' shows how far it is.
    """
    if wait and dry_run:
        raise click.UsageError("--wait has nothing to wait for with --dry-run")
    after = given["not_before"]
    least = isinstance(after, timedelta) and timedelta() <= after <= LONGEST_LEAST
    if least and not given["notice_seconds"]:
        # From when the service has the request: from now, the least notice would be too short.
        given |= {"notice_seconds": int(after.total_seconds()), "not_before": None}
    _ask(service, kind, fields.body(given), dry_run=dry_run, wait=wait)


def _ask(
    service: OperatorClient, kind: str, body: dict[str, object], *, dry_run: bool, wait: bool
) -> None:
    """Plan maintenance or ask for it, and show what it becomes; or wait for its end, too."""
    if not any(body.get(name) for name in fields.TARGETS):
        hosts = "--host, --all-hosts" if "policy" in body else "--host"
        raise click.UsageError(f"expected names of machines or scopes, --scope, {hosts} or --tag")
    if dry_run:
        plan = service.post("/v1/maintenances?dry_run=true", event_type=kind, **body)
    else:
        plan = service.post_once("/v1/maintenances", event_type=kind, **body)
    if wait:
        wait_for(service, plan.tree()["maintenance"]["number"], lambda: plan.show(_draw_plan))
    else:
        plan.show(_draw_answer)


NO_DRAIN: Final = flag(
    "--no-drain", "Do not drain hosts: their machines stop while the host is maintained."
)


def _rollout(text: str, *more: click.Option, dry_run: bool) -> click.Command:
    def run(
        service: OperatorClient,
        *,
        kind: str,
        no_drain: bool,
        wait: bool = False,
        **given: Any,  # noqa: ANN401 - the fields of the API's request
    ) -> None:
        hosts = bool(given["hosts"] or given["all_hosts"])
        given["drain"] = not no_drain and kind == EventType.REBOOT and hosts
        _ask(service, kind, fields.body(given, has_policy=True), dry_run=dry_run, wait=wait)

    run.__doc__ = text
    return asking(TYPE, MACHINES, *ROLLOUT, NO_DRAIN, *more)(run)


rollout = group(
    "Plan and start maintenance by a policy.",
    {
        "plan": _rollout(
            "Show how maintenance by a policy would go.\n\n"
            "It lists the waves, when each is over, and what goes first.",
            dry_run=True,
        ),
        "start": _rollout(
            "Start maintenance of many units, one after another.\n\n"
            "A host, an update domain of a scope, or a machine is a unit. It halts when a unit "
            "fails: 'forewarn maintenance' shows it, and lets it go on. For a reboot, hosts that "
            "the connector can drain are drained.",
            WAIT,
            dry_run=False,
        ),
    },
)

# Until it is over.


def wait_for(
    service: OperatorClient,
    number: int,
    first: Callable[[], None] = lambda: None,
    document: Callable[[], object] | None = None,
) -> None:
    """Show what changes until a maintenance is over; `document` is for another end of --json."""
    from forewarn.server.operator import maintenance_schemas

    def look() -> follow.Progress:
        answer = service.get(f"/v1/maintenances/{number}")
        detail = answer.read(maintenance_schemas.MaintenanceDetail)
        faults = "; ".join(_faults(detail))
        why = f"maintenance {number}: {faults}" if faults else ""
        end = document or answer.tree
        return follow.Progress(_is_over(detail), why, end, dict(_facts(detail)))

    shown_by = f"forewarn maintenance show {number}"
    follow.wait(service, look, types=NEWS, shown_by=shown_by, first=first)


def _is_over(detail: "maintenance_schemas.MaintenanceDetail") -> bool:
    maintenance = detail.maintenance
    is_going = not maintenance.status.over or maintenance.units.running
    return not is_going and all(operation.status.over for operation in detail.operations)


def _faults(detail: "maintenance_schemas.MaintenanceDetail") -> Iterator[str]:
    maintenance = detail.maintenance
    if maintenance.status in _RESTING and not maintenance.units.running:
        yield output.status(maintenance)
    elif maintenance.unconfirmed or _waits_for_an_operator(detail):
        yield maintenance.status_detail
    for operation in detail.operations:
        if operation.outcome_unknown:
            yield f"the outcome of {operation.id} is unknown: {operation.outcome_unknown}"
    if _is_over(detail):
        if maintenance.status == "stopped":
            yield output.status(maintenance)
        failed = [unit for unit in detail.units if unit.status == "failed"]
        yield from (
            f"{unit.name} failed: {unit.status_detail}".removesuffix(": ") for unit in failed
        )
        if not detail.units:
            ended = [o for o in detail.operations if o.status is not EventStatus.COMPLETED]
            yield from (f"{one.id} {one.status}: {one.outcome}".rstrip(": ") for one in ended)


def _waits_for_an_operator(detail: "maintenance_schemas.MaintenanceDetail") -> bool:
    """Tell whether nothing goes on before a failure, of it or not, has been seen to."""
    going = {EventStatus.STARTED, EventStatus.RETURNING}
    is_going = detail.maintenance.units.running or any(o.status in going for o in detail.operations)
    return not is_going and bool(ORDER.search(detail.maintenance.status_detail))


ORDER: Final = re.compile(r": (acknowledge|resolve) [0-9]")
"""The end of what waits for a failed operation, or for one whose outcome is unknown."""

_RESTING: Final = frozenset(("paused", "halted"))


def _facts(detail: "maintenance_schemas.MaintenanceDetail") -> Iterator[tuple[str, str]]:
    """Yield how each part of it is, by what people call it."""
    maintenance = detail.maintenance
    if detail.units:
        is_told = maintenance.status_detail.startswith(f"{maintenance.number}.")  # with that below
        now = str(maintenance.status) if is_told else output.status(maintenance)
        yield f"maintenance {maintenance.number}", now
    for unit in detail.units:
        if unit.status != "waiting" or unit.status_detail:
            yield unit.name, output.status(unit)
    for operation in detail.operations:
        detail_ = operation.status_detail or operation.outcome
        yield operation.id, f"{operation.status}: {detail_}".removesuffix(": ")


@asking(NUMBER)
def watch(service: OperatorClient, number: int) -> None:
    """Show what changes until a maintenance is over.

    Exit status: 0 when all of it has ended well, 11 when it halts, is paused or stopped, or waits
    for you.
    """
    service.get(f"/v1/maintenances/{number}")  # or it ends here, before it waits
    wait_for(service, number)


def _draw_order(detail: "maintenance_schemas.MaintenanceDetail") -> None:
    maintenance = detail.maintenance
    unit = click.get_current_context().params.get("unit", "").lower()
    for each in detail.units:
        if each.name.lower() == unit:
            output.say(output.printable(f"{each.name} is {each.status}"))
    output.say(
        output.printable(f"maintenance {maintenance.number} is {output.status(maintenance)}")
    )


def _draw_answer(plan: "maintenance_schemas.MaintenancePlan") -> None:
    _draw_plan(plan)
    if plan.units and not plan.dry_run:
        output.note(f"To follow it: 'forewarn maintenance watch {plan.maintenance.number}'.")


def _draw_plan(plan: "maintenance_schemas.MaintenancePlan") -> None:
    if plan.dry_run:
        output.note("Nothing is scheduled: this is a plan.")
    else:
        output.say(f"maintenance {plan.maintenance.number}: {plan.maintenance.event_type}")
    if plan.plan is not None:
        _draw_turns(plan.plan)
        return
    events.planned(plan)
    if any(operation.status is EventStatus.QUEUED for operation in plan.operations):
        output.note("What is Queued is announced, with its full notice, when its turn has come.")
    _draw_further(plan.units)
    for operation in plan.superseded:
        verb = "would cancel" if plan.dry_run else "has cancelled"
        output.note(
            f"It {verb} operation {operation.id} ({operation.event_type} of "
            f"{events.machines(operation)})."
        )


def _draw_turns(plan: "PlannedTurns") -> None:
    output.table(
        plan.waves,
        {
            "WAVE": "number",
            "UNITS": lambda wave: len(wave.units),
            "MACHINES": "machines",
            **({"OVER BY": "latest"} if len(plan.waves) > 1 else {}),
            "NAMES": lambda wave: output.listed(wave.units, None, SHOWN_UNITS),
        },
        empty="No unit can start.",
    )
    for note in plan.notes:
        output.note(note)
    if plan.without_machines:
        names = output.listed(plan.without_machines)
        output.note(f"warning: left out, without machines: {names}")


def _draw_further(units: Iterable["maintenance_schemas.UnitView"]) -> None:
    """Show the units that have still to be announced, if any."""
    waiting = [unit for unit in units if unit.machines.count]
    if not waiting:
        return
    output.say("")
    output.table(
        enumerate(waiting, 1),
        {
            "THEN": lambda turn: turn[0],
            "UNIT": lambda turn: turn[1].name,
            "MACHINES": lambda turn: output.counted(
                turn[1].machines.names, count=turn[1].machines.count
            ),
        },
    )
    output.note("Each is announced when the one before has ended well and its machines are back.")


_NAMED: Final = {
    TargetKind.MACHINES: "machines",
    TargetKind.SCOPE: "scopes",
    TargetKind.HOST: "hosts",
    TargetKind.MIXED: "targets",
}
"""The words for several targets of a kind."""


def _standing(maintenance: "maintenance_schemas.MaintenanceView") -> str:
    """Return the state, or how the operations are where all of it was announced at once."""
    if maintenance.status != "announced":
        return str(maintenance.status)
    counts = maintenance.operations
    one = counts.keys() if len(counts) == 1 else (f"{n} {s}" for s, n in counts.items())
    return ", ".join(one)


def _progress(maintenance: "maintenance_schemas.MaintenanceView") -> str:
    counts = {name: getattr(maintenance.units, name) for name in UNIT_STATES}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


LIST: Final = output.AnswerTable(
    "maintenance_schemas.MaintenancePage.maintenances",
    {
        "NUMBER": "number",
        "TYPE": "event_type",
        "STATUS": _standing,
        "TARGETS": lambda one: output.counted(one.targets, _NAMED[one.target]),
        "UNITS": _progress,
        "REQUESTED BY": "requested_by",
        "AT": "requested_at",
        "DETAIL": "status_detail",
    },
    empty="There is no maintenance yet: see 'forewarn schedule --help'.",
)


def _draw(detail: "maintenance_schemas.MaintenanceDetail") -> None:
    one, policy = detail.maintenance, detail.policy
    interruption = {-1: "unknown", 0: "none"}.get(one.duration_seconds)
    output.pairs(
        [
            ("maintenance", one.number),
            ("type", one.event_type),
            ("source", one.source),
            ("targets", output.listed(one.targets)),
            ("requested", f"{times.shown(one.requested_at)} by {one.requested_by or '-'}"),
            ("description", one.description),
            ("expected interruption", interruption or times.shown_span(one.duration_seconds)),
            ("?opens", one.opens_at),
            ("?closes", one.closes_at),
            ("?without notice", "in scopes that are off" * one.without_notice),
            ("?status", output.status(one) if detail.units else ""),
            ("?units", _progress(one)),
            ("?wave", f"{one.wave} of {one.waves}" if one.waves > 1 else ""),
            ("?at once", policy.at_once if policy.at_once != "100%" and detail.units else ""),
            ("?check", policy.check),
            ("?windows", f"{', '.join(policy.windows)} {policy.zone}" if policy.windows else ""),
            ("?ordered by", one.changed_by),
        ]
    )
    output.say("")
    if detail.units:
        _draw_units(detail)
    output.table(
        detail.operations, events.HISTORY.columns, empty="It has no operations in the history."
    )
    output.say("")
    output.table(
        ((event, operation) for operation in detail.operations for event in operation.events),
        {
            "EVENT": lambda pair: pair[0].id,
            "REF": lambda pair: pair[1].id,
            "DOMAIN": lambda pair: f"{pair[0].scope}/{pair[0].update_domain}",
            "MACHINES": lambda pair: output.counted(pair[0].machines),
            "APPROVED BY": lambda pair: events.approver(pair[0].approval),
            "FROM": lambda pair: pair[0].approval and pair[0].approval.address,
            "AT": lambda pair: pair[0].approval and pair[0].approval.at,
        },
        empty="It has no events in the history.",
    )


def _draw_units(detail: "maintenance_schemas.MaintenanceDetail") -> None:
    by_operation = {operation.id: operation for operation in detail.operations}

    def detail_of(unit: "maintenance_schemas.UnitView") -> str:
        operation = by_operation.get(unit.operation)
        going = operation is not None and unit.status == "running"
        return unit.status_detail or (operation.status_detail if operation and going else "")

    def machines(unit: "maintenance_schemas.UnitView") -> str:
        if unit.machines.count:
            return output.counted(unit.machines.names, count=unit.machines.count)
        operation = by_operation.get(unit.operation)
        return events.machines(operation) if operation else ""

    output.table(
        detail.units,
        {
            "UNIT": "name",
            "STATUS": "status",
            "?WAVE": lambda unit: unit.wave if detail.maintenance.waves > 1 else None,
            "REF": lambda unit: "drain" if unit.drain else unit.operation,
            "MACHINES": machines,
            "SINCE": "changed_at",
            "DETAIL": detail_of,
        },
    )
    output.say("")


commands = group(
    "List, show and steer maintenances.",
    {
        "list": RequestCommand(
            "List maintenances, the newest first.",
            "GET /v1/maintenances",
            show=LIST,
            paged="maintenances",
        ),
        "show": RequestCommand(
            "Show a maintenance, its units, its operations and its events.",
            "GET /v1/maintenances/{number}",
            NUMBER,
            show=_draw,
        ),
        "watch": watch,
        **orders(ORDERS, ORDERED, NUMBER, show=_draw_order),
        **orders(UNIT_ORDERS, ORDERED, NUMBER, UNIT, show=_draw_order),
    },
)
