"""The fleet file: what it may hold, where a mistake is, and what applying it changes."""

from typing import Any

import msgspec
import pytest

from builders import FLEET, NOW, Snapshot, applied, mint
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Hold, HoldKind, Refused, key
from forewarn.vocabulary import ErrorCode, EventType, Priority, ScopeKind


def read(**tables: Any) -> fleet_file.Fleet:
    return msgspec.convert(tables, fleet_file.Fleet)


def file_refusal(**tables: Any) -> Refused:
    with pytest.raises(Refused) as refusal:
        fleet_file.flatten(read(**tables))
    return refusal.value


def test_every_kind_of_scope_becomes_a_group_with_its_machines() -> None:
    groups = fleet_file.flatten(
        read(
            availability_set=[{"name": "web", "machines": [{"name": "web-0"}]}],
            scale_set=[
                {
                    "name": "batch",
                    "update_domains": 2,
                    "priority": "low",
                    "automatically_approve": ["Redeploy"],
                    "machines": [{"index": 7}],
                }
            ],
            cloud_service=[{"name": "shop", "roles": [{"name": "Front", "instances": [{}, {}]}]}],
            machine=[{"name": "bastion", "priority": "low", "automatically_approve": ["Reboot"]}],
        )
    )
    scopes = [group.scope for group in groups]
    assert [(one.name, one.kind, one.update_domains, one.priority) for one in scopes] == [
        ("web", ScopeKind.AVAILABILITY_SET, 5, None),
        ("batch", ScopeKind.SCALE_SET, 2, Priority.LOW),
        ("shop", ScopeKind.CLOUD_SERVICE, 5, None),
        ("bastion", ScopeKind.MACHINE, 1, Priority.LOW),
    ]
    assert {one.terminate_notice_minutes for one in scopes} == {None}
    approved = [one.automatically_approve for one in scopes]
    assert approved == [(), (EventType.REDEPLOY,), (), (EventType.REBOOT,)]
    assert [
        (group.where, [(m.name, m.role, m.where) for m in group.members]) for group in groups
    ] == [
        ("availability_set[0]", [("web-0", "", "availability_set[0].machines[0]")]),
        ("scale_set[0]", [("batch_7", "", "scale_set[0].machines[0]")]),
        (
            "cloud_service[0]",
            [
                (f"Front_IN_{n}", "Front", f"cloud_service[0].roles[0].instances[{n}]")
                for n in range(2)
            ],
        ),
        ("machine[0]", [("bastion", "", "machine[0]")]),
    ]


@pytest.mark.parametrize(
    "name", ["", "_x", "a b", "x" * 81, "/" * 80, "zoë", "a/b", "web\n", "a:b"]
)
def test_a_name_that_is_none_is_refused_with_its_place(name: str) -> None:
    refused = file_refusal(availability_set=[{"name": "s", "machines": [{"name": name}]}])
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "availability_set[0].machines[0]"}
    assert refused.message.startswith("at availability_set[0].machines[0]: ")
    assert "at scale_set[0].name: " in file_refusal(scale_set=[{"name": name}]).message


@pytest.mark.parametrize("name", ["a", "x" * 80, "A.b_c-9", "-", ".", "0"])
def test_a_good_name_is_taken(name: str) -> None:
    (group,) = fleet_file.flatten(read(machine=[{"name": name}]))
    assert group.members[0].name == name


def test_a_scale_sets_machine_must_have_a_name_of_80_characters_at_most() -> None:
    fleet_file.flatten(read(scale_set=[{"name": "x" * 78, "machines": [{"index": 9}]}]))
    refused = file_refusal(scale_set=[{"name": "x" * 79, "machines": [{"index": 9}]}])
    assert refused.facts == {"where": "scale_set[0].machines[0]"}


def test_names_are_unique_without_regard_to_case() -> None:
    refused = file_refusal(
        availability_set=[{"name": "s", "machines": [{"name": "web"}, {"name": "WEB"}]}]
    )
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {
        "where": "availability_set[0].machines[1]",
        "other": "availability_set[0].machines[0]",
    }
    assert refused.message.startswith("at availability_set[0].machines[1]: ")
    scopes = file_refusal(scale_set=[{"name": "a"}], cloud_service=[{"name": "A"}])
    assert scopes.message.startswith("at cloud_service[0]: ")


def test_an_address_is_one_however_it_is_written() -> None:
    refused = file_refusal(
        machine=[{"name": "a", "address": "::ffff:10.0.0.1"}, {"name": "b", "address": "10.0.0.1"}]
    )
    assert refused.message.startswith("at machine[1]: ")
    assert fleet_file.normal_address("FE80::0:1", "x") == "fe80::1"


def scale_set(**fields: Any) -> dict[str, Any]:
    return {"scale_set": [{"name": "s", **fields}]}


def machine(**fields: Any) -> dict[str, Any]:
    return {"machine": [{"name": "a", **fields}]}


def in_domain(domain: int) -> dict[str, Any]:
    machines = [{"name": "a", "update_domain": domain}]
    return {"availability_set": [{"name": "s", "update_domains": 3, "machines": machines}]}


def tagged(count: int) -> dict[str, Any]:
    return machine(tags={f"t{n}": "v" for n in range(count)})


@pytest.mark.parametrize(
    ("tables", "where", "field"),
    [
        *((machine(address=text), "machine[0]", ".address") for text in ("10.0.0", "10.0.0.0/24")),
        *((machine(address=text), "machine[0]", ".address") for text in ("web", "10.0.0.01")),
        *(
            (machine(**{field: "nonsense"}), "machine[0]", f".{field}")
            for field in ("subnet", "public_address", "ipv6_address")
        ),
        (in_domain(3), "availability_set[0].machines[0]", ".update_domain"),
        *(
            (scale_set(**fields), "scale_set[0]", ".terminate_notice_minutes")
            for fields in (
                {"priority": "low", "terminate_notice_minutes": 5},
                {"terminate_notice_minutes": 4},
                {"terminate_notice_minutes": 16},
            )
        ),
        (
            machine(automatically_approve=["Reboot", "Freeze"]),
            "machine[0]",
            ".automatically_approve",
        ),
        (machine(host="h\n1"), "machine[0]", ""),
        (machine(tags={"a\x00": "b"}), "machine[0]", ""),
        (machine(tags={"a": "b\t"}), "machine[0]", ""),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(
    tables: dict[str, Any], where: str, field: str
) -> None:
    refused = file_refusal(**tables)
    assert (refused.code, refused.facts) == (ErrorCode.INVALID, {"where": where})
    assert refused.message.startswith(f"at {where}{field}: ")


@pytest.mark.parametrize(
    "tables",
    [
        in_domain(2),
        scale_set(terminate_notice_minutes=5),
        scale_set(terminate_notice_minutes=15),
        machine(automatically_approve=["Reboot", "Redeploy"]),
        tagged(50),
    ],
)
def test_what_is_within_its_limits_is_taken(tables: dict[str, Any]) -> None:
    assert fleet_file.flatten(read(**tables))


def test_a_machine_has_50_tags_at_most() -> None:
    refused = file_refusal(**tagged(51))
    assert (refused.code, refused.facts) == (ErrorCode.LIMIT, {"where": "machine[0]"})
    assert refused.message.startswith("at machine[0].tags: ")


def test_good_network_fields_are_taken() -> None:
    (group,) = fleet_file.flatten(
        read(
            machine=[
                {
                    "name": "a",
                    "subnet": "10.0.0.0/24",
                    "public_address": "192.0.2.1",
                    "ipv6_address": "fd00::1",
                    "vm_size": "Standard_D2s",
                }
            ]
        )
    )
    profile = fleet_file.profile_of(group.members[0].entry)
    assert (profile.subnet, profile.public_address) == ("10.0.0.0/24", "192.0.2.1")
    assert (profile.ipv6_address, profile.vm_size) == ("fd00::1", "Standard_D2s")
    assert profile.azure_environment == "AzurePublicCloud"
    assert profile is fleet_file.profile_of(group.members[0].entry)


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"availability_sett": []}, "unknown field `availability_sett`"),
        ({"availability_set": [{"name": "s", "update_domains": 21}]}, "<= 20"),
        ({"availability_set": [{"name": "s", "update_domains": 0}]}, ">= 1"),
        ({"machine": [{"name": "a", "hots": "h"}]}, "unknown field `hots` - at `$.machine[0]`"),
        ({"machine": [{"name": 3}]}, "Expected `str`, got `int` - at `$.machine[0].name`"),
        ({"machine": [{"name": "a", "fault_domain": 3}]}, "<= 2"),
        ({"scale_set": [{"name": "s", "machines": [{"index": -1}]}]}, ">= 0"),
        ({"scale_set": [{"name": "s", "priority": "spot"}]}, "Invalid enum value 'spot'"),
        ({"machine": [{"name": "a", "host": "h" * 257}]}, "length <= 256"),
    ],
)
def test_what_the_file_may_not_hold_is_refused_with_its_path(
    tables: dict[str, Any], told: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as error:
        read(**tables)
    assert told in str(error.value)


def test_more_than_200_000_machines_are_refused_before_any_is_looked_at() -> None:
    """They are all wrong: their one name is no name."""
    wrong = fleet_file.StandaloneMachine(name="_")
    empty = fleet_file.AvailabilitySet(name="_")
    for count, code in ((200_000, ErrorCode.INVALID), (200_001, ErrorCode.LIMIT)):
        for fleet in ({"machine": (wrong,) * count}, {"availability_set": (empty,) * count}):
            with pytest.raises(Refused) as refused:
                fleet_file.flatten(fleet_file.Fleet(**fleet))
            assert refused.value.code is code


def test_only_ascii_letters_have_cases_in_names() -> None:
    assert key("Work-0") == "work-0"
    assert key("wor\N{KELVIN SIGN}-0") == "wor\N{KELVIN SIGN}-0"
    assert key("\N{LATIN CAPITAL LETTER A WITH DIAERESIS}B") == (
        "\N{LATIN CAPITAL LETTER A WITH DIAERESIS}b"
    )


# What applying it changes, and how domains are dealt.

MINT = mint("d")


def set_of(*machines: dict[str, Any] | str, **more: Any) -> fleet_file.Fleet:
    members = [{"name": m} if isinstance(m, str) else m for m in machines]
    return read(availability_set=[{"name": "s", "update_domains": 3, **more, "machines": members}])


def apply(
    snapshot: Snapshot, wanted: fleet_file.Fleet, *, prune: bool = False
) -> tuple[fleet_file.Applied, Snapshot]:
    outcome = fleet_file.apply(snapshot.world(), wanted, prune=prune, mint=MINT)
    return outcome, applied(snapshot, outcome.changes)


def refusal_of(snapshot: Snapshot, wanted: fleet_file.Fleet, *, prune: bool = False) -> Refused:
    with pytest.raises(Refused) as refusal:
        fleet_file.apply(snapshot.world(), wanted, prune=prune, mint=MINT)
    return refusal.value


def domains(snapshot: Snapshot) -> dict[str, int]:
    return {machine.name: machine.update_domain for machine in snapshot.machines.values()}


def test_where_a_host_has_machines_in_two_domains_the_stores_order_does_not_decide() -> None:
    given = [{"name": n, "host": "h", "update_domain": d} for n, d in (("a", 2), ("b", 0))]
    _, snapshot = apply(Snapshot(), set_of(*given))
    turned = dict(reversed(snapshot.machines.items()))
    for machines in (snapshot.machines, turned):
        known = msgspec.structs.replace(snapshot, machines=machines)
        _, after = apply(known, set_of({"name": "c", "host": "h"}))
        assert after.machines["c"].update_domain == 2


def test_a_prune_that_leaves_no_machine_is_refused_unless_it_is_meant() -> None:
    _, first = apply(Snapshot(), FLEET)
    hollow = read(availability_set=[{"name": "web", "update_domains": 3}])
    for file in (read(), hollow):
        refused = refusal_of(first, file, prune=True)
        assert refused.code is ErrorCode.CONFLICT
        assert refused.facts == {"machines": 15}
        assert len(apply(first, file)[0].missing) == 15
        meant = fleet_file.apply(first.world(), file, prune=True, mint=MINT, allow_empty=True)
        assert len(meant.removed) == 15
    outcome, _ = apply(Snapshot(), hollow, prune=True)
    assert [scope.name for scope in outcome.changes.scopes] == ["web"]


def test_holds_of_what_is_removed_are_told() -> None:
    _, first = apply(Snapshot(), FLEET)
    holds = tuple(
        Hold(kind=kind, name=name, reason="", by="ann", at=NOW)
        for kind, name in (
            (HoldKind.MACHINE, "web-0"),
            (HoldKind.MACHINE, "bastion"),
            (HoldKind.SCOPE, "bastion"),
            (HoldKind.HOST, "bastion"),
            (HoldKind.EVERYTHING, ""),
        )
    )
    held = msgspec.structs.replace(first, holds=holds)
    assert fleet_file.remove(held.world(), ["web-0"]).held == holds[:1]
    assert fleet_file.remove(held.world(), ["Bastion"]).held == holds[1:3]
    pruned, _ = apply(held, read(machine=[{"name": "web-0"}, {"name": "z"}]), prune=True)
    assert pruned.held == holds[1:3]
    assert [machine.name for machine in pruned.placed] == ["web-0", "z"]
    assert apply(held, FLEET, prune=True)[0].held == ()


def test_a_machine_of_a_scope_that_the_file_leaves_out_hides_no_collision() -> None:
    _, lone = apply(Snapshot(), read(machine=[{"name": "lone"}]))
    _, first = apply(lone, set_of("a", "b", "c"))
    assert next(iter(first.machines)) == "lone"
    assert refusal_of(first, set_of("a", "b", update_domains=2)).facts == {"machine": "c"}


def test_a_scope_that_is_added_again_goes_on_above_its_old_number() -> None:
    snapshot = msgspec.structs.replace(Snapshot(), retired={"s": 7})
    _, after = apply(snapshot, set_of("a"))
    assert after.scopes["s"].incarnation == 8
    _, kept = apply(msgspec.structs.replace(after, retired={"s": 20}), set_of("a", "b"))
    assert kept.scopes["s"].incarnation == 8
    _, other = apply(snapshot, read(machine=[{"name": "alone"}]))
    assert other.scopes["alone"].incarnation == 0


def test_a_group_names_the_listener_of_its_machines_and_a_machine_its_own() -> None:
    names = [{"name": "a"}, {"name": "b", "listener": "green"}, {"name": "c", "listener": ""}]
    _, snapshot = apply(
        Snapshot(),
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
        ),
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
