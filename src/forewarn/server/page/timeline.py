"""The timeline of the page: operations as bars, in lanes of a scope's update domains.

It is pure: operations and the time go in, places in per cent of the width come out, and a template
draws them. An event lies in one scope and one update domain, so lanes are few, and a scope that is
rolled through is seen as a staircase. Two thirds of the range are behind now, one is ahead.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from forewarn import times
from forewarn.maintenance import model
from forewarn.vocabulary import EventStatus, EventType

MAX_SCOPES: Final = 12
"""The most scopes that are drawn: they fill two screens; of the rest only the number is shown."""

MAX_BARS: Final = 600
"""The most bars that are drawn, some 250 kB of SVG: those that are not over, then the newest."""

MAX_ROWS: Final = 10
"""The most rows of a lane; what does not fit is counted."""

AHEAD: Final = 3
"""One part in so many lies ahead of now."""

BAR: Final = 0.4
"""The least width of a bar, in per cent: what lasts for seconds must be seen."""

GAP: Final = 0.4
"""The least space between two bars of a row, labels included, in per cent."""

CHARACTER: Final = 0.76
"""The width of a label's character in per cent, where the lane is as narrow as it may be."""

SEAL: Final = 1.5
"""The width of the mark of an approval, in per cent."""

CROSS: Final = 0.8
"""The distance of a failed bar's cross from its end, in per cent of the timeline."""

LONGEST: Final = 24
"""The most characters of a machine's name in a label; the bar's title has all of it."""

QUEUED: Final = 2.0
"""The width of a bar that is not announced yet, in per cent: nobody knows its times."""

INSTANT: Final = timedelta(microseconds=1)

Interval: TypeAlias = tuple[float, float]


class Range(StrEnum):
    """The range of time on the timeline, as the page's address names it."""

    TWO_HOURS = "2h"
    TWELVE_HOURS = "12h"
    DAY = "day"
    WEEK = "week"

    @property
    def label(self) -> str:
        """The text of its button."""
        return {"2h": "2 h", "12h": "12 h", "day": "Day", "week": "Week"}[self]

    @property
    def length(self) -> timedelta:
        """Its length."""
        return timedelta(hours={"2h": 2, "12h": 12, "day": 24, "week": 7 * 24}[self])

    @property
    def step(self) -> timedelta:
        """The distance between the ticks of its scale."""
        return timedelta(minutes={"2h": 15, "12h": 60, "day": 3 * 60, "week": 24 * 60}[self])


class Form(StrEnum):
    """The form of a bar, which makes it readable without colours."""

    QUEUED = "queued"
    """Dotted: not announced."""
    NOTICE = "notice"
    """An outline with a tint."""
    HELD = "held"
    """The same, with a mark: it does not start until it is released."""
    DOWN = "down"
    """Full: its machines are down."""
    DONE = "done"
    """Without an outline: it is over."""
    FAILED = "failed"
    """With a cross and a red outline."""
    CANCELLED = "cancelled"
    """Dashed, its label struck through."""


class Side(StrEnum):
    """Where a bar's label stands."""

    WITHIN = "within"
    AFTER = "after"
    BEFORE = "before"
    NOWHERE = "nowhere"
    """There is no room: the bar's title tells."""


class Part(msgspec.Struct, frozen=True, gc=False):
    """A part of a bar, in per cent."""

    x: float
    width: float


class Bar(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event of an operation; all places are in per cent of the width."""

    operation: str
    event_type: EventType
    form: Form
    row: int = 0
    """From 0, downwards."""
    x: float
    width: float
    notice: Part | None = None
    """From the announcement to the start."""
    down: Part | None = None
    """From the start to the end, or to now."""
    expected: Part | None = None
    """The interruption still expected; if it is Queued, a short part from now."""
    not_before: float | None = None
    """NotBefore, of what has not started."""
    approved: float | None = None
    """When it was approved."""
    cross: float | None = None
    """At its end, of what failed."""
    label: str
    label_x: float = 0.0
    side: Side = Side.NOWHERE
    title: str
    """All of it in words."""

    @property
    def outlined(self) -> Part | None:
        """The part with an outline; None for what went well and for what is not announced."""
        if self.form in {Form.FAILED, Form.CANCELLED}:
            return Part(self.x, self.width)
        if self.form in {Form.NOTICE, Form.HELD}:
            return self.notice or Part(self.x, self.width)
        return self.notice if self.form is Form.DOWN else None

    @property
    def extent(self) -> Interval:
        """From where to where it takes up its row, its label included."""
        length = _length_of(self.label)
        if self.side is Side.AFTER:
            return self.x, self.label_x + length
        if self.side is Side.BEFORE:
            return self.label_x - length, self.x + self.width
        return self.x, self.x + self.width


class Lane(msgspec.Struct, frozen=True, gc=False):
    """An update domain with something to show."""

    update_domain: int
    down: bool
    rows: int
    bars: tuple[Bar, ...]


class ScopeLanes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A scope with something to show."""

    key: str
    name: str
    down: int
    """Machines of it that are down."""
    noticed: int
    """Machines of it that are under notice."""
    lanes: tuple[Lane, ...]
    more: int
    """Bars for which there was no room."""


class Tick(msgspec.Struct, frozen=True, gc=False):
    """A line of the scale."""

    x: float
    label: str
    """`""` where it would collide with another."""
    strong: bool


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The values for `_timeline.html`."""

    range: Range
    now: float
    """Where now is, in per cent."""
    ticks: tuple[Tick, ...]
    scopes: tuple[ScopeLanes, ...]
    further: int
    """Scopes that have bars and are not drawn."""


class _Scale:
    """Turns times into per cent of the width."""

    def __init__(self, now: datetime, shown: Range) -> None:
        ahead = shown.length / AHEAD
        self.begin, self.end = now - (shown.length - ahead), now + ahead
        self._length = shown.length
        self.is_narrow = shown is not Range.TWO_HOURS
        """True if bars are short and many: then those that are done or cancelled have no label."""

    def at(self, moment: datetime) -> float:
        """Return the place of a time, at most at the edge."""
        share = (moment - self.begin) / self._length
        return round(min(max(share, 0.0), 1.0) * 100, 2)

    def part(self, since: datetime, until: datetime) -> Part | None:
        """Return the part between two times; None where nothing of it is in range."""
        if until < self.begin or since > self.end or until <= since:
            return None
        x = min(self.at(since), 100 - BAR)
        return Part(x, round(max(self.at(until) - x, BAR), 2))

    def mark(self, moment: datetime | None) -> float | None:
        """Return the place of a time; None where it is not in range."""
        if moment is None or not self.begin <= moment <= self.end:
            return None
        return self.at(moment)


def drawn(
    operations: Iterable[model.Operation],
    now: datetime,
    shown: Range,
    name_of: Callable[[str], str] = str,
) -> Timeline:
    """Return the timeline of operations; the same values make the same timeline."""
    scale = _Scale(now, shown)
    seen = [o for o in operations if _since(o, now) <= scale.end and _until(o, now) >= scale.begin]
    seen.sort(key=_priority)
    by_scope: dict[str, dict[int, list[model.Operation]]] = {}
    for operation in seen:
        for event in operation.events:
            of_domains = by_scope.setdefault(event.scope, {})
            of_domains.setdefault(event.update_domain, []).append(operation)
    down = _machines(filter(is_down, seen))
    noticed = _machines(operation for operation in seen if operation.pending)
    order = sorted(by_scope, key=lambda s: (s not in down, s not in noticed, s))
    scopes, left = [], MAX_BARS
    for key in order[:MAX_SCOPES]:
        lanes = tuple(_lanes(by_scope[key], key, scale, now, left))
        asked = sum(map(len, by_scope[key].values()))
        count = sum(len(lane.bars) for lane in lanes)
        left -= count
        scopes.append(
            ScopeLanes(
                key=key,
                name=name_of(key),
                down=down[key],
                noticed=noticed[key],
                lanes=lanes,
                more=asked - count,
            )
        )
    return Timeline(
        range=shown,
        now=scale.at(now),
        ticks=tuple(_ticks(scale, now, shown)),
        scopes=tuple(scopes),
        further=max(0, len(order) - MAX_SCOPES),
    )


def _priority(operation: model.Operation) -> tuple[bool, float, int, str]:
    """Sort key: what is not over, then the newest announcement, then its number."""
    over = operation.ended_at is not None
    return (over, -operation.announced_at.timestamp(), -operation.maintenance, operation.id)


def _since(operation: model.Operation, now: datetime) -> datetime:
    return now if operation.status is EventStatus.QUEUED else operation.announced_at


def _until(operation: model.Operation, now: datetime) -> datetime:
    if operation.ended_at is not None:
        return operation.ended_at
    begins = max(now, operation.not_before) if operation.unstarted else operation.started_at or now
    return max(now, begins + timedelta(seconds=max(0, operation.duration_seconds)))


def is_down(operation: model.Operation) -> bool:
    """Return whether its machines are down: it has started, and they are not all back."""
    return operation.status in {EventStatus.STARTED, EventStatus.RETURNING}


def _machines(operations: Iterable[model.Operation]) -> Counter[str]:
    """Return how many machines of each scope these operations are about."""
    found: dict[str, set[str]] = {}
    for operation in operations:
        for event in operation.events:
            found.setdefault(event.scope, set()).update(event.machines)
    return Counter({scope: len(machines) for scope, machines in found.items()})


def _lanes(
    of: Mapping[int, list[model.Operation]], scope: str, scale: _Scale, now: datetime, left: int
) -> Iterator[Lane]:
    for domain, operations in sorted(of.items()):
        bars = [
            _bar(operation, event, scale, now)
            for operation in operations[:left]
            for event in operation.events
            if event.scope == scope and event.update_domain == domain
        ]
        rows = _packed(bars)
        placed = tuple(sorted(rows, key=lambda bar: (bar.row, bar.x)))
        left -= len(placed)
        if placed:
            last = max(bar.row for bar in placed)
            yield Lane(domain, any(map(is_down, operations)), last + 1, placed)


def _packed(bars: list[Bar]) -> list[Bar]:
    """Give each bar the first row in which it has room; leave out what has none.

    Where labels take too many rows, what is over has none; where bars do, the earliest go.
    """
    by_time = sorted(bars, key=lambda bar: (bar.x, bar.operation))
    placed = _rows(by_time)
    if len(placed) == len(bars):
        return placed
    plain = [
        msgspec.structs.replace(bar, side=Side.NOWHERE) if bar.form in _OVER else bar
        for bar in bars
    ]
    live_first = sorted(plain, key=lambda bar: (bar.form in _OVER, -bar.x, bar.operation))
    return _rows(live_first)


def _rows(bars: Iterable[Bar]) -> list[Bar]:
    rows: list[list[Interval]] = []
    placed = []
    for bar in bars:
        row = next((n for n, taken in enumerate(rows) if _has_room(taken, bar.extent)), len(rows))
        if row == MAX_ROWS:
            continue
        if row == len(rows):
            rows.append([])
        rows[row].append(bar.extent)
        placed.append(msgspec.structs.replace(bar, row=row))
    return placed


def _has_room(taken: Iterable[Interval], wanted: Interval) -> bool:
    begin, end = wanted
    return all(end + GAP <= lower or upper + GAP <= begin for lower, upper in taken)


_OVER: Final = frozenset({Form.DONE, Form.FAILED, Form.CANCELLED})


_FORMS: Final = {
    EventStatus.QUEUED: Form.QUEUED,
    EventStatus.SCHEDULED: Form.NOTICE,
    EventStatus.STARTED: Form.DOWN,
    EventStatus.RETURNING: Form.DOWN,
    EventStatus.COMPLETED: Form.DONE,
    EventStatus.FAILED: Form.FAILED,
    EventStatus.CANCELED: Form.CANCELLED,
}


def form_of(operation: model.Operation) -> Form:
    """Return how an operation is drawn."""
    is_held = operation.status is EventStatus.SCHEDULED and operation.held_at is not None
    return Form.HELD if is_held else _FORMS[operation.status]


def _bar(
    operation: model.Operation, event: model.OperationEvent, scale: _Scale, now: datetime
) -> Bar:
    form = form_of(operation)
    queued = form is Form.QUEUED and operation.waits_for
    notice = down = expected = None
    takes = timedelta(seconds=max(0, operation.duration_seconds))
    if form is Form.QUEUED:
        expected = Part(scale.at(now), QUEUED)
    elif operation.unstarted:
        starts = max(operation.not_before, now)
        notice = scale.part(operation.announced_at, starts)
        expected = scale.part(starts, starts + takes)
    elif operation.started_at is None:  # cancelled
        notice = scale.part(operation.announced_at, operation.ended_at or now)
    else:
        started = operation.started_at
        notice = scale.part(operation.announced_at, started)
        # What took no time is drawn all the same.
        down = scale.part(started, max(operation.ended_at or now, started + INSTANT))
        if operation.ended_at is None:
            expected = scale.part(max(now, started), started + takes)
    parts = [part for part in (notice, down, expected) if part is not None]
    x = min((part.x for part in parts), default=scale.at(_since(operation, now)))
    end = max((part.x + part.width for part in parts), default=x)
    width = round(max(end - x, BAR), 2)
    least = 2 * SEAL if scale.is_narrow else SEAL
    approval = event.approval if width >= least else None  # its mark would hide the bar
    bar = Bar(
        operation=operation.id,
        event_type=operation.event_type,
        form=form,
        x=x,
        width=width,
        notice=notice,
        down=down,
        expected=expected,
        not_before=scale.mark(operation.not_before) if operation.pending else None,
        approved=scale.mark(approval.at) if approval is not None else None,
        cross=max(x, round(end - CROSS, 2)) if form is Form.FAILED else None,
        label=label_of(event.machines) + (f" after {operation.waits_for}" if queued else ""),
        title=_title(operation, event, now),
    )
    if scale.is_narrow and form in {Form.DONE, Form.CANCELLED}:
        return bar
    return _labelled(bar)


def label_of(machines: tuple[str, ...]) -> str:
    """Return the first machine and how many more there are, short enough for a label."""
    first = machines[0] if machines else ""
    if len(first) > LONGEST:
        first = first[: LONGEST - 1] + "…"
    return first + (f" +{len(machines) - 1}" if len(machines) > 1 else "")


def _length_of(label: str) -> float:
    return len(label) * CHARACTER + GAP


def _labelled(bar: Bar) -> Bar:
    """Put the label where there is room: within the notice, after the bar, before it, nowhere."""
    length = _length_of(bar.label)
    tinted = bar.notice or bar.expected
    if tinted is not None and bar.form is not Form.CANCELLED:
        begin, end = tinted.x, tinted.x + tinted.width
        places = [(begin, end)]
        if bar.approved is not None:
            places = [(bar.approved + SEAL / 2, end), (begin, bar.approved - SEAL / 2)]
        for lower, upper in places:
            if lower >= begin and upper - lower >= length + 2 * GAP:
                return _at(bar, lower + GAP, Side.WITHIN)
    after = bar.x + bar.width + GAP
    if bar.approved is not None:
        after = max(after, bar.approved + SEAL / 2 + GAP)
    if after + length <= 100:
        return _at(bar, after, Side.AFTER)
    if bar.x - GAP - length >= 0:
        return _at(bar, bar.x - GAP, Side.BEFORE)
    return bar


def _at(bar: Bar, x: float, side: Side) -> Bar:
    return msgspec.structs.replace(bar, label_x=round(x, 2), side=side)


def _title(operation: model.Operation, event: model.OperationEvent, now: datetime) -> str:
    told = [
        f"{operation.id} {operation.event_type} of {model.listed(event.machines)}",
        f"{operation.status}, announced {times.brief(operation.announced_at, now)}",
    ]
    if event.approval is not None:
        told.append(f"approved {times.brief(event.approval.at, now)} by {event.approval.by}")
    if operation.started_at is not None:
        told.append(f"started {times.brief(operation.started_at, now)}")
    elif operation.pending:
        told.append(f"not before {times.brief(operation.not_before, now)}")
    if operation.ended_at is not None:
        told.append(f"ended {times.brief(operation.ended_at, now)}")
    if operation.waits_for:
        told.append(f"after {operation.waits_for}")
    if operation.held_at is not None:
        told.append("held")
    return "; ".join(told)


def _ticks(scale: _Scale, now: datetime, shown: Range) -> Iterator[Tick]:
    step = shown.step
    midnight = datetime(scale.begin.year, scale.begin.month, scale.begin.day, tzinfo=UTC)
    moment = midnight + -(-(scale.begin - midnight) // step) * step
    while moment <= scale.end:
        x = scale.at(moment)
        is_day = moment.hour == moment.minute == 0
        strong = moment.minute == 0 if shown is Range.TWO_HOURS else is_day
        label = f"{moment:%a %d}" if is_day else f"{moment:%H:%M}"
        # At the edges it would be cut off, and over now stands "now".
        is_free = 2 <= x <= 98 and abs(x - scale.at(now)) > 4
        yield Tick(x, label if is_free else "", strong)
        moment += step


FILTERS: Final = MappingProxyType({"form": form_of, "label_of_machines": label_of})
"""By the names that templates call them."""
