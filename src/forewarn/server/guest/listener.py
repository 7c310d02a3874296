"""Listeners: where guests reach the plane, and how it opens, sweeps and stops."""

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from forewarn.maintenance import model
from forewarn.server import binding
from forewarn.server.guest.callers import Source, normalised
from forewarn.server.guest.connections import Connections
from forewarn.server.guest.proxies import Proxies
from forewarn.server.guest.wire import Connection, SourceOf

BACKLOG: Final = 1024
"""Connections that wait to be accepted: a whole fleet's poll in one second gets through."""

MAX_LISTENERS: Final = 64
"""One for each bridge of a host, and some to spare."""

MAX_SOURCES: Final = 4096
"""Addresses of one listener that are kept as they were judged, a few hundred bytes each: machines
that poll by a new connection each time come from the same ones again and again."""

_log = structlog.get_logger(__name__)


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """One address that guests ask at."""

    host: str
    """An IP address of this machine, IPv4 or IPv6; `0.0.0.0` or `::` for all of a family."""
    port: int = 80
    """0 takes a free one."""
    loopback: bool = False
    """Whether only this machine reaches it: then `/vm/NAME/metadata/...` and `default_vm` are
    served, by which any caller may be any machine (protocol.md section 10)."""
    default_vm: str = ""
    """On a loopback listener, the machine that asks where no path tells; `""` for none."""
    name: str = ""
    """Whose machines are looked up: those that the fleet places at this name."""
    proxies: Proxies | None = None
    """The proxies that are trusted here; None for none."""

    def __str__(self) -> str:
        """Return it as an address is written in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CannotListen(OSError):  # noqa: N818 - a state of the machine, not a mistake of ours
    """A listener cannot be opened; the message is one line for the operator."""


def source_of(listener: Listener) -> SourceOf:
    """Return what tells where this listener's connections come from."""
    default_vm = model.key(listener.default_vm)

    @functools.lru_cache(maxsize=MAX_SOURCES)
    def source(host: str) -> Source:
        address = normalised(host)
        proxies = listener.proxies
        if proxies is not None and proxies.trusts(address):
            # What tells who asks is its signed headers alone: no path, no address, no default.
            return Source(
                address=address,
                listener=listener.name,
                trusted_proxy=True,
                without_header=proxies.without_header,
                proxies=proxies,
            )
        return Source(
            address=address,
            listener=listener.name,
            vm_paths=listener.loopback,
            default_vm=default_vm,
        )

    return source


def check(listener: Listener) -> None:
    """Refuse a listener that could not be meant.

    Raises:
        CannotListen: The host is no IP address, the port none, or what only loopback may serve
            would be served elsewhere.
    """
    try:
        address = ipaddress.ip_address(listener.host)
    except ValueError:
        message = f"{listener.host!r} is no IP address: give one of this machine, as 127.0.0.1"
        raise CannotListen(message) from None
    if not 0 <= listener.port <= 65535:
        message = f"{listener}: a port is a number from 0 to 65535"
        raise CannotListen(message)
    if listener.loopback and not address.is_loopback:
        message = (
            f"{listener}: a loopback listener needs a loopback address, as 127.0.0.1: on any other "
            "one, guests could ask in each other's name"
        )
        raise CannotListen(message)
    if listener.default_vm and not listener.loopback:
        message = (
            f"{listener}: default_vm is served on loopback listeners alone: elsewhere the address "
            "tells who asks"
        )
        raise CannotListen(message)


def _refused(error: OSError, listener: Listener) -> CannotListen:
    why = binding.obstacle(error, listener.host, listener.port)
    return CannotListen(f"cannot listen on {listener}: {why}")


async def _serve(server: asyncio.Server, listener: Listener) -> None:
    """Begin to listen, where some loops find out only now that the address is in use."""
    try:
        await server.start_serving()
    except OSError as error:
        raise _refused(error, listener) from error


class Listeners:
    """All listeners of the plane; open them once memory is filled, and stop them once.

    Args:
        connections: What their connections share.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.TimerHandle | None = None

    async def open(self, listeners: Sequence[Listener]) -> tuple[Listener, ...]:
        """Open them all, or none.

        Args:
            listeners: Where; MAX_LISTENERS at most.

        Returns:
            The same with the ports that they have, where 0 was given.

        Raises:
            CannotListen: One of them cannot be opened; those before it are closed again.
        """
        if len(listeners) > MAX_LISTENERS:
            message = f"{len(listeners)} listeners are too many: {MAX_LISTENERS} at most"
            raise CannotListen(message)
        for listener in listeners:
            check(listener)
        opened: list[Listener] = []
        try:
            for listener in listeners:
                opened.append(await self._bind(listener))  # noqa: PERF401 - a comprehension hides
            # No connection is served before all addresses are ours.
            for server, listener in zip(self._servers, opened, strict=True):
                await _serve(server, listener)
        except CannotListen:
            self._close()
            raise
        self._sweep()
        return tuple(opened)

    async def _bind(self, listener: Listener) -> Listener:
        family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
        try:
            server = await self._connections.loop.create_server(
                self._factory(listener),
                listener.host,
                listener.port,
                family=family,
                backlog=BACKLOG,
                start_serving=False,
            )
        except OSError as error:
            raise _refused(error, listener) from error
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        return msgspec.structs.replace(listener, port=port)

    def _factory(self, listener: Listener) -> Callable[[], Connection]:
        source = source_of(listener)
        return lambda: Connection(self._connections, source)

    def _sweep(self) -> None:
        loop = self._connections.loop
        # The next one is set first: a fault in this one must not be the last of all times.
        self._sweeping = loop.call_later(self._connections.limits.sweep_seconds, self._sweep)
        self._connections.sweep(self._connections.monotonic())

    def _close(self) -> None:
        for server in self._servers:
            server.close()
        self._servers.clear()

    async def stop(self, seconds: float) -> int:
        """Accept no more, close what is idle, let requests under way be answered, then close all.

        Args:
            seconds: How long requests under way may take, in real time.

        Returns:
            How many connections had to be cut off.
        """
        self._close()
        cut_off = await self._connections.retire(seconds)
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        if cut_off:
            _log.warning("connections were cut off at the stop", connections=cut_off)
        return cut_off
