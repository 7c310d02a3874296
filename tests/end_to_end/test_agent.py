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
from end_to_end.agents import COMMAND_LINE, DONE, TWO, UNDONE, Agent, Endpoint, event, started


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
    asked = forked.run(("-m", "forewarn", "agent", "status", "--config", str(tries.settings)))
    said = asked.stdout.splitlines()
    assert said[0] == "web-1: ready"
    assert "dry run" in said[1]
    assert real.page("/readyz")[0] == 503
    assert cloud.approved == []


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
