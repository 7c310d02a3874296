"""A service without sockets: the real plane, store and documents, and a clock that stands still."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

from forewarn.clock import ManualClock, SystemClock
from forewarn.connectors.port import Outcome, Task
from forewarn.control import maintenances
from forewarn.control.control_plane import ControlPlane, ServicePart
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.model import Changes, Operation, Policy, Sighting
from forewarn.store.port import Replica
from forewarn.store.queries import Reading
from forewarn.store.sql import Store
from forewarn.store.sqlite import InMemoryStore
from forewarn.version import __version__

NAME: Final = "emulator"
"""The name of the only replica, and of every caller's account."""

LEASE: Final = timedelta(days=3650)
"""The connector lives as long as its server: its leases do not expire."""

CLAIMS: Final = 1000

MAX_WAKEUPS: Final = 100_000
"""The most wake-ups of the ticker until a moment; more is a fault of the rules."""

Answer = TypeVar("Answer")

Run: TypeAlias = Callable[[Coroutine[Any, Any, object]], object]


class Harness:
    """A fleet, its server and the time."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        *,
        beginning: datetime,
        store: Store | None = None,
        run: Run = asyncio.run,
    ) -> None:
        self.clock = ManualClock(beginning)
        self.beginning = beginning
        self.elapsed = timedelta()
        self.policy = policy
        self.store = store or InMemoryStore()
        self._run = run
        self._tasks: dict[str, Task] = {}
        self._open: set[int] = set()
        """The numbers of maintenances whose units may take turns."""
        self._turn_at: datetime | None = None
        """When the next of them has a turn by time alone."""
        numbers = itertools.count(1)
        # Letters, too, to catch code that compares ids with regard to case.
        self._mint: Callable[[], str] = lambda: f"{next(numbers):08x}-abcd-4000-8000-000000000000"
        self.start()
        self.ask(lambda plane: plane.apply_fleet(fleet))

    def start(self) -> None:
        """Start the server from its store, in the order of the real service."""
        loop_time = ManualClock(self.beginning)  # it stands still: the loop is never held up
        self.watch = ServiceClock(self.clock, loop=loop_time)
        now = self.clock.now()
        self.control = ControlPlane(
            store=self.store,
            clock=self.watch,
            real=SystemClock(),
            own=Replica(name=NAME, process=NAME, version=__version__, started_at=now, beat_at=now),
            mint=self._mint,
            policy=self.policy,
            may_start=self.watch.may_start,
            sighting=self.sighting,
        )
        self.plane, returns = self.control.plane, self.control.returns
        self._run(self.control.begin())
        parts = (returns.learn, lambda _: returns.begin()), (self._keep_open,), (self.learn,)
        self.control.fill(ServicePart("", *functions) for functions in parts)
        self.watch.open()
        self._tick()

    def learn(self, changes: Changes) -> None:
        """Take over the changes of a commit."""

    def sighting(self, machine_key: str) -> Sighting | None:
        """Return the latest requests of a machine, None if it has not asked."""
        del machine_key
        return None

    def ask(self, question: Callable[[Plane], "Future[Answer]"]) -> Answer:
        """Ask the plane, look for machines that are back, and let the connector claim tasks."""
        answer = question(self.plane).result()
        self.follow_up()
        return answer

    def follow_up(self) -> None:
        """Claim tasks for the connector, look for machines that are back, and take turns."""
        self._claim()
        if news := self.control.returns.take_news():
            self.plane.record_returns(news).result()
            self._claim()
        self._take_turns()
        self._claim()

    def _keep_open(self, changes: Changes) -> None:
        for maintenance in changes.maintenances:
            self._open.discard(maintenance.number)
            if maintenance.open:
                self._open.add(maintenance.number)

    def _take_turns(self) -> None:
        """Advance the units of maintenances that other maintenance was in the way of."""
        changed = True
        while changed:  # what one recalls may have been in the way of another
            changed, self._turn_at = False, None
            for number in sorted(self._open):
                stepped = self.plane.order(maintenances.take_turns, number, None).result()
                changed |= stepped.changed
                if (at := stepped.wake_at) is not None:
                    self._turn_at = min(self._turn_at or at, at)

    def report(self, operation: str, outcome: Outcome, attempt: int | None = None) -> None:
        """Report a task as the connector, by the latest attempt unless one is given."""
        number = self._tasks[operation].attempt if attempt is None else attempt
        self.ask(lambda plane: plane.finish(operation, number, outcome))

    def run_until(self, moment: timedelta, *, inclusive: bool = True) -> None:
        """Advance the clock to a moment, and tick in it if inclusive."""
        for _ in range(MAX_WAKEUPS):
            due = self._next_wakeup()
            if due is None or due > moment or (due == moment and not inclusive):
                self._pass(moment)
                return
            self._pass(max(due, self.elapsed))
            self._tick()
        raise AssertionError(f"the ticker is not done with {moment} after {MAX_WAKEUPS} wake-ups")

    def look(self, question: Callable[[Reading], Answer]) -> Answer:
        """Return the store's answer to a question, as it was committed."""
        with self.store.read() as reading:
            return question(reading)

    def operation(self, operation_id: str) -> Operation | None:
        """Return an operation, None if there is none."""
        return self.look(lambda reading: reading.operations([operation_id]).get(operation_id))

    def _next_wakeup(self) -> timedelta | None:
        if not self.watch.may_start():
            return None
        wakeup = self.plane.writer.next_wakeup
        if self._turn_at is not None:
            wakeup = min(wakeup or self._turn_at, self._turn_at)
        return None if wakeup is None else self.elapsed + (wakeup - self.watch.now())

    def _pass(self, until: timedelta) -> None:
        self.clock.advance(until - self.elapsed)
        self.elapsed = until

    def _tick(self) -> None:
        self.ask(lambda plane: plane.expire_holds())
        self.ask(lambda plane: plane.advance())

    def _claim(self) -> None:
        while tasks := self.plane.claim("connector", LEASE, CLAIMS).result():
            self._tasks.update({task.operation: task for task in tasks})
