"""Who is asking: the machine behind a connection, and when it last asked."""

import ipaddress
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TypeAlias

import msgspec

from forewarn.maintenance import model
from forewarn.maintenance.model import Changes, Machine, Operation, Profile, Scope
from forewarn.protocol import exchange
from forewarn.server.guest.tally import Reason, Tally

Sighting: TypeAlias = tuple[datetime, str]
"""When a machine asked for its events, in whole seconds, and by which api-version."""


class Source(exchange.Peer, frozen=True, kw_only=True):
    """Where a connection comes from."""

    default_vm: str = ""
    """The key of the machine that asks where nothing else tells; `""` for none."""


def normalised(host: str) -> str:
    """Return an address as the fleet writes it: IPv4 even if it came mapped into IPv6, no zone.

    What is no IP address (a peer without a name) is returned as it is.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _replace_by_equals(machine: Machine, **equals: str | Profile) -> None:
    """Put equal objects in the place of a frozen value's own: only the memory can tell."""
    for name, equal in equals.items():
        msgspec.structs.force_setattr(machine, name, equal)


class Registry:
    """The machines by name and by address, kept by the feed; used on the event loop alone.

    Equal scope keys, hosts and profiles that come together are kept as one object each: there may
    be 100,000 machines.

    Args:
        tally: Where callers that are no machine are counted.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._machines: dict[str, Machine] = {}
        self._by_address: dict[str, Machine] = {}
        self._seen: dict[str, Sighting] = {}
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
                self._forget_address(before)
            # A machine that is a scope of its own has one key for both.
            scope = key if machine.scope == key else names.setdefault(machine.scope, machine.scope)
            _replace_by_equals(
                machine,
                scope=scope,
                host=names.setdefault(machine.host, machine.host),
                profile=profiles.setdefault(machine.profile, machine.profile),
            )
            self._machines[key] = machine
            if machine.address:
                self._by_address[machine.address] = machine

    def _remove(self, key: str) -> None:
        machine = self._machines.pop(key, None)
        if machine is not None:
            self._forget_address(machine)
        self._seen.pop(key, None)

    def _forget_address(self, machine: Machine) -> None:
        """Forget that the machine has its address, unless another has taken it over since."""
        if self._by_address.get(machine.address) is machine:
            del self._by_address[machine.address]

    def caller(self, source: Source, name: str | None) -> Machine | None:
        """Return the machine that asks, None if there is none (protocol.md section 10).

        Args:
            source: Where its connection comes from.
            name: The name in a `/vm/NAME` prefix; it alone counts where there is one.
        """
        if name is not None:
            machine = self._machines.get(model.key(name))
            if machine is None:
                self._tally[Reason.UNKNOWN_NAME] += 1
            return machine
        machine = self._by_address.get(source.address)
        if machine is None and source.default_vm:
            machine = self._machines.get(source.default_vm)
        if machine is None:
            self._tally[Reason.UNKNOWN_ADDRESS] += 1
        return machine

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
        self._seen[machine.key] = sighting

    def seen(self, machine_key: str) -> Sighting | None:
        """Return when a machine last asked and by which api-version; None if not since the start.

        Args:
            machine_key: The machine's key.
        """
        return self._seen.get(machine_key)
