"""What `agent explain` says becomes of a rule's actions, where all goes well."""

from typing import Any

import pytest

from agent.bench import MARGIN, command, event, rule, service
from forewarn.agent import decider
from forewarn.agent.decider import ActionForecast
from forewarn.agent.rules import ActionOutcome, Rule


def ready(seconds: float, **terms: Any) -> dict[str, Any]:
    return {"ready": {"wait_seconds": seconds, **terms}}


def forecast(taken: Rule, notice: float, *, started: bool = False) -> list[ActionForecast]:
    status, starts_by = ("Started", None) if started else ("Scheduled", notice)
    return decider.forecast(taken, event(status=status, starts_by=starts_by), MARGIN)


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
    assert [each.outcome for each in forecast(taken, notice)] == outcomes


def test_what_is_left_is_what_the_waits_leave() -> None:
    seen = forecast(rule(ready(20), service(), {"log": {}}), 25.0 + MARGIN)
    assert [each.left_seconds for each in seen] == [25.0, 5.0, 5.0]
    assert [each.limit_seconds for each in seen] == [25.0, 5.0, 60.0]
    skipped = forecast(rule(ready(20), service(needs_seconds=6), {"log": {}}), 25.0 + MARGIN)
    assert [each.left_seconds for each in skipped] == [25.0, 5.0, 5.0]


def test_an_event_that_has_started_has_no_time_limit_and_needs_a_rule_that_acts_then() -> None:
    seen = forecast(rule(ready(20), service(), even_if_started=True), 0.0, started=True)
    assert [each.outcome for each in seen] == [ActionOutcome.DONE, ActionOutcome.DONE]
    assert [each.limit_seconds for each in seen] == [60.0, 90.0]
    barred = forecast(rule({"log": {}}, service(), command("a")), 0.0, started=True)
    assert [each.outcome for each in barred] == [ActionOutcome.DONE, ActionOutcome.STARTED, None]


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
        ({"http": {"url": "http://x", "undo_body": "x"}}, False),
        ({"http": {"url": "http://x", "undo_url": "http://y"}}, True),
        ({"notify": {"urls_file": "f"}}, False),
        ({"log": {}}, True),
        ({"log": {"undo_message": ""}}, False),
    ],
)
def test_only_some_actions_have_something_to_undo(step: dict[str, Any], *, something: bool) -> None:
    assert rule(step).prepare[0].settings.undoes is something
