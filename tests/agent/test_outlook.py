"""What is foretold of a rule is what the decider then does, where all goes well."""

import random
from typing import Any

import pytest

from agent import bench as machines
from agent.bench import MARGIN, START, Bench, command, event, rule, service
from forewarn.agent import outlook
from forewarn.agent.outlook import Fate
from forewarn.agent.records import Outcome
from forewarn.agent.rules import Rule

OUTCOMES = {
    Outcome.DONE: Fate.DONE,
    Outcome.CUT: Fate.CUT,
    Outcome.NO_TIME: Fate.NO_TIME,
    Outcome.STARTED: Fate.STARTED,
    Outcome.SHARED: Fate.SHARED,
    None: Fate.HELD,
}


def ready(seconds: float, **terms: Any) -> dict[str, Any]:
    return {"ready": {"wait_seconds": seconds, **terms}}


def happens(taken: Rule, notice: float, *, started: bool) -> tuple[list[Fate], str]:
    """Return what the decider does where each action ends at once, and a wait in its time."""
    bench = Bench(taken)
    status = "Started" if started else "Scheduled"
    bench.see(event(status=status, starts_by=START + notice))
    (case,) = bench.machine.ledger.cases.values()
    effects = bench.machine.ledger.effects
    while any(effect.busy for effect in effects.values()):
        (run,) = (r for r in bench.runs.values() if effects[r.effect].busy)
        named = machines.name(run.step)
        said = bench.wait(run.step.ready.wait_seconds) if run.step.ready is not None else []
        bench.end(named, Outcome.CUT if f"stop {named}" in said else Outcome.DONE)
    return [OUTCOMES[result] for result in case.results], case.phase


CASES = [
    ((ready(20), service()), 30.0, {}, [Fate.DONE, Fate.DONE]),
    ((ready(28), service()), 30.0, {}, [Fate.CUT, Fate.HELD]),
    ((ready(28), service()), 30.0, {"when_cut": "approve"}, [Fate.CUT, Fate.NO_TIME]),
    ((ready(25),), 30.0, {}, [Fate.CUT]),
    ((ready(20), ready(20), service()), 30.0, {}, [Fate.DONE, Fate.SHARED, Fate.DONE]),
    ((ready(20), service(needs_seconds=6)), 30.0, {}, [Fate.DONE, Fate.NO_TIME]),
    ((command("a"), {"log": {}}), 4.0, {"when_cut": "approve"}, [Fate.NO_TIME, Fate.DONE]),
    (({"log": {}}, command("a")), 4.0, {}, [Fate.DONE, Fate.NO_TIME]),
]


@pytest.mark.parametrize(("steps", "notice", "given", "fates"), CASES)
def test_the_waits_before_an_action_are_taken_from_its_time(
    steps: tuple[dict[str, Any], ...], notice: float, given: dict[str, Any], fates: list[Fate]
) -> None:
    taken = rule(*steps, **given)
    seen = outlook.foretell(taken, notice - MARGIN, started=False)
    assert [each.fate for each in seen.prospects] == fates
    assert happens(taken, notice, started=False)[0] == fates


def test_what_is_left_is_what_the_waits_leave() -> None:
    seen = outlook.foretell(rule(ready(20), service(), {"log": {}}), 25.0, started=False)
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
    seen = outlook.foretell(taken, notice - MARGIN, started=started)
    fates, phase = happens(taken, notice, started=started)
    assert [each.fate for each in seen.prospects] == fates
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
    assert outlook.undoes(rule(step).prepare[0].terms) is something
