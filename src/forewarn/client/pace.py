"""How often is asked, how long is waited, and how long after a failure is asked again."""

from datetime import datetime
from typing import Final

import msgspec

from forewarn.client.errors import Misuse

FIRST_BACKOFF: Final = 1
"""The number of the first failure in a row."""

MAX_DOUBLINGS: Final = 30
"""Failures in a row after which the pause is at its longest whatever the numbers are."""

LEAST_SECONDS: Final = 0.001
"""The least of any time: nothing is asked without a pause."""

MOST_SECONDS: Final = 86_400.0
"""The most of any time: a day."""


class Moment(msgspec.Struct, frozen=True):
    """When something is: the deciders' only time."""

    now: datetime
    """The wall clock's, aware."""
    monotonic: float
    """In seconds, from an origin of the machine's own."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """A client's times, in seconds; the defaults are for a virtual machine on its own host."""

    first_answer_seconds: float = 150.0
    """For a client's first answer: the original holds it back for up to two minutes, while it
    turns scheduled events on for the machine's scope (protocol.md section 8)."""
    answer_seconds: float = 10.0
    """For every later answer; a waiting one has this much beyond its wait."""
    connect_seconds: float = 10.0
    """For a connection: the endpoint is one hop away, and some hosts drop what is too early."""
    poll_seconds: float = 1.0
    """From one question to the next where the server does not wait: once a second is what the
    protocol's owner recommends, and a preemption has 30 s of notice."""
    wait_seconds: int = 60
    """What a server that waits is asked to hold an answer; it may cap this (section 10)."""
    backoff_seconds: float = 0.5
    """After a first failure; doubled with each further one."""
    longest_backoff_seconds: float = 10.0
    """The most after any failure: a third of the shortest notice is left to be told."""
    longest_retry_after_seconds: float = 10.0
    """The longest pause that a server's Retry-After brings: a preemption has 30 s of notice."""
    jitter: float = 0.1
    """The part of a poll's pause that is left to chance, each way: 0 to 1."""
    approve_seconds: float = 900.0
    """How long an approval is tried where the notice is not known: the longest least notice."""

    def __post_init__(self) -> None:
        """Refuse times that would ask without a pause, or never.

        Raises:
            Misuse: A time is not more than nothing, or the jitter is not from 0 to 1.
        """
        for name in self.__struct_fields__:
            value = getattr(self, name)
            least, most = (0.0, 1.0) if name == "jitter" else (LEAST_SECONDS, MOST_SECONDS)
            if not least <= value <= most:
                message = f"pace: {name} must be from {least:g} to {most:g}, not {value}"
                raise Misuse(message)

    def poll(self, chance: float) -> float:
        """Return the seconds from one question to the next."""
        return self.poll_seconds * (1 + self.jitter * (2 * chance - 1))

    def backoff(self, failures: int, chance: float, retry_after: float | None = None) -> float:
        """Return the seconds to stay away after failures in a row.

        Args:
            failures: How many, from 1.
            chance: From 0 to 1; it halves the pause at the most.
            retry_after: What the server said, in seconds; None where it said nothing.
        """
        doublings = min(failures - FIRST_BACKOFF, MAX_DOUBLINGS)
        longest = min(self.backoff_seconds * 2.0**doublings, self.longest_backoff_seconds)
        pause = longest * (0.5 + 0.5 * chance)
        if retry_after is None:
            return pause
        longest = self.longest_retry_after_seconds / (1 + self.jitter)
        told = min(max(retry_after, 0.0), longest)
        return max(pause, told * (1 + self.jitter * chance))
