"""The metadata endpoint as `watch`, `events --endpoint` and `approve --endpoint` ask it.

What goes wrong becomes one `Failed`; events and changes become JSON's own values, or lines.
"""

import contextlib
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forewarn.cli import output, times
from forewarn.cli.exits import ExitStatus, Failed

if TYPE_CHECKING:
    from forewarn.client.event import Change, Event
    from forewarn.client.sync import Client

APPROVE_SECONDS: Final = 60.0
"""How long `approve` tries: someone waits for it, and may type it again."""

EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        show_default=False,
        help="Ask a metadata endpoint, as a guest, and not the operator plane.",
    ),
]


def connected(endpoint: str | None) -> "Client":
    """Return a client of an endpoint.

    Args:
        endpoint: Its address; None for where the library finds it.

    Raises:
        Failed: The address, or one in the environment, is none.
    """
    import logging

    from forewarn.client.errors import Misuse
    from forewarn.client.sync import Client

    logging.getLogger("forewarn.client").addHandler(logging.NullHandler())  # it is told in a line
    try:
        return Client(endpoint)
    except Misuse as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turn what the client raises into a command's end."""
    from forewarn.client.errors import ClientError, Misuse, Refused

    try:
        yield
    except Refused as error:
        raise Failed(ExitStatus.REFUSED, str(error)) from error
    except Misuse as error:
        raise Failed(ExitStatus.USAGE, str(error)) from error
    except ClientError as error:
        raise Failed(ExitStatus.UNREACHABLE, str(error)) from error


def alone(**others: object) -> None:
    """Refuse options that only the operator plane knows.

    Raises:
        Failed: One of them is given.
    """
    for name, given in others.items():
        if given:
            message = f"--{name} is for the operator plane: it does not go with --endpoint"
            raise Failed(ExitStatus.USAGE, message)


def events(endpoint: str, *, as_json: bool) -> None:
    """Print what the endpoint shows now.

    Raises:
        Failed: Nothing that speaks the protocol answers, or it refuses.
    """
    with told(), connected(endpoint) as client:
        document = client.document()
    if as_json:
        listed = [tree(event) for event in document.events]
        output.document({"incarnation": document.incarnation, "events": listed})
        return
    output.table(
        ("EVENT", "TYPE", "STATUS", "MACHINES", "NOTICE LEFT", "NOT BEFORE", "SOURCE", "MINE"),
        (
            (
                event.event_id,
                event.event_type,
                event.status,
                output.listed(event.resources),
                _span(event),
                times.shown(event.not_before),
                event.source or "-",
                {True: "yes", False: "no", None: "unknown"}[event.concerns_me],
            )
            for event in document.events
        ),
        empty="No event is scheduled or started.",
    )


def approve(endpoint: str, event_ids: list[str], *, as_json: bool) -> None:
    """Approve events at the endpoint, as a guest does.

    Raises:
        Failed: It was not confirmed.
    """
    with told(), connected(endpoint) as client:
        client.approve(*event_ids, within_seconds=APPROVE_SECONDS)
    if as_json:
        output.document({"approved": event_ids})
        return
    for event_id in event_ids:
        output.say(f"{event_id} is approved")


def tree(event: "Event") -> dict[str, Any]:
    """Return an event as JSON's own values."""
    left = event.notice_left
    return {
        "event_id": event.event_id,
        "status": event.status,
        "event_type": event.event_type,
        "resources": list(event.resources),
        "not_before": None if event.not_before is None else times.precise(event.not_before),
        "notice_left_seconds": None if left is None else round(left.total_seconds(), 3),
        "description": event.description,
        "source": event.source,
        "duration_seconds": event.duration_seconds,
        "concerns_me": event.concerns_me,
    }


def change_tree(change: "Change", at: datetime) -> dict[str, Any]:
    """Return a change as JSON's own values.

    Args:
        change: What happened.
        at: When it was told.
    """
    found = {"at": times.precise(at), "change": change.kind, "event": tree(change.event)}
    before = getattr(change, "before", None)
    return found if before is None else {**found, "before": tree(before)}


def change_line(change: "Change", at: datetime) -> str:
    """Return a change as people read it."""
    event = change.event
    parts = [times.hour(at), f"{change.kind:<8}", f"{event.event_type:<9}", f"{event.status:<9}"]
    parts.append(output.listed(event.resources))
    if event.concerns_me:
        parts.append("(this machine)")
    if not change.gone and event.not_before is not None:
        parts.append(f"in {_span(event)}")
    return "  ".join([*parts, event.event_id])


def _span(event: "Event") -> str:
    left = event.notice_left
    return times.shown_span(None if left is None else left.total_seconds())
