"""The control plane put together over one store: a service, an emulator and a test have the same.

They differ in who answers guests, and in whether the writer has a thread of its own.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from forewarn.clock import Clock
from forewarn.control.changefeed import Changefeed, Listener, Reached
from forewarn.control.heartbeat import Heartbeat
from forewarn.control.outbox import Follower, everything
from forewarn.control.plane import Plane
from forewarn.control.replicas import Replicas, SharedSightings
from forewarn.control.service_clock import ServiceClock
from forewarn.control.ticker import Contained, ReturnWatch
from forewarn.control.writer import Writer
from forewarn.maintenance.model import Operation, Policy, Sightings
from forewarn.store.port import Replica
from forewarn.store.sql import Store


def _ignore(_: object) -> None:
    pass


class ServicePart(NamedTuple):
    """A part of a process; the fields for functions that it lacks stay at their defaults."""

    name: str = ""
    """The name of its task."""
    learn: Listener = _ignore
    """Takes over the store's content at the start, and each change."""
    begin: Callable[[int], None] = _ignore
    """Takes over, after that, the number of the outbox that the content is of."""
    see: Listener = _ignore
    """Takes over each change, without the content at the start."""
    hear: Callable[[Reached], None] = _ignore
    """Takes over each place in the outbox whose changes all have learned."""
    run: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Works until `stop`; where it ends by itself, the service ends."""
    stop: Callable[[], None] | None = None
    """None where its task is cancelled."""
    rounds: Contained | None = None
    """The rounds that go on after any error, with their obstacle and their alerts."""

    @classmethod
    def of(cls, name: str, part: Contained) -> "ServicePart":
        """Return a part that goes on whatever fails."""
        return cls(name, part.learn, run=part.run, stop=part.stop, rounds=part)


@dataclass(eq=False, repr=False, kw_only=True)
class ControlPlane:
    """The rules of a fleet over its store, with the clock by which they go."""

    store: Store
    clock: ServiceClock
    real: Clock
    """The machine's own."""
    own: Replica
    """This process's row among the replicas, as it starts."""
    mint: Callable[[], str]
    """Makes ids of events, and tokens of commits."""
    policy: Policy
    may_start: Callable[[], bool]
    """Returns False while no operation may start."""
    sighting: Sightings
    """Returns the latest request of a machine to this process."""
    ask_again: Callable[[Operation], None] = _ignore
    """Ends the waiting requests of an operation's machines."""
    serves: Callable[[], bool] = lambda: True
    """Returns True while guests can read from this process."""
    kind: type[Writer] = Writer
    """The writer's: that of a service has a thread of its own."""

    def __post_init__(self) -> None:
        """Make the parts, each over those that it needs."""
        self.feed = Changefeed()
        self.follower = Follower(
            self.store, self.feed, self.real, replica=self.own.name, mint=self.mint
        )
        self.writer = self.kind(self.store, self.clock, self.feed, self.follower, told=self.clock)
        self.sightings = SharedSightings(self.sighting)
        self.plane = Plane(
            self.writer,
            self.mint,
            self.policy,
            may_start=self.may_start,
            listening=self.clock.listening,
            sighting=self.sightings,
        )
        self.replicas = Replicas(
            self.store, self.own, self.follower, self.clock, self.real, sightings=self.sightings
        )
        self.heartbeat = Heartbeat(
            self.plane, self.clock, self.real, self.replicas, serves=self.serves
        )
        self.returns = ReturnWatch(self.plane, self.clock, self.sightings, self.ask_again)

    async def begin(self, *, alone: bool = True) -> int:
        """Take over the store, and give guests what an outage owes them.

        Returns:
            The number of operations that its process before had under way; where it is `alone`,
            of those that any had.
        """
        await asyncio.wrap_future(self.writer.read(self.follower.begin))
        await self.heartbeat.begin()
        name = self.replicas.own.name
        return await asyncio.wrap_future(self.plane.release_claims(name, alone=alone))

    def fill(self, parts: Iterable[ServicePart]) -> None:
        """Give each part the store's content, and subscribe it to changes."""
        known, sequence = everything(self.follower.known()), self.follower.applied.sequence
        for part in parts:
            part.learn(known)
            part.begin(sequence)
            for listener in (part.learn, part.see):
                if listener is not _ignore:
                    self.feed.subscribe(listener)
            if part.hear is not _ignore:
                self.feed.tell(part.hear)
