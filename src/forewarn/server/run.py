"""`forewarn serve`: the process around the service.

Its exit statuses:

    0    it was asked to stop (SIGTERM or SIGINT) and did
    1    a part of it crashed, stopping took too long, or PostgreSQL cannot be reached at the start;
         the log says which
    6    the store cannot be used: another process has it, it is damaged, or of a newer release
    10   a socket, the token's file or a proxies' secret cannot be used
    130  a second SIGINT, 143 a second SIGTERM: it ended at once; what was committed is safe

Each of 6 and 10 is one line in the log, and nothing was changed. SIGHUP reads the secrets, the
token and the certificates again; from a terminal it ends the service, as when that is closed.
"""

import asyncio
import contextlib
import functools
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Final

import msgspec
import structlog

from forewarn import systemd
from forewarn.clock import SystemClock
from forewarn.connectors.command import CommandUnusable
from forewarn.server import process, sockets
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.operator import connections
from forewarn.server.process import Crashed
from forewarn.server.secret_files import SecretUnusable
from forewarn.server.service import Service, check_programs, clock_of
from forewarn.server.settings import Settings, StoreSettings
from forewarn.server.sockets import SocketUnusable
from forewarn.settings import OFF, prepare_types, split_address, state_folder
from forewarn.store import sqlite
from forewarn.store.port import StoreError, StoreUnavailable
from forewarn.store.sql import Store
from forewarn.version import __version__

STOPPED: Final = 0
CRASHED: Final = 1
BAD_SETTINGS: Final = 2
BAD_STORE: Final = 6
BAD_SOCKET: Final = 10
SPARE_FILES: Final = 2 * connections.MAX_CONNECTIONS + 256
"""Open files beside guests' connections: operators' ones on both of their sockets, the database's,
and those of programs that carry maintenance out. Guests cannot take these."""

_log = structlog.get_logger(__name__)


def serve(settings: Settings) -> int:
    """Run the service until it is asked to stop, and return the process's exit status."""
    process.set_up_logs(settings.log)
    prepare_types()
    try:
        handed_over = process.handed_over(addresses(settings), "forewarn.socket")
        check_programs(settings, os.environ)  # before there is a database
    except (SocketUnusable, CommandUnusable) as error:
        return _status_of(error)
    settings = _within_files(settings)
    path = Path(settings.store.path)
    # What is wrong with the folder, opening the store says.
    with contextlib.suppress(OSError):
        if path.parent == state_folder(os.environ):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        if os.name == "posix" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            _log.warning(
                "any user may replace the database: set its folder to mode 0700",
                folder=str(path.parent),
                mode=f"{mode:04o}",
            )
    try:
        store = _open_store(settings.store)
    except StoreError as error:
        return _status_of(error)
    with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
        status = runner.run(_run(settings, store, handed_over))
        process.end_soon(status)
        return status


def addresses(settings: Settings) -> list[str]:
    """Return the addresses that the service listens on, as `sockets.HandedOver` spells them."""
    found = [sockets.tcp_address(each.address, each.port) for each in settings.guest.listener]
    if settings.operator.socket != OFF:
        found.append(sockets.unix_address(Path(settings.operator.socket)))
    listen = filter(None, (settings.operator.listen, settings.relay.listen))
    return found + [sockets.tcp_address(*split_address(each)) for each in listen]


def _open_store(settings: StoreSettings) -> Store:
    if not settings.url:
        path = Path(settings.path)
        with contextlib.suppress(OSError):  # there may be none yet
            _log.info("checking the database", megabytes=path.stat().st_size // 2**20)
        return sqlite.open_store(path, made=functools.partial(_tell_of_new, settings.path))
    from forewarn.store import postgresql  # noqa: PLC0415 - psycopg is an extra

    password_file = Path(settings.password_file) if settings.password_file else None
    made = functools.partial(_tell_of_new, settings.url)
    return postgresql.open_store(settings.url, password_file=password_file, made=made)


def _tell_of_new(database: str) -> None:
    # To guests, an empty service is as good as a lost one.
    _log.warning(
        "a new database was made: it has no machines until a fleet is applied; if this service "
        "had some before, stop it and check [store] in its settings",
        database=database,
    )


def _within_files(settings: Settings) -> Settings:
    """Raise the limit of open files to the settings' needs, or lower the settings to the limit."""
    relay = settings.relay
    relays = relay.connections if relay.listen else 0
    may_open = process.raise_open_files(settings.guest.connections + relays + SPARE_FILES)
    guest = process.within_files(settings.guest, may_open, SPARE_FILES)
    spare = guest.connections + SPARE_FILES
    most = process.connections_within("relay.connections", relays, may_open, spare)
    if most < relays:
        relay = msgspec.structs.replace(relay, connections=most)
    return msgspec.structs.replace(settings, guest=guest, relay=relay)


def _status_of(error: Exception) -> int:
    """Log the reason why the service cannot run, and return the process's exit status."""
    if isinstance(error, CommandUnusable):
        _log.error(f"at [connector]: {error}")
        return BAD_SETTINGS
    _log.error(str(error), exc_info=error.__cause__ if isinstance(error, Crashed) else None)
    if isinstance(error, (Crashed, StoreUnavailable)):  # PostgreSQL comes back, a disk gets room
        return CRASHED
    return BAD_STORE if isinstance(error, StoreError) else BAD_SOCKET


def _keep_alive(notifier: systemd.Notifier) -> None:
    """Tell systemd, now and later, that the event loop runs, which answers everybody."""
    if notifier.every:
        notifier.alive()
        asyncio.get_running_loop().call_later(notifier.every, _keep_alive, notifier)


async def _run(settings: Settings, store: Store, handed_over: sockets.HandedOver) -> int:
    stop = asyncio.Event()
    process.follow_signals(stop)
    status, notifier = STOPPED, systemd.Notifier(os.environ)
    try:
        real = SystemClock()
        watch = clock_of(store, settings.clock.scale, real)
        service = Service(
            settings=settings,
            store=store,
            clock=watch,
            real=real,
            guests=lambda plane: GuestPlane(
                listeners=settings.guest.listener,
                limits=settings.guest,
                rules=settings.guest_rules,
                backend=plane,
                time=watch,
                wall=watch,
                request_time=watch,
                on_turn=watch.turn,
                mint=process.mint,
                handed_over=handed_over,
                scale=settings.clock.scale,
            ),
            mint=process.mint,
            handed_over=handed_over,
        )
    except (StoreError, CommandUnusable) as error:
        store.close()
        return _status_of(error)
    if os.name == "posix" and not sys.stderr.isatty():
        # At a terminal SIGHUP says that the terminal is gone: it ends the service, as others.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload)
    try:
        opened = await service.open()
        process.answer_soon()
        _log.info(
            "ready",
            **msgspec.structs.asdict(opened),
            database=settings.store.url or settings.store.path,
            version=__version__,
            pid=os.getpid(),
        )
        notifier.tell("READY=1")
        _keep_alive(notifier)
        await service.wait(stop)
        notifier.tell("STOPPING=1")
        await service.drain()
    except (StoreError, SocketUnusable, SecretUnusable, Crashed) as error:
        status = _status_of(error)
    if status != STOPPED:
        notifier.tell("STOPPING=1")
    try:
        await service.close()
    except TimeoutError:
        _log.error("stopping took too long; what was committed is safe")
        process.end(CRASHED)  # a thread that hangs would hold up an orderly end for ever
    _log.info("stopped", status=status)
    return status
