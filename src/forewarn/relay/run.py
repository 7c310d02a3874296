"""`forewarn relay`: the process around the relay.

Its exit statuses:

    0    it was asked to stop (SIGTERM or SIGINT) and did
    1    a part of it crashed, or stopping took too long; the log says which
    2    the settings cannot be used
    4    with --check: no replica can be reached, or none answers as it should
    5    with --check: the service refuses this host's token
    6    another relay has the state folder
    10   a socket or a proxies' secret cannot be used
    130  a second SIGINT, 143 a second SIGTERM: it ended at once

SIGHUP reads the proxies' secrets again. The host's token and `upstream.ca_file` are read again by
themselves whenever they change.

It runs as `python -m forewarn.relay.run`, takes the options that the command line has judged, and
loads nothing of the command line: that would be a third of the relay's memory, on every hypervisor.
"""

import asyncio
import os
import random  # noqa: TID251 - relays wait and begin at random, so that they do not come at once
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from forewarn import status_port, systemd
from forewarn.client.transport import RequestFailed
from forewarn.clock import SystemClock
from forewarn.relay import settings, upstream
from forewarn.relay.cache import StateUnusable
from forewarn.relay.relay import HostRelay
from forewarn.relay.settings import HostRelaySettings
from forewarn.relay.upstream import (
    Credentials,
    TokenRefused,
    Upstream,
    UpstreamFailed,
    document_of,
)
from forewarn.server import process, relay_feed, sockets
from forewarn.server.process import Crashed
from forewarn.server.secret_files import SecretUnusable
from forewarn.server.sockets import SocketUnusable
from forewarn.settings import OFF, SettingsError, prepare_types, split_address
from forewarn.status_port import TEXT, StatusServer
from forewarn.version import __version__

STOPPED: Final = 0
CRASHED: Final = 1
BAD_SETTINGS: Final = 2
UNREACHABLE: Final = 4
REFUSED: Final = 5
STATE_IN_USE: Final = 6
BAD_SOCKET: Final = 10

SPARE_FILES: Final = 64
"""Open files beside guests' connections: those to replicas, of the status port and the state."""

START_SECONDS: Final = 60
"""The extension of systemd's start limit while no document is known yet: a host that boots may be
up before its network and the service are."""

STATUS_SECONDS: Final = 10.0
"""The pause between two status lines for systemd, if the status has changed."""

PAGE_SECONDS: Final = 2.0

JSON: Final = "application/json; charset=utf-8"

_log = structlog.get_logger(__name__)


def serve(own: HostRelaySettings) -> int:
    """Run the relay until it is asked to stop, and return the process's exit status."""
    process.set_up_logs(own.log)
    prepare_types()
    wanted = [sockets.tcp_address(each.address, each.port) for each in own.guest.listener]
    try:
        handed_over = process.handed_over(wanted, "forewarn-relay.socket")
    except SocketUnusable as error:
        _log.error(str(error))
        return BAD_SOCKET
    may_open = process.raise_open_files(own.guest.connections + SPARE_FILES)
    guest = process.within_files(own.guest, may_open, SPARE_FILES)
    own = msgspec.structs.replace(own, guest=guest)
    with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
        status = runner.run(_run(own, handed_over))
        process.end_soon(status)  # a look-up of a name may hang for longer than systemd waits
        return status


async def _run(own: HostRelaySettings, handed_over: sockets.HandedOver) -> int:
    stop = asyncio.Event()
    process.follow_signals(stop)
    loop = asyncio.get_running_loop()
    notifier = systemd.Notifier(os.environ)
    relay = HostRelay(
        settings=own,
        mint=process.mint,
        chance=random.random,
        handed_over=handed_over,
        clock=SystemClock(),
    )
    if os.name == "posix" and not sys.stderr.isatty():
        loop.add_signal_handler(signal.SIGHUP, partial(_reload, relay))
    relay.on_beat = _Teller(relay, notifier)
    status, port = STOPPED, None
    try:
        if own.status.listen != OFF:
            port = _status_port(own.status.listen, loop, relay)
        opening = asyncio.ensure_future(relay.open())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            guests = opening.result()
            process.answer_soon()
            shown = {} if port is None else {"status_port": port.number}
            _log.info("ready", version=__version__, pid=os.getpid(), guests=guests, **shown)
            notifier.tell("READY=1", f"STATUS={relay.status(os.getpid()).line()}")
            await relay.wait(stop)
            notifier.tell("STOPPING=1")
            await relay.drain()
        else:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
    except (SocketUnusable, SecretUnusable) as error:
        _log.error(str(error))
        status = BAD_SOCKET
    except StateUnusable as error:
        _log.error(str(error))
        status = STATE_IN_USE
    except Crashed as error:
        _log.error(str(error), exc_info=error.__cause__)
        status = CRASHED
    try:
        await relay.close()
    except TimeoutError:
        _log.error("stopping took too long")
        process.end(CRASHED)
    if port is not None:
        await asyncio.to_thread(port.close)
    handed_over.close()
    _log.info("stopped", status=status)
    return status


def _reload(relay: HostRelay) -> None:
    try:
        relay.reload()
    except SecretUnusable as error:
        _log.error("the proxies' secrets stay as they were", why=str(error))
    else:
        _log.info("the proxies' secrets were read again")


class _Teller:
    """Reports to systemd that the loop runs, and the relay's status."""

    def __init__(self, relay: HostRelay, notifier: systemd.Notifier) -> None:
        self._relay = relay
        self._notifier = notifier
        self._told = ""
        self._alive_at = self._asked_at = 0.0

    def __call__(self, now: float) -> None:
        if self._notifier.every and now >= self._alive_at:
            self._alive_at = now + self._notifier.every / 2
            self._notifier.alive()
        if now < self._asked_at:
            return
        self._asked_at = now + STATUS_SECONDS
        status = self._relay.status(os.getpid())
        words = status.line()
        if words != self._told:
            self._told = words
            self._notifier.tell(f"STATUS={words}")
        if not status.serving:
            self._notifier.tell(f"EXTEND_TIMEOUT_USEC={START_SECONDS * 1_000_000}")


def _status_port(listen: str, loop: asyncio.AbstractEventLoop, relay: HostRelay) -> StatusServer:
    address = split_address(listen)

    def when_free() -> None:
        _log.info("the status port is open", listen=listen)

    port = StatusServer(address, _pages(loop, relay), name="forewarn-relay", when_free=when_free)
    if port.waits_for:  # the port serves the relay, and not the other way round
        message = "cannot listen on status.listen yet: the relay serves, and tries again"
        _log.warning(message, listen=listen, why=port.waits_for)
    return port


def _pages(
    loop: asyncio.AbstractEventLoop, relay: HostRelay
) -> Callable[[str, bytes | None], status_port.Page | None]:
    def page(path: str, _host: bytes | None) -> status_port.Page | None:
        answer: Future[status_port.Page | None] = Future()
        try:
            loop.call_soon_threadsafe(lambda: answer.set_result(_page(path, relay)))
            return answer.result(PAGE_SECONDS)
        except (RuntimeError, TimeoutError):
            return 503, TEXT, b"the event loop does not answer\n"

    return page


def _page(path: str, relay: HostRelay) -> status_port.Page | None:
    status = relay.status(os.getpid())
    match path:
        case "/metrics":
            return 200, status_port.METRICS, relay.metrics(os.getpid())
        case "/status":
            return 200, JSON, msgspec.json.encode(status)
        case "/healthz":
            return 200, TEXT, b"ok\n"
        case "/readyz":
            return (200 if status.serving else 503), TEXT, f"{status.line()}\n".encode()
    return None


def check(own: HostRelaySettings) -> int:
    """Ask each replica for this host, and print the result; return the exit status."""
    process.set_up_logs(own.log)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    return asyncio.run(_check(own))


async def _check(own: HostRelaySettings) -> int:
    replicas = tuple(map(settings.replica, own.upstream.urls))
    status = UNREACHABLE
    for replica in replicas:
        asked = Upstream((replica,), Credentials(own.upstream), relay_feed.MAX_HOST_BYTES)
        try:
            connection = await asked.connect(replica)
            headers = asked.credentials.headers
            async with asyncio.timeout(upstream.CONNECT_SECONDS * 3):
                reply = await connection.ask(b"GET", relay_feed.HOST_PATH, headers)
            connection.close()
            found = document_of(reply)
        except TokenRefused as error:
            status = REFUSED if status == UNREACHABLE else status
            said = str(error)
        except (UpstreamFailed, RequestFailed, TimeoutError) as error:
            said = upstream.spoken(error)
        else:
            said = "it has no documents for this host"
            if found is not None:
                status, told = STOPPED, found[1]
                said = (
                    f"host {told.host} (machines: {len(told.machines)}, scopes: {len(told.scopes)})"
                )
        sys.stdout.write(f"{replica}: {said}\n")
    return status


def main(arguments: Sequence[str]) -> int:
    """Run a relay until a signal ends it, or check its settings; return the exit status.

    The arguments are `--check` and, last, `--config FILE`.
    """
    config = Path(arguments[-1]) if "--config" in arguments else None
    try:
        own = settings.load(config, os.environ)
    except SettingsError as error:
        for line in str(error).splitlines():
            sys.stderr.write(f"forewarn: {line}\n")
        return BAD_SETTINGS
    return check(own) if "--check" in arguments[:1] else serve(own)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
