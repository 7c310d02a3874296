"""What an agent counts over a whole event, and the page that explains it."""

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from end_to_end.agents import Agent, Endpoint, event, started, until
from house import tree

PAGE = (tree.ROOT / "docs" / "reference" / "agent-metrics.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)
RULES = """
[[rule]]
name = "all"
prepare = [
  { ready = { wait_seconds = 0.1 } },
  { command = { run = ["ACTION", "a"], undo = ["ACTION", "un-a"] } },
  { command = { run = ["false"], undo = ["FIXED"], undo_retries = 0, on_failure = "continue" } },
  { command = { run = ["true"], undo = ["FIXED"], undo_retries = 0 } },
]
approve = "when-prepared"
"""
Samples = dict[str, float]


@pytest.fixture
def agent(tmp_path: Path, cloud: Endpoint) -> Iterator[Agent]:
    rules = RULES.replace("FIXED", str(tmp_path / "fixed"))
    made = Agent(tmp_path / "agent", cloud.url, rules)
    yield made.start()
    made.close()


def scraped(agent: Agent) -> tuple[set[str], Samples]:
    """Return the families' names and the samples, as Prometheus' own parser reads them."""
    names, found = set(), {}
    for family in text_string_to_metric_families(agent.page("/metrics")[1]):
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return names, found


def test_each_metric_is_told_over_a_whole_event(
    tmp_path: Path, cloud: Endpoint, agent: Agent
) -> None:
    agent.until(lambda: scraped(agent)[1].get("forewarn_agent_looks_total", 0) >= 1)
    quiet = scraped(agent)[1]
    assert (quiet["forewarn_agent_ready"], quiet["forewarn_agent_stuck"]) == (1, 0)
    assert (quiet["forewarn_agent_healthy"], quiet["forewarn_agent_endpoint_up"]) == (1, 1)
    assert 0 <= time.time() - quiet["forewarn_agent_last_look_timestamp_seconds"] < 40
    assert "forewarn_agent_notice_left_seconds" not in quiet
    cloud.show(event(notice=600))
    agent.until(lambda: agent.phase() == "Approved")
    live = scraped(agent)[1]
    assert live["forewarn_agent_events{phase=Approved,type=Reboot}"] == 1
    assert live["forewarn_agent_events_taken_total{type=Reboot}"] == 1
    assert 500 < live["forewarn_agent_notice_left_seconds"] < 600
    assert live["forewarn_agent_approvals_total"] == 1
    assert 0.1 <= live["forewarn_agent_approval_delay_seconds"] < 40
    assert live["forewarn_agent_ready"] == 0
    cloud.show(started())
    agent.until(lambda: agent.shows("Started"))
    cloud.show()
    agent.until(lambda: scraped(agent)[1]["forewarn_agent_stuck"] == 1)
    assert scraped(agent)[1]["forewarn_agent_ready"] == 0  # what was done before it stays
    (tmp_path / "fixed").symlink_to("/bin/true")
    reload(agent)
    agent.until(lambda: not agent.status()["standing"])
    over = scraped(agent)[1]
    assert (over["forewarn_agent_ready"], over["forewarn_agent_stuck"]) == (1, 0)
    actions = {name: value for name, value in over.items() if "actions_total" in name}
    assert actions == {
        f"forewarn_agent_actions_total{{kind={kind},outcome={outcome},phase={phase}}}": value
        for (kind, outcome, phase), value in {
            ("ready", "done", "prepare"): 1,
            ("command", "done", "prepare"): 2,
            ("command", "failed", "prepare"): 1,
            ("command", "failed", "undo"): 1,
            ("command", "done", "undo"): 3,
            ("ready", "done", "undo"): 1,
        }.items()
    }
    assert over["forewarn_agent_action_seconds_total{kind=ready,phase=prepare}"] >= 0.1
    told = {name.partition("{")[0] for name in (*live, *over)}
    assert told == set(HEADINGS)


def test_an_agent_without_its_endpoint_says_so_and_since_when(
    cloud: Endpoint, agent: Agent
) -> None:
    agent.until(lambda: scraped(agent)[1].get("forewarn_agent_endpoint_up") == 1)
    cloud.status = 403
    agent.until(lambda: scraped(agent)[1]["forewarn_agent_endpoint_up"] == 0)
    blind = scraped(agent)[1]
    at = blind["forewarn_agent_last_look_timestamp_seconds"]
    assert 0 <= time.time() - at < 60
    assert blind["forewarn_agent_healthy"] == 1, "to start it anew would help nobody"
    asked = cloud.asked
    agent.until(lambda: cloud.asked > asked + 1)
    later = scraped(agent)[1]
    # Looks are a second apart; the page does not read its two clocks at one instant.
    assert later["forewarn_agent_last_look_timestamp_seconds"] == pytest.approx(at, abs=0.5)
    said = agent.status()
    assert said["endpoint"]["answers"] is False
    assert said["endpoint"]["answered_seconds_ago"] > 0
    assert "403" in said["trouble"]
    cloud.status = 200
    agent.until(lambda: scraped(agent)[1]["forewarn_agent_endpoint_up"] == 1)
    assert scraped(agent)[1]["forewarn_agent_last_look_timestamp_seconds"] > at
    assert agent.status()["endpoint"]["answers"] is True


def reload(agent: Agent) -> None:
    assert agent.process is not None
    agent.process.send_signal(signal.SIGHUP)
    until(lambda: "reloaded the rules" in agent.said.read_text())
