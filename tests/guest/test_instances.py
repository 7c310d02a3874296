"""What a machine reads about itself."""

from forewarn.maintenance.model import Profile
from forewarn.server.guest import instances
from forewarn.vocabulary import Priority, ScopeKind
from guest import room


def test_a_machine_of_a_scale_set_reads_its_place_and_its_profile() -> None:
    machine = room.machine(
        "batch_0",
        "10.0.1.10",
        scope="batch",
        update_domain=1,
        fault_domain=2,
        tags=(("role", "leader"), ("tier", "1")),
        profile=Profile(
            location="west",
            os_type="Windows",
            vm_size="Standard_A3",
            zone="3",
            resource_group="shop",
            subscription_id="42",
            computer_name="leader.example",
            mac_address="00:0d:3a:00:fa:89",
            public_address="203.0.113.7",
            subnet="10.0.1.0/24",
            ipv6_address="fd00::10",
        ),
    )
    scope = room.scope("batch", kind=ScopeKind.SCALE_SET, priority=Priority.LOW)
    assert instances.tree(machine, scope) == {
        "compute": {
            "azEnvironment": "AzurePublicCloud",
            "location": "west",
            "name": "batch_0",
            "osType": "Windows",
            "placementGroupId": "batch",
            "platformFaultDomain": "2",
            "platformUpdateDomain": "1",
            "priority": "Low",
            "resourceGroupName": "shop",
            "resourceId": "/subscriptions/42/resourceGroups/shop/providers/Microsoft.Compute"
            "/virtualMachines/batch_0",
            "subscriptionId": "42",
            "tags": "role:leader;tier:1",
            "tagsList": [{"name": "role", "value": "leader"}, {"name": "tier", "value": "1"}],
            "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6",
            "vmScaleSetName": "batch",
            "vmSize": "Standard_A3",
            "zone": "3",
            "osProfile": {"computerName": "leader.example"},
        },
        "network": {
            "interface": [
                {
                    "ipv4": {
                        "ipAddress": [
                            {"privateIpAddress": "10.0.1.10", "publicIpAddress": "203.0.113.7"}
                        ],
                        "subnet": [{"address": "10.0.1.0", "prefix": "24"}],
                    },
                    "ipv6": {"ipAddress": [{"privateIpAddress": "fd00::10"}]},
                    "macAddress": "000D3A00FA89",
                }
            ]
        },
    }


def test_what_does_not_apply_is_empty_and_the_host_name_is_the_machine_s_own() -> None:
    instance = instances.described(room.machine("bastion"), room.scope("bastion"))
    assert (instance.placement_group_id, instance.vm_scale_set_name) == ("", "")
    assert (instance.resource_id, instance.private_ip_address) == ("", "")
    assert (instance.subnet_address, instance.subnet_prefix) == ("", "")
    assert instance.ipv6_addresses == ()
    assert instance.computer_name == "bastion"
    assert instance.priority == "Regular"


def test_a_resource_id_needs_both_its_subscription_and_its_group() -> None:
    for profile in (Profile(subscription_id="42"), Profile(resource_group="shop")):
        machine = room.machine("bastion", profile=profile)
        assert instances.described(machine, room.scope("bastion")).resource_id == ""


def test_an_ipv6_address_stands_where_those_stand_and_once() -> None:
    machine = room.machine("six", "fd00::6", profile=Profile(ipv6_address="fd00::6"))
    instance = instances.described(machine, room.scope("six"))
    assert instance.private_ip_address == ""
    assert instance.ipv6_addresses == ("fd00::6",)
