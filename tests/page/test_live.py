"""Open pages are told of changes, windows share answers, and templates are compiled."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import patience
from forewarn.clock import ManualClock, SystemClock
from forewarn.maintenance.model import Changes
from forewarn.server.page import live, rendering
from forewarn.server.page.live import MAX_KEPT, Live, SharedAnswers
from forewarn.store.sqlite import InMemoryStore
from server.running import NOON, Running, settings_in

CHANGED = b"event: changed\ndata: 1772366400000\n\n"


@pytest.fixture
def real() -> ManualClock:
    """The clock that ticks are measured by; it stands still."""
    return ManualClock(NOON)


@pytest.fixture
def pages(real: ManualClock) -> Live:
    return Live(ManualClock(NOON), real, "process")


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


async def test_a_page_that_shows_all_there_is_hears_nothing_until_something_changes(
    pages: Live, real: ManualClock
) -> None:
    stream = await begun(pages)
    told = asyncio.ensure_future(anext(stream))
    pages.learn(Changes())
    await pass_on(real, live.JOIN_SECONDS / 2)
    assert not told.done()
    await pass_on(real)
    assert told.result() == CHANGED


async def test_what_changed_between_the_page_and_its_stream_is_told_at_once(
    pages: Live, real: ManualClock
) -> None:
    shown = pages.state
    pages.learn(Changes())
    await pass_on(real)
    stream = await begun(pages, shown)
    assert await anext(stream) == CHANGED


async def test_changes_that_come_together_are_told_once(pages: Live, real: ManualClock) -> None:
    stream = await begun(pages)
    for _ in range(1000):
        pages.learn(Changes())
    await pass_on(real)
    assert await anext(stream) == CHANGED
    again = asyncio.ensure_future(anext(stream))
    await pass_on(real)
    assert not again.done()
    again.cancel()


async def test_a_page_that_was_busy_hears_what_came_then(pages: Live, real: ManualClock) -> None:
    stream = await begun(pages)
    for _ in range(2):
        pages.learn(Changes())
        await pass_on(real)
    # Both were told before this page asked for the first of them.
    told = asyncio.ensure_future(anext(stream))
    await pass_on(real, 0)
    assert told.result() == CHANGED


async def test_without_a_change_pages_hear_something_too(pages: Live, real: ManualClock) -> None:
    stream = await begun(pages)
    told = asyncio.ensure_future(anext(stream))
    await pass_on(real, live.TICK_SECONDS / 2)
    assert not told.done()
    await pass_on(real, live.TICK_SECONDS / 2)
    assert told.result() == CHANGED


async def test_closing_ends_every_stream_and_lets_no_new_one_stay(pages: Live) -> None:
    streams = [await begun(pages) for _ in range(3)]
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    pages.close()
    for each in waiting:
        with pytest.raises(StopAsyncIteration):
            await each
    with pytest.raises(StopAsyncIteration):
        await anext(await begun(pages))


def test_a_new_process_has_states_of_its_own() -> None:
    clocks = ManualClock(NOON), SystemClock()
    assert Live(*clocks, "one").state != Live(*clocks, "other").state


class Counted:
    def __init__(self) -> None:
        self.times = 0
        self.fails = False

    async def __call__(self) -> int:
        self.times += 1
        await asyncio.sleep(0)
        if self.fails:
            raise LookupError
        return self.times


async def test_windows_that_ask_together_cost_one_answer_until_something_changes() -> None:
    shared, make = SharedAnswers(), Counted()
    assert await asyncio.gather(*(shared.get("list", 1, make) for _ in range(20))) == [1] * 20
    asked = (("list", 1), ("list", 2), ("other", 2), ("list", 1))
    assert [await shared.get(key, state, make) for key, state in asked] == [1, 2, 3, 4]
    assert len(shared._made) == 1
    for number in range(MAX_KEPT + 5):
        await shared.get(number, 1, make)
    assert len(shared._made) == MAX_KEPT


async def test_what_failed_is_tried_again_and_a_closed_window_takes_nobodys_answer() -> None:
    shared, make = SharedAnswers(), Counted()
    make.fails = True
    with pytest.raises(LookupError):
        await shared.get("list", 1, make)
    make.fails = False
    closed = asyncio.ensure_future(shared.get("list", 1, make))
    await asyncio.sleep(0)
    closed.cancel()
    assert await shared.get("list", 1, make) == 2


def test_a_service_compiles_every_template_before_anybody_asks(tmp_path: Path) -> None:
    templates = rendering.environment()
    assert templates.cache is not None
    templates.cache.clear()
    wanted = settings_in(tmp_path, listen="127.0.0.1:0")
    with Running(wanted, InMemoryStore()) as running:
        assert running.client().ask("GET", "/healthz").status == 200
        names = set(templates.list_templates())
        patience.until(lambda: {name for _, name in templates.cache or {}} == names)
