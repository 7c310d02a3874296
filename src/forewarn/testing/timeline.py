"""What was said and what guests saw, for people and for programs."""

from datetime import datetime, timedelta

import msgspec

from forewarn.protocol import document


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What the machines of a scope read from a moment on."""

    scope: str
    machines: tuple[str, ...]
    incarnation: int
    events: tuple[document.Event, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened, and what guests read after it."""

    elapsed_seconds: float
    """From the beginning."""
    time: datetime
    """The wall clock's."""
    line: int | None
    """The file's line; None for what time itself did."""
    said: str
    sights: tuple[Sight, ...]
    """Only of scopes whose document changed."""


def shown(entry: Entry) -> list[str]:
    """Return an entry as lines for people."""
    where = "" if entry.line is None else f"  (line {entry.line})"
    when = f"{entry.time:%d %H:%M:%S}  +{clock_face(timedelta(seconds=entry.elapsed_seconds))}"
    lines = [f"{when}  {entry.said}{where}"]
    for sight in entry.sights:
        who = ", ".join(sight.machines) or f"nobody of {sight.scope}"
        read = "; ".join(map(_read, sight.events)) or "nothing"
        lines.append(f"{'':>13}{who} see{'s' * (len(sight.machines) == 1)} "
                     f"[{sight.incarnation}] {read}")  # fmt: skip
    return lines


def clock_face(span: timedelta) -> str:
    """Return a span as hours, minutes and seconds, such as `0:15:00`."""
    minutes, seconds = divmod(round(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


def _read(event: document.Event) -> str:
    when = "" if event.not_before is None else f", not before {event.not_before:%d %H:%M:%S}"
    return f"{event.event_type} {event.status} of {', '.join(event.resources)}{when}"
