"""The notice of an event (protocol.md section 6), and its extension after an outage.

Notices are extended after guests could not read: `end_gap` and `control.service_clock.resume`
compute by how much, and `commands.extend_notices` moves NotBefore.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

import msgspec

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

    A Terminate has its scope's own, in minutes; where the scope has none any more, the longest.
    """
    minutes = terminate_notice_minutes or max(TERMINATE_MINUTES)
    return LEAST.get(event_type, timedelta(minutes=minutes))


def not_before(asked: datetime | None, least: timedelta, now: datetime) -> datetime:
    """Return the earliest start, without approval, of an event that is announced now.

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


def too_short(
    given: timedelta,
    least: timedelta,
    event_type: EventType,
    now: datetime,
    where: str = "notice_seconds",
) -> Refused:
    """Return the refusal (NOTICE_TOO_SHORT) of a length of notice that somebody asked for."""
    message = f"at {where}: {_spoken(given)} is less than the {_spoken(least)} of a {event_type}"
    earliest = whole_seconds(now + least).isoformat()
    return Refused(ErrorCode.NOTICE_TOO_SHORT, message, where=where, earliest=earliest)


def later(asked: datetime, shown: datetime, now: datetime) -> datetime:
    """Return a postponed event's new NotBefore: later than now, and than what guests have read."""
    earliest = max(shown, now)
    if asked <= earliest:
        message = (
            f"NotBefore {spoken(asked)} is not later than {spoken(earliest)}: an event "
            "can be moved later, never earlier"
        )
        raise Refused(ErrorCode.NOTICE_TOO_SHORT, message, earliest=earliest.isoformat())
    return not_before(asked, timedelta(0), now)


def window_closes(closes_at: datetime) -> str:
    """Return the reason for cancelling something that could not start in its window."""
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


# How long guests could not read: when the event loop ran in, how far notices move out. Guests are
# answered on one event loop, so nobody could read while it stood still: the process was stopped, or
# one callback held it up. A loop that runs is no outage however much guests make it do, for each of
# them has its turns (`server.guest.limits`), and a turn is short. So what counts is the time
# between two signs that the loop ran: a beat, or a turn of any guest. Such a gap is a stall. Short
# ones add up: six of 4 s leave a notice of 30 s with 6 s to read it in. All times are real seconds
# of the monotonic clock.

STALL_SECONDS: Final = 1.0
"""A shorter gap is no stall: a client that polls once a second misses one answer at most."""

OUTAGE_SECONDS: Final = 5.0
"""Stalls of no more than this in all move nothing: a client that polls once a second misses a few
answers, out of a notice of minutes (of 30 s at the least)."""

RECENT_SECONDS: Final = 900.0
"""Stalls this far apart do not add up: the longest notice that the protocol knows is 15 minutes."""


class Stall(msgspec.Struct, frozen=True):
    """A gap in which guests could not read, for which no notice has moved yet."""

    ended: float
    seconds: float


NO_STALLS: Final[tuple[Stall, ...]] = ()


def unread_seconds(stalls: tuple[Stall, ...], alive: float, now: float) -> float:
    """Return the length of recent stalls, including the gap since the loop last ran, in seconds."""
    gap = now - alive
    recent = sum(each.seconds for each in stalls if now - each.ended <= RECENT_SECONDS)
    return recent + gap if gap > STALL_SECONDS else recent


def end_gap(stalls: tuple[Stall, ...], alive: float, now: float) -> tuple[tuple[Stall, ...], float]:
    """Return the stalls left when the loop runs again, and seconds by which every notice must move.

    These are 0 while the stalls are no outage; then they are the sum of all recent stalls, and none
    of them counts again.
    """
    gap = now - alive
    if gap <= STALL_SECONDS:
        return stalls, 0.0
    unread = unread_seconds(stalls, alive, now)
    if unread > OUTAGE_SECONDS:
        return NO_STALLS, unread
    recent = (each for each in stalls if now - each.ended <= RECENT_SECONDS)
    return (*recent, Stall(now, gap)), 0.0
