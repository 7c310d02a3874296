"""How long before an event guests are told (protocol.md section 6)."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from forewarn.maintenance.model import Refused
from forewarn.vocabulary import ErrorCode, EventType

LEAST: Final[Mapping[EventType, timedelta]] = MappingProxyType(
    {
        EventType.FREEZE: timedelta(minutes=15),
        EventType.REBOOT: timedelta(minutes=15),
        EventType.REDEPLOY: timedelta(minutes=10),
        EventType.PREEMPT: timedelta(seconds=30),
    }
)
"""The least notice by type. A Terminate's is its scale set's own."""

TERMINATE_MINUTES: Final = (5, 15)
"""The least and the most notice that a scale set may give before a deletion."""

FURTHEST: Final = timedelta(days=366)
"""The latest NotBefore: a predicted hardware failure is announced days ahead, not years, and a
mistyped year is refused."""


def minimum(event_type: EventType, terminate_notice_minutes: int | None) -> timedelta:
    """Return the least time from publication to NotBefore.

    A Terminate has its scope's own, in minutes; where that is None it is refused (NOT_ELIGIBLE).
    """
    if event_type is not EventType.TERMINATE:
        return LEAST[event_type]
    if terminate_notice_minutes is None:
        raise Refused(
            ErrorCode.NOT_ELIGIBLE,
            "a Terminate needs a scale set with terminate_notice_minutes (5 to 15); "
            "without it, a deletion has no event",
        )
    return timedelta(minutes=terminate_notice_minutes)


def not_before(asked: datetime | None, least: timedelta, now: datetime) -> datetime:
    """Return when an event that is announced now may start without approval.

    It is in whole seconds, rounded up, so that the notice is never short by a fraction. The time
    that is asked for, None for as soon as the notice allows, is refused if it is too early
    (NOTICE_TOO_SHORT) or further off than FURTHEST (INVALID).
    """
    earliest = now + least
    if asked is None:
        return whole_seconds(earliest)
    if asked < earliest:
        first = whole_seconds(earliest)
        message = (
            f"NotBefore {spoken(asked)} gives guests less than their notice of {_spoken(least)}: "
            f"the earliest is {spoken(first)}; leave it out to get that"
            if least
            else f"NotBefore {spoken(asked)} is in the past: leave it out to start immediately"
        )
        raise Refused(ErrorCode.NOTICE_TOO_SHORT, message, earliest=first.isoformat())
    if asked > now + FURTHEST:
        message = (
            f"NotBefore {spoken(asked)} is more than {FURTHEST.days} days ahead: "
            "expected an earlier time"
        )
        raise Refused(ErrorCode.INVALID, message, days=FURTHEST.days)
    return whole_seconds(asked)


def later(asked: datetime, shown: datetime, now: datetime) -> datetime:
    """Return when a postponed event may start: later than now, and than what guests have read."""
    earliest = max(shown, now)
    if asked <= earliest:
        message = (
            f"NotBefore {spoken(asked)} is not later than {spoken(earliest)}: an event "
            "can be moved later, never earlier"
        )
        raise Refused(ErrorCode.NOTICE_TOO_SHORT, message, earliest=earliest.isoformat())
    return not_before(asked, timedelta(0), now)


def window_closes(closes_at: datetime) -> str:
    """Return why something was cancelled that could not start in its window."""
    return f"its window closes at {spoken(closes_at)}"


def spoken(moment: datetime) -> str:
    """Format an aware time for people: UTC, to the second."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def whole_seconds(moment: datetime) -> datetime:
    """Round a moment up to a whole second (protocol.md section 4)."""
    if not moment.microsecond:
        return moment
    return moment.replace(microsecond=0) + timedelta(seconds=1)


def _spoken(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds} s"
