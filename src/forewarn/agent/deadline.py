"""A socket's bytes until a time: a peer that sends them one by one gets no more of it."""

import io
import socket
from typing import Any

from forewarn import clock


class Bytes(io.RawIOBase):
    """What comes on a socket, until a time.

    A socket's own time limit is one for each read: whoever sends a byte before each ends holds a
    thread for as long as he likes.

    Args:
        connected: The socket; its time limit is set before each read.
        until: By the monotonic clock, in seconds.
    """

    def __init__(self, connected: socket.socket, until: float) -> None:
        super().__init__()
        self._socket = connected
        self._until = until

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - as the library has it
        """Read what there is.

        Raises:
            TimeoutError: The time is over.
        """
        left = self._until - clock.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._socket.recv_into(buffer)


def reader(connected: socket.socket, until: float) -> io.BufferedReader:
    """Return what comes on a socket until a time, as a file; the arguments are those of `Bytes`."""
    return io.BufferedReader(Bytes(connected, until))
