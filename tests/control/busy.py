"""A thread writer that can be kept busy, so that what comes meanwhile waits for certain."""

import threading
from typing import Any

import patience
from builders import NOW, mint
from control.conftest import Counting, done
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.control.writer import ThreadWriter
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes, Operation, Policy, Queueing
from forewarn.maintenance.planner import Plan, Request
from forewarn.store.sql import Store
from forewarn.vocabulary import EventType


class Busy:
    """The writer, its store, and a plane that asks it, on a clock that is advanced by hand.

    Args:
        store: The real one below; in memory by default.
        fleet: Applied first.
        plane: A kind of plane.
        given: What the plane is given besides.
    """

    def __init__(
        self,
        store: Store | None = None,
        fleet: fleet_file.Fleet | None = None,
        plane: type[Plane] = Plane,
        **given: Any,
    ) -> None:
        self.store = Counting(store)
        self.feed = Changefeed()
        self.told: list[Changes] = []
        self.feed.subscribe(self.told.append)
        self.clock = ManualClock(NOW)
        self.writer = ThreadWriter(self.store, self.clock, self.feed)
        self.plane = plane(self.writer, mint("c"), Policy(queue=Queueing.START), **given)
        self._go, self._entered = threading.Event(), threading.Event()
        if fleet is not None:
            done(self.plane.apply_fleet(fleet))

    def ask(self, event_type: EventType = EventType.REBOOT, *machines: str, **more: Any) -> Plan:
        return done(self.plane.request(Request(event_type=event_type, machines=machines, **more)))

    def operation(self, operation_id: str) -> Operation:
        with self.store.read() as reading:
            return reading.operations([operation_id])[operation_id]

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
        self.release()
        self.writer.close()
        self.store.close()
