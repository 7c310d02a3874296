"""What an agent counts over a whole event; where something is wrong it says what, and why."""

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import forked
import web
from end_to_end.agents import Agent, Endpoint, event, started, until
from house import tree
from ports import free_port

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
def agent(agents: Callable[..., Agent]) -> Agent:
    return agents(RULES).start()


def said(agent: Agent) -> list[str]:
    asked = forked.run(("-m", "forewarn", "agent", "status", "--config", str(agent.settings)))
    return asked.stdout.splitlines()


def test_it_says_why_an_event_is_held_also_after_a_kill_and_not_to_other_machines(
    cloud: Endpoint, agent: Agent
) -> None:
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Held")
    before = said(agent)
    assert before[2:5] == ["  ready: done", f"  command: failed: {WHY}", "  command: not yet"]
    assert before[-1].startswith("stands: command sh -c ")
    assert before[-1].endswith(f": {WHY}")
    told = web.ask(agent.port, "/status", to=agent.address, source="127.0.0.2")
    own, other = agent.status(), json.loads(told.body)
    assert own["events"][0]["actions"][1]["reason"] == WHY
    failed = {"kind": "command", "result": "failed", "reason": ""}
    assert other["events"][0]["actions"][1] == failed
    assert "no route" not in str([each["reason"] for each in other["standing"]])
    agent.kill()
    agent.start()
    agent.until(lambda: agent.phase() == "Held" and agent.status()["endpoint"]["answers"])
    assert said(agent)[2:] == before[2:]


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
    agents: Callable[..., Agent],
) -> None:
    agent = agents(RULES).start(by=("-c", EARLY))
    agent.until(lambda: agent.status().get("endpoint", {}).get("answers"))
    agent.until(lambda: "reloaded the rules" in agent.said.read_text())
    assert agent.kill(signal.SIGTERM) == 0


PAGE = (tree.ROOT / "docs" / "reference" / "agent-metrics.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE)
EVERY_KIND = """
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


def scraped(counting: Agent) -> tuple[set[str], Samples]:
    """Return the families' names and the samples, as Prometheus' own parser reads them."""
    names, found = set(), {}
    for family in text_string_to_metric_families(counting.page("/metrics")[1]):
        names.add(f"{family.name}_total" if family.type == "counter" else family.name)
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return names, found


def test_each_metric_is_told_over_a_whole_event(
    tmp_path: Path, cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    counting = agents(EVERY_KIND.replace("FIXED", str(tmp_path / "fixed"))).start()
    counting.until(lambda: scraped(counting)[1].get("forewarn_agent_looks_total", 0) >= 1)
    quiet = scraped(counting)[1]
    assert (quiet["forewarn_agent_ready"], quiet["forewarn_agent_stuck"]) == (1, 0)
    assert (quiet["forewarn_agent_healthy"], quiet["forewarn_agent_endpoint_up"]) == (1, 1)
    assert 0 <= time.time() - quiet["forewarn_agent_last_look_timestamp_seconds"] < 40
    assert "forewarn_agent_notice_left_seconds" not in quiet
    cloud.show(event(notice=600))
    counting.until(lambda: counting.phase() == "Approved")
    live = scraped(counting)[1]
    assert live["forewarn_agent_events{phase=Approved,type=Reboot}"] == 1
    assert live["forewarn_agent_events_taken_total{type=Reboot}"] == 1
    assert 500 < live["forewarn_agent_notice_left_seconds"] < 600
    assert live["forewarn_agent_approvals_total"] == 1
    assert 0.1 <= live["forewarn_agent_approval_delay_seconds"] < 40
    assert live["forewarn_agent_ready"] == 0
    cloud.show(started())
    counting.until(lambda: counting.shows("Started"))
    cloud.show()
    counting.until(lambda: scraped(counting)[1]["forewarn_agent_stuck"] == 1)
    assert scraped(counting)[1]["forewarn_agent_ready"] == 0  # what was done before it stays
    (tmp_path / "fixed").symlink_to("/bin/true")
    reload(counting)
    counting.until(lambda: not counting.status()["standing"])
    over = scraped(counting)[1]
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


def test_an_agent_without_its_endpoint_waits_for_it_and_says_since_when(
    agents: Callable[..., Agent],
) -> None:
    port = free_port()
    counting = agents(EVERY_KIND, url=f"http://127.0.0.1:{port}").start()
    counting.until(lambda: "no connection" in counting.status().get("trouble", ""))
    with Endpoint(port) as cloud:
        counting.until(lambda: scraped(counting)[1].get("forewarn_agent_endpoint_up") == 1)
        assert counting.status()["trouble"] == ""
        cloud.status = 403
        counting.until(lambda: scraped(counting)[1]["forewarn_agent_endpoint_up"] == 0)
        blind = scraped(counting)[1]
        at = blind["forewarn_agent_last_look_timestamp_seconds"]
        assert 0 <= time.time() - at < 60
        assert blind["forewarn_agent_healthy"] == 1, "to start it anew would help nobody"
        assert counting.page("/healthz")[0] == 200
        asked = cloud.asked
        counting.until(lambda: cloud.asked > asked + 1)
        later = scraped(counting)[1]
        # Looks are a second apart; the page does not read its two clocks at one instant.
        assert later["forewarn_agent_last_look_timestamp_seconds"] == pytest.approx(at, abs=0.5)
        said = counting.status()
        assert said["endpoint"]["answers"] is False
        assert said["endpoint"]["answered_seconds_ago"] > 0
        assert "403" in said["trouble"]
        cloud.status = 200
        counting.until(lambda: scraped(counting)[1]["forewarn_agent_endpoint_up"] == 1)
        assert scraped(counting)[1]["forewarn_agent_last_look_timestamp_seconds"] > at
        assert counting.status()["endpoint"]["answers"] is True


def reload(counting: Agent) -> None:
    assert counting.process is not None
    counting.process.send_signal(signal.SIGHUP)
    until(lambda: "reloaded the rules" in counting.said.read_text())
