"""The decider beside its stories: crowds, numbers, the journal, and the table of phases."""

import itertools
import re

import pytest

from agent.bench import Bench, command, event, rule, seen, service
from forewarn.agent import decider, state
from forewarn.agent.rules import ActionOutcome
from house import tree


def test_a_message_is_shortened_only_if_it_is_too_long() -> None:
    assert state.shortened("x" * state.TEXT_LENGTH) == "x" * state.TEXT_LENGTH
    cut = state.shortened("a" * state.HEAD_LENGTH + "b" * state.TEXT_LENGTH)
    assert len(cut) == state.TEXT_LENGTH
    assert cut[state.HEAD_LENGTH - 1 : state.HEAD_LENGTH + 2] == "a…b"


def test_an_action_that_ends_after_its_rule_has_fewer_is_forgotten() -> None:
    bench = seen({"log": {}}, {"log": {"message": "more"}}, approve="never")
    bench.end("log")
    more = bench.runs["log"]
    bench.reload(rule({"log": {}}, approve="never"))
    bench.tell(decider.ActionFinished(more.run, ActionOutcome.DONE))
    (case,) = bench.decider.state.cases.values()
    assert case.results == [None]


def test_an_action_is_let_go_on_by_its_own_number_once_its_note_is_written() -> None:
    bench = seen(service("web"), command("drain"))
    run = bench.runs["web"]
    (written, proceed) = bench.decider.handle(
        decider.FactsFound(run.run, {"was": "active"}), bench.now
    )
    assert isinstance(written, state.FactsNoted)
    assert proceed == decider.ProceedAction(run.run)
    assert run.effect == written.effect


# The journal, and what follows from it.


def test_a_journal_made_short_says_the_same() -> None:
    bench = Bench(rule({"ready": {}}, command("drain"), service()))
    bench.see(event(), event("E2"))
    bench.end("ready")
    bench.find("drain", was=1)
    before = bench.decider.state
    short = state.AgentState([before.checkpoint()])
    assert (short.boot, short.cases, short.effects) == (before.boot, before.cases, before.effects)
    bench.journal = [before.checkpoint()]
    bench.start()
    bench.see(event(), event("E2"))
    assert [e.order for e in bench.decider.state.effects.values()] == [1, 2]
    assert bench.see() == ["undo drain"]
    assert bench.runs["drain"].facts == {"was": 1}


def test_the_journal_holds_no_time_of_one_boots_clock() -> None:
    bench = seen(service())
    (taken,) = [record for record in bench.journal if isinstance(record, state.RuleMatched)]
    assert taken.event.starts_by is None
    assert bench.decider.events["E1"].starts_by is not None


def test_records_that_contradict_one_another_are_refused_by_the_event() -> None:
    bench = seen(service(), approve="never")
    ledger = bench.decider.state
    (taken,) = [record for record in bench.journal if isinstance(record, state.RuleMatched)]
    with pytest.raises(state.ImpossibleStep, match="event E1 is Preparing and cannot take"):
        ledger.apply(taken)
    with pytest.raises(state.ImpossibleStep, match="event E1 is Preparing and cannot approve"):
        ledger.apply(state.EventApproved(event_id="E1"))
    assert ledger.cases["E1"].phase == "Preparing"


def test_an_action_that_is_begun_again_keeps_its_place_and_whom_it_served() -> None:
    bench = Bench(rule(command("drain", retries=1)), me="web-0")
    bench.see(event())
    bench.end("drain", ActionOutcome.FAILED)
    (drain,) = bench.decider.state.effects.values()
    stop = state.ActionBegun(effect="stop", undo=False, event_id="E1", index=0, attempt=1)
    bench.decider.state.apply(stop)
    bench.see(event("E2"))
    bench.let_pass(60)
    effects = bench.decider.state.effects
    assert (effects[drain.key].order, effects["stop"].order) == (1, 2)
    assert effects[drain.key].served == ["E1", "E2"]


def test_only_what_the_table_of_phases_has_happens() -> None:
    for phase, trigger in itertools.product([None, *state.Phase], state.PhaseTrigger):
        if (phase, trigger) in state.TRANSITIONS:
            assert state.next_phase("E1", phase, trigger) is state.TRANSITIONS[phase, trigger]
            continue
        with pytest.raises(state.ImpossibleStep) as refused:
            state.next_phase("E1", phase, trigger)
        assert str(refused.value) == f"event E1 is {phase or 'new'} and cannot {trigger}"


def test_only_what_is_prepared_is_approved_and_what_is_held_waits_for_a_word_or_its_end() -> None:
    before = {p for (p, _), after in state.TRANSITIONS.items() if after is state.Phase.APPROVED}
    assert before == {state.Phase.PREPARED}
    ways = {t: after for (p, t), after in state.TRANSITIONS.items() if p is state.Phase.HELD}
    assert ways == {
        state.PhaseTrigger.RETRY: state.Phase.PREPARING,
        state.PhaseTrigger.VANISH: state.Phase.OVER,
    }
    for phase in set(state.Phase) - {state.Phase.OVER}:
        assert state.next_phase("E1", phase, state.PhaseTrigger.VANISH) is state.Phase.OVER
    assert not [p for (p, _) in state.TRANSITIONS if p is state.Phase.OVER]


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
