"""The recipe of the pool: with agents no request fails, and without them many do.

The rounds are those of `make demo-pool`: real processes, the configuration of the page, real kills.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.playing import playing
from house.tree import ROOT
from pool import backend, place, results
from recipes import commands, pages

needs_haproxy = pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")
COMMAND = [sys.executable, "-m", "pool"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}


@pytest.fixture(scope="module")
def played() -> Iterator[dict[str, Any]]:
    """Both rounds, and the folder that has their logs and their picture."""
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        folder = Path(made)
        kept = ["--svg", str(folder / "pool.svg"), "--logs", str(folder / "logs")]
        ended = subprocess.run(
            [*COMMAND, "--json", *kept],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        guarded, bare = json.loads(ended.stdout)["rounds"]
        yield {"with": guarded, "without": bare, "said": ended.stderr, "folder": folder}


@pytest.mark.soak
@needs_haproxy
def test_with_agents_no_request_fails(played: dict[str, Any]) -> None:
    guarded = played["with"]
    assert guarded["agents"] is True
    assert guarded["failures"] == []
    assert guarded["failed"] == 0
    assert guarded["requests"] == sum(guarded["answered"].values()) > 0


@pytest.mark.soak
@needs_haproxy
def test_without_agents_more_than_one_in_a_hundred_fails(played: dict[str, Any]) -> None:
    bare = played["without"]
    assert bare["agents"] is False
    assert bare["share"] > 0.01
    assert bare["failed"] == len(bare["failures"])
    ways = {failure["how"] for failure in bare["failures"]}
    assert "status 503" in ways  # what HAProxy sends to a machine that is not there
    assert "cut short" in ways  # what was under way when the machine was killed
    assert bare["approvals"] == 0
    assert not any(event["by_guest"] for event in bare["events"])


@pytest.mark.soak
@needs_haproxy
@pytest.mark.parametrize("which", ["with", "without"])
def test_the_load_is_as_it_is_told(which: str, played: dict[str, Any]) -> None:
    one = played[which]
    for kind in results.KINDS:
        assert one["answered"][kind], kind
    for kind in ("slow new", "slow kept"):
        assert one["slowest"][kind] >= backend.SLOW_SECONDS


@pytest.mark.soak
@needs_haproxy
def test_three_events_of_two_machines_are_each_approved_once(played: dict[str, Any]) -> None:
    guarded = played["with"]
    named = [set(event["machines"]) for event in guarded["events"]]
    wanted = [{"web-0", "web-3"}, {"web-1", "web-4"}, {"web-2", "web-5"}]
    assert sorted(named, key=sorted) == wanted
    assert guarded["approvals"] == 3  # what the service's metrics have counted
    for event in guarded["events"]:
        assert event["by_guest"] is True
        assert event["approved_by"] == event["machines"][0]
        assert event["status"] == "Completed"


@pytest.mark.soak
@needs_haproxy
@pytest.mark.parametrize("which", ["with", "without"])
def test_each_machine_is_replaced_and_comes_back(which: str, played: dict[str, Any]) -> None:
    one = played[which]
    for machine in one["machines"]:
        first, second = machine["boots"]
        assert first != second
        states = [change["state"] for change in machine["changes"] if change["at"] > 0]
        assert states.count("down") == 1
        at = states.index("down")
        assert states[at - 1 : at] == (["leaving"] if which == "with" else [])
        assert states[at + 1] == "returning"
        assert states[-1] == "serving"


@pytest.mark.soak
@needs_haproxy
def test_with_agents_a_domain_leaves_only_when_there_is_room(played: dict[str, Any]) -> None:
    """At most one machine of the domain before is still away when the next begins to leave."""
    moments = []
    for machine in played["with"]["machines"]:
        changes = [(change["at"], change["state"]) for change in machine["changes"]]
        states = [(at, state) for at, state in changes if at > 0]
        left = next(at for at, state in states if state == "leaving")
        back = next(at for at, state in reversed(states) if state == "serving")
        moments.append((machine["update_domain"], left, back))
    for domain in (1, 2):
        left = min(left for own, left, _ in moments if own == domain)
        back = [back for own, _, back in moments if own == domain - 1]
        assert min(back) < left + 0.5  # the looks are a fifth of a second apart


@pytest.mark.soak
@needs_haproxy
def test_the_rounds_are_drawn(played: dict[str, Any]) -> None:
    root = ET.parse(played["folder"] / "pool.svg").getroot()
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("With agents: 0 of ") for text in texts)
    assert any(text.startswith("Without agents: ") for text in texts)
    logs = {path.name for path in played["folder"].glob("logs/1-with-agents/*")}
    assert {"haproxy.log", "forewarn.log", "web-0.log"} <= logs


@pytest.mark.soak
@needs_haproxy
def test_a_round_that_is_interrupted_leaves_nothing_behind(folder: Path) -> None:
    with playing(folder, program="pool", environment=ENVIRONMENT) as demo:
        demo.read_until(lambda text: "web-0 is down" in text)
        assert "web-0 is down" in demo.text
        demo.interrupt(signal.SIGINT)
        assert demo.status == 130, demo.text
        assert demo.leftovers() == []


@pytest.mark.soak
@needs_haproxy
@pytest.mark.parametrize(("name", "word"), [("haproxy", b"haproxy"), ("host", b"host.py")])
def test_a_process_that_dies_is_told_of_and_leaves_nothing_behind(
    name: str, word: bytes, folder: Path
) -> None:
    with playing(folder, program="pool", environment=ENVIRONMENT) as demo:
        demo.read_until(lambda text: re.search("[1-9] answered", text))
        ours = Path(f"/proc/{demo.process.pid}/task/{demo.process.pid}/children").read_text()
        (process,) = (
            int(child)
            for child in ours.split()
            if word in Path(f"/proc/{child}/cmdline").read_bytes()
        )
        os.kill(process, signal.SIGKILL)
        demo.read_to_the_end()
        assert demo.status == 1, demo.text
        assert f"{name} ended with status -9" in demo.text
        assert demo.leftovers() == []


def test_where_there_is_no_haproxy_it_says_how_to_get_it(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "PATH": str(tmp_path)}
    ended = subprocess.run(COMMAND, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 1
    assert "apt-get install haproxy" in ended.stderr


@needs_haproxy
def test_where_the_server_is_not_installed_it_says_what_to_install(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['structlog'] = None\n")
    searched = os.pathsep.join([str(folder), ENVIRONMENT["PYTHONPATH"]])
    environment = {**ENVIRONMENT, "PYTHONPATH": searched}
    ended = subprocess.run(COMMAND, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 1
    assert "pip install '.[server]'" in ended.stderr


# The page


def test_the_page_has_what_is_run() -> None:
    assert pages.block("pool", "haproxy") == (place.RECIPE / "haproxy.cfg").read_text()
    assert pages.block("pool", "toml", "[[rule]]") == (place.RECIPE / "agent.toml").read_text()
    assert pages.block("pool", "toml", "[status]") == (place.RECIPE / "machine.toml").read_text()


@needs_haproxy
def test_haproxy_takes_the_page_s_settings() -> None:
    judged = subprocess.run(
        ["haproxy", "-c", "-f", str(place.RECIPE / "haproxy.cfg")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stderr
    assert "WARNING" not in judged.stderr


def test_the_round_changes_nothing_of_the_page_but_addresses_and_paths(tmp_path: Path) -> None:
    where = place.Place(tmp_path, agents=True)
    where.write()
    numbers = re.compile(r"[\d.]+:\d+|port \d+|/\S+|stdout format raw")
    written = pages.block("pool", "haproxy")
    ours = (tmp_path / "haproxy.cfg").read_text()
    assert numbers.sub("*", ours) == numbers.sub("*", written)
    written = pages.block("pool", "toml", "[[rule]]")
    for name in place.MACHINES:
        ours = (tmp_path / name / "agent.toml").read_text()
        assert numbers.sub("*", ours) == numbers.sub("*", written)


@pytest.mark.parametrize("line", commands.named("pool"))
def test_every_command_of_the_page_runs(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agent.d").mkdir()
    (tmp_path / "agent.d" / "machine.toml").write_text(pages.block("pool", "toml", "[status]"))
    rules = pages.block("pool", "toml", "[[rule]]")
    assert "leave the pool" in commands.run(line, rules, tmp_path, capsys)


def test_the_wait_covers_the_probes_and_the_longest_request() -> None:
    probes = pages.block("pool", "haproxy")
    (inter,) = re.findall(r" inter (\d+)s ", probes)
    (fast,) = re.findall(r" fastinter (\d+)ms ", probes)
    (answer,) = re.findall(r"timeout check (\d+)s", probes)
    assert " fall 2 " in probes
    noticed = (int(inter) + int(answer)) + (int(fast) / 1000 + int(answer))
    rules = tomllib.loads(pages.block("pool", "toml", "[[rule]]"))["rule"]
    waits = [step["ready"] for rule in rules for step in rule.get("prepare", []) if "ready" in step]
    assert len(waits) == 2
    for wait in waits:
        assert wait["wait_seconds"] >= noticed + backend.SLOW_SECONDS + 1
        assert wait["wait_seconds"] < 30 - 5  # a Preempt's notice, less the agent's margin
