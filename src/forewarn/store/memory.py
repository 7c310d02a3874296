"""The store in plain dictionaries, for scenarios, tests and the simulation.

It keeps every promise of the port, but is gone with its process. Readers take turns with the
writer, so a view needs no copy. What a transaction changes is noted down, and put back if it
raises.
"""

import heapq
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeVar

from forewarn.maintenance import decide
from forewarn.maintenance.model import (
    Changes,
    Drain,
    Hold,
    Machine,
    Maintenance,
    Operation,
    Scope,
    Tombstone,
    key,
)
from forewarn.store import port
from forewarn.store.port import HistoryQuery, Page, Reading, Transaction, WriterTurn
from forewarn.vocabulary import EventStatus

K = TypeVar("K")
V = TypeVar("V")

_NUMBER: Final = "last maintenance number"
_HOLDS: Final = "holds"


class MemoryStore:
    """`port.Store`, and its own one view and transaction: `port` has the docstrings."""

    def __init__(self) -> None:
        self.all_scopes: dict[str, Scope] = {}
        self.all_machines: dict[str, Machine] = {}
        self.all_operations: dict[str, Operation] = {}
        self.all_maintenances: dict[int, Maintenance] = {}
        self.all_tombstones: dict[str, Tombstone] = {}
        self.all_drains: dict[str, Drain] = {}
        self.all_settings: dict[str, str] = {}
        self.open: dict[int, Maintenance] = {}
        self.live: dict[str, None] = {}
        """The ids of what is Scheduled or Started."""
        self.started: dict[str, None] = {}
        self._single: dict[str, Any] = {_NUMBER: 0, _HOLDS: ()}
        self._sequences: dict[str, int] = {}
        """The order of first saving, by operation."""
        self._last_sequence = 0
        self._by_event: dict[str, str] = {}
        self._live_in: dict[str, dict[str, None]] = {}
        self._of_maintenance: dict[int, dict[str, None]] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._on: dict[str, dict[str, None]] = {}
        self._wakeups: list[tuple[datetime, int, str]] = []
        """A heap; entries that no longer hold are dropped when they come to its top."""
        self._index: dict[int, Callable[[Any, Any, Any], None]] = {
            id(self.all_machines): self._index_machine,
            id(self.all_operations): self._index_operation,
            id(self.all_maintenances): self._index_maintenance,
        }
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        self._turn = WriterTurn("the store in memory")

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        with self._turn.taken():
            try:
                yield self
            except BaseException:
                for table, name, old in reversed(self._undo):
                    self._set(table, name, old)
                raise
            finally:
                self._undo.clear()

    @contextmanager
    def read(self) -> Iterator[Reading]:
        with self._turn.taken():
            yield self

    def close(self) -> None:
        """Do nothing: nothing is open."""

    # Reading.

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
        return self.operations(
            sorted(self._of_maintenance.get(number, ()), key=self._sequences.__getitem__)
        )

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        return self.operations([self._by_event[i] for i in event_ids if i in self._by_event])

    def live_operations(self, scopes: Collection[str] | None = None) -> dict[str, Operation]:
        if scopes is None:
            return self.operations(self.live)
        ids = dict.fromkeys(i for scope in scopes for i in self._live_in.get(scope, ()))
        return self.operations(sorted(ids, key=self._sequences.__getitem__))

    def maintenances(self, numbers: Collection[int]) -> dict[int, Maintenance]:
        return _picked(self.all_maintenances, numbers)

    def open_maintenances(self) -> dict[int, Maintenance]:
        return dict(sorted(self.open.items()))

    def latest_maintenances(self, before: int | None, limit: int) -> list[Maintenance]:
        numbers = (n for n in self.all_maintenances if before is None or n < before)
        return [self.all_maintenances[n] for n in heapq.nlargest(limit, numbers)]

    def due(self, now: datetime, limit: int) -> dict[str, Operation]:
        found: dict[str, Operation] = {}
        entries = []
        while (earliest := self._earliest()) and earliest[0] <= now and len(found) < limit:
            entries.append(heapq.heappop(self._wakeups))
            found[earliest[2]] = self.all_operations[earliest[2]]
        for entry in set(entries):
            heapq.heappush(self._wakeups, entry)
        return found

    def next_wakeup(self) -> datetime | None:
        earliest = self._earliest()
        return earliest and earliest[0]

    def claimable(self, now: datetime, limit: int) -> dict[str, Operation]:
        started = map(self.all_operations.__getitem__, self.started)
        free = [
            o
            for o in started
            if not o.outcome_unknown and (o.lease_until is None or o.lease_until <= now)
        ]
        free.sort(key=lambda o: (o.started_at, self._sequences[o.id]))
        return {o.id: o for o in free[:limit]}

    def unacknowledged_failures(self, limit: int) -> dict[str, Operation]:
        known = self.all_operations.values()
        failed = [o for o in known if o.status is EventStatus.FAILED and not o.acknowledged_by]
        failed.sort(key=lambda o: (o.ended_at, self._sequences[o.id]), reverse=True)
        return {o.id: o for o in failed[:limit]}

    def holds(self) -> tuple[Hold, ...]:
        found: tuple[Hold, ...] = self._single[_HOLDS]
        return found

    def tombstones(self) -> dict[str, Tombstone]:
        return dict(self.all_tombstones)

    def drains(self) -> dict[str, Drain]:
        return dict(self.all_drains)

    def history(self, query: HistoryQuery) -> Page:
        after = port.place(query)
        found = [
            (operation.announced_at, self._sequences[operation.id])
            for operation in self.all_operations.values()
            if _is_asked_for(operation, query)
        ]
        by_sequence = {sequence: id_ for id_, sequence in self._sequences.items()}
        found = sorted((p for p in found if after is None or p < after), reverse=True)
        page = found[: query.limit]
        return Page(
            operations=tuple(self.all_operations[by_sequence[sequence]] for _, sequence in page),
            next=port.cursor(*page[-1]) if len(found) > query.limit else "",
        )

    def setting(self, name: str) -> str | None:
        return self.all_settings.get(name)

    # Writing.

    def save(self, changes: Changes) -> None:
        for scope in changes.scopes:
            self._put(self.all_scopes, scope.key, scope)
        for machine in changes.machines:
            self._put(self.all_machines, machine.key, machine)
        for maintenance in changes.maintenances:
            self._put(self.all_maintenances, maintenance.number, maintenance)
            if maintenance.number > self._single[_NUMBER]:
                self._put(self._single, _NUMBER, maintenance.number)
        for operation in changes.operations:
            self._put(self.all_operations, operation.id, operation)
        if changes.holds or changes.released:
            gone = {(hold.kind, hold.name) for hold in changes.released}
            holds = [hold for hold in self.holds() if (hold.kind, hold.name) not in gone]
            holds.extend(changes.holds)
            assert len({(hold.kind, hold.name) for hold in holds}) == len(holds), "held twice"
            holds.sort(key=lambda hold: (hold.at, hold.kind, hold.name))
            self._put(self._single, _HOLDS, tuple(holds))
        for name in changes.revived:
            self._put(self.all_tombstones, name, None)
        for tombstone in changes.tombstones:
            self._put(self.all_tombstones, tombstone.key, tombstone)
        for drain in changes.drains:
            self._put(self.all_drains, drain.host, drain)
        for name in changes.removed_machines:
            self._put(self.all_machines, name, None)
        for name in changes.removed_scopes:
            self._put(self.all_scopes, name, None)
        for machine in changes.machines:
            assert machine.scope in self.all_scopes or machine.key not in self.all_machines
        for operation in changes.operations:
            assert operation.maintenance in self.all_maintenances

    def next_maintenance_number(self) -> int:
        number: int = self._single[_NUMBER]
        return number + 1

    def purge(self, ended_before: datetime, limit: int) -> int:
        old = [
            (operation.ended_at, self._sequences[operation.id], operation)
            for operation in self.all_operations.values()
            if operation.ended_at is not None
            and operation.ended_at < ended_before
            and not operation.live
            and operation.maintenance not in self.open
        ]
        gone = [operation for *_, operation in heapq.nsmallest(limit, old)]
        for operation in gone:
            self._put(self._sequences, operation.id, None)
            self._put(self.all_operations, operation.id, None)
            if not self._of_maintenance[operation.maintenance]:
                self._put(self.all_maintenances, operation.maintenance, None)
        return len(gone)

    def put_setting(self, name: str, value: str) -> None:
        self._put(self.all_settings, name, value)

    def _put(self, table: dict[K, V], name: K, value: V | None) -> None:
        """Set a value, or take it away, so that it can be undone."""
        self._undo.append((table, name, table.get(name)))
        self._set(table, name, value)

    def _set(self, table: dict[K, V], name: K, value: V | None) -> None:
        index = self._index.get(id(table))
        if index is not None:
            index(name, table.get(name), value)
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value

    # The indexes.

    def _index_machine(self, name: str, old: Machine | None, new: Machine | None) -> None:
        if old is not None:
            del self._members[old.scope][name]
            del self._on[old.host][name]
        if new is not None:
            self._members.setdefault(new.scope, {})[name] = None
            self._on.setdefault(new.host, {})[name] = None

    def _index_maintenance(self, number: int, _: object, new: Maintenance | None) -> None:
        if new is not None and new.open:
            self.open[number] = new
        else:
            self.open.pop(number, None)

    def _index_operation(self, name: str, old: Operation | None, new: Operation | None) -> None:
        stays = new is not None and new.live
        if old is not None and not (new is not None and stays and new.events is old.events):
            for event in old.events:
                self._by_event.pop(event.id, None)
                self._live_in.get(event.scope, {}).pop(name, None)
        if new is None:
            assert old is not None
            for ids in (self.live, self.started, self._of_maintenance[old.maintenance]):
                ids.pop(name, None)
            self._sequences.pop(name, None)
            return
        if name not in self._sequences:
            self._last_sequence += 1
            self._sequences[name] = self._last_sequence
            self._of_maintenance.setdefault(new.maintenance, {})[name] = None
        for event in new.events:
            self._by_event[event.id] = name
            if stays:
                self._live_in.setdefault(event.scope, {})[name] = None
        _mark(self.live, name, there=stays)
        _mark(self.started, name, there=new.status is EventStatus.STARTED)
        wakeup = decide.wakeup_at(new)
        if wakeup is not None:
            heapq.heappush(self._wakeups, (wakeup, self._sequences[name], name))

    def _earliest(self) -> tuple[datetime, int, str] | None:
        while self._wakeups:
            at, sequence, name = self._wakeups[0]
            known = self._sequences.get(name) == sequence
            if known and decide.wakeup_at(self.all_operations[name]) == at:
                return at, sequence, name
            heapq.heappop(self._wakeups)
        return None


def _picked(known: dict[K, V], keys: Collection[K] | None) -> dict[K, V]:
    if keys is None:
        return dict(known)
    return {k: known[k] for k in keys if k in known}


def _mark(ids: dict[str, None], name: str, *, there: bool) -> None:
    if there:
        ids[name] = None
    else:
        ids.pop(name, None)


def _is_asked_for(operation: Operation, query: HistoryQuery) -> bool:
    return (
        (not query.machine or query.machine in map(key, operation.machines))
        and (not query.scope or query.scope in {event.scope for event in operation.events})
        and query.maintenance in {None, operation.maintenance}
        and (not query.event_types or operation.event_type in query.event_types)
        and (not query.statuses or operation.status in query.statuses)
        and (query.since is None or operation.announced_at >= query.since)
        and (query.until is None or operation.announced_at < query.until)
    )
