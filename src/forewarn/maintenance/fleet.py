"""The fleet as an operator writes it down: the fleet file's tables as values, and their judging.

The shape is that of the file: `availability_set`, `scale_set`, `cloud_service` and `machine`.
`flatten` judges it whole and returns it as scopes and machines; nothing is known here of what the
fleet was before.
"""

import functools
import ipaddress
import re
from collections.abc import Hashable, Iterator
from typing import Annotated, TypeVar

import msgspec

from forewarn.maintenance.errors import Refused
from forewarn.maintenance.model import Profile, key
from forewarn.maintenance.notice import TERMINATE_MINUTES
from forewarn.maintenance.planner import AUTOMATIC_TYPES
from forewarn.vocabulary import ErrorCode, EventType, Priority, ScopeKind

NAME = re.compile(r"[A-Za-z0-9.-][A-Za-z0-9._-]{0,79}", re.ASCII)
"""1 to 80 of letters, digits, `.`, `_` and `-`, not starting with `_`, which is the mark that the
preview version puts before names."""

LISTENER = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.ASCII)
"""A listener's name: lower case alone, so that the fleet's and the settings' spelling is one."""

VM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
ZONE = re.compile(r"[A-Za-z0-9._-]{1,15}", re.ASCII)
"""An interface's name, as the kernel takes it."""

MAX_UPDATE_DOMAINS = 20
DEFAULT_UPDATE_DOMAINS = 5
MAX_FAULT_DOMAINS = 3
"""As many as the original has."""

MAX_MACHINES = 200_000
"""The most machines of one fleet: twice what one process is measured with."""

MAX_TAGS = 50
MAX_TEXT = 256
"""The most characters of a tag, a host's name or another text: the original's own limit of tags."""

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT)]
Domain = Annotated[int, msgspec.Meta(ge=0, lt=MAX_UPDATE_DOMAINS)]
Domains = Annotated[int, msgspec.Meta(ge=1, le=MAX_UPDATE_DOMAINS)]


T = TypeVar("T", bound=Hashable)


class Placed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every machine of the file may say of itself."""

    host: Text = ""
    address: Text = ""
    listener: Text | None = None
    vm_id: Text = ""
    update_domain: Domain | None = None
    fault_domain: Annotated[int, msgspec.Meta(ge=0, lt=MAX_FAULT_DOMAINS)] | None = None
    tags: dict[Text, Text] = {}
    azure_environment: Text = "AzurePublicCloud"
    location: Text = ""
    os_type: Text = "Linux"
    vm_size: Text = ""
    zone: Text = ""
    resource_group: Text = ""
    subscription_id: Text = ""
    computer_name: Text = ""
    mac_address: Text = ""
    public_address: Text = ""
    subnet: Text = ""
    ipv6_address: Text = ""


class Named(Placed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of an availability set."""

    name: str


class Standalone(Named, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine that shares its document with nobody."""

    priority: Priority = Priority.REGULAR
    automatically_approve: tuple[EventType, ...] = ()


class Indexed(Placed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of a scale set: `{scale set}_{index}`."""

    index: Annotated[int, msgspec.Meta(ge=0, le=999_999)]


class Grouped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every group of machines may say of itself."""

    name: str
    update_domains: Domains = DEFAULT_UPDATE_DOMAINS
    automatically_approve: tuple[EventType, ...] = ()
    listener: Text = ""


class AvailabilitySet(Grouped, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines with names of their own that share update domains."""

    machines: tuple[Named, ...] = ()


class ScaleSet(Grouped, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines with an index each; the one kind that knows Terminate."""

    priority: Priority = Priority.REGULAR
    terminate_notice_minutes: int | None = None
    machines: tuple[Indexed, ...] = ()


class Role(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A role of a cloud service; its machines are `{role}_IN_0`, `{role}_IN_1`, ..."""

    name: str
    instances: tuple[Placed, ...] = ()


class CloudService(Grouped, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roles and their instances."""

    roles: tuple[Role, ...] = ()


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole fleet file."""

    availability_set: tuple[AvailabilitySet, ...] = ()
    scale_set: tuple[ScaleSet, ...] = ()
    cloud_service: tuple[CloudService, ...] = ()
    machine: tuple[Standalone, ...] = ()


class Member(msgspec.Struct, frozen=True):
    """A machine as the file wants it; a domain that is not given is None."""

    name: str
    role: str
    placed: Placed
    where: str
    """Its place in the file, for messages: `availability_set[0].machines[2]`."""
    listener: str = ""
    """Its own, else its group's."""


class Group(msgspec.Struct, frozen=True):
    """A scope as the file wants it, with its machines."""

    name: str
    kind: ScopeKind
    update_domains: int
    priority: Priority
    automatically_approve: tuple[EventType, ...]
    terminate_notice_minutes: int | None
    members: tuple[Member, ...]
    where: str


def flatten(fleet: Fleet) -> list[Group]:
    """Return the fleet as scopes and their machines, judged whole.

    Raises:
        Refused: INVALID or LIMIT: what is wrong, and where in the file.
    """
    groups = list(_groups(fleet))
    scopes: dict[str, str] = {}
    names: dict[str, str] = {}
    addresses: dict[tuple[str, str], str] = {}
    for group in groups:
        _judge_group(group)
        _claim(scopes, key(group.name), group.where, f"the name {group.name} of a scope")
        for member in group.members:
            _judge_member(member, group)
            _claim(names, key(member.name), member.where, f"the machine name {member.name}")
            if member.placed.vm_id:
                vm_id = member.placed.vm_id.lower()
                _claim(names, vm_id, member.where, f"the vm_id {vm_id}")
            if member.placed.address:
                address = normal_address(member.placed.address, member.where)
                at = f" at the listener {member.listener}" if member.listener else ""
                place = (member.listener, address)
                _claim(addresses, place, member.where, f"the address {address}{at}")
    machines = sum(len(group.members) for group in groups)
    if machines > MAX_MACHINES:
        message = f"{machines} machines in the fleet; at most {MAX_MACHINES}"
        raise Refused(ErrorCode.LIMIT, message, machines=machines, most=MAX_MACHINES)
    return groups


def normal_address(text: str, where: str) -> str:
    """Return an IP address as `ipaddress` writes it, so that two spellings are one.

    Raises:
        Refused: It is none (INVALID).
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError as error:
        message = f"at {where}.address: {text!r} is no IP address: give one such as 10.0.0.10"
        raise Refused(ErrorCode.INVALID, message, where=where) from error
    zone = text.partition("%")[2]
    if zone and not (address.is_link_local and ZONE.fullmatch(zone)):
        message = (
            f"at {where}.address: {text!r} names an interface: only a link-local address may, "
            "as fe80::10%br0"
        )
        raise Refused(ErrorCode.INVALID, message, where=where)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def profile_of(placed: Placed) -> Profile:
    """Return what the instance tree says of a machine beside its place."""
    return _profile(*(getattr(placed, name) for name in Profile.__struct_fields__))


@functools.lru_cache(maxsize=4096)
def _profile(*values: str) -> Profile:
    """Return one Profile for equal values: a fleet's machines mostly share theirs."""
    return Profile(**dict(zip(Profile.__struct_fields__, values, strict=True)))


def _groups(fleet: Fleet) -> Iterator[Group]:
    for n, availability_set in enumerate(fleet.availability_set):
        where = f"availability_set[{n}]"
        members = tuple(
            Member(m.name, "", m, f"{where}.machines[{i}]", _heard(m, availability_set))
            for i, m in enumerate(availability_set.machines)
        )
        yield _group(availability_set, ScopeKind.AVAILABILITY_SET, members, where)
    for n, scale_set in enumerate(fleet.scale_set):
        where = f"scale_set[{n}]"
        members = tuple(
            Member(
                f"{scale_set.name}_{m.index}",
                "",
                m,
                f"{where}.machines[{i}]",
                _heard(m, scale_set),
            )
            for i, m in enumerate(scale_set.machines)
        )
        yield _group(scale_set, ScopeKind.SCALE_SET, members, where)
    for n, service in enumerate(fleet.cloud_service):
        where = f"cloud_service[{n}]"
        members = tuple(
            Member(
                f"{role.name}_IN_{i}",
                role.name,
                m,
                f"{where}.roles[{r}].instances[{i}]",
                _heard(m, service),
            )
            for r, role in enumerate(service.roles)
            for i, m in enumerate(role.instances)
        )
        yield _group(service, ScopeKind.CLOUD_SERVICE, members, where)
    for n, machine in enumerate(fleet.machine):
        where = f"machine[{n}]"
        yield Group(
            machine.name,
            ScopeKind.MACHINE,
            1,
            machine.priority,
            machine.automatically_approve,
            None,
            (Member(machine.name, "", machine, where, machine.listener or ""),),
            where,
        )


def _heard(placed: Placed, group: Grouped) -> str:
    """Return the listener of a machine: its own word, else its group's."""
    return group.listener if placed.listener is None else placed.listener


def _group(
    written: AvailabilitySet | ScaleSet | CloudService,
    kind: ScopeKind,
    members: tuple[Member, ...],
    where: str,
) -> Group:
    scale_set = written if isinstance(written, ScaleSet) else None
    return Group(
        written.name,
        kind,
        written.update_domains,
        scale_set.priority if scale_set else Priority.REGULAR,
        written.automatically_approve,
        scale_set.terminate_notice_minutes if scale_set else None,
        members,
        where,
    )


def _judge_group(group: Group) -> None:
    judge_name(group.name, f"{group.where}.name")
    wrong = [t for t in group.automatically_approve if t not in AUTOMATIC_TYPES]
    if wrong:
        message = (
            f"at {group.where}.automatically_approve: {wrong[0]} cannot be approved "
            "automatically; only Reboot and Redeploy can"
        )
        raise Refused(ErrorCode.INVALID, message, where=group.where)
    minutes = group.terminate_notice_minutes
    least, most = TERMINATE_MINUTES
    if minutes is not None and not least <= minutes <= most:
        message = (
            f"at {group.where}.terminate_notice_minutes: {minutes} is not {least} to {most} "
            "minutes; leave it out for deletions without an event"
        )
        raise Refused(ErrorCode.INVALID, message, where=group.where)


def judge_name(name: str, where: str) -> None:
    """Refuse what is no name of a machine, a scope or a role.

    Raises:
        Refused: INVALID, with its place.
    """
    if not NAME.fullmatch(name):
        shown = name if len(name) <= 80 else f"{name[:80]}..."
        message = (
            f"at {where}: {shown!r} is no name: give 1 to 80 letters, digits, '.', '_' or '-', "
            "not starting with '_'"
        )
        raise Refused(ErrorCode.INVALID, message, where=where)


def _judge_member(member: Member, group: Group) -> None:
    judge_name(member.name, member.where)
    placed = member.placed
    if placed.update_domain is not None and placed.update_domain >= group.update_domains:
        message = (
            f"at {member.where}.update_domain: {placed.update_domain}, but {group.name} has "
            f"domains 0 to {group.update_domains - 1}"
        )
        raise Refused(ErrorCode.INVALID, message, where=member.where)
    if len(placed.tags) > MAX_TAGS:
        message = f"at {member.where}.tags: {len(placed.tags)} tags; at most {MAX_TAGS}"
        raise Refused(ErrorCode.LIMIT, message, where=member.where)
    if member.listener and not LISTENER.fullmatch(member.listener):
        message = (
            f"at {member.where}: {member.listener!r} is no listener's name: give 1 to 80 "
            "lower-case letters, digits, '.', '_' or '-', beginning with a letter or a digit"
        )
        raise Refused(ErrorCode.INVALID, message, where=member.where)
    if placed.vm_id and not VM_ID.fullmatch(placed.vm_id.lower()):
        message = (
            f"at {member.where}.vm_id: {placed.vm_id!r} is no GUID: give one such as "
            "02aab8a4-74ef-476e-8182-f6d2ba4166a6, or leave it out to be given one"
        )
        raise Refused(ErrorCode.INVALID, message, where=member.where)
    for field in ("subnet", "public_address", "ipv6_address"):
        _judge_network(field, getattr(placed, field), member.where)
    for text in (placed.host, *placed.tags, *placed.tags.values()):
        if not text.isprintable():
            message = f"at {member.where}: {text!r} holds characters that cannot be printed"
            raise Refused(ErrorCode.INVALID, message, where=member.where)


def _judge_network(field: str, text: str, where: str) -> None:
    if not text:
        return
    try:
        if field == "subnet":
            ipaddress.ip_network(text)
        else:
            ipaddress.ip_address(text)
    except ValueError as error:
        message = f"at {where}.{field}: {error}"
        raise Refused(ErrorCode.INVALID, message, where=where) from error


def _claim(taken: dict[T, str], name: T, where: str, what: str) -> None:
    other = taken.setdefault(name, where)
    if other != where:
        message = f"at {where}: {what} is taken by {other}; each must be given once"
        raise Refused(ErrorCode.INVALID, message, where=where, other=other)
