"""`forewarn history`: what happened, and on whose word."""

from typing import Annotated

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
)
from forewarn.vocabulary import EventStatus, EventType


def history(
    *,
    machine: Annotated[
        str, typer.Option("--machine", metavar="NAME", help="Only of this machine.")
    ] = "",
    scope: Annotated[str, typer.Option("--scope", metavar="NAME", help="Only of this scope.")] = "",
    maintenance: Annotated[
        int | None,
        typer.Option("--maintenance", metavar="NUMBER", min=1, help="Only of this maintenance."),
    ] = None,
    types: Annotated[
        list[EventType] | None,
        typer.Option("--type", case_sensitive=False, help="Only this type; may be repeated."),
    ] = None,
    statuses: Annotated[
        list[EventStatus] | None,
        typer.Option("--status", case_sensitive=False, help="Only this status; may be repeated."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Announced then or later, as -2h or RFC 3339."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Announced before then."),
    ] = None,
    limit: LimitOption = 100,
    cursor: CursorOption = "",
    whole: AllOption = False,
    as_json: JsonOption = False,
    operator: OperatorOption = None,
) -> None:
    """List what happened, and on whose word.

    Operations, live and over, the newest announcement first.
    """
    from forewarn.server.operator import schemas

    bounds = [None if text is None else times.moment(text) for text in (since, until)]
    service = Service(operator)
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
    if as_json:
        output.document(answer.tree())
        return
    page = answer.read(schemas.HistoryPage)
    operations.told(page.operations, empty="Nothing of this is in history.")
    more(page.next)
