"""Two events at once on one machine: what both want is done once, and undone after both."""

from agent.bench import START, Bench, command, event, rule, service
from forewarn.agent.decider import (
    OTHERS_AT_ONCE,
    ActionFinished,
    FactsFound,
    ProceedAction,
    TimePassed,
)
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import FactsNoted

SECOND = event("E2", event_type="Redeploy")
PREEMPT = event("E2", event_type="Preempt", starts_by=START + 30)


def test_what_both_want_is_done_once_and_undone_when_both_are_over() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    assert bench.see(event(), SECOND) == []
    assert bench.end("web") == ["approve E1", "approve E2"]
    assert bench.see(SECOND) == []
    assert bench.see() == ["undo web"]
    assert bench.end("web") == []
    assert bench.decider.state.idle


def test_an_event_that_supersedes_another_takes_over_what_stands() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    bench.end("web")
    assert bench.see(PREEMPT) == ["approve E2"]
    assert bench.see() == ["undo web"]


def test_what_one_does_for_itself_alone_is_undone_when_that_one_is_over() -> None:
    first = rule(service("web"), command("a"), match={"types": ["Reboot"]}, name="first")
    second = rule(service("web"), command("b"), name="second")
    bench = Bench(first, second)
    bench.see(event(), SECOND)
    assert bench.end("web") == ["do a", "do b"]
    bench.end("a")
    bench.end("b")
    assert bench.see(SECOND) == ["undo a"]
    assert bench.end("a") == []
    assert bench.see() == ["undo b"]
    assert bench.end("b") == ["undo web"]


def test_a_short_notice_does_not_end_what_another_event_has_time_for() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    assert bench.see(event(), PREEMPT) == []
    assert bench.let_pass(25) == []
    second = bench.decider.state.cases["E2"]
    assert second.results == [ActionOutcome.NO_TIME]
    assert bench.end("web") == ["approve E1"]


def test_what_was_begun_for_a_short_notice_goes_on_for_a_longer_one() -> None:
    bench = Bench(rule(service()))
    bench.see(PREEMPT)
    bench.see(PREEMPT, event())
    assert bench.let_pass(25) == []
    assert bench.decider.state.cases["E2"].results == [ActionOutcome.CUT]
    assert bench.end("web") == ["approve E1"]
    assert bench.decider.state.cases["E2"].results == [ActionOutcome.CUT]
    assert bench.decider.state.cases["E2"].phase == "Held"


def test_what_failed_for_one_event_is_tried_for_another() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    bench.end("web", ActionOutcome.FAILED)
    assert bench.see(event(), SECOND) == ["do web"]
    assert bench.runs["web"].attempt == 1
    assert bench.end("web") == ["approve E2"]
    assert bench.decider.state.cases["E1"].phase == "Held"


def test_an_undo_that_may_not_be_repeated_is_waited_for_until_the_notice_is_over() -> None:
    bench = Bench(rule(command("drain")))
    bench.see(event())
    bench.end("drain")
    bench.see()
    bench.see(PREEMPT)
    assert bench.let_pass(25) == []
    assert bench.decider.state.cases["E2"].results == [ActionOutcome.NO_TIME]


def test_an_undo_that_may_be_repeated_gives_way_to_an_event_that_needs_the_action() -> None:
    bench = Bench(rule(service(undo_retries=0)))
    bench.see(event())
    bench.find("web", active=True)
    bench.end("web")
    assert bench.see() == ["undo web"]
    assert bench.see(PREEMPT) == ["stop web"]
    assert bench.end("web", ActionOutcome.CUT) == ["do web"]
    assert bench.end("web") == ["approve E2"]
    assert bench.see() == ["undo web"]
    assert bench.runs["web"].facts == {"active": True}


def test_an_undo_gives_way_only_when_the_turn_of_its_action_has_come() -> None:
    bench = Bench(REBOOTS, rule(command("checkpoint"), service("web"), name="later"))
    bench.see(event())
    bench.end("web")
    bench.end("drain")
    bench.see()
    assert bench.end("drain") == ["undo web"]
    assert bench.see(PREEMPT) == ["do checkpoint"]
    assert bench.end("checkpoint") == ["stop web"]


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


REBOOTS = rule(service("web"), command("drain"), match={"types": ["Reboot"]}, name="reboots")
REDEPLOYS = rule(service("db"), match={"types": ["Redeploy"]}, name="redeploys")


def test_what_has_to_wait_for_its_turn_keeps_nothing_of_another_event_standing() -> None:
    bench = Bench(REBOOTS, REDEPLOYS)
    bench.see(SECOND)
    bench.end("db")
    bench.see(SECOND, event())
    bench.end("web")
    bench.end("drain")
    assert bench.see() == ["undo drain", "undo db"]
    assert bench.end("drain") == ["undo web"]


def test_an_action_is_let_go_on_by_its_own_number_once_its_note_is_written() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    run = bench.runs["web"]
    (written, proceed) = bench.decider.handle(FactsFound(run.run, {"was": "active"}), bench.now)
    assert isinstance(written, FactsNoted)
    assert proceed == ProceedAction(run.run)
    assert run.effect == written.effect
