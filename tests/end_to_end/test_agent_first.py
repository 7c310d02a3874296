"""Agents that are there before their machines are registered."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.agents import Agent, until
from end_to_end.running import Running

AGENTS = 5
RULES = """
[[rule]]
name = "ours"
prepare = [{ ready = {} }]
approve = "never"

[[rule]]
name = "anybody's"
match = { machine = "any" }
prepare = [{ command = { run = ["ACTION", "wrong"] } }]
"""


@pytest.fixture
def service(folder: Path) -> Iterator[Running]:
    running = Running(folder)
    running.start()
    yield running
    assert running.stop() == 0


@pytest.fixture
def agents(service: Running, tmp_path: Path) -> Iterator[list[Agent]]:
    url = f"http://127.0.0.1:{service.guest_port}"
    made = [Agent(tmp_path / f"desk-{n}", url, RULES, machine=f"desk-{n}") for n in range(AGENTS)]
    for agent in made:
        agent.start()
    yield made
    for agent in made:
        agent.close()


def test_an_agent_that_was_there_first_takes_its_first_event_by_its_own_rule(
    service: Running, agents: list[Agent]
) -> None:
    for agent in agents:
        agent.until(lambda agent=agent: "answered 403" in agent.status().get("trouble", ""))
    fleet = {"machine": [{"name": agent.machine} for agent in agents]}
    assert service.operator.ask("PUT", "/v1/fleet", fleet).status == 200
    for agent in agents:
        body = {"event_type": "Reboot", "machines": [agent.machine]}
        assert service.operator.ask("POST", "/v1/maintenances", body).status < 300
    for agent in agents:
        until(lambda agent=agent: agent.page("/readyz")[0] == 503, agent.said.read_text)
        agent.until(lambda agent=agent: agent.status()["standing"])  # published after /readyz
        status = agent.status()
        assert status["machine"] == agent.machine
        assert [each["rule"] for each in status["events"]] == ["ours"]
        assert [each["effect"] for each in status["standing"]] == ["ready"]
        assert agent.done == []
