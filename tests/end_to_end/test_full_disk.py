"""A disk that is full under a service, or at a start: nothing is done that is not written.

A limit on the size of the files that the process writes (RLIMIT_FSIZE) stands for the full disk: it
wants no privilege, is set and lifted while the process runs, and the kernel refuses the write as
it does on a full disk, with EFBIG in the place of ENOSPC. A running agent has `agents.txt`.
"""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
from end_to_end.agents import COMMAND_LINE, Agent, until
from end_to_end.running import Running
from server.running import fleet, request_reboot


@pytest.fixture
def agent(agents: Callable[..., Agent]) -> Agent:
    return agents()


def limit(pid: int, size: int = resource.RLIM_INFINITY) -> None:
    """Let no file of a process grow beyond a size; without one, any may."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.start(errors=subprocess.DEVNULL)
    yield running
    running.stop()


def told(service: Running) -> tuple[int, str, str]:
    """Return what `/readyz`, `forewarn_ready` and `forewarn_store_up` say."""
    lines = service.operator.ask("GET", "/metrics").body.decode().splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    ready = service.operator.ask("GET", "/readyz")
    return ready.status, figures["forewarn_ready"], figures["forewarn_store_up"]


def test_a_service_whose_disk_is_full_says_that_it_is_not_ready(service: Running) -> None:
    client = service.operator
    assert client.ask("PUT", "/v1/fleet", fleet()).status == 200
    request_reboot(client)
    assert told(service) == (200, "1.0", "1.0")
    limit(service.pid, 0)
    assert told(service) == (503, "0.0", "0.0")
    refused = client.ask("POST", "/v1/approvals", {"references": ["1"]})
    assert (refused.status, refused.error["code"]) == (503, "unavailable")
    (event,) = client.get("/v1/events")["events"]
    assert event["status"] == "Scheduled"
    limit(service.pid)
    until(lambda: told(service) == (200, "1.0", "1.0"))
    approved: Any = client.ask("POST", "/v1/approvals", {"references": ["1"]})
    assert approved.status == 200


def test_what_starts_on_a_full_disk_ends_so_that_systemd_starts_it_again(
    tmp_path: Path, agent: Agent
) -> None:
    agents = [sys.executable, *COMMAND_LINE, "--config", str(agent.settings)]
    service = Running(tmp_path)
    ran = [forked.completed(["prlimit", "--fsize=0", *each]) for each in (agents, service.command)]
    assert all(each.returncode for each in ran), ran
    assert "forewarn: cannot use" in ran[0].stderr
    agent.start().until(lambda: agent.page("/healthz")[0] == 200)
    with service:
        assert service.operator.get("/readyz")["ready"]
