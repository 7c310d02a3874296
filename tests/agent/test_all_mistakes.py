"""Settings with several mistakes: all of them are told at once, in their order, and no others."""

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies

from forewarn import configuration
from forewarn.agent import __main__ as program
from forewarn.agent import settings
from forewarn.agent.rules import Rule
from forewarn.cli import main
from forewarn.cli.exits import ExitStatus
from forewarn.configuration import MAX_MISTAKES, SettingsError
from forewarn.server import settings as service

WRONG = """
margin_seconds = "long"
peers = ["http://a:1", "b:2", "c:3"]

[status]
listen = "8171"
lisen = "x"

[[rule]]
name = "one"
approve = "soon"
prepare = [
  { service = { sotp = "a" } },
  { service = { stop = "a" }, ready = {} },
  { command = { run = [] } },
  { signal = { unit = "u", signal = "term" } },
]

[[rule]]
approve = "at-once"
prepare = [ { service = { stop = "a" } } ]

[[rule]]
name = "one"
match = { machine = "others", min_notice_seconds = 9, max_notice_seconds = 9 }
approve = "when-prepared"
"""

SAID = [
    "at margin_seconds: Expected `number`",
    "at peers[1]: 'b:2' is no agent's address",
    "at peers[2]: 'c:3' is no agent's address",
    "there is no setting status.lisen; did you mean status.listen?",
    "at rule[0].approve: Invalid enum value 'soon'",
    "there is no setting rule[0].prepare[0].service.sotp",
    "at rule[0].prepare[1]: an action has one kind",
    "at rule[0].prepare[2].command.run: give the program",
    "at rule[0].prepare[3].signal.signal: 'term' is no signal's name",
    "at rule[1]: Object missing required field `name`",
    "at rule[2].name: 'one' is the name of another rule",
    "at rule[2].match: no event has more than",
    "at rule[2].approve: 'when-prepared' is decided by",
]
"""How each begins. Of `[status]` and the second rule only the types are told: what they come to is
not known while those are wrong."""


NO_LIMIT = "0 is not more than 0 and at most 2**31"


def write(folder: Path, text: str, *drop_ins: str) -> Path:
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    (folder / "agent.d").mkdir(exist_ok=True)
    for number, drop_in in enumerate(drop_ins):
        (folder / "agent.d" / f"{number}.toml").write_text(drop_in, encoding="utf-8")
    return path


def mistakes(path: Path, **environment: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as refused:
        settings.load(path, environment)
    return refused.value.mistakes


def test_every_mistake_of_a_file_is_told_in_its_order(tmp_path: Path) -> None:
    path = write(tmp_path, WRONG)
    found = mistakes(path)
    assert len(found) == len(SAID)
    for told, said in zip(found, SAID, strict=True):
        assert told.startswith(f"{path}: {said}")


def test_each_file_and_each_variable_is_blamed_for_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, "peers = 3\n", "[status\n", "[[rule]]\nname = ''\n", "")
    found = mistakes(
        path,
        FOREWARN_AGENT_SET_PEERS="http://x",
        FOREWARN_AGENT_SET_STATUS__LISTEN="8171",
        FOREWARN_AGENT_SET_STATUS__LISEN="8171",
    )
    assert [told.replace(str(tmp_path), "").partition(": ")[0] for told in found] == [
        "/agent.toml",
        "/agent.d/0.toml is no TOML",
        "/agent.d/1.toml",
        "FOREWARN_AGENT_SET_PEERS",
        "FOREWARN_AGENT_SET_STATUS__LISEN",
        "FOREWARN_AGENT_SET_STATUS__LISTEN",
    ]


def test_what_only_all_files_together_do_wrong_is_blamed_on_all(tmp_path: Path) -> None:
    half = "".join(f"[[rule]]\nname = 'NAME{number}'\n" for number in range(600))
    path = write(tmp_path, half.replace("NAME", "a"), half.replace("NAME", "b"))
    (told,) = mistakes(path)
    assert told.startswith(f"{path} and {tmp_path / 'agent.d' / '0.toml'}: at rule: Expected")


def test_of_very_many_mistakes_the_first_are_told_and_how_many_there_are(tmp_path: Path) -> None:
    path = write(tmp_path, "".join(f"x{number} = 1\n" for number in range(MAX_MISTAKES + 5)))
    with pytest.raises(SettingsError) as refused:
        settings.load(path, {})
    lines = str(refused.value).splitlines()
    assert len(lines) == MAX_MISTAKES + 1
    assert [f"setting x{number};" in line for number, line in enumerate(lines[:-1])] == [
        True
    ] * MAX_MISTAKES
    assert lines[-1] == "there are 5 more mistakes"


def test_as_many_mistakes_as_are_told_leave_none_over() -> None:
    told = str(SettingsError(*map(str, range(MAX_MISTAKES)))).splitlines()
    assert told == [str(number) for number in range(MAX_MISTAKES)]


@pytest.mark.parametrize("command", ["check", "run", "status"])
def test_the_agents_commands_tell_all_of_them_and_end_as_for_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, WRONG)
    if command == "run":  # which becomes this program
        assert program.main(["--config", str(path)]) == ExitStatus.USAGE
    else:
        assert main.execute(["agent", command, "--config", str(path)]) == ExitStatus.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    if command == "status":  # which can do without
        assert lines.pop(0).startswith("note: without its settings: ")
    assert len(lines) == len(SAID)
    for line, said in zip(lines, SAID, strict=True):
        assert line.startswith(f"forewarn: {path}: {said}")


def test_the_service_tells_all_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "forewarn.toml"
    path.write_text(
        "[guest]\nhead_seconds = -1\nbody_seconds = 'x'\n"
        "[[guest.listener]]\naddress = 'eth0'\n"
        "[[guest.listener]]\nport = 70000\n"
        "[[guest.listener]]\nname = 'Blue'\nproxy_without_header = true\n"
        "[operator]\nsocket = 'off'\n[stroe]\n",
        encoding="utf-8",
    )
    assert main.execute(["serve", "--config", str(path)]) == ExitStatus.USAGE
    lines = capsys.readouterr().err.splitlines()
    said = [
        "at guest.head_seconds: -1 is not more than 0",
        "at guest.body_seconds: Expected `number`",
        "at guest.listener[0].address: 'eth0' is no IP address",
        "at guest.listener[1].port: Expected `integer` <= 65535",
        "at guest.listener[2].name: 'Blue' is no listener's name",
        "at guest.listener[2].proxy_without_header: there are no trusted_proxies",
        "operator.socket is off",
        "there is no setting stroe",
    ]
    assert len(lines) == len(said)
    for line, begin in zip(lines, said, strict=True):
        assert line.startswith(f"forewarn: {path}: {begin}")


def test_what_the_environment_mends_is_no_mistake_and_what_it_breaks_is(tmp_path: Path) -> None:
    path = tmp_path / "forewarn.toml"
    path.write_text("[operator]\nsocket = 'off'\n[history]\nretention_days = 'x'\n")
    with pytest.raises(SettingsError) as refused:
        service.load(
            path,
            {
                "FOREWARN_SET_OPERATOR__LISTEN": "127.0.0.1:8172",
                "FOREWARN_SET_GUEST__HEAD_SECONDS": "0",
                "FOREWARN_SET_STROE": "x",
            },
        )
    assert [told.partition(";")[0] for told in refused.value.mistakes] == [
        f"{path}: at history.retention_days: Expected `number`, got `string`",
        "FOREWARN_SET_STROE: there is no setting stroe",
        f"{path} and the environment: at guest.head_seconds: {NO_LIMIT}",
    ]


# Whatever is written, the types are judged as msgspec does.

JUNK: Any = strategies.recursive(
    strategies.sampled_from([None, True, -1, 3, 0.5, "", "x", "never", "mine", "SIGTERM"]),
    lambda inner: strategies.one_of(
        strategies.lists(inner, max_size=3),
        strategies.dictionaries(
            strategies.sampled_from(
                ["name", "rule", "prepare", "match", "service", "stop", "types", "run", "zzz"]
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
SOUND = {
    "margin_seconds": 3,
    "peers": ["http://a:1"],
    "status": {"listen": "off"},
    "rule": [
        {
            "name": "one",
            "match": {"types": ["Reboot"], "max_notice_seconds": 5},
            "prepare": [
                {"service": {"stop": "a", "retries": 3}},
                {"http": {"url": "http://x", "headers": {"a": "b"}}},
            ],
        },
        {"name": "two"},
    ],
}


@given(strategies.data())
def test_types_are_judged_as_the_conversion_does(data: strategies.DataObject) -> None:
    tree = msgspec.json.decode(msgspec.json.encode(SOUND))
    for _ in range(data.draw(strategies.integers(1, 3))):
        table: Any = tree
        while True:
            keys = list(table) if isinstance(table, dict) else list(range(len(table)))
            if not keys:
                break
            key = data.draw(strategies.sampled_from(keys))
            if isinstance(table[key], dict | list) and data.draw(strategies.integers(0, 3)):
                table = table[key]
                continue
            table[key] = data.draw(JUNK)
            break
    found = configuration.mistakes(tree, settings.Settings)
    sound = False
    with contextlib.suppress(msgspec.ValidationError):
        msgspec.convert(tree, settings.Settings)
        sound = True
    assert sound == (not found), [mistake.text for mistake in found]
    assert [each.position for each in found] == sorted(each.position for each in found)


def test_each_rule_is_judged_once_however_deep_the_mistake(tmp_path: Path) -> None:
    asked: list[str] = []

    def verdict(rule: Rule, at: str) -> list[str]:
        asked.append(at)
        return [f"at {at}.name: {rule.name} is no name"]

    tree = {"rule": [{"name": "a"}, {"name": 3}, {"name": "c"}]}
    found = configuration.mistakes(tree, settings.Settings, {Rule: verdict})
    assert asked == ["rule[0]", "rule[2]"]
    assert [(each.text.partition(":")[0], each.judged) for each in found] == [
        ("at rule[0].name", True),
        ("at rule[1].name", False),
        ("at rule[2].name", True),
    ]


def test_too_many_rules_are_told_beside_what_else_is_wrong() -> None:
    tree = {"rule": [{"name": str(number)} for number in range(1001)], "zzz": 1}
    found = [each.text for each in configuration.mistakes(tree, settings.Settings)]
    assert found[0].startswith("at rule: Expected `array` of length <= 1000")
    assert found[1].startswith("there is no setting zzz")
    assert len(found) == 2


def test_a_value_of_the_wrong_type_in_a_table_of_any_keys_is_told_by_its_table() -> None:
    step = {"http": {"url": "http://x", "headers": {"a": 3}}}
    tree = {"rule": [{"name": "r", "prepare": [step]}]}
    (mistake,) = configuration.mistakes(tree, settings.Settings)
    assert mistake.text.startswith(
        "at rule[0].prepare[0].http.headers[...]: Expected `string`, got `integer`"
    )
