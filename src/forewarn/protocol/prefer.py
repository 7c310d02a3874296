"""`Prefer: wait=60` (RFC 7240): how long a client would let its answer wait.

A preference is a wish: what is not understood of it is passed over and never refused.
"""

import re
from collections.abc import Iterable
from typing import Final

MAX_WAIT_SECONDS: Final = 120
"""The longest that an answer is held back (protocol.md section 10): proxies and address
translation between a guest and its endpoint keep a silent connection for minutes, not for hours."""

_MAX_DIGITS: Final = 9
"""More digits are far beyond the longest wait, and Python itself refuses to read thousands."""

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_QUOTED: Final = rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'
"""One that is not closed goes on to the end. No part of these patterns gives back what it took, so
that no header takes longer than its length."""
_ELEMENT: Final = re.compile(rb'(?:%s|[^",]++)++' % _QUOTED, re.DOTALL)
"""An element of a comma list, whose quoted strings may hold commas."""
_PREFERENCE: Final = re.compile(
    rb"[ \t]*+(%s)[ \t]*+(?:=[ \t]*+(%s|%s)?+[ \t]*+)?+(?:;.*+)?+" % (_TOKEN, _TOKEN, _QUOTED),
    re.DOTALL,
)
"""`token [ BWS "=" BWS word ]`, and parameters, of which `wait` has none."""


def wait_seconds(values: Iterable[bytes]) -> int:
    """Return how long the answer may wait, MAX_WAIT_SECONDS at most; 0 where it may not.

    Of a preference that is named twice the first counts, as RFC 7240 section 2 says.

    Args:
        values: The value of every Prefer header, in their order.
    """
    for value in values:
        for element in _ELEMENT.findall(value):
            preference = _PREFERENCE.fullmatch(element)
            if preference is not None and preference[1].lower() == b"wait":
                return _seconds(preference[2] or b"")
    return 0


def _seconds(word: bytes) -> int:
    digits = word[1:-1] if word[:1] == word[-1:] == b'"' else word
    if not digits.isdigit():
        return 0
    digits = digits.lstrip(b"0")
    if len(digits) > _MAX_DIGITS:
        return MAX_WAIT_SECONDS
    return min(int(digits or b"0"), MAX_WAIT_SECONDS)
