"""Claims started operations, runs the connector, and records how each ended.

A claim is a lease with a fencing number: whoever holds an older number has its result refused.
An act that an earlier attempt may have done already is checked before it is performed.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Literal

import structlog

from forewarn.clock import Clock
from forewarn.connectors.port import Connector, Found, Outcome, Task
from forewarn.control.changefeed import Changefeed
from forewarn.control.plane import Plane
from forewarn.maintenance.model import Changes, Refused
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import ErrorCode, EventStatus

MAX_ACTS = 10_000
"""The most acts under way at once: each is a coroutine and whatever the connector runs for it."""

LEASE = timedelta(seconds=60)
"""How long a claim holds unless it is renewed: as long as a stuck process keeps an act from
another."""

RENEW_EVERY = timedelta(seconds=20)
"""Three tries before a lease is over."""

AFTER_TROUBLE = timedelta(seconds=1)
"""How long to wait after the store was away."""

CLAIM_BATCH = 1000
"""The most operations that are claimed in one transaction."""

MAX_REPEATS = 3
"""How often an act is performed again within one attempt if whoever carries it out is lost."""

OnUnknown = Literal["ask", "repeat", "fail"]
"""What is done where nobody knows whether an act was carried out: an operator is asked, it is done
again, or it has failed."""

UNKNOWN = (
    "nobody knows whether it was carried out: whoever did it was lost before there was a result"
)

_log = structlog.get_logger(__name__)


class Executor:
    """Carries out what has started.

    Args:
        plane: Where operations are claimed and finished.
        connector: What carries them out.
        clock: Whose time leases are in.
        name: Who claims; written into history.
        on_unknown: What is done where nobody knows whether an act was carried out. By default an
            operator is asked: doing it again, or not at all, is right for some machines only.
    """

    def __init__(
        self,
        plane: Plane,
        connector: Connector,
        clock: Clock,
        name: str,
        *,
        on_unknown: OnUnknown = "ask",
    ) -> None:
        self._plane = plane
        self._connector = connector
        self._clock = clock
        self._name = name
        self._on_unknown = on_unknown
        self._wake = asyncio.Event()
        self._stopping = False
        self._acts: dict[str, tuple[Task, asyncio.Task[None]]] = {}
        self._renewed = 0.0

    @property
    def running(self) -> int:
        """How many acts are being carried out."""
        return len(self._acts)

    def follow(self, feed: Changefeed, loop: asyncio.AbstractEventLoop) -> None:
        """Learn from the feed that something has started."""
        feed.subscribe_on_loop(loop, self._learn)

    async def run(self) -> None:
        """Claim and carry out, until `stop`; acts under way are then left to who comes next."""
        self._renewed = self._clock.monotonic()
        await self._sweep()
        while not self._stopping:
            self._wake.clear()
            nap = RENEW_EVERY
            try:
                await self._claim()
                await self._renew()
            except StoreUnavailable as error:
                _log.warning("the store is away; nothing is claimed", reason=error)
                nap = AFTER_TROUBLE
            except Exception:  # noqa: BLE001 - an executor outlives any error
                _log.exception("claiming what has started failed")
                nap = AFTER_TROUBLE
            if not self._stopping:
                await self._clock.wait(nap.total_seconds(), self._wake)
        tasks = [task for _, task in self._acts.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def stop(self) -> None:
        """Make `run` return."""
        self._stopping = True
        self._wake.set()

    async def outcome(self, act: Task) -> Outcome | None:
        """Carry out what is left of an act and return how it ended.

        What an earlier attempt may have begun is checked first; where nobody knows, `on_unknown`
        decides. An exception of the connector is a failure with its text.

        Args:
            act: What was claimed.

        Returns:
            The outcome, not recorded yet; None where an operator is to be asked.
        """
        try:
            found: Outcome | Found = Found.NOT_DONE
            if act.attempt > 1:
                found = await self._connector.check(act)
            for _ in range(MAX_REPEATS):
                if found is Found.UNKNOWN and self._on_unknown != "repeat":
                    break
                if isinstance(found, Outcome):
                    return found
                found = await self._connector.perform(act)
        except Exception as error:  # noqa: BLE001 - an exception is an outcome
            _log.exception("the connector failed", operation=act.operation)
            return Outcome(succeeded=False, message=f"{type(error).__name__}: {error}")
        if isinstance(found, Outcome):
            return found
        return None if self._on_unknown == "ask" else Outcome(succeeded=False, message=UNKNOWN)

    async def _sweep(self) -> None:
        try:
            started = await asyncio.wrap_future(self._plane.started())
            await self._connector.sweep(started)
        except Exception:  # noqa: BLE001 - what is left over does no harm
            _log.exception("what earlier acts left could not be swept")

    async def _claim(self) -> None:
        while (room := MAX_ACTS - len(self._acts)) > 0:
            limit = min(room, CLAIM_BATCH)
            acts = await asyncio.wrap_future(self._plane.claim(self._name, LEASE, limit))
            for act in acts:
                task = asyncio.create_task(self._carry_out(act))
                self._acts[act.operation] = act, task
            if len(acts) < limit:
                return

    async def _renew(self) -> None:
        passed = self._clock.monotonic()
        if passed - self._renewed < RENEW_EVERY.total_seconds():
            return
        self._renewed = passed
        renewals = {
            operation: self._plane.renew(operation, act.attempt, LEASE)
            for operation, (act, _) in self._acts.items()
        }
        for operation, renewal in renewals.items():
            try:
                await asyncio.wrap_future(renewal)
            except Refused as refusal:
                if refusal.code is not ErrorCode.STALE:
                    raise
                _log.warning("a claim was lost", operation=operation, reason=refusal.message)

    async def _carry_out(self, act: Task) -> None:
        try:
            outcome = await self.outcome(act)
            if isinstance(outcome, Outcome):
                if await self._record(act, lambda: self._plane.finish(*_named(act), outcome)):
                    await self._forget(act)
            else:
                await self._record(act, lambda: self._plane.doubt(*_named(act), UNKNOWN))
        finally:
            self._acts.pop(act.operation, None)
            self._wake.set()

    async def _forget(self, act: Task) -> None:
        try:
            await self._connector.forget(act)
        except Exception:  # noqa: BLE001 - what is left over is swept at the next start
            _log.exception("what an act left could not be removed", operation=act.operation)

    async def _record(self, act: Task, submit: Callable[[], "Future[Any]"]) -> bool:
        """Write down how an act ended, however long the store is away.

        Returns:
            Whether it is written down; otherwise another attempt has taken the operation over.
        """
        never = asyncio.Event()
        while True:
            try:
                await asyncio.wrap_future(submit())
            except StoreUnavailable as error:
                _log.warning("an outcome waits for the store", operation=act.operation, why=error)
                await self._clock.wait(AFTER_TROUBLE.total_seconds(), never)
            except Refused as refusal:
                _log.warning("an outcome came too late", operation=act.operation, why=refusal)
                return False
            except Exception:  # noqa: BLE001 - an outcome is kept until it is recorded
                _log.exception("an outcome could not be recorded", operation=act.operation)
                await self._clock.wait(AFTER_TROUBLE.total_seconds(), never)
            else:
                return True

    def _learn(self, changes: Changes) -> None:
        for operation in changes.operations:
            started = operation.status is EventStatus.STARTED and not operation.outcome_unknown
            if started and operation.lease_until is None:
                self._wake.set()
                return


def _named(act: Task) -> tuple[str, int]:
    return act.operation, act.attempt
