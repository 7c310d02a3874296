"""One connection to one replica: HTTP over asyncio's streams, with the client's reading of it."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from forewarn import clock
from forewarn.client import transport
from forewarn.client.discovery import EndpointAddress
from forewarn.protocol.message import Reply
from forewarn.relay.settings import ReplicaAddress

if TYPE_CHECKING:
    import ssl

MAX_ADDRESSES: Final = 8
"""Addresses of one name that are tried."""

_TCP: Final = socket.SOCK_STREAM


@dataclass(eq=False, repr=False)
class ReplicaConnection:
    """One connection to a replica; one request at a time, on the loop that made it."""

    replica: ReplicaAddress
    context: "ssl.SSLContext | None"
    """The context that encrypts it; None for plain HTTP."""
    _exchange: transport.HttpExchange
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    idle_since: float = 0.0

    @property
    def is_open(self) -> bool:
        """True if it may have another request: neither side has closed it."""
        return not self._writer.transport.is_closing() and not self._reader.at_eof()

    async def ask(
        self,
        method: bytes,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | None = None,
    ) -> Reply:
        """Send a request and return the response; RequestFailed without one.

        After an error, and when the caller is cancelled, the connection is closed.
        """
        reply = None
        try:
            self._writer.write(self._exchange.write(method, target, headers, body))
            await self._writer.drain()
            while reply is None:
                reply = self._exchange.receive(await self._reader.read(transport.READ_BYTES))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise self._exchange.cut(f"the connection broke: {error}") from error
            raise
        if not self._exchange.reuse():
            self.close()
        return reply

    def close(self) -> None:
        """Close it at once."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
            self._writer.transport.abort()


async def addresses(replica: ReplicaAddress, seconds: float) -> list[transport.Place]:
    """Return the addresses of a replica's host; OSError or UnicodeError without any."""
    where = replica.host, replica.port
    try:  # an address needs no resolver, which runs in a thread
        found = socket.getaddrinfo(*where, type=_TCP, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        async with asyncio.timeout(seconds):
            found = await asyncio.get_running_loop().getaddrinfo(*where, type=_TCP)
    return [(family, place) for family, _, _, _, place in found[:MAX_ADDRESSES]]


async def connect(
    replica: ReplicaAddress,
    context: "ssl.SSLContext | None",
    seconds: float,
    *,
    places: Sequence[transport.Place],
    max_body: int,
    probes: transport.Probes,
) -> ReplicaConnection:
    """Return a connection to a replica; OSError or UnicodeError without one.

    Args:
        replica: The replica.
        context: The context that encrypts it; None for plain HTTP.
        seconds: For each of the addresses.
        places: The replica's addresses.
        max_body: The longest body of an answer.
        probes: The keepalive that notices a dead path.
    """
    exchange = transport.HttpExchange(EndpointAddress(replica.host, replica.port), max_body)
    deadline = clock.monotonic() + seconds * len(places)
    error: OSError = TimeoutError()
    for (family, place), share in transport.shares(places, deadline):
        try:
            async with asyncio.timeout(share):
                reader, writer = await asyncio.open_connection(
                    str(place[0]),
                    replica.port,
                    family=family,
                    ssl=context,
                    server_hostname=replica.host.removesuffix(".") if context else None,
                    limit=transport.READ_BYTES,
                )
        except OSError as refused:
            error = refused
            continue
        transport.probe(writer.get_extra_info("socket"), probes)
        return ReplicaConnection(replica, context, exchange, reader, writer)
    raise error
