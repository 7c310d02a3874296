"""The watch for machines that are back, on a real loop beside the writer's own thread."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta

import pytest

import patience
from builders import FLEET, NOW, SECOND, mint
from control.conftest import Busy, Counting, Slow, done
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane, Retention
from forewarn.control.ticker import LOOK_EVERY, ReturnWatch, Ticker
from forewarn.control.writer import Writer
from forewarn.maintenance.model import Changes, Sighting
from forewarn.maintenance.planner import Request
from forewarn.vocabulary import AgentStatus, EventStatus, EventType

COMPLETED, FAILED, RETURNING = EventStatus.COMPLETED, EventStatus.FAILED, EventStatus.RETURNING


class Room(Busy):
    """A control plane whose machines ask, on a clock that is advanced by hand."""

    plane: Slow

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
def room() -> Iterator[Room]:
    built = Room()
    yield built
    built.close()


async def test_machines_are_made_to_ask_again_each_second_until_all_are_back_and_then_it_rests(
    room: Room,
) -> None:
    operation = room.carry_out("web-0", "web-3")
    await room.time_passes(10)
    assert 8 <= len(room.asked_again) <= 11
    assert set(room.asked_again) == {operation}
    assert room.status(operation) is RETURNING
    assert room.plane.looks == []
    room.saw("web-0")
    await room.until(lambda: room.operation(operation).awaited == ("web-3",))
    room.saw("web-3")
    await room.until(lambda: room.status(operation) is COMPLETED)
    assert not room.operation(operation).down
    await room.until(lambda: not room.watch._awaiting)
    told, naps = len(room.asked_again), set()
    for _ in range(100):
        room.clock.advance(SECOND)
        await patience.settled()
        naps.update(at for at, _ in room.clock._sleepers)
    assert len(naps) < 10  # a nap of half a minute each
    room.carry_out("bastion", agent=AgentStatus.READY, succeeded=False)
    await room.time_passes()
    assert len(room.asked_again) == told


async def test_what_nobody_awaits_costs_nothing(room: Room) -> None:
    commits = room.store.commits
    for _ in range(100):
        room.saw("web-0", "web-1", agent=AgentStatus.BACK)
        room.clock.advance(SECOND)
        await patience.settled()
    assert room.store.commits == commits
    assert room.plane.looks == []


async def test_a_machine_that_leaves_while_the_plane_decides_is_not_forgotten(room: Room) -> None:
    operation = room.carry_out("web-0", "web-3", succeeded=False)
    await room.time_passes()
    room.plane.hold_back = True
    done(room.plane.remove_machines(["web-0"]))
    await room.until(lambda: room.plane.held)
    room.plane.hold_back = False
    told: list[Changes] = []
    room.feed.subscribe(told.append)
    done(room.plane.remove_machines(["web-3"]))
    await patience.reached(lambda: told)  # so is the watch, which still waits for its answer
    await patience.settled()
    ((late, answer),) = room.plane.held
    late.set_result(answer)
    await room.until(lambda: not room.operation(operation).down)
    assert room.status(operation) is FAILED


async def test_who_left_or_asked_while_the_store_was_away_is_not_forgotten(room: Room) -> None:
    gone = room.carry_out("web-0", succeeded=False)
    back = room.carry_out("bastion")
    await room.time_passes()
    done(room.plane.remove_machines(["web-0"]))
    room.store.away = True
    room.saw("bastion")
    await room.until(lambda: room.store.refused > 2)
    room.store.away = False
    await room.until(lambda: room.status(back) is COMPLETED)
    await room.until(lambda: not room.operation(gone).down)
    assert room.status(gone) is FAILED


def test_what_was_awaited_before_a_restart_is_looked_at_once(room: Room) -> None:
    operation = room.carry_out("web-0", succeeded=False)
    done(room.plane.remove_machines(["web-0"]))
    room.sightings.clear()
    with room.store.read() as reading:
        room.watch.learn(Changes(operations=tuple(reading.live_operations().values())))
        room.watch.begin()

    async def story() -> None:
        await room.until(lambda: not room.operation(operation).down)
        assert [list(look) for look in room.plane.looks] == [[operation]]

    room.play(story)


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
