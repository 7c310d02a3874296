"""A pair of PostgreSQL servers on two machines that a switch can stop, set up as the page says."""

import contextlib
import itertools
import os
import shutil
import signal
import stat
import subprocess
import threading
from pathlib import Path

import psycopg

import forked
import patience
from end_to_end.agents import Agent, until
from house.tree import ROOT
from leftovers import children
from ports import free_port
from postgres import BIN
from recipes import pages

PAGE = "failover"
SCRIPT = ROOT / "docs" / "examples" / "switchover.sh"
NETWORK = "127.0.0."
NAMES = ("db-0", "db-1")

MORE = """
unix_socket_directories = '{folder}'
log_line_prefix = '%m '
log_timezone = 'UTC'
"""
"""What Debian's package would set, and what times are read from."""

SYSTEMCTL = """#!/bin/sh
# The machine's systemd, as far as it is asked here: one unit, which is started and stopped.
set -eu
[ "$2" = postgresql@15-main ]
case $1 in
    start) {owner} {bin}/pg_ctl -D {data} status >/dev/null ||
        {owner} {bin}/pg_ctl -D {data} -l {data}/server.log -w start >/dev/null 2>&1 ;;
    stop) {owner} {bin}/pg_ctl -D {data} -m fast -w stop >/dev/null 2>&1 ;;
esac
"""


def owner() -> str:
    """Return the page's way to be user postgres; nothing where this is no root."""
    (line,) = [
        line for line in pages.block(PAGE, "sh", "owner=").splitlines() if line.startswith("owner=")
    ]
    return line.partition("=")[2].strip('"') if os.geteuid() == 0 else "env"


class Server:
    """One of the two: a machine with a PostgreSQL, and an agent once it has one."""

    def __init__(self, pair: "Pair", number: int) -> None:
        self.pair, self.number = pair, number
        self.name = NAMES[number]
        self.address = f"{NETWORK}{20 + number}"
        self.folder = pair.folder / self.name
        self.folder.mkdir(mode=0o755)
        self.data = self.folder / "data"
        self.agent: Agent | None = None
        self.conninfo = f"host={self.address} port={pair.port} dbname=postgres user=app"
        self.local = f"host={self.folder} port={pair.port} dbname=postgres user=postgres"
        places = {"owner": owner(), "bin": BIN, "data": self.data}
        self._program("systemctl", SYSTEMCTL.format(**places))
        self.passes = self.folder / "pair.pgpass"
        self.passes.write_text(pages.block(PAGE, "text", "replicator"))
        self.passes.chmod(stat.S_IRUSR | stat.S_IWUSR)
        if os.geteuid() == 0:
            for path in (self.folder, self.passes):
                shutil.chown(path, "postgres", "postgres")
        self.begun = self.folder / "state" / "begun"
        self.settings = self.folder / "switchover.conf"
        self.settings.write_text(self._placed("sh", "owner="))

    def _program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def _placed(self, language: str, words: str) -> str:
        """Return a block of the page, for this machine."""
        text = pages.block(PAGE, language, words)
        here, there = (f"{NETWORK}{20 + n}" for n in (self.number, 1 - self.number))
        places = {
            "10.0.0.20": here,
            "10.0.0.21": there,
            "10.0.0.0/24": f"{NETWORK}0/24",
            "5432": str(self.pair.port),
            "/usr/lib/postgresql/15/bin": str(BIN),
            "/var/lib/postgresql/15/main": str(self.data),
            "/var/lib/postgresql/pair.pgpass": str(self.passes),
            "/var/run/postgresql": str(self.folder),
            "/var/lib/forewarn-agent/switchover": str(self.begun),
            "systemctl ": f"{self.folder}/systemctl ",
            "setpriv --reuid=postgres --regid=postgres --init-groups": owner(),
        }
        used = {written: ours for written, ours in places.items() if written in text}
        return pages.placed(text, used)

    def own(self, *argv: str | Path, **environment: str) -> str:
        """Run a program as the user who owns the data; return what it says."""
        given = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **environment}
        command = [*owner().split(), *map(str, argv)]
        ran = forked.completed(command, env=given, cwd="/")
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
        return ran.stdout.strip()

    def make(self) -> None:
        """Make the first primary."""
        initdb = ("initdb", "-D", self.data, "-U", "postgres", "--no-sync")
        self.own(*initdb, "--auth-local=trust", "--auth-host=scram-sha-256", "--locale=C")
        self._configure()
        rules = self._placed("conf", "replication")
        trusted = f"local all all trust\nhost postgres app {NETWORK}0/24 trust\n"
        access = self.data / "pg_hba.conf"  # the page's lines are appended to those of PostgreSQL
        access.write_text(trusted + access.read_text() + rules)
        self.start()
        self.ask(pages.block(PAGE, "sql"))
        self.ask("CREATE ROLE app LOGIN; CREATE TABLE written (n int PRIMARY KEY)")
        self.ask("GRANT SELECT, INSERT ON written TO app")

    def _configure(self) -> None:
        """Write what the page has; a later line of a setting wins."""
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(self._placed("conf", "primary_conninfo"))
            settings.write(MORE.format(folder=self.folder))

    def copy(self, primary: "Server") -> None:
        """Make a standby by the page's lines."""
        text = pages.block(PAGE, "sh", "pg_basebackup")
        places = {
            "10.0.0.20": primary.address,
            "5432": str(self.pair.port),
            "/var/lib/postgresql/15/main": str(self.data),
            "/var/lib/postgresql/pair.pgpass": str(self.passes),
        }
        self.own("sh", "-ec", pages.placed(text, places))
        self._configure()
        self.start()

    def ask(self, query: str) -> str:
        return self.own("psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.local, "-c", query)

    def begin(self, verb: str) -> subprocess.Popen[str]:
        """Begin to run the page's script by hand, as a group of processes."""
        return subprocess.Popen(
            [SCRIPT, verb, self.settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            start_new_session=True,
        )

    def switchover(self, verb: str) -> tuple[int, str]:
        """Run the page's script by hand; return how it ended and what it said."""
        with self.begin(verb) as script:
            said, _ = script.communicate(timeout=patience.SECONDS)
        return script.returncode, said

    def hinder(self, stop: str, **limits: int) -> None:
        """Have a shell's lines stop the server from now on, and other limits in the script."""
        self._program("stop", f"#!/bin/sh\nset -e\n{stop}\n")
        given = [f"{name}={number}" for name, number in limits.items()]
        lines = [self.settings.read_text(), *given, f"stop={self.folder}/stop", ""]
        self.settings.write_text("\n".join(lines))

    @property
    def pid(self) -> int:
        """The server's process; 0 where none runs."""
        try:
            number = int((self.data / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return 0
        return number if Path(f"/proc/{number}").exists() else 0

    def frozen(self) -> list[int]:
        """The server's process and its children, as Linux tells them; it makes no more of them."""
        parent = self.pid
        if not parent:
            return []
        os.kill(parent, signal.SIGSTOP)
        return [parent, *children(parent)]

    @property
    def streams(self) -> bool:
        return self.ask("SELECT status FROM pg_stat_wal_receiver") == "streaming"

    @property
    def standby(self) -> bool:
        return self.ask("SELECT pg_is_in_recovery()") == "t"

    @property
    def log(self) -> str:
        return (self.data / "server.log").read_text()

    @property
    def rows(self) -> set[int]:
        return {int(line) for line in self.ask("SELECT n FROM written").split()}

    def systemctl(self, verb: str) -> None:
        subprocess.run([self.folder / "systemctl", verb, "postgresql@15-main"], check=True)

    def run(self, agent: Agent) -> None:
        """Have an agent from now on, which a boot starts as well."""
        self.agent = agent.start()

    def start(self) -> None:
        """Boot: Debian starts PostgreSQL by itself, and the agent's unit is enabled."""
        self.systemctl("start")
        if self.agent is not None:
            self.agent.start()

    def stop(self) -> None:
        """Kill whatever is left of it, as the loss of its power does."""
        if self.agent is not None:
            self.agent.kill()
        processes = self.frozen()
        for number in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        until_gone(processes)


def until_gone(processes: list[int]) -> None:
    """Wait until processes have ended, and somebody has taken note of it."""
    until(lambda: not any(Path(f"/proc/{number}").exists() for number in processes))


class Pair:
    """Two servers, the first of them the primary."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.port = free_port(*(f"{NETWORK}{20 + number}" for number in range(len(NAMES))))
        self.first, self.second = Server(self, 0), Server(self, 1)

    def make(self) -> None:
        """Make both, and have them run."""
        self.first.make()
        self.second.copy(self.first)
        until(lambda: self.second.streams, lambda: self.second.log)

    def stop(self) -> None:
        self.first.stop()
        self.second.stop()

    @property
    def writers(self) -> str:
        """How the page's writers connect."""
        places = {
            "10.0.0.20": self.first.address,
            "10.0.0.21": self.second.address,
            "5432": str(self.port),
            "dbname=shop": "dbname=postgres",
        }
        return pages.placed(pages.block(PAGE, "text", "target_session_attrs"), places).strip()


PAUSE = 0.003
"""Seconds between two writes, and between two connections: as long as a write."""


class Writer:
    """Writes numbers, each once, and keeps those that were acknowledged.

    Where its connection ends the number under way is given up, for nobody knows what became of it,
    and another connection goes on with the next.
    """

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._numbers = itertools.count(1)
        self._ending = threading.Event()
        self.acknowledged: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(PAUSE):
            with (
                contextlib.suppress(psycopg.Error),
                psycopg.connect(self._conninfo, autocommit=True) as connection,
            ):
                while not self._ending.wait(PAUSE):
                    number = next(self._numbers)
                    connection.execute("INSERT INTO written VALUES (%s)", [number])
                    self.acknowledged.append(number)
