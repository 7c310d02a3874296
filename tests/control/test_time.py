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
from forewarn.maintenance.model import Changes, Drain, HostState, Operation, Sighting
from forewarn.maintenance.webhooks import Webhook, refused
from forewarn.store.port import Replica
from forewarn.vocabulary import EventStatus, EventType
from stories import on_a_loop

HOUR = timedelta(hours=1)
HOOK = Webhook(name="chat", url="https://example.com", secret="whsec_", cursor=(1, 0))
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

    def jumps(self, by: timedelta) -> "Start":
        """Set the wall clock; the service sees it, ends, and is started again at once."""
        self.clock.jump(by)
        with pytest.raises(ClockJumped):
            self.beat()
        return Start(self.house).open()

    def served(self) -> Served:
        return msgspec.json.decode(done(self.plane.setting(SETTING)), type=Served)

    def operation(self) -> Operation:
        return self.house.operation("1.1")

    def not_before(self) -> datetime:
        return self.operation().not_before

    def status(self) -> EventStatus:
        done(self.plane.advance())
        return self.operation().status


@pytest.fixture
def start(house: House) -> Start:
    started = Start(house).open()
    house.ask(EventType.REBOOT, "web-0")
    return started


# Outages.


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize(("up", "listens"), [(299, True), (300, False)])
def test_a_machine_that_could_not_ask_during_an_outage_is_awaited_all_the_same(
    start: Start, up: int, *, listens: bool, restarts: bool
) -> None:
    asked = Sighting(asked_at=start.clock.now(), version="2020-07-01")
    start.live(SECOND)
    start.clock.advance(2 * HOUR)
    again = Start(start.house).open() if restarts else start  # or the process stood still
    again.beat()
    again.sightings["web-0"] = asked
    again.live((up - 1) * SECOND)
    done(again.plane.approve_for_guests(["1.1"], by="ops"))
    assert again.operation().awaited == (("web-0",) if listens else ())


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
    assert start.not_before() == NOW + HOUR + 15 * MINUTE


def test_nothing_starts_before_guests_can_read(start: Start) -> None:
    start.plane.approve("web", [start.operation().events[0].id], by="web-0", address="")
    start.house.ask(EventType.REBOOT, "bastion")
    start.clock.advance(3 * SECOND)
    again = Start(start.house)
    event = start.house.operation("2.1").events[0].id
    done(again.plane.approve("bastion", [event], by="bastion", address="10.0.3.10"))
    assert start.house.operation("2.1").status is EventStatus.SCHEDULED
    assert "guests cannot read yet" in again.watch.obstacles()[0]
    again.open()
    done(again.plane.advance())
    assert start.house.operation("2.1").status is EventStatus.STARTED


@pytest.mark.parametrize("approved", [True, False])
def test_a_process_that_stood_still_starts_nothing_before_it_has_given_the_time_back(
    start: Start, approved: bool
) -> None:
    start.clock.advance(20 * MINUTE)
    if approved:
        event = start.operation().events[0].id
        done(start.plane.approve("web", [event], by="web-0", address="10.0.0.10"))
    assert start.status() is EventStatus.SCHEDULED
    assert "held up" in start.watch.obstacles()[0]
    start.watch.beat()
    assert start.status() is EventStatus.SCHEDULED
    assert "notices are extended" in start.watch.obstacles()[0]
    start.beat()
    assert start.watch.obstacles() == ()
    assert start.not_before() == NOW + 35 * MINUTE
    assert start.status() is (EventStatus.STARTED if approved else EventStatus.SCHEDULED)


def test_short_stalls_add_up_within_a_notice(start: Start) -> None:
    """Six of 4.5 s: a preemption's 30 s would have 3 s in which somebody could read."""
    start.house.ask(EventType.PREEMPT, "batch_0")
    stalled = timedelta(seconds=4.5)
    for number in range(6):
        start.live(0.5 * SECOND)
        start.clock.advance(stalled)
        done(start.plane.advance())
        assert start.house.operation("2.1").status is EventStatus.SCHEDULED, number
        start.beat()
    assert start.house.operation("2.1").not_before == NOW + 30 * SECOND + 6 * stalled
    assert start.not_before() == NOW + 15 * MINUTE + 6 * stalled
    start.live(30 * SECOND - 6 * 0.5 * SECOND)
    done(start.plane.advance())
    assert start.house.operation("2.1").status is EventStatus.STARTED


def test_short_restarts_add_up_too(start: Start) -> None:
    away = 4 * SECOND
    start.clock.advance(away)
    again = Start(start.house).open()
    assert again.served().unread_seconds == away.total_seconds()
    assert again.not_before() == NOW + 15 * MINUTE
    again.clock.advance(away)
    third = Start(start.house).open()
    assert third.not_before() == NOW + 15 * MINUTE + 2 * away
    assert third.served().unread_seconds == 0


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


# Clocks.


@pytest.mark.parametrize("jump", [24 * HOUR, 2.1 * SECOND, -2.1 * SECOND, -24 * HOUR])
def test_a_jump_ends_the_process_and_until_then_nothing_starts_and_time_goes_on(
    start: Start, jump: timedelta
) -> None:
    event = start.operation().events[0].id
    start.live(5 * MINUTE)
    start.clock.jump(jump)
    with pytest.raises(ClockJumped):
        start.watch.beat()
    assert start.watch.now() == NOW + 5 * MINUTE
    done(start.plane.approve("web", [event], by="web-0", address="10.0.0.10"))
    assert start.status() is EventStatus.SCHEDULED
    with pytest.raises(ClockJumped):
        start.watch.beat()


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


def test_while_the_store_is_away_what_is_owed_stays_owed(house: House) -> None:
    store = house.store
    start = Start(house).open()
    house.ask(EventType.REBOOT, "web-0")
    start.clock.advance(MINUTE)
    store.away = True
    start.beat()
    assert (start.watch.owed, start.watch.may_start()) == (MINUTE, False)
    store.away = False
    start.beat()
    assert start.watch.owed == timedelta(0)
    assert start.not_before() == NOW + 16 * MINUTE


def test_an_outage_counts_once_though_what_was_seen_cannot_be_written(start: Start) -> None:
    store = start.house.store
    start.sightings["web-0"] = Sighting(asked_at=NOW, version="2020-07-01")
    start.seen.hear("web-0")
    start.clock.advance(MINUTE)
    start.watch.beat()
    store.blind = True
    for _ in range(3):
        on_a_loop(start.heartbeat._save())
    assert start.watch.owed == timedelta(0)
    assert start.not_before() == NOW + 16 * MINUTE
    for blind, seen in ((True, []), (False, ["web-0"])):
        store.blind = blind
        on_a_loop(start.heartbeat._save())
        with store.read() as reading:
            assert [*reading.sightings()] == seen


def test_alone_with_the_store_a_replica_shows_itself(start: Start) -> None:
    start.clock.advance(MINUTE)
    on_a_loop(start.replicas.beat(serving=True))
    found = [(row.name, row.beat_at) for row in start.replicas.all()]
    assert found == [("only", NOW + MINUTE)]
    with start.house.store.read() as reading:
        assert reading.replicas() == {}


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
    assert start.operation().status is EventStatus.SCHEDULED
    start.watch.pay(start.watch.owed)
    await let_pass(2 * SECOND)
    assert start.operation().status is EventStatus.STARTED
    ticker.stop()
    await running


def test_leases_move_with_an_outage_and_with_a_clock_that_was_set_back(start: Start) -> None:
    event = start.operation().events[0].id
    done(start.plane.approve("web", [event], by="web-0", address="10.0.0.10"))
    done(start.plane.claim("there", MINUTE, 1))
    start.beat()
    ahead = start.jumps(2 * HOUR)
    assert done(ahead.plane.claim("here", MINUTE, 1)) == ()
    assert ahead.operation().lease_until == ahead.clock.now() + MINUTE
    again = ahead.jumps(-2 * HOUR)
    assert again.operation().lease_until == again.clock.now() + MINUTE


def test_a_drain_goes_on_after_its_clock_was_set_back_and_waits_no_longer(start: Start) -> None:
    asked_at = start.clock.now()
    drain = Drain(
        host="h0",
        state=HostState.REBOOTING,
        requested_at=asked_at,
        changed_at=asked_at,
        reboot_asked_at=asked_at,
        boot_id="boot-0",
    )
    start.house.put(Changes(drains=(drain,)))
    start.live(MINUTE)
    again = start.jumps(-2 * HOUR)
    now = again.clock.now()
    with again.house.store.read() as reading:
        found = reading.drains()["h0"]
    assert found.changed_at == now
    assert found.reboot_asked_at == now - MINUTE


def test_memory_has_the_tokens_and_webhooks_of_a_clock_that_was_set_back(start: Start) -> None:
    made = start.clock.now()
    token = replace(relays.new_token("h0", "d", by="ann", at=made), used_at=made)
    start.house.put(Changes(tokens=(token,)))
    added = done(start.plane.order(webhooks.add, HOOK))
    done(start.plane.order(webhooks.move, added, partial(refused, added, "HTTP 503")))
    start.live(MINUTE)
    again = start.jumps(-2 * HOUR)
    now = again.clock.now()
    known = done(again.plane.order(lambda unit, _: dict(unit.world.tokens)))
    assert known == {token.name: replace(token, created_at=now, used_at=now)}
    with again.house.store.read() as reading:
        assert reading.tokens() == known
        (hook,) = reading.webhooks().values()
    assert hook.free(now)
