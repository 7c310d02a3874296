"""The guide's settings are settings, and its commands are commands."""

import re
from pathlib import Path

import pytest

from forewarn.agent import settings
from forewarn.cli import main
from house import tree

GUIDE = (tree.ROOT / "docs" / "guides" / "agent.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
COMMANDS = re.findall(r"(?m)^    forewarn (agent check.*)$", GUIDE)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_is_read_as_it_stands(text: str, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(text, encoding="utf-8")
    assert settings.load(tmp_path / "agent.toml", {}).files


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_runs_on_the_first_example(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.toml").write_text(EXAMPLES[0], encoding="utf-8")
    assert main.execute([*line.split(), "--config", str(tmp_path / "agent.toml")]) == 0
    assert "leave the pool for anything that stops us" in capsys.readouterr().out


def test_there_are_examples_and_commands() -> None:
    assert len(EXAMPLES) == 4
    assert len(COMMANDS) == 1
