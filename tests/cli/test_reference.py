"""The reference of the command line says what the command line has, and it starts quickly."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from builders import NOW
from cli.tree import every_command
from forewarn.cli import main
from forewarn.cli.exits import OF_CODE, ExitStatus
from forewarn.maintenance import alerts
from forewarn.maintenance.alerts import AlertKind
from forewarn.vocabulary import ErrorCode

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def commands() -> dict[str, list[str]]:
    """Every command and its options."""
    return {
        path: [o for p in command.params for o in p.opts if o.startswith("--") and o != "--help"]
        for path, command in every_command().items()
        if path == "forewarn"
        or not isinstance(command, click.Group)
        or command.invoke_without_command
    }


def sections() -> dict[str, str]:
    parts = re.split(r"(?m)^## ", REFERENCE.read_text(encoding="utf-8"))[1:]
    return {part.split("\n", 1)[0].strip(): part for part in parts}


def test_each_command_has_its_heading_and_each_heading_its_command() -> None:
    headings = {heading for heading in sections() if heading.startswith("forewarn")}
    assert headings == set(commands())


def test_no_commands_first_sentence_is_cut_off_in_the_list(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for group in ("", "fleet", "maintenance", "page", "agent"):
        assert main.execute([*group.split(), "--help"]) == ExitStatus.OK
        assert "..." not in capsys.readouterr().out.replace("[ARGS]...", ""), group


def test_the_help_has_each_command_once_in_a_group_with_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.execute(["--help"]) == ExitStatus.OK
    lines = capsys.readouterr().out.splitlines()
    told = [line.split()[0] for line in lines if re.match("  [a-z]+", line)]
    assert sorted(set(told) & main.COMMANDS.keys()) == sorted(main.COMMANDS)
    for example in re.findall("such as 'forewarn ([^']+)'", "\n".join(lines)):
        name = example.split()[0]
        assert name in main.COMMANDS


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    program = tmp_path / "forewarn"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m forewarn "$@"\n')
    program.chmod(0o755)

    def completed(*words: str) -> list[str]:
        line = " ".join(words)
        script = f"""source <(forewarn completion bash)
            COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}
            _forewarn_completion forewarn; echo "${{COMPREPLY[@]}}" """
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert completed("forewarn", "hist") == ["history"]
    assert completed("forewarn", "history", "--ma") == ["--machine", "--maintenance"]
    assert completed("forewarn", "token", "re") == ["revoke"]
    assert completed("forewarn", "history", "--type", "R") == ["reboot", "redeploy"]


def test_shells_complete_files_where_a_command_takes_one() -> None:
    complete = ShellComplete(main.FOREWARN, {}, main.NAME, main.COMPLETE)
    for words in (
        *(["fleet", "apply"], ["restore-check"], ["store", "copy"], ["serve", "--config"]),
        *(["fleet", "sync", "--python"], ["certify", "--"], ["emulator", "--"]),
        ["events", "--operator"],
    ):
        found = complete.get_completions(words, "fl")
        assert [each.type for each in found] == ["file"], words


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_of_theirs(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.execute(["completion", shell]) == ExitStatus.OK
    assert f"{main.COMPLETE}={shell}_complete" in capsys.readouterr().out
    assert main.execute(["completion", "tcsh"]) == ExitStatus.USAGE


def test_each_commands_help_fits_80_columns_and_explains_its_options_and_its_section_no_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told_of = sections()
    for command, options in commands().items():
        assert main.execute([*command.split()[1:], "--help"]) == ExitStatus.OK
        shown = capsys.readouterr().out
        assert command == "forewarn" or shown.endswith("docs/reference/cli.md\n"), command
        assert max(map(len, shown.splitlines())) <= 80, command
        assert not re.findall(r"<\w+(?: range|\[\w+\])?>|x>=|<=x", shown), command
        lines = re.sub(r"\n {12,}", "  ", shown).splitlines()
        for option in options:
            assert [line for line in lines if re.match(rf" +{option}\b.* {{2,}}\S", line)], option
        told = set(re.findall(r"`(--[a-z-]+)", told_of[command]))
        assert told - {"--help"} <= set(options), command


def test_each_exit_status_has_its_line_and_each_line_its_status() -> None:
    rows = re.findall(r"(?m)^\| (\d+) \| `(\w+)` \| \S", sections()["Exit statuses"])
    assert {(int(number), name) for number, name in rows} == {(s.value, s.name) for s in ExitStatus}


def test_each_reason_of_a_refusal_has_an_exit_status_that_is_not_success() -> None:
    assert set(OF_CODE) == set(ErrorCode)
    assert ExitStatus.OK not in OF_CODE.values()


def test_an_alert_names_the_command_that_ends_it() -> None:
    for remedy in filter(None, (kind.remedy for kind in AlertKind)):
        words = remedy.partition(" {")[0].split()
        assert f"forewarn {' '.join(words)}" in commands(), remedy
    for kind, about, command in (
        (AlertKind.FAILED, "12.1", "acknowledge 12.1"),
        (AlertKind.HELD, "scope web", "release scope web"),
        (AlertKind.HOST_STUCK, "host h1", "host show h1"),
        (AlertKind.FLEET, "domain web-0", ""),
    ):
        assert alerts.remedy(alerts.Alert(kind, about, "", NOW)) == command


LOOK = """
import json, sys
exec(sys.argv[1])
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
DRAWN = {"asyncio", "rich", "starlette", "uvicorn", "structlog"}
HEAVY = {*DRAWN, "ssl", "httptools", "msgspec"}
HELP = "from forewarn.cli import main; assert not main.execute({}.split())"


@pytest.mark.parametrize(
    ("program", "unloaded"),
    [
        *((HELP.format(repr(line)), HEAVY) for line in ("--help", "schedule --help", "--version")),
        ("import forewarn.agent.__main__", DRAWN | {"click"}),
    ],
)
def test_what_many_start_loads_nothing_heavy(program: str, unloaded: set[str]) -> None:
    looked = subprocess.run(
        [sys.executable, "-c", LOOK, program], capture_output=True, text=True, check=True
    )
    assert not unloaded & set(json.loads(looked.stdout.splitlines()[-1]))
