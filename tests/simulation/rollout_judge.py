"""What must hold of every change of a rollout, judged without the words of its decider."""

from collections import Counter
from datetime import timedelta
from typing import Any

from forewarn.maintenance import time_windows
from forewarn.maintenance.model import Changes, key
from forewarn.maintenance.rollout_check import CheckRun
from forewarn.maintenance.rollout_model import Rollout, RolloutState, RolloutUnit, UnitState
from forewarn.vocabulary import TargetKind
from store.model import Model

GONE = "Mars/Olympus"
"""A time zone that this machine does not have."""


class Wrong(AssertionError):  # noqa: N818 - what happened is wrong, that is the error
    """Something happened that must never happen."""


class RolloutJudge:
    """What must hold of every change of a rollout, whatever the decider says."""

    def __init__(self, memory: Model) -> None:
        self._memory = memory
        self.asks = self.drains = 0
        self._ended: Counter[int] = Counter()
        """How many units of each rollout have ended so far."""
        self._seen_by: dict[tuple[int, int], int] = {}
        """By rollout and run of its check: how many of them had ended when it began."""
        self._proven: Counter[int] = Counter()
        """How many of them were followed by a check that passed."""

    def see(self, changes: Changes) -> None:
        """Judge a change against what was committed before it."""
        for new in changes.rollouts:
            old = self._memory.all_rollouts.get(new.number)
            if old is None:
                continue
            if [unit.name for unit in old.units] != [unit.name for unit in new.units]:
                raise Wrong(f"rollout {new.number}: its units changed")
            if old.state.over and new.state is not old.state:
                raise Wrong(f"rollout {new.number} went from {old.state} to {new.state}")
            self._see_check(old, new)
            asked = []
            for before, after in zip(old.units, new.units, strict=True):
                if before.state is UnitState.DONE and after.state is not UnitState.DONE:
                    raise Wrong(f"{after.name} was done and is {after.state}")
                began = before.state is not UnitState.RUNNING
                if after.state is UnitState.RUNNING and (
                    began or before.maintenance != after.maintenance
                ):
                    asked.append(after)
            if asked and old.policy.zone == GONE:
                raise Wrong(f"rollout {new.number} asks by the unknown time zone {GONE}")
            for unit in asked:
                self._see_ask(old, new, unit, changes)
            numbers = {unit.maintenance for unit in asked}
            for maintenance in changes.maintenances:
                fresh = maintenance.number not in self._memory.all_maintenances
                if fresh and maintenance.number not in numbers:
                    raise Wrong(f"maintenance {maintenance.number} was asked for and not noted")

    def see_pass(self, run: CheckRun) -> None:
        """Remember that a check has passed, whether its result is in time or not."""
        began = self._seen_by.get((run.rollout, run.number), 0)
        self._proven[run.rollout] = max(self._proven[run.rollout], began)

    def _see_check(self, old: Rollout, new: Rollout) -> None:
        """One check runs at a time, and none is left out."""
        running = UnitState.RUNNING
        self._ended[new.number] += sum(
            before.state is running and after.state is not running
            for before, after in zip(old.units, new.units, strict=True)
        )
        if new.check.run != old.check.run:
            lease, began_at = old.check.lease_until, new.check.began_at
            if lease is not None and began_at is not None and began_at < lease:
                raise Wrong(f"rollout {new.number}: two runs of its check at once")
            self._seen_by[new.number, new.check.run] = self._ended[new.number]
        over = new.state is RolloutState.DONE and old.state is not new.state
        if over and self._unproven(new):
            raise Wrong(f"rollout {new.number} is done, and its check has not passed since")

    def _unproven(self, rollout: Rollout) -> bool:
        behind = self._proven[rollout.number] < self._ended[rollout.number]
        return bool(rollout.policy.check) and behind

    def _see_ask(self, old: Rollout, new: Rollout, unit: RolloutUnit, changes: Changes) -> None:
        self.asks += 1
        self.drains += unit.drain
        found = [m for m in changes.maintenances if m.number == unit.maintenance]
        drains = [drain for drain in changes.drains if drain.host == unit.name]
        if not (drains if unit.drain else found):
            raise Wrong(f"{unit.name} was noted as asked for, and was not")
        policy, which = old.policy, f"rollout {old.number} asked for {unit.name}"
        if old.state is not RolloutState.RUNNING:
            raise Wrong(f"{which} while it was {old.state}")
        if self._unproven(new):
            raise Wrong(f"{which} before its check had passed")
        until = policy.approval_until
        steps = [o for o in changes.operations if o.maintenance == unit.maintenance]
        early = [o.id for o in steps if until is not None and o.not_before < until]
        if early:
            raise Wrong(f"{which}, and {early[0]} may start without the approval it requires")
        running = [one for one in new.units if one.state is UnitState.RUNNING]
        most = policy.at_once
        limit = int(most) if most.isdigit() else len(new.units) * int(most[:-1]) // 100
        if len(running) > max(1, limit):
            raise Wrong(f"{which}: {len(running)} are under way, at most {most}")
        earlier = [o.name for o in new.units if o.wave < unit.wave and not o.state.over]
        if earlier:
            raise Wrong(f"{which} before {earlier[0]} of an earlier wave was over")
        failed = [o for o in new.units if o.state is UnitState.FAILED and not o.accepted]
        if len(failed) >= policy.stop_after:
            raise Wrong(f"{which} although {len(failed)} units have failed")
        self._see_places(unit, [one for one in running if one.name != unit.name], which)
        if unit.drain:
            self._see_drain(unit, which)
            return
        (maintenance,) = found
        if policy.windows:
            opens = maintenance.opens_at or maintenance.requested_at
            spans = time_windows.following(policy.windows, policy.zone, (), opens)
            if maintenance.closes_at is None or not any(
                span.opens <= opens < maintenance.closes_at <= span.closes for span in spans[:2]
            ):
                raise Wrong(f"{which} outside its windows")
            late = maintenance.closes_at - timedelta(seconds=policy.cutoff_seconds)
            if maintenance.requested_at > late:
                raise Wrong(f"{which} after the cutoff")

    def _see_drain(self, unit: RolloutUnit, which: str) -> None:
        """A host is drained when machines of no other drain are there, or will be."""
        machines = self._memory.all_machines
        for drain in self._memory.all_drains.values():
            for guest in drain.guests if drain.goes_on and drain.host != unit.name else ():
                known = machines.get(key(guest.name))
                if unit.name in {guest.to_host, known.host if known else ""}:
                    raise Wrong(f"{which} while {guest.name} of {drain.host} is there")

    def _see_places(self, unit: RolloutUnit, others: list[RolloutUnit], which: str) -> None:
        """No two units under way take two update domains of a scope."""
        mine = self._domains(unit)
        for other in others:
            for scope, domains in self._domains(other).items():
                if scope in mine and len(domains | mine[scope]) > 1:
                    raise Wrong(f"{which} while {other.name} has another domain of {scope}")

    def _domains(self, unit: RolloutUnit) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        drain = self._memory.all_drains.get(unit.name) if unit.drain else None
        away = {key(guest.name) for guest in drain.guests} if drain and drain.goes_on else set()
        for machine in self._memory.all_machines.values():
            of: dict[TargetKind, Any] = {
                TargetKind.HOST: machine.host,
                TargetKind.SCOPE: machine.scope,
                TargetKind.MACHINES: machine.key,
            }
            name = unit.name if unit.kind is TargetKind.HOST else key(unit.name)
            if of[unit.kind] == name or machine.key in away:
                found.setdefault(machine.scope, set()).add(machine.update_domain)
        return found
