"""What an agent counts over a whole event, and the page that explains it."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from end_to_end.agents import Agent, Endpoint, event, started, until
from forewarn.agent import metrics
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


def test_the_page_has_a_heading_for_each_metric_and_for_no_other(agent: Agent) -> None:
    agent.until(lambda: agent.page("/metrics")[0] == 200)
    names, _ = scraped(agent)
    assert len(HEADINGS) == len(set(HEADINGS))
    assert names == set(HEADINGS)
    assert metrics.__doc__ is not None
    assert set(re.findall(r"(?m)^(forewarn_agent_\w+)", metrics.__doc__)) == names


def test_each_metric_is_told_over_a_whole_event(
    tmp_path: Path, cloud: Endpoint, agent: Agent
) -> None:
    agent.until(lambda: scraped(agent)[1].get("forewarn_agent_looks_total", 0) >= 1)
    quiet = scraped(agent)[1]
    assert (quiet["forewarn_agent_ready"], quiet["forewarn_agent_stuck"]) == (1, 0)
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
    agent.until(lambda: agent.status()["events"][0]["event_status"] == "Started")
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


def reload(agent: Agent) -> None:
    assert agent.process is not None
    agent.process.send_signal(signal.SIGHUP)
    until(lambda: "the rules were read again" in agent.said.read_text())
