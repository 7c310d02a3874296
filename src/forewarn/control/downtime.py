"""How long guests could not read: when the event loop ran in, how far notices move out; sans I/O.

Guests are answered on one event loop, so nobody could read while it stood still: the process was
stopped, or one callback held it up. A loop that runs is no outage however much guests make it do,
for each of them has its turns (`server.guest.limits`), and a turn is short. So what counts is the
time between two signs that the loop ran: a beat, or a turn of any guest.

Such a gap is a stall. Short ones add up: six of 4 s leave a notice of 30 s with 6 s to read it in.
All times are real seconds of the monotonic clock (docs/decisions/0007-time-and-outages.md).
"""

from typing import Final

import msgspec

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
    """Return for how long guests could not read lately, the gap up to now included.

    Args:
        stalls: For which no notice has moved yet; at most a few, for they add up to
            OUTAGE_SECONDS.
        alive: When the loop last ran.
        now: The present.
    """
    gap = now - alive
    recent = sum(each.seconds for each in stalls if now - each.ended <= WINDOW_SECONDS)
    return recent + gap if gap > STALL_SECONDS else recent


def end_gap(stalls: tuple[Stall, ...], alive: float, now: float) -> tuple[tuple[Stall, ...], float]:
    """Return the stalls after the loop has run again, and by how much every notice must move.

    Args:
        stalls: Those before, for which no notice has moved yet.
        alive: When the loop last ran.
        now: When it ran again.

    Returns:
        The stalls for which no notice moves yet; and seconds, 0 while they are no outage. What
        notices move by is the sum of all recent stalls, and none of them counts again.
    """
    gap = now - alive
    if gap <= STALL_SECONDS:
        return stalls, 0.0
    unread = unread_seconds(stalls, alive, now)
    if unread > OUTAGE_SECONDS:
        return NO_STALLS, unread
    recent = (each for each in stalls if now - each.ended <= WINDOW_SECONDS)
    return (*recent, Stall(now, gap)), 0.0
