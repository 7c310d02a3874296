"""Operators who start maintenances under a policy and steer all, and the service behind them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from forewarn.control import maintenances
from forewarn.control.maintenances import Asked, UnitTargets
from forewarn.control.outbox import state_of
from forewarn.maintenance.model import Changes, DrainOptions, Maintenance, Refused, Stay
from forewarn.maintenance.planner import Request
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import CONFIRM, MaintenanceState, TurnPolicy, UnitState
from forewarn.vocabulary import EventType
from simulation.turn_judge import GONE, LEFT_OUT, RESTING, Wrong, domains

if TYPE_CHECKING:
    from simulation.town import Town

WINDOWS: Final = ((), (), ("daily 20:00-04:00",), ("Sat,Sun 10:00-22:00", "daily 00:00-08:00"))
"""Each is open for two of the steps of three hours in which the end of a seed passes."""

APPROVAL: Final = timedelta(hours=5)
"""How long some of them require approval."""

MOST_STEPS: Final = 200
"""The most steps of a maintenance without a pause: a few for each of its units."""

PLAYED: Final = 10
"""One of so many is planned to its end before it is asked for."""

MOST_DRIVEN: Final = 4
"""How many of them go on at a time, before something else happens."""


class MaintenanceOperators:
    """Who starts maintenances under a policy, and steers these and all others."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._chance = town.chance
        self._planned = 0
        self._started: set[int] = set()
        """The numbers of those that were started under a policy."""
        self.checks: list[CheckRun] = []
        """What runs; a service that was killed meanwhile waits for them no more."""

    def start(self) -> None:
        """Start a maintenance under a policy over a few hosts, scopes or machines."""
        chance, memory, now = self._chance, self._town.memory, self._town.now
        going = self._started & {one.number for one in self.going()}
        if not memory.all_machines or len(going) >= 3:
            return
        some = [self._town.some(memory.all_machines) for _ in range(chance.choice([1, 3, 6]))]
        machines = [memory.all_machines[name] for name in dict.fromkeys(some)]
        hosts = dict.fromkeys(machine.host for machine in machines if machine.host)
        scopes = dict.fromkeys(machine.scope for machine in machines)
        named: dict[str, tuple[str, ...]] = {
            "hosts": tuple(hosts) or ("nowhere",),
            "scopes": tuple(scopes),
            "machines": tuple(machine.name for machine in machines),
        }
        drained = self._drained() if chance.random() < 0.3 else ()
        kinds = chance.choice([["hosts"], ["scopes"], ["machines"], [*named]])
        kinds = ["hosts"] if drained else kinds
        types = [EventType.REBOOT, EventType.FREEZE, EventType.REDEPLOY]
        policy = TurnPolicy(
            at_once=chance.choice(["1", "2", "50%", "100%"]),
            spread=chance.choice(["", "", "host", "fault-domain"]),
            waves=chance.choice([(), ("1", "rest"), ("1", "50%", "rest")]),
            pause_seconds=chance.choice([0, 0, 600, CONFIRM]),
            windows=chance.choice(WINDOWS),
            cutoff_seconds=chance.choice([0, 1800]),
            notice_seconds=0 if drained else chance.choice([0, 0, 1800]),
            stop_after=chance.choice([1, 1, 2]),
            check=chance.choice(["", "smoke", "smoke"]),
            check_tries=chance.choice([1, 3]),
            approval_until=None if drained else chance.choice([None, None, now + APPROVAL]),
        )
        window: dict[str, Any] = {}
        if not policy.windows and chance.random() < 0.2:
            window["opens_at"] = now + timedelta(seconds=chance.randint(-60, 5400))
            window["closes_at"] = now + timedelta(seconds=chance.randint(6000, 30_000))
        request = Request(
            event_type=EventType.REBOOT if drained else chance.choice(types),
            without_notice=chance.random() < 0.7,
            requested_by="ann",
            **window,
        )
        targets = UnitTargets(**{kind: named[kind] for kind in kinds})
        draining = None
        if drained:
            rebooted = chance.random() < 0.8
            draining = DrainOptions(reboot=rebooted, stay=chance.choice([*Stay]))
        asked = Asked(request=request, targets=targets, policy=policy, draining=draining)
        self._ask_for(asked, drained)

    def _ask_for(self, asked: Asked, drained: tuple[str, ...]) -> None:
        survey = self._town.drains.survey() if drained else None
        self._planned += 1
        try:
            with self._town.writer.store.read() as reading:
                wanted, planned = maintenances.prepared(
                    state_of(reading),
                    asked,
                    self._town.policy,
                    now=self._town.now,
                    survey=survey,
                )
            planned(to_the_end=self._planned % PLAYED == 0)
        except Refused as refusal:
            self._town.counts[f"policy: {refusal.code}"] += 1
            return
        order = self._town.plane.order
        started = self._town.ask("policy", order, maintenances.start, wanted, asked)
        if started is not None:
            self._started.add(started.number)

    def lose_zone(self) -> None:
        """The machine gets other time zones, and one that a policy names is not among them."""
        going = self.going()
        if not going or self._chance.random() < 0.95:
            return
        chosen = self._chance.choice(going)
        policy = msgspec.structs.replace(chosen.policy, zone=GONE)
        lost = msgspec.structs.replace(chosen, policy=policy)
        change = Changes(maintenances=(lost,))
        self._town.ask("zone lost", self._town.plane.order, lambda unit: unit.take(change))

    def _drained(self) -> tuple[str, ...]:
        hosts = self._town.drains.survey().hosts
        return tuple(host for host, facts in hosts.items() if facts.can_reboot)

    def going(self) -> list[Maintenance]:
        return [*self._town.memory.open_maintenances().values()]

    def drive_some(self) -> None:
        """Let the service take some steps of a few maintenances; it may be killed at any."""
        going = self.going()
        self._drive(self._chance.sample(going, min(MOST_DRIVEN, len(going))))

    def _drive(self, going: list[Maintenance]) -> None:
        for maintenance in going:
            survey = None
            for _ in range(MOST_STEPS):
                order, number = self._town.plane.order, maintenance.number
                step = self._town.ask("turns", order, maintenances.take_turns, number, survey)
                if step is not None and step.check is not None:
                    self.checks.append(step.check)
                if step is not None and step.survey:
                    survey = self._town.drains.survey()
                elif step is None or not step.changed:
                    break
            else:
                raise Wrong(f"maintenance {maintenance.number} does not come to rest")

    def check(self, *, passes: bool | None = None) -> None:
        """A check ends: it passes, fails, is lost, or its result comes late or twice."""
        if not self.checks:
            return
        run = self.checks.pop(self._chance.randrange(len(self.checks)))
        passed = self._chance.random() < 0.8 if passes is None else passes
        fate = 1.0 if passes is not None else self._chance.random()
        if fate < 0.1:
            self._town.counts["check lost"] += 1
            return
        if fate < 0.2:
            self.checks.append(run)
        if passed:
            self._town.judge.turns.see_pass(run)
        result = CheckResult(passed=passed, message="" if passed else "cold caches")
        what = "check passed" if passed else "check failed"
        self._town.ask(what, self._town.plane.order, maintenances.record_check, run, result)

    def order(self) -> None:
        """An operator steers a maintenance, sensibly or not."""
        known = self._town.memory.all_maintenances
        going = self.going()
        if not known:
            return
        if going and self._chance.random() < 0.9:
            maintenance = self._chance.choice(going)
        else:
            maintenance = known[self._town.some(known)]
        kinds = [*MaintenanceOrder, MaintenanceOrder.RESUME, MaintenanceOrder.RESUME]
        kind = self._chance.choice(kinds)
        unit = ""
        if maintenance.units and kind in {MaintenanceOrder.SKIP, MaintenanceOrder.RETRY}:
            over = [one for one in maintenance.units if one.state in LEFT_OUT]
            unit = self._chance.choice(over or maintenance.units).name
        self._order(maintenance, kind, unit)

    def retry(self, host: str) -> bool:
        """Have the unit that was left out with a host retried; tell whether there is one."""
        for maintenance in self.going():
            if any(u.drain and u.name == host and u.state in LEFT_OUT for u in maintenance.units):
                self._order(maintenance, MaintenanceOrder.RETRY, host)
                return True
        return False

    def _order(self, maintenance: Maintenance, kind: MaintenanceOrder, unit: str = "") -> None:
        number, order = maintenance.number, self._town.plane.order
        retried = unit if kind is MaintenanceOrder.RETRY else ""
        with self._town.judge.turns.ordering(number), self._town.drains.ordering(retried):
            self._town.ask(f"order {kind}", order, maintenances.order, number, kind, unit, by="bob")

    def finish(self) -> None:
        """Let each maintenance go on whatever it waits for; leave out what the rules refuse."""
        self._drive(self.going())
        while self.checks:
            self.check(passes=True)
        for maintenance in self.going():
            if maintenance.policy.zone == GONE and maintenance.state is MaintenanceState.HALTED:
                self._order(maintenance, MaintenanceOrder.STOP)  # it can never go on
            elif maintenance.state in RESTING or maintenance.unconfirmed:
                self._order(maintenance, MaintenanceOrder.RESUME)
            for unit in maintenance.units:
                if unit.state is UnitState.WAITING and unit.retry_at is not None:
                    self._order(maintenance, MaintenanceOrder.SKIP, unit.name)
        self._drive(self.going())

    def under_way(self, number: int) -> bool:
        """Whether a unit of a maintenance is under way, or something live in a waiting one's way.

        What waits without it would wait for ever.
        """
        memory = self._town.memory
        maintenance = memory.all_maintenances[number]
        if any(unit.state is UnitState.RUNNING for unit in maintenance.units):
            return True
        busy = {event.scope for one in memory.live.values() for event in one.events}
        waiting = [unit for unit in maintenance.units if unit.state is UnitState.WAITING]
        # A host is not drained while machines of another drain are there, whatever that waits for.
        if self._town.drains.under_way() and any(unit.drain for unit in waiting):
            return True
        return any(
            not busy.isdisjoint(domains(unit, memory.all_machines, memory.all_drains))
            for unit in waiting
        )
