"""Outages and clocks of one service, and of replicas on one store: time.txt, replicas.txt.

What is owed to guests is given before anything starts.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE, NOW, SECOND, mint
from control.conftest import Busy, House, done
from forewarn.clock import ManualClock
from forewarn.control import webhooks
from forewarn.control.changefeed import Changefeed
from forewarn.control.heartbeat import SETTING, Heartbeat
from forewarn.control.outbox import Follower
from forewarn.control.plane import Plane, Retention
from forewarn.control.replicas import Replicas, SharedSightings
from forewarn.control.service_clock import ClockJumped, ClockScale, Served, ServiceClock
from forewarn.control.ticker import Ticker
from forewarn.control.writer import ThreadWriter, Writer
from forewarn.maintenance import relays
from forewarn.maintenance.model import Changes, Drain, HostState, Operation, Sighting
from forewarn.maintenance.planner import Request
from forewarn.maintenance.webhooks import Webhook, refused
from forewarn.maintenance.world import NOTHING
from forewarn.store.port import JUMP, Replica, StoreUnavailable
from forewarn.store.sql import Store, Transaction
from forewarn.vocabulary import EventStatus, EventType
from store.shared import SharedStore
from stories import Told, elapsed, elapsed_at, on_a_loop, stories_beside

HOUR = timedelta(hours=1)
replace = msgspec.structs.replace


class Start:
    """One start of a service, or of a replica: its clocks and its heartbeat."""

    def __init__(
        self, store: Store, real: ManualClock, name: str = "only", *, at: datetime | None = None
    ) -> None:
        self.store = store
        self.real = real
        self.watch = ServiceClock(real, at=at)
        self.feed = Changefeed()
        follower = Follower(store, self.feed, real, replica=name, mint=mint(name))
        self.asked: dict[str, Sighting] = {}
        self.sightings = SharedSightings(self.asked.get)
        self.plane = Plane(
            Writer(store, self.watch, self.feed, follower),
            mint(name),
            may_start=self.watch.may_start,
            listening=self.watch.listening,
            sighting=self.sightings,
        )
        own = Replica(name=name, process="1", version="1", started_at=NOW, beat_at=NOW)
        self.replicas = Replicas(store, own, follower, self.watch, real, sightings=self.sightings)
        self.serving = False
        self.heartbeat = Heartbeat(
            self.plane, self.watch, real, self.replicas, serves=lambda: self.serving
        )
        on_a_loop(self.heartbeat.begin())

    def sees(self, machine: str) -> None:
        """Let a machine ask; that may not be written down yet."""
        self.asked[machine] = Sighting(asked_at=self.watch.now(), version="2020-07-01")
        self.sightings.hear(machine)

    def open(self) -> "Start":
        self.serving = True
        self.watch.open()
        self.beat()
        return self

    def beat(self) -> None:
        """Beat as `run` does."""
        self.watch.beat()
        self.save()

    def save(self) -> None:
        on_a_loop(self.heartbeat._save())

    def live(self, time: timedelta) -> None:
        """Let time pass in which guests can read."""
        until = self.real.now() + time
        while self.real.now() < until:
            self.real.advance(min(SECOND, until - self.real.now()))
            self.watch.beat()
        self.beat()


class TimeStory(Told):
    """A service on a house's store, and its next starts."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.clock = house.clock
        self.before: dict[str, Sighting] = {}
        """What machines asked any process."""
        self.restart()
        self.schedule("web-0")

    @property
    def plane(self) -> Plane:
        return self.now_of.plane

    @property
    def watch(self) -> ServiceClock:
        return self.now_of.watch

    def schedule(self, machine: str, kind: str = "Reboot") -> None:
        self.house.ask(EventType(kind), machine)

    def approve(self, operation: str) -> None:
        (event,) = self.house.operation(operation).events
        done(self.plane.approve(event.scope, [event.id], by="web-0", address="10.0.0.10"))

    def operator_approve(self, operation: str) -> None:
        done(self.plane.approve_for_guests([operation], by="ops"))

    def claim(self, by: str, *expected: str) -> None:
        tasks = done(self.plane.claim(by, MINUTE, 1))
        assert [task.operation for task in tasks] == [*expected]

    def advance(self) -> None:
        done(self.plane.advance())

    def asked(self, machine: str) -> None:
        self.now_of.sees(machine)
        self.before[machine] = self.now_of.asked[machine]

    def asked_before(self, machine: str) -> None:
        """The next process knows when a machine asked the one before."""
        self.now_of.asked[machine] = self.before[machine]

    def pass_(self, span: str) -> None:
        self.clock.advance(elapsed(span))

    def live(self, span: str) -> None:
        self.now_of.live(elapsed(span))

    def jump(self, by: str) -> None:
        self.clock.jump(moment(by) - NOW)

    def jumped(self) -> None:
        with pytest.raises(ClockJumped):
            self.watch.beat()

    def look(self) -> None:
        self.watch.beat()

    def beat(self) -> None:
        self.now_of.beat()

    def save(self) -> None:
        self.now_of.save()

    def open(self) -> None:
        self.now_of.open()

    def restart(self, closed: str = "") -> None:
        self.now_of = Start(self.house.store, self.clock)
        self.house.plane = self.now_of.plane
        if not closed:
            self.open()

    def store(self, how: str) -> None:
        self.house.store.away, self.house.store.blind = how == "away", how == "blind"

    def reboots(self, host: str) -> None:
        """A drain has asked for the reboot of a host."""
        at = self.clock.now()
        times = {"requested_at": at, "changed_at": at, "reboot_asked_at": at}
        drain = Drain(host=host, state=HostState.REBOOTING, boot_id="boot-0", **times)
        self.house.put(Changes(drains=(drain,)))

    def relay_token(self, host: str) -> None:
        """The relay of a host has a token, which it has used."""
        made = self.clock.now()
        token = replace(relays.new_token(host, "d", by="ann", at=made), used_at=made)
        self.house.put(Changes(tokens=(token,)))

    def webhook(self, name: str) -> None:
        """A webhook is added, and refuses."""
        made = Webhook(name=name, url="https://example.com", secret="whsec_", cursor=(1, 0))
        added = done(self.plane.order(webhooks.add, made))
        done(self.plane.order(webhooks.move, added, partial(refused, added, "HTTP 503")))

    # What must be so.

    def operation(self, name: str, status: str, **told: str) -> None:
        self.compare(self.house.operation(name), {"status": status, **told})

    def obstacle(self, says: str = "") -> None:
        """Look for words in what keeps everything from starting."""
        assert [says in each for each in self.watch.obstacles()] == [True] * bool(says)

    def unread(self, seconds: str) -> None:
        served = msgspec.json.decode(done(self.plane.setting(SETTING)), type=Served)
        assert served.unread_seconds == float(seconds)

    def now(self, span: str) -> None:
        assert self.watch.now() == moment(span)

    def owed(self, span: str) -> None:
        assert self.watch.owed == elapsed(span)

    def may_start(self, how: str) -> None:
        assert self.watch.may_start() is (how == "yes")

    def seen(self, *machines: str) -> None:
        with self.house.store.read() as reading:
            assert [*reading.sightings()] == [*machines]

    def shows(self, name: str, beat: str) -> None:
        """A replica that is alone shows itself, and has no row."""
        on_a_loop(self.now_of.replicas.beat(serving=True))
        found = [(row.name, row.beat_at) for row in self.now_of.replicas.all()]
        assert found == [(name, moment(beat))]
        with self.house.store.read() as reading:
            assert reading.replicas() == {}

    def drain(self, host: str, **told: str) -> None:
        with self.house.store.read() as reading:
            found = reading.drains()[host]
        assert {name: getattr(found, name) for name in told} == {
            name: moment(each) for name, each in told.items()
        }

    def token(self, host: str, at: str) -> None:
        """The World and the store have the one token, made and used at this time."""
        known = done(self.plane.order(lambda unit, _: dict(unit.world.tokens)))
        (token,) = known.values()
        assert (token.created_at, token.used_at) == (moment(at), moment(at))
        with self.house.store.read() as reading:
            assert reading.tokens() == known

    def webhook_free(self, name: str, at: str) -> None:
        with self.house.store.read() as reading:
            assert reading.webhooks()[name].free(moment(at))


def moment(told: str) -> datetime:
    """A time by its distance from the beginning: `-2h`."""
    span = elapsed(told.lstrip("-"))
    return NOW - span if told.startswith("-") else NOW + span


@pytest.mark.parametrize("rows", stories_beside(__file__, "time.txt"))
def test_the_story_holds(house: House, rows: list[tuple[int, str]]) -> None:
    assert TimeStory(house).play("time.txt", rows)


# Replicas of one store.


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


class ReplicaStory(Told):
    """Replicas of one store, by their names."""

    def __init__(self) -> None:
        self.time = ManualClock(NOW)
        self.store = Database(self.time)
        self.processes: dict[str, Start] = {}
        self.start("first")
        plane = self.processes["first"].plane
        plane.apply_fleet(FLEET).result()
        plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))).result()
        self.due("15m")

    def start(self, *names: str) -> None:
        for name in names:
            now = self.time.now()
            self.processes[name] = Start(self.store, ManualClock(now), name, at=now).open()

    def pass_(self, span: str, *names: str) -> None:
        """Let time pass; only these replicas run in it."""
        until = self.time.now() + elapsed(span)
        while self.time.now() < until:
            step = min(SECOND / 2, until - self.time.now()) if names else elapsed(span)
            self.time.advance(step)
            for name in names:
                self.processes[name].real.advance(step)
                self.processes[name].beat()

    def stall(self, span: str, *names: str) -> None:
        """Let time pass for replicas that did not run in it."""
        for name in names:
            self.processes[name].real.advance(elapsed(span))

    def stall_amid_beat(self, span: str, *names: str) -> None:
        def stall() -> None:
            self.time.advance(elapsed(span))
            self.stall(span, *names)

        self.store.on_beat = stall

    def cut_off(self) -> None:
        def unanswered() -> None:
            raise StoreUnavailable("no answer")

        self.store.on_beat = unanswered

    def beat(self, name: str) -> None:
        self.processes[name].beat()

    def save(self, name: str) -> None:
        self.processes[name].save()

    def stop(self, name: str) -> None:
        self.processes[name].heartbeat.stop()
        on_a_loop(self.processes[name].heartbeat.run())

    def unreadable(self, name: str) -> None:
        """Guests cannot read at a replica."""
        self.processes[name].serving = False

    def jump(self, name: str, span: str) -> None:
        self.processes[name].real.jump(elapsed(span))

    def jump_database(self, span: str) -> None:
        self.time.jump(elapsed(span.lstrip("-")) * (-1 if span[0] == "-" else 1))

    def see(self, name: str, machine: str) -> None:
        self.processes[name].sees(machine)

    # What must be so.

    def due(self, since: str, at_most: str = "") -> None:
        """How long after the beginning 1.1 starts."""
        with self.store.read() as reading:
            found = reading.operations(["1.1"])["1.1"].not_before - NOW
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
        assert self.processes[name].watch.now() == self.time.now()

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
        assert all(each.asked_at <= self.time.now() for each in seen)

    def shares(self, name: str, other: str, machine: str) -> None:
        """What one replica has seen of a machine, the other knows."""
        seen = self.processes[name].asked[machine]
        assert self.processes[other].sightings(machine) == seen

    def alerts(self, name: str, *expected: str) -> None:
        told = [
            f"{one.kind} {one.about} {elapsed_at(one.since).seconds}s"
            for one in self.processes[name].replicas.alerts()
        ]
        assert told == [*expected]


@pytest.mark.parametrize("rows", stories_beside(__file__, "replicas.txt"))
def test_the_story_of_replicas_holds(rows: list[tuple[int, str]]) -> None:
    assert ReplicaStory().play("replicas.txt", rows)


def test_a_transaction_whose_time_has_jumped_decides_nothing() -> None:
    time = ManualClock(NOW)
    only = Start(Database(time), time).open()
    told = only.store.write

    @contextmanager
    def write() -> Iterator[Transaction]:
        with told() as transaction:
            transaction.now = time.now  # type: ignore[method-assign]
            yield transaction

    only.store.write = write  # type: ignore[method-assign]
    writer = ThreadWriter(only.store, only.watch, Changefeed(), only.real, told=only.watch)
    plane = Plane(writer, mint("w"), may_start=only.watch.may_start)
    assert plane.advance().result() == 0
    time.jump(3 * SECOND)
    with pytest.raises(ClockJumped):
        plane.advance().result()
    writer.close()


# One start.


def operation(start: Start) -> Operation:
    with start.store.read() as reading:
        return reading.operations(["1.1"])["1.1"]


@pytest.fixture
def start(house: House) -> Start:
    started = Start(house.store, house.clock).open()
    house.plane = started.plane
    house.ask(EventType.REBOOT, "web-0")
    return started


def test_a_crash_within_the_lapse_leaves_all_of_it_to_the_next_start(start: Start) -> None:
    start.real.advance(HOUR)
    with start.store.write() as transaction:
        transaction.setting(SETTING)
        before = transaction.setting(SETTING)

    def fail(*_: object) -> None:
        message = "killed here"
        raise RuntimeError(message)

    class Dying(Plane):
        """Dies in the transaction that moves the notices."""

        def _decide(self, *arguments: Any) -> Any:
            fail()
            return super()._decide(*arguments)

    watch = ServiceClock(start.real)
    writer = Writer(start.store, watch, start.feed)
    with pytest.raises(RuntimeError, match="killed here"):
        asyncio.run(Heartbeat(Dying(writer, mint("f")), watch, start.real).begin())
    assert done(start.plane.setting(SETTING)) == before
    Start(start.store, start.real)
    assert operation(start).not_before == NOW + HOUR + 15 * MINUTE


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_turns_of_guests_show_that_the_loop_runs_and_hide_no_stall(scale: float) -> None:
    real = ManualClock(NOW)
    watch = ServiceClock(real, pace=ClockScale(scale=scale, origin=NOW, real_origin=NOW))
    watch.open()

    def passes(seconds: float) -> None:
        real.advance(seconds * SECOND)

    for _ in range(100):  # the loop is busy with guests, and comes to no beat
        passes(0.9)
        watch.turn(real.monotonic())
        assert watch.may_start()
    watch.beat()
    assert watch.owed == timedelta(0)
    passes(6)
    assert not watch.may_start()
    watch.turn(real.monotonic())  # who waited at the socket is answered before the beat
    watch.beat()
    assert watch.owed == 6 * scale * SECOND


@pytest.mark.parametrize("step", [1.9 * SECOND, -1.9 * SECOND])
def test_a_small_step_is_followed_little_by_little_and_time_never_goes_back(
    start: Start, step: timedelta
) -> None:
    start.real.jump(step)
    before = start.watch.now()
    for _ in range(100):
        start.real.advance(SECOND)
        start.watch.beat()
        assert 0.9 * SECOND < start.watch.now() - before < 1.1 * SECOND
        before = start.watch.now()
    assert abs(start.watch.now() - start.real.now()) < 0.001 * SECOND
    assert start.watch.may_start()


def test_a_clock_that_was_asked_late_or_answers_late_has_not_jumped() -> None:
    clock = ManualClock(NOW)
    watch = ServiceClock(clock, at=NOW)
    asked = watch.asking()
    clock.advance(MINUTE)  # this process stood still: the answer is of some time since
    for at in (NOW - SECOND, NOW, NOW + MINUTE, NOW + MINUTE + SECOND):
        assert watch.tell(at, asked) == at
    with pytest.raises(ClockJumped, match=r"3\.0 s ahead"):
        watch.tell(NOW + MINUTE + 3 * SECOND, asked)


async def test_a_write_that_hangs_is_an_alert_until_it_ends(start: Start) -> None:
    hung: Future[None] = Future()

    class Hung(Plane):
        def put_setting(self, name: str, value: str) -> "Future[Any]":
            return hung

    heartbeat = Heartbeat(
        Hung(Writer(start.store, start.watch, start.feed), mint("h")),
        start.watch,
        start.real,
    )

    async def let_pass(time: timedelta) -> None:
        for _ in range(int(time / SECOND * 4)):
            start.real.advance(SECOND / 4)
            await patience.settled()

    running = asyncio.create_task(heartbeat.run())
    await let_pass(4 * SECOND)
    assert heartbeat.store_down is None
    await let_pass(2 * SECOND)
    assert heartbeat.store_down is not None
    hung.set_result(None)
    await let_pass(SECOND)
    assert heartbeat.store_down is None
    heartbeat.stop()
    await running


async def test_the_ticker_starts_nothing_while_it_may_not_and_goes_on_when_it_may(
    start: Start,
) -> None:
    async def let_pass(time: timedelta) -> None:
        await patience.settled()
        start.real.advance(time)
        await patience.settled()

    ticker = Ticker(start.plane, start.watch, Retention())
    running = asyncio.create_task(ticker.run())
    start.real.advance(10 * SECOND)
    start.watch.beat()  # what is owed is not given back here
    for _ in range(15 * 60 + 4):
        start.watch.beat()
        await let_pass(SECOND)
    assert operation(start).status is EventStatus.SCHEDULED
    start.watch.pay(start.watch.owed)
    await let_pass(2 * SECOND)
    assert operation(start).status is EventStatus.STARTED
    ticker.stop()
    await running


# With real threads, one order at a time.

STALL = 2 * SECOND
"""Short of an outage by itself."""


@pytest.fixture
def threaded() -> Iterator[Busy]:
    built = Busy(fleet=FLEET)
    yield built
    built.close()


class Interrupted(ManualClock):
    """A machine's clock that lets somebody else act while one thread reads it."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.interrupt: Callable[[], None] | None = None

    def monotonic(self) -> float:
        now = super().monotonic()
        if self.interrupt is not None:
            interrupt, self.interrupt = self.interrupt, None
            interrupt()
        return now


async def test_what_holds_up_the_loop_for_short_times_moves_the_notices_by_their_sum(
    threaded: Busy,
) -> None:
    """The loop, its heartbeat and the writer's thread are real; time passes between two turns."""
    real = threaded.clock
    watch = ServiceClock(real)
    heartbeat = Heartbeat(threaded.plane, watch, real)

    def not_before() -> datetime:
        return threaded.operation("1.1").not_before

    await heartbeat.begin()
    watch.open()
    threaded.ask(EventType.REBOOT, "web-0")
    beating = asyncio.create_task(heartbeat.run())
    await patience.settled()
    for _ in range(3):
        real.advance(STALL)
        await patience.settled()

    def has_moved() -> bool:
        real.advance(SECOND / 100)  # the heartbeat tries again, by and by
        return not_before() > NOW + 15 * MINUTE

    await patience.reached(has_moved)
    heartbeat.stop()
    await beating
    assert not_before() == NOW + 15 * MINUTE + 3 * STALL


class Contended:
    """A lock that knows whether anybody has had to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.waited = False

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.waited = True
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_nothing_starts_between_the_end_of_an_outage_and_what_is_owed_for_it() -> None:
    """A transaction asks whether it may start something while the late beat is on its way."""
    real = Interrupted()
    watch = ServiceClock(ManualClock(NOW), loop=real)
    watch.open()
    assert watch.may_start()
    real.advance(10 * SECOND)
    watch._lock = lock = Contended()  # type: ignore[assignment] # it tells that somebody waits
    beat = threading.Thread(target=watch.beat)

    def beats() -> None:
        beat.start()
        patience.until(lambda: lock.waited or not beat.is_alive())

    original = watch._held_up

    def held_up() -> bool:
        real.interrupt = beats
        return original()

    watch._held_up = held_up  # type: ignore[method-assign] # the instant between two looks
    assert not watch.may_start()
    beat.join(patience.SECONDS)
    assert not beat.is_alive()
