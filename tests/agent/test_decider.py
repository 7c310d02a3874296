"""The decider, case by case: prepare, approve, undo."""

from agent.bench import ME, NOTICE, START, Bench, command, event, rule, service
from forewarn.agent import state
from forewarn.agent.decider import (
    GRACE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    NAME_SECONDS,
    ActionFinished,
    ShutdownRequested,
    TimePassed,
)
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import ActionEnded, FactsNoted

FAILED, DONE, CUT = ActionOutcome.FAILED, ActionOutcome.DONE, ActionOutcome.CUT


def results(bench: Bench) -> list[ActionOutcome | None]:
    (case,) = bench.decider.state.cases.values()
    return case.results


def test_actions_are_done_one_after_the_other_and_then_it_approves() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    assert bench.see(event()) == ["do web"]
    assert bench.tell(TimePassed()) == []
    assert bench.end("web") == ["do drain"]
    assert bench.phase == "Preparing"
    assert bench.end("drain") == ["approve E1"]
    assert bench.phase == "Prepared"
    assert bench.answer(taken=True) == []
    assert bench.phase == "Approved"
    assert bench.decider.wake_at is None


def test_what_was_done_is_undone_last_first_when_the_event_is_gone() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    bench.end("web")
    bench.end("drain")
    assert bench.see() == ["undo drain"]
    assert bench.end("drain") == ["undo web"]
    assert bench.end("web") == []
    assert bench.decider.state.idle


def test_a_rule_that_never_approves_prepares_and_undoes_all_the_same() -> None:
    bench = Bench(rule(service(), approve="never"))
    bench.see(event())
    assert bench.end("web") == []
    assert bench.phase == "Prepared"
    assert bench.see() == ["undo web"]


def test_at_once_waits_for_nothing() -> None:
    bench = Bench(rule({"log": {}}, approve="at-once"))
    assert bench.see(event(resources=("web-1", ME))) == ["do log", "approve E1"]
    assert bench.end("log", FAILED) == []
    assert bench.answer(taken=True) == []
    assert bench.phase == "Approved"


def test_no_rule_means_a_line_and_no_approval() -> None:
    bench = Bench()
    assert bench.see(event(event_type="Freeze")) == ["do log"]
    assert bench.end("log") == []
    assert bench.phase == "Seen"
    assert bench.see() == ["undo log"]
    bench.end("log")
    assert bench.decider.state.idle


def test_another_machines_event_is_nobodys_business_unless_a_rule_says_so() -> None:
    other = event(resources=("web-1",))
    assert Bench(rule(service())).see(other) == ["do log"]
    watchman = rule(service(), match={"machine": "others"}, approve="never")
    assert Bench(watchman).see(other) == ["do web"]


def test_an_event_is_nobodys_while_the_own_name_is_not_known() -> None:
    bench = Bench(rule(service()), me=None)
    assert bench.see(event(concerns_me=None)) == []
    assert bench.let_pass(NAME_SECONDS) == ["do log"]
    bench.me = ME
    assert bench.see(event()) == ["do web"]


# Failures


def test_a_failure_holds_what_is_left_and_the_approval() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    assert bench.end("web", FAILED) == []
    assert bench.phase == "Held"
    assert bench.let_pass(NOTICE) == []
    assert bench.see() == ["undo web"]  # it may be half done


def test_a_retry_that_does_not_fit_is_not_waited_for() -> None:
    bench = Bench(rule(service("web", retries=9, retry_seconds=10)))
    bench.see(event(starts_by=START + 15))
    bench.end("web", FAILED)
    assert results(bench) == [FAILED]


def test_undoing_is_tried_again_with_pauses_that_double_up_to_a_minute() -> None:
    bench = Bench(rule(service("web", retry_seconds=4, undo_retries=6)))
    bench.see(event())
    bench.end("web")
    bench.see()
    waited = []
    for _ in range(6):
        bench.end("web", FAILED)
        assert bench.decider.wake_at is not None
        waited.append(bench.decider.wake_at - bench.now)
        assert bench.let_pass(waited[-1] - 1) == []
        assert bench.let_pass(1) == ["undo web"]
    assert waited == [4, 8, 16, 32, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]
    assert bench.runs["web"].attempt == 7
    bench.end("web", FAILED)
    assert bench.decider.wake_at is None
    assert bench.standing == ["web"]


def test_what_need_not_be_undone_lets_the_rest_be_undone() -> None:
    bench = Bench(rule({"ready": {}}, service("web", undo_retries=0, on_failure="continue")))
    bench.see(event())
    bench.end("ready")
    bench.end("web")
    bench.see()
    assert bench.end("web", FAILED) == ["undo ready"]
    assert bench.standing == ["ready"]


def test_an_action_that_took_too_long_says_so() -> None:
    bench = Bench(rule(service(time_limit_seconds=90)))
    bench.see(event())
    assert bench.let_pass(90) == ["stop web"]
    bench.end("web", CUT)
    last = bench.journal[-1]
    assert isinstance(last, ActionEnded)
    assert last.text == "it took longer than 90 s; said so"


# Time


def test_what_does_not_fit_is_cut_and_nothing_is_approved() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event(starts_by=START + 30))
    assert bench.runs["web"].until == START + 25
    assert bench.let_pass(24) == []
    assert bench.let_pass(1) == ["stop web"]
    assert bench.end("web", CUT) == []
    assert results(bench) == [CUT, None]
    assert bench.phase == "Held"


def test_an_action_that_needs_more_than_is_left_is_not_begun() -> None:
    long, short = command("long", needs_seconds=60), command("short", needs_seconds=25)
    bench = Bench(rule(long, short, when_cut="approve"))
    assert bench.see(event(starts_by=START + 30)) == ["do short"]
    assert bench.end("short") == ["approve E1"]
    assert results(bench) == [ActionOutcome.NO_TIME, DONE]


def test_each_retry_has_the_whole_limit_within_the_notice() -> None:
    bench = Bench(rule(service(time_limit_seconds=20, retries=2, retry_seconds=1)))
    bench.see(event(starts_by=START + 60))
    assert bench.let_pass(20) == ["stop web"]
    bench.end("web", CUT)
    assert bench.let_pass(1) == ["do web"]
    assert bench.runs["web"].until == START + 41
    assert bench.let_pass(20) == ["stop web"]
    bench.end("web", CUT)
    assert bench.let_pass(1) == ["do web"]
    assert bench.runs["web"].until == START + 55  # the notice, less the margin
    assert bench.let_pass(13) == ["stop web"]
    bench.end("web", CUT)
    assert results(bench) == [CUT]


def test_an_action_that_never_ends_is_waited_for_no_more() -> None:
    bench = Bench(rule(service(time_limit_seconds=20), command("drain")))
    bench.see(event())
    bench.let_pass(20)
    assert bench.let_pass(GRACE_SECONDS - 1) == []
    assert bench.let_pass(1) == []
    assert results(bench) == [FAILED, None]
    assert bench.end("web") == []  # too late: it says nothing any more
    assert bench.phase == "Held"


HUNG = {"url": "http://lb.example/x", "on_failure": "continue", "retries": 0}


def test_an_action_that_hangs_in_the_system_takes_nothing_of_the_next_ones_notice() -> None:
    """A name server, a file server, a disk: the thread that hangs there is left behind."""
    bench = Bench(rule({"http": HUNG | {"time_limit_seconds": 10}}, command("drain")))
    bench.see(event(starts_by=START + 30))
    bench.let_pass(10)
    assert bench.let_pass(1) == ["do drain"]


def test_undoing_has_the_actions_own_limit_and_no_deadline() -> None:
    bench = Bench(rule(service(time_limit_seconds=20)))
    bench.see(event())
    bench.end("web")
    assert bench.see() == ["undo web"]
    assert bench.runs["web"].until == START + 20
    assert bench.let_pass(19) == []
    assert bench.let_pass(1) == ["stop web"]
    assert bench.end("web", CUT) == []
    assert bench.let_pass(1) == ["undo web"]


def test_what_is_under_way_when_an_event_starts_keeps_its_deadline() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event(starts_by=START + 30))
    bench.let_pass(10)
    assert bench.see(event(status="Started")) == []
    assert bench.let_pass(14) == []
    assert bench.let_pass(1) == ["stop web"]
    bench.end("web")
    assert results(bench) == [DONE, ActionOutcome.STARTED]


def test_a_cancelled_event_ends_what_is_under_way_and_undoes_it() -> None:
    bench = Bench(rule(service("web"), command("drain")))
    bench.see(event())
    bench.end("web")
    assert bench.see() == ["stop drain"]
    assert bench.end("drain", CUT) == ["undo drain"]
    assert bench.end("drain") == ["undo web"]


def test_an_agent_that_is_to_end_finishes_what_is_under_way_and_begins_nothing() -> None:
    bench = Bench(rule(service("web", time_limit_seconds=20), command("drain")))
    bench.see(event())
    assert bench.tell(ShutdownRequested()) == []
    assert bench.decider.busy
    assert bench.let_pass(20) == ["stop web"]
    assert bench.end("web") == []
    assert not bench.decider.busy
    bench.start()
    assert bench.see(event()) == ["do drain"]


def test_an_event_that_has_started_has_no_notice_left() -> None:
    late = rule({"log": {}}, match={"max_notice_seconds": 0}, name="late", approve="never")
    bench = Bench(late, rule(match={"min_notice_seconds": 0.5}, approve="at-once"))
    assert bench.see(event(status="Started")) == ["do log"]
    assert bench.runs["log"].rule == "late"
    assert bench.see(event(status="Started"), event("E2")) == ["approve E2"]


def test_an_action_is_told_its_rule_and_the_event_as_it_is_now() -> None:
    bench = Bench(rule(service("web"), command("drain"), even_if_started=True))
    bench.see(event())
    bench.see(event(status="Started"))
    bench.end("web")
    assert bench.runs["drain"].rule == "r"
    assert bench.runs["drain"].event.status == "Started"
    bench.find("drain", was=1)
    noted = bench.journal[-1]
    assert isinstance(noted, FactsNoted)
    assert noted.facts == {"was": 1}


# Rules that wait


def test_a_rule_for_little_notice_takes_the_event_when_it_is_so() -> None:
    near = rule(service(), match={"max_notice_seconds": 120})
    bench = Bench(near)
    assert bench.see(event()) == ["do log"]
    bench.end("log")
    assert bench.decider.wake_at == START + NOTICE - 120
    assert bench.let_pass(NOTICE - 121) == []
    assert bench.let_pass(1) == ["do web"]
    assert bench.end("web") == ["approve E1"]
    assert bench.see() == ["undo web"]
    assert bench.end("web") == ["undo log"]


# events that come before the machine knows its own name
ANYBODYS = rule(service(), name="anybody's", match={"machine": "any"}, approve="never")


def test_an_event_of_unknown_machines_keeps_no_other_waiting() -> None:
    bench = Bench(rule(command("drain")), ANYBODYS, me=None)
    assert bench.see(event("E1", concerns_me=None), event("E2")) == ["do drain"]


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
    bench = Bench(rule({"log": {}}, {"log": {"message": "more"}}, approve="never"))
    bench.see(event())
    bench.end("log")
    more = bench.runs["log"]
    bench.reload(rule({"log": {}}, approve="never"))
    bench.tell(ActionFinished(more.run, DONE))
    assert results(bench) == [None]


def test_a_rule_for_little_notice_takes_no_event_whose_notice_nobody_knows() -> None:
    late = rule(command("drain"), match={"max_notice_seconds": 600})
    assert Bench(late).see(event(starts_by=None)) == ["do log"]
