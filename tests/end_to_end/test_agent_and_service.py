"""Agents and the service itself: it waits for them, and one was there before its machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.agents import DONE, UNDONE, Agent, until
from end_to_end.running import Running

FLEET = {
    "availability_set": [
        {"name": "web", "machines": [{"name": f"web-{n}", "host": "h1"} for n in range(2)]}
    ],
}
RULES = """
[[rule]]
name = "both"
match = { types = ["Reboot"] }
prepare = [
  { command = { run = ["ACTION", "a"], undo = ["ACTION", "un-a"] } },
  { command = { run = ["ACTION", "b"], undo = ["ACTION", "un-b"] } },
]
approve = "when-prepared"
"""
REBOOT = 3
"""Seconds that a simulated reboot takes."""


class Cloud:
    """The service and some machines' agents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = Running(folder, connector=f"reboot_seconds = {REBOOT}")
        self.service.start()
        assert self.service.operator.ask("PUT", "/v1/fleet", FLEET).status == 200
        self.agents: list[Agent] = []

    def agent(self, machine: str, rules: str) -> Agent:
        url = f"http://127.0.0.1:{self.service.guest_port}"
        self.agents.append(Agent(self.folder / machine, url, rules, machine=machine))
        return self.agents[-1]

    def pair(self) -> tuple[Agent, Agent]:
        """Start the agents of the two machines that are rebooted together; their actions wait."""
        first, second = (self.agent(f"web-{n}", RULES) for n in range(2))
        for agent, other in ((first, second), (second, first)):
            agent.write(f'peers = ["http://127.0.0.1:{other.port}"]\n{RULES}')
            (agent.folder / "hold").touch()
        return first.start(), second.start()

    def let_go(self) -> None:
        for agent in self.agents:
            (agent.folder / "hold").unlink(missing_ok=True)

    def ask(self, path: str, **body: Any) -> Any:
        answer = self.service.operator.ask("POST", path, body)
        assert answer.status < 300, answer.body
        return answer.json

    def reboot(self) -> None:
        """Announce a reboot of both."""
        self.ask("/v1/maintenances", event_type="Reboot", hosts=["h1"])

    def ended(self) -> dict[str, Any]:
        operation = self.service.operation
        until(lambda: operation()["status"] == "Completed", operation)
        return operation()

    def close(self) -> None:
        for agent in self.agents:
            agent.close()
        self.service.stop()


@pytest.fixture
def cloud(folder: Path) -> Iterator[Cloud]:
    made = Cloud(folder)
    yield made
    made.close()


def test_the_service_waits_until_the_agents_say_that_they_are_back(cloud: Cloud) -> None:
    pair = cloud.pair()
    cloud.reboot()

    def words() -> set[str]:
        events = cloud.service.operator.get("/v1/events")["events"]
        return {word["status"] for event in events for word in event["agents"]}

    until(lambda: words() == {"preparing"}, words)
    cloud.let_go()
    until(lambda: words() == {"ready"}, words)
    for agent in pair:
        agent.until(lambda agent=agent: agent.done == DONE)
        (agent.folder / "hold").touch()  # undoing takes its time
    operation = cloud.ended()
    (told,) = operation["events"]
    assert (operation["start_cause"], told["approval"]["by"]) == ("approved", "web-0")
    assert set(operation["awaited"]) == {"web-0", "web-1"}
    cloud.let_go()
    until(lambda: cloud.service.operation()["awaited"] == [], cloud.service.operation)
    for agent in pair:
        agent.expect(*DONE, *UNDONE)


FIRST = """
[[rule]]
name = "ours"
prepare = [{ ready = {} }]
approve = "never"

[[rule]]
name = "anybody's"
match = { machine = "any" }
prepare = [{ command = { run = ["ACTION", "wrong"] } }]
"""


def test_an_agent_that_was_there_before_its_machine_takes_its_first_event_by_its_own_rule(
    cloud: Cloud,
) -> None:
    agent = cloud.agent("desk-0", FIRST).start()
    agent.until(lambda: "answered 403" in agent.status().get("trouble", ""))
    fleet = {"machine": [{"name": "desk-0"}]}
    assert cloud.service.operator.ask("PUT", "/v1/fleet", fleet).status == 200
    cloud.ask("/v1/maintenances", event_type="Reboot", machines=["desk-0"])
    agent.until(lambda: agent.page("/readyz")[0] == 503)
    agent.until(lambda: agent.status()["standing"])  # published after /readyz
    status = agent.status()
    assert [each["rule"] for each in status["events"]] == ["ours"]
    assert [each["effect"] for each in status["standing"]] == ["ready"]
    assert agent.done == []
