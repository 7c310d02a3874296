"""`forewarn history`: what happened, and who approved it."""

from typing import Annotated

import typer

from forewarn.cli import operations, times
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
)
from forewarn.vocabulary import EventStatus, EventType


def history(
    *,
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME", help="Only this machine.")
    ] = "",
    scope: Annotated[str, typer.Option("--scope", metavar="NAME", help="Only this scope.")] = "",
    maintenance: Annotated[
        int | None,
        typer.Option("--maintenance", metavar="NUMBER", min=1, help="Only this maintenance."),
    ] = None,
    types: Annotated[
        list[EventType] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            case_sensitive=False,
            help="Only freeze, reboot, redeploy, preempt or terminate; can be repeated.",
        ),
    ] = None,
    statuses: Annotated[
        list[EventStatus] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            case_sensitive=False,
            help="Only scheduled, started, completed, failed or canceled; can be repeated.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Announced at that time or later: RFC 3339, or -2h."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Announced before that time."),
    ] = None,
    limit: LimitOption = 100,
    cursor: CursorOption = "",
    whole: AllOption = False,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """List operations, the newest announcement first.

    It shows what happened, why it started, who approved it and how it ended.
    """
    from forewarn.server.operator import schemas

    def draw(page: schemas.HistoryPage) -> None:
        operations.history(page.operations, empty="The history has no such operation.")
        more(page.next)

    bounds = [None if text is None else times.moment(text) for text in (since, until)]
    service = OperatorClient(operator)
    first, last = (None if bound is None else service.moment(bound).isoformat() for bound in bounds)
    query: Query = {
        "machine": machine,
        "scope": scope,
        "maintenance": maintenance,
        "event_type": types,
        "status": statuses,
        "since": first,
        "until": last,
        "limit": limit,
        "cursor": cursor,
    }
    answer = pages(service, "/v1/history", "operations", whole=whole, query=query)
    answer.show(schemas.HistoryPage, draw, as_json=as_json)
