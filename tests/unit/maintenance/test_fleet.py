"""The fleet file, judged whole: names, addresses, domains, and where a mistake is."""

from typing import Any

import msgspec
import pytest

from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Refused, key
from forewarn.vocabulary import ErrorCode, EventType, Priority, ScopeKind


def read(**tables: Any) -> fleet_file.Fleet:
    return msgspec.convert(tables, fleet_file.Fleet)


def refusal_of(**tables: Any) -> Refused:
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
    web, batch, shop, bastion = groups
    assert (web.scope.name, web.scope.kind, web.scope.update_domains) == (
        "web",
        ScopeKind.AVAILABILITY_SET,
        5,
    )
    assert (web.scope.priority, web.scope.terminate_notice_minutes) == (None, None)
    assert (web.where, web.members[0].where) == (
        "availability_set[0]",
        "availability_set[0].machines[0]",
    )
    assert (batch.scope.kind, batch.scope.update_domains) == (ScopeKind.SCALE_SET, 2)
    assert (batch.scope.priority, batch.scope.terminate_notice_minutes) == (Priority.LOW, None)
    assert batch.scope.automatically_approve == (EventType.REDEPLOY,)
    assert batch.where == "scale_set[0]"
    assert (batch.members[0].name, batch.members[0].where) == (
        "batch_7",
        "scale_set[0].machines[0]",
    )
    assert shop.scope.kind is ScopeKind.CLOUD_SERVICE
    assert [(m.name, m.role, m.where) for m in shop.members] == [
        ("Front_IN_0", "Front", "cloud_service[0].roles[0].instances[0]"),
        ("Front_IN_1", "Front", "cloud_service[0].roles[0].instances[1]"),
    ]
    assert shop.where == "cloud_service[0]"
    assert (bastion.scope.kind, bastion.scope.update_domains) == (ScopeKind.MACHINE, 1)
    assert (bastion.scope.priority, bastion.scope.terminate_notice_minutes) == (Priority.LOW, None)
    assert bastion.scope.automatically_approve == (EventType.REBOOT,)
    assert bastion.where == bastion.members[0].where == "machine[0]"


@pytest.mark.parametrize(
    "name", ["", "_x", "a b", "x" * 81, "/" * 80, "zoë", "a/b", "web\n", "a:b"]
)
def test_a_name_that_is_none_is_refused_with_its_place(name: str) -> None:
    refused = refusal_of(availability_set=[{"name": "s", "machines": [{"name": name}]}])
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "availability_set[0].machines[0]"}
    assert refused.message.startswith("at availability_set[0].machines[0]: ")
    assert "at scale_set[0].name: " in refusal_of(scale_set=[{"name": name}]).message


@pytest.mark.parametrize("name", ["a", "x" * 80, "A.b_c-9", "-", ".", "0"])
def test_a_good_name_is_taken(name: str) -> None:
    (group,) = fleet_file.flatten(read(machine=[{"name": name}]))
    assert group.members[0].name == name


def test_a_scale_sets_machine_must_have_a_name_of_80_characters_at_most() -> None:
    fleet_file.flatten(read(scale_set=[{"name": "x" * 78, "machines": [{"index": 9}]}]))
    refused = refusal_of(scale_set=[{"name": "x" * 79, "machines": [{"index": 9}]}])
    assert refused.facts == {"where": "scale_set[0].machines[0]"}


def test_names_are_unique_without_regard_to_case() -> None:
    refused = refusal_of(
        availability_set=[{"name": "s", "machines": [{"name": "web"}, {"name": "WEB"}]}]
    )
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {
        "where": "availability_set[0].machines[1]",
        "other": "availability_set[0].machines[0]",
    }
    assert refused.message.startswith("at availability_set[0].machines[1]: ")
    scopes = refusal_of(scale_set=[{"name": "a"}], cloud_service=[{"name": "A"}])
    assert scopes.message.startswith("at cloud_service[0]: ")


def test_an_address_is_one_however_it_is_written() -> None:
    refused = refusal_of(
        machine=[{"name": "a", "address": "::ffff:10.0.0.1"}, {"name": "b", "address": "10.0.0.1"}]
    )
    assert refused.message.startswith("at machine[1]: ")
    assert fleet_file.normal_address("FE80::0:1", "x") == "fe80::1"


@pytest.mark.parametrize("address", ["10.0.0", "10.0.0.0/24", "web", "10.0.0.01"])
def test_what_is_no_address_is_refused(address: str) -> None:
    refused = refusal_of(machine=[{"name": "a", "address": address}])
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "machine[0]"}
    assert refused.message.startswith("at machine[0].address: ")


def test_an_update_domain_lies_within_its_scope() -> None:
    def of(domain: int) -> dict[str, Any]:
        return {"name": "s", "update_domains": 3,
                "machines": [{"name": "a", "update_domain": domain}]}  # fmt: skip

    fleet_file.flatten(read(availability_set=[of(2)]))
    refused = refusal_of(availability_set=[of(3)])
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "availability_set[0].machines[0]"}
    assert refused.message.startswith("at availability_set[0].machines[0].update_domain: ")


def test_a_low_priority_scale_set_has_no_notice_of_deletions() -> None:
    low = {"name": "s", "priority": "low", "terminate_notice_minutes": 5}
    refused = refusal_of(scale_set=[low])
    assert refused.code is ErrorCode.INVALID
    assert refused.message.startswith("at scale_set[0].terminate_notice_minutes: ")


@pytest.mark.parametrize("minutes", [4, 16])
def test_the_notice_of_a_deletion_is_5_to_15_minutes(minutes: int) -> None:
    for good in (5, 15):
        fleet_file.flatten(read(scale_set=[{"name": "s", "terminate_notice_minutes": good}]))
    refused = refusal_of(scale_set=[{"name": "s", "terminate_notice_minutes": minutes}])
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "scale_set[0]"}
    assert refused.message.startswith("at scale_set[0].terminate_notice_minutes: ")


def test_only_reboot_and_redeploy_are_approved_automatically() -> None:
    fleet_file.flatten(
        read(machine=[{"name": "a", "automatically_approve": ["Reboot", "Redeploy"]}])
    )
    refused = refusal_of(machine=[{"name": "a", "automatically_approve": ["Reboot", "Freeze"]}])
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "machine[0]"}
    assert refused.message.startswith("at machine[0].automatically_approve: ")


def test_a_machine_has_50_tags_at_most() -> None:
    def of(count: int) -> dict[str, Any]:
        return {"name": "a", "tags": {f"t{n}": "v" for n in range(count)}}

    fleet_file.flatten(read(machine=[of(50)]))
    refused = refusal_of(machine=[of(51)])
    assert refused.code is ErrorCode.LIMIT
    assert refused.facts == {"where": "machine[0]"}
    assert refused.message.startswith("at machine[0].tags: ")


@pytest.mark.parametrize("field", ["subnet", "public_address", "ipv6_address"])
def test_a_network_field_is_checked(field: str) -> None:
    refused = refusal_of(machine=[{"name": "a", field: "nonsense"}])
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "machine[0]"}
    assert refused.message.startswith(f"at machine[0].{field}: ")


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
    "machine",
    [{"host": "h\n1"}, {"tags": {"a\x00": "b"}}, {"tags": {"a": "b\t"}}],
)
def test_text_that_cannot_be_printed_is_refused(machine: dict[str, Any]) -> None:
    refused = refusal_of(machine=[{"name": "a", **machine}])
    assert refused.code is ErrorCode.INVALID
    assert refused.facts == {"where": "machine[0]"}
    assert refused.message.startswith("at machine[0]: ")


def test_a_fleet_has_200_000_machines_at_most() -> None:
    def of(count: int) -> fleet_file.Fleet:
        machines = tuple(fleet_file.NamedMachine(name=f"m{n}") for n in range(count))
        return fleet_file.Fleet(
            availability_set=(fleet_file.AvailabilitySet(name="s", machines=machines),)
        )

    (group,) = fleet_file.flatten(of(200_000))
    assert len(group.members) == 200_000
    with pytest.raises(Refused) as refusal:
        fleet_file.flatten(of(200_001))
    assert refusal.value.code is ErrorCode.LIMIT
    assert refusal.value.facts == {"machines": 200_001, "most": 200_000}


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


def test_too_many_machines_are_refused_before_any_is_looked_at() -> None:
    """They are all wrong: their one name is no name."""
    wrong = fleet_file.StandaloneMachine(name="_")
    too_many = (wrong,) * (fleet_file.MAX_MACHINES + 1)
    with pytest.raises(Refused) as refused:
        fleet_file.flatten(fleet_file.Fleet(machine=too_many))
    assert refused.value.code is ErrorCode.LIMIT
    empty = fleet_file.AvailabilitySet(name="_")
    with pytest.raises(Refused) as refused:
        fleet_file.flatten(
            fleet_file.Fleet(availability_set=(empty,) * (fleet_file.MAX_MACHINES + 1))
        )
    assert refused.value.code is ErrorCode.LIMIT


def test_only_ascii_letters_have_cases_in_names() -> None:
    assert key("Work-0") == "work-0"
    assert key("wor\N{KELVIN SIGN}-0") == "wor\N{KELVIN SIGN}-0"
    assert key("\N{LATIN CAPITAL LETTER A WITH DIAERESIS}B") == (
        "\N{LATIN CAPITAL LETTER A WITH DIAERESIS}b"
    )
