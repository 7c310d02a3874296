"""Operations, their events and approvals as tables: what several commands show alike."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from forewarn.cli import output, times
from forewarn.vocabulary import ApproverKind, EventStatus

if TYPE_CHECKING:
    from forewarn.maintenance import model
    from forewarn.server.operator import schemas


def approver(approval: "model.Approval | None") -> str:
    """Return whose word it was; `-` while there is none."""
    if approval is None:
        return "-"
    if approval.kind is ApproverKind.GUEST:
        return approval.by
    return f"{approval.kind} {approval.by}".strip()


def approvers(operation: "schemas.OperationView") -> str:
    """Return whose words they were, event by event; `-` where there are none."""
    named = dict.fromkeys(approver(event.approval) for event in operation.events)
    return ", ".join(named) or "-"


def machines(operation: "schemas.OperationView") -> str:
    """Return the machines of an operation, the first of them spelled out."""
    return output.listed([name for event in operation.events for name in event.machines])


def domains(operation: "schemas.OperationView") -> str:
    """Return where its machines are: scope and update domain."""
    return ", ".join(f"{event.scope}/{event.update_domain}" for event in operation.events)


def planned(operations: Iterable["schemas.OperationView"], empty: str) -> None:
    """Show what is going to happen, by operation."""
    output.table(
        ("REF", "TYPE", "STATUS", "DOMAIN", "MACHINES", "NOT BEFORE", "NOTICE", "EVENT"),
        (
            (
                operation.id,
                operation.event_type,
                standing(operation),
                domains(operation),
                machines(operation),
                times.shown(operation.not_before),
                times.shown_span(notice_seconds(operation)),
                ", ".join(event.id for event in operation.events),
            )
            for operation in operations
        ),
        empty=empty,
    )


def interventions(
    maintenance: "schemas.MaintenanceView", operations: Iterable["schemas.OperationView"]
) -> None:
    """Show what operators did with a maintenance and its operations; nothing where they did not."""
    done = [(str(maintenance.number), one) for one in maintenance.interventions]
    done += [(operation.id, one) for operation in operations for one in operation.interventions]
    if not done:
        return
    output.say("")
    output.table(
        ("REF", "DEED", "BY", "AT", "NOTE"),
        (
            (reference, one.action, one.by, times.shown(one.at), one.detail or "-")
            for reference, one in sorted(done, key=lambda pair: pair[1].at)
        ),
        empty="",
    )


def further(steps: Sequence["schemas.FurtherStep"]) -> None:
    """Show what walks have still to announce, as it would be now; nothing where nothing is."""
    if not steps:
        return
    output.say("")
    output.table(
        ("THEN", "DOMAIN", "MACHINES"),
        (
            (
                str(turn),
                ", ".join(f"{place.scope}/{place.update_domain}" for place in step.places),
                "; ".join(
                    output.listed(place.machines.names, place.machines.count)
                    for place in step.places
                ),
            )
            for turn, step in enumerate(steps, 1)
        ),
        empty="",
    )
    output.note("Each of these is announced when the one before it has ended well.")


def told(operations: Iterable["schemas.OperationView"], empty: str) -> None:
    """Show what has happened, by operation; and who steered it, where anybody did."""
    listed = list(operations)
    steered = any(operation.interventions for operation in listed)
    output.table(
        (
            *("REF", "TYPE", "MACHINES", "ANNOUNCED", "NOTICE", "WAITED", "STARTED BECAUSE"),
            *(("STEERED BY",) if steered else ()),
            *("STATUS", "TOOK", "OUTCOME"),
        ),
        (
            (
                operation.id,
                operation.event_type,
                machines(operation),
                times.shown(operation.announced_at),
                times.shown_span(notice_seconds(operation)),
                times.shown_span(_waited(operation)),
                _because(operation),
                *((_steered(operation),) if steered else ()),
                operation.status,
                times.shown_span(operation.took_seconds),
                operation.outcome or "-",
            )
            for operation in listed
        ),
        empty=empty,
    )


def became(operations: Iterable["schemas.OperationView"]) -> None:
    """Say for each operation how it stands after a request."""
    for operation in operations:
        line = (
            f"{operation.id} {operation.event_type} of {machines(operation)}: {standing(operation)}"
        )
        if operation.status is EventStatus.SCHEDULED:
            line += f", not before {times.shown(operation.not_before)}"
        if any(event.approval for event in operation.events):
            line += f", approved by {approvers(operation)}"
        if operation.acknowledged_by:
            line += f", noted by {operation.acknowledged_by}"
        output.say(line)


def notice_seconds(operation: "schemas.OperationView") -> int:
    """Return the notice that was given, in whole seconds: NotBefore is rounded up to one."""
    return max(0, int((operation.not_before - operation.announced_at).total_seconds()))


def standing(live: "schemas.OperationView | schemas.LiveEvent") -> str:
    """Return the status, and what keeps it from starting or leaves its end open."""
    if live.held_at is not None:
        return f"{live.status}, held"
    if live.waits_for:
        return f"{live.status}, waits for {live.waits_for}"
    if live.outcome_unknown:
        return f"{live.status}, in doubt"
    return live.status


def _waited(operation: "schemas.OperationView") -> float | None:
    """Return how long it waited from its announcement to its start, None if it never did."""
    if operation.started_at is None:
        return None
    return max(0.0, (operation.started_at - operation.announced_at).total_seconds())


def _steered(operation: "schemas.OperationView") -> str:
    """Return who held, released, postponed or repeated it; `-` where nobody did."""
    words: dict[str, dict[str, None]] = {}
    for one in operation.interventions:
        words.setdefault(one.by, {})[one.action] = None
    return "; ".join(f"{by} ({', '.join(deeds)})" for by, deeds in words.items()) or "-"


def _because(operation: "schemas.OperationView") -> str:
    cause = operation.start_cause
    if cause is None:
        return "-"
    if cause == "approved":
        return f"{approvers(operation)} approved"
    return cause.replace("-", " ")
