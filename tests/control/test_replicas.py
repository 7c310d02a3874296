"""Replicas' rows: an outage of one is none of all, and one bad clock is one replica's alone."""

import asyncio
from datetime import timedelta

import pytest

from builders import FLEET, MINUTE, NOW, SECOND, mint
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.follower import Follower
from forewarn.control.plane import Plane
from forewarn.control.replicas import LIVE, DatabaseClock, Replicas
from forewarn.control.service_clock import AGREE_SECONDS, Heartbeat, ServiceClock
from forewarn.control.sightings import SharedSightings
from forewarn.control.writer import InlineWriter
from forewarn.maintenance.model import unseen
from forewarn.maintenance.planner import Request
from forewarn.store.memory import MemoryStore
from forewarn.store.port import Replica
from forewarn.vocabulary import EventType


class Town:
    """One store, one time that passes for all, and a database's clock that may jump."""

    def __init__(self) -> None:
        self.store = MemoryStore(shared=True)
        self.time = ManualClock(NOW)

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
        self.replicas = Replicas(
            town.store,
            own,
            follower,
            town.time,
            self.database,
            sightings=SharedSightings(unseen),
        )
        self.serving = False
        self.heartbeat = Heartbeat(
            self.plane, self.watch, self.real, self.replicas, serves=lambda: self.serving
        )
        asyncio.run(self.heartbeat.begin())
        self.serving = True
        self.watch.open()
        self.beat()

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


def test_a_row_that_is_too_old_is_no_replica_that_lives(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, LIVE - SECOND, second)
    assert second.replicas.live() == 2
    passes(town, 2 * SECOND, second)
    assert second.replicas.live() == 1
    assert first.replicas.live() == 1  # it has not read the second's row yet


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
