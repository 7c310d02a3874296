"""What the service says: structlog, on standard error; the libraries' own loggers join in.

On a terminal in a form for people, otherwise one JSON object a line, with the same keys. The
service's own lines do not go through the standard library's logging, which takes as long for each
as the rest of the line: every change is logged on the event loop.
"""

import contextlib
import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from forewarn.settings import Log

LIBRARIES = {
    "uvicorn": logging.ERROR,
    "alembic": logging.WARNING,
    "sqlalchemy": logging.WARNING,
    "asyncio": logging.WARNING,
}
"""The least level that is logged of libraries which log each step. Any stranger can cause uvicorn's
warnings; `operator.connections` counts and logs these, once a minute."""


def set_up(settings: Log, stream: TextIO | None = None) -> None:
    """Send all that is logged to one stream (None: standard error), in one form."""
    to = sys.stderr if stream is None else stream
    as_json = settings.format == "json" or (settings.format == "auto" and not to.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: Processor = structlog.processors.JSONRenderer(default=str)
    if as_json:
        shared += [structlog.processors.format_exc_info, _order]
    else:
        shared.append(_for_people)
        last = structlog.dev.ConsoleRenderer(
            0,  # it pads no event: its name differs between structlog's versions
            colors=to.isatty(),
            sort_keys=False,
            exception_formatter=structlog.dev.plain_traceback,  # never local values: secrets
        )
    handler = logging.StreamHandler(to)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    structlog.configure(
        processors=[*shared, last],
        logger_factory=lambda name="": _Output(handler, name),
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        cache_logger_on_first_use=False,
    )
    for name, level in LIBRARIES.items():
        logging.getLogger(name).setLevel(level)


class _Output:
    """Writes finished lines to the stream of a handler, in turns with what the handler writes."""

    def __init__(self, handler: "logging.StreamHandler[TextIO]", name: str) -> None:
        assert handler.lock is not None
        self._stream, self._lock = handler.stream, handler.lock
        self.name: Final = name
        """What `add_logger_name` adds."""

    def _write(self, line: str) -> None:
        # Nobody who logs is stopped by a full disk, or by a reader that is gone.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = _write


def _for_people(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    """Write a list as its parts, and leave out what is empty."""
    shown = {
        name: ", ".join(map(str, value)) if isinstance(value, tuple | list) else value
        for name, value in entry.items()
    }
    return {name: value for name, value in shown.items() if value != ""}


def _order(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    first = {name: entry.pop(name) for name in ("timestamp", "level", "event") if name in entry}
    return {**first, **entry}
