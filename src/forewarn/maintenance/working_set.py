"""The working set of one decision: the snapshot's values, and what became of them.

`decide` says what follows from a command; the working set does the steps that several commands
share, each by the table of transitions: announce, start or wait, hold, end, and continue a rolling
update. It changes nothing but itself, and `decision` returns what is new.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from forewarn.maintenance import lifecycle, model, notice, planner
from forewarn.maintenance.lifecycle import Trigger
from forewarn.maintenance.model import (
    AuditAction,
    Changes,
    Event,
    Maintenance,
    Operation,
    Policy,
    Refused,
    RollingState,
    RollingUpdate,
    Scope,
    Snapshot,
    StartCause,
    Tombstone,
    add_intervention,
    key,
)
from forewarn.vocabulary import ErrorCode, EventStatus

K = TypeVar("K")
V = TypeVar("V")


class TrackedDict(dict[K, V]):
    """A copy of a mapping that tracks what was written to it.

    Finding what changed costs as much as what changed, not as much as all there is.
    """

    def __init__(self, of: Mapping[K, V]) -> None:
        super().__init__(of)
        self._of = of
        self._written: dict[K, None] = {}

    def __setitem__(self, name: K, value: V) -> None:
        """Set a value."""
        super().__setitem__(name, value)
        self._written[name] = None

    def changed(self) -> tuple[V, ...]:
        """Return the values that differ from the original's, in the order they were set."""
        before = self._of
        return tuple(
            self[name]
            for name in self._written
            if name not in before or (before[name] is not self[name] and before[name] != self[name])
        )


EXEMPT = planner.ALL_DOMAINS_AT_ONCE
"""What waits for no other update domain: the machines go away in any case."""

HELD_ON = timedelta(minutes=15)
"""How far NotBefore moves on when it comes during a hold: guests keep reading a time that lies
ahead, and it does not change too often."""

MAX_OUTCOME = 2000
"""Characters of an outcome that are kept, from its end, where programs say what went wrong."""

replace = msgspec.structs.replace


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a command."""

    changes: Changes
    """New values for what changed; empty where the command changed nothing."""
    operations: tuple[Operation, ...] = ()
    """The operations that the command was about, changed or not."""
    maintenance: Maintenance | None = None
    """What was requested or resumed."""


class WorkingSet:
    """One decision in progress.

    Args:
        snapshot: What it may look at; left as it is.
        now: The time of the decision.
        mint: Returns a new GUID at each call.
        policy: What the settings say.
    """

    def __init__(
        self, snapshot: Snapshot, now: datetime, mint: Callable[[], str], policy: Policy
    ) -> None:
        self.snapshot = snapshot
        self.now = now
        self.mint = mint
        self.policy = policy
        self.scopes = TrackedDict(snapshot.scopes)
        self.operations = dict(snapshot.operations)
        self.maintenances = TrackedDict(snapshot.maintenances)
        self.holds = list(snapshot.holds)
        self.machines = TrackedDict(snapshot.machines)
        self.tombstones: list[Tombstone] = []
        self._changed: dict[str, None] = {}
        self._by_scope: dict[str, dict[str, None]] | None = None
        """Ids of operations by scope; None until somebody looks, which many commands never do."""

    def live_in(self, scope: str) -> list[Operation]:
        """Return what is Scheduled or Started in a scope."""
        if self._by_scope is None:
            self._by_scope = {}
            for operation in self.operations.values():
                self._index(self._by_scope, operation)
        ids = self._by_scope.get(scope, ())
        return [o for o in map(self.operations.__getitem__, ids) if o.status.visible]

    def named(self, operation_id: str) -> Operation:
        """Return an operation of the snapshot.

        Raises:
            Refused: There is no such operation (NOT_FOUND).
        """
        operation = self.operations.get(operation_id)
        if operation is None:
            message = f"no operation {operation_id!r}: see 'forewarn history'"
            raise Refused(ErrorCode.NOT_FOUND, message, operation=operation_id)
        return operation

    def claimed(self, operation_id: str, attempt: int) -> Operation:
        """Return a Started operation that was claimed under this attempt number.

        Raises:
            Refused: It is not Started, or a later attempt has claimed it (STALE).
        """
        operation = self.named(operation_id)
        if operation.status is not EventStatus.STARTED or operation.attempt != attempt:
            message = (
                f"attempt {attempt} at operation {operation_id} is stale: the operation is "
                f"{operation.status}, at attempt {operation.attempt}"
            )
            raise Refused(ErrorCode.STALE, message, operation=operation_id, attempt=attempt)
        return operation

    def put(self, operation: Operation) -> None:
        """Set the new value of an operation."""
        if self._by_scope is not None and operation.id not in self.operations:
            self._index(self._by_scope, operation)
        self.operations[operation.id] = operation
        self._changed[operation.id] = None

    def record_intervention(
        self, operation: Operation, action: AuditAction, by: str, detail: str
    ) -> None:
        """Set the new value of an operation, and record the operator who changed it."""
        interventions = add_intervention(operation.interventions, action, by, self.now, detail)
        self.put(replace(operation, interventions=interventions))

    def announce(
        self,
        number: int,
        step: planner.PlannedOperation,
        asked: datetime | None = None,
        *,
        no_notice: bool = False,
    ) -> str:
        """Add a planned operation as the next one of its maintenance; return its id.

        It starts at once where there is no notice, or where every scope is off or approves it
        automatically, unless a later NotBefore is asked for; otherwise it is Scheduled.

        Raises:
            Refused: The NotBefore that is asked for is too early or too far off.
        """
        maintenance = self.maintenances[number]
        event_type = maintenance.event_type
        off = self.off(step)
        least = planner.least_notice(event_type, step, self.scopes)
        if no_notice or all(
            machine.scope in off
            or planner.approves_itself(event_type, maintenance.source, self.scopes[machine.scope])
            for machine in step.machines
        ):
            least = timedelta(0)
        not_before = notice.not_before(asked, least, self.now)
        at_once = not_before == notice.whole_seconds(self.now)
        operation = planner.operation(
            maintenance,
            step,
            self.scopes,
            silent=off,
            not_before=not_before,
            automatic=asked is None or at_once,
            mint=self.mint,
            now=self.now,
        )
        self.maintenances[number] = replace(maintenance, announced=maintenance.announced + 1)
        if no_notice:
            self._start(operation, Trigger.STRIKE, StartCause.NO_NOTICE)
        elif self._covered(operation):
            self._enter(self._held(operation))
        elif at_once:
            self.start_if_free(operation, Trigger.STRIKE)
        else:
            self._enter(operation)
        return operation.id

    def start_if_ready(self, operation: Operation) -> None:
        """Start a ready operation, or record what it waits for; do nothing while it is held."""
        if operation.held_at is not None:
            return
        if operation.approved or operation.not_before <= self.now:
            self.start_if_free(operation, Trigger.START)

    def start_if_free(self, operation: Operation, trigger: Trigger) -> None:
        """Start a ready operation, or record what it waits for; neither while starts are paused."""
        if not self.policy.starts:
            self._leave_ready(operation, trigger)
            return
        obstacle = self._obstacle(operation)
        if obstacle is None:
            self._start(operation, trigger, _why(operation))
            return
        waiting = replace(operation, waits_for=obstacle.id)
        if trigger is Trigger.STRIKE:
            self._enter(waiting)
        else:
            self.put(waiting)

    def _start_if_still_ready(self, operation: Operation) -> None:
        """Start an operation that no longer waits for another, if it is still ready.

        A clock that was set back puts its NotBefore ahead again; then time wakes it.
        """
        if operation.approved or operation.not_before <= self.now:
            self.start_if_free(operation, Trigger.START)
        else:
            self.put(operation)

    def _leave_ready(self, operation: Operation, trigger: Trigger) -> None:
        """Leave a ready operation for the next AdvanceTime."""
        if trigger is Trigger.STRIKE:
            self._enter(operation)
        elif operation != self.operations.get(operation.id):
            self.put(operation)

    def end(self, operation: Operation, trigger: Trigger, outcome: str) -> None:
        """End an operation, start what waited for it, and continue the rolling updates."""
        status = lifecycle.step(operation.id, operation.status, trigger)
        self.put(
            replace(
                operation,
                status=status,
                ended_at=self.now,
                waits_for="",
                held_at=None,
                lease_until=None,
                outcome_unknown="",
                outcome=outcome[-MAX_OUTCOME:],
            )
        )
        if operation.rolling_update is not None and status is not EventStatus.COMPLETED:
            self.pause_rolling_update(
                operation, f"{operation.id} is {status}: {outcome}".rstrip(": ")
            )
        waiting = [o for o in self.operations.values() if o.waits_for == operation.id]
        for other in sorted(waiting, key=start_order):
            self._start_if_still_ready(replace(other, waits_for=""))
        self.continue_rolling_updates()

    def hold(self, operation: Operation) -> None:
        """Keep a Scheduled operation from starting, and record what is left of its notice."""
        if operation.status is EventStatus.SCHEDULED and operation.held_at is None:
            self.put(self._held(replace(operation, waits_for="")))

    def release(self, operation: Operation) -> None:
        """Give a held operation the notice that it had left, unless another hold covers it.

        NotBefore never moves to before what guests have read.
        """
        if operation.held_at is None or self._covered(operation):
            return
        left = timedelta(seconds=operation.notice_left_seconds)
        not_before = operation.not_before
        if not operation.approved:
            not_before = max(not_before, notice.whole_seconds(self.now + left))
        self.put(replace(operation, held_at=None, notice_left_seconds=0, not_before=not_before))
        self.start_if_ready(self.operations[operation.id])

    def push_back(self, operation: Operation) -> None:
        """Move a held operation's NotBefore ahead, so that guests keep reading a future time."""
        not_before = notice.whole_seconds(self.now + HELD_ON)
        self.put(replace(operation, not_before=not_before))

    def pause_rolling_update(self, operation: Operation, reason: str) -> None:
        """Pause the rolling update that an operation belongs to, unless it is finished."""
        assert operation.rolling_update is not None
        maintenance = self.maintenances.get(operation.maintenance)
        if (
            maintenance is None
            or maintenance.rolling_updates[operation.rolling_update].state is RollingState.FINISHED
        ):
            return
        paused = {"state": RollingState.PAUSED, "reason": reason[-MAX_OUTCOME:]}
        self._put_rolling_update(maintenance, operation.rolling_update, **paused)

    def finish_rolling_updates(self, number: int, reason: str) -> bool:
        """Announce nothing more of a maintenance; return whether anything was left."""
        maintenance = self.maintenances[number]
        left = maintenance.open
        for index in range(len(maintenance.rolling_updates)):
            changes = {"state": RollingState.FINISHED, "reason": reason}
            self._put_rolling_update(self.maintenances[number], index, **changes)
        return left

    def resume_rolling_updates(self, number: int, by: str) -> bool:
        """Continue the paused rolling updates of a maintenance; return whether one was paused.

        Args:
            number: The maintenance's.
            by: The operator who resumes it.
        """
        paused = [
            index
            for index, rolling in enumerate(self.maintenances[number].rolling_updates)
            if rolling.state is RollingState.PAUSED
        ]
        for index in paused:
            maintenance = self.maintenances[number]
            interventions = add_intervention(
                maintenance.interventions,
                AuditAction.RESUME,
                by,
                self.now,
                maintenance.rolling_updates[index].reason,
            )
            self._put_rolling_update(
                replace(maintenance, interventions=interventions),
                index,
                state=RollingState.RUNNING,
                reason="",
            )
        if paused:
            self.continue_rolling_updates()
        return bool(paused)

    def continue_rolling_updates(self) -> None:
        """Announce the next operation of each rolling update whose last one is over.

        One that would touch a machine with a live event is left until that event is over.
        """
        if not self.maintenances:
            return
        under_way = {
            (o.maintenance, o.rolling_update) for o in self.operations.values() if o.status.visible
        }
        for number in sorted(self.maintenances):
            for index, rolling in enumerate(self.maintenances[number].rolling_updates):
                if rolling.state is RollingState.RUNNING and (number, index) not in under_way:
                    self._continue(number, index, rolling)

    def off(self, step: planner.PlannedOperation) -> set[str]:
        """Return the scopes of a step that are off (protocol.md section 8)."""
        scopes = {machine.scope for machine in step.machines}
        return {key for key in scopes if not self.policy.is_on(self.scopes[key], self.now)}

    def conflicting(self, step: planner.PlannedOperation) -> tuple[Operation, Event, str] | None:
        """Return a live operation that shares a machine with a step, its event, and the name.

        Of several in the first scope it is the first by start order, so that the store's order
        does not decide.
        """
        names = {machine.key for machine in step.machines}
        for scope in dict.fromkeys(machine.scope for machine in step.machines):
            found = [
                (other, event, name)
                for other in self.live_in(scope)
                for event in other.events
                for name in event.machines
                if key(name) in names
            ]
            if found:
                return min(found, key=lambda one: start_order(one[0]))
        return None

    def decision(self, about: Iterable[str], number: int | None = None) -> Decision:
        """Return the result; only scopes whose visible events changed get a new incarnation."""
        moved = self._moved()
        changed = []
        for operation_id in self._changed:
            operation = self.operations[operation_id]
            if any(event.published == 0 and not event.silent for event in operation.events):
                events = tuple(
                    event
                    if event.silent
                    else replace(event, published=moved[event.scope].incarnation)
                    for event in operation.events
                )
                operation = replace(operation, events=events)
                self.operations[operation_id] = operation
            changed.append(operation)
        before = self.snapshot
        return Decision(
            changes=Changes(
                maintenances=self.maintenances.changed(),
                operations=tuple(changed),
                scopes=self.scopes.changed(),
                machines=self.machines.changed(),
                removed_machines=tuple(tombstone.key for tombstone in self.tombstones),
                tombstones=tuple(self.tombstones),
                holds=tuple(hold for hold in self.holds if hold not in before.holds),
                released=tuple(hold for hold in before.holds if hold not in self.holds),
            ),
            operations=tuple(self.operations[operation_id] for operation_id in about),
            maintenance=None if number is None else self.maintenances[number],
        )

    def _continue(self, number: int, index: int, rolling: RollingUpdate) -> None:
        maintenance = self.maintenances[number]
        machines = planner.next_step(rolling, self.machines.values())
        if not machines:
            self._put_rolling_update(maintenance, index, state=RollingState.FINISHED)
            return
        step = planner.PlannedOperation(machines=machines, rolling_update=index)
        if self.conflicting(step) is not None:
            return
        if self.off(step) and not maintenance.without_notice:
            reason = f"{min(self.off(step))} is off now: its guests would get no notice"
            self._put_rolling_update(maintenance, index, state=RollingState.PAUSED, reason=reason)
            return
        self._put_rolling_update(maintenance, index, done=planner.after(rolling, machines).done)
        self.announce(number, step)

    def _put_rolling_update(self, maintenance: Maintenance, index: int, **changes: object) -> None:
        updates = list(maintenance.rolling_updates)
        updates[index] = replace(updates[index], **changes)
        self.maintenances[maintenance.number] = replace(maintenance, rolling_updates=tuple(updates))

    def _enter(self, operation: Operation) -> None:
        status = lifecycle.step(operation.id, None, Trigger.ANNOUNCE)
        self.put(replace(operation, status=status))

    def _start(self, operation: Operation, trigger: Trigger, cause: StartCause) -> None:
        before = None if trigger is Trigger.STRIKE else operation.status
        status = lifecycle.step(operation.id, before, trigger)
        self.put(
            replace(operation, status=status, start_cause=cause, started_at=self.now, waits_for="")
        )

    def _obstacle(self, operation: Operation) -> Operation | None:
        """Return an operation that has another update domain of one of its scopes down.

        Of several it is the first by start order, so that the store's order does not decide.
        """
        if operation.event_type in EXEMPT:
            return None
        down = [
            other
            for event in operation.events
            for other in self.live_in(event.scope)
            if other.status is EventStatus.STARTED
            and any(
                theirs.scope == event.scope and theirs.update_domain != event.update_domain
                for theirs in other.events
            )
        ]
        return min(down, key=start_order, default=None)

    def _covered(self, operation: Operation) -> bool:
        return any(model.covers(hold, operation) for hold in self.holds)

    def _held(self, operation: Operation) -> Operation:
        left = max(timedelta(0), operation.not_before - self.now)
        seconds = -(-left // timedelta(seconds=1))
        return replace(operation, held_at=self.now, notice_left_seconds=seconds)

    def _moved(self) -> dict[str, Scope]:
        moved: dict[str, Scope] = {}
        for operation_id in self._changed:
            before = self.snapshot.operations.get(operation_id)
            after = self.operations[operation_id]
            if _shown(before) == _shown(after):
                continue
            for event in after.events:
                if not event.silent:
                    incarnation = self.snapshot.scopes[event.scope].incarnation + 1
                    moved[event.scope] = replace(self.scopes[event.scope], incarnation=incarnation)
        for name, scope in moved.items():
            self.scopes[name] = scope
        return moved

    @staticmethod
    def _index(by_scope: dict[str, dict[str, None]], operation: Operation) -> None:
        for event in operation.events:
            by_scope.setdefault(event.scope, {})[operation.id] = None


def start_order(operation: Operation) -> tuple[datetime, int, str]:
    """Sort key: NotBefore, then maintenance, then id."""
    return operation.not_before, operation.maintenance, operation.id


def _why(operation: Operation) -> StartCause:
    if operation.silent:
        return StartCause.SILENT
    return StartCause.APPROVED if operation.approved else StartCause.NOTICE_OVER


def _shown(operation: Operation | None) -> tuple[EventStatus, datetime | None] | None:
    """Return what a guest can see change of an operation; the rest is fixed for its life."""
    if operation is None or operation.status.over:
        return None
    scheduled = operation.status is EventStatus.SCHEDULED
    return operation.status, operation.not_before if scheduled else None
