"""One event of eight machines, each with an agent, and the service itself: who approves, and when.

The machines are named like addresses of the loopback, so that the agents find one another by a
pattern and one port, as they do in production. What is approved is judged at the service: by its
count of POSTs, and by its history's word on why the event started.
"""

import contextlib
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.scripted import Scripted, message, serving
from end_to_end.agents import Agent, until
from end_to_end.running import Running
from ports import free_port

NAMES = [f"127.0.1.{number}" for number in range(1, 9)]
FIRST, HANGS, DIES, LIES = NAMES[0], NAMES[2], NAMES[4], NAMES[6]
FLEET = {
    "availability_set": [
        {"name": "web", "machines": [{"name": name, "host": "h1"} for name in NAMES]}
    ]
}
RULES = """
peers = "http://{machine}:PORT"

[[rule]]
name = "all of us"
match = { types = ["Reboot"] }
prepare = [{ command = { run = ["ACTION", "a"], undo = ["ACTION", "un-a"] } }]
approve = "when-prepared"
"""
DONE, UNDONE = ["a begins", "a ends"], ["un-a begins", "un-a ends"]
APPROVED_ONCE = ("approved", FIRST, 1)


class Eight:
    """The service and the agents of its eight machines; each test is one event."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.service = Running(folder, connector="reboot_seconds = 0.5")
        self.service.start()
        assert self.service.operator.ask("PUT", "/v1/fleet", FLEET).status == 200
        self.port = free_port(*NAMES)
        self.agents = {name: self.made(name) for name in NAMES}
        self.posts_before = 0

    def made(self, name: str) -> Agent:
        asked = f"http://127.0.0.1:{self.service.guest_port}"
        rules = RULES.replace("PORT", str(self.port))
        return Agent(self.folder / name, asked, rules, machine=name, listen=(name, self.port))

    def begin(self) -> None:
        """Make every agent run and be idle, with an empty log."""
        for agent in self.agents.values():
            if agent.process is None or agent.process.poll() is not None:
                agent.start()
        for agent in self.agents.values():
            agent.until(lambda agent=agent: agent.page("/healthz")[0] == 200)
            agent.until(lambda agent=agent: agent.status().get("events") == [])
            agent.until(lambda agent=agent: agent.status()["standing"] == [])
            agent.log.unlink(missing_ok=True)
        self.posts_before = self.service.posts()

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()
        self.service.stop()

    # The event

    def announce(self) -> str:
        """Announce a reboot of all eight; return the event's id."""
        asked = {"event_type": "Reboot", "hosts": ["h1"]}
        answer = self.service.operator.ask("POST", "/v1/maintenances", asked)
        assert answer.status == 201, answer.body
        (shown,) = self.service.operator.get("/v1/events")["events"]
        assert shown["machines"] == NAMES
        return str(shown["id"])

    def over(self) -> dict[str, Any]:
        """Wait for the event's end; return the operation as the history has it."""
        operation = self.service.operation
        until(lambda: operation()["status"] == "Completed", operation)
        return operation()

    @property
    def approvals(self) -> int:
        return self.service.posts() - self.posts_before

    def hold(self, *names: str) -> None:
        """Let the actions of these machines wait before their end."""
        for name in names:
            (self.agents[name].folder / "hold").touch()

    def let_go(self, name: str) -> None:
        (self.agents[name].folder / "hold").unlink()

    def prepared(self, event_id: str, *names: str) -> None:
        """Wait until the agents of these machines say that they are prepared."""
        for name in names:
            agent = self.agents[name]
            agent.until(lambda agent=agent: agent.phase(event_id) == "Prepared")

    # The judgement

    def ended(self) -> tuple[str, str, int]:
        """Wait for the event's end.

        Returns:
            Why it started, who approved it as the history tells, and how many POSTs there were.
        """
        operation = self.over()
        (told,) = operation["events"]
        approver = (told["approval"] or {"by": ""})["by"]
        return str(operation["start_cause"]), approver, self.approvals

    def each_did_and_undid_it_once(self, *names: str) -> None:
        for name in names or NAMES:
            self.agents[name].expect(*DONE, *UNDONE)


@pytest.fixture(scope="module")
def _eight() -> Iterator[Eight]:
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:
        made = Eight(Path(folder))
        yield made
        made.close()


@pytest.fixture
def eight(_eight: Eight) -> Eight:
    _eight.begin()
    return _eight


# The faults: alone they are in agent/test_approval and end_to_end/test_agent


@contextlib.contextmanager
def one_hangs(eight: Eight) -> Iterator[None]:
    """An agent that was stopped: its port takes connections, and never answers.

    It ends with that: where it went on, it would see first what it was answered meanwhile.
    """
    process = eight.agents[HANGS].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        eight.agents[HANGS].kill()


def one_dies(eight: Eight) -> None:
    """An agent that has said that it is prepared, and is killed before anybody approves."""
    assert eight.agents[DIES].status()["events"][0]["agrees"]
    eight.agents[DIES].kill()


@contextlib.contextmanager
def one_lies(eight: Eight) -> Iterator[Scripted]:
    """A peer that says it is prepared, for another event than the one that it is asked about."""
    eight.agents[LIES].kill()
    events = [{"event_id": "00000000-0000-0000-0000-000000000000", "agrees": True}]
    body = json.dumps({"machine": LIES, "ready": True, "events": events}).encode()
    with serving(lambda *_: message(200, body), eight.port, LIES) as liar:
        yield liar


# What follows from each


def test_eight_that_are_prepared_are_approved_once_by_the_first(eight: Eight) -> None:
    eight.announce()
    assert eight.ended() == APPROVED_ONCE
    eight.each_did_and_undid_it_once()


def test_for_one_that_hangs_one_that_dies_and_one_that_lies_nobody_approves(eight: Eight) -> None:
    eight.hold(FIRST)
    with one_hangs(eight), one_lies(eight) as liar:
        event_id = eight.announce()
        eight.prepared(event_id, *(set(NAMES) - {FIRST, HANGS, LIES}))
        one_dies(eight)
        eight.let_go(FIRST)
        eight.prepared(event_id, FIRST)
        before = liar.connections
        until(lambda: liar.connections > before + 1)  # once more after a whole round
        assert eight.approvals == 0
        operation = eight.service.operation()
        assert operation["status"] == "Scheduled"
        withdrawn = {"references": [operation["id"]]}
        assert eight.service.operator.ask("POST", "/v1/cancellations", withdrawn).status == 200


def test_when_the_first_dies_after_it_was_prepared_it_approves_once_it_is_back(
    eight: Eight,
) -> None:
    last = NAMES[-1]
    eight.hold(last)
    event_id = eight.announce()
    eight.prepared(event_id, *NAMES[:-1])
    eight.agents[FIRST].kill()
    eight.let_go(last)
    eight.prepared(event_id, last)
    assert eight.approvals == 0, "nobody else does it in its place"
    eight.agents[FIRST].start()
    assert eight.ended() == APPROVED_ONCE
    eight.each_did_and_undid_it_once()
