"""What the guest plane counts, as plain numbers: answers, and who was turned away for what."""

from collections import Counter
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from forewarn.protocol import target
from forewarn.protocol.target import Resource


class Reason(StrEnum):
    """Why a guest was turned away: a closed list, for metrics."""

    UNKNOWN_ADDRESS = "unknown-address"
    """A request from an address that no machine has."""
    UNKNOWN_NAME = "unknown-name"
    """A request as `/vm/NAME` with a name that no machine has."""
    UNKNOWN_INSTANCE = "unknown-instance"
    """A request that a trusted proxy signed, for a machine that there is not."""
    WRONG_SIGNATURE = "wrong-signature"
    """A request from a trusted proxy's address that none of the secrets has signed."""
    CONNECTIONS = "connections"
    """A connection above the limit in all."""
    CONNECTIONS_OF_ADDRESS = "connections-of-address"
    """A connection above the limit of its address."""
    FAULTY_REQUEST = "faulty-request"
    """A request over a limit, or no HTTP."""
    SLOW_REQUEST = "slow-request"
    """A request that did not arrive in its time."""
    SLOW_READER = "slow-reader"
    """A peer that did not take its answers in time."""
    RATE = "rate"
    """A request over its machine's rate."""
    WAITERS = "waiters"
    """A request that was not let wait, for too many do; it was answered at once."""
    APPROVAL_TIMEOUT = "approval-timeout"
    """An approval that the plane did not answer in time."""


Tally: TypeAlias = Counter[Reason]
"""How often by reason; it only grows."""

OTHER: Final = "other"
"""What is asked for where that leads nowhere, or where no request could be read."""

EVENTS: Final = "events"
"""What is asked for by a GET of the document."""

_ASKED_FOR: Final = {
    Resource.EVENTS: EVENTS,
    Resource.INSTANCE: "instance",
    Resource.VERSIONS: "versions",
}

RESOURCES: Final = (*_ASKED_FOR.values(), "approvals", OTHER)
"""What `asked_for` returns: a closed list, for metrics."""


def asked_for(method: bytes, path: bytes) -> str:
    """Return what a request asks for, by its own word: the label that it is counted by."""
    asked = target.read(path)
    if asked is None:
        return OTHER
    if asked.resource is Resource.EVENTS and method == b"POST":
        return "approvals"
    return _ASKED_FOR[asked.resource]


class Answers:
    """How many answers were given, by what was asked for and status."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, Counter[int]] = {resource: Counter() for resource in RESOURCES}

    def note(self, resource: str, status: int) -> None:
        """Count one; `resource` is one of RESOURCES."""
        self.counts[resource][status] += 1


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All that is counted, as of one instant."""

    answers: dict[str, dict[int, int]] = {}
    """By what was asked for, then by status."""
    refusals: dict[Reason, int] = {}
    connections: int = 0
    """Open ones."""
    accepted: int = 0
    """Connections so far, those that were refused at once included."""
    waiters: int = 0
    """Requests that wait for their document to change."""
    seen: int = 0
    """Machines that have asked for events, or approved some, since the start."""
