"""The service's time, and whether anything may start in it.

A `Watch` is the clock that the service goes by. It passes the wall clock on while that can be
trusted, and reckons the time of day while not (see `trust`). And it knows when guests could read:
the event loop that answers them beats, and after a beat that was long in coming nothing starts
until every notice has moved later by that time.
"""

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Final

import structlog

from forewarn.clock import Clock
from forewarn.control import trust
from forewarn.control.trust import Look, Trust
from forewarn.maintenance import notice
from forewarn.maintenance.alerts import ClockDoubt

OUTAGE_TOLERANCE: Final = timedelta(seconds=5)
"""The longest time in which guests could not read that is no matter: a client that polls once a
second misses a few answers, out of a notice of minutes (of 30 s at the least)."""

OUTAGE_SECONDS: Final = OUTAGE_TOLERANCE.total_seconds()

LOOK_SECONDS: Final = 0.05
"""The longest that reading both clocks may take, in real seconds; a thread may be put aside between
the two. Then they are read again."""

MAX_LOOKS: Final = 5
"""How often they are read again. A machine this busy may be doubted for a moment."""

_log = structlog.get_logger(__name__)


class Watch:
    """A clock that no jump of the time of day goes through, and a gate for what starts.

    Any thread may ask it; only the event loop's beats.

    Args:
        clock: The service's clock, which may be scaled.
        real: The machine's own: the loop lives in real time whatever the scale.
        scale: The service's seconds in a real one.
    """

    def __init__(self, clock: Clock, real: Clock, scale: float = 1.0) -> None:
        self._clock = clock
        self._real = real
        self._tolerance = trust.TOLERANCE * scale
        self._lock = threading.Lock()
        self._opened = False
        self._owed = timedelta(0)
        look = self._look()
        self._trust = trust.begin(look)
        self._beaten = real.monotonic()
        self._beaten_at = look.monotonic

    # The clock.

    @property
    def wall(self) -> Clock:
        """The clock beneath, jumps and all: for what must be quick and only shows the time."""
        return self._clock

    def now(self) -> datetime:
        """Return the time of day: the wall clock's while it is trusted, else as reckoned."""
        look = self._look()
        known = self._trust
        if known.since is None and abs(trust.parted(known, look)) <= self._tolerance:
            return look.wall
        with self._lock:
            self._judge(look)
            known = self._trust
        return look.wall if known.since is None else trust.reckoned(known, look.monotonic)

    def monotonic(self) -> float:
        """Return the clock's monotonic seconds."""
        return self._clock.monotonic()

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        """Wait in the clock's seconds."""
        await self._clock.wait(seconds, wake)

    # The gate.

    def may_start(self) -> bool:
        """Tell whether anything may start now: each transaction asks, so this makes no words."""
        self.now()
        return self._opened and self._trust.since is None and not self._owed and not self._held_up()

    def obstacles(self) -> tuple[str, ...]:
        """Return why nothing may start, in words for an operator; nothing when it may."""
        self.now()
        found: list[str] = []
        if not self._opened:
            found.append("nothing starts: guests cannot read yet")
        elif self._held_up():
            found.append("nothing starts: guests get no answer, the event loop is held up")
        if self._owed:
            found.append("nothing starts: every notice is still to move later by an outage")
        doubt = self.doubt()
        if doubt:
            found.append(doubt)
        return tuple(found)

    def doubt(self) -> str:
        """Return why the time of day is not trusted, in words; `""` when it is."""
        found = self.clock_doubt()
        return "" if found is None else found.message

    def clock_doubt(self) -> ClockDoubt | None:
        """Return the doubt as what an operator must know; None while the time is trusted."""
        known = self._trust
        if known.since is None:
            return None
        return ClockDoubt(_spoken(known, self._tolerance), known.since)

    # What guests could read.

    @property
    def owed(self) -> timedelta:
        """How much later every notice must move before anything starts again."""
        return self._owed

    def begin(self, until: datetime | None, *, doubted: bool) -> timedelta:
        """Start to count; return how long the service was away.

        Args:
            until: The last time that the service before wrote down, None at the first start.
            doubted: Whether it doubted the time of day then.
        """
        look = self._look()
        with self._lock:
            away = timedelta(0)
            self._trust = trust.begin(look)
            if until is not None:
                tolerance = self._tolerance
                self._trust, away = trust.resume(look, until, doubted=doubted, tolerance=tolerance)
            self._beaten, self._beaten_at = self._real.monotonic(), look.monotonic
            doubt = self.doubt()
        if doubt:
            _log.warning(doubt)
        return away

    def open(self) -> None:
        """Note that guests can read from now on."""
        self.beat()
        self._opened = True

    def beat(self) -> None:
        """Note that guests can read now; what time they could not for too long is owed them."""
        look = self._look()
        real = self._real.monotonic()
        with self._lock:
            if real - self._beaten > OUTAGE_SECONDS:
                length = timedelta(seconds=look.monotonic - self._beaten_at)
                self._owed += length
                _log.warning("guests got no answer", seconds=round(length.total_seconds(), 1))
            self._beaten, self._beaten_at = real, look.monotonic
            self._judge(look)

    def pay(self, length: timedelta) -> None:
        """Note that every notice has moved later by this."""
        with self._lock:
            self._owed -= length

    def believe(self) -> None:
        """Take the wall clock for right, by an operator's word; what it is ahead is owed."""
        look = self._look()
        with self._lock:
            self._judge(look)
            if self._trust.since is not None:
                ahead = self._trust.ahead
                self._trust, owed = trust.believe(self._trust, look)
                self._owed += owed
                _log.warning("the clock is trusted by an operator", ahead=ahead.total_seconds())

    def _held_up(self) -> bool:
        """Tell whether the event loop has not beaten for so long that guests get no answer."""
        return self._real.monotonic() - self._beaten > OUTAGE_SECONDS

    def _judge(self, look: Look) -> None:
        """Look again; the lock is held."""
        before: Trust = self._trust
        self._trust, owed = trust.judge(before, look, self._tolerance)
        self._owed += owed
        if before.since is None and self._trust.since is not None:
            _log.warning(self.doubt())
        elif before.since is not None and self._trust.since is None:
            _log.info("the clocks agree again", since=before.since.isoformat())

    def _look(self) -> Look:
        """Read both clocks as one, or as near to it as this machine lets us."""
        left = MAX_LOOKS
        while True:
            left -= 1
            began = self._real.monotonic()
            look = Look(self._clock.now(), self._clock.monotonic())
            if self._real.monotonic() - began <= LOOK_SECONDS or not left:
                return look


def _spoken(known: Trust, tolerance: timedelta) -> str:
    """Return why the time of day is not trusted, and what to do."""
    assert known.since is not None
    seconds = known.ahead.total_seconds()
    way = "ahead of" if seconds >= 0 else "behind"
    apart = f"{abs(seconds):.0f} s {way} what the monotonic clock counts"
    if known.until_told and abs(known.ahead) <= tolerance:
        apart = "doubted since before the last start"
    return (
        f"nothing starts: the wall clock is {apart}, since {notice.spoken(known.since)}; set it "
        "right, or say 'forewarn clock trust' if it is right as it is"
    )
