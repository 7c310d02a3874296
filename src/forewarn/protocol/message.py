"""A request and an answer as values: what both ends of the wire have in common."""

from typing import TypeAlias

import msgspec

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class Request(msgspec.Struct, frozen=True):
    """A request as it was read, its body whole."""

    method: bytes
    target: bytes
    """As on the wire: path and query, or a whole URL; any bytes at all."""
    headers: Headers = ()
    """Names in any case, values with or without the blanks around them."""
    body: bytes = b""


class Reply(msgspec.Struct, frozen=True):
    """An answer with its own headers only.

    The shell adds Server, Date, x-ms-request-id, Content-Length and Connection; and it leaves the
    body away where HTTP forbids one: in the answer to a HEAD, and in a 304.
    """

    status: int
    body: bytes = b""
    headers: Headers = ()
