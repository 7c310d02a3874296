"""The common parts of processes that answer guests: signals, open files, event loop, memory, logs.

structlog writes the log, on standard error; the libraries' own loggers join in. On a terminal in a
form for people, otherwise one JSON object a line, with the same keys. Its own lines do not go
through the standard library's logging, which takes as long for each as the rest of the line: every
change is logged on the event loop.
"""

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Hashable
from typing import Final, NoReturn, TextIO, TypeVar

import msgspec
import structlog

from forewarn import logs, systemd
from forewarn.server.guest.limits import Limits
from forewarn.server.sockets import HandedOver
from forewarn.settings import Log

L = TypeVar("L", bound=Limits)

BY_SIGNAL: Final = 128
"""Added to the signal's number, as shells count it."""

YOUNG_OBJECTS: Final = 10_000
"""The number of new containers before the collector looks at them, 700 by default: circles are rare
here, and each look at the old ones stops every answer."""

SWITCH_SECONDS: Final = 0.0005
"""The wait of the loop's thread for the interpreter while another computes, in each round: the
writer, the page, an operator's question. Python's default is 5 ms."""

END_SECONDS: Final = 1.0
"""The time for threads to end after the service has: what they do for operators is of no use then.
"""

LIBRARIES = {
    "uvicorn": logging.ERROR,
    "asyncio": logging.WARNING,
}
"""The least level that is logged of libraries which log each step. Any stranger can cause uvicorn's
warnings; `operator.connections` counts and logs these, once a minute."""


LOG_SECONDS: Final = 60.0
"""The time for which nothing more is logged of an address that was refused for the same reason."""

MAX_LOGGED: Final = 256
"""Addresses and reasons that are logged within LOG_SECONDS: a guest with a /64 of its own has more
addresses than any memory. The surplus is logged as a number."""


class Crashed(Exception):  # noqa: N818 - what happened to it
    """A part that never ends has ended: the process must not limp on without it."""


_log = structlog.get_logger(__name__)


def handed_over(wanted: Collection[str], unit: str) -> HandedOver:
    """Return the sockets that systemd opened by a unit, each at an address that is listened on.

    Raises:
        SocketUnusable: One of them cannot be used, or nobody listens there.
    """
    given = HandedOver(systemd.listening_files(os.environ))
    if given:
        missing = given.missing(wanted)
        _log.info("systemd handed sockets over", sockets=len(given))
        if missing:
            _log.warning(
                f"these addresses are not in {unit}: the process listens there itself, and refuses "
                "connections while it restarts",
                addresses=missing,
            )
    return given


def raise_open_files(needed: int) -> int:
    """Raise the process's soft limit of open files as far as needed, and return the new one."""
    try:
        import resource  # noqa: PLC0415 - there is none on Windows, nor such a limit
    except ImportError:
        return needed
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def connections_within(setting: str, wanted: int, may_open: int, spare: int) -> int:
    """Return the number of connections for a process that may open so many files.

    A connection that finds no file left is not refused: it waits unseen, and everybody with it, so
    `spare` files stay free for other uses of the process. `setting` names the limit in the log.
    """
    most = max(may_open - spare, may_open // 4, 1)
    if wanted <= most:
        return wanted
    _log.warning(
        "fewer connections than the setting says: the process may open too few files; raise "
        "LimitNOFILE in its unit, or 'ulimit -Hn' where it is started",
        setting=setting,
        may_open=may_open,
        needed=wanted + spare,
        connections=most,
    )
    return most


def within_files(guest: L, may_open: int, spare: int) -> L:
    """Return the guests' limits with fewer connections where the process may open too few files."""
    most = connections_within("guest.connections", guest.connections, may_open, spare)
    if most == guest.connections:
        return guest
    # Those that wait stay below them, so that they never keep out those who ask now.
    waiters = min(guest.waiters, max(1, most * 9 // 10))
    return msgspec.structs.replace(guest, connections=most, waiters=waiters)


def answer_soon() -> None:
    """Keep the collector and busy threads from holding answers up for long.

    The collector never looks again at the objects of the start: that would stop every answer for 60
    ms with 100,000 machines. A thread that computes gives way to the loop's within SWITCH_SECONDS.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def follow_signals(stop: asyncio.Event) -> None:
    """Stop at the first signal, end at once at the second."""
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        if stop.is_set():
            _log.warning("ended at once, by a second signal; what was committed is safe")
            end(BY_SIGNAL + number)
        _log.info("stopping", signal=signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        if os.name == "posix":
            loop.add_signal_handler(number, asked, int(number))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])  # a relay's start blocked it
        else:  # Windows' loops know no signals: the handler runs between two bytecodes
            signal.signal(number, lambda caught, _: loop.call_soon_threadsafe(asked, caught))


def end(status: int) -> NoReturn:
    """End the process without waiting for anything."""
    os._exit(status)


def end_soon(status: int) -> None:
    """End the process within END_SECONDS, though Python waits for threads: one of them may hang."""
    timer = threading.Timer(END_SECONDS, os._exit, (status,))
    timer.daemon = True
    timer.start()


def mint() -> str:
    """Return a new GUID."""
    return str(uuid.uuid4())  # noqa: TID251 - the one place that supplies ids to the rest


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed, None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - it is optional
    except ImportError:
        return None
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return loop


# Logs.


def set_up_logs(settings: Log, stream: TextIO | None = None) -> None:
    """Send all log lines to one stream (None: standard error), in one form."""
    handler, formatter = logs.set_up(settings, stream)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,  # without local values: secrets
            lambda _, __, entry: formatter.line(entry),
        ],
        logger_factory=lambda name="": _Output(handler, name),
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        cache_logger_on_first_use=False,
    )
    for name, level in LIBRARIES.items():
        logging.getLogger(name).setLevel(level)


class _Output:
    """Writes finished lines to the stream of a handler, in turns with what the handler writes."""

    def __init__(
        self, handler: "logging.StreamHandler[TextIO | logs.PatientStream]", name: str
    ) -> None:
        assert handler.lock is not None
        self._stream, self._lock = handler.stream, handler.lock
        self.name: Final = name

    def _write(self, line: str) -> None:
        # Nobody who logs is stopped by a full disk, or by a reader that is gone.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = _write


class LimitLog:
    """Logs each thing once a minute, with the number of suppressed lines since the last."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, float] = {}
        """When each was last logged, the oldest first."""
        self._of_reason: dict[object, float] = {}
        """When each reason was: strangers by the thousand keep no other reason out of the log."""
        self._not_logged = 0

    def warn(self, event: str, key: Hashable, now: float, **facts: object) -> None:
        """Log an event, unless one of its key was logged a moment ago; `now` is in seconds."""
        logged = self._logged
        while logged:
            oldest = next(iter(logged))
            if now - logged[oldest] < LOG_SECONDS:
                break
            del logged[oldest]
        reason = facts.get("reason", event)
        is_news = now - self._of_reason.get(reason, -math.inf) >= LOG_SECONDS
        if key in logged or (len(logged) >= MAX_LOGGED and not is_news):
            self._not_logged += 1
            return
        logged[key] = self._of_reason[reason] = now
        _log.warning(event, **facts, not_logged_before=self._not_logged)
        self._not_logged = 0
