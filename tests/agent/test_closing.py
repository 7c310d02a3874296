"""An agent that is to end, and one with nothing more to do: neither waits for what never comes."""

import pytest

from agent.bench import STOP, Bench, command, event, rule
from forewarn.agent.decider import GRACE_SECONDS, ShutdownRequested
from forewarn.agent.rules import ActionOutcome

FAILED = ActionOutcome.FAILED


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
