"""A process of a service, or a replica, over a store; and stories of several, by their names."""

import itertools
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from builders import NOW, SECOND
from control.conftest import done
from control.orders import PlaneStory
from forewarn.clock import ManualClock, SystemClock
from forewarn.control import outbox
from forewarn.control.control_plane import ControlPlane
from forewarn.control.outbox import state_of
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ServiceClock
from forewarn.control.writer import ThreadWriter, Writer
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.model import Changes, Policy, Queueing, Sighting
from forewarn.maintenance.world import World
from forewarn.store.sql import Store
from store.story import replica
from store.values import misfiled
from stories import elapsed_at, on_a_loop


def vars_of(world: World) -> dict[str, object]:
    """The tables and indexes of a World."""
    return {name: value for name, value in vars(world).items() if isinstance(value, dict)}


class Process(ControlPlane):
    """One process of a service, or a replica: its plane, its clocks, and what it has in memory.

    It starts nothing before it is open to guests, unless `allows` is another's.
    """

    def __init__(
        self,
        store: Store,
        real: ManualClock | SystemClock,
        name: str = "only",
        *,
        at: datetime | None = None,
        threaded: bool = False,
    ) -> None:
        self.name = name
        self.watch = ServiceClock(real, at=at)
        self.memory = World()
        """What the loop has: every change applied to nothing."""
        self.told: list[Changes] = []
        self.asked: dict[str, Sighting] = {}
        self.serving = False
        self.allows: Callable[[], bool] = self.watch.may_start
        numbers = itertools.count()
        super().__init__(
            store=store,
            clock=self.watch,
            real=real,
            own=replica(name, beat_at=NOW),
            mint=lambda: f"{name}-{at}-{next(numbers)}",
            policy=Policy(queue=Queueing.START),
            may_start=lambda: self.allows(),  # noqa: PLW0108 - it may be replaced
            sighting=self.asked.get,
            serves=lambda: self.serving,
            kind=ThreadWriter if threaded else Writer,
        )
        self.feed.subscribe(self.learn)

    def learn(self, changes: Changes) -> None:
        self.told.append(changes)
        self.memory.take(changes)
        self.memory.settle()

    def start(self) -> "Process":
        """Give guests what they are owed, as a start does."""
        on_a_loop(self.heartbeat.begin())
        return self

    def open(self) -> "Process":
        self.serving = True
        self.watch.open()
        self.beat()
        return self

    def beat(self) -> None:
        """Beat as `run` does."""
        self.watch.beat()
        self.save()

    def save(self) -> None:
        on_a_loop(self.heartbeat._save())

    def live(self, time: timedelta) -> None:
        """Let time pass in which guests can read."""
        assert isinstance(self.real, ManualClock)
        until = self.real.now() + time
        while self.real.now() < until:
            self.real.advance(min(SECOND, until - self.real.now()))
            self.watch.beat()
        self.beat()

    def sees(self, machine: str) -> None:
        """Let a machine ask; that may not be written down yet."""
        self.asked[machine] = Sighting(asked_at=self.watch.now(), version="2020-07-01")
        self.sightings.hear(machine)

    def assert_whole(self) -> None:
        """Compare memory with the store: the loop's, and the writer's World."""
        world = done(self.plane.order(lambda unit: unit.world))
        with self.store.read() as reading:
            stored = World(state_of(reading))
            assert vars_of(world) == vars_of(stored)
            for table in outbox.KEPT:
                assert getattr(self.memory, table) == getattr(stored, table)
            assert self.follower.applied == reading.position()
            assert not misfiled(reading)


class ProcessStory(PlaneStory):
    """Processes by their names: a line is about the one that it names first, or the first of all.

    The verbs of `several` take all the names that a line has.
    """

    several: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}

    def addressed(self, verb: str, names: list[str]) -> list[str]:
        self.at = next(iter(self.processes.values()))
        if verb in self.several or not names or names[0] not in self.processes:
            return names
        self.at = self.processes[names[0]]
        return names[1:]

    @property
    def plane(self) -> Plane:
        return self.at.plane

    def beat(self) -> None:
        self.at.beat()

    def save(self) -> None:
        self.at.save()

    def see(self, machine: str) -> None:
        self.at.sees(machine)

    # What must be so.

    def owed(self, span: str) -> None:
        assert self.at.watch.owed == self.moment(span) - NOW

    def alerting(self) -> Iterable[Alert]:
        return self.at.replicas.alerts()

    def alerts(self, *expected: str) -> None:
        """Compare alerts, and since when they are: `replica-lost replica r1 10s`."""
        told = [
            f"{one.kind} {one.about} {elapsed_at(one.since).seconds}s" for one in self.alerting()
        ]
        assert told == [*expected]

    def may_start(self, how: str = "yes") -> None:
        assert self.at.may_start() is (how == "yes")
