"""`forewarn emulator` and its page, and `certify`: what tests in other languages start and end."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
import requests

import forked
import patience
from end_to_end import installed
from end_to_end.playing import Playing
from forewarn.cli.exits import ExitStatus
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
import forewarn
with forewarn.Client() as client:
    for change in client.watch():
        if change.appeared:
            client.approve(change.event)
        if change.gone:
            break
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


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_it_ends_with_the_programs_status_or_its_signals_or_that_of_a_mistake() -> None:
    assert run("--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert run("--", "sh", "-c", "kill $$").returncode == 128 + signal.SIGTERM
    assert run("--", "/no/such/program").returncode == 2


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_signal_ends_what_the_program_began(tmp_path: Path) -> None:
    begun, asked = tmp_path / "begun", tmp_path / "asked"
    loop = f"touch {begun}; while [ -e {begun} ]; do sleep 0.05; done"
    inner = tmp_path / "tests"
    inner.write_text(f"#!/bin/sh\ntrap 'touch {asked}; exit 0' TERM\n{loop}\n")
    inner.chmod(0o755)
    argv = [*FOREWARN, "emulator", "--", "sh", "-c", f"{inner}; true"]
    with forked.Forked(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            patience.until(begun.exists)
            process.send_signal(signal.SIGTERM)
            assert process.wait(patience.SECONDS) == 128 + signal.SIGTERM
            assert asked.exists()
        finally:
            begun.unlink(missing_ok=True)


def test_a_program_finds_it_and_is_warned_once_of_a_header_that_azure_may_refuse() -> None:
    ask = f"u.urlopen(u.Request(os.environ['FOREWARN_ENDPOINT'] + '/{EVENTS}', headers=header))"
    program = "import os, urllib.request as u; header = {'Metadata': 'True'}"
    tell = "print(os.environ['FOREWARN_ENDPOINT'], os.environ['FOREWARN_OPERATOR'])"
    done = run("--", sys.executable, "-c", f"{program}; {ask}; {ask}; {tell}")
    assert done.returncode == 0, done.stderr
    _, guests, _, operators, *found = done.stdout.split()
    assert found == [guests, operators]
    assert done.stderr.count(HEADER_WARNING) == 1


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
    assert not (tmp_path / "file").exists()  # or the next try would be refused


def test_a_recording_that_cannot_be_written_ends_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with running() as at:
        recording = [sys.executable, *FOREWARN, "record", str(file), "--endpoint", at["guests"]]
        full = f"ulimit -f 0; exec {shlex.join(recording)}"
        done = forked.completed(["/bin/sh", "-c", full], timeout=patience.SECONDS)
    assert (done.returncode, str(file) in done.stderr) == (ExitStatus.USAGE, True)


PAGE = "emulator"
LINE = "--port 8170\n"
"""The end of the line that starts the endpoint by itself."""
ENDPOINT = f"""ip link set lo up
{pages.block(PAGE, "sh", LINE).strip()} >/dev/null &
trap 'kill $!' EXIT
"""
HANDLER = """#!/bin/sh
until curl -s -H Metadata:true {url} | grep {words}; do sleep 0.2; done
"""
URL = "'http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'"
TOOLS = ("unshare", "ip", "nft", "curl")
needs_a_network = pytest.mark.skipif(
    not all(map(shutil.which, TOOLS)) or not installed.namespaces(),
    reason=f"a network of its own is made with {', '.join(TOOLS)}",
)


def ran(script: str, folder: Path, words: str = "Events") -> list[str]:
    """Run a script in a network of its own, with a handler that waits for a document with words.

    Returns: The lines that were printed, the document last.
    """
    (folder / "fleet.toml").write_text(pages.block(PAGE, "toml"))
    handler = folder / "handler"
    handler.write_text(HANDLER.format(url=URL, words=words))
    handler.chmod(0o755)
    argv = ["unshare", "--map-root-user", "--net", "sh", "-e", "-c", script]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = forked.completed(
        argv, cwd=folder, env={**os.environ, "PATH": path}, timeout=patience.SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_event_starts_at_the_endpoint_when_its_reader_lets_time_pass(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(pages.block(PAGE, "toml"))
    line = pages.block(PAGE, "sh", LINE)
    places = {"forewarn emulator": "", "fleet.toml": f"{tmp_path}/fleet.toml"}
    places |= {"--port 8170": "--port 0"}
    with running(*pages.placed(line, places).split()) as at:
        machine = {"event_type": "Reboot", "machines": ["web-0"]}
        assert order(at["operators"], "maintenances", **machine).status_code == 201
        answer = get(at["guests"])
        (event,) = answer.json()["Events"]
        shown = parsedate_to_datetime(answer.headers["Date"])
        assert parsedate_to_datetime(event["NotBefore"]) - shown == timedelta(minutes=15)
        assert order(at["operators"], "clock/advance", seconds=900).status_code == 200
        (event,) = get(at["guests"]).json()["Events"]
        assert event["EventStatus"] == "Started"
        assert order(at["operators"], "fail", reason="no power").status_code == 200
        assert get(at["guests"]).json()["Events"] == []
        silent = order(at["operators"], "until-asked", machine="web-0", seconds=0)
        assert (silent.status_code, silent.json()["error"]["code"]) == (409, "conflict")
        awaited = {"machine": "web-0", "times": 2, "seconds": patience.SECONDS}
        with patience.meanwhile(lambda: get(at["guests"])):
            assert order(at["operators"], "until-asked", **awaited).status_code == 200


GONE = "nft list tables; ip -o address show to 169.254.169.254\n"
"""It prints what is left of a rule that was undone."""
RULE = (pages.block(PAGE, "sh", "sudo ip address add"), pages.block(PAGE, "sh", "delete"))
WAYS = {
    "a variable": (ENDPOINT + pages.block(PAGE, "sh", "http_proxy"), []),
    "a network of its own": (pages.block(PAGE, "sh", "unshare"), [["web-0"]]),
    "a rule": (f'sudo() {{ "$@"; }}\n{ENDPOINT}{RULE[0]}./handler\n{RULE[1]}{GONE}', []),
}
"""The page's ways to lead a handler to the endpoint, and the machines that events are of then."""


@needs_a_network
@pytest.mark.parametrize("way", WAYS)
def test_a_handler_is_led_to_the_endpoint(tmp_path: Path, way: str) -> None:
    script, machines = WAYS[way]
    *others, document = ran(script, tmp_path, words="Reboot" if machines else "Events")
    assert [each["Resources"] for each in json.loads(document)["Events"]] == machines
    assert machines or not others


def test_who_ends_it_ends_its_handlers_at_once(folder: Path) -> None:
    options = ["--only", "approve", "--only", "stops", "--patience", "3600"]
    command = [sys.executable, *FOREWARN, "certify", *options, "--"]
    command += ["sh", "-c", "sleep 3600 & wait"]
    certify = Playing(command, folder, dict(os.environ), terminal=False)
    try:
        patience.until(lambda: certify.leftovers().count("sleep 3600 ") == 2)
        certify.process.send_signal(signal.SIGTERM)
        certify.interrupt(signal.SIGTERM)
        assert certify.status == ExitStatus.TERMINATED, certify.text
        assert "2 not finished" in certify.text
        assert certify.leftovers() == []
    finally:
        certify.close()
