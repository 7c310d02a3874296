"""How often a machine may ask: a token bucket for each (protocol.md section 9).

A bucket is one number: the time at which it will be full again. It needs no timer, and a machine
that never asked needs no bucket.
"""

import math
from typing import Final

import msgspec

from forewarn.server.guest.tally import Reason, Tally

FULL: Final = -math.inf
"""The bucket of a machine that has not asked: it has been full for ever."""


SLACK: Final = 0.001
"""Of a request: more than sums of fractions are ever wrong by, so that the last of a burst, and who
keeps to the rate to the millisecond, is not refused."""


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings say of it."""

    per_second: float = 0.0
    """How many requests a second a bucket gains; 0 is no limit."""
    burst: int = 1
    """How many it holds."""


UNLIMITED: Final = Rate()
"""No limit."""


class Bucket:
    """One machine's bucket."""

    __slots__ = ("full_at",)

    def __init__(self) -> None:
        self.full_at = FULL
        """When it will be full, in monotonic seconds."""


class Limiter:
    """Takes requests out of buckets.

    Args:
        rate: What the settings say.
        tally: Where requests are counted that were over it.
    """

    __slots__ = ("_interval", "_tally", "_tolerance")

    def __init__(self, rate: Rate, tally: Tally) -> None:
        self._tally = tally
        self._interval = 1 / rate.per_second if rate.per_second else 0.0
        most = rate.burst - 1 + SLACK
        self._tolerance = most * self._interval if rate.per_second else math.inf

    def allows(self, bucket: Bucket, now: float) -> bool:
        """Take one request out, if there is one; return whether there was."""
        full_at = bucket.full_at
        if full_at <= now:
            full_at = now
        elif full_at - now > self._tolerance:
            return False
        bucket.full_at = full_at + self._interval
        return True

    def take(self, bucket: Bucket, now: float) -> int:
        """Take one request out.

        Args:
            bucket: The machine's own.
            now: Monotonic seconds, real ones.

        Returns:
            0 if there was one, else the whole seconds until there is.
        """
        if self.allows(bucket, now):
            return 0
        self._tally[Reason.RATE] += 1
        return math.ceil(bucket.full_at - now - self._tolerance)
