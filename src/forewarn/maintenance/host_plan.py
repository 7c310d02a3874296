"""The plan of a host's drain: which machines leave, how, where to, and the problems in the way.

The largest machines get their targets first, each the host with the most memory left. Machines that
cannot be moved while they run are the operator's choice.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
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
    unknown,
)
from forewarn.maintenance.planner import natural
from forewarn.maintenance.world import NOTHING, World
from forewarn.vocabulary import ErrorCode

MOVES: Final = frozenset({Way.LIVE, Way.REDEPLOY})

replace = msgspec.structs.replace


class HostSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """One look at all hosts."""

    began_at: datetime
    hosts: dict[str, HostFacts]
    keys: dict[str, str]
    """The keys of the fleet's machines that hosts have, by GUID."""
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


def plan(
    host: str,
    survey: HostSurvey,
    machines: Mapping[str, Machine],
    *,
    stay: Stay,
    drains: Mapping[str, Drain] = NOTHING,
    avoid: Sequence[str] = (),
    holds: Iterable[Hold] = (),
    known: Iterable[DrainGuest] = (),
) -> HostPlan:
    """Plan how the machines that run on a host leave it.

    Args:
        host: The host.
        survey: A look at all hosts.
        machines: The fleet's, by GUID.
        stay: The policy for machines that cannot be moved while they run.
        drains: The drains of other hosts: no machine moves to one that they close, or into memory
            that is for a machine of theirs.
        avoid: Hosts that machines move to only if no other has room, the last of them first.
        holds: All holds: no machine moves to a host that is held, such as one whose relay is away.
        known: Guests that are decided already, and stay so; UNDECIDED ones are decided now.
    """
    running = {guest.vm_id: guest for guest in survey.of(host).guests if guest.running}
    decided = {
        guest.vm_id: guest
        for guest in known
        if guest.way is not Way.UNDECIDED and not (guest.way is Way.GONE and guest.vm_id in running)
    }
    gone = tuple(
        replace(guest, way=Way.GONE)
        for guest in known
        if guest.way is Way.UNDECIDED and not (guest.vm_id in running and guest.vm_id in machines)
    )
    held = {hold.name: hold for hold in of_hosts(holds) if hold.name != host}
    avoided = {name: -place for place, name in enumerate(avoid)}
    others = [drain for drain in drains.values() if drain.host != host]
    shut, needed = {host, *closed(others), *held}, promised(others, survey)
    memory = {
        name: facts.free_memory_mib - needed[name]
        for name, facts in survey.hosts.items()
        if facts.answers and facts.target and name not in shut
    }
    problems: list[str] = []
    new = [g for i, g in running.items() if i in machines and i not in decided]
    new.sort(key=lambda g: (-g.memory_mib, natural(machines[g.vm_id])))
    guests = [
        _planned(g, machines[g.vm_id].name, stay, memory, problems, avoided=avoided) for g in new
    ]
    # Machines of one update domain together: between them, one of another would wait its turn.
    guests.sort(key=lambda g: (g.way is Way.STOP, machines[g.vm_id].update_domain))
    if held and any(guest.way in MOVES and not guest.to_host for guest in guests):
        problems += [f"{hold} is held: {hold.reason}" for hold in held.values()]
    problems += together([*decided.values(), *guests], machines)
    strangers = sorted(guest.name for i, guest in running.items() if i not in machines)
    return HostPlan(
        host=host,
        guests=(*decided.values(), *gone, *guests),
        strangers=tuple(strangers),
        problems=tuple(problems),
    )


def on_hosts(
    world: World, survey: HostSurvey | None, hosts: Iterable[str], names: Iterable[str] = ()
) -> dict[str, Machine]:
    """Return the machines that a look found on hosts, and these (keys), by their GUIDs."""
    there = [guest for host in hosts if survey for guest in survey.of(host).guests]
    keys = {*names, *(survey.keys.get(guest.vm_id, "") for guest in there if survey)}
    return {
        world.machines[name].vm_id: world.machines[name] for name in keys & world.machines.keys()
    }


def promised(drains: Iterable[Drain], survey: HostSurvey) -> Counter[str]:
    """Return the memory, in MiB by host, of machines that drains move there and that are to come.

    All that leave a host would choose the one with the most memory left, and so would those of
    another host that is drained at the same time.
    """
    found: Counter[str] = Counter()
    arrived = {(host, one.vm_id) for host, facts in survey.hosts.items() for one in facts.guests}
    for drain in drains:
        home = drain.state is HostState.RETURNING
        for guest in drain.guests if home or drain.state is HostState.DRAINING else ():
            host = drain.host if home else guest.to_host
            comes = guest.way is not Way.SKIP if home else guest.way in MOVES
            if comes and (host, guest.vm_id) not in arrived:
                found[host] += guest.memory_mib
    return found


def closed(drains: Iterable[Drain]) -> set[str]:
    """Return the hosts that no machine may move to because of their drains."""
    return {drain.host for drain in drains if drain.closed}


def of_hosts(holds: Iterable[Hold]) -> Iterator[Hold]:
    """Yield the holds of hosts: no machine moves to these."""
    return (hold for hold in holds if hold.kind is HoldKind.HOST)


def _planned(
    facts: GuestFacts,
    name: str,
    stay: Stay,
    memory: dict[str, int],
    problems: list[str],
    *,
    avoided: Mapping[str, int],
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
    room = [host for host, free in memory.items() if free >= facts.memory_mib]
    if not room:
        problems.append(f"no other host has {facts.memory_mib} MiB of memory left for {name}")
        return replace(guest, way=way)
    soon = len(avoided)
    to_host = min(room, key=lambda host: (avoided.get(host, -soon), -memory[host], host))
    memory[to_host] -= facts.memory_mib
    return replace(guest, way=way, to_host=to_host)


def together(guests: Iterable[DrainGuest], machines: Mapping[str, Machine]) -> Iterator[str]:
    """Yield the reasons why machines that are shut down cannot all be off at the same time."""
    domains: dict[str, Machine] = {}
    for guest in guests:
        machine = machines.get(guest.vm_id) if guest.way is Way.STOP else None
        if machine is None:
            continue
        other = domains.setdefault(machine.scope, machine)
        if other.update_domain != machine.update_domain:
            yield (
                f"{other.name} and {machine.name} would be shut down together, and are in "
                f"different update domains of {machine.scope}"
            )


def plans(
    wanted: Sequence[Drain],
    drains: Mapping[str, Drain],
    survey: HostSurvey,
    machines: Mapping[str, Machine],
    holds: Sequence[Hold] = (),
) -> tuple[HostPlan, ...]:
    """Plan the drains of hosts, one after another, as far as they can be foreseen.

    Hosts that are not rebooted stay closed, so nothing moves to those that come before. One that is
    named twice is refused (INVALID).
    """
    if len({one.host for one in wanted}) != len(wanted):
        raise Refused(ErrorCode.INVALID, "at hosts: name each host once", where="hosts")
    drains, found = dict(drains), []
    for one in wanted:
        facts = survey.of(one.host)
        its = plan(
            one.host,
            survey,
            machines,
            stay=one.stay,
            drains=drains,
            avoid=one.avoid,
            holds=holds,
        )
        problems = its.problems
        if not facts.answers:
            problems = (f"host {one.host} does not answer: {facts.why}".rstrip(": "),)
        elif one.reboot and not facts.can_reboot:
            problems = (f"no command reboots host {one.host}", *problems)
        found.append(replace(its, problems=problems))
        is_back = one.reboot and one.bring_home
        state = HostState.UP if is_back else HostState.DRAINING
        drains[one.host] = replace(one, state=state, guests=its.guests)
    return tuple(found)


def check(
    wanted: Sequence[Drain],
    drains: Mapping[str, Drain],
    survey: HostSurvey,
    machines: Mapping[str, Machine],
    holds: Sequence[Hold] = (),
) -> tuple[HostPlan, ...]:
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
    new = [one for one in wanted if is_up(drains.get(one.host))]
    planned = plans(new, drains, survey, machines, holds)
    for found in planned:
        if found.problems:
            message = f"cannot drain host {found.host}: {'; '.join(found.problems)}"
            raise Refused(ErrorCode.NOT_ELIGIBLE, message, host=found.host)
    return planned


def is_up(drain: Drain | None) -> bool:
    """Return True if a host is not being drained."""
    return drain is None or drain.state is HostState.UP
