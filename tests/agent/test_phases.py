"""The table of phases: what it has, and that nothing else happens."""

import itertools
import re

import pytest

from forewarn.agent import phases
from forewarn.agent.phases import Phase, Trigger
from house import tree

EVERY = list(itertools.product([None, *Phase], Trigger))


@pytest.mark.parametrize(("phase", "trigger"), EVERY)
def test_only_what_the_table_has_happens(phase: Phase | None, trigger: Trigger) -> None:
    if (phase, trigger) in phases.TRANSITIONS:
        assert phases.step("E1", phase, trigger) is phases.TRANSITIONS[phase, trigger]
        return
    with pytest.raises(phases.Impossible) as refused:
        phases.step("E1", phase, trigger)
    assert str(refused.value) == f"event E1 is {phase or 'new'} and cannot {trigger}"


def test_nothing_is_approved_but_what_is_prepared() -> None:
    before = {p for (p, _), after in phases.TRANSITIONS.items() if after is Phase.APPROVED}
    assert before == {Phase.PREPARED}


def test_what_is_held_leaves_only_by_somebodys_word_or_the_events_end() -> None:
    ways = {t: after for (p, t), after in phases.TRANSITIONS.items() if p is Phase.HELD}
    assert ways == {Trigger.RETRY: Phase.PREPARING, Trigger.VANISH: Phase.OVER}


def test_every_phase_ends_and_the_end_is_one() -> None:
    for phase in set(Phase) - {Phase.OVER}:
        assert phases.step("E1", phase, Trigger.VANISH) is Phase.OVER
    assert not [p for (p, _) in phases.TRANSITIONS if p is Phase.OVER]


def test_the_page_draws_the_table_and_nothing_else() -> None:
    page = (tree.ROOT / "docs" / "agent.md").read_text(encoding="utf-8")
    (drawing,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", page, re.DOTALL)
    drawn = set()
    for line in drawing.strip().splitlines():
        match = re.fullmatch(r"\s*(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : (\w+))?", line)
        assert match is not None, line
        drawn.add(match.groups())
    table = {
        (before.value if before else "[*]", after.value, trigger.value)
        for (before, trigger), after in phases.TRANSITIONS.items()
    }
    assert drawn == table | {("Over", "[*]", None)}
