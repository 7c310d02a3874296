"""What the processes that answer guests do alike: signals, open files, the event loop, memory."""

import asyncio
import gc
import os
import signal
import uuid
from collections.abc import Callable, Collection
from typing import Final, NoReturn, TypeVar

import msgspec
import structlog

from forewarn import systemd
from forewarn.server.guest.limits import Limits
from forewarn.server.sockets import HandedOver

L = TypeVar("L", bound=Limits)

BY_SIGNAL: Final = 128
"""And the signal's number, as shells count it."""

YOUNG_OBJECTS: Final = 10_000
"""How many containers are made before the collector looks at the new ones, 700 by default: circles
are rare here, and each look at the old ones stops every answer."""


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
    """Raise the process's soft limit of open files as far as needed, and return what it is then."""
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
    """Return how many connections there may be where the process may open so many files.

    A connection that finds no file left is not refused: it waits unseen, and everybody with it, so
    `spare` files stay free for what else the process opens. `setting` names the limit in the log.
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


def freeze_memory() -> None:
    """Have the collector never look again at what start-up made.

    That would stop every answer for 60 ms with 100,000 machines.
    """
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
        else:  # Windows' loops know no signals: the handler runs between two bytecodes
            signal.signal(number, lambda caught, _: loop.call_soon_threadsafe(asked, caught))


def end(status: int) -> NoReturn:
    """End the process without waiting for anything."""
    os._exit(status)


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
