"""Outages and clocks of one service, and of replicas on one store: time.txt, replicas.txt.

What is owed to guests is given before anything starts.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE, NOW, SECOND, mint
from control.conftest import House, done, put
from control.process import Process, ProcessStory
from forewarn.clock import ManualClock
from forewarn.control import webhooks
from forewarn.control.changefeed import Changefeed
from forewarn.control.heartbeat import SETTING, Heartbeat
from forewarn.control.plane import Plane, Retention
from forewarn.control.service_clock import ClockJumped, ClockScale, Served, ServiceClock
from forewarn.control.ticker import Ticker
from forewarn.control.writer import ThreadWriter
from forewarn.maintenance import relays
from forewarn.maintenance.model import Changes, Drain, HostState, Sighting
from forewarn.maintenance.planner import Request
from forewarn.maintenance.webhooks import Webhook, refused
from forewarn.maintenance.world import NOTHING
from forewarn.store.port import JUMP, Replica, StoreUnavailable
from forewarn.store.sql import Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventType
from store.shared import SharedStore
from stories import RUNNER, elapsed, on_a_loop, stories_beside

replace = msgspec.structs.replace


class TimeStory(ProcessStory):
    """A service on a house's store, and its next starts."""

    def __init__(self, house: House) -> None:
        super().__init__()
        self.stored = house.store
        self.clock = house.clock
        self.before: dict[str, Sighting] = {}
        """What machines asked any process."""
        self.parts: list[tuple[Heartbeat | Ticker, asyncio.Task[None]]] = []
        self.hung: Future[None] = Future()
        done(house.plane.apply_fleet(FLEET))
        self.restart()
        self.addressed("", [])
        self.schedule("Reboot", "web-0")

    def see(self, machine: str) -> None:
        super().see(machine)
        self.before[machine] = self.at.asked[machine]

    def asked_before(self, machine: str) -> None:
        """The next process knows when a machine asked the one before."""
        self.at.asked[machine] = self.before[machine]

    def live(self, span: str) -> None:
        self.at.live(elapsed(span))

    def jumped(self) -> None:
        with pytest.raises(ClockJumped):
            self.at.watch.beat()

    def look(self) -> None:
        self.at.watch.beat()

    def open(self) -> None:
        self.at.open()

    def restart(self, closed: str = "", dies: str = "") -> None:
        """Begin the next process; it may die in one of its first transactions."""
        began = Process(self.stored, self.clock)
        if dies:
            self.stored.fails_in = int(dies)
            with suppress(StoreUnavailable):
                began.start()
            self.stored.fails_in = 0
            return
        self.processes["only"] = self.at = began.start()
        if not closed:
            self.open()

    def run(self, part: str) -> None:
        """The heartbeat or the ticker runs, until the story ends."""
        ticker = Ticker(self.plane, self.at.watch, Retention())
        one = self.at.heartbeat if part == "heartbeat" else ticker
        self.parts.append((one, RUNNER.get_loop().create_task(one.run())))

    def end(self) -> None:
        if not self.hung.done():
            self.let_go()
        for part, task in self.parts:
            part.stop()
            RUNNER.run(asyncio.wait_for(task, patience.SECONDS))

    def until(self, span: str, looks: str = "") -> None:
        """Let time pass in which those parts run; the loop may be looked at, and no more."""
        while self.clock.now() < self.moment(span):
            self.clock.advance(SECOND / 4)
            if looks:
                self.look()
            RUNNER.run(patience.settled())

    def hang(self) -> None:
        """No setting is written before `let-go`."""
        self.plane.put_setting = lambda *_: self.hung  # type: ignore[method-assign]

    def let_go(self) -> None:
        self.hung.set_result(None)

    def store_down(self, how: str = "") -> None:
        assert (self.at.heartbeat.store_down is not None) is (how == "yes")

    def reboots(self, host: str) -> None:
        """A drain has asked for the reboot of a host."""
        at = self.clock.now()
        times = {"requested_at": at, "changed_at": at, "reboot_asked_at": at}
        drain = Drain(host=host, state=HostState.REBOOTING, boot_id="boot-0", **times)
        put(self.plane, Changes(drains=(drain,)))

    def relay_token(self, host: str) -> None:
        """The relay of a host has a token, which it has used."""
        made = self.clock.now()
        token = replace(relays.new_token(host, "d", by="ann", at=made), used_at=made)
        put(self.plane, Changes(tokens=(token,)))

    def webhook(self, name: str) -> None:
        """A webhook is added, and refuses."""
        made = Webhook(name=name, url="https://example.com", secret="whsec_", cursor=(1, 0))
        added = done(self.plane.order(webhooks.add, made))
        done(self.plane.order(webhooks.move, added, partial(refused, added, "HTTP 503")))

    # What must be so.

    def obstacle(self, says: str = "") -> None:
        """Look for words in what keeps everything from starting."""
        assert [says in each for each in self.at.watch.obstacles()] == [True] * bool(says)

    def unread(self, seconds: str) -> None:
        served = msgspec.json.decode(done(self.plane.setting(SETTING)), type=Served)
        assert served.unread_seconds == float(seconds)

    def now(self, span: str) -> None:
        assert self.at.watch.now() == self.moment(span)

    def seen(self, *machines: str) -> None:
        assert [*self.look_up(lambda reading: reading.sightings())] == [*machines]

    def shows(self, beat: str) -> None:
        """A replica that is alone shows itself, and has no row."""
        on_a_loop(self.at.replicas.beat(serving=True))
        found = [(row.name, row.beat_at) for row in self.at.replicas.all()]
        assert found == [(self.at.name, self.moment(beat))]
        assert self.look_up(lambda reading: reading.replicas()) == {}

    def token(self, host: str, at: str) -> None:
        """The World and the store have the one token, made and used at this time."""
        known = done(self.plane.order(lambda unit: dict(unit.world.tokens)))
        (token,) = known.values()
        assert (token.created_at, token.used_at) == (self.moment(at), self.moment(at))
        assert self.look_up(lambda reading: reading.tokens()) == known

    def webhook_free(self, name: str, at: str) -> None:
        assert self.look_up(lambda reading: reading.webhooks())[name].free(self.moment(at))


@pytest.mark.parametrize("rows", stories_beside(__file__, "time.txt"))
def test_the_story_holds(house: House, rows: list[tuple[int, str]]) -> None:
    told = TimeStory(house)
    try:
        assert told.play("time.txt", rows)
    finally:
        told.end()


# Replicas of one store.


class Database(SharedStore):
    """A store with a clock of its own."""

    def __init__(self, time: ManualClock) -> None:
        super().__init__()
        self._time = time
        self.on_beat: Callable[[], None] = lambda: None
        """Called once, when the next beat is on its way."""
        self.late = timedelta(0)
        """How long the next beat takes to be committed."""

    def beat(self, replica: Replica, seen: Mapping[str, Sighting] = NOTHING) -> datetime:
        on_beat, self.on_beat = self.on_beat, lambda: None
        on_beat()
        now = self._time.now()
        beat_at, self.late = min(now, replica.beat_at) - self.late, timedelta(0)
        is_ahead = replica.beat_at - now > JUMP
        known = NOTHING if is_ahead else seen
        super().beat(msgspec.structs.replace(replica, beat_at=beat_at), known)
        return now


class ReplicaStory(ProcessStory):
    """Replicas of one store."""

    several = frozenset({"start"})
    stored: Database

    def __init__(self) -> None:
        super().__init__()
        self.time = ManualClock(NOW)
        self.stored = Database(self.time)
        self.start("first")
        self.addressed("", [])
        done(self.plane.apply_fleet(FLEET))
        self.schedule("Reboot", "web-0")
        self.due("15m")

    def start(self, *names: str) -> None:
        for name in names:
            now = self.time.now()
            process = Process(self.stored, ManualClock(now), name, at=now)
            self.processes[name] = process.start().open()

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

        self.stored.on_beat = stall

    def commit_late(self, span: str) -> None:
        self.stored.late = elapsed(span)

    def cut_off(self) -> None:
        def unanswered() -> None:
            raise StoreUnavailable("no answer")

        self.stored.on_beat = unanswered

    def stop(self) -> None:
        self.at.heartbeat.leaving = True
        self.at.heartbeat.stop()
        on_a_loop(self.at.heartbeat.run())

    def unreadable(self) -> None:
        """Guests cannot read at a replica."""
        self.at.serving = False

    def jump(self, by: str) -> None:
        self.at.real.jump(elapsed(by))

    def jump_database(self, span: str) -> None:
        self.time.jump(elapsed(span))

    # What must be so.

    def due(self, since: str, at_most: str = "") -> None:
        """How long after the beginning 1.1 starts."""
        found = self.found("1.1").not_before
        assert self.moment(since) <= found <= self.moment(at_most or since), found

    def ends(self) -> None:
        """A replica beats once more, and has seen its clock jump."""
        self.save()
        with pytest.raises(ClockJumped):
            self.at.watch.look()
        self.may_start("no")

    def goes_on(self) -> None:
        self.save()
        self.at.watch.look()

    def right(self) -> None:
        assert self.at.watch.now() == self.time.now()

    def forget(self) -> None:
        done(self.at.plane.forget(Retention()))

    def rows(self, *expected: str) -> None:
        assert [row.name for row in self.at.replicas.all()] == [*expected]

    def ahead(self, milliseconds: str) -> None:
        """Each other replica reads how far a clock is ahead."""
        rows = {row.name: row for row in self.processes["first"].replicas.all()}
        assert rows[self.at.name].clock_ahead_ms == int(milliseconds)

    def live(self, count: str) -> None:
        assert self.at.replicas.live() == int(count)

    def knows_nothing_later(self) -> None:
        """No sighting is of a later time than now."""
        seen = filter(None, map(self.at.sightings, ("web-0", "web-1")))
        assert all(each.asked_at <= self.time.now() for each in seen)

    def shares(self, other: str, machine: str) -> None:
        """What one replica has seen of a machine, the other knows."""
        assert self.processes[other].sightings(machine) == self.at.asked[machine]


@pytest.mark.parametrize("rows", stories_beside(__file__, "replicas.txt"))
def test_the_story_of_replicas_holds(rows: list[tuple[int, str]]) -> None:
    assert ReplicaStory().play("replicas.txt", rows)


def test_a_transaction_whose_time_has_jumped_decides_nothing() -> None:
    time = ManualClock(NOW)
    only = Process(Database(time), time).start().open()
    told = only.store.write

    @contextmanager
    def write() -> Iterator[Transaction]:
        with told() as transaction:
            transaction.now = time.now  # type: ignore[method-assign]
            yield transaction

    only.store.write = write  # type: ignore[method-assign]
    writer = ThreadWriter(only.store, only.watch, Changefeed(), told=only.watch)
    plane = Plane(writer, mint("w"), may_start=only.watch.may_start)
    assert plane.advance().result() == 0
    time.jump(3 * SECOND)
    with pytest.raises(ClockJumped):
        plane.advance().result()
    writer.close()


# One start.


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_turns_of_guests_show_that_the_loop_runs_and_hide_no_stall(scale: float) -> None:
    real = ManualClock(NOW)
    watch = ServiceClock(real, pace=ClockScale(scale=scale, origin=NOW))
    watch.open()

    def passes(seconds: float) -> None:
        real.advance(seconds * SECOND)

    for _ in range(100):  # the loop is busy with guests, and comes to no beat
        passes(0.9)
        watch.turn(real.monotonic())
        assert watch.may_start()
    watch.beat()
    assert watch.owed == timedelta(0)
    for _ in range(3):
        passes(1.5)
        watch.turn(real.monotonic())
    passes(1.5)
    assert not watch.may_start()
    watch.turn(real.monotonic())  # who waited at the socket is answered before the beat
    watch.beat()
    assert watch.owed == 6 * scale * SECOND


@pytest.mark.parametrize("step", [1.9 * SECOND, -1.9 * SECOND])
def test_a_small_step_is_followed_little_by_little_and_time_never_goes_back(
    step: timedelta,
) -> None:
    real = ManualClock(NOW)
    watch = ServiceClock(real)
    watch.open()
    real.jump(step)
    before = watch.now()
    for _ in range(100):
        real.advance(SECOND)
        watch.beat()
        assert 0.9 * SECOND < watch.now() - before < 1.1 * SECOND
        before = watch.now()
    assert abs(watch.now() - real.now()) < 0.001 * SECOND
    assert watch.may_start()


def test_a_clock_that_was_asked_late_or_answers_late_has_not_jumped() -> None:
    clock = ManualClock(NOW)
    watch = ServiceClock(clock, at=NOW)
    asked = watch.asking()
    clock.advance(MINUTE)  # this process stood still: the answer is of some time since
    for at in (NOW - SECOND, NOW, NOW + MINUTE, NOW + MINUTE + SECOND):
        assert watch.tell(at, asked) == at
    with pytest.raises(ClockJumped, match=r"3\.0 s ahead"):
        watch.tell(NOW + MINUTE + 3 * SECOND, asked)


# With real threads, one order at a time.

STALL = 2 * SECOND
"""Short of an outage by itself."""


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


async def test_what_holds_up_the_loop_for_short_times_moves_the_notices_by_their_sum() -> None:
    """The loop, its heartbeat and the writer's thread are real; time passes between two turns."""
    real = ManualClock(NOW)
    only = Process(InMemoryStore(), real, threaded=True)
    await only.begin()
    only.watch.open()
    only.serving = True
    done(only.plane.apply_fleet(FLEET))
    done(only.plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))))

    def not_before() -> datetime:
        return only.memory.operations["1.1"].not_before

    beating = asyncio.create_task(only.heartbeat.run())
    await patience.settled()
    for _ in range(3):
        real.advance(STALL)
        await patience.settled()

    def has_moved() -> bool:
        real.advance(SECOND / 100)  # the heartbeat tries again, by and by
        return not_before() > NOW + 15 * MINUTE

    await patience.reached(has_moved)
    only.heartbeat.stop()
    await beating
    assert not_before() == NOW + 15 * MINUTE + 3 * STALL
    only.writer.close()


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
