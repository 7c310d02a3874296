"""Where a machine asks, and by which id a proxy knows it: as the fleet file says."""

from typing import Any

import msgspec
import pytest

from builders import Snapshot, applied, mint
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Refused
from forewarn.vocabulary import ErrorCode

VM_ID = "02aab8a4-74ef-476e-8182-f6d2ba4166a6"


def read(**tables: Any) -> fleet_file.Fleet:
    return msgspec.convert(tables, fleet_file.Fleet)


def machines(*written: dict[str, Any]) -> fleet_file.Fleet:
    return read(machine=[{"name": f"m-{n}", **one} for n, one in enumerate(written)])


def refusal_of(wanted: fleet_file.Fleet, before: Snapshot | None = None) -> Refused:
    with pytest.raises(Refused) as refusal:
        fleet_file.apply((before or Snapshot()).world(), wanted, prune=False, mint=mint("e"))
    return refusal.value


def after(wanted: fleet_file.Fleet, before: Snapshot | None = None, letter: str = "d") -> Snapshot:
    snapshot = before or Snapshot()
    outcome = fleet_file.apply(snapshot.world(), wanted, prune=False, mint=mint(letter))
    return applied(snapshot, outcome.changes)


def test_a_group_names_the_listener_of_its_machines_and_a_machine_its_own() -> None:
    names = [{"name": "a"}, {"name": "b", "listener": "green"}, {"name": "c", "listener": ""}]
    snapshot = after(
        read(
            availability_set=[{"name": "s", "listener": "blue", "machines": names}],
            scale_set=[{"name": "b", "listener": "blue", "machines": [{"index": 0}]}],
            cloud_service=[
                {
                    "name": "shop",
                    "listener": "blue",
                    "roles": [{"name": "F", "instances": [{}, {"listener": "green"}]}],
                }
            ],
            machine=[{"name": "lone", "listener": "green"}, {"name": "plain"}],
        )
    )
    assert {key: machine.listener for key, machine in snapshot.machines.items()} == {
        "a": "blue",
        "b": "green",
        "c": "",
        "b_0": "blue",
        "f_in_0": "blue",
        "f_in_1": "green",
        "lone": "green",
        "plain": "",
    }


def test_an_address_is_unique_for_each_listener() -> None:
    same = {"address": "10.0.0.10"}
    snapshot = after(machines({**same, "listener": "blue"}, {**same, "listener": "green"}, same))
    assert len(snapshot.machines) == 3
    refused = refusal_of(machines({**same, "listener": "blue"}, {**same, "listener": "blue"}))
    assert refused.message.startswith("at machine[1]: ")


def test_an_address_of_a_machine_outside_the_file_is_taken_at_its_listener_alone() -> None:
    before = after(machines({"address": "10.0.0.10", "listener": "blue"}))
    other = {"name": "other", "address": "10.0.0.10"}
    after(read(machine=[{**other, "listener": "green"}]), before, "e")
    refused = refusal_of(read(machine=[{**other, "listener": "blue"}]), before)
    assert refused.code is ErrorCode.CONFLICT


def test_a_machine_that_moves_to_another_listener_is_changed_and_no_more() -> None:
    before = after(machines({"address": "10.0.0.10"}))
    outcome = fleet_file.apply(
        before.world(),
        machines({"address": "10.0.0.10", "listener": "blue"}),
        prune=False,
        mint=mint("e"),
    )
    assert outcome.changed == ("m-0",)
    (changed,) = outcome.changes.machines
    assert changed == msgspec.structs.replace(before.machines["m-0"], listener="blue")


@pytest.mark.parametrize("name", ["Blue", "-blue", "b lue", "x" * 81, "blüe", "_x"])
def test_what_is_no_listeners_name_is_refused_with_its_place(name: str) -> None:
    refused = refusal_of(machines({"listener": name}))
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "machine[0]"}


@pytest.mark.parametrize("address", ["fe80::10%br0", "FE80::10%br-0.7_x"])
def test_a_link_local_address_may_name_its_interface(address: str) -> None:
    (machine,) = after(machines({"address": address})).machines.values()
    assert machine.address == address.replace("FE80", "fe80")
    both = machines({"address": "fe80::10%br0"}, {"address": "fe80::10%br1"})
    assert len(after(both).machines) == 2


@pytest.mark.parametrize("address", ["fd00::10%br0", "fe80::10%a b", "fe80::10%" + "x" * 16])
def test_no_other_address_names_an_interface(address: str) -> None:
    refused = refusal_of(machines({"address": address}))
    assert (refused.code, refused.facts) == (ErrorCode.INVALID, {"where": "machine[0]"})


def test_a_vm_id_is_the_files_or_kept_or_given_once() -> None:
    before = after(machines({"vm_id": VM_ID.upper()}, {}))
    given, minted = before.machines["m-0"].vm_id, before.machines["m-1"].vm_id
    assert given == VM_ID
    assert minted.startswith("dddddddd-")
    later = after(machines({}, {"vm_id": VM_ID.replace("0", "1")}), before, "e")
    assert later.machines["m-0"].vm_id == VM_ID
    assert later.machines["m-1"].vm_id == VM_ID.replace("0", "1")


@pytest.mark.parametrize("vm_id", ["x", VM_ID[:-1], f"{{{VM_ID}}}", VM_ID.replace("-", "")])
def test_what_is_no_guid_is_refused_with_its_place(vm_id: str) -> None:
    refused = refusal_of(machines({"vm_id": vm_id}))
    assert (refused.code, refused.facts) == (ErrorCode.INVALID, {"where": "machine[0]"})


def test_a_vm_id_is_one_machines_alone() -> None:
    refused = refusal_of(machines({"vm_id": VM_ID}, {"vm_id": VM_ID.upper()}))
    assert refused.code is ErrorCode.INVALID
    before = after(machines({"vm_id": VM_ID}))
    other = refusal_of(read(machine=[{"name": "other", "vm_id": VM_ID}]), before)
    assert (other.code, other.facts) == (ErrorCode.CONFLICT, {"machine": "m-0", "other": "other"})


def test_a_vm_id_is_no_other_machines_name() -> None:
    own = read(machine=[{"name": VM_ID.upper(), "vm_id": VM_ID}])
    assert after(own).machines[VM_ID].vm_id == VM_ID
    refused = refusal_of(read(machine=[{"name": VM_ID}, {"name": "b", "vm_id": VM_ID}]))
    assert refused.code is ErrorCode.INVALID
    before = after(machines({"vm_id": VM_ID}))
    later = refusal_of(read(machine=[{"name": VM_ID}]), before)
    assert (later.code, later.facts) == (ErrorCode.CONFLICT, {"machine": "m-0", "other": VM_ID})
