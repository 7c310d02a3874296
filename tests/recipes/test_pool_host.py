"""The host that stands for libvirt: it restarts by the power switch, and nothing outlives it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import patience
from end_to_end.agents import until
from pool import place
from ports import free_port

NAMES = ("web-0", "web-1")


class Host:
    """A host of two machines, without agents."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "host.sock"
        port = free_port(*(place.address(name) for name in NAMES))
        machines = {}
        for name in NAMES:
            at = place.address(name)
            where = ["--name", name, "--address", at, "--port", str(port)]
            machines[name] = {
                "address": at,
                "port": port,
                "log": str(folder / f"{name}.log"),
                "programs": [[sys.executable, "-I", str(place.ROOM / "backend.py"), *where]],
            }
        settings = {"socket": str(self.socket), "boot_seconds": 0.1, "machines": machines}
        (folder / "host.json").write_text(json.dumps(settings))
        argv = [sys.executable, "-I", str(place.ROOM / "host.py"), str(folder / "host.json")]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        until(self.socket.exists)

    def told(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def restart(self, machine: str, kind: str = "Reboot") -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-I", str(place.ROOM / "restart.py"), str(self.socket)]
        given = {"FOREWARN_EVENT_TYPE": kind, "FOREWARN_MACHINE": machine}
        return subprocess.run(argv, env=given, capture_output=True, text=True, check=False)

    def close(self) -> int:
        """End it as its demo's end does, and return how it ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        status = self.process.wait(patience.SECONDS)
        self.process.stdout.close()
        return status


def runs(pid: int) -> bool:
    """Tell whether a process is there; one that only waits to be reaped is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


def test_a_restart_kills_the_machine_s_process_and_starts_another(host: Host) -> None:
    before = {told["machine"]: told["pids"] for told in (host.told(), host.told())}
    assert all(runs(pid) for pids in before.values() for pid in pids)
    restarted = host.restart("web-1")
    assert (restarted.returncode, restarted.stderr) == (0, "")
    off, on = host.told(), host.told()
    assert (off["machine"], off["power"], off["pids"]) == ("web-1", "off", [])
    assert (on["machine"], on["power"]) == ("web-1", "on")
    assert on["at"] - off["at"] >= 0.1
    assert set(on["pids"]).isdisjoint(before["web-1"])
    assert not any(runs(pid) for pid in before["web-1"])
    assert all(runs(pid) for pid in before["web-0"])


def test_what_it_does_not_know_it_refuses(host: Host) -> None:
    unknown = host.restart("web-9")
    assert unknown.returncode == 1
    assert unknown.stderr == "there is no machine 'web-9' here\n"
    other = host.restart("web-0", "Freeze")
    assert other.returncode == 1
    assert other.stderr == "no rule for Freeze\n"


def test_no_machine_outlives_its_host(host: Host) -> None:
    pids = [pid for _ in NAMES for pid in host.told()["pids"]]
    assert host.close() == 0
    assert not any(runs(pid) for pid in pids)


def test_machines_end_where_their_host_is_killed(host: Host) -> None:
    pids = [pid for _ in NAMES for pid in host.told()["pids"]]
    host.process.kill()
    host.process.wait()
    until(lambda: not any(runs(pid) for pid in pids))
    gone = host.restart("web-0")
    assert gone.returncode == 1
