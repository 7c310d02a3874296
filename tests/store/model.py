"""A model of a store in plain dictionaries: what every store answers after the same changes."""

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TypeVar

from forewarn.maintenance import model
from forewarn.store.port import HistoryQuery
from forewarn.vocabulary import EventStatus

K = TypeVar("K")
V = TypeVar("V")


class Model:
    """What is committed; the questions are those of `queries.Reading`."""

    def __init__(self) -> None:
        self.all_scopes: dict[str, model.Scope] = {}
        self.all_machines: dict[str, model.Machine] = {}
        self.all_operations: dict[str, model.Operation] = {}
        """In the order of first saving."""
        self.all_maintenances: dict[int, model.Maintenance] = {}
        self.all_tombstones: dict[str, model.Tombstone] = {}
        self.all_drains: dict[str, model.Drain] = {}
        self.all_holds: tuple[model.Hold, ...] = ()
        self.live: dict[str, model.Operation] = {}

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Undo what the block saves, if it raises."""
        before = {n: v.copy() if isinstance(v, dict) else v for n, v in vars(self).items()}
        try:
            yield
        except BaseException:
            vars(self).update(before)
            raise

    def save(self, changes: model.Changes) -> None:
        self.all_scopes |= {scope.key: scope for scope in changes.scopes}
        self.all_machines |= {machine.key: machine for machine in changes.machines}
        self.all_maintenances |= {one.number: one for one in changes.maintenances}
        for operation in changes.operations:
            self.all_operations[operation.id] = operation
            if operation.live:
                self.live[operation.id] = operation
            else:
                self.live.pop(operation.id, None)
        gone = {(hold.kind, hold.name) for hold in changes.released}
        kept = [hold for hold in self.all_holds if (hold.kind, hold.name) not in gone]
        holds = sorted([*kept, *changes.holds], key=lambda hold: (hold.at, hold.kind, hold.name))
        self.all_holds = tuple(holds)
        _remove(self.all_tombstones, changes.revived)
        self.all_tombstones |= {tombstone.key: tombstone for tombstone in changes.tombstones}
        self.all_drains |= {drain.host: drain for drain in changes.drains}
        _remove(self.all_machines, changes.removed_machines)
        _remove(self.all_scopes, changes.removed_scopes)

    def purge(self, ended_before: datetime, limit: int) -> int:
        order = {id_: place for place, id_ in enumerate(self.all_operations)}
        old = [
            (operation.ended_at, order[operation.id], operation)
            for operation in self.all_operations.values()
            if operation.ended_at is not None
            and operation.ended_at < ended_before
            and not operation.live
            and not self.all_maintenances[operation.maintenance].open
        ]
        gone = [operation for *_, operation in heapq.nsmallest(limit, old)]
        _remove(self.all_operations, (operation.id for operation in gone))
        left = {operation.maintenance for operation in self.all_operations.values()}
        last = max((operation.maintenance for operation in gone), default=0)
        over = {n for n, one in self.all_maintenances.items() if n <= last and not one.open}
        _remove(self.all_maintenances, over - left)
        return len(gone)

    def scopes(self) -> dict[str, model.Scope]:
        return self.all_scopes

    def machines(self, keys: Collection[str] | None = None) -> dict[str, model.Machine]:
        return _picked(self.all_machines, keys)

    def tombstones(self) -> dict[str, model.Tombstone]:
        return self.all_tombstones

    def holds(self) -> tuple[model.Hold, ...]:
        return self.all_holds

    def drains(self) -> dict[str, model.Drain]:
        return self.all_drains

    def maintenances(self, numbers: Collection[int]) -> dict[int, model.Maintenance]:
        return _picked(self.all_maintenances, numbers)

    def open_maintenances(self) -> dict[int, model.Maintenance]:
        return {n: one for n, one in sorted(self.all_maintenances.items()) if one.open}

    def latest_maintenances(self, before: int | None, limit: int) -> list[model.Maintenance]:
        numbers = (n for n in self.all_maintenances if before is None or n < before)
        return [self.all_maintenances[n] for n in heapq.nlargest(limit, numbers)]

    def maintenance_of_key(self, idempotency_key: str) -> model.Maintenance | None:
        asked = [m for m in self.all_maintenances.values() if m.idempotency_key]
        found = (m for m in asked if m.idempotency_key == idempotency_key)
        return max(found, key=lambda m: m.number, default=None)

    def operations(self, ids: Collection[str]) -> dict[str, model.Operation]:
        return _picked(self.all_operations, ids)

    def operations_of_maintenance(self, number: int) -> dict[str, model.Operation]:
        return {k: o for k, o in self.all_operations.items() if o.maintenance == number}

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, model.Operation]:
        return {
            operation.id: operation
            for operation in self.all_operations.values()
            for event in (*operation.events, *operation.dropped)
            if event.id in event_ids
        }

    def live_operations(self) -> dict[str, model.Operation]:
        return {id_: one for id_, one in self.all_operations.items() if id_ in self.live}

    def unacknowledged_failures(self, limit: int) -> dict[str, model.Operation]:
        order = {id_: place for place, id_ in enumerate(self.all_operations)}
        known = self.all_operations.values()
        failed = [o for o in known if o.status is EventStatus.FAILED and not o.acknowledged_by]
        failed.sort(key=lambda o: (o.ended_at, order[o.id]), reverse=True)
        return {o.id: o for o in failed[:limit]}

    def next_wakeup(self) -> datetime | None:
        known = (operation.wakeup_at for operation in self.live.values())
        return min(filter(None, known), default=None)

    def outcomes(self, number: int) -> Counter[EventStatus]:
        return Counter(one.status for one in self.operations_of_maintenance(number).values())

    def history(self, query: HistoryQuery) -> list[str]:
        """Return the operations of all pages, by their ids."""
        order = {id_: place for place, id_ in enumerate(self.all_operations)}
        found = [o for o in self.all_operations.values() if _is_asked_for(o, query)]
        found.sort(key=lambda o: (o.announced_at, order[o.id]), reverse=True)
        return [operation.id for operation in found]


def _picked(known: dict[K, V], keys: Collection[K] | None) -> dict[K, V]:
    if keys is None:
        return known
    return {k: known[k] for k in keys if k in known}


def _remove(table: dict[K, V], names: Iterable[K]) -> None:
    for name in names:
        table.pop(name, None)


def _is_asked_for(operation: model.Operation, query: HistoryQuery) -> bool:
    return (
        (not query.machine or query.machine in map(model.key, operation.machines))
        and (not query.scope or query.scope in {event.scope for event in operation.events})
        and query.maintenance in {None, operation.maintenance}
        and (not query.event_types or operation.event_type in query.event_types)
        and (not query.statuses or operation.status in query.statuses)
        and (query.since is None or operation.announced_at >= query.since)
        and (query.until is None or operation.announced_at < query.until)
    )
