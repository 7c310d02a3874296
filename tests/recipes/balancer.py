"""The HAProxy of docs/guides/draining.md, by the page's own settings."""

import csv
import io
import socket
import subprocess
from pathlib import Path

from end_to_end.agents import until
from ports import free_port
from recipes import pages
from recipes.web import Web, asked

SETTINGS = pages.block("draining", "haproxy", "runtime API")


class Balancer:
    """A HAProxy by the page's settings.

    Args:
        folder: Where its settings go.
        webs: Its two servers.
        checks: How it checks them, if not as on the page.
    """

    def __init__(self, folder: Path, webs: list[Web], *, checks: str = " check") -> None:
        self.port, self.api = free_port(), free_port()
        placed = pages.placed(
            SETTINGS,
            {
                "10.0.0.5:9999": f"127.0.0.1:{self.api}",
                "10.0.0.5:80": f"127.0.0.1:{self.port}",
                "10.0.0.10:8080": f"127.0.0.1:{webs[0].port}",
                "10.0.0.11:8080": f"127.0.0.1:{webs[1].port}",
                " check": checks,
            },
        )
        (folder / "haproxy.cfg").write_text(placed)
        argv = ["haproxy", "-db", "-q", "-f", str(folder / "haproxy.cfg")]
        self._process = subprocess.Popen(argv)
        until(lambda: {asked(self.port) for _ in webs} == {web.name for web in webs})

    def ask(self, line: str) -> str:
        with socket.create_connection(("127.0.0.1", self.api), 10) as connection:
            connection.sendall(f"{line}\n".encode())
            answer = b""
            while chunk := connection.recv(65536):
                answer += chunk
        return answer.decode()

    def sessions(self) -> int:
        """Return how many sessions web-0 has."""
        return int(self._rows()["web-0"]["scur"])

    def taking(self) -> set[str]:
        """Return the servers that get new sessions, by its checks and by what it was told."""
        return {name for name, row in self._rows().items() if row["status"].startswith("UP")}

    def _rows(self) -> dict[str, dict[str, str]]:
        """Return the statistics of each server of the backend."""
        table = csv.DictReader(io.StringIO(self.ask("show stat").removeprefix("# ")))
        return {row["svname"]: row for row in table if row["svname"].startswith("web-")}

    def state(self) -> str:
        """Return what web-0 was set to by the API."""
        lines = [line.removeprefix("# ") for line in self.ask("show servers state").splitlines()]
        table = csv.DictReader(io.StringIO("\n".join(lines[1:])), delimiter=" ")
        state = next(row["srv_admin_state"] for row in table if row["srv_name"] == "web-0")
        return {"0": "ready", "1": "maint", "8": "drain"}[state]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
