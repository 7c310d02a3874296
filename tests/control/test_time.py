"""Outages and clocks: what is owed to guests is given before anything starts."""

import asyncio
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

import patience
from builders import MINUTE, NOW, SECOND, mint
from control.conftest import House, done
from forewarn.clock import ManualClock
from forewarn.control import webhooks
from forewarn.control.heartbeat import SETTING, Heartbeat
from forewarn.control.outbox import Follower
from forewarn.control.plane import Plane, Retention
from forewarn.control.replicas import Replicas, SharedSightings
from forewarn.control.service_clock import ClockJumped, ClockScale, Served, ServiceClock
from forewarn.control.ticker import Ticker
from forewarn.control.writer import Writer
from forewarn.maintenance import relays
from forewarn.maintenance.model import Changes, Drain, HostState, Sighting
from forewarn.maintenance.webhooks import Webhook, refused
from forewarn.store.port import Replica
from forewarn.vocabulary import EventStatus, EventType
from stories import Told, elapsed, on_a_loop, stories_beside

HOUR = timedelta(hours=1)
replace = msgspec.structs.replace


class Start:
    """One start of the service on a house's store, whose clock is the machine's own too."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.clock = house.clock
        self.watch = ServiceClock(house.clock)
        writer = Writer(house.store, self.watch, house.feed)
        self.sightings: dict[str, Sighting] = {}
        seen = self.seen = SharedSightings(self.sightings.get)
        self.plane = house.plane = Plane(
            writer,
            mint("d"),
            may_start=self.watch.may_start,
            listening=self.watch.listening,
            sighting=seen,
        )
        own = Replica(name="only", process="1", version="1", started_at=NOW, beat_at=NOW)
        follower = Follower(house.store, house.feed, house.clock)
        self.replicas = Replicas(
            house.store, own, follower, self.watch, house.clock, sightings=seen
        )
        self.heartbeat = Heartbeat(self.plane, self.watch, house.clock, self.replicas)
        on_a_loop(self.heartbeat.begin())

    def asks(self, machine: str) -> None:
        """Let a machine ask for its events."""
        self.sightings[machine] = Sighting(asked_at=self.watch.now(), version="2020-07-01")
        self.seen.hear(machine)
        done(self.plane.record_returns(["1.1"]))

    def open(self) -> "Start":
        self.watch.open()
        self.beat()
        return self

    def beat(self) -> None:
        self.watch.beat()
        on_a_loop(self.heartbeat._save())

    def live(self, time: timedelta) -> None:
        """Let time pass in which guests can read."""
        until = self.clock.now() + time
        while self.clock.now() < until:
            self.clock.advance(min(SECOND, until - self.clock.now()))
            self.watch.beat()
        self.beat()

    def status(self) -> EventStatus:
        done(self.plane.advance())
        return self.house.operation("1.1").status


class TimeStory(Told):
    """A service on a house's store, and its next starts."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.clock = house.clock
        self.now_of = Start(house).open()
        self.sightings: dict[str, Sighting] = {}
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
        """A machine asks; it may not be written down yet."""
        seen = Sighting(asked_at=self.clock.now(), version="2020-07-01")
        self.sightings[machine] = self.now_of.sightings[machine] = seen
        self.now_of.seen.hear(machine)

    def asked_before(self, machine: str) -> None:
        """The next process knows when a machine asked the one before."""
        self.now_of.sightings[machine] = self.sightings[machine]

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
        on_a_loop(self.now_of.heartbeat._save())

    def open(self) -> None:
        self.now_of.open()

    def restart(self, closed: str = "") -> None:
        self.now_of = Start(self.house)
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


setattr(TimeStory, "pass", TimeStory.pass_)


def moment(told: str) -> datetime:
    """A time by its distance from the beginning: `-2h`."""
    span = elapsed(told.lstrip("-"))
    return NOW - span if told.startswith("-") else NOW + span


@pytest.mark.parametrize("rows", stories_beside(__file__, "time.txt"))
def test_the_story_holds(house: House, rows: list[tuple[int, str]]) -> None:
    assert TimeStory(house).play("time.txt", rows)


@pytest.fixture
def start(house: House) -> Start:
    started = Start(house).open()
    house.ask(EventType.REBOOT, "web-0")
    return started


def test_a_crash_within_the_lapse_leaves_all_of_it_to_the_next_start(start: Start) -> None:
    start.clock.advance(HOUR)
    with start.house.store.write() as transaction:
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

    watch = ServiceClock(start.clock)
    writer = Writer(start.house.store, watch, start.house.feed)
    with pytest.raises(RuntimeError, match="killed here"):
        asyncio.run(Heartbeat(Dying(writer, mint("f")), watch, start.clock).begin())
    assert done(start.plane.setting(SETTING)) == before
    Start(start.house)
    assert start.house.operation("1.1").not_before == NOW + HOUR + 15 * MINUTE


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
    start.clock.jump(step)
    before = start.watch.now()
    for _ in range(100):
        start.clock.advance(SECOND)
        start.watch.beat()
        assert 0.9 * SECOND < start.watch.now() - before < 1.1 * SECOND
        before = start.watch.now()
    assert abs(start.watch.now() - start.clock.now()) < 0.001 * SECOND
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
        Hung(Writer(start.house.store, start.watch, start.house.feed), mint("h")),
        start.watch,
        start.clock,
    )

    async def let_pass(time: timedelta) -> None:
        for _ in range(int(time / SECOND * 4)):
            start.clock.advance(SECOND / 4)
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
        start.clock.advance(time)
        await patience.settled()

    ticker = Ticker(start.plane, start.watch, Retention())
    running = asyncio.create_task(ticker.run())
    start.clock.advance(10 * SECOND)
    start.watch.beat()  # what is owed is not given back here
    for _ in range(15 * 60 + 4):
        start.watch.beat()
        await let_pass(SECOND)
    assert start.house.operation("1.1").status is EventStatus.SCHEDULED
    start.watch.pay(start.watch.owed)
    await let_pass(2 * SECOND)
    assert start.house.operation("1.1").status is EventStatus.STARTED
    ticker.stop()
    await running
