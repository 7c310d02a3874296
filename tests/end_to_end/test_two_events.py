"""Two events at once for one machine: what both want is done once, and undone after both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from end_to_end.agents import Agent, Endpoint, event, started

RULES = """
[[rule]]
name = "reboots"
match = { types = ["Reboot"] }
prepare = [
  { command = { run = ["ACTION", "both"], undo = ["ACTION", "un-both"] } },
  { command = { run = ["ACTION", "one"], undo = ["ACTION", "un-one"] } },
]
approve = "when-prepared"

[[rule]]
name = "redeploys"
match = { types = ["Redeploy"] }
prepare = [
  { command = { run = ["ACTION", "both"], undo = ["ACTION", "un-both"] } },
  { command = { run = ["ACTION", "two"], undo = ["ACTION", "un-two"] } },
]
approve = "when-prepared"
"""
REDEPLOY = {"EventType": "Redeploy"}


def lines(*names: str) -> list[str]:
    return [f"{name} {word}" for name in names for word in ("begins", "ends")]


@pytest.fixture
def agent(tmp_path: Path, cloud: Endpoint) -> Iterator[Agent]:
    made = Agent(tmp_path / "agent", cloud.url, RULES)
    yield made.start()
    made.close()


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed between"])
def test_what_two_events_want_is_done_once_and_undone_when_both_are_over(
    cloud: Endpoint, agent: Agent, killed: bool
) -> None:
    cloud.show(event("E1"), event("E2", **REDEPLOY))
    agent.until(lambda: agent.phase("E1") == agent.phase("E2") == "Approved")
    assert sorted(agent.done) == sorted(lines("both", "one", "two"))
    assert sorted(cloud.approved) == ["E1", "E2"]
    before = agent.done
    if killed:
        agent.kill()
    cloud.show(started("E2", **REDEPLOY))
    if killed:
        agent.start()
    agent.expect(*before, *lines("un-one"))
    assert agent.phase("E2") == "Approved"
    cloud.show()
    agent.expect(*before, *lines("un-one", "un-two", "un-both"))
    agent.until(lambda: agent.status()["standing"] == [])
    assert len(cloud.approved) == 2


def test_of_two_events_the_cancelled_one_is_undone_and_the_other_approved(
    cloud: Endpoint, agent: Agent
) -> None:
    (agent.folder / "hold").touch()
    cloud.show(event("E1"), event("E2", **REDEPLOY))
    agent.expect("both begins")
    cloud.show(event("E2", **REDEPLOY))  # what is under way is for both: it goes on for the other
    agent.until(lambda: [each["event_id"] for each in agent.status()["events"]] == ["E2"])
    (agent.folder / "hold").unlink()
    agent.expect(*lines("both", "two"))
    agent.until(lambda: agent.phase("E2") == "Approved")
    assert cloud.approved == ["E2"]
    cloud.show()
    agent.until(lambda: agent.status()["standing"] == [])
    assert agent.done[4:] == lines("un-two", "un-both")
