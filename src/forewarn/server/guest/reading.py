r"""Bytes to requests, without any I/O: one message at a time, cut exactly where it ends.

httptools parses, but it knows no limit and does not say where in its input a message ended. Both
follow from one fact: a head ends with an empty line, and so does a chunked body, trailers or
not. So the parser is fed up to the next `CR LF CR LF` and never further, which is why every limit
is exact to the byte, why what follows a message is simply not fed yet (there is no queue of
parsed requests), and why nothing depends on how the bytes were cut on their way.

Two traps of httptools are sprung here. It ends a message that asks for an upgrade right after its
head, and takes the body for the next request: Java's own client asks so on every plain POST. And
it calls `on_header` for trailers too.
"""

from typing import Any, Final

import httptools

from forewarn.protocol import exchange
from forewarn.protocol.exchange import Reply, Request
from forewarn.server.guest import refusals
from forewarn.server.guest.limits import Limits

EMPTY_LINE: Final = b"\r\n\r\n"
_OVERLAP: Final = len(EMPTY_LINE) - 1
_CHUNKED: Final = -1
"""The length of a body that only its chunks tell."""
_TELLING_LENGTHS: Final = frozenset(
    len(name) for name in ("host", "expect", "content-length", "transfer-encoding")
)
"""Lengths of the header names that the transport reads, to pass by most others unread."""


def end_of_block(tail: bytes, data: bytes, start: int) -> int:
    """Return where the first empty line ends that does not end within `tail`, or -1.

    Args:
        tail: Up to three bytes that came right before.
        data: What to search.
        start: Where to begin in it.
    """
    if tail:
        at = (tail + data[start : start + _OVERLAP]).find(EMPTY_LINE)
        if at >= 0:
            return start + at + len(EMPTY_LINE) - len(tail)
    at = data.find(EMPTY_LINE, start)
    return at + len(EMPTY_LINE) if at >= 0 else -1


class Reader:
    """Reads one connection's requests in order.

    `request` or `fault` is set once there is one; the reader takes nothing more until `next` was
    called, and nothing at all after a fault.

    Args:
        limits: How long a head and a body may be.
    """

    __slots__ = (
        "_body",
        "_counted",
        "_headers",
        "_left",
        "_limits",
        "_parser",
        "_reading_body",
        "_tail",
        "awaits_continue",
        "fault",
        "in_body",
        "is_http_1_0",
        "keeps_alive",
        "method",
        "request",
        "started",
        "target",
    )

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._parser: Any = None
        """Made when it is needed: it is the half of a connection's memory."""
        self._reading_body = False
        self.fault: Reply | None = None
        self.next()

    def next(self) -> None:
        """Begin the next message."""
        self.request: Request | None = None
        self.started = False
        """Whether any byte of the message has come."""
        self.in_body = False
        self.awaits_continue = False
        """Whether the client waits for `100 Continue`; to be cleared by who has answered that."""
        self.keeps_alive = False
        self.is_http_1_0 = False
        self.method = b""
        self.target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: bytearray | None = None
        self._left = 0
        self._counted = 0
        self._tail = b""

    def shed(self) -> None:
        """Let go of a request that was read: of 9,000 that wait, all that they said is 9 MB.

        What its answer's form needs is kept. Nothing more is read until `next`, and the next
        message is another parser's as well as this one's.
        """
        self._parser = None
        self.request = None
        self.target = b""
        self._headers = []
        self._body = None

    @property
    def head(self) -> Request:
        """Return the request as far as its head tells it."""
        return Request(self.method, self.target, tuple(self._headers))

    def read(self, data: bytes, start: int) -> int:
        """Take bytes up to the end of the message, to a fault, or to a wait for 100.

        Args:
            data: What came.
            start: Where the part begins that was not taken yet.

        Returns:
            Where the part begins that was not taken now.
        """
        position = start
        size = len(data)
        while position < size and self.request is None and self.fault is None:
            stop = self._boundary(data, position)
            self._feed(data if stop - position == size else data[position:stop])
            position = stop
            if self.awaits_continue:
                break
        return position

    def _boundary(self, data: bytes, position: int) -> int:
        """Return how far the parser may read without passing the end of anything."""
        self.started = True
        size = len(data)
        if self.in_body and self._left != _CHUNKED:
            return min(size, position + self._left)
        limit = self._limits.chunked_bytes if self.in_body else self._limits.head_bytes
        end = end_of_block(self._tail, data, position)
        return min(size if end < 0 else end, position + limit - self._counted)

    def _feed(self, part: bytes) -> None:
        self._reading_body = self.in_body
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            if self.in_body and self.fault is None:
                self._read_body_by_a_new_parser()
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError as error:
            # A body over its limit was told before the parser came to what is malformed.
            self.fault = self.fault or exchange.malformed(str(error))
            return
        if self.request is not None or self.fault is not None:
            return
        if self._reading_body != self.in_body:
            self._counted = 0  # the body's bytes are counted by themselves
            self._tail = b""
            return
        if self.in_body and self._left != _CHUNKED:
            self._left -= len(part)
            return
        self._counted += len(part)
        self._tail = (self._tail + part[-_OVERLAP:])[-_OVERLAP:]
        if self.in_body and self._counted >= self._limits.chunked_bytes:
            self.fault = exchange.body_too_large(self._limits.body_bytes)
        elif not self.in_body and self._counted >= self._limits.head_bytes:
            self.fault = exchange.head_too_large(self._limits.head_bytes)

    def _read_body_by_a_new_parser(self) -> None:
        """Put in a parser that stands where this one should: after the head, before the body."""
        length = b"Transfer-Encoding: chunked"
        if self._left != _CHUNKED:
            length = b"Content-Length: %d" % self._left
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + length + EMPTY_LINE)

    def on_url(self, part: bytes) -> None:
        """Take a part of the request's target."""
        if not self.in_body:
            self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what comes after the head is a trailer, which nobody asked for."""
        if not self.in_body:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Judge the head as far as the transport goes.

        Without a Host, HTTP/1.1 is refused, as RFC 9112 section 3.2 demands: every client library
        sends one. Its value is nobody's business here: guests ask by whatever address they know.
        """
        if self.in_body:
            return
        self.method = self._parser.get_method()
        self.keeps_alive = self._parser.should_keep_alive() and self.method != b"CONNECT"
        version = self._parser.get_http_version()
        self.is_http_1_0 = version == "1.0"
        hosts = 0
        codings = []
        expectations = []
        for name, value in self._headers:
            if len(name) not in _TELLING_LENGTHS:
                continue
            match name.lower():
                case b"host":
                    hosts += 1
                case b"content-length":
                    self._left = int(value)
                case b"transfer-encoding":
                    codings.append(value.strip().lower())
                case b"expect":
                    expectations.append(value.strip().lower())
        if codings:
            self._left = _CHUNKED
        self.in_body = self._left != 0 and self.method != b"CONNECT"
        if version not in {"1.1", "1.0"}:
            self.fault = refusals.unknown_http_version(version)
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self.fault = exchange.malformed("wanted is exactly one Host header")
        elif codings:
            self._judge_coding(codings)
        if self.fault is None and expectations and version == "1.1":
            self._judge_expectations(expectations)
        if self.fault is None and self._left > self._limits.body_bytes:
            self.fault = exchange.body_too_large(self._limits.body_bytes)

    def _judge_coding(self, codings: list[bytes]) -> None:
        if self.is_http_1_0:
            self.fault = exchange.malformed("HTTP/1.0 has no Transfer-Encoding")
        elif codings != [b"chunked"]:
            self.fault = refusals.unknown_coding()

    def _judge_expectations(self, expectations: list[bytes]) -> None:
        wanted = {part.strip() for value in expectations for part in value.split(b",")}
        if wanted - {b"100-continue", b""}:
            self.fault = refusals.unknown_expectation()
        else:
            self.awaits_continue = self.in_body and b"100-continue" in wanted

    def on_body(self, part: bytes) -> None:
        """Take a part of the body, unless it makes the body too long."""
        if self._body is None:
            self._body = bytearray()
        if len(self._body) + len(part) > self._limits.body_bytes:
            self.fault = exchange.body_too_large(self._limits.body_bytes)
        else:
            self._body += part

    def on_message_complete(self) -> None:
        """Have the request whole, unless this is the false end before an upgrade's body."""
        if self.fault is not None or self._reading_body != self.in_body:
            return
        body = b"" if self._body is None else bytes(self._body)
        self.request = Request(self.method, self.target, tuple(self._headers), body)
