"""What the page Now shows: tiles, what needs an operator, what is next, progress, the fleet.

`Facts` counts on the event loop's thread, as the changefeed tells of changes, so that nobody walks
through the fleet. A request takes what it needs of that, immutable values of one instant (`Taken`),
to the page's thread, which makes all that is shown of them and of the machines' last requests, a
share of which is looked at each time. Windows that ask together get the same.
"""

import asyncio
import heapq
import statistics
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from markupsafe import Markup

from forewarn.maintenance import alerts, model
from forewarn.maintenance.units import UnitState
from forewarn.server.operator.inventory import Inventory
from forewarn.server.operator.routing import STORE_SECONDS, Backend
from forewarn.server.page import fleet_map, orders, timeline
from forewarn.server.page.fleet_map import Condition, Place
from forewarn.server.page.live import SharedAnswers
from forewarn.server.page.rendering import Renderer
from forewarn.store.port import EPOCH, HistoryQuery, Reading, StoreError
from forewarn.vocabulary import ApproverKind, EventStatus, EventType

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

LOOKS: Final = 2000
"""How many machines are looked at for each request, to see who listens: some 2 ms."""

SHARED: Final = timedelta(seconds=1)
"""How old what other windows were sent may be, while nothing changes."""

SHOWN_ALERTS: Final = 4
"""The most alerts that are shown at once; the others up to MAX_ALERTS are folded."""

MAX_ALERTS: Final = 100
MAX_NEXT: Final = 8
MAX_PROGRESS: Final = 5
"""The most lines of each kind; of the rest only the number is told."""

GRAVE: Final = frozenset(
    {
        alerts.AlertKind.FAILED,
        alerts.AlertKind.UNKNOWN,
        alerts.AlertKind.STUCK,
        alerts.AlertKind.HOST_LOST,
        alerts.AlertKind.CRASHED,
        alerts.AlertKind.RUNS_TWICE,
        alerts.AlertKind.HALTED,
        alerts.AlertKind.STORE_DOWN,
        alerts.AlertKind.LOST_CHANGES,
        alerts.AlertKind.REPLICA_LOST,
        alerts.AlertKind.FAILING,
        alerts.AlertKind.ARRIVED,
    }
)
"""What has gone wrong already, and comes first."""


# The counters.


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
        self, ask: "Callable[[Callable[[Reading], Any]], Awaitable[Any]]", now: datetime
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
        self, ask: "Callable[[Callable[[Reading], Any]], Awaitable[Any]]", now: datetime
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


# What is shown.


class Tiles(msgspec.Struct, frozen=True, kw_only=True):
    """The six numbers."""

    down: int
    down_scopes: int
    machines: int
    noticed: int
    """Machines under notice."""
    next_at: datetime | None
    """When the next operation starts at the latest; None where nothing is Scheduled."""
    alerts: int
    done: int
    failed: int
    cancelled: int
    approval: timedelta | None
    approved: int
    started: int
    listening: float | None
    """Of the machines that were looked at, the share that listens; None where there is none."""
    silent: int
    """Those of them that do not."""


class AlertLine(msgspec.Struct, frozen=True, kw_only=True):
    """What needs an operator."""

    word: str
    about: str
    href: str
    """Where to look."""
    message: str
    age: timedelta
    grave: bool


class NextLine(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that is under way, or comes next."""

    operation: str
    event_type: EventType
    form: timeline.Form
    machines: str
    scope: str
    word: str
    """What it does or waits for."""
    since: datetime | None = None
    """Counted from here, upwards."""
    until: datetime | None = None
    """Counted down to this."""


class Segment(msgspec.Struct, frozen=True):
    """The units of a maintenance in one state, as a part of its bar in per cent."""

    state: UnitState
    count: int
    x: float
    width: float


class ProgressLine(msgspec.Struct, frozen=True, kw_only=True):
    """A maintenance with units as a bar."""

    number: int
    event_type: EventType
    state: str
    reason: str
    units: int
    over: int
    segments: tuple[Segment, ...]


class Listening:
    """Counts the machines that asked lately: a share of a large fleet at each look."""

    def __init__(self, sighting: model.Sightings) -> None:
        self._sighting = sighting
        self._keys: Sequence[str] = ()
        self._heard = bytearray()
        self._next = 0
        self.looked_at = 0
        self.count = 0
        """How many of those listen."""

    def begin(self, keys: Sequence[str]) -> None:
        """Begin with these machines, of which none was looked at."""
        self._keys, self._heard = keys, bytearray(len(keys))
        self._next = self.looked_at = self.count = 0

    def look(self, now: datetime) -> None:
        """Look at the next LOOKS machines."""
        heard, keys = self._heard, self._keys
        lately = now - model.LISTENING
        for _ in range(min(LOOKS, len(keys))):
            at = self._next
            seen = self._sighting(keys[at])
            listens = seen is not None and seen.asked_at >= lately
            self.count += listens - heard[at]
            heard[at] = listens
            self._next = (at + 1) % len(keys)
            self.looked_at = max(self.looked_at, at + 1)


class NowPage:
    """Makes what the page Now shows; belongs to the page's thread, but for reading `shape`."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._listening = Listening(inventory.sighting)
        self._layout = fleet_map.layout((), {}, {})
        self._of_scopes: Mapping[str, int] = {}
        self._segments: dict[int, tuple[model.Maintenance, tuple[Segment, ...]]] = {}
        self.shape = -1
        """The shape of the fleet that is drawn, for `Facts.taken`."""

    def made(
        self,
        taken: Taken,
        found: Sequence[alerts.Alert],
        opened: Iterable[model.Maintenance],
        shown: timeline.Range,
    ) -> dict[str, Any]:
        """Return what the templates draw; `found` is what needs an operator."""
        if taken.keys is not None and taken.sizes is not None:
            machine_of, scopes = self._inventory.machines.get, self._inventory.scopes
            found_now = filter(None, map(machine_of, taken.keys))
            self._layout = fleet_map.layout(found_now, taken.sizes, scopes)
            self._listening.begin(taken.keys)
            of_scopes: Counter[str] = Counter()
            for (scope, _), count in taken.sizes.items():
                of_scopes[scope] += count
            self._of_scopes = of_scopes
            self.shape = taken.shape
        self._listening.look(taken.now)
        chart = timeline.drawn(
            (*taken.live, *taken.past), taken.now, shown, self._inventory.name_of_scope
        )
        unfinished = [operation for operation in taken.live if not operation.status.over]
        lines = [*_alert_lines(found, taken.now)]
        running = sorted(opened, key=lambda maintenance: -maintenance.number)
        return {
            "tiles": self._tiles(taken, found),
            "alerts": lines[:SHOWN_ALERTS],
            "folded_alerts": lines[SHOWN_ALERTS:MAX_ALERTS],
            "more_alerts": max(0, len(lines) - MAX_ALERTS),
            "timeline": chart,
            "ranges": tuple(timeline.Range),
            "scope_kinds": {
                lanes.key: (self._kind_of_scope(lanes.key), self._of_scopes.get(lanes.key, 0))
                for lanes in chart.scopes
            },
            "quiet": max(0, len(self._of_scopes) - len(chart.scopes) - chart.further),
            "coming": [*coming(unfinished, self._inventory.name_of_scope)],
            "more_coming": max(0, len(unfinished) - MAX_NEXT),
            "progress": [self._progress(one) for one in running[:MAX_PROGRESS]],
            "more_progress": max(0, len(running) - MAX_PROGRESS),
            "map": fleet_map.drawn(
                self._layout,
                taken.conditions,
                self._inventory.machines.get,
                self._inventory.name_of_scope,
            ),
        }

    def _kind_of_scope(self, key: str) -> str:
        scope = self._inventory.scopes.get(key)
        return scope.kind.replace("_", " ") if scope is not None else ""

    def _tiles(self, taken: Taken, found: Sequence[alerts.Alert]) -> Tiles:
        down = [o for o in taken.live if timeline.is_down(o)]
        pending = [o.not_before for o in taken.live if o.pending and o.held_at is None]
        listening, day = self._listening, taken.day
        looked_at = listening.looked_at
        return Tiles(
            down=len(taken.conditions[Condition.DOWN]),
            down_scopes=len({event.scope for o in down for event in o.events}),
            machines=taken.machines,
            noticed=len(taken.conditions[Condition.NOTICE]),
            next_at=min(pending, default=None),
            alerts=len(found),
            done=day.completed,
            failed=day.failed,
            cancelled=day.cancelled,
            approval=day.approval,
            approved=day.approved,
            started=day.started,
            listening=100 * listening.count / looked_at if looked_at else None,
            silent=looked_at - listening.count,
        )

    def _progress(self, maintenance: model.Maintenance) -> ProgressLine:
        known = self._segments.get(maintenance.number)
        if known is None or known[0] is not maintenance:
            known = self._segments[maintenance.number] = maintenance, segments(maintenance)
            while len(self._segments) > 4 * MAX_PROGRESS:
                del self._segments[next(iter(self._segments))]
        return ProgressLine(
            number=maintenance.number,
            event_type=maintenance.event_type,
            state=maintenance.state,
            reason=maintenance.reason,
            units=len(maintenance.units),
            over=sum(segment.count for segment in known[1] if segment.state.over),
            segments=known[1],
        )


class SharedNow:
    """Hands the windows of one range the same page, until something changes.

    Used on the event loop's thread.
    """

    def __init__(self, backend: Backend, facts: Facts, renderer: Renderer) -> None:
        self._backend = backend
        self._facts = facts
        self._renderer = renderer
        self._page = NowPage(backend.inventory)
        self._made = SharedAnswers()

    async def html(self, shown: timeline.Range) -> Markup:
        """Return the page's main part, which has every change so far."""
        now = self._backend.now()
        state = self._facts.changes, now.timestamp() // SHARED.total_seconds()
        return await self._made.get(shown, state, lambda: self._render(shown, now))

    async def _render(self, shown: timeline.Range, now: datetime) -> Markup:
        backend, facts, page = self._backend, self._facts, self._page
        # While the store cannot be read, an alert says so, and the page shows what memory has.
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(STORE_SECONDS):
                await facts.read(backend.read, now)
        found = await backend.alerts(now)
        taken = facts.taken(now, page.shape)
        opened = tuple(backend.maintenances.open.values())

        def made() -> Markup:
            values = {"now": now, **page.made(taken, found, opened, shown)}
            return Markup(self._renderer.text("_now.html", values))  # noqa: S704 - it has escaped

        return await self._renderer.on_thread(made)


def segments(maintenance: model.Maintenance) -> tuple[Segment, ...]:
    """Return the parts of a maintenance's bar, without gaps and in one order."""
    counts = Counter(unit.state for unit in maintenance.units)
    found, before = [], 0
    total = max(1, len(maintenance.units))
    for state in (
        UnitState.DONE,
        UnitState.SKIPPED,
        UnitState.FAILED,
        UnitState.RUNNING,
        UnitState.WAITING,
    ):
        if counts[state]:
            x = round(100 * before / total, 2)
            before += counts[state]
            found.append(Segment(state, counts[state], x, round(100 * before / total - x, 2)))
    return tuple(found)


def coming(
    unfinished: Iterable[model.Operation], name_of: Callable[[str], str]
) -> Iterator[NextLine]:
    """Yield what is under way, the first started first, then what is next, by NotBefore."""
    for operation in heapq.nsmallest(MAX_NEXT, unfinished, key=_by_turn):
        word, since, until = _state(operation)
        scopes = [name_of(event.scope) for event in operation.events]
        yield NextLine(
            operation=operation.id,
            event_type=operation.event_type,
            form=timeline.form_of(operation),
            machines=timeline.label_of(operation.machines),
            scope=model.listed(scopes, 1),
            word=word,
            since=since,
            until=until,
        )


def _by_turn(operation: model.Operation) -> tuple[int, float, int, str]:
    if operation.started_at is not None:
        return 0, operation.started_at.timestamp(), operation.maintenance, operation.id
    at = operation.not_before.timestamp()
    return (1 if operation.pending else 2), at, operation.maintenance, operation.id


def _state(operation: model.Operation) -> tuple[str, datetime | None, datetime | None]:
    if operation.outcome_unknown:
        return "unknown", operation.started_at, None
    if operation.status is EventStatus.RETURNING:
        return "returning", operation.carried_out_at, None
    if operation.status is EventStatus.STARTED:
        return "down", operation.started_at, None
    if operation.held_at is not None:
        return "held", None, None
    if operation.waits_for:
        return f"after {operation.waits_for}", None, None
    return "in", None, operation.not_before


def _alert_lines(found: Iterable[alerts.Alert], now: datetime) -> Iterator[AlertLine]:
    for alert in sorted(found, key=lambda a: a.kind not in GRAVE):
        yield AlertLine(
            word=alert.kind.replace("-", " "),
            about=alert.about,
            href=_place_of(alert.about),
            message=alert.message,
            age=now - alert.since,
            grave=alert.kind in GRAVE,
        )


def _place_of(about: str) -> str:
    """Return the page about what an alert is about."""
    kind, _, name = about.partition(" ")
    number, dot, part = kind.partition(".")
    if number.isdecimal() and (part.isdecimal() or not dot):
        return f"/operations/{kind}" if dot else f"/maintenance/{kind}"
    if kind in {each.value for each in model.HoldKind}:
        return orders.address_of_hold(model.HoldKind(kind), name)
    return ""
