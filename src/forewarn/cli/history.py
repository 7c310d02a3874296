"""`forewarn history`: what happened, and who approved it."""

from typing import TYPE_CHECKING, Annotated

from forewarn.cli import operations, times
from forewarn.cli.operator import OperatorClient, asks_for_pages, more
from forewarn.cli.options import option
from forewarn.vocabulary import EventStatus, EventType

if TYPE_CHECKING:
    from forewarn.server.operator import schemas


@asks_for_pages
def history(
    *,
    machine: Annotated[str, option("--machine", "NAME", "Only this machine.")] = "",
    scope: Annotated[str, option("--scope", "NAME", "Only this scope.")] = "",
    maintenance: Annotated[
        int | None, option("--maintenance", "NUMBER", "Only this maintenance.", min=1)
    ] = None,
    types: Annotated[
        list[EventType] | None,
        option(
            "--type",
            "TYPE",
            "Only freeze, reboot, redeploy, preempt or terminate; can be repeated.",
            case_sensitive=False,
        ),
    ] = None,
    statuses: Annotated[
        list[EventStatus] | None,
        option(
            "--status",
            "STATUS",
            "Only scheduled, started, completed, failed or canceled; can be repeated.",
            case_sensitive=False,
        ),
    ] = None,
    since: Annotated[
        str | None, option("--since", "TIME", "Announced at that time or later: RFC 3339, or -2h.")
    ] = None,
    until: Annotated[str | None, option("--until", "TIME", "Announced before that time.")] = None,
    service: OperatorClient,
) -> None:
    """List operations, the newest announcement first.

    It shows what happened, why it started, who approved it and how it ended.
    """
    bounds = [None if text is None else times.moment(text) for text in (since, until)]
    first, last = (None if bound is None else service.moment(bound) for bound in bounds)
    answer = service.pages(
        "/v1/history",
        "operations",
        machine=machine,
        scope=scope,
        maintenance=maintenance,
        event_type=types,
        status=statuses,
        since=first,
        until=last,
    )
    answer.show(_draw)


def _draw(page: "schemas.HistoryPage") -> None:
    operations.history(page.operations, empty="The history has no such operation.")
    more(page.next)
