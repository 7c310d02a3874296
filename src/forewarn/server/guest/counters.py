"""What the guest plane counts: answers, and who was turned away for what, told to the log."""

from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Final, TypeAlias

import structlog

from forewarn.protocol import target
from forewarn.protocol.target import Resource
from forewarn.server.guest.limits import Reason

OTHER: Final = "other"
"""What leads nowhere, and what the transport refused before anybody judged it."""

EVENTS: Final = "events"
"""A GET of the document."""

_RESOURCES: Final = {
    Resource.EVENTS: EVENTS,
    Resource.INSTANCE: "instance",
    Resource.VERSIONS: "versions",
}

RESOURCES: Final = (*_RESOURCES.values(), "approvals", OTHER)
"""What `resource_of` returns: a closed list, for metrics."""


def resource_of(method: bytes, path: bytes) -> str:
    """Return the label that an answer is counted by, from what was asked for."""
    asked = target.read(path)
    if asked is None:
        return OTHER
    if asked.resource is Resource.EVENTS and method == b"POST":
        return "approvals"
    return _RESOURCES[asked.resource]


Figures: TypeAlias = Mapping[str, float | Mapping[tuple[str, ...], float]]
"""By the name of a metric: its value, or its values by their labels."""

LOG_SECONDS: Final = 60.0
"""How long nothing more is logged of an address that was turned away for the same reason."""

MAX_LOGGED: Final = 256
"""Addresses and reasons that are logged within LOG_SECONDS: a guest with a /64 of its own has more
addresses than any memory. What goes over is told as a number."""

_STRANGERS: Final = frozenset(
    (
        Reason.UNKNOWN_ADDRESS,
        Reason.UNKNOWN_NAME,
        Reason.UNKNOWN_INSTANCE,
        Reason.WRONG_SIGNATURE,
    )
)

_log = structlog.get_logger(__name__)


class LimitLog:
    """Logs each thing once a minute, with how many were not logged since the last line."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, float] = {}
        """When each was last logged, the oldest first."""
        self._not_logged = 0

    def warn(self, event: str, key: Hashable, now: float, **facts: object) -> None:
        """Log an event, unless one of its key was logged a moment ago; `now` is in seconds."""
        logged = self._logged
        while logged:
            oldest = next(iter(logged))
            if now - logged[oldest] < LOG_SECONDS:
                break
            del logged[oldest]
        if key in logged or len(logged) >= MAX_LOGGED:
            self._not_logged += 1
            return
        logged[key] = now
        _log.warning(event, **facts, not_logged_before=self._not_logged)
        self._not_logged = 0


class Counters:
    """Counts answers and who was turned away, and logs the latter; used on the loop alone."""

    def __init__(self) -> None:
        self.answers: dict[str, Counter[int]] = {resource: Counter() for resource in RESOURCES}
        """By what was asked for, then by status."""
        self.refusals: Counter[Reason] = Counter()
        self.accepted = 0
        """Connections so far."""
        self._log = LimitLog()

    def refuse(
        self, reason: Reason, listener: str, address: str, now: float, **facts: object
    ) -> None:
        """Count somebody who was turned away, and log it unless that was done a moment ago."""
        self.refusals[reason] += 1
        is_stranger = reason in _STRANGERS
        self._log.warn(
            "a caller is no registered machine" if is_stranger else "a guest reached a limit",
            (listener, address, reason),
            now,
            reason=str(reason),
            address=address,
            listener=listener,
            **facts,
        )
