"""The rounds of ticker, executor and watch for returns, by a clock moved by hand: running.txt."""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

import patience
from builders import FLEET, MINUTE, NOW, SECOND, mint
from control.conftest import House, Scripted, done
from control.orders import PlaneStory
from forewarn.clock import ManualClock
from forewarn.connectors.port import Found, Outcome, Task
from forewarn.connectors.simulated import SimulatedConnector
from forewarn.control.changefeed import Changefeed
from forewarn.control.executor import RENEW_EVERY, Executor
from forewarn.control.plane import Operations, Plane, Retention
from forewarn.control.recovery import SKIPPED_NUMBERS
from forewarn.control.ticker import ReturnWatch, Rounds, Ticker
from forewarn.control.writer import Writer
from forewarn.maintenance import fleet_file, planner
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.model import Changes, Refused, Sighting, Verdict
from forewarn.store.port import StoreUnusable
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import (
    AgentStatus,
    ErrorCode,
    EventType,
)
from store.shared import lost_tail
from stories import listed, stories_beside

REBOOT = EventType.REBOOT
FOUND = {"unknown": Found.UNKNOWN, "not-done": Found.NOT_DONE}


class TroubledPlane(Plane):
    """Counts what it is asked; an answer may come late, and what was done cannot be recorded."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.asked: Counter[str] = Counter()
        self.purges = 0
        """After how many more batches there is still something to purge."""
        self.late = ""
        """The question whose next answer is held back, as a slow disk holds it."""
        self.held: list[tuple[Future[Any], Any]] = []
        self.broken: dict[str, Exception] = {}

    def advance(self, operation: str = "") -> "Future[int]":
        return self._answer("advance", super().advance(operation))

    def forget(self, keep: Retention) -> "Future[bool]":
        future = super().forget(keep)
        if self.purges:
            self.purges -= 1
            future = Future()
            future.set_result(True)
            return future
        return self._answer("forget", future)

    def record_returns(self, operations: Collection[str]) -> "Future[Operations]":
        if failed := self._failed(*operations):
            return failed
        return self._answer("record-returns", super().record_returns(operations))

    def finish(self, operation: str, attempt: int, outcome: Outcome) -> "Future[Operations]":
        self.asked["finish"] += 1
        return self._failed(operation) or super().finish(operation, attempt, outcome)

    def unknown_tasks(self, executor: str) -> "Future[tuple[Task, ...]]":
        return self._answer("unknown-tasks", super().unknown_tasks(executor))

    def _failed(self, *operations: str) -> "Future[Operations] | None":
        if not self.broken.keys() & {*operations}:
            return None
        failed: Future[Operations] = Future()
        failed.set_exception(self.broken[min(self.broken)])
        return failed

    def _answer(self, question: str, future: "Future[Any]") -> "Future[Any]":
        self.asked[question] += 1
        if self.late != question:
            return future
        self.late = ""
        late: Future[Any] = Future()
        self.held.append((late, future.result()))
        return late


class BrokenRounds(Rounds):
    """Fails as often as it is told to."""

    fails = 0
    error: Exception

    async def _round(self) -> timedelta:
        if self.fails:
            self.fails -= 1
            raise self.error
        return SECOND


ERRORS: dict[str, Exception] = {
    "defect": ArithmeticError("no"),
    "refused": Refused(ErrorCode.INVALID, "has a NUL"),
    "unreadable": StoreUnusable("no"),
}


class RunningStory(PlaneStory):
    """A house with a connector that does what it is told; all waits when a line is over."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.sightings: dict[str, Sighting] = {}
        self.house = House(plane=TroubledPlane, sighting=self.sightings.get)
        self.stored, self.clock = self.house.store, self.house.clock
        self.runner = runner
        self.acting = Scripted()
        self.told = 0
        self.committed = self.stored.commits
        self.asked: Counter[str] = Counter()
        """What the plane was asked when that was looked at last."""
        self.asked_again: list[str] = []
        self.whole = Changes()
        """What was altered, as it was before."""
        self.parts: list[tuple[Rounds, asyncio.Task[None]]] = []

    @property
    def plane(self) -> TroubledPlane:
        return self.house.plane  # type: ignore[return-value] # it is of the kind that was given

    def carry_out(self, row: str) -> None:
        super().carry_out(row)
        self.settle()

    def settle(self) -> None:
        self.runner.run(patience.settled())

    def go_to(self, elapsed: Any) -> None:
        self.clock.advance(NOW + elapsed - self.clock.now())
        self.settle()

    def until(self, span: str, naps: str = "") -> None:
        """Let time pass by seconds; there were at most so many waits for a time meanwhile."""
        waits: set[float] = set()
        while self.clock.now() < self.moment(span):
            self.clock.advance(SECOND)
            self.settle()
            waits.update(at for at, _ in self.clock._sleepers)
        assert not naps or len(waits) <= int(naps)

    def run(self, part: Any, deaf: str = "") -> None:
        if not deaf:
            self.house.feed.subscribe(part.learn)
        self.parts.append((part, self.runner.get_loop().create_task(part.run())))
        self.settle()

    def ticker(self) -> None:
        self.run(Ticker(self.plane, self.clock, Retention()))

    def start(
        self, connector: str = "", replicas: str = "1", on_unknown: Any = "ask", deaf: str = ""
    ) -> None:
        house, count = self.house, int(replicas)
        durations = {REBOOT: timedelta(0)} if connector == "succeeding" else {}
        acting = SimulatedConnector(house.clock, durations) if connector else self.acting
        executor = Executor(
            house.plane,
            acting,
            house.clock,
            "here",
            on_unknown=on_unknown,
            replicas=lambda: count,
        )
        self.run(executor, deaf)

    def hear(self, *operations: str) -> None:
        """The part that was started last hears of operations, all at once."""
        part, _ = self.parts[-1]
        part.learn(Changes(operations=tuple(map(self.found, operations))))

    def watch(self) -> None:
        """The watch for returns starts, from what the store has."""
        watch = ReturnWatch(
            self.plane,
            self.clock,
            self.sightings.get,
            lambda operation: self.asked_again.append(operation.id),
        )
        with self.stored.read() as reading:
            watch.learn(Changes(operations=tuple(reading.live_operations().values())))
        watch.begin()
        self.run(watch)

    def saw(self, *machines: str, agent: str = "") -> None:
        at, word = self.clock.now(), AgentStatus(agent) if agent else None
        seen = Sighting(asked_at=at, version="2020-07-01", agent=word)
        self.sightings |= dict.fromkeys(machines, seen)

    def forget_sightings(self) -> None:
        self.sightings.clear()

    # Trouble.

    def rounds(self) -> None:
        self.run(BrokenRounds("the part", self.clock))

    def fail(self, times: str, how: str) -> None:
        """So many of the next rounds fail."""
        BrokenRounds.fails, BrokenRounds.error = int(times), ERRORS[how]

    def interrupt(self, number: str) -> None:
        """The store is away for one transaction: the next is number 1."""
        self.stored.fails_in = int(number)

    def hold_back(self, question: str) -> None:
        self.plane.late = question

    def let_go(self) -> None:
        (late, answer), *_ = self.plane.held
        late.set_result(answer)

    def purges(self, batches: str) -> None:
        self.plane.purges = int(batches)

    def room(self, how: str) -> None:
        """The connector has room for what it is to perform, or none."""
        (self.acting.has_room.clear if how == "none" else self.acting.has_room.set)()

    def under_way(self, count: str) -> None:
        (executor,) = [part for part, _ in self.parts if isinstance(part, Executor)]
        assert executor.running == int(count)

    def closed(self, *hosts: str) -> None:
        """The last task that was begun may move machines to none of these hosts."""
        assert self.acting.tasks[-1].closed_hosts == hosts

    def broken(self, operation: str, how: str = "defect") -> None:
        """Nothing more can be recorded of an operation."""
        self.plane.broken[operation] = ERRORS[how]

    def lose_scope(self, name: str) -> None:
        self.whole = Changes(scopes=(self.look_up(lambda reading: reading.scopes())[name],))
        self.house.put(Changes(removed_scopes=(name,)))

    def spoil(self, name: str) -> None:
        """An operation is altered as no rule does it."""
        whole = self.found(name)
        self.whole = Changes(operations=(whole,))
        broken = msgspec.structs.replace(whole, held_at=NOW)
        self.house.put(Changes(operations=(broken,)))

    def mend(self) -> None:
        self.plane.broken.clear()
        self.house.put(self.whole)

    def stop(self) -> None:
        async def ended() -> None:
            tasks = [task for _, task in self.parts]
            await asyncio.wait_for(asyncio.gather(*tasks), patience.SECONDS)

        for part, _ in self.parts:
            part.stop()
        self.runner.run(ended())
        self.parts.clear()

    def doubt(self, operation: str, attempt: str) -> None:
        done(self.plane.report_unknown(operation, int(attempt), "nobody knows"))

    def repeat(self, operation: str) -> None:
        done(self.plane.resolve([operation], Verdict.REPEAT, "ann"))

    # The connector.

    def finds(self, what: str, message: str = "") -> None:
        """What the connector knows of earlier attempts."""
        outcome = Outcome(succeeded=what == "well", message=message)
        self.acting.earlier = OSError(message) if what == "raises" else FOUND.get(what, outcome)

    def ends(self, operation: str, how: str, message: str = "", hosts: str = "") -> None:
        ended = self.acting.outcomes[operation]
        if how == "raises":
            ended.set_exception(OSError(message))
            return
        message, hosts = (text.replace(r"\0", "\0") for text in (message, hosts))
        named = dict(each.split(":") for each in listed(hosts))
        outcome = Outcome(succeeded=how == "well", message=message, hosts=named)
        ended.set_result(FOUND.get(how, outcome))

    def forget(self, how: str = "") -> None:
        if how == "slowly":
            self.acting.may_forget.clear()
        else:
            self.acting.may_forget.set()

    # What must be so.

    def alerting(self) -> Iterable[Alert]:
        return (one for part, _ in self.parts for one in part.alerts())

    def obstacle(self, says: str = "") -> None:
        """Look for words in what keeps the part that was started last from all of its work."""
        found = self.parts[-1][0].obstacle
        assert says in found
        assert says or not found

    def commits(self, count: str) -> None:
        """So many were made since this was looked at last."""
        before, self.committed = self.committed, self.stored.commits
        assert self.committed - before == int(count)

    def questions(self, question: str, least: str, most: str) -> None:
        """How often the plane was asked something since this was looked at last."""
        before, self.asked[question] = self.asked[question], self.plane.asked[question]
        assert int(least) <= self.asked[question] - before <= int(most)

    def waiting_ended(self, least: str, most: str, *operations: str) -> None:
        """How often the waiting requests of operations' machines were ended since the last look."""
        assert int(least) <= len(self.asked_again) <= int(most)
        assert {*self.asked_again} == {*operations}
        self.asked_again.clear()

    def at_once(self, count: str) -> None:
        """The tasks that are performed now, for the connector and for the executor."""
        executor = self.parts[-1][0]
        assert isinstance(executor, Executor)
        assert self.acting.at_once == executor.running == int(count)

    def connector(self, *expected: str) -> None:
        told = [" ".join(map(str, each)) for each in self.acting.asked[self.told :]]
        self.told = len(self.acting.asked)
        assert told == [*expected]

    def performed(self, count: str) -> None:
        assert len(self.acting.tasks) == int(count)

    def task(self, operation: str, **told: str) -> None:
        """Compare what the connector was told of an operation."""
        (found,) = (each for each in self.acting.tasks if each.operation == operation)
        known = self.look_up(lambda reading: reading.machines())
        assert found.vm_ids == tuple(known[name.lower()].vm_id for name in found.machines)
        self.compare(found, told)

    def swept(self, *expected: str) -> None:
        assert [set(live) for live in self.acting.swept] == [{*expected}]

    def quiet(self) -> None:
        """Nothing but what is usual is logged from now on, while time passes."""
        with capture_logs() as told:
            self.clock.advance(RENEW_EVERY / 2)
            self.settle()
        assert [each for each in told if each["log_level"] != "info"] == []

    def unknown_tasks(self, executor: str, *expected: str) -> None:
        found = done(self.plane.unknown_tasks(executor))
        told = [f"{t.operation} {t.attempt} {','.join(t.claimed_elsewhere)}" for t in found]
        assert told == [*expected]


@pytest.fixture
def told() -> Iterator[RunningStory]:
    with asyncio.Runner() as runner:
        one = RunningStory(runner)
        yield one
        one.stop()
    one.house.close()


@pytest.mark.parametrize("rows", stories_beside(__file__, "running.txt"))
def test_the_story_holds(told: RunningStory, rows: list[tuple[int, str]]) -> None:
    assert told.play("running.txt", rows)


def test_a_task_that_the_store_has_lost_keeps_nothing_else_from_being_claimed(
    told: RunningStory,
) -> None:
    told.ticker()
    told.start()
    with lost_tail(told.house.store.inner):
        told.carry_out("schedule Reboot web-0 no_notice=yes")
    told.go_to(RENEW_EVERY)
    told.carry_out("schedule Reboot bastion no_notice=yes")
    told.go_to(2 * RENEW_EVERY)
    number = 1 + SKIPPED_NUMBERS + RENEW_EVERY // SECOND
    assert [task.operation for task in told.acting.tasks] == ["1.1", f"{number}.1"]


def test_thousands_that_are_due_at_once_all_start(told: RunningStory) -> None:
    count = 2500
    machines = tuple(fleet_file.StandaloneMachine(name=f"m{n}") for n in range(count))
    done(told.house.plane.apply_fleet(fleet_file.Fleet(machine=machines)))
    request = planner.Request(event_type=REBOOT, machines=tuple(m.name for m in machines))
    done(told.house.plane.request(request))
    told.ticker()
    told.start()
    told.go_to(15 * MINUTE)
    assert len(told.acting.asked) == count


async def test_the_ticker_rests_while_the_store_says_that_nothing_is_due_yet() -> None:
    clock, behind = ManualClock(NOW), ManualClock(NOW - timedelta(milliseconds=90))
    plane = TroubledPlane(Writer(InMemoryStore(), behind, Changefeed()), mint("a"))
    done(plane.apply_fleet(FLEET))
    done(plane.request(planner.Request(event_type=REBOOT, machines=("web-0",))))
    ticker = Ticker(plane, clock, Retention())
    running = asyncio.create_task(ticker.run())
    for each in (clock, behind):
        each.advance(timedelta(minutes=15))
    started = []
    for naps in range(2):
        await patience.settled()
        assert plane.asked["advance"] == naps + 1
        for each in (clock, behind):
            each.advance(timedelta(milliseconds=50))
        await patience.settled()
        started.append(done(plane.started()))
    assert started == [frozenset(), {"1.1"}]
    ticker.stop()
    await running
