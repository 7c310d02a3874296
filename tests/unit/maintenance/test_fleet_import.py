"""Domains as a fleet: imports.txt."""

from typing import Any

import msgspec
import pytest

from forewarn.maintenance import fleet_file
from forewarn.maintenance.fleet_import import Domain, Imported, NetworkInterface, Tag, fleet_of
from forewarn.maintenance.model import Queueing
from forewarn.vocabulary import EventType
from stories import Told, listed, said, stories_beside


def vm_id(number: str) -> str:
    return f"00000000-0000-4000-8000-00000000000{number}"


class ImportStory(Told):
    """Domains of hosts, a fleet that is there, and what becomes of both."""

    def __init__(self) -> None:
        self.domains: dict[str, list[Domain]] = {}
        self.there = fleet_file.Fleet()

    def in_set(self, name: str, uuid: str = "", role: str = "", **told: str) -> None:
        fields: dict[str, Any] = {**told, "name": name, "vm_id": vm_id(uuid or name[-1])}
        if role:
            fields["tags"] = {"role": role}
        machine = msgspec.convert(fields, fleet_file.NamedMachine, strict=False)
        web = fleet_file.AvailabilitySet(
            name="web",
            update_domains=7,
            automatically_approve=(EventType.REBOOT,),
            queue=Queueing.START,
            settle_seconds=7,
            machines=(machine,),
        )
        self.there = fleet_file.Fleet(availability_set=(web,))

    def there_alone(self, name: str, automatically_approve: str = "", **told: str) -> None:
        fields = {"name": name, "vm_id": vm_id(name[-1]), **told}
        approved = {"automatically_approve": listed(automatically_approve)}
        machine = msgspec.convert(fields | approved, fleet_file.StandaloneMachine, strict=False)
        self.there = fleet_file.Fleet(machine=(machine,))

    def scale_set(self, name: str, machine: str) -> None:
        member = fleet_file.IndexedMachine(index=1, vm_id=vm_id(machine[-1]))
        group = fleet_file.ScaleSet(name=name, machines=(member,))
        self.there = fleet_file.Fleet(scale_set=(group,))

    def on(self, host: str, name: str, uuid: str = "", state: str = "running", **told: str) -> None:
        names = {"scope": "scope", "domain": "update_domain", "called": "name"}
        tag = Tag(**{names.get(each, each): told[each] for each in told.keys() - INTERFACES})
        interfaces = tuple(
            NetworkInterface(ip=address, enforced=True)
            if kind == "enforced"
            else NetworkInterface(**{kind: address})
            for kind, address in told.items()
            if kind in INTERFACES
        )
        found = Domain(
            uuid=vm_id(uuid or name[-1]), name=name, state=state, interfaces=interfaces, tag=tag
        )
        self.domains.setdefault(host, []).append(found)

    def turned(self) -> None:
        """The hosts, and their domains, are in the other order."""
        hosts = reversed(self.domains.items())
        self.domains = {host: found[::-1] for host, found in hosts}

    # What must be so.

    @property
    def imported(self) -> Imported:
        found = fleet_of(self.domains, self.there)
        fleet_file.flatten(found.fleet)  # what is written can be applied
        return found

    def written(self) -> dict[str, Any]:
        file = self.imported.fleet
        members = (machine for group in file.availability_set for machine in group.machines)
        return {machine.name: machine for machine in (*members, *file.machine)}

    def machines(self, *names: str) -> None:
        assert [*self.written()] == [*names]

    def machine(self, name: str, **told: str) -> None:
        found = self.written()[name]
        role = dict(found.tags).get("role")
        known = {"uuid": found.vm_id[-1], "role": role}
        assert {each: said(known.get(each, getattr(found, each, ""))) for each in told} == told

    def alone(self, name: str, **told: str) -> None:
        assert name in [machine.name for machine in self.imported.fleet.machine]
        self.machine(name, **told)

    def sets(self, *names: str) -> None:
        assert [group.name for group in self.imported.fleet.availability_set] == [*names]

    def set(self, name: str, **told: str) -> None:
        (group,) = self.imported.fleet.availability_set
        self.compare(group, {"name": name, **told})

    def warned(self, count: str, says: str = "") -> None:
        warnings = self.imported.warnings
        assert len(warnings) == int(count)
        assert not says or says in warnings[0]


INTERFACES = {"enforced", "reserved", "ip"}


@pytest.mark.parametrize("rows", stories_beside(__file__, "imports.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert ImportStory().play("imports.txt", rows)
