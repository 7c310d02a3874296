"""The rounds that drive the parts of the service: after each change, and when a time has come.

A round that fails is done again: neither a store that is away nor a defect ends a part. The next
round begins when something wakes the part, or after the time that the round before named. A failure
within a round at one thing (a maintenance, an operation, a host) is contained to that; at its third
failure in a row it is an alert. A round that fails as a whole keeps the service from being ready,
too.

Drains and maintenances go in steps. In a round each of them takes all steps that follow now; the
plane decides each step in a transaction of its own, with a look at the hosts where the step needs
one.

The ticker calls the plane when time has passed, and the watch for returns when machines that are
awaited have asked.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control.plane import ADVANCE_BATCH, Plane, Retention, Stepped
from forewarn.maintenance import commands
from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import Changes, Operation, Refused, Sightings, key
from forewarn.store.port import OutcomeUnknown, StoreError, StoreUnavailable
from forewarn.vocabulary import ErrorCode, EventStatus

LONGEST_NAP: Final = timedelta(seconds=30)
"""The longest wait between two rounds, so that a time of day that was set forward is noticed."""

AFTER_TROUBLE: Final = timedelta(seconds=1)

FAILING: Final = 3
"""The number of failures in a row that are an alert: one or two may be a moment's trouble."""

TRIED_AGAIN: Final = 2 * LONGEST_NAP
"""The time within which a failed thing is tried again."""

LATE: Final = frozenset((ErrorCode.STALE, ErrorCode.NOT_FOUND))
"""The refusals of a result that comes too late: another attempt has taken over, or the store has
lost the task. Any other one is a defect of the result."""

MAX_STEPS: Final = 20_000
"""The most steps in one round of a drain or a maintenance, a few for each machine of a host or
unit of a maintenance: more is a defect."""

HOLDS: Final = "holds"
"""The subject of an alert about holds that cannot end."""

WHILE_HALTED = timedelta(seconds=1)
"""The wait before asking again if anything may start."""

HISTORY: Final = "history"
"""The subject of an alert about the purge of history, audit log and news."""

NOT_DUE_YET = timedelta(milliseconds=50)
"""The wait where the store finds nothing due although this process's clock does: a database has a
clock of its own, a fraction of a second behind, and each question takes its lock."""

PURGE_EVERY = timedelta(hours=1)

PURGED_LATELY: Final = 2 * PURGE_EVERY
"""If the last purge is longer ago at a start, the next one is PURGE_EVERY later: a machine that
boots with its clock years ahead must not delete all its history before NTP has set that right."""

PURGED: Final = "purged"
"""The setting with the time of the last purge: a service may restart more often than that."""

K = TypeVar("K", int, str)

_log = structlog.get_logger(__name__)


class _Failing(msgspec.Struct, frozen=True):
    """Something that has failed, and has not succeeded since."""

    times: int
    since: datetime
    why: str
    at: float


class Contained:
    """A part that goes on whatever fails, on the event loop's thread; `what` names it to people.

    It rests by `clock`; its alerts have the service's time, that of `time` if it is another one.
    """

    def __init__(self, what: str, clock: Clock, time: Clock | None = None) -> None:
        self._what = what
        self._clock = clock
        self._time = time or clock
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._failing: dict[str, _Failing] = {}
        """By what fails; `""` for the round as a whole."""

    def learn(self, changes: Changes) -> None:
        """Take over changes that matter to the part."""

    @abstractmethod
    async def run(self) -> None:
        """Work until `stop`."""

    def stop(self) -> None:
        """Make `run` return after the work that is under way."""
        self._stop.set()
        self._wake.set()

    @property
    def obstacle(self) -> str:
        """The reason why the part can do none of its work; `""` while it can."""
        whole = self._still_failing().get("")
        if whole is None or whole.times < FAILING:
            return ""
        return f"{self._what}: {whole.times} rounds in a row failed: {whole.why}"

    def alerts(self) -> list[Alert]:
        """Return the alerts: here, about repeated failures."""
        found = []
        for about, failing in self._still_failing().items():
            if failing.times >= FAILING:
                message = (
                    f"{self._what}: failed {failing.times} times in a row: {failing.why}; the log "
                    "of the service has the traceback"
                )
                found.append(Alert(AlertKind.FAILING, about or self._what, message, failing.since))
        return found

    @contextmanager
    def _contained(self, about: str = "") -> Iterator[None]:
        """Contain an error to one thing; only a store that is away concerns all."""
        try:
            yield
        except (StoreUnavailable, OutcomeUnknown):
            raise
        except Exception as error:  # noqa: BLE001 - a part goes on whatever failed
            _log.exception("a round failed", part=self._what, of=about)
            before = self._still_failing().get(about)
            times, since = (before.times, before.since) if before else (0, self._time.now())
            why = f"{type(error).__name__}: {error}"
            self._failing[about] = _Failing(times + 1, since, why, self._clock.monotonic())
        else:
            self._failing.pop(about, None)

    async def _record_result(
        self, about: str, record: "Callable[[], Future[Any]]", stop: asyncio.Event | None = None
    ) -> bool:
        """Record a result, however long the store is away, but not after `stop`, if that is given.

        It returns False if the result comes too late. One that cannot be recorded because of a
        defect is tried again after longer and longer pauses.
        """
        stop = stop or asyncio.Event()
        pause = AFTER_TROUBLE
        while True:
            try:
                with self._contained(about):  # it is kept until it is recorded
                    try:
                        await asyncio.wrap_future(record())
                    except Refused as refusal:
                        if refusal.code not in LATE:
                            raise
                        _log.warning("a result is late", of=about, why=refusal)
                        return False
                    return True
            except StoreError as error:
                _log.warning("a result waits for the store", of=about, why=error)
                pause = AFTER_TROUBLE
            await self._clock.wait(pause.total_seconds(), stop)
            pause = min(2 * pause, LONGEST_NAP)
            if stop.is_set():
                return False

    def _still_failing(self) -> dict[str, _Failing]:
        """Return the failures; forget those that were not retried: they are over."""
        oldest = self._clock.monotonic() - TRIED_AGAIN.total_seconds()
        self._failing = {name: one for name, one in self._failing.items() if one.at >= oldest}
        return self._failing


class Rounds(Contained):
    """A part that works in rounds, and by tasks that they have begun."""

    stop_seconds = 0.0
    """The wait of `run` at its end for the tasks."""

    def __init__(self, what: str, clock: Clock, time: Clock | None = None) -> None:
        super().__init__(what, clock, time)
        self._begun: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Do rounds until `stop`, and end the tasks."""
        while not self._stop.is_set():
            self._wake.clear()
            nap = AFTER_TROUBLE
            try:
                with self._contained():
                    nap = await self._round()
            except StoreError as error:
                _log.warning("the store is away; a part waits for it", part=self._what, why=error)
            if not self._stop.is_set():
                await self._clock.wait(nap.total_seconds(), self._wake)
        if self._begun:
            await asyncio.wait(self._begun, timeout=self.stop_seconds)
        for task in self._begun:
            task.cancel()
        await asyncio.gather(*self._begun, return_exceptions=True)

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)
        return task

    @abstractmethod
    async def _round(self) -> timedelta:
        """Do the work that is due; return the wait if nothing wakes the part before."""


class Steps(Rounds, Generic[K]):
    """Rounds in which drains, by host, or maintenances, by number, take their steps.

    Each has its steps when a change concerns it or its time has come: they are many, and each step
    is a transaction.
    """

    def __init__(self, what: str, clock: Clock, one: str) -> None:
        super().__init__(what, clock)
        self._one = one
        self._due: set[K] = set()
        """Those that a change may concern."""
        self._wake_at: dict[K, datetime] = {}
        """When each is due at the latest."""

    async def _round(self) -> timedelta:
        now = self._clock.now()
        late = {each for each, at in self._wake_at.items() if at <= now}
        await self._drive_all(sorted(self._due | late))
        return self._nap()

    async def _drive_all(self, due: Iterable[K]) -> None:
        for each in due:
            if self._stop.is_set():
                break
            await self._drive_contained(each)

    async def _drive_contained(self, each: K) -> None:
        self._due.discard(each)
        self._wake_at[each] = self._clock.now() + AFTER_TROUBLE  # where this fails
        with self._contained(f"{self._one} {each}"):
            wake_at = await self._drive(each)
            self._wake_at.pop(each, None)
            if wake_at is not None and self._goes_on(each):
                self._wake_at[each] = wake_at

    def _nap(self) -> timedelta:
        """Return the wait until one is due."""
        until = min(self._wake_at.values(), default=None)
        nap = LONGEST_NAP if until is None else until - self._clock.now()
        return max(timedelta(0), min(nap, LONGEST_NAP))

    async def _drive(self, each: K) -> datetime | None:
        """Take the steps that follow now; return when the next is due."""
        survey = None
        for _ in range(MAX_STEPS):
            stepped = await asyncio.wrap_future(self._step(each, survey))
            if (work := self._ordered(each, stepped)) is not None:
                self._begin_task(work)
            if stepped.survey:
                survey = await self._look()
            elif not stepped.changed:
                return stepped.wake_at
            if self._stop.is_set():
                return None
        raise RuntimeError(f"{self._what}: {each} does not come to rest")

    @abstractmethod
    def _goes_on(self, each: K) -> bool:
        """Return True if a step may follow for it without a change."""

    @abstractmethod
    def _step(self, each: K, survey: HostSurvey | None) -> "Future[Stepped]":
        """Submit a step to the plane."""

    @abstractmethod
    def _ordered(self, each: K, stepped: Stepped) -> Coroutine[Any, Any, None] | None:
        """Return the work that a step has ordered to run beside the steps, if any."""

    @abstractmethod
    async def _look(self) -> HostSurvey | None:
        """Look at the hosts for a step; None if the service stops meanwhile."""


class Ticker(Rounds):
    """Makes time pass for the plane; purges old history, audit log and news."""

    def __init__(self, plane: Plane, clock: Clock, keep: Retention) -> None:
        super().__init__("time", clock)
        self._plane = plane
        self._keep = keep
        self._until: datetime | None = None
        """The time at which something was due when it last looked."""
        self._purged: datetime | None = None
        """The time of the last purge, or that from which on a start counts."""

    def learn(self, _: Changes) -> None:
        """Wake up where something is due earlier now."""
        at = self._plane.writer.next_wakeup
        if at is not None and (self._until is None or at < self._until):
            self._wake.set()

    async def _round(self) -> timedelta:
        if not self._plane.may_start():
            return WHILE_HALTED
        due = self._plane.writer.next_wakeup
        if due is not None and due <= self._clock.now():
            with self._contained(HOLDS):
                await asyncio.wrap_future(self._plane.expire_holds())
            await self._advance()
        more = False
        with self._contained(HISTORY):
            more = await self._purge()
        self._wake.clear()  # what woke it meanwhile is counted in
        self._until = self._plane.writer.next_wakeup
        if more:
            return NOT_DUE_YET
        if self._until is None:
            return LONGEST_NAP
        if (left := self._until - self._clock.now()) > timedelta(0):
            return min(left, LONGEST_NAP)
        return AFTER_TROUBLE if self._still_failing() else NOT_DUE_YET

    async def _advance(self) -> None:
        """Advance everything that is due: one by one where one operation makes the rest fail."""
        try:
            while await asyncio.wrap_future(self._plane.advance()) == ADVANCE_BATCH:
                pass
        except StoreError:
            raise
        except Exception:  # noqa: BLE001 - one of them is to blame: it fails again alone
            _log.exception("operations that are due go on one by one")
            due = await asyncio.wrap_future(self._plane.due())
            for operation in due:
                with self._contained(operation):
                    await asyncio.wrap_future(self._plane.advance(operation))

    async def _purge(self) -> bool:
        """Purge a batch, if that is due; return True if more may be left: starts come before it."""
        now = self._clock.now()
        if self._purged is None:
            kept = await asyncio.wrap_future(self._plane.setting(PURGED))
            last = now - PURGED_LATELY if kept is None else datetime.fromisoformat(kept)
            if timedelta(0) <= now - last < PURGED_LATELY:
                self._purged = last
            else:
                await self._note_purge(now)
        elif now - self._purged >= PURGE_EVERY:
            if await asyncio.wrap_future(self._plane.forget(self._keep)):
                return True
            await self._note_purge(now)
        return False

    async def _note_purge(self, at: datetime) -> None:
        self._purged = at
        await asyncio.wrap_future(self._plane.put_setting(PURGED, at.isoformat()))


LOOK_EVERY = timedelta(seconds=0.25)
"""The pause between two looks: the next update domain is announced so much later at most."""

ASK_AGAIN_EVERY = 1.0
"""Seconds between two ends of the waiting requests of machines that have to ask again."""


class ReturnWatch(Rounds):
    """Watches for machines that are awaited.

    Guests' requests are noted in memory alone (`Sightings`). While an operation awaits machines,
    this compares those notes with what it awaits, four times a second, and asks the plane to decide
    only when something is new: a guest's request costs nothing for it.

    `ask_again` ends the waiting requests of an operation's machines: one that was only paused would
    not ask again until its wait is over.
    """

    def __init__(
        self,
        plane: Plane,
        clock: Clock,
        sighting: Sightings,
        ask_again: Callable[[Operation], None],
    ) -> None:
        super().__init__("machines that are back", clock)
        self._plane = plane
        self._sighting = sighting
        self._ask_again = ask_again
        self._awaiting: dict[str, Operation] = {}
        self._news: set[str] = set()
        """Operations that await a machine which has left the fleet."""
        self._asked_again = 0.0

    def begin(self) -> None:
        """Look at each operation once: machines may have left before the start."""
        self._news.update(self._awaiting)

    def learn(self, changes: Changes) -> None:
        """Follow changes."""
        is_idle = not self._awaiting
        for operation in changes.operations:
            self._awaiting.pop(operation.id, None)
            # What runs awaits machines too, but nobody can come back before it is carried out.
            if operation.awaited and operation.status is not EventStatus.STARTED:
                self._awaiting[operation.id] = operation
        if gone := {*changes.removed_machines}:
            left = (o for o in self._awaiting.values() if not gone.isdisjoint(map(key, o.awaited)))
            self._news.update(operation.id for operation in left)
        if is_idle and self._awaiting:
            self._wake.set()

    async def _round(self) -> timedelta:
        if not self._awaiting:
            return LONGEST_NAP
        await self.look()
        return AFTER_TROUBLE if self._still_failing() else LOOK_EVERY

    async def look(self) -> None:
        """Look once; after StoreError the next look finds the same."""
        if news := self.take_news():
            await self._record(news)
        now = self._clock.monotonic()
        if now - self._asked_again >= ASK_AGAIN_EVERY:
            self._asked_again = now
            for operation in self._awaiting.values():
                if operation.status is EventStatus.RETURNING:
                    self._ask_again(operation)

    async def _record(self, news: list[str]) -> None:
        """Submit these to the plane: one by one where one of them makes the rest fail."""
        try:
            try:
                await asyncio.wrap_future(self._plane.record_returns(news))
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 - one of them is to blame: it fails again alone
                for operation in news:
                    with self._contained(operation):
                        await asyncio.wrap_future(self._plane.record_returns([operation]))
        except BaseException:
            self._news.update(news)
            raise

    def take_news(self) -> list[str]:
        """Return the operations that the plane has to look at again; each is returned once."""
        news = self._news & self._awaiting.keys()
        news.update(
            operation.id
            for operation in self._awaiting.values()
            if commands.has_returned(operation, self._sighting)
        )
        self._news = set()  # what comes while the plane decides is for the next look
        return sorted(news)
