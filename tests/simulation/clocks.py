"""The machine's clocks, which may be set, the service's watch over them, and what is true of both.

The service sees a wall clock and a monotonic one. Here is known besides what it cannot know: how
much time guests really had to read in, and whether the time of day is to be believed.
"""

from datetime import datetime, timedelta

import msgspec

from forewarn.clock import ManualClock
from forewarn.control.service_clock import TOLERANCE, Served, ServiceClock
from forewarn.maintenance import notice

NONE = timedelta(0)


class Clocks:
    """Time as it is, and as the service takes it."""

    def __init__(self, start: datetime) -> None:
        self._wall = ManualClock(start)
        self._real = ManualClock(start)
        """What heartbeats are apart by: it stands still but where the service does."""
        self.readable = NONE
        """How long guests could read, from the beginning."""
        self.slack = NONE
        """How much of that the service may count though it did not pass: small steps forward that
        it trusts, and outages that are no matter."""
        self._apart = NONE
        """How far the wall clock is ahead of what has been counted since both agreed."""
        self._told = False
        """Whether only an operator ends the doubt."""
        self._behind = False
        """Whether the clock was behind at the start: any time from the counted one on is right."""
        self._stands = False
        self._begin(None)
        self.watch.open()

    def now(self) -> datetime:
        return self.watch.now()

    def may_start(self) -> bool:
        """Ask the watch of the service that runs now."""
        return self.watch.may_start()

    @property
    def astray(self) -> bool:
        """Whether the time of day must not be believed."""
        if self._told:
            return True
        return self._apart < -TOLERANCE if self._behind else abs(self._apart) > TOLERANCE

    @property
    def apart(self) -> timedelta:
        return self._apart

    def forbidden(self) -> str:
        """Return why nothing may start now; `""` where it may."""
        if self._stands:
            return "guests cannot read"
        return "the clock is astray" if self.astray else ""

    def pass_by(self, time: timedelta) -> None:
        """Let time go by in which guests can read."""
        self._wall.advance(time)
        self.readable += time
        self.look()

    def look(self) -> None:
        """Let the event loop beat: what it owes from now on is `watch.owed`."""
        self._stands = False
        self.watch.beat()
        if not self.astray:
            self.slack += NONE if self._behind else max(NONE, self._apart)
            self._apart, self._behind = NONE, False

    def step(self, by: timedelta) -> None:
        """Set the wall clock, forward or back."""
        self._wall.jump(by)
        self._apart += by
        self.look()

    def believe(self) -> None:
        """An operator says that the wall clock is right."""
        self.watch.believe()
        self._apart, self._told, self._behind = NONE, False, False

    def stand_still(self, time: timedelta) -> None:
        """Let time go by in which the whole process gets no turn: no guest can read."""
        assert time.total_seconds() > notice.OUTAGE_SECONDS
        self._wall.advance(time)
        self._real.advance(time)
        self._stands = True

    def served(self) -> str:
        """Return what a heartbeat writes down."""
        return msgspec.json.encode(self.watch.served()).decode()

    def restart(self, kept: str | None, away: timedelta, step: timedelta) -> timedelta:
        """Start again from what was written down; return by how much every notice is to move.

        Args:
            kept: What the last heartbeat wrote.
            away: How long nothing served.
            step: By how much the wall clock was set meanwhile.
        """
        self._wall.advance(away)
        self._real.advance(away)
        self._wall.jump(step)
        return self._begin(None if kept is None else msgspec.json.decode(kept, type=Served))

    def _begin(self, served: Served | None) -> timedelta:
        self.watch = ServiceClock(self._wall, self._real)
        self._stands, self._told, self._apart = False, served is not None and served.doubted, NONE
        away = NONE if served is None else self._wall.now() - served.until
        self._behind = away < -TOLERANCE
        if self._behind:
            self._apart = away
        owed = self.watch.begin(served)
        if not owed:
            self.slack += max(NONE, away)
        return owed
