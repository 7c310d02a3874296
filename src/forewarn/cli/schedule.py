"""`forewarn schedule`: asks for maintenance."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.operator import JsonOption, OperatorOption, Service, who
from forewarn.vocabulary import EventSource

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


class Kind(StrEnum):
    """The event types, as they are typed."""

    REBOOT = "reboot"
    REDEPLOY = "redeploy"
    FREEZE = "freeze"
    PREEMPT = "preempt"
    TERMINATE = "terminate"


TypeArgument = Annotated[Kind, typer.Argument(metavar="TYPE", help="What is to happen.")]
TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TARGET", help="Machines' names.", show_default=False),
]
ScopeOption = Annotated[
    str, typer.Option("--scope", metavar="NAME", help="All machines of this scope.")
]
HostOption = Annotated[
    str,
    typer.Option("--host", metavar="NAME", help="All machines on this host, whatever their scope."),
]
NotBeforeOption = Annotated[
    str | None,
    typer.Option(
        "--not-before",
        metavar="TIME",
        show_default=False,
        help="RFC 3339 with a zone, or from now, as +20m. "
        "Left out: as soon as the least notice allows.",
    ),
]
DurationOption = Annotated[
    str,
    typer.Option(
        "--duration",
        metavar="SPAN",
        help="The expected interruption: seconds, 30s, 5m; 0 is none, -1 unknown.",
    ),
]
DescriptionOption = Annotated[
    str | None,
    typer.Option(
        "--description",
        metavar="TEXT",
        show_default=False,
        help="What guests read. Left out: the text that the type has by custom.",
    ),
]
SourceOption = Annotated[
    EventSource, typer.Option("--source", case_sensitive=False, help="Who wants it.")
]
NoNoticeOption = Annotated[
    bool,
    typer.Option(
        "--no-notice", help="It has happened already: an unforeseen failure; starts at once."
    ),
]
IndivisibleOption = Annotated[
    bool,
    typer.Option(
        "--indivisible",
        help="The host's machines can only go down all at once; refused where two domains would.",
    ),
]
WithoutNoticeOption = Annotated[
    bool,
    typer.Option(
        "--without-notice", help="Stop machines of a scope that is off too: they get no notice."
    ),
]
LiveMigrationOption = Annotated[
    bool, typer.Option("--live-migration", help="A freeze that moves the machine.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only show the operations, events and times.")
]


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

    It is announced to the guests, and starts when they approve it or its notice is over. A scope
    is taken one update domain after another: the next is announced when the one before has ended
    well. What is on one host goes down together.
    """
    from forewarn.server.operator import schemas

    if sum(map(bool, (targets, scope, host))) != 1:
        raise typer.BadParameter("name machines, or one --scope, or one --host: one of them")
    if live_migration and kind is not Kind.FREEZE:
        raise typer.BadParameter("--live-migration goes with freeze only")
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
    service = Service(operator)
    if at is not None:
        body["not_before"] = service.moment(at).isoformat()
    query = {"dry_run": "true" if dry_run else ""}
    answer = service.ask("POST", "/v1/maintenance", query=query, body=body)
    if as_json:
        output.document(answer.tree())
        return
    _show(answer.read(schemas.MaintenancePlan))


def _show(plan: "schemas.MaintenancePlan") -> None:
    if plan.dry_run:
        output.note("Nothing is scheduled: this is what it would become.")
    else:
        output.say(f"maintenance {plan.maintenance.number}: {plan.maintenance.event_type}")
    operations.planned(plan.operations, empty="It touches no machine.")
    operations.further(plan.further)
    for operation in plan.superseded:
        verb = "would be" if plan.dry_run else "was"
        output.note(
            f"Operation {operation.id} ({operation.event_type} of "
            f"{operations.machines(operation)}) {verb} cancelled by this."
        )
