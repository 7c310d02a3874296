"""Hostile guests: a process of its own that treats the service in one of eleven ways.

    python strangers.py < ATTACK    (an `Attack` as JSON)

It says `begun` when it begins, goes on until it is killed, and takes a closed connection as a
reason to open the next.
"""

import contextlib
import dataclasses
import hashlib
import hmac
import itertools
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import guests
import machine

CONNECTIONS = 200
"""It tries to have so many from one address: more than one may have."""

FAST = 8
"""Connections at full speed: a few saturate a core."""

BURST = 64
"""Requests that are sent in one go."""

WAIT_SECONDS = 120

RETRY_SECONDS = 0.02
"""Between two attempts to connect, where one is refused: about what a client's library does."""

NICE = 10
"""Attackers get what is left of the processor that they share with those who measure."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """What one process does, from where, and to whom."""

    way: str
    """One of `WAYS`."""
    host: str
    port: int
    addresses: Sequence[str]
    connections: int = CONNECTIONS
    """How many it wants to have from each address."""
    ids: Sequence[str] = ()
    """EventIds to approve."""
    secret: str = ""
    """Of the proxy that it speaks through."""
    machines: Sequence[str] = ()
    """Whom it speaks for through the proxy."""


class Hostile:
    """Its connections, and what is to be done with each.

    Args:
        attack: Where it connects from and to.
        connections: How many it wants from each address; as the attack says if left out.
        receive_bytes: Of each one's receive buffer; 0 for the system's.
    """

    def __init__(self, attack: Attack, connections: int = 0, receive_bytes: int = 0) -> None:
        self._attack = attack
        self._addresses = itertools.cycle(attack.addresses)
        self._count = (connections or attack.connections) * len(attack.addresses)
        self._receive_bytes = receive_bytes
        self._selector = selectors.DefaultSelector()
        self.open: set[socket.socket] = set()
        self._at: dict[socket.socket, int] = {}
        """How much of its request each connection has sent."""
        self.fill()
        print("begun", flush=True)

    def fill(self) -> None:
        """Open what is wanting, without waiting for the service to accept."""
        attack = self._attack
        while len(self.open) < self._count:
            try:
                made = guests.connected(
                    attack.port,
                    next(self._addresses),
                    host=attack.host,
                    receive_bytes=self._receive_bytes,
                    waits=False,
                )
            except OSError:
                return
            self._selector.register(made, selectors.EVENT_READ)
            self.open.add(made)

    def close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self.open.discard(connection)
        self._at.pop(connection, None)
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

    def repeat(self, connection: socket.socket, request: bytes, most: int = 1 << 16) -> None:
        """Send the next part of a request that is sent again and again."""
        at = self._at.get(connection, 0)
        sent = self.send(connection, request[at : at + most])
        if connection in self.open:
            self._at[connection] = (at + sent) % len(request)

    def rest(self, seconds: float) -> set[socket.socket]:
        """Let time pass, and return who had an answer meanwhile or was closed."""
        until = time.monotonic() + seconds
        heard = set()
        while (left := until - time.monotonic()) > 0:
            for connection in self.readable(left):
                heard.add(connection)
                self.read(connection)
        return heard


def silent(attack: Attack) -> None:
    """Open connections and say nothing."""
    hostile = Hostile(attack)
    while True:
        hostile.fill()
        hostile.rest(RETRY_SECONDS)


def drip(attack: Attack) -> None:
    """Send a byte a second on each connection."""
    hostile = Hostile(attack)
    request = guests.get("X: " + "x" * 4000)
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            hostile.repeat(connection, request, most=1)
        hostile.rest(1.0)


def flood(attack: Attack) -> None:
    """Ask at full speed on a few connections, and read what comes."""
    repeated(attack, guests.get() * BURST, FAST)


def heads(attack: Attack) -> None:
    """Send heads of ten megabytes."""
    repeated(attack, guests.get()[:-2] + b"X: " + b"x" * 10_000_000, FAST)


def repeated(attack: Attack, request: bytes, connections: int = 0) -> None:
    """Send one request again and again on every connection, and read what comes."""
    hostile = Hostile(attack, connections)
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            hostile.repeat(connection, request)
        for connection in hostile.readable(0.001):
            hostile.read(connection)


def pipeline(attack: Attack) -> None:
    """Send requests without end, and read no answer."""
    hostile = Hostile(attack, receive_bytes=4096)
    burst = guests.get() * BURST
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            hostile.repeat(connection, burst)
        time.sleep(RETRY_SECONDS)


def sip(attack: Attack) -> None:
    """Ask a lot, and read the answers a byte a second."""
    hostile = Hostile(attack, receive_bytes=4096)
    burst = guests.get() * BURST
    while True:
        hostile.fill()
        for connection in list(hostile.open):
            hostile.repeat(connection, burst)
            if connection in hostile.open:
                hostile.read(connection, 1)
        time.sleep(1.0)


def headers(attack: Attack) -> None:
    """Send heads of 3,200 headers, which 16 KiB hold."""
    repeated(attack, guests.get()[:-2] + b"A:b\r\n" * 3200 + b"\r\n")


def post(body: bytes, *headers: str) -> bytes:
    """Return a POST to the events with this body, whose length the headers tell."""
    lines = [
        f"POST {guests.EVENTS} HTTP/1.1",
        "Host: 169.254.169.254",
        "Metadata: true",
        *headers,
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


def approval(ids: Sequence[str]) -> bytes:
    """Return a request that approves these events."""
    asked = {"StartRequests": [{"EventId": each} for each in ids]}
    body = json.dumps(asked, separators=(",", ":")).encode()
    return post(body, f"Content-Length: {len(body)}")


def chunks(attack: Attack) -> None:
    """Send bodies in 20,000 chunks of one byte."""
    repeated(attack, post(b"1\r\n \r\n" * 20_000, "Transfer-Encoding: chunked"))


def approvals(attack: Attack) -> None:
    """Approve many events at once, as fast as it goes."""
    repeated(attack, approval(attack.ids))


def waiters(attack: Attack) -> None:
    """Wait for news on each connection, behind a proxy that signs, 50 times a second each machine.

    A document that never had an event is of incarnation 0; so these must be machines without one.
    """
    wait = f"Prefer: wait={WAIT_SECONDS}"
    signed = [
        guests.get("If-None-Match: 0", wait, *signature(name, attack.secret))
        for name in attack.machines
    ]
    once(attack, signed, a_round=len(signed))


def signature(name: str, secret: str) -> tuple[str, str]:
    """Return the headers by which a proxy speaks for a machine (protocol.md section 10)."""
    digest = hmac.new(secret.encode(), name.encode(), hashlib.sha256).hexdigest()
    return f"X-Instance-ID: {name}", f"X-Instance-ID-Signature: {digest}"


def idle(attack: Attack) -> None:
    """Ask once on each connection, and keep it."""
    once(attack, [guests.get()])


def once(attack: Attack, requests: Sequence[bytes], *, a_round: int = 0) -> None:
    """Send one of these requests on each connection, in turn, and keep it open.

    Args:
        attack: Where the connections come from and go to.
        requests: What is sent.
        a_round: How many are sent each RETRY_SECONDS, the next on a connection that has its answer;
            0 for one on each connection ever.
    """
    hostile = Hostile(attack)
    turns = itertools.cycle(requests)
    asked: set[socket.socket] = set()
    while True:
        hostile.fill()
        for connection in list(hostile.open - asked)[: a_round or None]:
            if hostile.send(connection, next(turns)):
                asked.add(connection)
        heard = hostile.rest(RETRY_SECONDS)
        asked = asked & hostile.open - (heard if a_round else set())


WAYS: dict[str, Callable[[Attack], None]] = {
    way.__name__: way
    for way in (
        silent,
        drip,
        flood,
        heads,
        pipeline,
        sip,
        headers,
        chunks,
        approvals,
        waiters,
        idle,
    )
}

if __name__ == "__main__":
    machine.prepare()
    os.nice(NICE)
    asked = Attack(**json.load(sys.stdin))
    with contextlib.suppress(KeyboardInterrupt):
        WAYS[asked.way](asked)
