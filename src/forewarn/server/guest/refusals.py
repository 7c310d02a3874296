"""What the transport refuses by itself, beside what `exchange` has a reply for.

None of these is in protocol.md: they are RFC 9110's answers to what no client of the protocol
sends, in the form of the protocol's errors.
"""

from typing import Final

from forewarn.protocol import codec
from forewarn.protocol.exchange import Reply

REASONS: Final[dict[int, bytes]] = {
    417: b"Expectation Failed",
    501: b"Not Implemented",
    505: b"HTTP Version Not Supported",
}
"""The reason phrases of statuses that `exchange.REASONS` does not hold."""

RETRY_AFTER_SECONDS: Final = 5
"""When to come back after 503: a poll or two later, when a short outage is over."""

_JSON: Final = (b"Content-Type", b"application/json; charset=utf-8")


def _reply(status: int, error: str, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(status, codec.encode_error(error), (_JSON, *headers))


def unknown_expectation() -> Reply:
    """Refuse any Expect but `100-continue` (RFC 9110 section 10.1.1)."""
    return _reply(417, "Expectation failed. The only one that is met is 100-continue")


def unknown_coding() -> Reply:
    """Refuse a transfer coding that is not read here (RFC 9112 section 6.1)."""
    return _reply(501, "Not implemented. The only Transfer-Encoding that is read is chunked")


def unknown_http_version(version: str) -> Reply:
    """Refuse another major version of HTTP (RFC 9110 section 15.6.6)."""
    return _reply(505, f"HTTP version {version} is not served: ask by HTTP/1.1 or HTTP/1.0")


def too_many_connections(limit: int, whose: str) -> Reply:
    """Refuse one connection more than the limit.

    Args:
        limit: How many there may be.
        whose: `this address` or `this service`.
    """
    error = f"Service unavailable. {whose.capitalize()} has {limit} connections open: close some"
    return _reply(503, error, (b"Retry-After", b"%d" % RETRY_AFTER_SECONDS))
