"""A store in plain dictionaries, quick enough for millions of decisions.

It answers what the control plane asks, and no more. `test_seeds` plays the same seed over it and
over the real store, and holds every answer equal.
"""

import heapq
from collections.abc import Callable, Collection
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from forewarn.control.unit_of_work import Needs, UnitOfWork, Work
from forewarn.control.writer import NO_NEEDS, Job
from forewarn.maintenance import decide
from forewarn.maintenance.model import (
    Changes,
    Hold,
    Lost,
    Machine,
    Maintenance,
    Operation,
    Scope,
)
from forewarn.vocabulary import EventStatus


class Memory:
    """What is committed, and the indexes that a database would have."""

    def __init__(self) -> None:
        self.all_scopes: dict[str, Scope] = {}
        self.all_machines: dict[str, Machine] = {}
        self.all_operations: dict[str, Operation] = {}
        self.all_maintenances: dict[int, Maintenance] = {}
        self.open: dict[int, Maintenance] = {}
        self.all_holds: tuple[Hold, ...] = ()
        self.all_lost: dict[str, Lost] = {}
        self.all_settings: dict[str, str] = {}
        self.live: dict[str, None] = {}
        self.started: dict[str, None] = {}
        self._by_event: dict[str, str] = {}
        self._live_in: dict[str, dict[str, None]] = {}
        self._by_maintenance: dict[int, list[str]] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._on: dict[str, dict[str, None]] = {}
        self._wakeups: list[tuple[datetime, str]] = []
        self.number = 0

    def scopes(self, keys: Collection[str] | None = None) -> dict[str, Scope]:
        return _picked(self.all_scopes, keys)

    def machines(self, keys: Collection[str] | None = None) -> dict[str, Machine]:
        return _picked(self.all_machines, keys)

    def machines_of(self, scopes: Collection[str]) -> dict[str, Machine]:
        return {m: self.all_machines[m] for s in scopes for m in self._members.get(s, ())}

    def machines_on(self, hosts: Collection[str]) -> dict[str, Machine]:
        return {m: self.all_machines[m] for h in hosts for m in self._on.get(h, ())}

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        return _picked(self.all_operations, ids)

    def operations_of_maintenance(self, number: int) -> dict[str, Operation]:
        return {i: self.all_operations[i] for i in self._by_maintenance.get(number, ())}

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        found = (self._by_event.get(event_id) for event_id in event_ids)
        return {i: self.all_operations[i] for i in found if i is not None}

    def live_operations(self, scopes: Collection[str] | None = None) -> dict[str, Operation]:
        if scopes is None:
            return {i: self.all_operations[i] for i in self.live}
        return {i: self.all_operations[i] for s in scopes for i in self._live_in.get(s, ())}

    def maintenances(self, numbers: Collection[int]) -> dict[int, Maintenance]:
        return _picked(self.all_maintenances, numbers)

    def open_maintenances(self) -> dict[int, Maintenance]:
        return self.open

    def due(self, now: datetime, limit: int) -> dict[str, Operation]:
        found: dict[str, Operation] = {}
        while self._earliest() is not None and self._wakeups[0][0] <= now and len(found) < limit:
            _, operation_id = heapq.heappop(self._wakeups)
            found[operation_id] = self.all_operations[operation_id]
        for operation_id, operation in found.items():
            self._wake(operation_id, operation)
        return found

    def next_wakeup(self) -> datetime | None:
        return self._earliest()

    def claimable(self, now: datetime, limit: int) -> dict[str, Operation]:
        free = [
            operation
            for operation in map(self.all_operations.__getitem__, self.started)
            if operation.lease_until is None or operation.lease_until <= now
        ]
        free.sort(key=lambda o: (o.started_at, o.maintenance, o.id))
        return {o.id: o for o in free[:limit] if not o.outcome_unknown}

    def holds(self) -> tuple[Hold, ...]:
        return self.all_holds

    def lost(self) -> dict[str, Lost]:
        return self.all_lost

    def setting(self, name: str) -> str | None:
        return self.all_settings.get(name)

    def put_setting(self, name: str, value: str) -> None:
        self.all_settings[name] = value

    def next_maintenance_number(self) -> int:
        self.number += 1
        return self.number

    def save(self, changes: Changes) -> None:
        for operation in changes.operations:
            self._save_operation(operation)
        for scope in changes.scopes:
            self.all_scopes[scope.key] = scope
        for machine in changes.machines:
            self._take_out(machine.key)
            self.all_machines[machine.key] = machine
            self._members.setdefault(machine.scope, {})[machine.key] = None
            self._on.setdefault(machine.host, {})[machine.key] = None
        for name in changes.removed_machines:
            self._take_out(name)
            self.all_machines.pop(name, None)
        for name in changes.removed_scopes:
            self.all_scopes.pop(name, None)
        for maintenance in changes.maintenances:
            self.all_maintenances[maintenance.number] = maintenance
            if maintenance.open:
                self.open[maintenance.number] = maintenance
            else:
                self.open.pop(maintenance.number, None)
        if changes.holds or changes.released:
            gone = {(hold.kind, hold.name) for hold in changes.released}
            kept = [hold for hold in self.all_holds if (hold.kind, hold.name) not in gone]
            holds = [*kept, *changes.holds]
            self.all_holds = tuple(sorted(holds, key=lambda h: (h.at, h.kind, h.name)))
        for name in changes.found:
            self.all_lost.pop(name, None)
        self.all_lost.update({lost.key: lost for lost in changes.lost})

    def _take_out(self, name: str) -> None:
        old = self.all_machines.get(name)
        if old is not None:
            del self._members[old.scope][name]
            del self._on[old.host][name]

    def _save_operation(self, operation: Operation) -> None:
        known = operation.id in self.all_operations
        self.all_operations[operation.id] = operation
        if not known:
            self._by_maintenance.setdefault(operation.maintenance, []).append(operation.id)
            for event in operation.events:
                self._by_event[event.id] = operation.id
        status = operation.status
        if status.visible:
            if not known:
                self.live[operation.id] = None
                for event in operation.events:
                    self._live_in.setdefault(event.scope, {})[operation.id] = None
        else:
            self.live.pop(operation.id, None)
            for event in operation.events:
                self._live_in.get(event.scope, {}).pop(operation.id, None)
        if status is EventStatus.STARTED:
            self.started[operation.id] = None
        else:
            self.started.pop(operation.id, None)
        self._wake(operation.id, operation)

    def _wake(self, operation_id: str, operation: Operation) -> None:
        wakeup = decide.wakeup_at(operation)
        if wakeup is not None:
            heapq.heappush(self._wakeups, (wakeup, operation_id))

    def _earliest(self) -> datetime | None:
        while self._wakeups:
            at, operation_id = self._wakeups[0]
            if decide.wakeup_at(self.all_operations[operation_id]) == at:
                return at
            heapq.heappop(self._wakeups)
        return None


class Answered:
    """A future that has its answer already: a real one costs more than the decision."""

    __slots__ = ("_answer", "error")

    def __init__(self, answer: Any, error: Exception | None) -> None:
        self._answer = answer
        self.error = error

    @property
    def crashed(self) -> bool:
        return isinstance(self.error, Crashed)

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self._answer

    def exception(self) -> Exception | None:
        return self.error

    def add_done_callback(self, tell: Callable[["Answered"], object]) -> None:
        tell(self)

    @classmethod
    def of(cls, future: "Future[Any]") -> "Answered":
        """What a future that is done was answered with."""
        error = future.exception(timeout=0)
        if error is not None and not isinstance(error, Exception):
            raise error
        return cls(None if error else future.result(), error)


class Crashed(Exception):  # noqa: N818 - what happened, not a mistake
    """The process died just before the commit: no answer, and nothing is changed."""


class MemoryWriter:
    """Runs each job at once over a `Memory`.

    Args:
        memory: What is committed.
        clock: Tells the one `now` of a job.
        judge: Sees every change just before it is committed.
    """

    def __init__(
        self,
        memory: Memory,
        clock: Callable[[], datetime],
        judge: Callable[[Changes, datetime], None],
    ) -> None:
        self._memory = memory
        self._clock = clock
        self._judge = judge
        self.dying = False

    def submit(self, job: Job, needs: Needs = NO_NEEDS) -> Answered:
        del needs  # there is nothing to read ahead
        now = self._clock()
        number = self._memory.number
        settings = dict(self._memory.all_settings) if self.dying else {}
        try:
            unit = UnitOfWork(self._memory, now)  # type: ignore[arg-type] # all that a plane asks
            work: Work = job(unit)
            if work.changes:
                if self.dying:
                    self._memory.number = number
                    self._memory.all_settings = settings
                    return Answered(None, Crashed())
                self._judge(work.changes, now)
                unit.apply(work.changes)
                unit.save()
        except Exception as error:  # noqa: BLE001 - whoever asked reads it
            return Answered(None, error)
        return Answered(work.result, None)

    def close(self) -> None:
        """Do nothing: nothing waits."""


def _picked(known: dict[Any, Any], keys: Collection[Any] | None) -> dict[Any, Any]:
    if keys is None:
        return dict(known)
    return {k: known[k] for k in keys if k in known}
