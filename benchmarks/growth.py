"""What a larger fleet costs: memory, start-up, a GET, a change.

Machines stand in scopes of 100, each with its own address, and 32 of them, evenly far apart, ask.
What a GET costs is the service's processor time for one, which says more than its rate: that would
be this load's, not the service's.
"""

import statistics
import time

from guests import Guests
from servers import WITHOUT_RATE
from service import Service, placed
from tables import Row, percentile, show

OF_SCOPE = 100
ASKING = 32
CHANGES = 30


def measured(count: int, requests: int, changes: int) -> Row:
    """Fill a service with so many machines, start it anew, ask it and change it."""
    with Service(WITHOUT_RATE) as service:
        began = time.monotonic()
        service.ask("PUT", "/v1/fleet", placed(count, of_scope=OF_SCOPE))
        filled = time.monotonic() - began
        service.stop()
        started = service.start()
        memory = service.memory_mib()
        step = max(1, count // ASKING)
        guests = Guests(service.port, [n * step % count for n in range(ASKING)])
        guests.ask(ASKING * 10)
        before = service.cpu_seconds()
        guests.ask(requests)
        each = (service.cpu_seconds() - before) / requests
        guests.close()
        assert guests.statuses == {"200": requests + ASKING * 10}, guests.statuses
        before = service.cpu_seconds()
        took = [_change(service, number * step % count) for number in range(min(changes, count))]
        change = (service.cpu_seconds() - before) / len(took)
    return {
        "machines": count,
        "memory MiB": round(memory),
        "fill s": round(filled, 2),
        "start-up s": round(started, 2),
        "a GET, us of processor": round(each * 1e6, 1),
        "a change, ms": round(statistics.median(took) * 1e3, 1),
        "p99 ms": round(percentile(took, 0.99) * 1e3, 1),
        "ms of processor": round(change * 1e3, 1),
    }


def _change(service: Service, number: int) -> float:
    """Announce a reboot of one machine, and return how long the operator waited."""
    began = time.perf_counter()
    service.ask("POST", "/v1/maintenance", {"event_type": "Reboot", "machines": [f"m{number}"]})
    return time.perf_counter() - began


def missing() -> list[str]:
    return []


def run(*, quick: bool) -> dict[str, list[Row]]:
    sizes = [1, 1000] if quick else [1, 100, 10_000, 100_000]
    rows = [measured(size, 2000 if quick else 40_000, 5 if quick else CHANGES) for size in sizes]
    show("a larger fleet, in scopes of 100; aim: the cost of a GET does not grow", rows)
    return {"growth": rows}
