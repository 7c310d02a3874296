"""A fleet that somebody wants, and the files that change it, whole or in part."""

import itertools
from random import Random
from typing import Any, Final

import msgspec

from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Machine

SETS: Final = "availability_set"
SCALE: Final = "scale_set"

Tree = dict[str, list[dict[str, Any]]]


class Fleets:
    """What operators' fleet files say.

    Args:
        chance: Where every choice comes from.
        size: The most machines at first.
    """

    def __init__(self, chance: Random, size: int) -> None:
        self._chance = chance
        self._groups: Tree = {SETS: [], SCALE: [], "machine": []}
        self._new = itertools.count(1)
        machines = chance.choice([size, chance.randint(1, size)])
        self.hosts = [f"h{n}" for n in range(1 + machines // chance.choice([1, 3, 10]))]
        left, number = machines, 0
        while left > 0:
            number += 1
            left -= self._add_group(number, min(left, chance.choice([1, 2, 3, 5, 8, 20, 50])))
        self._shapes = {
            group["name"]: (kind, {k: v for k, v in group.items() if k != "machines"})
            for kind in (SETS, SCALE)
            for group in self._groups[kind]
        }
        """Groups without their machines, by key: what a file that names one machine says of its
        scope."""

    def whole(self) -> fleet_file.Fleet:
        """Return the file that names every machine as it was at first, lost ones too."""
        return msgspec.convert(self._groups, fleet_file.Fleet)

    def part(self) -> fleet_file.Fleet:
        """Return a file with one scope as it was at first: what left it comes back."""
        kind = self._chance.choice([kind for kind, groups in self._groups.items() if groups])
        return _file(kind, self._chance.choice(self._groups[kind]))

    def added(self) -> fleet_file.Fleet | None:
        """Return a file that adds a machine to a scope; None where there is nothing to add to."""
        shape = self._some_shape()
        if shape is None:
            return None
        kind, group = shape
        number = next(self._new)
        named = {"index": 1000 + number} if kind == SCALE else {"name": f"new{number}"}
        return _file(kind, {**group, "machines": [{**named, "host": self._some_host()}]})

    def moved(self, machine: Machine) -> fleet_file.Fleet | None:
        """Return a file with the machine in another scope; None where it cannot leave its own."""
        own = self._shapes.get(machine.scope)
        if own is not None and own[0] == SCALE:
            return None
        placed = {"name": machine.name, "host": machine.host}
        if own is not None and self._chance.random() < 0.3:
            return _file("machine", placed)
        shape = self._some_shape()
        if shape is None or shape[0] == SCALE:
            return None
        return _file(SETS, {**shape[1], "machines": [placed]})

    def reset(self, machine: Machine) -> fleet_file.Fleet | None:
        """Return a file with other settings for the machine's scope; None where it has none."""
        if (shape := self._shapes.get(machine.scope)) is not None:
            shape[1].update(self._settings())
        return self.replaced(machine) if shape else None

    def replaced(self, machine: Machine, **places: Any) -> fleet_file.Fleet | None:
        """Return a file with the machine on another host, or in another update domain."""
        placed = {"host": machine.host, "update_domain": machine.update_domain, **places}
        shape = self._shapes.get(machine.scope)
        if shape is None:
            placed.pop("update_domain", None)
            return _file("machine", {"name": machine.name, **placed})
        kind, group = shape
        named = {"name": machine.name}
        if kind == SCALE:
            named = {"index": int(machine.name.rpartition("_")[2])}
        return _file(kind, {**group, "machines": [{**named, **placed}]})

    def new_host(self) -> str:
        """Return a host: one that there is, one that there was not, or none."""
        if self._chance.random() < 0.1:
            self.hosts.append(f"h{len(self.hosts)}")
            return self.hosts[-1]
        return self._some_host()

    def _some_host(self) -> str:
        return self._chance.choice(["", *self.hosts[:50]])

    def _some_shape(self) -> tuple[str, dict[str, Any]] | None:
        return self._chance.choice(list(self._shapes.values())) if self._shapes else None

    def _add_group(self, number: int, count: int) -> int:
        """Add a scope of so many machines, or a machine by itself; return how many were added."""
        chance, hosts = self._chance, self.hosts
        kind = chance.random()
        if kind < 0.2:
            self._groups["machine"].append({"name": f"m{number}", "host": chance.choice(hosts)})
            return 1
        if kind < 0.6:
            members = [
                {"name": f"a{number}-{i}", "host": chance.choice(hosts)} for i in range(count)
            ]
            self._groups[SETS].append(
                {
                    "name": f"set{number}",
                    "update_domains": chance.choice([1, 2, 3, 5, 20]),
                    **self._settings(),
                    "machines": members,
                }
            )
        else:
            places = [{"index": i, "host": chance.choice(hosts)} for i in range(count)]
            domains = chance.choice([1, 2, 5])
            priority = chance.choice(["low", "regular"])
            minutes = chance.choice([None, 5, 15])
            self._groups[SCALE].append(
                {
                    "name": f"scale{number}",
                    "update_domains": domains,
                    "priority": priority,
                    # Only a regular one has a notice of deletions.
                    "terminate_notice_minutes": None if priority == "low" else minutes,
                    **self._settings(),
                    "machines": places,
                }
            )
        return count

    def _settings(self) -> dict[str, Any]:
        chance = self._chance
        return {
            "automatically_approve": chance.sample(
                ["Reboot", "Redeploy"], chance.choice([0, 0, 1, 2])
            ),
            "queue": chance.choice([None, None, "announcement", "start"]),
            "settle_seconds": chance.choice([None, None, 0, 60]),
        }


def _file(kind: str, group: dict[str, Any]) -> fleet_file.Fleet:
    return msgspec.convert({kind: [group]}, fleet_file.Fleet)
