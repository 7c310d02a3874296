"""`forewarn events`, `approve`, `cancel` and `postpone`: live events, and decisions about them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from forewarn import times
from forewarn.cli import guest, operations, output
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
    """List the events of what is not over.

    They are in the order in which they may start; guests do not see a Queued one yet. SHOWN TO
    counts the machines whose last request used a protocol version that shows the event. With
    --endpoint the list is what this machine sees, from any server of the protocol.
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
    service.post("/v1/approvals", references=references).show(operations.states)


@asks
def cancel(
    references: ReferencesArgument,
    *,
    reason: ReasonOption = "",
    service: OperatorClient,
) -> None:
    """Cancel what has not started.

    An event is cancelled with its whole operation, a maintenance with all that has not started. If
    one has nothing left to cancel, none is cancelled.
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

    It applies to what is Scheduled. It never moves an event to an earlier time than the guests were
    told. If one cannot be moved, none is.
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
