"""Times and spans as the page writes them: what templates use as filters."""

from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final


def time_of_day(moment: datetime) -> str:
    """Return `14:05`."""
    return f"{moment.astimezone(UTC):%H:%M}"


def clock(moment: datetime) -> str:
    """Return `14:05:09`."""
    return f"{moment.astimezone(UTC):%H:%M:%S}"


def instant(moment: datetime) -> str:
    """Return `2026-03-01T14:05:09Z`, for attributes and for people who copy it."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def moment_of(moment: datetime, now: datetime) -> str:
    """Return `14:05:09` today, `11-21 14:05:09` in this year, and else all of it."""
    moment, now = moment.astimezone(UTC), now.astimezone(UTC)
    if moment.date() == now.date():
        return clock(moment)
    return f"{moment:%m-%d %H:%M:%S}" if moment.year == now.year else instant(moment)


def seconds(count: float) -> timedelta:
    """Return a number of seconds as a span."""
    return timedelta(seconds=count)


def millis(moment: datetime) -> int:
    """Return a time as scripts have it: in milliseconds since 1970."""
    return round(moment.timestamp() * 1000)


def countdown(left: timedelta) -> str:
    """Return `1:05`, or `1:00:05` from an hour on; `0:00` once it is over."""
    seconds = max(0, round(left.total_seconds()))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def span(length: timedelta) -> str:
    """Return `40 s`, `12 min`, `1 h 30 m` or `3 d 4 h`: two units at most."""
    seconds = max(0, round(length.total_seconds()))
    if seconds < 60:
        return f"{seconds} s"
    minutes = seconds // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes:02} m"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


FILTERS: Final = MappingProxyType(
    {
        each.__name__: each
        for each in (
            time_of_day,
            clock,
            instant,
            moment_of,
            seconds,
            millis,
            countdown,
            span,
        )
    }
)
"""By the names that templates call them."""
