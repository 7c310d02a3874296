"""Maintenance windows as people write them, and when they are open.

    Sat,Sun 22:00-04:00        Mon-Fri 01:00-05:00        daily 02:00-03:00
    2nd Tue +9d 01:00-05:00    last Fri 20:00-23:00       Sat 20:00-Mon 04:00

A window that ends before it begins ends on the next day; one of a single day may name a later day,
on which it ends. 24:00 is the end of a day. `+9d` is so many days after the day that is named.
Times are local to a time zone. A local time that the clocks leave out in spring counts as the same
time before the change, so 02:30 is 03:30; of a local time that comes twice in autumn, the first one
counts.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ORDINALS: Final = ("1st", "2nd", "3rd", "4th", "last")

MAX_WINDOWS: Final = 20
"""Windows of one policy: more are a mistake, and each costs a look at every day."""

MAX_OFFSET_DAYS: Final = 31
"""The most days after the day that a window names."""

HORIZON: Final = timedelta(days=400)
"""The range of the search for windows: every window that a year has is within it."""

FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
ENDLESS: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""When a policy without windows opens and closes."""

_WINDOW = re.compile(
    r"(?:(?P<ordinal>1st|2nd|3rd|4th|last)\s+)?(?P<days>[a-z]{3}(?:[,-][a-z]{3})*|daily)"
    r"(?:\s+\+(?P<offset>\d{1,2})d)?\s+(?P<from>\d\d:\d\d)"
    r"-(?:(?P<last>[a-z]{3})\s+)?(?P<to>\d\d:\d\d)"
)


class Span(msgspec.Struct, frozen=True, order=True, gc=False):
    """A time with a beginning and an end; both aware."""

    opens: datetime
    closes: datetime


class _Window(msgspec.Struct, frozen=True):
    days: frozenset[int]
    ordinal: str
    offset: int
    begins: time
    length: int
    """The number of days from the day on which it begins to the day on which it ends."""
    ends: time

    def begins_on(self, day: date) -> bool:
        named = day - timedelta(days=self.offset)
        if named.weekday() not in self.days:
            return False
        if self.ordinal == "last":
            return (named + timedelta(days=7)).month != named.month
        return not self.ordinal or (named.day - 1) // 7 == ORDINALS.index(self.ordinal)

    def on(self, day: date, zone: ZoneInfo) -> Span:
        ends_on = day + timedelta(days=self.length)
        begins, ends = (
            datetime.combine(each, at, zone).astimezone(UTC)
            for each, at in ((day, self.begins), (ends_on, self.ends))
        )
        return Span(begins, ends)


def check(windows: Sequence[str], zone: str) -> None:
    """Raise ValueError, with the reason, where a window or the time zone cannot be read."""
    if len(windows) > MAX_WINDOWS:
        raise ValueError(f"{len(windows)} windows, at most {MAX_WINDOWS} allowed")
    _zone(zone)
    for text in windows:
        _read(text)


def following(
    windows: Sequence[str], zone: str, blackouts: Sequence[Span], now: datetime
) -> Sequence[Span]:
    """Return the spans in which the windows are open from now on, in order and without overlap.

    Without windows they are always open, but for the blackouts. What closed before `now` is left
    out; a span that is open now is the first.
    """
    # One look a day at the calendar: a maintenance asks each time that something changes.
    found = _from_day(tuple(windows), zone, tuple(blackouts), now.astimezone(UTC).date())
    return [span for span in found if span.closes > now]


@functools.lru_cache(maxsize=64)
def _from_day(
    windows: tuple[str, ...], zone: str, blackouts: tuple[Span, ...], day: date
) -> tuple[Span, ...]:
    spans = [Span(FIRST, ENDLESS)]
    if windows:
        spans = sorted(_open(windows, _zone(zone), day))
    return tuple(_without(_merged(spans), sorted(blackouts)))


def _open(windows: tuple[str, ...], zone: ZoneInfo, first: date) -> Iterator[Span]:
    read = [_read(text) for text in windows]
    for ahead in range(-8, HORIZON.days):  # one may have begun a week before, in another zone
        day = first + timedelta(days=ahead)
        for window in read:
            if window.begins_on(day):
                span = window.on(day, zone)
                if span.opens < span.closes:
                    yield span


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for span in spans:
        if merged and span.opens <= merged[-1].closes:
            merged[-1] = Span(merged[-1].opens, max(merged[-1].closes, span.closes))
        else:
            merged.append(span)
    return merged


def _without(spans: Iterable[Span], blackouts: list[Span]) -> Iterator[Span]:
    for span in spans:
        opens = span.opens
        for blackout in blackouts:
            if blackout.closes > opens and blackout.opens < span.closes:
                if blackout.opens > opens:
                    yield Span(opens, blackout.opens)
                opens = blackout.closes
        if opens < span.closes:
            yield Span(opens, span.closes)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        message = f"unknown time zone {name[:80]!r}: expected a name such as Europe/Berlin"
        raise ValueError(message) from error


@functools.lru_cache(maxsize=256)
def _read(text: str) -> _Window:
    match = _WINDOW.fullmatch(text.strip().lower())
    message = (
        f"invalid window {text[:80]!r}: expected days and times such as 'Sat,Sun 22:00-04:00', "
        "'daily 02:00-03:00', 'Sat,Sun 00:00-24:00', '2nd Tue +9d 01:00-05:00', or a day to a "
        "later one such as 'Sat 20:00-Mon 04:00'"
    )
    if match is None:
        raise ValueError(message)
    offset = int(match["offset"] or 0)
    try:
        days = _days(match["days"])
        begins = time.fromisoformat(match["from"])
        whole = match["to"] == "24:00"
        ends = time(0) if whole else time.fromisoformat(match["to"])
        length = 1 if whole or ends < begins else 0
        same_day = False
        if match["last"]:
            (first,) = days
            later = (DAYS.index(match["last"]) - first - offset) % 7
            same_day = later == 0  # nobody can tell whether that is no day or a week
            length = later + whole
    except ValueError as error:
        raise ValueError(message) from error
    if offset > MAX_OFFSET_DAYS or same_day or (begins == ends and not length):
        raise ValueError(message)
    ordinal = match["ordinal"] or ""
    return _Window(
        days=days, ordinal=ordinal, offset=offset, begins=begins, length=length, ends=ends
    )


def _days(text: str) -> frozenset[int]:
    if text == "daily":
        return frozenset(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found.update(day % 7 for day in range(begin, end + (7 if end < begin else 0) + 1))
    return frozenset(found)
