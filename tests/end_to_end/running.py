"""The service and the command line as processes of their own."""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import forked
import web
from forewarn.store import sqlite
from ports import free_port
from programs import NOTHING, Program
from server.running import Client

POSTS = r'(?m)^forewarn_guest_requests_total\{code="(\d+)",resource="approvals"\} (\d+)'
SWIFT = "reboot_seconds = 0.1\nfreeze_seconds = 0.1\nredeploy_seconds = 0.1"


def lasting(folder: Path, seconds: float = 0) -> str:
    """Return a connector by which an act lasts until the test has seen what it wants to see.

    Args:
        folder: An act goes on while a file `act` is there.
        seconds: How long it lasts at least.
    """
    script = f"sleep {seconds}; while [ -e '{folder}/act' ]; do sleep 0.05; done"
    program = json.dumps(["sh", "-c", script])
    return f'[connector]\nkind = "command"\n[connector.command]\nprogram = {program}'


@functools.cache
def empty_database() -> bytes:
    """Return a database as a first start makes it: to make one takes a service half a second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "forewarn.db"
        sqlite.open_store(path).close()
        return path.read_bytes()


class Running(Program):
    """A service on its own folder, and the command line against it."""

    def __init__(
        self,
        folder: Path,
        *,
        operator: str = "",
        connector: str = SWIFT,
        more: str = "",
        environment: Mapping[str, str] = NOTHING,
    ) -> None:
        super().__init__(folder / "service.log", environment)  # which commands have, too
        self.folder = folder
        self.socket = folder / "operator.sock"
        self.guest_port = free_port()
        self.settings = folder / "forewarn.toml"
        database = folder / "forewarn.db"
        if not database.exists():
            database.touch(mode=0o600)
            database.write_bytes(empty_database())
        self.settings.write_text(
            f'[store]\npath = "forewarn.db"\n'
            f"[operator]\n{operator}\n"
            f"[[guest.listener]]\nport = {self.guest_port}\n"
            f"[connector.simulated]\n{connector}\n"
            f"{more}\n"
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.stop() == 0

    @property
    def command(self) -> list[str]:
        """The command that serves."""
        return [sys.executable, "-m", "forewarn", "serve", "--config", str(self.settings)]

    def start(
        self,
        *by: str,
        program: Sequence[str] = ("-m", "forewarn"),
        errors: int | None = None,
        files: Collection[int] = (),
        awaits: bool = True,
    ) -> None:
        """Start it and wait until it says that it is ready.

        Args:
            by: The command that is to start it; it is forked if left out.
            program: What a forked one runs.
            errors: Where its standard error goes, which has its log.
            files: Open files that the command is to have.
            awaits: Whether to wait.
        """
        arguments = [*program, *self.command[3:]]
        terms = {} if errors is None else {"stderr": errors}
        self.begin(arguments, by or None, pass_fds=files, **terms)
        if awaits:
            self.wait_for(b'"event": "ready"')

    def said(self, event: str = "") -> list[dict[str, Any]]:
        """Return the lines of its log, or those about an event."""
        whole, _, _ = self.log.read_text().rpartition("\n")
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in lines if event in {"", line["event"]}]

    def ask(self, machine: str, method: str = "GET", body: str | None = None) -> tuple[int, str]:
        """Ask for its events as a machine does; return the status and the body."""
        path = f"/vm/{machine}/metadata/scheduledevents?api-version=2020-07-01"
        return web.ask(self.guest_port, path, method, body)[:2]

    @property
    def operator(self) -> Client:
        """What speaks to its operator plane."""
        return Client(self.socket)

    def apply(self, fleet: str) -> None:
        """Apply a fleet file, as the command line does, but without a process of its own."""
        answer = self.operator.ask("PUT", "/v1/fleet", tomllib.loads(fleet))
        assert answer.status == 200, answer.body

    def operation(self) -> dict[str, Any]:
        """Return the latest operation as the history has it."""
        found: dict[str, Any] = self.operator.get("/v1/history")["operations"][0]
        return found

    def posts(self) -> int:
        """Return how many approvals this process has answered, each of them with 200."""
        answer = self.operator.ask("GET", "/metrics")
        found = re.findall(POSTS, answer.body.decode())
        assert {code for code, _ in found} <= {"200"}, found
        return sum(int(count) for _, count in found)

    def call(
        self, *arguments: str, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one command line against this service."""
        given = {**os.environ, "FOREWARN_CONFIG": str(self.settings)}
        given |= {**self.environment, **environment}
        given.pop("FOREWARN_OPERATOR", None)
        return forked.run(["-m", "forewarn", *arguments], stdin=stdin, env=given)

    def document(self, *arguments: str, stdin: str = "") -> Any:
        """Run one command line with --json and return its document."""
        called = self.call(*arguments, "--json", stdin=stdin)
        assert called.returncode == 0, called.stderr
        return json.loads(called.stdout)
