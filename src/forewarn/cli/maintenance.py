"""`forewarn schedule` and `forewarn maintenance`: ask for maintenance; list, show and steer it."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from forewarn import times
from forewarn.cli import events, follow, output
from forewarn.cli.operator_client import OperatorClient, asks, asks_for_pages
from forewarn.cli.options import argument, flag, option
from forewarn.vocabulary import EventSource, EventStatus

if TYPE_CHECKING:
    from forewarn.maintenance.turn_plan import PlannedTurns
    from forewarn.server.operator import maintenance_schemas

app = typer.Typer(help="List, show and steer maintenances.", no_args_is_help=True)

NEWS: Final = ("maintenance", "operation", "host")
"""The kinds of news that a maintenance makes."""

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
"""What an operator can do about a maintenance, and about a unit of it, and the help of each."""

NumberArgument = Annotated[int, argument("NUMBER", "The maintenance.", min=1)]
UnitArgument = Annotated[
    str, argument("UNIT", "A unit of it: a host, an update domain such as web/0, or a machine.")
]
TypeArgument = Annotated[
    Literal["reboot", "redeploy", "freeze", "preempt", "terminate"],
    argument(
        "TYPE",
        "reboot or freeze (at least 15 minutes of notice), redeploy (10 minutes), preempt (30 "
        "seconds), or terminate (what its scale set sets).",
        case_sensitive=False,
    ),
]
TagOption = Annotated[
    list[str] | None,
    option("--tag", "KEY=VALUE", "Machines with this tag; repeated: with all of these tags."),
]
NoticeOption = Annotated[
    str, option("--notice", "SPAN", "A notice longer than the least of the type, such as 30m.")
]
DurationOption = Annotated[
    str,
    option(
        "--duration",
        "SPAN",
        "The expected interruption: seconds, 30s or 5m; 0 for none, -1 for unknown.",
    ),
]
DescriptionOption = Annotated[
    str | None,
    option(
        "--description", "TEXT", "The text for the guests. Default: the usual text of the type."
    ),
]
WithoutNoticeOption = Annotated[
    bool,
    flag(
        "--without-notice",
        "Go on even if some guests get no notice, because they never asked for events.",
    ),
]
NotBeforeOption = Annotated[
    str | None,
    option(
        "--not-before",
        "TIME",
        "When it starts even without approval: RFC 3339 with a zone, or +20m. "
        "Default: as soon as the least notice allows.",
    ),
]
OpensOption = Annotated[
    str | None,
    option("--opens", "TIME", "Start nothing before this time, approved or not. As --not-before."),
]
ClosesOption = Annotated[
    str | None,
    option("--closes", "TIME", "Cancel what has not started by this time. As --not-before."),
]
IndivisibleOption = Annotated[
    bool,
    flag(
        "--indivisible",
        "With --host: all its machines go down at once. "
        "Refused if they are in two update domains of a scope.",
    ),
]

ScopeOption = Annotated[
    list[str] | None, option("--scope", "NAME", "All machines of this scope. Repeatable.")
]
HostOption = Annotated[
    list[str] | None,
    option("--host", "NAME", "All machines on this host, of any scope. Repeatable."),
]
SourceOption = Annotated[
    EventSource,
    option("--source", "SOURCE", "Who causes it: platform or user.", case_sensitive=False),
]
NoNoticeOption = Annotated[
    bool, flag("--no-notice", "The machine has already failed: start at once, without notice.")
]
LiveMigrationOption = Annotated[
    bool, flag("--live-migration", "The freeze is a live migration to another host.")
]
ToHostOption = Annotated[
    str, option("--to-host", "NAME", "The host that a redeploy or a live migration moves to.")
]


@asks
def schedule(
    kind: TypeArgument,
    targets: Annotated[list[str] | None, argument("TARGET", "Names of machines.")] = None,
    *,
    scope: ScopeOption = None,
    host: HostOption = None,
    tag: TagOption = None,
    not_before: NotBeforeOption = None,
    notice: NoticeOption = "0",
    opens: OpensOption = None,
    closes: ClosesOption = None,
    duration: DurationOption = "-1",
    description: DescriptionOption = None,
    source: SourceOption = EventSource.PLATFORM,
    no_notice: NoNoticeOption = False,
    without_notice: WithoutNoticeOption = False,
    indivisible: IndivisibleOption = False,
    live_migration: LiveMigrationOption = False,
    to_host: ToHostOption = "",
    dry_run: Annotated[bool, flag("--dry-run", "Only show what would happen.")] = False,
    wait: follow.WaitOption = False,
    service: OperatorClient,
) -> None:
    """Ask for maintenance of machines, scopes or hosts.

    It is announced to the guests, and starts when they approve it or its notice is over. The
    update domains of a scope are taken one after another: the next is announced when the one
    before has ended well and its machines are back. The machines of a host go down together; if
    they are in several update domains of one scope, one domain goes after another, unless
    --indivisible is given.

    Several scopes or hosts, or a tag, are taken one after another, until one fails. 'forewarn
    rollout start' has more options, and 'forewarn maintenance show' shows how far it is.
    """
    if live_migration and kind != "freeze":
        raise typer.BadParameter("--live-migration is for a freeze only")
    if not_before is not None and notice == "0" and not_before.startswith("+"):
        # From when the service has the request: from now, the least notice would be too short.
        notice, not_before = not_before.removeprefix("+"), None
    given = {"not_before": not_before, "opens_at": opens, "closes_at": closes}
    moments = {name: times.moment(text) for name, text in given.items() if text is not None}
    for_one: dict[str, object] = {
        "no_notice": no_notice,
        "indivisible": indivisible,
        "live_migration": live_migration,
        "to_host": to_host,
        **{name: service.moment(moment) for name, moment in moments.items()},
    }
    for_all: dict[str, object] = {
        "event_type": kind.capitalize(),
        "machines": targets or [],
        "source": source,
        "duration_seconds": times.duration_seconds(duration),
        "description": description,
        "without_notice": without_notice,
        "notice_seconds": int(times.span(notice).total_seconds()),
    }
    _schedule(
        service,
        for_all,
        for_one,
        scopes=scope or [],
        hosts=host or [],
        tags=tag or [],
        dry_run=dry_run,
        wait=wait,
    )


def _schedule(
    service: OperatorClient,
    for_all: dict[str, object],
    for_one: dict[str, object],
    *,
    scopes: list[str],
    hosts: list[str],
    tags: list[str],
    dry_run: bool,
    wait: bool,
) -> None:
    """Ask for maintenance; what is for one target is refused where there are several."""
    if wait and dry_run:
        raise typer.BadParameter("--wait has nothing to wait for with --dry-run")
    named = len(scopes) + len(hosts) + bool(for_all["machines"])
    if not named and not tags:
        raise typer.BadParameter("expected names of machines, --scope, --host or --tag")
    if named > 1 or tags:
        for name in (name for name, value in for_one.items() if value):
            what = name.removesuffix("_at").replace("_", "-")
            raise typer.BadParameter(f"--{what} is for one scope, one host or named machines only")
    ask(
        service,
        dry_run=dry_run,
        scopes=scopes,
        hosts=hosts,
        tags=tags_of(tags),
        wait=wait,
        **for_all,
        **for_one,
    )


def ask(
    service: OperatorClient,
    *,
    dry_run: bool,
    wait: bool = False,
    **body: Any,  # noqa: ANN401 - JSON
) -> None:
    """Plan maintenance or ask for it, and show what it becomes; or wait for its end, too."""
    path = "/v1/maintenances?dry_run=true" if dry_run else "/v1/maintenances"
    plan = service.post(path, **body)
    if wait:
        wait_for(service, plan.tree()["maintenance"]["number"], lambda: plan.show(_draw_plan))
    else:
        plan.show(_draw_answer)


def tags_of(texts: list[str]) -> dict[str, str]:
    """Read tags written as KEY=VALUE."""
    from forewarn.maintenance import units

    try:
        return units.read_tags(texts)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def wait_for(
    service: OperatorClient, number: int, first: Callable[[], None] = lambda: None
) -> None:
    """Show what changes until a maintenance is over."""
    from forewarn.server.operator import maintenance_schemas

    def look() -> follow.Progress:
        answer = service.get(f"/v1/maintenances/{number}")
        detail = answer.read(maintenance_schemas.MaintenanceDetail)
        faults = "; ".join(_faults(detail))
        why = f"maintenance {number}: {faults}" if faults else ""
        return follow.Progress(_is_over(detail), why, answer.tree, dict(_facts(detail)))

    shown_by = f"forewarn maintenance show {number}"
    follow.wait(service, look, types=NEWS, shown_by=shown_by, first=first)


def _is_over(detail: "maintenance_schemas.MaintenanceDetail") -> bool:
    maintenance = detail.maintenance
    is_going = not maintenance.state.over or maintenance.units.running
    return not is_going and all(operation.status.over for operation in detail.operations)


def _faults(detail: "maintenance_schemas.MaintenanceDetail") -> Iterator[str]:
    maintenance = detail.maintenance
    if maintenance.state in _RESTING and not maintenance.units.running:
        yield f"{_state(maintenance)} ({_goes_on(detail)})"
    elif maintenance.unconfirmed or _waits_for_an_acknowledgement(detail):
        yield maintenance.reason
    for operation in detail.operations:
        if operation.outcome_unknown:
            yield f"the outcome of {operation.id} is unknown: {operation.outcome_unknown}"
    if _is_over(detail):
        if maintenance.state == "stopped":
            yield _state(maintenance)
        failed = [unit for unit in detail.units if unit.state == "failed"]
        yield from (f"{unit.name} failed: {unit.reason}".removesuffix(": ") for unit in failed)
        if not detail.units:
            ended = [o for o in detail.operations if o.status is not EventStatus.COMPLETED]
            yield from (f"{one.id} {one.status}: {one.outcome}".rstrip(": ") for one in ended)


def _waits_for_an_acknowledgement(detail: "maintenance_schemas.MaintenanceDetail") -> bool:
    """Tell whether nothing goes on before somebody acknowledges a failure of it."""
    ids = [one.id for one in detail.operations if one.status is EventStatus.FAILED]
    waits = not detail.maintenance.units.running
    return waits and any(f"acknowledge {one}" in detail.maintenance.reason for one in ids)


_RESTING: Final = frozenset(("paused", "halted"))


def _goes_on(detail: "maintenance_schemas.MaintenanceDetail") -> str:
    """Return the commands by which what rests goes on."""
    number = detail.maintenance.number
    failed = [unit.name for unit in detail.units if unit.state == "failed"]
    resume = f"'forewarn maintenance resume {number}'"
    if not failed:
        return resume
    return f"'forewarn maintenance retry {number} {failed[0]}', then {resume}"


def _facts(detail: "maintenance_schemas.MaintenanceDetail") -> Iterator[tuple[str, str]]:
    """Yield how each part of it is, by what people call it."""
    maintenance = detail.maintenance
    if detail.units:
        yield f"maintenance {maintenance.number}", _state(maintenance)
    for unit in detail.units:
        if unit.state != "waiting" or unit.reason:
            yield unit.name, f"{unit.state}: {unit.reason}" if unit.reason else str(unit.state)
    for operation in detail.operations:
        detail_ = operation.status_detail or operation.outcome
        yield operation.id, f"{operation.status}: {detail_}".removesuffix(": ")


def _state(maintenance: "maintenance_schemas.MaintenanceView") -> str:
    state, reason = str(maintenance.state), maintenance.reason
    if not reason or reason.startswith(state):  # such as "paused by ann"
        return reason or state
    return f"{state}: {reason}"


@app.command("list")
@asks_for_pages
def list_(*, service: OperatorClient) -> None:
    """List maintenances, the newest first."""
    service.pages("/v1/maintenances", "maintenances").show(_draw_list)


@app.command()
@asks
def show(number: NumberArgument, *, service: OperatorClient) -> None:
    """Show a maintenance, its units, its operations and its events."""
    service.get(f"/v1/maintenances/{number}").show(_draw)


@app.command()
@asks
def watch(number: NumberArgument, *, service: OperatorClient) -> None:
    """Show what changes until a maintenance is over.

    Exit status: 0 when all of it has ended well, 11 when it halts, is paused or stopped, or waits
    for you.
    """
    wait_for(service, number)


def _command(order: str) -> Callable[..., None]:
    def of_maintenance(number: NumberArgument, *, service: OperatorClient) -> None:
        _order(service, number, order)

    def of_unit(number: NumberArgument, unit: UnitArgument, *, service: OperatorClient) -> None:
        _order(service, number, order, unit)

    return asks(of_unit if order in UNIT_ORDERS else of_maintenance)


for _name, _text in (ORDERS | UNIT_ORDERS).items():
    app.command(_name, help=_text)(_command(_name))


def _order(service: OperatorClient, number: int, order: str, unit: str = "") -> None:
    def draw(detail: "maintenance_schemas.MaintenanceDetail") -> None:
        maintenance = detail.maintenance
        for each in detail.units:
            if unit and each.name.lower() == unit.lower():
                output.say(output.printable(f"{each.name} is {each.state}"))
        output.say(output.printable(f"maintenance {number} is {_state(maintenance)}"))
        if unit and maintenance.state in _RESTING:
            output.note(f"To go on: 'forewarn maintenance resume {number}'.")

    service.post(f"/v1/maintenances/{number}/orders", order=order, unit=unit).show(draw)


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
    events.planned(plan.operations, empty="No machine is affected.")
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
            "WAVE": lambda wave: wave.number,
            "UNITS": lambda wave: len(wave.units),
            "MACHINES": lambda wave: wave.machines,
            **({"OVER BY": lambda wave: wave.latest} if len(plan.waves) > 1 else {}),
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


def _standing(maintenance: "maintenance_schemas.MaintenanceView") -> str:
    """Return the state, or how the operations are where all of it was announced at once."""
    if maintenance.state != "announced":
        return str(maintenance.state)
    counts = maintenance.operations
    one = counts.keys() if len(counts) == 1 else (f"{n} {s}" for s, n in counts.items())
    return ", ".join(one)


def _progress(maintenance: "maintenance_schemas.MaintenanceView") -> str:
    units = maintenance.units
    counts = {
        "done": units.done,
        "running": units.running,
        "failed": units.failed,
        "skipped": units.skipped,
        "waiting": units.waiting,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _draw_list(page: "maintenance_schemas.MaintenancePage") -> None:
    output.table(
        page.maintenances,
        {
            "NUMBER": lambda one: one.number,
            "TYPE": lambda one: one.event_type,
            "STATE": _standing,
            "TARGETS": lambda one: output.counted(one.targets),
            "UNITS": _progress,
            "REQUESTED BY": lambda one: one.requested_by,
            "AT": lambda one: one.requested_at,
            "REASON": lambda one: one.reason,
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
            *([("opens", one.opens_at)] if one.opens_at else []),
            *([("closes", one.closes_at)] if one.closes_at else []),
            *([("without notice", "in scopes that are off")] if one.without_notice else []),
            *([("state", _state(one)), ("units", _progress(one))] if detail.units else []),
            *([("wave", f"{one.wave} of {one.waves}")] if one.waves > 1 else []),
            *([("at once", policy.at_once)] if policy.at_once != "100%" and detail.units else []),
            *([("check", policy.check)] if policy.check else []),
            *(
                [("windows", f"{', '.join(policy.windows)} {policy.zone}")]
                if policy.windows
                else []
            ),
            *([("ordered by", one.changed_by)] if one.changed_by else []),
        ]
    )
    output.say("")
    if detail.units:
        _draw_units(detail)
    events.happened(detail.operations, empty="It has no operations in the history.")
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

    def reason(unit: "maintenance_schemas.UnitView") -> str:
        operation = by_operation.get(unit.operation)
        going = operation is not None and unit.state == "running"
        return unit.reason or (operation.status_detail if operation and going else "")

    def machines(unit: "maintenance_schemas.UnitView") -> str:
        if unit.machines.count:
            return output.counted(unit.machines.names, count=unit.machines.count)
        operation = by_operation.get(unit.operation)
        return events.machines(operation) if operation else ""

    output.table(
        detail.units,
        {
            "UNIT": lambda unit: unit.name,
            "STATE": lambda unit: unit.state,
            **({"WAVE": lambda unit: unit.wave} if detail.maintenance.waves > 1 else {}),
            "REF": lambda unit: "drain" if unit.drain else unit.operation,
            "MACHINES": machines,
            "SINCE": lambda unit: unit.changed_at,
            "REASON": reason,
        },
    )
    if detail.maintenance.state in _RESTING:
        output.note(f"To go on: {_goes_on(detail)}.")
    output.say("")
