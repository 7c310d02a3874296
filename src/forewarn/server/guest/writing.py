"""Replies to bytes: the status line, the headers that every answer has, and the body."""

import math
from datetime import timedelta
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
BLOCK: Final = 256
"""Answers whose numbers differ in their last two digits alone."""
_DIGITS: Final = tuple(b"%02x" % number for number in range(BLOCK))
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
    """An answer but for its beginning, to a GET by HTTP/1.1 or one behind which it closes.

    Args:
        reply: The answer with its own headers.
    """

    __slots__ = ("last", "status", "stays")

    def __init__(self, reply: Reply) -> None:
        self.status = reply.status
        self.stays = ending(reply, to_head=False, keep=True, is_http_1_0=False)
        """On a connection that stays open."""
        self.last = ending(reply, to_head=False, keep=False, is_http_1_0=False)
        """On one that it ends."""


class Writer:
    """Writes answers; one for all connections.

    Args:
        clock: Tells the Date.
        guid: A new GUID. All but its last part begins the GUID that names an answer, its
            `x-ms-request-id`, and the answer's number ends it: no other start has these, and a new
            GUID for each answer would cost more than all the rest of it.
        scale: The clock's seconds in a real one.
    """

    __slots__ = (
        "_beginnings",
        "_block",
        "_clock",
        "_date",
        "_number",
        "_prefix",
        "_scale",
        "second",
        "until",
    )

    def __init__(self, clock: Clock, guid: str, scale: float = 1.0) -> None:
        self._clock = clock
        self._scale = scale
        self._prefix = b"\r\nx-ms-request-id: " + guid[:-_LAST_PART].encode()
        self._block = 0
        self._number = 0
        self._beginnings: dict[int, bytes] = {}
        """By status, for this block and second: all of an answer up to its number's last digits."""
        self._date = b""
        self.until = -math.inf
        """When to `tick`, in monotonic seconds, real ones."""
        self.second = clock.now().replace(microsecond=0)
        """The time of day in whole seconds, as of the last `tick`: one object for a second."""

    def tick(self, now: float) -> None:
        """Begin a second; a clock that is set anew shows with the next.

        Args:
            now: Monotonic seconds, real ones.
        """
        time = self._clock.now()
        self.second = time.replace(microsecond=0)
        self.until = now + (self.second + _SECOND - time).total_seconds() / self._scale
        self._date = codec.http_date(self.second)
        self._beginnings.clear()

    def put(self, status: int, end: bytes) -> bytes:
        """Return an answer's bytes: the next one's beginning, and what `ending` gave."""
        number = self._number
        beginning = self._beginnings.get(status)
        if beginning is None:
            beginning = self._beginnings[status] = b"%b%b%b%010x" % (
                _STATUS_LINES[status],
                self._date,
                self._prefix,
                self._block,
            )
        if number < BLOCK - 1:
            self._number = number + 1
        else:
            self._number = 0
            self._block += 1
            self._beginnings.clear()
        return b"".join((beginning, _DIGITS[number], end))

    def render(
        self, reply: Reply, now: float, *, to_head: bool, keep: bool, is_http_1_0: bool
    ) -> bytes:
        """Return the bytes of an answer; the arguments are those of `tick` and `ending`."""
        if now >= self.until:
            self.tick(now)
        end = ending(reply, to_head=to_head, keep=keep, is_http_1_0=is_http_1_0)
        return self.put(reply.status, end)
