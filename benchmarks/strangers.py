"""Hostile guests: a process of its own that treats the service in one of ten ways.

    python strangers.py WAY PORT ADDRESS[,ADDRESS...]

A hostile guest has one address, a crowd of them many. It says `begun` when it begins, goes on until
it is killed, and takes a closed connection as a reason to open the next.
"""

import contextlib
import itertools
import json
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator

import guests
import machine

CONNECTIONS = 200
"""It tries to have so many: more than an address may."""

LIMIT = 64
"""As many connections as an address may have."""

FAST = 8
"""Connections at full speed: a few saturate a core."""

BURST = 64
"""Requests that are sent in one go."""

RETRY_SECONDS = 0.02
"""Between two attempts to connect, where one is refused: about what a client's library does."""


class Hostile:
    """Its connections, and what is to be done with each.

    Args:
        port: Where the service listens.
        address: Where it asks from; several are parted by commas.
        count: How many connections it wants from each.
        receive_bytes: Of each one's receive buffer; 0 for the system's.
    """

    def __init__(self, port: int, address: str, count: int, receive_bytes: int = 0) -> None:
        self._port = port
        self._addresses = itertools.cycle(address.split(","))
        self._count = count * len(address.split(","))
        self._receive_bytes = receive_bytes
        self._selector = selectors.DefaultSelector()
        self.open: set[socket.socket] = set()
        self.fill()
        print("begun", flush=True)

    def fill(self) -> None:
        """Open what is wanting."""
        while len(self.open) < self._count:
            try:
                made = guests.connected(
                    self._port, next(self._addresses), receive_bytes=self._receive_bytes
                )
            except OSError:
                return
            made.settimeout(0)
            self._selector.register(made, selectors.EVENT_READ)
            self.open.add(made)

    def close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self.open.discard(connection)
        connection.close()

    def readable(self, seconds: float) -> Iterator[socket.socket]:
        for key, _ in self._selector.select(seconds):
            assert isinstance(key.fileobj, socket.socket)
            yield key.fileobj

    def read(self, connection: socket.socket, size: int = 1 << 20) -> None:
        """Read so much, and close when the service has."""
        try:
            data = connection.recv(size)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close(connection)

    def send(self, connection: socket.socket, data: bytes) -> int:
        """Send what the connection takes now."""
        try:
            return connection.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.close(connection)
            return 0

    def rest(self, seconds: float) -> None:
        """Let time pass, and notice what the service closes meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for connection in self.readable(left):
                self.read(connection)


def silent(port: int, address: str) -> None:
    """Open connections and say nothing."""
    hostile = Hostile(port, address, CONNECTIONS)
    while True:
        hostile.fill()
        hostile.rest(RETRY_SECONDS)


def drip(port: int, address: str) -> None:
    """Send a byte a second on each connection."""
    hostile = Hostile(port, address, CONNECTIONS)
    request = guests.get("X: " + "x" * 4000)
    at: dict[socket.socket, int] = {}
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            sent = at.get(connection, 0)
            at[connection] = sent + hostile.send(connection, request[sent : sent + 1])
        at = {connection: sent for connection, sent in at.items() if connection in hostile.open}
        hostile.rest(1.0)


def flood(port: int, address: str) -> None:
    """Ask at full speed on a few connections, and read what comes."""
    hostile = Hostile(port, address, FAST)
    burst = guests.get() * BURST
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            hostile.send(connection, burst)
        for connection in hostile.readable(RETRY_SECONDS):
            hostile.read(connection)


def heads(port: int, address: str) -> None:
    """Send heads of ten megabytes."""
    hostile = Hostile(port, address, FAST)
    head = guests.get()[:-2] + b"X: " + b"x" * 10_000_000
    at: dict[socket.socket, int] = {}
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            sent = at.get(connection, 0)
            at[connection] = sent + hostile.send(connection, head[sent : sent + 65536])
        at = {connection: sent for connection, sent in at.items() if connection in hostile.open}
        for connection in hostile.readable(0.001):
            hostile.read(connection)


def pipeline(port: int, address: str) -> None:
    """Send requests without end, and read no answer."""
    hostile = Hostile(port, address, CONNECTIONS, receive_bytes=4096)
    burst = guests.get() * BURST
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            hostile.send(connection, burst)
        time.sleep(RETRY_SECONDS)


def sip(port: int, address: str) -> None:
    """Ask a lot, and read the answers a byte a second."""
    hostile = Hostile(port, address, CONNECTIONS, receive_bytes=4096)
    burst = guests.get() * BURST
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            hostile.send(connection, burst)
            if connection in hostile.open:
                hostile.read(connection, 1)
        time.sleep(1.0)


def repeated(port: int, address: str, request: bytes) -> None:
    """Send one request again and again on as many connections as an address may have."""
    hostile = Hostile(port, address, LIMIT)
    at: dict[socket.socket, int] = {}
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            sent = at.get(connection, 0)
            sent += hostile.send(connection, request[sent:])
            at[connection] = 0 if sent == len(request) else sent
        at = {connection: sent for connection, sent in at.items() if connection in hostile.open}
        for connection in hostile.readable(0.001):
            hostile.read(connection)


def headers(port: int, address: str) -> None:
    """Send heads of 3,200 headers, which 16 KiB hold."""
    repeated(port, address, guests.get()[:-2] + b"A:b\r\n" * 3200 + b"\r\n")


def post(body: bytes, *headers: str) -> bytes:
    lines = [
        f"POST {guests.EVENTS} HTTP/1.1",
        "Host: 127.0.0.1",
        "Metadata: true",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def chunks(port: int, address: str) -> None:
    """Send bodies in 20,000 chunks of one byte."""
    repeated(port, address, post(b"1\r\n \r\n" * 20_000, "Transfer-Encoding: chunked"))


def approvals(port: int, address: str) -> None:
    """Approve a thousand events at once that there are not, as fast as it goes."""
    ids = [{"EventId": f"00000000-0000-4000-8000-{number:012X}"} for number in range(1000)]
    body = json.dumps({"StartRequests": ids}, separators=(",", ":")).encode()
    repeated(port, address, post(body, f"Content-Length: {len(body)}"))


def idle(port: int, address: str) -> None:
    """Ask once on each connection, and keep it."""
    hostile = Hostile(port, address, LIMIT)
    asked: set[socket.socket] = set()
    while True:
        hostile.fill()
        for connection in hostile.open - asked:
            hostile.send(connection, guests.get())
        asked = set(hostile.open)
        hostile.rest(RETRY_SECONDS)


WAYS: dict[str, Callable[[int, str], None]] = {
    "silent": silent,
    "drip": drip,
    "flood": flood,
    "heads": heads,
    "pipeline": pipeline,
    "sip": sip,
    "headers": headers,
    "chunks": chunks,
    "approvals": approvals,
    "idle": idle,
}

if __name__ == "__main__":
    machine.prepare()
    with contextlib.suppress(KeyboardInterrupt):
        WAYS[sys.argv[1]](int(sys.argv[2]), sys.argv[3])
