"""The order of a rollout's units, and how it will go, on virtual time.

`arranged` deals units to waves, in an order in which as many as possible go at once. `plan` lets
`rollout.step` decide from then to the end, as it will in earnest: once as if every guest approved
at once and each check passed at once, and once as if each notice ran out and each check passed with
its last try.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from forewarn.maintenance import rollout as deciding
from forewarn.maintenance import rollout_check
from forewarn.maintenance.rollout import Ask, Check, Done, Footprint, Obstacle, Wait
from forewarn.maintenance.rollout_check import CheckResult
from forewarn.maintenance.rollout_model import (
    Rollout,
    RolloutOrder,
    RolloutPolicy,
    RolloutUnit,
    UnitState,
)

ASSUMED: Final = timedelta(minutes=10)
"""How long a unit takes whose expected interruption is unknown: a host that installs patches."""

MAX_STEPS: Final = 100_000
"""The most steps of a plan: more is a rollout that does not end."""

replace = msgspec.structs.replace


class PlannedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """One unit, and when it will start."""

    name: str
    machines: int
    earliest_start: datetime
    """If the guests approve at once."""
    latest_start: datetime
    """If every notice runs out, and nothing fails."""


class PlannedWave(msgspec.Struct, frozen=True, kw_only=True):
    """The units of one wave."""

    number: int
    """From 1."""
    units: tuple[PlannedUnit, ...]
    machines: int
    earliest_end: datetime
    latest_end: datetime


class RolloutForecast(msgspec.Struct, frozen=True, kw_only=True):
    """How a rollout will go."""

    waves: tuple[PlannedWave, ...]
    units: int
    machines: int
    """Each counted once for each unit that it is in."""
    rounds: int
    """How many groups of units go one after another."""
    earliest_end: datetime | None
    latest_end: datetime | None
    """None where the rollout cannot end: no window is long enough."""
    limited_by: tuple[Obstacle, ...]
    """What the rollout waits for, the longest wait first."""
    without_machines: tuple[str, ...] = ()
    """Units that will be left out."""


# The order.


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
        sizes.append(min(deciding.amount(size, len(units)), len(units) - sum(sizes)))
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
    return tuple(waiting[: 2 * deciding.amount(rollout.policy.at_once, len(rollout.units))])


# How it will go.


class _Run(msgspec.Struct):
    """One way in which it may go."""

    starts: dict[str, datetime]
    ends: dict[str, datetime]
    waited: dict[Obstacle, timedelta]
    rounds: int
    end: datetime | None
    skipped: list[str]
    checked_at: datetime | None = None
    """When the latest check passed."""

    def wait(self, obstacle: Obstacle, took: timedelta) -> None:
        self.waited[obstacle] = self.waited.get(obstacle, timedelta(0)) + took


def forecast(
    rollout: Rollout, footprints: Mapping[str, Footprint], now: datetime
) -> RolloutForecast:
    """Return how a rollout will go from now on, if nothing fails and nothing else happens.

    Args:
        rollout: A new one, arranged, or one that is under way.
        footprints: What each unit takes, by its key.
        now: When; aware.
    """
    best = _run(rollout, footprints, now, approved=True)
    worst = _run(rollout, footprints, now, approved=False)
    going = [unit for unit in rollout.units if unit.key in best.ends and unit.key in worst.ends]
    waves: list[PlannedWave] = []
    for number in sorted({unit.wave for unit in going}):
        its = [unit for unit in going if unit.wave == number]
        planned = tuple(
            PlannedUnit(
                name=unit.name,
                machines=len(footprints[unit.key].machines),
                earliest_start=best.starts[unit.key],
                latest_start=worst.starts[unit.key],
            )
            for unit in its
        )
        wave = PlannedWave(
            number=number + 1,
            units=planned,
            machines=sum(unit.machines for unit in planned),
            earliest_end=max(best.ends[unit.key] for unit in its),
            latest_end=max(worst.ends[unit.key] for unit in its),
        )
        waves.append(wave)
    longest = sorted(worst.waited.items(), key=lambda item: -item[1])
    return RolloutForecast(
        waves=tuple(waves),
        units=len(going),
        machines=sum(wave.machines for wave in waves),
        rounds=worst.rounds,
        earliest_end=best.end,
        latest_end=worst.end,
        limited_by=tuple(obstacle for obstacle, waited in longest if waited),
        without_machines=tuple(worst.skipped),
    )


def _run(
    rollout: Rollout, footprints: Mapping[str, Footprint], now: datetime, *, approved: bool
) -> _Run:
    """Let a rollout go to its end on virtual time."""
    run = _Run(starts={}, ends={}, waited={}, rounds=0, end=None, skipped=[])
    seconds = rollout.task.duration_seconds
    takes = timedelta(seconds=seconds) if seconds > 0 else ASSUMED
    under_way: list[tuple[datetime, int]] = []
    for index, unit in enumerate(rollout.units):
        if unit.state is UnitState.RUNNING:
            run.starts[unit.key], run.ends[unit.key] = now, now + takes
            under_way.append((now + takes, index))
    heapq.heapify(under_way)
    rollout = rollout_check.released(deciding.going_on(rollout))
    for _ in range(MAX_STEPS):
        rollout = _ended(rollout, under_way, now)
        rollout, step = deciding.step(
            rollout, lambda unit: footprints[unit.key], lambda unit, taken: "", now
        )
        if isinstance(step, Done):
            ends = [*run.ends.values(), *([run.checked_at] if run.checked_at else [])]
            run.end = max(ends, default=now)
            break
        if isinstance(step, Ask):
            run.rounds += 1
            for index in step.units:
                unit = rollout.units[index]
                start = now if unit.drain or approved else deciding.not_before(rollout, now)
                start = max(start, step.window.opens)
                run.starts[unit.key], run.ends[unit.key] = start, start + takes
                heapq.heappush(under_way, (start + takes, index))
                rollout = deciding.asked(rollout, index, 0, now)
            continue
        if isinstance(step, Check):
            took = timedelta(seconds=0 if approved else rollout.policy.check_within_seconds)
            rollout = _checked(rollout, step, took)
            run.wait(Obstacle.CHECK, took)
            run.checked_at = now = now + took
            continue
        until = step.until if isinstance(step, Wait) else None
        if isinstance(step, Wait) and step.obstacle is Obstacle.CONFIRMATION:
            rollout = replace(rollout, confirmed=True)
            run.waited.setdefault(step.obstacle, timedelta(microseconds=1))
            continue
        later = min(
            (at for at in (until, under_way[0][0] if under_way else None) if at), default=None
        )
        if later is None or (not under_way and until is not None and _never(step)):
            break
        if isinstance(step, Wait):
            run.wait(step.obstacle, later - now)
        now = later
    run.skipped = [unit.name for unit in rollout.units if unit.state is UnitState.SKIPPED]
    return run


def _ended(rollout: Rollout, under_way: list[tuple[datetime, int]], now: datetime) -> Rollout:
    if not under_way or under_way[0][0] > now:
        return rollout
    units = list(rollout.units)
    while under_way and under_way[0][0] <= now:
        index = heapq.heappop(under_way)[1]
        units[index] = replace(units[index], state=UnitState.DONE)
    return rollout_check.needed(replace(rollout, units=tuple(units)))


def _checked(rollout: Rollout, step: Check, took: timedelta) -> Rollout:
    rollout = rollout_check.begun(rollout, step.run, "", took)
    return rollout_check.ended(rollout, step.run.number, CheckResult(passed=True))


def _never(step: object) -> bool:
    return (
        isinstance(step, Wait)
        and step.obstacle is Obstacle.WINDOW
        and step.why == deciding.NO_WINDOW
    )
