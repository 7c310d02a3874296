"""A search finds what a look at every machine finds, on a copy; and holds are known as they are."""

import asyncio
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from builders import FLEET
from control.conftest import Busy, done
from forewarn.maintenance.model import Changes, HoldKind, Machine, unseen
from forewarn.server.operator.inventory import Inventory, MachineSearch
from page.operations import machine

PLACES = st.text("aBc-01", min_size=1, max_size=3)


def fleet(*machines: Machine) -> dict[str, Machine]:
    return {each.key: each for each in machines}


def found(inventory: Inventory, wanted: str = "", after: str = "", **where: str) -> list[str]:
    search = MachineSearch().find(inventory.snapshot(), wanted, after, 100, **where)
    return [each.key for each in asyncio.run(search)]


def inventory_of(*machines: Machine) -> Inventory:
    return Inventory(fleet(*machines), unseen)


@given(st.dictionaries(PLACES, st.tuples(PLACES, PLACES), max_size=30), st.text("AbC-01"), PLACES)
def test_it_finds_what_a_look_at_each_machine_finds(
    places: dict[str, tuple[str, str]], wanted: str, after: str
) -> None:
    inventory = inventory_of(
        *(machine(name, scope.lower(), host=host) for name, (scope, host) in places.items())
    )
    expected = [
        key
        for key, each in sorted(inventory.machines.items())
        if key > after.lower()
        and any(wanted.lower() in part.lower() for part in (key, each.scope, each.host))
    ]
    assert found(inventory, wanted, after.lower()) == expected


def test_a_scope_and_a_host_are_whole_names() -> None:
    inventory = inventory_of(
        machine("a", host="h1"),
        machine("b", "web2", host="H1"),
        machine("c"),
        machine("d", "h1", host="web"),
        machine("e", "h1", host="unknown"),
    )
    assert found(inventory, scope="Web") == ["a", "c"]
    assert found(inventory, host="h1") == ["a"]
    assert found(inventory, host="unknown") == ["c", "e"]
    assert found(inventory, scope="web", host="h1") == ["a"]
    assert found(inventory, "C", scope="web") == ["c"]
    assert found(inventory, scope="nosuch") == []


def test_a_machine_that_was_just_added_is_found_and_a_removed_one_is_not() -> None:
    known = fleet(machine("web-0"))
    inventory = Inventory(known, unseen)
    search = MachineSearch()

    def names() -> list[str]:
        looked = search.find(inventory.snapshot(), "web", "", 10)
        return [each.name for each in asyncio.run(looked)]

    assert names() == ["web-0"]
    added = machine("web-1")
    known[added.key] = added
    inventory.learn(Changes(machines=(added,)))
    assert names() == ["web-0", "web-1"]
    del known["web-0"]
    inventory.learn(Changes(removed_machines=("web-0",)))
    assert names() == ["web-1"]


def test_a_snapshot_stays_as_it_was() -> None:
    known = fleet(machine("web-0"))
    inventory = Inventory(known, lambda _: None)
    before = inventory.snapshot()
    known["web-1"] = machine("web-1")
    inventory.learn(Changes(machines=(known["web-1"],)))
    assert set(before.machines) == {"web-0"}
    assert set(inventory.snapshot().machines) == {"web-0", "web-1"}


def test_a_hold_that_is_placed_again_in_the_commit_of_its_release_is_known() -> None:
    inventory = Inventory({}, unseen)
    with closing(Busy(fleet=FLEET)) as house:
        done(house.plane.hold(HoldKind.EVERYTHING, "", reason="storm", by="ann"))
        house.hold()
        released = house.plane.release(HoldKind.EVERYTHING, "")
        placed = house.plane.hold(HoldKind.EVERYTHING, "", reason="backup", by="bob")
        house.release()
        done(released)
        done(placed)
        for changes in house.told:
            inventory.learn(changes)
    assert [hold.reason for hold in inventory.holds.values()] == ["backup"]
