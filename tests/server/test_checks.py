"""The checks of maintenances, run for real: programs on their runners."""

import asyncio
import json
import os
from pathlib import Path

import pytest

import patience
from forewarn.connectors.command import KEPT
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.server.checks import ProgramChecks
from forewarn.server.settings import UnitCheck
from store.values import NOW

LONG = 2 * patience.SECONDS
"""Seconds that no check takes unless something is wrong."""

SHORT = 0.3
"""Seconds that a check which never ends may take."""

PROGRAMS = {
    "good": "exit 0",
    "bad": "echo not yet >&2; exit 3",
    "loud": "yes out | head -c 300000; yes err | head -c 300000 >&2; exit 1",
    "hangs": "trap '' TERM; echo $$ > pid; sleep 1000 & wait; sleep 1000",
    "tells": "cat > told; env | grep FOREWARN_ | sort > variables",
}


@pytest.fixture
def checks(tmp_path: Path) -> ProgramChecks:
    made = [
        UnitCheck(name=name, program=("/bin/sh", "-c", f"cd {tmp_path}; {script}"))
        for name, script in PROGRAMS.items()
    ]
    made.append(UnitCheck(name="absent", program=("/does/not/exist",)))
    environment = {"PATH": os.environ["PATH"], "FOREWARN_SET_X": "secret"}
    return ProgramChecks(made, tmp_path / "runs", environment)


def ran(checks: ProgramChecks, name: str, seconds: float = LONG, number: int = 1) -> CheckResult:
    run = CheckRun(maintenance=7, number=number, name=name, wave=2, began_at=NOW, seconds=seconds)
    return asyncio.run(checks.run(run))


def test_checks_that_begin_together_after_a_restart_do_not_disturb_each_other(
    checks: ProgramChecks, tmp_path: Path
) -> None:
    for number in range(300):
        (tmp_path / "runs" / f"maintenance-{number}@left" / "1.0.all").mkdir(parents=True)

    async def together() -> list[CheckResult]:
        runs = [
            CheckRun(maintenance=m, number=1, name="good", wave=1, began_at=NOW, seconds=LONG)
            for m in range(6)
        ]
        return await asyncio.gather(*map(checks.run, runs))

    assert all(result.passed for result in asyncio.run(together()))


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_program_passes_by_its_exit_status_what_it_says_is_bounded_and_nothing_of_it_is_left(
    checks: ProgramChecks, tmp_path: Path
) -> None:
    assert ran(checks, "good").passed
    bad = ran(checks, "bad", number=2)
    assert not bad.passed
    assert "3" in bad.message
    assert "not yet" in bad.message
    loud = ran(checks, "loud", number=3)
    assert not loud.passed
    assert "err" in loud.message
    assert len(loud.message) < 300
    assert [place.name for place in (tmp_path / "runs").iterdir()] == [KEPT]


def test_a_program_is_told_what_it_checks_and_nothing_of_the_service(
    checks: ProgramChecks, tmp_path: Path
) -> None:
    assert ran(checks, "tells").passed
    told = json.loads((tmp_path / "told").read_text())
    assert told == {"maintenance": 7, "check": "tells", "wave": 2}
    assert (tmp_path / "variables").read_text().splitlines() == [
        "FOREWARN_CHECK=tells",
        "FOREWARN_MAINTENANCE=7",
        "FOREWARN_WAVE=2",
    ]


def test_a_program_that_does_not_end_is_killed_with_all_that_it_started(
    checks: ProgramChecks, tmp_path: Path
) -> None:
    written = tmp_path / "pid"

    def killed_after_it_began() -> str:
        assert not ran(checks, "hangs", SHORT).passed
        return written.read_text() if written.exists() else ""

    group = int(patience.until(killed_after_it_began))
    patience.until(lambda: not is_alive(group))  # what was killed may not be reaped yet


def test_what_cannot_be_run_has_failed(checks: ProgramChecks, tmp_path: Path) -> None:
    assert not ran(checks, "nobody knows it").passed
    (tmp_path / "runs").write_text("a file where the folder should be")
    assert not ran(checks, "good").passed
    (tmp_path / "runs").unlink()
    assert not ran(checks, "absent").passed
