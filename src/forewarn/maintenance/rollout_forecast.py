"""The order of a rollout's units, and how it will go, on virtual time.

`arranged` deals units to waves, in an order in which as many as possible go at once. `forecast`
lets `rollout.step` decide from then to the end, as it will in earnest: once as if every guest
approved at once and each check passed at once, and once as if each notice ran out and each check
passed with its last try. A unit takes its update domains one after another, each with its notice;
the machines of a host that is drained leave so, and come home so.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

import msgspec

from forewarn.maintenance import notice, planner, rollout_check, rollout_model, time_windows
from forewarn.maintenance import rollout as deciding
from forewarn.maintenance.model import Drain, HostState
from forewarn.maintenance.rollout import Ask, Check, Done, Footprint, Obstacle, Wait
from forewarn.maintenance.rollout_check import CheckResult
from forewarn.maintenance.rollout_model import (
    Rollout,
    RolloutOrder,
    RolloutPolicy,
    RolloutUnit,
    UnitState,
)
from forewarn.maintenance.time_windows import Span
from forewarn.vocabulary import EventType

ASSUMED: Final = timedelta(minutes=10)
"""How long a unit takes whose expected interruption is unknown: a host that installs patches."""

MOVE: Final = timedelta(minutes=1)
"""How long machines take to move that leave a host together, or come home together."""

PHASES: Final = MappingProxyType(
    {
        HostState.DRAINING: 0,
        HostState.EMPTY: 1,
        HostState.REBOOTING: 1,
        HostState.BACK: 2,
        HostState.RETURNING: 2,
    }
)
"""Which part of a drain it is: its machines leave, the host reboots, they come home."""

TIMED: Final = frozenset({Obstacle.WINDOW, Obstacle.PAUSE, Obstacle.CHECK, Obstacle.REFUSED})
"""Waits that end with time, and not with a unit."""

ALWAYS: Final = Span(time_windows.FIRST, time_windows.ENDLESS)

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
    drained: int
    """How many of the units are hosts that are drained."""
    most_at_once: int
    """The most units that are under way at once."""
    rounds: int
    """How many groups of units go one after another."""
    earliest_end: datetime | None
    latest_end: datetime | None
    """None where the rollout cannot end: no window is long enough."""
    limited_by: tuple[Obstacle, ...]
    """What the rollout waits for, the longest wait first."""
    without_machines: tuple[str, ...] = ()
    """Units that will be left out."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What people read of it besides the times."""
        told: list[str] = []
        if self.drained:
            told.append(
                "Hosts are drained: their machines move away before the reboot and come home after "
                "it, both times with notice. A move is counted as a minute."
            )
        if Obstacle.UPDATE_DOMAIN in self.limited_by and Obstacle.AT_ONCE not in self.limited_by:
            told.append(
                f"At most {self.most_at_once} at once: the others share scopes with these, and "
                "would take other update domains."
            )
        if self.limited_by:
            told.append(f"It waits for: {', '.join(each.words for each in self.limited_by)}.")
        return tuple(told)


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


# How it will go.


NO_DRAINS: Final[Mapping[str, Drain]] = MappingProxyType({})


class _Run(msgspec.Struct):
    """One way in which it may go."""

    starts: dict[str, datetime]
    ends: dict[str, datetime]
    turns: dict[str, int]
    """How many update domains units have left that are not drained."""
    waited: dict[Obstacle, timedelta]
    under_way: list[tuple[datetime, int]]
    """When units end, or their window closes, and their places: a heap."""
    crowding: set[int]
    """Units under way whose machines are on hosts that are still to be drained."""
    spare: int = 0
    """Hosts outside the rollout that machines may move to."""
    targets: int = 0
    """Hosts that they may move to, in the rollout or not."""
    rounds: int = 0
    most: int = 0
    end: datetime | None = None
    checked_at: datetime | None = None
    """When the latest check passed."""

    @property
    def is_full(self) -> bool:
        """Whether no further host can be drained: its machines would have nowhere to go."""
        return bool(self.under_way) and self.targets <= 1

    def wait(self, obstacle: Obstacle, took: timedelta) -> None:
        self.waited[obstacle] = self.waited.get(obstacle, timedelta(0)) + took


def forecast(
    rollout: Rollout,
    footprints: Mapping[str, Footprint],
    now: datetime,
    drains: Mapping[str, Drain] = NO_DRAINS,
    spare: int = 0,
) -> RolloutForecast:
    """Return how a rollout will go from now on, if nothing fails and nothing else happens.

    It is a new rollout, arranged, or one under way with the `drains` of its hosts. `footprints` has
    what each unit takes, by its key, and `spare` how many other hosts machines may move to.
    """
    best, _ = _run(rollout, footprints, drains, now, spare=spare, approved=True)
    worst, after = _run(rollout, footprints, drains, now, spare=spare, approved=False)
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
        drained=sum(unit.drain for unit in going),
        most_at_once=worst.most,
        rounds=worst.rounds,
        earliest_end=best.end,
        latest_end=worst.end,
        limited_by=tuple(obstacle for obstacle, waited in longest if waited),
        without_machines=tuple(u.name for u in after.units if u.state is UnitState.SKIPPED),
    )


def _run(
    rollout: Rollout,
    footprints: Mapping[str, Footprint],
    drains: Mapping[str, Drain],
    now: datetime,
    *,
    spare: int,
    approved: bool,
) -> tuple[_Run, Rollout]:
    """Let a rollout go to its end on virtual time."""
    run = _begun(rollout, footprints, drains, now, approved=approved)
    run.spare = spare
    run.targets += spare
    under_way = run.under_way
    rollout = rollout_check.released(deciding.going_on(rollout))
    for _ in range(MAX_STEPS):
        rollout = _ended(rollout, run, now)
        rollout, step = deciding.step(
            rollout,
            lambda unit: footprints[unit.key],
            lambda unit, _: "no room" if unit.drain and (run.crowding or run.is_full) else "",
            now,
        )
        if isinstance(step, Done):
            ends = [*run.ends.values(), *([run.checked_at] if run.checked_at else [])]
            run.end = max(ends, default=now)
            break
        if isinstance(step, Ask):
            rollout = _asked(rollout, run, step, footprints, now, approved=approved)
            continue
        if isinstance(step, Check):
            took = timedelta(seconds=0 if approved else rollout.policy.check_within_seconds)
            rollout = _checked(rollout, step, took)
            run.wait(Obstacle.CHECK, took)
            run.checked_at = now = now + took
            continue
        assert isinstance(step, Wait)  # nothing fails, so that nothing halts it
        if step.obstacle is Obstacle.CONFIRMATION:
            rollout = replace(rollout, confirmed=True)
            run.waited.setdefault(step.obstacle, timedelta(microseconds=1))
            continue
        until = step.until if step.obstacle in TIMED or not under_way else None
        later = min(
            (at for at in (until, under_way[0][0] if under_way else None) if at), default=None
        )
        if later is None or (not under_way and step.why == deciding.NO_WINDOW):
            break
        if any(unit.state is UnitState.WAITING for unit in reversed(rollout.units)):
            other = step.obstacle is Obstacle.MAINTENANCE  # there is none but that of the units
            run.wait(Obstacle.UNITS if other else step.obstacle, later - now)
        now = later
    return run, rollout


def _begun(
    rollout: Rollout,
    footprints: Mapping[str, Footprint],
    drains: Mapping[str, Drain],
    now: datetime,
    *,
    approved: bool,
) -> _Run:
    at_once = rollout.task.event_type in planner.ALL_DOMAINS_AT_ONCE
    turns = {
        unit.key: min(1, turns) if at_once else turns
        for unit in rollout.units
        if not unit.drain and (turns := footprints[unit.key].turns)
    }
    run = _Run(starts={}, ends={}, turns=turns, waited={}, under_way=[], crowding=set())
    for index, unit in enumerate(rollout.units):
        if unit.state is UnitState.RUNNING:
            if unit.drain:
                takes, drain = footprints[unit.key], drains.get(unit.name)
                end = _end_of_drain(rollout, takes, drain, now, approved=approved)
            else:
                since, left = unit.changed_at or now, turns.pop(unit.key, 0)
                takes = footprints[unit.key]
                end = _announced(rollout, ALWAYS, left, takes.settle, since, approved=False)[1]
                end = max(now, end)
                if approved:
                    end = min(end, now + left * (_duration(rollout) + takes.settle))
            run.starts[unit.key], run.ends[unit.key] = now, end
            heapq.heappush(run.under_way, (end, index))
    run.most = len(run.under_way)
    run.targets = sum(u.drain and u.state is not UnitState.RUNNING for u in rollout.units)
    return run


def _asked(
    rollout: Rollout,
    run: _Run,
    step: Ask,
    footprints: Mapping[str, Footprint],
    now: datetime,
    *,
    approved: bool,
) -> Rollout:
    """Let the units begin that are asked for, and tell when they end."""
    run.rounds += 1
    for index in step.units:
        unit = rollout.units[index]
        if unit.drain:
            if run.is_full:
                break
            run.targets -= 1
            start, end = (
                now,
                _end_of_drain(rollout, footprints[unit.key], None, now, approved=approved),
            )
        else:
            turns = run.turns.pop(unit.key)
            settle = footprints[unit.key].settle
            start, end, left = _announced(
                rollout, step.window, turns, settle, now, approved=approved
            )
            if left:  # their turn is in the next window
                run.turns[unit.key] = left
        run.starts.setdefault(unit.key, start)
        run.ends[unit.key] = end
        heapq.heappush(run.under_way, (end, index))
        rollout = deciding.asked(rollout, index, 0, now)
    run.most = max(run.most, len(run.under_way))
    if not approved and _is_crowded(rollout, run):
        run.crowding |= {i for _, i in run.under_way if i in step.units and rollout.units[i].drain}
    return rollout


def _is_crowded(rollout: Rollout, run: _Run) -> bool:
    """Tell whether machines have to move to hosts that are to be drained soon."""
    states = Counter(unit.state for unit in rollout.units if unit.drain)
    soon = 2 * rollout_model.amount(rollout.policy.at_once, len(rollout.units))
    others = run.spare + states[UnitState.DONE] + max(0, states[UnitState.WAITING] - soon)
    return others < states[UnitState.RUNNING]


def _duration(rollout: Rollout) -> timedelta:
    seconds = rollout.task.duration_seconds
    return timedelta(seconds=seconds) if seconds > 0 else ASSUMED


def _announced(
    rollout: Rollout, window: Span, turns: int, settle: timedelta, now: datetime, *, approved: bool
) -> tuple[datetime, datetime, int]:
    """Return when a unit starts, when it ends, and how many turns the end of its window cuts off.

    Each turn is announced when the one before is over, and its update domains are up.
    """
    first, at = None, now
    for turn in range(turns):
        start = max(at if approved else deciding.not_before(rollout, at), window.opens)
        if start >= window.closes:
            return first or start, max(at, window.closes), turns - turn
        first = first or start
        at = start + _duration(rollout) + settle
    return first or at, at, 0


def _end_of_drain(
    rollout: Rollout, takes: Footprint, drain: Drain | None, now: datetime, *, approved: bool
) -> datetime:
    """Return when a drain ends that is under way, or that begins now (None)."""

    def phases(given: timedelta) -> tuple[timedelta, ...]:
        # What leaves an update domain holds up the other domains only.
        moves = takes.turns * (given + MOVE) + max(0, takes.turns - 1) * takes.settle
        return moves, _duration(rollout), moves + takes.settle

    phase = PHASES.get(drain.state, 0) if drain is not None else 0
    slow = phases(notice.LEAST[EventType.FREEZE])
    fast = phases(timedelta(0)) if approved else slow
    left = slow[phase]
    if drain is not None and drain.state in PHASES:
        left = max(timedelta(0), left - (now - drain.changed_at))
    return now + min(left, fast[phase]) + sum(fast[phase + 1 :], timedelta(0))


def _ended(rollout: Rollout, run: _Run, now: datetime) -> Rollout:
    """Return the rollout after the units have ended whose end has come."""
    if not run.under_way or run.under_way[0][0] > now:
        return rollout
    units = list(rollout.units)
    while run.under_way and run.under_way[0][0] <= now:
        index = heapq.heappop(run.under_way)[1]
        cut_off = units[index].key in run.turns
        units[index] = replace(units[index], state=UnitState.WAITING if cut_off else UnitState.DONE)
        run.crowding.discard(index)
        run.targets += units[index].drain
    return rollout_check.needed(replace(rollout, units=tuple(units)))


def _checked(rollout: Rollout, step: Check, took: timedelta) -> Rollout:
    rollout = rollout_check.begun(rollout, step.run, "", took)
    return rollout_check.ended(rollout, step.run.number, CheckResult(passed=True))
