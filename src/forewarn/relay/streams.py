"""HTTP over asyncio's streams, with the client's reading of it: one connection to one replica."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from forewarn import clock
from forewarn.client import transport
from forewarn.client.discovery import EndpointAddress
from forewarn.protocol.message import Reply

if TYPE_CHECKING:
    import ssl

MAX_ADDRESSES: Final = 8
"""Addresses of one name that are tried."""

_TCP: Final = socket.SOCK_STREAM


class HttpStream:
    """One connection; one request at a time, on the loop that made it."""

    def __init__(
        self,
        exchange: transport.HttpExchange,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.exchange = exchange
        """Writes the next request."""
        self._reader = reader
        self._writer = writer

    @property
    def is_open(self) -> bool:
        """True if it may have another request: neither side has closed it."""
        return not self._writer.transport.is_closing() and not self._reader.at_eof()

    async def ask(self, sent: bytes) -> Reply:
        """Send the bytes of a request and return the response; RequestFailed without one.

        After an error, and when the caller is cancelled, the connection is closed.
        """
        reply = None
        try:
            self._writer.write(sent)
            await self._writer.drain()
            while reply is None:
                reply = self.exchange.receive(await self._reader.read(transport.READ_BYTES))
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise self.exchange.cut(f"the connection broke: {error}") from error
            raise
        if not self.exchange.reuse():
            self.close()
        return reply

    def close(self) -> None:
        """Close it at once."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
            self._writer.transport.abort()


async def addresses(endpoint: EndpointAddress, seconds: float) -> list[transport.Place]:
    """Return the addresses of an endpoint's host; OSError or UnicodeError without any."""
    where = endpoint.host, endpoint.port
    try:  # an address needs no resolver, which runs in a thread
        found = socket.getaddrinfo(*where, type=_TCP, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        async with asyncio.timeout(seconds):
            found = await asyncio.get_running_loop().getaddrinfo(*where, type=_TCP)
    return [(family, place) for family, _, _, _, place in found[:MAX_ADDRESSES]]


async def connect(
    exchange: transport.HttpExchange,
    seconds: float,
    *,
    places: Sequence[transport.Place],
    tls: "ssl.SSLContext | None",
    probes: transport.Probes,
) -> HttpStream:
    """Return a connection to an exchange's endpoint; OSError or UnicodeError without one.

    Args:
        exchange: A fresh one.
        seconds: For all of it; each address has its share.
        places: The endpoint's addresses.
        tls: The context that encrypts it; None for plain HTTP.
        probes: The keepalive that notices a dead path.
    """
    deadline = clock.monotonic() + seconds
    error: OSError = TimeoutError()
    for (family, place), share in transport.shares(places, deadline):
        try:
            async with asyncio.timeout(share):
                reader, writer = await asyncio.open_connection(
                    str(place[0]),
                    exchange.endpoint.port,
                    family=family,
                    ssl=tls,
                    server_hostname=exchange.endpoint.host if tls else None,
                    limit=transport.READ_BYTES,
                )
        except OSError as refused:
            error = refused
            continue
        transport.probe(writer.get_extra_info("socket"), probes)
        return HttpStream(exchange, reader, writer)
    raise error
