"""`forewarn emulator`: what tests in other languages start, ask and end."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

import forked
import patience
from forewarn.testing import Emulator
from forewarn.testing.wire import HEADER_WARNING
from recipes import pages

FOREWARN = ["-m", "forewarn"]
COMMAND = [*FOREWARN, "emulator"]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
EVENTS = "metadata/scheduledevents?api-version=2020-07-01"

FLEET = """
[[availability_set]]
name = "web"
update_domains = 2
machines = [{ name = "web-0" }, { name = "web-1" }]
"""

APPROVES = """
import json, os, time, urllib.request

base = os.environ["FOREWARN_ENDPOINT"] + "/metadata/scheduledevents?api-version=2020-07-01"

def ask(body=None):
    request = urllib.request.Request(base, body, {"Metadata": "true"})
    with urllib.request.urlopen(request) as answer:
        return answer.read()

while not (events := json.loads(ask())["Events"]):
    time.sleep(0.05)
ask(json.dumps({"StartRequests": [{"EventId": events[0]["EventId"]}]}).encode())
while json.loads(ask())["Events"]:
    time.sleep(0.05)
"""


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked.run([*COMMAND, *map(str, arguments)], timeout=patience.SECONDS)


@contextmanager
def running(*arguments: str) -> Iterator[dict[str, str]]:
    """Run it until the end of the test; yield where guests and operators ask."""
    argv = [*FOREWARN, "emulator", *arguments]
    with forked.Forked(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield dict(process.stdout.readline().split() for _ in range(2))
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(patience.SECONDS) == 0


def get(guests: str, path: str = EVENTS) -> requests.Response:
    return requests.get(f"{guests}/{path}", headers={"Metadata": "true"}, timeout=patience.SECONDS)


def order(operators: str, path: str, **body: object) -> requests.Response:
    return requests.post(f"{operators}/v1/{path}", json=body, timeout=patience.SECONDS)


def test_it_ends_with_the_programs_status() -> None:
    done = run("--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7
    assert done.stdout.split()[::2] == ["guests", "operators"]


def test_a_program_finds_it_by_its_environment() -> None:
    program = "import os; print(os.environ['FOREWARN_ENDPOINT'], os.environ['FOREWARN_OPERATOR'])"
    done = run("--", sys.executable, "-c", program)
    _, guests, _, operators, *found = done.stdout.split()
    assert found == [guests, operators]


def test_it_warns_once_of_a_header_that_azure_may_refuse() -> None:
    ask = f"u.urlopen(u.Request(os.environ['FOREWARN_ENDPOINT'] + '/{EVENTS}', headers=header))"
    program = "import os, urllib.request as u; header = {'Metadata': 'True'}"
    done = run("--", sys.executable, "-c", f"{program}; {ask}; {ask}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(HEADER_WARNING) == 1


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_program_that_a_signal_ends_has_the_status_that_shells_give() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert run("--", sys.executable, "-c", program).returncode == 128 + signal.SIGTERM


def test_a_program_that_is_not_there_is_a_mistake() -> None:
    assert run("--", "/no/such/program").returncode == 2


def test_operators_schedule_and_move_the_clock() -> None:
    with running() as at:
        operators = at["operators"]
        machine = {"event_type": "Reboot", "machines": ["vm-0"]}
        assert order(operators, "maintenances", **machine).status_code == 201
        (event,) = get(at["guests"]).json()["Events"]
        assert event["EventStatus"] == "Scheduled"
        assert order(operators, "clock/advance", seconds=900).status_code == 200
        (event,) = get(at["guests"]).json()["Events"]
        assert event["EventStatus"] == "Started"
        assert order(operators, "fail", reason="no power").status_code == 200
        assert get(at["guests"]).json()["Events"] == []


def test_operators_wait_until_a_handler_has_asked() -> None:
    with running() as at:
        order(at["operators"], "maintenances", event_type="Reboot", machines=["vm-0"])
        read, over = [], threading.Event()

        def poll() -> None:
            ask = {"url": f"{at['guests']}/{EVENTS}", "headers": {"Metadata": "true"}}
            with requests.Session() as session:
                while not over.is_set():
                    read.append(session.get(**ask, timeout=patience.SECONDS).json()["Events"])

        handler = threading.Thread(target=poll)
        handler.start()
        asked = order(
            at["operators"], "until-asked", machine="vm-0", times=2, seconds=patience.SECONDS
        )
        over.set()
        handler.join()
        assert asked.status_code == 200
        assert sum(map(bool, read)) >= 2
        silent = order(at["operators"], "until-asked", machine="vm-0", seconds=0)
        assert (silent.status_code, silent.json()["error"]["code"]) == (409, "conflict")
        assert order(at["operators"], "until-asked", machine="vm-0", times=0).status_code == 400


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="needs curl and jq")
@pytest.mark.parametrize("approves", [True, False])
def test_the_guides_test_with_curl_is_green_only_if_it_approves(
    tmp_path: Path, *, approves: bool
) -> None:
    text = pages.block("emulator", "sh", "set -eu")
    broken = "\n".join(line for line in text.splitlines() if "StartRequests" not in line)
    assert broken != text
    (tmp_path / "test_it.sh").write_text(text if approves else broken, encoding="utf-8")
    done = run("--", "sh", "-c", f"cd {shlex.quote(str(tmp_path))} && sh test_it.sh")
    assert (done.returncode == 0) is approves, done.stderr


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node")
def test_the_guides_example_for_node_passes() -> None:
    done = run("--", "node", "--test", EXAMPLES / "test_handler.mjs")
    assert done.returncode == 0, done.stdout
    assert "# pass 2" in done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(("handler", "status"), [(APPROVES, 0), ("", 1)])
def test_the_guides_script_tests_any_program(handler: str, status: int, tmp_path: Path) -> None:
    # A clock would only be waited for: one try of sixty is enough for a handler that does nothing.
    script = (EXAMPLES / "test_handler.sh").read_text(encoding="utf-8")
    quick = tmp_path / "test_handler.sh"
    quick.write_text(script if handler else script.replace("-lt 60", "-lt 1"), encoding="utf-8")
    idle = "import signal; signal.pause()"
    done = run("--", "sh", quick, sys.executable, "-c", handler or idle)
    assert done.returncode == status, done.stderr


def test_what_is_recorded_is_replayed(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    record = [*FOREWARN, "record", str(file), "--once"]
    with running() as at:
        machine = {"event_type": "Reboot", "machines": ["vm-0"]}
        order(at["operators"], "maintenances", **machine)
        asked = get(at["guests"])
        done = forked.run(
            [*record, "--endpoint", at["guests"], "--keep-names"], timeout=patience.SECONDS
        )
        assert done.returncode == 0, done.stderr
        assert forked.run(record, timeout=patience.SECONDS).returncode == 2
    with Emulator() as emulator:
        emulator.machine("vm-0")
        read = []
        over = threading.Event()

        def read_on() -> None:
            while not over.is_set():
                read.append(get(emulator.endpoint).content)

        thread = threading.Thread(target=read_on)
        thread.start()
        emulator.replay(file, patience.SECONDS)
        over.set()
        thread.join()
    assert asked.content in read


def test_a_recording_ends_at_once_though_no_answer_comes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        recording = forked.Forked(
            [*FOREWARN, "record", str(tmp_path / "file"), "--endpoint", endpoint],
            stderr=subprocess.PIPE,
            text=True,
        )
        asked, _ = silent.accept()
        with asked, recording:
            recording.send_signal(signal.SIGINT)
            _, noted = recording.communicate(timeout=patience.SECONDS)
    assert (recording.returncode, noted) == (0, "")
