"""What applying a fleet changes, and how update domains are dealt.

A domain that is not given is dealt once and written down: machines of one scope on one host share
a domain, and otherwise the emptiest domain is next. Whatever a live event names stays where it is
until the event is over.
"""

from collections import Counter
from collections.abc import Callable, Collection

import msgspec

from forewarn.maintenance import fleet
from forewarn.maintenance.errors import Refused
from forewarn.maintenance.model import (
    Changes,
    Hold,
    HoldKind,
    Machine,
    Operation,
    Scope,
    Snapshot,
    key,
)
from forewarn.vocabulary import ErrorCode, ScopeKind


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What applying a fleet does, or would do."""

    changes: Changes
    added: tuple[str, ...] = ()
    """Names of machines."""
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: int = 0
    missing: tuple[str, ...] = ()
    """Machines of the fleet that the file does not name; only pruning removes them."""
    lost: tuple[str, ...] = ()
    """Machines of the file that were preempted or terminated, and so were left out."""
    placed: tuple[Machine, ...] = ()
    """The machines of the file, as they are from then on."""
    held: tuple[Hold, ...] = ()
    """The holds of machines and scopes that this removes: a hold is by name, and stays."""


def apply(
    snapshot: Snapshot,
    wanted: fleet.Fleet,
    *,
    prune: bool,
    mint: Callable[[], str],
    again: bool = False,
    allow_empty: bool = False,
) -> Applied:
    """Return what makes the fleet be as wanted.

    Args:
        snapshot: The whole fleet: all scopes, machines, live operations and holds, and what was
            lost.
        wanted: The fleet file.
        prune: Whether to remove what the file does not name.
        mint: Gives a new GUID at each call, for machines that are new.
        again: Whether machines that were preempted or terminated are added again; else they are
            left out.
        allow_empty: Whether pruning may leave no machine at all, as a file would that was cut
            short.

    Raises:
        Refused: INVALID or LIMIT for the file itself; CONFLICT for a change under a live event,
            an address that a machine outside the file has, or a fleet that would be empty.
    """
    before = snapshot.machines
    groups, lost = _without_lost(fleet.flatten(wanted), snapshot, again=again)
    members: dict[str, list[Machine]] = {}
    for machine in before.values():
        members.setdefault(machine.scope, []).append(machine)
    after: dict[str, Machine] = {}
    scopes: dict[str, Scope] = {}
    for group in groups:
        scope = _scope(snapshot.scopes.get(name := key(group.name)), group, _anew(snapshot, name))
        scopes[scope.key] = scope
        after.update(_deal(members.get(scope.key, ()), before, group, mint))
    missing = [machine for name, machine in before.items() if name not in after]
    gone = missing if prune else []
    kept = [] if prune else missing
    if gone and not after and not allow_empty:
        raise _emptied(len(gone))
    _judge_kept(kept, after, scopes)
    _judge_ids((*after.values(), *kept))
    moved = [(before[m.key], m) for m in after.values() if m.key in before and before[m.key] != m]
    _judge_live(snapshot.operations.values(), gone, moved)
    _forestall(scopes, snapshot, after.values())
    populated = {m.scope for m in after.values()} | {m.scope for m in kept} | scopes.keys()
    emptied = snapshot.scopes if prune else {old.scope: None for old, _ in moved}
    changes = Changes(
        scopes=tuple(s for s in scopes.values() if snapshot.scopes.get(s.key) != s),
        machines=tuple(m for m in after.values() if before.get(m.key) != m),
        removed_machines=tuple(machine.key for machine in gone),
        removed_scopes=tuple(name for name in emptied if name not in populated),
        found=tuple(name for name in snapshot.lost if name in after),
    )
    return Applied(
        changes=changes,
        added=tuple(m.name for m in after.values() if m.key not in before),
        changed=tuple(new.name for _, new in moved),
        removed=tuple(machine.name for machine in gone),
        unchanged=len(after) - len(moved) - sum(m.key not in before for m in after.values()),
        missing=tuple(machine.name for machine in kept),
        lost=lost,
        placed=tuple(after.values()),
        held=_left_held(snapshot.holds, changes),
    )


def remove(snapshot: Snapshot, names: Collection[str]) -> Applied:
    """Return what takes these machines, and scopes that they leave empty, out of the fleet.

    Args:
        snapshot: These machines, their scopes with all their machines and live operations, and
            the holds.
        names: Of machines, without regard to case.

    Raises:
        Refused: NOT_FOUND for an unknown name; CONFLICT for one with a live event.
    """
    missing = sorted(name for name in names if key(name) not in snapshot.machines)
    if missing:
        message = f"no machine of the fleet is called {missing[0]!r}: see 'forewarn fleet list'"
        raise Refused(ErrorCode.NOT_FOUND, message, name=missing[0])
    gone = [snapshot.machines[name] for name in dict.fromkeys(map(key, names))]
    _judge_live(snapshot.operations.values(), gone, [])
    gone_keys = {machine.key for machine in gone}
    left = {m.scope for m in snapshot.machines.values() if m.key not in gone_keys}
    emptied = dict.fromkeys(machine.scope for machine in gone if machine.scope not in left)
    changes = Changes(
        removed_machines=tuple(machine.key for machine in gone), removed_scopes=tuple(emptied)
    )
    return Applied(
        changes=changes,
        removed=tuple(machine.name for machine in gone),
        held=_left_held(snapshot.holds, changes),
    )


def _emptied(machines: int) -> Refused:
    message = (
        f"pruning would remove every machine of the fleet, all {machines}, and the file has none "
        "in their place: see whether the file is whole; if that is meant, apply with --allow-empty"
    )
    return Refused(ErrorCode.CONFLICT, message, machines=machines)


def _left_held(holds: Collection[Hold], changes: Changes) -> tuple[Hold, ...]:
    """Return the holds of what these changes remove."""
    gone = {(HoldKind.MACHINE, name) for name in changes.removed_machines}
    gone |= {(HoldKind.SCOPE, name) for name in changes.removed_scopes}
    return tuple(hold for hold in holds if (hold.kind, hold.name) in gone)


def _without_lost(
    groups: list[fleet.Group], snapshot: Snapshot, *, again: bool
) -> tuple[list[fleet.Group], tuple[str, ...]]:
    """Return the groups without the machines that were lost, and the names of those."""
    gone = {} if again else {k: m for k, m in snapshot.lost.items() if k not in snapshot.machines}
    names = [m.name for group in groups for m in group.members if key(m.name) in gone]
    if not names:
        return groups, ()
    kept = [
        msgspec.structs.replace(
            group, members=tuple(m for m in group.members if key(m.name) not in gone)
        )
        for group in groups
    ]
    return kept, tuple(names)


def _anew(snapshot: Snapshot, name: str) -> int:
    """Return where a new scope's incarnation begins: above what a removed one of its name had."""
    return snapshot.retired[name] + 1 if name in snapshot.retired else 0


def _scope(before: Scope | None, group: fleet.Group, retired: int) -> Scope:
    if before is not None and before.kind is not group.kind:
        message = (
            f"at {group.where}: {group.name} is of the kind {before.kind}, not "
            f"{group.kind}: remove it first, or give the new one another name"
        )
        raise Refused(ErrorCode.CONFLICT, message, where=group.where)
    return Scope(
        name=group.name,
        kind=group.kind,
        update_domains=group.update_domains,
        incarnation=before.incarnation if before else retired,
        priority=group.priority,
        automatically_approve=group.automatically_approve,
        terminate_notice_minutes=group.terminate_notice_minutes,
        asked_at=before.asked_at if before else None,
    )


def _deal(
    present: Collection[Machine],
    before: dict[str, Machine],
    group: fleet.Group,
    mint: Callable[[], str],
) -> dict[str, Machine]:
    """Return the group's machines, each with its domains: given, kept or dealt, in this order."""
    scope = key(group.name)
    named = {key(member.name) for member in group.members}
    update = _Dealer(group.update_domains)
    fault = _Dealer(fleet.MAX_FAULT_DOMAINS)
    for machine in present:  # those that the file does not name keep their places
        if machine.key not in named:
            update.place(machine.update_domain, machine.host)
            fault.place(machine.fault_domain, machine.host)
    waiting = []
    placed: dict[str, tuple[int, int]] = {}
    for member in group.members:
        old = before.get(key(member.name))
        kept = old if old is not None and old.scope == scope else None
        domain = _first(member.placed.update_domain, kept.update_domain if kept else None)
        if domain is not None and domain >= group.update_domains:
            message = (
                f"at {member.where}: {member.name} is in update domain {domain}, and "
                f"{group.name} would have {group.update_domains}: give it another update_domain"
            )
            raise Refused(ErrorCode.CONFLICT, message, where=member.where)
        fault_domain = _first(member.placed.fault_domain, kept.fault_domain if kept else None)
        if domain is None or fault_domain is None:
            waiting.append((member, domain, fault_domain))
        if domain is not None:
            update.place(domain, member.placed.host)
        if fault_domain is not None:
            fault.place(fault_domain, member.placed.host)
        placed[member.name] = (domain or 0, fault_domain or 0)
    for member, domain, fault_domain in waiting:
        placed[member.name] = (
            update.deal(member.placed.host) if domain is None else domain,
            fault.deal(member.placed.host) if fault_domain is None else fault_domain,
        )
    return {
        key(member.name): _machine(member, scope, before.get(key(member.name)), placed, mint)
        for member in group.members
    }


def _machine(
    member: fleet.Member,
    scope: str,
    before: Machine | None,
    placed: dict[str, tuple[int, int]],
    mint: Callable[[], str],
) -> Machine:
    update_domain, fault_domain = placed[member.name]
    written = member.placed
    address = written.address and fleet.normal_address(written.address, member.where)
    vm_id = written.vm_id.lower() or (before.vm_id if before else mint().lower())
    return Machine(
        name=member.name,
        scope=scope,
        update_domain=update_domain,
        fault_domain=fault_domain,
        vm_id=vm_id,
        host=written.host,
        address=address,
        listener=member.listener,
        role=member.role,
        tags=tuple(written.tags.items()),
        profile=fleet.profile_of(written),
    )


class _Dealer:
    """Deals the domains of one scope: a host's own first, then the emptiest."""

    def __init__(self, domains: int) -> None:
        self._sizes = Counter(dict.fromkeys(range(domains), 0))
        self._hosts: dict[str, int] = {}

    def place(self, domain: int, host: str) -> None:
        self._sizes[domain] += 1
        if host:
            self._hosts.setdefault(host, domain)

    def deal(self, host: str) -> int:
        domain = self._hosts.get(host) if host else None
        if domain is None:
            domain = min(self._sizes, key=lambda d: (self._sizes[d], d))
        self.place(domain, host)
        return domain


def _judge_kept(
    kept: Collection[Machine], after: dict[str, Machine], scopes: dict[str, Scope]
) -> None:
    """Refuse what collides with machines that the file does not name and that stay."""
    addresses = {(m.listener, m.address): m.name for m in after.values() if m.address}
    for machine in kept:
        other = addresses.get((machine.listener, machine.address)) if machine.address else None
        if other is not None:
            message = (
                f"the address {machine.address} of {other} belongs to {machine.name}, which the "
                "file does not name: remove that one, or apply with --prune"
            )
            raise Refused(ErrorCode.CONFLICT, message, machine=machine.name, other=other)
        scope = scopes.get(machine.scope)
        if scope is None:
            continue
        if scope.kind is ScopeKind.MACHINE or machine.update_domain >= scope.update_domains:
            message = (
                f"{machine.name}, which the file does not name, is in update domain "
                f"{machine.update_domain} of {scope.name}, and that would have "
                f"{scope.update_domains}: name it with another update_domain, or apply with --prune"
            )
            raise Refused(ErrorCode.CONFLICT, message, machine=machine.name)


def _judge_ids(machines: Collection[Machine]) -> None:
    """Refuse a vm_id that another machine has, as its vm_id or as its name.

    A proxy may name a machine by either.
    """
    owners: dict[str, Machine] = {}
    for machine in machines:
        other = owners.setdefault(machine.vm_id, machine)
        if other is machine:
            continue
        message = f"{machine.name} and {other.name} would both have the vm_id {machine.vm_id}"
        raise Refused(ErrorCode.CONFLICT, message, machine=machine.name, other=other.name)
    for machine in machines:
        owner = owners.get(machine.key, machine)
        if owner is not machine:
            message = f"{owner.name} would have the vm_id {owner.vm_id}, which is a machine's name"
            raise Refused(ErrorCode.CONFLICT, message, machine=owner.name, other=machine.name)


def _judge_live(
    operations: Collection[Operation],
    gone: Collection[Machine],
    moved: Collection[tuple[Machine, Machine]],
) -> None:
    """Refuse to remove or move what a live event names."""
    busy = {
        key(name): event.id
        for operation in operations
        if operation.status.visible
        for event in operation.events
        for name in event.machines
    }
    torn = [machine for machine in gone if machine.key in busy] + [
        old
        for old, new in moved
        if old.key in busy
        and (old.name, old.scope, old.update_domain) != (new.name, new.scope, new.update_domain)
    ]
    if torn:
        machine = torn[0]
        event_id = busy[machine.key]
        message = (
            f"{machine.name} has the live event {event_id}: it cannot be removed, renamed or "
            "moved until that is over; wait, or cancel the event"
        )
        raise Refused(ErrorCode.CONFLICT, message, machine=machine.name, event_id=event_id)


def _forestall(scopes: dict[str, Scope], snapshot: Snapshot, machines: Collection[Machine]) -> None:
    """Raise a scope's incarnation above what a machine that enters it may have read elsewhere.

    A machine that moves, or is removed and added again, must never meet an equal incarnation with
    other content (protocol.md section 7). In the scope that it left it can not: that one only
    counts up.
    """
    for machine in machines:
        if (old := snapshot.machines.get(machine.key)) is not None:
            scope, left = old.scope, snapshot.scopes[old.scope].incarnation
        elif (parting := snapshot.parted.get(machine.key)) is not None:
            scope, left = parting.scope, parting.incarnation
        else:
            continue
        entered = scopes[machine.scope]
        if scope != machine.scope and left and entered.incarnation <= left:
            scopes[machine.scope] = msgspec.structs.replace(entered, incarnation=left + 1)


def _first(given: int | None, kept: int | None) -> int | None:
    return kept if given is None else given
