"""A control plane on a database in memory, at a time that stands still until it is told."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

import patience
from builders import FLEET, NOW, mint
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.writer import Writer
from forewarn.maintenance.model import Changes, Operation, Policy, Queueing
from forewarn.maintenance.planner import Plan, Request
from forewarn.store.port import StoreUnavailable
from forewarn.store.sql import Store, Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventType
from store.wrapped import Wrapped


def put(plane: Plane, changes: Changes) -> None:
    """Change what no rule would."""
    done(plane.order(lambda unit, _: unit.take(changes)))


class House:
    """All that a control plane is made of, wired as the service wires it, without threads."""

    def __init__(self) -> None:
        self.store: Store = InMemoryStore()
        self.clock = ManualClock(NOW)
        self.feed = Changefeed()
        self.told: list[Changes] = []
        self.feed.subscribe(self.told.append)
        self._mint = mint("b")
        self.restart()
        self.plane.apply_fleet(FLEET).result()

    def restart(self) -> None:
        """Have another plane, which reads the store again."""
        writer = Writer(self.store, self.clock, self.feed)
        self.plane = Plane(writer, self._mint, Policy(queue=Queueing.START))

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


class Counting(Wrapped):
    """A real store that counts commits and can be away."""

    def __init__(self, inner: Store | None = None) -> None:
        super().__init__(inner or InMemoryStore())
        self.commits = 0
        self.away = False
        self.refused = 0

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("the disk is full")
        with super().write() as transaction:
            yield transaction
        self.commits += 1

    def names(self) -> set[str]:
        with self.read() as reading:
            return {scope.name for scope in reading.scopes().values()}


def done(future: "Future[Any]") -> Any:
    return future.result(timeout=patience.SECONDS)


@pytest.fixture
def house() -> Iterator[House]:
    built = House()
    yield built
    built.store.close()
