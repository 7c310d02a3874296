"""Which rule takes an event, and which settings of rules go together."""

from typing import Any

import pytest

from agent.bench import command, event, rule, service
from forewarn.agent import rules
from forewarn.agent.rules import (
    COMMAND_LENGTH,
    CommandSettings,
    HaproxySettings,
    HttpSettings,
    LogSettings,
    ReadySettings,
    RuleAction,
    ServiceSettings,
    SignalSettings,
    action_name,
    needs_posix,
)
from forewarn.client.event import Event


def taken(match: dict[str, object], seen: Event, notice: float | None = 900.0) -> bool:
    return rules.matches(rule(match=match, approve="never"), seen, notice)


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ({}, True),
        ({"types": ["Freeze", "Reboot"]}, True),
        ({"types": ["Freeze"]}, False),
        ({"sources": ["Platform"]}, True),
        ({"sources": ["User"]}, False),
        ({"status": ["Scheduled"]}, True),
        ({"status": ["Started"]}, False),
        ({"types": ["Reboot"], "sources": ["User"]}, False),
        ({"description": "*live migration*"}, True),
        ({"description": "live migration"}, False),
        ({"description": "virtual MACHINE is being [a-z]*"}, True),
        ({"machine": "others"}, False),
        ({"machine": "any"}, True),
        ({"min_notice_seconds": 899}, True),
        ({"min_notice_seconds": 900}, False),
        ({"max_notice_seconds": 900}, True),
        ({"max_notice_seconds": 899}, False),
    ],
)
def test_every_condition_that_is_given_must_hold(match: dict[str, object], expected: bool) -> None:
    seen = event(description="Virtual machine is being paused because of a Live Migration.")
    assert taken(match, seen) is expected


@pytest.mark.parametrize(
    ("duration", "most", "expected"),
    [(5, 10, True), (10, 10, True), (11, 10, False), (0, 0, True), (-1, 10, False), (-7, 9, False)],
)
def test_a_duration_that_is_unknown_is_never_short(
    duration: int, most: int, expected: bool
) -> None:
    assert taken({"max_duration_seconds": most}, event(duration_seconds=duration)) is expected


@pytest.mark.parametrize(
    ("concerns_me", "mine", "others"),
    [(True, True, False), (False, False, True), (None, False, False)],
)
def test_an_event_is_nobodys_while_the_own_name_is_unknown(
    concerns_me: bool | None, mine: bool, others: bool
) -> None:
    seen = event(concerns_me=concerns_me)
    assert taken({"machine": "mine"}, seen) is mine
    assert taken({"machine": "others"}, seen) is others
    assert taken({"machine": "any"}, seen)


def test_notice_that_nobody_knows_is_neither_long_nor_short() -> None:
    assert not taken({"min_notice_seconds": 0}, event(), None)
    assert not taken({"max_notice_seconds": 9999}, event(), None)


def test_an_event_without_a_source_is_of_none() -> None:
    assert not taken({"sources": ["User", "Platform"]}, event(source=None))


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


# What the settings of actions say of them; what they refuse is in settings.txt.

A = "https://example.org/a"


@pytest.mark.parametrize(
    ("body", "content_type", "is_json"),
    [
        ({"a": 1}, "text/plain", True),
        ('{"a": "$machine"}', None, True),
        (' ["$machine"]', None, True),
        ("{$machine}", None, False),
        ("5", None, False),
        ('"$machine"', None, False),
        ("$machine", "application/json", True),
        ("$machine", " Application/JSON ; charset=utf-8", True),
        ("$machine", "application/problem+json", True),
        ('{"a": 1}', "text/plain", False),
    ],
)
def test_whether_a_body_is_json_says_its_type_or_the_body_itself(
    body: str | dict[str, Any], content_type: str | None, *, is_json: bool
) -> None:
    headers = {} if content_type is None else {"X-Other": "a", "Content-TYPE": content_type}
    settings = HttpSettings(url=A, headers=headers)
    assert settings.is_json(body) is is_json


@pytest.mark.parametrize(
    ("length", "cut"), [(COMMAND_LENGTH, False), (COMMAND_LENGTH + 1, True), (4000, True)]
)
def test_a_long_program_is_cut_to_a_lines_length(length: int, *, cut: bool) -> None:
    program = "a" * length
    shown = action_name(RuleAction(command=CommandSettings(run=(program,))))
    assert shown.removeprefix("command ") == (
        f"{program[: COMMAND_LENGTH - 1]}\N{HORIZONTAL ELLIPSIS}" if cut else program
    )


def test_an_action_is_named_by_what_it_does_or_by_its_kind() -> None:
    assert action_name(RuleAction(log=LogSettings())) == "log"
    assert action_name(RuleAction(service=ServiceSettings(stop="a"))) == "service stop a"
    assert action_name(RuleAction(http=HttpSettings(url=A, method="PUT"))) == f"http PUT {A}"


@pytest.mark.parametrize(
    ("action", "possible"),
    [
        (RuleAction(service=ServiceSettings(stop="a")), False),
        (RuleAction(signal=SignalSettings(unit="a")), False),
        (RuleAction(haproxy=HaproxySettings(socket="/run/a", server="b/c")), False),
        (RuleAction(haproxy=HaproxySettings(socket="[::1]:99", server="b/c")), True),
        (RuleAction(ready=ReadySettings()), True),
    ],
)
def test_what_windows_cannot_do_says_why(action: RuleAction, *, possible: bool) -> None:
    assert bool(needs_posix(action)) is not possible


@pytest.mark.parametrize(
    ("step", "something"),
    [
        ({"ready": {"wait_seconds": 1}}, True),
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
