"""Hostile guests and strangers, in many ways at once, and what twenty others notice of them.

The service, its guests and those who attack are hosts of their own, in network namespaces on one
bridge; where those cannot be had, all share the loopback interface. A relay is attacked in the same
ways, with a service behind it, and so is nginx with the limits that it has for an address.

While somebody is hostile, twenty machines read their documents well within the rate, an operator
announces a reboot every PAUSE_SECONDS and looks at the history, and the machine that each reboot is
for approves it by a connection of its own.
"""

import argparse
import contextlib
import dataclasses
import json
import queue
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import machine
import networks
import servers
import strangers
from guests import Guests
from networks import ATTACKER, ATTACKERS, NEIGHBOUR, PROXY, SERVICE, STRANGER, WORKER, Network
from servers import RelayContestant
from service import Service
from strangers import Attack
from tables import Row, percentile, show

OTHERS = 20
NEWCOMER, APPROVER = OTHERS, OTHERS + 1
"""Two neighbours more: one connects for each read, one is of the hostile scope."""

REQUESTS = 4000
EACH_SECONDS = 1 / 40
"""Each of the others asks 40 times a second: the rate allows 50."""

LIMIT = 64
"""As many connections as an address may have: twenty of them make 1,280."""

MANY = 20
CROWD = 200
"""Strangers that want 12,800 connections, more than the service has for everybody."""

IDS = 1000
"""What one approval may name."""

MACHINES = 1000
"""Of the attackers' scope: one for each of the events of their own that they approve."""

WORKERS = 6000
"""Machines that approve a reboot each, one after another; more than there is time for."""

PAUSE_SECONDS = 0.05
"""Between two requests of the operator, and so between two approvals."""

SETTLE_SECONDS = 90.0
"""How long the connections of attackers who are gone may stay."""

LATER = timedelta(hours=6)
"""The notice of what is announced; nobody waits for it."""

AIMS = {"GET p99 ms": 50.0, "approve p99 ms": 250.0, "operator p99 ms": 500.0, "more MiB": 64.0}

SETTINGS = "[connector.simulated]\nreboot_seconds = 3600\nfreeze_seconds = 0\n"
SECRET = "the secret of the proxy that the attackers have"

STALLED = '"guests got no answer"'
MOVED = '"every notice has moved later"'
"""What the service's log says of an outage."""

REFUSED_SECONDS = 8.0
"""An approval's answer without the store: its wait for another program's lock, and some."""

AWAY_SECONDS = 3.0
"""How long the store is away in the last case."""


ALONE = ("silent", "drip", "flood", "heads", "pipeline", "sip")
"""What one guest does, in all of these ways at once."""

MIXED = ("headers", "chunks", "own events", "foreign events", "waiters", "idle")

CASES: tuple[tuple[tuple[str, ...], str], ...] = (
    ((), "nobody"),
    *(((way,), "1 machine") for way in ALONE),
    (ALONE, "1 machine"),
    *(
        ((way,), who)
        for way in ("headers", "chunks")
        for who in ("1 machine", "20 machines", "1 stranger", "20 strangers")
    ),
    *(((way,), who) for way in MIXED[2:4] for who in ("1 machine", "20 machines")),
    (("foreign events",), "20 strangers"),
    (("waiters",), "2 behind a proxy"),
    (("waiters",), "20 behind a proxy"),
    *((("idle",), who) for who in ("1 stranger", "20 strangers", "200 strangers")),
    (MIXED, "20 machines"),
    (MIXED, "20 strangers"),
    (MIXED, "20 of each"),
)
"""What is done at a time, and by whom; each way by a process for each kind of addresses."""

QUICK = (0, 7, 11, 16, 21, 27)
QUICK_NGINX = (0, 11)
"""The cases that `--quick` takes, and those of them that nginx takes."""


Attacked = Service | RelayContestant
"""Who is attacked; a relay is asked for what is its service's, too."""


class Attacks(NamedTuple):
    """What attackers do over a network."""

    network: Network
    own: Sequence[str]
    """Events of the attackers' own scope."""
    foreign: Sequence[str]
    """Events of the others, and some that never were."""

    def of(self, number: int) -> list[Attack]:
        """Return what each process does in one of `CASES`; its port is still to be said.

        Each case has addresses of its own: who has used more of the service than its share pays for
        it for a while, and would be a weaker attacker.
        """
        ways, who = CASES[number]
        first = number * MANY
        machines = self.network.addresses(ATTACKER, range(first, first + MANY))
        unknown = self.network.addresses(STRANGER, range(first, first + CROWD))
        crowds = {
            "1 machine": [machines[:1]],
            "20 machines": [machines],
            "1 stranger": [unknown[:1]],
            "20 strangers": [unknown[:MANY]],
            "200 strangers": [unknown],
            "20 of each": [machines, unknown[:MANY]],
        }
        found = []
        for way in ways:
            if way == "waiters":
                count = 2 if who.startswith("2 ") else MANY
                found.append(self._waiters(range(first, first + count)))
            else:
                found += [self._attack(way, crowd) for crowd in crowds[who]]
        return found

    def _attack(self, way: str, addresses: Sequence[str]) -> Attack:
        ids = {"own events": self.own, "foreign events": self.foreign}.get(way, ())
        return Attack(
            way="approvals" if ids else way,
            host=self.network.service,
            port=0,
            addresses=addresses,
            connections=strangers.CONNECTIONS if way in ALONE else LIMIT,
            ids=ids,
        )

    def _waiters(self, numbers: Iterable[int]) -> Attack:
        return Attack(
            way="waiters",
            host=self.network.service,
            port=0,
            addresses=self.network.addresses(PROXY, range(1)),
            connections=LIMIT * MANY,
            secret=SECRET,
            machines=[f"proxied{number}" for number in numbers],
        )


@contextlib.contextmanager
def attacked(network: Network, attacks: Sequence[Attack], port: int) -> Iterator[None]:
    """Let somebody be hostile in these ways, a process for each."""
    command = [*network.within(ATTACKERS), sys.executable, strangers.__file__]
    processes = []
    try:
        for attack in attacks:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            processes.append(process)
            assert process.stdin is not None
            order = dataclasses.asdict(dataclasses.replace(attack, port=port))
            process.stdin.write(json.dumps(order).encode())
            process.stdin.close()
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"begun\n"
        yield
        for process, attack in zip(processes, attacks, strict=True):
            assert process.poll() is None, f"{attack.way} ended by itself"
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextlib.contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something again and again on a thread."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.wait(PAUSE_SECONDS):
                act()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


class Work:
    """What goes on in a fleet that is not hostile: maintenance is announced and approved.

    Args:
        service: Has the fleet of `fleet`.
        network: Where it is.
    """

    def __init__(self, service: Attacked, network: Network) -> None:
        self._service = service
        self._network = network
        self._announced: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._next = 0
        self.approved: list[str] = []
        """Events whose approval was answered with 200."""
        self.refused = 0
        """Approvals that were not."""
        self.operator: list[float] = []
        """Seconds that each request of the operator took."""
        self.approvals: list[float] = []
        """Seconds that each approval took, its connection included."""

    def begin(self) -> None:
        """Forget how long things took, and who was refused."""
        self.operator.clear()
        self.approvals.clear()
        self.refused = 0

    def operate(self) -> None:
        """Announce the next machine's reboot, and look at the history."""
        number, self._next = self._next, self._next + 1
        began = time.perf_counter()
        self._announced.put((number, announced(self._service, f"worker{number}")))
        between = time.perf_counter()
        self._service.ask("GET", "/v1/history?limit=10")
        self.operator += [between - began, time.perf_counter() - between]

    def approve(self) -> None:
        """Approve what was announced, as the machine that it is for."""
        with contextlib.suppress(queue.Empty):
            number, event = self._announced.get_nowait()
            began = time.perf_counter()
            address = self._network.address(WORKER, number)
            worker = Guests(self._service.port, [address], host=self._network.service)
            worker.ask(1, request=strangers.approval([event]))
            worker.close()
            self.approvals.append(time.perf_counter() - began)
            if worker.statuses == {"200": 1}:
                self.approved.append(event)
            else:
                self.refused += 1


class Newcomer:
    """A neighbour that reads by a new connection each time.

    Args:
        network: Where it is.
        port: Where the server listens.
    """

    def __init__(self, network: Network, port: int) -> None:
        self._network = network
        self._port = port
        self.seconds: list[float] = []
        """That each read took, its connection included."""

    def read(self) -> None:
        address = self._network.address(NEIGHBOUR, NEWCOMER)
        began = time.perf_counter()
        with contextlib.closing(Guests(self._port, [address], host=self._network.service)) as guest:
            guest.ask(1)
        self.seconds.append(time.perf_counter() - began)


def fleet(network: Network, workers: int) -> dict[str, Any]:
    """Return the fleet: the others, those who work, the attackers in one scope, those proxied."""
    alone = {"other": (NEIGHBOUR, OTHERS + 1), "worker": (WORKER, workers)}
    on = {"host": servers.HOST}
    machines = [
        {"name": f"{name}{number}", "address": network.address(kind, number), **on}
        for name, (kind, count) in alone.items()
        for number in range(count)
    ]
    machines += [{"name": f"proxied{number}", **on} for number in range(len(CASES) * MANY)]
    hostile = [
        {"name": f"hostile{number}", "address": network.address(ATTACKER, number), **on}
        for number in range(MACHINES)
    ]
    # One who approves what is the attackers', before they do.
    approver = {"name": "approver", "address": network.address(NEIGHBOUR, APPROVER), **on}
    hostile.append(approver)
    scope = {"name": "hostile", "update_domains": 1, "machines": hostile}
    return {"machine": machines, "availability_set": [scope]}


def announced(service: Attacked, name: str, event_type: str = "Reboot") -> str:
    """Announce something to a machine, and return the event's id."""
    later = (datetime.now(UTC) + LATER).isoformat()
    plan = {"event_type": event_type, "machines": [name], "not_before": later}
    event: str = service.ask("POST", "/v1/maintenances", plan)["operations"][0]["events"][0]["id"]
    return event


def own_events(service: Attacked, network: Network, count: int) -> list[str]:
    """Return events of the attackers' scope that were, a hundred at a time."""
    found: list[str] = []
    address = network.address(NEIGHBOUR, APPROVER)
    with contextlib.closing(Guests(service.port, [address], host=network.service)) as approver:
        for first in range(0, count, 100):
            names = [f"hostile{number}" for number in range(first, first + 100)]
            batch = [announced(service, name, "Freeze") for name in names]
            approver.ask(1, request=strangers.approval(batch))
            found += batch
    assert approver.statuses == {"200": count // 100}, approver.statuses
    until = time.monotonic() + 30
    while len(service.history(status="Completed")) < count:
        assert time.monotonic() < until, "the attackers' events are not over"
        time.sleep(0.2)
    return found * (IDS // count)


def not_before(service: Attacked) -> dict[str, str]:
    """Return when everything that is scheduled is to start at the earliest."""
    return {o["id"]: o["not_before"] for o in service.history(status="Scheduled")}


@contextlib.contextmanager
def others_of(network: Network, port: int) -> Iterator[Guests]:
    """Let the others have their connections."""
    addresses = network.addresses(NEIGHBOUR, range(OTHERS))
    with contextlib.closing(Guests(port, addresses, host=network.service)) as others:
        yield others


def ask(others: Guests, requests: int) -> None:
    """Let the others ask, until the attack has its full weight and then for the figures."""
    others.ask(requests // 10, each_seconds=EACH_SECONDS)
    others.seconds.clear()
    others.ask(requests, each_seconds=EACH_SECONDS)


def milliseconds(figures: Sequence[float], share: float) -> float | str:
    return round(percentile(figures, share) * 1e3, 2) if figures else ""


def limits_said(before: dict[str, float], after: dict[str, float]) -> str:
    """Return what the metric of refusals counted meanwhile, the most first."""
    more = {labels: after[labels] - before.get(labels, 0) for labels in after}
    ordered = sorted((labels for labels in more if more[labels]), key=more.__getitem__)
    named = {labels: labels.split('"')[1] for labels in ordered}
    return ", ".join(f"{named[labels]} {more[labels]:.0f}" for labels in reversed(ordered))


def measured(
    work: Work, service: Attacked, network: Network, attacks: list[Attack], requests: int
) -> Row:
    """Let the others ask, machines approve and an operator work while somebody is hostile."""
    work.begin()
    told = service.metrics("forewarn_guest_refusals_total")
    notices = not_before(service)
    newcomer = Newcomer(network, service.port)
    service.forget_peak()
    with (
        others_of(network, service.port) as others,
        attacked(network, attacks, service.port),
        meanwhile(work.operate),
        meanwhile(work.approve),
        meanwhile(newcomer.read),
    ):
        used, began = service.cpu_seconds(), time.monotonic()
        ask(others, requests)
        busy = (service.cpu_seconds() - used) / (time.monotonic() - began)
        peak = service.memory_mib("VmHWM")
    calm = settled(service)
    now = not_before(service)
    return {
        "GET p50 ms": milliseconds(others.seconds, 0.5),
        "GET p99 ms": milliseconds(others.seconds, 0.99),
        "new p99 ms": milliseconds(newcomer.seconds, 0.99),
        "approve p99 ms": milliseconds(work.approvals, 0.99),
        "operator p99 ms": milliseconds(work.operator, 0.99),
        "refused": others.statuses.total() - others.statuses["200"] + work.refused,
        "notices moved": sum(now[name] != notices[name] for name in now.keys() & notices.keys()),
        "peak MiB": round(peak, 1),
        "calm after s": round(calm, 1),
        "busy": f"{busy:.0%}",
        "the limits say": limits_said(told, service.metrics("forewarn_guest_refusals_total")),
    }


def settled(service: Attacked) -> float:
    """Return after how many seconds nothing is left of attackers who are gone."""
    began = time.monotonic()
    accepted = -1.0
    while accepted != (now := service.metric("forewarn_guest_connections_accepted_total")):
        accepted = now
        time.sleep(0.1)
    while service.metric("forewarn_guest_connections"):
        assert time.monotonic() < began + SETTLE_SECONDS, "connections of the gone stay open"
        time.sleep(0.05)
    return time.monotonic() - began


def beside(
    network: Network, body: str, cases: dict[int, list[Attack]], requests: int
) -> dict[int, Row]:
    """Attack nginx in the same ways; it knows no machines, so some cases are one to it."""
    found: dict[int, Row] = {}
    seen: dict[object, Row] = {}
    with servers.nginx_with_limits(network, body) as nginx:
        quiet = nginx.memory_mib()
        for number, attacks in cases.items():
            kind = [(each.way, len(each.addresses), each.connections) for each in attacks]
            if str(kind) not in seen:
                newcomer = Newcomer(network, nginx.port)
                with (
                    others_of(network, nginx.port) as others,
                    attacked(network, attacks, nginx.port),
                    meanwhile(newcomer.read),
                ):
                    ask(others, requests)
                    more = nginx.memory_mib() - quiet
                seen[str(kind)] = {
                    "nginx p50 ms": milliseconds(others.seconds, 0.5),
                    "nginx p99 ms": milliseconds(others.seconds, 0.99),
                    "nginx new p99 ms": milliseconds(newcomer.seconds, 0.99),
                    "nginx refused": others.statuses.total() - others.statuses["200"],
                    "nginx more MiB": round(more, 1),
                }
            found[number] = seen[str(kind)]
    return found


@contextlib.contextmanager
def store_away(database: Path) -> Iterator[None]:
    """Hold the database's lock, as another program might: no change gets through."""
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


def without_store(
    service: Service, network: Network, attacks: list[Attack], event: str, seconds: float
) -> Row:
    """Take the store away while somebody is hostile, and look at what each request gets.

    Args:
        service: Runs, and knows the fleet.
        network: Where it is.
        attacks: What is done meanwhile.
        event: What the first machine approves, once without the store and once with it.
        seconds: How long the others ask.
    """
    addresses = network.addresses(NEIGHBOUR, range(OTHERS))
    reading = Guests(service.port, addresses[1:], host=network.service)
    approving = Guests(service.port, addresses[:1], host=network.service)
    approval = strangers.approval([event])
    with attacked(network, attacks, service.port), store_away(service.database):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            reading.ask(OTHERS, each_seconds=EACH_SECONDS)
        approving.ask(1, request=approval)
    approving.ask(1, request=approval)
    until_refused, _ = approving.seconds
    reading.close()
    approving.close()
    return {
        "GETs": dict(reading.statuses),
        "p99 ms": milliseconds(reading.seconds, 0.99),
        "approvals, away and back": " ".join(approving.statuses),
        "refused after s": round(until_refused, 1),
    }


def judge(found: dict[str, Any], *, timed: bool) -> None:
    """Hold the service, or a relay, to what it promises, whoever is hostile."""
    assert found["hostile"]
    for row in found["hostile"]:
        assert row["refused"] == 0, row
        assert row["notices moved"] == 0, row
        assert row["more MiB"] <= AIMS["more MiB"], row
        for column, aim in AIMS.items():
            if timed and row[column] > aim:
                print(f"  missed: {row['what']}, {row['who']}: {column} {row[column]}")
    assert found["approvals lost"] == 0, found["approvals lost"]
    assert found["outages"]["notices moved"] == 0, found["outages"]
    away = found.get("store away")
    if away is None:
        return
    assert set(away["GETs"]) == {"200"}, away
    assert away["approvals, away and back"] == "503 200", away
    assert away["refused after s"] < REFUSED_SECONDS, away


def prepared(
    service: Attacked, network: Network, *, quick: bool
) -> tuple[dict[int, list[Attack]], str]:
    """Announce what the cases need; return who attacks in each, and an event of the others."""
    others = [announced(service, f"other{number}") for number in range(OTHERS)]
    unknown = [f"00000000-0000-4000-8000-{number:012X}" for number in range(IDS - OTHERS)]
    own = own_events(service, network, 100 if quick else IDS)
    attacks = Attacks(network, own, [*others, *unknown])
    numbers = QUICK if quick else range(len(CASES))
    return {number: attacks.of(number) for number in numbers}, others[0]


def rows_of(
    work: Work,
    service: Attacked,
    network: Network,
    cases: dict[int, list[Attack]],
    requests: int,
) -> dict[int, Row]:
    """Be hostile in every way."""
    quiet = service.memory_mib()
    rows: dict[int, Row] = {}
    for number, each in cases.items():
        ways, who = CASES[number]
        row = measured(work, service, network, each, requests)
        row["more MiB"] = round(row.pop("peak MiB") - quiet, 1)
        rows[number] = {"what": ", ".join(ways) or "nothing", "who": who} | row
        print(f"  {number + 1} of {len(CASES)}: {rows[number]}", flush=True)
    return rows


def lost(work: Work, service: Attacked) -> int:
    """Return how many approvals were answered with 200, and are not in the history."""
    events = [event for o in service.history() for event in o["events"]]
    return len(set(work.approved) - {event["id"] for event in events if event["approval"]})


def of_service(service: Service, network: Network, *, quick: bool) -> dict[str, Any]:
    """Be hostile to the service, and to nginx where it is installed."""
    requests = 20 * OTHERS if quick else REQUESTS
    service.ask("PUT", "/v1/fleet", fleet(network, WORKERS // 10 if quick else WORKERS))
    cases, event = prepared(service, network, quick=quick)
    work = Work(service, network)
    rows = rows_of(work, service, network, cases, requests)
    silent = cases[QUICK[1]]
    away = without_store(service, network, silent, event, 0.5 if quick else AWAY_SECONDS)
    log = service.log.read_text(encoding="utf-8")
    lacking = machine.missing("nginx")
    if lacking:
        print("missing: nginx, so it takes no part")
    else:
        chosen = {n: each for n, each in cases.items() if not quick or n in QUICK_NGINX}
        body = servers.ask(service.port, network.service, network.address(NEIGHBOUR, 1))[1]
        for number, row in beside(network, body, chosen, requests).items():
            rows[number] |= row
    return {
        "hostile": list(rows.values()),
        "store away": away,
        "approvals lost": lost(work, service),
        "outages": {"stalls": log.count(STALLED), "notices moved": log.count(MOVED)},
    }


def of_relay(network: Network, listener: str, *, quick: bool) -> dict[str, Any]:
    """Be hostile to a relay in the same ways."""
    requests = 20 * OTHERS if quick else REQUESTS
    neighbour = network.address(NEIGHBOUR, 0)
    with RelayContestant(
        fleet(network, WORKERS // 10 if quick else WORKERS),
        settings=SETTINGS,
        address="0.0.0.0",
        asked=network.service,
        listener=listener,
        within=network.within(SERVICE),
        ready=lambda port: servers.ask(port, network.service, neighbour)[0] == 200,
    ) as relay:
        cases, _ = prepared(relay, network, quick=quick)
        work = Work(relay, network)
        rows = rows_of(work, relay, network, cases, requests)
        log = relay.service.log.read_text(encoding="utf-8")
        stalled = relay.metric("forewarn_stalled_seconds_total")
        return {
            "hostile": list(rows.values()),
            "approvals lost": lost(work, relay),
            "outages": {"stalls": round(stalled, 1), "notices moved": log.count(MOVED)},
        }


def with_relay(found: dict[str, Any]) -> list[Row]:
    """Return the service's rows with the relay's figures beside them."""
    told = ("GET p50 ms", "GET p99 ms", "new p99 ms", "approve p99 ms", "more MiB", "refused")
    return [
        row | {f"relay {column}": its[column] for column in told}
        for row, its in zip(found["hostile"], found["relay"]["hostile"], strict=True)
    ]


def missing() -> list[str]:
    return []


def run(*, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="forewarn-bench-") as folder:
        report = Path(folder) / "report"
        parting = networks.parting()
        if not parting:
            print(
                "no network namespaces (as root, or as a user who may have them): all on loopback"
            )
        command = [*parting, sys.executable, __file__, str(report)]
        command += ["--quick"] * quick + ["--parted"] * bool(parting)
        subprocess.run(command, check=True)
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    aims = ", ".join(f"{column} {aim:.0f}" for column, aim in AIMS.items())
    relay = found["relay"]
    show(f"{OTHERS} guests beside hostile ones; aims: {aims}; no notice moved", with_relay(found))
    show("the same while the store is away", [found["store away"]])
    show("outages", [found["outages"] | {"approvals lost": found["approvals lost"]}])
    show("the relay's", [relay["outages"] | {"approvals lost": relay["approvals lost"]}])
    judge(found, timed=not quick)
    judge(relay, timed=not quick)
    return found


def main() -> None:
    """Do all of it in namespaces of its own, or on loopback."""
    parser = argparse.ArgumentParser()
    parser.add_argument("report", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parted", action="store_true")
    chosen = parser.parse_args()
    network = networks.part() if chosen.parted else networks.LOOPBACK
    sys.setswitchinterval(0.0005)  # three threads measure here
    with tempfile.TemporaryDirectory(prefix="forewarn-bench-") as folder:
        secret = Path(folder) / "secret"
        secret.write_text(SECRET + "\n", encoding="utf-8")
        secret.chmod(0o600)
        proxy = network.address(PROXY, 0)
        listener = f'trusted_proxies = ["{proxy}/32"]\nproxy_secret_files = ["{secret}"]'
        within = network.within(SERVICE)
        with Service(SETTINGS, address="0.0.0.0", listener=listener, within=within) as service:
            found = of_service(service, network, quick=chosen.quick)
        found["relay"] = of_relay(network, listener, quick=chosen.quick)
    report = {"network": "namespaces" if chosen.parted else "loopback"} | found
    chosen.report.write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
