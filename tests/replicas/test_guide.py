"""The guide to growing, followed from SQLite to three replicas, of which one after another dies."""

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import web
from end_to_end.running import Running
from forewarn.protocol import refusals
from house import tree
from patience import meanwhile, until
from ports import free_port
from postgres import BIN, OWNER, Postgres
from programs import Printing
from recipes import pages
from recipes.balancer import Balancer
from server.running import Client
from tcp_proxy import TcpProxy

pytestmark = [
    pytest.mark.usefixtures("postgresql"),
    pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8"),
    pytest.mark.timeout(600),
]

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
FLEET: Final = '[[machine]]\nname = "web-0"\n[[machine]]\nname = "web-1"\n'
FOREWARN: Final = f"'{sys.executable}' -m forewarn"


class Databases:
    """A primary and its two standbys, as the page sets them up."""

    def __init__(self, password: str) -> None:
        (words,) = map(str.split, pages.block(PAGE, "text", "hostssl").splitlines())
        assert words[3] == "10.0.1.0/24"
        access = f"host {words[1]} {words[2]} 127.0.0.0/8 {words[4]}\n"
        access += f"local all {OWNER} trust\n"
        access += f"host all,replication {OWNER} 127.0.0.1/32 trust\n"
        self.primary = Postgres(access=access).start()
        self.servers = [self.primary]
        try:
            self.sql(pages.block(PAGE, "sql", "CREATE ROLE").replace("the password", password))
            for name in ("db2", "db3"):
                self.servers.append(self.primary.standby(name).start())
            self.primary.reload(*pages.block(PAGE, "ini", "synchronous").splitlines())
            states = "SELECT sync_state FROM pg_stat_replication"
            until(lambda: self.primary.sql(states) == "quorum\nquorum", self.primary.log)
        except BaseException:
            self.remove()
            raise
        self.hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        """The three servers, as a URL has them."""

    def sql(self, block: str) -> None:
        """Run statements of the page, one after another."""
        for statement in filter(None, map(str.strip, block.split(";"))):
            self.primary.sql(statement)

    def remove(self) -> None:
        """End all three."""
        for server in reversed(self.servers):
            server.remove()


def shell(block: str, places: dict[str, str]) -> None:
    """Run commands of a page."""
    command = pages.placed(block, places)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-eu", "-c", command], check=True, env={**os.environ, "PATH": path})


class Moved:
    """A fleet that was on SQLite, on three replicas behind HAProxy."""

    def __init__(self, folder: Path, databases: Databases, secrets: Path) -> None:
        self.folder, self.databases, self.secrets = folder, databases, secrets
        addresses = [f"{NETWORK}{n}" for n in (11, 12, 13)]
        ports = {name: free_port(*addresses) for name in ("guest", "api")}
        settings = pages.block(PAGE, "toml", "[replica]")
        self.replicas: dict[str, Running] = {}
        self.way = TcpProxy(databases.primary.port)
        """That of fw3 to the primary; it is the one that waits less before it leaves guests."""
        port = f"127.0.0.1:{databases.primary.port}"
        ways = {"fw3": databases.hosts.replace(port, f"127.0.0.1:{self.way.port}")}
        for address, name in zip(addresses, NAMES, strict=True):
            written = pages.placed(
                settings,
                {
                    'tls_certificate = "/etc/forewarn/operator.pem"\n': "",  # by loopback here
                    'tls_key = "/etc/forewarn/operator.key"\n': "",
                    URL: f"postgresql://forewarn@{ways.get(name, databases.hosts)}/forewarn",
                    "sslmode=require": "sslmode=disable",
                    "max_stale_seconds = 60": f"max_stale_seconds = {5 if name in ways else 60}",
                    "/etc/forewarn": str(secrets),
                    "10.0.1.11": address,
                    "10.0.1.5": f"{NETWORK}5",
                    '"fw1"': f'"{name}"',
                    "8170": str(ports["guest"]),
                    "8172": str(ports["api"]),
                },
            )
            own = folder / name
            own.mkdir(mode=0o700)
            state = {"STATE_DIRECTORY": str(own)}
            replica = Running(own, operator="socket = 'off'", environment=state)
            replica.settings.write_text(written)
            self.replicas[name] = replica
        for replica in self.replicas.values():
            replica.start()
        told = folder / "haproxy.env"
        told.touch(0o644)  # as Debian's package brings it
        places = {"/etc/forewarn": str(secrets), "/etc/default/haproxy": str(told)}
        shell(pages.block(PAGE, "sh", "/etc/default/haproxy"), places)
        assert told.stat().st_mode & 0o777 == 0o600
        name, _, key = told.read_text().strip().partition("=")
        self.port = free_port(PROXY)
        self.balancer = self._balancer(ports["guest"], {name: key})
        self.balancer.wait_for(*NAMES)

    def _balancer(self, guests: int, key: dict[str, str]) -> Balancer:
        """Run HAProxy by the page's configuration."""
        folder = self.folder / "haproxy"
        folder.mkdir()
        places = {"10.0.0.10": WATCHER, "10.0.0.11": POLLERS[0]}
        machines = pages.placed(pages.block(PAGE, "text", "web-0"), places)
        more = "".join(f"{address} web-1\n" for address in POLLERS[1:])
        (folder / "machines.map").write_text(machines + more)
        places = {
            "169.254.169.254:80": f"{PROXY}:{self.port}",
            "/etc/haproxy/": f"{folder}/",
            "/run/haproxy/admin.sock": str(folder / "admin.sock"),
            "maxconn 20000": "maxconn 200",  # each is two of this user's files
            "default-server ": f"default-server source {NETWORK}5 ",
            "10.0.1.": NETWORK,
            ":8170": f":{guests}",
        }
        settings = pages.placed(HAPROXY.read_text(encoding="utf-8"), places)
        return Balancer(folder, settings, folder / "admin.sock", NAMES, key)

    def run(self, words: str, *more: str) -> None:
        """Run commands of the page on running replicas, which name these places, too."""
        places = {
            URL: f"postgresql://forewarn@{self.databases.hosts}/forewarn",
            "/etc/forewarn": str(self.secrets),
            "/var/backups": str(self.folder),
        }
        here = {"forewarn restore-check": f"{FOREWARN} restore-check"}
        shell(pages.block(RUNNING, "sh", words), places | {name: here[name] for name in more})

    def live(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.replicas["fw1"].document("events")["events"]
        return events

    def all_serve(self) -> bool:
        """Tell whether a replica knows that all of them are there."""
        told = json.loads(self.replicas["fw2"].call("replicas", "--json").stdout)["replicas"]
        return [one["name"] for one in told if one["live"] and one["serving"]] == list(NAMES)

    def incarnation(self) -> int:
        """Return the highest number of a document."""
        scopes = self.replicas["fw1"].document("fleet", "list", "--scopes")["scopes"]
        return max(scope["incarnation"] for scope in scopes)

    def approve(self, event_id: str) -> tuple[int, str]:
        """Approve an event as web-0 does; return the status and the answer."""
        body = json.dumps({"StartRequests": [{"EventId": event_id}]})
        return web.ask(self.port, EVENTS, "POST", body, to=PROXY)[:2]

    def close(self) -> None:
        if hasattr(self, "balancer"):
            self.balancer.close()
        for replica in self.replicas.values():
            replica.kill()
        self.way.close()


@pytest.fixture(scope="module")
def moved(shared_folder: Path, postgresql: None) -> Iterator[Moved]:
    """The fleet, after the page's commands: those that make secrets, and those that copy it."""
    assert postgresql is None
    folder = shared_folder
    private = folder / "etc"
    user, _, commands = pages.block(PAGE, "sh", "useradd").partition("\n")
    assert user.startswith("useradd ")
    shell(commands, {"/etc/forewarn": str(private), "chown forewarn: ": "test -f "})
    assert {path.stat().st_mode & 0o777 for path in private.iterdir()} == {0o600}
    databases = Databases((private / "store.password").read_text())
    try:
        (folder / "sqlite").mkdir()
        with Running(folder / "sqlite") as before:
            before.apply(FLEET)
            before.document("schedule", "reboot", "web-0")
        stop, _, commands = pages.block(PAGE, "sh", "store copy").partition("\n")
        assert stop == "systemctl stop forewarn"
        places = {
            URL: f"postgresql://forewarn@{databases.hosts}/forewarn",
            "sslmode=require": "sslmode=disable",
            "/etc/forewarn": str(private),
            "/var/lib/forewarn": str(folder / "sqlite"),
            "forewarn store copy": f"{FOREWARN} store copy",
        }
        shell(commands, places)
        made = Moved(folder, databases, private)
        try:
            yield made
        finally:
            made.close()
    finally:
        databases.remove()


def test_the_fleet_with_its_events_is_on_three_replicas_that_take_one_token(moved: Moved) -> None:
    assert [event["machines"] for event in moved.live()] == [["web-0"]]
    until(moved.all_serve)  # fw2 learns of fw3 at its next beat
    assert not list((moved.folder / "sqlite").glob("forewarn.db"))
    shown = moved.replicas["fw2"].call("replicas").stdout.splitlines()
    assert shown[0].split() == pages.block(PAGE, "text", "CLAIMS").splitlines()[0].split()
    token = (moved.secrets / "operator.token").read_text()
    for replica in moved.replicas.values():  # one token is good at all of them
        text = replica.settings.read_text()
        listen = next(line for line in text.splitlines() if line.startswith("listen"))
        url = f"http://{listen.split(chr(34))[1]}"
        assert Client(url, token.strip()).get("/v1/clock")["scale"] == 1


class Guests:
    """A guest that watches, and one that asks without a pause, by a new connection each time.

    They notice nothing of what happens meanwhile.
    """

    def __init__(self, moved: Moved) -> None:
        self.moved = moved
        endpoint = f"http://{PROXY}:{moved.port}"
        self.watch = Printing(moved.folder, "watch", "--endpoint", endpoint)
        self.answered = 0
        self._seen = 0
        self._addresses = itertools.cycle(POLLERS)

    @contextlib.contextmanager
    def unhindered(self) -> Iterator["Guests"]:
        try:
            with meanwhile(self._poll, every=POLL_SECONDS) as failures:
                self.see(1)
                yield self
            assert (self.watch.runs, self.watch.errors(), failures) == (True, "", [])
        finally:
            self.watch.kill()
            print(f"{self.answered} polls")

    def _poll(self) -> None:
        told = web.ask(self.moved.port, EVENTS, to=PROXY, source=next(self._addresses))
        self.answered += 1
        assert told.status == 200, told

    def reschedule(self, absent: str) -> None:
        """Cancel the reboot of web-0 at a replica that is there, and announce another at another.

        Return once the guest has seen both.
        """
        one, other = (self.moved.replicas[name] for name in NAMES if name != absent)
        (event,) = one.document("events")["events"]
        one.document("cancel", event["operation"])
        other.document("schedule", "reboot", "web-0")
        self.see(2)

    def see(self, more: int) -> None:
        self._seen += more
        until(lambda: len(self.watch.lines()) == self._seen, self.watch.errors)


def test_no_guest_notices_that_a_replica_is_killed_restarted_frozen_or_cut_off(
    moved: Moved,
) -> None:
    with Guests(moved).unhindered() as guests:
        for name, replica in moved.replicas.items():
            others = [other for other in NAMES if other != name]
            for end in (replica.kill, replica.stop):
                end()
                guests.reschedule(name)
                replica.start()
                moved.balancer.wait_for(*NAMES)
            replica.send(signal.SIGSTOP)
            moved.balancer.wait_for(*others)
            guests.reschedule(name)
            replica.send(signal.SIGCONT)
            moved.balancer.wait_for(*NAMES)
        moved.way.stall()
        moved.balancer.wait_for("fw1", "fw2")
        guests.reschedule("fw3")
        moved.way.heal()
        moved.balancer.wait_for(*NAMES)
    assert guests.answered > 100


def test_a_backup_is_restored_and_no_incarnation_is_read_twice(moved: Moved) -> None:
    before = moved.live()
    moved.run("pg_dump")
    assert (moved.folder / "forewarn.dump").stat().st_mode & 0o077 == 0
    highest = moved.incarnation()
    for replica in moved.replicas.values():
        assert replica.stop() == 0
    moved.databases.sql(pages.block(RUNNING, "sql", "RENAME"))
    moved.run("pg_restore", "forewarn restore-check")
    for replica in moved.replicas.values():
        replica.start()
    moved.balancer.wait_for(*NAMES)
    assert [event["id"] for event in moved.live()] == [event["id"] for event in before]
    assert moved.incarnation() >= highest + 1_000_000


def test_documents_are_read_while_no_standby_or_no_primary_is_there(moved: Moved) -> None:
    servers = moved.databases.servers
    with Guests(moved).unhindered() as guests:
        watch = guests.watch
        (event,) = moved.live()
        for standby in servers[1:]:
            standby.stop()
        status, said = moved.approve(event["id"])
        assert (status, refusals.UNKNOWN_OUTCOME.text in said) == (503, True)
        servers[1].start()
        until(lambda: moved.approve(event["id"])[0] == 200)
        until(lambda: watch.lines()[-1]["event"]["status"] == "Started", watch.errors)
        servers[0].kill()
        assert moved.approve(event["id"])[0] == 503
        assert moved.balancer.up() >= {"fw1", "fw2"}
        servers[1].promote()
        until(lambda: moved.approve(event["id"])[0] == 200)
        until(moved.all_serve)
