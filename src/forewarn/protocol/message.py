"""A request and a reply as values, for both ends of the wire, and how the text in them compares.

Names, ids and parameters of the protocol compare by ASCII case only. Python's `lower` and `upper`
cover Unicode: a Kelvin sign becomes a plain `k`, and one character may become two.
"""

from typing import Final, TypeAlias

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


MAX_SHOWN: Final = 100
"""Characters of a client's text that an error repeats: an id has 36, and the answer stays small."""

_UPPER: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_TO_LOWER: Final = str.maketrans(_UPPER, _LOWER)
_TO_UPPER: Final = str.maketrans(_LOWER, _UPPER)


def ascii_lower(value: str) -> str:
    """Return the value with A to Z in lower case and nothing else changed."""
    return value.lower() if value.isascii() else value.translate(_TO_LOWER)


def ascii_upper(value: str) -> str:
    """Return the value with a to z in upper case and nothing else changed."""
    return value.upper() if value.isascii() else value.translate(_TO_UPPER)


def shown(value: str) -> str:
    """Return the part of a client's text that an error repeats, in valid UTF-8."""
    cut = value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "..."
    return cut.encode("utf-8", "replace").decode("utf-8")
