"""`forewarn history`; operations, their events and approvals, as several commands show them."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from forewarn import times
from forewarn.cli import output
from forewarn.cli.operator import OperatorClient, asks_for_pages
from forewarn.cli.options import option
from forewarn.vocabulary import ApproverKind, EventStatus, EventType, TargetKind

if TYPE_CHECKING:
    from forewarn.maintenance import model
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
            "Only queued, scheduled, started, returning, completed, failed or canceled; "
            "can be repeated.",
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
    happened(page.operations, empty="The history has no such operation.")


def approver(approval: "model.Approval | None") -> str:
    """Return who approved; `""` for nobody."""
    if approval is None:
        return ""
    if approval.kind is ApproverKind.GUEST:
        return approval.by
    return f"{approval.kind} {approval.by}".strip()


def machines(operation: "schemas.OperationView") -> str:
    """Return the machines of an operation by name, or how many they are."""
    return output.counted([name for event in operation.events for name in event.machines])


def on_host(live: "schemas.OperationView | schemas.LiveEvent") -> str:
    """Return the host if it is what is maintained; `""` otherwise."""
    return output.counted(live.hosts, "hosts") if live.target is TargetKind.HOST else ""


def planned(operations: Iterable["schemas.OperationView"], empty: str) -> None:
    """Show what is going to happen."""
    listed = list(operations)
    hidden = output.table(
        listed,
        {
            "REF": lambda operation: operation.id,
            "TYPE": lambda operation: operation.event_type,
            "STATUS": standing,
            "DOMAIN": lambda operation: ", ".join(
                f"{event.scope}/{event.update_domain}" for event in operation.events
            ),
            **({"HOST": on_host} if any(map(on_host, listed)) else {}),
            "MACHINES": machines,
            "NOT BEFORE": lambda operation: operation.not_before,
            "NOTICE": lambda operation: times.shown_span(notice_seconds(operation)),
            "EVENT": _event_ids,
        },
        empty=empty,
    )
    if "EVENT" in hidden and len(listed) <= output.MAX_NAMED:
        for operation in listed:
            output.say(f"{operation.id} is event {_event_ids(operation)}")


def interventions(
    maintenance: "schemas.MaintenanceView", operations: Iterable["schemas.OperationView"]
) -> None:
    """Show what operators did with a maintenance and its operations, if anything."""
    done = [(str(maintenance.number), one) for one in maintenance.interventions]
    done += [(operation.id, one) for operation in operations for one in operation.interventions]
    if done:
        output.say("")
    output.table(
        sorted(done, key=lambda pair: pair[1].at),
        {
            "REF": lambda pair: pair[0],
            "ACTION": lambda pair: pair[1].action,
            "BY": lambda pair: pair[1].by,
            "AT": lambda pair: pair[1].at,
            "DETAIL": lambda pair: pair[1].detail,
        },
    )


def further(steps: Sequence["schemas.FurtherStep"]) -> None:
    """Show the steps that rolling updates have still to announce, if any."""
    if not steps:
        return
    output.say("")
    output.table(
        enumerate(steps, 1),
        {
            "THEN": lambda turn: turn[0],
            "DOMAIN": lambda turn: ", ".join(
                f"{place.scope}/{place.update_domain}" for place in turn[1].places
            ),
            "MACHINES": lambda turn: "; ".join(
                output.counted(place.machines.names, count=place.machines.count)
                for place in turn[1].places
            ),
        },
    )
    output.note("Each is announced when the one before has ended well and its machines are back.")


def happened(operations: Iterable["schemas.OperationView"], empty: str) -> None:
    """Show what has happened; and which operators intervened, if any did."""
    listed = list(operations)
    steered = any(operation.interventions for operation in listed)
    output.table(
        listed,
        {
            "REF": lambda operation: operation.id,
            "TYPE": lambda operation: operation.event_type,
            **({"HOST": on_host} if any(map(on_host, listed)) else {}),
            "MACHINES": machines,
            "ANNOUNCED": lambda operation: (
                None if operation.status is EventStatus.QUEUED else operation.announced_at
            ),
            "NOTICE": lambda operation: times.shown_span(notice_seconds(operation)),
            "WAITED": _waited,
            "STARTED BECAUSE": _because,
            **({"STEERED BY": _steered} if steered else {}),
            "STATUS": standing,
            "TOOK": lambda operation: times.shown_span(operation.took_seconds),
            "OUTCOME": lambda operation: operation.outcome,
        },
        empty=empty,
    )


def states(found: "schemas.OperationList") -> None:
    """Print each operation in a line, as it is after a request."""
    for operation in found.operations:
        output.say(state(operation))


def state(
    operation: "schemas.OperationView", shown_at: Callable[[datetime], str] = times.shown
) -> str:
    """Return how an operation is, in one line, with its times as `shown_at` returns them."""
    line = f"{operation.id} {operation.event_type} of {machines(operation)}: "
    line += standing(operation)
    if operation.status is EventStatus.SCHEDULED:
        line += f", not before {shown_at(operation.not_before)}"
    if any(event.approval for event in operation.events):
        line += f"; approved by {_approvers(operation)}"
    if operation.acknowledged_by:
        line += f"; acknowledged by {operation.acknowledged_by}"
    return line


def notice_seconds(operation: "schemas.OperationView") -> int:
    """Return the notice in whole seconds; NotBefore is rounded up to one."""
    return max(0, int((operation.not_before - operation.announced_at).total_seconds()))


def standing(live: "schemas.OperationView | schemas.LiveEvent") -> str:
    """Return the status, and what blocks its start, its end, or what comes after it."""
    if live.held_at is not None:
        return f"{live.status}, held"
    if live.waits_for:
        queued = live.status is EventStatus.QUEUED
        line = f"{live.status} behind" if queued else f"{live.status}, waits for"
        line += f" {live.waits_for}"
        if queued and live.waits_for_machines:
            line += f": waiting for {output.listed(live.waits_for_machines)}"
        return line
    if live.status is EventStatus.FAILED and live.awaited:
        return f"{live.status}, not acknowledged"
    if live.awaited and live.status in {EventStatus.RETURNING, EventStatus.COMPLETED}:
        return f"{live.status}, awaits {output.listed(live.awaited)}"
    if live.up_at is not None:
        return f"{live.status}, settles until {times.shown(live.up_at)}"
    if live.outcome_unknown:
        return f"{live.status}, outcome unknown"
    return live.status


def _approvers(operation: "schemas.OperationView") -> str:
    approved = [approver(event.approval) for event in operation.events if event.approval]
    some = f" ({len(approved)} of {len(operation.events)})"
    return ", ".join(dict.fromkeys(approved)) + (
        some if len(approved) < len(operation.events) else ""
    )


def _event_ids(operation: "schemas.OperationView") -> str:
    return ", ".join(event.id for event in operation.events)


def _waited(operation: "schemas.OperationView") -> timedelta | None:
    started = operation.started_at
    return None if started is None else max(timedelta(0), started - operation.announced_at)


def _steered(operation: "schemas.OperationView") -> str:
    actions: dict[str, dict[str, None]] = {}
    for one in operation.interventions:
        actions.setdefault(one.by, {})[one.action] = None
    return "; ".join(f"{by} ({', '.join(done)})" for by, done in actions.items())


def _because(operation: "schemas.OperationView") -> str:
    cause = operation.start_cause
    if cause is None:
        return ""
    return f"{_approvers(operation)} approved" if cause == "approved" else cause.replace("-", " ")
