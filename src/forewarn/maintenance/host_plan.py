"""The plan of a host's drain: which machines leave, how, where to, and the problems in the way.

The largest machines get their targets first, each the host with the most memory left. Machines that
cannot be moved while they run are the operator's choice.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Final

import msgspec

from forewarn.maintenance.model import (
    Drain,
    DrainGuest,
    GuestFacts,
    Hold,
    HoldKind,
    HostFacts,
    HostState,
    Machine,
    Refused,
    Stay,
    Way,
    key,
    unknown,
)
from forewarn.maintenance.planner import natural
from forewarn.maintenance.world import LiveState, World
from forewarn.vocabulary import ErrorCode

MOVES: Final = frozenset({Way.LIVE, Way.REDEPLOY})

SOON: Final = 2
"""The hosts that count as drained soon after one, for each that may be drained at once: machines
move there only if no other host has room."""

replace = msgspec.structs.replace


class MachineKeys(Mapping[str, str]):
    """The keys of machines by GUID, made at the first look-up: 100,000 take 60 ms off the loop."""

    def __init__(self, machines: Iterable[Machine]) -> None:
        self._machines = tuple(machines)

    @cached_property
    def _keys(self) -> dict[str, str]:
        return {machine.vm_id: machine.key for machine in self._machines}

    def __getitem__(self, vm_id: str) -> str:
        """Return the key of the machine with this GUID."""
        return self._keys[vm_id]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the GUIDs."""
        return iter(self._keys)

    def __len__(self) -> int:
        """Return the number of machines."""
        return len(self._machines)


class HostSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """One look at all hosts."""

    began_at: datetime
    hosts: dict[str, HostFacts]
    keys: Mapping[str, str]
    """The keys of the fleet's machines, by GUID; not all of them need be on a host."""
    trouble: str = ""
    """The reason why it is empty; `""` where it is not."""

    def of(self, host: str) -> HostFacts:
        """Return the facts about a host; for an unknown one, that it does not answer."""
        why = self.trouble or "the connector does not know it"
        return self.hosts.get(host) or HostFacts(answers=False, why=why)


class HostPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a host's drain."""

    host: str
    guests: tuple[DrainGuest, ...]
    """In the order in which they leave: one update domain after another, of each the largest first,
    and those last that are shut down."""
    strangers: tuple[str, ...] = ()
    """Machines that run there and are not in the fleet: the host is not empty while they run."""
    problems: tuple[str, ...] = ()


def plan(world: World, drain: Drain, survey: HostSurvey) -> HostPlan:
    """Plan how the machines that run on a host leave it, by its drain and a look at all hosts.

    Guests of the drain that are decided already stay so; UNDECIDED ones are decided now. No machine
    moves to a host that is held, such as one whose relay is away, to one that another drain closes,
    or into memory that is for a machine of another drain; and to a host to avoid only if no other
    has room, to the last of them first.
    """
    host, known = drain.host, drain.guests
    running = {guest.vm_id: guest for guest in survey.of(host).guests if guest.running}
    machines = _in_fleet(world, survey, running)
    decided = {
        guest.vm_id: guest
        for guest in known
        if guest.way is not Way.UNDECIDED and not (guest.way is Way.GONE and guest.vm_id in running)
    }
    gone = tuple(
        replace(guest, way=Way.GONE)
        for guest in known
        if guest.way is Way.UNDECIDED and guest.vm_id not in machines
    )
    shut, needed = closed(world), _promised(world, survey, host)
    free = {
        name: facts.free_memory_mib - needed[name]
        for name, facts in survey.hosts.items()
        if facts.answers and facts.target and name != host and name not in shut
    }
    avoided = {name: free.pop(name) for name in reversed(drain.avoid) if name in free}
    first = [(-left, name) for name, left in free.items()]
    heapq.heapify(first)
    choose = partial(_target, first, avoided)
    problems: list[str] = []
    new = [g for i, g in running.items() if i in machines and i not in decided]
    new.sort(key=lambda g: (-g.memory_mib, natural(machines[g.vm_id])))
    guests = [_planned(g, machines[g.vm_id].name, drain.stay, choose, problems) for g in new]
    others = [one for one in world.drains.values() if one.host != host and not is_up(one)]
    away = {guest.vm_id for one in others for guest in one.guests if not guest.visits}
    guests = [replace(guest, visits=guest.vm_id in away) for guest in guests]
    # Machines of one update domain together: between them, one of another would wait its turn.
    guests.sort(key=lambda g: (g.way is Way.STOP, machines[g.vm_id].update_domain))
    if any(guest.way in MOVES and not guest.to_host for guest in guests):
        held = (one for one in _host_holds(world) if one.name != host)
        problems += [f"{hold} is held: {hold.reason}" for hold in held]
    problems += together(world, [*decided.values(), *guests])
    strangers = sorted(guest.name for i, guest in running.items() if i not in machines)
    return HostPlan(
        host=host,
        guests=(*decided.values(), *gone, *guests),
        strangers=tuple(strangers),
        problems=tuple(problems),
    )


def _in_fleet(world: World, survey: HostSurvey, vm_ids: Iterable[str]) -> dict[str, Machine]:
    found = (world.machines.get(survey.keys.get(vm_id, "")) for vm_id in vm_ids)
    return {machine.vm_id: machine for machine in found if machine is not None}


def machine_of(world: World, guest: DrainGuest) -> Machine | None:
    """Return the machine that a guest of a drain is; None if it has left the fleet."""
    machine = world.machines.get(key(guest.name))
    return machine if machine is not None and machine.vm_id == guest.vm_id else None


def _promised(world: World, survey: HostSurvey, host: str) -> Counter[str]:
    """Return the memory, in MiB by host, of machines that other drains move there and are to come.

    All that leave a host would choose the one with the most memory left, and so would those of
    another host that is drained at the same time. What is under way goes on when its drain is stuck
    or the host is opened.
    """
    found: Counter[str] = Counter()
    there: dict[str, set[str]] = {}
    moves = world.of_maintenance
    for drain in world.drains.values():
        for guest in drain.guests if drain.host != host else ():
            targets: set[str] = set()
            for number in (guest.leaves_by, guest.returns_by):
                one = world.operations.get(f"{number}.1") if number in moves else None
                if one is not None and not one.status.over:
                    targets.add(one.to_host)
            comes_home = guest.way is not Way.SKIP and not guest.visits
            if drain.state is HostState.RETURNING and comes_home:
                targets.add(drain.host)
            elif drain.state is HostState.DRAINING and guest.way in MOVES:
                targets.add(guest.to_host)
            for name in targets:
                if name not in there:  # of a thousand hosts, few are a target
                    there[name] = {one.vm_id for one in survey.of(name).guests}
                if guest.vm_id not in there[name]:
                    found[name] += guest.memory_mib
    return found


def closed(world: World) -> set[str]:
    """Return the hosts that no machine may move to: they are drained, or held."""
    drained = {drain.host for drain in world.drains.values() if drain.closed}
    return drained.union(hold.name for hold in _host_holds(world))


def _host_holds(world: World) -> Iterator[Hold]:
    return (hold for hold in world.holds_in_order() if hold.kind is HoldKind.HOST)


def _planned(
    facts: GuestFacts,
    name: str,
    stay: Stay,
    choose: Callable[[int], str],
    problems: list[str],
) -> DrainGuest:
    guest = DrainGuest(
        name=name, vm_id=facts.vm_id, memory_mib=facts.memory_mib, obstacles=facts.obstacles
    )
    if facts.obstacles and stay is Stay.STOP:
        return replace(guest, way=Way.STOP)
    if facts.obstacles and stay is Stay.REFUSE:
        why = "; ".join(facts.obstacles)
        problems.append(f"{name} cannot be moved while it runs: {why}")
        return guest
    way = Way.REDEPLOY if facts.obstacles else Way.LIVE
    to_host = choose(facts.memory_mib)
    if not to_host:
        problems.append(f"no other host has {facts.memory_mib} MiB of memory left for {name}")
    return replace(guest, way=way, to_host=to_host)


def _target(first: list[tuple[int, str]], avoided: dict[str, int], needed: int) -> str:
    """Return the host for a machine of so many MiB, which it takes there; `""` for none.

    `first` is a heap of hosts by the memory that is left, negative; `avoided` are those for which
    no other has room, in order.
    """
    if first and -first[0][0] >= needed:
        taken, host = first[0]
        heapq.heapreplace(first, (taken + needed, host))
        return host
    host = next((name for name, left in avoided.items() if left >= needed), "")
    if host:
        avoided[host] -= needed
    return host


def together(world: World, guests: Iterable[DrainGuest]) -> Iterator[str]:
    """Yield the reasons why machines that are shut down cannot all be off at the same time."""
    domains: dict[str, Machine] = {}
    for guest in guests:
        machine = machine_of(world, guest) if guest.way is Way.STOP else None
        if machine is None:
            continue
        other = domains.setdefault(machine.scope, machine)
        if other.update_domain != machine.update_domain:
            yield (
                f"{other.name} and {machine.name} would be shut down together, and are in "
                f"different update domains of {machine.scope}"
            )


def planned(
    state: LiveState, wanted: Sequence[Drain], survey: HostSurvey, *, judge: bool
) -> tuple[HostPlan, ...]:
    """Return the plans of hosts' drains in a fleet; nothing changes.

    With `judge`, hosts that are unknown, or could not be drained now, are refused.
    """
    world = World(state)
    if judge:
        check(world, wanted, survey)
    return plans(world, wanted, survey)


def plans(world: World, wanted: Sequence[Drain], survey: HostSurvey) -> tuple[HostPlan, ...]:
    """Plan the drains of hosts, one after another, as far as they can be foreseen.

    Hosts that are not rebooted stay closed, so nothing moves to those that come before. A host that
    is drained already keeps the plan of its drain. One that is named twice is refused (INVALID).
    """
    if len({one.host for one in wanted}) != len(wanted):
        raise Refused(ErrorCode.INVALID, "at hosts: name each host once", where="hosts")
    found = []
    with world.supposing():
        for place, one in enumerate(wanted, 1):
            facts = survey.of(one.host)
            soon = (other.host for other in wanted[place : place + SOON])
            known = world.drains.get(one.host)
            if known is None or is_up(known):
                known = replace(one, avoid=(*one.avoid, *soon))
            its = plan(world, known, survey)
            problems = its.problems
            if not facts.answers:
                problems = (f"host {one.host} does not answer: {facts.why}".rstrip(": "),)
            elif one.reboot and not facts.can_reboot:
                problems = (f"no command reboots host {one.host}", *problems)
            elif one.reboot and not facts.boot_id:
                problems = (f"host {one.host} does not tell its boot id", *problems)
            found.append(replace(its, problems=problems))
            is_back = one.reboot and one.bring_home
            state = HostState.UP if is_back else HostState.DRAINING
            world.drains[one.host] = replace(one, state=state, guests=its.guests)
    return tuple(found)


def check(world: World, wanted: Sequence[Drain], survey: HostSurvey) -> tuple[HostPlan, ...]:
    """Return the plans for those of the hosts that are up.

    Refuses hosts that are unknown, or that could not be drained now.

    Raises:
        Refused: NOT_FOUND or NOT_ELIGIBLE, or what `plans` refuses.
    """
    if survey.trouble:
        message = f"the hosts cannot be looked at: {survey.trouble}"
        raise Refused(ErrorCode.NOT_ELIGIBLE, message)
    if not survey.hosts:
        message = "the connector knows no hosts: drains need one that does, such as 'libvirt'"
        raise Refused(ErrorCode.NOT_ELIGIBLE, message)
    for one in wanted:
        if one.host not in survey.hosts:
            raise unknown("host", one.host)
    planned = plans(world, [one for one in wanted if is_up(world.drains.get(one.host))], survey)
    for found in planned:
        if found.problems:
            message = f"cannot drain host {found.host}: {'; '.join(found.problems)}"
            raise Refused(ErrorCode.NOT_ELIGIBLE, message, host=found.host)
    return planned


def is_up(drain: Drain | None) -> bool:
    """Return True if a host is not being drained."""
    return drain is None or drain.state is HostState.UP
