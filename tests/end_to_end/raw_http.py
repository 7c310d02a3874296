"""Bytes to a server, and its answers without what is each answer's own."""

import re
import socket
from typing import Final

import patience

OWN: Final = rb"(?m)^(Date|x-ms-request-id): .*\r$"


def exchanged(port: int, request: bytes) -> bytes:
    """Send bytes and the end of them; return all that comes, without what is each answer's own."""
    with socket.create_connection(("127.0.0.1", port), patience.SECONDS) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        except OSError:  # it was refused before it was whole
            pass
        got = b""
        try:
            while data := connection.recv(65536):
                got += data
        except ConnectionResetError:
            pass
    return re.sub(OWN, b"", got)
