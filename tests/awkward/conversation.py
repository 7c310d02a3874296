"""One connection as a server without manners holds it, on the client's scripted server."""

import json
import select
import socket
import time
from typing import Any

import patience
from client.scripted import Asked, Talk


class Over(Exception):  # noqa: N818 - the end of a connection
    """The connection is over, whoever ended it."""


def version(request: Asked) -> str:
    """Return the api-version that a request asks by."""
    return request.target.partition("api-version=")[2].partition("&")[0]


class Conversation:
    """A connection that has been accepted."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._socket = talk.connection
        self._socket.settimeout(2 * patience.SECONDS)  # longer than any test
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each byte by itself
        self.sent = 0

    def request(self) -> Asked:
        """Read the next request, whole."""
        request = self._talk.request()
        if request is None:
            raise Over
        return request

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
            if select.select([self._socket], [], [], left)[0]:
                raise Over

    def close(self) -> None:
        """Hang up."""
        self._talk.close()
        raise Over

    def reset(self) -> None:
        """Hang up as a machine does that has forgotten the connection."""
        self._talk.reset()
        raise Over

    def answer(self, request: Asked, status: str, body: bytes = b"", *fields: str) -> None:
        """Answer well: with a length, and as the client wants its connection."""
        closes = request.headers.get("connection", "").lower() == "close"
        self.send(rendered(status, body, *fields, *["Connection: close"] * closes))
        if closes:
            self.close()


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
