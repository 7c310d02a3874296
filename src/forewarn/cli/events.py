"""`forewarn events`, and what is decided about them: approve, cancel, postpone, hold, release."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from forewarn import times
from forewarn.cli import guest, operations, output
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator import OperatorClient, asks
from forewarn.cli.options import EndpointOption, ReasonOption, argument, option
from forewarn.vocabulary import EventStatus

if TYPE_CHECKING:
    from forewarn.server.operator import schemas

ReferencesArgument = Annotated[
    list[str], argument("REF", "Ids of events, operations (12.1) or maintenances (12).")
]


@asks
def events(
    *,
    scope: Annotated[str, option("--scope", "NAME", "Only events of this scope.")] = "",
    machine: Annotated[str, option("--machine", "NAME", "Only events of this machine.")] = "",
    endpoint: EndpointOption = None,
    service: OperatorClient,
) -> None:
    """List live events.

    The first to start comes first. Guests do not see a Queued event yet. SHOWN TO counts the
    machines whose last request used a protocol version that shows the event. With --endpoint it
    lists what this machine reads, from any server of the protocol.
    """
    if endpoint is not None:
        guest.alone(scope=scope, machine=machine)
        guest.events(endpoint, as_json=service.as_json)
        return
    service.get("/v1/events", scope=scope, machine=machine).show(_draw)


@asks
def approve(
    references: ReferencesArgument,
    *,
    endpoint: EndpointOption = None,
    service: OperatorClient,
) -> None:
    """Approve events on behalf of the guests.

    If one is unknown, none is approved. The history records that an operator approved. With
    --endpoint this machine approves, at any server of the protocol: REF is the id of an event.
    """
    if endpoint is not None:
        guest.approve(endpoint, references, as_json=service.as_json)
        return
    answer = service.post("/v1/approvals", references=references)
    answer.show(operations.states)
    statuses = {each["id"]: each["status"] for each in answer.tree()["operations"]}
    if statuses and set(statuses.values()) == {EventStatus.CANCELED}:
        cancelled = output.listed(list(statuses))
        raise Failed(ExitStatus.REFUSED, f"cancelled, and so not to be approved: {cancelled}")


@asks
def cancel(
    references: ReferencesArgument,
    *,
    reason: ReasonOption = "",
    service: OperatorClient,
) -> None:
    """Cancel what has not started.

    To cancel an event cancels its whole operation; to cancel a maintenance, all of it that has not
    started. If one has nothing left to cancel, none is cancelled.
    """
    answer = service.post("/v1/cancellations", references=references, reason=reason)
    answer.show(operations.states)


@asks
def postpone(
    references: ReferencesArgument,
    time: Annotated[str, argument("TIME", "RFC 3339 with a zone, or from now, such as +20m.")],
    *,
    service: OperatorClient,
) -> None:
    """Move NotBefore later.

    Only what is Scheduled can be moved, and never to an earlier time than guests were told. If one
    cannot be moved, none is.
    """
    at = service.moment(times.moment(time))
    answer = service.post("/v1/postponements", references=references, not_before=at)
    answer.show(operations.states)


def _agents(words: "Sequence[schemas.AgentWord]") -> str:
    """Return what the agents say: `ready`, or of several machines `1 held, 2 ready`."""
    counts = Counter(word.status.value for word in words)
    if len(words) <= 1:
        return next(iter(counts), "-")
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


COLUMNS: Final[Mapping[str, "Callable[[schemas.LiveEvent], object]"]] = {
    "REF": lambda event: event.operation,
    "TYPE": lambda event: event.event_type,
    "STATUS": operations.standing,
    "DOMAIN": lambda event: f"{event.scope}/{event.update_domain}",
    "HOST": operations.on_host,
    "MACHINES": lambda event: output.counted(event.machines),
    "NOTICE LEFT": lambda event: times.shown_span(event.notice_left_seconds),
    "NOT BEFORE": lambda event: event.not_before,
    "APPROVED BY": lambda event: operations.approver(event.approval),
    "AGENTS": lambda event: _agents(event.agents),
    "SHOWN TO": lambda event: (
        "none, off"
        if event.silent
        else "none yet"
        if event.status is EventStatus.QUEUED
        else f"{event.shown_to.showing} of {event.shown_to.machines}"
    ),
}
"""How an event is shown."""


def _draw(found: "schemas.EventList") -> None:
    columns = dict(COLUMNS)
    if not any(map(operations.on_host, found.events)):
        del columns["HOST"]
    output.table(found.events, columns, empty="There is no event.")


# Holds.

NameArgument = Annotated[
    str, argument("[NAME]", "The name of the scope, host or machine; leave out for everything.")
]


@asks
def hold(
    what: Annotated[
        Literal["everything", "scope", "host", "machine", "list"],
        argument("WHAT", "What to hold, or `list` to show the holds."),
    ],
    name: NameArgument = "",
    *,
    reason: ReasonOption = "",
    service: OperatorClient,
) -> None:
    """Block maintenance from starting until released.

    What has started goes on. 'hold list' lists the holds.
    """
    if what == "list":
        if name or reason:
            raise typer.BadParameter("'hold list' takes no name and no --reason")
        service.get("/v1/holds").show(_draw_holds)
        return
    _check_name(what, name)
    answer = service.post("/v1/holds", kind=what, name=name, reason=reason)
    if not service.as_json:
        output.say(f"{what} {name}".rstrip() + " is held")
    answer.show(operations.states)


@asks
def release(
    what: Annotated[
        Literal["everything", "scope", "host", "machine"], argument("WHAT", "What to release.")
    ],
    name: NameArgument = "",
    *,
    service: OperatorClient,
) -> None:
    """Release a hold, so that what it blocked goes on.

    It goes on with the notice that was left, unless another hold covers it.
    """
    _check_name(what, name)
    answer = service.delete("/v1/holds", kind=what, name=name)
    if not service.as_json:
        output.say(f"{what} {name}".rstrip() + " is released")
    answer.show(operations.states)


def _check_name(what: str, name: str) -> None:
    if what == "everything" and name:
        raise typer.BadParameter(f"'everything' takes no name: remove {name!r}")
    if what != "everything" and not name:
        raise typer.BadParameter(f"missing the name of the {what}")


def _draw_holds(found: "schemas.HoldList") -> None:
    output.table(
        found.holds,
        {
            "HELD": lambda one: f"{one.kind} {one.name}".rstrip(),
            "SINCE": lambda one: one.at,
            "BY": lambda one: one.by,
            "REASON": lambda one: one.reason,
            "BLOCKS": lambda one: output.counted(
                one.operations.names, "operations", one.operations.count
            ),
        },
        empty="There are no holds.",
    )
