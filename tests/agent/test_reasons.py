"""Why an action failed: shown while it matters, to whom it may be, over kills and boots."""

from typing import Any

import pytest

from agent.bench import START, Bench, command, event, rule, service
from forewarn.agent import status
from forewarn.agent.decider import ActionFinished
from forewarn.agent.rules import ActionOutcome

FAILED = ActionOutcome.FAILED


def told(bench: Bench) -> dict[str, Any]:
    return status.report(bench.decider, bench.now)


def reasons(bench: Bench) -> list[str]:
    (shown,) = told(bench)["events"]
    return [action["reason"] for action in shown["actions"]]


def fail(bench: Bench, which: str, text: str = "no route to the balancer") -> None:
    bench.tell(ActionFinished(bench.runs[which].run, FAILED, text))


def test_while_an_action_is_tried_again_its_last_try_says_why() -> None:
    bench = Bench(rule(service(retries=2, retry_seconds=3)))
    bench.see(event())
    fail(bench, "web", "first")
    assert reasons(bench) == ["first"]
    assert bench.let_pass(3) == ["do web"]
    assert reasons(bench) == ["first"]
    bench.end("web")
    assert reasons(bench) == [""]
    assert told(bench)["standing"][0]["reason"] == ""


def test_an_action_that_no_time_is_left_to_try_again_keeps_its_reason() -> None:
    bench = Bench(rule(service(retries=2, retry_seconds=10)))
    bench.see(event(starts_by=START + 30))
    fail(bench, "web", "first")
    bench.see(event(starts_by=bench.now + 6))
    bench.let_pass(2)
    (shown,) = told(bench)["events"]
    assert shown["actions"] == [{"kind": "service", "result": "failed", "reason": "first"}]


def test_what_cannot_be_undone_says_why() -> None:
    bench = Bench(rule(service(undo_retries=1, retry_seconds=1)))
    bench.see(event())
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
    bench = Bench(rule(service()))
    bench.see(event())
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
    bench = Bench(rule(service(), name="first"))
    bench.see(event())
    fail(bench, "web")
    bench.start()
    assert reasons(bench) == ["no route to the balancer"]
    bench.journal = [bench.decider.state.checkpoint()]
    bench.start("boot-2")
    bench.see(event(status="Started"))
    assert reasons(bench) == ["no route to the balancer"]
    assert told(bench)["standing"][0]["reason"] == "no route to the balancer"


def test_an_action_that_a_boot_has_undone_has_no_reason_any_more() -> None:
    bench = Bench(rule(service(after_boot="again")))
    bench.see(event())
    fail(bench, "web")
    bench.start("boot-2")
    assert bench.see(event()) == ["do web"]
    assert reasons(bench) == [""]
    bench.end("web")
    assert reasons(bench) == [""]
