"""The one writer: what shares a commit, what a failure costs, and who is told when."""

import asyncio
import gc
import random
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

import patience
from builders import FLEET, MINUTE, NOW, mint
from control import test_stress
from control.conftest import Busy, done
from control.orders import PlaneStory
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome, Task
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.control.writer import LONG_SECONDS, MAX_BATCH, Job, ThreadWriter
from forewarn.maintenance import fleet_file, news
from forewarn.maintenance.model import Changes, Hold, HoldKind, Refused, Scope
from forewarn.maintenance.planner import Request
from forewarn.store import sqlite
from forewarn.store.port import StoreUnavailable, StoreUnusable
from forewarn.store.sql import Transaction
from forewarn.vocabulary import ErrorCode, EventStatus, EventType, ScopeKind
from stories import elapsed, stories_beside

FINE = Outcome(succeeded=True, message="fine")
LEASE = timedelta(seconds=60)


def save(name: str) -> Job:
    scope = Scope(name=name, kind=ScopeKind.MACHINE, update_domains=1)

    def job(unit: UnitOfWork) -> Any:
        unit.take(Changes(scopes=(scope,)))
        return name, unit.now

    return job


def refuse(unit: UnitOfWork) -> None:
    raise Refused(ErrorCode.CONFLICT, f"no, at {unit.now}")


def fail(_: UnitOfWork) -> None:
    raise ZeroDivisionError("a defect")


class BusyFleet(Busy):
    """A busy plane with a fleet, and an executor that claims all that has started."""

    def claim(self) -> dict[str, Task]:
        acts = done(self.plane.claim("here", LEASE, 10_000))
        return {act.operation: act for act in acts}

    def finish(self, act: Task, outcome: Outcome = FINE) -> "Future[Any]":
        return self.plane.finish(act.operation, act.attempt, outcome)

    def everything(self) -> list[Any]:
        with self.store.read() as reading:
            return [
                reading.scopes(),
                reading.machines(),
                dict(sorted(reading.operations_of_events(self._events()).items())),
                reading.maintenances(range(1, 100)),
                {(t.key, t.event_type, t.operation) for t in reading.tombstones().values()},
            ]

    def _events(self) -> set[str]:
        return {e.id for changes in self.told for o in changes.operations for e in o.events}


@pytest.fixture
def busy() -> Iterator[BusyFleet]:
    built = BusyFleet(fleet=FLEET)
    yield built
    built.close()


@pytest.fixture
def threaded() -> Iterator[Busy]:
    built = Busy()
    yield built
    built.close()


class WriterStory(PlaneStory):
    """Jobs that are submitted, each in steps, and their answers."""

    def __init__(self, house: Busy) -> None:
        self.house = house
        self.stored = house.store
        self.submitted: deque[Future[Any]] = deque()

    def busy(self) -> None:
        self.house.hold()

    def free(self) -> None:
        self.house.release()

    def submit(self, *jobs: str) -> None:
        for told in jobs:
            steps = [each.partition(":") for each in told.split("+")]

            def job(unit: UnitOfWork, steps: Any = steps) -> Any:
                return [self.step(unit, what, of) for what, _, of in steps][-1]

            self.submitted.append(self.house.writer.submit(job))

    def step(self, unit: UnitOfWork, what: str, of: str) -> str:
        match what:
            case "save":
                return str(save(of)(unit)[0])
            case "hold":
                placed = Hold(kind=HoldKind.HOST, name=of, reason="", by="ann", at=NOW)
                unit.take(Changes(holds=(placed,)))
            case "put":
                unit.store.put_setting(of, "done")
            case "look":
                assert unit.store.holds()
            case "refuse":
                refuse(unit)
            case "fail":
                fail(unit)
            case "unreadable":
                raise StoreUnusable("cannot read an operation of the database")
            case "away":
                self.store("away")  # from the next transaction on
            case "wait":
                self.submit("save:behind")
                self.house.clock.advance(elapsed(of))
                raise StoreUnavailable("another program has it locked")
        return "done"

    def close(self) -> None:
        self.house.writer.close()
        read = self.house.writer.read(lambda reading: reading.scopes())
        assert isinstance(read.exception(0), StoreUnavailable)

    # What must be so.

    def answers(self, *expected: str) -> None:
        how: dict[Any, str] = {Refused: "refused", ZeroDivisionError: "defect"}
        how |= {StoreUnavailable: "away", StoreUnusable: "unreadable"}
        for each in expected:
            answer = self.submitted.popleft()
            error = answer.exception(patience.SECONDS)
            assert (how[type(error)] if error else answer.result()) == each
        assert not self.submitted

    def names(self, *expected: str) -> None:
        assert self.stored.names() == {*expected}

    def commits(self, count: str) -> None:
        assert self.stored.commits == int(count)

    def told(self, *scopes: str) -> None:
        """How many scopes each change had that the feed was told of."""
        assert [str(len(changes.scopes)) for changes in self.house.told] == [*scopes]

    def refusals(self, count: str) -> None:
        assert self.stored.refused == int(count)

    def setting(self, name: str, value: str) -> None:
        found = self.look_up(lambda reading: reading.setting(name))
        assert (found or "nothing") == value

    def news(self, *subjects: str) -> None:
        rows = self.look_up(lambda reading: reading.news_after(0, MAX_BATCH))
        assert [one.subject for row in rows for one in news.decode(row.items)] == [*subjects]


@pytest.mark.parametrize("rows", stories_beside(__file__, "writer.txt"))
def test_the_story_holds(threaded: Busy, rows: list[tuple[int, str]]) -> None:
    assert WriterStory(threaded).play("writer.txt", rows)


def test_a_batch_has_a_limit(threaded: Busy) -> None:
    threaded.hold()
    futures = [threaded.writer.submit(save("m")) for _ in range(MAX_BATCH + 1)]
    threaded.release()
    assert len([future.result(patience.SECONDS) for future in futures]) == MAX_BATCH + 1
    assert threaded.store.commits == 3


def test_what_was_refused_is_let_go_of_without_the_collector(threaded: Busy) -> None:
    class Large:
        """What a job refers to: a body of a thousand ids, or a fleet."""

    def submit() -> "weakref.ref[Large]":
        large = Large()

        def job(unit: UnitOfWork) -> None:
            assert large
            refuse(unit)

        assert threaded.writer.submit(job).exception(patience.SECONDS) is not None
        return weakref.ref(large)

    gc.disable()
    try:
        refused = submit()
        threaded.writer.submit(save("next")).result(patience.SECONDS)
        threaded.hold()  # the writer has let go of the batch before this one
        assert refused() is None
    finally:
        gc.enable()


def test_a_writer_that_is_closed_while_the_store_is_away_ends(threaded: Busy) -> None:
    closing: list[threading.Thread] = []

    def wait_in_vain(_: UnitOfWork) -> None:
        closing.append(threading.Thread(target=threaded.writer.close, daemon=True))
        closing[0].start()
        patience.until(lambda: threaded.writer._closed)
        threaded.clock.advance(timedelta(seconds=2 * LONG_SECONDS))
        raise StoreUnavailable("another program has it locked")

    with pytest.raises(StoreUnavailable):
        threaded.writer.submit(wait_in_vain).result(patience.SECONDS)
    closing[0].join(patience.SECONDS)
    assert not closing[0].is_alive()
    threaded.writer.ended.result(patience.SECONDS)


def test_the_feed_is_told_after_the_commit_and_before_the_answer(threaded: Busy) -> None:
    seen: list[tuple[set[str], bool]] = []
    futures: list[Future[Any]] = []

    def listener(_: Changes) -> None:
        seen.append((threaded.store.names(), futures[0].done()))

    threaded.feed.subscribe(listener)
    threaded.hold()
    futures.append(threaded.writer.submit(save("a")))
    threaded.release()
    futures[0].result(patience.SECONDS)
    assert seen == [({"a"}, False)]


def test_a_commit_of_several_changes_reaches_the_loop_in_one_call(threaded: Busy) -> None:
    calls: list[Any] = []

    class Loop:
        def call_soon_threadsafe(self, *call: Any) -> None:
            calls.append(call)

    def twice(unit: UnitOfWork) -> None:
        save("a")(unit)
        unit.save()
        save("b")(unit)

    threaded.feed.deliver_on(cast("asyncio.AbstractEventLoop", Loop()))
    threaded.writer.submit(twice).result(patience.SECONDS)
    assert len(calls) == 1


def test_a_listener_that_raises_ends_the_feed_and_no_answer(threaded: Busy) -> None:
    def broken(_: Changes) -> None:
        raise ZeroDivisionError

    heard: list[Changes] = []
    threaded.feed.subscribe(broken)
    threaded.feed.subscribe(heard.append)
    assert threaded.writer.submit(save("a")).result(patience.SECONDS)[0] == "a"
    assert isinstance(threaded.feed.ended.exception(patience.SECONDS), ZeroDivisionError)
    told = len(threaded.told)
    assert threaded.writer.submit(save("b")).result(patience.SECONDS)[0] == "b"
    assert (len(threaded.told), heard) == (told, []), "what is half changed is changed no more"


# Where a thread, the loop and the disk meet; `test_stress` lets chance choose the order.


class Stalled(asyncio.SelectorEventLoop):
    """A loop whose callers on other threads are put aside for a few turns after each call."""

    def call_soon_threadsafe(self, *given: Any, **more: Any) -> asyncio.Handle:
        handle = super().call_soon_threadsafe(*given, **more)
        if threading.current_thread().name == "forewarn-writer":
            turns = threading.Event()
            super().call_soon_threadsafe(super().call_soon_threadsafe, turns.set)
            turns.wait(patience.SECONDS)
        return handle


def test_a_handler_meets_memory_before_a_change_or_after_it_and_never_between(
    busy: BusyFleet,
) -> None:
    first: list[str] = []
    second: list[str] = []
    between = 0

    async def story() -> None:
        nonlocal between
        for memory in (first, second):
            busy.feed.subscribe(lambda c, known=memory: known.extend(m.name for m in c.machines))
        busy.feed.deliver_on(asyncio.get_running_loop())
        for n in range(20):
            again = {"machine": [{"name": f"m{n}"}]}
            future = busy.plane.apply_fleet(msgspec.convert(again, fleet_file.Fleet))
            while not future.done() or len(second) <= n:
                between += len(first) != len(second)
                await asyncio.sleep(0)  # so that it looks between any two turns

    with asyncio.Runner(loop_factory=Stalled) as runner:
        runner.run(story())
    assert (len(first), between) == (20, 0)


def test_a_writer_that_dies_answers_whoever_waits_and_says_so(busy: BusyFleet) -> None:
    entered, go = threading.Event(), threading.Event()

    @contextmanager
    def write() -> Iterator[Transaction]:
        entered.set()
        assert go.wait(patience.SECONDS)
        raise SystemExit
        yield

    busy.store.write = write  # type: ignore[method-assign] # a thread can die of anything
    waiting = [busy.plane.probe()]
    assert entered.wait(patience.SECONDS)
    waiting += [busy.plane.probe() for _ in range(3)]
    go.set()
    for future in waiting:
        with pytest.raises(StoreUnavailable):
            future.result(patience.SECONDS)
    ended = busy.writer.ended.exception(patience.SECONDS)
    assert isinstance(ended, StoreUnavailable)
    assert isinstance(ended.__cause__, SystemExit)
    with pytest.raises(StoreUnavailable):
        busy.plane.probe().result(patience.SECONDS)


def test_a_question_does_not_wait_for_whoever_writes(tmp_path: Path) -> None:
    store = sqlite.open_store(tmp_path / "it.db")
    writer = ThreadWriter(store, ManualClock(NOW), Changefeed())
    plane = Plane(writer, mint("a"))
    with store.write():
        waiting = plane.probe()
        assert plane.setting("s").result(patience.SECONDS) is None
        assert not waiting.done()
    waiting.result(patience.SECONDS)
    writer.close()
    store.close()


# Requests, approvals and reports that share a commit: each is decided, and answered, by itself.


@pytest.mark.parametrize(("name", "scope"), [("web-0", "web"), ("batch_0", "batch")])
def test_a_machine_that_leaves_and_comes_elsewhere_in_one_turn_never_meets_a_number_again(
    busy: BusyFleet, name: str, scope: str
) -> None:
    if scope == "batch":
        busy.ask(EventType.PREEMPT, name)
        busy.clock.advance(MINUTE)
        busy.plane.advance().result(patience.SECONDS)
        (act,) = busy.claim().values()
    else:
        busy.ask(EventType.REBOOT, name)
        busy.plane.cancel(["1"], reason="").result(patience.SECONDS)
    away = fleet_file.AvailabilitySet(name="away", machines=(fleet_file.NamedMachine(name=name),))
    wanted = fleet_file.Fleet(availability_set=(away,))
    before = busy.store.commits
    busy.hold()
    left = busy.finish(act) if scope == "batch" else busy.plane.remove_machines([name])
    applied = busy.plane.apply_fleet(wanted, again=True)
    busy.release()
    left.result(patience.SECONDS)
    assert applied.result(patience.SECONDS).added == (name,)
    assert busy.store.commits == before + 2
    with busy.store.read() as reading:
        scopes, there = reading.scopes(), reading.machines()[name]
        assert reading.tombstones() == {}
    assert there.scope == "away"
    assert scopes["away"].incarnation > scopes[scope].incarnation > 0


def test_each_approval_is_decided_on_what_the_ones_before_it_led_to(busy: BusyFleet) -> None:
    for number in range(3):
        busy.ask(EventType.REBOOT, f"web-{number}")
    events = [e.id for changes in busy.told for o in changes.operations for e in o.events]
    busy.hold()
    futures = [busy.plane.approve("web", [one], by="web-0", address="") for one in events]
    busy.release()
    operations = [future.result(patience.SECONDS)[0] for future in futures]
    assert [o.waits_for for o in operations] == ["", "1.1", "1.1"]
    started, *others = [o.status for o in operations]
    assert (started, {*others}) == (EventStatus.STARTED, {EventStatus.SCHEDULED})


def test_requests_of_one_batch_have_numbers_of_their_own_and_a_refused_one_has_none(
    busy: BusyFleet,
) -> None:
    def ask(machine: str) -> "Future[Any]":
        return busy.plane.request(Request(event_type=EventType.REBOOT, machines=(machine,)))

    commits = busy.store.commits
    busy.hold()
    asked = [ask(machine) for machine in ("web-0", "nobody", "web-0", "bastion")]
    busy.release()
    assert done(asked[0]).maintenance.number == 1
    for refused in asked[1:3]:
        with pytest.raises(Refused):
            done(refused)
    assert done(asked[3]).maintenance.number == 2
    assert busy.store.commits == commits + 2


def test_what_the_store_cannot_take_of_one_costs_the_others_nothing(tmp_path: Path) -> None:
    busy = BusyFleet(sqlite.open_store(tmp_path / "it.db"), fleet=FLEET)
    busy.ask(EventType.REBOOT, "web-0", "bastion", "firm_0", no_notice=True)
    acts = busy.claim()
    busy.hold()
    first = busy.finish(acts["1.1"])
    bad = busy.finish(acts["1.2"], Outcome(succeeded=True, message="half a \ud800 pair"))
    last = busy.finish(acts["1.3"])
    busy.release()
    assert first.result(patience.SECONDS)[0].status is EventStatus.COMPLETED
    assert last.result(patience.SECONDS)[0].status is EventStatus.COMPLETED
    with pytest.raises(UnicodeEncodeError):
        bad.result(patience.SECONDS)
    assert busy.operation("1.2").status is EventStatus.STARTED
    busy.close()


def play(seed: int, *, together: bool) -> list[list[Any]]:
    """Let maintenance of every kind end, report by report or all reports of a round at once."""
    chance = random.Random(seed)
    built = BusyFleet(fleet=test_stress.FLEET)
    sets = [f"set{n}" for n in range(4)]
    names = [f"{one}-{n}" for one in sets for n in range(6)]
    seen = []
    try:
        for _ in range(8):
            for _ in range(4):
                kind = chance.random()
                event_type = chance.choice([EventType.REBOOT, EventType.REDEPLOY])
                where: dict[str, Any] = {"machines": tuple(chance.sample(names, 3))}
                if kind < 0.3:
                    where = {"scope": chance.choice(sets)}
                elif kind < 0.6:
                    where = {"host": chance.choice(["h0", "h1", "h2", "h3"])}
                elif kind < 0.7:
                    event_type = EventType.PREEMPT
                    where = {"machines": (f"spot_{chance.randrange(20)}",)}
                request = Request(event_type=event_type, **where)
                built.plane.request(request).exception(patience.SECONDS)  # a refusal is as good
            with built.store.read() as reading:
                live = sorted(reading.live_operations())
            for operation in live:
                if chance.random() < 0.8:
                    built.plane.approve_for_guests([operation], by="ann").exception(
                        patience.SECONDS
                    )
            reports: list[tuple[str, int, Outcome | None]] = []
            for act in built.claim().values():
                hosts = {act.machines[0]: f"h{chance.randrange(4)}"}
                outcome = Outcome(
                    succeeded=chance.random() < 0.8,
                    hosts=hosts if act.event_type is EventType.REDEPLOY else {},
                )
                stale = act.attempt - (chance.random() < 0.1)
                doubted = chance.random() < 0.1
                reports.append((act.operation, stale, None if doubted else outcome))
            chance.shuffle(reports)
            report(built, reports, together=together)
            built.clock.advance(2 * LEASE)
            seen.append(built.everything())
    finally:
        built.close()
    return seen


def report(
    built: BusyFleet, reports: list[tuple[str, int, Outcome | None]], *, together: bool
) -> None:
    if together:
        built.hold()
    futures = []
    for operation, attempt, outcome in reports:
        if outcome is None:
            future: Future[Any] = built.plane.report_unknown(operation, attempt, "lost")
        else:
            future = built.plane.finish(operation, attempt, outcome)
        if not together:
            future.exception(patience.SECONDS)
        futures.append(future)
    built.release()
    for future in futures:
        error = future.exception(patience.SECONDS)
        assert error is None or isinstance(error, Refused), error


@pytest.mark.parametrize("seed", range(12))
def test_together_they_come_to_what_they_would_come_to_one_by_one(seed: int) -> None:
    assert play(seed, together=True) == play(seed, together=False)
