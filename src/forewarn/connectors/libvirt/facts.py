"""The program's orders and sights: values, without libvirt."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from xml.etree import ElementTree as ET

MARKER_URI = "urn:forewarn:task:1"
"""The namespace of the marker in a domain's metadata; only this connector writes it."""


class Act(StrEnum):
    """The kinds of work on a machine."""

    PAUSE = "pause"
    REBOOT = "reboot"
    MOVE = "move"
    DELETE = "delete"


class MoveBy(StrEnum):
    """The ways to move a running machine."""

    LIVE = "live"
    LIVE_OR_COLD = "live-or-cold"
    COLD = "cold"


class MarkerPhase(StrEnum):
    """The progress of an operation, by its marker."""

    BEGUN = "begun"
    PAUSED = "paused"
    """A Freeze has paused the machine: only the resume is left."""
    RESTARTED = "restarted"
    """The copy of the marker that a boot makes live: a live one proves that the machine booted."""
    COLD = "cold"
    """A move that shuts the machine down."""
    OFFLINE = "offline"
    """A move of a machine that was off, and stays off."""
    DONE = "done"


PAUSED, OFF, CRASHED, SUSPENDED_TO_MEMORY = 3, 5, 6, 7
"""The numbers of a domain's state, VIR_DOMAIN_*, that are not RUNNING here."""

HANDED_OVER = frozenset({2, 11, 12, 13})
"""The reasons of VIR_DOMAIN_PAUSED_* that a migration's two copies have."""

OFF_REASONS = (
    *("unknown", "shutdown", "destroyed", "crashed", "migrated", "saved", "failed"),
    *("from-snapshot", "daemon"),
)
"""The names of VIR_DOMAIN_SHUTOFF_*, by number."""


class DomainState(StrEnum):
    """The state of a domain on one host."""

    RUNNING = "running"
    PAUSED = "paused"
    OFF = "off"
    CRASHED = "crashed"
    """Its processor has stopped for good, but its process is there."""


def state_of(number: int, reason: int, *, active: bool) -> tuple[DomainState, bool]:
    """Map libvirt's numbers to the state, and to True for one of a migration's two copies."""
    if not active:
        return DomainState.OFF, False
    if number in {PAUSED, SUSPENDED_TO_MEMORY}:
        return DomainState.PAUSED, number == PAUSED and reason in HANDED_OVER
    # A domain that is active and "off" was kept as it ended.
    return (DomainState.CRASHED if number in {OFF, CRASHED} else DomainState.RUNNING), False


def off_reason(number: int, reason: int) -> str:
    """Name the reason why a domain is off, from libvirt's numbers."""
    if number == CRASHED:
        return "crashed"
    known = number == OFF and 0 <= reason < len(OFF_REASONS)
    return OFF_REASONS[reason if known else 0]


@dataclass(frozen=True, kw_only=True)
class Marker:
    """The record of an operation in the metadata of a domain."""

    operation: str
    started_at: str
    attempt: int
    phase: MarkerPhase
    source: str = ""
    target: str = ""
    autostart: bool = False
    """Before a move, the machine started with its host: libvirt moves all of it but that."""

    def xml(self) -> str:
        """Return it as an element for libvirt, which adds the namespace."""
        values = {
            "operation": self.operation,
            "started-at": self.started_at,
            "attempt": str(self.attempt),
            "phase": self.phase.value,
            "source": self.source,
            "target": self.target,
            "autostart": "yes" if self.autostart else "no",
        }
        return ET.tostring(ET.Element("task", values), encoding="unicode")


def marker_of(xml: str) -> Marker | None:
    """Return the marker that a metadata element holds; None if it is not one of ours."""
    try:
        element = ET.fromstring(xml)  # noqa: S314 - a few attributes, from the hypervisor itself
        return Marker(
            operation=element.attrib["operation"],
            started_at=element.attrib["started-at"],
            attempt=int(element.attrib["attempt"]),
            phase=MarkerPhase(element.attrib["phase"]),
            source=element.get("source", ""),
            target=element.get("target", ""),
            autostart=element.get("autostart") == "yes",
        )
    except (ET.ParseError, KeyError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class DomainSight:
    """A machine as one host has it."""

    name: str
    state: DomainState
    memory_mib: int = 0
    persistent: bool = True
    job: bool = False
    """Something is under way that excludes other work, such as a migration."""
    handed_over: bool = False
    """Paused by a migration: its other copy may run."""
    live: Marker | None = None
    """The marker of the running machine; None where it is off."""
    config: Marker | None = None
    """The marker of the definition, which the next boot makes the live one."""
    restarts_on_poweroff: bool = False
    """`on_poweroff` is `restart`: it never goes off by its button."""
    saved: bool = False
    """It is off, and its memory is in a file of this host, from which its next start here goes
    on."""
    autostart: bool = False
    """It starts with its host. Read for a move only, as `saved` is."""

    @property
    def active(self) -> bool:
        """True if it has a process."""
        return self.state is not DomainState.OFF

    @property
    def marker(self) -> Marker | None:
        """The marker that counts: the live one of an active machine."""
        return self.live if self.active else self.config


@dataclass(frozen=True, kw_only=True)
class HostSight:
    """A host, and what it has of one machine."""

    name: str
    answers: bool = True
    why: str = ""
    boot_id: str = ""
    """Read only where the machine is off and the order waits for another one: it may be an SSH for
    each look of each machine."""
    host_id: str = ""
    """libvirt's own id of the host: a machine cannot move to its current host."""
    target: bool = True
    """Machines may move there, as the settings say."""
    free_memory_mib: int = 0
    domain: DomainSight | None = None
    name_taken: bool = False
    """Another machine has the name there."""


@dataclass(frozen=True, kw_only=True)
class HostAddress:
    """The addresses and commands of a host, as in `connectors.settings.LibvirtHost`."""

    name: str
    uri: str
    migrate_uri: str
    targets: bool
    memory_mib: int
    reboot: Sequence[str]
    """The command that reboots it; empty where there is none."""
    boot_id: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Migration:
    """The way in which machines migrate."""

    by: str = "direct"
    disks: str = "shared"
    unsafe: bool = False
    auto_converge: bool = True
    bandwidth_mib: int = 0
    tls: bool = False


@dataclass(frozen=True, kw_only=True)
class Order:
    """One machine's part of a task, and the settings that it is carried out by."""

    operation: str
    started_at: str
    attempt: int
    machine: str
    vm_id: str
    act: Act
    host: str = ""
    """The machine's host by the fleet; empty where unknown."""
    way: MoveBy = MoveBy.LIVE
    pause_seconds: float = 5.0
    to_host: str = ""
    closed_hosts: frozenset[str] = frozenset()
    unforeseen: bool = False
    """The machine failed without notice: start it if it is off, leave it alone if it runs."""
    host_boot_id: str = ""
    """Start it again only when its host has another boot id."""
    again: bool = False
    """An earlier run of this task may have begun."""
    shutdown_seconds: float = 120.0
    force: bool = True
    retry_seconds: float = 300.0
    delete_disks: bool = False
    migration: Migration = field(default_factory=Migration)
    hosts: tuple[HostAddress, ...] = ()

    def marker(
        self,
        phase: MarkerPhase,
        source: str = "",
        target: str = "",
        *,
        autostart: bool = False,
    ) -> Marker:
        """Return this attempt's marker."""
        return Marker(
            operation=self.operation,
            started_at=self.started_at,
            attempt=self.attempt,
            phase=phase,
            source=source,
            target=target,
            autostart=autostart,
        )

    def owns(self, marker: Marker | None) -> bool:
        """Return True if a marker is of this operation, by any attempt."""
        return marker is not None and (marker.operation, marker.started_at) == (
            self.operation,
            self.started_at,
        )

    def precedes(self, marker: Marker) -> bool:
        """Return True if a marker is of a later operation, by its time and by its number.

        The clock may have been set back since an earlier one, and a new database counts
        from 1.
        """
        is_later = _numbers(marker.operation) > _numbers(self.operation)
        return is_later and marker.started_at > self.started_at


def _numbers(operation: str) -> list[int]:
    return [int(digits) for digits in re.findall("[0-9]+", operation)]


ACTS = {
    "Freeze": Act.PAUSE,
    "Reboot": Act.REBOOT,
    "Redeploy": Act.MOVE,
    "Preempt": Act.DELETE,
    "Terminate": Act.DELETE,
}


def order_of(told: dict[str, Any]) -> Order:
    """Return the order in the JSON object that the connector writes.

    Raises:
        KeyError, ValueError, TypeError: It is not such an object.
    """
    given = told["libvirt"]
    act, way = ACTS[told["event_type"]], MoveBy(given["redeploy"])
    moves = bool(told["live_migration"]) or given["freeze"] == "migrate"
    if act is Act.PAUSE and moves:
        act, way = Act.MOVE, MoveBy.LIVE
    announced, pause = told["duration_seconds"], given["freeze_seconds"]
    said = given | told
    changed = {
        "started_at": _instant(told["started_at"]),
        "act": act,
        "way": way,
        "pause_seconds": min(pause, announced) if announced > 0 else pause,
        "closed_hosts": frozenset(told["closed_hosts"]),
        "migration": Migration(**given["migration"]),
        "hosts": hosts_of(given),
    }
    as_said = {each.name: said[each.name] for each in fields(Order) if each.name in said}
    return Order(**as_said | changed)


def _instant(text: str) -> str:
    """Return a time in the one form whose texts compare as times do."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def hosts_of(given: dict[str, Any]) -> tuple[HostAddress, ...]:
    """Return the hosts in the settings that the connector writes."""
    return tuple(HostAddress(**each) for each in given["hosts"])


# The XML of domains, networks and filters: what a fleet is made of.

TAG_URI = "urn:forewarn:machine:1"
"""The namespace of the tag: `<machine scope= update-domain= name= address=/>`."""

TAG_FIELDS = ("scope", "update-domain", "name", "address")

MAX_FILTERS = 100
"""The most filters that one filter may lead to: more are a circle."""

ENFORCING = frozenset({"no-ip-spoofing", "clean-traffic", "clean-traffic-gateway"})
"""libvirt's own filters that let a guest send from its parameter IP only."""


def parse(xml: str) -> ET.Element:
    """Parse XML that libvirt wrote."""
    return ET.fromstring(xml)  # noqa: S314 - of the hypervisor itself


def tag_xml(tag: Mapping[str, str]) -> str:
    """Return the element that is written into a domain's metadata."""
    element = ET.Element("machine", {name: tag[name] for name in TAG_FIELDS if tag.get(name)})
    return ET.tostring(element, encoding="unicode")


def tag_of(machine: ET.Element) -> dict[str, str]:
    """Return the tag that an element holds."""
    return {name: machine.get(name, "") for name in TAG_FIELDS}


def tag_in(domain: ET.Element) -> dict[str, str] | None:
    """Return the tag in a domain's XML; None if it has none."""
    found = domain.find(f"metadata/{{{TAG_URI}}}machine")
    return None if found is None else tag_of(found)


def interfaces_of(
    domain: ET.Element,
    networks: Mapping[str, Mapping[str, str]],
    filters: Mapping[str, ET.Element],
) -> list[dict[str, Any]]:
    """Return a domain's interfaces, as `fleet_import.NetworkInterface` has them.

    Args:
        domain: The domain's XML.
        networks: The addresses that each network reserves, by MAC address.
        filters: The XML of each filter.
    """
    found: list[dict[str, Any]] = []
    for interface in domain.iterfind("devices/interface"):
        address, source = interface.find("mac"), interface.find("source")
        filtered = interface.find("filterref")
        mac = "" if address is None else address.get("address", "").lower()
        network = "" if source is None else source.get("network", "")
        given = [] if filtered is None else filtered.findall("parameter")
        # With several, the guest may use each of them: the first is its main one.
        ip = next((each.get("value", "") for each in given if each.get("name") == "IP"), "")
        name = "" if filtered is None else filtered.get("filter", "")
        found.append(
            {
                "mac": mac,
                "ip": ip,
                "enforced": bool(ip) and spoof_proof(name, filters),
                "reserved": networks.get(network, {}).get(mac, ""),
            }
        )
    return found


def reserved_of(network: ET.Element) -> dict[str, str]:
    """Return the addresses that a network reserves, by MAC address."""
    return {
        host.get("mac", "").lower(): host.get("ip", "")
        for host in network.iterfind("ip/dhcp/host")
        if host.get("mac") and host.get("ip")
    }


def spoof_proof(name: str, filters: Mapping[str, ET.Element]) -> bool:
    """Return True if a filter, or one that it leads to, lets a guest send from its IP only."""
    seen: set[str] = set()
    waiting = [name]
    while waiting and len(seen) < MAX_FILTERS:
        name = waiting.pop()
        if name in ENFORCING:
            return True
        if name in seen or name not in filters:
            continue
        seen.add(name)
        waiting += [each.get("filter", "") for each in filters[name].iterfind("filterref")]
    return False
