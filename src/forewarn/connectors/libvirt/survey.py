"""What the hosts are like: memory, guests, and what keeps a guest from moving while it runs."""

from typing import Any, Final
from xml.etree import ElementTree as ET

import libvirt

from forewarn.connectors.libvirt import hypervisor
from forewarn.connectors.libvirt.facts import HostAddress, State
from forewarn.connectors.libvirt.hypervisor import Hypervisors

HOST_SECONDS: Final = 10.0
"""How long a host may take: the others are told of in time all the same."""


def survey(hypervisors: Hypervisors) -> dict[str, dict[str, object]]:
    """Return the facts of each host by its name, as the port's HostFacts has them."""
    names = [address.name for address in hypervisors.addresses]
    return dict(zip(names, hypervisors.ask(_facts, _dark, HOST_SECONDS), strict=True))


def _dark(host: HostAddress, why: str) -> dict[str, object]:
    return {"answers": False, "why": why, "target": host.target, "can_reboot": host.reboot}


def _facts(host: HostAddress, connection: Any) -> dict[str, object]:  # noqa: ANN401 - untyped
    boot_id = hypervisor.boot_id_of(host)
    guests = [_guest(domain) for domain in connection.listAllDomains()]
    return {
        "answers": True,
        "boot_id": boot_id,
        "free_memory_mib": hypervisor.free_memory(host, connection),
        "target": host.target,
        # Without a boot id nothing would prove the reboot.
        "can_reboot": host.reboot and bool(boot_id),
        "guests": [guest for guest in guests if guest],
    }


def _guest(domain: Any) -> dict[str, object]:  # noqa: ANN401 - untyped
    """Return the facts of a guest; {} if it is gone meanwhile."""
    try:
        state, _ = hypervisor.state_of(domain)
        return {
            "vm_id": domain.UUIDString(),
            "name": domain.name(),
            "running": state is not State.OFF,
            "memory_mib": domain.maxMemory() // 1024,
            "obstacles": _obstacles(domain, state),
        }
    except libvirt.libvirtError as error:
        if error.get_error_code() == hypervisor.NO_DOMAIN:
            return {}
        raise


def _obstacles(domain: Any, state: State) -> list[str]:  # noqa: ANN401 - untyped
    if state is State.OFF:
        return ["it is off"]
    found = []
    if state is not State.RUNNING:
        found.append(f"it is {state}")
    if hypervisor.has_job(domain):
        found.append("a job is under way")
    devices = ET.fromstring(domain.XMLDesc(0)).find("devices")  # noqa: S314 - of libvirt
    for device in () if devices is None else devices:
        if device.tag == "hostdev" and device.find("teaming") is None:
            found.append(f"it has a device of its host ({device.get('type', 'unknown')})")
        if device.tag == "filesystem":
            found.append("it has a folder of its host")
    if domain.isPersistent() and domain.snapshotNum():
        found.append("it has snapshots")
    return found
