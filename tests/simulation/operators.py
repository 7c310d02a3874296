"""Two operators at cross purposes: what they ask for, take back, hold, resolve and change."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from forewarn.control import maintenances
from forewarn.control.outbox import state_of
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import HoldKind, Refused, Verdict, key
from forewarn.maintenance.planner import Request
from forewarn.vocabulary import EventSource, EventType

if TYPE_CHECKING:
    from simulation.town import Town

NAMES: Final = ("ann", "bob")
TYPES: Final = (EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY, EventType.REBOOT)

LARGE: Final = 100
"""The machines above which the whole fleet is seldom applied at once: that costs as much as a
thousand other steps."""


class Operators:
    """Each method is one thing that one of them does to the town."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._chance = town.chance

    def request(self) -> None:
        chance, memory = self._chance, self._town.memory
        if not memory.all_machines:
            return
        event_type = (
            chance.choice(TYPES) if chance.random() < 0.9 else chance.choice(list(EventType))
        )
        named: dict[str, Any] = {}
        fate = chance.random()
        if fate < 0.6:
            count = chance.choice([1, 1, 1, 2, 5])
            named["machines"] = tuple(self._town.some(memory.all_machines) for _ in range(count))
        elif fate < 0.8:
            named["scope"] = self._town.some(memory.all_scopes)
        else:
            named["host"] = chance.choice(self._town.hosts) if self._town.hosts else "h0"
        later = None
        if chance.random() < 0.2:
            later = self._town.now + timedelta(seconds=chance.randint(-60, 7200))
        opens = closes = None
        if chance.random() < 0.2:
            opens = self._town.now + timedelta(seconds=chance.randint(-60, 5400))
        if chance.random() < 0.2:
            closes = self._town.now + timedelta(seconds=chance.randint(600, 10_000))
        request = Request(
            event_type=event_type,
            source=chance.choice([EventSource.PLATFORM, EventSource.USER]),
            not_before=later,
            opens_at=opens,
            closes_at=closes,
            no_notice=chance.random() < 0.08,
            without_notice=chance.random() < 0.5,
            requested_by=self.someone(),
            **named,
        )
        if chance.random() < 0.05:
            self.suppose(request)
        else:
            self._town.ask("request", self._town.plane.request, request)

    def suppose(self, request: Request) -> None:
        """Ask for the plan alone, which is that of the request itself."""
        plane, memory = self._town.plane, self._town.writer.store
        with memory.read() as reading:
            state = state_of(reading)
        with contextlib.suppress(Refused):
            maintenances.supposed(plane, state, request, self._town.now)
            self._town.counts["supposed"] += 1

    def cancel(self) -> None:
        operation = self._town.some_operation()
        if operation is not None:
            whole = self._chance.random() < 0.4
            reference = str(operation.maintenance) if whole else operation.id
            reason = f"not now, says {self.someone()}"
            with self._town.judge.turns.ordering(*([operation.maintenance] if whole else [])):
                self._town.ask("cancel", self._town.plane.cancel, [reference], reason=reason)

    def postpone(self) -> None:
        operation = self._town.some_operation()
        if operation is not None:
            to = self._town.now + timedelta(seconds=self._chance.randint(-60, 7200))
            self._town.ask("postpone", self._town.plane.postpone, [operation.id], to)

    def approve_for_guests(self) -> None:
        operation = self._town.some_operation()
        if operation is not None:
            self._town.ask(
                "approve for",
                self._town.plane.approve_for_guests,
                [operation.id],
                by=self.someone(),
            )

    def hold(self) -> None:
        kind, name = self._chance.choice(list(HoldKind)), ""
        if kind is HoldKind.SCOPE:
            name = self._town.some(self._town.memory.all_scopes)
        elif kind is HoldKind.MACHINE:
            name = self._town.some(self._town.memory.all_machines)
        elif kind is HoldKind.HOST:
            name = self._chance.choice(self._town.hosts) if self._town.hosts else "h0"
        until = self._town.now + timedelta(seconds=self._chance.randint(-60, 7200))
        ends = until if self._chance.random() < 0.4 else None
        hold, by = self._town.plane.hold, self.someone()
        self._town.ask("hold", hold, kind, name, reason="storm", by=by, until=ends)

    def release(self) -> None:
        if self._town.memory.holds():
            hold = self._chance.choice(self._town.memory.holds())
            self._town.ask("release", self._town.plane.release, hold.kind, hold.name)

    def note(self) -> None:
        if self._town.reported:
            named = self._chance.choice(self._town.reported)[0].operation
            note, by = self._town.plane.acknowledge, self.someone()
            self._town.ask("note", note, [named], by, even_if_down=True)

    def resolve(self) -> None:
        """An operator says what became of what nobody knows, or speaks of what is known."""
        if self._town.doubted:
            self.settle_doubt(
                self._town.some(self._town.doubted), self._chance.choice(list(Verdict))
            )
        elif self._town.reported:
            named = self._chance.choice(self._town.reported)[0].operation
            self._town.ask(
                "resolve", self._town.plane.resolve, [named], Verdict.SUCCEEDED, self.someone()
            )

    def settle_doubt(self, operation: str, verdict: Verdict) -> None:
        if self._town.ask(
            f"resolve {verdict}", self._town.plane.resolve, [operation], verdict, self.someone()
        ):
            attempt = self._town.doubted.pop(operation)
            if verdict is Verdict.REPEAT:
                self._town.repeated[operation] = attempt

    def change_fleet(self) -> None:
        """Somebody applies a fleet file, whole or in part, or takes machines out."""
        chance, memory = self._chance, self._town.memory
        if not memory.all_machines:
            return
        machine = memory.all_machines[self._town.some(memory.all_machines)]
        fate = chance.random()
        whole = len(memory.all_machines) <= LARGE or chance.random() < 0.2
        if fate < 0.2:
            removed = self._town.ask("remove", self._town.plane.remove_machines, [machine.name])
            self._town.counts["remove, large"] += bool(removed and len(memory.all_machines) > LARGE)
        elif fate < 0.3:
            self.change("part", self._town.fleets.part())
        elif fate < 0.4:
            self.change("settings", self._town.fleets.reset(machine))
        elif fate < 0.5 and whole:
            prune, again = chance.random() < 0.3, chance.random() < 0.5
            wanted = self._town.fleets.whole()
            self._town.ask("fleet", self._town.plane.apply_fleet, wanted, prune=prune, again=again)
        elif fate < 0.6:
            self.change("add", self._town.fleets.added())
        elif fate < 0.75:
            self.change("move", self._town.fleets.moved(machine))
        elif fate < 0.9:
            domain = chance.randrange(self._town.memory.all_scopes[machine.scope].update_domains)
            self.change("domain", self._town.fleets.replaced(machine, update_domain=domain))
        else:
            host = self._town.fleets.new_host()
            self.change("host", self._town.fleets.replaced(machine, host=host), machine.key)

    def move_by_hand(self) -> None:
        """Somebody moves a machine, and the watch of the hosts tells of it."""
        memory = self._town.memory
        name = self._town.some(memory.all_machines)
        if operation := self._town.some_operation():
            name = key(self._chance.choice(operation.machines))
        if (machine := memory.all_machines.get(name)) is None or not self._town.hosts:
            return
        down = (o for o in memory.live.values() if o.down)
        if any(event.scope == machine.scope for o in down for event in o.events):
            return  # the watch of the hosts waits for the end of what is at work
        held = [hold.name for hold in memory.holds() if hold.kind is HoldKind.HOST]
        host = self._chance.choice(held or self._town.hosts)
        self._town.connector.move(machine, host)
        self._town.ask("move by hand", self._town.plane.record_hosts, {machine.key: host})

    def change(self, what: str, wanted: fleet_file.Fleet | None, named: str = "") -> None:
        if wanted is not None:
            applied = self._town.ask(f"fleet {what}", self._town.plane.apply_fleet, wanted)
            if applied and applied.changes:
                for machine in self._town.memory.all_machines.values():
                    if what == "host" and machine.key == named:
                        self._town.connector.settle_at(machine)
            self._town.counts[f"{what} changed"] += bool(applied and applied.changes)
            self._town.counts[f"{what} changed, large"] += bool(
                applied and applied.changes and len(self._town.memory.all_machines) > LARGE
            )

    def someone(self) -> str:
        """One of two operators at cross purposes."""
        return self._chance.choice(NAMES)
