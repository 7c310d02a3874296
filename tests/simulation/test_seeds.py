"""A fixed set of seeds, the memory held to the real store, and proof that broken rules show.

`make prove AREA=simulation` plays more of them; one that fails prints the line that replays it.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forewarn.connectors.port import Outcome, Task
from forewarn.control import lookup
from forewarn.control.executor import Executor
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance import (
    alerts,
    commands,
    fleet_file,
    host_drain,
    host_plan,
    notice,
    time_windows,
    transitions,
    turn_check,
    turn_orders,
    turns,
    units,
)
from forewarn.maintenance.footprints import UnitsInWorld
from forewarn.maintenance.model import Changes, HostState, Machine, Maintenance, Operation
from forewarn.maintenance.transitions import Transitions
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, Unit, UnitState
from forewarn.store.sql import Transaction
from forewarn.vocabulary import EventStatus
from simulation import run
from simulation.town import Town

SEEDS = (35, 72, 115, 134)
"""Together they reach every corner. `make prove AREA=simulation` plays 200 seeds."""

STEPS = 1200


@functools.cache
def played(seed: int) -> Town:
    """One of the fixed seeds, played once for all the tests that look at it."""
    return run.play(seed, STEPS)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_rules_hold_and_everything_ends_or_needs_attention(seed: int) -> None:
    town = played(seed)
    assert town.steps >= STEPS
    assert not town.memory.live
    assert town.judge.starts <= town.judge.ends
    with town.writer.store.read() as reading:  # it answers as the model does
        assert reading.machines() == town.memory.all_machines
        assert reading.scopes() == town.memory.all_scopes
        assert reading.operations(list(town.memory.all_operations)) == town.memory.all_operations
        assert reading.drains() == town.memory.all_drains
        known = town.memory.all_maintenances
        assert reading.maintenances([*known]) == known


def test_one_seed_is_one_story() -> None:
    first, second = played(72), run.play(72, STEPS)
    assert first.counts == second.counts
    assert first.memory.all_operations == second.memory.all_operations
    assert played(134).memory.all_operations != first.memory.all_operations


def test_the_seeds_reach_every_corner() -> None:
    towns = [played(seed) for seed in SEEDS]
    counts = sum((town.counts for town in towns), start=run.Counter())
    wanted = Path(__file__).with_name("corners.txt").read_text(encoding="utf-8").splitlines()
    wanted += [f"order {order}" for order in MaintenanceOrder]
    assert [what for what in wanted if not counts[what]] == []
    assert sum(town.judge.turns.asks for town in towns) > 50
    assert sum(town.judge.turns.drains for town in towns) > 0
    assert sum(town.judge.turns.grown for town in towns) > 0
    assert {state for town in towns for state in town.judge.drained} == {*HostState}
    assert {town.on_unknown for town in towns} == {"ask", "repeat", "fail"}
    assert max(town.machines_at_first for town in towns) == max(run.SIZES)


@contextmanager
def broken(place: Any, name: str, other: Any) -> Iterator[None]:
    """A rule as somebody might get it wrong, for as long as the block lasts."""
    sound = getattr(place, name)
    setattr(place, name, other)
    try:
        yield
    finally:
        setattr(place, name, sound)


def always(answer: Any) -> Any:
    """A rule that says the same whatever it is asked."""
    return lambda *_, **__: answer


ALL_HOURS = time_windows.Span(time_windows.FIRST, time_windows.ENDLESS)


def nobody_after_failures(self: Transitions, operation: Any, awaited: Any) -> None:
    await_(self, operation, () if operation.status is EventStatus.FAILED else awaited)


await_ = Transitions._await


def unasked(operation: Operation, name: str, sighting: Any) -> bool:
    return operation.status is EventStatus.RETURNING or is_back(operation, name, sighting)


is_back = transitions.is_back


def without_removed_scopes(self: Transaction, changes: Changes, had: Any, _: Any) -> None:
    save(self, changes, had)


save = Transaction.save


def unannounced(working: Transitions, operation: Operation, _: Any) -> None:
    locate(working, operation, ())


locate = commands._locate


def unjudged(asked: datetime, shown: datetime, now: datetime) -> datetime:
    return notice.whole_seconds(asked)


def forgetful(self: Transitions) -> None:
    """What waited goes on, and no unit has its turn."""
    while self._ended or self.made_room:
        up = {*self.made_room, *(name for name in self._ended if not self.operations[name].down)}
        self.made_room, self._ended = [], []
        self._let_go_on(up)


def as_of_now(working: Transitions, scopes: Any) -> list[str]:
    for name in scopes:
        working.scopes[name] = msgspec.structs.replace(working.scopes[name], asked_at=working.now)
    return []


def hosts_unheard(*given: Any, **named: Any) -> Any:
    return finish(*given, **{**named, "hosts": {}})


finish = commands.finish_task


async def again(self: Executor, act: Task) -> Outcome | None:
    """Whatever nobody knows is done again, whoever should have been asked."""
    found: Any = await self._connector.perform(act)
    return found if isinstance(found, Outcome) else None


def untold(*known: Any) -> Task:
    return msgspec.structs.replace(load_task(*known), repeat_after=0)


load_task = lookup._task


def empty_at_once(view: Any, drain: Any, found: Any, facts: Any, now: datetime) -> Any:
    changed = host_drain._changed(drain, host_drain.HostTrigger.EMPTIED, now)
    return host_drain.DrainStep(drain=changed, survey=drain.reboot)


def back_at_once(view: Any, now: datetime, host_back: Any) -> Any:
    changed = host_drain._changed(view.drain, host_drain.HostTrigger.BOOTED, now)
    return host_drain.DrainStep(drain=changed)


def forgets(view: Any, now: datetime, host_back: Any) -> Any:
    guests = tuple(msgspec.structs.replace(one, leaves_by=0) for one in view.drain.guests)
    return host_drain.DrainStep(drain=msgspec.structs.replace(view.drain, guests=guests))


def tried_again(before: Any, wanted: Any, now: datetime) -> Any:
    """Whoever asks again for the drain of a stuck host has it tried again."""
    if before is not None and before.state is HostState.STUCK:
        return host_drain._changed(before, host_drain.HostTrigger.RETRY, now)
    return request(before, wanted, now)


request = host_drain.request


def never_over(self: UnitsInWorld, maintenance: Maintenance) -> Maintenance:
    """What is done has a turn again and again."""
    after = [
        msgspec.structs.replace(unit, state=UnitState.WAITING)
        if unit.state is UnitState.DONE
        else unit
        for unit in maintenance.units
    ]
    return msgspec.structs.replace(maintenance, units=tuple(after))


def only_there(self: UnitsInWorld, unit: Unit) -> list[Machine]:
    """A host whose machines have left takes nothing."""
    return machines(self, msgspec.structs.replace(unit, drain=False))


machines = UnitsInWorld.machines


def left_out(unit: Unit, reason: str) -> Unit:
    """The next unit has its turn after one that failed, without an operator's word."""
    return msgspec.structs.replace(unit, state=UnitState.SKIPPED, reason=reason)


def by_itself(maintenance: Maintenance, *given: Any, **named: Any) -> Maintenance:
    """A maintenance that is halted goes on when one of its units has ended."""
    after = follow(maintenance, *given, **named)
    if after != maintenance and after.state is MaintenanceState.HALTED:
        return turn_orders.going_on(after, named.get("now", given[-1]))
    return after


follow = turns.follow


def by_notice_alone(of: Any, now: datetime) -> datetime:
    return now + turns.notice_of(of)


def play_all(first: int) -> None:
    for seed in (first, *SEEDS):
        run.play(seed, STEPS)


BREAKS: dict[str, tuple[Any, str, Any, str, int]] = {
    "domains": (Transitions, "_obstacle", always(None), "has another .* down", 1),
    "queue": (Transitions, "_ahead", always(None), "is announced although", 4),
    "failures": (Transitions, "_await", nobody_after_failures, "nobody has acknowledged", 1),
    "returns": (transitions, "is_back", unasked, "has not asked again", 2),
    "held hosts": (commands, "follow_moves", always([]), "and says|held by", 1),
    "arrivals": (commands, "_locate", unannounced, "had no notice", 6),
    "zones": (time_windows, "check", always(None), "by the unknown time zone", 10),
    "turns": (Transitions, "_go_on", forgetful, "is under way, and", 4),
    "postponing": (notice, "later", unjudged, "back to|before its window opens", 3),
    "gate": (ServiceClock, "may_start", always(True), "started while", 5),
    "outages": (commands, "extend_notices", always([]), "before its guests had their notice", 3),
    "asking": (commands, "record_requests", as_of_now, "was asked at", 1),
    "on_unknown": (Executor, "outcome", again, "nobody said so|and is again", 1),
    "repeating": (lookup, "_task", untold, "its connector is not told", 5),
    "hosts": (commands, "finish_task", hosts_unheard, "is on", 1),
    "moving": (fleet_file, "_check_live", always(None), "moves or goes", 1),
    "incarnations": (fleet_file, "_skip_incarnations", always(None), "was at incarnation", 10),
    "removed scopes": (
        Transaction,
        "save",
        without_removed_scopes,
        "is new at|retired is not what the store has",
        13,
    ),
    "units' limit": (units, "amount", always(1_000_000), "are under way, at most", 4),
    "units' windows": (turns, "_window", always(ALL_HOURS), "outside its windows", 2),
    "units' checks": (
        turn_check,
        "needed",
        lambda of: of,
        "before its check had passed|and its check has not",
        2,
    ),
    "units' leases": (turn_check, "waits_until", always(None), "two runs of its check", 2),
    "units' approval": (turns, "not_before", by_notice_alone, "without the approval", 2),
    "units' growth": (UnitsInWorld, "grown", never_over, "was done and is", 1),
    "units' obstacles": (UnitsInWorld, "occupied", always(""), "waits for|although", 4),
    "units' failures": (turns, "_failed", left_out, "is skipped unordered, and", 1),
    "units' homes": (UnitsInWorld, "machines", only_there, "has another domain of", 6),
    "units' recall": (Transitions, "recall", always(None), "has not started, and", 7),
    "halts": (turns, "follow", by_itself, "without an order", 8),
    "windows": (Operation, "closed", always(False), "after its window closed", 14),
    "targets": (host_plan, "closed", always(set()), "a host that is drained", 1),
    "empty hosts": (host_drain, "_look", empty_at_once, "and has", 1),
    "reboots": (host_drain, "_rebooting", back_at_once, "has not rebooted", 32),
    "moves": (host_drain, "_back", forgets, "asks for .* again|never rests", 1),
    "orders": (host_drain, "request", tried_again, "goes on without an order", 1),
    "looks": (host_drain, "_is_fresh", always(False), "to rest", 20),
    "stuck drains": (alerts, "of_drains", always(()), "nobody is told", 1),
}
ALWAYS = {"queue", "removed scopes"}
"""The cheapest show the judge red with every test. The others do with `make prove AREA=breaks`,
which is for who changes the judge."""


def test_each_break_is_of_something_that_there_is() -> None:
    assert [name for name, (place, what, *_) in BREAKS.items() if not hasattr(place, what)] == []


@pytest.mark.parametrize(
    ("place", "name", "other", "told", "seed"),
    [
        pytest.param(*case, id=name, marks=() if name in ALWAYS else pytest.mark.soak)
        for name, case in BREAKS.items()
    ],
)
def test_a_broken_rule_is_noticed(place: Any, name: str, other: Any, told: str, seed: int) -> None:
    """The seed shows it soonest; the others are played where it does so no more."""
    with broken(place, name, other), pytest.raises(AssertionError, match=told) as noticed:
        play_all(seed)
    assert "make prove AREA=simulation" in noticed.value.__notes__[0]
