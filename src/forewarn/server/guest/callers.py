"""Who is asking: the machine behind a connection, and when it last asked."""

import ipaddress
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from forewarn.maintenance import model
from forewarn.maintenance.model import Changes, Machine, Operation, Profile, Scope
from forewarn.protocol import exchange, identity
from forewarn.protocol.exchange import Told
from forewarn.protocol.identity import Claim
from forewarn.server.guest.proxies import Proxies
from forewarn.server.guest.rate import Bucket
from forewarn.server.guest.tally import Reason, Tally

Sighting: TypeAlias = tuple[datetime, str]
"""When a machine asked for its events, in whole seconds, and by which api-version."""


class Asked(Bucket):
    """What is kept of a machine that asks: its bucket, and when it last asked."""

    __slots__ = ("sighting",)

    def __init__(self) -> None:
        super().__init__()
        self.sighting: Sighting | None = None


class Source(exchange.Peer, frozen=True, kw_only=True):
    """Where a connection comes from."""

    listener: str = ""
    """The name of the listener that it came to."""
    default_vm: str = ""
    """The key of the machine that asks where nothing else tells; `""` for none."""
    proxies: Proxies | None = None
    """Who the peer is one of, if it is a trusted proxy."""

    @property
    def is_shared(self) -> bool:
        """Whether many machines ask from this one address."""
        return self.vm_paths or self.trusted_proxy


def normalised(host: str) -> str:
    """Return an address as the fleet writes it: IPv4 even if it came mapped into IPv6.

    A link-local address keeps its zone, the interface that it was heard on. What is no IP address
    (a peer without a name) is returned as it is.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def peer_host(peer: Sequence[Any] | None) -> str:
    """Return a peer's address, a link-local one with its zone; `""` for a peer without one.

    Args:
        peer: As a socket names it: for IPv6 the number of the interface stands apart, fourth.
    """
    if not peer:
        return ""
    host = str(peer[0])
    if len(peer) < 4 or not peer[3] or "%" in host:
        return host
    try:
        return f"{host}%{socket.if_indextoname(peer[3])}"
    except OSError:  # the interface went since
        return host


def _replace_by_equals(machine: Machine, **equals: str | Profile) -> None:
    """Put equal objects in the place of a frozen value's own: only the memory can tell."""
    for name, equal in equals.items():
        msgspec.structs.force_setattr(machine, name, equal)


class Registry:
    """The machines by name, address and vmId, kept by the feed; used on the event loop alone.

    Equal scope keys, hosts and profiles that come together are kept as one object each: there may
    be 100,000 machines.

    Args:
        tally: Where callers that are no machine are counted.
        proxied: Whether there are trusted proxies: only they name a machine by its vmId.
    """

    def __init__(self, tally: Tally, *, proxied: bool = False) -> None:
        self._tally = tally
        self._proxied = proxied
        self._machines: dict[str, Machine] = {}
        self._by_address: dict[str, dict[str, Machine]] = {}
        """By the listener's name, then by address: two bridges may hold equal ones."""
        self._by_vm_id: dict[str, Machine] = {}
        self._asked: dict[str, Asked] = {}
        self._seen_count = 0
        self._sighting: Sighting | None = None

    @property
    def machines(self) -> Mapping[str, Machine]:
        """Return all machines by key, always as of the last change: the one copy in memory."""
        return self._machines

    def fill(
        self,
        scopes: Iterable[Scope],
        machines: Iterable[Machine],
        operations: Iterable[Operation] = (),
    ) -> None:
        """Take the fleet as the store has it, before the first request.

        Args:
            scopes: Not looked at: a machine names its scope itself.
            machines: All of them.
            operations: Not looked at.
        """
        del scopes, operations
        self._put(machines)

    def learn(self, changes: Changes) -> None:
        """Follow what changed."""
        for key in changes.removed_machines:
            self._remove(key)
        self._put(changes.machines)

    def _put(self, machines: Iterable[Machine]) -> None:
        names: dict[str, str] = {}
        profiles: dict[Profile, Profile] = {}
        for machine in machines:
            key = model.key(machine.name)
            if key == machine.name:
                key = machine.name
            before = self._machines.get(key)
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
            self._machines[key] = machine
            if machine.address:
                self._by_address.setdefault(machine.listener, {})[machine.address] = machine
            if self._proxied:
                self._by_vm_id[machine.vm_id] = machine

    def _remove(self, key: str) -> None:
        machine = self._machines.pop(key, None)
        if machine is not None:
            self._forget_ways_to(machine)
        asked = self._asked.pop(key, None)
        if asked is not None and asked.sighting is not None:
            self._seen_count -= 1

    def _forget_ways_to(self, machine: Machine) -> None:
        """Forget its address and vmId, unless another machine has taken one over since."""
        there = self._by_address.get(machine.listener, {})
        if there.get(machine.address) is machine:
            del there[machine.address]
        if self._by_vm_id.get(machine.vm_id) is machine:
            del self._by_vm_id[machine.vm_id]

    def caller(self, source: Source, told: Told) -> Machine | Reason:
        """Return the machine that asks, or why there is none (protocol.md section 10).

        Args:
            source: Where its connection comes from.
            told: A proxy's claim or the name in a `/vm/NAME` prefix; where there is one, it alone
                counts.
        """
        found = self._caller(source, told)
        if isinstance(found, Reason):
            self._tally[found] += 1
        return found

    def _caller(self, source: Source, told: Told) -> Machine | Reason:
        if isinstance(told, Claim):
            return self._spoken_for(source, told)
        if told is not None:
            return self._machines.get(model.key(told)) or Reason.UNKNOWN_NAME
        machine = self.at(source.listener, source.address, source.default_vm)
        return machine or Reason.UNKNOWN_ADDRESS

    def _spoken_for(self, source: Source, claim: Claim) -> Machine | Reason:
        """Return the machine that a trusted proxy speaks for: by its vmId, else by its name."""
        secrets = source.proxies.secrets if source.proxies is not None else ()
        if not identity.is_signed(claim, secrets):
            return Reason.WRONG_SIGNATURE
        key = model.key(claim.id.decode("utf-8", "replace"))
        return self._by_vm_id.get(key) or self._machines.get(key) or Reason.UNKNOWN_INSTANCE

    def at(self, listener: str, address: str, default_vm: str) -> Machine | None:
        """Return the machine of an address at a listener, else its default one, else None.

        A link-local address is looked for with the interface it was heard on, then without: a
        fleet whose listener hears one interface need not name it.
        """
        there = self._by_address.get(listener, {})
        machine = there.get(address)
        if machine is None and "%" in address:
            machine = there.get(address.partition("%")[0])
        if machine is None and default_vm:
            machine = self._machines.get(default_vm)
        return machine

    def asked(self, machine: Machine) -> Asked:
        """Return what is kept of a machine that asks, as long as it is in the fleet."""
        key = machine.key
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = Asked()
        return asked

    def saw(self, machine: Machine, when: datetime, version: str) -> None:
        """Note that a machine asked for its events, or approved some.

        Args:
            machine: Who.
            when: In whole seconds.
            version: The api-version that it asked by.
        """
        sighting = (when, version)
        if sighting == self._sighting:
            sighting = self._sighting  # one object for all that ask so in this second
        self._sighting = sighting
        asked = self.asked(machine)
        if asked.sighting is None:
            self._seen_count += 1
        asked.sighting = sighting

    @property
    def seen_count(self) -> int:
        """How many machines have asked for their events since the start."""
        return self._seen_count

    def seen(self, machine_key: str) -> Sighting | None:
        """Return when a machine last asked and by which api-version; None if not since the start.

        Args:
            machine_key: The machine's key.
        """
        asked = self._asked.get(machine_key)
        return None if asked is None else asked.sighting
