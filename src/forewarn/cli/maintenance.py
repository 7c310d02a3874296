"""`forewarn schedule`, `rollout` and `maintenance`: ask for maintenance; list, show and steer it.

A rollout is maintenance whose units take their turns by a policy of the operator's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from forewarn import times
from forewarn.cli import events, follow, output
from forewarn.cli.command import RequestCommand, asking, group
from forewarn.cli.operator_client import OperatorClient
from forewarn.cli.options import DRY_RUN, WAIT, Choice, argument, flag, option, seconds, within
from forewarn.vocabulary import EventSource, EventStatus, EventType

if TYPE_CHECKING:
    from forewarn.maintenance.turn_plan import PlannedTurns
    from forewarn.server.operator import maintenance_schemas

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
"""The orders about a maintenance, and about a unit of it, and the help of each."""


def _tags(_: click.Context, __: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    if not texts:
        return {}
    from forewarn.maintenance import units

    try:
        return units.read_tags(texts)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


NUMBER: Final = argument("number NUMBER", "The maintenance.", within(1))
UNIT: Final = argument(
    "unit UNIT", "A unit of it: a host, an update domain such as web/0, or a machine."
)
TYPE: Final = argument(
    "kind TYPE",
    "reboot or freeze (at least 15 minutes of notice), redeploy (10 minutes), preempt (30 "
    "seconds), or terminate (what its scale set sets).",
    Choice(EventType),
)
TAG: Final = option(
    "--tag KEY=VALUE... tags",
    "Machines with this tag, or with all of several.",
    callback=_tags,
)
NOTICE: Final = option(
    "--notice SPAN notice_seconds",
    "A notice longer than the least of the type, such as 30m.",
    default="0",
)
DURATION: Final = option(
    "--duration SPAN duration_seconds",
    "The expected interruption: seconds, 30s or 5m; 0 for none, -1 for unknown.",
    times.duration_seconds,
    default="-1",
)
DESCRIPTION: Final = option(
    "--description TEXT", "The text for the guests. Default: the usual text of the type."
)
WITHOUT_NOTICE: Final = flag(
    "--without-notice",
    "Go on even if some guests get no notice, because they never asked for events.",
)
FOR_ONE: Final = (
    *("no_notice", "indivisible", "live_migration", "to_host"),
    *("not_before", "opens_at", "closes_at"),
)
"""The options that are refused where there are several targets."""


@asking(
    TYPE,
    argument("machines [TARGET]...", "Names of machines."),
    option("--scope NAME... scopes", "All machines of this scope."),
    option("--host NAME... hosts", "All machines on this host, of any scope."),
    TAG,
    option(
        "--not-before TIME",
        "When it starts even without approval: RFC 3339 with a zone, or +20m. "
        "Default: as soon as the least notice allows.",
    ),
    NOTICE,
    option(
        "--opens TIME opens_at", "Start nothing before this time, approved or not. As --not-before."
    ),
    option("--closes TIME closes_at", "Cancel what has not started by this time. As --not-before."),
    DURATION,
    DESCRIPTION,
    option(
        "--source SOURCE",
        "Who causes it: platform or user.",
        Choice(EventSource),
        default="platform",
    ),
    flag("--no-notice", "The machine has already failed: start at once, without notice."),
    WITHOUT_NOTICE,
    flag(
        "--indivisible",
        "With --host: all its machines go down at once. "
        "Refused if they are in two update domains of a scope.",
    ),
    flag("--live-migration", "The freeze is a live migration to another host."),
    option("--to-host NAME", "The host that a redeploy or a live migration moves to."),
    DRY_RUN,
    WAIT,
)
def schedule(
    service: OperatorClient,
    *,
    kind: str,
    dry_run: bool,
    wait: bool,
    **given: Any,  # noqa: ANN401 - the fields of the API's request
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
    if given["live_migration"] and kind != EventType.FREEZE:
        raise click.UsageError("--live-migration is for a freeze only")
    if wait and dry_run:
        raise click.UsageError("--wait has nothing to wait for with --dry-run")
    after = given["not_before"]
    if isinstance(after, timedelta) and after >= timedelta() and not given["notice_seconds"]:
        # From when the service has the request: from now, the least notice would be too short.
        given |= {"notice_seconds": int(after.total_seconds()), "not_before": None}
    targets = len(given["scopes"]) + len(given["hosts"]) + bool(given["machines"])
    if not targets and not given["tags"]:
        raise click.UsageError("expected names of machines, --scope, --host or --tag")
    if targets > 1 or given["tags"]:
        for name in filter(given.get, FOR_ONE):
            what = name.removesuffix("_at").replace("_", "-")
            message = f"--{what} is for one scope, one host or named machines only"
            raise click.UsageError(message)
    _ask(service, kind, dry_run=dry_run, wait=wait, **given)


def _ask(service: OperatorClient, kind: str, *, dry_run: bool, wait: bool, **body: object) -> None:
    """Plan maintenance or ask for it, and show what it becomes; or wait for its end, too."""
    path = "/v1/maintenances?dry_run=true" if dry_run else "/v1/maintenances"
    plan = service.post(path, event_type=kind, **body)
    if wait:
        wait_for(service, plan.tree()["maintenance"]["number"], lambda: plan.show(_draw_plan))
    else:
        plan.show(_draw_answer)


# By a policy.


def _pause(text: str) -> int:
    return -1 if text == "confirm" else seconds(text)


def _waves(text: str) -> list[str]:
    return [wave.strip() for wave in text.split(",") if wave.strip()]


def _blackout(text: str) -> dict[str, str]:
    opens, closes = times.interval(text)
    return {"opens": opens.isoformat(), "closes": closes.isoformat()}


POLICY: Final = (
    option(
        "--at-once N|N%", "The most units under way: a number, or a percentage of all.", default="1"
    ),
    option("--waves LIST", "The size of each wave, such as 1,10%,rest. Default: one wave.", _waves),
    option(
        "--pause SPAN|confirm pause_seconds",
        "A pause between waves; confirm waits for 'maintenance resume'.",
        _pause,
        default="0",
    ),
    option("--spread BY", "host, fault-domain or tag:KEY: no two units at once that share it."),
    option(
        "--window WHEN... windows",
        "When units may start: 'Sat,Sun 22:00-04:00', or 'Sat 20:00-Mon 04:00'.",
    ),
    option("--zone ZONE", "The time zone of the windows, such as Europe/Berlin.", default="UTC"),
    option(
        "--blackout FROM/TO... blackouts",
        "Two RFC 3339 times between which nothing starts.",
        _blackout,
    ),
    option(
        "--cutoff SPAN cutoff_seconds",
        "Begin no unit in the last part of a window, such as 30m.",
        default="0",
    ),
    NOTICE,
    option(
        "--stop-after N",
        "Halt when this many units have failed, at most 5000.",
        within(1, 5000),
        default="1",
    ),
    option(
        "--order ORDER",
        "tightest: as many at once as possible; listed: as given.",
        Choice(("tightest", "listed")),
        default="tightest",
    ),
    option("--approval-until TIME", "Until then, start nothing without its guests' approval."),
    option("--check NAME", "A check from the settings that must pass after each unit."),
    option(
        "--check-tries N",
        "How often the check may fail in a row, at most 100.",
        within(1, 100),
        default="3",
    ),
    option(
        "--check-within SPAN check_within_seconds",
        "How long all tries of the check may take.",
        default="5m",
    ),
)
"""The policy of a rollout: each option is named as the field of the API's policy."""

UNITS: Final = (
    option("--host NAME... hosts", "A host."),
    flag("--all-hosts", "Every host."),
    option("--scope NAME... scopes", "A scope."),
    option("--machine NAME... machines", "A machine."),
    TAG,
)
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
        policy = {one.name: given.pop(one.name) for one in POLICY}
        if until := policy["approval_until"]:
            policy["approval_until"] = service.moment(until)
        hosts = bool(given["hosts"] or given["all_hosts"])
        _ask(
            service,
            kind,
            dry_run=dry_run,
            wait=wait,
            drain=not no_drain and kind == EventType.REBOOT and hosts,
            policy={name: value for name, value in policy.items() if value is not None},
            **given,
        )

    run.__doc__ = text
    common = (TYPE, *UNITS, *POLICY, DURATION, DESCRIPTION, WITHOUT_NOTICE, NO_DRAIN)
    return asking(*common, *more)(run)


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


@asking(NUMBER)
def watch(service: OperatorClient, number: int) -> None:
    """Show what changes until a maintenance is over.

    Exit status: 0 when all of it has ended well, 11 when it halts, is paused or stopped, or waits
    for you.
    """
    wait_for(service, number)


def _draw_order(detail: "maintenance_schemas.MaintenanceDetail") -> None:
    maintenance = detail.maintenance
    unit = click.get_current_context().params.get("unit", "").lower()
    for each in detail.units:
        if each.name.lower() == unit:
            output.say(output.printable(f"{each.name} is {each.state}"))
    output.say(output.printable(f"maintenance {maintenance.number} is {_state(maintenance)}"))
    if unit and maintenance.state in _RESTING:
        output.note(f"To go on: 'forewarn maintenance resume {maintenance.number}'.")


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


LIST: Final = output.AnswerTable(
    "maintenance_schemas.MaintenancePage.maintenances",
    {
        "NUMBER": "number",
        "TYPE": "event_type",
        "STATE": _standing,
        "TARGETS": lambda one: output.counted(one.targets),
        "UNITS": _progress,
        "REQUESTED BY": "requested_by",
        "AT": "requested_at",
        "REASON": "reason",
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
            ("?state", _state(one) if detail.units else ""),
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
            "UNIT": "name",
            "STATE": "state",
            "?WAVE": lambda unit: unit.wave if detail.maintenance.waves > 1 else None,
            "REF": lambda unit: "drain" if unit.drain else unit.operation,
            "MACHINES": machines,
            "SINCE": "changed_at",
            "REASON": reason,
        },
    )
    if detail.maintenance.state in _RESTING:
        output.note(f"To go on: {_goes_on(detail)}.")
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
        **{
            order: RequestCommand(
                text,
                "POST /v1/maintenances/{number}/orders",
                *([NUMBER, UNIT] if order in UNIT_ORDERS else [NUMBER]),
                show=_draw_order,
                order=order,
            )
            for order, text in (ORDERS | UNIT_ORDERS).items()
        },
    },
)
