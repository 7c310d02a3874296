"""The guide's settings are settings, and its commands are commands."""

import re
from pathlib import Path

import pytest
import yaml

from forewarn.agent import settings, status
from forewarn.agent.state import Phase
from forewarn.cli import main
from house import tree

GUIDE = (tree.ROOT / "docs" / "guides" / "agent.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
ALERTS = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[0])["groups"]
COMMANDS = re.findall(r"(?m)^    forewarn (agent (?:check|explain).*)$", GUIDE)


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
    assert len(COMMANDS) == 2


@pytest.mark.parametrize("alert", ALERTS[0]["rules"], ids=lambda alert: alert["alert"])
def test_every_alert_asks_for_metrics_that_there_are(alert: dict[str, str]) -> None:
    asked = re.findall(r"\b(up(?=[ {])|forewarn_\w+)", alert["expr"])
    assert asked
    assert set(asked) <= {"up", *(status.PREFIX + name for name in status.FAMILIES)}
    phases = re.findall(r'phase="(\w+)"', alert["expr"])
    assert set(phases) <= {phase.value for phase in Phase}
    assert set(alert) <= {"alert", "expr", "for"}
