"""The form of the lines that the agent writes to its standard error.

On a terminal a line for people; otherwise one JSON object a line, which journald and the Windows
Event Log take as it is. Where journald reads it, each line begins with its priority
(sd-daemon(3)). The standard library's logging, for another would cost the agent's start and memory.
"""

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

from forewarn import systemd
from forewarn.settings import Log

LOGGER: Final = logging.getLogger("forewarn.agent")

PRIORITIES: Final = {
    logging.DEBUG: "<7>",
    logging.INFO: "<6>",
    logging.WARNING: "<4>",
    logging.ERROR: "<3>",
    logging.CRITICAL: "<2>",
}


def set_up(settings: Log, stream: TextIO | None = None) -> None:
    """Send everything that is logged to one stream, standard error by default, in one form."""
    to = stream or sys.stderr
    as_json = settings.format == "json" or (settings.format == "auto" and not to.isatty())
    journald = systemd.reads(to, os.environ)
    handler = logging.StreamHandler(to)
    handler.setFormatter(_JsonFormatter(journald=journald) if as_json else _ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())


class _ConsoleFormatter(logging.Formatter):
    """A line for people, without control characters: a terminal would obey them."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the lines of a traceback."""
        text = super().format(record)
        return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)


class _JsonFormatter(logging.Formatter):
    """One JSON object a line; an entry's `facts` stand beside its message."""

    def __init__(self, *, journald: bool) -> None:
        super().__init__()
        self._journald = journald

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC)
        entry = {
            "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        line = msgspec.json.encode(entry, enc_hook=str).decode()
        return (PRIORITIES.get(record.levelno, "") if self._journald else "") + line
