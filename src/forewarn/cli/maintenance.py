"""`forewarn maintenance`: what was asked for, and letting it go on."""

from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import operations, output, times
from forewarn.cli.operator import (
    AllOption,
    CursorOption,
    JsonOption,
    LimitOption,
    OperatorOption,
    Query,
    Service,
    more,
    pages,
    who,
)

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

app = typer.Typer(help="List, show and resume what was asked for.", no_args_is_help=True)


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
    answer = pages(Service(operator), "/v1/maintenance", "maintenances", whole=whole, query=query)
    if as_json:
        output.document(answer.tree())
        return
    page = answer.read(schemas.MaintenancePage)
    output.table(
        ("NUMBER", "TYPE", "SOURCE", "TARGETS", "ASKED FOR BY", "AT", "DESCRIPTION"),
        (
            (
                str(one.number),
                one.event_type,
                one.source,
                output.listed(one.targets),
                one.requested_by or "-",
                times.shown(one.requested_at),
                one.description or "-",
            )
            for one in page.maintenances
        ),
        empty="No maintenance was asked for yet: see 'forewarn schedule --help'.",
    )
    more(page.next)


@app.command()
def show(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The maintenance.")],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Show one maintenance and what became of it."""
    from forewarn.server.operator import schemas

    answer = Service(operator).get(f"/v1/maintenance/{number}")
    if as_json:
        output.document(answer.tree())
        return
    detail = answer.read(schemas.MaintenanceDetail)
    asked = detail.maintenance
    output.pairs(
        [
            ("maintenance", str(asked.number)),
            ("type", asked.event_type),
            ("source", asked.source),
            ("targets", output.listed(asked.targets)),
            ("asked for", f"{times.shown(asked.requested_at)} by {asked.requested_by or '-'}"),
            ("description", asked.description or "-"),
            ("expected interruption", _interruption(asked.duration_seconds)),
            *([("without notice", "where a scope is off")] if asked.without_notice else []),
            *(("rolling_update", line) for line in map(_walk, asked.rolling_updates)),
        ]
    )
    output.say("")
    operations.told(detail.operations, empty="It has no operation left in history.")
    output.say("")
    output.table(
        ("EVENT", "REF", "DOMAIN", "MACHINES", "APPROVED BY", "FROM", "AT"),
        (
            (
                event.id,
                operation.id,
                f"{event.scope}/{event.update_domain}",
                output.listed(event.machines),
                operations.approver(event.approval),
                (event.approval.address if event.approval else "") or "-",
                times.shown(event.approval.at if event.approval else None),
            )
            for operation in detail.operations
            for event in operation.events
        ),
        empty="It has no event left in history.",
    )
    operations.interventions(asked, detail.operations)
    operations.further(detail.further)


@app.command()
def resume(
    number: Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The maintenance.")],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Let a walk that has stopped go on with its next step."""
    from forewarn.server.operator import schemas

    answer = Service(operator).ask("POST", f"/v1/maintenance/{number}/resume", body={"by": who()})
    if as_json:
        output.document(answer.tree())
        return
    announced = answer.read(schemas.OperationList).operations
    output.say(f"maintenance {number} goes on")
    operations.became(announced)
    if not announced:
        output.note("Its next step is announced when nothing live is in its way, if one is left.")


def _walk(walk: "schemas.RollingUpdateView") -> str:
    """Return how a walk stands, in a line."""
    had_turn = output.listed(walk.done.names, walk.done.count) or "nobody"
    line = f"{f'scope {walk.scope}' if walk.scope else f'host {walk.host}'} is {walk.state}"
    if walk.reason:
        line += f" ({walk.reason})"
    line += f"; had their turn, or have it: {had_turn}"
    return line if walk.more else f"{line}; nothing more to come"


def _interruption(seconds: int) -> str:
    return {-1: "unknown", 0: "none"}.get(seconds) or times.shown_span(seconds)
