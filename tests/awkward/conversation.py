"""One connection as a server without manners holds it: plain sockets, and no framework."""

import contextlib
import json
import select
import socket
import struct
import time
from typing import Any, NamedTuple

import patience

MAX_HEAD = 65_536


class Request(NamedTuple):
    """What a client asked."""

    method: str
    target: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0].lower()

    @property
    def version(self) -> str:
        """The api-version that it asks by."""
        return self.target.partition("api-version=")[2].partition("&")[0]


class Over(Exception):  # noqa: N818 - the end of a connection
    """The connection is over, whoever ended it."""


class Conversation:
    """A connection that has been accepted."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(2 * patience.SECONDS)  # longer than any test
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each byte by itself
        self._read = b""
        self.sent = 0

    def request(self) -> Request:
        """Read the next request, whole."""
        while b"\r\n\r\n" not in self._read:
            self._receive()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        length = int(headers.get("content-length", "0"))
        while len(self._read) < length:
            self._receive()
        body, self._read = self._read[:length], self._read[length:]
        return Request(method, target, headers, body)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(4096)
        except OSError as error:
            raise Over from error
        if not data or len(self._read) > MAX_HEAD:
            raise Over
        self._read += data

    def send(self, data: bytes) -> None:
        """Send bytes, whatever they are."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Over from error
        self.sent += len(data)

    def pause(self, seconds: float) -> None:
        """Do nothing for so long; it is over when the client hangs up meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self._socket], [], [], left)
            if ready:
                self._receive()

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        raise Over

    def reset(self) -> None:
        """Hang up as a machine does that has forgotten the connection."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()
        raise Over

    def answer(self, request: Request, status: str, body: bytes = b"", *fields: str) -> None:
        """Answer well: with a length, and as the client wants its connection."""
        self.send(rendered(status, body, *fields, *_connection(request)))
        if request.headers.get("connection", "").lower() == "close":
            self.close()


def _connection(request: Request) -> tuple[str, ...]:
    wanted = request.headers.get("connection", "").lower()
    return ("Connection: close",) if wanted == "close" else ()


def rendered(status: str, body: bytes, *fields: str) -> bytes:
    """Return an answer as bytes."""
    named = {each.partition(":")[0].lower() for each in fields}
    lines = [f"HTTP/1.1 {status}", "Server: IMDS/150.870.65.1325", *fields]
    if body and "content-type" not in named:
        lines.append("Content-Type: application/json; charset=utf-8")
    if not named & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def as_json(tree: Any) -> bytes:
    return json.dumps(tree, separators=(",", ":")).encode()
