r"""Bytes to requests, and answers to bytes, without any I/O: one message at a time, cut exactly.

httptools parses, but it knows no limit and does not say where in its input a message ended. Both
follow from one fact: a head ends with an empty line, and so does a chunked body, trailers or not.
So a parser is fed up to the next `CR LF CR LF` and never further, which is why every limit is exact
to the byte, why bytes behind a message are simply not fed yet (nothing queues parsed requests), and
why nothing depends on how the bytes were cut on their way.

A head is complete before anything of its body is looked at, so that its caller is judged first. A
body has its own parser if it is chunked, and none if it has a length. That springs two traps of
httptools: it ends a message that asks for an upgrade right after its head, and takes the body for
the next request (Java's own client asks so on every plain POST); and it calls `on_header` for
trailers too. A callback that raises stops the parser at once: surplus headers cost no more.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httptools

from forewarn.clock import Clock
from forewarn.protocol import codec, exchange, refusals
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.server.guest.limits import Limits

EMPTY_LINE: Final = b"\r\n\r\n"
_OVERLAP: Final = len(EMPTY_LINE) - 1
_SERVED_VERSIONS: Final = frozenset({"1.1", "1.0"})
_NO_VERSION: Final = "0.0"
"""The parser's version before one has come."""
CHUNKED: Final = -1
_TELLING_LENGTHS: Final = frozenset(
    len(name) for name in ("host", "expect", "content-length", "transfer-encoding")
)
"""Lengths of the header names that the transport reads, to pass by most others unread."""
_CHUNKED_HEAD: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked" + EMPTY_LINE


def end_of_block(tail: bytes, data: bytes, start: int) -> int:
    """Return the end of the first empty line that does not end within `tail`, or -1."""
    if tail:
        at = (tail + data[start : start + _OVERLAP]).find(EMPTY_LINE)
        if at >= 0:
            return start + at + len(EMPTY_LINE) - len(tail)
    at = data.find(EMPTY_LINE, start)
    return at + len(EMPTY_LINE) if at >= 0 else -1


class _TooMany(Exception):  # noqa: N818 - it stops the parser
    """There are more headers or chunks than are read."""


@dataclass(slots=True, eq=False, repr=False)
class Head:
    """A request's head, as a parser reports it; `fault` is the transport's refusal of it."""

    limits: Limits
    _parser: Any = None
    is_complete: bool = False
    fault: Reply | None = None
    method: bytes = b""
    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    length: int = 0
    """The length of the body, in bytes; CHUNKED for a chunked one."""
    keeps_alive: bool = False
    is_http_1_0: bool = False
    expects_continue: bool = False
    """True if the client waits for `100 Continue` before it sends its body."""

    @property
    def request(self) -> HttpRequest:
        """Return the request without its body."""
        return HttpRequest(self.method, self.target, tuple(self.headers))

    def feed(self, part: bytes) -> None:
        """Parse some more of it, not beyond its end."""
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            pass  # no upgrade is taken, and what follows is read as ever
        except httptools.HttpParserCallbackError:
            if self.fault is None:
                raise
        except httptools.HttpParserError as error:
            self.fault = self.fault or self._malformed(str(error))
        if self.is_complete:
            self._parser = None

    def _malformed(self, what: str) -> Reply:
        version = self._parser.get_http_version()
        if version in _SERVED_VERSIONS or version == _NO_VERSION:
            return exchange.refuse(refusals.MALFORMED, what=what)
        return exchange.refuse(refusals.HTTP_VERSION, version=version)

    def on_url(self, part: bytes) -> None:
        """Take a part of the request's target."""
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, unless there are too many."""
        if len(self.headers) >= refusals.MAX_HEADERS:
            self.fault = exchange.refuse(refusals.TOO_MANY_HEADERS, limit=refusals.MAX_HEADERS)
            raise _TooMany
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Judge the head as far as the transport goes.

        Without a Host, HTTP/1.1 is refused, as RFC 9112 section 3.2 demands: every client library
        sends one. Its value does not matter here: guests ask by any address that they know.
        """
        self.is_complete = True
        self.method = self._parser.get_method()
        self.keeps_alive = self._parser.should_keep_alive() and self.method != b"CONNECT"
        version = self._parser.get_http_version()
        self.is_http_1_0 = version == "1.0"
        hosts = 0
        codings = []
        expectations = []
        for name, value in self.headers:
            if len(name) not in _TELLING_LENGTHS:
                continue
            match name.lower():
                case b"host":
                    hosts += 1
                case b"content-length":
                    # Its value is limited, not its digits: Python takes 4,300 of them.
                    self.length = int(value.lstrip(b" \t0") or b"0")
                case b"transfer-encoding":
                    codings.append(value.strip().lower())
                case b"expect":
                    expectations.append(value.strip().lower())
        if version not in _SERVED_VERSIONS:
            self.fault = exchange.refuse(refusals.HTTP_VERSION, version=version)
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self.fault = exchange.refuse(
                refusals.MALFORMED, what="expected exactly one Host header"
            )
        elif codings:
            self._judge_coding(codings)
        if self.method == b"CONNECT":
            self.length = 0
        if self.fault is None and expectations and version == "1.1":
            self._judge_expectations(expectations)
        if self.fault is None and self.length > self.limits.body_bytes:
            self.fault = exchange.refuse(refusals.BODY_TOO_LARGE, limit=self.limits.body_bytes)

    def _judge_coding(self, codings: list[bytes]) -> None:
        if self.is_http_1_0:
            self.fault = exchange.refuse(
                refusals.MALFORMED, what="HTTP/1.0 has no Transfer-Encoding"
            )
        elif codings != [b"chunked"]:
            self.fault = exchange.refuse(refusals.CODING)
        else:
            self.length = CHUNKED

    def _judge_expectations(self, expectations: list[bytes]) -> None:
        expected = {part.strip() for value in expectations for part in value.split(b",")}
        if expected - {b"100-continue", b""}:
            self.fault = exchange.refuse(refusals.EXPECTATION)
        else:
            self.expects_continue = self.length != 0 and b"100-continue" in expected


NO_HEAD: Final = Head(Limits())
"""The head of a message that has not begun: polls that repeat themselves have no other."""


@functools.cache
def _form_of(method: bytes, keeps_alive: bool, is_http_1_0: bool) -> Head:  # noqa: FBT001 - cached
    form = Head(NO_HEAD.limits, method=method, keeps_alive=keeps_alive, is_http_1_0=is_http_1_0)
    form.is_complete = True
    return form


class _Chunks:
    """A chunked body, as a parser reports it."""

    __slots__ = ("_blocks", "_limits", "_parser", "body", "fault", "is_complete")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._blocks = 0
        """Chunks and trailers so far, and the coding's own header."""
        self.body = bytearray()
        self.fault: Reply | None = None
        self.is_complete = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(_CHUNKED_HEAD)

    def feed(self, part: bytes) -> None:
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserCallbackError:
            if self.fault is None:
                raise
        except httptools.HttpParserError as error:
            self.fault = self.fault or exchange.refuse(refusals.MALFORMED, what=str(error))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a trailer, which is ignored."""
        del name, value
        self.on_chunk_header()

    def on_chunk_header(self) -> None:
        self._blocks += 1
        if self._blocks > refusals.MAX_CHUNKS + 2:  # the coding's own header, and the last chunk
            self._refuse(exchange.refuse(refusals.TOO_MANY_CHUNKS, limit=refusals.MAX_CHUNKS))

    def on_body(self, part: bytes) -> None:
        if len(self.body) + len(part) > self._limits.body_bytes:
            self._refuse(exchange.refuse(refusals.BODY_TOO_LARGE, limit=self._limits.body_bytes))
        self.body += part

    def on_message_complete(self) -> None:
        self.is_complete = True

    def _refuse(self, fault: Reply) -> None:
        self.fault = fault
        raise _TooMany


class RequestReader:
    """Reads one connection's requests in order: a head, then its body, then the next head.

    It takes nothing more when a head or a request is complete, until it is asked again; and
    nothing at all after a fault.
    """

    __slots__ = ("_body", "_counted", "_limits", "_tail", "body", "fault", "head", "started")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.fault: Reply | None = None
        self.next()

    def next(self) -> None:
        """Begin the next message."""
        self.head = NO_HEAD
        self.started = False
        self.body: bytes | None = None
        """Once the request is complete."""
        self._body: bytearray | _Chunks | None = None
        self._counted = 0
        self._tail = b""

    def shed_head(self) -> None:
        """Keep only the form of the answer: of 9,000 that wait, the rest is 11 MB."""
        head = self.head
        self.head = _form_of(head.method, head.keeps_alive, head.is_http_1_0)

    @property
    def in_body(self) -> bool:
        """Return True if the head is complete, and the body is not."""
        return self.head.is_complete and self.body is None

    def read(self, data: bytes, start: int) -> int:
        """Take bytes up to the end of the head, of the request, or to a fault; return their end."""
        if self.head is NO_HEAD:
            self.head = Head(self._limits)
        if self.in_body:
            return self._read_body(data, start)
        head, limit = self.head, self._limits.head_bytes
        stop = self._boundary(data, start, limit)
        part = data if stop - start == len(data) else data[start:stop]
        # Blank lines, which some clients send behind a body, begin nothing (RFC 9112 section 2.2).
        self.started = self.started or not part.isspace()
        head.feed(part)
        self.fault = head.fault
        if self.fault is None and head.is_complete:
            self._counted = 0  # the body's bytes are counted by themselves
            self._tail = b""
            if head.length == 0:
                self.body = b""
        elif self.fault is None and self._count(data, start, stop) >= limit:
            self.fault = exchange.refuse(refusals.HEAD_TOO_LARGE, limit=limit)
        return stop

    def _read_body(self, data: bytes, start: int) -> int:
        length = self.head.length
        if length != CHUNKED:
            if self._body is None:
                self._body = bytearray()
            assert isinstance(self._body, bytearray)
            stop = min(len(data), start + length - len(self._body))
            self._body += data[start:stop]
            if len(self._body) == length:
                self._complete(self._body)
            return stop
        if self._body is None:
            self._body = _Chunks(self._limits)
        assert isinstance(self._body, _Chunks)
        limit = self._limits.chunked_bytes
        stop = self._boundary(data, start, limit)
        self._body.feed(data[start:stop])
        self.fault = self._body.fault
        if self.fault is None and self._body.is_complete:
            self._complete(self._body.body)
        elif self.fault is None and self._count(data, start, stop) >= limit:
            self.fault = exchange.refuse(refusals.BODY_TOO_LARGE, limit=self._limits.body_bytes)
        return stop

    def _complete(self, body: bytearray) -> None:
        self.body = bytes(body)
        self._body = None

    def _boundary(self, data: bytes, start: int, limit: int) -> int:
        end = end_of_block(self._tail, data, start)
        return min(len(data) if end < 0 else end, start + limit - self._counted)

    def _count(self, data: bytes, start: int, stop: int) -> int:
        self._counted += stop - start
        self._tail = (self._tail + data[max(start, stop - _OVERLAP) : stop])[-_OVERLAP:]
        return self._counted


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Sent before the answer, to a client that waits with its body (RFC 9110 section 10.1.1)."""

_LAST_PART: Final = len("a3c5e7091b2d")
"""The length of a GUID's last part, in characters."""
BLOCK: Final = 256
"""Answers whose numbers differ in their last two digits alone."""
_DIGITS: Final = tuple(b"%02x" % number for number in range(BLOCK))
_STATUS_LINES: Final = {
    status: b"HTTP/1.1 %d %s\r\nServer: %s\r\nDate: " % (status, reason, exchange.SERVER)
    for status, reason in exchange.REASONS.items()
}
_CONNECTION: Final = {
    (True, False): b"\r\n\r\n",
    (True, True): b"\r\nConnection: keep-alive\r\n\r\n",
    (False, False): b"\r\nConnection: close\r\n\r\n",
    (False, True): b"\r\nConnection: close\r\n\r\n",
}
"""The ends of a head, by two flags: the connection stays, and the request was HTTP/1.0."""


def ending(reply: Reply, *, keep: bool, to_head: bool = False, is_http_1_0: bool = False) -> bytes:
    """Return an answer's bytes behind its `x-ms-request-id`."""
    parts: list[bytes] = []
    for name, value in reply.headers:
        parts += (b"\r\n", name, b": ", value)
    if reply.status != 304:
        parts.append(b"\r\nContent-Length: %d" % len(reply.body))
    parts.append(_CONNECTION[keep, is_http_1_0])
    if reply.status != 304 and not to_head:
        parts.append(reply.body)
    return b"".join(parts)


@dataclass(eq=False, repr=False)
class AnswerWriter:
    """Writes answers; one for all connections."""

    clock: Clock
    request_time: Clock
    guid: str
    """A new GUID. It begins each answer's `x-ms-request-id`, which its number ends: a new GUID for
    each answer would cost more than all the rest of it."""
    scale: float = 1.0
    """The clock's seconds in a real one."""
    age: Callable[[], int] | None = None
    """Returns the age of the documents in seconds, for the header Age (RFC 9111 section 5.1) unless
    it is 0. None: they are never old."""
    until: float = -math.inf
    """When to `tick`, in monotonic seconds, real ones."""
    _block: int = 0
    _number: int = 0
    _beginnings: dict[int, bytes] = field(default_factory=dict)
    """By status, for this block and second: all of an answer up to its number's last digits."""
    _date: bytes = b""

    def __post_init__(self) -> None:
        """Begin the first second."""
        self._prefix = b"\r\nx-ms-request-id: " + self.guid[:-_LAST_PART].encode()
        self.second = self.request_time.now().replace(microsecond=0)
        """By which requests are dated, as of the last `tick`: one object for a second."""

    def tick(self, now: float) -> None:
        """Begin a second; a clock that was set shows with the next."""
        time = self.clock.now()
        self.second = self.request_time.now().replace(microsecond=0)
        self.until = now + (1 - time.microsecond / 1e6) / self.scale
        self._date = codec.http_date(time)
        if self.age is not None and (seconds := self.age()):
            self._date += b"\r\nAge: %d" % seconds
        self._beginnings.clear()

    def put(self, status: int, end: bytes) -> bytes:
        """Return an answer's bytes: the next one's beginning, and the result of `ending`."""
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

    def render(self, reply: Reply, now: float, head: Head, *, keep: bool) -> bytes:
        """Return the bytes of an answer to this head."""
        if now >= self.until:
            self.tick(now)
        to_head = head.method == b"HEAD"
        end = ending(reply, keep=keep, to_head=to_head, is_http_1_0=head.is_http_1_0)
        return self.put(reply.status, end)
