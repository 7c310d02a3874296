"""Times and spans as people type and read them.

Everything is shown in UTC to the second, whatever the machine's zone: the guests' documents, the
service's log and the history then read alike on every machine.
"""

import re
from datetime import UTC, datetime, timedelta

import typer

_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(?P<zone>[Zz]|[+-]\d\d:?\d\d)?",
    re.ASCII,
)

LONGEST = timedelta(days=36_500)
"""A hundred years: nothing that is scheduled or was kept is further off."""


def span(text: str) -> timedelta:
    """Read a span such as `90`, `90s`, `5m` or `1h30m`; a bare number is seconds.

    Raises:
        typer.BadParameter: It is none, or longer than LONGEST.
    """
    match = _SPAN.fullmatch(f"{text}s" if text.isdecimal() else text or "none")
    if match is None:
        message = f"{text!r} is no span of time: give seconds, or such as 30s, 5m or 1h30m"
        raise typer.BadParameter(message)
    try:
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        read = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except (OverflowError, ValueError):  # int takes no more than 4,300 digits
        read = timedelta.max
    if read > LONGEST:
        raise typer.BadParameter(f"{text[:40]!r} is too long a span of time")
    return read


def moment(text: str) -> datetime | timedelta:
    """Read a time: RFC 3339 with its zone, or a span from the service's now (`+20m`, `-2h`).

    Returns:
        A time in UTC, or the signed span.

    Raises:
        typer.BadParameter: It is neither, names no zone, or is none in UTC.
    """
    if text[:1] in {"+", "-"}:
        ahead = span(text[1:])
        return ahead if text[0] == "+" else -ahead
    match = _MOMENT.fullmatch(text)
    try:
        read = datetime.fromisoformat(text.upper()) if match else None
    except ValueError:
        read = None
    if match is None or read is None:
        message = (
            f"{text!r} is no time: give RFC 3339 with a zone, such as 2026-03-01T12:00:00Z, "
            "or a span from now, such as +20m"
        )
        raise typer.BadParameter(message)
    if match["zone"] is None:
        message = f"{text!r} names no time zone: add Z for UTC, or an offset such as +02:00"
        raise typer.BadParameter(message)
    try:
        return read.astimezone(UTC)
    except OverflowError as error:
        raise typer.BadParameter(f"{text!r} is before the year 1 or after 9999 in UTC") from error


def duration_seconds(text: str) -> int:
    """Read an expected interruption: a span, or `-1` or `unknown`.

    Raises:
        typer.BadParameter: It is none of these.
    """
    if text in {"-1", "unknown"}:
        return -1
    return int(span(text).total_seconds())


def shown(at: datetime | None) -> str:
    """Return a time as tables show it, such as `2026-03-01 12:00:00Z`; `-` for none."""
    return "-" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def precise(at: datetime) -> str:
    """Return a time as programs read it, such as `2026-03-01T12:00:00Z`, with its milliseconds."""
    whole = at.astimezone(UTC)
    milliseconds = f".{whole.microsecond // 1000:03}" if whole.microsecond else ""
    return f"{whole:%Y-%m-%dT%H:%M:%S}{milliseconds}Z"


def hour(at: datetime) -> str:
    """Return the time of day alone, such as `12:00:00Z`."""
    return at.astimezone(UTC).strftime("%H:%M:%SZ")


def shown_span(seconds: float | None) -> str:
    """Return a span as tables show it, such as `14m 30s`; `-` for none."""
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
