"""What the agent says on its standard error: the standard library's logging, and no more memory.

On a terminal a line for people; otherwise one JSON object a line, which journald and the Windows
Event Log take as it is. Where journald reads it each line begins with its priority, as sd-daemon(3)
has it.
"""

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

import msgspec

from forewarn import systemd
from forewarn.settings import Log

PRIORITIES: Final = {
    logging.DEBUG: "<7>",
    logging.INFO: "<6>",
    logging.WARNING: "<4>",
    logging.ERROR: "<3>",
    logging.CRITICAL: "<2>",
}


def set_up(settings: Log, stream: TextIO | None = None) -> None:
    """Send all that is logged to one place, in one form.

    Args:
        settings: The form and the least level.
        stream: Where to; None for standard error.
    """
    to = sys.stderr if stream is None else stream
    as_json = settings.format == "json" or (settings.format == "auto" and not to.isatty())
    handler = logging.StreamHandler(to)
    handler.setFormatter(_Lines(journald=systemd.reads(to, os.environ)) if as_json else _Words())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())


class _Words(logging.Formatter):
    """A line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")


class _Lines(logging.Formatter):
    """One JSON object a line; what an entry carries as `facts` stands beside its words."""

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
