"""`forewarn events`, `approve`, `cancel`, `postpone`: what is live, and a word on it."""

from typing import TYPE_CHECKING, Annotated

import typer

from forewarn.cli import guest, operations, output, times
from forewarn.cli.operator import JsonOption, OperatorOption, Service, who

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


def events(
    *,
    scope: Annotated[
        str, typer.Option("--scope", metavar="NAME", help="Only events of this scope.")
    ] = "",
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME", help="Only events of this machine.")
    ] = "",
    endpoint: guest.EndpointOption = None,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """List the events that guests see now.

    In the order in which they may start. With --endpoint they are those that this machine sees,
    asked of any server of the protocol. SHOWN TO counts the machines whose last request was by a
    version of the protocol that shows the event.
    """
    if endpoint is not None:
        guest.alone(scope=scope, machine=machine)
        guest.events(endpoint, as_json=as_json)
        return
    from forewarn.server.operator import schemas

    answer = Service(operator).get("/v1/events", scope=scope, machine=machine)
    if as_json:
        output.document(answer.tree())
        return
    live = answer.read(schemas.EventList)
    output.table(
        (
            "REF",
            "TYPE",
            "STATUS",
            "DOMAIN",
            "MACHINES",
            "NOTICE LEFT",
            "NOT BEFORE",
            "APPROVED BY",
            "SHOWN TO",
        ),
        (
            (
                event.operation,
                event.event_type,
                operations.standing(event),
                f"{event.scope}/{event.update_domain}",
                output.listed(event.machines),
                times.shown_span(event.notice_left_seconds),
                times.shown(event.not_before),
                operations.approver(event.approval),
                _shown_to(event),
            )
            for event in live.events
        ),
        empty="No event is scheduled or started.",
    )


def _shown_to(event: "schemas.LiveEvent") -> str:
    if event.silent:
        return "none, off"
    return f"{event.shown_to.showing} of {event.shown_to.machines}"


def approve(
    references: Annotated[
        list[str],
        typer.Argument(metavar="REF", help="Events' ids, operations (12.1) or maintenances (12)."),
    ],
    *,
    endpoint: guest.EndpointOption = None,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Approve events on the guests' behalf.

    All of them or, if one is unknown, none; history keeps that it was an operator's word. With
    --endpoint it is this machine's own word, at any server of the protocol: REF is an event's id.
    """
    if endpoint is not None:
        guest.approve(endpoint, references, as_json=as_json)
        return
    from forewarn.server.operator import schemas

    body = {"references": references, "by": who()}
    answer = Service(operator).ask("POST", "/v1/approvals", body=body)
    if as_json:
        output.document(answer.tree())
        return
    operations.became(answer.read(schemas.OperationList).operations)


def cancel(
    reference: Annotated[
        str,
        typer.Argument(metavar="REF", help="An event's id, an operation (12.1) or maintenance."),
    ],
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, kept in history.")
    ] = "",
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Withdraw what has not started.

    Of a maintenance, whatever has not started yet; an event takes its whole operation with it.
    """
    from forewarn.server.operator import schemas

    body = {"reference": reference, "reason": reason, "by": who()}
    answer = Service(operator).ask("POST", "/v1/cancellations", body=body)
    if as_json:
        output.document(answer.tree())
        return
    operations.became(answer.read(schemas.OperationList).operations)


def postpone(
    reference: Annotated[
        str,
        typer.Argument(metavar="REF", help="An event's id, an operation (12.1) or maintenance."),
    ],
    time: Annotated[
        str,
        typer.Argument(metavar="TIME", help="RFC 3339 with a zone, or from now, as +20m."),
    ],
    *,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """Move what is Scheduled later.

    Of a maintenance, whatever has not started yet. Nothing moves to before what guests have read.
    """
    from forewarn.server.operator import schemas

    service = Service(operator)
    at = service.moment(times.moment(time))
    body = {"reference": reference, "not_before": at.isoformat(), "by": who()}
    answer = service.ask("POST", "/v1/postponements", body=body)
    if as_json:
        output.document(answer.tree())
        return
    operations.became(answer.read(schemas.OperationList).operations)
