"""Where something is wrong: `agent status` says what, and why, and `agent retry` tries again."""

import contextlib
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
from client.scripted import message, serving
from end_to_end.agents import COMMAND_LINE, Agent, Endpoint, event, started

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
    yield made.start(by=COMMAND_LINE)  # whoever signals it looks at its command first
    made.close()


def asked(
    agent: Agent, command: str, config: Path | None = None
) -> subprocess.CompletedProcess[str]:
    settings = str(config or agent.settings)
    return forked.run(("-m", "forewarn", "agent", command, "--config", settings))


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


MENDED = RULES.replace("echo no route to the balancer; exit 3", "test -e MENDED || exit 3")


def test_a_held_event_is_prepared_for_again_when_somebody_says_so(
    tmp_path: Path, cloud: Endpoint
) -> None:
    mended = tmp_path / "mended"
    agent = Agent(tmp_path / "agent", cloud.url, MENDED.replace("MENDED", str(mended)))
    try:
        agent.start(by=COMMAND_LINE)
        agent.until(lambda: agent.status().get("endpoint", {}).get("answers"))
        nothing = asked(agent, "retry")
        assert (nothing.returncode, nothing.stderr) == (0, "No event is held.\n")
        cloud.show(event())
        agent.until(lambda: agent.phase() == "Held")
        assert asked(agent, "retry").stdout == "retrying E1 Reboot\n"
        agent.until(lambda: agent.said.read_text().count("is held: it is not approved") == 2)
        assert cloud.approved == []
        mended.touch()
        assert asked(agent, "retry").returncode == 0
        agent.until(lambda: agent.phase() == "Approved")
        assert cloud.approved == ["E1"]
        cloud.show()
        agent.until(lambda: agent.status()["ready"] and not agent.status()["standing"])
    finally:
        agent.close()


EARLY = """
import os, signal, sys
from forewarn import status_port
from forewarn.agent import __main__, daemon

class Asked(status_port.StatusServer):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        for number in (signal.SIGUSR1, signal.SIGHUP):  # as by whoever has read /status just now
            os.kill(os.getpid(), number)

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


def test_a_process_that_is_no_agent_is_never_signalled(
    tmp_path: Path, cloud: Endpoint, agent: Agent
) -> None:
    """As the agent's number in a container is another process's outside."""
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Held")
    with (
        subprocess.Popen(["sleep", "60"]) as other,
        answering({**agent.status(), "process": other.pid}, tmp_path) as config,
    ):
        refused = asked(agent, "retry", config)
        assert (refused.returncode, refused.stdout) == (8, "")
        assert other.poll() is None
        other.kill()


def test_an_agent_that_does_not_tell_its_process_is_not_signalled(
    tmp_path: Path, cloud: Endpoint, agent: Agent
) -> None:
    """As one on another machine does not."""
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Held")
    silent = {name: told for name, told in agent.status().items() if name != "process"}
    with answering(silent, tmp_path) as config:
        refused = asked(agent, "retry", config)
    assert (refused.returncode, refused.stdout) == (8, "")


def test_what_cannot_be_tried_again_is_not_said_to_be_asked_for(
    cloud: Endpoint, agent: Agent
) -> None:
    cloud.show(event("E1"), event("E2"), event("E3"))
    agent.until(lambda: {agent.phase(each) for each in ("E1", "E2", "E3")} == {"Held"})
    cloud.show(event("E1"), started("E2"), event("E3", notice=1))

    def short() -> bool:
        lefts = [each["notice_left_seconds"] for each in agent.status()["events"]]
        return lefts[1] is None and lefts[2] <= 5

    agent.until(short)
    told = asked(agent, "retry")
    assert (told.returncode, told.stdout) == (0, "retrying E1 Reboot\n")
    second, third = told.stderr.splitlines()
    assert second.startswith("E2 Reboot stays held: ")
    assert "even_if_started" in second
    assert third.startswith("E3 Reboot stays held: ")
    agent.until(lambda: "E3 stays held: " in agent.said.read_text())
    said = agent.said.read_text()
    assert "E2 stays held: it is Started" in said
    assert "E1 stays held" not in said


def test_another_machine_is_not_told_the_agents_process(agent: Agent) -> None:
    agent.until(agent.status)
    assert agent.process is not None
    assert agent.status()["process"] == agent.process.pid
    assert "process" not in asked_by(agent, "127.0.0.2")


@contextlib.contextmanager
def answering(status: dict[str, Any], folder: Path) -> Iterator[Path]:
    """Answer as an agent that has this to say; yield settings that lead there."""
    with serving(lambda *_: message(200, json.dumps(status).encode())) as server:
        config = folder / "other.toml"
        config.write_text(f"[status]\nlisten = '127.0.0.1:{server.port}'\n")
        yield config
