"""An agent that is to end, and one with nothing more to do: neither waits for what never comes."""

import pytest

from agent.bench import STOP, Bench, command, event, rule, service
from forewarn.agent.decider import GRACE_SECONDS, ShutdownRequested
from forewarn.agent.rules import ActionOutcome

FAILED = ActionOutcome.FAILED


def test_an_agent_that_is_to_end_waits_for_no_retry() -> None:
    bench = Bench(rule(service("web", retries=3, retry_seconds=60)))
    bench.see(event())
    bench.end("web", FAILED)
    assert bench.decider.busy
    assert bench.tell(ShutdownRequested()) == []
    assert not bench.decider.busy
    bench.start()
    assert bench.see(event()) == ["do web"]


def test_an_agent_that_is_to_end_waits_for_no_retry_of_undoing() -> None:
    bench = Bench(rule(service("web"), approve="never"))
    bench.see(event())
    bench.end("web")
    bench.see()
    bench.end("web", FAILED)
    assert bench.decider.busy
    bench.tell(ShutdownRequested())
    assert not bench.decider.busy
    bench.start()
    assert bench.see() == ["undo web"]


def test_what_failed_while_it_was_to_end_is_not_waited_for() -> None:
    bench = Bench(rule(service("web", retries=3, retry_seconds=60)))
    bench.see(event())
    bench.tell(ShutdownRequested())
    bench.end("web", FAILED)
    assert not bench.decider.busy


def test_an_answer_is_waited_for_by_an_agent_that_is_to_end() -> None:
    bench = Bench(rule(service()))
    bench.see(event())
    bench.end("web")
    bench.tell(ShutdownRequested())
    assert bench.decider.busy
    bench.answer(taken=True)
    assert not bench.decider.busy
    assert bench.phase == "Approved"


def test_a_retry_for_an_event_that_is_over_is_forgotten() -> None:
    bench = Bench(rule(service("web", retries=1, retry_seconds=60)))
    bench.see(event())
    bench.end("web", FAILED)
    assert bench.see() == ["undo web"]
    bench.end("web")
    assert bench.decider.state.idle
    assert not bench.decider.busy
    assert bench.decider.wake_at is None


def test_a_retry_that_no_event_waits_for_keeps_nobody_from_ending() -> None:
    """The notice passes while the retry waits: it is passed over."""
    bench = Bench(rule(service("web", retries=1, retry_seconds=60), command("drain")))
    bench.see(event(starts_by=bench.now + 80))
    bench.end("web", FAILED)
    bench.see(event(starts_by=bench.now + 20))  # an operator moved it
    bench.let_pass(70)
    assert bench.phase == "Held"
    assert not bench.decider.busy


def test_a_retry_of_undoing_that_an_event_takes_over_is_forgotten() -> None:
    bench = Bench(rule(service("web"), approve="never"))
    bench.see(event())
    bench.end("web")
    bench.see()
    bench.end("web", FAILED)
    assert bench.see(event("E2")) == ["do web"]
    bench.end("web")
    assert not bench.decider.busy
    assert bench.see() == ["undo web"]


@pytest.mark.parametrize(("repeatable", "said"), [(True, ["do drain"]), (False, [])])
@pytest.mark.parametrize("ends", [True, False])
def test_an_action_that_goes_on_too_long_is_interrupted(
    repeatable: bool, ends: bool, said: list[str]
) -> None:
    bench = Bench(rule(command("drain", repeatable=repeatable, time_limit_seconds=300)))
    bench.see(event())
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


def test_what_ends_in_time_though_it_was_stopped_is_done() -> None:
    bench = Bench(rule(command("drain", time_limit_seconds=300)))
    bench.see(event())
    bench.tell(ShutdownRequested())
    bench.let_pass(STOP)
    bench.end("drain")
    bench.start()
    assert bench.see(event()) == ["approve E1"]
