"""`forewarn serve`: the process around the service.

Its exit statuses:

    0    it was asked to stop (SIGTERM or SIGINT) and did
    1    a part of it crashed, or stopping took too long; the log says which
    6    the store cannot be used: another process has it, it is damaged, or of a newer release
    10   a socket, the token's file or a proxies' secret cannot be used
    130  a second SIGINT, 143 a second SIGTERM: it ended at once; what was committed is safe

Each of 6 and 10 is one line in the log, and nothing was changed. SIGHUP has the proxies' secrets
read again, and changes nothing else; from a terminal it ends the service, as when that is closed.
"""

import asyncio
import contextlib
import functools
import gc
import os
import signal
import stat
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import structlog

from forewarn import systemd
from forewarn.clock import SystemClock
from forewarn.connectors.command import CommandUnusable
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ServiceClock
from forewarn.server import logs
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.operator import connections
from forewarn.server.secret_files import SecretUnusable
from forewarn.server.service import Crashed, Opened, Service, clock_of, policy_of
from forewarn.server.settings import GuestSettings, Settings
from forewarn.server.sockets import SocketUnusable
from forewarn.settings import state_folder
from forewarn.store import sqlite
from forewarn.store.port import Store, StoreError
from forewarn.version import __version__

STOPPED: Final = 0
CRASHED: Final = 1
BAD_STORE: Final = 6
BAD_SETTINGS: Final = 2
BAD_SOCKET: Final = 10
BY_SIGNAL: Final = 128
"""And the signal's number, as shells count it."""

SPARE_FILES: Final = 2 * connections.MAX_CONNECTIONS + 256
"""Open files beside guests' connections: operators' ones on both of their sockets, the database's,
and those of programs that carry maintenance out. Guests cannot take these."""

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

YOUNG_OBJECTS: Final = 10_000
"""How many containers are made before the collector looks at the new ones, 700 by default: circles
are rare here, and each look at the old ones stops every answer."""

_log = structlog.get_logger(__name__)


def serve(settings: Settings) -> int:
    """Run the service until it is asked to stop.

    Args:
        settings: As `settings.load` returns them.

    Returns:
        The process's exit status.
    """
    logs.set_up(settings.log)
    may_open = _raise_open_files(settings.guest.connections + SPARE_FILES)
    settings = msgspec.structs.replace(settings, guest=_within(settings.guest, may_open))
    path = Path(settings.store.path)
    if path.parent == state_folder(os.environ):
        with contextlib.suppress(OSError):  # the store says what is wrong with its folder
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _tell_of_open_folder(path.parent)
    try:
        store = sqlite.open_store(path, made=functools.partial(_tell_of_new, path))
    except StoreError as error:
        _log.error(str(error))
        return BAD_STORE
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(settings, store))


def _tell_of_new(path: Path) -> None:
    """Say loudly that nothing is known: to guests, an empty service is as good as a lost one."""
    _log.warning(
        "a new database was made: no guest is known until a fleet is applied; if there was one "
        "before, end the service and look at store.path",
        database=str(path),
    )


def _tell_of_open_folder(folder: Path) -> None:
    """Say that others may replace the database, as they may in a folder that they can write to."""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
    except OSError:
        return  # the store says what is wrong with it
    if os.name == "posix" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        _log.warning(
            "any user may replace the database: set its folder to mode 0700",
            folder=str(folder),
            mode=f"{mode:04o}",
        )


def _within(guest: GuestSettings, may_open: int) -> GuestSettings:
    """Leave operators and the database their files where the process may open too few.

    A connection that finds no file left is not refused: it waits unseen, and operators with it.
    """
    most = max(may_open - SPARE_FILES, may_open // 4, 1)
    if guest.connections <= most:
        return guest
    _log.warning(
        "guests get fewer connections than guest.connections: the process may open too few files; "
        "raise LimitNOFILE in its unit, or 'ulimit -Hn' where it is started",
        may_open=may_open,
        needed=guest.connections + SPARE_FILES,
        connections=most,
    )
    # Those that wait stay below them, so that they never keep out those who ask now.
    waiters = min(guest.waiters, max(1, most * 9 // 10))
    return msgspec.structs.replace(guest, connections=most, waiters=waiters)


def _raise_open_files(needed: int) -> int:
    """Let the process open as many files as it may need, as far as its hard limit lets it.

    Returns:
        How many it may open now; `needed` where there is no limit.
    """
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


async def _run(settings: Settings, store: Store) -> int:
    stop = asyncio.Event()
    _follow_signals(stop)
    try:
        clock = clock_of(store, settings.clock.scale, SystemClock())
        service = Service(
            settings=settings,
            store=store,
            clock=clock,
            guests=functools.partial(_guests, settings),
            mint=_mint,
        )
    except StoreError as error:
        _log.error(str(error))
        store.close()
        return BAD_STORE
    except CommandUnusable as error:
        _log.error(f"at [connector]: {error}")
        store.close()
        return BAD_SETTINGS
    _follow_reload(service)
    status = await _until_stopped(service, settings, stop)
    systemd.Notifier(os.environ).tell("STOPPING=1")
    try:
        await service.close()
    except TimeoutError:
        _log.error("stopping took too long; what was committed is safe")
        _end(CRASHED)  # a thread that hangs would hold up an orderly end for ever
    _log.info("stopped", status=status)
    return status


async def _until_stopped(service: Service, settings: Settings, stop: asyncio.Event) -> int:
    try:
        opened = await service.open()
        # What start-up made stays: the collector need never look at it again, which would stop
        # every answer for 60 ms with 100,000 machines.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        _announce(settings, opened)
        await service.wait(stop)
    except StoreError as error:
        _log.error(str(error))
        return BAD_STORE
    except (SocketUnusable, SecretUnusable) as error:
        _log.error(str(error))
        return BAD_SOCKET
    except Crashed as error:
        _log.error(str(error), exc_info=error.__cause__)
        return CRASHED
    return STOPPED


def _announce(settings: Settings, opened: Opened) -> None:
    """Say that the service is ready, to people and to systemd."""
    _log.info(
        "ready",
        version=__version__,
        pid=os.getpid(),
        database=settings.store.path,
        machines=opened.machines,
        scopes=opened.scopes,
        operators=list(opened.operators),
        guests=list(opened.guests),
    )
    systemd.Notifier(os.environ).tell("READY=1")


def _follow_signals(stop: asyncio.Event) -> None:
    """Stop at the first signal, end at once at the second."""
    loop = asyncio.get_running_loop()

    def asked(number: int) -> None:
        if stop.is_set():
            _log.warning("ended at once, by a second signal; what was committed is safe")
            _end(BY_SIGNAL + number)
        _log.info("stopping", signal=signal.Signals(number).name)
        stop.set()

    for number in SIGNALS:
        if os.name == "posix":
            loop.add_signal_handler(number, asked, int(number))
        else:  # Windows' loops know no signals: the handler runs between two bytecodes
            signal.signal(number, lambda caught, _: loop.call_soon_threadsafe(asked, caught))


def _follow_reload(service: Service) -> None:
    """Read again at SIGHUP what may be changed while the service runs.

    At a terminal SIGHUP says that the terminal is gone, and ends the service as it ends others.
    """
    if os.name == "posix" and not sys.stderr.isatty():
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload)


def _end(status: int) -> NoReturn:
    """End the process without waiting for anything."""
    os._exit(status)


def _guests(settings: Settings, plane: Plane, watch: ServiceClock) -> GuestPlane:
    return GuestPlane(settings, plane, watch, policy_of(settings.rules), _mint)


def _mint() -> str:
    """Return a new GUID."""
    return str(uuid.uuid4())  # noqa: TID251 - the one place that supplies ids to the rest


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed, None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - it is optional
    except ImportError:
        return None
    loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return loop
