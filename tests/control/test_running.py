"""The ticker and the executor, on a clock that is advanced by hand: running.txt, and tasks."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

import patience
from builders import MINUTE, NOW, SECOND
from control.conftest import Counting, House, Scripted, done
from forewarn.connectors.port import Found, Outcome, Task
from forewarn.connectors.simulated import DURATIONS, SimulatedConnector
from forewarn.control.executor import RENEW_EVERY, Executor
from forewarn.control.outbox import SKIPPED_NUMBERS
from forewarn.control.plane import Plane, Retention
from forewarn.control.ticker import AFTER_TROUBLE, Rounds, Ticker
from forewarn.maintenance import fleet_file, planner
from forewarn.maintenance.model import Changes, HoldKind, Verdict
from forewarn.store.sql import Transaction
from forewarn.vocabulary import EventSource, EventStatus, EventType, TargetKind
from store.shared import lost_tail
from stories import Told, elapsed, listed, stories_beside

REBOOT = EventType.REBOOT
FOUND = {"unknown": Found.UNKNOWN, "not-done": Found.NOT_DONE}


class RunningStory(Told):
    """A house with a connector that does what it is told; all waits when a line is over."""

    def __init__(self, house: House, runner: asyncio.Runner) -> None:
        self.house = house
        self.runner = runner
        self.acting = Scripted()
        self.told = 0
        self.parts: list[tuple[Rounds | Executor, asyncio.Task[None]]] = []

    def carry_out(self, row: str) -> None:
        super().carry_out(row)
        self.settle()

    def settle(self) -> None:
        self.runner.run(patience.settled())

    def go_to(self, elapsed: Any) -> None:
        self.house.clock.advance(NOW + elapsed - self.house.clock.now())
        self.settle()

    def run(self, part: Any) -> None:
        self.house.feed.subscribe(part.learn)
        self.parts.append((part, self.runner.get_loop().create_task(part.run())))
        self.settle()

    def ticker(self) -> None:
        self.run(Ticker(self.house.plane, self.house.clock, Retention()))

    def start(self, replicas: str = "1", on_unknown: Any = "ask") -> None:
        house, count = self.house, int(replicas)
        given = (house.plane, self.acting, house.clock, "here")
        self.run(Executor(*given, on_unknown=on_unknown, replicas=lambda: count))

    def stop(self) -> None:
        async def ended() -> None:
            tasks = [task for _, task in self.parts]
            await asyncio.wait_for(asyncio.gather(*tasks), patience.SECONDS)

        for part, _ in self.parts:
            part.stop()
        self.runner.run(ended())
        self.parts.clear()

    def schedule(
        self, kind: str, *machines: str, not_before: str = "", no_notice: str = ""
    ) -> None:
        more: dict[str, Any] = {"no_notice": True} if no_notice else {}
        if not_before:
            more["not_before"] = NOW + elapsed(not_before)
        self.house.ask(EventType(kind), *machines, **more)

    def approve(self, scope: str, operation: str) -> None:
        (event,) = self.house.operation(operation).events
        done(self.house.plane.approve(scope, [event.id], by="web-0", address="10.0.0.10"))

    def cancel(self, reference: str) -> None:
        done(self.house.plane.cancel([reference], reason=""))

    def hold(self, scope: str, until: str) -> None:
        ends = NOW + elapsed(until)
        done(self.house.plane.hold(HoldKind.SCOPE, scope, reason="", by="ann", until=ends))

    def claim(self, executor: str, released: str = "") -> None:
        if released:
            self.release_claims()
        assert len(done(self.house.plane.claim(executor, MINUTE, 1))) == 1

    def release_claims(self) -> None:
        done(self.house.plane.release_claims())

    def doubt(self, operation: str, attempt: str) -> None:
        done(self.house.plane.report_unknown(operation, int(attempt), "nobody knows"))

    def repeat(self, operation: str) -> None:
        done(self.house.plane.resolve([operation], Verdict.REPEAT, "ann"))

    # The connector.

    def finds(self, what: str, message: str = "") -> None:
        """What the connector knows of earlier attempts."""
        outcome = Outcome(succeeded=what == "well", message=message)
        self.acting.earlier = FOUND.get(what, outcome)

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

    def connector(self, *expected: str) -> None:
        told = [" ".join(map(str, each)) for each in self.acting.asked[self.told :]]
        self.told = len(self.acting.asked)
        assert told == [*expected]

    def performed(self, count: str) -> None:
        assert len(self.acting.tasks) == int(count)

    def foreseen(self, operation: str) -> None:
        (task,) = (each for each in self.acting.tasks if each.operation == operation)
        assert not task.unforeseen

    def swept(self, *expected: str) -> None:
        assert [set(live) for live in self.acting.swept] == [{*expected}]

    def quiet(self) -> None:
        """Nothing but what is usual is logged from now on, while time passes."""
        with capture_logs() as told:
            self.house.clock.advance(RENEW_EVERY / 2)
            self.settle()
        assert [each for each in told if each["log_level"] != "info"] == []

    def operation(
        self, name: str, status: str, because: str = "", doubt: str = "", **told: str
    ) -> None:
        found = self.house.operation(name)
        assert because in found.outcome
        assert doubt in found.outcome_unknown
        self.compare(found, {"status": status, **told})

    def no_operation(self, name: str) -> None:
        with self.house.store.read() as reading:
            assert reading.operations([name]) == {}

    def holds(self) -> None:
        with self.house.store.read() as reading:
            assert reading.holds() == ()

    def host(self, machine: str, host: str) -> None:
        with self.house.store.read() as reading:
            assert reading.machines()[machine].host == host

    def unknown_tasks(self, executor: str, *expected: str) -> None:
        found = done(self.house.plane.unknown_tasks(executor))
        told = [f"{t.operation} {t.attempt} {','.join(t.claimed_elsewhere)}" for t in found]
        assert told == [*expected]


@pytest.fixture
def told(house: House) -> Iterator[RunningStory]:
    with asyncio.Runner() as runner:
        one = RunningStory(house, runner)
        yield one
        one.stop()


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
    assert [task.operation for task in told.acting.tasks] == ["1.1", f"{1 + SKIPPED_NUMBERS}.1"]


class Interrupted(Counting):
    """A store that is away for one transaction."""

    fails_in = 0

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        self.fails_in -= 1
        self.away = self.fails_in == 0
        with super().write() as transaction:
            yield transaction


def test_an_outcome_is_looked_for_again_after_the_store_was_away(told: RunningStory) -> None:
    store = told.house.store = Interrupted(told.house.store.inner)
    told.house.plane = told.house.plane_of(Plane)
    for row in (
        "schedule Reboot web-0 no_notice=yes",
        "claim here",
        "at 2m  claim there",
        "finds well",
        "start",
    ):
        told.carry_out(row)
    store.fails_in = 3  # the doubt is reported, the executor claims, and looks
    told.carry_out("doubt 1.1 2")
    assert store.refused == 1
    told.carry_out("operation 1.1 Started")
    told.go_to(2 * MINUTE + AFTER_TROUBLE)
    told.carry_out("operation 1.1 Completed")


def test_an_outcome_outlives_a_minute_without_the_store(told: RunningStory) -> None:
    store = told.house.store
    for row in ("start", "schedule Reboot web-0 no_notice=yes", "at 20s  finds unknown"):
        told.carry_out(row)
    store.away = True
    told.carry_out("ends 1.1 well fine")
    for passed in range(21, 100):  # longer than the claim lasts
        told.go_to(passed * SECOND)
    store.away = False
    told.go_to(102 * SECOND)
    told.carry_out('connector "perform 1.1 1" "forget 1.1 1"')
    assert told.house.operation("1.1").outcome == "fine"


async def test_a_doubt_that_is_heard_of_together_with_a_start_is_looked_at_too(
    house: House,
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("here", MINUTE, 1))
    house.clock.advance(2 * MINUTE)
    connector = Scripted()
    connector.earlier = Outcome(succeeded=True)
    executor = Executor(house.plane, connector, house.clock, "here", replicas=lambda: 9)
    done(house.plane.claim("there", MINUTE, 1))
    task = asyncio.create_task(executor.run())
    await patience.settled()
    done(house.plane.report_unknown("1.1", 2, "nobody knows"))
    house.ask(REBOOT, "bastion", no_notice=True)
    executor.learn(Changes(operations=(house.operation("2.1"), house.operation("1.1"))))
    await patience.settled()
    assert house.operation("1.1").status is EventStatus.COMPLETED
    executor.stop()
    await task


@pytest.mark.parametrize(
    ("asked", "target"),
    [
        ({"machines": ("web-0",)}, TargetKind.MACHINES),
        ({"scope": "web"}, TargetKind.SCOPE),
        ({"host": "h0"}, TargetKind.HOST),
    ],
)
def test_a_task_tells_what_was_asked_for_and_how(
    told: RunningStory, asked: dict[str, Any], target: TargetKind
) -> None:
    told.ticker()
    told.start()
    request = planner.Request(
        event_type=EventType.FREEZE, live_migration=True, no_notice=True, **asked
    )
    done(told.house.plane.request(request))
    told.settle()
    for task in told.acting.tasks:
        assert (task.target, task.live_migration) == (target, True)
        assert task.description == planner.LIVE_MIGRATION
        assert task.unforeseen
        with told.house.store.read() as reading:
            known = reading.machines()
        assert task.vm_ids == tuple(known[name.lower()].vm_id for name in task.machines)
    assert told.acting.tasks
    told.carry_out("ends 1.1 well")
    told.host("web-0", "")


async def test_a_simulated_act_lasts_its_duration_from_its_start(house: House) -> None:
    async def passes(time: timedelta) -> None:
        house.clock.advance(time)
        await patience.settled()

    connector = SimulatedConnector(house.clock, {EventType.FREEZE: timedelta(seconds=5)})
    freeze, reboot = act(EventType.FREEZE), act(REBOOT)
    house.clock.advance(2 * SECOND)
    frozen = asyncio.create_task(connector.perform(freeze))
    rebooted = asyncio.create_task(connector.perform(reboot))
    await patience.settled()
    assert await connector.check(freeze) is Found.NOT_DONE
    await passes(2 * SECOND)
    assert not frozen.done()
    await passes(SECOND)
    assert await frozen == Outcome(succeeded=True)
    assert await connector.check(freeze) == Outcome(succeeded=True)
    assert not rebooted.done()
    await passes(DURATIONS[REBOOT])
    assert await rebooted == Outcome(succeeded=True)


def act(event_type: EventType) -> Task:
    return Task(
        operation="1.1",
        attempt=1,
        event_type=event_type,
        source=EventSource.PLATFORM,
        machines=("web-0",),
        hosts=("h0",),
        vm_ids=("id-of-web-0",),
        target=TargetKind.MACHINES,
        live_migration=False,
        description="",
        duration_seconds=-1,
        started_at=NOW,
    )


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
