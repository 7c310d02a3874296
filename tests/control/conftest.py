"""A control plane on a database in memory, at a time that stands still until it is told."""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

import patience
from builders import FLEET, NOW, mint
from forewarn.clock import ManualClock
from forewarn.connectors.port import AsItIs, Connector, Found, Outcome, Task, unchanged
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.control.writer import ThreadWriter, Writer
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes, Operation, Policy, Queueing, Sighting
from forewarn.maintenance.planner import Plan, Request
from forewarn.maintenance.relays import Relay
from forewarn.store.port import StoreUnavailable
from forewarn.store.queries import Reading
from forewarn.store.sql import Store, Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventType
from store.wrapped import Wrapped


def done(future: "Future[Any]") -> Any:
    return future.result(timeout=patience.SECONDS)


def raising(error: Exception) -> Callable[[], None]:
    """Return what raises it."""

    def raises() -> None:
        raise error

    return raises


def put(plane: Plane, changes: Changes) -> None:
    """Change what no rule would."""
    done(plane.order(lambda unit: unit.take(changes)))


def nothing() -> None:
    """Do nothing."""


class Counting(Wrapped):
    """A real store that counts, and can be away, blind to what was seen, or in other trouble.

    `before_write`, `before_commit`, `after_commit` and `after_read` are called then: they may wait,
    or raise what the store would.
    """

    before_write: Callable[[], None] = staticmethod(nothing)
    before_commit: Callable[[], None] = staticmethod(nothing)
    after_commit: Callable[[], None] = staticmethod(nothing)
    after_read: Callable[[], None] = staticmethod(nothing)

    def __init__(self, inner: Store | None = None) -> None:
        super().__init__(inner or InMemoryStore())
        self.commits = self.reads = self.refused = 0
        self.away = self.blind = False
        self.fails_in = 0
        """It is away for this one of the next transactions."""

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        self.fails_in -= 1
        if self.away or self.fails_in == 0:
            self.refused += 1
            raise StoreUnavailable("the disk is full")
        self.before_write()
        with super().write() as transaction:
            yield transaction
            self.before_commit()
        self.commits += 1
        self.after_commit()

    @contextmanager
    def read(self) -> Iterator[Reading]:
        self.reads += 1
        with super().read() as reading:
            yield reading
        self.after_read()

    def hear(self, relays: Iterable[Relay], at: datetime | None = None) -> None:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("the disk is full")
        super().hear(relays, at)

    def see(self, seen: Mapping[str, Sighting], at: datetime) -> None:
        if self.blind:
            self.refused += 1
            raise StoreUnavailable("the disk is full")
        super().see(seen, at)

    def names(self) -> set[str]:
        with self.read() as reading:
            return {scope.name for scope in reading.scopes().values()}


class House:
    """All that a control plane is made of, wired as the service wires it, without threads.

    Args:
        store: The real one below; in memory by default.
        fleet: Applied first.
        plane: A kind of plane.
        given: What the plane is given besides.
    """

    plane: Plane

    def __init__(
        self,
        store: Store | None = None,
        fleet: fleet_file.Fleet | None = FLEET,
        plane: type[Plane] = Plane,
        **given: Any,
    ) -> None:
        self.store = Counting(store)
        self.clock = ManualClock(NOW)
        self.feed = Changefeed()
        self.told: list[Changes] = []
        self.feed.subscribe(self.told.append)
        self.mint = mint("b")
        self.plane = self.plane_of(plane, **given)
        if fleet is not None:
            done(self.plane.apply_fleet(fleet))

    def plane_of(self, kind: type[Plane], **given: Any) -> Any:
        """Return another plane, which reads the store again."""
        policy = Policy(queue=Queueing.START)
        return kind(self.new_writer(), self.mint, policy, **given)

    def new_writer(self) -> Any:
        return Writer(self.store, self.clock, self.feed)

    def put(self, changes: Changes) -> None:
        """Change what no rule would."""
        put(self.plane, changes)

    def ask(self, event_type: EventType, *machines: str, **more: Any) -> Plan:
        request = Request(event_type=event_type, machines=machines, **more)
        return done(self.plane.request(request))

    def operation(self, operation_id: str) -> Operation:
        with self.store.read() as reading:
            return reading.operations([operation_id])[operation_id]

    def incarnation(self, scope: str) -> int:
        with self.store.read() as reading:
            return reading.scopes()[scope].incarnation

    def close(self) -> None:
        self.store.close()


class Busy(House):
    """Its writer has a thread, and can be kept busy: what comes meanwhile waits for certain."""

    def __init__(self, *given: Any, fleet: fleet_file.Fleet | None = None, **named: Any) -> None:
        self._go, self._entered = threading.Event(), threading.Event()
        super().__init__(*given, fleet=fleet, **named)

    def new_writer(self) -> ThreadWriter:
        self.writer = ThreadWriter(self.store, self.clock, self.feed)
        return self.writer

    def hold(self) -> None:
        """Return when the writer is in the midst of a job that ends with `release`."""

        def job(_: UnitOfWork) -> None:
            self._entered.set()
            assert self._go.wait(patience.SECONDS)

        self._go.clear()
        self._entered.clear()
        self.writer.submit(job)
        assert self._entered.wait(patience.SECONDS)

    def release(self) -> None:
        self._go.set()

    def close(self) -> None:
        """Close it all; a writer that does not end makes its test red, and does not hang it."""
        self.release()
        closing = threading.Thread(target=self.writer.close, daemon=True)
        closing.start()
        closing.join(patience.SECONDS)
        assert not closing.is_alive()
        super().close()


class Scripted(Connector):
    """A connector that does what the test tells it, and writes down what it was asked."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.asked: list[tuple[str, str, int]] = []
        self.outcomes: dict[str, asyncio.Future[Any]] = {}
        self.earlier: Outcome | Found | Exception = Found.NOT_DONE
        self.swept: list[Collection[str]] = []
        self.at_once = 0
        """How many are being performed."""
        self.may_forget, self.has_room = asyncio.Event(), asyncio.Event()
        self.may_forget.set()
        self.has_room.set()

    async def perform(self, act: Task, as_it_is: AsItIs = unchanged) -> Any:
        await self.has_room.wait()
        act = await as_it_is(act)
        self.tasks.append(act)
        self.asked.append(("perform", act.operation, act.attempt))
        self.outcomes[act.operation] = asyncio.get_running_loop().create_future()
        self.at_once += 1
        try:
            return await self.outcomes[act.operation]
        finally:
            self.at_once -= 1

    async def check(self, act: Task) -> Outcome | Found:
        self.asked.append(("check", act.operation, act.attempt))
        if isinstance(self.earlier, Exception):
            raise self.earlier
        return self.earlier

    async def forget(self, act: Task) -> None:
        self.asked.append(("forget", act.operation, act.attempt))
        await self.may_forget.wait()

    async def sweep(self, live: Collection[str]) -> None:
        self.swept.append(live)


@pytest.fixture
def house() -> Iterator[House]:
    built = House()
    yield built
    built.close()
