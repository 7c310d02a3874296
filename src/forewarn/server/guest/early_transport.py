"""A new connection's socket, until the loop has a transport for it.

Most connections are one request, which is there when they are accepted, and one answer. Such a one
is over before the loop makes a transport, a handle and a task for it, which cost as much as all the
rest of it. It is read once; what is written goes out at once. Whatever has to last, or to be waited
for, is handed over to the loop's transport.
"""

import asyncio
import socket


class EarlyTransport(asyncio.Transport):
    """Writes to a connection that is a moment old."""

    __slots__ = ("_has_ended", "_is_aborted", "_is_closing", "_socket", "_unsent")

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted
        self._unsent = b""
        self._has_ended = False
        self._is_closing = False
        self._is_aborted = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return the socket; there is nothing else."""
        return self._socket if name == "socket" else default

    def read(self, most: int) -> bytes:
        """Return what has come, if anything has; OSError if the peer has gone."""
        try:
            return self._socket.recv(most)
        except BlockingIOError:
            return b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send what the peer takes at once."""
        sent = 0
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError:  # the peer has gone
                self.abort()
        if sent < len(data):
            self._unsent += bytes(data[sent:])

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the peer did not take at once."""
        return len(self._unsent)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is one answer, or little more."""

    def can_write_eof(self) -> bool:
        """Return that it can end its side alone."""
        return True

    def write_eof(self) -> None:
        """End this side of the connection."""
        self._has_ended = True

    def pause_reading(self) -> None:
        """Do nothing: it is read once."""

    def resume_reading(self) -> None:
        """Do nothing: it is read once."""

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self._is_closing

    def close(self) -> None:
        """Close it once all is sent."""
        self._is_closing = True

    def abort(self) -> None:
        """Close it whatever is not sent."""
        self._is_closing = self._is_aborted = True

    def is_over(self) -> bool:
        """Return whether it was closed, and nothing is left to be sent."""
        return self._is_closing and (self._is_aborted or not self._unsent)

    def hand_over(self, transport: asyncio.Transport) -> None:
        """Let the loop's transport go on with it."""
        if self._is_aborted:
            transport.abort()
            return
        if self._unsent:
            transport.write(self._unsent)
        if self._has_ended:
            transport.write_eof()
        if self._is_closing:
            transport.close()
