"""Open pages are told of changes: joined, the same to all, and never too late."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

import patience
from forewarn.clock import ManualClock, SystemClock
from forewarn.maintenance.model import Changes
from forewarn.server.page import live
from forewarn.server.page.live import Live
from server.running import NOON

CHANGED = b"event: changed\ndata: 1772366400000\n\n"


def played(story: Callable[[Live, ManualClock], Coroutine[Any, Any, None]]) -> None:
    """Play a story with pages; the clock that ticks are measured by stands still."""

    async def play() -> None:
        real = ManualClock(NOON)
        async with asyncio.timeout(patience.SECONDS):
            await story(Live(ManualClock(NOON), real, "process"), real)

    asyncio.run(play())


async def pass_on(real: ManualClock, seconds: float = live.JOIN_SECONDS) -> None:
    """Let everybody come to his wait, let time pass, and let everybody go on."""
    for step in range(20):
        await asyncio.sleep(0)
        if step == 10:
            real.advance(timedelta(seconds=seconds))


async def begun(pages: Live, since: str | None = None) -> AsyncIterator[bytes]:
    """Return the stream of a page, which shows the present state if no other is given."""
    stream = pages.stream(pages.state if since is None else since)
    assert (await anext(stream)).startswith(b":")
    return stream


def test_a_page_that_shows_all_there_is_hears_nothing_until_something_changes() -> None:
    async def story(pages: Live, real: ManualClock) -> None:
        stream = await begun(pages)
        told = asyncio.ensure_future(anext(stream))
        pages.learn(Changes())
        await pass_on(real, live.JOIN_SECONDS / 2)
        assert not told.done()
        await pass_on(real)
        assert told.result() == CHANGED

    played(story)


def test_what_changed_between_the_page_and_its_stream_is_told_at_once() -> None:
    async def story(pages: Live, real: ManualClock) -> None:
        shown = pages.state
        pages.learn(Changes())
        await pass_on(real)
        stream = await begun(pages, shown)
        assert await anext(stream) == CHANGED

    played(story)


def test_changes_that_come_together_are_told_once() -> None:
    async def story(pages: Live, real: ManualClock) -> None:
        stream = await begun(pages)
        for _ in range(1000):
            pages.learn(Changes())
        await pass_on(real)
        assert await anext(stream) == CHANGED
        again = asyncio.ensure_future(anext(stream))
        await pass_on(real)
        assert not again.done()
        again.cancel()

    played(story)


def test_a_page_that_was_busy_hears_of_what_came_meanwhile() -> None:
    async def story(pages: Live, real: ManualClock) -> None:
        stream = await begun(pages)
        for _ in range(2):
            pages.learn(Changes())
            await pass_on(real)
        # Both were told before this page asked for the first of them.
        told = asyncio.ensure_future(anext(stream))
        await pass_on(real, 0)
        assert told.result() == CHANGED

    played(story)


def test_without_a_change_pages_hear_something_all_the_same() -> None:
    async def story(pages: Live, real: ManualClock) -> None:
        stream = await begun(pages)
        told = asyncio.ensure_future(anext(stream))
        await pass_on(real, live.TICK_SECONDS / 2)
        assert not told.done()
        await pass_on(real, live.TICK_SECONDS / 2)
        assert told.result() == CHANGED

    played(story)


def test_closing_ends_every_stream_and_lets_no_new_one_stay() -> None:
    async def story(pages: Live, _: ManualClock) -> None:
        streams = [await begun(pages) for _ in range(3)]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        pages.close()
        for each in waiting:
            with pytest.raises(StopAsyncIteration):
                await each
        with pytest.raises(StopAsyncIteration):
            await anext(await begun(pages))

    played(story)


def test_a_new_process_has_states_of_its_own() -> None:
    clocks = ManualClock(NOON), SystemClock()
    assert Live(*clocks, "one").state != Live(*clocks, "other").state
