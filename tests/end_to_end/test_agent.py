"""`forewarn agent run` as people run it: actions, journal, signals, port, peers and endpoint."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import forked
import patience
from end_to_end.agents import COMMAND_LINE, DONE, TWO, UNDONE, Agent, Endpoint, event, started
from forewarn.agent.daemon import Poller
from forewarn.agent.decider import ApprovalAnswered, ApproveEvent
from forewarn.client.event import Event
from patience import until


def test_signals_reload_the_rules_and_end_it_and_systemd_is_told(
    tmp_path: Path, cloud: Endpoint, agents: Callable[..., Agent]
) -> None:
    agent = agents("")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(patience.SECONDS)

        def wait_for(word: bytes) -> None:
            while not heard.recv(1000).startswith(word):
                pass

        agent.environment = {
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": "20000000",
        }
        process = agent.start().process
        assert process is not None
        assert [heard.recv(1000) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
        cloud.show(event())
        agent.until(lambda: agent.phase() == "Seen")
        agent.write("[[rule]]\nnam = 'two'\n")
        process.send_signal(signal.SIGHUP)
        wait_for(b"RELOADING=1\nMONOTONIC_USEC=")
        agent.until(lambda: "kept the old rules" in agent.said.read_text())
        assert "rule[0]: unknown key 'nam'" in agent.said.read_text()
        (agent.folder / "hold").touch()
        agent.write(TWO)
        process.send_signal(signal.SIGHUP)
        agent.expect("a begins")
        process.send_signal(signal.SIGTERM)  # finishes what is under way, and leaves the rest
        (agent.folder / "hold").unlink()
        wait_for(b"STOPPING=1")
    assert process.wait(patience.SECONDS) == 0
    assert agent.done == DONE[:2]
    agent.environment = {}
    agent.start()
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
    cloud.show(started())
    agent.start("--once")
    assert agent.process.wait(patience.SECONDS) == 0
    cloud.show()
    agent.start("--once")
    assert agent.process.wait(patience.SECONDS) == 0
    assert (agent.done, cloud.approved) == ([*DONE, *UNDONE], ["E1"])


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


def test_an_approval_that_an_endpoint_cannot_take_is_given_back_in_time(cloud: Endpoint) -> None:
    """So the other machines are asked anew: what they said may not be so any more."""
    told: list[object] = []
    looking = Poller(f"{cloud.url}/vm/web-0", "web-0", told.append)
    seen = Event(
        event_id="E1",
        status="Scheduled",
        event_type="Reboot",
        resource_type="VirtualMachine",
        resources=("web-0", "web-1"),
        not_before=None,
    )
    cloud.show(event())
    cloud.approval_status = 503
    looking.approve(ApproveEvent(7, seen))
    until(lambda: told)
    assert told == [ApprovalAnswered(7, None)]
    assert len(cloud.approved) > 1, "it was tried more than once"
    looking.close()


def test_a_fault_of_the_agents_own_in_looking_is_trouble_until_the_next_answer(
    cloud: Endpoint,
) -> None:
    seen: list[tuple[bool, str]] = []

    def tell(_: object) -> None:
        seen.append((looking.is_answered, looking.trouble))
        if len(seen) == 1:
            raise ValueError("as no look does")

    looking = Poller(f"{cloud.url}/vm/web-0", "web-0", tell)
    assert not looking.is_answered
    looking.start()
    until(lambda: "as no look does" in looking.trouble)
    assert not looking.is_answered
    until(lambda: len(seen) > 1)
    assert seen[:2] == [(True, "")] * 2
    looking.close()
