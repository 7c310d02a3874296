"""The words beside the status of an operation, a maintenance and a host's drain.

They say since when it is so, what it waits for, and what would end that. They are the same in the
API, on the command line, on the page and in alerts.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from forewarn import times
from forewarn.maintenance import notice
from forewarn.maintenance.model import Drain, Hold, HostState, Maintenance, Operation, listed
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.vocabulary import EventStatus

SECOND: Final = timedelta(seconds=1)
"""NotBefore is in whole seconds, rounded up."""


def of_operation(
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
        return _held(operation, holds, now) + _asked(operation, now)
    if operation.waits_for:
        other = live.get(operation.waits_for)
        behind_it = behind(other) if other else ""
        return f"waits for {operation.waits_for}{behind_it}{_asked(operation, now)}"
    if operation.arrived:
        return f"does not start while {listed(operation.arrived)} is on {operation.on_host}"
    if operation.status is EventStatus.QUEUED:
        return f"is announced at {times.brief(operation.announced_at, now)}"
    end = f"starts at {times.brief(operation.not_before, now)}"
    opens, closes = operation.opens_at, operation.closes_at
    if closes is not None and closes <= operation.not_before:  # its notice was extended since
        end = f"is cancelled at {times.brief(closes, now)}"
    opening = "" if opens is None or opens <= now else times.brief(opens, now)
    if operation.approved:
        return f"approved, starts at {opening}" if opening else "approved"
    if operation.silent:
        return end
    from_then = f" from {opening} on" if opening else ""
    return f"starts when approved{from_then}, or {end.removeprefix('starts ')}"


def _asked(operation: Operation, now: datetime) -> str:
    """Describe the time before which what is Queued will not start, where somebody asked for it."""
    notice_over = now + notice.minimum(operation.event_type, None)
    if operation.status is EventStatus.QUEUED and operation.not_before > notice_over + SECOND:
        return f"; not before {times.brief(operation.not_before, now)}"
    return ""


def _held(operation: Operation, holds: Iterable[Hold], now: datetime) -> str:
    covering = sorted((hold for hold in holds if hold.covers(operation)), key=lambda one: one.at)
    if not covering:
        return "held"
    more = len(covering) - 1
    text = of_hold(covering[0], lambda at: times.brief(at, now))
    return text + (f", and {more} more" if more else "")


def of_hold(hold: Hold, shown: Callable[[datetime], str]) -> str:
    """Describe a hold: by whom, from when or to when, what it covers, and why."""
    span = f"since {shown(hold.at)}" if hold.until is None else f"until {shown(hold.until)}"
    text = f"held by {hold.by or 'somebody'} {span}: {hold}"
    return f"{text} ({hold.reason})" if hold.reason else text


def behind(other: Operation) -> str:
    """Describe what keeps an operation that others wait for, and what would end that.

    `""` where its status says all.
    """
    if other.outcome_unknown:
        return f", whose outcome is unknown: resolve {other.id}"
    if other.status is EventStatus.FAILED:
        return f", which failed: acknowledge {other.id}"
    if other.held_at is not None:
        return ", which is held"
    if other.awaited and other.status is not EventStatus.STARTED:
        return f", which awaits {listed(other.awaited)}"
    return ", which is settling" if other.up_at is not None else ""


def of_maintenance(maintenance: Maintenance, now: datetime) -> str:
    """Describe why a maintenance rests, and the orders by which it goes on; or what it waits for.

    `""` where its state says all.
    """
    state = maintenance.state
    reason = maintenance.reason.partition("\n")[0].removeprefix(f"{state} ")
    if state not in {MaintenanceState.PAUSED, MaintenanceState.HALTED}:
        return reason
    failed = [unit.name for unit in maintenance.units if unit.state is UnitState.FAILED]
    first = f"retry or skip {listed(failed)}, then " if failed else ""
    return _since(reason, maintenance.changed_at, now, f"{first}resume or stop it")


def of_progress(
    operations: Iterable[Operation],
    live: Mapping[str, Operation],
    holds: Collection[Hold],
    now: datetime,
) -> str:
    """Describe how the operations of a maintenance stand: the first that is blocked, or the first.

    `""` where none waits for anything.
    """
    waiting = [
        one
        for one in operations
        if one.live and (one.status is not EventStatus.STARTED or one.outcome_unknown)
    ]
    if not waiting:
        return ""
    first = min(waiting, key=lambda one: (not _blocked(one), one.ordinal))
    return f"{first.id} {of_operation(first, live, holds, now)}".rstrip()


def _blocked(operation: Operation) -> bool:
    has_failed = operation.status is EventStatus.FAILED or bool(operation.outcome_unknown)
    return has_failed or operation.held_at is not None or bool(operation.waits_for)


def of_host(drain: Drain, now: datetime) -> str:
    """Describe what a host's drain waits for, or where it is stuck, and the orders that end that.

    `""` for a host that is up.
    """
    if drain.state is HostState.UP:
        return ""
    text, ends_by = drain.reason, ""
    if drain.stuck_in is not None:
        text = f"in {drain.stuck_in}: {drain.reason}"
        ends_by = "retry or undrain it, or skip or stop a machine"
    elif drain.rests:
        ends_by = "undrain or return it"
    return _since(text, drain.changed_at, now, ends_by)


def _since(text: str, at: datetime | None, now: datetime, ends_by: str) -> str:
    since = f"since {times.brief(at, now)}" if at is not None else ""
    facts = "; ".join(filter(None, (since, ends_by)))
    return f"{text} ({facts})" if text and facts else text or facts
