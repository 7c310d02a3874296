"""Times and spans as people type and read them.

Times are shown in UTC to the second, whatever the zone of the machine, so that they can be compared
with the documents of guests, the log of the service and the history.
"""

import re
from datetime import UTC, datetime, time, timedelta, tzinfo

_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(?P<zone>[Zz]|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):[0-5]\d", re.ASCII)


class InvalidTime(ValueError):  # noqa: N818 - a mistake of the person who typed it
    """A text is not a time or a span; the message says what was expected."""


LONGEST = timedelta(days=36_500)
"""A hundred years: no maintenance and no history is further off."""


def span(text: str) -> timedelta:
    """Read a span such as `90`, `90s`, `5m` or `1h30m`; a bare number is seconds."""
    match = _SPAN.fullmatch(f"{text}s" if text.isdecimal() else text or "none")
    if match is None:
        message = f"invalid span {text!r}: expected seconds, or a span such as 30s, 5m or 1h30m"
        raise InvalidTime(message)
    try:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        read = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, ValueError):  # int takes no more than 4,300 digits
        read = timedelta.max
    if read > LONGEST:
        raise InvalidTime(f"invalid span {text[:40]!r}: longer than a hundred years")
    return read


def moment(text: str, such_as: str = "+20m") -> datetime | timedelta:
    """Read a time in UTC: RFC 3339 with its zone; or a signed span from now (`+20m`, `-2h`)."""
    if text[:1] in {"+", "-"}:
        ahead = span(text[1:])
        return ahead if text[0] == "+" else -ahead
    match = _MOMENT.fullmatch(text)
    try:
        read = datetime.fromisoformat(text.upper()) if match else None
    except ValueError:
        read = None
    if match is None or read is None:
        message = f"invalid time {text!r}: expected RFC 3339, such as 2026-11-22T22:00:00Z, or "
        message += such_as
        raise InvalidTime(message)
    if match["zone"] is None:
        message = f"invalid time {text!r}: no time zone; add Z for UTC, or an offset such as +02:00"
        raise InvalidTime(message)
    try:
        return read.astimezone(UTC)
    except OverflowError as error:
        message = f"invalid time {text!r}: before the year 1 or after 9999 in UTC"
        raise InvalidTime(message) from error


def past(text: str) -> datetime | timedelta:
    """Read a time that lies behind, as `moment` does."""
    return moment(text, "-2h")


def coming(text: str) -> datetime | timedelta | time:
    """Read a time that lies ahead: as `moment` does, or a time of day such as `18:00`."""
    if _TIME_OF_DAY.fullmatch(text):
        return time.fromisoformat(text.zfill(5))
    try:
        return moment(text)
    except InvalidTime as error:
        raise InvalidTime(f"{error}, or a time of day such as 18:00") from error


def next_time_of_day(of_day: time, now: datetime, zone: tzinfo | None = None) -> datetime:
    """Return the next such time of day, in UTC; a zone of None is this machine's own."""
    here = now.astimezone(zone).date()
    days = (datetime.combine(here + timedelta(days=n), of_day, zone) for n in range(3))
    # Without a zone it is a time of this machine's, with the summer time of that day.
    return next(at for at in (day.astimezone(UTC) for day in days) if at > now)


def duration_seconds(text: str) -> int:
    """Read an expected interruption: a span, or `-1` or `unknown`."""
    return -1 if text in {"-1", "unknown"} else int(span(text).total_seconds())


def interval(text: str) -> tuple[datetime, datetime]:
    """Read two times with a slash between them, as ISO 8601 writes an interval."""
    begins, _, ends = text.partition("/")
    try:
        first, last = moment(begins), moment(ends)
    except InvalidTime:
        first = last = timedelta()
    if not isinstance(first, datetime) or not isinstance(last, datetime):
        raise InvalidTime(f"invalid interval {text!r}: expected two RFC 3339 times, as FROM/TO")
    return first, last


def shown(at: datetime | None) -> str:
    """Return a time as tables show it, such as `2026-03-01 12:00:00Z`; `-` for None."""
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def brief(at: datetime, now: datetime) -> str:
    """Return a time in UTC for a narrow table: `14:05Z` today, else `11-21 14:05Z`."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    if at.date() == now.date():
        return at.strftime("%H:%MZ")
    return at.strftime("%m-%d %H:%MZ" if at.year == now.year else "%Y-%m-%d %H:%MZ")


def precise(at: datetime) -> str:
    """Return a time as programs read it, such as `2026-03-01T12:00:00Z`, with its milliseconds."""
    whole = at.astimezone(UTC)
    milliseconds = f".{whole.microsecond // 1000:03}" if whole.microsecond else ""
    return f"{whole:%Y-%m-%dT%H:%M:%S}{milliseconds}Z"


def hour(at: datetime) -> str:
    """Return the time of day, such as `12:00:00Z`."""
    return at.astimezone(UTC).strftime("%H:%M:%SZ")


def shown_span(seconds: float | None) -> str:
    """Return a span as tables show it, such as `14m 30s`; `-` for None."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        count, whole = divmod(whole, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    parts.append(f"{whole}s")
    while len(parts) > 1 and parts[-1].startswith("0"):
        parts.pop()
    return " ".join(parts)
