"""The port's promises in the plainest way: what a store must answer, over dictionaries.

It is slow, keeps nothing and knows no transactions; the suite compares a store's answers with it.
"""

from datetime import datetime

from forewarn.maintenance import decide
from forewarn.maintenance.model import (
    Changes,
    Hold,
    HoldKind,
    Lost,
    Machine,
    Maintenance,
    Operation,
    Scope,
    key,
)
from forewarn.store.port import HistoryQuery
from forewarn.vocabulary import EventStatus


class Remembered:
    """What was saved, and the answers that follow from it."""

    def __init__(self) -> None:
        self.scopes: dict[str, Scope] = {}
        self.machines: dict[str, Machine] = {}
        self.maintenances: dict[int, Maintenance] = {}
        self.operations: dict[str, Operation] = {}
        self.holds: dict[tuple[HoldKind, str], Hold] = {}
        self.lost: dict[str, Lost] = {}
        self.order: list[str] = []

    def save(self, changes: Changes) -> None:
        self.scopes.update((s.key, s) for s in changes.scopes)
        self.machines.update((m.key, m) for m in changes.machines)
        self.maintenances.update((m.number, m) for m in changes.maintenances)
        self.operations.update((o.id, o) for o in changes.operations)
        self.order.extend(o.id for o in changes.operations if o.id not in self.order)
        for released in changes.released:
            self.holds.pop((released.kind, released.name), None)
        self.holds.update(((h.kind, h.name), h) for h in changes.holds)
        for found in changes.found:
            self.lost.pop(found, None)
        self.lost.update((lost.key, lost) for lost in changes.lost)
        for removed in changes.removed_machines:
            self.machines.pop(removed, None)
        for removed in changes.removed_scopes:
            self.scopes.pop(removed, None)

    def purge(self, ended_before: datetime, limit: int) -> int:
        old = [
            o
            for o in self._in_order()
            if o.ended_at is not None
            and o.ended_at < ended_before
            and not self.maintenances[o.maintenance].open
        ]
        gone = sorted(old, key=lambda o: (o.ended_at, self.order.index(o.id)))[:limit]
        for operation in gone:
            del self.operations[operation.id]
            self.order.remove(operation.id)
            if all(o.maintenance != operation.maintenance for o in self.operations.values()):
                self.maintenances.pop(operation.maintenance)
        return len(gone)

    def live(self, scopes: set[str] | None = None) -> set[str]:
        return {
            o.id
            for o in self.operations.values()
            if o.status.visible and (scopes is None or scopes & {e.scope for e in o.events})
        }

    def due(self, now: datetime) -> list[str]:
        waking = [(decide.wakeup_at(o), o) for o in self._in_order()]
        come = [(at, o.id) for at, o in waking if at is not None and at <= now]
        return [id_ for _, id_ in sorted(come, key=lambda pair: pair[0])]

    def claimable(self, now: datetime) -> list[str]:
        free = [
            o
            for o in self._in_order()
            if o.status is EventStatus.STARTED
            and not o.outcome_unknown
            and (o.lease_until is None or o.lease_until <= now)
        ]
        return [o.id for o in sorted(free, key=lambda o: o.started_at or now)]

    def unnoted_failures(self) -> list[str]:
        failed = [
            (o.ended_at, self.order.index(o.id), o.id)
            for o in self.operations.values()
            if o.status is EventStatus.FAILED and not o.acknowledged_by
        ]
        return [id_ for *_, id_ in sorted(failed, reverse=True)]

    def history(self, query: HistoryQuery) -> list[str]:
        found = [o for o in self._in_order() if self._is_asked_for(o, query)]
        found.sort(key=lambda o: (o.announced_at, self.order.index(o.id)), reverse=True)
        return [o.id for o in found]

    def _in_order(self) -> list[Operation]:
        return [self.operations[id_] for id_ in self.order]

    @staticmethod
    def _is_asked_for(operation: Operation, query: HistoryQuery) -> bool:
        return (
            (not query.machine or query.machine in map(key, operation.machines))
            and (not query.scope or query.scope in {e.scope for e in operation.events})
            and query.maintenance in {None, operation.maintenance}
            and (not query.event_types or operation.event_type in query.event_types)
            and (not query.statuses or operation.status in query.statuses)
            and (query.since is None or operation.announced_at >= query.since)
            and (query.until is None or operation.announced_at < query.until)
        )
