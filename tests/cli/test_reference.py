"""The reference of the command line says what the command line has."""

import re
from pathlib import Path

import pytest
from typer.core import TyperGroup

from forewarn.cli import main
from forewarn.cli.exits import OF_CODE, ExitStatus
from forewarn.vocabulary import ErrorCode

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
EVERYWHERE = {"--help"}


def commands() -> dict[str, list[str]]:
    """Every command and its options."""
    found = {}
    waiting: list[tuple[str, object]] = [("forewarn", main.command())]
    while waiting:
        path, command = waiting.pop()
        if isinstance(command, TyperGroup):
            waiting += [(f"{path} {name}", sub) for name, sub in command.commands.items()]
        is_group = isinstance(command, TyperGroup)
        if not is_group or path == "forewarn" or command.invoke_without_command:
            parameters = getattr(command, "params")  # noqa: B009 - of Typer's own inner type
            options = [o for p in parameters for o in p.opts if o.startswith("--")]
            found[path] = [option for option in options if option not in EVERYWHERE]
    return found


def sections() -> dict[str, str]:
    parts = re.split(r"(?m)^## ", REFERENCE.read_text(encoding="utf-8"))[1:]
    return {part.split("\n", 1)[0].strip(): part for part in parts}


def test_each_command_has_its_heading_and_each_heading_its_command() -> None:
    headings = {heading for heading in sections() if heading.startswith("forewarn")}
    assert headings == set(commands())


@pytest.mark.parametrize("command", sorted(set(commands()) - {"forewarn"}))
def test_each_commands_help_fits_80_columns_and_names_the_reference(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.execute([*command.split()[1:], "--help"]) == ExitStatus.OK
    shown = capsys.readouterr().out
    assert shown.endswith("docs/reference/cli.md\n")
    assert max(map(len, shown.splitlines())) <= 80
    assert not re.findall(r"<\w+(?: range|\[\w+\])?>|x>=|<=x", shown)


@pytest.mark.parametrize("group", ["", "fleet", "maintenance", "clock", "agent"])
def test_no_commands_first_sentence_is_cut_off_in_the_list(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.execute([*group.split(), "--help"]) == ExitStatus.OK
    assert "..." not in capsys.readouterr().out.replace("[ARGS]...", "")


@pytest.mark.parametrize("command", sorted(commands()))
def test_each_option_is_explained_where_its_command_is(command: str) -> None:
    section = sections()[command]
    missing = [option for option in commands()[command] if f"`{option}" not in section]
    assert not missing
    told = set(re.findall(r"`(--[a-z-]+)", section))
    assert told - EVERYWHERE <= set(commands()[command])


def test_each_exit_status_has_its_line_and_each_line_its_status() -> None:
    rows = re.findall(r"(?m)^\| (\d+) \| `(\w+)` \| \S", sections()["Exit statuses"])
    assert {(int(number), name) for number, name in rows} == {(s.value, s.name) for s in ExitStatus}


def test_each_reason_of_a_refusal_has_an_exit_status_that_is_not_success() -> None:
    assert set(OF_CODE) == set(ErrorCode)
    assert ExitStatus.OK not in OF_CODE.values()
