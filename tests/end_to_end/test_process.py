"""The service as a process of its own: its signals, its exit statuses, and a disk that is full."""

import contextlib
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
from end_to_end.agents import COMMAND_LINE, Agent
from end_to_end.running import Running
from forewarn.server import run
from forewarn.server.process import BY_SIGNAL
from leftovers import alive
from patience import SECONDS, until
from server.running import fleet, request_reboot


@pytest.fixture
def service(folder: Path) -> Iterator[Running]:
    made = Running(folder)
    yield made
    made.kill()


def start_silently(service: Running, errors: int) -> None:
    """Start it, and wait until it answers operators: its log goes elsewhere."""
    service.start(errors=errors, awaits=False)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return service.operator.ask("GET", "/readyz").status == 200
        return False

    until(answers)


def test_a_signal_stops_it_and_leaves_everything_clean_for_the_next_start(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = service.folder / "forewarn.db"
    database.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(service.folder / "notify.sock"))
        systemd.settimeout(SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(service.folder / "notify.sock"))
        monkeypatch.setenv("WATCHDOG_USEC", "600000000")
        service.start(awaits=False)
        assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"WATCHDOG=1"
        assert service.operator.get("/readyz")["ready"]
        (ready,) = service.said("ready")
        assert (ready["operators"], ready["pid"]) == ([f"unix:{service.socket}"], service.pid)
        assert (ready["machines"], ready["scopes"]) == (0, 0)
        service.operator.ask("PUT", "/v1/fleet", fleet())
        assert service.stop() == run.STOPPED
        assert systemd.recv(100) == b"STOPPING=1"
    assert [line["event"] for line in service.said()][-2:] == ["stopping", "stopped"]
    assert not service.socket.exists()
    assert not (service.folder / "forewarn.db-wal").exists()
    monkeypatch.delenv("NOTIFY_SOCKET")
    service.start()
    _, again = service.said("ready")
    served = service.operator
    assert again["machines"] == len(served.get("/v1/fleet/machines")["machines"]) > 0
    assert again["scopes"] == len(served.get("/v1/fleet/scopes")["scopes"]) > 0
    (new,) = (line for line in service.said() if line["event"].startswith("a new database was"))
    assert (new["level"], new["database"]) == ("warning", str(database))


def test_a_second_signal_ends_it_at_once(service: Running) -> None:
    service.start()
    service.operator.ask("PUT", "/v1/fleet", fleet())
    with socket.create_connection(("127.0.0.1", service.guest_port)) as slow:
        # A request under way, whose body never ends, is waited for: time for a second signal.
        slow.sendall(
            b"POST /vm/web-0/metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\n"
            b"Host: 127.0.0.1\r\nMetadata: true\r\nContent-Length: 100\r\n\r\n{"
        )
        service.ask("web-0")
        os.kill(service.pid, signal.SIGTERM)
        until(lambda: service.said("stopping"), service.log.read_text)
        assert service.stop() == BY_SIGNAL + signal.SIGTERM


def test_at_a_terminal_a_hangup_ends_it(service: Running) -> None:
    master, slave = pty.openpty()
    start_silently(service, slave)
    os.close(slave)
    try:
        service.send(signal.SIGHUP)
        assert service.ended() == -signal.SIGHUP
    finally:
        os.close(master)


def test_a_taken_port_is_refused_in_one_line(service: Running) -> None:
    with socket.create_server(("127.0.0.1", service.guest_port)):
        service.start(awaits=False)
        assert service.ended() == run.BAD_SOCKET
    errors = [line["event"] for line in service.said() if line["level"] == "error"]
    assert len(errors) == 1
    assert f"127.0.0.1:{service.guest_port}" in errors[0]
    assert not service.socket.exists()


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
@pytest.mark.parametrize(("mode", "told"), [(0o777, ["0777"]), (0o1777, [])])
def test_a_folder_in_which_any_user_may_replace_the_database_is_told(
    service: Running, mode: int, told: list[str]
) -> None:
    state = service.folder / "state"
    state.mkdir()
    state.chmod(mode)
    (state / "forewarn.db").touch()
    text = service.settings.read_text()
    service.settings.write_text(text.replace("forewarn.db", "state/forewarn.db"))
    service.start(awaits=False)
    service.ended()
    assert [line["mode"] for line in service.said() if "mode" in line] == told


PROGRAM = """#!{python}
# A host's program: it has no domain to tell of.
import os, pathlib, sys
pathlib.Path({folder!r}, sys.argv[4].removeprefix("x:///")).write_text(str(os.getpid()))
for line in sys.stdin:
    print('{{"domains": []}}', flush=True)
"""
SETTINGS = """
[fleet.libvirt]
sync = true
python = "{program}"
uris = {{ h0 = "x:///h0", h1 = "x:///h1" }}
"""


@pytest.mark.parametrize("end", [Running.kill, Running.stop], ids=["killed", "stopped"])
def test_no_program_outlives_its_service(folder: Path, end: Callable[[Running], object]) -> None:
    program = folder / "python"
    program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o755)
    service = Running(folder, more=SETTINGS.format(program=program))
    service.start()
    until(lambda: len(service.said("a host is watched")) == 2, service.log.read_text)
    pids = [int((folder / host).read_text()) for host in ("h0", "h1")]
    assert all(map(alive, pids))
    end(service)
    until(lambda: not any(map(alive, pids)), lambda: pids)


# A disk that is full under a service, or at a start: nothing is done that is not written.
#
# A limit on the size of the files that the process writes (RLIMIT_FSIZE) stands for the full disk:
# it wants no privilege, is set and lifted while the process runs, and the kernel refuses the write
# as it does on a full disk, with EFBIG in the place of ENOSPC. A running agent has `agents.txt`.


def limit(pid: int, size: int = resource.RLIM_INFINITY) -> None:
    """Let no file of a process grow beyond a size; without one, any may."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def told(service: Running) -> tuple[int, str, str]:
    """Return what `/readyz`, `forewarn_ready` and `forewarn_store_up` say."""
    lines = service.operator.ask("GET", "/metrics").body.decode().splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    ready = service.operator.ask("GET", "/readyz")
    return ready.status, figures["forewarn_ready"], figures["forewarn_store_up"]


def test_a_service_whose_disk_is_full_says_that_it_is_not_ready(service: Running) -> None:
    start_silently(service, subprocess.DEVNULL)
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
    service: Running, agents: Callable[..., Agent]
) -> None:
    agent = agents()
    command = [sys.executable, *COMMAND_LINE, "--config", str(agent.settings)]
    ran = [forked.completed(["prlimit", "--fsize=0", *each]) for each in (command, service.command)]
    assert all(each.returncode for each in ran), ran
    assert "forewarn: cannot use" in ran[0].stderr
    agent.start().until(lambda: agent.page("/healthz")[0] == 200)
    with service:
        assert service.operator.get("/readyz")["ready"]
