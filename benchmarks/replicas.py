"""What PostgreSQL and replicas cost beside SQLite: approvals, news at other replicas, large fleets.

All processes, the database and this load share all cores: they are hosts of their own elsewhere.
Whoever is compared takes turns within a round.
"""

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from guests import Guests
from news import Waiters
from rules import approve_all
from servers import WITHOUT_RATE
from service import Service, address_of, placed
from tables import Row, percentile, show, spread

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import postgres

OUTSTANDING = (1, 10, 100, 200)
ROUNDS = 3
LASTING = "[connector.simulated]\nfreeze_seconds = 3600\n"

Opened = list[Service]
Setup = Callable[[contextlib.ExitStack], Opened]


def on_sqlite(running: contextlib.ExitStack) -> Opened:
    return [running.enter_context(Service(LASTING + WITHOUT_RATE, alone=False))]


def on_postgresql(count: int, *, synchronous: bool = False) -> Setup:
    """So many replicas over a database, which waits for a standby if it is synchronous."""

    def opened(running: contextlib.ExitStack) -> Opened:
        server = running.enter_context(_server())
        if synchronous:
            standby = server.standby("b").start()
            running.callback(standby.remove)
            server.reload("synchronous_standby_names = 'b'")
        store = f'url = "{server.create_database("forewarn")}"'
        return [
            running.enter_context(
                Service(
                    f'{LASTING}{WITHOUT_RATE}\n[replica]\nname = "r{n}"\n', store=store, alone=False
                )
            )
            for n in range(count)
        ]

    return opened


@contextlib.contextmanager
def _server() -> Iterator[postgres.Postgres]:
    server = postgres.Postgres().start()
    try:
        yield server
    finally:
        server.remove()


SETUPS: dict[str, Setup] = {
    "SQLite": on_sqlite,
    "PostgreSQL, 1 replica": on_postgresql(1),
    "2 replicas": on_postgresql(2),
    "4 replicas": on_postgresql(4),
    "1 replica, synchronous standby": on_postgresql(1, synchronous=True),
}


def approvals(count: int, rounds: int) -> list[Row]:
    """Approve `count` events in each of the set-ups, with 1 to 200 requests outstanding."""
    rates: dict[tuple[str, int], list[float]] = {}
    waits: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for name, setup in SETUPS.items():
            with contextlib.ExitStack() as running:
                services = setup(running)
                first = 0
                for outstanding in OUTSTANDING:
                    events = _announce(services[0], first, max(40, count * outstanding // 200))
                    first += len(events)
                    ports = [service.port for service in services]
                    took, each = asyncio.run(approve_all(ports, events, outstanding))
                    case = name, outstanding
                    rates.setdefault(case, []).append(len(events) / took)
                    waits.setdefault(case, []).extend(each)
    of_sqlite = {n: statistics.median(rates["SQLite", n]) for n in OUTSTANDING}
    return [
        {
            "store": name,
            "outstanding": n,
            "per second": spread(rates[name, n]),
            "of SQLite's": round(statistics.median(rates[name, n]) / of_sqlite[n], 2),
            "p50 ms": round(statistics.median(waits[name, n]) * 1000, 1),
            "p99 ms": round(percentile(waits[name, n], 0.99) * 1000, 1),
        }
        for name in SETUPS
        for n in OUTSTANDING
    ]


def _announce(service: Service, first: int, count: int) -> list[tuple[str, str]]:
    """Announce an event for each of `count` new machines; return the machines and events."""
    names = [f"m{first + n}" for n in range(count)]
    service.ask("PUT", "/v1/fleet", {"machine": [{"name": name} for name in names]})
    plan = service.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "machines": names})
    events = [event for operation in plan["operations"] for event in operation["events"]]
    assert len(events) == count
    return [(event["machines"][0], event["id"]) for event in events]


def elsewhere(count: int, changes: int) -> Row:
    """Let machines wait at one replica, announce at another, and see when all have read of it."""
    with contextlib.ExitStack() as running:
        services = on_postgresql(3)(running)
        services[0].ask("PUT", "/v1/fleet", placed(count, of_scope=count))
        time.sleep(1.0)
        with contextlib.closing(Waiters(services[1:], count, services[0])) as waiters:
            told = [max(waiters.hear(number)[0]) for number in range(changes)]
    return {
        "replicas": 3,
        "machines": count,
        "changes": len(told),
        "p50 ms": round(statistics.median(told) * 1000, 1),
        "p99 ms": round(percentile(told, 0.99) * 1000, 1),
    }


def growth(count: int, requests: int) -> Row:
    """Fill a fleet on PostgreSQL, start again, and be asked."""
    with contextlib.ExitStack() as running:
        (service,) = on_postgresql(1)(running)
        began = time.monotonic()
        service.ask("PUT", "/v1/fleet", placed(count, of_scope=100))
        filled = time.monotonic() - began
        service.stop()
        started = service.start()
        memory = service.memory_mib()
        asking = [address_of(n * max(1, count // 32) % count) for n in range(32)]
        guests = running.enter_context(contextlib.closing(Guests(service.port, asking)))
        guests.ask(320)
        before = service.cpu_seconds()
        guests.ask(requests)
        used = service.cpu_seconds() - before
    return {
        "machines": count,
        "filled s": round(filled, 1),
        "start s": round(started, 1),
        "memory MiB": round(memory),
        "GET us": round(1e6 * used / requests, 1),
    }


def missing() -> list[str]:
    return [] if postgres.found() else ["PostgreSQL"]


def run(*, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "approvals": approvals(200 if quick else 10_000, 1 if quick else ROUNDS),
        "elsewhere": [elsewhere(10, 2) if quick else elsewhere(100, 50)],
        "growth": [
            growth(count, 1000 if quick else 20_000)
            for count in ([100] if quick else [1000, 100_000, 200_000])
        ],
    }
    show("approvals that are in the store when they are answered", found["approvals"])
    show(
        "a change at one replica, until the last machine at another has read it", found["elsewhere"]
    )
    show("larger fleets on PostgreSQL", found["growth"])
    return found
