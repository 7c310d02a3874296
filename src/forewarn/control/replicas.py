"""What this replica says of itself, and what it knows of the others that share the store.

Every replica writes a row of its own every two seconds, without waiting for whoever writes, and
reads all of them. By these rows replicas share work, tell an outage of all from one of their own,
and tell a bad clock of their own from one of the database (docs/decisions/0019-equal-replicas.md).
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from forewarn.clock import Clock
from forewarn.control.follower import Follower
from forewarn.control.sightings import SharedSightings
from forewarn.store.port import Replica, SeenMachine, Store

LIVE: Final = timedelta(seconds=7)
"""How old the row of a replica that lives may be: three beats and a second."""

LATE = timedelta(seconds=5)
"""How long a beat may take from its time of day to its commit: what it wrote is read so long."""

FORGOTTEN = timedelta(days=7)
"""How old a row that is still shown may be: long enough to notice that the replica is gone."""

replace = msgspec.structs.replace


class DatabaseClock:
    """The database's time of day, carried on by the machine's monotonic clock.

    What the machine's own wall clock shows does not matter: replicas whose clocks differ would move
    one another's notices. Any thread may tell and ask it. It may run `scale` times as fast, from
    when the database's clock showed `origin`.
    """

    def __init__(
        self, real: Clock, at: datetime, *, scale: float = 1.0, origin: datetime | None = None
    ) -> None:
        self.wall = self._real = real
        """The machine's own clock."""
        self._scale = scale
        self._origin = at if origin is None else origin
        self._told = at, real.monotonic()

    def tell(self, at: datetime) -> datetime:
        """Take over what the database's clock shows now; return what this one shows then."""
        if abs(at - self._at()) > DRIFT:  # less is the way from there to here
            self._told = at, self._real.monotonic()
        return self.shown(at)

    def shown(self, at: datetime) -> datetime:
        """Return what this clock shows at the database's time."""
        return self._origin + (at - self._origin) * self._scale

    def now(self) -> datetime:
        """Return the time of day, as it was told last and as time has passed since."""
        return self.shown(self._at())

    def monotonic(self) -> float:
        """Return the machine's monotonic seconds, in this clock's."""
        return self._real.monotonic() * self._scale

    async def wait(self, seconds: float, wake: asyncio.Event) -> None:
        """Wait in this clock's seconds."""
        await self._real.wait(seconds / self._scale, wake)

    def _at(self) -> datetime:
        at, monotonic = self._told
        return at + timedelta(seconds=self._real.monotonic() - monotonic)


DRIFT: Final = timedelta(milliseconds=100)
"""What the database's time and ours may differ by before ours follows: most of it is the time that
a statement takes."""


class Replicas:
    """The rows of all replicas. Lives on the event loop's thread; the store is asked on others.

    Args:
        store: Where the rows are, if it is shared.
        own: What this replica says of itself, but for what changes with each beat.
        follower: Knows how far memory is.
        clock: The service's clock.
        database: The database's clock, if it has one.
        sightings: What is written and read with the rows.
    """

    def __init__(
        self,
        store: Store,
        own: Replica,
        follower: Follower,
        clock: Clock,
        database: DatabaseClock,
        *,
        sightings: SharedSightings,
    ) -> None:
        self._sightings = sightings
        self._read_to: datetime | None = None
        """By the database's clock: what was seen of machines is known up to here."""
        self._store = store
        self.own = own
        self._follower = follower
        self._clock = clock
        self._database = database
        self.shown = database.shown
        self._rows: dict[str, Replica] = {}

    @property
    def shared(self) -> bool:
        """Whether other replicas may share the store."""
        return self._store.shared

    async def beat(self, *, serving: bool, doubts_clock: bool = False) -> None:
        """Write this replica's row, and read all of them.

        Raises:
            StoreError: The store cannot be written or read now.
        """
        if not self.shared:
            return
        own = replace(
            self.own,
            beat_at=self._clock.now(),
            applied=self._follower.applied.sequence,
            behind_ms=round(self.behind_seconds * 1000),
            serving=serving,
            doubts_clock=doubts_clock,
        )
        news = self._sightings.news()
        try:
            at, rows, seen = await asyncio.to_thread(self._exchange, own, news)
        except BaseException:
            self._sightings.keep(news)
            raise
        self._database.tell(at)
        self._sightings.learn_others(seen)
        self._read_to = at - LATE
        ahead = (self._database.wall.now() - at) / timedelta(milliseconds=1)
        self.own = replace(own, beat_at=at, clock_ahead_ms=round(ahead))
        self._rows = rows | {own.name: self.own}

    async def look(self) -> tuple[Replica, ...]:
        """Read all rows."""
        rows = await asyncio.to_thread(self._read)
        return tuple(rows.values())

    def _read(self) -> dict[str, Replica]:
        with self._store.read() as reading:
            return reading.replicas()

    def _exchange(
        self, own: Replica, news: Iterable[SeenMachine]
    ) -> tuple[datetime, dict[str, Replica], dict[str, SeenMachine]]:
        at = self._store.beat(own, news)
        with self._store.read() as reading:
            return at, reading.replicas(), reading.sightings(self._read_to)

    def all(self) -> tuple[Replica, ...]:
        """Return the rows as of the last beat, this replica's among them, by name."""
        if not self.shared:
            return (
                replace(
                    self.own,
                    beat_at=self._clock.now(),
                    applied=self._follower.applied.sequence,
                ),
            )
        rows = self._rows or {self.own.name: self.own}
        newest = max(row.beat_at for row in rows.values())
        shown = (row for row in rows.values() if newest - row.beat_at < FORGOTTEN)
        return tuple(sorted(shown, key=lambda row: row.name))

    @property
    def behind_seconds(self) -> float:
        """How long ago this replica last knew every change; 0 where it is alone."""
        return self._follower.behind_seconds

    def others(self) -> tuple[Replica, ...]:
        """Return the other replicas that lived at the last beat."""
        at = self.own.beat_at
        rows = (row for name, row in self._rows.items() if name != self.own.name)
        return tuple(row for row in rows if at - row.beat_at <= LIVE)

    def live(self) -> int:
        """Return how many replicas lived at the last beat, this one included."""
        return 1 + len(self.others())
