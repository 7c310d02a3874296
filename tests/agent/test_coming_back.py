"""Kills, boots and retries: what had finished is not repeated, what is over is undone, and why."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.bench import MARGIN, START, Bench, command, event, rule, seen, service
from forewarn.agent import status
from forewarn.agent.decider import ActionFinished
from forewarn.agent.rules import ActionOutcome, Rule
from forewarn.agent.state import (
    ActionBegun,
    AgentState,
    EventApproved,
    EventRetried,
    ImpossibleStep,
    RuleMatched,
)
from forewarn.client.event import Event

STARTED = event(status="Started")


def results(bench: Bench) -> list[ActionOutcome | None]:
    (case,) = bench.decider.state.cases.values()
    return case.results


def test_what_was_over_meanwhile_is_undone_as_it_was_said_then() -> None:
    bench = seen(service("web"), command("drain"))
    bench.find("web", active=True)
    bench.end("web")
    bench.rules = ()
    bench.start()
    assert bench.see() == ["undo drain"]
    assert bench.end("drain") == ["undo web"]
    assert bench.runs["web"].facts == {"active": True}
    assert bench.runs["web"].event.event_id == "E1"


def test_undoing_that_was_cut_and_may_not_run_again_waits_for_somebodys_word() -> None:
    bench = seen({"ready": {}}, command("drain"))
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


# Boots


@pytest.mark.parametrize(
    ("after_boot", "expected"),
    [("forget", ActionOutcome.INTERRUPTED), ("again", None), ("undo", ActionOutcome.INTERRUPTED)],
)
def test_a_boot_in_the_middle_of_an_action_interrupts_it(
    after_boot: str, expected: ActionOutcome | None
) -> None:
    bench = seen(command("drain", after_boot=after_boot))
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
    bench = seen(command("drain", undo_retries=0))
    bench.end("drain")
    bench.see()
    bench.end("drain", ActionOutcome.FAILED)
    bench.start()
    assert bench.see(event("E2")) == ["do drain"]


def test_every_effect_that_a_boot_has_undone_is_forgotten() -> None:
    bench = seen(command("drain"), service("web", after_boot="forget"))
    bench.end("drain")
    bench.end("web")
    bench.start("boot-2")
    assert bench.standing == ["drain"]
    assert results(bench) == [ActionOutcome.DONE, ActionOutcome.DONE]


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


def test_what_may_not_run_again_may_not_because_undoing_it_failed() -> None:
    bench = seen(command("drain", undo_retries=0))
    bench.start()
    bench.see(event())
    assert bench.see() == ["undo drain"]
    bench.end("drain", ActionOutcome.FAILED)
    assert bench.see(event("E2")) == []
    assert results(bench) == [ActionOutcome.INTERRUPTED]


ORDINARY = rule(service("web"), command("drain"), service("db"))


def held(own: Rule = ORDINARY) -> Bench:
    """Return a bench whose event is held, for its second action failed."""
    bench = Bench(own)
    bench.see(event())
    bench.end("web")
    bench.end("drain", ActionOutcome.FAILED)
    assert bench.phase == "Held"
    return bench


def test_what_did_not_end_well_is_done_again_and_the_rest_after_it() -> None:
    bench = held()
    assert bench.retry() == ["do drain"]
    assert bench.runs["drain"].attempt == 1
    assert bench.phase == "Preparing"
    (case,) = bench.decider.state.cases.values()
    assert (case.results, case.reasons) == ([ActionOutcome.DONE, None, None], {})
    assert bench.end("drain") == ["do db"]
    assert bench.end("db") == ["approve E1"]


def test_a_rule_that_was_mended_counts_as_it_is_now() -> None:
    """Its second action had a wrong path: what was done stays, what it lacks now is undone."""
    bench = held()
    mended = rule(service("web"), command("drain.sh"), approve="when-prepared")
    assert bench.reload(mended) == ["do drain.sh", "undo drain"]
    bench.end("drain")
    assert bench.end("drain.sh") == ["approve E1"]
    bench.start()  # the journal says the same
    bench.see(event())
    (case,) = bench.decider.state.cases.values()
    assert (case.rule, case.results) == (mended, [ActionOutcome.SHARED, ActionOutcome.DONE])
    bench.answer(taken=True)
    assert bench.see() == ["undo drain.sh"]
    assert bench.end("drain.sh") == ["undo web"]


def test_a_rule_stays_as_it_was_where_it_has_done_something_for_this_event_alone() -> None:
    bench = seen(command("mark", shared=False), command("drain"))
    bench.end("mark")
    bench.end("drain", ActionOutcome.FAILED)
    assert bench.reload(rule(command("other", shared=False))) == ["do drain"]


@pytest.mark.parametrize(("left", "phase"), [(MARGIN, "Held"), (MARGIN + 1, "Preparing")])
def test_what_has_no_time_left_stays_held(left: float, phase: str) -> None:
    bench = held()
    bench.see(event(starts_by=START + left))
    bench.retry()
    assert bench.phase == phase
    tried = [record for record in bench.journal if isinstance(record, EventRetried)]
    assert len(tried) == (phase == "Preparing")


NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def late(seconds: float = 20, **terms: Any) -> Bench:
    """Return a bench whose event came too late for its only action, which needs 60 s."""
    bench = Bench(rule(command("drain", needs_seconds=60, **terms)))
    bench.see(due(seconds))
    assert bench.phase == "Held"
    return bench


def due(seconds: float, **facts: Any) -> Event:
    """Return an event with its NotBefore after so many seconds from the start."""
    not_before = NOW + timedelta(seconds=seconds)
    return event(not_before=not_before, starts_by=START + seconds, **facts)


def test_each_notice_that_is_too_short_is_tried_once() -> None:
    bench = late()
    assert bench.see(due(40)) == []
    assert bench.phase == "Held"
    written = len(bench.journal)
    assert bench.see(due(40)) == []
    assert bench.see(due(30)) == []
    assert len(bench.journal) == written
    assert bench.see(due(900)) == ["do drain"]


@pytest.mark.parametrize(("repeatable", "said"), [(True, ["do drain"]), (False, [])])
def test_what_the_notice_cut_is_begun_again_only_if_it_is_repeatable(
    repeatable: bool, said: list[str]
) -> None:
    bench = Bench(rule(command("drain", repeatable=repeatable)))
    bench.see(due(20))
    assert bench.let_pass(20 - MARGIN) == ["stop drain"]
    bench.end("drain", ActionOutcome.CUT)
    assert bench.phase == "Held"
    assert bench.see(due(900)) == said


def told(bench: Bench) -> dict[str, Any]:
    return status.report(bench.decider, bench.now)


def reasons(bench: Bench) -> list[str]:
    (shown,) = told(bench)["events"]
    return [action["reason"] for action in shown["actions"]]


def fail(bench: Bench, which: str, text: str = "no route to the balancer") -> None:
    bench.tell(ActionFinished(bench.runs[which].run, ActionOutcome.FAILED, text))


def test_while_an_action_is_tried_again_its_last_try_says_why() -> None:
    bench = seen(service(retries=2, retry_seconds=3))
    fail(bench, "web", "first")
    assert reasons(bench) == ["first"]
    assert bench.let_pass(3) == ["do web"]
    assert reasons(bench) == ["first"]
    bench.end("web")
    assert reasons(bench) == [""]
    assert told(bench)["standing"][0]["reason"] == ""


def test_what_cannot_be_undone_says_why() -> None:
    bench = seen(service(undo_retries=1, retry_seconds=1))
    bench.end("web")
    bench.see()
    fail(bench, "web", "Job for web failed.")
    bench.let_pass(1)
    (effect,) = told(bench)["standing"]
    assert (effect["undoing"], effect["reason"]) == (True, "Job for web failed.")
    fail(bench, "web", "Again.")
    (effect,) = told(bench)["standing"]
    assert (effect["stuck"], effect["reason"]) == (True, "Again.")


def test_why_it_failed_to_do_is_not_why_it_fails_to_undo() -> None:
    bench = seen(service())
    fail(bench, "web")
    bench.see()
    (effect,) = told(bench)["standing"]
    assert (effect["undoing"], effect["reason"]) == (True, "")


def stuck_and_wanted_again(event_id: str) -> Bench:
    """Return a bench where undoing has failed, and an event waits to have the same done anew."""
    after = rule(command("slow"), service(), match={"types": ["Redeploy"]}, name="after")
    bench = Bench(rule(service(undo_retries=0), match={"types": ["Reboot"]}), after)
    bench.see(event())
    bench.end("web")
    bench.see()
    fail(bench, "web")
    assert bench.see(event(event_id, event_type="Redeploy")) == ["do slow"]
    return bench


@pytest.mark.parametrize("event_id", ["E1", "E2"])
def test_why_it_failed_to_undo_is_no_reason_of_what_is_to_be_done(event_id: str) -> None:
    bench = stuck_and_wanted_again(event_id)
    assert reasons(bench) == ["", ""]
    assert bench.end("slow") == ["do web"]
    assert reasons(bench) == ["", ""]


def test_reasons_outlive_a_kill_and_a_journal_made_short() -> None:
    bench = seen(service(), name="first")
    fail(bench, "web")
    bench.start()
    assert reasons(bench) == ["no route to the balancer"]
    bench.journal = [bench.decider.state.checkpoint()]
    bench.start("boot-2")
    bench.see(event(status="Started"))
    assert reasons(bench) == ["no route to the balancer"]
    assert told(bench)["standing"][0]["reason"] == "no route to the balancer"
