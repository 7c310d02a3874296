"""What drives the parts of the service: rounds, one after each change and one when time has come.

A round that fails is done again: neither a store that is away nor a defect ends a part. The next
round begins when something wakes the part, or after the time that the round before named.

Drains and rollouts go in steps. In a round each of them takes all steps that follow now; the plane
decides each step in a transaction of its own, with a look at the hosts where the step needs one.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.rollout_check import CheckRun
from forewarn.store.port import StoreError

LONGEST_NAP: Final = timedelta(seconds=30)
"""The longest wait between two rounds, so that a time of day that was set forward is noticed."""

AFTER_TROUBLE: Final = timedelta(seconds=1)
"""How long to wait after a round has failed."""

MAX_STEPS: Final = 20_000
"""The most steps in one round of a drain or a rollout, a few for each machine of a host or unit of
a rollout: more is a defect."""

K = TypeVar("K")

_log = structlog.get_logger(__name__)


class Rounds:
    """A part that works in rounds, on the event loop's thread; `what` names it in the log."""

    def __init__(self, what: str, clock: Clock) -> None:
        self._what = what
        self._clock = clock
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Make `run` return after the round that is under way."""
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        """Do rounds until `stop`."""
        while not self._stop.is_set():
            self._wake.clear()
            try:
                nap = await self._round()
            except StoreError as error:
                _log.warning("the store is away; a part waits for it", part=self._what, why=error)
                nap = AFTER_TROUBLE
            except Exception:  # noqa: BLE001 - a part goes on whatever failed
                _log.exception("a round failed", part=self._what)
                nap = AFTER_TROUBLE
            if not self._stop.is_set():
                await self._clock.wait(nap.total_seconds(), self._wake)

    @abstractmethod
    async def _round(self) -> timedelta:
        """Do what there is to do; return how long to wait if nothing wakes the part before."""


class Stepped(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to do after a step of a drain or a rollout."""

    changed: bool = False
    """Whether another step follows at once."""
    survey: bool = False
    """Whether to look at the hosts before it."""
    reboot: bool = False
    """Whether to run the host's reboot command now, once."""
    check: CheckRun | None = None
    """The check to run now; whoever took the step has it until its lease is over."""
    wake_at: datetime | None = None
    """When the next step is due if nothing changes before."""


class Steps(Rounds, Generic[K]):
    """Rounds in which drains, by host, or rollouts, by number, take their steps."""

    stop_seconds = 0.0
    """How long `run` waits at its end for what steps have begun."""

    def __init__(self, what: str, clock: Clock) -> None:
        super().__init__(what, clock)
        self._begun: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Do rounds until `stop`, and end what steps have begun."""
        await super().run()
        if self._begun:
            await asyncio.wait(self._begun, timeout=self.stop_seconds)
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)

    async def _round(self) -> timedelta:
        nap = LONGEST_NAP
        for each in [*self._going()]:
            if not self._stop.is_set() and (wake_at := await self._drive(each)) is not None:
                nap = min(nap, wake_at - self._clock.now())
        return max(timedelta(0), nap)

    async def _drive(self, each: K) -> datetime | None:
        """Take the steps that follow now; return when the next is due."""
        survey = None
        for _ in range(MAX_STEPS):
            stepped = await asyncio.wrap_future(self._step(each, survey))
            if (work := self._ordered(each, stepped)) is not None:
                task = asyncio.create_task(work)
                self._begun.add(task)
                task.add_done_callback(self._begun.discard)
            if stepped.survey:
                survey = await self._look()
            elif not stepped.changed:
                return stepped.wake_at
            if self._stop.is_set():
                return None
        message = f"{self._what}: {each} does not come to rest"
        raise RuntimeError(message)

    @abstractmethod
    def _going(self) -> Iterable[K]:
        """Return those that something may follow for."""

    @abstractmethod
    def _step(self, each: K, survey: HostSurvey | None) -> "Future[Stepped]":
        """Have the plane take a step."""

    @abstractmethod
    def _ordered(self, each: K, stepped: Stepped) -> Coroutine[Any, Any, None] | None:
        """Return what a step has ordered to run beside the steps, if anything."""

    @abstractmethod
    async def _look(self) -> HostSurvey | None:
        """Look at the hosts for a step; None if the service stops meanwhile."""
