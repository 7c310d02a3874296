"""The order of a maintenance's units, and the plan that an operator sees before it starts.

`arranged` deals units to waves, in an order in which as many as possible go at once. The times of
the plan come from `turn_forecast`.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from forewarn.maintenance import (
    host_drain,
    notice,
    planner,
    turns,
    units,
)
from forewarn.maintenance.footprints import SEVERAL, Footprint, UnitsInWorld, visiting
from forewarn.maintenance.host_plan import SOON, HostSurvey
from forewarn.maintenance.model import (
    Drain,
    HostState,
    Maintenance,
    Refused,
    key,
    listed,
    mapped,
)
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turns import Obstacle
from forewarn.maintenance.units import TurnOrder, TurnPolicy, Unit, UnitState
from forewarn.maintenance.world import World
from forewarn.vocabulary import ErrorCode

MAX_ROUNDS: Final = 100
"""The rounds for which units are put in order, a day of notices and more. The others follow as they
were given: of a scale set on 5,000 hosts, each host may be a round of its own."""

replace = msgspec.structs.replace


class PlannedWave(msgspec.Struct, frozen=True, kw_only=True):
    """The units of one wave, in the order of their turns."""

    number: int
    """From 1."""
    units: tuple[str, ...]
    machines: int
    """Each counted once for each unit that it is in."""
    earliest: datetime | None = None
    """The time at which it is over if guests approve at once; None where that cannot be told."""
    latest: datetime | None = None
    """The time at which it is over if no guest approves."""


class PlannedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """The planned course of a maintenance, and its first step."""

    waves: tuple[PlannedWave, ...]
    units: int
    machines: int
    drained: int
    """The number of units that are hosts to drain."""
    first: tuple[str, ...]
    waits_for: Obstacle | None
    """The obstacle of the next units; None where all go at once."""
    reason: str
    """The obstacle in this case, such as the hold; `""` where `waits_for` says all."""
    window: Span | None
    """The next window; None where the policy has none, or none is to come."""
    without_machines: tuple[str, ...] = ()
    earliest: datetime | None = None
    """The time at which all is over if guests approve at once; None where that cannot be told."""
    latest: datetime | None = None
    """The time at which all is over if no guest approves."""
    stands: str = ""
    """Why it is not over without an operator; `""` where it is."""
    duration_known: bool = True
    """True if the expected interruption was given: without it, the times are too early by as much.
    """

    @property
    def notes(self) -> tuple[str, ...]:
        """The sentences about the plan that people read besides the waves."""
        told: list[str] = []
        if self.window is not None:
            opens, closes = notice.spoken(self.window.opens), notice.spoken(self.window.closes)
            told.append(f"The next window: {opens} to {closes}.")
        if self.first:
            told.append(f"First: {listed(self.first)}.")
        if self.waits_for:
            who = "The others wait" if self.first else "It waits"
            told.append(f"{who}: {self.reason or self.waits_for.words}.")
        if self.earliest is not None and self.latest is not None:
            told.append(f"Over {self._when}{'' if self.duration_known else _UNKNOWN}.")
        elif self.stands:
            told.append(f"It is not over by itself: {self.stands}.")
        if self.drained:
            told.append(
                "Hosts are drained: their machines move away before the reboot and come home after "
                "it, both times with notice and the usual text of a move."
            )
        return tuple(told)

    @property
    def _when(self) -> str:
        assert self.earliest is not None
        assert self.latest is not None
        earliest, latest = notice.spoken(self.earliest), notice.spoken(self.latest)
        if earliest == latest:
            return f"at {earliest}"
        return f"at {earliest} if guests approve at once, at {latest} if none does"


_UNKNOWN: Final = ", plus the time that the work takes (--duration)"


def arranged(
    given: Sequence[Unit],
    footprints: Callable[[Unit], Footprint],
    policy: TurnPolicy,
) -> tuple[Unit, ...]:
    """Return units in the order of their turns, each with its wave."""
    ordered = list(given)
    if policy.order is TurnOrder.TIGHTEST:
        rounds = _tightest([footprints(unit) for unit in given])
        ordered = [given[index] for its in rounds for index in its]
    sizes: list[int] = []
    for size in policy.waves:
        sizes.append(min(units.amount(size, len(given)), len(given) - sum(sizes)))
    waves = [wave for wave, size in enumerate(sizes) for _ in range(size)]
    used = [size for size in sizes if size]
    return tuple(
        replace(unit, wave=waves[place] if place < len(waves) else len(used))
        for place, unit in enumerate(ordered)
    )


def _tightest(takes: Sequence[Footprint]) -> list[list[int]]:
    """Return rounds: each takes next the unit that shares most update domains with it so far."""
    holders: dict[str, list[int]] = {}
    for index, each in enumerate(takes):
        for scope in each.domains:
            holders.setdefault(scope, []).append(index)
    left = set(range(len(takes)))
    rounds: list[list[int]] = []
    while left and len(rounds) < MAX_ROUNDS:
        shared = [0] * len(takes)
        barred: set[int] = set()
        chosen: list[int] = []
        taken: set[str] = set()
        # The largest first where nothing is shared; ties in the order given.
        heap = [(0, -len(takes[index].domains), index) for index in left]
        heapq.heapify(heap)
        while heap:
            score, _, index = heapq.heappop(heap)
            if index in barred or index not in left or score != -shared[index]:
                continue
            chosen.append(index)
            left.discard(index)
            for scope in takes[index].domains.keys() - taken:
                domain = takes[index].domains[scope]
                for other in holders[scope]:
                    if other not in left or other in barred:
                        continue
                    theirs = takes[other].domains[scope]
                    if theirs != domain or domain == SEVERAL:
                        barred.add(other)
                    else:
                        shared[other] += 1
                        size = -len(takes[other].domains)
                        heapq.heappush(heap, (-shared[other], size, other))
                taken.add(scope)
        rounds.append(chosen)
    return [*rounds, sorted(left)] if left else rounds


def drain(
    world: World, number: int, indexes: Iterable[int], survey: HostSurvey, now: datetime
) -> Iterator[None]:
    """Drain units' hosts, as an operator would ask for it; or note why that cannot be now.

    It yields after each of them.
    """
    found = False
    for index in indexes:
        found = _drain(world, number, index, survey, now, judged=found)
        yield


def _drain(
    world: World, number: int, index: int, survey: HostSurvey, now: datetime, *, judged: bool
) -> bool:
    """Drain a unit's host, `judged` beside those under way.

    Returns:
        True if that is to be so for the next ones: the survey has found machines that the fleet
        did not know to be there, so the choice of the units did not know of them.
    """
    maintenance = world.maintenances[number]
    unit, options = maintenance.units[index], maintenance.draining
    assert options is not None
    wanted = mapped(
        Drain,
        options,
        host=unit.name,
        state=HostState.UP,
        without_notice=maintenance.without_notice,
        avoid=drained_soon(maintenance, unit),
        requested_by=maintenance.requested_by,
        requested_at=now,
        changed_at=now,
    )
    there, known = world.on_host.of(unit.name), world.drains.get(unit.name)
    refusals: dict[int, Refused] = {}
    with planner.refusing(refusals, index), world.atomic():
        # Another host, drained in the same step, may have rested until now with machines here.
        if visitors := visiting(world, unit.name, {*there}):
            raise Refused(ErrorCode.CONFLICT, visitors, host=unit.name)
        if options.reboot and known is not None and known.rests:
            message = (
                f"host {unit.name} is kept empty by {known.requested_by or 'somebody'}: "
                f"'forewarn host return {unit.name}' ends that"
            )
            raise Refused(ErrorCode.CONFLICT, message, host=unit.name)
        begun = host_drain.begin(world, wanted, survey, now)
        world.maintenances[number] = turns.asked(maintenance, {index: 0}, now)
        judged = judged or not {key(guest.name) for guest in begun.guests} <= {*there}
        if judged:
            _check_apart(world, number, index)
    if refusals:
        world.maintenances[number] = turns.refused(maintenance, refusals, now)
    return judged


def _check_apart(world: World, number: int, index: int) -> None:
    """Refuse (CONFLICT) a unit whose machines cannot go beside others that are under way."""
    maintenance = world.maintenances[number]
    its, taken = UnitsInWorld(maintenance, world, lambda _: True), turns.Occupancy()
    for place, unit in enumerate(maintenance.units):
        if unit.state is UnitState.RUNNING and place != index:
            taken.add(unit, its.footprint(unit))
    unit = maintenance.units[index]
    if (found := taken.in_the_way(its.footprint(unit))) is not None:
        raise Refused(ErrorCode.CONFLICT, found[1], host=unit.name)


def drained_soon(maintenance: Maintenance, unit: Unit) -> tuple[str, ...]:
    """Return the hosts that are probably drained before a unit's host, drained now, is up again."""
    waiting = [
        one.name
        for one in maintenance.units
        if one.drain and one.state is UnitState.WAITING and one is not unit
    ]
    at_once = units.amount(maintenance.policy.at_once, len(maintenance.units))
    return tuple(waiting[: SOON * at_once])
