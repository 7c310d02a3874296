"""The table of phases: what it has, and that nothing else happens."""

import itertools
import re

import pytest

from forewarn.agent import state
from forewarn.agent.state import Phase, PhaseTrigger
from house import tree

EVERY = list(itertools.product([None, *Phase], PhaseTrigger))


@pytest.mark.parametrize(("phase", "trigger"), EVERY)
def test_only_what_the_table_has_happens(phase: Phase | None, trigger: PhaseTrigger) -> None:
    if (phase, trigger) in state.TRANSITIONS:
        assert state.next_phase("E1", phase, trigger) is state.TRANSITIONS[phase, trigger]
        return
    with pytest.raises(state.ImpossibleStep) as refused:
        state.next_phase("E1", phase, trigger)
    assert str(refused.value) == f"event E1 is {phase or 'new'} and cannot {trigger}"


def test_nothing_is_approved_but_what_is_prepared() -> None:
    before = {p for (p, _), after in state.TRANSITIONS.items() if after is Phase.APPROVED}
    assert before == {Phase.PREPARED}


def test_what_is_held_leaves_only_by_somebodys_word_or_the_events_end() -> None:
    ways = {t: after for (p, t), after in state.TRANSITIONS.items() if p is Phase.HELD}
    assert ways == {PhaseTrigger.RETRY: Phase.PREPARING, PhaseTrigger.VANISH: Phase.OVER}


def test_every_phase_ends_and_the_end_is_one() -> None:
    for phase in set(Phase) - {Phase.OVER}:
        assert state.next_phase("E1", phase, PhaseTrigger.VANISH) is Phase.OVER
    assert not [p for (p, _) in state.TRANSITIONS if p is Phase.OVER]


def test_the_page_draws_the_table_and_nothing_else() -> None:
    page = (tree.ROOT / "docs" / "internals" / "agent.md").read_text(encoding="utf-8")
    (drawing,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", page, re.DOTALL)
    drawn = set()
    for line in drawing.strip().splitlines():
        match = re.fullmatch(r"\s*(\[\*\]|\w+) --> (\[\*\]|\w+)(?: : (\w+))?", line)
        assert match is not None, line
        drawn.add(match.groups())
    table = {
        (before.value if before else "[*]", after.value, trigger.value)
        for (before, trigger), after in state.TRANSITIONS.items()
    }
    assert drawn == table | {("Over", "[*]", None)}
