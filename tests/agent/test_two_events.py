"""Two events at once on one machine: what both want is done once, and undone after both."""

from agent.bench import MARGIN, START, Bench, command, event, rule, service
from forewarn.agent import status
from forewarn.agent.decider import (
    OTHERS_AT_ONCE,
    ActionFinished,
    FactsFound,
    ProceedAction,
    TimePassed,
)
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import FactsNoted
from forewarn.vocabulary import AgentStatus

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


def test_what_stands_for_one_event_serves_a_later_one() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    bench.end("web")
    bench.end("drain")
    assert bench.see(event(), SECOND) == ["approve E2"]


def test_an_event_that_supersedes_another_takes_over_what_stands() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    bench.end("web")
    assert bench.see(PREEMPT) == ["approve E2"]
    assert bench.see() == ["undo web"]


def test_an_event_that_supersedes_another_takes_over_what_is_under_way() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    assert bench.see(PREEMPT) == []
    assert bench.let_pass(24) == []
    assert bench.end("web") == ["do drain"]
    assert bench.runs["drain"].until == START + 25
    assert bench.let_pass(1) == ["stop drain"]


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


def test_a_program_that_is_not_shared_runs_for_each_event() -> None:
    bench = Bench(rule(command("a", shared=False)))
    assert bench.see(event(), SECOND) == ["do a", "do a"]


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


def test_the_shorter_notice_is_served_first() -> None:
    preempted = rule(command("b"), match={"types": ["Preempt"]}, name="preempted")
    bench = Bench(preempted, rule(service()))
    assert bench.see(event(), PREEMPT) == ["do b", "do web"]
    assert bench.see(PREEMPT, event(event_id="E0", status="Started")) == ["stop web"]


def test_what_failed_for_one_event_is_tried_for_another() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    bench.end("web", ActionOutcome.FAILED)
    assert bench.see(event(), SECOND) == ["do web"]
    assert bench.runs["web"].attempt == 1
    assert bench.end("web") == ["approve E2"]
    assert bench.decider.state.cases["E1"].phase == "Held"


def test_what_waits_while_another_ends_badly_is_tried_after_it() -> None:
    bench = Bench(rule(service()))
    bench.see(event(), SECOND)
    assert bench.end("web", ActionOutcome.FAILED) == ["do web"]
    assert bench.end("web") == ["approve E2"]


def test_an_undo_that_may_not_be_repeated_is_waited_for() -> None:
    bench = Bench(rule(command("drain")))
    bench.see(event())
    bench.find("drain", active=True)
    bench.end("drain")
    bench.see()
    assert bench.see(SECOND) == []
    assert bench.end("drain") == ["do drain"]
    assert bench.runs["drain"].facts is None


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


def test_what_could_not_be_undone_is_done_anew_and_knows_how_things_were() -> None:
    bench = Bench(rule(service(undo_retries=0)))
    bench.see(event())
    bench.find("web", active=True)
    bench.end("web")
    bench.see()
    bench.end("web", ActionOutcome.FAILED)
    assert bench.see(SECOND) == ["do web"]
    bench.find("web", active=False)  # after the half undone: not how things were
    bench.end("web")
    assert bench.see() == ["undo web"]
    assert bench.runs["web"].facts == {"active": True}


def test_a_rule_that_names_an_action_twice_has_it_done_once() -> None:
    bench = Bench(rule(service(), service()))
    bench.see(event())
    assert bench.end("web") == ["approve E1"]
    bench.see()
    assert bench.end("web") == []
    assert bench.decider.state.idle


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


def test_what_served_two_events_is_undone_after_what_each_of_them_did_later() -> None:
    """Back in the pool only when the service runs again that another event had stopped."""
    first = rule({"ready": {}}, match={"types": ["Reboot"]}, name="first")
    second = rule({"ready": {}}, service("web"), match={"types": ["Redeploy"]}, name="second")
    bench = Bench(first, second)
    bench.see(event())
    bench.end("ready")
    assert bench.see(event(), SECOND) == ["do web"]
    bench.end("web")
    assert bench.see(SECOND) == []
    bench.start()
    assert bench.see() == ["undo web"]
    assert bench.end("web") == ["undo ready"]


REBOOTS = rule(service("web"), command("drain"), match={"types": ["Reboot"]}, name="reboots")
REDEPLOYS = rule(service("db"), match={"types": ["Redeploy"]}, name="redeploys")


def test_what_a_later_event_still_wants_keeps_nothing_of_an_earlier_one_standing() -> None:
    bench = Bench(REBOOTS, REDEPLOYS)
    bench.see(event())
    bench.end("web")
    bench.end("drain")
    assert bench.see(event(), SECOND) == ["do db"]
    bench.end("db")
    assert bench.see(SECOND) == ["undo drain"]


def test_what_has_to_wait_for_its_turn_keeps_nothing_of_another_event_standing() -> None:
    bench = Bench(REBOOTS, REDEPLOYS)
    bench.see(SECOND)
    bench.end("db")
    bench.see(SECOND, event())
    bench.end("web")
    bench.end("drain")
    assert bench.see() == ["undo drain", "undo db"]
    assert bench.end("drain") == ["undo web"]


def test_what_is_being_undone_keeps_nothing_of_another_event_standing() -> None:
    bench = Bench(REBOOTS, REDEPLOYS)
    bench.see(SECOND)
    bench.end("db")
    bench.see(SECOND, event())
    bench.end("web")
    bench.end("drain")
    assert bench.see(SECOND) == ["undo drain"]
    assert bench.see() == ["undo db"]
    assert bench.end("drain") == ["undo web"]


def test_an_action_is_let_go_on_by_its_own_number_once_its_note_is_written() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    run = bench.runs["web"]
    (written, proceed) = bench.decider.handle(FactsFound(run.run, {"was": "active"}), bench.now)
    assert isinstance(written, FactsNoted)
    assert proceed == ProceedAction(run.run)
    assert run.effect == written.effect


def test_an_event_that_waits_for_anothers_action_waits_no_longer_than_its_own_notice() -> None:
    bench = Bench(rule(command("drain")))
    bench.see(event())
    bench.see(event(), event("E2", starts_by=START + 30))
    assert bench.decider.wake_at == START + 30 - MARGIN
    bench.let_pass(30 - MARGIN)
    phases = {key: case.phase for key, case in bench.decider.state.cases.items()}
    assert phases == {"E1": "Preparing", "E2": "Held"}


def test_a_chat_that_is_down_keeps_no_machine_from_coming_back() -> None:
    chat = {"notify": {"slack": "https://chat.example/x", "undo_body": "over"}}
    bench = Bench(rule(service("web"), chat))
    bench.see(event())
    bench.end("web")
    bench.end("notify")
    assert bench.see() == ["undo notify", "undo web"]
    bench.end("notify", ActionOutcome.FAILED)
    bench.end("web")
    assert bench.standing == ["notify"]
    assert status.word(bench.decider) == (AgentStatus.BACK, "")
    assert bench.let_pass(1) == ["undo notify"]


def test_a_chat_is_told_of_the_end_when_all_that_came_after_it_is_undone() -> None:
    chat = {"notify": {"slack": "https://chat.example/x", "undo_body": "over"}}
    bench = Bench(rule(chat, service("web")))
    bench.see(event())
    bench.end("notify")
    bench.end("web")
    assert bench.see() == ["undo web"]
    assert bench.end("web") == ["undo notify"]


def test_a_chat_that_does_not_answer_leaves_most_of_the_shortest_notice() -> None:
    bench = Bench(rule({"notify": {"slack": "https://chat.example/x"}}, {"ready": {}}))
    bench.see(PREEMPT)
    assert bench.let_pass(10) == ["stop notify"]
    assert bench.end("notify", ActionOutcome.CUT) == ["do ready"]
