"""What is held is tried again on somebody's word: by its own rule, and only while there is time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.bench import MARGIN, START, Bench, command, event, rule, service
from forewarn.agent.rules import ActionOutcome, Rule
from forewarn.agent.state import EventRetried, ImpossibleStep
from forewarn.client.event import Event

FAILED = ActionOutcome.FAILED


ORDINARY = rule(service("web"), command("drain"), service("db"))


def held(own: Rule = ORDINARY) -> Bench:
    """Return a bench whose event is held, for its second action failed."""
    bench = Bench(own)
    bench.see(event())
    bench.end("web")
    bench.end("drain", FAILED)
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


def test_what_fails_again_is_held_again() -> None:
    bench = held()
    bench.retry()
    assert bench.end("drain", FAILED) == []
    assert bench.phase == "Held"
    assert bench.retry() == ["do drain"]


def test_a_try_has_all_its_retries_again() -> None:
    bench = Bench(rule(service("web"), command("drain", retries=1, retry_seconds=1)))
    bench.see(event())
    bench.end("web")
    bench.end("drain", FAILED)
    bench.let_pass(1)
    bench.end("drain", FAILED)
    bench.retry()
    bench.end("drain", FAILED)
    assert bench.phase == "Preparing"
    assert bench.let_pass(1) == ["do drain"]
    assert bench.runs["drain"].attempt == 2


def test_when_it_is_over_everything_is_undone_as_if_it_had_not_been_held() -> None:
    bench = held()
    bench.retry()
    bench.end("drain")
    bench.end("db")
    bench.answer(taken=True)
    assert bench.see() == ["undo db"]
    assert bench.end("db") == ["undo drain"]
    assert bench.end("drain") == ["undo web"]
    bench.end("web")
    assert bench.decider.state.idle


def test_what_failed_and_did_not_hold_is_done_again_too() -> None:
    bench = Bench(rule(service("web", on_failure="continue"), command("drain")))
    bench.see(event())
    bench.end("web", FAILED)
    bench.end("drain", FAILED)
    assert bench.retry() == ["do web"]
    assert bench.end("web") == ["do drain"]


def test_what_the_agents_end_cut_may_be_begun_again_on_that_word() -> None:
    bench = Bench(rule(command("drain")))
    bench.see(event())
    bench.start()
    bench.see(event())
    assert bench.phase == "Held"
    assert bench.retry() == ["do drain"]
    assert bench.end("drain") == ["approve E1"]


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


@pytest.mark.parametrize(
    "now", [{"match": {"types": ["Freeze"]}}, {"enabled": False}, {"approve": "never"}]
)
def test_a_rule_that_takes_the_event_no_more_stays_as_it_was_for_it(now: dict[str, Any]) -> None:
    bench = held()
    assert bench.reload(rule(**({"approve": "when-prepared"} | now))) == ["do drain"]


def test_a_rule_stays_as_it_was_where_it_has_done_something_for_this_event_alone() -> None:
    bench = Bench(rule(command("mark", shared=False), command("drain")))
    bench.see(event())
    bench.end("mark")
    bench.end("drain", FAILED)
    assert bench.reload(rule(command("other", shared=False))) == ["do drain"]


def test_new_rules_are_not_taken_the_event_keeps_its_own() -> None:
    bench = held()
    assert bench.reload(rule(approve="at-once", name="new")) == ["do drain"]


def test_no_look_and_no_boot_leads_out_of_held() -> None:
    bench = held()
    assert bench.see(event()) == []
    bench.start("boot-2")
    assert bench.see(event()) == []
    assert bench.let_pass(60) == []
    assert bench.phase == "Held"


def test_what_has_started_stays_held() -> None:
    bench = held()
    bench.see(event(status="Started"))
    written = len(bench.journal)
    assert bench.retry() == []
    assert bench.phase == "Held"
    assert len(bench.journal) == written


def test_what_is_prepared_for_though_it_has_started_is_tried_then_too() -> None:
    bench = held(rule(service("web"), command("drain"), even_if_started=True))
    bench.see(event(status="Started"))
    assert bench.retry() == ["do drain"]


@pytest.mark.parametrize(("left", "phase"), [(MARGIN, "Held"), (MARGIN + 1, "Preparing")])
def test_what_has_no_time_left_stays_held(left: float, phase: str) -> None:
    bench = held()
    bench.see(event(starts_by=START + left))
    bench.retry()
    assert bench.phase == phase
    tried = [record for record in bench.journal if isinstance(record, EventRetried)]
    assert len(tried) == (phase == "Preparing")


def test_a_word_before_the_first_look_counts_when_it_is_known_what_is_over() -> None:
    bench = held()
    bench.start()
    assert bench.retry() == []
    assert bench.see(event()) == ["do drain"]
    assert bench.end("drain", FAILED) == []
    assert bench.see(event()) == []  # it was one word


def test_what_is_not_held_is_left_alone() -> None:
    bench = Bench(rule(service("web")), rule(command("drain"), name="s", match={"types": []}))
    bench.see(event())
    assert bench.retry() == []
    bench.end("web")
    written = len(bench.journal)
    assert bench.retry() == []
    assert len(bench.journal) == written
    with pytest.raises(ImpossibleStep, match="event E1 is Prepared and cannot retry"):
        bench.decider.state.apply(EventRetried(event_id="E1"))


def test_only_the_held_one_of_two_events_is_tried_again() -> None:
    other = rule(command("other"), name="other", match={"types": ["Redeploy"]})
    bench = Bench(rule(service("web"), match={"types": ["Reboot"]}), other)
    bench.see(event(), event("E2", event_type="Redeploy"))
    bench.end("web", FAILED)
    assert bench.retry() == ["do web"]
    assert [r.event_id for r in bench.journal if isinstance(r, EventRetried)] == ["E1"]


def test_a_kill_after_the_word_goes_on_with_it() -> None:
    bench = held()
    bench.retry()
    bench.end("drain")
    bench.start()
    assert bench.see(event()) == ["do db"]


def test_an_agent_that_is_to_end_begins_nothing_on_that_word() -> None:
    bench = held()
    bench.decider._closing = True
    assert bench.retry() == []


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


def test_what_came_too_late_is_prepared_for_once_its_notice_is_longer() -> None:
    bench = late()
    assert bench.see(due(900)) == ["do drain"]
    assert bench.end("drain") == ["approve E1"]


def test_a_longer_notice_counts_in_the_process_after_too() -> None:
    bench = late()
    bench.start()
    assert bench.see(due(900)) == ["do drain"]


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


def test_what_failed_stays_held_though_the_notice_is_longer() -> None:
    bench = Bench(ORDINARY)
    bench.see(due(20))
    bench.end("web")
    bench.end("drain", FAILED)
    assert bench.see(due(900)) == []
    assert bench.phase == "Held"
