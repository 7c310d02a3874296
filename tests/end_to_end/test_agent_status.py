"""`forewarn agent status` where something is wrong: it says what, and why."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.agents import Agent, Endpoint, event

RULES = """
[[rule]]
name = "all"
prepare = [
  { ready = { wait_seconds = 0.1 } },
  { command = { run = ["sh", "-c", "echo no route to the balancer; exit 3"] } },
  { command = { run = ["true"] } },
]
approve = "when-prepared"
"""
WHY = "sh ended with 3: no route to the balancer"


@pytest.fixture
def agent(tmp_path: Path, cloud: Endpoint) -> Iterator[Agent]:
    made = Agent(tmp_path / "agent", cloud.url, RULES)
    yield made.start()
    made.close()


def said(agent: Agent) -> list[str]:
    argv = [sys.executable, "-m", "forewarn", "agent", "status", "--config", str(agent.settings)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()


def asked_by(agent: Agent, address: str) -> dict[str, Any]:
    """Return the status as it is told to a machine of another address."""
    connection = http.client.HTTPConnection(
        agent.address, agent.port, timeout=10, source_address=(address, 0)
    )
    try:
        connection.request("GET", "/status")
        told: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return told


def test_it_says_why_an_event_is_held_also_after_a_kill(cloud: Endpoint, agent: Agent) -> None:
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Held")
    before = said(agent)
    assert before[2:5] == ["  ready: done", f"  command: failed: {WHY}", "  command: not yet"]
    assert before[-1].startswith("stands: command sh -c ")
    assert before[-1].endswith(f": {WHY}")
    agent.kill()
    agent.start()
    agent.until(lambda: agent.phase() == "Held" and agent.status()["endpoint"]["answers"])
    assert said(agent)[2:] == before[2:]


def test_it_tells_another_machine_that_an_action_failed_and_not_why(
    cloud: Endpoint, agent: Agent
) -> None:
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Held")
    own, other = agent.status(), asked_by(agent, "127.0.0.2")
    assert own["events"][0]["actions"][1]["reason"] == WHY
    assert other["events"][0]["actions"][1] == {
        "kind": "command",
        "result": "failed",
        "reason": "",
    }
    assert "no route" not in str([each["reason"] for each in other["standing"]])


def test_it_says_since_when_the_endpoint_does_not_answer(cloud: Endpoint, agent: Agent) -> None:
    agent.until(lambda: agent.status().get("endpoint", {}).get("answers"))
    assert said(agent) == ["web-0: ready"]
    cloud.status = 403
    agent.until(lambda: not agent.status()["endpoint"]["answers"])
    lines = said(agent)
    assert lines[0] == "web-0: ready"
    assert lines[1].startswith("trouble: ")
    assert "answered 403" in lines[1]
    assert lines[2].startswith("the endpoint answered last ")
    assert lines[2].endswith(" s ago")
