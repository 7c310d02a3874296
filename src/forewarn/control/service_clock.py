"""The service's clock: the time, the permission to start anything, and guests' outages.

The service's time is the wall clock's at the start, carried on by the monotonic clock. It follows
small corrections of the wall clock. If the wall clock jumps, one of its two times was wrong, and no
process can know which: it ends (`ClockJumped`), and the next start treats the interval as any time
that the service was away (docs/internals/decisions/0007). So every NotBefore, lease and record of
one process lies on one line of time.

A `ServiceClock` also knows when guests could read: when the event loop that answers them stood
still for too long (`notice.end_gap`) nothing starts until every notice has moved later by that time
(`heartbeat.Heartbeat`).
"""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.maintenance import notice
from forewarn.maintenance.model import LISTENING
from forewarn.store.port import JUMP, StoreUnavailable

SLEW: Final = 0.02
"""The relative speed, above or below the monotonic clock, at which the time approaches the wall
clock's."""

_log = structlog.get_logger(__name__)


class ClockJumped(StoreUnavailable):
    """The wall clock jumped: the process ends, and nothing is decided by either of its times."""


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The record that one start of the service leaves to the next."""

    until: datetime
    """The last time at which guests are known to have been able to read."""
    unread_seconds: float = 0.0
    """The length of its recent stalls for which no notice has moved, in the service's seconds."""


class ClockScale(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of the service's clock: `scale` seconds in a real one.

    Both showed `origin` once; a scale of 1 shows the wall clock's time.
    """

    scale: float = 1.0
    origin: datetime = datetime(1970, 1, 1, tzinfo=UTC)


class ServiceClock:
    """A clock that never jumps or goes back, and a gate for starts.

    Any thread may ask it; only the event loop's thread beats and reports guests' turns.

    Args:
        real: The machine's clocks; its wall clock is the service's unless `at` is given.
        at: The time of day now, where another machine's wall clock counts, such as the database's;
            `tell` passes its later times.
        pace: Its speed; at the real pace, and as the wall clock does, by default.
        loop: The clock by which the event loop runs; the machine's, but in tests.
    """

    def __init__(
        self,
        real: Clock,
        *,
        at: datetime | None = None,
        pace: ClockScale = ClockScale(),  # noqa: B008 - it is frozen
        loop: Clock | None = None,
    ) -> None:
        self._real = real
        self._loop = loop or real
        self._pace = pace
        self._is_told = at is not None
        self._told = (at or real.now(), real.monotonic(), timedelta(0))
        """The time, at which monotonic one, and how far the wall clock was ahead of it then."""
        self._jump = ""
        """The difference from the wall clock, in words; `""` without one."""
        self._lock = threading.Lock()
        self._opened = False
        self._owed = timedelta(0)
        self._alive = self._loop.monotonic()
        """When the event loop last ran, in real seconds."""
        self._stalls = notice.NO_STALLS
        self._away = timedelta(0)
        """The length of the latest outage of guests, which ended at `_back_at`."""
        self._back_at = self._alive

    # The clock.

    def now(self) -> datetime:
        """Return the time of day; it never goes back."""
        return self.shown(self.at())

    def at(self) -> datetime:
        """Return the wall clock's time by which `now` goes: the same, unless it is scaled."""
        return self._reckoned(self._real.monotonic())

    def shown(self, at: datetime) -> datetime:
        """Return this clock's time at a time of the wall clock."""
        pace = self._pace
        return at if pace.scale == 1.0 else pace.origin + (at - pace.origin) * pace.scale

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds, in this clock's."""
        return self._real.monotonic() * self._pace.scale

    async def wait(self, seconds: float, wake: asyncio.Event | None = None) -> None:
        """Wait in this clock's seconds."""
        await self._real.wait(seconds / self._pace.scale, wake)

    def asking(self) -> float:
        """Return the time of a question to another clock, for `tell`."""
        return self._real.monotonic()

    def tell(self, at: datetime, asked: float) -> datetime:
        """Compare with the time that the wall clock showed between `asking` and now.

        Returns:
            This clock's time at that time.

        Raises:
            ClockJumped: It has parted from the monotonic clock.
        """
        with self._lock:
            monotonic = self._real.monotonic()
            if at > (latest := self._reckoned(monotonic)):
                ahead = at - latest
            else:
                ahead = min(timedelta(0), at - self._reckoned(asked))
            if abs(ahead) > JUMP:
                self._jump = self._jump or _spoken(ahead)
            else:
                self._told = (latest, monotonic, ahead)
        if self._jump:
            raise ClockJumped(self._jump)
        return self.shown(at)

    def look(self) -> None:
        """Look at the machine's wall clock, where it counts.

        Raises:
            ClockJumped: The wall clock that counts has jumped since the start.
        """
        if not self._is_told:
            asked = self.asking()
            self.tell(self._real.now(), asked)
        elif self._jump:
            raise ClockJumped(self._jump)

    def _reckoned(self, monotonic: float) -> datetime:
        at, since, ahead = self._told
        passed = monotonic - since
        slewed = timedelta(seconds=max(0.0, passed) * SLEW)
        return at + timedelta(seconds=passed) + max(-slewed, min(slewed, ahead))

    # The gate.

    def may_start(self) -> bool:
        """Return True if anything may start now: each transaction asks, so no message is made."""
        with self._lock:  # a beat that comes late leaves time owed and is no hold-up any more
            return self._opened and not self._jump and not self._owed and not self._held_up()

    def listening(self) -> timedelta:
        """Return the time within which a listening machine must have asked, without outages."""
        up = timedelta(seconds=(self._loop.monotonic() - self._back_at) * self._pace.scale)
        return LISTENING + (self._away if up < LISTENING else timedelta(0))

    def obstacles(self) -> tuple[str, ...]:
        """Return the reasons why nothing may start, in words for an operator."""
        found: list[str] = []
        if not self._opened:
            found.append("starts are paused: guests cannot read yet")
        elif self._held_up():
            found.append("starts are paused: guests get no answer, the event loop is held up")
        if self._owed:
            found.append("starts are paused while notices are extended after an outage")
        if self._jump:
            found.append(self._jump)
        return tuple(found)

    # What guests could read.

    @property
    def owed(self) -> timedelta:
        """The time by which every notice must move later before anything starts again."""
        return self._owed

    def begin(self, served: Served | None) -> timedelta:
        """Start to count from the record of the last start; return the time owed to notices.

        A clock that was set forward meanwhile makes the time away longer than it was, which
        lengthens notice; one that was set back makes it none (`Plane.set_back`).
        """
        now = self.now()
        with self._lock:
            self._back_at = running = ended = self._alive = self._loop.monotonic()
            before = notice.NO_STALLS
            if served is not None:
                self._away = max(timedelta(0), now - served.until)
                ended -= self._away.total_seconds() / self._pace.scale
                if served.unread_seconds:
                    before = (notice.Stall(ended, served.unread_seconds / self._pace.scale),)
            # That the service was away is one more stall.
            self._stalls, owed = notice.end_gap(before, ended, running)
        return timedelta(seconds=owed * self._pace.scale)

    def open(self) -> None:
        """Note that guests can read from now on."""
        self.beat()
        self._opened = True

    def beat(self) -> None:
        """Note that guests can read now; too long a time for which they could not is owed to them.

        Raises:
            ClockJumped: The wall clock has jumped.
        """
        real = self._loop.monotonic()
        with self._lock:
            self._run_again(real)
        self.look()

    def turn(self, now: float) -> None:
        """Note that the event loop gives a guest its turn now (in real seconds), and so runs.

        Guests can keep it so busy that beats are late, though it did not stand still.
        """
        if now - self._alive <= notice.STALL_SECONDS:
            self._alive = now
            return
        with self._lock:
            self._run_again(now)

    def served(self) -> Served:
        """Return the record for the next start."""
        until = self.now()
        with self._lock:
            unread = notice.unread_seconds(self._stalls, self._alive, self._alive)
        return Served(until=until, unread_seconds=unread * self._pace.scale)

    def pay(self, length: timedelta) -> None:
        """Note that every notice has moved later by this."""
        with self._lock:
            self._owed -= length

    def _held_up(self) -> bool:
        now = self._loop.monotonic()
        unread = notice.unread_seconds(self._stalls, self._alive, now)
        return unread > notice.OUTAGE_SECONDS

    def _run_again(self, now: float) -> None:
        """Note that the event loop runs; the lock is held."""
        gap = now - self._alive
        self._stalls, owed = notice.end_gap(self._stalls, self._alive, now)
        self._alive = now
        if owed:
            self._back_at, self._away = now, timedelta(seconds=owed * self._pace.scale)
            self._owed += self._away
        if gap > notice.STALL_SECONDS:
            _log.warning("guests got no answer", seconds=round(gap * self._pace.scale, 1))


def _spoken(ahead: timedelta) -> str:
    seconds = ahead.total_seconds()
    way = "ahead of" if seconds > 0 else "behind"
    return (
        f"the wall clock has jumped: it is {abs(seconds):.1f} s {way} what the monotonic clock "
        "counts; the service ends, and its next start treats that as time in which it was away"
    )
