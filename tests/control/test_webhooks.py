"""News for webhooks: in order, at least once, by one replica, however receivers behave."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import pairwise

import pytest

import patience
from builders import NOW
from control.conftest import House, done
from forewarn.control import webhooks as orders
from forewarn.control.changefeed import Reached
from forewarn.control.webhooks import LOOK_EVERY, Deliveries
from forewarn.maintenance import news
from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.model import Refused
from forewarn.maintenance.news import NewsData, NewsItem, NewsType
from forewarn.maintenance.webhooks import BEHIND, MAX_WEBHOOKS, TURN, Webhook
from forewarn.store.port import ChangeRecord
from forewarn.store.queries import Reading
from forewarn.vocabulary import ErrorCode


def item(kind: NewsType = NewsType.OPERATION_STARTED) -> NewsItem:
    return NewsItem(type=kind, at=NOW, subject="operation 1.1", data=NewsData())


class Stage(House):
    """A store, receivers, and the deliveries of replicas; time stands still until it is told."""

    def __init__(self) -> None:
        super().__init__(fleet=None)
        self.replicas: dict[str, Deliveries] = {}
        self.got: list[tuple[str, str]] = []
        """Webhooks, and the numbers of what they were sent."""
        self.sent: list[tuple[str, datetime]] = []
        """Which replica sent each of these, and when."""
        self.refusing: set[str] = set()
        """Webhooks, or the numbers of items."""
        self.silent: set[str] = set()
        self.reads = 0

    def add(self, name: str = "ours", types: tuple[str, ...] = ()) -> Webhook:
        made = Webhook(
            name=name, url=f"https://{name}.example/", types=types, secret=name, cursor=(0, 0)
        )
        added: Webhook = done(self.plane.order(orders.add, made))
        return added

    def tell(self, *items: NewsItem, by: str = "one") -> None:
        """Commit news, at a replica if that lives."""
        with self.store.write() as transaction:
            token = f"t{transaction.position().sequence}"
            change = ChangeRecord(token=token, replica=by, at=NOW, format=0, body=b"")
            told = news.encode(items)
            sequence = transaction.append(change, told).sequence
        for name, each in self.replicas.items():
            each.hear(Reached(sequence, told if name == by else None))

    def row(self, name: str = "ours") -> Webhook:
        with self.store.read() as reading:
            return reading.webhooks()[name]

    def numbers(self, name: str = "ours") -> list[str]:
        return [number for to, number in self.got if to == name]

    def alerts(self, replica: str = "one") -> list[Alert]:
        return self.replicas[replica].alerts()

    @asynccontextmanager
    async def running(self, *names: str) -> AsyncIterator[None]:
        """Run replicas until the end of the block."""
        tasks = [self.start(name) for name in names or ("one",)]
        try:
            yield
        finally:
            for each in self.replicas.values():
                each.stop()
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), patience.SECONDS)

    def start(self, name: str) -> "asyncio.Task[None]":
        async def read(question: Callable[[Reading], object]) -> object:
            self.reads += 1
            with self.store.read() as reading:
                return question(reading)

        async def send(to: Webhook, id_: str, _: bytes) -> str:
            number = id_.partition("_")[0]
            self.got.append((to.name, number))
            self.sent.append((name, self.clock.now()))
            if to.name in self.silent:
                await asyncio.Event().wait()
            return "it is down" if {to.name, number} & self.refusing else ""

        made = self.replicas[name] = Deliveries(self.plane, read, self.clock, self.clock, send)
        return asyncio.create_task(made.run())

    async def until(self, reached: Callable[[], object]) -> None:
        await patience.reached(reached, lambda: self.got)

    async def pass_time(self, whole: timedelta) -> None:
        """Let time pass in steps, so that replicas look as often as they do."""
        await patience.settled()
        for _ in range(whole // LOOK_EVERY):
            self.clock.advance(LOOK_EVERY)
            await patience.settled()


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_webhook_gets_what_it_wants_of_what_happens_after_it_was_added_in_order(
    stage: Stage,
) -> None:
    stage.tell(item())
    stage.add()
    stage.add("holds", types=("hold",))
    async with stage.running():
        stage.tell(item(), item(NewsType.HOLD_PUT))
        for _ in range(2 * orders.BATCH):
            stage.tell(item())
        stage.tell(item(NewsType.HOLD_RELEASED))
        await stage.until(lambda: len(stage.got) == 5 + 2 * orders.BATCH)
        await patience.settled()
    last = 3 + 2 * orders.BATCH
    assert stage.numbers("holds") == ["2-1", f"{last}-0"]
    assert stage.numbers() == ["2-0", "2-1", *(f"{n}-0" for n in range(3, last + 1))]
    for name in ("ours", "holds"):
        assert (stage.row(name).cursor, stage.row(name).free(NOW)) == ((last + 1, 0), True)


async def test_what_is_refused_is_tried_again_after_growing_pauses_and_before_anything_after_it(
    stage: Stage,
) -> None:
    stage.add()
    stage.refusing.add("1-1")
    async with stage.running():
        stage.tell(item(), item(), item())
        await stage.pass_time(timedelta(minutes=30))
        assert (stage.row().tries, stage.row().trouble) == (9, "it is down")
        stage.refusing.clear()
        await stage.pass_time(timedelta(minutes=10))
    assert stage.numbers() == ["1-0", *["1-1"] * 10, "1-2"]
    assert (stage.row().tries, stage.row().trouble) == (0, "")
    pauses = [(after - at).total_seconds() for (_, at), (_, after) in pairwise(stage.sent)]
    assert pauses == [0, 5, 10, 20, 40, 80, 160, 320, 600, 600, 0]


async def test_a_slow_receiver_keeps_no_other_waiting_and_is_an_alert_after_ten_minutes(
    stage: Stage,
) -> None:
    stage.add("slow")
    stage.add("quick")
    stage.silent.add("slow")
    async with stage.running():
        stage.tell(item())
        stage.tell(item())
        await stage.until(lambda: stage.numbers("quick") == ["1-0", "2-0"])
        await stage.pass_time(BEHIND - 2 * LOOK_EVERY)
        assert stage.alerts() == []
        await stage.pass_time(2 * LOOK_EVERY)
        (alert,) = stage.alerts()
        assert (alert.kind, alert.about) == (AlertKind.WEBHOOK_BEHIND, "webhook slow")
        assert alert.since == NOW
    assert stage.numbers("slow") == ["1-0"]


async def test_a_webhook_that_is_removed_gets_nothing_more_even_if_another_has_its_name(
    stage: Stage,
) -> None:
    stage.add()
    stage.refusing.add("ours")
    async with stage.running():
        stage.tell(item(), item())
        await stage.until(lambda: stage.row().tries)
        done(stage.plane.order(orders.remove, ["ours"]))
        stage.refusing.clear()
        stage.tell(item())
        await stage.pass_time(timedelta(minutes=20))
        assert stage.numbers() == ["1-0"]
        old = stage.add()
        done(stage.plane.order(orders.remove, ["ours"]))
        stage.add("ours", types=("hold",))
        assert done(stage.plane.order(orders.move, old, lambda _: old)) is None
        stage.tell(item(), item(NewsType.HOLD_PUT))
        await stage.pass_time(LOOK_EVERY)
        await stage.until(lambda: len(stage.got) == 2)
    assert stage.numbers() == ["1-0", "3-1"]


async def test_news_without_a_webhook_does_not_read_the_store_each_time(stage: Stage) -> None:
    async with stage.running():
        await stage.pass_time(LOOK_EVERY)
        before = stage.reads
        for _ in range(50):
            stage.tell(item())
            await patience.settled()
        assert stage.reads <= before + 1


async def test_replicas_never_send_side_by_side_and_each_goes_on_where_another_died(
    stage: Stage,
) -> None:
    stage.add()
    async with stage.running("one", "two"):
        for by in ("one", "two"):
            stage.tell(item(), item(), by=by)
            await stage.until(lambda: len(stage.got) % 2 == 0)
            await stage.pass_time(2 * TURN)
        assert stage.numbers() == ["1-0", "1-1", "2-0", "2-1"]
        assert [by for by, _ in stage.sent] == ["one", "one", "two", "two"]
        stage.silent.add("ours")
        stage.tell(item(), by="one")
        await stage.until(lambda: len(stage.got) == 5)
        stage.replicas.pop("one").stop()  # in the middle of it
        stage.silent.clear()
        await stage.pass_time(TURN - 2 * LOOK_EVERY)
        assert len(stage.got) == 5
        await stage.pass_time(2 * LOOK_EVERY)
    assert stage.numbers()[4:] == ["3-0", "3-0"]
    assert [by for by, _ in stage.sent[4:]] == ["one", "two"]
    assert stage.row().cursor == (4, 0)


async def test_where_the_store_is_away_or_has_lost_its_last_changes_its_row_says_what_is_next(
    stage: Stage,
) -> None:
    before = stage.add()
    async with stage.running():
        stage.tell(item())
        await stage.until(lambda: stage.row().cursor == (2, 0))
        with stage.store.write() as transaction:  # as after the promotion of a standby
            transaction.put_webhooks([before])
        await stage.pass_time(LOOK_EVERY)
        assert stage.numbers() == ["1-0", "1-0"]
        stage.tell(item())
        stage.store.away = True
        await stage.until(lambda: stage.store.refused)
        stage.store.away = False
        await stage.pass_time(TURN)
    assert stage.numbers() == ["1-0", "1-0", "2-0"]


async def test_news_that_was_deleted_before_it_was_accepted_is_missed_and_says_so(
    stage: Stage,
) -> None:
    stage.add()
    stage.refusing.add("ours")
    async with stage.running():
        stage.tell(item(), item())
        await stage.until(lambda: stage.row().tries)
        stage.tell(item())
        with stage.store.write() as transaction:
            transaction.trim_news(NOW + LOOK_EVERY, 1)
        stage.refusing.clear()
        await stage.pass_time(2 * LOOK_EVERY)
        assert [alert.about for alert in stage.alerts()] == ["webhook ours"]
        missed_at = stage.row().missed_at
        stage.clock.advance(timedelta(days=1))
        assert stage.alerts() == []
        assert stage.row().missed_at == missed_at is not None
    assert stage.numbers() == ["1-0", "2-0"]


async def test_a_quiet_time_writes_nothing(stage: Stage) -> None:
    stage.add()
    async with stage.running():
        before = stage.store.commits
        await stage.pass_time(timedelta(minutes=10))
        assert stage.store.commits == before


def test_a_name_is_given_once_there_is_a_limit_and_removal_is_of_all_or_none(stage: Stage) -> None:
    stage.add()
    with pytest.raises(Refused) as refusal:
        stage.add()
    assert refusal.value.code is ErrorCode.CONFLICT
    for number in range(MAX_WEBHOOKS - 1):
        stage.add(f"w{number}")
    with pytest.raises(Refused) as refusal:
        stage.add("more")
    assert refusal.value.code is ErrorCode.LIMIT
    with pytest.raises(Refused) as refusal:
        done(stage.plane.order(orders.remove, ["ours", "b"]))
    assert refusal.value.facts == {"what": "webhook", "name": "b"}
    assert [one.name for one in done(stage.plane.order(orders.remove, ["ours", "ours"]))] == [
        "ours"
    ]
