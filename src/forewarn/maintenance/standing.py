"""The words that stand beside an operation's status: what it waits for, and what would end that.

They are the same in the API, on the command line and on the page.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from forewarn import times
from forewarn.maintenance.model import Hold, Operation, listed
from forewarn.vocabulary import EventStatus


def status_detail(
    operation: Operation, live: Mapping[str, Operation], holds: Iterable[Hold], now: datetime
) -> str:
    """Describe the thing that an operation waits for; `""` where its status says all."""
    match operation.status:
        case EventStatus.QUEUED | EventStatus.SCHEDULED:
            return _unstarted(operation, live, holds, now)
        case EventStatus.STARTED if operation.outcome_unknown:
            return f"outcome unknown: resolve {operation.id}"
        case EventStatus.STARTED:
            assert operation.started_at is not None
            return f"since {times.brief(operation.started_at, now)}"
        case EventStatus.FAILED:
            return "" if operation.acknowledged_by else "not acknowledged"
    if operation.awaited:
        awaits = f"awaits {listed(operation.awaited)}"
        if operation.status is EventStatus.RETURNING and operation.back_by is not None:
            return f"{awaits} until {times.brief(operation.back_by, now)}"
        return awaits  # an agent's word has no limit
    if operation.up_at is not None:
        return f"settles until {times.brief(operation.up_at, now)}"
    return ""


def _unstarted(
    operation: Operation, live: Mapping[str, Operation], holds: Iterable[Hold], now: datetime
) -> str:
    if operation.held_at is not None:
        return _held(operation, holds, now)
    if operation.waits_for:
        return f"waits for {operation.waits_for}{_its_state(live.get(operation.waits_for))}"
    if operation.arrived:
        return f"does not start while {listed(operation.arrived)} is on {operation.on_host}"
    if operation.status is EventStatus.QUEUED:
        return f"until {times.brief(operation.announced_at, now)}"
    at = times.brief(operation.not_before, now)
    opens = operation.opens_at
    opening = "" if opens is None or opens <= now else times.brief(opens, now)
    if operation.approved:
        return f"approved, starts at {opening}" if opening else "approved"
    if operation.silent:
        return f"starts at {at}"
    return f"starts when approved{f' from {opening} on' if opening else ''}, or at {at}"


def _held(operation: Operation, holds: Iterable[Hold], now: datetime) -> str:
    covering = sorted((hold for hold in holds if hold.covers(operation)), key=lambda one: one.at)
    if not covering:
        return "held"
    first, more = covering[0], len(covering) - 1
    span = f"since {times.brief(first.at, now)}"
    if first.until is not None:
        span = f"until {times.brief(first.until, now)}"
    text = f"held by {first.by or 'somebody'} {span}: {first}"
    text += f" ({first.reason})" if first.reason else ""
    return text + (f", and {more} more" if more else "")


def _its_state(other: Operation | None) -> str:
    if other is None:
        return ""
    if other.outcome_unknown:
        return f", whose outcome is unknown: resolve {other.id}"
    if other.status is EventStatus.FAILED:
        return f", which failed: acknowledge {other.id}"
    if other.held_at is not None:
        return ", which is held"
    return f", which awaits {listed(other.awaited)}" if other.awaited else ""
