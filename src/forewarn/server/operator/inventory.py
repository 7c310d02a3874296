"""The fleet and its live operations in memory, from which the API's lists are answered.

It is filled from the store once and kept up to date by the changefeed: a list costs the store
nothing, and whoever was just told of a change finds it. Used on the event loop's thread only.
"""

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from forewarn.maintenance import model

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Inventory:
    """Machines, scopes and live operations by key, as of the last change."""

    machines: Mapping[str, model.Machine]
    """The guest plane's, which learns of each change first: one copy of 100,000 is enough."""
    sighting: Callable[[str], model.Sighting | None]
    scopes: dict[str, model.Scope] = field(default_factory=dict)
    operations: dict[str, model.Operation] = field(default_factory=dict)
    """Those that are live, by id."""
    _orders: dict[str, list[str]] = field(default_factory=dict)
    _machines: dict[str, model.Machine] | None = None
    _scopes: dict[str, model.Scope] | None = None
    """Copies for `snapshot`, until they change."""

    def fill(self, scopes: Iterable[model.Scope], operations: Iterable[model.Operation]) -> None:
        """Take over what the store holds."""
        self.scopes = {scope.key: scope for scope in scopes}
        self.operations = {operation.id: operation for operation in operations}
        self._orders.clear()
        self._machines = self._scopes = None

    def learn(self, changes: model.Changes) -> None:
        """Take over what changed."""
        for scope in changes.scopes:
            self.scopes[scope.key] = scope
        for name in changes.removed_scopes:
            self.scopes.pop(name, None)
        for operation in changes.operations:
            if operation.live:
                self.operations[operation.id] = operation
            else:
                self.operations.pop(operation.id, None)
        if changes.machines or changes.removed_machines:
            self._orders.pop("machines", None)
            self._machines = None
        if changes.scopes or changes.removed_scopes:
            self._orders.pop("scopes", None)
            self._scopes = None

    def snapshot(self) -> "Inventory":
        """Return it as it is now, for another thread.

        To copy 100,000 machines takes a millisecond, and is done once after each change of them.
        """
        if self._machines is None:
            self._machines = dict(self.machines)
        if self._scopes is None:
            self._scopes = dict(self.scopes)
        return Inventory(self._machines, self.sighting, self._scopes, dict(self.operations))

    def machines_after(self, name: str) -> Iterator[model.Machine]:
        """Yield the machines whose keys come after this one, in order; `""` is before all."""
        return self._after("machines", self.machines, name)

    def scopes_after(self, name: str) -> Iterator[model.Scope]:
        """Yield the scopes whose keys come after this one, in order; `""` is before all."""
        return self._after("scopes", self.scopes, name)

    def sizes(self, scopes: Collection[str]) -> Counter[str]:
        """Return how many machines each of these scopes has."""
        wanted = set(scopes)
        return Counter(m.scope for m in self.machines.values() if m.scope in wanted)

    def live(
        self, *, scope: str = "", machine: str = ""
    ) -> Iterator[tuple[model.Operation, model.Event]]:
        """Yield the live events of a scope, of a machine (keys), or all of them."""
        for operation in self.operations.values():
            for event in () if operation.status.over else operation.events:
                if scope and event.scope != scope:
                    continue
                if machine and machine not in map(model.key, event.machines):
                    continue
                yield operation, event

    def events_by(
        self, names: Iterable[str], names_of: Callable[[model.Event], Iterable[str]]
    ) -> dict[str, list[str]]:
        """Return the ids of the live events that have one of these names, by name."""
        found: dict[str, list[str]] = {name: [] for name in names}
        for _, event in self.live():
            for name in names_of(event):
                if name in found:
                    found[name].append(event.id)
        return found

    def name_of_scope(self, scope: str) -> str:
        """Return a scope's name as the fleet file has it; its key if it was removed."""
        found = self.scopes.get(scope)
        return found.name if found else scope

    def name_of_machine(self, machine: str) -> str:
        """Return a machine's name as the fleet file has it; its key if it was removed."""
        found = self.machines.get(machine)
        return found.name if found else machine

    def machines_of_updates(
        self, updates: Collection[model.RollingUpdate]
    ) -> dict[tuple[str, str], list[model.Machine]]:
        """Return the machines of rolling updates, by their scope and host, in one pass."""
        found: dict[tuple[str, str], list[model.Machine]] = {(u.scope, u.host): [] for u in updates}
        if found:
            for machine in self.machines.values():
                for place in ((machine.scope, ""), ("", machine.host)):
                    if place in found:
                        found[place].append(machine)
        return found

    def _after(self, kind: str, entries: Mapping[str, T], name: str) -> Iterator[T]:
        order = self._orders.get(kind)
        if order is None:
            order = self._orders[kind] = sorted(entries)
        begin = bisect.bisect_right(order, name) if name else 0
        return (entries[each] for each in itertools.islice(order, begin, None))
