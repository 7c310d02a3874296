"""Who approves: the only machine of an event, or the first of them when all are prepared."""

import pytest

from agent.bench import ME, NOTICE, START, Bench, event, rule, service
from forewarn.agent import decider
from forewarn.agent.decider import (
    APPROVAL_SECONDS,
    NAME_SECONDS,
    PEERS_SECONDS,
    REFUSED_SECONDS,
    ApprovalAnswered,
    PeersAnswered,
)

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


def test_the_only_machine_of_an_event_has_nobody_to_ask() -> None:
    bench = prepared(ME, approve="when-all-ready")
    assert bench.end("web") == ["approve E1"]


def test_names_compare_without_case_and_without_the_previews_underscore() -> None:
    bench = prepared("_WEB-0", "_Web-1")
    assert bench.end("web") == ["ask web-1"]
    assert bench.hear("web-1") == ["approve E1"]


def test_an_approval_that_nobody_knows_the_fate_of_is_sent_again() -> None:
    bench = prepared(ME)
    bench.end("web")
    assert bench.answer(taken=None) == []
    assert bench.decider.wake_at == START + APPROVAL_SECONDS
    assert bench.let_pass(APPROVAL_SECONDS - 1) == []
    assert bench.let_pass(1) == ["approve E1"]


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


def test_an_answer_for_an_event_that_is_over_is_forgotten() -> None:
    bench = prepared(ME)
    bench.end("web")
    bench.see()
    assert bench.answer(taken=True) == []
    bench.end("web")
    assert bench.decider.state.idle


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
    bench = Bench(rule(service(), approve="never"))
    bench.see(event())
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
