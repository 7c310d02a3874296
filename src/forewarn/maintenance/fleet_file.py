"""The fleet file: its tables as values, how it is checked, and what applying it changes.

The shape is that of the file: `availability_set`, `scale_set`, `cloud_service` and `machine`.
`flatten` checks a file and returns it as scopes and machines. `apply` and `remove` compare it
with the machines there are and return the changes; they also choose update domains and fault
domains for machines that the file gives none.
"""

import functools
import hashlib
import ipaddress
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from operator import attrgetter
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from forewarn.maintenance import model, turns
from forewarn.maintenance.notice import TERMINATE_MINUTES
from forewarn.maintenance.planner import by_scope, natural
from forewarn.maintenance.world import World
from forewarn.vocabulary import ErrorCode, EventType, Priority, ScopeKind

NAME = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9.][A-Za-z0-9._-]{0,79}", re.ASCII)
EXPECTED_NAME = (
    "expected 1 to 80 letters, digits, '.', '_' or '-', not '_' or '-' first, and not '.' or '..'"
)
"""The preview version puts `_` before names; programs take `-x` for an option; in a path browsers
and proxies resolve dots alone."""

LISTENER = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.ASCII)
"""A listener's name, in lower case only, so that fleet file and settings spell it alike."""

VM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
ZONE = re.compile(r"[A-Za-z0-9._-]{1,15}", re.ASCII)
"""The name of a network interface, as the kernel allows it."""

AUTOMATIC_TYPES = frozenset({EventType.REBOOT, EventType.REDEPLOY})
"""Types that a scope may approve automatically when a user asks (protocol.md section 6)."""

MAX_UPDATE_DOMAINS = 20
MAX_FAULT_DOMAINS = 3
"""As many as Azure has."""

MAX_MACHINES = 200_000
"""Machines of one fleet: twice the number that one process is measured with."""

MAX_TAGS = 50
T = TypeVar("T", bound=Hashable)
E = TypeVar("E", "AvailabilitySet", "ScaleSet", "CloudService", "StandaloneMachine")

replace = msgspec.structs.replace


class MachineEntry(
    model.Profile, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The fields that every machine of the file may have."""

    host: model.Text | None = None
    """None for the known one, `""` for unknown."""
    address: model.Text = ""
    listener: model.Text | None = None
    """None for its group's."""
    vm_id: model.Text = ""
    update_domain: Annotated[int, msgspec.Meta(ge=0, lt=MAX_UPDATE_DOMAINS)] | None = None
    fault_domain: Annotated[int, msgspec.Meta(ge=0, lt=MAX_FAULT_DOMAINS)] | None = None
    tags: dict[model.Text, model.Text] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Do nothing: each call lets other threads run while a thread decodes a large fleet."""


class NamedMachine(MachineEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of an availability set."""

    name: str


class StandaloneMachine(NamedMachine, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine in a scope of its own."""

    priority: Priority | None = None
    automatically_approve: tuple[EventType, ...] = ()


class IndexedMachine(MachineEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of a scale set: `{scale set}_{index}`."""

    index: Annotated[int, msgspec.Meta(ge=0, le=999_999)]


class ScopeEntry(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The fields that every group of machines may have."""

    name: str
    update_domains: Annotated[int, msgspec.Meta(ge=1, le=MAX_UPDATE_DOMAINS)] = 5
    automatically_approve: tuple[EventType, ...] = ()
    queue: model.Queueing | None = None
    settle_seconds: Annotated[int, msgspec.Meta(ge=0, le=24 * 3600)] | None = None
    listener: model.Text = ""


class AvailabilitySet(ScopeEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines with names of their own."""

    machines: tuple[NamedMachine, ...] = ()


class ScaleSet(ScopeEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines named by an index; the only kind with Terminate events."""

    priority: Priority | None = None
    terminate_notice_minutes: int | None = None
    machines: tuple[IndexedMachine, ...] = ()


class RoleInstance(MachineEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of a role: `{role}_IN_{index}`."""

    index: Annotated[int, msgspec.Meta(ge=0, le=999_999)] | None = None
    """None for its place in the role, from 0."""


class Role(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A role of a cloud service; its machines are `{role}_IN_0`, `{role}_IN_1`, ..."""

    name: str
    instances: tuple[RoleInstance, ...] = ()


class CloudService(ScopeEntry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roles and their instances."""

    roles: tuple[Role, ...] = ()


class Fleet(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A whole fleet file."""

    availability_set: tuple[AvailabilitySet, ...] = ()
    scale_set: tuple[ScaleSet, ...] = ()
    cloud_service: tuple[CloudService, ...] = ()
    machine: tuple[StandaloneMachine, ...] = ()


Entry: TypeAlias = AvailabilitySet | ScaleSet | CloudService | StandaloneMachine


class Member(msgspec.Struct, frozen=True):
    """A machine of the file."""

    name: str
    role: str
    entry: MachineEntry
    where: str
    """Its place in the file, for messages: `availability_set[0].machines[2]`."""
    listener: str = ""
    """Its own, else its group's."""


class Group(msgspec.Struct, frozen=True):
    """A scope of the file, with its machines."""

    scope: model.Scope
    """As the file has it, at incarnation 0."""
    members: tuple[Member, ...]
    where: str


def flatten(fleet: Fleet) -> list[Group]:
    """Return a fleet file as scopes with their machines; INVALID or LIMIT if it is wrong."""
    _check_size(fleet)
    groups = list(_groups(fleet))
    scopes: dict[str, str] = {}
    names: dict[str, str] = {}
    addresses: dict[tuple[str, str], str] = {}
    for group in groups:
        _check_group(group)
        _claim(scopes, group.scope.key, group.where, f"the name {group.scope.name} of a scope")
        for member in group.members:
            _check_member(member, group)
            _claim(names, model.key(member.name), member.where, f"the machine name {member.name}")
            if member.entry.vm_id:
                vm_id = member.entry.vm_id.lower()
                _claim(names, vm_id, member.where, f"the vm_id {vm_id}")
            if member.entry.address:
                address = normal_address(member.entry.address, member.where)
                at = f" at the listener {member.listener}" if member.listener else ""
                place = (member.listener, address)
                _claim(addresses, place, member.where, f"the address {address}{at}")
    return groups


def _check_size(fleet: Fleet) -> None:
    """Refuse too large a fleet before building its values, which takes long."""
    sets: list[AvailabilitySet | ScaleSet] = [*fleet.availability_set, *fleet.scale_set]
    roles = [role for service in fleet.cloud_service for role in service.roles]
    counts = {
        "machines": len(fleet.machine)
        + sum(len(one.machines) for one in sets)
        + sum(len(role.instances) for role in roles),
        "groups": len(sets) + len(fleet.cloud_service) + len(roles),
    }
    for what, count in counts.items():
        if count > MAX_MACHINES:
            message = f"{count} {what}, at most {MAX_MACHINES} allowed"
            raise model.Refused(ErrorCode.LIMIT, message, **{what: count, "most": MAX_MACHINES})


def normal_address(text: str, where: str) -> str:
    """Return an IP address as `ipaddress` writes it; other text is refused (INVALID)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        message = f"invalid IP address {text!r}: expected one such as 10.0.0.10"
        raise _refused(where, ".address", message) from error
    zone = text.partition("%")[2]
    if zone and not (address.is_link_local and ZONE.fullmatch(zone)):
        message = (
            f"{text!r} names an interface: only a link-local address may, such as fe80::10%br0"
        )
        raise _refused(where, ".address", message)
    return str(getattr(address, "ipv4_mapped", None) or address)


_shared_profile = functools.lru_cache(maxsize=4096)(model.Profile)


def profile_of(entry: MachineEntry) -> model.Profile:
    """Return the profile of a machine of the file: one object for equal ones, which are many."""
    return _shared_profile(
        **{name: getattr(entry, name) for name in model.Profile.__struct_fields__}
    )


def _groups(fleet: Fleet) -> Iterator[Group]:
    for table in Fleet.__struct_fields__:
        entries: tuple[Entry, ...] = getattr(fleet, table)
        for n, entry in enumerate(entries):
            where = f"{table}[{n}]"
            fields = {*entry.__struct_fields__}.intersection(model.Scope.__struct_fields__)
            shared = {name: getattr(entry, name) for name in fields}
            members = tuple(
                Member(*found, (entry if found[2].listener is None else found[2]).listener or "")
                for found in _members(entry, where)
            )
            scope = model.Scope(**{"update_domains": 1} | shared, kind=ScopeKind(table))
            yield Group(scope, members, where)


def _members(entry: Entry, where: str) -> Iterator[tuple[str, str, MachineEntry, str]]:
    """Yield the name, role, entry and place of each machine."""
    match entry:
        case StandaloneMachine():
            yield entry.name, "", entry, where
        case AvailabilitySet():
            for i, named in enumerate(entry.machines):
                yield named.name, "", named, f"{where}.machines[{i}]"
        case ScaleSet():
            for i, indexed in enumerate(entry.machines):
                yield f"{entry.name}_{indexed.index}", "", indexed, f"{where}.machines[{i}]"
        case CloudService():
            for r, role in enumerate(entry.roles):
                for i, instance in enumerate(role.instances):
                    place = f"{where}.roles[{r}].instances[{i}]"
                    number = i if instance.index is None else instance.index
                    yield f"{role.name}_IN_{number}", role.name, instance, place


def _check_group(group: Group) -> None:
    scope = group.scope
    _check_name(scope.name, f"{group.where}.name")
    wrong = [t for t in scope.automatically_approve if t not in AUTOMATIC_TYPES]
    if wrong:
        message = f"{wrong[0]} cannot be approved automatically: only Reboot and Redeploy can"
        raise _refused(group.where, ".automatically_approve", message)
    minutes = scope.terminate_notice_minutes
    least, most = TERMINATE_MINUTES
    if minutes is not None and not least <= minutes <= most:
        message = (
            f"expected {least} to {most} minutes, not {minutes}; leave it out for deletions "
            "without an event"
        )
        raise _refused(group.where, ".terminate_notice_minutes", message)
    if minutes is not None and scope.priority is Priority.LOW:
        message = "a low-priority scale set is preempted: only a regular one has this notice"
        raise _refused(group.where, ".terminate_notice_minutes", message)


def _check_name(name: str, where: str) -> None:
    if not NAME.fullmatch(name):
        shown = name if len(name) <= 80 else f"{name[:80]}..."
        raise _refused(where, "", f"invalid name {shown!r}: {EXPECTED_NAME}")


def _check_member(member: Member, group: Group) -> None:
    where, entry = member.where, member.entry
    _check_name(member.name, where)
    if entry.update_domain is not None and entry.update_domain >= group.scope.update_domains:
        most = group.scope.update_domains - 1
        message = f"{group.scope.name} has domains 0 to {most}, not {entry.update_domain}"
        raise _refused(where, ".update_domain", message)
    if len(entry.tags) > MAX_TAGS:
        message = f"{len(entry.tags)} tags, at most {MAX_TAGS} allowed"
        raise _refused(where, ".tags", message, ErrorCode.LIMIT)
    if member.listener and not LISTENER.fullmatch(member.listener):
        message = (
            f"invalid listener name {member.listener!r}: expected 1 to 80 lower-case letters, "
            "digits, '.', '_' or '-', beginning with a letter or a digit"
        )
        raise _refused(where, "", message)
    if entry.vm_id and not VM_ID.fullmatch(entry.vm_id.lower()):
        message = (
            f"invalid GUID {entry.vm_id!r}: expected one such as "
            "02aab8a4-74ef-476e-8182-f6d2ba4166a6; leave it out to have one generated"
        )
        raise _refused(where, ".vm_id", message)
    for field in ("subnet", "public_address", "ipv6_address"):
        parse = ipaddress.ip_network if field == "subnet" else ipaddress.ip_address
        try:
            if text := getattr(entry, field):
                parse(text)
        except ValueError as error:
            raise _refused(where, f".{field}", str(error)) from error
    for text in (entry.host or "", *entry.tags, *entry.tags.values()):
        if not text.isprintable():
            raise _refused(where, "", f"{text!r} has characters that cannot be printed")
    if (entry.host or "").startswith("-"):
        raise _refused(where, ".host", f"{entry.host!r} begins with '-', as an option does")


def _claim(taken: dict[T, str], name: T, where: str, what: str) -> None:
    other = taken.setdefault(name, where)
    if other != where:
        message = f"at {where}: {what} is already used at {other}"
        raise model.Refused(ErrorCode.INVALID, message, where=where, other=other)


def _refused(
    where: str, field: str, message: str, code: ErrorCode = ErrorCode.INVALID
) -> model.Refused:
    return model.Refused(code, f"at {where}{field}: {message}", where=where)


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of applying a fleet, done or predicted."""

    changes: model.Changes
    added: tuple[str, ...] = ()
    """Names of machines."""
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: int = 0
    missing: tuple[str, ...] = ()
    """Machines of the fleet that the file does not name; only pruning removes them."""
    lost: tuple[str, ...] = ()
    """Machines of the file that were left out: the machines were preempted or terminated."""
    placed: tuple[model.Machine, ...] = ()
    """The machines of the file, as they are from then on."""
    held: tuple[model.Hold, ...] = ()
    """Holds of machines and scopes that this removes: a hold goes by name, and stays."""


def apply(
    world: World,
    wanted: Fleet,
    *,
    prune: bool = False,
    mint: Callable[[], str],
    again: bool = False,
    allow_empty: bool = False,
    based_on: str = "",
) -> Applied:
    """Return the changes that make the fleet as the file says.

    `prune` removes machines that are not in the file, but the last machine only with `allow_empty`:
    a file that was cut short would. `again` adds machines that were preempted or terminated.
    `based_on` is the `digest` of the fleet that the file was made from; `""` for any.

    Raises:
        Refused: INVALID or LIMIT for the file itself; CONFLICT for a change under a live event, an
            address of a machine outside the file, a fleet that would be empty, or another basis.
    """
    before = world.machines
    if based_on and based_on != digest(exported(world.scopes.values(), before.values())):
        message = "the fleet has changed since it was read: read it again"
        raise model.Refused(ErrorCode.CONFLICT, message, based_on=based_on)
    groups, lost = _without_lost(flatten(wanted), world, again=again)
    places = {model.key(one.name): group.scope.key for group in groups for one in group.members}
    members = by_scope(
        one  # machines that leave their scope have no part in its domains
        for name, one in before.items()
        if places.get(name, "" if prune else one.scope) == one.scope
    )
    after: dict[str, model.Machine] = {}
    scopes: dict[str, model.Scope] = {}
    for group in groups:
        scope = _scope(world, group)
        scopes[scope.key] = scope
        after |= _place(members.get(scope.key, ()), before, group, mint)
    missing = sorted((one for name, one in before.items() if name not in after), key=natural)
    gone, kept = (missing, []) if prune else ([], missing)
    if gone and not after and not allow_empty:
        message = (
            f"pruning would remove all {len(gone)} machines and the file adds none: check whether "
            "the file is complete; add --allow-empty to remove them all"
        )
        raise model.Refused(ErrorCode.CONFLICT, message, machines=len(gone))
    _check_kept(kept, after, scopes)
    _check_ids((*after.values(), *kept))
    moved = [(before[m.key], m) for m in after.values() if m.key in before and before[m.key] != m]
    _check_live(world, gone, moved)
    _skip_incarnations(scopes, world, after)
    populated = {m.scope for m in (*after.values(), *kept)} | scopes.keys()
    emptied = world.scopes if prune else {old.scope: None for old, _ in moved}
    changes = model.Changes(
        scopes=tuple(s for s in scopes.values() if world.scopes.get(s.key) != s),
        machines=tuple(m for m in after.values() if before.get(m.key) != m),
        **_without(world, gone),
        removed_scopes=tuple(name for name in emptied if name not in populated),
        revived=tuple(name for name in world.tombstones if name in after),
    )
    return Applied(
        changes=changes,
        added=tuple(m.name for m in after.values() if m.key not in before),
        changed=tuple(new.name for _, new in moved),
        removed=tuple(machine.name for machine in gone),
        unchanged=len(after) - len(changes.machines),
        missing=tuple(machine.name for machine in kept),
        lost=lost,
        placed=tuple(after.values()),
        held=_left_held(world.holds.values(), changes),
    )


def entry_of(shape: type[E], scope: model.Scope, **given: object) -> E:
    """Return a scope's entry in the file: with these fields, and its own of the same names."""
    shared = {
        name: getattr(scope, name)
        for name in shape.__struct_fields__
        if name in model.Scope.__struct_fields__
    }
    return shape(**shared | given)


def exported(scopes: Collection[model.Scope], machines: Collection[model.Machine]) -> Fleet:
    """Return the fleet file of a fleet: to apply it changes nothing.

    Every machine has its domains and its id, as dealt. A standalone machine that was terminated
    has left a scope without machines, which the file does not have.
    """
    members = by_scope(machines)
    tables: dict[str, list[Any]] = {table: [] for table in Fleet.__struct_fields__}
    for scope in sorted(scopes, key=lambda scope: scope.key):
        found = members.get(scope.key, [])
        entry: Entry
        match scope.kind:
            case ScopeKind.AVAILABILITY_SET:
                named = [NamedMachine(**_written(one), name=one.name) for one in _in_order(found)]
                entry = entry_of(AvailabilitySet, scope, machines=tuple(named))
            case ScopeKind.SCALE_SET:
                indexed = [IndexedMachine(**_written(one), index=_index(one)) for one in found]
                indexed.sort(key=lambda one: one.index)
                entry = entry_of(ScaleSet, scope, machines=tuple(indexed))
            case ScopeKind.CLOUD_SERVICE:
                entry = entry_of(CloudService, scope, roles=tuple(_roles(found)))
            case _ if found:
                entry = entry_of(StandaloneMachine, scope, **_written(found[0]))
            case _:
                continue
        tables[scope.kind].append(entry)
    return Fleet(**{table: tuple(entries) for table, entries in tables.items()})


def digest(fleet: Fleet) -> str:
    """Return the SHA-256 of a fleet as the API answers it."""
    return hashlib.sha256(msgspec.json.encode(fleet)).hexdigest()


def _written(machine: model.Machine) -> dict[str, Any]:
    own = ("address", "vm_id", "update_domain", "fault_domain")
    fields = msgspec.structs.asdict(machine.profile) | {one: getattr(machine, one) for one in own}
    fields |= {"host": machine.host or None, "listener": machine.listener or None}
    return fields | {"tags": dict(machine.tags)}


def _in_order(machines: Collection[model.Machine]) -> list[model.Machine]:
    return sorted(machines, key=lambda machine: machine.key)


def _index(machine: model.Machine) -> int:
    return int(machine.name.rpartition("_")[2])


def _roles(machines: Collection[model.Machine]) -> Iterator[Role]:
    """Yield the roles of a cloud service; an instance has its index where others are missing."""
    roles: dict[str, list[model.Machine]] = {}
    for machine in _in_order(machines):
        roles.setdefault(machine.role, []).append(machine)
    for name, members in roles.items():
        yield Role(
            name=name,
            instances=tuple(
                RoleInstance(**_written(one), index=None if _index(one) == place else _index(one))
                for place, one in enumerate(sorted(members, key=_index))
            ),
        )


def remove(world: World, names: Collection[str]) -> Applied:
    """Return the changes that remove these machines, and the scopes that they leave empty.

    A name is refused that is unknown (NOT_FOUND), or has a live event (CONFLICT).
    """
    missing = sorted(name for name in names if model.key(name) not in world.machines)
    if missing:
        raise model.unknown("machine", missing[0])
    gone = [world.machines[name] for name in dict.fromkeys(map(model.key, names))]
    _check_live(world, gone, [])
    gone_keys = {machine.key for machine in gone}
    scopes = dict.fromkeys(machine.scope for machine in gone)
    emptied = [name for name in scopes if gone_keys.issuperset(world.members.of(name))]
    changes = model.Changes(**_without(world, gone), removed_scopes=tuple(emptied))
    return Applied(
        changes=changes,
        removed=tuple(machine.name for machine in gone),
        held=_left_held(world.holds.values(), changes),
    )


def _without(world: World, gone: Collection[model.Machine]) -> dict[str, Any]:
    """Return the changes that take machines out of the fleet and of the units that wait."""
    names = {machine.key: None for machine in gone}
    pairs = [(one, turns.without(one, names)) for one in world.maintenances.values() if names]
    changed = tuple(after for before, after in pairs if after is not before)
    return {"removed_machines": tuple(names), "maintenances": changed}


def _left_held(holds: Collection[model.Hold], changes: model.Changes) -> tuple[model.Hold, ...]:
    gone = {(model.HoldKind.MACHINE, name) for name in changes.removed_machines}
    gone |= {(model.HoldKind.SCOPE, name) for name in changes.removed_scopes}
    return tuple(hold for hold in holds if (hold.kind, hold.name) in gone)


def _without_lost(
    groups: list[Group], world: World, *, again: bool
) -> tuple[list[Group], tuple[str, ...]]:
    """Return the groups without the machines that were lost, and the names of those."""
    deleted = {k for k, tombstone in world.tombstones.items() if tombstone.event_type}
    gone = set() if again else deleted - world.machines.keys()
    names = [m.name for group in groups for m in group.members if model.key(m.name) in gone]
    if not names:
        return groups, ()
    kept = [
        replace(group, members=tuple(m for m in group.members if model.key(m.name) not in gone))
        for group in groups
    ]
    return kept, tuple(names)


def _scope(world: World, group: Group) -> model.Scope:
    """Return a scope of the file; a new one begins above the incarnations of one removed before."""
    scope = group.scope
    before = world.scopes.get(scope.key)
    if before is None:
        last = world.latest_incarnation(scope.key)
        return replace(scope, incarnation=last and last + 1)
    if before.kind is not scope.kind:
        message = (
            f"{before.name} is already a scope of kind {before.kind}, not {scope.kind}: "
            "remove it first, or choose another name"
        )
        raise _refused(group.where, "", message, ErrorCode.CONFLICT)
    return replace(scope, incarnation=before.incarnation, asked_at=before.asked_at)


def _place(
    present: Collection[model.Machine],
    before: dict[str, model.Machine],
    group: Group,
    mint: Callable[[], str],
) -> dict[str, model.Machine]:
    """Return the group's machines, by key, each in its domains."""
    hosts = {machine.key: machine.host for machine in present}
    for member in group.members:
        name, host = model.key(member.name), member.entry.host
        known = before[name].host if name in before else ""
        hosts[name] = known if host is None else host
    update = _domains("update_domain", group.scope.update_domains, present, group, hosts)
    fault = _domains("fault_domain", MAX_FAULT_DOMAINS, present, group, hosts)
    placed: dict[str, model.Machine] = {}
    for member in group.members:
        name, written = model.key(member.name), member.entry
        vm_id = written.vm_id or (before[name].vm_id if name in before else mint())
        placed[name] = model.Machine(
            name=member.name,
            scope=group.scope.key,
            update_domain=update[name],
            fault_domain=fault[name],
            vm_id=vm_id.lower(),
            host=hosts[name],
            address=written.address and normal_address(written.address, member.where),
            listener=member.listener,
            role=member.role,
            tags=tuple(written.tags.items()),
            profile=profile_of(written),
        )
    return placed


def _domains(
    field: str,
    count: int,
    present: Collection[model.Machine],
    group: Group,
    hosts: Mapping[str, str],
) -> dict[str, int]:
    """Return the domain of each machine of a scope, by key, as are the `hosts`.

    It is the file's, else the one that it has, else that of its host, else the emptiest.
    """
    domains: dict[str, int] = {machine.key: getattr(machine, field) for machine in present}
    waiting = []
    for member in group.members:
        name = model.key(member.name)
        if (given := getattr(member.entry, field)) is not None:
            domains[name] = given
        elif name not in domains:
            waiting.append(name)
        elif domains[name] >= count:
            message = (
                f"{member.name} is in {field} {domains[name]}, but {group.scope.name} would have "
                f"only {count}: change it"
            )
            raise _refused(member.where, "", message, ErrorCode.CONFLICT)
    sizes = dict.fromkeys(range(count), 0)
    of_host: dict[str, int] = {}
    for name, domain in sorted(domains.items()):
        if domain in sizes:  # any other is refused (`_check_kept`)
            sizes[domain] += 1
            of_host.setdefault(hosts[name], domain)
    for name in waiting:
        host = hosts[name]
        known = of_host.get(host) if host else None
        domain = min(sizes, key=sizes.__getitem__) if known is None else known
        domains[name] = of_host[host] = domain
        sizes[domain] += 1
    return domains


def _check_kept(
    kept: Collection[model.Machine], after: dict[str, model.Machine], scopes: dict[str, model.Scope]
) -> None:
    """Refuse conflicts with machines that are not in the file and that stay."""
    addresses = {(m.listener, m.address): m.name for m in after.values() if m.address}
    for machine in kept:
        other = addresses.get((machine.listener, machine.address)) if machine.address else None
        if other is not None:
            message = (
                f"the address {machine.address} of {other} belongs to {machine.name}, which the "
                "file does not name: remove that machine, or apply with --prune"
            )
            raise model.Refused(ErrorCode.CONFLICT, message, machine=machine.name, other=other)
        scope = scopes.get(machine.scope)
        if scope is None:
            continue
        if scope.kind is ScopeKind.MACHINE or machine.update_domain >= scope.update_domains:
            message = (
                f"{machine.name}, which the file does not name, is in update domain "
                f"{machine.update_domain} of {scope.name}, which would have only "
                f"{scope.update_domains}: name it with another update_domain, or apply with --prune"
            )
            raise model.Refused(ErrorCode.CONFLICT, message, machine=machine.name)


def _check_ids(machines: Collection[model.Machine]) -> None:
    """Refuse a vm_id that is another machine's vm_id or name: a proxy may use either."""
    owners: dict[str, model.Machine] = {}
    for machine in machines:
        other = owners.setdefault(machine.vm_id, machine)
        if other is not machine:
            message = f"{machine.name} and {other.name} would both have the vm_id {machine.vm_id}"
            raise model.Refused(ErrorCode.CONFLICT, message, machine=machine.name, other=other.name)
    for machine in machines:
        owner = owners.get(machine.key, machine)
        if owner is not machine:
            message = (
                f"{owner.name} would have the vm_id {owner.vm_id}, which is another machine's name"
            )
            raise model.Refused(ErrorCode.CONFLICT, message, machine=owner.name, other=machine.name)


def _check_live(
    world: World,
    gone: Collection[model.Machine],
    moved: Collection[tuple[model.Machine, model.Machine]],
) -> None:
    """Refuse to remove, rename or move a machine with a live event.

    A machine that an operation has left down may be removed, but not moved: its new update domain
    would count as up.
    """
    place = attrgetter("name", "scope", "update_domain")
    moving = {old.key: old for old, new in moved if place(old) != place(new)}
    for name, machine in ({one.key: one for one in gone} | moving).items():
        live = [world.operations[one] for one in world.live_of_machine.of(name)]
        for operation in sorted(live, key=lambda one: one.status.over):
            events = (e for e in operation.events if name in map(model.key, e.machines))
            if (event := next(events, None)) is None:
                continue
            if not operation.status.over:
                message = (
                    f"{machine.name} has the live event {event.id} and cannot be removed, renamed "
                    "or moved until it is over: wait, or cancel the event"
                )
            elif name in moving:
                message = (
                    f"{machine.name} counts as down since its event {event.id} and cannot be "
                    "renamed or moved until it is up again: wait, or acknowledge the operation"
                )
            else:
                continue
            facts = {"machine": machine.name, "event_id": event.id}
            raise model.Refused(ErrorCode.CONFLICT, message, **facts)


def _skip_incarnations(
    scopes: dict[str, model.Scope], world: World, after: Mapping[str, model.Machine]
) -> None:
    """Raise a scope's incarnation above any that a machine entering it may have read elsewhere.

    It must never meet an equal incarnation with other content (protocol.md section 7). In the scope
    that it left it cannot: incarnations only go up. Renamed, it has its vm_id or its address still.
    """
    entering = [one for one in after.items() if world.machines.get(one[0]) != one[1]]
    if not entering:
        return
    wanted = {identity for one in entering for identity in _identities(*one)}
    before: list[tuple[str, model.Machine | model.Tombstone]] = [*world.tombstones.items()]
    before += world.machines.items()
    read: dict[object, str] = {
        one: old.scope for name, old in before for one in _identities(name, old) if one in wanted
    }
    for name, machine in entering:
        for scope in {read.get(one, machine.scope) for one in _identities(name, machine)}:
            left, entered = world.latest_incarnation(scope), scopes[machine.scope]
            if scope != machine.scope and left and entered.incarnation <= left:
                scopes[machine.scope] = replace(entered, incarnation=left + 1)


def _identities(name: str, one: model.Machine | model.Tombstone) -> tuple[object, ...]:
    return name, one.vm_id, (one.listener, one.address or name)
