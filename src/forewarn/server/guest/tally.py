"""How often guests were turned away by the transport or for who they are, by reason."""

from collections import Counter
from enum import StrEnum
from typing import TypeAlias


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
