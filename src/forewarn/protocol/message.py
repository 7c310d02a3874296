"""A request and a reply as values, for both ends of the wire."""

from typing import TypeAlias

import msgspec

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class HttpRequest(msgspec.Struct, frozen=True):
    """A request as it was read, with its whole body."""

    method: bytes
    target: bytes
    """As on the wire: path and query, or a whole URL; any bytes at all."""
    headers: Headers = ()
    """Names in any case, values with or without the blanks around them."""
    body: bytes = b""


class Reply(msgspec.Struct, frozen=True):
    """A reply with its own headers only; the server adds those that each answer has."""

    status: int
    body: bytes = b""
    headers: Headers = ()
