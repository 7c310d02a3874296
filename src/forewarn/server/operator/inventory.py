"""The fleet, live operations and holds in memory, for lists and for the search.

It is filled from the store once and kept up to date by the changefeed: a list costs the store
nothing, and a client that has just read of a change finds it. Used on the event loop's thread only.
"""

import asyncio
import bisect
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from forewarn.maintenance import model
from forewarn.maintenance.model import Machine


@dataclass(eq=False, repr=False)
class Inventory:
    """Machines, scopes, live operations and holds by key, as of the last change."""

    machines: Mapping[str, model.Machine]
    """The guest plane's, which learns of each change first: one copy of 100,000 is enough."""
    sighting: Callable[[str], model.Sighting | None]
    scopes: dict[str, model.Scope] = field(default_factory=dict)
    operations: dict[str, model.Operation] = field(default_factory=dict)
    """Those that are live, by id."""
    holds: dict[tuple[model.HoldKind, str], model.Hold] = field(default_factory=dict)
    _machines: dict[str, model.Machine] | None = None
    _scopes: dict[str, model.Scope] | None = None
    """Copies for `snapshot`, until they change."""

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
        for hold in changes.released:
            self.holds.pop((hold.kind, hold.name), None)
        for hold in changes.holds:
            self.holds[hold.kind, hold.name] = hold
        if changes.machines or changes.removed_machines:
            self._machines = None
        if changes.scopes or changes.removed_scopes:
            self._scopes = None

    def snapshot(self) -> "Inventory":
        """Return it as it is now, for another thread.

        To copy 100,000 machines takes a millisecond, and is done once after each change of them.
        """
        if self._machines is None:
            self._machines = dict(self.machines)
        if self._scopes is None:
            self._scopes = dict(self.scopes)
        return Inventory(
            self._machines, self.sighting, self._scopes, dict(self.operations), dict(self.holds)
        )

    def machine(self, name: str) -> model.Machine:
        """Return the machine of this name; Refused (NOT_FOUND) if there is none."""
        if (found := self.machines.get(model.key(name))) is None:
            raise model.unknown("machine", name)
        return found

    def scope(self, name: str) -> model.Scope:
        """Return the scope of this name; Refused (NOT_FOUND) if there is none."""
        if (found := self.scopes.get(model.key(name))) is None:
            raise model.unknown("scope", name)
        return found

    def sizes(self, scopes: Collection[str]) -> Counter[str]:
        """Return how many machines each of these scopes has."""
        wanted = set(scopes)
        return Counter(m.scope for m in self.machines.values() if m.scope in wanted)

    def live(
        self, *, scope: str = "", machine: str = ""
    ) -> Iterator[tuple[model.Operation, model.OperationEvent]]:
        """Yield the live events of a scope, of a machine (keys), or all of them."""
        for operation in self.operations.values():
            for event in () if operation.status.over else operation.events:
                if scope and event.scope != scope:
                    continue
                if machine and machine not in map(model.key, event.machines):
                    continue
                yield operation, event

    def by_maintenance(self) -> dict[int, list[model.Operation]]:
        """Return the live operations by the number of their maintenance."""
        found: dict[int, list[model.Operation]] = {}
        for operation in self.operations.values():
            found.setdefault(operation.maintenance, []).append(operation)
        return found

    def events_by(
        self, names: Iterable[str], names_of: Callable[[model.OperationEvent], Iterable[str]]
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


# The search.


UNKNOWN: Final = "unknown"
"""The host of machines without a known one, as after a Redeploy that named no new one. A host of
this name is found by it, too."""


def _fits(key: str, machine: Machine, wanted: str, scope: str, host: str) -> bool:
    if (scope and machine.scope != scope) or (host and (machine.host or UNKNOWN) != host):
        return False
    return (
        wanted in key
        or wanted in machine.scope
        or wanted in machine.host.lower()
        or wanted in machine.address.lower()
    )


class MachineSearch:
    """Finds machines by parts of names; used on the event loop's thread, `beside` calls on others.

    Keeps the order of their keys until the fleet changes: a page of the list costs what it shows.
    A part that no machine has takes 50 ms among 100,000.
    """

    def __init__(self, beside: Callable[..., Awaitable[Any]] = asyncio.to_thread) -> None:
        self._beside = beside
        self._of: Mapping[str, Machine] | None = None
        self._keys: list[str] = []
        self._sorting = asyncio.Lock()

    async def find(
        self,
        inventory: Inventory,
        wanted: str,
        after: str,
        most: int,
        *,
        scope: str = "",
        host: str = "",
    ) -> list[Machine]:
        """Return the first machines that fit, in the order of their keys.

        Args:
            inventory: A snapshot.
            wanted: A part of a name, scope, host or address, in any case; `""` for all machines.
            after: The key after which to begin; `""` for the beginning.
            most: How many at most.
            scope: A scope's name, where they must be of it.
            host: A host, where they must be on it, or UNKNOWN.
        """
        machines = inventory.machines
        async with self._sorting:
            if machines is not self._of:
                self._keys = await self._beside(sorted, machines)
                self._of = machines
            keys = self._keys
        part, place = wanted.lower(), model.key(scope)

        def search() -> list[Machine]:
            begin = bisect.bisect_right(keys, after)
            rest = ((key, machines[key]) for key in itertools.islice(keys, begin, None))
            fitting = (each for key, each in rest if _fits(key, each, part, place, host))
            return list(itertools.islice(fitting, most))

        found: list[Machine] = await self._beside(search)
        return found
