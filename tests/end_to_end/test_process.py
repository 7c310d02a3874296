"""The service as a process of its own: its signals, its exit statuses, and what survives them."""

import contextlib
import http.client
import json
import os
import queue
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import forked
import patience
from forewarn.clock import SystemClock
from forewarn.control import service_clock
from forewarn.server import run, service
from forewarn.server.process import BY_SIGNAL
from forewarn.store import sqlite
from server.running import Client, fleet, request_reboot

SERVE = """
import os, sys
from pathlib import Path
from forewarn.server import run, settings
sys.exit(run.serve(settings.load(Path(sys.argv[1]), os.environ)))
"""

SETTINGS = """
[store]
path = "forewarn.db"
[[guest.listener]]
port = 0
[log]
format = "json"
"""


class Process:
    """`forewarn serve` on a folder, from its ready line to its end."""

    def __init__(self, folder: Path, text: str = SETTINGS, **environment: str) -> None:
        self.folder = folder
        path = folder / "forewarn.toml"
        path.write_text(text, encoding="utf-8")
        self.process = forked.Forked(
            ["-c", SERVE, str(path)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.log: list[dict[str, Any]] = []

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)

    def until(self, event: str) -> dict[str, Any]:
        """Return the log's next line of this event."""
        while True:
            line = json.loads(self.lines.get(timeout=patience.SECONDS))
            self.log.append(line)
            if line["event"] == event:
                return line

    def rest(self) -> list[dict[str, Any]]:
        """Return what the log still said, after the process's end."""
        self._reader.join(patience.SECONDS)
        return [json.loads(self.lines.get()) for _ in range(self.lines.qsize())]

    def client(self) -> Client:
        return Client(self.folder / "operator.sock")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, and return the exit status."""
        self.process.send_signal(number)
        return self.process.wait(patience.SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(patience.SECONDS)
        self._reader.join(patience.SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.close()


def start(processes: list[Process], folder: Path, **environment: str) -> Process:
    process = Process(folder, **environment)
    processes.append(process)
    return process


def test_a_signal_stops_it_and_leaves_everything_clean(
    processes: list[Process], tmp_path: Path
) -> None:
    process = start(processes, tmp_path)
    ready = process.until("ready")
    assert ready["operators"] == [f"unix:{tmp_path / 'operator.sock'}"]
    assert ready["pid"] == process.process.pid
    process.client().ask("PUT", "/v1/fleet", fleet())
    assert process.stop() == run.STOPPED
    assert [line["event"] for line in process.rest()][-2:] == ["stopping", "stopped"]
    assert not (tmp_path / "operator.sock").exists()
    assert not (tmp_path / "forewarn.db-wal").exists()


def as_guest(address: str, name: str, method: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(
        address.removeprefix("http://"), timeout=patience.SECONDS
    )
    path = f"/vm/{name}/metadata/scheduledevents?api-version=2020-07-01"
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers={"Metadata": "true"})
        response = connection.getresponse()
        return response.status, response.read()


def test_a_new_database_is_told_and_the_ready_line_counts_what_is_served(
    processes: list[Process], tmp_path: Path
) -> None:
    first = start(processes, tmp_path)
    ready = first.until("ready")
    (new,) = (line for line in first.log if line["event"].startswith("a new database was made: "))
    assert (new["level"], new["database"]) == ("warning", str(tmp_path / "forewarn.db"))
    assert (ready["machines"], ready["scopes"]) == (0, 0)
    first.client().ask("PUT", "/v1/fleet", fleet())
    assert first.stop() == run.STOPPED
    second = start(processes, tmp_path)
    ready = second.until("ready")
    served = second.client()
    assert ready["machines"] == len(served.get("/v1/fleet/machines")["machines"]) > 0
    assert ready["scopes"] == len(served.get("/v1/fleet/scopes")["scopes"]) > 0
    assert not [line for line in second.log if "new database" in line["event"]]


def test_a_second_signal_ends_it_at_once(processes: list[Process], tmp_path: Path) -> None:
    process = start(processes, tmp_path)
    (address,) = process.until("ready")["guests"]
    process.client().ask("PUT", "/v1/fleet", fleet())
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        # A request under way, whose body never ends, is waited for: time for a second signal.
        slow.sendall(
            b"POST /vm/web-0/metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\n"
            b"Host: 127.0.0.1\r\nMetadata: true\r\nContent-Length: 100\r\n\r\n{"
        )
        as_guest(address, "web-0", "GET")
        process.process.send_signal(signal.SIGTERM)
        process.until("stopping")
        assert process.stop() == BY_SIGNAL + signal.SIGTERM


def test_a_taken_port_is_refused_in_one_line(processes: list[Process], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = Process(tmp_path, SETTINGS.replace("port = 0", f"port = {port}"))
        processes.append(process)
        assert process.process.wait(patience.SECONDS) == run.BAD_SOCKET
    errors = [line["event"] for line in process.rest() if line["level"] == "error"]
    assert len(errors) == 1
    assert f"127.0.0.1:{port}" in errors[0]
    assert not (tmp_path / "operator.sock").exists()


def test_systemd_is_told_when_it_is_ready_and_when_it_stops(
    processes: list[Process], tmp_path: Path
) -> None:
    place = tmp_path / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(place))
        listening.settimeout(patience.SECONDS)
        process = start(processes, tmp_path, NOTIFY_SOCKET=str(place))
        assert listening.recv(100) == b"READY=1"
        assert process.client().get("/readyz")["ready"]
        process.process.send_signal(signal.SIGTERM)
        assert listening.recv(100) == b"STOPPING=1"
        assert process.process.wait(patience.SECONDS) == run.STOPPED


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
@pytest.mark.parametrize(("mode", "told"), [(0o777, ["0777"]), (0o1777, [])])
def test_a_folder_in_which_any_user_may_replace_the_database_is_told(
    processes: list[Process], tmp_path: Path, mode: int, told: list[str]
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(mode)
    (tmp_path / "state" / "forewarn.db").touch()
    text = SETTINGS.replace("forewarn.db", "state/forewarn.db")
    process = Process(tmp_path, text)
    processes.append(process)
    process.process.wait(patience.SECONDS)
    lines = process.rest()
    assert [line["mode"] for line in lines if "mode" in line] == told


HOUR = timedelta(hours=1)


def scaled(scale: float) -> str:
    return f"{SETTINGS}[clock]\nscale = {scale}\n"


def serving(processes: list[Process], folder: Path, text: str) -> tuple[Process, str]:
    process = Process(folder, text)
    processes.append(process)
    (address,) = process.until("ready")["guests"]
    return process, address


def operation(process: Process) -> dict[str, Any]:
    (found,) = process.client().get("/v1/history")["operations"]
    assert isinstance(found, dict)
    return found


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)


def an_hour_passes(folder: Path, scale: float) -> None:
    """Let the clock of a service that does not run go on by an hour, and then at a scale."""
    now = SystemClock().now()
    origin = service_clock.ClockScale(scale=scale, origin=now + HOUR, real_origin=now)
    store = sqlite.open_store(folder / "forewarn.db")
    with store.write() as transaction:
        transaction.put_setting(service.CLOCK_SETTING, msgspec.json.encode(origin).decode())
    store.close()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_a_restart_after_notbefore_passed_gives_the_outage_back_before_anything_starts(
    processes: list[Process], tmp_path: Path, number: signal.Signals
) -> None:
    scale = 300.0  # 15 minutes are 3 s
    first, _ = serving(processes, tmp_path, SETTINGS)
    first.client().ask("PUT", "/v1/fleet", fleet())
    promised = when(request_reboot(first.client())["operations"][0]["not_before"])
    first.stop(number)
    an_hour_passes(tmp_path, scale)
    again, address = serving(processes, tmp_path, scaled(scale))
    found = operation(again)
    moved = when(found["not_before"]) - promised
    assert moved >= HOUR
    told = [line for line in again.log if line["event"].startswith("guests could not read")]
    assert [line["operations"] for line in told] == [1]
    assert told[0]["seconds"] >= HOUR.total_seconds()
    status, document = as_guest(address, "web-0", "GET")
    assert status == 200
    assert json.loads(document)["DocumentIncarnation"] >= 2
    found = patience.until(lambda: one if (one := operation(again))["started_at"] else None)
    assert when(found["started_at"]) >= when(found["not_before"]) >= promised + moved
