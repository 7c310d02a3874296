"""An agent that is killed at any write of its journal goes on as if it had not been."""

import os
import signal
from collections.abc import Callable

import pytest

import forked
import patience
from end_to_end.agents import (
    DONE,
    Agent,
    Endpoint,
    event,
)

KILLER = """
import os, signal, sys
from forewarn.agent import journal
from forewarn.agent import __main__ as program

at, how = int(os.environ["KILL_AT"]), os.environ["KILL_HOW"]
count = 0
plain = journal.Journal.append

def append(self, *records):
    global count
    count += 1
    if count == at and how == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    if count == at and how == "during":
        self._database.execute("BEGIN IMMEDIATE")
        self._database.execute("INSERT INTO records VALUES (?, 0, 'torn')", (self._last + 1,))
        with open(f"{self._path}-wal", "ab") as torn:
            torn.write(b"half a frame" * 50)
        os.kill(os.getpid(), signal.SIGKILL)
    plain(self, *records)
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)

journal.Journal.append = append
program.main(sys.argv[1:])
"""


def start_to_be_killed(agent: Agent, at: int, how: str) -> forked.Process:
    """Start an agent that ends before, in or after its so-manieth write of records."""
    given = {"KILL_AT": str(at), "KILL_HOW": how}
    os.environ.update(given)
    try:
        agent.start(by=("-c", KILLER))
    finally:
        for name in given:
            del os.environ[name]
    assert agent.process is not None
    return agent.process


def each_instant(*writes: int) -> pytest.MarkDecorator:
    """Kill before, in and after each of these writes; by `make test` in the middle one alone."""
    middle = writes[len(writes) // 2]
    return pytest.mark.parametrize(
        ("at", "how"),
        [
            pytest.param(at, how, marks=() if (at, how) == (middle, "during") else pytest.mark.soak)
            for at in writes
            for how in ("before", "during", "after")
        ],
    )


@each_instant(*range(1, 6))
def test_a_kill_at_any_write_leaves_the_machine_as_it_should_be(
    at: int, how: str, cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    """Writes: booted; taken and a begun; a ended and b begun; b ended; approved."""
    agent = agents()
    cloud.show(event())
    process = start_to_be_killed(agent, at, how)
    assert process.wait(patience.SECONDS) == -signal.SIGKILL
    agent.start()
    agent.until(lambda: agent.phase() in {"Approved", "Held"})
    log = agent.done
    assert log.count("a begins") <= 1  # it may not be begun again
    if agent.phase() == "Held":
        assert log.count("a ends") in {0, 1}
        assert (at, how) in {(2, "after"), (3, "before"), (3, "during")}
        assert cloud.approved == []
    else:
        assert log[:2] == DONE[:2]
        assert log[-2:] == DONE[2:]
    cloud.show()
    agent.until(lambda: not agent.status()["standing"])
    undone = [line for line in agent.done[len(log) :] if line.endswith("ends")]
    assert undone == (["un-b ends", "un-a ends"] if "b begins" in log else ["un-a ends"])


@each_instant(*range(6, 9))
def test_a_kill_at_any_write_of_undoing_leaves_the_machine_as_it_should_be(
    at: int, how: str, cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    """Writes: gone and un-b begun; un-b ended and un-a begun; un-a ended."""
    agent = agents()
    cloud.show(event())
    process = start_to_be_killed(agent, at, how)
    agent.until(lambda: agent.phase() == "Approved")
    cloud.show()
    assert process.wait(patience.SECONDS) == -signal.SIGKILL
    agent.start()
    if (at, how) in {(7, "after"), (8, "before"), (8, "during")}:
        agent.until(lambda: any(each["stuck"] for each in agent.status().get("standing", ())))
        assert agent.done.count("un-a begins") == (at == 8)  # it may not be begun again unasked
        assert agent.process is not None
        agent.process.send_signal(signal.SIGHUP)
    agent.until(lambda: agent.status() and not agent.status()["standing"])
    assert agent.done[: len(DONE)] == DONE
    undone = agent.done[len(DONE) :]
    repeated = {(7, "before"): "un-b", (7, "during"): "un-b"}.get((at, how), "")
    asked = "un-a" if (at, how) in {(8, "before"), (8, "during")} else ""
    counts = {name: undone.count(f"{name} ends") for name in ("un-b", "un-a")}
    assert counts == {name: 2 if name in {repeated, asked} else 1 for name in counts}
    assert undone.index("un-a begins") > undone.index("un-b ends")
    assert cloud.approved == ["E1"]
