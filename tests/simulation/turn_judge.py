"""What must hold of every change of a maintenance, judged without the words of its decider."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta

from forewarn.maintenance import host_plan, time_windows
from forewarn.maintenance.model import (
    Changes,
    Drain,
    HostState,
    Machine,
    Maintenance,
    Operation,
    key,
)
from forewarn.maintenance.turn_check import CheckRun
from forewarn.maintenance.units import MaintenanceState, Unit, UnitKind, UnitState
from forewarn.vocabulary import EventStatus
from store.model import Model

GONE = "Mars/Olympus"
"""A time zone that this machine does not have."""

RESTING = {MaintenanceState.PAUSED, MaintenanceState.HALTED}
RECALLED = {MaintenanceState.HALTED, MaintenanceState.STOPPED}
LEFT_OUT = {UnitState.FAILED, UnitState.SKIPPED}


class Wrong(AssertionError):  # noqa: N818 - what happened is wrong, that is the error
    """Something happened that must never happen."""


class Seen:
    """What is there once a change is committed."""

    def __init__(self, memory: Model, changes: Changes, now: datetime) -> None:
        self.now = now
        self._memory = memory
        self._changes = changes
        self.operations = {operation.id: operation for operation in changes.operations}
        """What the change brings."""
        self.ordered = {drain.host for drain in changes.drains}
        """The hosts whose drains it is about."""
        self._machines: dict[str, Machine] | None = None

    def operation(self, name: str) -> Operation | None:
        """An operation as it is now."""
        return self.operations.get(name) or self._memory.all_operations.get(name)

    @property
    def drains(self) -> Mapping[str, Drain]:
        """The latest drain of each host."""
        return self._memory.all_drains | {drain.host: drain for drain in self._changes.drains}

    @property
    def machines(self) -> Mapping[str, Machine]:
        """The whole fleet; few changes need it."""
        if self._machines is None:
            changed = {machine.key: machine for machine in self._changes.machines}
            self._machines = self._memory.all_machines | changed
            for name in self._changes.removed_machines:
                self._machines.pop(name, None)
        return self._machines


class TurnJudge:
    """What must hold of every change of a maintenance, whatever the decider says."""

    def __init__(self, memory: Model) -> None:
        self._memory = memory
        self.asks = self.drains = self.grown = 0
        self._ordered: frozenset[int] = frozenset()
        """The maintenances that an operator gives orders about just now."""
        self._empty: set[tuple[int, str]] = set()
        """Units that were left out as they had no machines, by their maintenance."""
        self._ended: Counter[int] = Counter()
        """How many turns of units of each maintenance have ended so far."""
        self._seen_by: dict[tuple[int, int], int] = {}
        """By maintenance and run of its check: how many of them had ended when it began."""
        self._proven: Counter[int] = Counter()
        """How many of them were followed by a check that passed."""
        self._rebooted: set[tuple[int, str]] = set()
        """Units whose host their drain has rebooted, by their maintenance."""

    def see(self, changes: Changes, now: datetime) -> None:
        """Judge a change against what was committed before it."""
        seen = Seen(self._memory, changes, now)
        known = self._memory.all_maintenances
        after = {one.number: one for one in changes.maintenances}
        for new in changes.maintenances:
            self._see(known.get(new.number), new, seen)
        self._see_drains(changes.drains, known | after)
        for number in {operation.maintenance for operation in changes.operations}:
            if (one := after.get(number) or known.get(number)) is None:
                raise Wrong(f"an operation of maintenance {number}, and there is none")
            self._see_operations(one, seen)

    @contextmanager
    def ordering(self, *numbers: int) -> Iterator[None]:
        """An operator orders something about these maintenances, as long as the block lasts."""
        self._ordered = frozenset(numbers)
        try:
            yield
        finally:
            self._ordered = frozenset()

    def see_pass(self, run: CheckRun) -> None:
        """Remember that a check has passed, whether its result is in time or not."""
        began = self._seen_by.get((run.maintenance, run.number), 0)
        self._proven[run.maintenance] = max(self._proven[run.maintenance], began)

    def _see(self, old: Maintenance | None, new: Maintenance, seen: Seen) -> None:
        befores = [None] * len(new.units) if old is None else [*old.units]
        if old is not None:
            self._see_state(old, new)
            self._see_growth(old, new, seen)
            befores += [None] * (len(new.units) - len(befores))
        pairs = [*zip(befores, new.units, strict=True)]
        for before, after in pairs:
            if before is None or before.state is not after.state:
                self._empty.discard((new.number, after.name))
                if after.state is UnitState.SKIPPED and not _has_machines(after, new, seen):
                    self._empty.add((new.number, after.name))
        self._see_check(old, new, pairs)
        asked = [
            after
            for before, after in pairs
            if _was_asked_for(before, after) and not self._goes_on(new.number, before, after, seen)
        ]
        if asked and (old or new).policy.zone == GONE:
            raise Wrong(f"maintenance {new.number} asks by the unknown time zone {GONE}")
        for unit in asked:
            self._see_ask(old, new, unit, seen)

    def _see_state(self, old: Maintenance, new: Maintenance) -> None:
        changed = new.state is not old.state
        which = f"maintenance {new.number} went from {old.state} to {new.state}"
        if changed and old.state.over:
            raise Wrong(which)
        closed = new.closes_at is not None and old.state is MaintenanceState.RUNNING
        stops = new.state is MaintenanceState.STOPPED and not closed
        by_order = old.state in RESTING or stops
        if changed and by_order and new.number not in self._ordered:
            raise Wrong(f"{which} without an order")
        if new.state is MaintenanceState.DONE:
            left = [unit.name for unit in new.units if not unit.state.over]
            if left:
                raise Wrong(f"{which}, and {left[0]} is not over")

    def _see_growth(self, old: Maintenance, new: Maintenance, seen: Seen) -> None:
        """Units stay; an update domain has another turn when it has got machines, or is new."""
        names = [unit.name for unit in new.units]
        if names[: len(old.units)] != [unit.name for unit in old.units]:
            raise Wrong(f"maintenance {new.number}: its units changed")
        more = [*new.units[len(old.units) :]]
        for before, after in zip(old.units, new.units, strict=False):
            if after.accepted and not before.accepted and new.number not in self._ordered:
                raise Wrong(f"the failure of {after.name} was accepted without an order")
            if before.state is after.state or self._goes_on(new.number, before, after, seen):
                continue
            unordered = new.number not in self._ordered
            if before.state is UnitState.RUNNING and after.state is UnitState.SKIPPED:
                its = seen.operation(f"{new.number}.{before.operation}")
                if unordered and its is not None and its.status is EventStatus.FAILED:
                    raise Wrong(f"{after.name} is skipped unordered, and {its.id} has failed")
            was_empty = (new.number, after.name) in self._empty
            if before.state is UnitState.DONE or (was_empty and unordered):
                more.append(after)
            elif before.state in LEFT_OUT and unordered:
                raise Wrong(f"{after.name} was {before.state} and is {after.state} unordered")
        self.grown += len(more)
        for unit in more:
            grows = not old.state.over and unit.kind is UnitKind.UPDATE_DOMAIN
            if not grows or not _has_machines(unit, new, seen):
                raise Wrong(f"{unit.name} was done and is {unit.state}")

    def _goes_on(self, number: int, before: Unit | None, after: Unit, seen: Seen) -> bool:
        """Whether a unit follows the drain of its host, which was stuck and is tried again.

        One that was skipped does so only by an order.
        """
        if before is None or not before.drain or before.state not in LEFT_OUT:
            return False
        drain = seen.drains.get(after.name)
        ordered = before.state is UnitState.FAILED or number in self._ordered
        follows = after.state in {UnitState.RUNNING, UnitState.DONE} and ordered
        return follows and drain is not None and drain.state is not HostState.STUCK

    def _see_drains(self, drains: Iterable[Drain], known: Mapping[int, Maintenance]) -> None:
        """Remember which units have had their reboot, until somebody drains the host again."""
        for drain in drains:
            before = self._memory.all_drains.get(drain.host)
            if before is None or before.requested_at != drain.requested_at:
                self._rebooted = {one for one in self._rebooted if one[1] != drain.host}
            elif drain.state is HostState.BACK is not before.state:
                self._rebooted |= {
                    (number, unit.name)
                    for number, one in known.items()
                    for unit in one.units
                    if one.draining is not None and one.draining.reboot
                    if unit.drain and unit.name == drain.host
                    if unit.state is not UnitState.WAITING
                }

    def _see_operations(self, one: Maintenance, seen: Seen) -> None:
        """A unit under way has an operation that goes on, and what goes on is one's."""
        if not one.units:
            return
        for operation in seen.operations.values():
            if operation.maintenance != one.number or operation.status.over:
                continue
            unit = None if operation.unit is None else one.units[operation.unit]
            mine = unit is not None and unit.state is UnitState.RUNNING
            if unit is None or not mine or unit.operation != operation.ordinal:
                raise Wrong(f"{operation.id} is {operation.status}, and is no unit's under way")
        for unit in one.units:
            if unit.state is not UnitState.RUNNING or unit.drain:
                continue
            known = seen.operation(f"{one.number}.{unit.operation}")
            if known is None or not known.live or known.status is EventStatus.FAILED:
                told = "there is none" if known is None else f"{known.id} is {known.status}"
                raise Wrong(f"{unit.name} is under way, and {told}")
            if one.state in RECALLED and known.unstarted:
                raise Wrong(f"{known.id} has not started, and its maintenance is {one.state}")

    def _see_check(
        self,
        old: Maintenance | None,
        new: Maintenance,
        pairs: Iterable[tuple[Unit | None, Unit]],
    ) -> None:
        """One check runs at a time, and none is left out."""
        self._ended[new.number] += sum(
            before is not None
            and before.state is UnitState.RUNNING
            and (after.state is not before.state or after.operation != before.operation)
            for before, after in pairs
        )
        if old is None:
            return
        if new.check.run != old.check.run:
            lease, began_at = old.check.lease_until, new.check.began_at
            if lease is not None and began_at is not None and began_at < lease:
                raise Wrong(f"maintenance {new.number}: two runs of its check at once")
            self._seen_by[new.number, new.check.run] = self._ended[new.number]
        over = new.state is MaintenanceState.DONE and old.state is not new.state
        if over and self._unproven(new):
            raise Wrong(f"maintenance {new.number} is done, and its check has not passed since")

    def _unproven(self, maintenance: Maintenance) -> bool:
        behind = self._proven[maintenance.number] < self._ended[maintenance.number]
        return bool(maintenance.policy.check) and behind

    def _see_ask(self, old: Maintenance | None, new: Maintenance, unit: Unit, seen: Seen) -> None:
        self.asks += 1
        self.drains += unit.drain
        policy, which = new.policy, f"maintenance {new.number} asked for {unit.name}"
        if new.state is not MaintenanceState.RUNNING:
            raise Wrong(f"{which} while it was {new.state}")
        if self._unproven(new):
            raise Wrong(f"{which} before its check had passed")
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
        others = [one for one in running if one.name != unit.name]
        others = [
            one for one in others if not self._gives_way(f"{new.number}.{one.operation}", seen)
        ]
        if self._gives_way(f"{new.number}.{unit.operation}", seen):
            # Those that were asked for after it, in the same decision, do not wait for it.
            before = {} if old is None else {one.name: one.state for one in old.units}
            others = [one for one in others if before.get(one.name) is UnitState.RUNNING]
        self._see_places(unit, others, which, seen)
        if unit.drain:
            self._see_drain(new.number, unit, which, seen)
            return
        operation = seen.operations.get(f"{new.number}.{unit.operation}")
        if operation is None or operation.id in self._memory.all_operations:
            raise Wrong(f"{unit.name} was noted as asked for, and was not")
        until = policy.approval_until
        if until is not None and operation.not_before < until:
            raise Wrong(f"{which}, and {operation.id} may start without the approval it requires")
        early = operation.opens_at is not None and operation.announced_at > seen.now
        if old is not None and operation.status is EventStatus.QUEUED and not early:
            raise Wrong(f"{which}, and {operation.id} waits for {operation.waits_for}")
        self._see_window(new, operation, which, seen.now)

    def _gives_way(self, name: str, seen: Seen) -> bool:
        """Whether an operation is Queued and waits for no other: held, or its window is ahead."""
        operation = seen.operations.get(name) or self._memory.all_operations.get(name)
        queued = operation is not None and operation.status is EventStatus.QUEUED
        return queued and not operation.waits_for

    def _see_window(
        self, maintenance: Maintenance, operation: Operation, which: str, now: datetime
    ) -> None:
        policy, opens, closes = maintenance.policy, operation.opens_at or now, operation.closes_at
        span = maintenance.opens_at, maintenance.closes_at
        if span != (None, None):
            if closes != span[1] or opens < (span[0] or opens):
                raise Wrong(f"{which} outside its window")
        elif policy.windows:
            spans = time_windows.following(policy.windows, policy.zone, (), opens)
            if closes is None or not any(
                one.opens <= opens < closes <= one.closes for one in spans[:2]
            ):
                raise Wrong(f"{which} outside its windows")
        if closes is not None and now > closes - timedelta(seconds=policy.cutoff_seconds):
            raise Wrong(f"{which} after the cutoff")

    def _see_drain(self, number: int, unit: Unit, which: str, seen: Seen) -> None:
        """A host is drained when machines of no other drain are there, or will be."""
        under_way = seen.drains.get(unit.name)
        if unit.name not in seen.ordered and host_plan.is_up(under_way):
            raise Wrong(f"{unit.name} was noted as asked for, and was not")
        if (number, unit.name) in self._rebooted and unit.name in seen.ordered:
            raise Wrong(f"{which}, whose host it has rebooted already")
        for drain in seen.drains.values():
            for guest in drain.guests if drain.goes_on and drain.host != unit.name else ():
                known = seen.machines.get(key(guest.name))
                if unit.name in {guest.to_host, known.host if known else ""}:
                    raise Wrong(f"{which} while {guest.name} of {drain.host} is there")

    def _see_places(self, unit: Unit, others: list[Unit], which: str, seen: Seen) -> None:
        """No two units under way take two update domains of a scope."""
        mine = domains(unit, seen.machines, seen.drains)
        for other in others:
            for scope, its in domains(other, seen.machines, seen.drains).items():
                if scope in mine and len(its | mine[scope]) > 1:
                    raise Wrong(f"{which} while {other.name} has another domain of {scope}")


def _was_asked_for(before: Unit | None, after: Unit) -> bool:
    if after.state is not UnitState.RUNNING:
        return False
    began = before is None or before.state is not UnitState.RUNNING
    return began or (before is not None and before.operation != after.operation)


def _has_machines(unit: Unit, its: Maintenance, seen: Seen) -> bool:
    """Whether a unit has machines that no unit of its scope has done."""
    done = {*unit.done}
    if unit.kind is UnitKind.UPDATE_DOMAIN:
        same = (u for u in its.units if u.kind is unit.kind and u.scope == unit.scope)
        done.update(name for other in same for name in other.done)
    return any(one.key not in done for one in _members(unit, seen.machines.values()))


def _members(unit: Unit, machines: Iterable[Machine]) -> list[Machine]:
    """Return the machines that a unit is about, done or not."""
    if unit.kind is UnitKind.HOST:
        return [one for one in machines if one.host == unit.name]
    if unit.kind is UnitKind.MACHINES:
        return [one for one in machines if one.key in unit.machines]
    place = (unit.scope, unit.update_domain)
    return [one for one in machines if (one.scope, one.update_domain) == place]


def domains(
    unit: Unit, machines: Mapping[str, Machine], drains: Mapping[str, Drain]
) -> dict[str, set[int]]:
    """Return the update domains that a unit still takes, by scope."""
    found: dict[str, set[int]] = {}
    drain = drains.get(unit.name) if unit.drain else None
    # Machines that were moved away come home, also where the drain waits for an operator.
    away = drain.guests if drain and not host_plan.is_up(drain) else ()
    moved = [machines[key(guest.name)] for guest in away if key(guest.name) in machines]
    for machine in (*_members(unit, machines.values()), *moved):
        if machine.key not in unit.done:
            found.setdefault(machine.scope, set()).add(machine.update_domain)
    return found
