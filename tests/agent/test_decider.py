"""The decider beside its stories: crowds, numbers, the journal, and the table of phases."""

import itertools
import re

import pytest

from agent.bench import ME, START, Bench, command, event, rule, seen, service
from forewarn.agent import state
from forewarn.agent.decider import (
    NAME_SECONDS,
    OTHERS_AT_ONCE,
    ActionFinished,
    ApprovalAnswered,
    FactsFound,
    PeersAnswered,
    ProceedAction,
    TimePassed,
)
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import (
    ActionBegun,
    AgentState,
    EventApproved,
    FactsNoted,
    ImpossibleStep,
    Phase,
    PhaseTrigger,
    RuleMatched,
)
from house import tree


def results(bench: Bench) -> list[ActionOutcome | None]:
    (case,) = bench.decider.state.cases.values()
    return case.results


def test_a_name_is_waited_for_no_longer_because_other_events_wait_their_turn() -> None:
    bench = Bench(rule(command("drain")))
    others = [event(f"X{number}", resources=(f"o{number}",)) for number in range(50)]
    bench.see(event("E1", concerns_me=None), *others)
    bench.tell(TimePassed())
    assert bench.decider.wake_at == START + NAME_SECONDS


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
    bench.tell(ActionFinished(more.run, ActionOutcome.DONE))
    assert results(bench) == [None]


OURS = (ME, "web-1", "web-2")


def test_each_event_has_its_own_questions_and_its_own_approval() -> None:
    bench = Bench(rule())
    first, second = event("E1", resources=OURS), event("E2", resources=OURS)
    assert bench.see(first, second) == ["ask web-1 web-2"] * 2
    assert [ask.event_id for ask in bench.asked] == ["E1", "E2"]
    assert bench.hear("web-1", "web-2") == ["approve E2"]
    bench.tell(PeersAnswered(bench.asked[0].round, frozenset({"web-1", "web-2"})))
    assert bench.tell(ApprovalAnswered(bench.approvals[0].request, taken=True)) == []
    phases = {case.event_id: case.phase for case in bench.decider.state.cases.values()}
    assert phases == {"E1": "Prepared", "E2": "Approved"}
    bench.tell(ApprovalAnswered(bench.approvals[1].request, taken=True))
    assert {case.phase for case in bench.decider.state.cases.values()} == {"Approved"}


def test_this_machines_event_does_not_wait_for_a_thousand_of_others() -> None:
    """Each of others' is three synced records; a preemption leaves no time for them all."""
    bench = Bench(rule(command("drain")))
    others = [event(f"X{number}", resources=(f"o{number}",)) for number in range(1000)]
    said = bench.see(*others, event())
    assert said[0] == "do drain"
    assert len(said) == 1 + OTHERS_AT_ONCE
    assert len(bench.decider.state.cases) == 1 + OTHERS_AT_ONCE
    assert bench.let_pass(1) == [], "the rest is taken up as these end"
    bench.tell(ActionFinished(bench.runs["log"].run, ActionOutcome.DONE))
    assert len(bench.decider.state.cases) == 2 + OTHERS_AT_ONCE


def test_events_of_others_for_which_nothing_is_done_are_taken_up_one_turn_after_the_other() -> None:
    silent = rule(match={"machine": "others"}, approve="never", name="silent")
    bench = Bench(rule(command("drain")), silent)
    others = [event(f"X{number}", resources=(f"o{number}",)) for number in range(50)]
    assert bench.see(*others, event()) == ["do drain"]
    for taken in (40, 50):
        assert bench.decider.wake_at == bench.now
        bench.tell(TimePassed())
        assert len(bench.decider.state.cases) == 1 + taken
    assert bench.decider.wake_at != bench.now


def test_an_action_is_let_go_on_by_its_own_number_once_its_note_is_written() -> None:
    bench = seen(service("web"), command("drain"))
    run = bench.runs["web"]
    (written, proceed) = bench.decider.handle(FactsFound(run.run, {"was": "active"}), bench.now)
    assert isinstance(written, FactsNoted)
    assert proceed == ProceedAction(run.run)
    assert run.effect == written.effect


# The journal, and what follows from it.


def test_a_journal_made_short_says_the_same() -> None:
    bench = Bench(rule({"ready": {}}, command("drain"), service()))
    bench.see(event(), event("E2"))
    bench.end("ready")
    bench.find("drain", was=1)
    before = bench.decider.state
    short = AgentState([before.checkpoint()])
    assert (short.boot, short.cases, short.effects) == (before.boot, before.cases, before.effects)
    bench.journal = [before.checkpoint()]
    bench.start()
    bench.see(event(), event("E2"))
    assert [e.order for e in bench.decider.state.effects.values()] == [1, 2]
    assert bench.see() == ["undo drain"]
    assert bench.runs["drain"].facts == {"was": 1}


def test_the_journal_holds_no_time_of_one_boots_clock() -> None:
    bench = seen(service())
    (taken,) = [record for record in bench.journal if isinstance(record, RuleMatched)]
    assert taken.event.starts_by is None
    assert bench.decider.events["E1"].starts_by is not None


def test_a_journal_made_short_to_nothing_goes_on() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.journal = [bench.decider.state.checkpoint()]
    bench.start()
    bench.see(event())
    bench.end("web")
    assert [effect.order for effect in bench.decider.state.effects.values()] == [1, 2]


def test_records_that_contradict_one_another_are_refused_by_the_event() -> None:
    bench = seen(service(), approve="never")
    ledger = bench.decider.state
    (taken,) = [record for record in bench.journal if isinstance(record, RuleMatched)]
    with pytest.raises(ImpossibleStep, match="event E1 is Preparing and cannot take"):
        ledger.apply(taken)
    with pytest.raises(ImpossibleStep, match="event E1 is Preparing and cannot approve"):
        ledger.apply(EventApproved(event_id="E1"))
    assert ledger.cases["E1"].phase == "Preparing"


def test_a_boot_interrupts_nothing_of_an_event_that_waited_for_anothers_action() -> None:
    again = rule(command("drain", after_boot="again"), command("stop"))
    bench = Bench(again)
    bench.see(event())
    bench.see(event(), event("E2"))
    bench.start("boot-2")
    cases = bench.decider.state.cases
    assert [cases[each].again for each in ("E1", "E2")] == [[0], []]


def test_an_action_that_is_begun_again_keeps_its_place_and_whom_it_served() -> None:
    bench = Bench(rule(command("drain", retries=1)), me="web-0")
    bench.see(event())
    bench.end("drain", ActionOutcome.FAILED)
    (drain,) = bench.decider.state.effects.values()
    stop = ActionBegun(effect="stop", undo=False, event_id="E1", index=0, attempt=1)
    bench.decider.state.apply(stop)
    bench.see(event("E2"))
    bench.let_pass(60)
    effects = bench.decider.state.effects
    assert (effects[drain.key].order, effects["stop"].order) == (1, 2)
    assert effects[drain.key].served == ["E1", "E2"]


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
