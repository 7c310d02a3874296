"""Whether the time of day can be trusted, and how long guests could not read; sans I/O.

The wall clock tells the time of day and may be set; the monotonic one only counts. While both
count alike, the time of day is the wall clock's. If they part, nobody knows which of its two times
was right, and the time of day is reckoned: the last on which they agreed, and what the monotonic
clock has counted since. So every NotBefore, lease and record stays on one line of time, and none of
them meets the jump until somebody has judged it (docs/decisions/0007-time-and-outages.md).
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

TOLERANCE = timedelta(seconds=2)
"""How far the clocks may part between two looks: NTP steps what it cannot slew (over 0.128 s), and
a leap second is 1 s."""

replace = msgspec.structs.replace


class Look(msgspec.Struct, frozen=True):
    """Both clocks at one instant."""

    wall: datetime
    monotonic: float


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the clocks."""

    agreed: Look
    """When they last agreed; the time of day is reckoned from here while they do not."""
    since: datetime | None = None
    """Since when the time of day is doubted, as it is reckoned; None while it is trusted."""
    ahead: timedelta = timedelta(0)
    """How far the wall clock was ahead of the reckoning at the last look; negative: behind."""
    until_told: bool = False
    """The doubt is older than this process: what the clocks say to each other cannot end it."""
    lower_bound: bool = False
    """At the start the wall clock was behind the last time written down. How long the service was
    away nobody knows, so any time from the reckoned one on ends the doubt."""


def resume(
    look: Look, until: datetime, *, doubted: bool, tolerance: timedelta = TOLERANCE
) -> tuple[Trust, timedelta]:
    """Return the trust of a start after another, and how long the service was away.

    `until` is the last time that the service before wrote down. If it doubted the time of day, that
    goes on until an operator ends it. A clock that was set forward meanwhile makes the time away
    longer than it was, which lengthens notice and never shortens it.
    """
    if look.wall < until - tolerance:
        reckoned = Look(until, look.monotonic)
        ahead = look.wall - until
        trust = Trust(
            agreed=reckoned, since=until, ahead=ahead, until_told=doubted, lower_bound=not doubted
        )
        return trust, timedelta(0)
    away = max(timedelta(0), look.wall - until)
    return Trust(agreed=look, since=look.wall if doubted else None, until_told=doubted), away


def reckoned(trust: Trust, monotonic: float) -> datetime:
    """Return the time of day that follows from the monotonic clock alone."""
    return trust.agreed.wall + timedelta(seconds=monotonic - trust.agreed.monotonic)


def parted(trust: Trust, look: Look) -> timedelta:
    """Return how far the wall clock is ahead of the reckoning; negative: behind."""
    return look.wall - reckoned(trust, look.monotonic)


def judge(trust: Trust, look: Look, tolerance: timedelta = TOLERANCE) -> tuple[Trust, timedelta]:
    """Return what is known after a look, and by how much every notice must move later.

    That is 0 but for a clock that was behind at the start and has come right since.
    """
    ahead = parted(trust, look)
    agree = abs(ahead) <= tolerance or (trust.lower_bound and ahead > tolerance)
    if agree and not trust.until_told:
        return Trust(agreed=look), max(timedelta(0), ahead) if trust.lower_bound else timedelta(0)
    since = trust.since
    if since is None:
        since = reckoned(trust, look.monotonic)
    return replace(trust, since=since, ahead=ahead), timedelta(0)


def believe(trust: Trust, look: Look) -> tuple[Trust, timedelta]:
    """Return the trust after an operator's word that the wall clock is right, and what is owed.

    Every notice moves later as far as the wall clock is ahead, for that time did not pass. One that
    is behind moves nothing: what guests have read as NotBefore is a promise.
    """
    return Trust(agreed=look), max(timedelta(0), parted(trust, look))


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

WINDOW_SECONDS: Final = 900.0
"""Stalls this far apart do not add up: the longest notice that the protocol knows is 15 minutes."""


class Stall(msgspec.Struct, frozen=True):
    """A gap in which guests could not read, for which no notice has moved yet."""

    ended: float
    seconds: float


NO_STALLS: Final[tuple[Stall, ...]] = ()


def unread_seconds(stalls: tuple[Stall, ...], alive: float, now: float) -> float:
    """Return for how long guests could not read lately, the gap since the loop ran included."""
    gap = now - alive
    recent = sum(each.seconds for each in stalls if now - each.ended <= WINDOW_SECONDS)
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
    recent = (each for each in stalls if now - each.ended <= WINDOW_SECONDS)
    return (*recent, Stall(now, gap)), 0.0
