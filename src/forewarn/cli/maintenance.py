"""`forewarn maintenance`: list, show and resume maintenances."""

from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.operator import (
    AllOption,
    CursorOption,
    JsonOption,
    LimitOption,
    OperatorClient,
    OperatorOption,
    Query,
    more,
    pages,
    who,
)

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

app = typer.Typer(help="List, show and resume maintenances.", no_args_is_help=True)

NumberArgument = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The maintenance.")]


@app.command("list")
def list_(
    *,
    limit: LimitOption = 100,
    cursor: CursorOption = "",
    whole: AllOption = False,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """List maintenances, the newest first."""
    from forewarn.server.operator import schemas

    query: Query = {"limit": limit, "cursor": cursor}
    answer = pages(
        OperatorClient(operator), "/v1/maintenance", "maintenances", whole=whole, query=query
    )
    answer.show(schemas.MaintenancePage, _draw_list, as_json=as_json)


@app.command()
def show(
    number: NumberArgument, *, as_json: JsonOption = False, operator: OperatorOption = None
) -> None:
    """Show a maintenance, its operations and its events."""
    from forewarn.server.operator import schemas

    answer = OperatorClient(operator).get(f"/v1/maintenance/{number}")
    answer.show(schemas.MaintenanceDetail, _draw, as_json=as_json)


@app.command()
def resume(
    number: NumberArgument, *, as_json: JsonOption = False, operator: OperatorOption = None
) -> None:
    """Resume a paused rolling update with its next step."""
    answer = OperatorClient(operator).ask(
        "POST", f"/v1/maintenance/{number}/resume", body={"by": who()}
    )
    if not as_json:
        output.say(f"maintenance {number} is resumed")
        if not answer.tree()["operations"]:
            output.note("The next step, if any is left, is announced when nothing blocks it.")
    operations.show(answer, as_json=as_json)


def _draw_list(page: "schemas.MaintenancePage") -> None:
    output.table(
        page.maintenances,
        {
            "NUMBER": lambda one: str(one.number),
            "TYPE": lambda one: one.event_type,
            "SOURCE": lambda one: one.source,
            "TARGETS": lambda one: output.listed(one.targets),
            "REQUESTED BY": lambda one: one.requested_by or "-",
            "AT": lambda one: times.shown(one.requested_at),
            "DESCRIPTION": lambda one: one.description or "-",
        },
        empty="There is no maintenance yet: see 'forewarn schedule --help'.",
    )
    more(page.next)


def _draw(detail: "schemas.MaintenanceDetail") -> None:
    one = detail.maintenance
    interruption = {-1: "unknown", 0: "none"}.get(one.duration_seconds)
    output.pairs(
        [
            ("maintenance", str(one.number)),
            ("type", one.event_type),
            ("source", one.source),
            ("targets", output.listed(one.targets)),
            ("requested", f"{times.shown(one.requested_at)} by {one.requested_by or '-'}"),
            ("description", one.description or "-"),
            ("expected interruption", interruption or times.shown_span(one.duration_seconds)),
            *([("without notice", "in scopes that are off")] if one.without_notice else []),
            *(("rolling update", line) for line in map(_rolling_update, one.rolling_updates)),
        ]
    )
    output.say("")
    operations.history(detail.operations, empty="The history has no operation of it.")
    output.say("")
    output.table(
        ((event, operation) for operation in detail.operations for event in operation.events),
        {
            "EVENT": lambda pair: pair[0].id,
            "REF": lambda pair: pair[1].id,
            "DOMAIN": lambda pair: f"{pair[0].scope}/{pair[0].update_domain}",
            "MACHINES": lambda pair: output.listed(pair[0].machines),
            "APPROVED BY": lambda pair: operations.approver(pair[0].approval),
            "FROM": lambda pair: (pair[0].approval.address if pair[0].approval else "") or "-",
            "AT": lambda pair: times.shown(pair[0].approval.at if pair[0].approval else None),
        },
        empty="The history has no event of it.",
    )
    operations.interventions(one, detail.operations)
    operations.further(detail.further)


def _rolling_update(rolling: "schemas.RollingUpdateView") -> str:
    done = output.listed(rolling.done.names, rolling.done.count) or "none"
    line = f"{f'scope {rolling.scope}' if rolling.scope else f'host {rolling.host}'}"
    line += f" is {rolling.state}" + (f" ({rolling.reason})" if rolling.reason else "")
    return f"{line}; machines so far: {done}" + ("" if rolling.more else "; nothing is left")
