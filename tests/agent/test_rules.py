"""Which rule takes an event, and which settings of rules go together."""

import re
import tomllib
from typing import Any

import msgspec
import pytest

import stories
from agent.bench import event, rule
from forewarn.agent import rules
from forewarn.agent.rules import (
    COMMAND_LENGTH,
    CommandSettings,
    HttpSettings,
    RuleAction,
    action_name,
    needs_posix,
)

TABLE = re.compile(r"(\{.*\}) ?(.*)")
CONCERNS = {"me": True, "others": False, "nobody": None}


def said(told: str) -> str | bool:
    """Return what is so by a line of rules.txt."""
    kind, _, rest = told.partition(" ")
    settings, facts = TABLE.fullmatch(rest).groups()  # type: ignore[union-attr]
    terms = tomllib.loads(f"terms = {settings}")["terms"]
    if kind == "match":
        return is_taken(terms, dict(fact.split("=") for fact in facts.split()))
    if kind == "json":
        body = terms.pop("body")
        return msgspec.convert({"url": "http://a", **terms}, HttpSettings).is_json(body)
    step = msgspec.convert(terms, RuleAction)
    if kind == "named":
        return action_name(step)
    return step.settings.undoes if kind == "undoes" else not needs_posix(step)


def is_taken(match: dict[str, Any], facts: dict[str, str]) -> bool:
    """Return whether a rule takes an event of these facts."""
    notice = facts.get("notice", "900")
    seen = event(
        description="Virtual machine is being paused because of a Live Migration.",
        duration_seconds=int(facts.get("duration", "-1")),
        concerns_me=CONCERNS[facts.get("concerns", "me")],
        source=facts.get("source", "Platform") or None,
    )
    wanted = rule(match=match, approve="never")
    return rules.matches(wanted, seen, float(notice) if notice else None)


def test_a_rule_takes_what_it_asks_for_and_an_action_is_what_its_settings_say() -> None:
    for told, expected in stories.lines_beside(__file__, "rules.txt"):
        found = said(told)
        assert found == {"yes": True, "no": False}.get(expected, expected), told


def test_the_first_rule_that_matches_takes_the_event() -> None:
    first, second = rule(name="first"), rule(name="second")
    assert rules.choose((first, second), event(), 900.0) is first
    dropped = rule(name="first", enabled=False)
    assert rules.choose((dropped, second), event(), 900.0) is second


def test_the_last_rule_writes_a_line_and_approves_nothing() -> None:
    for seen in (event(event_type="Freeze"), event(concerns_me=None), event(event_type="New")):
        assert rules.choose((), seen, None) is rules.BUILT_IN
    assert rules.BUILT_IN.approve == "never"
    assert not rules.BUILT_IN.acts
    assert [step.kind for step in rules.BUILT_IN.prepare] == ["log"]


def test_a_rule_acts_that_prepares_or_approves() -> None:
    assert rule(approve="at-once").acts
    assert rule({"ready": {}}, approve="never").acts
    assert not rule({"log": {}}, approve="never").acts
    assert not rule(approve="never").acts


def test_the_choice_may_change_where_the_notice_passes_a_border() -> None:
    borders = (
        rule(match={"min_notice_seconds": 600, "max_notice_seconds": 800}),
        rule(match={"max_notice_seconds": 120}),
        rule(match={"max_notice_seconds": 850}, enabled=False),
    )
    assert rules.next_change_seconds(borders, 900.0) == 100
    assert rules.next_change_seconds(borders, 800.0) == 200
    assert rules.next_change_seconds(borders, 120.0) is None
    assert rules.next_change_seconds(borders, None) is None
    assert rules.next_change_seconds((), 900.0) is None


@pytest.mark.parametrize(
    ("length", "cut"), [(COMMAND_LENGTH, False), (COMMAND_LENGTH + 1, True), (4000, True)]
)
def test_a_long_program_is_cut_to_a_lines_length(length: int, *, cut: bool) -> None:
    program = "a" * length
    shown = action_name(RuleAction(command=CommandSettings(run=(program,))))
    assert shown.removeprefix("command ") == (
        f"{program[: COMMAND_LENGTH - 1]}\N{HORIZONTAL ELLIPSIS}" if cut else program
    )
