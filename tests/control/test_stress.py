"""Ticker, executor, inventory, writer and changefeed with real threads, put aside at random.

A fleet is kept busy by operators and guests on threads of their own, on a clock that runs 300 times
as fast, over a database file. The store stalls, is away for longer than a lease, and commits late;
connectors fail and lose results; machines ask, or stay away, and agents say how they fare. What
must hold is judged at each change and at the end, when the
store, what memory has of it, and what was answered must agree. A failure tells its seed, which
chooses the stalls and the requests; the machine chooses the order.
"""

import asyncio
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import patience
from control.conftest import Counting
from forewarn.clock import SystemClock
from forewarn.connectors.port import AsItIs, Connector, Found, Outcome, Task, unchanged
from forewarn.control.control_plane import ControlPlane, ServicePart
from forewarn.control.executor import Executor
from forewarn.control.plane import Retention
from forewarn.control.service_clock import ClockScale, ServiceClock
from forewarn.control.ticker import Ticker
from forewarn.control.writer import ThreadWriter
from forewarn.maintenance import invariants, model
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.planner import Request
from forewarn.maintenance.world import LiveState, World
from forewarn.server.operator.inventory import Inventory
from forewarn.store import sqlite
from forewarn.store.port import StoreUnavailable
from forewarn.store.queries import Reading
from forewarn.store.sql import Store
from forewarn.vocabulary import AgentStatus, EventStatus, EventType
from store.story import replica

SCALE = 300.0
"""Fifteen minutes' notice is three seconds, and a lease is a fifth of a second."""

AWAY_FOR = 6.0 / SCALE
"""How long a request waits for a store that is away: twenty of them take longer than a lease."""

FLEET = msgspec.convert(
    {
        "availability_set": [
            {
                "name": f"set{s}",
                "update_domains": 3,
                "machines": [{"name": f"set{s}-{n}", "host": f"h{n % 4}"} for n in range(6)],
            }
            for s in range(4)
        ],
        "scale_set": [
            {
                "name": "spot",
                "priority": "low",
                "machines": [{"index": n, "host": f"h{n % 4}"} for n in range(20)],
            }
        ],
    },
    Fleet,
)


class Chance:
    """A seed's own randomness for one thread, and the stalls that it orders."""

    def __init__(self, seed: int, thread: str) -> None:
        self.random = random.Random(f"{seed} {thread}")

    def stall(self, often: float = 0.3) -> None:
        """Be put aside: mostly not, seldom for longer than a lease."""
        if self.random.random() < often:
            longest = 0.3 if self.random.random() < 0.05 else 0.01
            threading.Event().wait(self.random.random() * longest)


class Stalling(Counting):
    """A real store that stalls at each step, and is away now and then."""

    def __init__(self, inner: Store, chance: Chance) -> None:
        super().__init__(inner)
        self._chance = chance
        self._refusals = 0
        self.calm = False

    def before_write(self) -> None:
        if self.calm:
            return
        self._chance.stall()
        if self._chance.random.random() < 0.004:
            self._refusals = self._chance.random.randint(1, 20)
        if self._refusals:
            self._refusals -= 1
            threading.Event().wait(AWAY_FOR)
            raise StoreUnavailable("the disk is full")

    def before_commit(self) -> None:
        if not self.calm:
            self._chance.stall(0.1)


class HurriedConnector(Connector):
    """Takes its time, fails, loses results; and notices two attempts at once."""

    def __init__(self, clock: ServiceClock, chance: Chance, wrong: list[str]) -> None:
        self._clock = clock
        self._random = chance.random
        self._wrong = wrong
        self._under_way: dict[str, int] = {}
        self.performed = 0

    async def perform(
        self, task: Task, as_it_is: AsItIs = unchanged
    ) -> Outcome | Literal[Found.UNKNOWN]:
        task = await as_it_is(task)
        with self._alone(task):
            self.performed += 1
            await self._clock.wait(self._random.uniform(0, 90), asyncio.Event())
            fate = self._random.random()
            if fate < 0.05:
                return Found.UNKNOWN
            return Outcome(succeeded=fate > 0.15, message="as chance has it")

    async def check(self, task: Task) -> Outcome | Found:
        with self._alone(task):
            return self._random.choice([Found.NOT_DONE, Outcome(succeeded=True)])

    @contextmanager
    def _alone(self, task: Task) -> Iterator[None]:
        other = self._under_way.setdefault(task.operation, task.attempt)
        if other != task.attempt:
            self._wrong.append(f"{task.operation}: attempts {other} and {task.attempt} at once")
        try:
            yield
        finally:
            self._under_way.pop(task.operation, None)


class Mirror:
    """What a listener before the inventory keeps: machines, and the operations a second time."""

    def __init__(self, wrong: list[str]) -> None:
        self.machines: dict[str, model.Machine] = {}
        self.live: dict[str, model.Operation] = {}
        self.incarnations: dict[str, int] = {}
        self._wrong = wrong

    def learn(self, changes: model.Changes) -> None:
        for name in changes.removed_machines:
            del self.machines[name]
        self.machines.update((machine.key, machine) for machine in changes.machines)
        for operation in changes.operations:
            before = self.live.pop(operation.id, None)
            if before is not None and before.attempt > operation.attempt:
                self._wrong.append(f"{operation.id} was told of out of order")
            if operation.live:
                self.live[operation.id] = operation
        for scope in changes.scopes:
            if scope.incarnation < self.incarnations.get(scope.key, 0):
                self._wrong.append(f"{scope.key} went back to {scope.incarnation}")
            self.incarnations[scope.key] = scope.incarnation


class Stress:
    """All of it, from one seed."""

    def __init__(self, seed: int, path: Path) -> None:
        self.seed = seed
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self.approvals: dict[str, model.Approval] = {}
        """What was answered, by event."""
        self.sightings: dict[str, model.Sighting] = {}
        """What the machines' requests told last; replaced on the loop, read by the writer."""
        self.waited: set[str] = set()
        """Operations whose machines were to ask again."""
        real = SystemClock()
        pace = ClockScale(scale=SCALE, origin=real.now())
        self.clock = self.watch = ServiceClock(real, pace=pace)
        self.store = Stalling(sqlite.open_store(path), Chance(seed, "store"))
        numbers = itertools.count(1)
        self.control = ControlPlane(
            store=self.store,
            clock=self.watch,
            real=real,
            own=replica("here", beat_at=real.now()),
            mint=lambda: f"{next(numbers):08X}-0000-4000-8000-000000000000",
            policy=model.Policy(settle=timedelta(seconds=20)),
            may_start=self.watch.may_start,
            sighting=self.sightings.get,
            ask_again=lambda operation: self.waited.add(operation.id),
            kind=ThreadWriter,
        )
        self.plane = self.control.plane
        self.ticker = Ticker(self.plane, self.watch, Retention())
        self.connector = HurriedConnector(self.clock, Chance(seed, "connector"), self.wrong)
        self.executor = Executor(self.plane, self.connector, self.watch, "here")
        self.mirror = Mirror(self.wrong)
        self.inventory = Inventory(self.mirror.machines, lambda _: None)
        self.stop = threading.Event()

    # On the loop.

    async def play(self, requests: int) -> None:
        """Keep everybody busy until so many requests were taken; then let all of it end."""
        loop = asyncio.get_running_loop()
        heartbeat, returns = self.control.heartbeat, self.control.returns
        await self.control.begin()
        self.control.fill(
            ServicePart(learn=part.learn)
            for part in (self.mirror, self.inventory, self.ticker, self.executor, returns)
        )
        self.control.feed.deliver_on(loop)
        self.watch.open()
        await self._asked(lambda: self.plane.apply_fleet(FLEET))
        parts = (heartbeat, self.ticker, self.executor, returns)
        tasks = [asyncio.create_task(part.run()) for part in parts]
        polls = asyncio.create_task(self._poll(Chance(self.seed, "polls").random))
        actors = [self._guest] * 3 + [self._operator] * 2
        threads = [
            threading.Thread(target=actor, args=(Chance(self.seed, f"{actor.__name__} {n}"), loop))
            for n, actor in enumerate(actors)
        ]
        for thread in threads:
            thread.start()

        def is_over() -> bool:
            self._look()
            return self.counts["request"] >= requests and self.counts["approve"] > 0

        await patience.reached(is_over)
        self.stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join, patience.SECONDS)
            assert not thread.is_alive()
        await self._settle()
        polls.cancel()
        for part in parts:
            part.stop()
        await asyncio.gather(*tasks)
        await patience.settled()  # what was published is delivered

    def _look(self) -> None:
        """Be a handler, between any two callbacks of the loop."""
        if self.mirror.live.keys() != self.inventory.operations.keys():
            self.wrong.append("a handler met half of a change")

    async def _poll(self, chance: random.Random) -> None:
        """Let machines ask, one after another; some are away for a while, and some agents speak."""
        words = [None, None, *AgentStatus]
        while True:
            for machine in list(self.mirror.machines.values()):
                if chance.random() < 0.5 or self.stop.is_set():
                    known = self.sightings.get(machine.key)
                    agent = chance.choice(words) or (known and known.agent)
                    if self.stop.is_set():
                        agent = agent and AgentStatus.BACK
                    second = self.watch.now().replace(microsecond=0)
                    self.sightings[machine.key] = model.Sighting(
                        asked_at=second, version="2020-07-01", agent=agent
                    )
            await self.clock.wait(chance.uniform(1, 30), asyncio.Event())

    async def _settle(self) -> None:
        self.store.calm = True
        for hold in await asyncio.to_thread(self._read, lambda reading: reading.holds()):
            await self._asked(lambda h=hold: self.plane.release(h.kind, h.name))
        async with asyncio.timeout(patience.SECONDS):
            while live := await asyncio.to_thread(
                self._read, lambda reading: reading.live_operations()
            ):
                for operation in live.values():
                    if operation.status is EventStatus.SCHEDULED and not operation.approved:
                        await self._asked(
                            lambda o=operation: self.plane.approve_for_guests([o.id], by="anna")
                        )
                    if operation.status is EventStatus.FAILED:
                        await self._asked(
                            lambda o=operation: self.plane.acknowledge(
                                [o.id], by="anna", even_if_down=True
                            )
                        )
                    if operation.outcome_unknown:
                        await self._asked(lambda o=operation: self._resolved(o))
                await self.clock.wait(SCALE * patience.PAUSE_SECONDS, asyncio.Event())

    def _resolved(self, operation: model.Operation) -> Any:
        return self.plane.resolve([operation.id], model.Verdict.SUCCEEDED, "anna")

    async def _asked(self, question: Callable[[], Any]) -> None:
        while True:
            try:
                await asyncio.wrap_future(question())
            except StoreUnavailable:
                continue
            except model.Refused:
                return
            return

    def _read(self, question: Callable[[Reading], Any]) -> Any:
        with self.store.read() as reading:
            return question(reading)

    # On threads of their own.

    def _guest(self, chance: Chance, loop: asyncio.AbstractEventLoop) -> None:
        while not self.stop.is_set():
            chance.stall()
            live = self._live(loop)
            if not live:
                continue
            event = chance.random.choice(chance.random.choice(live).events)
            future = self.plane.approve(event.scope, [event.id], by="guest", address="")
            if (answer := self._answer("approve", future)) is None:
                continue
            (approval,) = [e.approval for o in answer for e in o.events if e.id == event.id]
            if approval is not None and self.approvals.setdefault(event.id, approval) != approval:
                self.wrong.append(f"{event.id} was approved twice")

    def _operator(self, chance: Chance, loop: asyncio.AbstractEventLoop) -> None:
        moves = [self._request] * 6 + [self._cancel, self._hold, self._release, self._resolve]
        while not self.stop.is_set():
            chance.stall(0.5)
            chance.random.choice(moves)(chance, self._live(loop))

    def _live(self, loop: asyncio.AbstractEventLoop) -> tuple[model.Operation, ...]:
        """Return immutable values that the loop's thread has taken."""

        async def taken() -> tuple[model.Operation, ...]:
            return tuple(self.inventory.operations.values())

        return asyncio.run_coroutine_threadsafe(taken(), loop).result(patience.SECONDS)

    def _request(self, chance: Chance, _: tuple[model.Operation, ...]) -> None:
        choice = chance.random.choice
        asked: dict[str, Any] = choice(
            [
                {"machines": (f"set{choice('0123')}-{choice('012345')}",)},
                {"machines": (f"set{choice('0123')}-{choice('012345')}",), "no_notice": True},
                {"scope": f"set{choice('0123')}"},
                {"host": f"h{choice('0123')}"},
                {"machines": (f"spot_{chance.random.randrange(20)}",)},
            ]
        )
        spot = asked.get("machines", ("",))[0].startswith("spot")
        event_type = EventType.PREEMPT if spot else EventType.REBOOT
        request = Request(event_type=event_type, **asked)
        self._answer("request", self.plane.request(request))

    def _cancel(self, chance: Chance, live: tuple[model.Operation, ...]) -> None:
        if live:
            operation = chance.random.choice(live)
            self._answer("cancel", self.plane.cancel([operation.id], reason="changed our minds"))

    def _hold(self, chance: Chance, _: tuple[model.Operation, ...]) -> None:
        name = f"set{chance.random.choice('0123')}"
        self._answer("hold", self.plane.hold(model.HoldKind.SCOPE, name, reason="storm", by="anna"))

    def _release(self, chance: Chance, _: tuple[model.Operation, ...]) -> None:
        name = f"set{chance.random.choice('0123')}"
        self._answer("release", self.plane.release(model.HoldKind.SCOPE, name))

    def _resolve(self, chance: Chance, live: tuple[model.Operation, ...]) -> None:
        for operation in live:
            if operation.outcome_unknown:
                verdict = chance.random.choice(list(model.Verdict))
                self._answer("resolve", self.plane.resolve([operation.id], verdict, "anna"))

    def _answer(self, what: str, future: Any) -> Any:
        try:
            answer = future.result(patience.SECONDS)
        except (model.Refused, StoreUnavailable) as error:
            self.counts[f"{what}: {type(error).__name__}"] += 1
            return None
        self.counts[what] += 1
        return answer

    # At the end.

    def judge(self) -> None:
        """Hold the store, memory and what was answered against each other."""
        assert not self.wrong, self.wrong[:5]
        assert not self.control.feed.ended.done()
        assert not self.control.writer.ended.done()
        with self.store.read() as reading:
            scopes, machines = reading.scopes(), reading.machines()
            maintenances = range(1, 1 + self.counts["request"] + self.counts["request: Refused"])
            told = [reading.operations_of_maintenance(number) for number in maintenances]
            for event_id, approval in self.approvals.items():
                (operation,) = reading.operations_of_events([event_id]).values()
                assert approval in [event.approval for event in operation.events]
        operations = {id_: operation for each in told for id_, operation in each.items()}
        invariants.check(World(LiveState(scopes, machines, operations)))
        assert self.inventory.scopes == scopes
        assert self.mirror.machines == machines
        assert self.inventory.operations == {}
        assert self.executor.running == 0
        returning = {o.id for o in operations.values() if o.carried_out_at is not None}
        self.counts["returning"] = len(returning)
        assert self.waited <= returning
        for operation in operations.values():
            assert operation.status.over, operation
            assert not operation.down, operation
            assert {model.key(name) for name in operation.reporting} <= self.sightings.keys()
            started = operation.status is not EventStatus.CANCELED
            assert (operation.attempt > 0) == started, operation
        self.counts["operations"] = len(operations)


def stress(seed: int, path: Path, requests: int) -> Stress:
    played = Stress(seed, path)
    try:
        asyncio.run(played.play(requests))
        played.judge()
    except BaseException as error:
        error.add_note(f"seed {seed}: {dict(played.counts)}")
        raise
    finally:
        played.control.writer.close()
        played.store.close()
    return played


def test_threads_the_loop_and_the_disk_agree_after_random_stalls(tmp_path: Path) -> None:
    counts = stress(1, tmp_path / "forewarn.db", 30).counts
    assert min(counts["approve"], counts["request"], counts["operations"]) > 0
    assert counts["returning"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_they_agree_for_long_and_from_many_seeds(tmp_path: Path, seed: int) -> None:
    assert stress(seed, tmp_path / "forewarn.db", 100).counts["operations"] > 0
