"""The decider, case by case: prepare, approve, undo; two events at once, and the agent's end."""

import itertools
import re

import pytest

from agent.bench import ME, NOTICE, START, STOP, Bench, command, event, rule, seen, service
from forewarn.agent import decider, state
from forewarn.agent.decider import (
    APPROVAL_SECONDS,
    GRACE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    NAME_SECONDS,
    OTHERS_AT_ONCE,
    PEERS_SECONDS,
    REFUSED_SECONDS,
    ActionFinished,
    ApprovalAnswered,
    FactsFound,
    PeersAnswered,
    ProceedAction,
    ShutdownRequested,
    TimePassed,
)
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.state import ActionEnded, FactsNoted, Phase, PhaseTrigger
from house import tree

FAILED, DONE, CUT = ActionOutcome.FAILED, ActionOutcome.DONE, ActionOutcome.CUT


def results(bench: Bench) -> list[ActionOutcome | None]:
    (case,) = bench.decider.state.cases.values()
    return case.results


def test_a_rule_that_never_approves_prepares_and_undoes_all_the_same() -> None:
    bench = seen(service(), approve="never")
    assert bench.end("web") == []
    assert bench.phase == "Prepared"
    assert bench.see() == ["undo web"]


def test_at_once_waits_for_nothing() -> None:
    bench = Bench(rule({"log": {}}, approve="at-once"))
    assert bench.see(event(resources=("web-1", ME))) == ["do log", "approve E1"]
    assert bench.end("log", FAILED) == []
    assert bench.answer(taken=True) == []
    assert bench.phase == "Approved"


def test_an_event_is_nobodys_while_the_own_name_is_not_known() -> None:
    bench = Bench(rule(service()), me=None)
    assert bench.see(event(concerns_me=None)) == []
    assert bench.let_pass(NAME_SECONDS) == ["do log"]
    bench.me = ME
    assert bench.see(event()) == ["do web"]


# Failures.


def test_a_retry_that_does_not_fit_is_not_waited_for() -> None:
    bench = Bench(rule(service("web", retries=9, retry_seconds=10)))
    bench.see(event(starts_by=START + 15))
    bench.end("web", FAILED)
    assert results(bench) == [FAILED]


def test_undoing_is_tried_again_with_pauses_that_double_up_to_a_minute() -> None:
    bench = seen(service("web", retry_seconds=4, undo_retries=6))
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
    bench = seen({"ready": {}}, service("web", undo_retries=0, on_failure="continue"))
    bench.end("ready")
    bench.end("web")
    bench.see()
    assert bench.end("web", FAILED) == ["undo ready"]
    assert bench.standing == ["ready"]


def test_an_action_that_took_too_long_says_so() -> None:
    bench = seen(service(time_limit_seconds=90))
    assert bench.let_pass(90) == ["stop web"]
    bench.end("web", CUT)
    last = bench.journal[-1]
    assert isinstance(last, ActionEnded)
    assert last.text == "it took longer than 90 s; said so"


# Time


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
    bench = seen(service(time_limit_seconds=20), command("drain"))
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
    bench = seen(service("web"), command("drain"))
    bench.end("web")
    assert bench.see() == ["stop drain"]
    assert bench.end("drain", CUT) == ["undo drain"]
    assert bench.end("drain") == ["undo web"]


def test_an_event_that_has_started_has_no_notice_left() -> None:
    late = rule({"log": {}}, match={"max_notice_seconds": 0}, name="late", approve="never")
    bench = Bench(late, rule(match={"min_notice_seconds": 0.5}, approve="at-once"))
    assert bench.see(event(status="Started")) == ["do log"]
    assert bench.runs["log"].rule == "late"
    assert bench.see(event(status="Started"), event("E2")) == ["approve E2"]


def test_an_action_is_told_its_rule_and_the_event_as_it_is_now() -> None:
    bench = seen(service("web"), command("drain"), even_if_started=True)
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
    bench = seen({"log": {}}, {"log": {"message": "more"}}, approve="never")
    bench.end("log")
    more = bench.runs["log"]
    bench.reload(rule({"log": {}}, approve="never"))
    bench.tell(ActionFinished(more.run, DONE))
    assert results(bench) == [None]


OURS = (ME, "web-1", "web-2")


def prepared(*resources: str, approve: str = "when-prepared") -> Bench:
    bench = Bench(rule(service(), approve=approve))
    bench.see(event(resources=resources))
    return bench


def test_the_first_machine_asks_the_others_and_approves_when_all_are_prepared() -> None:
    bench = prepared(*OURS)
    assert bench.end("web") == ["ask web-1 web-2"]
    assert bench.hear("web-1") == []
    assert bench.decider.wake_at == START + PEERS_SECONDS
    assert bench.let_pass(PEERS_SECONDS) == ["ask web-1 web-2"]
    assert bench.hear("web-1", "web-2", "stranger") == ["approve E1"]
    assert bench.answer(taken=True) == []
    assert bench.let_pass(NOTICE) == []
    assert len(bench.approvals) == 1


def test_names_compare_without_case_and_without_the_previews_underscore() -> None:
    bench = prepared("_WEB-0", "_Web-1")
    assert bench.end("web") == ["ask web-1"]
    assert bench.hear("web-1") == ["approve E1"]


def test_peers_are_asked_again_before_an_approval_is_sent_again() -> None:
    bench = prepared(*OURS)
    bench.end("web")
    bench.hear("web-1", "web-2")
    bench.answer(taken=None)
    assert bench.let_pass(APPROVAL_SECONDS - 1) == []
    assert bench.let_pass(1) == ["ask web-1 web-2"], "and not before: what they said would be old"
    assert bench.hear("web-1", "web-2") == ["approve E1"]


@pytest.mark.parametrize("resources", [(ME,), OURS])
def test_an_approval_that_is_refused_is_sent_again_a_minute_later(
    resources: tuple[str, ...],
) -> None:
    """The endpoint may refuse for a while: 403 as long as nobody knows the machine's address."""
    bench = prepared(*resources)
    bench.end("web")
    others = resources[1:]
    if others:
        bench.hear(*others)
    assert bench.answer(taken=False) == []
    assert bench.phase == "Prepared"
    assert bench.let_pass(REFUSED_SECONDS - 1) == []
    assert bench.let_pass(1) == (["ask web-1 web-2"] if others else ["approve E1"])
    if others:
        assert bench.hear(*others) == ["approve E1"]
    bench.answer(taken=True)
    assert bench.phase == "Approved"


def test_a_name_that_is_learnt_late_makes_the_first_machine_the_first() -> None:
    bench = Bench(rule(approve="at-once", match={"machine": "any"}), me=None)
    assert bench.see(event(concerns_me=None)) == []
    assert bench.let_pass(NAME_SECONDS) == ["approve E1"]
    bench = prepared(*OURS)
    assert bench.end("web") == ["ask web-1 web-2"]
    bench.me = None
    bench.start()
    assert bench.see(event(concerns_me=None, resources=OURS)) == []
    bench.me = ME
    assert bench.see(event(resources=OURS)) == ["ask web-1 web-2"]


def test_a_peer_agrees_when_it_is_prepared_and_its_rule_approves_at_all() -> None:
    bench = prepared("web-1", ME)
    (case,) = bench.decider.state.cases.values()
    assert not decider.agrees(case)
    bench.end("web")
    assert decider.agrees(case)
    bench = seen(service(), approve="never")
    bench.end("web")
    (case,) = bench.decider.state.cases.values()
    assert case.phase == "Prepared"
    assert not decider.agrees(case)


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


SECOND = event("E2", event_type="Redeploy")
PREEMPT = event("E2", event_type="Preempt", starts_by=START + 30)


def test_an_event_that_supersedes_another_takes_over_what_stands() -> None:
    bench = seen(service())
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
    bench = seen(service())
    assert bench.see(event(), PREEMPT) == []
    assert bench.let_pass(25) == []
    second = bench.decider.state.cases["E2"]
    assert second.results == [ActionOutcome.NO_TIME]
    assert bench.end("web") == ["approve E1"]


def test_an_undo_that_may_not_be_repeated_is_waited_for_until_the_notice_is_over() -> None:
    bench = seen(command("drain"))
    bench.end("drain")
    bench.see()
    bench.see(PREEMPT)
    assert bench.let_pass(25) == []
    assert bench.decider.state.cases["E2"].results == [ActionOutcome.NO_TIME]


def test_an_undo_that_may_be_repeated_gives_way_to_an_event_that_needs_the_action() -> None:
    bench = seen(service(undo_retries=0))
    bench.find("web", active=True)
    bench.end("web")
    assert bench.see() == ["undo web"]
    assert bench.see(PREEMPT) == ["stop web"]
    assert bench.end("web", ActionOutcome.CUT) == ["do web"]
    assert bench.end("web") == ["approve E2"]
    assert bench.see() == ["undo web"]
    assert bench.runs["web"].facts == {"active": True}


def test_an_undo_that_gave_way_in_vain_goes_on() -> None:
    bench = seen(service(undo_retries=0))
    bench.end("web")
    assert bench.see() == ["undo web"]
    assert bench.see(PREEMPT) == ["stop web"]
    assert bench.see() == []
    assert bench.end("web", CUT) == []
    assert bench.let_pass(LONGEST_PAUSE_SECONDS) == ["undo web"]


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


def test_an_action_is_let_go_on_by_its_own_number_once_its_note_is_written() -> None:
    bench = seen(service("web"), command("drain"))
    run = bench.runs["web"]
    (written, proceed) = bench.decider.handle(FactsFound(run.run, {"was": "active"}), bench.now)
    assert isinstance(written, FactsNoted)
    assert proceed == ProceedAction(run.run)
    assert run.effect == written.effect


@pytest.mark.parametrize(("repeatable", "said"), [(True, ["do drain"]), (False, [])])
@pytest.mark.parametrize("ends", [True, False])
def test_an_action_that_goes_on_too_long_is_interrupted(
    repeatable: bool, ends: bool, said: list[str]
) -> None:
    bench = seen(command("drain", repeatable=repeatable, time_limit_seconds=300))
    bench.tell(ShutdownRequested())
    assert bench.let_pass(STOP - 1) == []
    bench.tell(ShutdownRequested())  # told with each input
    assert bench.let_pass(1) == ["stop drain"]
    if ends:
        bench.end("drain", ActionOutcome.CUT)
    else:
        bench.let_pass(GRACE_SECONDS)
    assert not bench.decider.busy
    bench.start()
    assert bench.see(event()) == said


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
