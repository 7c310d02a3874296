"""The log of service, relay and agent on standard error: one form of lines for all three.

On a terminal a line for people; otherwise one JSON object a line, which journald and the Windows
Event Log take as it is: `timestamp`, `level`, `event` and then its facts. Where journald reads it,
each line begins with its priority (sd-daemon(3)). The agent logs by the standard library alone:
structlog, by which the service and the relay log, would cost its start and memory.
"""

import json
import logging
import os
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
        shown = "".join(each if each.isprintable() or each == "\n" else "?" for each in text)
        color = COLORS.get(level, "") if self._colored else ""
        return f"{color}{shown}{END_OF_COLOR}" if color else shown


def set_up(
    settings: Log, stream: TextIO | None = None
) -> "tuple[logging.StreamHandler[TextIO], LineFormatter]":
    """Send all that is logged to one stream, standard error by default, in one form."""
    to = sys.stderr if stream is None else stream
    formatter = LineFormatter(settings, to)
    handler = logging.StreamHandler(to)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    return handler, formatter
