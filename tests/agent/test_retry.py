"""What is held is tried again on somebody's word: by its own rule, and only while there is time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agent.bench import MARGIN, START, Bench, command, event, rule, service
from forewarn.agent.rules import ActionOutcome, Rule
from forewarn.agent.state import EventRetried
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
