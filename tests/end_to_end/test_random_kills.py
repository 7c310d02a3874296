"""An agent that is killed again and again, at any instant, from an event's begin to its end.

Each life of it ends by SIGKILL after a random time, together with the programs that it began, as
systemd ends a unit's. The judge is the actions' own log, which they sync line by line. The seed is
printed; AGENT_KILLS and SEED in the environment set the number of kills and the seed, such as

    AGENT_KILLS=3 .venv/bin/python -m pytest -m "" tests/end_to_end/test_random_kills.py

What a kill meets still differs from run to run. `make test` ends the decider between any two of its
outputs: agent/test_any_order.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

import forked
from end_to_end.agents import Agent, Endpoint, event, started
from end_to_end.interrupted import NAMES, judge
from leftovers import children
from seeds import SEED

KILLS = int(os.environ.get("AGENT_KILLS", "20"))

STARTING = 0.6
"""Within these seconds a process is mostly killed before it has read its journal, or meanwhile."""

LIFE = 1.0
"""Seconds from when it answers to its kill at the latest; an event's three actions take as long."""

ACTION = 0.2
"""Seconds that each takes, so that a kill may well meet it."""

HOLDS = "while [ -e"
"""Where an action waits, in its text."""

LIVES = ((1, 4), (0, 2), (1, 3))
"""How many lives the agent has at least and at most while an event is Scheduled, while it is
Started, and when it is over."""

RULES = """
[[rule]]
name = "three"
match = { types = ["Reboot"] }
approve = "when-prepared"
prepare = [
  { command = { run = ["ACTION", "a"], undo = ["ACTION", "un-a"] } },
  { command = { run = ["ACTION", "b"], undo = ["ACTION", "un-b"], repeatable = true } },
  { command = { run = ["ACTION", "c"], undo = ["ACTION", "un-c"] } },
]
"""


class Lives:
    """One agent, killed many times; how often, and what it did in all of its lives."""

    def __init__(self, agent: Agent, chance: random.Random) -> None:
        self.agent = agent
        self.chance = chance
        self.kills = 0
        self.words = 0
        """How often somebody has said that what was cut may be done again."""

    def start(self) -> forked.Process:
        process = self.agent.process
        if process is None or process.poll() is not None:
            process = self.agent.start().process
        assert process is not None
        return process

    def live(self) -> None:
        """Live for a random time and be killed."""
        process = self.start()
        if self.chance.random() < 0.25:
            seconds = self.chance.uniform(0, STARTING)
        else:
            self.agent.until(lambda: self.agent.page("/healthz")[0])
            seconds = self.chance.uniform(0, LIFE)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGSTOP)  # it begins nothing while its programs are looked for
        groups = children(process.pid)
        assert self.agent.kill() == -signal.SIGKILL, "it never ends by itself"
        for group in groups:
            for kill in (os.kill, os.killpg):  # one just begun has no group of its own yet
                with contextlib.suppress(ProcessLookupError):
                    kill(group, signal.SIGKILL)
        self.kills += 1

    def settle(self) -> None:
        """Live on until nothing is in hand and nothing stands; say the word where it waits."""
        process = self.start()
        while True:
            self.agent.until(lambda: self.agent.status().get("events") == [] and self._at_rest())
            if not self.agent.status()["standing"]:
                return
            self.words += 1
            process.send_signal(signal.SIGHUP)
            self.agent.until(lambda: not self._stuck())

    def _at_rest(self) -> bool:
        return not self.agent.status()["standing"] or self._stuck()

    def _stuck(self) -> bool:
        return any(each["stuck"] for each in self.agent.status()["standing"])


@pytest.fixture
def agent(agents: Callable[..., Agent]) -> Agent:
    made = agents(RULES)
    text = made.action.read_text()
    assert HOLDS in text
    made.action.write_text(text.replace(HOLDS, f"sleep {ACTION}\n{HOLDS}"))
    return made


@pytest.mark.soak
def test_kills_at_any_instant_leave_the_machine_as_it_should_be(
    cloud: Endpoint, agent: Agent
) -> None:
    sys.stdout.write(f"SEED={SEED} AGENT_KILLS={KILLS} repeats the choices\n")
    chance = random.Random(SEED)
    lives = Lives(agent, chance)
    approvals: list[tuple[str, list[str]]] = []
    cloud.at_approval = lambda: approvals.append((cloud.approved[-1], agent.done[before:]))
    number = 0
    while lives.kills < KILLS:
        number += 1
        event_id, before, words = f"E{number}", len(agent.done), lives.words
        for shown, numbers in zip(([event(event_id)], [started(event_id)], []), LIVES, strict=True):
            cloud.show(*shown)
            for _ in range(chance.randint(*numbers)):
                lives.live()
        lives.settle()
        judge(agent.done[before:], lives.words - words)
        for approved, log in approvals:
            assert approved == event_id
            assert {f"{name} ends" for name in NAMES} <= set(log), "prepared before approved"
        told = f"{lives.kills} kills, {len(approvals)} approvals of {event_id}"
        sys.stdout.write(f"{told}: {', '.join(agent.done[before:])}\n")
        approvals.clear()
    assert agent.status()["standing"] == agent.status()["events"] == []
    assert agent.page("/healthz") == (200, "ok\n")
