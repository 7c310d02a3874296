"""`forewarn agent run` as people run it: its actions, its journal, its signals, its port."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forked
import patience
from end_to_end.agents import (
    COMMAND_LINE,
    DONE,
    TWO,
    UNDONE,
    Agent,
    Endpoint,
    event,
    started,
    until,
)


def test_it_prepares_approves_and_undoes(cloud: Endpoint, agents: Callable[..., Agent]) -> None:
    agent = agents().start(by=COMMAND_LINE)
    cloud.show(event())
    agent.expect(*DONE)
    agent.until(lambda: agent.phase() == "Approved")
    assert cloud.approved == ["E1"]
    cloud.show(started())
    agent.until(lambda: agent.shows("Started"))
    cloud.show()
    agent.expect(*DONE, *UNDONE)
    agent.until(lambda: not agent.status()["standing"])
    assert cloud.approved == ["E1"]
    assert agent.kill(signal.SIGTERM) == 0


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
    shown = forked.run(("-m", "forewarn", "agent", "status", "--config", str(agent.settings)))
    assert "web-0: ready\nE1 Reboot Scheduled, " in shown.stdout
    assert "Approved by rule 'two'\n  command: done\n" in shown.stdout


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


def test_a_second_agent_on_the_same_journal_is_refused_for_now(
    agents: Callable[..., Agent],
) -> None:
    agent = agents().start()
    agent.until(lambda: agent.page("/healthz")[0])
    second = forked.run((*COMMAND_LINE, "--config", str(agent.settings)))
    assert second.returncode == 1  # systemd starts it again: the other one may end
    assert "another agent has" in second.stderr


def test_a_status_port_that_another_process_has_keeps_no_event_waiting(
    cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    agent = agents()
    with socket.create_server((agent.address, agent.port)):
        cloud.show(event())
        agent.start()
        agent.expect(*DONE)
        until(lambda: cloud.approved == ["E1"])
    agent.until(lambda: agent.phase() == "Approved")
    said = [json.loads(line)["level"] for line in agent.said.read_text().splitlines()]
    assert said.count("warning") == 1
    assert agent.kill(signal.SIGTERM) == 0


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
        [sys.executable, "-c", "import sys, forewarn.agent.__main__\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {"click", "rich", "structlog", "asyncio", "pydantic", "starlette"}
    assert not heavy & {name.partition(".")[0] for name in looked.stdout.split()}
