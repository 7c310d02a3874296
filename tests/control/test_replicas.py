"""Replicas' rows: an outage of one is none of all, and one bad clock is one replica's alone."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec
import pytest

from builders import FLEET, MINUTE, NOW, SECOND, mint
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.outbox import Follower
from forewarn.control.plane import Plane
from forewarn.control.replicas import (
    LIVE,
    MISSED,
    MISSED_FOR,
    DatabaseClock,
    Replicas,
    SharedSightings,
)
from forewarn.control.service_clock import AGREE_SECONDS, Heartbeat, ServiceClock
from forewarn.control.writer import InlineWriter
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.model import Policy, Sighting, unseen
from forewarn.maintenance.planner import Request
from forewarn.store.memory import MemoryStore
from forewarn.store.port import Replica, SeenMachine, StoreUnavailable
from forewarn.vocabulary import EventType


class Database(MemoryStore):
    """A store with a clock of its own."""

    def __init__(self, time: ManualClock) -> None:
        super().__init__(shared=True)
        self._time = time
        self.on_beat: Callable[[], None] = lambda: None
        """Called once, when the next beat is on its way."""

    def beat(self, replica: Replica, seen: Iterable[SeenMachine] = ()) -> datetime:
        on_beat, self.on_beat = self.on_beat, lambda: None
        on_beat()
        now = self._time.now()
        beat_at = min(now, replica.beat_at)
        super().beat(msgspec.structs.replace(replica, beat_at=beat_at), seen)
        return now


class Town:
    """One store, one time that passes for all, and a database's clock that may jump."""

    def __init__(self) -> None:
        self.time = ManualClock(NOW)
        self.store = Database(self.time)

    def not_before(self) -> timedelta:
        """How long after the beginning the operation starts."""
        with self.store.read() as reading:
            return reading.operations(["1.1"])["1.1"].not_before - NOW


class Process:
    """One start of a replica: its clocks and its heartbeat."""

    def __init__(self, town: Town, name: str) -> None:
        self.town = town
        self.real = ManualClock(NOW)
        self.real.advance(town.time.now() - NOW)
        self.database = DatabaseClock(self.real, town.time.now())
        self.watch = ServiceClock(self.database, self.real)
        feed = Changefeed()
        follower = Follower(town.store, feed, self.real, replica=name, mint=mint(name))
        writer = InlineWriter(town.store, self.watch, feed, follower)
        self.plane = Plane(writer, mint(name), may_start=self.watch.may_start)
        own = Replica(name=name, process="1", version="1", started_at=NOW, beat_at=NOW)
        self.seen: dict[str, Sighting] = {}
        self.sightings = SharedSightings(self.seen.get)
        self.sightings.set_back_own = self._set_back
        self.replicas = Replicas(
            town.store, own, follower, self.watch, self.database, sightings=self.sightings
        )
        self.serving = False
        self.heartbeat = Heartbeat(
            self.plane, self.watch, self.real, self.replicas, serves=lambda: self.serving
        )
        asyncio.run(self.heartbeat.begin())
        self.serving = True
        self.watch.open()
        self.beat()

    def _set_back(self, now: datetime) -> None:
        for machine, sight in self.seen.items():
            self.seen[machine] = msgspec.structs.replace(sight, asked_at=min(now, sight.asked_at))

    def sees(self, machine: str) -> None:
        """Let a machine ask this replica."""
        self.seen[machine] = Sighting(asked_at=self.watch.now(), version="2020-07-01")
        self.sightings.hear(machine)

    def beat(self) -> None:
        """Beat as `run` does."""
        self.watch.beat()
        asyncio.run(self.heartbeat._save())


def passes(town: Town, time: timedelta, *processes: Process) -> None:
    """Let time pass; only these processes run in it."""
    until = town.time.now() + time
    while town.time.now() < until:
        step = min(SECOND / 2, until - town.time.now())
        town.time.advance(step)
        for process in processes:
            process.real.advance(step)
            process.beat()


def stalled(time: timedelta, *processes: Process) -> None:
    """Let time pass for processes that did not run in it."""
    for process in processes:
        process.real.advance(time)


@pytest.fixture
def town() -> Town:
    made = Town()
    first = Process(made, "first")
    first.plane.apply_fleet(FLEET).result()
    request = Request(event_type=EventType.REBOOT, machines=("web-0",))
    first.plane.request(request).result()
    assert made.not_before() == 15 * MINUTE
    return made


def test_a_replica_that_was_away_moves_nothing_where_another_lived(town: Town) -> None:
    first = Process(town, "first")
    passes(town, 10 * MINUTE, first)
    second = Process(town, "second")
    assert town.not_before() == 15 * MINUTE
    assert [row.name for row in second.replicas.all()] == ["first", "second"]
    assert second.replicas.live() == 2


def test_an_outage_of_all_replicas_counts_once_and_from_the_latest_beat(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first, second)
    passes(town, MINUTE, second)
    town.time.advance(10 * MINUTE)
    Process(town, "first")
    assert town.not_before() == 25 * MINUTE
    Process(town, "second")
    assert town.not_before() == 25 * MINUTE


def test_a_stall_of_one_replica_moves_nothing(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first)
    stalled(MINUTE, second)
    second.beat()
    assert town.not_before() == 15 * MINUTE
    assert second.watch.owed == timedelta(0)
    assert second.watch.may_start()


def test_a_stall_of_all_replicas_counts_once(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first, second)
    town.time.advance(3 * MINUTE)
    stalled(3 * MINUTE, first, second)
    first.beat()
    second.beat()
    assert 18 * MINUTE <= town.not_before() <= 18 * MINUTE + 3 * SECOND


def test_a_stall_of_all_replicas_amid_their_beats_counts_too(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    before = town.not_before()

    def stall() -> None:
        for clock in (town.time, first.real, second.real):
            clock.advance(MINUTE)

    town.store.on_beat = stall
    first.beat()
    second.beat()
    passes(town, 3 * SECOND, first, second)
    assert before + MINUTE <= town.not_before() <= before + MINUTE + 3 * SECOND


def test_a_replica_whose_guests_cannot_read_is_no_replica_that_lives(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first, second)
    second.serving = False
    town.time.advance(3 * MINUTE)
    stalled(3 * MINUTE, second)
    asyncio.run(second.heartbeat._save())
    stalled(3 * MINUTE, first)
    first.beat()
    assert town.not_before() >= 18 * MINUTE


def test_a_replicas_own_wall_clock_moves_nothing(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    second.real.jump(20 * MINUTE)
    passes(town, MINUTE, first, second)
    assert second.watch.now() == first.watch.now() == town.time.now()
    assert (first.watch.clock_doubt(), second.watch.clock_doubt()) == (None, None)
    rows = {row.name: row for row in first.replicas.all()}
    assert rows["second"].clock_ahead_ms == 1_200_000
    assert Process(town, "third").watch.clock_doubt() is None
    assert town.not_before() == 15 * MINUTE


def test_a_replica_that_slept_trusts_the_clock_again_as_the_others_do(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first)  # the second's monotonic clock stood still meanwhile
    second.beat()
    assert second.heartbeat.clock_doubt() is not None
    assert not second.watch.may_start()
    assert first.watch.clock_doubt() is None
    passes(town, timedelta(seconds=AGREE_SECONDS + 4), first, second)
    assert second.watch.clock_doubt() is None
    assert second.watch.may_start()
    assert town.not_before() == 15 * MINUTE


def test_where_the_databases_clock_jumps_all_doubt_it_until_an_operator_says_so(
    town: Town,
) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first, second)
    town.time.jump(10 * MINUTE)
    passes(town, MINUTE, first, second)
    assert None not in {first.watch.clock_doubt(), second.watch.clock_doubt()}
    asyncio.run(first.heartbeat.believe())
    assert town.not_before() == 25 * MINUTE
    passes(town, timedelta(seconds=AGREE_SECONDS + 4), first, second)
    assert second.watch.clock_doubt() is None
    assert town.not_before() == 25 * MINUTE


def test_once_a_clock_set_back_is_trusted_no_replica_knows_a_request_later_than_now(
    town: Town,
) -> None:
    town.time.advance(20 * MINUTE)
    first, second = Process(town, "first"), Process(town, "second")
    first.sees("web-0")
    passes(town, MINUTE, first, second)
    town.time.jump(-10 * MINUTE)
    passes(town, MINUTE, first, second)
    second.sees("web-0")
    second.sees("web-1")
    passes(town, 4 * SECOND, first, second)
    asyncio.run(first.heartbeat.believe())
    second.sees("web-0")
    trusted = town.time.now()
    for _ in range(10):
        passes(town, SECOND, first, second)
        assert all(seen.asked_at <= trusted for seen in known(first))
    for process in (first, second, Process(town, "third")):
        assert len(known(process)) == 2
        assert all(seen.asked_at <= trusted + 10 * SECOND for seen in known(process))
    assert first.watch.may_start()
    assert second.watch.may_start()
    second.sees("web-1")
    passes(town, 4 * SECOND, first, second)
    assert first.sightings("web-1") == second.seen["web-1"]


def known(process: Process) -> list[Sighting]:
    return [s for name in ("web-0", "web-1") if (s := process.sightings(name)) is not None]


def test_a_row_that_is_too_old_is_no_replica_that_lives(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, LIVE - SECOND, second)
    assert second.replicas.live() == 2
    passes(town, 2 * SECOND, second)
    assert second.replicas.live() == 1
    assert first.replicas.live() == 1  # it has not read the second's row yet


@pytest.mark.parametrize("stops", [False, True])
def test_a_replica_that_falls_silent_is_an_alert_unless_it_was_stopped(
    town: Town, *, stops: bool
) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    last = town.time.now()
    if stops:
        first.heartbeat.stop()
        asyncio.run(first.heartbeat.run())
    passes(town, MISSED - SECOND, second)
    assert [*second.replicas.alerts()] == []
    passes(town, SECOND, second)
    told = [(one.kind, one.about, one.since) for one in second.replicas.alerts()]
    assert told == ([] if stops else [(AlertKind.REPLICA_LOST, "replica first", last)])
    passes(town, SECOND, Process(town, "first"), second)
    assert [*second.replicas.alerts()] == []
    second.town.time.advance(MISSED_FOR)
    second.beat()
    assert [*second.replicas.alerts()] == []


class Blind(MemoryStore):
    """A store that takes nothing that was seen of machines."""

    def see(self, seen: Iterable[SeenMachine], at: datetime) -> None:
        raise StoreUnavailable("the disk is full")


def test_an_outage_counts_once_though_what_was_seen_cannot_be_written() -> None:
    clock, store, feed = ManualClock(NOW), Blind(), Changefeed()
    watch = ServiceClock(clock, clock)
    plane = Plane(InlineWriter(store, watch, feed), mint("b"), Policy())
    plane.apply_fleet(FLEET).result()
    plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))).result()
    sightings = SharedSightings(lambda _: Sighting(asked_at=NOW, version="2020-07-01"))
    sightings.hear("web-0")
    own = Replica(name="only", process="1", version="1", started_at=NOW, beat_at=NOW)
    database, follower = DatabaseClock(clock, NOW), Follower(store, feed, clock)
    replicas = Replicas(store, own, follower, clock, database, sightings=sightings)
    heartbeat = Heartbeat(plane, watch, clock, replicas)
    watch.open()
    clock.advance(MINUTE)
    watch.beat()
    for _ in range(3):
        asyncio.run(heartbeat._save())
    assert watch.owed == timedelta(0)
    with store.read() as reading:
        assert reading.operations(["1.1"])["1.1"].not_before == NOW + 16 * MINUTE


def test_alone_with_the_store_a_replica_shows_itself() -> None:
    clock = ManualClock(NOW)
    store = MemoryStore()
    own = Replica(name="only", process="1", version="1", started_at=NOW, beat_at=NOW)
    follower = Follower(store, Changefeed(), clock)
    alone = Replicas(
        store,
        own,
        follower,
        clock,
        DatabaseClock(clock, NOW),
        sightings=SharedSightings(unseen),
    )
    clock.advance(MINUTE)
    asyncio.run(alone.beat(serving=True))
    assert [(row.name, row.beat_at) for row in alone.all()] == [("only", NOW + MINUTE)]
    with store.read() as reading:
        assert reading.replicas() == {}
