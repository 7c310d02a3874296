"""What an operator must know: one list, found anew each time from what is live.

An item is gone when what it speaks of is: a failure when somebody took note of it, a hold when it
is released, an unapproved event when it starts, a doubted clock when it is trusted again.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from forewarn.maintenance.model import Hold, Maintenance, Operation, RollingState
from forewarn.vocabulary import EventStatus

CLOSE = timedelta(minutes=2)
"""How near to NotBefore an unapproved event is worth a look: time to call somebody."""

STUCK_AFTER = timedelta(hours=1)
"""How long an act without an expected duration may take: the longest that a host's reboot with
its checks does."""

STUCK_FACTOR = 5
"""How many times its expected duration an act may take before it counts as stuck."""

LEAST_STUCK = timedelta(minutes=10)
"""An act that is expected to last seconds may still last this long."""


SILENT_AFTER = timedelta(minutes=2)
"""How long after the service's start a machine may not have asked: who asked before is not
remembered, and the slowest usual guest asks once a minute."""

MAX_NAMED = 5
"""How many machines a message names: enough to know which, and still one line."""

CLOCK = "clock"
"""What an item about the time of day is about."""


class AlertKind(StrEnum):
    """Why an operator should look."""

    FAILED = "failed"
    STOPPED = "stopped"
    """A walk goes no further until it is resumed or cancelled."""
    UNKNOWN = "unknown"
    """Nobody knows whether an act was carried out."""
    STUCK = "stuck"
    HELD = "held"
    UNAPPROVED = "unapproved"
    """It starts within CLOSE, and its guests have not approved."""
    UNSEEN = "unseen"
    """Machines that it concerns ask by a version that does not show it, or do not ask."""
    DOUBTED = "doubted"
    """The clock, that is: the time of day is not trusted, and nothing starts."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to look at."""

    kind: AlertKind
    about: str
    """An operation (`12.1`), a maintenance (`12`), what is held (`scope web`), or the clock."""
    message: str
    since: datetime


class ClockDoubt(msgspec.Struct, frozen=True):
    """That the time of day is not trusted."""

    message: str
    """Why, and what to do."""
    since: datetime


class AlertSources(msgspec.Struct, frozen=True):
    """How many of an operation's machines can see its events."""

    machines: int
    asking: int
    """Those that have asked since the service's start."""
    seeing: int
    """Those of them that last asked by a version that shows the events."""


def items(
    operations: Iterable[Operation],
    maintenances: Iterable[Maintenance],
    holds: Iterable[Hold],
    sights: Mapping[str, AlertSources],
    now: datetime,
    *,
    up_since: datetime,
    clock: ClockDoubt | None = None,
) -> list[Alert]:
    """Return what needs an operator, the oldest first.

    Args:
        operations: What is live, and what has failed and nobody took note of.
        maintenances: Those that are open.
        holds: All that there are.
        sights: By operation; one that is left out is not judged.
        now: When.
        up_since: When the service was started, since when it knows who asks.
        clock: Why the time of day is doubted; None while it is trusted.
    """
    found = [*_of_holds(holds), *_of_walks(maintenances)]
    if clock is not None:
        found.append(
            Alert(kind=AlertKind.DOUBTED, about=CLOCK, message=clock.message, since=clock.since)
        )
    for operation in operations:
        found.extend(_of_operation(operation, sights.get(operation.id), now, up_since))
    return sorted(found, key=lambda item: (item.since, item.kind, item.about))


def _of_holds(holds: Iterable[Hold]) -> Iterable[Alert]:
    for hold in holds:
        about = f"{hold.kind} {hold.name}".rstrip()
        because = f": {hold.reason}" if hold.reason else ""
        message = f"held by {hold.by or 'somebody'}{because}; nothing of it starts until released"
        yield Alert(kind=AlertKind.HELD, about=about, message=message, since=hold.at)


def _of_walks(maintenances: Iterable[Maintenance]) -> Iterable[Alert]:
    for maintenance in maintenances:
        for walk in maintenance.rolling_updates:
            if walk.state is RollingState.PAUSED:
                where = walk.scope or f"host {walk.host}"
                message = (
                    f"the walk of {where} has stopped: {walk.reason}; resume or cancel maintenance "
                    f"{maintenance.number}"
                )
                yield Alert(
                    kind=AlertKind.STOPPED,
                    about=str(maintenance.number),
                    message=message,
                    since=maintenance.requested_at,
                )


def _of_operation(
    operation: Operation, sight: AlertSources | None, now: datetime, up_since: datetime
) -> Iterable[Alert]:
    def item(kind: AlertKind, message: str, since: datetime) -> Alert:
        return Alert(kind=kind, about=operation.id, message=message, since=since)

    if operation.status is EventStatus.FAILED and not operation.acknowledged_by:
        assert operation.ended_at is not None
        why = f": {operation.outcome}" if operation.outcome else ""
        yield item(AlertKind.FAILED, f"{operation.event_type} failed{why}", operation.ended_at)
    if operation.status is EventStatus.STARTED:
        assert operation.started_at is not None
        if operation.outcome_unknown:
            message = f"{operation.event_type} of {_named(operation)}: {operation.outcome_unknown}"
            yield item(AlertKind.UNKNOWN, message, operation.started_at)
        elif now - operation.started_at > patience(operation):
            message = f"{operation.event_type} has not ended since {operation.started_at:%H:%M:%SZ}"
            yield item(AlertKind.STUCK, message, operation.started_at)
    pending = operation.status is EventStatus.SCHEDULED and not operation.silent
    if pending and not operation.approved:
        if operation.held_at is None and operation.not_before - now <= CLOSE:
            message = "not approved, and its notice is " + (
                "over" if operation.not_before <= now else "nearly over"
            )
            yield item(AlertKind.UNAPPROVED, message, operation.announced_at)
        if sight is not None and (message := _unseen(sight, now - up_since)):
            yield item(AlertKind.UNSEEN, message, operation.announced_at)


def _unseen(sight: AlertSources, up: timedelta) -> str:
    """Return which machines cannot know of an operation, and why; `""` if all can."""
    silent = sight.machines - sight.asking if up >= SILENT_AFTER else 0
    blind = sight.asking - sight.seeing
    of = f"of its {sight.machines} machines"
    said = [f"{silent} {of} have not asked since the service's start"] if silent else []
    said += [f"{blind} {of} ask by a version that does not show it"] if blind else []
    return "; ".join(said)


def _named(operation: Operation) -> str:
    """Return an operation's machines as a message names them."""
    names = operation.machines
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def patience(operation: Operation) -> timedelta:
    """Return how long an act may take before it counts as stuck."""
    if operation.duration_seconds <= 0:
        return STUCK_AFTER
    return max(LEAST_STUCK, STUCK_FACTOR * timedelta(seconds=operation.duration_seconds))
