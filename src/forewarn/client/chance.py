"""The client's one source of chance: it keeps many clients from asking in step."""

import os

_BYTES = 4


def draw() -> float:
    """Return a number from 0 up to, not including, 1; a forked process draws others."""
    drawn = os.urandom(_BYTES)  # noqa: TID251 - the one place that supplies chance to the client
    return int.from_bytes(drawn, "big") / 2.0 ** (8 * _BYTES)
