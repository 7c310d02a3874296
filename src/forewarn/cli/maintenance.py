"""`forewarn schedule` and `forewarn maintenance`: ask for maintenance; list, show and resume it."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forewarn import times
from forewarn.cli import events, follow, output, rollout
from forewarn.cli.operator_client import Answer, OperatorClient, asks, asks_for_pages
from forewarn.cli.options import argument, flag, option
from forewarn.vocabulary import EventSource, EventStatus

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

app = typer.Typer(help="List, show and resume maintenances.", no_args_is_help=True)

NEWS: Final = ("maintenance", "operation")
"""The kinds of news that a maintenance makes."""

DECISIVE: Final = frozenset(
    {"maintenance.finished", "maintenance.paused", "operation.outcome_unknown"}
)
"""After these it may be over, or need an operator."""

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
    kind: rollout.TypeArgument,
    targets: Annotated[list[str] | None, argument("TARGET", "Names of machines.")] = None,
    *,
    scope: ScopeOption = None,
    host: HostOption = None,
    tag: rollout.TagOption = None,
    not_before: NotBeforeOption = None,
    notice: rollout.NoticeOption = "0",
    opens: OpensOption = None,
    closes: ClosesOption = None,
    duration: rollout.DurationOption = "-1",
    description: rollout.DescriptionOption = None,
    source: SourceOption = EventSource.PLATFORM,
    no_notice: NoNoticeOption = False,
    without_notice: rollout.WithoutNoticeOption = False,
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

    Several scopes or hosts, or a tag, make a rollout: they are taken one after another, until one
    fails. 'forewarn rollout' shows it, and has more options.
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
        "notice_seconds": int(times.span(notice).total_seconds()),
        **{name: service.moment(moment) for name, moment in moments.items()},
    }
    for_all: dict[str, object] = {
        "event_type": kind.capitalize(),
        "machines": targets or [],
        "source": source,
        "duration_seconds": times.duration_seconds(duration),
        "description": description,
        "without_notice": without_notice,
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
    """Ask for one maintenance, or for a rollout where there are several targets."""
    if wait and dry_run:
        raise typer.BadParameter("--wait has nothing to wait for with --dry-run")
    named = len(scopes) + len(hosts) + bool(for_all["machines"])
    if not named and not tags:
        raise typer.BadParameter("expected names of machines, --scope, --host or --tag")
    if named == 1 and not tags:
        body = {**for_all, **for_one, "scope": "".join(scopes), "host": "".join(hosts)}
        path = "/v1/maintenance?dry_run=true" if dry_run else "/v1/maintenance"
        plan = service.post(path, **body)
        if wait:
            _wait(service, plan)
        else:
            plan.show(_draw_plan)
        return
    seconds = for_one.pop("notice_seconds")
    for name in (name for name, value in for_one.items() if value):
        what = name.removesuffix("_at").replace("_", "-")
        raise typer.BadParameter(f"--{what} is for one scope, one host or named machines only")
    rollout.ask(
        service,
        dry_run=dry_run,
        hosts=hosts,
        scopes=scopes,
        tags=rollout.tags_of(tags),
        drain=False,
        policy={"notice_seconds": seconds} if seconds else {},
        wait=wait,
        **for_all,
    )


def _wait(service: OperatorClient, plan: Answer) -> None:
    from forewarn.server.operator import schemas

    number = plan.tree()["maintenance"]["number"]

    def take(event: follow.StreamEvent) -> bool:
        if json.loads(event.data)["data"].get("maintenance") != number:
            return False
        if not service.as_json:
            output.say(follow.line(event))
        return event.name in DECISIVE

    def look() -> follow.Progress:
        answer = service.get(f"/v1/maintenance/{number}")
        detail = answer.read(schemas.MaintenanceDetail)
        faults = "; ".join(_faults(detail))
        why = f"maintenance {number}: {faults}" if faults else ""
        return follow.Progress(_is_over(detail), why, answer.tree)

    shown_by = f"forewarn maintenance show {number}"

    def first() -> None:
        plan.show(_draw_plan)

    follow.wait(service, look, types=NEWS, shown_by=shown_by, take=take, first=first)


def _is_over(detail: "schemas.MaintenanceDetail") -> bool:
    updates = detail.maintenance.rolling_updates
    is_going = any(rolling.state != "finished" for rolling in updates)
    return not is_going and all(operation.status.over for operation in detail.operations)


def _faults(detail: "schemas.MaintenanceDetail") -> Iterator[str]:
    for rolling in detail.maintenance.rolling_updates:
        if rolling.state == "paused":
            order = f"maintenance resume {detail.maintenance.number}"
            yield f"paused, waits for an operator ({order}): {rolling.reason}"
    for operation in detail.operations:
        if operation.outcome_unknown:
            yield f"the outcome of {operation.id} is unknown: {operation.outcome_unknown}"
    if _is_over(detail):
        ended = [o for o in detail.operations if o.status is not EventStatus.COMPLETED]
        yield from (f"{one.id} {one.status}: {one.outcome}".rstrip(": ") for one in ended)


@app.command("list")
@asks_for_pages
def list_(*, service: OperatorClient) -> None:
    """List maintenances, the newest first."""
    service.pages("/v1/maintenance", "maintenances").show(_draw_list)


NumberArgument = Annotated[int, argument("NUMBER", "The maintenance.", min=1)]


@app.command()
@asks
def show(number: NumberArgument, *, service: OperatorClient) -> None:
    """Show a maintenance, its operations and its events."""
    service.get(f"/v1/maintenance/{number}").show(_draw)


@app.command()
@asks
def resume(number: NumberArgument, *, service: OperatorClient) -> None:
    """Resume a paused rolling update with its next step."""
    answer = service.post(f"/v1/maintenance/{number}/resume")
    if not service.as_json:
        output.say(f"maintenance {number} is resumed")
        if not answer.tree()["operations"]:
            output.note("The next step, if any is left, is announced when nothing blocks it.")
    answer.show(events.states)


def _draw_plan(plan: "schemas.MaintenancePlan") -> None:
    if plan.dry_run:
        output.note("Nothing is scheduled: this is a dry run.")
    else:
        output.say(f"maintenance {plan.maintenance.number}: {plan.maintenance.event_type}")
    events.planned(plan.operations, empty="No machine is affected.")
    if any(operation.status is EventStatus.QUEUED for operation in plan.operations):
        output.note("What is Queued is announced, with its full notice, when its turn has come.")
    events.further(plan.further)
    for operation in plan.superseded:
        verb = "would cancel" if plan.dry_run else "has cancelled"
        output.note(
            f"It {verb} operation {operation.id} ({operation.event_type} of "
            f"{events.machines(operation)})."
        )


def _draw_list(page: "schemas.MaintenancePage") -> None:
    output.table(
        page.maintenances,
        {
            "NUMBER": lambda one: one.number,
            "TYPE": lambda one: one.event_type,
            "SOURCE": lambda one: one.source,
            "TARGETS": lambda one: output.counted(one.targets),
            "REQUESTED BY": lambda one: one.requested_by,
            "AT": lambda one: one.requested_at,
            "DESCRIPTION": lambda one: one.description,
        },
        empty="There is no maintenance yet: see 'forewarn schedule --help'.",
    )


def _draw(detail: "schemas.MaintenanceDetail") -> None:
    one = detail.maintenance
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
            *(("rolling update", line) for line in map(_rolling_update, one.rolling_updates)),
        ]
    )
    output.say("")
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
    events.further(detail.further)


def _rolling_update(rolling: "schemas.RollingUpdateView") -> str:
    line = f"{f'scope {rolling.scope}' if rolling.scope else f'host {rolling.host}'}"
    line += f" is {rolling.state}" + (f" ({rolling.reason})" if rolling.reason else "")
    line += f"; machines so far: {output.names(rolling.done) or 'none'}"
    return line + ("" if rolling.more else "; nothing is left")
