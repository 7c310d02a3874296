"""Agents of machines that share an event ask one another before one of them approves."""

import socket
from collections.abc import Callable

import forked
import patience
from end_to_end.agents import DONE, TWO, Agent, Endpoint, event, until


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
