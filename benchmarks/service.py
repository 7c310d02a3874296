"""A real `forewarn serve` process on a file of its own, and what a benchmark asks of it."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import machine

START_SECONDS = 60.0


class OperatorSocket(http.client.HTTPConnection):
    """HTTP over the operators' unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=300)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Service:
    """Runs while the `with` block does, on the server's core.

    Args:
        settings: TOML that is added to the settings.
        address: Where guests ask. `0.0.0.0` is no loopback listener, so that its limits are those
            that guests on a bridge meet.
        listener: TOML that is added to the listener's settings.
        within: What stands before its command.
        store: TOML in the place of its file's.
        alone: Whether it has the server's core; replicas share all cores with their load.
    """

    def __init__(
        self,
        settings: str = "",
        *,
        address: str = "127.0.0.1",
        listener: str = "",
        within: Sequence[str] = (),
        store: str = "",
        alone: bool = True,
    ) -> None:
        self._within = within
        self._alone = alone
        self._folder = tempfile.TemporaryDirectory(prefix="forewarn-bench-")
        self.folder = Path(self._folder.name)
        self.database = self.folder / "forewarn.db"
        self.log = self.folder / "log"
        self.port = machine.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        (self.folder / "forewarn.toml").write_text(
            f'[store]\n{store or self._file()}\n[log]\nformat = "json"\n'
            f'[[guest.listener]]\naddress = "{address}"\nport = {self.port}\n'
            f"{listener}\n{settings}",
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()

    def _file(self) -> str:
        return f'path = "{self.database}"'

    def start(self) -> float:
        """Start it, and return after how many seconds it was ready."""
        command = [sys.executable, "-m", "forewarn", "serve"]
        began = time.monotonic()
        with self.log.open("wb") as log, machine.on_cores(alone=self._alone):
            self._process = subprocess.Popen(
                [*self._within, *command, "--config", str(self.folder / "forewarn.toml")],
                stdout=log,
                stderr=log,
                env={**os.environ, "STATE_DIRECTORY": str(self.folder)},
                start_new_session=True,
            )
        while b'"event": "ready"' not in self.log.read_bytes():
            assert self._process.poll() is None, self.said()
            assert time.monotonic() - began < START_SECONDS, self.said()
            time.sleep(0.01)
        return time.monotonic() - began

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8")[-4000:]

    def metrics(self, name: str) -> dict[str, float]:
        """What it counts by this name (docs/reference/metrics.md), by its labels as they stand."""
        connection = OperatorSocket(str(self.folder / "operator.sock"))
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        page = answer.read().decode()
        connection.close()
        assert answer.status == 200, page
        return series_of(page, name)

    def metric(self, name: str) -> float:
        """What it counts by this name, all labels together."""
        return sum(self.metrics(name).values())

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask the operator plane; the answer's document, which must be a success."""
        connection = OperatorSocket(str(self.folder / "operator.sock"))
        encoded = None if body is None else json.dumps(body).encode()
        connection.request(method, path, encoded, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        document = json.loads(answer.read() or b"null")
        connection.close()
        assert answer.status < 300, (answer.status, document)
        return document

    def history(self, **query: object) -> list[dict[str, Any]]:
        """Every operation that a query finds, page by page."""
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            given = "&".join(f"{name}={value}" for name, value in query.items())
            page = self.ask("GET", f"/v1/history?limit=1000&cursor={cursor}&{given}")
            found.extend(page["operations"])
            cursor = page["next"]
            if not cursor:
                return found

    def cpu_seconds(self) -> float:
        """The processor time that the process has used."""
        assert self._process is not None
        return machine.cpu_seconds(self._process.pid)

    def memory_kib(self, field: str = "VmRSS") -> int:
        """The memory that the process holds; `VmHWM` is the most that it ever did."""
        assert self._process is not None
        return machine.memory_kib(self._process.pid, field)

    def memory_mib(self, field: str = "VmRSS") -> float:
        return self.memory_kib(field) / 1024

    def forget_peak(self) -> None:
        """Let the peak of its memory begin anew (proc(5), clear_refs)."""
        assert self._process is not None
        machine.forget_peak(self._process.pid)


def series_of(page: str, name: str) -> dict[str, float]:
    """What a page of metrics has by this name, by its labels as they stand."""
    found = {}
    for line in page.splitlines():
        series, _, value = line.rpartition(" ")
        if series.partition("{")[0] == name:
            found[series.removeprefix(name)] = float(value)
    return found


def standalone(count: int, **more: object) -> dict[str, Any]:
    """A fleet of machines that share their document with nobody."""
    return {"machine": [{"name": f"m{n}", **more} for n in range(count)]}


def address_of(number: int) -> str:
    """The loopback address of a machine; there are enough for 200,000 of them."""
    return f"127.{1 + number // 62_500}.{number % 62_500 // 250}.{1 + number % 250}"


def placed(count: int, *, of_scope: int = 0, host: str = "") -> dict[str, Any]:
    """A fleet whose machines ask from an address each.

    Args:
        count: How many machines.
        of_scope: How many of them share a document, and one update domain, so that no announcement
            waits for another; 0 for none.
        host: That of all of them.
    """
    machines = [{"name": f"m{n}", "address": address_of(n), "host": host} for n in range(count)]
    if not of_scope:
        return {"machine": machines}
    return {
        "availability_set": [
            {
                "name": f"s{first}",
                "update_domains": 1,
                "machines": machines[first : first + of_scope],
            }
            for first in range(0, count, of_scope)
        ]
    }
