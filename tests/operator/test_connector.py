"""`forewarn connector test`: the operator's program, run by hand by the service's own rules."""

import json
from pathlib import Path

import pytest

from forewarn.cli.exits import ExitStatus
from server.running import Cli, Client


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program of the settings in `forewarn.toml` beside it; each test writes its own."""
    path = tmp_path / "maintain"
    write(path, "exit 0")
    (tmp_path / "forewarn.toml").write_text(
        f'connector.kind = "command"\nconnector.command.program = ["{path}", "-q"]\n'
        "connector.command.time_limit_seconds = 600\n"
    )
    return path


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\ncd '{program.parent}'\n{script}\n")
    program.chmod(0o700)


def run(cli: Cli, program: Path, *more: str) -> tuple[int, str, str]:
    config = str(program.with_name("forewarn.toml"))
    return cli("connector", "test", "WEB-1", "--config", config, *more)


def test_a_program_that_succeeds_is_told_of_the_machine_and_completes(
    cli: Cli, client: Client, program: Path
) -> None:
    write(program, 'cat >input; env >variables; echo "$0 $*" >argv; echo rebooted >&2')
    status, out, err = run(cli, program, "--type", "freeze")
    assert (status, out) == (ExitStatus.OK, "completed: rebooted\n")
    assert "really runs" in err
    folder = program.parent
    assert (folder / "argv").read_text() == f"{program} -q\n"
    told = json.loads((folder / "input").read_text())
    known = client.get("/v1/fleet/machines/web-1")
    assert (told["machine"], told["event_type"]) == ("web-1", "Freeze")
    assert (told["host"], told["vm_id"]) == (known["host"], known["vm_id"])
    assert "FOREWARN_MACHINE=web-1" in (folder / "variables").read_text()
    assert client.get("/v1/history")["operations"] == []


REPORT = """echo '{"hosts": {"web-1": "h7"}, "message": "moved"}'"""


@pytest.mark.parametrize(
    ("script", "outcome", "words"),
    [
        ("echo no domain >&2; exit 3", "failed", "exit status 3: no domain"),
        ("kill -KILL $$", "failed", "SIGKILL"),
        ("kill -KILL $PPID", "unknown", ""),  # its runner is lost
        (REPORT, "completed", "moved"),
    ],
)
def test_how_a_program_ends_is_told_as_the_history_would(
    cli: Cli, program: Path, script: str, outcome: str, words: str
) -> None:
    write(program, script)
    status, out, _ = run(cli, program, "--json")
    told = json.loads(out)
    assert status == (ExitStatus.OK if outcome == "completed" else ExitStatus.ALERTS)
    assert told["outcome"] == outcome
    assert words in told["message"]
    assert told["hosts"] == ({"web-1": "h7"} if script == REPORT else {})


def test_a_dry_run_runs_nothing_and_shows_what_would_run(cli: Cli, program: Path) -> None:
    write(program, "touch it-ran")
    status, out, _ = run(cli, program, "--host", "h9", "--dry-run")
    assert status == ExitStatus.OK
    assert f"{program} -q" in out
    assert "FOREWARN_HOST=h9" in out
    assert not (program.parent / "it-ran").exists()


def test_mistakes_end_before_anything_runs(cli: Cli, program: Path) -> None:
    config = program.with_name("forewarn.toml")
    assert cli("connector", "test", "nobody", "--config", str(config))[0] == ExitStatus.NOT_FOUND
    program.chmod(0o600)
    assert run(cli, program)[0] == ExitStatus.USAGE
    config.write_text('connector.kind = "simulated"\n')
    assert run(cli, program)[0] == ExitStatus.USAGE
