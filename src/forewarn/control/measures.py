"""What is counted of the control plane, as plain numbers that anybody may read.

Who counts is one thread for each number. A reader on another may meet one between two that belong
together, and never a torn one.
"""

import bisect
from collections import Counter
from collections.abc import Iterable
from typing import Final

from forewarn.maintenance import decide
from forewarn.maintenance.model import Changes, Operation, StartCause
from forewarn.vocabulary import ApproverKind, EventStatus, EventType

COMMIT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds: from a fast disk's commit of one change to what guests' clients give up on."""

LATENESS_BOUNDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
"""Seconds: from what a timer takes to what somebody should look into."""


class Histogram:
    """How often values were within each bound.

    Args:
        bounds: Ascending; there is one more for whatever is above them all.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many values were up to each bound and above the one before; the last: above all."""
        self.total = 0.0
        """The sum of all values."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Course:
    """What became of operations since the service started; made and kept on one thread."""

    def __init__(self) -> None:
        self._live: dict[str, Operation] = {}
        self.started: Counter[tuple[EventType, StartCause]] = Counter()
        self.ended: Counter[tuple[EventType, EventStatus]] = Counter()
        self.approved: Counter[ApproverKind] = Counter()
        """Events, by whose word let each start."""
        self.lateness = Histogram(LATENESS_BOUNDS)
        """Seconds from NotBefore to the start, of what nothing but the time held back."""

    def fill(self, operations: Iterable[Operation]) -> None:
        """Take over what is live, without counting it."""
        self._live = {operation.id: operation for operation in operations}

    def learn(self, changes: Changes) -> None:
        """Count what changed."""
        for operation in changes.operations:
            before = self._live.pop(operation.id, None)
            if operation.status.visible:
                self._live[operation.id] = operation
            elif before is None:
                continue  # it was over already: somebody took note of it
            self._count(before, operation)

    def _count(self, before: Operation | None, operation: Operation) -> None:
        known = before.events if before is not None else ()
        approved = {event.id for event in known if event.approval is not None}
        for event in operation.events:
            if event.approval is not None and event.id not in approved:
                self.approved[event.approval.kind] += 1
        if operation.status.over:
            self.ended[operation.event_type, operation.status] += 1
        was_started = before is not None and before.status is EventStatus.STARTED
        if operation.started_at is None or operation.start_cause is None or was_started:
            return
        self.started[operation.event_type, operation.start_cause] += 1
        due = decide.wakeup_at(before) if before is not None else None
        if due is not None and operation.start_cause is StartCause.NOTICE_OVER:
            self.lateness.observe(max(0.0, (operation.started_at - due).total_seconds()))
