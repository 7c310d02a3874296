"""`forewarn simulate`: a timeline, a status, and the line that does not hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from forewarn.cli import main
from forewarn.cli.exits import ExitStatus

HOLDS = """fleet
  [[machine]]
  name = "web"

at 0s  operator schedules Reboot of web
at 5m  web approves
expect web sees Reboot Started of web
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Simulate = Callable[..., Done]


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str]) -> Simulate:
    def run(file: Path, *more: str) -> Done:
        return Done(main.execute(["simulate", str(file), *more]), *capsys.readouterr())

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "story.txt"
    written.write_text(HOLDS, encoding="utf-8")
    return written


def test_a_scenario_that_holds_prints_what_guests_see_and_ends_well(
    file: Path, simulate: Simulate
) -> None:
    done = simulate(file)
    assert (done.returncode, done.stderr) == (ExitStatus.OK, "")
    assert "web sees [1] Reboot Scheduled of web, not before 01 12:15:00" in done.stdout
    assert "web sees [2] Reboot Started of web" in done.stdout


def test_a_line_that_does_not_hold_ends_it_and_is_named(file: Path, simulate: Simulate) -> None:
    file.write_text(HOLDS + "expect web sees nothing\nat 6m web approves\n", encoding="utf-8")
    done = simulate(file)
    assert done.returncode == ExitStatus.SCENARIO_BROKEN
    assert f"{file}:8: expect web sees nothing" in done.stderr
    assert "but web sees Reboot Started of web" in done.stderr
    assert "at 6m" not in done.stdout


def test_json_has_the_timeline_and_the_broken_line(file: Path, simulate: Simulate) -> None:
    file.write_text(HOLDS + "expect no alerts\nexpect web sees nothing\n", encoding="utf-8")
    done = simulate(file, "--json")
    tree = json.loads(done.stdout)
    assert done.returncode == ExitStatus.SCENARIO_BROKEN
    assert (tree["holds"], tree["broken_line"]) == (False, 9)
    first = tree["timeline"][0]
    assert first["line"] == 5
    assert first["sights"][0]["events"][0]["not_before"] == "2026-03-01T12:15:00Z"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"fleet", "expected a fleet"), (b"\xff", "UTF-8")],
)
def test_a_file_that_is_no_scenario_is_a_mistake_in_use(
    file: Path, simulate: Simulate, content: bytes, said: str
) -> None:
    file.write_bytes(content)
    done = simulate(file)
    assert done.returncode == ExitStatus.USAGE
    assert said in done.stderr
    gone = simulate(file.with_name("gone.txt"))
    assert gone.returncode == ExitStatus.USAGE
    assert "No such file" in gone.stderr
