"""The footprints of units under way, and the other maintenance that is in their way."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from forewarn.maintenance import host_plan, planner
from forewarn.maintenance.model import Machine, Maintenance, Operation, Scope, key, listed
from forewarn.maintenance.standing import behind
from forewarn.maintenance.units import NO_MACHINES, Unit, UnitKind, UnitState
from forewarn.maintenance.world import World
from forewarn.vocabulary import EventStatus

SEVERAL: Final = -1
"""Stands for several update domains of a scope."""

replace = msgspec.structs.replace


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """The machines, update domains and places that a unit occupies while it is under way."""

    machines: tuple[str, ...]
    """Their keys."""
    domains: Mapping[str, int]
    """The update domain of each scope (by key), or SEVERAL."""
    places: frozenset[str] = frozenset()
    """The places of its machines, by the policy's `spread`."""


def footprint(machines: Iterable[Machine], spread: str) -> Footprint:
    """Return the footprint of machines."""
    domains: dict[str, set[int]] = {}
    places: set[str] = set()
    names: list[str] = []
    tag = spread.removeprefix("tag:") if spread.startswith("tag:") else None
    for machine in machines:
        names.append(machine.key)
        domains.setdefault(machine.scope, set()).add(machine.update_domain)
        if tag is not None:
            places.update(value for name, value in machine.tags if name == tag)
        elif spread == "host" and machine.host:
            places.add(machine.host)
        elif spread == "fault-domain":
            places.add(f"{machine.scope}/{machine.fault_domain}")
    return Footprint(
        machines=tuple(names),
        domains={s: SEVERAL if len(found) > 1 else min(found) for s, found in domains.items()},
        places=frozenset(places),
    )


def visiting(world: World, host: str, names: Collection[str]) -> str:
    """Describe the machines on a host that wait for their own host, which is being drained.

    `names` are the keys of the machines that are there. `""` where it has no such visitors.
    """
    own = {other for name in names for other in world.drain_of_machine.of(name)}
    for other in sorted({*world.drain_to_host.of(host), *own} - {host}):
        guests = world.drains[other].guests
        here = [g.name for g in guests if g.to_host == host or key(g.name) in names]
        return f"{listed(here)} of host {other} is there until that host is up again"
    return ""


def repaired_by(machines: Iterable[str], live: Iterable[Operation]) -> list[Operation]:
    """Return the failures of these that keep their domains down until such machines are back.

    The machines are named by their keys.
    """
    failed = [one for one in live if one.status is EventStatus.FAILED]
    names = set(machines) if failed else ()
    return [one for one in failed if any(key(name) in names for name in one.awaited)]


def lets_repair(queued: Operation, scope: str, repaired: Iterable[Operation]) -> bool:
    """Return True if what is Queued in a scope (key) cannot go before one of these is repaired."""
    return any(
        queued.waits_for == failed.id or any(event.scope == scope for event in failed.events)
        for failed in repaired
    )


def in_the_way(
    unit: Unit,
    takes: Footprint,
    live: Iterable[Operation],
    queueing: Container[str],
) -> str:
    """Describe the live operation in a unit's scopes that keeps it from being asked for.

    The rules would refuse it, or let it wait in a queue; `""` where nothing is in the way. In
    scopes that are not among `queueing`, what waits for another update domain is announced all the
    same, unless that waits for an operator: with windows, its guests would prepare in vain each
    night.
    """
    names = set(takes.machines)
    # By start order, so that the store's order does not decide the answer. What is held, or has
    # its window ahead, gives way to other update domains.
    live = sorted(live, key=planner.start_order)
    repaired = repaired_by(takes.machines, live)
    for operation in live:
        if not operation.status.over:
            shared = [name for name in operation.machines if key(name) in names]
            if shared:
                return f"{listed(shared)} has {_standing(operation)}"
        queued = operation.status is EventStatus.QUEUED
        for event in () if operation.gives_way else operation.events:
            # Nor does it wait for what itself waits until its own machines are repaired.
            if queued and lets_repair(operation, event.scope, repaired):
                continue
            mine = takes.domains.get(event.scope)
            queues = unit.drain or event.scope in queueing
            stands = operation.outcome_unknown or operation.status is EventStatus.FAILED
            if (queues or stands) and mine is not None and mine != event.update_domain:
                domain = f"update domain {event.update_domain} of {event.scope}"
                return f"{domain} has {_standing(operation)}"
    return ""


def _standing(operation: Operation) -> str:
    return f"{operation.id}{behind(operation) or f', which is {operation.status}'}"


@dataclass(eq=False, repr=False)
class UnitsInWorld:
    """The units of a maintenance in the World: their machines, and the obstacles in their way.

    `queues` tells of a scope if its operations wait unannounced for another update domain.
    """

    maintenance: Maintenance
    world: World
    queues: Callable[[Scope], bool]
    _done: dict[str, set[str]] | None = None
    """By scope, the machines that its update domains have done."""

    def machines(self, unit: Unit) -> list[Machine]:
        """Return the machines of a unit that are not done, in any order."""
        world = self.world
        done = set(unit.done)
        if unit.kind is UnitKind.HOST:
            found = world.machines_on(unit.name)
            its = world.drains.get(unit.name) if unit.drain else None
            if its is not None and not host_plan.is_up(its):
                # Those that have moved away come home: until then it takes their update domains,
                # also where somebody else has drained it before the unit's turn.
                there = {machine.key for machine in found}
                away = (key(guest.name) for guest in its.guests)
                found += [world.machines[n] for n in away if n in world.machines and n not in there]
        elif unit.kind is UnitKind.UPDATE_DOMAIN:
            done |= self._done_in(unit.scope)
            members = world.machines_of(unit.scope)
            found = [one for one in members if one.update_domain == unit.update_domain]
        else:
            known = (world.machines[name] for name in unit.machines if name in world.machines)
            waits = unit.state is UnitState.WAITING
            found = [one for one in known if not waits or unit.fits(one.tags)]
        return [one for one in found if one.key not in done] if done else found

    def footprint(self, unit: Unit) -> Footprint:
        """Return the footprint of a unit while it is under way.

        One that is Queued and held gives way to others: it occupies no domains.
        """
        found = footprint(self.machines(unit), self.maintenance.policy.spread)
        name = f"{self.maintenance.number}.{unit.operation}"
        operation = self.world.operations.get(name)
        held = operation is not None and operation.gives_way and operation.held_at is not None
        if unit.state is UnitState.RUNNING and held:
            return replace(found, domains={}, places=frozenset())
        return found

    def occupied(self, unit: Unit, takes: Footprint) -> str:
        """Describe the hold on a unit, or the obstacle in its way; `""` if it can go.

        A host is not drained before the machines that other drains moved to it are home again. Of
        several domains of a scope that are not drained together, it is the first that goes now.
        """
        world = self.world
        several = not unit.drain and SEVERAL in takes.domains.values()
        machines: list[Machine] = []
        if world.holds or several:  # mostly there are none, and units are many
            machines = [world.machines[name] for name in takes.machines]
        if several:
            first = next(planner.turns(machines))
            takes = replace(takes, domains={one.scope: one.update_domain for one in first})
        if world.holds:
            hosts = (unit.host, self.maintenance.to_host)
            if held := planner.on_hold(machines, world.holds_in_order(), *hosts):
                return held
        live = {one.id: one for scope in takes.domains for one in world.live_in(scope)}
        queueing = {scope for scope in takes.domains if self.queues(world.scopes[scope])}
        visitors = visiting(world, unit.name, set(takes.machines)) if unit.drain else ""
        return visitors or in_the_way(unit, takes, live.values(), queueing)

    def grown(self, maintenance: Maintenance, skipped: Iterable[int], *, over: bool) -> Maintenance:
        """Return the maintenance with the machines and domains that its scopes have got since.

        An update domain that was empty in its turn, one of the places `skipped`, waits again as
        soon as it has machines. Once all other units are `over`, so do domains that got machines
        after their turn, and new ones.
        """
        waits = {"state": UnitState.WAITING, "reason": ""}
        after = list(maintenance.units)
        again = [place for place in skipped if _was_empty(after[place])]
        for place in [place for place in again if self.machines(after[place])]:
            after[place], over = replace(after[place], **waits), False
        places = {
            (unit.scope, unit.update_domain): index
            for index, unit in enumerate(after if over else ())
            if unit.kind is UnitKind.UPDATE_DOMAIN
        }
        for scope in dict.fromkeys(scope for scope, _ in places):
            done = self._done_in(scope)
            left = {m.update_domain for m in self.world.machines_of(scope) if m.key not in done}
            for domain in sorted(left):
                index = places.get((scope, domain))
                if index is None:
                    name = self.world.scopes[scope].name
                    wave = max(unit.wave for unit in after)
                    after.append(planner.of_domain(name, domain, wave=wave))
                elif after[index].state is UnitState.DONE:
                    after[index] = replace(after[index], **waits)
        return replace(maintenance, units=tuple(after))

    def _done_in(self, scope: str) -> set[str]:
        if self._done is None:
            self._done = {}
            for unit in self.maintenance.units:
                if unit.kind is UnitKind.UPDATE_DOMAIN:
                    self._done.setdefault(unit.scope, set()).update(unit.done)
        return self._done.get(scope, set())


def _was_empty(unit: Unit) -> bool:
    return unit.reason == NO_MACHINES and unit.kind is UnitKind.UPDATE_DOMAIN
