"""This replica's row in the store, and the rows of the others that share it.

Every replica writes a row of its own every two seconds, without waiting for the writer, and reads
all of them. By these rows replicas share work, and tell an outage of all from one of their own
(docs/internals/decisions/0019). With the rows they share what they saw of machines. No replica
leads: `executor` claims tasks.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from forewarn.clock import Clock
from forewarn.control.outbox import Follower
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.model import Changes, Sighting, Sightings
from forewarn.store.port import Replica
from forewarn.store.queries import Reading
from forewarn.store.sql import Store

LIVE: Final = timedelta(seconds=7)
"""The greatest age of the row of a live replica: three beats and a second."""

LATE = timedelta(seconds=5)
"""The longest time from a beat's time of day to its commit: its sightings are read for so long."""

MISSED: Final = timedelta(minutes=1)
"""The silence of a replica after which there is an alert: its claims are others' by then."""

MISSED_FOR: Final = timedelta(days=1)
"""The duration of that alert: the replica may never come back, and nobody has to confirm that."""

BEATS: Final = 30
"""The number of beats, a minute, in which each machine that still asks is written again, well
within five minutes."""

Seen: TypeAlias = tuple[dict[str, Replica], dict[str, Sighting]]
"""The rows of replicas by name, and the sightings of machines by key."""

replace = msgspec.structs.replace


class SharedSightings:
    """The latest sighting of each machine by any replica: each writes its own, and reads the rest.

    A request to this process counts at once; one to another, as of that one's last beat. The event
    loop's thread reports requests and changes; any thread may ask. Each machine has its turn in so
    many calls of `news` (`beats`).
    """

    def __init__(self, own: Sightings, beats: int = BEATS) -> None:
        self._own = own
        self._beats = beats
        self._others: dict[str, Sighting] = {}
        self._relayed: dict[str, Sighting] = {}
        """Sightings that relays reported to this process."""
        self._saved: dict[str, datetime] = {}
        self._news: set[str] = set()
        self._removed: set[str] = set()
        """The machines that left the fleet since `news`, which rows read since then may have."""
        self._awaited: set[str] = set()
        """Machines whose next request is written at the beat after it."""
        self._due: Iterator[str] = iter(())
        """The machines that have not had their turn in this minute."""

    def __call__(self, machine: str) -> Sighting | None:
        """Return the latest sighting of a machine, by its key; None if no replica has one."""
        return _latest(self._here(machine), self._others.get(machine))

    def _here(self, machine: str) -> Sighting | None:
        return _latest(self._own(machine), self._relayed.get(machine))

    def relay(self, machine: str, seen: Sighting) -> None:
        """Note a sighting that the relay of a machine's host reported."""
        before = self._relayed.get(machine)
        after = self._relayed[machine] = _latest(before, seen) or seen
        if before is None or (before.agent, before.reason) != (after.agent, after.reason):
            self._news.add(machine)

    def hear(self, machine: str) -> None:
        """Note that a machine asked this process for the first time, or its agent said news."""
        self._news.add(machine)

    def await_again(self, machines: Iterable[str]) -> None:
        """Take the next request of each of these machines (keys) for news: they are awaited."""
        self._awaited.update(machines)

    def news(self) -> dict[str, Sighting]:
        """Return the sightings to write at this beat; they count as written from now on."""
        taken, self._news, self._removed = self._news, set(), set()
        taken.update(self._asked_since())
        again = {one for one in self._awaited if self._has_asked(one)}
        self._awaited -= again
        taken |= again
        # With what an agent said to another replica.
        found = {name: seen for name in taken if (seen := self(name)) is not None}
        self._saved |= {name: seen.asked_at for name, seen in found.items()}
        return found

    def _asked_since(self) -> Iterator[str]:
        turns = [*islice(self._due, len(self._saved) // self._beats + 1)]
        if not turns:
            self._due = iter([*self._saved])
        yield from filter(self._has_asked, turns)

    def _has_asked(self, machine: str) -> bool:
        own = self._here(machine)
        return own is not None and own.asked_at > self._saved.get(machine, own.asked_at)

    def keep(self, unsaved: Iterable[str]) -> None:
        """Take back sightings of machines (keys) that could not be written."""
        self._news.update(unsaved)

    def learn_others(self, found: Mapping[str, Sighting]) -> None:
        """Take over the rows of other replicas, as they were read after the last `news`."""
        self._others |= {name: found[name] for name in found.keys() - self._removed}

    def learn(self, changes: Changes) -> None:
        """Forget the machines that left the fleet."""
        self._removed.update(changes.removed_machines)
        for machine in changes.removed_machines:
            self._news.discard(machine)
            self._awaited.discard(machine)
            self._others.pop(machine, None)
            self._relayed.pop(machine, None)
            self._saved.pop(machine, None)


def _latest(one: Sighting | None, other: Sighting | None) -> Sighting | None:
    if one is None or other is None:
        return one or other
    earlier, later = (one, other) if one.asked_at < other.asked_at else (other, one)
    if later.agent is None and earlier.agent is not None:
        # A request without the header takes back nothing of what the agent said.
        return msgspec.structs.replace(later, agent=earlier.agent, reason=earlier.reason)
    return later


@dataclass(eq=False, repr=False)
class Replicas:
    """The rows of all replicas. Lives on the event loop's thread; the store is asked on others.

    Its StoreError is the caller's. `own` is this one's row, except for the fields that change with
    each beat; `follower` knows how far memory is.
    """

    store: Store
    own: Replica
    follower: Follower
    clock: ServiceClock
    wall: Clock
    _: KW_ONLY
    sightings: SharedSightings
    _read_to: datetime | None = None
    """By the database's clock: what was seen of machines is known up to here."""
    _rows: dict[str, Replica] = field(default_factory=dict)

    async def beat(self, *, serving: bool, stopped: bool = False) -> None:
        """Write this replica's row and its sightings of machines, and read those of all.

        A process that is alone writes only what it saw: its next start has to know who listens.
        """
        own = replace(
            self.own,
            beat_at=self.clock.at(),
            applied=self.follower.applied.sequence,
            behind_ms=round(self.follower.behind_seconds * 1000),
            serving=serving,
            stopped=stopped,
        )
        news = self.sightings.news()
        try:
            if self.store.shared:
                await self._share(own, news)
            elif news:
                await asyncio.to_thread(self.store.see, news, self.clock.now())
        except BaseException:
            self.sightings.keep(news)
            raise

    async def _share(self, own: Replica, news: Mapping[str, Sighting]) -> None:
        asked = self.clock.asking()
        at, rows, seen = await asyncio.to_thread(self._exchange, own, news)
        self.clock.tell(at, asked)
        self.sightings.learn_others(seen)
        self._read_to = at - LATE
        ahead = (self.wall.now() - at) / timedelta(milliseconds=1)
        self.own = replace(own, beat_at=at, clock_ahead_ms=round(ahead))
        self._rows = rows | {own.name: self.own}

    async def begin(self, ask: Callable[..., "Future[Seen]"]) -> tuple[Replica, ...]:
        """Read all rows, and the sightings of machines before this process's start."""
        rows, seen = await asyncio.wrap_future(ask(self._read))
        self.sightings.learn_others(seen)
        return tuple(rows.values())

    def _read(self, reading: Reading) -> Seen:
        return reading.replicas(), reading.sightings(self._read_to)

    def _exchange(
        self, own: Replica, news: Mapping[str, Sighting]
    ) -> tuple[datetime, dict[str, Replica], dict[str, Sighting]]:
        at = self.store.beat(own, news)
        with self.store.read() as reading:
            return at, *self._read(reading)

    def all(self) -> tuple[Replica, ...]:
        """Return the rows as of the last beat, this replica's among them, by name."""
        if not self.store.shared:
            applied = self.follower.applied.sequence
            return (replace(self.own, beat_at=self.clock.now(), applied=applied),)
        rows = self._rows or {self.own.name: self.own}
        return tuple(sorted(rows.values(), key=lambda row: row.name))

    def others(self) -> tuple[Replica, ...]:
        """Return the other replicas that lived at the last beat."""
        at = self.own.beat_at
        rows = (row for name, row in self._rows.items() if name != self.own.name)
        return tuple(row for row in rows if at - row.beat_at <= LIVE)

    def alerts(self) -> Iterator[Alert]:
        """Yield an alert for each replica that fell silent and was not stopped."""
        for row in self._rows.values():
            if not row.stopped and MISSED <= self.own.beat_at - row.beat_at < MISSED_FOR:
                message = "it has said nothing since, and was not stopped: start it again"
                about, since = f"replica {row.name}", self.clock.shown(row.beat_at)
                yield Alert(AlertKind.REPLICA_LOST, about, message, since)

    def live(self) -> int:
        """Return the number of replicas that lived at the last beat, this one included."""
        return 1 + len(self.others())
