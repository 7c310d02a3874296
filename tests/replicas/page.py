"""The set-up of docs/guides/grow.md on this machine, by the page's own settings and commands."""

import csv
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import forked
import patience
import web
from end_to_end.running import Running
from house import tree
from ports import free_port
from postgres import BIN, OWNER, Postgres
from recipes import pages

PAGE: Final = "grow"
RUNNING: Final = "replicas"
"""The page on upgrades, backups and failures of what the other one sets up."""

HAPROXY: Final = tree.ROOT / "packaging" / "haproxy.cfg"
NETWORK: Final = "127.0.1."
"""In the place of the page's 10.0.1.0/24: one machine has all of it."""

PROXY: Final = f"{NETWORK}4"
WATCHER: Final = "127.0.0.1"
"""The guest web-0, by its source address."""

POLLERS: Final = tuple(f"127.0.0.{n}" for n in range(11, 23))
"""Addresses of the guest web-1: so many that each replica has some of them."""

NAMES: Final = ("fw1", "fw2", "fw3")
URL: Final = "postgresql://forewarn@db1,db2,db3/forewarn"
POLL_SECONDS: Final = 0.03
"""Below what one machine may ask (rules.rate_per_second)."""
EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"


class Databases:
    """A primary and its two standbys, as the page sets them up."""

    def __init__(self, password: str) -> None:
        lines = [line.split() for line in pages.block(PAGE, "text", "hostssl").splitlines()]
        (words,) = lines
        assert words[3] == "10.0.1.0/24"
        access = f"host {words[1]} {words[2]} 127.0.0.0/8 {words[4]}\n"
        access += f"local all {OWNER} trust\n"
        access += f"host all,replication {OWNER} 127.0.0.1/32 trust\n"
        self.servers = [Postgres(access=access).start()]
        try:
            self.sql(pages.block(PAGE, "sql", "CREATE ROLE").replace("the password", password))
            for name in ("db2", "db3"):
                self.servers.append(self.primary.standby(name).start())
            self.primary.reload(*pages.block(PAGE, "ini", "synchronous").splitlines())
            patience.until(lambda: self._states() == ["quorum", "quorum"], self.primary.log)
        except BaseException:
            self.remove()
            raise

    @property
    def primary(self) -> Postgres:
        """The server that takes writes."""
        return self.servers[0]

    @property
    def hosts(self) -> str:
        """The three servers, as a URL has them."""
        return ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def sql(self, block: str) -> None:
        """Run statements of the page, one after another."""
        for statement in filter(None, map(str.strip, block.split(";"))):
            self.primary.sql(statement)

    def _states(self) -> list[str]:
        return self.primary.sql("SELECT sync_state FROM pg_stat_replication").splitlines()

    def remove(self) -> None:
        """End all three."""
        for server in reversed(self.servers):
            server.remove()


class Replica(Running):
    """One replica, a process of its own by the page's settings."""

    def __init__(self, folder: Path, text: str) -> None:
        folder.mkdir(mode=0o700)
        super().__init__(
            folder, operator="socket = 'off'", environment={"STATE_DIRECTORY": str(folder)}
        )
        self.settings.write_text(text)

    def freeze(self) -> None:
        """Let it answer nobody and close nothing, as a machine without power."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def document(self, *words: str, stdin: str = "") -> Any:
        """Run a command line with --json; return its document."""
        called = self.call(*words, "--json", stdin=stdin)
        assert called.returncode in (0, 11), called.stderr
        return json.loads(called.stdout)


class Balancer:
    """HAProxy, by the page's configuration."""

    def __init__(self, folder: Path, key: str, guests: int) -> None:
        folder.mkdir()
        places = {"10.0.0.10": WATCHER, "10.0.0.11": POLLERS[0]}
        machines = pages.placed(pages.block(PAGE, "text", "web-0"), places)
        more = "".join(f"{address} web-1\n" for address in POLLERS[1:])
        (folder / "machines.map").write_text(machines + more)
        self.port = free_port(PROXY)
        self._api = folder / "admin.sock"
        text = pages.placed(
            HAPROXY.read_text(encoding="utf-8"),
            {
                "169.254.169.254:80": f"{PROXY}:{self.port}",
                "/etc/haproxy/": f"{folder}/",
                "/run/haproxy/admin.sock": str(self._api),
                "maxconn 20000": "maxconn 200",  # each is two of this user's files
                "default-server ": f"default-server source {NETWORK}5 ",
                "10.0.1.": NETWORK,
                ":8170": f":{guests}",
            },
        )
        (folder / "haproxy.cfg").write_text(text)
        self._process = subprocess.Popen(
            ["haproxy", "-db", "-q", "-f", str(folder / "haproxy.cfg")],
            env={**os.environ, "FOREWARN_PROXY_KEY": key},
        )
        self.wait_for(*NAMES)

    def wait_for(self, *names: str) -> None:
        """Wait until its probes find just these replicas well."""
        patience.until(lambda: self.up() == set(names), self.up)

    def up(self) -> set[str]:
        """Return the replicas that its probes find well."""
        return {row["svname"] for row in self._rows() if row["status"].startswith("UP")}

    def _rows(self) -> list[dict[str, str]]:
        if not self._api.exists():
            return []
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._api))
            connection.sendall(b"show stat\n")
            said = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
        rows = csv.DictReader(io.StringIO(said.removeprefix("# ")))
        return [row for row in rows if row["svname"] in NAMES]

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Watch:
    """`forewarn watch` on the guest web-0."""

    def __init__(self, folder: Path, balancer: Balancer) -> None:
        self._told, self._errors = folder / "watch.out", folder / "watch.err"
        with self._told.open("wb") as told, self._errors.open("wb") as errors:
            self._process = forked.Forked(
                ["-m", "forewarn", "watch", "--endpoint", f"http://{PROXY}:{balancer.port}"],
                stdout=told,
                stderr=errors,
            )

    def changes(self) -> list[dict[str, Any]]:
        """Return what it has told so far."""
        return [json.loads(line) for line in self._told.read_text().splitlines()]

    def complaints(self) -> str:
        """Return what it said of trouble, and whether it has ended."""
        ended = "" if self._process.poll() is None else f"it ended with {self._process.returncode}"
        return self._errors.read_text() + ended

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Poller:
    """The guest web-1, which asks without a pause, by a new connection each time."""

    def __init__(self, balancer: Balancer) -> None:
        self._port = balancer.port
        self.answered = 0
        self.failures: list[str] = []
        self.longest_seconds = 0.0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Poller":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def approve(self, event_id: str) -> tuple[int, str]:
        """Approve an event as web-0 does; return the status and the answer."""
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        return web.ask(self._port, EVENTS, "POST", body, to=PROXY)[:2]

    def _run(self) -> None:
        for address in itertools.cycle(POLLERS):
            if self._ends.wait(POLL_SECONDS):
                return
            began = time.monotonic()
            try:
                told = web.ask(self._port, EVENTS, to=PROXY, source=address)
            except (OSError, HTTPException) as error:
                self.failures.append(repr(error))
            else:
                self.answered += 1
                if told.status != 200:
                    self.failures.append(f"{told.status} {told.body[:80]}")
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)


def shell(block: str, places: dict[str, str]) -> str:
    """Run commands of the page; return what they printed."""
    command = pages.placed(block, places)
    ran = subprocess.run(
        ["sh", "-eu", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
    )
    assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
    return ran.stdout
