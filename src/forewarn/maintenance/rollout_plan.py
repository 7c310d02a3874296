"""The order of a rollout's units, and the plan that an operator sees before it starts.

`arranged` deals units to waves, in an order in which as many as possible go at once. `planned` lets
`rollout.step` decide for this moment, with the holds and the maintenance that there are: it can't
say what the rollout would not do.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

import msgspec

from forewarn.maintenance import notice, rollout_check, rollout_model, time_windows
from forewarn.maintenance import rollout as deciding
from forewarn.maintenance.model import listed
from forewarn.maintenance.rollout import Ask, Footprint, Footprints, Obstacle, Occupied, Wait
from forewarn.maintenance.rollout_model import (
    Rollout,
    RolloutOrder,
    RolloutPolicy,
    RolloutUnit,
    UnitState,
)
from forewarn.maintenance.time_windows import Span

replace = msgspec.structs.replace


class PlannedWave(msgspec.Struct, frozen=True, kw_only=True):
    """The units of one wave, in the order of their turns."""

    number: int
    """From 1."""
    units: tuple[str, ...]
    machines: int
    """Each counted once for each unit that it is in."""


class PlannedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout will do, and what it does first."""

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
            told.append(f"At once: {listed(self.first)}.")
        if self.waits_for:
            who = "The others wait" if self.first else "It waits"
            told.append(f"{who}: {self.reason or self.waits_for.words}.")
        if self.drained:
            told.append(
                "Hosts are drained: their machines move away before the reboot and come home after "
                "it, both times with notice."
            )
        return tuple(told)


def planned(
    rollout: Rollout, footprints: Footprints, occupied: Occupied, now: datetime
) -> PlannedRollout:
    """Return the plan of a new rollout, arranged.

    `footprints` are what each unit takes; `occupied` tells what holds or occupies it already.
    """
    machines = {unit.key: len(footprints(unit).machines) for unit in rollout.units}
    going: dict[int, list[RolloutUnit]] = {}
    empty: list[str] = []
    for unit in rollout.units:
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
    first, waits_for, reason = _first(rollout, footprints, occupied, now)
    policy = rollout.policy
    windows = time_windows.following(policy.windows, policy.zone, policy.blackouts, now)
    return PlannedRollout(
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
    rollout: Rollout, footprints: Footprints, occupied: Occupied, now: datetime
) -> tuple[tuple[str, ...], Obstacle | None, str]:
    """Return the units that go at once, what the next one waits for, and why."""
    first: list[str] = []
    rollout = rollout_check.released(rollout)
    while True:
        rollout, step = deciding.step(rollout, footprints, occupied, now)
        if isinstance(step, Ask):
            for index in step.units:
                first.append(rollout.units[index].name)
                rollout = deciding.asked(rollout, index, 0, now)
            continue
        waiting = any(unit.state is UnitState.WAITING for unit in rollout.units)
        if not isinstance(step, Wait) or not waiting:
            return tuple(first), None, ""
        blocked = next((u.reason for u in rollout.units if u.state is UnitState.WAITING), "")
        reason = step.why if step.obstacle is Obstacle.WINDOW else blocked
        return tuple(first), step.obstacle, reason


def arranged(
    units: Sequence[RolloutUnit],
    footprints: Callable[[RolloutUnit], Footprint],
    policy: RolloutPolicy,
) -> tuple[RolloutUnit, ...]:
    """Return units in the order of their turns, each with its wave."""
    ordered = list(units)
    if policy.order is RolloutOrder.TIGHTEST:
        takes = [footprints(unit) for unit in units]
        # Which of the two is better depends on how domains lie on hosts: so take the better.
        tries = (_tightest(takes), _fewest_first(takes))
        ordered = [units[index] for group in min(tries, key=len) for index in group]
    sizes: list[int] = []
    for size in policy.waves:
        sizes.append(min(rollout_model.amount(size, len(units)), len(units) - sum(sizes)))
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
                    if theirs != domain or domain == deciding.SEVERAL:
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
        scope not in theirs or (theirs[scope] == domain and domain != deciding.SEVERAL)
        for scope, domain in mine.items()
    )


def drained_soon(rollout: Rollout, unit: RolloutUnit) -> tuple[str, ...]:
    """Return the hosts that are probably drained before a unit's host, drained now, is up again."""
    waiting = [
        one.name
        for one in rollout.units
        if one.drain and one.state is UnitState.WAITING and one is not unit
    ]
    return tuple(waiting[: 2 * rollout_model.amount(rollout.policy.at_once, len(rollout.units))])
