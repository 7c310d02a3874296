"""Whether the time of day can be trusted: observations in, a verdict out; sans I/O.

The wall clock tells the time of day and may be set; the monotonic one only counts. While both
count alike, the time of day is the wall clock's. If they part, nobody knows which of its two times
was right, and the time of day is reckoned: the last on which they agreed, and what the monotonic
clock has counted since. So every NotBefore, lease and record stays on one line of time, and none of
them meets the jump until somebody has judged it (docs/decisions/0007-time-and-outages.md).
"""

from datetime import datetime, timedelta

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


def begin(look: Look) -> Trust:
    """Return the trust of a first start."""
    return Trust(agreed=look)


def resume(
    look: Look, until: datetime, *, doubted: bool, tolerance: timedelta = TOLERANCE
) -> tuple[Trust, timedelta]:
    """Return the trust of a start after another, and how long the service was away.

    Args:
        look: The clocks now.
        until: The last time that the service before wrote down.
        doubted: Whether it doubted the time of day; that goes on until an operator ends it.
        tolerance: How far the clocks may part.

    Returns:
        The trust, and the wall clock's time since `until`, not negative. A clock that was set
        forward meanwhile makes it longer than it was, which lengthens notice and never shortens it.
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
    """Return the trust after an operator's word that the wall clock is right.

    Returns:
        The trust, and by how much every notice must move later: as far as the wall clock is
        ahead, for that time did not pass. One that is behind moves nothing: what guests have
        read as NotBefore is a promise, and never comes earlier.
    """
    return Trust(agreed=look), max(timedelta(0), parted(trust, look))
