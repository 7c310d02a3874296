"""What a machine reads about itself: its place in the fleet as its instance tree."""

import ipaddress

from forewarn.maintenance.model import Machine, Scope
from forewarn.protocol import instance
from forewarn.vocabulary import Priority, ScopeKind

_PRIORITIES = {Priority.REGULAR: "Regular", Priority.LOW: "Low"}
"""As the original spells them."""


def tree(machine: Machine, scope: Scope) -> dict[str, instance.Tree]:
    """Return the whole instance tree of a machine (protocol.md section 1)."""
    return instance.tree(described(machine, scope))


def described(machine: Machine, scope: Scope) -> instance.Instance:
    """Return what the tree of a machine says.

    A scale set's placement group has no GUID here, so `placementGroupId` is the scope's name: a
    client only compares it.
    """
    profile = machine.profile
    in_scale_set = scope.kind is ScopeKind.SCALE_SET
    subnet_address, _, subnet_prefix = profile.subnet.partition("/")
    ipv4, ipv6 = _addresses(machine)
    return instance.Instance(
        name=machine.name,
        vm_id=machine.vm_id,
        az_environment=profile.azure_environment,
        location=profile.location,
        os_type=profile.os_type,
        placement_group_id=scope.name if in_scale_set else "",
        platform_fault_domain=str(machine.fault_domain),
        platform_update_domain=str(machine.update_domain),
        priority=_PRIORITIES[scope.priority],
        resource_group_name=profile.resource_group,
        resource_id=_resource_id(machine),
        subscription_id=profile.subscription_id,
        tags=machine.tags,
        vm_scale_set_name=scope.name if in_scale_set else "",
        vm_size=profile.vm_size,
        zone=profile.zone,
        computer_name=profile.computer_name or machine.name,
        private_ip_address=ipv4,
        public_ip_address=profile.public_address,
        subnet_address=subnet_address,
        subnet_prefix=subnet_prefix,
        ipv6_addresses=ipv6,
        mac_address=profile.mac_address.replace(":", "").replace("-", "").upper(),
    )


def _addresses(machine: Machine) -> tuple[str, tuple[str, ...]]:
    """Return the IPv4 address, `""` for none, and the IPv6 ones."""
    others = tuple(filter(None, [machine.profile.ipv6_address]))
    if machine.address and ipaddress.ip_address(machine.address).version == 6:
        return "", tuple(dict.fromkeys((machine.address, *others)))
    return machine.address, others


def _resource_id(machine: Machine) -> str:
    profile = machine.profile
    if not profile.subscription_id or not profile.resource_group:
        return ""
    return (
        f"/subscriptions/{profile.subscription_id}/resourceGroups/{profile.resource_group}"
        f"/providers/Microsoft.Compute/virtualMachines/{machine.name}"
    )
