"""Replies to bytes: the status line, the headers that every answer has, and the body."""

import itertools
from datetime import datetime, timedelta
from typing import Final

from forewarn.clock import Clock
from forewarn.protocol import codec, exchange
from forewarn.protocol.exchange import Reply
from forewarn.server.guest import refusals

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Sent before the answer, to a client that waits with its body (RFC 9110 section 10.1.1)."""

_SECOND: Final = timedelta(seconds=1)
_LAST_PART: Final = len("a3c5e7091b2d")
"""Of a GUID, in characters."""
_STATUS_LINES: Final = {
    status: b"HTTP/1.1 %d %s\r\nServer: %s\r\nDate: " % (status, reason, exchange.SERVER)
    for status, reason in (exchange.REASONS | refusals.REASONS).items()
}
_CONNECTION: Final = {
    (True, False): b"\r\n\r\n",
    (True, True): b"\r\nConnection: keep-alive\r\n\r\n",
    (False, False): b"\r\nConnection: close\r\n\r\n",
    (False, True): b"\r\nConnection: close\r\n\r\n",
}
"""What ends a head, by whether the connection stays and whether the request was HTTP/1.0."""


def ending(reply: Reply, *, to_head: bool, keep: bool, is_http_1_0: bool) -> bytes:
    """Return an answer's bytes behind its `x-ms-request-id`.

    Args:
        reply: The answer with its own headers.
        to_head: Whether it answers a HEAD, which gets no body.
        keep: Whether the connection stays open.
        is_http_1_0: Whether the client must be told that it stays open.
    """
    parts: list[bytes] = []
    for name, value in reply.headers:
        parts += (b"\r\n", name, b": ", value)
    if reply.status != 304:
        parts.append(b"\r\nContent-Length: %d" % len(reply.body))
    parts.append(_CONNECTION[keep, is_http_1_0])
    if reply.status != 304 and not to_head:
        parts.append(reply.body)
    return b"".join(parts)


class Ending:
    """An answer by HTTP/1.1 on a connection that stays, but for its beginning.

    Args:
        reply: The answer with its own headers.
    """

    __slots__ = ("data", "status")

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.data = ending(reply, to_head=False, keep=True, is_http_1_0=False)


class Writer:
    """Writes answers; one for all connections.

    Args:
        clock: Tells the Date.
        guid: A new GUID. All but its last part begins the GUID that names an answer, its
            `x-ms-request-id`, and the answer's number ends it: no other start has these, and a new
            GUID for each answer would cost more than all the rest of it.
    """

    __slots__ = ("_beginnings", "_clock", "_monotonic", "_numbers", "_prefix", "_second", "_until")

    def __init__(self, clock: Clock, guid: str) -> None:
        self._clock = clock
        self._monotonic = clock.monotonic
        self._prefix = b"\r\nx-ms-request-id: " + guid[:-_LAST_PART].encode()
        self._numbers = itertools.count()
        self._beginnings: dict[int, bytes] = {}
        self._begin_second()

    def _begin_second(self) -> None:
        now = self._clock.now()
        self._second = now.replace(microsecond=0)
        self._until = self._monotonic() + (self._second + _SECOND - now).total_seconds()
        self._beginnings.clear()

    def second(self) -> datetime:
        """Return the time of day in whole seconds, one object for all who ask in a second.

        A clock that is set anew shows within a second.
        """
        if self._monotonic() >= self._until:
            self._begin_second()
        return self._second

    def begin(self, status: int) -> bytes:
        """Return an answer's bytes up to its `x-ms-request-id`, by the second last asked for."""
        beginning = self._beginnings.get(status)
        if beginning is None:
            date = codec.http_date(self._second)
            beginning = self._beginnings[status] = _STATUS_LINES[status] + date + self._prefix
        return b"%b%012x" % (beginning, next(self._numbers))

    def render(self, reply: Reply, *, to_head: bool, keep: bool, is_http_1_0: bool) -> bytes:
        """Return the bytes of an answer; the arguments are those of `ending`."""
        self.second()
        return self.begin(reply.status) + ending(
            reply, to_head=to_head, keep=keep, is_http_1_0=is_http_1_0
        )
