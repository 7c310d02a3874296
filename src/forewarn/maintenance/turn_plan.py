"""The order of a maintenance's units, and the plan that an operator sees before it starts.

`arranged` deals units to waves, in an order in which as many as possible go at once. `planned` lets
`turns.step` decide for this moment, with the holds and the maintenance that there are: it can't say
what the maintenance would not do.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import msgspec

from forewarn.maintenance import notice, time_windows, turn_check, turns, units
from forewarn.maintenance.footprints import SEVERAL, Footprint
from forewarn.maintenance.model import Maintenance, listed
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turns import Ask, Footprints, Obstacle, Occupied, Wait
from forewarn.maintenance.units import TurnOrder, TurnPolicy, Unit, UnitState

replace = msgspec.structs.replace


class PlannedWave(msgspec.Struct, frozen=True, kw_only=True):
    """The units of one wave, in the order of their turns."""

    number: int
    """From 1."""
    units: tuple[str, ...]
    machines: int
    """Each counted once for each unit that it is in."""


class PlannedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """What a maintenance will do, and what it does first."""

    waves: tuple[PlannedWave, ...]
    units: int
    machines: int
    drained: int
    """How many of the units are hosts that are drained."""
    first: tuple[str, ...]
    """The units that go at once."""
    waits_for: Obstacle | None
    """What the next units wait for; None where all go at once."""
    reason: str
    """What that is in this case, such as the hold; `""` where the obstacle says all."""
    window: Span | None
    """The next window; None where the policy has none, or none is to come."""
    without_machines: tuple[str, ...] = ()
    """Units that will be left out."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What people read of it besides the waves."""
        told: list[str] = []
        if self.window is not None:
            opens, closes = notice.spoken(self.window.opens), notice.spoken(self.window.closes)
            told.append(f"The next window: {opens} to {closes}.")
        if self.first:
            told.append(f"First: {listed(self.first)}.")
        if self.waits_for:
            who = "The others wait" if self.first else "It waits"
            told.append(f"{who}: {self.reason or self.waits_for.words}.")
        if self.drained:
            told.append(
                "Hosts are drained: their machines move away before the reboot and come home after "
                "it, both times with notice and the usual text of a move."
            )
        return tuple(told)


def planned(
    maintenance: Maintenance, footprints: Footprints, occupied: Occupied, now: datetime
) -> PlannedTurns:
    """Return the plan of a new maintenance, arranged.

    `footprints` are what each unit takes; `occupied` tells what holds or occupies it already.
    """
    machines = {unit.key: len(footprints(unit).machines) for unit in maintenance.units}
    going: dict[int, list[Unit]] = {}
    empty: list[str] = []
    for unit in maintenance.units:
        if machines[unit.key] or unit.drain:
            going.setdefault(unit.wave, []).append(unit)
        else:
            empty.append(unit.name)
    waves = tuple(
        PlannedWave(
            number=number + 1,
            units=tuple(unit.name for unit in its),
            machines=sum(machines[unit.key] for unit in its),
        )
        for number, its in sorted(going.items())
    )
    first, waits_for, reason = _first(maintenance, footprints, occupied, now)
    policy = maintenance.policy
    windows = time_windows.following(policy.windows, policy.zone, policy.blackouts, now)
    return PlannedTurns(
        waves=waves,
        units=sum(map(len, going.values())),
        machines=sum(wave.machines for wave in waves),
        drained=sum(unit.drain for its in going.values() for unit in its),
        first=first,
        waits_for=waits_for,
        reason=reason,
        window=windows[0] if policy.windows and windows else None,
        without_machines=tuple(empty),
    )


def _first(
    maintenance: Maintenance, footprints: Footprints, occupied: Occupied, now: datetime
) -> tuple[tuple[str, ...], Obstacle | None, str]:
    """Return the units that go at once, what the next one waits for, and why."""
    first: list[str] = []
    maintenance = turn_check.released(maintenance)
    while True:
        maintenance, step = turns.step(maintenance, footprints, occupied, now)
        if isinstance(step, Ask):
            for index in step.units:
                first.append(maintenance.units[index].name)
                maintenance = turns.asked(maintenance, {index: 0}, now)
            continue
        waiting = any(unit.state is UnitState.WAITING for unit in maintenance.units)
        if not isinstance(step, Wait) or not waiting:
            return tuple(first), None, ""
        blocked = next((u.reason for u in maintenance.units if u.state is UnitState.WAITING), "")
        reason = step.why if step.obstacle is Obstacle.WINDOW else blocked
        return tuple(first), step.obstacle, reason


def arranged(
    given: Sequence[Unit],
    footprints: Callable[[Unit], Footprint],
    policy: TurnPolicy,
) -> tuple[Unit, ...]:
    """Return units in the order of their turns, each with its wave."""
    ordered = list(given)
    if policy.order is TurnOrder.TIGHTEST:
        takes = [footprints(unit) for unit in given]
        # Which of the two is better depends on how domains lie on hosts: so take the better.
        tries = (_tightest(takes), _fewest_first(takes))
        ordered = [given[index] for group in min(tries, key=len) for index in group]
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
    while left:
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
            for scope, domain in takes[index].domains.items():
                for other in holders[scope]:
                    if other not in left or other in barred:
                        continue
                    theirs = takes[other].domains[scope]
                    if theirs != domain or domain == SEVERAL:
                        barred.add(other)
                    elif scope not in taken:
                        shared[other] += 1
                        size = -len(takes[other].domains)
                        heapq.heappush(heap, (-shared[other], size, other))
                taken.add(scope)
        rounds.append(chosen)
    return rounds


def _fewest_first(takes: Sequence[Footprint]) -> list[list[int]]:
    """Return rounds: the units with the fewest scopes first, each in the first round it fits."""
    rounds: list[list[int]] = []
    domains: list[dict[str, int]] = []
    for index in sorted(range(len(takes)), key=lambda index: len(takes[index].domains)):
        mine = takes[index].domains
        place = next((at for at, theirs in enumerate(domains) if _fits(mine, theirs)), len(rounds))
        if place == len(rounds):
            rounds.append([])
            domains.append({})
        rounds[place].append(index)
        domains[place].update(mine)
    return rounds


def _fits(mine: Mapping[str, int], theirs: Mapping[str, int]) -> bool:
    return all(
        scope not in theirs or (theirs[scope] == domain and domain != SEVERAL)
        for scope, domain in mine.items()
    )


def drained_soon(maintenance: Maintenance, unit: Unit) -> tuple[str, ...]:
    """Return the hosts that are probably drained before a unit's host, drained now, is up again."""
    waiting = [
        one.name
        for one in maintenance.units
        if one.drain and one.state is UnitState.WAITING and one is not unit
    ]
    return tuple(waiting[: 2 * units.amount(maintenance.policy.at_once, len(maintenance.units))])
