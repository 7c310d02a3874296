"""What is foretold of a rule is what the decider then does, where all goes well."""

import random
from typing import Any

import pytest

from agent import bench as machines
from agent.bench import MARGIN, START, Bench, command, event, rule, service
from forewarn.agent import rules
from forewarn.agent.rules import ActionOutcome, Rule


def ready(seconds: float, **terms: Any) -> dict[str, Any]:
    return {"ready": {"wait_seconds": seconds, **terms}}


def happens(taken: Rule, notice: float, *, started: bool) -> tuple[list[ActionOutcome | None], str]:
    """Return what the decider does where each action ends at once, and a wait in its time."""
    bench = Bench(taken)
    status = "Started" if started else "Scheduled"
    bench.see(event(status=status, starts_by=START + notice))
    (case,) = bench.decider.state.cases.values()
    effects = bench.decider.state.effects
    while any(effect.busy for effect in effects.values()):
        (run,) = (r for r in bench.runs.values() if effects[r.effect].busy)
        named = machines.name(run.action)
        said = bench.wait(run.action.ready.wait_seconds) if run.action.ready is not None else []
        bench.end(named, ActionOutcome.CUT if f"stop {named}" in said else ActionOutcome.DONE)
    return case.results, case.phase


CASES = [
    ((ready(20), service()), 30.0, {}, [ActionOutcome.DONE, ActionOutcome.DONE]),
    ((ready(28), service()), 30.0, {}, [ActionOutcome.CUT, None]),
    (
        (ready(28), service()),
        30.0,
        {"when_cut": "approve"},
        [ActionOutcome.CUT, ActionOutcome.NO_TIME],
    ),
    ((ready(25),), 30.0, {}, [ActionOutcome.CUT]),
    (
        (ready(20), ready(20), service()),
        30.0,
        {},
        [ActionOutcome.DONE, ActionOutcome.SHARED, ActionOutcome.DONE],
    ),
    (
        (ready(20), service(needs_seconds=6)),
        30.0,
        {},
        [ActionOutcome.DONE, ActionOutcome.NO_TIME],
    ),
    (
        (command("a"), {"log": {}}),
        4.0,
        {"when_cut": "approve"},
        [ActionOutcome.NO_TIME, ActionOutcome.DONE],
    ),
    ((command("a"),), MARGIN + 0.5, {}, [ActionOutcome.DONE]),
    ((command("a"),), MARGIN, {}, [ActionOutcome.NO_TIME]),
    ((command("a", needs_seconds=6),), MARGIN + 6.0, {}, [ActionOutcome.DONE]),
    (({"log": {}}, command("a")), 4.0, {}, [ActionOutcome.DONE, ActionOutcome.NO_TIME]),
]


@pytest.mark.parametrize(("steps", "notice", "given", "outcomes"), CASES)
def test_the_waits_before_an_action_are_taken_from_its_time(
    steps: tuple[dict[str, Any], ...],
    notice: float,
    given: dict[str, Any],
    outcomes: list[ActionOutcome | None],
) -> None:
    taken = rule(*steps, **given)
    seen = rules.forecast(taken, notice - MARGIN, started=False)
    assert [each.outcome for each in seen.prospects] == outcomes
    assert happens(taken, notice, started=False)[0] == outcomes


def test_what_is_left_is_what_the_waits_leave() -> None:
    seen = rules.forecast(rule(ready(20), service(), {"log": {}}), 25.0, started=False)
    assert [each.left_seconds for each in seen.prospects] == [25.0, 5.0, 5.0]
    assert [each.limit_seconds for each in seen.prospects] == [25.0, 5.0, 60.0]


@pytest.mark.parametrize("seed", range(200))
def test_the_decider_does_what_was_foretold(seed: int) -> None:
    """The seed is in the test's name."""
    chance = random.Random(seed)
    kinds = [
        lambda: ready(chance.choice([5, 20, 40])),
        lambda: service(chance.choice("ab"), needs_seconds=chance.choice([0, 10, 30])),
        lambda: command(chance.choice("cd"), needs_seconds=chance.choice([0, 10])),
        lambda: {"log": {}},
    ]
    taken = rule(
        *(chance.choice(kinds)() for _ in range(chance.randint(1, 5))),
        when_cut=chance.choice(["hold", "approve"]),
        even_if_started=chance.random() < 0.3,
    )
    notice, started = chance.choice([3.0, 25.0, 30.0, 60.0, 900.0]), chance.random() < 0.3
    seen = rules.forecast(taken, notice - MARGIN, started=started)
    outcomes, phase = happens(taken, notice, started=started)
    assert [each.outcome for each in seen.prospects] == outcomes
    assert (seen.held_by is not None) is (phase == "Held")


@pytest.mark.parametrize(
    ("step", "something"),
    [
        (ready(1), True),
        (service(), True),
        ({"haproxy": {"socket": "/s", "server": "b/s"}}, True),
        (command("a"), True),
        ({"command": {"run": ["a"]}}, False),
        ({"signal": {"unit": "u"}}, False),
        ({"signal": {"unit": "u", "undo_signal": "SIGCONT"}}, True),
        ({"http": {"url": "http://x"}}, False),
        ({"http": {"url": "http://x", "undo_url": "http://y"}}, True),
        ({"notify": {"urls_file": "f"}}, False),
        ({"log": {}}, True),
        ({"log": {"undo_message": ""}}, False),
    ],
)
def test_only_some_actions_have_something_to_undo(step: dict[str, Any], *, something: bool) -> None:
    assert rules.undoes(rule(step).prepare[0].settings) is something
