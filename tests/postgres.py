"""PostgreSQL servers as children of a test: start, kill, freeze, copy and promote them.

A server is a child of this process, which `pg_ctl`'s are not: it is gone when it was waited for. As
root it runs as Debian's user `postgres`: a server refuses root.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import psycopg
from psycopg.pq import ExecStatus

import patience
from ports import free_port

BIN: Final = max(
    Path("/usr/lib/postgresql").glob("*/bin"), default=Path("/usr/lib/postgresql/15/bin")
)
OWNER: Final = "postgres"
"""The database's superuser, and as root the user that runs the server."""

TRUST: Final = "".join(
    f"{kind} {databases} all {where} trust\n"
    for kind, where in (("local", ""), ("host", "all"))
    for databases in ("all", "replication")
)


def found() -> bool:
    """Tell whether PostgreSQL is there, and may be run by this user."""
    if not (BIN / "postgres").exists():
        return False
    return os.geteuid() != 0 or any(each.pw_name == OWNER for each in pwd.getpwall())


class Postgres:
    """One server, by a unix socket and a port of 127.0.0.1; `start` makes its data first.

    Args:
        settings: Lines of postgresql.conf.
        access: The lines of pg_hba.conf.
        address: Where it listens on TCP, beside its unix socket in `folder`.
    """

    def __init__(
        self, *settings: str, access: str = TRUST, address: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fw-pg-"))
        self.data = self.folder / "data"
        self.address = address
        self.port = port or free_port(address)
        self._settings = settings
        self._access = access
        self._process: subprocess.Popen[bytes] | None = None
        self._own(self.folder)

    def url(self, database: str = "postgres", **more: str) -> str:
        """Return the address of a database, as Forewarn's `store.url` takes it."""
        query = "&".join(f"{name}={value}" for name, value in more.items())
        place = f"postgresql://{OWNER}@{self.address}:{self.port}/{database}"
        return f"{place}?{query}" if query else place

    def start(self) -> "Postgres":
        """Start it, and return when it answers."""
        if not self.data.exists():
            self._make()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(BIN / "postgres", "-D", self.data, "-p", str(self.port)),
                    *("-k", self.folder, "-h", self.address),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **_as_owner(),
            )
        patience.until(self._answers, self.log)
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        return not self._run("pg_isready", "--quiet", *self._place(), check=False).returncode

    def stop(self) -> None:
        """End it in order; what it was asked is broken off."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End all its processes at once, as a loss of power does; its data stays."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)  # or it would start new ones meanwhile
            for child in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        self._end(signal.SIGKILL)
        for stale in ("postmaster.pid", "postmaster.opts"):
            (self.data / stale).unlink(missing_ok=True)

    def remove(self) -> None:
        """Kill it and remove all that it had."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def reload(self, *settings: str) -> None:
        """Add lines to its settings and have it read them."""
        with (self.data / "postgresql.conf").open("a") as file:
            file.write("".join(f"{line}\n" for line in settings))
        self.sql("SELECT pg_reload_conf()")

    def sql(self, statement: str, database: str = OWNER) -> str:
        """Run a statement as superuser; return what it printed, one row a line."""
        try:
            with psycopg.connect(
                host=str(self.folder), port=self.port, user=OWNER, dbname=database, autocommit=True
            ) as connection:
                found = connection.pgconn.exec_(statement.encode())  # the words that psql prints
        except psycopg.Error as error:
            raise AssertionError(f"{statement}: {error}") from error
        assert found.status in {ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK}, found.error_message
        rows = (
            [found.get_value(row, column) or b"" for column in range(found.nfields)]
            for row in range(found.ntuples)
        )
        return "\n".join(b"|".join(row).decode() for row in rows)

    def create_database(self, name: str, template: str = "template1") -> str:
        """Make a database, a copy of another one; return its address."""
        self.sql(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy')
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, and end what is connected to it."""
        self.sql(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def standby(self, name: str, *, port: int = 0, listen: int = 0) -> "Postgres":
        """Return a copy of this server that follows it under a name, not started yet.

        Args:
            name: What it tells the primary, which may wait for it by this name.
            port: That of a proxy to this server; its own by default.
            listen: The standby's own port; a free one by default.
        """
        made = Postgres(access=self._access, address=self.address, port=listen)
        place = f"host={self.address} port={port or self.port}"
        source = f"{place} user={OWNER} application_name={name}"
        self._run("pg_basebackup", "-d", source, "-D", str(made.data), "-R", "-N", "-c", "fast")
        return made

    def promote(self) -> None:
        """Make a standby the primary; it takes writes when this returns."""
        assert self.sql("SELECT pg_promote()") == "t"

    def processes(self) -> list[int]:
        """Return the process ids of its children: a backend for each connection, and helpers."""
        assert self._process is not None
        pid = self._process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def log(self) -> str:
        """Return the end of what it logged."""
        return (self.folder / "log").read_text()[-4000:]

    def _make(self) -> None:
        self._run("initdb", "-D", str(self.data), "-U", OWNER, "--no-sync", "-E", "UTF8")
        (self.data / "pg_hba.conf").write_text(self._access)
        with (self.data / "postgresql.conf").open("a") as file:
            # Its clients are many short-lived processes, and the machine may be a small one.
            file.write("max_connections = 200\nshared_buffers = 32MB\n")
            file.write("".join(f"{line}\n" for line in self._settings))

    def _place(self) -> tuple[str, ...]:
        return "-h", str(self.folder), "-p", str(self.port), "-U", OWNER

    def _run(
        self, program: str, *words: str, check: bool = True
    ) -> "subprocess.CompletedProcess[str]":
        ran = subprocess.run(
            [BIN / program, *words], capture_output=True, text=True, check=False, **_as_owner()
        )
        assert not check or ran.returncode == 0, f"{program}: {ran.stderr}"
        return ran

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
            try:
                self._process.wait(patience.SECONDS)
            finally:
                self._process = None

    @staticmethod
    def _own(path: Path) -> None:
        if os.geteuid() == 0:
            shutil.chown(path, OWNER, OWNER)


def _as_owner() -> "dict[str, object]":
    if os.geteuid() != 0:
        return {"cwd": "/"}
    return {"cwd": "/", "user": OWNER, "group": OWNER, "extra_groups": []}
