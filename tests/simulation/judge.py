"""What must hold of every change, judged by a record of its own and not by the decider's words."""

from datetime import datetime

from forewarn.maintenance import invariants
from forewarn.maintenance.model import Changes, Operation, Snapshot
from forewarn.vocabulary import EventStatus
from simulation.memory import Memory

OVER = {EventStatus.COMPLETED, EventStatus.FAILED, EventStatus.CANCELED}


class Wrong(AssertionError):  # noqa: N818 - what happened is wrong, that is the error
    """Something happened that must never happen."""


class Judge:
    """Looks at each change before it is committed; `answered` keeps what guests were promised."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.approved: set[str] = set()
        """Events of which somebody was told that they are approved."""
        self.starts = 0
        self.ends = 0

    def see(self, changes: Changes, now: datetime) -> None:
        """Judge a change against what was committed before it."""
        for operation in changes.operations:
            self._see(self._memory.all_operations.get(operation.id), operation, now)
        for scope in changes.scopes:
            old = self._memory.all_scopes.get(scope.key)
            if old is None:
                continue
            if scope.incarnation < old.incarnation:
                raise Wrong(f"{scope.name}: incarnation {old.incarnation} -> {scope.incarnation}")
            if old.asked_at is not None and (
                scope.asked_at is None or scope.asked_at < old.asked_at
            ):
                raise Wrong(f"{scope.name} was asked at {old.asked_at}, now {scope.asked_at}")

    def _see(self, old: Operation | None, new: Operation, now: datetime) -> None:
        if (
            old is not None
            and old.status in OVER
            and ((old.status, old.ended_at, old.outcome) != (new.status, new.ended_at, new.outcome))
        ):
            raise Wrong(f"{new.id} had ended as {old.status} and is {new.status}")
        if old is not None:
            for before, after in zip(old.events, new.events, strict=True):
                if before.approval is not None and after.approval != before.approval:
                    raise Wrong(f"{new.id}: the approval of {before.id} is gone")
        if new.status is EventStatus.STARTED and (
            old is None or old.status is not EventStatus.STARTED
        ):
            self.starts += 1
            self._see_start(old, new, now)
        elif new.status in OVER and (old is None or old.status not in OVER):
            self.ends += 1

    def _see_start(self, old: Operation | None, new: Operation, now: datetime) -> None:
        """Never early: by the NotBefore that guests had read, and by approvals as recorded."""
        if old is None:
            return  # it struck: the rules refuse that where notice is due
        missing = [e.id for e in new.events if not e.silent and e.approval is None]
        if missing and now < old.not_before:
            raise Wrong(f"{new.id} started at {now}, NotBefore {old.not_before}, not approved")

    def kept(self) -> None:
        """Every approval that was answered is there; the whole fleet is sound."""
        memory = self._memory
        for event_id in self.approved:
            (operation,) = memory.operations_of_events([event_id]).values()
            (event,) = [e for e in operation.events if e.id == event_id]
            if (
                event.approval is None
                and operation.start_cause is None
                and operation.status.visible
            ):
                raise Wrong(f"{event_id} was approved, and the store does not know")
        live = memory.live_operations()
        invariants.check(Snapshot(scopes=memory.all_scopes, operations=live))
