"""Where a thread, the loop and the disk meet: real threads and a real loop, one order at a time.

`test_stress` lets chance choose the order.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE, NOW, SECOND, mint
from control.conftest import Busy
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.heartbeat import Heartbeat
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ServiceClock
from forewarn.control.writer import ThreadWriter
from forewarn.maintenance.fleet_file import Fleet
from forewarn.store import sqlite
from forewarn.store.port import StoreUnavailable
from forewarn.store.sql import Transaction
from forewarn.vocabulary import EventType

STALL = 2 * SECOND
"""Short of an outage by itself."""


@pytest.fixture
def room() -> Iterator[Busy]:
    built = Busy(fleet=FLEET)
    yield built
    built.close()


# The changefeed.


class Stalled(asyncio.SelectorEventLoop):
    """A loop whose callers on other threads are put aside for a few turns after each call."""

    def call_soon_threadsafe(self, *given: Any, **more: Any) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(*given, **more)
        if threading.current_thread().name == "forewarn-writer":
            turns = threading.Event()
            super().call_soon_threadsafe(super().call_soon_threadsafe, turns.set)
            turns.wait(patience.SECONDS)
        return handle


def test_a_handler_meets_memory_before_a_change_or_after_it_and_never_between(room: Busy) -> None:
    first: list[str] = []
    second: list[str] = []
    between = 0

    async def story() -> None:
        nonlocal between
        for memory in (first, second):
            room.feed.subscribe(lambda c, known=memory: known.extend(m.name for m in c.machines))
        room.feed.deliver_on(asyncio.get_running_loop())
        for n in range(20):
            again = {"machine": [{"name": f"m{n}"}]}
            future = room.plane.apply_fleet(msgspec.convert(again, Fleet))
            while not future.done() or len(second) <= n:
                between += len(first) != len(second)
                await asyncio.sleep(0)  # so that it looks between any two turns

    with asyncio.Runner(loop_factory=Stalled) as runner:
        runner.run(story())
    assert (len(first), between) == (20, 0)


# The writer.


def test_a_writer_that_dies_answers_whoever_waits_and_says_so(room: Busy) -> None:
    entered, go = threading.Event(), threading.Event()

    @contextmanager
    def write() -> Iterator[Transaction]:
        entered.set()
        assert go.wait(patience.SECONDS)
        raise SystemExit
        yield

    room.store.write = write  # type: ignore[method-assign] # a thread can die of anything
    waiting = [room.plane.probe()]
    assert entered.wait(patience.SECONDS)
    waiting += [room.plane.probe() for _ in range(3)]
    go.set()
    for future in waiting:
        with pytest.raises(StoreUnavailable):
            future.result(patience.SECONDS)
    ended = room.writer.ended.exception(patience.SECONDS)
    assert isinstance(ended, StoreUnavailable)
    assert isinstance(ended.__cause__, SystemExit)
    with pytest.raises(StoreUnavailable):
        room.plane.probe().result(patience.SECONDS)


def test_a_question_does_not_wait_for_whoever_writes(tmp_path: Path) -> None:
    store = sqlite.open_store(tmp_path / "it.db")
    writer = ThreadWriter(store, ManualClock(NOW), Changefeed())
    plane = Plane(writer, mint("a"))
    with store.write():
        waiting = plane.probe()
        assert plane.next_wakeup().result(patience.SECONDS) is None
        assert not waiting.done()
    waiting.result(patience.SECONDS)
    writer.close()
    store.close()


# The clock.


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
    room: Busy,
) -> None:
    """The loop, its heartbeat and the writer's thread are real; time passes between two turns."""
    real = room.clock
    watch = ServiceClock(real)
    heartbeat = Heartbeat(room.plane, watch, real)

    def not_before() -> datetime:
        return room.operation("1.1").not_before

    await heartbeat.begin()
    watch.open()
    room.ask(EventType.REBOOT, "web-0")
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
