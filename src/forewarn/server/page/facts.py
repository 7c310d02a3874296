"""What the page shows of the fleet and its operations, without walking through the fleet.

`Facts` counts on the event loop's thread, as the changefeed tells of changes, and hands what a
request needs to the page's thread, as immutable values of one instant (`Taken`).
"""

import asyncio
import statistics
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from forewarn.maintenance import model
from forewarn.server.page import timeline
from forewarn.store.port import EPOCH, HistoryQuery, Reading
from forewarn.vocabulary import ApproverKind, EventStatus

PAST: Final = timedelta(days=7)
"""How long operations are kept that are over: the longest range of the timeline."""

MAX_PAST: Final = 2000
"""The most operations that are kept although they are over, some 4 MB: three times as many as the
timeline draws."""

MAX_READ: Final = 5000
"""The most operations that are read of the store, once: of more, only the latest are counted."""

READ_PAGE: Final = 1000
"""Operations of one reading."""

DAY: Final = timedelta(days=1)

MINUTE: Final = timedelta(minutes=1)

MAX_APPROVALS: Final = 2000
"""Times to approval from which the median is taken, the latest."""

Place: TypeAlias = tuple[str, int]
"""A scope's key and an update domain."""


class Condition(StrEnum):
    """What is to be seen of a machine; the first that fits counts."""

    DOWN = "down"
    FAILED = "failed"
    """Maintenance of it failed, and nobody acknowledged that."""
    NOTICE = "notice"


def condition(operation: model.Operation) -> Condition | None:
    """Return what an operation does to its machines now; None for nothing."""
    if timeline.is_down(operation):
        return Condition.DOWN
    if operation.status is EventStatus.FAILED and not operation.acknowledged_by:
        return Condition.FAILED
    return Condition.NOTICE if operation.pending else None


class Day(msgspec.Struct, frozen=True, kw_only=True):
    """What the last 24 hours came to, to the minute."""

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    started: int = 0
    approved: int = 0
    """Those that started because they were approved, by guests or an operator."""
    approval: timedelta | None = None
    """The median time from the announcement to the approval; None where there was none."""


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a request needs of the counters: immutable, and of one instant."""

    now: datetime
    live: tuple[model.Operation, ...]
    """Those that are not over, or whose machines are not back."""
    past: tuple[model.Operation, ...]
    """Those that are over, of the last week; none is among the live."""
    machines: int
    """How many there are."""
    conditions: Mapping[Condition, Mapping[str, int]]
    """Machines by key, under each condition."""
    day: Day
    shape: int
    """Another number when machines came, went or changed their update domain."""
    keys: tuple[str, ...] | None
    """Those of all machines; None where the shape is the one that was asked about."""
    sizes: Mapping[Place, int] | None
    """How many machines each update domain has; None likewise."""


class Facts:
    """Counts on the event loop's thread; told of each change before the registry of machines.

    Args:
        machines: All machines by key, as they were before the change that is told.
    """

    def __init__(self, machines: Mapping[str, model.Machine]) -> None:
        self._machines = machines
        self._sizes: Counter[Place] = Counter()
        self._live: dict[str, model.Operation] = {}
        self._past: dict[str, model.Operation] = {}
        self._conditions: dict[Condition, Counter[str]] = {each: Counter() for each in Condition}
        self._minutes: dict[int, Counter[str]] = {}
        self._approvals: deque[tuple[datetime, timedelta]] = deque(maxlen=MAX_APPROVALS)
        self._shape = 0
        self.changes = 0
        """How many changes it was told of."""
        self._reading: asyncio.Future[None] | None = None
        self._is_read = False
        self._ended: set[str] = set()
        """What ended before the store was read."""

    def fill(self, operations: Iterable[model.Operation]) -> None:
        """Take over what the store holds; the machines are there already."""
        self._sizes = Counter((m.scope, m.update_domain) for m in self._machines.values())
        for operation in operations:
            self._live[operation.id] = operation
            self._count(operation, 1)
            if not operation.status.over:
                self._count_start(operation)

    def learn(self, changes: model.Changes) -> None:
        """Count what changed."""
        self.changes += 1
        removed = set(changes.removed_machines)
        for key in removed:
            self._move(self._machines.get(key), None)
        for machine in changes.machines:
            before = None if machine.key in removed else self._machines.get(machine.key)
            self._move(before, machine)
        for operation in changes.operations:
            self._learn(operation)

    def _move(self, before: model.Machine | None, after: model.Machine | None) -> None:
        old, new = _place(before), _place(after)
        if old == new:
            return
        self._shape += 1
        for place, by in ((old, -1), (new, 1)):
            if place is not None:
                self._sizes[place] += by
                if not self._sizes[place]:
                    del self._sizes[place]

    def _learn(self, operation: model.Operation) -> None:
        if operation.id in self._past and not operation.status.over:
            return  # the store was read when it had ended already
        before = self._live.pop(operation.id, None)
        if before is not None:
            self._count(before, -1)
        if operation.live:
            self._live[operation.id] = operation
            self._count(operation, 1)
        # What is over and was not known as live has been counted: somebody acknowledged it.
        is_new = before.started_at is None if before is not None else not operation.status.over
        if operation.started_at is not None and is_new:
            self._count_start(operation)
        if operation.status.over:
            if before is not None and not before.status.over:
                self._count_end(operation)
                if not self._is_read:
                    self._ended.add(operation.id)
            elif operation.id not in self._past:
                return
            self._keep(operation)

    def _keep(self, operation: model.Operation) -> None:
        self._past[operation.id] = operation
        while len(self._past) > MAX_PAST:
            del self._past[next(iter(self._past))]

    def _count(self, operation: model.Operation, by: int) -> None:
        found = condition(operation)
        if found is None:
            return
        counted = self._conditions[found]
        for name in operation.machines:
            key = model.key(name)
            counted[key] += by
            if not counted[key]:
                del counted[key]

    def _count_start(self, operation: model.Operation) -> None:
        at = operation.started_at
        if at is None:
            return
        self._tally(at, "started")
        if operation.start_cause is not model.StartCause.APPROVED:
            return
        words = [event.approval for event in operation.events if event.approval is not None]
        if words and any(word.kind is not ApproverKind.AUTOMATIC for word in words):
            self._tally(at, "approved")
            approved = max(word.at for word in words)
            self._approvals.append((at, approved - operation.announced_at))

    def _count_end(self, operation: model.Operation) -> None:
        if operation.ended_at is not None:
            self._tally(operation.ended_at, operation.status)

    def _tally(self, at: datetime, what: str) -> None:
        self._minutes.setdefault(_minute(at), Counter())[what] += 1

    async def read(
        self,
        ask: "Callable[[Callable[[Reading], Any]], Awaitable[Any]]",
        now: datetime,
    ) -> None:
        """Read what is over of the store, once, on another thread; later the feed tells of it.

        StoreError where the store is away: the next call tries again.
        """
        if self._is_read:
            return
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read(ask, now))
        reading = self._reading
        try:
            await asyncio.shield(reading)
        finally:
            if reading.done():
                self._reading = None

    async def _read(
        self,
        ask: "Callable[[Callable[[Reading], Any]], Awaitable[Any]]",
        now: datetime,
    ) -> None:
        found: Sequence[model.Operation] = await ask(lambda reading: history(reading, now - PAST))
        since, self._past = self._past, {}
        for operation in sorted(found, key=lambda o: (o.ended_at or EPOCH, o.id)):
            if operation.id in self._ended or operation.id in since:
                continue
            if (live := self._live.get(operation.id)) is not None and not live.status.over:
                continue
            self._count_start(operation)
            self._count_end(operation)
            self._keep(operation)
        for operation in since.values():
            self._keep(operation)
        self._approvals = deque(sorted(self._approvals), maxlen=MAX_APPROVALS)
        self._is_read = True
        self._ended.clear()

    def taken(self, now: datetime, shape: int = -1) -> Taken:
        """Return what a request needs, to be used on another thread; `shape` it knows already."""
        self._forget(now)
        is_new = shape != self._shape
        return Taken(
            now=now,
            live=tuple(self._live.values()),
            past=tuple(o for o in self._past.values() if o.id not in self._live),
            machines=len(self._machines),
            conditions={each: dict(counted) for each, counted in self._conditions.items()},
            day=self._day(now),
            shape=self._shape,
            keys=tuple(self._machines) if is_new else None,
            sizes=dict(self._sizes) if is_new else None,
        )

    def _forget(self, now: datetime) -> None:
        while self._past:
            oldest = next(iter(self._past.values()))
            if oldest.ended_at is None or oldest.ended_at >= now - PAST:
                break
            del self._past[oldest.id]
        begin = _minute(now - DAY)
        for minute in [each for each in self._minutes if each < begin]:
            del self._minutes[minute]

    def _day(self, now: datetime) -> Day:
        counts: Counter[str] = Counter()
        for counted in self._minutes.values():
            counts.update(counted)
        begin = _minute(now - DAY)
        waits = [wait for at, wait in self._approvals if _minute(at) >= begin]
        return Day(
            completed=counts[EventStatus.COMPLETED],
            failed=counts[EventStatus.FAILED],
            cancelled=counts[EventStatus.CANCELED],
            started=counts["started"],
            approved=counts["approved"],
            approval=statistics.median_low(waits) if waits else None,
        )


def _place(machine: model.Machine | None) -> Place | None:
    return None if machine is None else (machine.scope, machine.update_domain)


def _minute(moment: datetime) -> int:
    return (moment - EPOCH) // MINUTE


def history(reading: Reading, since: datetime) -> list[model.Operation]:
    """Return what is over of what was announced since then, the latest announcements first."""
    found: list[model.Operation] = []
    query = HistoryQuery(since=since, limit=READ_PAGE)
    while len(found) < MAX_READ:
        page = reading.history(query)
        found += [operation for operation in page.operations if operation.status.over]
        if page.next is None:
            break
        query = msgspec.structs.replace(query, after=page.next)
    return found
