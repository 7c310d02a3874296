"""The command line as processes of its own: on a terminal, and `forewarn watch`."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import forked
from agent import workplace
from client.scripted import Asked, document, message, serving
from client.world import listed
from end_to_end.playing import Playing
from end_to_end.running import Running, lasting
from forewarn.cli.exits import ExitStatus
from patience import until
from programs import Printing, Program

FLEET = """
[[availability_set]]
name = "web"
update_domains = 2
machines = [{ name = "web-0", update_domain = 0 }, { name = "web-1", update_domain = 0 }]
[[machine]]
name = "bastion"
[[machine]]
name = "lonely"
"""
APPROVE = (
    'test "$FOREWARN_CHANGE/$FOREWARN_CONCERNS_ME" != appeared/yes || curl -sSf '
    '--header Metadata:true --data "{\\"StartRequests\\":[{\\"EventId\\":'
    '\\"$FOREWARN_EVENT_ID\\"}]}" '
    '"$FOREWARN_ENDPOINT/metadata/scheduledevents?api-version=2020-07-01"'
)
WITHOUT_EXTRAS = """
import sys
extras = "filelock httptools starlette structlog uvicorn uvloop aiosqlite"
sys.modules |= dict.fromkeys(extras.split())  # so an import says that there is none
from forewarn.cli import main
sys.exit(main.execute(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def service(shared_folder: Path) -> Generator[Running]:
    with Running(shared_folder, connector=lasting(shared_folder)) as running:
        running.apply(FLEET)
        yield running


def place(service: Running, machine: str = "web-0") -> str:
    return f"http://127.0.0.1:{service.guest_port}/vm/{machine}"


def scheduled(service: Running, *arguments: str) -> str:
    """The EventId of a maintenance of one machine."""
    asked = service.document("schedule", *arguments)
    event_id: str = asked["operations"][0]["events"][0]["id"]
    return event_id


def test_a_watch_misses_nothing_by_a_kill_and_goes_on_from_its_file_without_extras(
    service: Running, tmp_path: Path
) -> None:
    state, seen = tmp_path / "state", tmp_path / "seen"
    command = f"cat >> {seen}; {APPROVE}"
    given = ("--endpoint", place(service), "--since", str(state))
    act = service.folder / "act"
    act.touch()
    watching = Printing(tmp_path, "watch", *given, "--exec", command)
    event_id = scheduled(service, "reboot", "web-0", "--description", 'New; kernel\'s "$HOME"')
    lines = [watching.line(), watching.line()]
    service.kill()
    service.start()
    act.unlink()
    lines.append(watching.line())
    assert [line["change"] for line in lines] == ["appeared", "started", "gone"]
    first = lines[0]["event"]
    expected = {
        "event_id": event_id,
        "event_type": "Reboot",
        "status": "Scheduled",
        "resources": ["web-0"],
        "concerns_me": True,
        "description": 'New; kernel\'s "$HOME"',
    }
    assert expected.items() <= first.items()
    assert 800 < first["notice_left_seconds"] <= 901
    assert first["not_before"].endswith("Z")
    assert lines[1]["event"]["not_before"] is None
    until(lambda: not json.loads(state.read_text())["known"])
    assert watching.stop() == ExitStatus.TERMINATED
    assert [json.loads(line) for line in seen.read_text().splitlines()] == lines
    freeze = scheduled(service, "freeze", "web-1")
    without_extras = (sys.executable, "-c", WITHOUT_EXTRAS)
    again = forked.completed([*without_extras, "watch", *given, "--once"])
    assert again.returncode == 0, again.stderr
    (line,) = again.stdout.splitlines()
    assert (json.loads(line)["change"], json.loads(line)["event"]["event_id"]) == (
        *("appeared", freeze),
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("state")] == ["state"]
    service.call("cancel", freeze)


class Clinging(NamedTuple):
    """A watch whose command runs a program that goes on while a file is there."""

    watching: Printing
    begun: Path
    asked: Path


@contextlib.contextmanager
def clinging(folder: Path, at_term: str) -> Iterator[Clinging]:
    begun, asked, program = folder / "begun", folder / "asked", folder / "drain"
    script = f"trap '{at_term}' TERM\ntouch BEGUN; while [ -e BEGUN ]; do sleep 0.05; done\n"
    for word, path in {"BEGUN": begun, "ASKED": asked, "PID": folder / "pid"}.items():
        script = script.replace(word, str(path))
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    with serving(lambda *_: message(200, document(listed()))) as server:
        given = ("--endpoint", server.url, "--name", "web-0", "--exec", f"{program} && true")
        try:
            watching = Printing(folder, "watch", *given)
            until(begun.exists)
            yield Clinging(watching, begun, asked)
        finally:
            begun.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_the_program_of_a_command_with_its_shell_and_the_watch_waits_for_it(
    tmp_path: Path, name: str
) -> None:
    """Else the next watch would run it a second time beside itself."""
    with clinging(tmp_path, "sleep 0.2; touch ASKED; rm BEGUN; exit 0") as (watching, begun, asked):
        status = ExitStatus.INTERRUPTED if name == "SIGINT" else ExitStatus.TERMINATED
        assert watching.stop(signal.Signals[name]) == status
        assert asked.exists()
        assert not begun.exists()
        assert "forewarn" not in watching.errors()


def test_a_second_signal_kills_the_program_of_a_command_that_does_not_end(tmp_path: Path) -> None:
    with clinging(tmp_path, "echo $$ > PID; mv PID ASKED") as (watching, begun, asked):
        watching.send(signal.SIGTERM)
        until(asked.exists)
        assert watching.stop(signal.SIGTERM) == ExitStatus.TERMINATED
        workplace.check_ended(int(asked.read_text()))
        assert begun.exists()


def test_a_watch_that_nohup_began_outlives_its_terminal(tmp_path: Path) -> None:
    with serving(lambda *_: message(200, document(listed()))) as server:
        given = ("--endpoint", server.url, "--name", "web-0")
        program = Program(tmp_path / "log")
        program.begin(["-m", "forewarn", "watch", *given], within=["nohup"])
        program.wait_for(b"appeared")
        program.send(signal.SIGHUP)
        assert program.stop() == ExitStatus.TERMINATED


def test_a_command_that_fails_is_told_and_the_watch_goes_on(
    service: Running, tmp_path: Path
) -> None:
    event_id = scheduled(service, "freeze", "bastion")
    given = ("--endpoint", place(service, "bastion"))
    watching = Printing(tmp_path, "watch", *given, "--exec", "exit 3")
    assert watching.line()["change"] == "appeared"
    service.call("cancel", event_id)
    assert watching.line()["change"] == "gone"
    watching.stop()
    told = f"forewarn: the command ended with 3 for appeared of {event_id}\n"
    assert told in watching.errors()


LOST: Final = """
import signal, subprocess, sys

from forewarn.cli.main import run


def stopped(process):
    signal.raise_signal(signal.SIGTERM)


subprocess.Popen.__del__ = stopped
sys.argv[0] = "forewarn"
run()
"""
"""The command line, stopped while what it ran is destroyed: Python ignores exceptions there."""


def test_a_signal_while_an_object_is_destroyed_ends_the_watch(tmp_path: Path) -> None:
    listing = document(listed(Resources=["web-0"]))
    watching = Program(tmp_path / "said")
    with serving(lambda *_: message(200, listing)) as server:
        given = ("--endpoint", server.url, "--name", "web-0", "--exec", "true")
        watching.begin(["-c", LOST, "watch", *given])
        assert watching.ended() == ExitStatus.TERMINATED
    assert "Exception ignored" in watching.tail()


INTERRUPTING: Final = """
import signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
"""
"""Python's own start, which has Ctrl-C come while a module is imported."""


@pytest.mark.parametrize(
    ("command", "module", "status"),
    [
        (("events",), "forewarn.cli.main", -signal.SIGINT),
        (("events",), "forewarn.client.transport", ExitStatus.INTERRUPTED),
        (("agent", "run"), "forewarn.agent.daemon", ExitStatus.OK),
    ],
)
def test_an_interrupt_at_the_start_shows_no_traceback(
    tmp_path: Path, command: tuple[str, ...], module: str, status: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING.format(module=module))
    argv = [sys.executable, "-m", "forewarn", *command]
    own = {"PYTHONPATH": str(tmp_path), "FOREWARN_AGENT_SET_STATE__FOLDER": str(tmp_path)}
    own |= {"FOREWARN_AGENT_SET_STATUS__LISTEN": "off"}
    ended = subprocess.run(argv, env=os.environ | own, capture_output=True, check=False)
    assert ended.returncode == status
    assert b"Traceback" not in ended.stderr


def test_an_event_too_large_for_a_variable_reaches_the_command_whole(tmp_path: Path) -> None:
    names = [f"machine-{number:04}-{'x' * 60}" for number in range(3000)]
    large = listed(Resources=[*names, "web-0"])

    def answers(asked: Asked, _: int) -> bytes:
        return message(404) if "compute" in asked.target else message(200, document(large))

    script = 'cat > "$0"; printf "%s %s" "${FOREWARN_RESOURCES-absent}" "$FOREWARN_CONCERNS_ME"'
    said = tmp_path / "said"
    command = f"sh -c '{script}' {tmp_path / 'event'} > {said}"
    with serving(answers) as server:
        given = ("--endpoint", server.url, "--name", "web-0", "--once", "--exec", command)
        watching = Printing(tmp_path, "watch", *given)
        assert watching.line()["event"]["concerns_me"] is True
        assert (watching.ended(), watching.errors()) == (0, "")
    assert said.read_text() == "absent yes"
    told = json.loads((tmp_path / "event").read_text())
    assert told["event"]["resources"] == [*names, "web-0"]


@pytest.mark.parametrize("redirected", [">/dev/full 2>&1", ">&- 2>&-"])
def test_an_output_that_cannot_be_written_keeps_no_command_from_being_run(
    redirected: str, tmp_path: Path
) -> None:
    facts = listed(Resources=["web-0"], Description="caf\u00e9 \u2192 b")
    with serving(lambda *_: message(200, document(facts))) as server:
        command = f'echo "$FOREWARN_DESCRIPTION" > {tmp_path}/said'
        watch = f"'{sys.executable}' -m forewarn watch --once --endpoint {server.url} --name web-0"
        line = f"{watch} --exec '{command}' {redirected}"
        latin = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        subprocess.run(["bash", "-c", line], check=False, env=os.environ | latin)
    assert (tmp_path / "said").read_text(encoding="utf-8") == "caf\u00e9 \u2192 b\n"


@pytest.mark.parametrize("command", ["--help", "unit service", "demo"])
def test_a_full_disk_is_no_fault_of_the_program(command: str) -> None:
    line = f"'{sys.executable}' -m forewarn {command} >/dev/full"
    ran = subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True)
    assert ran.returncode == ExitStatus.INTERNAL
    assert "internal" not in ran.stderr


AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search", "--"),
)
"""As an ordinary user, who can read this test's Python wherever it is, and write nowhere."""


def can_be_nobody() -> bool:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return False
    return subprocess.run([*AS_NOBODY, "true"], check=False, capture_output=True).returncode == 0


def on_a_terminal(folder: Path, *command: str) -> tuple[int | None, str]:
    """Run a command on a terminal; return its exit status and what is drawn."""
    drawn = Playing([*command], folder, dict(os.environ), terminal=True)
    drawn.read_to_the_end()
    drawn.close()
    return drawn.status, drawn.raw


def test_on_a_terminal_a_table_is_drawn(service: Running, tmp_path: Path) -> None:
    command = (sys.executable, "-m", "forewarn", "fleet", "list")
    status, text = on_a_terminal(tmp_path, *command, "--operator", str(service.socket))
    assert status == 0
    assert "\x1b[1m" in text  # the heading is bold
    assert "─" in text
    assert "bastion" in text


@pytest.mark.skipif(not can_be_nobody(), reason="needs root and setpriv, to be another user")
def test_an_ordinary_user_on_a_terminal_is_told_to_use_sudo(
    service: Running, tmp_path: Path
) -> None:
    command = (*AS_NOBODY, sys.executable, "-m", "forewarn", "alerts")
    status, text = on_a_terminal(tmp_path, *command, "--operator", str(service.socket))
    assert status == ExitStatus.UNREACHABLE
    assert "permission denied" in text
    assert "sudo" in text
