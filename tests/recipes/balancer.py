"""A HAProxy by the settings of a page."""

import csv
import io
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import patience
from programs import NOTHING


class Balancer:
    """One HAProxy.

    Args:
        folder: Where its settings go.
        settings: Those of the page, with the test's places in them.
        api: Where its runtime API is: a unix socket, or a port of 127.0.0.1.
        servers: The names of its servers.
        variables: Of its environment, beside the test's own.
    """

    def __init__(
        self,
        folder: Path,
        settings: str,
        api: Path | int,
        servers: tuple[str, ...],
        variables: Mapping[str, str] = NOTHING,
    ) -> None:
        self._api = api
        self._servers = servers
        path = folder / "haproxy.cfg"
        path.write_text(settings)
        command = ["haproxy", "-db", "-q", "-f", str(path)]
        self._process = subprocess.Popen(command, env={**os.environ, **variables})

    def wait_for(self, *names: str) -> None:
        """Wait until just these servers get new sessions."""
        patience.until(lambda: self.up() == set(names), self.up)

    def up(self) -> set[str]:
        """Return the servers that get new sessions, by its checks and by what it was told."""
        try:
            rows = csv.DictReader(io.StringIO(self._ask("show stat").removeprefix("# ")))
        except OSError:
            return set()
        ours = [row for row in rows if row["svname"] in self._servers]
        return {row["svname"] for row in ours if row["status"].startswith("UP")}

    def _ask(self, line: str) -> str:
        family = socket.AF_UNIX if isinstance(self._api, Path) else socket.AF_INET
        with socket.socket(family) as connection:
            own = isinstance(self._api, Path)
            connection.connect(str(self._api) if own else ("127.0.0.1", self._api))
            connection.sendall(f"{line}\n".encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
