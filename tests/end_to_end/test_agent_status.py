"""Where something is wrong: `agent status` says what, and why, and a reload tries again."""

import http.client
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import patience
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


def asked(
    agent: Agent, command: str, config: Path | None = None
) -> subprocess.CompletedProcess[str]:
    settings = str(config or agent.settings)
    return forked.run(("-m", "forewarn", "agent", command, "--config", settings))


def reload(agent: Agent) -> None:
    assert agent.process is not None
    agent.process.send_signal(signal.SIGHUP)


def said(agent: Agent) -> list[str]:
    return asked(agent, "status").stdout.splitlines()


def asked_by(agent: Agent, address: str) -> dict[str, Any]:
    """Return the status as it is told to a machine of another address."""
    connection = http.client.HTTPConnection(
        agent.address, agent.port, timeout=patience.SECONDS, source_address=(address, 0)
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


EARLY = """
import os, signal, sys
from forewarn import status_port
from forewarn.agent import __main__, daemon

class Asked(status_port.StatusServer):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        os.kill(os.getpid(), signal.SIGHUP)  # as by whoever has read /status just now

daemon.StatusServer = Asked
sys.exit(__main__.main(sys.argv[1:]))
"""


def test_a_signal_in_the_moment_in_which_the_port_opens_does_not_end_it(
    tmp_path: Path, cloud: Endpoint
) -> None:
    agent = Agent(tmp_path / "agent", cloud.url, RULES)
    try:
        agent.start(by=("-c", EARLY))
        agent.until(lambda: agent.status().get("endpoint", {}).get("answers"))
        agent.until(lambda: "reloaded the rules" in agent.said.read_text())
        assert agent.kill(signal.SIGTERM) == 0
    finally:
        agent.close()
