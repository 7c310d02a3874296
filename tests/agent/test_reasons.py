"""Why an action failed: shown while it matters, to whom it may be, over kills and boots."""

import re
from typing import Any

import msgspec
import pytest

from agent.bench import START, Bench, command, event, rule, service
from forewarn.agent import status
from forewarn.agent.decider import ENDED_IN_IT, ActionFinished
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import AgentState, AnyRecord

FAILED = ActionOutcome.FAILED


def told(bench: Bench) -> dict[str, Any]:
    return status.report(bench.decider, bench.now)


def reasons(bench: Bench) -> list[str]:
    (shown,) = told(bench)["events"]
    return [action["reason"] for action in shown["actions"]]


def fail(bench: Bench, which: str, text: str = "no route to the balancer") -> None:
    bench.tell(ActionFinished(bench.runs[which].run, FAILED, text))


def test_a_held_event_says_what_its_action_said() -> None:
    bench = Bench(rule({"ready": {}}, service(), command("drain")))
    bench.see(event())
    bench.end("ready")
    fail(bench, "web")
    assert reasons(bench) == ["", "no route to the balancer", ""]
    assert told(bench)["standing"][-1]["reason"] == "no route to the balancer"


def test_the_word_to_forewarn_follows_what_the_agent_does() -> None:
    bench = Bench(rule(service(), command("drain")))
    said = []

    def say() -> None:
        said.append(status.word(bench.decider))

    say()
    bench.see(event())
    say()
    bench.end("web")
    bench.end("drain")
    say()
    bench.see()
    say()
    for which in ("drain", "web"):
        bench.end(which)
    say()
    assert said == [
        ("back", ""),
        ("preparing", ""),
        ("ready", ""),
        ("recovering", ""),
        ("back", ""),
    ]


def test_the_word_to_forewarn_says_why_an_event_is_held() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    fail(bench, "web")
    word, reason = status.word(bench.decider)
    assert word == "held"
    assert reason.endswith("no route to the balancer")


def test_the_word_to_forewarn_says_what_cannot_be_undone() -> None:
    bench = Bench(rule(service(undo_retries=1, retry_seconds=1)))
    bench.see(event())
    bench.end("web")
    bench.see()
    fail(bench, "web", "Job for web failed.")
    bench.let_pass(1)
    assert status.word(bench.decider) == ("recovering", "service: Job for web failed.")


def test_an_action_that_is_passed_over_says_it_too() -> None:
    bench = Bench(rule(service(on_failure="continue"), command("drain")))
    bench.see(event())
    fail(bench, "web")
    bench.end("drain")
    assert reasons(bench) == ["no route to the balancer", ""]
    assert bench.phase == "Prepared"


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


def test_what_failed_for_one_event_is_no_reason_of_anothers() -> None:
    after = rule(command("slow"), service(), match={"types": ["Redeploy"]}, name="after")
    bench = Bench(rule(service(), match={"types": ["Reboot"]}), after)
    bench.see(event())
    fail(bench, "web")
    bench.see(event(), event("E2", event_type="Redeploy"))
    _, second = told(bench)["events"]
    assert [action["reason"] for action in second["actions"]] == ["", ""]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        *status.REASONS.items(),
        (ActionOutcome.SHARED, ""),
        (ActionOutcome.DONE, ""),
    ],
)
def test_what_never_failed_says_why_it_is_not_done(result: ActionOutcome, said: str) -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    (case,) = bench.decider.state.cases.values()
    case.results[0] = result
    assert reasons(bench) == [said]


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


def test_an_action_that_the_agents_end_cut_says_so_until_it_is_tried_again() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    bench.start()
    assert bench.decider.state.effects["service stop web"].text == ENDED_IN_IT


def test_an_action_that_a_boot_has_undone_has_no_reason_any_more() -> None:
    bench = Bench(rule(service(after_boot="again")))
    bench.see(event())
    fail(bench, "web")
    bench.start("boot-2")
    assert bench.see(event()) == ["do web"]
    assert reasons(bench) == [""]
    bench.end("web")
    assert reasons(bench) == [""]


def test_a_journal_of_an_older_version_has_none_and_is_read() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    fail(bench, "web")
    written = msgspec.json.encode(bench.decider.state.checkpoint())
    older = re.sub(rb',"(reasons":\{[^}]*\}|text":"[^"]*")', b"", written)
    assert older != written
    ledger = AgentState([msgspec.json.decode(older, type=AnyRecord)])
    assert ledger.cases["E1"].results == [FAILED]
    assert ledger.cases["E1"].reasons == {}


def test_what_an_action_said_is_one_line_without_orders_to_a_terminal() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    fail(bench, "web", "first\n\tsecond \x1b[2Jthird\x00")
    assert reasons(bench) == ["first second ?[2Jthird?"]


def test_another_machine_is_not_told_what_programs_said() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    fail(bench, "web", "password=hunter2")
    own = told(bench)
    bare = status.without_reasons(own)
    assert "hunter2" in str(own)
    assert "hunter2" not in str(bare)
    assert bare["events"][0]["actions"] == [{"kind": "service", "result": "failed", "reason": ""}]
    assert {**bare, "events": [], "standing": []} == {**own, "events": [], "standing": []}
    assert bare["events"][0] == {**own["events"][0], "actions": bare["events"][0]["actions"]}
