"""A thread writer that can be kept busy, so that what comes meanwhile waits for certain."""

import threading

import patience
from builders import NOW, mint
from control.conftest import Counting
from forewarn.clock import ManualClock
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.control.writer import ThreadWriter
from forewarn.maintenance.model import Changes, Policy, Queueing
from forewarn.store.sql import Store


class Busy:
    """The writer, its store, and a plane that asks it."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = Counting(store)
        self.feed = Changefeed()
        self.told: list[Changes] = []
        self.feed.subscribe(self.told.append)
        self.clock = ManualClock(NOW)
        self.writer = ThreadWriter(self.store, self.clock, self.feed)
        self.plane = Plane(self.writer, mint("c"), Policy(queue=Queueing.START))
        self._go, self._entered = threading.Event(), threading.Event()

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
