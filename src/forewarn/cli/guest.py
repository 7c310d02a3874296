"""The metadata endpoint for `watch`, `events --endpoint` and `approve --endpoint`.

A client's error becomes one `Failed`; events and changes become JSON values, or lines.
"""

import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from forewarn import times
from forewarn.cli import output
from forewarn.cli.exits import ExitStatus, Failed

if TYPE_CHECKING:
    from forewarn.client.event import Change, Event
    from forewarn.client.sync import Client

SECOND: Final = timedelta(seconds=1)

APPROVE_SECONDS: Final = 60.0
"""How long `approve` tries: somebody waits for it, and may repeat it."""


@contextlib.contextmanager
def connected(endpoint: str | None, name: str | None = None) -> Iterator["Client"]:
    """Provide a client, whose errors end the command; None for what it finds out itself."""
    import logging

    from forewarn.client.errors import ClientError, Misuse, Refused
    from forewarn.client.sync import Client

    logging.getLogger("forewarn.client").addHandler(logging.NullHandler())  # the command says it
    try:
        with Client(endpoint, name=name) as client:
            yield client
    except ClientError as error:
        statuses = {Refused: ExitStatus.REFUSED, Misuse: ExitStatus.USAGE}
        status = statuses.get(type(error), ExitStatus.UNREACHABLE)
        raise Failed(status, output.printable(str(error))) from error


def alone(**others: object) -> None:
    """Refuse options that only the operator plane knows."""
    for name, given in others.items():
        if given:
            message = f"--{name} is for the operator plane: leave it out with --endpoint"
            raise Failed(ExitStatus.USAGE, message)


def events(endpoint: str, *, as_json: bool) -> None:
    """Print what the endpoint shows now."""
    with connected(endpoint) as client:
        document = client.document()
    if as_json:
        listed = [tree(event) for event in document.events]
        output.document({"incarnation": document.incarnation, "events": listed})
        return
    output.table(
        document.events,
        {
            "EVENT": lambda event: event.event_id,
            "TYPE": lambda event: event.event_type,
            "STATUS": lambda event: event.status,
            "MACHINES": lambda event: output.counted(event.resources),
            "NOTICE LEFT": lambda event: event.notice_left,
            "NOT BEFORE": lambda event: event.not_before,
            "SOURCE": lambda event: event.source,
            "MINE": lambda event: {True: "yes", False: "no", None: "unknown"}[event.concerns_me],
        },
        empty="No event is scheduled or started.",
    )


def approve(endpoint: str, event_ids: list[str], *, as_json: bool) -> None:
    """Approve events at the endpoint, as a guest does."""
    with connected(endpoint) as client:
        client.approve(*event_ids, within_seconds=APPROVE_SECONDS)
    if as_json:
        output.document({"approved": event_ids})
        return
    for event_id in event_ids:
        output.say(f"{event_id} is approved")


def tree(event: "Event") -> dict[str, Any]:
    """Return an event as JSON values."""
    import msgspec

    left = event.notice_left
    told = msgspec.structs.asdict(event)
    del told["resource_type"], told["starts_by"]
    return told | {
        "resources": list(event.resources),
        "not_before": None if event.not_before is None else times.precise(event.not_before),
        "notice_left_seconds": None if left is None else round(left.total_seconds(), 3),
    }


def change_tree(change: "Change", at: datetime) -> dict[str, Any]:
    """Return a change as JSON values, and when it was reported."""
    found = {"at": times.precise(at), "change": change.kind, "event": tree(change.event)}
    before = getattr(change, "before", None)
    return found if before is None else {**found, "before": tree(before)}


def change_line(change: "Change", at: datetime) -> str:
    """Return a change as a line for people."""
    event = change.event
    parts = [times.hour(at), f"{change.kind:<8}", f"{event.event_type:<9}", f"{event.status:<9}"]
    parts.append(output.listed(event.resources))
    if event.concerns_me:
        parts.append("(this machine)")
    if not change.gone and event.not_before is not None:
        left = event.notice_left
        parts.append(f"in {output.shown(left and timedelta(seconds=left // SECOND))}")
    return output.printable("  ".join([*parts, event.event_id]))
