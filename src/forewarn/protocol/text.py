"""ASCII-only upper and lower case, and how much of a client's text an error repeats.

Python's `lower` and `upper` cover Unicode: a Kelvin sign becomes a plain `k`, and one character may
become two. Names, ids and parameters of the protocol compare by ASCII case only.
"""

from typing import Final

MAX_SHOWN: Final = 100
"""Characters of a client's text that an error repeats: an id has 36, and the answer stays small."""

_UPPER: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_TO_LOWER: Final = str.maketrans(_UPPER, _LOWER)
_TO_UPPER: Final = str.maketrans(_LOWER, _UPPER)


def lower(value: str) -> str:
    """Return the value with A to Z in lower case and nothing else changed."""
    return value.translate(_TO_LOWER)


def upper(value: str) -> str:
    """Return the value with a to z in upper case and nothing else changed."""
    return value.translate(_TO_UPPER)


def shown(value: str) -> str:
    """Return the part of a client's text that an error repeats, in valid UTF-8."""
    cut = value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "..."
    return cut.encode("utf-8", "replace").decode("utf-8")
