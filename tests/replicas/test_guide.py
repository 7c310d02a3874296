"""The guide to growing, followed from SQLite to three replicas, of which one after another dies."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from end_to_end.agents import until
from end_to_end.running import Running
from forewarn.protocol import refusals
from ports import free_port
from recipes import pages
from replicas.page import (
    NAMES,
    NETWORK,
    PAGE,
    RUNNING,
    URL,
    Balancer,
    Databases,
    Poller,
    Replica,
    Watch,
    shell,
)
from server.running import Client
from tcp_proxy import TcpProxy

pytestmark = [
    pytest.mark.usefixtures("postgresql"),
    pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8"),
    pytest.mark.timeout(600),
]

FLEET = '[[machine]]\nname = "web-0"\n[[machine]]\nname = "web-1"\n'
FOREWARN = f"'{sys.executable}' -m forewarn"


class Moved:
    """A fleet that was on SQLite, on three replicas behind HAProxy."""

    def __init__(self, folder: Path, databases: Databases, secrets: Path) -> None:
        self.folder, self.databases, self.secrets = folder, databases, secrets
        ports = {
            name: free_port(*(f"{NETWORK}{n}" for n in (11, 12, 13))) for name in ("guest", "api")
        }
        settings = pages.block(PAGE, "toml", "[replica]")
        self.replicas = {}
        self.way = TcpProxy(databases.primary.port)
        """That of fw3 to the primary; it is the one that waits less before it leaves guests."""
        port = f"127.0.0.1:{databases.primary.port}"
        ways = {"fw3": databases.hosts.replace(port, f"127.0.0.1:{self.way.port}")}
        for at, name in enumerate(NAMES):
            written = pages.placed(
                settings,
                {
                    'tls_certificate = "/etc/forewarn/operator.pem"\n': "",  # by loopback here
                    'tls_key = "/etc/forewarn/operator.key"\n': "",
                    URL: f"postgresql://forewarn@{ways.get(name, databases.hosts)}/forewarn",
                    "sslmode=require": "sslmode=disable",
                    "max_stale_seconds = 60": f"max_stale_seconds = {5 if name in ways else 60}",
                    "/etc/forewarn": str(secrets),
                    "10.0.1.11": f"{NETWORK}{11 + at}",
                    "10.0.1.5": f"{NETWORK}5",
                    '"fw1"': f'"{name}"',
                    "8170": str(ports["guest"]),
                    "8172": str(ports["api"]),
                },
            )
            self.replicas[name] = Replica(folder / name, written)
        for replica in self.replicas.values():
            replica.start()
        told = folder / "haproxy.env"
        places = {"/etc/forewarn": str(secrets), "/etc/default/haproxy": str(told)}
        shell(pages.block(PAGE, "sh", "/etc/default/haproxy"), places)
        key = told.read_text().removeprefix("FOREWARN_PROXY_KEY=").strip()
        self.balancer = Balancer(folder / "haproxy", key, ports["guest"])

    def places(self, *used: str) -> dict[str, str]:
        """Return what the page's commands name, and where it is here."""
        all_of_them = {
            URL: f"postgresql://forewarn@{self.databases.hosts}/forewarn",
            "/etc/forewarn": str(self.secrets),
            "/var/backups": str(self.folder),
            "forewarn restore-check": f"{FOREWARN} restore-check",
        }
        return {written: all_of_them[written] for written in used}

    def live(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.replicas["fw1"].document("events")["events"]
        return events

    def close(self) -> None:
        if hasattr(self, "balancer"):
            self.balancer.close()
        for replica in self.replicas.values():
            replica.kill()
        self.way.close()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)


@pytest.fixture(scope="module")
def secrets(folder: Path) -> Path:
    """The secrets that the page's commands make."""
    made = folder / "etc"
    block = pages.block(PAGE, "sh", "useradd")
    user, _, commands = block.partition("\n")
    assert user.startswith("useradd ")
    shell(commands, {"/etc/forewarn": str(made), "chown forewarn: ": "test -f "})
    assert {path.stat().st_mode & 0o777 for path in made.iterdir()} == {0o600}
    return made


@pytest.fixture(scope="module")
def databases(postgresql: None, secrets: Path) -> Iterator[Databases]:
    assert postgresql is None
    made = Databases((secrets / "store.password").read_text())
    yield made
    made.remove()


@pytest.fixture(scope="module")
def moved(folder: Path, secrets: Path, databases: Databases) -> Iterator[Moved]:
    (folder / "sqlite").mkdir()
    before = Running(folder / "sqlite")
    before.start()
    before.apply(FLEET)
    called = before.call("schedule", "reboot", "web-0")
    assert called.returncode == 0, called.stderr
    assert before.stop() == 0
    block = pages.block(PAGE, "sh", "store copy")
    stop, _, commands = block.partition("\n")
    assert stop == "systemctl stop forewarn"
    shell(
        commands,
        {
            URL: f"postgresql://forewarn@{databases.hosts}/forewarn",
            "sslmode=require": "sslmode=disable",
            "/etc/forewarn": str(secrets),
            "/var/lib/forewarn": str(folder / "sqlite"),
            "forewarn store copy": f"{FOREWARN} store copy",
        },
    )
    made = Moved(folder, databases, secrets)
    try:
        yield made
    finally:
        made.close()


def test_the_fleet_with_its_events_is_on_three_replicas_that_take_one_token(moved: Moved) -> None:
    assert [event["machines"] for event in moved.live()] == [["web-0"]]
    until(lambda: _serving(moved) == list(NAMES))  # fw2 learns of fw3 at its next beat
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
    """A guest that watches, and one that polls; they notice nothing of what happens meanwhile."""

    def __init__(self, moved: Moved) -> None:
        self.moved = moved
        self.watch = Watch(moved.folder, moved.balancer)
        self.poller = Poller(moved.balancer)
        self._seen = 0

    def __enter__(self) -> "Guests":
        self.poller.__enter__()
        self._see(1)
        return self

    def __exit__(self, *error: object) -> None:
        self.poller.__exit__()
        complaints = self.watch.complaints()
        self.watch.close()
        print(f"{self.poller.answered} polls, the longest took {self.poller.longest_seconds:.2f} s")
        if error[0] is None:
            assert (complaints, self.poller.failures) == ("", [])

    def reschedule(self, absent: str) -> None:
        """Cancel the reboot of web-0 at a replica that is there, and announce another at another.

        Return once the guest has seen both.
        """
        one, other = (self.moved.replicas[name] for name in NAMES if name != absent)
        (event,) = one.document("events")["events"]
        one.document("cancel", event["operation"])
        other.document("schedule", "reboot", "web-0")
        self._see(2)

    def _see(self, more: int) -> None:
        self._seen += more
        until(lambda: len(self.watch.changes()) == self._seen, self.watch.complaints)


def test_no_guest_notices_that_a_replica_is_killed_restarted_frozen_or_cut_off(
    moved: Moved,
) -> None:
    with Guests(moved) as guests:
        for name, replica in moved.replicas.items():
            others = [other for other in NAMES if other != name]
            for end in (replica.kill, replica.stop):
                end()
                guests.reschedule(name)
                replica.start()
                moved.balancer.wait_for(*NAMES)
            replica.freeze()
            moved.balancer.wait_for(*others)
            guests.reschedule(name)
            replica.thaw()
            moved.balancer.wait_for(*NAMES)
        moved.way.stall()
        moved.balancer.wait_for("fw1", "fw2")
        guests.reschedule("fw3")
        moved.way.heal()
        moved.balancer.wait_for(*NAMES)
    assert guests.poller.answered > 100


def test_a_backup_is_restored_and_no_incarnation_is_read_twice(moved: Moved) -> None:
    before = moved.live()
    shell(
        pages.block(RUNNING, "sh", "pg_dump"),
        moved.places(URL, "/etc/forewarn", "/var/backups"),
    )
    assert (moved.folder / "forewarn.dump").stat().st_mode & 0o077 == 0
    highest = _incarnation(moved)
    for replica in moved.replicas.values():
        assert replica.stop() == 0
    moved.databases.sql(pages.block(RUNNING, "sql", "RENAME"))
    shell(
        pages.block(RUNNING, "sh", "pg_restore"),
        moved.places(URL, "/etc/forewarn", "/var/backups", "forewarn restore-check"),
    )
    for replica in moved.replicas.values():
        replica.start()
    moved.balancer.wait_for(*NAMES)
    assert [event["id"] for event in moved.live()] == [event["id"] for event in before]
    assert _incarnation(moved) >= highest + 1_000_000


def test_documents_are_read_while_no_standby_or_no_primary_is_there(moved: Moved) -> None:
    servers = moved.databases.servers
    with Guests(moved) as guests:
        watch, poller = guests.watch, guests.poller
        (event,) = moved.live()
        for standby in servers[1:]:
            standby.stop()
        status, said = poller.approve(event["id"])
        assert (status, refusals.UNKNOWN_OUTCOME.text in said) == (503, True)
        servers[1].start()
        until(lambda: poller.approve(event["id"])[0] == 200)
        until(lambda: watch.changes()[-1]["event"]["status"] == "Started", watch.complaints)
        servers[0].kill()
        assert poller.approve(event["id"])[0] == 503
        assert moved.balancer.up() >= {"fw1", "fw2"}
        servers[1].promote()
        until(lambda: poller.approve(event["id"])[0] == 200)
        until(lambda: _serving(moved) == list(NAMES))


def _serving(moved: Moved) -> list[str]:
    told = moved.replicas["fw2"].document("replicas")["replicas"]
    return [one["name"] for one in told if one["live"] and one["serving"]]


def _incarnation(moved: Moved) -> int:
    scopes = moved.replicas["fw1"].document("fleet", "list", "--scopes")["scopes"]
    return max(scope["incarnation"] for scope in scopes)
