"""The fleet file made from hypervisors' domains; `fleet_file` checks and applies it as any other.

A domain's UUID is its machine's vm_id. Its scope, update domain and name come from its tag, else
from the fleet, else it is a standalone machine with the domain's name. The owner of a machine's
address controls its approvals, so the address comes only from sources that the guest cannot choose:
the filter that lets it send from one address only, the network's reservation for its MAC address,
the tag. Never from the guest's own words or packets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from forewarn.maintenance import fleet_file
from forewarn.maintenance.fleet_file import MachineEntry
from forewarn.maintenance.model import Refused, Scope, key
from forewarn.vocabulary import ScopeKind

PRESENCE = ("running", "paused", "handover")
"""The states of a domain that has memory on its host, the clearest first."""

IMPORTED = frozenset({ScopeKind.MACHINE, ScopeKind.AVAILABILITY_SET})
"""The kinds of scopes that an import writes: in others a machine's name follows from its place."""


class Tag(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tag that `forewarn fleet tag` writes into a domain's metadata."""

    scope: str = ""
    update_domain: str = msgspec.field(name="update-domain", default="")
    name: str = ""
    address: str = ""


class NetworkInterface(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One network interface of a domain."""

    ip: str = ""
    """The parameter IP of its filter."""
    enforced: bool = False
    """True if that filter lets the guest send from this address only."""
    reserved: str = ""
    """The address that the network reserves for its MAC address."""


class Domain(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A domain as its host tells of it; some fields are only in a full list."""

    uuid: str
    name: str
    state: str
    """`running`, `paused`, `handover` (paused by its own migration), `off`, `crashed`."""
    reason: str = ""
    tagged: bool = False
    """True if it has a tag, where a survey asked for that."""
    run: int = -1
    """The number of its run on this host, another one after each start; -1 where it is off."""
    tag: Tag | None = None
    interfaces: tuple[NetworkInterface, ...] = ()

    @property
    def present(self) -> bool:
        """True if it has memory on its host."""
        return self.state in PRESENCE


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet that an import found."""

    fleet: fleet_file.Fleet
    warnings: tuple[str, ...]
    """Warnings for people: machines that were left out, addresses that are not enforced."""


def fleet_of(
    hosts: Mapping[str, Sequence[Domain]],
    known: fleet_file.Fleet = fleet_file.Fleet(),  # noqa: B008 - frozen
) -> Imported:
    """Return the domains of these hosts as a fleet file, which is applied to the fleet as it is.

    `known` is that fleet, as it is exported: it stays where domains say nothing else.
    """
    warnings: list[str] = []
    found = [*_one_a_machine(hosts, warnings)]
    build = _Import(known, [domain for _, domain in found], warnings)
    for host, domain in found:
        build.add(host, domain)
    return build.imported()


def _one_a_machine(
    hosts: Mapping[str, Sequence[Domain]], warnings: list[str]
) -> Iterator[tuple[str, Domain]]:
    """Yield each domain once: where it runs, if several hosts have it."""
    places: dict[str, list[tuple[str, Domain]]] = {}
    for host, domains in hosts.items():
        for domain in domains:
            places.setdefault(domain.uuid, []).append((host, domain))

    rank = {state: place for place, state in enumerate(PRESENCE)}
    for found in places.values():
        found.sort(key=lambda place: rank.get(place[1].state, len(rank)))
        running = [host for host, domain in found if domain.state == "running"]
        host, domain = found[0]
        if len(running) > 1:
            warnings.append(f"{domain.name} runs on {' and '.join(running)}: stop one of them")
        elif len(found) > 1 and not domain.present:
            others = ", ".join(each for each, _ in found)
            warnings.append(f"{domain.name} is off and defined on {others}: {host} was taken")
        yield host, domain


class _Import:
    """A fleet file under construction: what one domain claims first, no other one gets.

    One that claims it too is left out with a warning, for the file is refused as a whole.
    """

    def __init__(
        self, known: fleet_file.Fleet, found: Iterable[Domain], warnings: list[str]
    ) -> None:
        self.warnings = warnings
        groups = fleet_file.flatten(known)
        members = [(group.scope, member) for group in groups for member in group.members]
        self._known = {member.entry.vm_id: (scope, member) for scope, member in members}
        """By vm_id: a domain with another one is another machine, whatever its name."""
        self._names = {key(member.name): member.entry.vm_id for _, member in members}
        self._scopes = {group.scope.key: group.scope for group in groups}
        self._kinds = {name: scope.kind for name, scope in self._scopes.items()}
        """The kind of each scope, by key: no set has the name of a standalone machine."""
        for uuid in [*self._known, *(domain.uuid for domain in found)]:
            self._names.setdefault(uuid, uuid)
        for domain in found:
            if domain.tag and domain.tag.scope:
                self._kinds.setdefault(key(domain.tag.scope), ScopeKind.AVAILABILITY_SET)
        self._added: list[tuple[str, fleet_file.NamedMachine, Domain]] = []
        """Machines without their addresses, each with its set; `""` for a standalone one."""

    def add(self, host: str, domain: Domain) -> None:
        """Add a domain's machine, or warn why it is left out."""
        before, known = self._known.get(domain.uuid, (None, None))
        tag = domain.tag or Tag()
        name = self._name(host, domain, known)
        if not name:
            return
        scope, kind = tag.scope, ScopeKind.AVAILABILITY_SET
        if not scope and before:
            scope, kind = before.name, before.kind
        if not scope:
            scope, kind = name, ScopeKind.MACHINE
        why = ""
        if before and before.kind not in IMPORTED:
            why = f"is left as it is, for {before.name} is a {before.kind}"
        elif not fleet_file.NAME.fullmatch(scope):
            why = f"is left out, for its tag has the invalid scope {scope[:80]!r}"
        elif (present := self._kinds.setdefault(key(scope), kind)) is not kind:
            why = f"is left out, for {scope} is the name of a scope of kind {present}"
        if why:
            self._warn(name, why)
            return
        entry = fleet_file.NamedMachine(name=name, vm_id=domain.uuid)
        if known:
            shared = {one: getattr(known.entry, one) for one in MachineEntry.__struct_fields__}
            entry = fleet_file.NamedMachine(**shared, name=name)
        alone = kind is ScopeKind.MACHINE
        domain_number = None if alone else self._update_domain(name, tag)
        if domain_number is None and before and before.key == key(scope) and not alone:
            domain_number = entry.update_domain
        entry = fleet_file.replace(
            entry,
            host=host,
            update_domain=domain_number,
        )
        self._added.append(("" if alone else scope, entry, domain))

    def imported(self) -> Imported:
        """Return the fleet file and the warnings.

        A machine that is not in the file keeps its address: the file would be refused.
        """
        added = {entry.vm_id for _, entry, _ in self._added}
        stay = [member for vm_id, (_, member) in self._known.items() if vm_id not in added]
        addresses = {(member.listener, member.entry.address): member.name for member in stay}
        alone: list[fleet_file.StandaloneMachine] = []
        members: dict[str, tuple[str, list[fleet_file.NamedMachine]]] = {}
        for scope, entry, domain in self._added:
            address = self._address(entry, domain, addresses)
            machine = fleet_file.replace(entry, address=address)
            if scope:
                members.setdefault(key(scope), (scope, []))[1].append(machine)
                continue
            own = self._scope(entry.name, ScopeKind.MACHINE)
            fields = msgspec.structs.asdict(machine)
            alone.append(fleet_file.entry_of(fleet_file.StandaloneMachine, own, **fields))
        sets = []
        for scope, machines in members.values():
            own = self._scope(scope, ScopeKind.AVAILABILITY_SET)
            highest = max((machine.update_domain or 0) for machine in machines)
            sets.append(
                fleet_file.entry_of(
                    fleet_file.AvailabilitySet,
                    own,
                    update_domains=max(own.update_domains, highest + 1),
                    machines=tuple(machines),
                )
            )
        return Imported(
            fleet=fleet_file.Fleet(availability_set=tuple(sets), machine=tuple(alone)),
            warnings=tuple(self.warnings),
        )

    def _scope(self, name: str, kind: ScopeKind) -> Scope:
        domains = fleet_file.AvailabilitySet(name=name).update_domains
        new = Scope(name=name, kind=kind, update_domains=domains)
        return self._scopes.get(key(name), new)

    def _warn(self, name: str, what: str) -> None:
        self.warnings.append(f"{name} {what}")

    def _name(self, host: str, domain: Domain, known: fleet_file.Member | None) -> str:
        """Return a machine's name; `""` where it is left out."""
        asked = domain.tag.name if domain.tag else ""
        if known:
            if asked and key(asked) != key(known.name):
                self._warn(
                    known.name,
                    f"keeps its name, although its tag says {asked!r}: to rename it, remove it "
                    "from the fleet first",
                )
            return known.name
        name = asked or domain.name
        shown, why = name, ""
        if self._names[domain.uuid] != domain.uuid:
            what = "is left out, for another machine has its UUID as its name"
            self._warn(f"{name[:80]!r} on {host}", what)
            return ""
        if not fleet_file.NAME.fullmatch(name):
            shown, why = repr(name[:80]), "no machine can have this name"
        elif self._names.setdefault(key(name), domain.uuid) != domain.uuid:
            why = "another machine has its name, or has it as its UUID (if that one is gone: "
            why += "'forewarn fleet remove NAME')"
        if not why:
            return name
        self._warn(
            f"{shown} on {host}",
            f"is left out, for {why}: 'forewarn fleet tag {domain.uuid} --name NAME' gives it one",
        )
        return ""

    def _update_domain(self, name: str, tag: Tag) -> int | None:
        text = tag.update_domain
        if not text:
            return None
        if not (text.isascii() and text.isdigit()) or int(text) >= fleet_file.MAX_UPDATE_DOMAINS:
            self._warn(name, f"gets an update domain, for its tag has the invalid {text[:80]!r}")
            return None
        return int(text)

    def _address(
        self,
        entry: fleet_file.NamedMachine,
        domain: Domain,
        addresses: dict[tuple[str, str], str],
    ) -> str:
        """Return a machine's address, from the most trustworthy source that has one.

        `addresses` are those that machines have, by listener; its own is added.
        """
        name, interfaces = entry.name, domain.interfaces
        sources = [
            *((each.ip, each.enforced, "its filter's") for each in interfaces if each.enforced),
            *((each.reserved, False, "its network's") for each in interfaces),
            *((each.ip, False, "its filter's") for each in interfaces if not each.enforced),
            (domain.tag.address if domain.tag else "", False, "its tag's"),
            (entry.address, True, "the fleet's"),
        ]
        warned = len(self.warnings)
        for text, enforced, whose in sources:
            if not text:
                continue
            try:
                address = fleet_file.normal_address(text, name)
            except Refused:
                self._warn(name, f"has no address from {whose} {text[:80]!r}, which is not one")
                continue
            other = addresses.setdefault((entry.listener or "", address), name)
            if other != name:
                self._warn(name, f"does not get {whose} {address}, which is that of {other}")
                continue
            if not enforced:
                self._warn(
                    name,
                    f"has {whose} address {address}, which nothing enforces: another guest could "
                    "take it, and approve in its name; see nwfilter's clean-traffic",
                )
            return address
        if len(self.warnings) == warned:
            self._warn(name, "has no address, so it cannot read its events: tag it with --address")
        return ""
