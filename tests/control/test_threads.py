"""Where a thread, the loop and the disk meet: real threads and a real loop, one order at a time.

`test_stress` lets chance choose the order.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE, NOW, SECOND, mint
from control.conftest import Busy, Counting, Scripted, Slow, done
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.control.changefeed import Changefeed
from forewarn.control.executor import LEASE, Executor
from forewarn.control.heartbeat import Heartbeat
from forewarn.control.plane import Plane, Retention
from forewarn.control.service_clock import ServiceClock
from forewarn.control.ticker import LONGEST_NAP, LOOK_EVERY, ReturnWatch, Ticker
from forewarn.control.writer import ThreadWriter, Writer
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.model import Changes, Sighting
from forewarn.maintenance.planner import Request
from forewarn.store import sqlite
from forewarn.store.port import StoreUnavailable
from forewarn.store.sql import Transaction
from forewarn.vocabulary import AgentStatus, EventStatus, EventType

STALL = 2 * SECOND
"""Short of an outage by itself."""


class Room(Busy):
    """A control plane with its writer's own thread, on a clock that is advanced by hand."""

    plane: Slow

    @property
    def sleepers(self) -> int:
        """How many wait for the clock: a ticker or an executor that has nothing to do."""
        return len(self.clock._sleepers)


@pytest.fixture
def room() -> Iterator[Room]:
    built = Room(fleet=FLEET, plane=Slow)
    yield built
    built.close()


# The ticker.


async def test_what_is_announced_while_the_ticker_waits_for_the_store_starts_in_time(
    room: Room,
) -> None:
    ticker = Ticker(room.plane, room.clock, Retention())
    room.feed.subscribe(ticker.learn)
    room.feed.deliver_on(asyncio.get_running_loop())
    running = asyncio.create_task(ticker.run())
    room.ask(EventType.PREEMPT, "batch_0")
    await patience.reached(lambda: ticker.next_wakeup == NOW + 30 * SECOND)
    await patience.reached(lambda: room.sleepers == 1)
    room.plane.hold_back = True
    room.clock.advance(30 * SECOND)
    await patience.reached(lambda: room.plane.held)
    room.plane.hold_back = False
    assert room.operation("1.1").status is EventStatus.STARTED
    told: list[Changes] = []
    room.feed.subscribe(told.append)
    room.ask(EventType.PREEMPT, "batch_1")
    # The ticker is told of that as well, and still waits for the answer to its question.
    await patience.reached(lambda: told)
    await patience.settled()
    room.clock.advance(25 * SECOND)
    ((late, answer),) = room.plane.held
    assert answer is None
    late.set_result(answer)
    await patience.reached(lambda: room.sleepers == 1)
    room.clock.advance(5 * SECOND)
    await patience.reached(lambda: room.operation("2.1").status is EventStatus.STARTED)
    ticker.stop()
    await running


async def test_a_ticker_that_has_nothing_to_start_does_not_take_the_writers_turn(
    room: Room,
) -> None:
    ticker = Ticker(room.plane, room.clock, Retention())
    running = asyncio.create_task(ticker.run())
    await patience.reached(lambda: room.sleepers == 1)
    commits, questions = room.store.commits, room.plane.questions
    room.clock.advance(LONGEST_NAP)
    await patience.reached(lambda: room.plane.questions > questions and room.sleepers == 1)
    assert room.store.commits == commits
    ticker.stop()
    await running


# The executor.


async def rebooting(room: Room) -> tuple[Scripted, Executor, "asyncio.Task[None]"]:
    """An executor that carries out 1.1, a reboot of web-0, with its connector and its task."""
    connector = Scripted()
    executor = Executor(room.plane, connector, room.clock, "here")
    room.feed.subscribe(executor.learn)
    room.feed.deliver_on(asyncio.get_running_loop())
    running = asyncio.create_task(executor.run())
    room.ask(EventType.REBOOT, "web-0", no_notice=True)
    await patience.reached(lambda: connector.asked)
    return connector, executor, running


async def test_after_an_outage_longer_than_its_lease_an_executor_keeps_what_it_runs(
    room: Room,
) -> None:
    connector, executor, running = await rebooting(room)
    await patience.reached(lambda: room.sleepers == 1)
    room.store.away = True
    room.clock.advance(2 * LEASE)
    await patience.reached(lambda: room.store.refused > 0)
    room.store.away = False
    for _ in range(3):
        await patience.reached(lambda: room.sleepers == 1)
        room.clock.advance(2 * SECOND)
    await patience.reached(lambda: room.sleepers == 1)
    assert connector.asked == [("perform", "1.1", 1)]
    assert room.operation("1.1").lease_until > room.clock.now()
    connector.outcomes["1.1"].set_result(Outcome(succeeded=True))
    await patience.reached(lambda: room.operation("1.1").status is EventStatus.COMPLETED)
    assert room.operation("1.1").attempt == 1
    await patience.reached(lambda: executor.running == 0)
    executor.stop()
    await running


async def test_an_older_attempt_lets_go_before_the_newer_one_begins_and_takes_nothing_of_it(
    room: Room,
) -> None:
    """A claim can still run out under an executor, where its process stands still at that point."""
    connector, executor, running = await rebooting(room)
    done(room.plane.release_claims())
    await patience.reached(lambda: ("perform", "1.1", 2) in connector.asked)
    assert connector.asked == [
        ("perform", "1.1", 1),
        ("check", "1.1", 2),
        ("perform", "1.1", 2),
    ]
    assert (connector.at_once, executor.running) == (1, 1)
    connector.outcomes["1.1"].set_result(Outcome(succeeded=True))
    await patience.reached(lambda: room.operation("1.1").status is EventStatus.COMPLETED)
    assert room.operation("1.1").attempt == 2
    executor.stop()
    await running


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


def test_a_handler_meets_memory_before_a_change_or_after_it_and_never_between(room: Room) -> None:
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


def test_a_writer_that_dies_answers_whoever_waits_and_says_so(room: Room) -> None:
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
    room: Room,
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


# Machines that come back.

COMPLETED, FAILED, RETURNING = EventStatus.COMPLETED, EventStatus.FAILED, EventStatus.RETURNING


class Returning(Room):
    """One whose machines ask, with the watch for those that are back."""

    def __init__(self) -> None:
        self.sightings: dict[str, Sighting] = {}
        super().__init__(fleet=FLEET, plane=Slow, sighting=self.sightings.get)
        self.asked_again: list[str] = []
        self.watch = ReturnWatch(
            self.plane,
            self.clock,
            self.sightings.get,
            lambda operation: self.asked_again.append(operation.id),
        )

    def saw(self, *machines: str, agent: AgentStatus | None = None) -> None:
        for machine in machines:
            self.sightings[machine] = Sighting(
                asked_at=self.clock.now().replace(microsecond=0), version="2020-07-01", agent=agent
            )

    def carry_out(
        self, *machines: str, agent: AgentStatus | None = None, succeeded: bool = True
    ) -> str:
        """Carry out a reboot of machines that listened until then; return its id."""
        self.saw(*machines, agent=agent)
        (operation,) = self.ask(EventType.REBOOT, *machines).operations
        done(self.plane.approve_for_guests([operation.id], by="ann"))
        (task,) = done(self.plane.claim("e", timedelta(hours=1), 1))
        outcome = Outcome(succeeded=succeeded)
        done(self.plane.finish(operation.id, task.attempt, outcome))
        return str(operation.id)

    def status(self, operation_id: str) -> EventStatus:
        return self.operation(operation_id).status

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        """Run the watch beside a story."""

        async def both() -> None:
            self.feed.subscribe(self.watch.learn)
            self.feed.deliver_on(asyncio.get_running_loop())
            running = asyncio.create_task(self.watch.run())
            await story()
            self.watch.stop()
            await self.until(running.done)
            await running

        asyncio.run(both())

    async def until(self, question: Callable[[], object]) -> None:
        """Let the loop, the thread and the time go on until the answer is true."""

        def is_answered() -> object:
            if (answer := question()) or not self.clock._sleepers:
                return answer
            self.clock.advance(LOOK_EVERY)
            return None

        await patience.reached(is_answered)

    async def time_passes(self, seconds: float = 3.0) -> None:
        """Let the watch look a few times."""
        until = self.clock.monotonic() + seconds
        await self.until(lambda: self.clock.monotonic() >= until)


@pytest.fixture
def returning() -> Iterator[Returning]:
    built = Returning()
    yield built
    built.close()


async def test_machines_are_made_to_ask_again_each_second_until_all_are_back_and_then_it_rests(
    returning: Returning,
) -> None:
    operation = returning.carry_out("web-0", "web-3")
    await returning.time_passes(10)
    assert 8 <= len(returning.asked_again) <= 11
    assert set(returning.asked_again) == {operation}
    assert returning.status(operation) is RETURNING
    assert returning.plane.looks == []
    returning.saw("web-0")
    await returning.until(lambda: returning.operation(operation).awaited == ("web-3",))
    returning.saw("web-3")
    await returning.until(lambda: returning.status(operation) is COMPLETED)
    assert not returning.operation(operation).down
    await returning.until(lambda: not returning.watch._awaiting)
    told, naps = len(returning.asked_again), set()
    for _ in range(100):
        returning.clock.advance(SECOND)
        await patience.settled()
        naps.update(at for at, _ in returning.clock._sleepers)
    assert len(naps) < 10  # a nap of half a minute each
    returning.carry_out("bastion", agent=AgentStatus.READY, succeeded=False)
    await returning.time_passes()
    assert len(returning.asked_again) == told


async def test_what_nobody_awaits_costs_nothing(returning: Returning) -> None:
    commits = returning.store.commits
    for _ in range(100):
        returning.saw("web-0", "web-1", agent=AgentStatus.BACK)
        returning.clock.advance(SECOND)
        await patience.settled()
    assert returning.store.commits == commits
    assert returning.plane.looks == []


async def test_a_machine_that_leaves_while_the_plane_decides_is_not_forgotten(
    returning: Returning,
) -> None:
    operation = returning.carry_out("web-0", "web-3", succeeded=False)
    await returning.time_passes()
    returning.plane.hold_back = True
    done(returning.plane.remove_machines(["web-0"]))
    await returning.until(lambda: returning.plane.held)
    returning.plane.hold_back = False
    told: list[Changes] = []
    returning.feed.subscribe(told.append)
    done(returning.plane.remove_machines(["web-3"]))
    await patience.reached(lambda: told)  # so is the watch, which still waits for its answer
    await patience.settled()
    ((late, answer),) = returning.plane.held
    late.set_result(answer)
    await returning.until(lambda: not returning.operation(operation).down)
    assert returning.status(operation) is FAILED


async def test_who_left_or_asked_while_the_store_was_away_is_not_forgotten(
    returning: Returning,
) -> None:
    gone = returning.carry_out("web-0", succeeded=False)
    back = returning.carry_out("bastion")
    await returning.time_passes()
    done(returning.plane.remove_machines(["web-0"]))
    returning.store.away = True
    returning.saw("bastion")
    await returning.until(lambda: returning.store.refused > 2)
    returning.store.away = False
    await returning.until(lambda: returning.status(back) is COMPLETED)
    await returning.until(lambda: not returning.operation(gone).down)
    assert returning.status(gone) is FAILED


def test_what_was_awaited_before_a_restart_is_looked_at_once(returning: Returning) -> None:
    operation = returning.carry_out("web-0", succeeded=False)
    done(returning.plane.remove_machines(["web-0"]))
    returning.sightings.clear()
    with returning.store.read() as reading:
        returning.watch.learn(Changes(operations=tuple(reading.live_operations().values())))
        returning.watch.begin()

    async def story() -> None:
        await returning.until(lambda: not returning.operation(operation).down)
        assert [list(look) for look in returning.plane.looks] == [[operation]]

    returning.play(story)


class Behind(Plane):
    """Counts how often it is asked to go on; its store's clock is a little behind."""

    advances = 0

    def advance(self) -> "Future[int]":
        self.advances += 1
        return super().advance()


async def test_the_ticker_rests_while_the_store_says_that_nothing_is_due_yet() -> None:
    clock, store_clock = ManualClock(NOW), ManualClock(NOW - timedelta(milliseconds=90))
    store, feed = Counting(), Changefeed()
    plane = Behind(Writer(store, store_clock, feed), mint("a"))
    done(plane.apply_fleet(FLEET))
    done(plane.request(Request(event_type=EventType.REBOOT, machines=("web-0",))))
    ticker = Ticker(plane, clock, Retention())
    running = asyncio.create_task(ticker.run())
    for each in (clock, store_clock):
        each.advance(timedelta(minutes=15))
    for naps in range(2):
        await patience.reached(lambda: clock._sleepers or plane.advances > 20)
        assert plane.advances == naps + 1
        clock.advance(timedelta(milliseconds=50))
        store_clock.advance(timedelta(milliseconds=50))
        await patience.settled()
    with store.read() as reading:
        assert reading.operations(["1.1"])["1.1"].status is EventStatus.STARTED
    ticker.stop()
    await running
