"""A service that watches hosts: its programs are children that neither end it nor outlive it."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors import hypervisor
from end_to_end.agents import until
from end_to_end.running import Running

G = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(2)]
FLEET = f"""
[[availability_set]]
name = "web"
machines = [
  {{ name = "g0", host = "h0", vm_id = "{G[0]}" }},
  {{ name = "g1", host = "h1", vm_id = "{G[1]}" }},
]
"""

PROGRAM = """#!{python}
# A host's program: it answers each survey with what is in its file.
import os, pathlib, sys
folder = pathlib.Path({folder!r}) / sys.argv[4].removeprefix("x:///")
(folder / "pid").write_text(str(os.getpid()))
for line in sys.stdin:
    print((folder / "domains").read_text(), flush=True)
"""


def domain(n: int, state: str = "running", reason: str = "") -> dict[str, str]:
    return {"uuid": G[n], "name": f"g{n}", "state": state, "reason": reason}


class Hosts:
    """The folders of two hosts whose programs say what the test writes there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "python"
        self.python.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
        self.python.chmod(0o755)
        for n, host in enumerate(("h0", "h1")):
            (folder / host).mkdir()
            self.has(host, domain(n))

    def has(self, host: str, *domains: dict[str, str]) -> None:
        told = self.folder / host / "next"
        told.write_text(json.dumps({"domains": domains}))
        told.rename(told.with_name("domains"))

    def pid(self, host: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / host / "pid").read_text())
        return 0

    def forget(self, host: str) -> None:
        (self.folder / host / "pid").unlink()


@pytest.fixture
def hosts(folder: Path) -> Hosts:
    return Hosts(folder)


@contextlib.contextmanager
def watching(folder: Path, python: str, uris: str) -> Iterator[Running]:
    service = Running(folder)
    with service.settings.open("a") as settings:
        settings.write(f'[fleet.libvirt]\nsync = true\npython = "{python}"\nuris = {uris}\n')
    service.start()
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture
def service(folder: Path, hosts: Hosts) -> Iterator[Running]:
    uris = '{ h0 = "x:///h0", h1 = "x:///h1" }'
    with watching(folder, str(hosts.python), uris) as running:
        applied = running.call("fleet", "apply", "-", stdin=FLEET)
        assert applied.returncode == 0, applied.stderr
        until(
            lambda: running.log.read_text().count("a host is watched") == 2, running.log.read_text
        )
        yield running


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]


def test_a_program_that_is_killed_is_started_again(service: Running, hosts: Hosts) -> None:
    killed = hosts.pid("h0")
    hosts.forget("h0")
    os.kill(killed, signal.SIGKILL)
    until(lambda: hosts.pid("h0"), service.log.read_text)
    assert hosts.pid("h0") != killed
    assert alive(hosts.pid("h1"))


@pytest.mark.parametrize("kill", [False, True])
def test_no_program_outlives_its_service(service: Running, hosts: Hosts, *, kill: bool) -> None:
    pids = [hosts.pid(host) for host in ("h0", "h1")]
    assert all(map(alive, pids))
    if kill:
        service.kill()
    else:
        assert service.stop() == 0
    until(lambda: not any(map(alive, pids)), lambda: pids)


@pytest.mark.skipif(
    not hypervisor.has_libvirt(), reason=f"{hypervisor.PYTHON} has no libvirt module"
)
def test_libvirts_own_test_driver_is_watched(folder: Path) -> None:
    with watching(folder, hypervisor.PYTHON, '{ lab = "test:///default" }') as service:
        until(lambda: "a host is watched" in service.log.read_text(), service.log.read_text)
        known = service.call("fleet", "sync")
        assert known.returncode == 0, known.stderr
        assert service.operator.get("/v1/fleet/machines/test")["host"] == "lab"
        assert service.stop() == 0
