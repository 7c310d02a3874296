"""What `forewarn agent check` and `status` tell people."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.workplace import Units
from client.scripted import Scripted, message, serving
from forewarn.cli import main


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[str, str]]:
    """Check a file, and return what is said and what is noted."""

    def run(text: str) -> tuple[str, str]:
        file = tmp_path / "agent.toml"
        file.write_text(text, encoding="utf-8")
        assert main.execute(["agent", "check", "--config", str(file)]) == 0
        return capsys.readouterr()

    return run


Check = Callable[[str], tuple[str, str]]


def has(lines: list[str], facts: tuple[tuple[str, ...], ...]) -> bool:
    """Tell whether there are as many lines as facts, and each line has its own."""
    pairs = zip(lines, facts, strict=True)
    return all(fact in line for line, expected in pairs for fact in expected)


def test_check_notes_units_that_systemd_does_not_know(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = Units(tmp_path)
    monkeypatch.setenv("PATH", str(units.bin))
    units.put("web", "active")
    text = (
        "[[rule]]\nname = 'r'\nprepare = [\n"
        "  { service = { stop = 'web' } }, { service = { stop = 'wbe' } },\n"
        "  { signal = { unit = 'dbx', signal = 'SIGTERM' } },\n]\n"
    )
    lines = check(text)[1].splitlines()
    assert has(lines, (("'r'", "'wbe'"), ("'r'", "'dbx'"))), lines
    monkeypatch.setenv("PATH", str(tmp_path))  # without systemd nobody knows
    assert check(text)[1] == ""


@pytest.mark.parametrize(("way", "needed"), [("urls_file", True), ("slack", False)])
def test_check_asks_for_apprise_only_where_messages_go_through_it(
    way: str, needed: bool, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)  # an import system's word for: not there
    rule = f"[[rule]]\nname = 'r'\nprepare = [ {{ notify = {{ {way} = '/etc/place' }} }} ]\n"
    assert ("pip install '.[notify]'" in check(rule)[1]) is needed


def answers() -> Scripted:
    """An agent's status, with what stands."""
    names = ["command /bin/drain 'a b'", "http POST http://x/y", "service stop web"]
    plain = {"tells": False, "stuck": False, "undoing": False}
    standing = [{**plain, "effect": name} for name in names]
    standing.append({**plain, "effect": "log", "tells": True})
    status = {"machine": "m", "ready": True, "trouble": "", "events": [], "standing": standing}
    status |= {"dry_run": False, "endpoint": {"answers": True, "answered_seconds_ago": 0.1}}
    return serving(lambda *_: message(200, json.dumps(status).encode()))


def test_status_shows_what_stands_and_not_what_only_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answers() as server:
        file = tmp_path / "agent.toml"
        file.write_text(f"[status]\nlisten = '127.0.0.1:{server.port}'\n", encoding="utf-8")
        assert main.execute(["agent", "status", "--config", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "stands: command /bin/drain 'a b'",
        "stands: http POST http://x/y",
        "stands: service stop web",
    ]


def test_status_asks_without_the_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("this is no TOML", encoding="utf-8")
    with answers() as server:
        address = f"127.0.0.1:{server.port}"
        assert main.execute(["agent", "status", "--config", str(file)]) == 2
        told = capsys.readouterr()
        assert "--address" in told.err
        assert told.out == ""
        command = ["agent", "status", "--address", address, "--config", str(file)]
        assert main.execute(command) == 0
    assert capsys.readouterr().out.startswith("m: ready\n")
