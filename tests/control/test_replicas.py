"""Replicas' rows: an outage of one is none of all, and one bad clock is one replica's alone."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec
import pytest

from builders import FLEET, MINUTE, NOW, SECOND, mint
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.heartbeat import Heartbeat
from forewarn.control.outbox import Follower
from forewarn.control.plane import Plane
from forewarn.control.replicas import LIVE, MISSED, MISSED_FOR, Replicas, SharedSightings
from forewarn.control.service_clock import ClockJumped, ServiceClock
from forewarn.control.writer import InlineWriter, ThreadWriter
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.model import Policy, Sighting, unseen
from forewarn.maintenance.planner import Request
from forewarn.store.port import JUMP, Replica, SeenMachine, StoreUnavailable, Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventType
from store.shared import SharedStore


class Database(SharedStore):
    """A store with a clock of its own."""

    def __init__(self, time: ManualClock) -> None:
        super().__init__()
        self._time = time
        self.on_beat: Callable[[], None] = lambda: None
        """Called once, when the next beat is on its way."""

    def beat(self, replica: Replica, seen: Iterable[SeenMachine] = ()) -> datetime:
        on_beat, self.on_beat = self.on_beat, lambda: None
        on_beat()
        now = self._time.now()
        beat_at = min(now, replica.beat_at)
        is_ahead = replica.beat_at - now > JUMP
        super().beat(msgspec.structs.replace(replica, beat_at=beat_at), () if is_ahead else seen)
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
        self.watch = ServiceClock(self.real, at=town.time.now())
        feed = Changefeed()
        follower = Follower(town.store, feed, self.real, replica=name, mint=mint(name))
        writer = InlineWriter(town.store, self.watch, feed, follower)
        self.plane = Plane(writer, mint(name), may_start=self.watch.may_start)
        own = Replica(name=name, process="1", version="1", started_at=NOW, beat_at=NOW)
        self.seen: dict[str, Sighting] = {}
        self.sightings = SharedSightings(self.seen.get)
        self.replicas = Replicas(
            town.store, own, follower, self.watch, self.real, sightings=self.sightings
        )
        self.serving = False
        self.heartbeat = Heartbeat(
            self.plane, self.watch, self.real, self.replicas, serves=lambda: self.serving
        )
        asyncio.run(self.heartbeat.begin())
        self.serving = True
        self.watch.open()
        self.beat()

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


def cut_off() -> None:
    raise StoreUnavailable("no answer")


@pytest.mark.parametrize("on_beat", [lambda: None, cut_off], ids=["beats", "cut off"])
def test_a_stall_of_all_replicas_counts_once(town: Town, on_beat: Callable[[], None]) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first, second)
    town.time.advance(3 * MINUTE)
    stalled(3 * MINUTE, first, second)
    town.store.on_beat = on_beat
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
    rows = {row.name: row for row in first.replicas.all()}
    assert rows["second"].clock_ahead_ms == 1_200_000
    assert Process(town, "third").watch.may_start()
    assert town.not_before() == 15 * MINUTE


def has_ended(process: Process) -> bool:
    """Beat once more; tell whether the process has seen its clock jump."""
    asyncio.run(process.heartbeat._save())
    try:
        process.watch.look()
    except ClockJumped:
        assert not process.watch.may_start()
        return True
    return False


def test_a_transaction_whose_time_has_jumped_decides_nothing(town: Town) -> None:
    only = Process(town, "only")
    told = town.store.write

    @contextmanager
    def write() -> Iterator[Transaction]:
        with told() as transaction:
            transaction.now = town.time.now  # type: ignore[method-assign]
            yield transaction

    town.store.write = write  # type: ignore[method-assign]
    writer = ThreadWriter(town.store, only.watch, Changefeed(), only.real, told=only.watch)
    plane = Plane(writer, mint("w"), may_start=only.watch.may_start)
    assert plane.advance().result() == 0
    town.time.jump(3 * SECOND)
    with pytest.raises(ClockJumped):
        plane.advance().result()
    writer.close()


def test_a_replica_whose_machine_slept_ends_and_moves_no_notice(town: Town) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first)  # the second's monotonic clock stood still meanwhile
    assert has_ended(second)
    assert not has_ended(first)
    assert Process(town, "second").watch.may_start()
    assert town.not_before() == 15 * MINUTE


def test_where_the_databases_clock_jumps_all_end_and_the_first_start_moves_the_notices_once(
    town: Town,
) -> None:
    first, second = Process(town, "first"), Process(town, "second")
    passes(town, MINUTE, first, second)
    town.time.jump(10 * MINUTE)
    assert has_ended(first)
    again = Process(town, "first")  # while the second does not know it yet
    assert town.not_before() == 25 * MINUTE
    assert has_ended(second)
    both = again, Process(town, "second")
    passes(town, MINUTE, *both)
    assert all(one.watch.may_start() for one in both)
    assert town.not_before() == 25 * MINUTE


def test_after_the_databases_clock_was_set_back_no_replica_knows_anything_later_than_now(
    town: Town,
) -> None:
    town.time.advance(20 * MINUTE)
    first, second = Process(town, "first"), Process(town, "second")
    Process(town, "third")  # and is never started again
    first.sees("web-0")
    passes(town, MINUTE, first, second)
    before = town.not_before()
    town.time.jump(-10 * MINUTE)
    assert has_ended(first)
    again = Process(town, "first")
    second.sees("web-1")  # by its own time, and that is not written
    assert has_ended(second)
    for process in (again, other := Process(town, "second")):
        assert all(seen.asked_at <= town.time.now() for seen in known(process))
    passes(town, 2 * LIVE, again, other)
    assert again.replicas.live() == 2
    other.sees("web-1")
    passes(town, 4 * SECOND, again, other)
    assert again.sightings("web-1") == other.seen["web-1"]
    assert town.not_before() == before
    passes(town, MINUTE)  # an outage of all counts as ever
    asyncio.run(again.heartbeat._save())
    assert Process(town, "third").watch.may_start()


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


class Blind(InMemoryStore):
    """A store that takes nothing that was seen of machines."""

    def see(self, seen: Iterable[SeenMachine], at: datetime) -> None:
        raise StoreUnavailable("the disk is full")


def test_an_outage_counts_once_though_what_was_seen_cannot_be_written() -> None:
    clock, store, feed = ManualClock(NOW), Blind(), Changefeed()
    watch = ServiceClock(clock)
    plane = Plane(InlineWriter(store, watch, feed), mint("b"), Policy())
    plane.apply_fleet(FLEET).result()
    plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))).result()
    sightings = SharedSightings(lambda _: Sighting(asked_at=NOW, version="2020-07-01"))
    sightings.hear("web-0")
    own = Replica(name="only", process="1", version="1", started_at=NOW, beat_at=NOW)
    follower = Follower(store, feed, clock)
    replicas = Replicas(store, own, follower, watch, clock, sightings=sightings)
    heartbeat = Heartbeat(plane, watch, clock, replicas)
    watch.open()
    clock.advance(MINUTE)
    watch.beat()
    for _ in range(3):
        asyncio.run(heartbeat._save())
    assert watch.owed == timedelta(0)
    with store.read() as reading:
        assert reading.operations(["1.1"])["1.1"].not_before == NOW + 16 * MINUTE
    assert [seen.machine for seen in sightings.news()] == ["web-0"]


def test_alone_with_the_store_a_replica_shows_itself() -> None:
    clock = ManualClock(NOW)
    store = InMemoryStore()
    own = Replica(name="only", process="1", version="1", started_at=NOW, beat_at=NOW)
    follower = Follower(store, Changefeed(), clock)
    alone = Replicas(
        store,
        own,
        follower,
        ServiceClock(clock),
        clock,
        sightings=SharedSightings(unseen),
    )
    clock.advance(MINUTE)
    asyncio.run(alone.beat(serving=True))
    assert [(row.name, row.beat_at) for row in alone.all()] == [("only", NOW + MINUTE)]
    with store.read() as reading:
        assert reading.replicas() == {}
