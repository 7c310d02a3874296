"""What the executor asks of a connector, and what it is told."""

from datetime import datetime
from typing import Protocol

import msgspec

from forewarn.vocabulary import EventSource, EventType


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """One operation to carry out, by one attempt."""

    operation: str
    attempt: int
    """The fencing number; above 1 an earlier attempt may have acted."""
    event_type: EventType
    source: EventSource
    machines: tuple[str, ...]
    hosts: tuple[str, ...]
    """The machines' hosts, in the same order; `""` where unknown."""
    duration_seconds: int
    """The expected interruption; -1 unknown."""
    started_at: datetime


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an act ended."""

    succeeded: bool
    message: str = ""
    """For the operator: what went wrong, or what is worth knowing."""


class Connector(Protocol):
    """Carries acts out. Both verbs may be called for many acts at once, on one event loop."""

    async def perform(self, act: Act) -> Outcome:
        """Carry it out and return when it is over.

        An exception is an outcome too: a failure with its text.
        """
        ...

    async def check(self, act: Act) -> Outcome | None:
        """Tell how an earlier attempt of this act ended, None if it has not been done.

        Asked once before `perform` when the attempt is above 1.
        """
        ...
