"""News for webhooks, whose replicas and receivers do what a story says: webhooks.txt."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import pairwise

import pytest

import patience
from builders import NOW
from control.conftest import House, done
from control.orders import PlaneStory
from forewarn.control import webhooks as orders
from forewarn.control.changefeed import Reached
from forewarn.control.plane import Plane
from forewarn.control.webhooks import LOOK_EVERY, Deliveries
from forewarn.maintenance import news
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.model import Refused
from forewarn.maintenance.news import NewsData, NewsItem, NewsType
from forewarn.maintenance.webhooks import MAX_WEBHOOKS, Webhook
from forewarn.store.port import ChangeRecord
from forewarn.store.queries import Reading
from forewarn.vocabulary import ErrorCode
from stories import RUNNER, elapsed, listed, stories_beside


class WebhookStory(PlaneStory):
    """A store, receivers, and the deliveries of replicas; time stands still until it is told."""

    settles = True

    def __init__(self) -> None:
        self.house = House(fleet=None)
        self.stored, self.clock = self.house.store, self.house.clock
        self.replicas: dict[str, Deliveries] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.sent: list[tuple[str, str, str, datetime]] = []
        """Webhooks, the numbers of what they were sent, by which replica, and when."""
        self.refusing: set[str] = set()
        """Webhooks, or the numbers of items."""
        self.silent: set[str] = set()
        self.made: dict[str, Webhook] = {}
        self.reads = 0
        self.on_read: Callable[[], object] = lambda: None
        """Called once, when something was read."""

    @property
    def plane(self) -> Plane:
        return self.house.plane

    def add(self, name: str, types: str = "") -> None:
        url = f"https://{name}.example/"
        made = Webhook(name=name, url=url, types=tuple(listed(types)), secret=name, cursor=(0, 0))
        self.made.setdefault(name, done(self.plane.order(orders.add, made)))

    def remove(self, *names: str) -> None:
        removed = done(self.plane.order(orders.remove, names))
        assert {one.name for one in removed} == {*names}
        assert len(removed) == len({*names})

    def amid_read(self, verb: str, *names: str) -> None:
        """Carry a line out when the next answer of the store is on its way."""
        self.on_read = lambda: getattr(self, verb)(*names)

    def late(self, name: str) -> None:
        """A replica has sent for the first webhook of a name, which was removed since."""
        old = self.made[name]
        assert done(self.plane.order(orders.move, old, lambda _: old)) is None

    def keep(self, name: str) -> None:
        self.made[name] = self.hook(name)

    def lose(self, name: str) -> None:
        """The store has lost what changed of a webhook since it was kept."""
        with self.stored.write() as transaction:
            transaction.put_webhooks([self.made[name]])

    def tell(self, *types: str, by: str = "one") -> None:
        """Commit news, at a replica if that lives."""
        items = [NewsItem(NewsType(t), NOW, "operation 1.1", NewsData()) for t in types]
        with self.stored.inner.write() as transaction:
            token = f"t{transaction.position().sequence}"
            change = ChangeRecord(token=token, replica=by, at=NOW, format=0, body=b"")
            told = news.encode(items)
            sequence = transaction.append(change, told).sequence
        for name, each in self.replicas.items():
            each.hear(Reached(sequence, told if name == by else None))

    def run(self, *names: str) -> None:
        async def read(question: Callable[[Reading], object]) -> object:
            self.reads += 1
            with self.stored.read() as reading:
                answer = question(reading)
            on_read, self.on_read = self.on_read, lambda: None
            on_read()
            return answer

        async def send(to: Webhook, id_: str, _: bytes, by: str) -> str:
            number = id_.partition("_")[0]
            self.sent.append((to.name, number, by, self.clock.now()))
            if to.name in self.silent:
                await asyncio.Event().wait()
            return "it is down" if {to.name, number} & self.refusing else ""

        for name in names:

            async def sends(to: Webhook, id_: str, body: bytes, by: str = name) -> str:
                return await send(to, id_, body, by)

            clock = self.clock
            made = Deliveries(self.plane, read, clock, clock, sends)
            self.replicas[name] = made
            self.tasks.append(RUNNER.get_loop().create_task(made.run()))

    def end(self) -> None:
        for each in self.replicas.values():
            each.stop()
        for task in self.tasks:
            RUNNER.run(asyncio.wait_for(task, patience.SECONDS))
        self.house.close()

    def die(self, name: str) -> None:
        self.replicas.pop(name).stop()

    def refuse(self, name: str) -> None:
        self.refusing.add(name)

    def accept(self, name: str) -> None:
        self.refusing.discard(name)

    def silence(self, name: str) -> None:
        self.silent.add(name)

    def hear(self, name: str) -> None:
        self.silent.discard(name)

    def trim(self, count: str) -> None:
        with self.stored.write() as transaction:
            assert transaction.trim_news(NOW + LOOK_EVERY, int(count)) == int(count)

    def pass_(self, span: str) -> None:
        """Let time pass in steps, so that replicas look as often as they do."""
        for _ in range(elapsed(span) // LOOK_EVERY):
            self.clock.advance(LOOK_EVERY)
            RUNNER.run(patience.settled())

    def later(self, span: str) -> None:
        super().pass_(span)

    def jump(self, by: str) -> None:
        self.clock.jump(elapsed(by))

    # What must be so.

    def hook(self, name: str) -> Webhook:
        return self.look_up(lambda reading: reading.webhooks())[name]

    def got(self, name: str, *numbers: str) -> None:
        assert [number for to, number, _, _ in self.sent if to == name] == [*numbers]

    def by(self, *replicas: str) -> None:
        assert [each for _, _, each, _ in self.sent] == [*replicas]

    def pauses(self, *seconds: str) -> None:
        times = [at for _, _, _, at in self.sent]
        assert [(after - at).total_seconds() for at, after in pairwise(times)] == [
            *map(float, seconds)
        ]

    def row(self, name: str, **told: str) -> None:
        self.compare(self.hook(name), told)

    def alerting(self) -> Iterable[Alert]:
        return self.replicas["one"].alerts()

    def quiet(self, span: str) -> None:
        before = self.stored.commits
        self.pass_(span)
        assert self.stored.commits == before


@pytest.fixture
def told() -> Iterator[WebhookStory]:
    story = WebhookStory()
    yield story
    story.end()


@pytest.mark.parametrize("rows", stories_beside(__file__, "webhooks.txt"))
def test_the_story_holds(told: WebhookStory, rows: list[tuple[int, str]]) -> None:
    assert told.play("webhooks.txt", rows)


def test_of_a_transaction_with_thousands_of_items_few_are_held_and_all_are_sent(
    told: WebhookStory,
) -> None:
    told.add("ours")
    told.tell(*["operation.started"] * (2 * orders.MAX_ITEMS + 1))
    batch = told.look_up(partial(orders._next, told.hook("ours")))
    assert (len(batch.items), batch.end) == (orders.MAX_ITEMS, (1, orders.MAX_ITEMS))
    told.run("one")
    told.pass_("5s")
    told.got("ours", *(f"1-{n}" for n in range(2 * orders.MAX_ITEMS + 1)))


def test_a_webhook_gets_what_it_wants_of_what_happens_after_it_was_added_in_order(
    told: WebhookStory,
) -> None:
    started, put = "operation.started", "hold.put"
    told.tell(started)
    told.add("ours")
    told.add("holds", types="hold")
    told.run("one")
    for items in ([started, put], *[[started]] * 2 * orders.BATCH, ["hold.released"]):
        told.tell(*items)
    told.pass_("5s")
    last = 3 + 2 * orders.BATCH
    told.got("holds", "2-1", f"{last}-0")
    told.got("ours", "2-0", "2-1", *(f"{n}-0" for n in range(3, last + 1)))
    for name in ("ours", "holds"):
        assert (told.hook(name).cursor, told.hook(name).free(NOW)) == ((last + 1, 0), True)


def test_news_without_a_webhook_does_not_read_the_store_each_time(told: WebhookStory) -> None:
    told.run("one")
    told.pass_("5s")
    before = told.reads
    for _ in range(50):
        told.carry_out("tell operation.started")
    assert told.reads <= before + 1


def test_there_is_a_limit_of_webhooks(told: WebhookStory) -> None:
    for number in range(MAX_WEBHOOKS):
        told.add(f"w{number}")
    with pytest.raises(Refused) as refusal:
        told.add("more")
    assert refusal.value.code is ErrorCode.LIMIT
