"""The instance metadata: a tree of strings, its subtrees and its leaves (protocol.md section 1).

The names in the tree are also the names in paths, so they are here and not in the codec.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from forewarn.protocol.message import ascii_lower

INSTANCE_VERSIONS: Final[tuple[str, ...]] = (
    *("2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01"),
    *("2018-02-01", "2018-04-02", "2018-10-01"),
    *("2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01"),
    *("2019-08-15", "2019-11-01"),
    *("2020-06-01", "2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01"),
    *("2021-01-01", "2021-02-01", "2021-03-01", "2021-05-01", "2021-08-01", "2021-10-01"),
    *("2021-11-01", "2021-11-15", "2021-12-13"),
    *("2023-07-01", "2023-11-15"),
    *("2024-03-15", "2024-07-17"),
    "2025-04-07",
)
"""The instance service's own list, the oldest first (protocol.md section 1)."""

Tree: TypeAlias = "str | dict[str, Tree] | list[Tree]"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """The values of a machine's tree; `""` where one does not apply."""

    name: str
    """Letter for letter the string in an event's Resources."""
    vm_id: str = ""
    az_environment: str = ""
    location: str = ""
    os_type: str = ""
    placement_group_id: str = ""
    platform_fault_domain: str = ""
    platform_update_domain: str = ""
    priority: str = ""
    resource_group_name: str = ""
    resource_id: str = ""
    subscription_id: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    vm_scale_set_name: str = ""
    vm_size: str = ""
    zone: str = ""
    computer_name: str = ""
    """The host name inside the machine, which may differ from `name`."""
    private_ip_address: str = ""
    public_ip_address: str = ""
    subnet_address: str = ""
    """The network's address, such as `10.0.0.0`."""
    subnet_prefix: str = ""
    """Its length in bits, such as `24`."""
    ipv6_addresses: tuple[str, ...] = ()
    mac_address: str = ""


class NotInTree(LookupError):  # noqa: N818 - answered with 404
    """The tree has nothing at this path."""


MAX_INDEX_DIGITS: Final = 9
"""Digits of a list's index in a path; no list is longer than that."""


_ADDED: Final[dict[str, str]] = {
    "2017-08-01": "placementGroupId resourceGroupName subscriptionId tags",
    "2017-12-01": "vmScaleSetName zone",
    "2018-04-02": "plan publicKeys",
    "2018-10-01": "azEnvironment provider",
    "2019-02-01": "customData",
    "2019-03-11": "resourceId",
    "2019-06-01": "storageProfile",
    "2019-06-04": "tagsList",
    "2020-06-01": "isHostCompatibilityLayerVm securityProfile",
    "2020-07-15": "osProfile",
    "2020-09-01": "licenseType",
    "2020-10-01": "osProfile.disablePasswordAuthentication",
    "2020-12-01": "evictionPolicy priority",
    "2021-01-01": "userData",
    "2021-02-01": "storageProfile.resourceDisk",
    "2021-03-01": "extendedLocation virtualMachineScaleSet",
    "2021-10-01": "platformSubFaultDomain",
    "2021-11-01": "additionalCapabilities securityProfile.encryptionAtHost "
    "storageProfile.osDisk.encryptionSettings.diskEncryptionKey "
    "storageProfile.osDisk.encryptionSettings.keyEncryptionKey",
    "2021-11-15": "host hostGroup",
    "2021-12-13": "securityProfile.securityType",
    "2023-07-01": "storageProfile.imageReference.communityGalleryImageId "
    "storageProfile.imageReference.exactVersion "
    "storageProfile.imageReference.sharedGalleryImageId",
    "2023-11-15": "physicalZone",
    "2024-03-15": "isVmInStandbyPool",
}
"""The names that each version added below `compute`; all others were there from the first."""

ADDED_IN: Final[dict[tuple[str, ...], str]] = {
    ("compute", *name.split(".")): version
    for version, names in _ADDED.items()
    for name in names.split()
}
"""The version that added each path."""


def tree(instance: Instance, version: str) -> dict[str, Tree]:
    """Return the whole tree of an api-version, its names in the order of the answer."""
    whole: dict[str, Tree] = {
        "compute": _compute(instance),
        "network": {"interface": [_interface(instance)]},
    }
    return _as_of(version, whole)


def _as_of(version: str, here: dict[str, Tree], *path: str) -> dict[str, Tree]:
    return {
        name: _as_of(version, below, *path, name) if isinstance(below, dict) else below
        for name, below in here.items()
        if ADDED_IN.get((*path, name), "") <= version
    }


def _unknown(*names: str) -> dict[str, Tree]:
    return dict.fromkeys(names, "")


def _off(*names: str) -> dict[str, Tree]:
    """Truth values: a typed client takes a missing one, but cannot parse `""`."""
    return dict.fromkeys(names, "false")


def _compute(instance: Instance) -> dict[str, Tree]:
    """Return all that any version has, in the order of their names, as Azure's answers are."""
    return {
        "additionalCapabilities": _off("hibernationEnabled"),
        "azEnvironment": instance.az_environment,
        **_unknown("customData", "evictionPolicy"),
        "extendedLocation": _unknown("name", "type"),
        "host": _unknown("id"),
        "hostGroup": _unknown("id"),
        **_off("isHostCompatibilityLayerVm", "isVmInStandbyPool"),
        **_unknown("licenseType"),
        "location": instance.location,
        "name": instance.name,
        **_unknown("offer"),
        "osProfile": {
            **_unknown("adminUsername"),
            "computerName": instance.computer_name,
            **_off("disablePasswordAuthentication"),
        },
        "osType": instance.os_type,
        **_unknown("physicalZone"),
        "placementGroupId": instance.placement_group_id,
        "plan": _unknown("name", "product", "publisher"),
        "platformFaultDomain": instance.platform_fault_domain,
        **_unknown("platformSubFaultDomain"),
        "platformUpdateDomain": instance.platform_update_domain,
        "priority": instance.priority,
        **_unknown("provider"),
        "publicKeys": [],
        **_unknown("publisher"),
        "resourceGroupName": instance.resource_group_name,
        "resourceId": instance.resource_id,
        "securityProfile": {
            **_off("encryptionAtHost", "secureBootEnabled"),
            **_unknown("securityType"),
            **_off("virtualTpmEnabled"),
        },
        **_unknown("sku"),
        "storageProfile": _storage_profile(),
        "subscriptionId": instance.subscription_id,
        "tags": ";".join(f"{name}:{value}" for name, value in instance.tags),
        "tagsList": [{"name": name, "value": value} for name, value in instance.tags],
        **_unknown("userData", "version"),
        "virtualMachineScaleSet": {"id": _scale_set_id(instance)},
        "vmId": instance.vm_id,
        "vmScaleSetName": instance.vm_scale_set_name,
        "vmSize": instance.vm_size,
        "zone": instance.zone,
    }


def _storage_profile() -> dict[str, Tree]:
    return {
        "dataDisks": [],
        "imageReference": {
            **_unknown("communityGalleryImageId", "exactVersion", "id", "offer", "publisher"),
            **_unknown("sharedGalleryImageId", "sku", "version"),
        },
        "osDisk": {
            **_unknown("caching", "createOption"),
            "diffDiskSettings": _unknown("option"),
            "diskSizeGB": "0",
            "encryptionSettings": {
                "diskEncryptionKey": {**_unknown("secretUrl"), "sourceVault": _unknown("id")},
                **_off("enabled"),
                "keyEncryptionKey": {**_unknown("keyUrl"), "sourceVault": _unknown("id")},
            },
            "image": _unknown("uri"),
            "managedDisk": _unknown("id", "storageAccountType"),
            **_unknown("name", "osType"),
            "vhd": _unknown("uri"),
            **_off("writeAcceleratorEnabled"),
        },
        "resourceDisk": {"size": "0"},
    }


def _scale_set_id(instance: Instance) -> str:
    if not instance.vm_scale_set_name:
        return ""
    return instance.resource_id.rpartition("/virtualMachines/")[0]


def _interface(instance: Instance) -> dict[str, Tree]:
    ipv4 = _addresses(instance.private_ip_address, instance.public_ip_address)
    return {
        "ipv4": {
            "ipAddress": [ipv4],
            "subnet": [{"address": instance.subnet_address, "prefix": instance.subnet_prefix}],
        },
        "ipv6": {"ipAddress": [_addresses(address) for address in instance.ipv6_addresses]},
        "macAddress": instance.mac_address,
    }


def _addresses(private: str, public: str = "") -> dict[str, Tree]:
    return {"privateIpAddress": private, "publicIpAddress": public}


def as_text(tree: Tree) -> str:
    """Return a leaf bare, and of a subtree the names below it, a line each.

    A name with more below it has a slash behind it, so that a client can walk the tree.
    """
    if isinstance(tree, str):
        return tree
    below = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return "\n".join(f"{name}" if isinstance(each, str) else f"{name}/" for name, each in below)


def find(root: Tree, path: Sequence[str]) -> Tree:
    """Return the subtree at a path such as `("network", "interface", "0")`, in any ASCII case."""
    here = root
    for step in path:
        here = _below(here, step)
    return here


def _below(here: Tree, step: str) -> Tree:
    if isinstance(here, dict):
        wanted = ascii_lower(step)
        for name, below in here.items():
            if ascii_lower(name) == wanted:
                return below
    elif isinstance(here, list):
        is_index = step.isascii() and step.isdigit() and len(step) <= MAX_INDEX_DIGITS
        if is_index and int(step) < len(here):
            return here[int(step)]
    raise NotInTree(step)
