"""The recipes' commands that judge their settings, run on these."""

import re
from pathlib import Path

import pytest

from forewarn.cli import main
from recipes.pages import GUIDES


def named(page: str) -> list[str]:
    """Return the lines of a page that judge its settings."""
    text = (GUIDES / f"{page}.md").read_text(encoding="utf-8")
    found = re.findall(r"(?m)^    forewarn (agent check.*)$", text)
    assert found, page
    return [str(line) for line in found]


def run(line: str, settings: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what such a line says of settings; it must have ended well."""
    file = folder / "agent.toml"
    file.write_text(settings, encoding="utf-8")
    assert main.execute([*line.split(), "--config", str(file)]) == 0, line
    return capsys.readouterr().out
