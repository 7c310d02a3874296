"""docs/guides/event-log.md as it stands: a real agent's lines, and the service's own record."""

import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
from end_to_end.agents import Agent, Endpoint, event, until
from end_to_end.running import Running
from recipes import pages

RULES = pages.block("event-log", "toml")
QUICK = {"wait_seconds = 20": "wait_seconds = 0.1"}
LINE = json.loads(pages.block("event-log", "json"))
PAGE = (pages.GUIDES / "event-log.md").read_text(encoding="utf-8")
API = (pages.GUIDES.parent / "reference" / "api.md").read_text(encoding="utf-8")
FLEET = '[[availability_set]]\nname = "web"\nmachines = [{ name = "web-0" }, { name = "web-1" }]\n'


def table(section: str) -> set[str]:
    """Return the names in the first column of a section's first table of fields."""
    rows = section.split("| field | meaning |")[1].split("\n\n", maxsplit=1)[0]
    firsts = re.findall(r"(?m)^\| (`.*?) \|", rows)
    return {name for first in firsts for name in re.findall(r"`(\w+)`", first)}


@pytest.fixture
def agent(tmp_path: Path, cloud: Endpoint) -> Iterator[Agent]:
    made = Agent(tmp_path / "agent", cloud.url, pages.placed(RULES, QUICK))
    yield made.start()
    made.kill()


def lines(agent: Agent) -> list[dict[str, Any]]:
    """Return what the action has written so far; every line that the agent says is an object."""
    text = agent.log.read_text().rpartition("\n")[0]
    said = [json.loads(line) for line in text.splitlines()]
    return [line for line in said if line["logger"] == "forewarn.agent.event"]


def test_the_page_shows_the_fields_that_a_line_has_and_its_filter_keeps_the_events_alone(
    cloud: Endpoint, agent: Agent
) -> None:
    cloud.show(event(Description="Host server is undergoing maintenance."))
    agent.until(lambda: len(lines(agent)) == 1)
    (line,) = lines(agent)
    assert list(line) == list(LINE)
    assert set(line) == table(PAGE)
    assert {type(value) for value in line.values()} == {str}
    same = set(line) - {"timestamp", "event", "event_id", "event_source", "not_before"}
    assert {name: line[name] for name in same} == {name: LINE[name] for name in same}
    for name in ("timestamp", "not_before"):
        shape = re.sub(r"\d", "0", str(LINE[name]))
        assert re.sub(r"\d", "0", str(line[name])) == shape
    cloud.show()
    agent.until(lambda: len(lines(agent)) == 2)
    over = lines(agent)[1]
    assert list(over) == list(LINE)
    assert (over["phase"], over["event"]) == ("undo", "Reboot of web-0 is over")
    assert over["event_id"] == line["event_id"]
    assert len(agent.log.read_text().splitlines()) > 2
    if shutil.which("jq"):
        command = pages.placed(
            pages.block("event-log", "sh", "jq"),
            {"journalctl -u forewarn-agent -o cat": f"(echo Starting; cat {agent.log})"},
        )
        kept = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        assert [json.loads(line) for line in kept.stdout.splitlines()] == lines(agent)


def test_to_journald_each_line_begins_with_its_priority(cloud: Endpoint, agent: Agent) -> None:
    agent.kill()
    ours, theirs = socket.socketpair()
    found = os.fstat(theirs.fileno())
    given = {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    argv = ["-m", "forewarn", "agent", "run", "--config", str(agent.settings)]
    with ours, ours.makefile(encoding="utf-8") as read:
        process = subprocess.Popen([sys.executable, *argv], stderr=theirs, env=given)
        theirs.close()
        cloud.show(event())
        heard: dict[str, str] = {}
        for line in read:
            priority, _, entry = line.partition(">")
            told = json.loads(entry)
            heard[told["level"]] = priority
            if told["event"].startswith("preparing"):
                break
            if told["logger"] == "forewarn.agent.event":
                cloud.show(event(notice=300))
        process.send_signal(signal.SIGTERM)
        assert process.wait(patience.SECONDS) == 0
    assert heard == {"info": "<6", "warning": "<4"}


def test_the_services_history_has_the_same_event_and_the_fields_of_the_api(tmp_path: Path) -> None:
    service = Running(tmp_path)
    service.start()
    agent = Agent(
        tmp_path / "agent",
        f"http://127.0.0.1:{service.guest_port}",
        pages.placed(RULES, QUICK | {"max_notice_seconds = 600": "max_notice_seconds = 3600"}),
    )
    try:
        service.apply(FLEET)
        agent.start()
        assert service.call("schedule", "reboot", "web-0").returncode == 0
        agent.until(lambda: len(lines(agent)) == 2)
        line = pages.block("event-log", "sh", "history").removeprefix("forewarn ")
        kept = functools.partial(service.operator.get, "/v1/history")
        until(lambda: kept()["operations"][0]["status"] == "Completed")
        operation = history(service, line)
    finally:
        agent.kill()
        assert service.stop() == 0
    assert set(operation) == table(API.split("An operation has:")[1])
    assert {line["event_id"] for line in lines(agent)} == {operation["events"][0]["id"]}
    assert operation["events"][0]["approval"]["by"] == "web-0"


def history(service: Running, line: str) -> dict[str, Any]:
    called = service.call(*line.split())
    assert called.returncode == 0, called.stderr
    (operation,) = json.loads(called.stdout)["operations"]
    return dict(operation)
