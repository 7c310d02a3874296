"""Replicas' rows, and what machines tell them: replicas.txt, sightings.txt, and one alone."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec
import pytest

from builders import FLEET, NOW, SECOND, mint
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.heartbeat import Heartbeat
from forewarn.control.outbox import Follower
from forewarn.control.plane import Plane
from forewarn.control.replicas import BEATS, Replicas, SharedSightings
from forewarn.control.service_clock import ClockJumped, ServiceClock
from forewarn.control.writer import ThreadWriter, Writer
from forewarn.maintenance.model import Changes, Sighting
from forewarn.maintenance.planner import Request
from forewarn.maintenance.world import NOTHING
from forewarn.store.port import JUMP, Replica, StoreUnavailable
from forewarn.store.sql import Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import AgentStatus, EventType
from store.shared import SharedStore
from store.story import WITH_MACHINES, save
from stories import Told, elapsed, elapsed_at, on_a_loop, stories_beside


class Database(SharedStore):
    """A store with a clock of its own."""

    def __init__(self, time: ManualClock) -> None:
        super().__init__()
        self._time = time
        self.on_beat: Callable[[], None] = lambda: None
        """Called once, when the next beat is on its way."""

    def beat(self, replica: Replica, seen: Mapping[str, Sighting] = NOTHING) -> datetime:
        on_beat, self.on_beat = self.on_beat, lambda: None
        on_beat()
        now = self._time.now()
        beat_at = min(now, replica.beat_at)
        is_ahead = replica.beat_at - now > JUMP
        known = NOTHING if is_ahead else seen
        super().beat(msgspec.structs.replace(replica, beat_at=beat_at), known)
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
        writer = Writer(town.store, self.watch, feed, follower)
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
        on_a_loop(self.heartbeat.begin())
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
        on_a_loop(self.heartbeat._save())


class ReplicaStory(Told):
    """Replicas of one store, by their names."""

    def __init__(self) -> None:
        self.town = Town()
        self.processes: dict[str, Process] = {}
        self.start("first")
        plane = self.processes["first"].plane
        plane.apply_fleet(FLEET).result()
        plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))).result()
        self.due("15m")

    def start(self, *names: str) -> None:
        for name in names:
            self.processes[name] = Process(self.town, name)

    def pass_(self, span: str, *names: str) -> None:
        """Let time pass; only these replicas run in it."""
        until = self.town.time.now() + elapsed(span)
        while self.town.time.now() < until:
            step = min(SECOND / 2, until - self.town.time.now()) if names else elapsed(span)
            self.town.time.advance(step)
            for name in names:
                self.processes[name].real.advance(step)
                self.processes[name].beat()

    def stall(self, span: str, *names: str) -> None:
        """Let time pass for replicas that did not run in it."""
        for name in names:
            self.processes[name].real.advance(elapsed(span))

    def stall_amid_beat(self, span: str, *names: str) -> None:
        def stall() -> None:
            self.town.time.advance(elapsed(span))
            self.stall(span, *names)

        self.town.store.on_beat = stall

    def cut_off(self) -> None:
        def unanswered() -> None:
            raise StoreUnavailable("no answer")

        self.town.store.on_beat = unanswered

    def beat(self, name: str) -> None:
        self.processes[name].beat()

    def save(self, name: str) -> None:
        on_a_loop(self.processes[name].heartbeat._save())

    def stop(self, name: str) -> None:
        self.processes[name].heartbeat.stop()
        on_a_loop(self.processes[name].heartbeat.run())

    def unreadable(self, name: str) -> None:
        """Guests cannot read at a replica."""
        self.processes[name].serving = False

    def jump(self, name: str, span: str) -> None:
        self.processes[name].real.jump(elapsed(span))

    def jump_database(self, span: str) -> None:
        self.town.time.jump(elapsed(span.lstrip("-")) * (-1 if span[0] == "-" else 1))

    def see(self, name: str, machine: str) -> None:
        self.processes[name].sees(machine)

    # What must be so.

    def due(self, since: str, at_most: str = "") -> None:
        """How long after the beginning 1.1 starts."""
        found = self.town.not_before()
        assert elapsed(since) <= found <= elapsed(at_most or since), found

    def ends(self, name: str) -> None:
        """A replica beats once more, and has seen its clock jump."""
        self.save(name)
        with pytest.raises(ClockJumped):
            self.processes[name].watch.look()
        assert not self.processes[name].watch.may_start()

    def goes_on(self, name: str) -> None:
        self.save(name)
        self.processes[name].watch.look()

    def may_start(self, name: str) -> None:
        assert self.processes[name].watch.may_start()

    def owed(self, name: str, span: str) -> None:
        assert self.processes[name].watch.owed == elapsed(span)

    def right(self, name: str) -> None:
        assert self.processes[name].watch.now() == self.town.time.now()

    def rows(self, name: str, *expected: str) -> None:
        assert [row.name for row in self.processes[name].replicas.all()] == [*expected]

    def ahead(self, name: str, milliseconds: str) -> None:
        """Each other replica reads how far a clock is ahead."""
        rows = {row.name: row for row in self.processes["first"].replicas.all()}
        assert rows[name].clock_ahead_ms == int(milliseconds)

    def live(self, name: str, count: str) -> None:
        assert self.processes[name].replicas.live() == int(count)

    def knows_nothing_later(self, name: str) -> None:
        """No sighting is of a later time than now."""
        seen = filter(None, map(self.processes[name].sightings, ("web-0", "web-1")))
        assert all(each.asked_at <= self.town.time.now() for each in seen)

    def shares(self, name: str, other: str, machine: str) -> None:
        """What one replica has seen of a machine, the other knows."""
        seen = self.processes[name].seen[machine]
        assert self.processes[other].sightings(machine) == seen

    def alerts(self, name: str, *expected: str) -> None:
        told = [
            f"{one.kind} {one.about} {elapsed_at(one.since).seconds}s"
            for one in self.processes[name].replicas.alerts()
        ]
        assert told == [*expected]


setattr(ReplicaStory, "pass", ReplicaStory.pass_)


@pytest.mark.parametrize("rows", stories_beside(__file__, "replicas.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert ReplicaStory().play("replicas.txt", rows)


def test_a_transaction_whose_time_has_jumped_decides_nothing() -> None:
    town = Town()
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


def seen(seconds: float, agent: AgentStatus | None = None) -> Sighting:
    return Sighting(asked_at=NOW + seconds * SECOND, version="2020-07-01", agent=agent)


class Seeing:
    """A replica over a store: it sees machines, and beats."""

    def __init__(self, name: str, store: InMemoryStore) -> None:
        self.seen: dict[str, Sighting] = {}
        self.sightings = SharedSightings(self.seen.get)
        self.store = store
        self._row = Replica(name=name, process="", version="", started_at=NOW, beat_at=NOW)

    def sees(self, machine: str, seconds: float, agent: AgentStatus | None = None) -> None:
        known = self.seen.get(machine)
        word = agent is not None and (known is None or known.agent is not agent)
        agent = agent or (known.agent if known else None)
        self.seen[machine] = seen(seconds, agent)
        if known is None or word:
            self.sightings.hear(machine)

    def beat(self) -> int:
        """Write the news, read what others wrote; return how many rows were news."""
        news = self.sightings.news()
        self.store.beat(self._row, news)
        with self.store.read() as reading:
            self.sightings.learn_others(reading.sightings())
        return len(news)


def pair() -> tuple[Seeing, Seeing]:
    store = InMemoryStore()
    save(store, WITH_MACHINES)
    return Seeing("r1", store), Seeing("r2", store)


class SightingStory(Told):
    """Two replicas, by their names."""

    def __init__(self) -> None:
        self.replicas = dict(zip(("r1", "r2"), pair(), strict=True))

    def sees(self, name: str, machine: str, at: str, *agent: str) -> None:
        self.replicas[name].sees(machine, int(at), *map(AgentStatus, agent))

    def relays(self, name: str, machine: str, at: str, *agent: str) -> None:
        """The relay of its host tells of a machine."""
        told = seen(int(at), *map(AgentStatus, agent))
        self.replicas[name].sightings.relay(machine, told)

    def beat(self, name: str, rows: str = "") -> None:
        count = self.replicas[name].beat()
        assert rows in {"", str(count)}

    def fail(self, name: str) -> None:
        """Beat, and nothing is written."""
        sightings = self.replicas[name].sightings
        sightings.keep(sightings.news())

    def removed(self, name: str, machine: str) -> None:
        self.replicas[name].sightings.learn(Changes(removed_machines=(machine,)))

    def forget(self, name: str, machine: str) -> None:
        del self.replicas[name].seen[machine]

    def knows(self, name: str, machine: str, at: str, *agent: str) -> None:
        told = seen(int(at), *map(AgentStatus, agent))
        assert self.replicas[name].sightings(machine) == told

    def knows_nothing(self, name: str, machine: str) -> None:
        assert self.replicas[name].sightings(machine) is None


@pytest.mark.parametrize("rows", stories_beside(__file__, "sightings.txt"))
def test_the_story_of_sightings_holds(rows: list[tuple[int, str]]) -> None:
    assert SightingStory().play("sightings.txt", rows)


def test_a_machine_that_asks_all_the_time_is_written_again_and_again_but_not_at_each_beat() -> None:
    one, _ = pair()
    rows = 0
    for beat in range(BEATS * 2):
        for machine in ("web-0", "web-1", "web-2"):
            one.sees(machine, beat)
        rows += one.beat()
    assert 6 <= rows <= 3 * BEATS


def test_a_machine_that_is_removed_while_rows_are_read_stays_forgotten() -> None:
    one, _ = pair()
    one.sees("web-0", 1)
    one.beat()
    del one.seen["web-0"]
    one.sightings.news()
    with one.store.read() as reading:
        found = reading.sightings()
    one.sightings.learn(Changes(removed_machines=("web-0",)))
    one.sightings.learn_others(found)
    assert one.sightings("web-0") is None
    one.sightings.news()  # it may come back later, and ask another replica
    one.sightings.learn_others(found)
    assert one.sightings("web-0") is not None


def test_a_machine_that_is_awaited_is_written_as_soon_as_it_asks_again() -> None:
    one, _ = pair()
    for number in range(200):
        one.sees(f"m{number}", 0)
    one.beat()
    one.sightings.await_again(["m150"])
    assert one.beat() == 0
    for number in range(200):
        one.sees(f"m{number}", 1)
    news = [*one.sightings.news()]
    assert "m150" in news
    assert len(news) <= 1 + 200 // BEATS + 1  # of the others, those whose turn it is
