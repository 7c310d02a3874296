"""The tail of the news: what it keeps, what it asks the store for, and who is told."""

import asyncio
from collections.abc import Callable
from typing import Any

import patience
from builders import NOW
from control.conftest import Counting, nothing
from forewarn.clock import SystemClock
from forewarn.control import changefeed
from forewarn.control.changefeed import NewsTail, Reached
from forewarn.maintenance import news
from forewarn.store.port import StoreUnavailable
from forewarn.store.queries import Reading
from store.story import new_change

ITEM = news.encode([news.lost(1, "r1", NOW)])
LARGE = news.encode([news.lost(1, "r" * 1000, NOW)] * 100)


def append(store: Counting, items: bytes = ITEM, skip: int = 0) -> int:
    with store.write() as transaction:
        change = new_change(str(transaction.position().sequence))
        return transaction.append(change, items, skip).sequence


def tail_of(store: Counting, followers: int = 1) -> NewsTail:
    async def ask(question: Callable[[Reading], Any]) -> object:
        def read() -> object:
            with store.read() as reading:
                return question(reading)

        return await asyncio.to_thread(read)

    tail = NewsTail(ask, SystemClock())
    with store.read() as reading:
        tail.begin(reading.position().sequence)
    tail.followers = followers
    store.reads = 0
    return tail


async def places(tail: NewsTail, sequence: int) -> list[int]:
    return [told.sequence for told in (await tail.after(sequence)).told]


async def until(tail: NewsTail, sequence: int) -> None:
    """Wait until the tail has everything up to here."""
    async with asyncio.timeout(patience.SECONDS):
        while (await tail.after(sequence - 1)).sequence < sequence:
            await tail.wait(patience.PAUSE_SECONDS)


async def test_the_writers_own_news_comes_without_the_store() -> None:
    store = Counting()
    tail = tail_of(store)

    for items in (ITEM, b"", ITEM):
        tail.learn(Reached(append(store, items), items))
    store.reads = 0
    some = await tail.after(0)
    assert [told.sequence for told in some.told] == [1, 3]
    assert some.told[0].items[0].id == "1-0"
    assert some.sequence == 3
    assert await places(tail, 1) == [3]
    assert await places(tail, 3) == []
    assert store.reads == 0


async def test_what_others_committed_is_read_once_for_all_followers() -> None:
    store = Counting()
    tail = tail_of(store, followers=3)

    tail.learn(Reached(append(store)))
    append(store)
    tail.learn(Reached(append(store), ITEM))
    await until(tail, 3)
    assert store.reads <= 2
    for _ in range(3):
        assert await places(tail, 0) == [1, 2, 3]
    assert store.reads <= 2


async def test_long_news_is_taken_apart_on_another_thread() -> None:
    assert len(LARGE) > changefeed.MAX_HANDED_OVER
    store = Counting()
    tail = tail_of(store)

    tail.learn(Reached(append(store, LARGE), LARGE))
    assert await places(tail, 0) == []
    await until(tail, 1)
    assert await places(tail, 0) == [1]
    assert store.reads == 1


async def test_nothing_is_kept_while_nobody_follows_and_nothing_is_missed() -> None:
    store = Counting()
    tail = tail_of(store, followers=0)

    tail.learn(Reached(append(store), ITEM))
    tail.learn(Reached(append(store), ITEM))
    assert await places(tail, 2) == []
    assert store.reads == 0
    assert await places(tail, 0) == [1, 2]
    assert store.reads == 1


async def test_who_is_further_behind_than_memory_goes_reads_the_store() -> None:
    store = Counting()
    tail = tail_of(store)
    rows = changefeed.MAX_KEPT_BYTES // 60_000 + 50

    item = news.encode([news.lost(1, "r" * 60_000, NOW)])
    for _ in range(rows):
        tail.learn(Reached(append(store, item), item))
    assert store.reads == 0
    sequence, seen = 0, []
    while sequence < rows:
        some = await tail.after(sequence)
        seen += [told.sequence for told in some.told]
        sequence = some.sequence
    assert seen == list(range(1, rows + 1))
    assert store.reads > 0


async def test_who_is_far_behind_holds_few_large_transactions() -> None:
    store = Counting()
    tail = tail_of(store, followers=0)
    item = news.encode([news.lost(1, "r" * 400_000, NOW)])
    for _ in range(changefeed.MAX_ROWS):
        tail.learn(Reached(append(store, item), item))
    some = await tail.after(0)
    assert ([told.sequence for told in some.told], some.sequence) == ([1, 2, 3], 3)


async def test_a_store_that_is_away_is_asked_again() -> None:
    store = Counting()
    tail = tail_of(store)

    def be_away() -> None:
        store.after_read = nothing
        raise StoreUnavailable("away")

    store.after_read = be_away
    tail.learn(Reached(append(store)))
    await until(tail, 1)
    assert await places(tail, 0) == [1]


async def test_after_a_loss_another_history_begins() -> None:
    store = Counting()
    tail = tail_of(store)

    tail.learn(Reached(append(store), ITEM))
    tail.learn(Reached(append(store, skip=10), lost=True))
    assert tail.losses == 1
    assert await places(tail, 12) == []
    tail.learn(Reached(append(store), ITEM))
    assert await places(tail, 12) == [13]
