"""Kills and boots: what had finished is not repeated, what is over is undone."""

import pytest

from agent.bench import Bench, command, event, rule, service
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import ActionBegun, AgentState, EventApproved, ImpossibleStep, RuleMatched

STARTED = event(status="Started")


def results(bench: Bench) -> list[ActionOutcome | None]:
    (case,) = bench.decider.state.cases.values()
    return case.results


def test_what_had_finished_is_not_repeated() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    bench.end("web")
    bench.end("drain")
    assert bench.start() == []
    assert bench.see(event()) == ["approve E1"]  # nobody knows whether it was sent
    bench.answer(taken=True)
    bench.start()
    assert bench.see(event()) == []
    assert bench.see() == ["undo drain"]


def test_what_was_cut_in_the_middle_runs_again_if_it_may() -> None:
    bench = Bench(rule(service("web")))
    bench.see(event())
    assert bench.start() == []
    assert bench.see(event()) == ["do web"]
    assert bench.runs["web"].attempt == 2
    assert bench.end("web") == ["approve E1"]


def test_what_was_cut_in_the_middle_and_may_not_run_again_holds() -> None:
    bench = Bench(rule(command("drain"), service()))
    bench.see(event())
    bench.start()
    assert bench.see(event()) == []
    assert results(bench) == [ActionOutcome.INTERRUPTED, None]
    assert bench.phase == "Held"
    assert bench.see() == ["undo drain"]


def test_what_was_over_meanwhile_is_undone_as_it_was_said_then() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    bench.find("web", active=True)
    bench.end("web")
    bench.rules = ()
    bench.start()
    assert bench.see() == ["undo drain"]
    assert bench.end("drain") == ["undo web"]
    assert bench.runs["web"].facts == {"active": True}
    assert bench.runs["web"].event.event_id == "E1"


def test_undoing_that_was_cut_and_may_not_run_again_waits_for_somebodys_word() -> None:
    bench = Bench(rule({"ready": {}}, command("drain")))
    bench.see(event())
    bench.end("ready")
    bench.end("drain")
    bench.see()
    bench.start()
    assert bench.see() == []
    bench.start()
    assert bench.see() == []
    assert bench.standing == ["ready", "drain"]
    assert bench.reload() == ["undo drain"]
    assert bench.runs["drain"].attempt == 1


def test_undoing_that_failed_for_good_is_tried_again_by_the_next_process() -> None:
    bench = Bench(rule(service(undo_retries=0)))
    bench.see(event())
    bench.end("web")
    bench.see()
    bench.end("web", ActionOutcome.FAILED)
    bench.start()
    assert bench.see() == ["undo web"]


# Boots


def test_after_a_boot_nothing_is_undone_before_the_event_is_over() -> None:
    bench = Bench(rule({"ready": {}}, command("drain")))
    bench.see(event())
    bench.end("ready")
    bench.end("drain")
    bench.answer(taken=True)
    bench.start("boot-2")
    assert bench.see(STARTED) == []
    assert bench.standing == ["ready", "drain"]
    assert bench.see() == ["undo drain"]
    assert bench.end("drain") == ["undo ready"]


@pytest.mark.parametrize(
    ("after_boot", "expected"),
    [("forget", ActionOutcome.INTERRUPTED), ("again", None), ("undo", ActionOutcome.INTERRUPTED)],
)
def test_a_boot_in_the_middle_of_an_action_interrupts_it(
    after_boot: str, expected: ActionOutcome | None
) -> None:
    bench = Bench(rule(command("drain", after_boot=after_boot)))
    bench.see(event())
    bench.start("boot-2")
    assert results(bench) == [expected]
    said = bench.see(STARTED)
    assert said == (["do drain"] if after_boot == "again" else [])


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


def test_undoing_that_failed_for_good_keeps_the_action_from_no_later_event() -> None:
    bench = Bench(rule(command("drain", undo_retries=0)))
    bench.see(event())
    bench.end("drain")
    bench.see()
    bench.end("drain", ActionOutcome.FAILED)
    bench.start()
    assert bench.see(event("E2")) == ["do drain"]


def test_every_effect_that_a_boot_has_undone_is_forgotten() -> None:
    bench = Bench(rule(command("drain"), service("web", after_boot="forget")))
    bench.see(event())
    bench.end("drain")
    bench.end("web")
    bench.start("boot-2")
    assert bench.standing == ["drain"]
    assert results(bench) == [ActionOutcome.DONE, ActionOutcome.DONE]


def test_the_journal_holds_no_time_of_one_boots_clock() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
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
    bench = Bench(rule(service(), approve="never"))
    bench.see(event())
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


def test_what_may_not_run_again_may_not_because_undoing_it_failed() -> None:
    bench = Bench(rule(command("drain", undo_retries=0)))
    bench.see(event())
    bench.start()
    bench.see(event())
    assert bench.see() == ["undo drain"]
    bench.end("drain", ActionOutcome.FAILED)
    assert bench.see(event("E2")) == []
    assert results(bench) == [ActionOutcome.INTERRUPTED]
