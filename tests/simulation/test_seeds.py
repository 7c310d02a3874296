"""A fixed set of seeds, the memory held to the real store, and proof that broken rules show.

`make prove AREA=simulation` plays more of them; one that fails prints the line that replays it.
"""

import __future__

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from forewarn.maintenance.model import HostState
from forewarn.maintenance.turn_orders import MaintenanceOrder
from simulation import run
from simulation.town import Town
from stories import lines_beside, split

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
def broken(place: Any, name: str, first: str) -> Iterator[None]:
    """Have a function of a module or a class begin with a statement of ours, as somebody might."""
    sound = getattr(place, name)
    tree = ast.parse(textwrap.dedent(inspect.getsource(sound)))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    function.body[:0] = ast.parse(first).body
    made: dict[str, Any] = {}
    exec(compile(tree, name, "exec", __future__.annotations.compiler_flag), sound.__globals__, made)
    setattr(place, name, made[name])
    try:
        yield
    finally:
        setattr(place, name, sound)


def play_all(first: int) -> None:
    for seed in (first, *SEEDS):
        run.play(seed, STEPS)


def read(told: str, says: str) -> tuple[Any, str, str, str, int]:
    _, (of, first), options = split(told)
    place, _, name = of.rpartition(".")
    return resolve_name(f"forewarn.{place}"), name, first, says, int(options["seed"])


BREAKS = {told.split()[0]: read(told, says) for told, says in lines_beside(__file__, "breaks.txt")}
ALWAYS = {"queue", "removed-scopes"}
"""The cheapest show the judge red with every test. The others do with `make prove AREA=breaks`,
which is for who changes the judge."""


def test_each_break_is_of_something_that_there_is() -> None:
    for place, name, first, *_ in BREAKS.values():
        with broken(place, name, first):
            assert callable(getattr(place, name))


@pytest.mark.parametrize(
    ("place", "name", "first", "told", "seed"),
    [
        pytest.param(*case, id=name, marks=() if name in ALWAYS else pytest.mark.soak)
        for name, case in BREAKS.items()
    ],
)
def test_a_broken_rule_is_noticed(place: Any, name: str, first: str, told: str, seed: int) -> None:
    """The other seeds are played where its own shows it no more."""
    with broken(place, name, first), pytest.raises(AssertionError, match=told) as noticed:
        play_all(seed)
    assert "make prove AREA=simulation" in noticed.value.__notes__[0]
