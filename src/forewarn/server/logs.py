"""What the service says: structlog, on standard error; the libraries' own loggers join in.

On a terminal in a form for people, otherwise one JSON object a line, with the same keys.
"""

import logging
import sys
from typing import TextIO

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
        last = structlog.dev.ConsoleRenderer(
            colors=to.isatty(),
            exception_formatter=structlog.dev.plain_traceback,  # never local values: secrets
        )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
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
    for name, level in LIBRARIES.items():
        logging.getLogger(name).setLevel(level)


def _order(_: WrappedLogger, __: str, entry: EventDict) -> EventDict:
    first = {name: entry.pop(name) for name in ("timestamp", "level", "event") if name in entry}
    return {**first, **entry}
