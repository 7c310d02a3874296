"""What a turn has come to so far, read as the store would be if it were saved already."""

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from forewarn.maintenance.model import (
    Changes,
    Hold,
    Lost,
    Machine,
    Maintenance,
    Operation,
    Scope,
    Snapshot,
)

K = TypeVar("K")
V = TypeVar("V")


class Draft:
    """The snapshot of all that a turn is about, and what became of it.

    It answers what `snapshots.Sight` asks, so that what one matter of the turn may concern is found
    by the same questions as if it were alone. Holds neither come nor go in a turn.

    Args:
        snapshot: What the answers are found in; nothing beyond it is known.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._holds = snapshot.holds
        self._scopes = dict(snapshot.scopes)
        self._machines = dict(snapshot.machines)
        self._maintenances = dict(snapshot.maintenances)
        self._operations = dict(snapshot.operations)
        self._by_event: dict[str, str] = {}
        self._by_scope: dict[str, dict[str, None]] = {}
        for operation in snapshot.operations.values():
            self._index(operation)
        self._changed_scopes: dict[str, Scope] = {}
        self._changed_machines: dict[str, Machine] = {}
        self._changed_maintenances: dict[int, Maintenance] = {}
        self._changed_operations: dict[str, Operation] = {}
        self._lost: dict[str, Lost] = {}

    def scopes(self, keys: Collection[str]) -> dict[str, Scope]:
        """Return these scopes by key."""
        return _found(self._scopes, keys)

    def machines(self, keys: Collection[str]) -> dict[str, Machine]:
        """Return these machines by key."""
        return _found(self._machines, keys)

    def machines_of(self, scopes: Collection[str]) -> dict[str, Machine]:
        """Return the machines of these scopes, by key."""
        known = self._machines.items() if scopes else ()
        return {key: machine for key, machine in known if machine.scope in scopes}

    def machines_on(self, hosts: Collection[str]) -> dict[str, Machine]:
        """Return the machines on these hosts, by key."""
        known = self._machines.items() if hosts else ()
        return {key: machine for key, machine in known if machine.host in hosts}

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        """Return these operations, live or over, by id."""
        return _found(self._operations, ids)

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        """Return the operations, live or over, that these events belong to."""
        return self.operations(tuple(_found(self._by_event, event_ids).values()))

    def live_operations(self, scopes: Collection[str]) -> dict[str, Operation]:
        """Return what is Scheduled or Started in these scopes, by id."""
        ids = dict.fromkeys(i for scope in scopes for i in self._by_scope.get(scope, ()))
        return {i: o for i in ids if (o := self._operations[i]).status.visible}

    def open_maintenances(self) -> dict[int, Maintenance]:
        """Return the maintenances that are open, by number, the oldest first."""
        return {n: one for n, one in sorted(self._maintenances.items()) if one.open}

    def holds(self) -> tuple[Hold, ...]:
        """Return all holds."""
        return self._holds

    def learn(self, changes: Changes) -> None:
        """Go on from what a decision changed."""
        for operation in changes.operations:
            if operation.id not in self._operations:
                self._index(operation)
            self._operations[operation.id] = self._changed_operations[operation.id] = operation
        for scope in changes.scopes:
            self._scopes[scope.key] = self._changed_scopes[scope.key] = scope
        for machine in changes.machines:
            self._machines[machine.key] = self._changed_machines[machine.key] = machine
        for key in changes.removed_machines:
            self._machines.pop(key, None)
            self._changed_machines.pop(key, None)
        for lost in changes.lost:
            self._lost[lost.key] = lost
        for one in changes.maintenances:
            self._maintenances[one.number] = self._changed_maintenances[one.number] = one

    def changes(self) -> Changes:
        """Return the last values of all that changed."""
        return Changes(
            maintenances=tuple(self._changed_maintenances.values()),
            operations=tuple(self._changed_operations.values()),
            scopes=tuple(self._changed_scopes.values()),
            machines=tuple(self._changed_machines.values()),
            removed_machines=tuple(self._lost),
            lost=tuple(self._lost.values()),
        )

    def _index(self, operation: Operation) -> None:
        for event in operation.events:
            self._by_event[event.id] = operation.id
            self._by_scope.setdefault(event.scope, {})[operation.id] = None


def _found(known: Mapping[K, V], keys: Iterable[K]) -> dict[K, V]:
    return {key: known[key] for key in keys if key in known}
