"""Deliveries to webhooks: in order, at least once, by one replica, however receivers behave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

import patience
from builders import NOW
from control.conftest import Counting, done
from forewarn.clock import ManualClock
from forewarn.control import webhooks as orders
from forewarn.control.changefeed import Changefeed, Reached
from forewarn.control.plane import Plane
from forewarn.control.webhooks import Deliveries, Place
from forewarn.control.writer import InlineWriter
from forewarn.maintenance import news
from forewarn.maintenance.model import Refused
from forewarn.maintenance.news import NewsData, NewsItem, NewsType
from forewarn.maintenance.webhooks import GIVE_UP, LEASE, MAX_WEBHOOKS, DeliveryFailure, Webhook
from forewarn.store import memory
from forewarn.store.port import NewChange, Reading, Store
from forewarn.vocabulary import ErrorCode

DOWN = DeliveryFailure(reason="down", status=503)


def webhook(name: str = "ours", **fields: object) -> Webhook:
    known = {
        "url": f"https://{name}.example/",
        "secret": "whsec_",
        "created_by": "ann",
        "created_at": NOW,
        "done_sequence": 0,
    }
    return Webhook(name=name, **{**known, **fields})  # type: ignore[arg-type]


def item(kind: NewsType = NewsType.OPERATION_STARTED, count: int = 0) -> NewsItem:
    return NewsItem(type=kind, at=NOW, subject="operation 1.1", data=NewsData(count=count))


class Receivers:
    """What each webhook was sent, and what it answers."""

    def __init__(self) -> None:
        self.got: list[tuple[str, Place]] = []
        self.refusing: dict[str, DeliveryFailure] = {}
        self.slow: dict[str, asyncio.Event] = {}

    async def send(self, to: Webhook, place: Place, _: NewsItem) -> DeliveryFailure | None:
        if to.name in self.slow:
            await self.slow[to.name].wait()
        if to.name in self.refusing:
            self.got.append((f"{to.name} refused", place))
            return self.refusing[to.name]
        self.got.append((to.name, place))
        return None

    def places(self, name: str = "ours") -> list[Place]:
        return [place for to, place in self.got if to == name]


class Stage:
    """A store, its clocks, and the deliveries of replicas."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or memory.MemoryStore()
        self.clock = ManualClock(NOW)
        self.real = ManualClock(NOW)
        self.plane = Plane(InlineWriter(self.store, self.clock, Changefeed()), lambda: "id")
        self.receivers = Receivers()
        self.all: list[Deliveries] = []

    def add(self, name: str = "ours", **fields: object) -> Webhook:
        added: Webhook = done(self.plane.order(orders.add, webhook(name, **fields)))
        return added

    def tell(self, *items: NewsItem) -> None:
        with self.store.write() as transaction:
            token = f"t{transaction.position().sequence}"
            change = NewChange(token=token, replica="one", at=NOW, format=1, body=b"")
            transaction.append(change, news.encode(items))
        for each in self.all:
            each.hear(Reached(transaction.position().sequence))

    def row(self, name: str = "ours") -> Webhook:
        with self.store.read() as reading:
            return reading.webhooks()[name]

    @asynccontextmanager
    async def delivering(self, replica: str = "one") -> AsyncIterator[Deliveries]:
        async def read(question: Callable[[Reading], object]) -> object:
            with self.store.read() as reading:
                return question(reading)

        made = Deliveries(
            plane=self.plane,
            read=read,
            clock=self.clock,
            real=self.real,
            replica=replica,
            send=self.receivers.send,
            chance=lambda: 0.5,
        )
        self.all.append(made)
        running = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            self.all.remove(made)
            made.stop()
            await asyncio.wait_for(running, patience.SECONDS)

    async def until(self, reached: Callable[[], object]) -> None:
        await patience.reached(reached, lambda: self.receivers.got)

    async def until_by_then(self, seconds: float, reached: Callable[[], object]) -> None:
        """Let time pass, so many seconds at a time, until that is reached."""
        for _ in range(100):
            if reached():
                return
            await self.pass_time(seconds)
        raise AssertionError(f"not reached; {self.receivers.got}")

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        self.real.advance(timedelta(seconds=seconds))
        await patience.settled()


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_webhook_is_told_of_what_happens_after_it_was_added_in_order(stage: Stage) -> None:
    async def play() -> None:
        stage.tell(item())
        stage.add()
        async with stage.delivering():
            stage.tell(item(), item())
            stage.tell(item())
            await stage.until(lambda: len(stage.receivers.got) == 3)
        assert stage.receivers.places() == [(2, 0), (2, 1), (3, 0)]

    asyncio.run(play())
    row = stage.row()
    assert (row.done_sequence, row.delivered) == (3, 3)
    assert (row.holder, row.lease_until) == ("one", None)


def test_more_news_than_is_read_at_once_is_all_delivered(stage: Stage) -> None:
    stage.add()
    for _ in range(3 * orders.BATCH):
        stage.tell(item(), item(NewsType.HOLD_PUT))

    async def play() -> None:
        async with stage.delivering():
            await stage.until(lambda: len(stage.receivers.got) == 6 * orders.BATCH)

    asyncio.run(play())
    assert stage.receivers.places() == sorted(stage.receivers.places())


def test_only_the_types_that_it_names_are_delivered(stage: Stage) -> None:
    stage.add(types=("hold.*",))
    stage.tell(item(), item(NewsType.HOLD_PUT), item())
    stage.tell(item(NewsType.HOLD_RELEASED))

    async def play() -> None:
        async with stage.delivering():
            await stage.until(lambda: len(stage.receivers.got) == 2)

    asyncio.run(play())
    assert stage.receivers.places() == [(1, 1), (2, 0)]


def test_what_is_refused_is_tried_again_before_anything_after_it(stage: Stage) -> None:
    stage.add()
    stage.receivers.refusing["ours"] = DOWN
    stage.tell(item(), item())

    async def play() -> None:
        async with stage.delivering():
            await stage.until(lambda: stage.row().tries == 1)
            stage.tell(item())
            await patience.settled()
            await stage.pass_time(4)
            assert stage.receivers.got == [("ours refused", (1, 0))]
            await stage.until_by_then(2, lambda: stage.row().tries == 2)
            del stage.receivers.refusing["ours"]
            await stage.until_by_then(12, lambda: len(stage.receivers.places()) == 3)

    asyncio.run(play())
    assert stage.receivers.places() == [(1, 0), (1, 1), (2, 0)]
    assert stage.receivers.places("ours refused") == [(1, 0), (1, 0)]


def test_a_webhook_that_accepts_nothing_for_a_day_is_disabled_until_a_test_succeeds(
    stage: Stage,
) -> None:
    added = stage.add()
    stage.receivers.refusing["ours"] = DOWN
    stage.tell(item())

    async def play() -> None:
        async with stage.delivering() as deliveries:
            await stage.until(lambda: stage.row().tries == 1)
            await stage.until_by_then(
                1800, lambda: deliveries.webhooks["ours"].disabled_at is not None
            )
            assert stage.clock.now() - NOW >= GIVE_UP
            tries = len(stage.receivers.got)
            stage.tell(item())
            await stage.pass_time(3600)
            assert len(stage.receivers.got) == tries
            del stage.receivers.refusing["ours"]
            done(stage.plane.order(orders.enable, added))
            deliveries.look()
            await stage.until(lambda: len(stage.receivers.places()) == 2)

    asyncio.run(play())
    assert stage.receivers.places() == [(1, 0), (2, 0)]
    assert stage.row().disabled_at is None


def test_a_test_that_succeeds_ends_the_wait_for_the_next_try(stage: Stage) -> None:
    added = stage.add()
    stage.receivers.refusing["ours"] = DOWN
    stage.tell(item())

    async def play() -> None:
        async with stage.delivering() as deliveries:
            await stage.until(lambda: stage.row().tries == 1)
            del stage.receivers.refusing["ours"]
            done(stage.plane.order(orders.enable, added))
            deliveries.look()
            await stage.until(stage.receivers.places)

    asyncio.run(play())
    assert stage.receivers.places() == [(1, 0)]
    assert stage.clock.now() == NOW


def test_a_slow_receiver_keeps_no_other_waiting(stage: Stage) -> None:
    stage.add("slow")
    stage.add("quick")

    async def play() -> None:
        stage.receivers.slow["slow"] = asyncio.Event()
        async with stage.delivering() as deliveries:
            stage.tell(item())
            stage.tell(item())
            await stage.until(lambda: len(stage.receivers.places("quick")) == 2)
            assert stage.receivers.places("slow") == []
            stage.clock.advance(timedelta(seconds=30))
            assert deliveries.waiting_seconds() == {"quick": 0.0, "slow": 30.0}
            stage.receivers.slow["slow"].set()
            await stage.until(lambda: len(stage.receivers.places("slow")) == 2)
            await stage.until(lambda: deliveries.waiting_seconds()["slow"] == 0.0)
        assert deliveries.accepted == {"quick": 2, "slow": 2}

    asyncio.run(play())


def test_a_webhook_that_is_removed_is_told_of_nothing_more(stage: Stage) -> None:
    stage.add()

    async def play() -> None:
        async with stage.delivering() as deliveries:
            await stage.until(lambda: "ours" in deliveries.waiting_seconds())
            done(stage.plane.order(orders.remove, ["ours"]))
            deliveries.look()
            await stage.until(lambda: deliveries.waiting_seconds() == {})
            stage.tell(item())
            await patience.settled()
            assert stage.receivers.got == []
            stage.add()
            deliveries.look()
            stage.tell(item())
            await stage.until(lambda: stage.receivers.got)

    asyncio.run(play())
    assert stage.receivers.places() == [(2, 0)]


def test_one_that_is_added_again_by_its_name_does_not_get_the_place_of_the_old_one(
    stage: Stage,
) -> None:
    stage.add()
    stage.tell(item())

    async def play() -> None:
        stage.receivers.slow["ours"] = asyncio.Event()
        async with stage.delivering() as deliveries:
            await stage.until(lambda: "ours" in deliveries.waiting_seconds())
            await patience.settled()
            done(stage.plane.order(orders.remove, ["ours"]))
            stage.clock.advance(timedelta(seconds=1))
            stage.add()
            stage.receivers.slow.pop("ours").set()
            await patience.settled()
            assert stage.row().delivered == 0
            deliveries.look()
            stage.tell(item())
            await stage.until(lambda: (2, 0) in stage.receivers.places())
            stage.real.advance(timedelta(seconds=2))

    asyncio.run(play())


def test_how_far_a_webhook_is_that_was_removed_is_not_written_down(stage: Stage) -> None:
    old = stage.add()
    done(stage.plane.order(orders.remove, ["ours"]))
    assert done(stage.plane.order(orders.note, old, "one")) is None
    stage.clock.advance(timedelta(seconds=1))
    stage.add()
    done(stage.plane.order(orders.claim, "one"))
    assert done(stage.plane.order(orders.note, old, "one")) is None
    assert done(stage.plane.order(orders.note, stage.row(), "two")) is None
    assert done(stage.plane.order(orders.note, stage.row(), "one")) == stage.row()


def test_what_a_webhook_is_not_told_of_is_written_down_at_the_end(stage: Stage) -> None:
    stage.add(types=("hold.*",))
    stage.tell(item(), item())

    async def play() -> None:
        async with stage.delivering() as deliveries:
            await stage.until(lambda: "ours" in deliveries.waiting_seconds())
            await patience.settled()

    asyncio.run(play())
    assert (stage.row().place, stage.row().delivered) == ((1, 1), 0)


def test_two_replicas_never_deliver_to_one_webhook_at_a_time(stage: Stage) -> None:
    stage.add()

    async def play() -> None:
        async with stage.delivering("one") as one:
            await stage.until(lambda: "ours" in one.waiting_seconds())
            async with stage.delivering("two") as two:
                stage.tell(item())
                await stage.until(lambda: stage.receivers.places() == [(1, 0)])
                for _ in range(20):  # the lease is renewed as time goes by
                    await stage.pass_time(LEASE.total_seconds() / 8)
                assert two.waiting_seconds() == {}
                assert stage.row().holder == "one"
                one.stop()
                await stage.until(lambda: stage.row().lease_until is None)
                two.look()
                stage.tell(item())
                await stage.until(lambda: len(stage.receivers.places()) == 2)
                assert stage.row().holder == "two"

    asyncio.run(play())
    assert stage.receivers.places() == [(1, 0), (2, 0)]


def test_a_replica_that_stood_still_lets_another_deliver_in_its_place(stage: Stage) -> None:
    stage.add()

    async def play() -> None:
        async with stage.delivering("one") as one:
            await stage.until(lambda: "ours" in one.waiting_seconds())
            stage.clock.advance(LEASE)  # and `one`, whose real clock stands still, has not looked
            async with stage.delivering("two") as two:
                await stage.until(lambda: "ours" in two.waiting_seconds())
                stage.tell(item())
                await stage.until(lambda: stage.receivers.got)
                await stage.until(lambda: "ours" not in one.waiting_seconds())
                await patience.settled()
                assert stage.row().holder == "two"

    asyncio.run(play())
    assert stage.receivers.places() == [(1, 0)]


def test_what_is_delivered_while_the_store_is_away_is_delivered_again_at_most(
    stage: Stage,
) -> None:
    away = Counting(stage.store)
    stage = Stage(away)
    stage.add()

    async def play() -> None:
        async with stage.delivering() as deliveries:
            await stage.until(lambda: "ours" in deliveries.waiting_seconds())
            stage.tell(item())
            away.away = True
            await stage.until(lambda: away.refused)
            away.away = False
            stage.tell(item())
            await stage.until_by_then(2, lambda: stage.row().done_sequence == 2)

    asyncio.run(play())
    places = stage.receivers.places()
    assert places == sorted(places)
    assert set(places) == {(1, 0), (2, 0)}


def test_a_store_that_lost_its_last_changes_says_where_to_go_on(stage: Stage) -> None:
    stage.add()
    stage.tell(item())

    async def play() -> None:
        async with stage.delivering() as deliveries:
            await stage.until(lambda: stage.row().delivered == 1)
            before = stage.row()
            stage.tell(item())
            await stage.until_by_then(2, lambda: stage.row().delivered == 2)
            with stage.store.write() as transaction:  # as after the promotion of a standby
                transaction.put_webhooks([before])
            deliveries.look()
            await stage.until(lambda: len(stage.receivers.got) == 3)

    asyncio.run(play())
    assert stage.receivers.places() == [(1, 0), (2, 0), (2, 0)]


def test_a_quiet_time_writes_nothing(stage: Stage) -> None:
    counting = Counting(stage.store)
    stage = Stage(counting)
    stage.add()

    async def play() -> None:
        async with stage.delivering() as deliveries:
            await stage.until(lambda: "ours" in deliveries.waiting_seconds())
            before = counting.commits
            stage.real.advance(timedelta(seconds=600))
            await patience.settled()
            assert counting.commits == before

    asyncio.run(play())


def test_a_name_is_given_once_and_there_is_a_limit(stage: Stage) -> None:
    stage.add()
    with pytest.raises(Refused) as refusal:
        stage.add()
    assert refusal.value.code is ErrorCode.CONFLICT
    for number in range(MAX_WEBHOOKS - 1):
        stage.add(f"w{number}")
    with pytest.raises(Refused) as refusal:
        stage.add("more")
    assert refusal.value.code is ErrorCode.LIMIT


def test_webhooks_are_removed_together_or_not_at_all(stage: Stage) -> None:
    stage.add("a")
    with pytest.raises(Refused) as refusal:
        done(stage.plane.order(orders.remove, ["a", "b"]))
    assert refusal.value.facts == {"what": "webhook", "name": "b"}
    assert [one.name for one in done(stage.plane.order(orders.remove, ["a", "a"]))] == ["a"]
    with pytest.raises(Refused):
        done(stage.plane.order(orders.enable, webhook("a")))
