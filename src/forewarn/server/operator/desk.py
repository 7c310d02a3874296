"""What the operators' routes work with, and how they ask it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import Protocol, TypeAlias, TypeVar

import msgspec
from litestar.di import NamedDependency

from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.maintenance.alerts import ClockDoubt
from forewarn.server.operator.metrics import Measured
from forewarn.server.operator.roster import Roster
from forewarn.server.operator.views import Callers
from forewarn.store.port import Reading, Store

T = TypeVar("T")


class Ready(Protocol):
    """Tells what keeps the service from doing all its work."""

    async def __call__(self) -> tuple[str, ...]:
        """Return the reasons, for people; none when all is well."""
        ...


class Time(Protocol):
    """Tells whether the time of day is trusted, and takes an operator's word for it."""

    def doubt(self) -> str:
        """Return why it is not trusted, in words; `""` when it is."""
        ...

    def clock_doubt(self) -> ClockDoubt | None:
        """Return the same as what an operator must know; None where it is trusted."""
        ...

    async def believe(self) -> None:
        """Take the wall clock for right; durable when this returns.

        Raises:
            StoreError: The store is away; nothing starts until it is back.
        """
        ...


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """The rooms below, as the routes reach them."""

    plane: Plane
    store: Store
    roster: Roster
    callers: Callers
    listeners: frozenset[str]
    """The names of the addresses that guests ask at; `""` is that of those without one."""
    clock: Clock
    up_since: datetime
    """When the service was started, by its clock."""
    scale: float
    ready: Ready
    time: Time
    measured: Measured

    def now(self) -> datetime:
        """Return the service's time."""
        return self.clock.now()

    async def done(self, future: "Future[T]") -> T:
        """Wait for what the plane was asked; it is done whether or not anybody still waits."""
        return await asyncio.shield(asyncio.wrap_future(future))

    async def read(self, question: Callable[[Reading], T]) -> T:
        """Ask the store, on a thread of its own, at one instant."""

        def ask() -> T:
            with self.store.read() as reading:
                return question(reading)

        return await asyncio.to_thread(ask)


AtDesk: TypeAlias = NamedDependency[Desk]
"""The desk, as a handler asks for it."""
