"""The log of service, relay and agent on standard error: one form of lines for all three.

On a terminal a line for people; otherwise one JSON object a line, which journald and the Windows
Event Log take as it is: `timestamp`, `level`, `event` and then its facts. Where journald reads it,
each line begins with its priority (sd-daemon(3)). The agent logs by the standard library alone:
structlog, by which the service and the relay log, would cost its start and memory.
"""

import json
import logging
import os
import select
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from forewarn import systemd
from forewarn.settings import Log

PRIORITIES: Final = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>"}
HIGHEST: Final = "<2>"

COLORS: Final = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m"}
END_OF_COLOR: Final = "\x1b[0m"

FIRST: Final = ("timestamp", "level", "event")
"""The fields with which an entry begins; in a line for people they have no names."""

TEXT: Final = "exception"
"""The field of several lines."""


WAIT_SECONDS: Final = 0.5
"""The longest wait for a reader of the log: the event loop and the deciding thread write it."""

PIECE: Final = getattr(select, "PIPE_BUF", 512)
"""The bytes for which a pipe that takes any has room."""


def takes(stream: TextIO, seconds: float = WAIT_SECONDS) -> bool:
    """Return True if a write to a stream does not hang: its reader may have stopped reading."""
    if not hasattr(select, "poll"):  # Windows
        return True
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLOUT)
        return bool(poll.poll(seconds * 1000))
    except (OSError, ValueError):  # a stream of no file, such as one in memory
        return True


class PatientStream:
    """A stream whose writer waits half a second, once, for a reader that hangs.

    journald, a container's log driver or a terminal may stop reading. Lines are lost then, and one
    line says so afterwards: no machine stays undrained for its log.
    """

    def __init__(self, stream: TextIO, formatter: "LineFormatter") -> None:
        self._stream, self._formatter = stream, formatter
        self._lost = 0
        self._is_cut = False
        """True if a line was written in part."""

    def write(self, text: str) -> None:
        """Write a line with its end, whole if there is room for its beginning."""
        if not takes(self._stream, 0.0 if self._lost else WAIT_SECONDS):
            self._lost += 1
            return
        lost, self._lost = self._lost, 0
        if lost:
            told = f"nothing read this log: lines lost: {lost}"
            record = {"name": __name__, "levelname": "WARNING", "msg": told}
            text = f"{self._formatter.format(logging.makeLogRecord(record))}\n{text}"
        rest = ("\n" * self._is_cut + text).encode("utf-8", "backslashreplace")
        self._is_cut = False
        while rest and not self._is_cut:
            rest = rest[os.write(self._stream.fileno(), rest[:PIECE]) :]
            if rest and not takes(self._stream):
                self._is_cut, self._lost = True, 1

    def flush(self) -> None:
        """Do nothing: each line is written at once."""


class LineFormatter(logging.Formatter):
    """Turns entries, of structlog or of the standard library, into the lines of a stream."""

    def __init__(self, settings: Log, stream: TextIO) -> None:
        super().__init__()
        self._colored = stream.isatty()
        self._as_json = settings.format == "json" or (
            settings.format == "auto" and not self._colored
        )
        self._journald = systemd.reads(stream, os.environ)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; its `facts` stand beside its message."""
        at = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "timestamp": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
            "logger": record.name,
        }
        if record.exc_info:
            entry[TEXT] = self.formatException(record.exc_info)
        return self.line(entry)

    def line(self, entry: Mapping[str, Any]) -> str:
        """Return the line of an entry, without its end."""
        if self._as_json:
            first = {name: entry[name] for name in FIRST}
            line = json.dumps({**first, **entry}, default=str)
        else:
            line = self._for_people(entry)
        return (PRIORITIES.get(entry["level"], HIGHEST) if self._journald else "") + line

    def _for_people(self, entry: Mapping[str, Any]) -> str:
        """Return a line without control characters, which a terminal would obey."""
        at, level = entry["timestamp"][:19].replace("T", " "), entry["level"]
        text = f"{at}Z {level:<8} {entry['event']}"
        facts = {name: entry[name] for name in entry if name not in (*FIRST, TEXT, "logger")}
        for name, value in facts.items():
            shown = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            text += f"  {name}={shown}" if shown else ""
        text += f"\n{entry[TEXT]}" if TEXT in entry else ""
        text = text.replace("\n", "\n  ")  # a caller's text must not make an entry of its own
        shown = "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
        color = COLORS.get(level, "") if self._colored else ""
        return f"{color}{shown}{END_OF_COLOR}" if color else shown


def set_up(
    settings: Log, stream: TextIO | None = None
) -> "tuple[logging.StreamHandler[TextIO | PatientStream], LineFormatter]":
    """Send all that is logged to one stream, standard error by default, in one form."""
    formatter = LineFormatter(settings, stream or sys.stderr)
    handler = logging.StreamHandler(stream or PatientStream(sys.stderr, formatter))
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    return handler, formatter
