"""Domains as a fleet: names, scopes, and addresses that the guest cannot choose."""

from typing import Any

import pytest

from forewarn.maintenance import fleet_file
from forewarn.maintenance.fleet_import import (
    Domain,
    Imported,
    NetworkInterface,
    Tag,
    fleet_of,
)
from forewarn.maintenance.model import Queueing
from forewarn.vocabulary import EventType, Priority

IDS = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(10)]


def domain(n: int, **more: Any) -> Domain:
    fields: dict[str, Any] = {"uuid": IDS[n], "name": f"g{n}", "state": "running"} | more
    return Domain(**fields)


def enforced(address: str) -> NetworkInterface:
    return NetworkInterface(mac="52:54:00:00:00:01", ip=address, enforced=True)


def known(n: int, **more: Any) -> fleet_file.Fleet:
    """A fleet whose set `web` has a machine."""
    machine = fleet_file.NamedMachine(**{"name": f"g{n}", "vm_id": IDS[n]} | more)
    web = fleet_file.AvailabilitySet(
        name="web",
        update_domains=7,
        automatically_approve=(EventType.REBOOT,),
        queue=Queueing.START,
        settle_seconds=7,
        machines=(machine,),
    )
    return fleet_file.Fleet(availability_set=(web,))


def alone(n: int, **more: Any) -> fleet_file.Fleet:
    """A fleet of a standalone machine."""
    machine = fleet_file.StandaloneMachine(name=f"g{n}", vm_id=IDS[n], **more)
    return fleet_file.Fleet(machine=(machine,))


def machines(imported: Imported) -> dict[str, fleet_file.NamedMachine]:
    fleet_file.flatten(imported.fleet)  # what is written can be applied
    file = imported.fleet
    sets = (m for s in file.availability_set for m in s.machines)
    return {m.name: m for m in (*sets, *file.machine)}


def test_a_domain_without_a_tag_is_a_standalone_machine_on_its_host() -> None:
    imported = fleet_of({"h1": [domain(1, interfaces=(enforced("10.0.0.1"),))]})
    (machine,) = imported.fleet.machine
    assert (machine.name, machine.host, machine.vm_id) == ("g1", "h1", IDS[1])
    assert (machine.address, machine.update_domain) == ("10.0.0.1", None)
    assert not imported.fleet.availability_set
    assert not imported.warnings


def test_a_tag_names_scope_domain_and_machine() -> None:
    tag = Tag(scope="web", update_domain="6", name="web-1")
    imported = fleet_of({"h1": [domain(1, tag=tag)], "h2": [domain(2, tag=Tag(scope="WEB"))]})
    (web,) = imported.fleet.availability_set
    assert (web.name, web.update_domains) == ("web", 7)
    assert [(m.name, m.host, m.update_domain) for m in web.machines] == [
        ("web-1", "h1", 6),
        ("g2", "h2", None),
    ]


@pytest.mark.parametrize(
    ("interfaces", "tag", "address", "warned"),
    [
        ([enforced("10.0.0.1")], "10.0.0.9", "10.0.0.1", False),
        ([NetworkInterface(reserved="10.0.0.2"), enforced("10.0.0.1")], "", "10.0.0.1", False),
        ([NetworkInterface(reserved="10.0.0.2")], "10.0.0.9", "10.0.0.2", True),
        ([NetworkInterface(ip="10.0.0.3")], "10.0.0.9", "10.0.0.3", True),
        ([NetworkInterface()], "10.0.0.9", "10.0.0.9", True),
        ([NetworkInterface(reserved="nonsense")], "10.0.0.9", "10.0.0.9", True),
        ([], "", "", True),
    ],
)
def test_an_address_is_the_one_that_is_best_vouched_for(
    interfaces: list[NetworkInterface], tag: str, address: str, *, warned: bool
) -> None:
    found = domain(1, interfaces=tuple(interfaces), tag=Tag(address=tag))
    imported = fleet_of({"h1": [found]})
    assert machines(imported)["g1"].address == address
    assert bool(imported.warnings) is warned


def test_an_address_of_two_domains_goes_to_one_of_them() -> None:
    pair = [domain(n, interfaces=(enforced("10.0.0.1"),)) for n in (1, 2)]
    imported = fleet_of({"h1": pair})
    assert [m.address for m in machines(imported).values()] == ["10.0.0.1", ""]
    assert len(imported.warnings) == 1


@pytest.mark.parametrize("states", [("off", "running"), ("handover", "running"), ("off", "paused")])
def test_a_domain_of_two_hosts_is_where_it_runs(states: tuple[str, str]) -> None:
    tag = Tag(address="10.0.0.1")
    first, second = (domain(1, state=state, tag=tag) for state in states)
    imported = fleet_of({"h1": [first], "h2": [second]})
    assert machines(imported)["g1"].host == "h2"
    assert machines(fleet_of({"h2": [second], "h1": [first]}))["g1"].host == "h2"
    assert len(imported.warnings) == 1  # about the address


@pytest.mark.parametrize("state", ["running", "off"])
def test_a_domain_that_runs_or_is_off_on_two_hosts_is_warned_of(state: str) -> None:
    found = domain(1, state=state, interfaces=(enforced("10.0.0.1"),))
    imported = fleet_of({"h1": [found], "h2": [found]})
    assert len(machines(imported)) == 1
    assert len(imported.warnings) == 1
    assert "h2" in imported.warnings[0]


@pytest.mark.parametrize(
    "more",
    [
        {"name": "with space"},
        {"name": "g2"},
        {"name": "G2"},
        {"tag": Tag(scope="not a scope")},
        {"tag": Tag(name="_x")},
        {"name": IDS[2]},
    ],
)
def test_what_cannot_be_in_a_fleet_file_is_left_out_with_a_warning(more: dict[str, Any]) -> None:
    well = [enforced("10.0.0.1")], [enforced("10.0.0.2")]
    other = domain(1, **{"interfaces": tuple(well[0])} | more)
    imported = fleet_of({"h1": [domain(2, interfaces=tuple(well[1])), other]})
    assert [*machines(imported)] == ["g2"]
    assert len(imported.warnings) == 1


def test_a_domain_is_not_taken_for_another_machine_of_its_name() -> None:
    imported = fleet_of({"h1": [domain(1, name="G2")]}, known(2))
    assert not machines(imported)
    assert len(imported.warnings) == 1


@pytest.mark.parametrize("there", [fleet_file.Fleet(), known(3)])
def test_a_domain_with_the_name_of_a_set_is_left_out(there: fleet_file.Fleet) -> None:
    in_set = domain(1, tag=Tag(scope="web"))
    for found in ([domain(2, name="Web"), in_set], [in_set, domain(2, name="Web")]):
        assert [*machines(fleet_of({"h1": found}, there))] == ["g1"]


def test_a_set_with_the_name_of_a_standalone_machine_is_left_out() -> None:
    imported = fleet_of({"h1": [domain(2, tag=Tag(scope="g1")), domain(1)]}, alone(1))
    assert [*machines(imported)] == ["g1"]
    assert [scope.name for scope in imported.fleet.machine] == ["g1"]


@pytest.mark.parametrize("first", [1, 2])
def test_an_address_of_the_fleet_that_another_domain_has_now_goes_to_one_of_them(
    first: int,
) -> None:
    pair = {1: domain(1, interfaces=(enforced("10.0.0.9"),)), 2: domain(2)}
    found = fleet_of({"h1": [pair[first], pair[3 - first]]}, known(2, address="10.0.0.9"))
    addresses = {name: machine.address for name, machine in machines(found).items()}
    assert addresses == {f"g{first}": "10.0.0.9", f"g{3 - first}": ""}


def test_addresses_are_those_that_a_fleet_file_may_have() -> None:
    strange = [enforced("::ffff:10.0.0.1"), enforced("2001:db8::1%eth0")]
    pair = [domain(n + 1, interfaces=(one,)) for n, one in enumerate(strange)]
    found = machines(fleet_of({"h1": pair}))
    assert [found["g1"].address, found["g2"].address] == ["10.0.0.1", ""]


@pytest.mark.parametrize("text", ["20", "-1", "x", "٣"])
def test_an_update_domain_that_is_none_is_warned_of(text: str) -> None:
    found = domain(1, tag=Tag(scope="web", update_domain=text), interfaces=(enforced("10.0.0.1"),))
    imported = fleet_of({"h1": [found]})
    assert machines(imported)["g1"].update_domain is None
    assert len(imported.warnings) == 1


def test_what_the_fleet_has_stays_where_a_domain_says_nothing_else() -> None:
    own: dict[str, Any] = {
        "name": "web-1",
        "tags": {"role": "leader"},
        "fault_domain": 2,
        "update_domain": 4,
    }
    there = known(1, **own, address="10.0.0.7", host="h9", listener="lan")
    imported = fleet_of({"h1": [domain(1)]}, there)
    (web,) = imported.fleet.availability_set
    assert (web.name, web.update_domains) == ("web", 7)
    assert web.automatically_approve == (EventType.REBOOT,)
    assert (web.queue, web.settle_seconds) == (Queueing.START, 7)
    expected = {**own, "vm_id": IDS[1], "address": "10.0.0.7", "host": "h1", "listener": "lan"}
    assert web.machines == (fleet_file.NamedMachine(**expected),)
    assert not imported.warnings


def test_a_tag_moves_a_machine_of_the_fleet_and_has_its_domain_chosen() -> None:
    there = known(1, update_domain=4, address="10.0.0.7")
    imported = fleet_of({"h1": [domain(1, tag=Tag(scope="db"))]}, there)
    (db,) = imported.fleet.availability_set
    assert (db.name, db.machines[0].update_domain, db.update_domains) == ("db", None, 5)


def test_a_standalone_machine_of_the_fleet_keeps_its_settings() -> None:
    own = {"priority": Priority.LOW, "automatically_approve": (EventType.REBOOT,)}
    there = alone(1, address="10.0.0.7", update_domain=0, **own)
    (machine,) = fleet_of({"h1": [domain(1)]}, there).fleet.machine
    assert (machine.host, machine.address) == ("h1", "10.0.0.7")
    assert (machine.priority, machine.automatically_approve) == (Priority.LOW, (EventType.REBOOT,))


def test_a_machine_is_not_renamed() -> None:
    there = known(1, address="10.0.0.7")
    imported = fleet_of({"h1": [domain(1, tag=Tag(name="other"))]}, there)
    assert [*machines(imported)] == ["g1"]
    assert len(imported.warnings) == 1
    assert not fleet_of({"h1": [domain(1, tag=Tag(name="G1"))]}, there).warnings


def test_scopes_whose_names_follow_from_places_are_left_alone() -> None:
    machine = fleet_file.IndexedMachine(index=1, vm_id=IDS[1])
    web = fleet_file.ScaleSet(name="web", machines=(machine,))
    there = fleet_file.Fleet(scale_set=(web,))
    imported = fleet_of({"h1": [domain(1), domain(2, tag=Tag(scope="web"))]}, there)
    assert not machines(imported)
    assert len(imported.warnings) == 2
