"""`forewarn schedule`: asks for maintenance."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.operator import JsonOption, OperatorClient, OperatorOption, who
from forewarn.vocabulary import EventSource

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


class ScheduleType(StrEnum):
    """The event types, in lower case."""

    REBOOT = "reboot"
    REDEPLOY = "redeploy"
    FREEZE = "freeze"
    PREEMPT = "preempt"
    TERMINATE = "terminate"


TypeArgument = Annotated[
    ScheduleType,
    typer.Argument(metavar="TYPE", help="What happens to the machines."),
]
TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TARGET", help="Names of machines.", show_default=False),
]
ScopeOption = Annotated[
    str, typer.Option("--scope", metavar="NAME", help="All machines of this scope.")
]
HostOption = Annotated[
    str,
    typer.Option("--host", metavar="NAME", help="All machines on this host, of any scope."),
]
NotBeforeOption = Annotated[
    str | None,
    typer.Option(
        "--not-before",
        metavar="TIME",
        show_default=False,
        help="RFC 3339 with a zone, or from now, such as +20m. "
        "Default: as soon as the least notice allows.",
    ),
]
DurationOption = Annotated[
    str,
    typer.Option(
        "--duration",
        metavar="SPAN",
        help="The expected interruption: seconds, 30s or 5m; 0 for none, -1 for unknown.",
    ),
]
DescriptionOption = Annotated[
    str | None,
    typer.Option(
        "--description",
        metavar="TEXT",
        show_default=False,
        help="The text for the guests. Default: the usual text of the type.",
    ),
]
SourceOption = Annotated[
    EventSource,
    typer.Option(
        "--source", metavar="SOURCE", case_sensitive=False, help="Who causes it: platform or user."
    ),
]
NoNoticeOption = Annotated[
    bool,
    typer.Option(
        "--no-notice",
        help="The machine has already failed: start at once, without notice.",
    ),
]
IndivisibleOption = Annotated[
    bool,
    typer.Option(
        "--indivisible",
        help="With --host: all its machines go down at once. "
        "Refused if they are in two update domains of a scope.",
    ),
]
WithoutNoticeOption = Annotated[
    bool,
    typer.Option(
        "--without-notice",
        help="Go on even if guests whose machines never asked for events get no notice.",
    ),
]
LiveMigrationOption = Annotated[
    bool, typer.Option("--live-migration", help="The freeze moves the machine.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]


def schedule(
    kind: TypeArgument,
    targets: TargetsArgument = None,
    *,
    scope: ScopeOption = "",
    host: HostOption = "",
    not_before: NotBeforeOption = None,
    duration: DurationOption = "-1",
    description: DescriptionOption = None,
    source: SourceOption = EventSource.PLATFORM,
    no_notice: NoNoticeOption = False,
    without_notice: WithoutNoticeOption = False,
    indivisible: IndivisibleOption = False,
    live_migration: LiveMigrationOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Ask for maintenance of machines, a scope or a host.

    It is announced to the guests, and starts when they approve it or its notice is over. The
    update domains of a scope are taken one after another: the next is announced when the one
    before has ended well. The machines of a host go down together; if they are in several update
    domains of one scope, one domain goes after another, unless --indivisible is given.
    """
    from forewarn.server.operator import schemas

    if sum(map(bool, (targets, scope, host))) != 1:
        raise typer.BadParameter("expected names of machines, or --scope, or --host")
    if live_migration and kind is not ScheduleType.FREEZE:
        raise typer.BadParameter("--live-migration is for a freeze only")
    at = None if not_before is None else times.moment(not_before)
    body = {
        "event_type": kind.capitalize(),
        "machines": targets or [],
        "scope": scope,
        "host": host,
        "source": source,
        "duration_seconds": times.duration_seconds(duration),
        "description": description,
        "live_migration": live_migration,
        "no_notice": no_notice,
        "without_notice": without_notice,
        "indivisible": indivisible,
        "by": who(),
    }
    service = OperatorClient(operator)
    if at is not None:
        body["not_before"] = service.moment(at).isoformat()
    answer = service.ask("POST", "/v1/maintenance", query={"dry_run": dry_run}, body=body)
    answer.show(schemas.MaintenancePlan, _draw, as_json=as_json)


def _draw(plan: "schemas.MaintenancePlan") -> None:
    if plan.dry_run:
        output.note("Nothing is scheduled: this is a dry run.")
    else:
        output.say(f"maintenance {plan.maintenance.number}: {plan.maintenance.event_type}")
    operations.planned(plan.operations, empty="It affects no machine.")
    operations.further(plan.further)
    for operation in plan.superseded:
        verb = "would cancel" if plan.dry_run else "has cancelled"
        output.note(
            f"It {verb} operation {operation.id} ({operation.event_type} of "
            f"{operations.machines(operation)})."
        )
