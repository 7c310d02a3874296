"""Writes down the requests that no transaction of their own has recorded: refused ones, mostly.

What changes something is recorded with its change (`control.accounts`). A refusal is written as it
is answered, and not each: strangers must neither fill the disk nor keep the writer busy.
"""

from concurrent.futures import Future
from typing import Final

import structlog
from prometheus_client import Counter

from forewarn.clock import Clock
from forewarn.control.accounts import OperatorRequest
from forewarn.control.plane import Plane
from forewarn.server.guest.limits import Bucket, Limiter, Rate

OF_KNOWN: Final = Rate(per_second=10.0, burst=100)
"""How many requests of known accounts are written beside their changes: a script that is refused
in a loop is told of often enough."""

OF_STRANGERS: Final = Rate(per_second=0.2, burst=20)
"""How many requests of nobody known are written: 17,000 a day at most."""

_log = structlog.get_logger(__name__)


class AuditLog:
    """Has the plane record requests; used on the event loop's thread."""

    def __init__(self, plane: Plane, clock: Clock) -> None:
        self._plane = plane
        self._clock = clock
        self._known = Limiter(OF_KNOWN), Bucket()
        self._strangers = Limiter(OF_STRANGERS), Bucket()
        self.dropped = Counter(
            "forewarn_audit_dropped",
            "Requests that were left out of the audit log: too many, or the store was away.",
            registry=None,
        )

    def record(self, request: OperatorRequest, outcome: str) -> None:
        """Write a request down, unless too many were a moment ago."""
        limiter, bucket = self._known if request.by else self._strangers
        if limiter.allows(bucket, self._clock.monotonic()):
            self._plane.record(request, outcome).add_done_callback(self._note)
        else:
            self.dropped.inc()

    def _note(self, written: "Future[None]") -> None:
        if (error := written.exception()) is not None:
            self.dropped.inc()
            _log.warning("the audit log could not be written", why=str(error))
