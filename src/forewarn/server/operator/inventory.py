"""The fleet, live operations and holds in memory, for lists and for the search.

It is filled from the store once and kept up to date by the changefeed: a list costs the store
nothing, and whoever was just told of a change finds it. Used on the event loop's thread only.

The search finds machines among 100,000 by a part of a name, without walking them on the event loop:
all names, scopes, hosts and addresses are one text, a line a machine, in the order of keys, which
Python searches at gigabytes a second. It is made on another thread, when somebody searches and the
fleet has changed since it was made last.
"""

import asyncio
import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from forewarn.maintenance import model
from forewarn.maintenance.model import Machine
from forewarn.maintenance.units import UnitKind, UnitState

END: Final = "\n"
"""Ends a machine's line: no name has it."""

BETWEEN: Final = "\t"
"""Stands between a line's parts, so that a search does not run from one into the next."""


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

    def machines_of_units(
        self, maintenances: Iterable[model.Maintenance]
    ) -> dict[tuple[str, int | None], list[model.Machine]]:
        """Return the machines of units that wait, in one pass.

        By scope and update domain, and by host and None.
        """
        waiting = (
            unit
            for maintenance in maintenances
            for unit in maintenance.units
            if unit.state is UnitState.WAITING and unit.kind is not UnitKind.MACHINES
        )
        found: dict[tuple[str, int | None], list[model.Machine]] = {}
        for unit in waiting:
            is_host = unit.kind is UnitKind.HOST
            found[(unit.name, None) if is_host else (unit.scope, unit.update_domain)] = []
        if found:
            for machine in self.machines.values():
                places = ((machine.scope, machine.update_domain), (machine.host, None))
                for place in places:
                    if place in found:
                        found[place].append(machine)
        return found


# The search.


class MachineText(msgspec.Struct, frozen=True):
    """All machines as one text."""

    keys: tuple[str, ...]
    """In order."""
    text: str
    """In lower case; begins with END."""
    starts: tuple[int, ...]
    """Where each machine's line begins."""

    def find(self, wanted: str, after: str) -> Iterator[str]:
        """Yield the keys of the machines whose lines have a text, in order.

        Args:
            wanted: A part of a name, scope, host or address, in any case; `""` for all machines.
            after: The key after which to begin; `""` for the beginning.
        """
        if not wanted:
            begin = bisect.bisect_right(self.keys, after) if after else 0
            yield from itertools.islice(self.keys, begin, None)
        elif END not in wanted and BETWEEN not in wanted:
            yield from self._having(wanted.lower(), after)

    def at(self, place: str, after: str) -> Iterator[str]:
        """Yield the keys of the machines whose scope or host this is, in any case, in order."""
        if END not in place and BETWEEN not in place:
            yield from self._having(f"{BETWEEN}{place.lower()}{BETWEEN}", after)

    def _having(self, wanted: str, after: str) -> Iterator[str]:
        begin = bisect.bisect_right(self.keys, after) if after else 0
        if begin >= len(self.keys):
            return
        at = self.text.find(wanted, self.starts[begin])
        while at >= 0:
            yield self.keys[bisect.bisect_right(self.starts, at) - 1]
            at = self.text.find(wanted, self.text.index(END, at))


def text_of(machines: Mapping[str, Machine]) -> MachineText:
    """Return machines as one text; takes some 0.2 s for 100,000, on a thread of its own."""
    keys = tuple(sorted(machines))
    lines, starts, at = [END], [], len(END)
    for key in keys:
        machine = machines[key]
        line = BETWEEN.join((key, machine.scope, machine.host, machine.address)).lower() + END
        lines.append(line)
        starts.append(at)
        at += len(line)
    return MachineText(keys, "".join(lines), tuple(starts))


def _fits(machine: Machine, wanted: str, scope: str, host: str | None) -> bool:
    if scope and machine.scope != model.key(scope):
        return False
    if host is not None and machine.host != host:
        return False
    parts = (machine.key, machine.scope, machine.host, machine.address)
    return any(wanted.lower() in part.lower() for part in parts)


class MachineSearch:
    """Keeps the text of the fleet until the fleet changes; used on the event loop's thread."""

    def __init__(self) -> None:
        self._of: Mapping[str, Machine] | None = None
        self._text = MachineText((), END, ())
        self._making = asyncio.Lock()

    async def find(
        self,
        inventory: Inventory,
        wanted: str,
        after: str,
        most: int,
        *,
        scope: str = "",
        host: str | None = None,
    ) -> list[Machine]:
        """Return the first machines that fit, in the order of their keys.

        Args:
            inventory: A snapshot.
            wanted: See `MachineText.find`.
            after: Likewise.
            most: How many at most.
            scope: A scope's name, where they must be of it.
            host: A host, where they must be on it; `""` is an unknown one, None is any.
        """
        machines = inventory.machines
        async with self._making:
            if machines is not self._of:
                self._text = await asyncio.to_thread(text_of, machines)
                self._of = machines
            text = self._text

        def search() -> list[Machine]:
            if scope or host is not None:
                keys = (key for key in text.at(scope or host or "", after) if key in machines)
                found = (machines[key] for key in keys if _fits(machines[key], wanted, scope, host))
            else:
                found = (machines[key] for key in text.find(wanted, after) if key in machines)
            return list(itertools.islice(found, most))

        return await asyncio.to_thread(search)
