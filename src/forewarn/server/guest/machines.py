"""Finds the machine that is asking, its instance tree, and the time of its latest request."""

import ipaddress
import socket
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from forewarn.maintenance.model import Changes, Machine, Profile, Scope, Sighting
from forewarn.protocol import exchange, instance
from forewarn.protocol.codec import AgentReport
from forewarn.protocol.exchange import CallerHint, Claim
from forewarn.protocol.message import ascii_lower
from forewarn.server.guest.limits import Bucket, Reason
from forewarn.vocabulary import Priority, ScopeKind

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LastRequest: TypeAlias = tuple[datetime, str]
"""The time of a machine's latest request for its events, in whole seconds, and its api-version."""


class Proxies:
    """The proxies of a listener: trusted by their address, and then only as far as they sign.

    Those `without_header` are known to drop the guest's `Metadata: true`.
    """

    def __init__(self, networks: Iterable[Network], *, without_header: bool = False) -> None:
        self._networks = tuple(networks)
        self.without_header = without_header
        self.secrets: tuple[bytes, ...] = ()
        """Any of them is right; replaced when they are changed, also under open connections."""

    def trusts(self, address: str) -> bool:
        """Return True if a peer is one of them, whatever zone its address has."""
        try:
            peer = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(peer in network for network in self._networks)


class Source(exchange.Peer, frozen=True, kw_only=True):
    """The source of a connection."""

    listener: str = ""
    default_vm: str = ""
    """The key of the machine that asks where the request does not name one; `""` for none."""
    proxies: Proxies | None = None
    """The listener's proxies, if the peer is one of them."""

    @property
    def is_shared(self) -> bool:
        """Return True if many machines ask from this one address."""
        return self.vm_paths or self.trusted_proxy


def network_of(address: str) -> str:
    """Return the network that an address stands for: the address, of IPv6 its /64.

    A guest with an IPv6 address may have the other 2**64 of its link as well. Link-local ones have
    a zone, are a neighbour's each, and stay apart.
    """
    if ":" not in address or "%" in address:
        return address
    link = socket.inet_pton(socket.AF_INET6, address)[:8]
    return f"{socket.inet_ntop(socket.AF_INET6, link + bytes(8))}/64"


def normalised(host: str) -> str:
    """Return an address as the fleet writes it: IPv4 even if it came mapped into IPv6.

    A link-local address keeps its zone, the interface of its packets. Other text (a peer without a
    name) is returned as it is.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class Caller(Bucket):
    """The record of a machine that asks: its token bucket, and its latest request."""

    __slots__ = ("agent", "last_request")

    def __init__(self) -> None:
        super().__init__()
        self.last_request: LastRequest | None = None
        self.agent: AgentReport | None = None


class Registry:
    """The machines by name, address and vmId, kept by the changefeed.

    Used on the event loop, but for `seen`, which any thread may ask. Equal scope keys, hosts and
    profiles that come together are kept as one object each: there may be 100,000 machines. Machines
    are found by their vmId where they are `proxied`: only trusted proxies name it.
    """

    def __init__(self, *, proxied: bool = False) -> None:
        self._proxied = proxied
        self.machines: dict[str, Machine] = {}
        """All machines by key, always as of the last change: the one copy in memory."""
        self._by_address: dict[str, dict[str, Machine]] = {}
        """By the listener's name, then by address: two bridges may hold equal ones."""
        self._by_vm_id: dict[str, Machine] = {}
        self._networks: Counter[tuple[str, str]] = Counter()
        """The number of machines in each listener's IPv6 networks."""
        self._callers = defaultdict[str, Caller](Caller)
        self._last_request: LastRequest | None = None
        self.seen_count = 0
        """The number of machines that have asked for their events since the start."""
        self.on_news: Callable[[str], None] | None = None
        """Called with the key of a machine that asks first, or whose agent says something new."""

    def learn(self, changes: Changes) -> None:
        """Follow changes."""
        for key in changes.removed_machines:
            self._remove(key)
        self._put(changes.machines)

    def _put(self, machines: Iterable[Machine]) -> None:
        names: dict[str, str] = {}
        profiles: dict[Profile, Profile] = {}
        for machine in machines:
            key = machine.key
            before = self.machines.get(key)
            if before is not None:
                self._forget_ways_to(before)
            # A machine that is a scope of its own has one key for both.
            scope = key if machine.scope == key else names.setdefault(machine.scope, machine.scope)
            _replace_by_equals(
                machine,
                scope=scope,
                host=names.setdefault(machine.host, machine.host),
                listener=names.setdefault(machine.listener, machine.listener),
                profile=profiles.setdefault(machine.profile, machine.profile),
            )
            self.machines[key] = machine
            if machine.address:
                self._by_address.setdefault(machine.listener, {})[machine.address] = machine
                self._count_network(machine, 1)
            if self._proxied:
                self._by_vm_id[machine.vm_id] = machine

    def _remove(self, key: str) -> None:
        machine = self.machines.pop(key, None)
        if machine is not None:
            self._forget_ways_to(machine)
        caller = self._callers.pop(key, None)
        if caller is not None and caller.last_request is not None:
            self.seen_count -= 1

    def _count_network(self, machine: Machine, change: int) -> None:
        if ":" in machine.address:
            key = machine.listener, network_of(machine.address)
            self._networks[key] += change
            if not self._networks[key]:
                del self._networks[key]

    def _forget_ways_to(self, machine: Machine) -> None:
        self._count_network(machine, -1)
        there = self._by_address.get(machine.listener, {})
        if there.get(machine.address) is machine:
            del there[machine.address]
        if self._by_vm_id.get(machine.vm_id) is machine:
            del self._by_vm_id[machine.vm_id]

    def find(self, source: Source, told: CallerHint) -> Machine | Reason:
        """Return the machine that asks, or the reason why there is none (protocol.md section 10).

        The request's own hint, a proxy's claim or a `/vm/NAME` prefix, counts alone where it is.
        """
        # Not by `model.key`: Python 3.12 keeps for ever what that interns.
        if isinstance(told, Claim):
            return self._of_claim(source, told)
        if told is not None:
            return self.machines.get(ascii_lower(told)) or Reason.UNKNOWN_NAME
        return self.at(source) or Reason.UNKNOWN_ADDRESS

    def _of_claim(self, source: Source, claim: Claim) -> Machine | Reason:
        secrets = source.proxies.secrets if source.proxies is not None else ()
        if not exchange.is_signed(claim, secrets):
            return Reason.WRONG_SIGNATURE
        key = ascii_lower(claim.id.decode("utf-8", "replace"))
        return self._by_vm_id.get(key) or self.machines.get(key) or Reason.UNKNOWN_INSTANCE

    def at(self, source: Source) -> Machine | None:
        """Return the machine of an address at a listener, else its default one, else None.

        A link-local address is looked for with the interface of its packets, then without: a fleet
        whose listener has one interface need not name it.
        """
        there = self._by_address.get(source.listener, {})
        address = source.address
        machine = there.get(address)
        if machine is None and "%" in address:
            machine = there.get(address.partition("%")[0])
        if machine is None and source.default_vm:
            machine = self.machines.get(source.default_vm)
        return machine

    def network(self, source: Source) -> str:
        """Return the network whose connections count together with those of a source.

        It is the address alone in an IPv6 network of machines: no neighbour, registered or not, is
        to use up a machine's share there.
        """
        network = network_of(source.address)
        return source.address if (source.listener, network) in self._networks else network

    def caller(self, machine: Machine) -> Caller:
        """Return the record of a machine that asks; it lasts as long as it is in the fleet."""
        return self._callers[machine.key]

    def saw(
        self, machine: Machine, when: datetime, version: str, agent: AgentReport | None = None
    ) -> None:
        """Note that a machine asked for its events, or approved some, and its agent's report."""
        last = (when, version)
        if last == self._last_request:
            last = self._last_request  # one object for all that ask so in this second
        self._last_request = last
        caller = self.caller(machine)
        is_news = caller.last_request is None or (agent is not None and agent != caller.agent)
        if caller.last_request is None:
            self.seen_count += 1
        caller.last_request = last
        caller.agent = agent or caller.agent
        if is_news and self.on_news is not None:
            self.on_news(machine.key)

    def seen(self, machine_key: str) -> Sighting | None:
        """Return a machine's latest request; None if it has not asked since the start.

        Any thread may ask: the values are replaced, never changed.
        """
        caller = self._callers.get(machine_key)
        if caller is None or (last := caller.last_request) is None:
            return None
        asked_at, version = last
        agent = caller.agent
        if agent is None:
            return Sighting(asked_at=asked_at, version=version)
        return Sighting(asked_at=asked_at, version=version, agent=agent.status, reason=agent.reason)


# Equal objects in the place of a frozen value's own: only the memory can tell.
def _replace_by_equals(machine: Machine, **equals: str | Profile) -> None:
    for name, equal in equals.items():
        msgspec.structs.force_setattr(machine, name, equal)


_PRIORITIES: Final = {None: "", Priority.REGULAR: "Regular", Priority.LOW: "Spot"}
"""As Azure spells them."""

DEFAULT_NAME: Final = "forewarn"
"""The location, the resource group and the size of a machine whose fleet file gives none."""


def described(machine: Machine, scope: Scope) -> instance.Instance:
    """Return the values of a machine's instance tree (protocol.md section 1).

    A scale set's placement group has no GUID here, so `placementGroupId` is the scope's name: a
    client only compares it. Clients need a location, a resource group, a size and a MAC address, so
    these have defaults; the default MAC address is locally administered and made from the vm_id.
    """
    profile = machine.profile
    in_scale_set = scope.kind is ScopeKind.SCALE_SET
    subnet_address, _, subnet_prefix = profile.subnet.partition("/")
    ipv4, ipv6 = _addresses(machine)
    return instance.Instance(
        name=machine.name,
        vm_id=machine.vm_id,
        az_environment=profile.azure_environment,
        location=profile.location or DEFAULT_NAME,
        os_type=profile.os_type,
        placement_group_id=scope.name if in_scale_set else "",
        platform_fault_domain=str(machine.fault_domain),
        platform_update_domain=str(machine.update_domain),
        priority=_PRIORITIES[scope.priority],
        resource_group_name=profile.resource_group or DEFAULT_NAME,
        resource_id=_resource_id(machine, scope),
        subscription_id=profile.subscription_id,
        tags=machine.tags,
        vm_scale_set_name=scope.name if in_scale_set else "",
        vm_size=profile.vm_size or DEFAULT_NAME,
        zone=profile.zone,
        computer_name=profile.computer_name or machine.name,
        private_ip_address=ipv4,
        public_ip_address=profile.public_address,
        subnet_address=subnet_address,
        subnet_prefix=subnet_prefix,
        ipv6_addresses=ipv6,
        mac_address=_bare(profile.mac_address or f"02{_bare(machine.vm_id)[:10]}"),
    )


def _addresses(machine: Machine) -> tuple[str, tuple[str, ...]]:
    both = (machine.address, machine.profile.ipv6_address)
    own, other = (address.partition("%")[0] for address in both)  # without the host's interface
    ipv4 = "" if ":" in own else own
    return ipv4, tuple(dict.fromkeys(filter(None, ("" if ipv4 else own, other))))


def _bare(written: str) -> str:
    return written.replace(":", "").replace("-", "").upper()


def _resource_id(machine: Machine, scope: Scope) -> str:
    profile = machine.profile
    if not profile.subscription_id:
        return ""
    below = f"virtualMachines/{machine.name}"
    if scope.kind is ScopeKind.SCALE_SET:
        index = machine.name.rpartition("_")[2]
        below = f"virtualMachineScaleSets/{scope.name}/virtualMachines/{index}"
    return (
        f"/subscriptions/{profile.subscription_id}"
        f"/resourceGroups/{profile.resource_group or DEFAULT_NAME}"
        f"/providers/Microsoft.Compute/{below}"
    )
