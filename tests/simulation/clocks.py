"""The machine's clocks, which may be set, the service's clock, and what is true of both.

The service sees a wall clock and a monotonic one. Here is known besides what it cannot know: how
much time guests really had to read in.
"""

from datetime import datetime, timedelta

import msgspec

from forewarn.clock import ManualClock
from forewarn.control.service_clock import ClockJumped, Served, ServiceClock
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
        """How much of that the service may count though it did not pass: small steps forward, and
        outages that are no matter."""
        self.jumped = False
        """Whether the process has seen that its wall clock jumped: it is about to end."""
        self._stands = False
        self.start_again(NONE, NONE)
        self.watch.open()

    def now(self) -> datetime:
        return self.watch.now()

    def may_start(self) -> bool:
        """Ask the watch of the service that runs now."""
        return self.watch.may_start()

    def listening(self) -> timedelta:
        """Ask the watch of the service that runs now."""
        return self.watch.listening()

    def forbidden(self) -> str:
        """Return why nothing may start now; `""` where it may."""
        if self._stands:
            return "guests cannot read"
        return "the wall clock has jumped" if self.jumped else ""

    def pass_by(self, time: timedelta) -> None:
        """Let time go by in which guests can read."""
        before = self.now()
        self._wall.advance(time)
        self.readable += time
        self.slack += max(NONE, self.now() - before - time)  # it follows a small step
        self.look()

    def look(self) -> None:
        """Let the event loop beat: what it owes from now on is `watch.owed`."""
        self._stands = False
        try:
            self.watch.beat()
        except ClockJumped:
            self.jumped = True

    def step(self, by: timedelta) -> None:
        """Set the wall clock, forward or back; the service has not looked at it yet."""
        self._wall.jump(by)

    def stand_still(self, time: timedelta) -> None:
        """Let time go by in which the whole process gets no turn: no guest can read."""
        assert time.total_seconds() > notice.OUTAGE_SECONDS
        before = self.now()
        self._wall.advance(time)
        self._real.advance(time)
        self.slack += max(NONE, self.now() - before - time)  # a small step is followed here, too
        self._stands = True

    def served(self) -> str:
        """Return what a heartbeat writes down."""
        return msgspec.json.encode(self.watch.served()).decode()

    def start_again(self, away: timedelta, step: timedelta) -> None:
        """Start a new process after the service was away; the wall clock was set meanwhile."""
        self._wall.advance(away)
        self._real.advance(away)
        self._wall.jump(step)
        self.watch = ServiceClock(self._wall, loop=self._real)
        self.jumped = self._stands = False

    def begin(self, kept: str | None) -> timedelta:
        """Return by how much every notice is to move, by what the last heartbeat wrote."""
        served = None if kept is None else msgspec.json.decode(kept, type=Served)
        owed = self.watch.begin(served)
        if not owed and served is not None:
            self.slack += max(NONE, self.now() - served.until)
        return owed
