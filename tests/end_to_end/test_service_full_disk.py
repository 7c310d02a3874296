"""A disk that is full under a running service: it goes on answering, and says that it is not ready.

A limit on the size of the files that the process writes stands for the full disk, as in
`test_full_disk`.
"""

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.agents import until
from end_to_end.running import Running
from server.running import fleet, request_reboot


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    running.start(errors=subprocess.DEVNULL)
    yield running
    running.stop()


def limit(service: Running, size: int) -> None:
    assert service._process is not None
    pid = service._process.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


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
    limit(service, 0)
    assert told(service) == (503, "0.0", "0.0")
    refused = client.ask("POST", "/v1/approvals", {"references": ["1"]})
    assert (refused.status, refused.error["code"]) == (503, "unavailable")
    (event,) = client.get("/v1/events")["events"]
    assert event["status"] == "Scheduled"
    limit(service, resource.RLIM_INFINITY)
    until(lambda: told(service) == (200, "1.0", "1.0"))
    approved: Any = client.ask("POST", "/v1/approvals", {"references": ["1"]})
    assert approved.status == 200


def test_a_service_that_starts_on_a_full_disk_ends_so_that_systemd_starts_it_again(
    service: Running,
) -> None:
    assert service.stop() == 0
    command = ["prlimit", "--fsize=0", *service.command]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode != 0, ran.stderr
    service.start(errors=subprocess.DEVNULL)
