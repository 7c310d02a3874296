"""Two hours of maintenance over some 500 machines, played by the real rules on a virtual clock.

A seed chooses what operators ask for, who approves and what fails, so the same seed makes the same
evening. It ends in a store, with which a service is started.
"""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import msgspec

from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome, Task
from forewarn.control import maintenances
from forewarn.control.maintenances import Asked, UnitTargets
from forewarn.control.outbox import state_of
from forewarn.control.plane import Plane
from forewarn.maintenance import planner
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.model import HoldKind, Operation, Policy, Refused
from forewarn.maintenance.planner import Request
from forewarn.maintenance.units import TurnPolicy
from forewarn.store.sql import Store, copy
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventStatus, EventType
from simulation.writer import JudgedWriter
from store.model import Model

BEGIN = datetime(2026, 3, 2, 1, 30, tzinfo=UTC)
LENGTH = timedelta(hours=2, minutes=13, seconds=55)
STEP = timedelta(seconds=5)
HELD_FOR = timedelta(minutes=8)
LEASE = timedelta(minutes=30)

NOTICES = {
    EventType.FREEZE: 15,
    EventType.REBOOT: 15,
    EventType.REDEPLOY: 10,
    EventType.PREEMPT: 1,
}
SECONDS = {
    EventType.FREEZE: 20,
    EventType.REBOOT: 240,
    EventType.REDEPLOY: 420,
    EventType.PREEMPT: 30,
}
OFTEN = (EventType.FREEZE, EventType.REBOOT, EventType.REBOOT, EventType.REDEPLOY)


def fleet() -> dict[str, Any]:
    """Ten sets and a service, and machines on their own: some 500."""
    addresses = (f"10.{n >> 8}.{n & 255}.10" for n in itertools.count(1))

    def placed(count: int, hosts: int, of: str) -> list[dict[str, Any]]:
        return [{"host": f"{of}{n % hosts}", "address": next(addresses)} for n in range(count)]

    def named(name: str, count: int, hosts: int) -> list[dict[str, Any]]:
        places = placed(count, hosts, "h")
        return [{"name": f"{name}-{n}", **place} for n, place in enumerate(places)]

    return {
        "scale_set": [
            {
                "name": name,
                "update_domains": domains,
                "priority": "low",
                "machines": [{"index": n, **p} for n, p in enumerate(placed(count, hosts, name))],
            }
            for name, domains, count, hosts in (
                ("batch", 10, 120, 10),
                ("encode", 5, 60, 10),
                ("crawl", 5, 60, 10),
            )
        ],
        "availability_set": [
            {"name": name, "update_domains": domains, "machines": named(name, count, hosts)}
            for name, domains, count, hosts in (
                ("web", 5, 60, 10),
                ("api", 5, 45, 9),
                ("db", 3, 15, 6),
                ("cache", 4, 24, 8),
                ("search", 5, 30, 10),
                ("queue", 3, 12, 6),
                ("store", 5, 25, 10),
            )
        ],
        "cloud_service": [
            {
                "name": "shop",
                "roles": [
                    {"name": "FrontEnd", "instances": placed(16, 8, "h")},
                    {"name": "Worker", "instances": placed(16, 8, "h")},
                ],
            }
        ],
        "machine": [
            {"name": f"{name}-{n}", "address": next(addresses), "host": f"h{n}"}
            for name, count in (("bastion", 2), ("build", 12), ("dns", 4), ("mail", 6))
            for n in range(count)
        ],
    }


class Evening:
    """Plays itself when it is made; `store` has what came of it, and `now` is its end."""

    def __init__(self, seed: int = 7, length: timedelta = LENGTH) -> None:
        self.chance = Random(seed)
        self.clock = ManualClock(BEGIN)
        self.model = Model()
        numbers = itertools.count(1)
        writer: Any = JudgedWriter(self.model, self.clock.now, lambda changes, now: None)
        self.store: Store = writer.store
        self.plane = Plane(writer, lambda: f"{next(numbers):08x}-0000-4000-8000-000000000000")
        self.running: list[tuple[datetime, Task]] = []
        self.approving: dict[str, datetime] = {}
        """By event: when its machines are ready."""
        self.silent: set[str] = set()
        self.ask(self.plane.apply_fleet, msgspec.convert(fleet(), Fleet))
        self.scopes = self.model.all_scopes
        end = self.clock.now() + length
        self.patch_hosts()
        while self.clock.now() + STEP <= end:
            self.step()
            if end - self.now == HELD_FOR:
                why = "the index is being built"
                self.ask(self.plane.hold, HoldKind.SCOPE, "search", reason=why, by="bo")

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def copied(self) -> InMemoryStore:
        """Return a store that has what came of it."""
        made = InMemoryStore()
        with self.store.read() as reading, made.write() as transaction:
            copy(reading, transaction, lambda *_: None)
        return made

    @property
    def operations(self) -> dict[str, Operation]:
        with self.store.read() as reading:
            return reading.live_operations()

    def ask(self, what: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Ask the plane; None where it refuses."""
        try:
            return what(*given, **named).result()
        except Refused:
            return None

    def step(self) -> None:
        if self.chance.random() < 0.085:
            self.request()
        if self.chance.random() < 0.006:
            self.cancel()
        self.approve()
        for number in list(self.model.open_maintenances()):
            self.drive(number)
        self.clock.advance(STEP)
        self.ask(self.plane.advance)
        for task in self.ask(self.plane.claim, "here", LEASE, 100) or ():
            takes = SECONDS[task.event_type] * self.chance.uniform(0.6, 1.5)
            self.running.append((self.now + timedelta(seconds=takes), task))
        self.finish()

    def finish(self) -> None:
        over = [task for at, task in self.running if at <= self.now]
        self.running = [(at, task) for at, task in self.running if at > self.now]
        for task in over:
            failed = task.event_type is EventType.REBOOT and self.chance.random() < 0.09
            message = "exit status 1: virsh: domain is not running after 240 s" if failed else ""
            outcome = Outcome(succeeded=not failed, message=message)
            self.ask(self.plane.finish, task.operation, task.attempt, outcome)
        for operation in self.operations.values():
            since = operation.ended_at
            if since is not None and self.now - since > timedelta(minutes=9) and self._open(since):
                self.ask(self.plane.acknowledge, [operation.id], "ann", even_if_down=True)

    def _open(self, since: datetime) -> bool:
        """Tell whether somebody looks at a failure: of the latest nobody has."""
        return since < BEGIN + LENGTH - timedelta(minutes=35)

    def request(self) -> None:
        kind = self.chance.choice(OFTEN)
        machines = list(self.model.all_machines.values())
        first = self.chance.choice(machines)
        if first.scope in {"batch", "crawl"} and self.chance.random() < 0.15:
            kind = EventType.PREEMPT
        picked = [first]
        if kind is EventType.FREEZE and self.chance.random() < 0.7:
            place = first.scope, first.update_domain
            alike = [m for m in machines if (m.scope, m.update_domain) == place]
            picked = self.chance.sample(alike, min(8, len(alike)))
        later = timedelta(minutes=NOTICES[kind] + self.chance.choice((0, 0, 1, 5, 12)))
        wanted: dict[str, Any] = {"machines": tuple(machine.name for machine in picked)}
        if self.chance.random() < 0.04:
            wanted = {"scope": self.chance.choice(("web", "db", "cache"))}
        self.ask(
            self.plane.request,
            planner.Request(
                event_type=kind,
                not_before=None if kind is EventType.PREEMPT else self.now + later,
                no_notice=kind is EventType.REBOOT and "scope" not in wanted and self._seldom(),
                duration_seconds=SECONDS[kind],
                requested_by="ann",
                **wanted,
            ),
        )

    def _seldom(self) -> bool:
        return self.chance.random() < 0.12

    def approve(self) -> None:
        for operation in self.operations.values():
            if operation.status is not EventStatus.SCHEDULED:
                continue
            for event in operation.events:
                ready = self.approving.get(event.id)
                if ready is None:
                    takes = self.chance.choice((60, 150, 240, 400, 3600, 3600))
                    ready = self.now + timedelta(seconds=takes * self.chance.uniform(0.7, 1.3))
                    self.approving[event.id] = ready
                if event.approval is None and ready <= self.now:
                    by = event.machines[0]
                    address = self.model.all_machines[by.lower()].address
                    self.ask(self.plane.approve, event.scope, [event.id], by=by, address=address)

    def cancel(self) -> None:
        pending = [o.id for o in self.operations.values() if o.pending]
        if pending:
            why = "cancelled by ann: the spare host is not ready"
            self.ask(self.plane.cancel, [self.chance.choice(pending)], reason=why)

    def patch_hosts(self) -> None:
        """Start maintenance of the hosts of the scale sets."""
        policy = TurnPolicy(at_once="3", waves=("2", "10", "rest"), stop_after=9)
        request = Request(event_type=EventType.FREEZE, duration_seconds=20, requested_by="ann")
        with self.store.read() as reading:
            hosts = tuple(f"{of}{n}" for of in ("batch", "encode", "crawl") for n in range(10))
            asked = Asked(request=request, targets=UnitTargets(hosts=hosts), policy=policy)
            made, _ = maintenances.prepared(
                state_of(reading),
                asked,
                Policy(),
                now=self.now,
            )
        self.ask(self.plane.order, maintenances.start, made, asked)

    def drive(self, number: int) -> None:
        for _ in range(50):
            step = self.ask(self.plane.order, maintenances.take_turns, number, None)
            if step is None or not step.changed:
                return
