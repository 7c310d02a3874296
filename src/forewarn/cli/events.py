"""`forewarn events`, `alerts` and `history`, and what is decided about them; operations as tables.

The commands: approve, cancel, postpone, hold, release, acknowledge, resolve.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from forewarn import times
from forewarn.cli import output
from forewarn.cli.command import RequestCommand, asking
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.operator_client import Answer, OperatorClient
from forewarn.cli.options import REASON, Choice, argument, of_field, option
from forewarn.server.operator import fields
from forewarn.vocabulary import ApproverKind, EventStatus, EventType, TargetKind

if TYPE_CHECKING:
    from forewarn.maintenance import model
    from forewarn.server.operator import maintenance_schemas, schemas

# Operations, their events and approvals, as several commands show them.


def approver(approval: "model.Approval | None") -> str:
    """Return who approved; `""` for nobody."""
    if approval is None:
        return ""
    if approval.kind is ApproverKind.GUEST:
        return approval.by
    return f"{approval.kind} {approval.by}".strip()


def machines(operation: "schemas.OperationView") -> str:
    """Return the machines of an operation by name, or how many they are."""
    return output.counted(operation.machines)


def on_host(live: "schemas.OperationView | schemas.LiveEvent") -> str:
    """Return the host if it is what is maintained; `""` otherwise."""
    return output.counted(live.hosts, "hosts") if live.target is TargetKind.HOST else ""


def planned(plan: "maintenance_schemas.MaintenancePlan") -> None:
    """Show what is going to happen; the events of a plan have no ids yet."""
    listed = plan.operations
    hidden = output.table(
        listed,
        {
            "REF": "id",
            "TYPE": "event_type",
            "STATUS": standing,
            "DOMAIN": lambda operation: ", ".join(
                f"{event.scope}/{event.update_domain}" for event in operation.events
            ),
            "?HOST": on_host,
            "MACHINES": machines,
            "NOT BEFORE": "not_before",
            "NOTICE": lambda operation: times.shown_span(notice_seconds(operation)),
            **({} if plan.dry_run else {"EVENT": _event_ids}),
        },
        empty="No machine is affected.",
    )
    if "EVENT" in hidden and len(listed) <= output.MAX_NAMED:
        for operation in listed:
            output.say(f"{operation.id} is event {_event_ids(operation)}")


def states(found: "schemas.OperationList") -> None:
    """Print each operation in a line, as it is after a request."""
    for operation in found.operations:
        output.say(output.printable(state(operation)))


def state(
    operation: "schemas.OperationView", shown_at: Callable[[datetime], str] = times.shown
) -> str:
    """Return how an operation is, in one line, with its times as `shown_at` returns them."""
    line = f"{operation.id} {operation.event_type} of {machines(operation)}: "
    line += standing(operation)
    if operation.status is EventStatus.SCHEDULED and operation.not_before is not None:
        line += f", not before {shown_at(operation.not_before)}"
    if any(event.approval for event in operation.events):
        line += f"; approved by {_approvers(operation)}"
    if operation.acknowledged_by:
        line += f"; acknowledged by {operation.acknowledged_by}"
    return line


def notice_seconds(operation: "schemas.OperationView") -> int | None:
    """Return the notice in whole seconds (NotBefore is rounded up to one); None while Queued."""
    if operation.not_before is None or operation.announced_at is None:
        return None
    return max(0, int((operation.not_before - operation.announced_at).total_seconds()))


def standing(live: "schemas.OperationView | schemas.LiveEvent") -> str:
    """Return the status, and what it waits for; its times have columns of their own."""
    waits = live.held_at is not None or bool(live.waits_for or live.outcome_unknown)
    goes_on = live.status in {EventStatus.SCHEDULED, EventStatus.STARTED} and not waits
    told = () if goes_on or not live.status_detail else (live.status_detail,)
    return ", ".join((live.status, *told))


def _approvers(operation: "schemas.OperationView") -> str:
    approved = [approver(event.approval) for event in operation.events if event.approval]
    some = f" ({len(approved)} of {len(operation.events)})"
    return ", ".join(dict.fromkeys(approved)) + (
        some if len(approved) < len(operation.events) else ""
    )


def _event_ids(operation: "schemas.OperationView") -> str:
    return ", ".join(event.id for event in operation.events)


def _waited(operation: "schemas.OperationView") -> timedelta | None:
    started, announced = operation.started_at, operation.announced_at
    return None if started is None or announced is None else max(timedelta(0), started - announced)


def _because(operation: "schemas.OperationView") -> str:
    cause = operation.start_cause
    if cause is None:
        return ""
    return f"{_approvers(operation)} approved" if cause == "approved" else cause.replace("-", " ")


HISTORY: Final = output.AnswerTable(
    "schemas.HistoryPage.operations",
    {
        "REF": "id",
        "TYPE": "event_type",
        "?HOST": on_host,
        "MACHINES": machines,
        "ANNOUNCED": "announced_at",
        "NOTICE": lambda operation: times.shown_span(notice_seconds(operation)),
        "WAITED": _waited,
        "STARTED BECAUSE": _because,
        "STATUS": standing,
        "TOOK": lambda operation: times.shown_span(operation.took_seconds),
        "OUTCOME": "outcome",
    },
    empty="The history has no such operation.",
)
history = RequestCommand(
    "List operations, the newest announcement first.\n\n"
    "It shows what happened, why it started, who approved it and how it ended.",
    "GET /v1/history",
    *map(of_field, fields.HISTORY.fields),
    option(
        "--type TYPE... event_type",
        "Only freeze, reboot, redeploy, preempt or terminate.",
        Choice(EventType),
    ),
    option(
        "--status STATUS...",
        "Only queued, scheduled, started, returning, completed, failed or canceled.",
        Choice(EventStatus),
    ),
    show=HISTORY,
    paged="operations",
)

# Live events.

REFERENCES: Final = argument(
    "references REF...", "Ids of events, operations (12.1) or maintenances (12)."
)


@asking(REFERENCES)
def approve(service: OperatorClient, references: Sequence[str]) -> None:
    """Approve events on behalf of the guests.

    If one is unknown, none is approved. The history records that an operator approved.
    """
    answer = service.post("/v1/approvals", references=references)
    answer.show(states)
    statuses = {each["id"]: each["status"] for each in answer.tree()["operations"]}
    if statuses and set(statuses.values()) == {EventStatus.CANCELED}:
        raise Failed(ExitStatus.REFUSED, f"already cancelled: {output.listed(list(statuses))}")


@asking(REFERENCES, REASON)
def cancel(service: OperatorClient, references: Sequence[str], reason: str | None) -> None:
    """Cancel what has not started.

    Cancelling an event cancels its whole operation; cancelling a maintenance, all of its operations
    that have not started. If one REF has nothing left to cancel, none is cancelled.
    """
    answer = service.post("/v1/cancellations", references=references, reason=reason)
    answer.show(_cancelled)
    numbers = () if service.as_json else filter(str.isdecimal, dict.fromkeys(references))
    with contextlib.suppress(Failed):  # it is cancelled, whatever can be shown of it
        for number in numbers:
            maintenance = service.get(f"/v1/maintenances/{number}").tree()["maintenance"]
            if maintenance["status"] == "stopped":
                output.say(output.printable(f"maintenance {number} is stopped"))


def _cancelled(found: "schemas.OperationList") -> None:
    """Print what is cancelled, and what goes on; not what was over before."""
    for operation in found.operations:
        if operation.status is EventStatus.CANCELED or not operation.status.over:
            output.say(output.printable(state(operation)))


postpone = RequestCommand(
    "Move NotBefore later.\n\n"
    "Only what has not started and is not approved can be moved, and never to an earlier time than "
    "guests were told. If one cannot be moved, none is.",
    "POST /v1/postponements",
    REFERENCES,
    argument("not_before TIME", "RFC 3339 with a zone, or from now, such as +20m."),
    show=states,
)


def _agents(words: "Sequence[schemas.AgentWord]") -> str:
    """Return the words of the agents: `ready`, or of several machines `1 held, 2 ready`."""
    counts = Counter(word.status.value for word in words)
    if len(words) <= 1:
        return next(iter(counts), "-")
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


def _shown_to(event: "schemas.LiveEvent") -> str:
    if event.silent:
        return "none, off"
    if event.status is EventStatus.QUEUED:
        return "none yet"
    return f"{event.shown_to.showing} of {event.shown_to.machines}"


COLUMNS: Final[Mapping[str, output.Column[Any]]] = {
    "REF": "operation",
    "TYPE": "event_type",
    "STATUS": standing,
    "DOMAIN": lambda event: f"{event.scope}/{event.update_domain}",
    "?HOST": on_host,
    "MACHINES": lambda event: output.counted(event.machines),
    "NOTICE LEFT": lambda event: times.shown_span(event.notice_left_seconds),
    "NOT BEFORE": "not_before",
    "APPROVED BY": lambda event: approver(event.approval),
    "AGENTS": lambda event: _agents(event.agents),
    "SHOWN TO": _shown_to,
}
"""The columns of a live event."""

events = RequestCommand(
    "List live events.\n\n"
    "The next to start comes first. Guests do not see a Queued event yet. SHOWN TO counts the "
    "machines whose last request used a protocol version that shows the event.",
    "GET /v1/events",
    option("--scope NAME", "Only events of this scope."),
    option("--machine NAME", "Only events of this machine."),
    show=output.AnswerTable("schemas.EventList.events", COLUMNS, empty="There are no events."),
)

# Holds.

HELD: Final = ("everything", "scope", "host", "machine")
NAME: Final = argument("name [NAME]", "The name of the scope, host or machine.")
HOLDS: Final = output.AnswerTable(
    "schemas.HoldList.holds",
    {
        "HELD": lambda one: f"{one.kind} {one.name}".rstrip(),
        "SINCE": "at",
        "?UNTIL": "until",
        "BY": "by",
        "REASON": "reason",
        "BLOCKS": lambda one: output.counted(
            one.operations.names, "operations", one.operations.count
        ),
    },
    empty="There are no holds.",
)


@asking(
    argument(
        "what WHAT",
        "everything, scope, host or machine; or list, to show the holds.",
        Choice((*HELD, "list")),
    ),
    NAME,
    REASON,
    of_field(fields.UNTIL),
)
def hold(
    service: OperatorClient,
    what: str,
    name: str | None,
    reason: str | None,
    until: datetime | timedelta | time | None,
) -> None:
    """Block maintenance from starting until released.

    With --until it ends by itself. What has started goes on. 'hold list' lists the holds.
    """
    if what == "list":
        if name or reason or until:
            raise click.UsageError("'hold list' takes no name, no --reason and no --until")
        service.get("/v1/holds").show(HOLDS)
        return
    ends = None if until is None else service.moment(until)
    span = f" until {times.shown(datetime.fromisoformat(ends))}" if ends else ""
    held = service.post("/v1/holds", kind=what, name=name, reason=reason, until=ends)
    _show(held, what, name, f" is held{span}")


@asking(argument("what WHAT", "everything, scope, host or machine.", Choice(HELD)), NAME)
def release(service: OperatorClient, what: str, name: str | None) -> None:
    """Release a hold, so that what it blocked goes on.

    It goes on with the notice that was left, unless another hold covers it.
    """
    _show(service.delete("/v1/holds", kind=what, name=name), what, name, " is released")


def _show(answer: Answer, what: str, name: str | None, now: str) -> None:
    def draw(found: "schemas.OperationList") -> None:
        output.say(f"{what} {name or ''}".rstrip() + now)
        states(found)

    answer.show(draw)


# Alerts.


@asking()
def alerts(service: OperatorClient) -> None:
    """List what needs an operator, the oldest first.

    Exit status: 0 without alerts, 11 with some.
    """
    answer = service.get("/v1/alerts")
    answer.show(_draw_alerts)
    if answer.tree()["count"]:
        raise click.exceptions.Exit(ExitStatus.ALERTS)


acknowledge = RequestCommand(
    "Acknowledge failures, and end the wait for machines.\n\n"
    "The update domains then count as up, and what waited for them goes on: the next one may go "
    "down. So it is refused while a machine has not asked for its events since it went down. It "
    "takes operations that failed, and those whose machines are not back; for any other, none is "
    "acknowledged.",
    "POST /v1/acknowledgements",
    argument("references REF...", "Operations that are over (12.1), or maintenances (12)."),
    of_field(fields.EVEN_IF_DOWN),
    show=states,
)
resolve = RequestCommand(
    "Record the result of operations whose outcome is unknown.\n\n"
    "'repeat' reruns the machines whose result is unknown. If the outcome of one is known, none is "
    "recorded.",
    "POST /v1/resolutions",
    argument("references REF...", "Operations (12.1), or maintenances (12)."),
    argument(
        "verdict RESULT", "succeeded, failed or repeat.", Choice(("succeeded", "failed", "repeat"))
    ),
    show=states,
)


def _draw_alerts(found: "schemas.AlertList") -> None:
    output.table(
        found.items,
        {"KIND": "kind", "ABOUT": "about", "SINCE": "since", "WHAT": "message"},
        empty="There are no alerts.",
    )
    from forewarn.maintenance.alerts import remedy

    if found.count > len(found.items):
        output.note(f"These are the oldest {len(found.items)} of {found.count}.")
    if remedies := dict.fromkeys(filter(None, map(remedy, found.items))):
        output.note("Once you know the cause:")
        for command in remedies:
            output.note(f"  forewarn {command}")
