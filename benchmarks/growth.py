"""What a larger fleet costs: memory, start-up, a GET, a change.

Machines stand in scopes of 100, each with its own address, and 32 of them, evenly far apart, ask.
All fleets are there at once and take turns. What a GET costs is the service's processor time for
one, which says more than its rate: that would be this load's, not the service's.
"""

import contextlib
import statistics
import time

from guests import Guests
from servers import WITHOUT_RATE
from service import Service, address_of, placed
from tables import Row, percentile, show, spread

OF_SCOPE = 100
ASKING = 32
ROUNDS = 5


class Fleet:
    """A service with so many machines, started anew when it was filled.

    Args:
        count: How many machines.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.gets: list[float] = []
        """Seconds of the service's processor for one, by round."""
        self.changes: list[float] = []
        """Seconds that an operator waited for each."""
        self.change_cpu: list[float] = []
        """Seconds of the service's processor for one, by round."""
        self._step = max(1, count // ASKING)
        self._changed = 0

    def open(self, running: contextlib.ExitStack) -> None:
        self.service = running.enter_context(Service(WITHOUT_RATE))
        began = time.monotonic()
        self.service.ask("PUT", "/v1/fleet", placed(self.count, of_scope=OF_SCOPE))
        self.filled = time.monotonic() - began
        self.service.stop()
        self.started = self.service.start()
        self.memory = self.service.memory_mib()
        asking = [address_of(n * self._step % self.count) for n in range(ASKING)]
        self._guests = running.enter_context(contextlib.closing(Guests(self.service.port, asking)))
        self._guests.ask(ASKING * 10)
        self._asked = ASKING * 10

    def take_turn(self, requests: int, changes: int) -> None:
        """Be asked so often, and then changed so often, if there are machines for it."""
        before = self.service.cpu_seconds()
        self._guests.ask(requests)
        self._asked += requests
        self.gets.append((self.service.cpu_seconds() - before) / requests)
        changes = min(changes, self.count - self._changed)
        before = self.service.cpu_seconds()
        for _ in range(changes):
            self._change(self._changed * self._step % self.count)
            self._changed += 1
        if changes:
            self.change_cpu.append((self.service.cpu_seconds() - before) / changes)

    def _change(self, number: int) -> None:
        """Announce a reboot of one machine."""
        plan = {"event_type": "Reboot", "machines": [f"m{number}"]}
        began = time.perf_counter()
        self.service.ask("POST", "/v1/maintenances", plan)
        self.changes.append(time.perf_counter() - began)

    def row(self) -> Row:
        assert self._guests.statuses == {"200": self._asked}, self._guests.statuses
        counted = self.service.metric("forewarn_guest_requests_total")
        assert counted == self._asked, f"{self._asked} were asked and {counted} counted"
        return {
            "machines": self.count,
            "memory MiB": round(self.memory),
            "fill s": round(self.filled, 2),
            "start-up s": round(self.started, 2),
            "a GET, us of processor": spread([each * 1e6 for each in self.gets], 1),
            "a change, ms": round(statistics.median(self.changes) * 1e3, 1),
            "its p99 ms": round(percentile(self.changes, 0.99) * 1e3, 1),
            "its ms of processor": spread([each * 1e3 for each in self.change_cpu], 1),
        }


def missing() -> list[str]:
    return []


def run(*, quick: bool) -> dict[str, list[Row]]:
    fleets = [Fleet(count) for count in ([1, 1000] if quick else [1, 100, 10_000, 100_000])]
    with contextlib.ExitStack() as running:
        for fleet in fleets:
            fleet.open(running)
        for _ in range(1 if quick else ROUNDS):
            for fleet in fleets:
                fleet.take_turn(*((2000, 5) if quick else (20_000, 6)))
        rows = [fleet.row() for fleet in fleets]
    show("a larger fleet, in scopes of 100; aim: the cost of a GET does not grow", rows)
    return {"growth": rows}
