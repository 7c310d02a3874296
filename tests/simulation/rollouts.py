"""Operators of the town who start rollouts and steer them, and the service that lets them go on."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from forewarn.control import rollouts
from forewarn.control.rollouts import RolloutTargets
from forewarn.control.unit_of_work import Work
from forewarn.maintenance.model import Changes, Refused
from forewarn.maintenance.rollout import RolloutOrderKind
from forewarn.maintenance.rollout_check import CheckResult, CheckRun
from forewarn.maintenance.rollout_model import (
    CONFIRM,
    Rollout,
    RolloutPolicy,
    RolloutState,
    RolloutTask,
    UnitState,
)
from forewarn.vocabulary import EventType
from simulation.rollout_judge import GONE, Wrong

if TYPE_CHECKING:
    from simulation.town import Town

WINDOWS: Final = ((), (), ("daily 20:00-04:00",), ("Sat,Sun 10:00-22:00", "daily 00:00-08:00"))
"""Each is open for two of the steps of three hours in which the end of a seed passes."""

APPROVAL: Final = timedelta(hours=5)
"""How long some rollouts require approval."""

MOST_STEPS: Final = 200
"""The most steps of a rollout without a pause: a few for each of its units."""


class RolloutOperators:
    """Who starts rollouts, lets them go on, and steers them."""

    def __init__(self, town: Town) -> None:
        self._town = town
        self._chance = town.chance
        self.checks: list[CheckRun] = []
        """What runs; a service that was killed meanwhile waits for them no more."""

    def start(self) -> None:
        """Start a rollout over a few hosts, scopes or machines."""
        chance, memory = self._chance, self._town.memory
        if not memory.all_machines or len(self.going()) >= 3:
            return
        some = [self._town.some(memory.all_machines) for _ in range(chance.choice([1, 3, 6]))]
        machines = [memory.all_machines[name] for name in dict.fromkeys(some)]
        hosts = dict.fromkeys(machine.host for machine in machines if machine.host)
        scopes = dict.fromkeys(machine.scope for machine in machines)
        kind = chance.choice(["hosts", "scopes", "machines"])
        named: dict[str, tuple[str, ...]] = {
            "hosts": tuple(hosts) or ("nowhere",),
            "scopes": tuple(scopes),
            "machines": tuple(machine.name for machine in machines),
        }
        policy = RolloutPolicy(
            at_once=chance.choice(["1", "2", "50%", "100%"]),
            spread=chance.choice(["", "", "host", "fault-domain"]),
            waves=chance.choice([(), ("1", "rest"), ("1", "50%", "rest")]),
            pause_seconds=chance.choice([0, 0, 600, CONFIRM]),
            windows=chance.choice(WINDOWS),
            cutoff_seconds=chance.choice([0, 1800]),
            notice_seconds=chance.choice([0, 0, 1800]),
            stop_after=chance.choice([1, 1, 2]),
            check=chance.choice(["", "smoke", "smoke"]),
            check_tries=chance.choice([1, 3]),
            approval_until=chance.choice([None, None, self._town.now + APPROVAL]),
        )
        task = RolloutTask(
            event_type=chance.choice([EventType.REBOOT, EventType.FREEZE, EventType.REDEPLOY]),
            without_notice=chance.random() < 0.7,
        )
        drained = () if policy.approval_until or chance.random() < 0.5 else self._drained()
        if drained and kind == "hosts" and task.event_type is EventType.REBOOT:
            policy = msgspec.structs.replace(policy, notice_seconds=0)
        try:
            with self._town.writer.store.read() as reading:
                rollout, _ = rollouts.prepared(
                    reading,
                    memory.machines(),
                    RolloutTargets(**{kind: named[kind]}),
                    task,
                    policy,
                    drained=drained,
                    by="ann",
                    now=self._town.now,
                )
        except Refused as refusal:
            self._town.counts[f"rollout: {refusal.code}"] += 1
            return
        self._town.ask("rollout", self._town.plane.order, rollouts.start, rollout)

    def lose_zone(self) -> None:
        """The machine gets other time zones, and one that a rollout names is not among them."""
        going = self.going()
        if not going or self._chance.random() < 0.95:
            return
        chosen = self._chance.choice(going)
        policy = msgspec.structs.replace(chosen.policy, zone=GONE)
        lost = msgspec.structs.replace(chosen, policy=policy)
        change = Changes(rollouts=(lost,))
        self._town.ask("zone lost", self._town.plane.order, lambda _, __: Work(None, change))

    def _drained(self) -> tuple[str, ...]:
        hosts = self._town.drains.survey().hosts
        return tuple(host for host, facts in hosts.items() if facts.can_reboot)

    def going(self) -> list[Rollout]:
        return [one for one in self._town.memory.all_rollouts.values() if one.goes_on]

    def drive(self) -> None:
        """Let the service take some steps of each rollout; it may be killed at any of them."""
        for rollout in self.going():
            survey = None
            for _ in range(MOST_STEPS):
                order, number = self._town.plane.order, rollout.number
                step = self._town.ask("step", order, rollouts.step, number, survey)
                if step is not None and step.check is not None:
                    self.checks.append(step.check)
                if step is not None and step.survey:
                    survey = self._town.drains.survey()
                elif step is None or not step.changed:
                    break
            else:
                raise Wrong(f"rollout {rollout.number} does not come to rest")

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
            self._town.judge.rollouts.see_pass(run)
        result = CheckResult(passed=passed, message="" if passed else "cold caches")
        what = "check passed" if passed else "check failed"
        self._town.ask(what, self._town.plane.order, rollouts.record_check, run, result)

    def order(self) -> None:
        """An operator steers a rollout, sensibly or not."""
        rollouts = self._town.memory.all_rollouts
        if not rollouts:
            return
        rollout = rollouts[self._chance.choice(list(rollouts))]
        kinds = [*RolloutOrderKind, RolloutOrderKind.RESUME, RolloutOrderKind.RESUME]
        kind = self._chance.choice(kinds)
        unit = ""
        if kind in {RolloutOrderKind.SKIP, RolloutOrderKind.RETRY}:
            unit = self._chance.choice(rollout.units).name
        self._order(rollout, kind, unit)

    def _order(self, rollout: Rollout, kind: RolloutOrderKind, unit: str = "") -> None:
        self._town.ask(
            f"order {kind}",
            self._town.plane.order,
            rollouts.steer,
            rollout.number,
            kind,
            unit,
            by="bob",
        )

    def finish(self) -> None:
        """Let each rollout go on whatever it waits for; leave out what the rules refuse."""
        self.drive()
        while self.checks:
            self.check(passes=True)
        for rollout in self.going():
            if rollout.policy.zone == GONE and rollout.state is RolloutState.HALTED:
                self._order(rollout, RolloutOrderKind.STOP)  # it can never go on
            elif rollout.state in {RolloutState.PAUSED, RolloutState.HALTED} or rollout.unconfirmed:
                self._order(rollout, RolloutOrderKind.RESUME)
            for unit in rollout.units:
                if unit.state is UnitState.WAITING and unit.retry_at is not None:
                    self._order(rollout, RolloutOrderKind.SKIP, unit.name)
        self.drive()
