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
from pathlib import Path
from typing import Any, Self

START_SECONDS = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


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
    """Runs while the `with` block does.

    Args:
        settings: TOML that is added to the settings.
    """

    def __init__(self, settings: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="forewarn-bench-")
        self.folder = Path(self._folder.name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        (self.folder / "forewarn.toml").write_text(
            f'[store]\npath = "{self.folder}/forewarn.db"\n'
            f"[[guest.listener]]\nport = {self.port}\n{settings}",
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "forewarn", "serve"]
        log = (self.folder / "log").open("wb")
        self._process = subprocess.Popen(
            [*command, "--config", str(self.folder / "forewarn.toml")], stdout=log, stderr=log
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.ask("GET", "/readyz")
            except OSError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._folder.cleanup()

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
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self) -> float:
        """The memory that the process holds."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return int(kib) / 1024


def standalone(count: int, **more: object) -> dict[str, Any]:
    """A fleet of machines that share their document with nobody."""
    return {"machine": [{"name": f"m{n}", **more} for n in range(count)]}
