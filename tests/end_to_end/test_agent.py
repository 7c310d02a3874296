"""`forewarn agent run` as people run it: its actions, its journal, its signals, its port."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
import patience
from client.scripted import Asked, message, serving
from end_to_end.agents import COMMAND_LINE, PYTHON, Agent, Endpoint, event, run, started, until
from end_to_end.running import Running
from forewarn.agent.daemon import Poller

TWO = """
[[rule]]
name = "two"
match = { types = ["Reboot"] }
prepare = [
  { command = { run = ["ACTION", "a"], undo = ["ACTION", "un-a"] } },
  { command = { run = ["ACTION", "b"], undo = ["ACTION", "un-b"], repeatable = true } },
]
approve = "when-prepared"
"""
DONE = ["a begins", "a ends", "b begins", "b ends"]
UNDONE = ["un-b begins", "un-b ends", "un-a begins", "un-a ends"]


@pytest.fixture
def agents(tmp_path: Path, cloud: Endpoint) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(rules: str = TWO, machine: str = "web-0") -> Agent:
        made.append(Agent(tmp_path / machine, cloud.url, rules, machine=machine))
        return made[-1]

    yield make
    for agent in made:
        agent.close()


def test_it_prepares_approves_and_undoes(cloud: Endpoint, agents: Callable[..., Agent]) -> None:
    agent = agents().start(by=COMMAND_LINE)
    cloud.show(event())
    agent.expect(*DONE)
    agent.until(lambda: agent.phase() == "Approved")
    assert cloud.approved == ["E1"]
    cloud.show(started())
    agent.until(lambda: agent.status()["events"][0]["event_status"] == "Started")
    cloud.show()
    agent.expect(*DONE, *UNDONE)
    agent.until(lambda: not agent.status()["standing"])
    assert cloud.approved == ["E1"]
    assert agent.kill(signal.SIGTERM) == 0


def test_a_killed_agent_undoes_what_was_over_meanwhile(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    agent = agents().start()
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Approved")
    agent.kill()
    cloud.show()
    agent.start()
    agent.expect(*DONE, *UNDONE)


def test_sigterm_finishes_what_is_under_way_and_leaves_the_rest_in_the_journal(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    agent = agents()
    (agent.folder / "hold").touch()
    agent.start()
    cloud.show(event())
    agent.expect("a begins")
    assert agent.process is not None
    agent.process.send_signal(signal.SIGTERM)
    (agent.folder / "hold").unlink()
    assert agent.process.wait(patience.SECONDS) == 0
    assert agent.done == DONE[:2]
    agent.start()
    agent.expect(*DONE)


def test_sighup_reads_the_rules_again_and_keeps_the_old_ones_where_it_cannot(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    agent = agents("").start()
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Seen")
    assert agent.process is not None
    agent.write("[[rule]]\nnam = 'two'\n")
    agent.process.send_signal(signal.SIGHUP)
    agent.until(lambda: "kept the old rules" in agent.said.read_text())
    assert "rule[0]: unknown key 'nam'" in agent.said.read_text()
    agent.write(TWO)
    agent.process.send_signal(signal.SIGHUP)
    agent.expect(*DONE)


def test_readyz_turns_while_the_machine_is_taken_out(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    rules = (
        '[[rule]]\nname = "pool"\napprove = "when-prepared"\n'
        'prepare = [{ ready = { wait_seconds = 0.2 } }, { command = { run = ["ACTION", "a"] } }]\n'
    )
    agent = agents(rules).start()
    agent.until(lambda: agent.page("/readyz") == (200, "ready\n"))
    cloud.show(event())
    agent.expect(*DONE[:2])
    assert agent.page("/readyz") == (503, "being taken out\n")
    agent.kill()
    agent.start()
    agent.until(lambda: agent.page("/readyz")[0])
    assert agent.page("/readyz")[0] == 503
    cloud.show()
    agent.until(lambda: agent.page("/readyz")[0] == 200)


def test_the_port_shows_health_status_and_metrics(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    agent = agents().start()
    cloud.show(event(notice=600))
    agent.until(lambda: agent.phase() == "Approved")
    assert agent.page("/healthz") == (200, "ok\n")
    assert agent.page("/nothing")[0] == 404
    (told,) = agent.status()["events"]
    assert told["rule"] == "two"
    assert told["agrees"] is True
    assert 500 < told["notice_left_seconds"] < 600
    assert [each["result"] for each in told["actions"]] == ["done", "done"]
    metrics = agent.page("/metrics")[1]
    assert 'forewarn_agent_events{type="Reboot",phase="Approved"} 1' in metrics
    done = 'forewarn_agent_actions_total{kind="command",phase="prepare",outcome="done"} 2'
    assert done in metrics
    assert "forewarn_agent_approvals_total 1" in metrics
    shown = run("-m", "forewarn", "agent", "status", "--config", str(agent.settings))
    assert "web-0: ready\nE1 Reboot Scheduled, " in shown.stdout
    assert "Approved by rule 'two'\n  command: done\n" in shown.stdout


def test_a_dry_run_says_and_does_nothing(cloud: Endpoint, agents: Callable[..., Agent]) -> None:
    agent = agents()
    cloud.show(event())
    agent.start("--dry-run", "--once", by=COMMAND_LINE)
    assert agent.process is not None
    assert agent.process.wait(patience.SECONDS) == 0
    said = [json.loads(line)["message"] for line in agent.said.read_text().splitlines()]
    assert [line for line in said if line.startswith("would")] == [
        "would do command",
        "would do command",
        "would approve E1",
    ]
    assert agent.done == cloud.approved == []
    assert not (agent.folder / "state").exists()


def test_rules_are_tried_beside_the_agent_that_has_the_status_port(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    real = agents().start()
    real.until(lambda: real.page("/readyz")[0] == 200)
    tries = agents()
    tries.settings.write_text(tries.settings.read_text().replace(str(tries.port), str(real.port)))
    cloud.show(event())
    tries.start("--dry-run", "--once")
    assert tries.process is not None
    assert tries.process.wait(patience.SECONDS) == 0
    said = [json.loads(line)["message"] for line in tries.said.read_text().splitlines()]
    assert "would approve E1" in said
    assert not real.status().get("dry_run")


def test_a_dry_run_stays_in_its_pool_and_tells_no_peer_that_it_is_prepared(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    """Else a machine that does nothing would be drained, and its event approved by another."""
    pool = (
        '[[rule]]\nname = "pool"\napprove = "when-prepared"\n'
        "prepare = [{ ready = { wait_seconds = 0.1 } }]\n"
    )
    tries, real = agents(pool, "web-1"), agents(pool)
    real.settings.write_text(f'peers = ["http://127.0.0.1:{tries.port}"]\n{pool}')
    tries.start("--dry-run")
    real.start()
    cloud.show(event(Resources=["web-0", "web-1"]))
    real.until(lambda: real.phase() == "Prepared")
    tries.until(lambda: tries.phase() == "Prepared")
    real.until(lambda: "web-1" in real.said.read_text())
    assert tries.page("/readyz") == (200, "ready\n")
    assert "forewarn_agent_ready 1\n" in tries.page("/metrics")[1]
    (shown,) = tries.status()["events"]
    assert not shown["agrees"]
    assert tries.status()["dry_run"]
    asked = run("-m", "forewarn", "agent", "status", "--config", str(tries.settings))
    said = asked.stdout.splitlines()
    assert said[0] == "web-1: ready"
    assert "dry run" in said[1]
    assert real.page("/readyz")[0] == 503
    assert cloud.approved == []


def test_once_ends_when_what_the_document_asks_for_is_done(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    agent = agents()
    cloud.show(event())
    agent.start("--once", by=COMMAND_LINE)
    assert agent.process is not None
    assert agent.process.wait(patience.SECONDS) == 0
    assert (agent.done, cloud.approved) == (DONE, ["E1"])
    cloud.show()
    agent.start("--once")
    assert agent.process.wait(patience.SECONDS) == 0
    assert agent.done == [*DONE, *UNDONE]


def test_a_second_agent_on_the_same_journal_is_refused(agents: Callable[..., Agent]) -> None:
    agent = agents().start()
    agent.until(lambda: agent.page("/healthz")[0])
    second = run(*COMMAND_LINE, "--config", str(agent.settings))
    assert second.returncode == 6
    assert "another agent has" in second.stderr


def test_a_webhook_is_told_in_one_line_without_a_package_for_it(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    told: list[dict[str, Any]] = []

    def take(asked: Asked, _: int) -> bytes:
        told.append(json.loads(asked.body))
        return message(200, b"")

    with serving(take) as hook:
        agent = agents(
            f"[[rule]]\nname = 'tell'\nprepare = [ {{ notify = {{ webhook = '{hook.url}' }} }} ]\n"
        ).start()
        cloud.show(event())
        agent.until(lambda: told)
    assert told[0]["event_id"] == "E1"
    assert "web-0: Reboot" in told[0]["text"]


def test_systemd_is_told(tmp_path: Path, cloud: Endpoint, agents: Callable[..., Agent]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(patience.SECONDS)
        given = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "20000000"}
        os.environ.update(given)
        try:
            agent = agents().start()
        finally:
            for name in given:
                del os.environ[name]
        assert heard.recv(1000) == b"READY=1"
        assert heard.recv(1000) == b"WATCHDOG=1"
        assert agent.process is not None
        agent.process.send_signal(signal.SIGHUP)
        told = set()
        while not any(line.startswith(b"RELOADING=1\nMONOTONIC_USEC=") for line in told):
            told.add(heard.recv(1000))
        agent.process.send_signal(signal.SIGTERM)
        while b"STOPPING=1" not in told:
            told.add(heard.recv(1000))
        assert agent.process.wait(patience.SECONDS) == 0


def test_the_process_carries_neither_command_line_nor_drawing() -> None:
    looked = subprocess.run(
        [PYTHON, "-c", "import sys, forewarn.agent.__main__\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {"typer", "click", "rich", "structlog", "asyncio", "pydantic", "sqlalchemy", "litestar"}
    assert not heavy & {name.partition(".")[0] for name in looked.stdout.split()}


# Several machines


def test_of_two_machines_the_first_approves_when_both_are_prepared(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    first, second = agents(), agents(machine="web-1")
    for agent, other in ((first, second), (second, first)):
        agent.write(f'peers = ["http://127.0.0.1:{other.port}"]\n{TWO}')
    (second.folder / "hold").touch()
    first.start()
    cloud.show(event(Resources=["web-0", "web-1"]))
    first.expect(*DONE)
    second.start()
    second.expect("a begins")
    assert cloud.approved == []
    (second.folder / "hold").unlink()
    first.until(lambda: first.phase() == "Approved")
    assert cloud.approved == ["E1"]
    until(lambda: second.phase() == "Prepared")


def test_a_peer_that_hangs_and_one_that_speaks_of_another_event_are_not_prepared(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    other = agents(machine="web-1").start()
    with socket.socket() as hanging:
        hanging.bind(("127.0.0.1", 0))
        hanging.listen()  # and nobody ever answers
        ports = other.port, hanging.getsockname()[1]
        peers = [f"http://127.0.0.1:{port}" for port in ports]
        first = agents()
        first.write(f"peers = {peers}\n{TWO}")
        first.start()
        cloud.show(event("E0", Resources=["web-1"]), event(Resources=["web-0", "web-1", "web-2"]))
        first.expect(*DONE)
        other.until(lambda: other.phase("E1") == "Prepared" and other.phase("E0") == "Approved")
        hanging.settimeout(patience.SECONDS)
        asked = [hanging.accept()[0] for _ in range(3)]  # three rounds, none of them answered
        assert cloud.approved == ["E0"]
        assert first.phase() == "Prepared"
        for connection in asked:
            connection.close()


FLEET = '[[machine]]\nname = "web-0"\n'


def test_with_the_service_itself_the_event_starts_when_the_machine_is_prepared(
    tmp_path: Path,
) -> None:
    service = Running(tmp_path, connector="reboot_seconds = 2")
    service.start()
    agent = Agent(tmp_path / "agent", f"http://127.0.0.1:{service.guest_port}", TWO)
    try:
        service.apply(FLEET)
        agent.start()
        assert service.call("schedule", "reboot", "web-0").returncode == 0
        agent.expect(*DONE, *UNDONE)
        (record,) = service.document("history")["operations"]
        assert record["status"] == "Completed"
    finally:
        agent.close()
        assert service.stop() == 0


def test_looking_goes_on_after_a_fault_of_its_own(cloud: Endpoint) -> None:
    told: list[object] = []

    def tell(cause: object) -> None:
        told.append(cause)
        if len(told) == 1:
            raise RuntimeError

    looking = Poller(f"{cloud.url}/vm/web-0", "web-0", tell)
    looking.start()
    until(lambda: len(told) > 1)
    assert looking.trouble == ""
    looking.close()


def test_one_empty_document_in_the_middle_of_a_started_event_undoes_nothing(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    """As a proxy or a server answers that just starts: the machine is down in a moment."""
    agent = agents().start()
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Approved")
    cloud.show(started())
    agent.until(lambda: agent.status()["events"][0]["event_status"] == "Started")
    asked = cloud.asked
    cloud.show_once()
    until(lambda: cloud.asked > asked + 3)
    assert agent.phase() == "Approved"
    assert agent.done == DONE
    cloud.show()
    agent.expect(*DONE, *UNDONE)


def test_an_event_that_is_listed_again_after_its_end_is_prepared_for_again(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    agent = agents().start()
    cloud.show(event())
    agent.until(lambda: agent.phase() == "Approved")
    cloud.show()
    agent.expect(*DONE, *UNDONE)
    cloud.show(event())
    agent.expect(*DONE, *UNDONE, *DONE)
    cloud.show()
    agent.expect(*DONE, *UNDONE, *DONE, *UNDONE)


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


each_instant = pytest.mark.parametrize(
    "how",
    [
        pytest.param("before", marks=pytest.mark.soak),
        "during",
        pytest.param("after", marks=pytest.mark.soak),
    ],
)


@each_instant
@pytest.mark.parametrize("at", range(1, 6))
def test_a_kill_at_any_write_leaves_the_machine_as_it_should_be(
    how: str, at: int, cloud: Endpoint, agents: Callable[..., Agent]
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


@each_instant
@pytest.mark.parametrize("at", range(6, 9))
def test_a_kill_at_any_write_of_undoing_leaves_the_machine_as_it_should_be(
    how: str, at: int, cloud: Endpoint, agents: Callable[..., Agent]
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
