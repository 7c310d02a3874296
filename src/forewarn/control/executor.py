"""Claims started operations, runs the connector, and records the outcome of each.

A claim is a lease with a fencing number: a result under an older number is refused. A task that an
earlier attempt may have done already is checked before it is performed. Leases that are due are
renewed before anything is claimed, so that no executor claims an operation that it runs itself. The
connector sets the time limits. A program outlives a service that is killed (`connectors.runner`),
and the check of the next attempt finds it by its files (`connectors.command`).

A replica whose lease ran out, because it was down or cut off, may be the only one that knows how
its task ended: if another one had to report the outcome as unknown, it looks, and says so.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import structlog

from forewarn.clock import Clock
from forewarn.connectors.port import Connector, Found, Outcome, Task
from forewarn.control.plane import Plane
from forewarn.control.ticker import AFTER_TROUBLE, Rounds
from forewarn.maintenance import commands
from forewarn.maintenance.model import Changes
from forewarn.store.port import StoreError
from forewarn.vocabulary import EventStatus

MAX_TASKS = 10_000
"""The most tasks under way at once: each is a coroutine and the program that the connector runs for
it."""

LEASE = timedelta(seconds=60)
"""The duration of a claim unless it is renewed: as long as a stuck process keeps a task from
another."""

RENEW_EVERY = timedelta(seconds=20)
"""Three tries before a lease is over."""

FRESH_SECONDS = 20.0
"""The age of a claim up to which its task is begun as it was claimed."""

CLAIM_BATCH = 200
"""The most operations that are claimed, or whose claims are renewed, in one transaction."""

CLAIM_AGAIN = timedelta(seconds=0.5)
"""The pause that leaves the other replicas their share, before the rest is claimed."""

MAX_REPEATS = 3
"""The most repetitions of a task within one attempt if the connector loses its result."""

OnUnknown = Literal["ask", "repeat", "fail"]
"""The treatment of a task whose outcome is unknown: ask an operator, do it again, or fail it."""

LOST = "whoever did it was lost before there was a result"

_log = structlog.get_logger(__name__)


class Executor(Rounds):
    """Carries out started operations, under a replica's name. On the event loop's thread.

    It claims its share, as one of so many `replicas` that live. By default an operator is asked
    where the outcome of a task is unknown: doing it again, or not at all, is right for some
    machines only.
    """

    def __init__(
        self,
        plane: Plane,
        connector: Connector,
        clock: Clock,
        name: str,
        *,
        on_unknown: OnUnknown = "ask",
        replicas: Callable[[], int] = lambda: 1,
    ) -> None:
        super().__init__("execution", clock)
        self._plane = plane
        self._connector = connector
        self._name = name
        self._on_unknown = on_unknown
        self._replicas = replicas
        self._running: dict[str, tuple[Task, asyncio.Task[None]]] = {}
        """By operation."""
        self._renewed = 0.0
        self._claimed_at: dict[str, float] = {}
        """The monotonic times of the claims of `_running`."""
        self._has_to_look = True
        """True if there may be outcomes that this replica alone knows."""
        self._looking: set[str] = set()
        """The operations whose outcome is looked for."""

    @property
    def running(self) -> int:
        """The number of tasks that are being carried out."""
        return len(self._running)

    async def run(self) -> None:
        """Claim and carry out, until `stop`; tasks under way are then left to the next process."""
        self._renewed = self._clock.monotonic()
        await self._tidy(self._sweep())
        await super().run()

    async def _round(self) -> timedelta:
        await self._renew()
        nap = CLAIM_AGAIN if await self._claim() else RENEW_EVERY
        await self._look()
        return AFTER_TROUBLE if self._still_failing() else nap

    def learn(self, changes: Changes) -> None:
        """Wake up for operations that have started."""
        for operation in changes.operations:
            if commands.may_be_known_to(operation, self._name):
                self._has_to_look = True
                self._wake.set()
            started = operation.status is EventStatus.STARTED and not operation.outcome_unknown
            if started and operation.lease_until is None:
                self._wake.set()

    async def outcome(self, task: Task) -> Outcome | str:
        """Carry out the rest of a task; return how it ended, or why an operator is asked.

        If an earlier attempt may have begun, it is checked first. Where the outcome is unknown, as
        it is after an exception of the connector, `on_unknown` decides.
        """
        found: Outcome | Found = Found.NOT_DONE
        why = ""
        if task.attempt > 1:
            found, why = await self._answer(task, self._connector.check(task))
        for _ in range(MAX_REPEATS):
            if isinstance(found, Outcome):
                return found
            if found is Found.UNKNOWN and self._on_unknown != "repeat":
                break
            found, why = await self._answer(task, self._connector.perform(task, self._as_it_is))
        if isinstance(found, Outcome):
            return found
        why = f"{commands.NO_REASON}: {why}"
        return why if self._on_unknown == "ask" else Outcome(succeeded=False, message=why)

    async def _answer(
        self, task: Task, asked: Awaitable[Outcome | Found]
    ) -> tuple[Outcome | Found, str]:
        """Return the connector's answer, and the reason for it to be UNKNOWN."""
        try:
            return await asked, LOST
        except Exception as error:  # noqa: BLE001 - nobody knows how far it came
            _log.exception("the connector failed", operation=task.operation)
            return Found.UNKNOWN, f"{type(error).__name__}: {error}"

    async def _sweep(self) -> None:
        started = await asyncio.wrap_future(self._plane.started())
        await self._connector.sweep(started)

    async def _tidy(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 - what is left over does no harm; a start sweeps it
            _log.exception("could not remove what tasks left")

    async def _renew(self) -> None:
        """Renew every claim when that is due, and until the store has taken it."""
        passed = self._clock.monotonic()
        if passed - self._renewed < RENEW_EVERY.total_seconds():
            return
        claims = {operation: task.attempt for operation, (task, _) in self._running.items()}
        names = [*claims]
        for at in range(0, len(names), CLAIM_BATCH):
            batch = {name: claims[name] for name in names[at : at + CLAIM_BATCH]}
            try:
                await self._renew_batch(batch)
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 - one of them is to blame: it fails again alone
                _log.exception("claims are renewed one by one")
                for name, attempt in batch.items():
                    with self._contained(f"the claim of {name}"):
                        await self._renew_batch({name: attempt})
        self._renewed = passed

    async def _renew_batch(self, attempts: Mapping[str, int]) -> None:
        renewed = await asyncio.wrap_future(self._plane.renew(attempts, LEASE))
        for name in attempts.keys() - {operation.id for operation in renewed}:
            self._let_go(name, attempts[name])

    def _let_go(self, operation: str, attempt: int) -> None:
        """End an attempt whose claim was lost: the one that has it now asks what this one did."""
        task, carrying_out = self._running.get(operation, (None, None))
        if task is not None and carrying_out is not None and task.attempt == attempt:
            _log.warning("a claim was lost", operation=operation, attempt=attempt)
            carrying_out.cancel()

    async def _as_it_is(self, task: Task) -> Task:
        """Return a task whose turn has come as it is by now, under a claim that is certain."""
        if self._clock.monotonic() - self._claimed_at.get(task.operation, math.inf) < FRESH_SECONDS:
            return task
        while True:
            claim = task.operation, task.attempt
            try:
                found = await asyncio.wrap_future(self._plane.renewed_task(*claim, LEASE))
            except StoreError as error:
                _log.warning("a task waits for the store", operation=task.operation, why=error)
                await self._clock.wait(AFTER_TROUBLE.total_seconds())
                continue
            if found is not None:
                return found
            self._let_go(*claim)
            await asyncio.Event().wait()  # until that is so

    async def _claim(self) -> bool:
        """Claim operations; return True if that was one replica's share, and more may be left.

        The others have their turn then.
        """
        while (room := MAX_TASKS - len(self._running)) > 0:
            limit, replicas = min(room, CLAIM_BATCH), max(1, self._replicas())
            at = self._clock.monotonic()
            try:
                claiming = self._plane.claim(self._name, LEASE, limit, replicas=replicas)
                tasks = await asyncio.wrap_future(claiming)
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 - one of them is to blame: it fails again alone
                _log.exception("operations that have started are claimed one by one")
                await self._claim_one_by_one(limit)
                break
            self._begin(tasks, at)
            if replicas > 1:
                return bool(tasks)
            if len(tasks) < limit:
                break
        return False

    async def _claim_one_by_one(self, limit: int) -> None:
        for operation in await asyncio.wrap_future(self._plane.claimable(limit)):
            with self._contained(operation):
                at = self._clock.monotonic()
                claiming = self._plane.claim(self._name, LEASE, limit, operation=operation)
                self._begin(await asyncio.wrap_future(claiming), at)

    def _begin(self, tasks: tuple[Task, ...], at: float) -> None:
        """Carry out tasks that were claimed at this monotonic time, or after it."""
        for task in tasks:
            name = task.operation
            _, older = self._running.get(name, (None, None))
            self._claimed_at[name] = at
            self._running[name] = task, self._begin_task(self._carry_out(task, older))

    async def _carry_out(self, task: Task, older: "asyncio.Task[None] | None") -> None:
        try:
            if older is not None:
                # Its claim ran out all the same (this process stood still): it lets go first, so
                # that two attempts never run side by side, and the newer one checks what it did.
                older.cancel()
                await asyncio.gather(older, return_exceptions=True)
            outcome = await self.outcome(task)
            is_recorded = await self._record(task, outcome)
        finally:
            if self._running.get(task.operation, (None,))[0] is task:
                del self._running[task.operation], self._claimed_at[task.operation]
            self._wake.set()
        if is_recorded and isinstance(outcome, Outcome):
            await self._tidy(self._connector.forget(task))

    async def _look(self) -> None:
        """Look for outcomes that this replica alone may know."""
        if not self._has_to_look:
            return
        # Before the store is asked: later changes may not be in its answer.
        self._has_to_look = False
        try:
            tasks = await asyncio.wrap_future(self._plane.unknown_tasks(self._name))
        except StoreError:
            self._has_to_look = True
            raise
        for task in tasks:
            if task.operation not in self._looking:
                self._looking.add(task.operation)
                self._begin_task(self._look_at(task))

    async def _look_at(self, task: Task) -> None:
        try:
            found = await self._connector.check(task)
            if isinstance(found, Outcome) and await self._record(task, found):
                await self._tidy(self._connector.forget(task))
        except Exception:  # noqa: BLE001 - it stays unknown, and an operator says
            _log.exception("could not look for an outcome", operation=task.operation)
        finally:
            self._looking.discard(task.operation)

    async def _record(self, task: Task, outcome: Outcome | str) -> bool:
        """Record an outcome, or why it is unknown; return False if another attempt has taken over.

        Until then its claim is renewed, however long the store was away.
        """
        named = task.operation, task.attempt
        if isinstance(outcome, str):
            record = partial(self._plane.report_unknown, *named, outcome)
        else:
            record = partial(self._plane.finish, *named, outcome)
        return await self._record_result(task.operation, record)
