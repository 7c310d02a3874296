"""The working set of one decision: the snapshot's values, and what became of them.

`decide` says what follows from a command; the working set does the steps that several commands
share, each by the table of transitions: announce, start or wait, hold, end, and continue a rolling
update. It changes nothing but itself, and `decision` returns what is new.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec

from forewarn.maintenance import lifecycle, notice, planner
from forewarn.maintenance.lifecycle import Trigger
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Event,
    Machine,
    Maintenance,
    Operation,
    Policy,
    Refused,
    RollingState,
    RollingUpdate,
    Snapshot,
    StartCause,
    Tombstone,
    key,
)
from forewarn.vocabulary import ApproverKind, ErrorCode, EventSource, EventStatus

K = TypeVar("K")
V = TypeVar("V")

MAX_OUTCOME = 2000
"""Characters of an outcome that are kept, from its end, where programs say what went wrong."""

replace = msgspec.structs.replace


class TrackedDict(dict[K, V]):
    """A copy of a mapping that records what was set, so that `changed` looks at nothing else."""

    def __init__(self, of: Mapping[K, V]) -> None:
        super().__init__(of)
        self._of = of
        self.written: dict[K, None] = {}

    def __setitem__(self, name: K, value: V) -> None:
        """Set a value."""
        super().__setitem__(name, value)
        self.written[name] = None

    def changed(self) -> tuple[V, ...]:
        """Return the values that differ from the original's, in the order they were set."""
        return tuple(self[name] for name in self.written if self._of.get(name) != self[name])


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a command."""

    changes: Changes
    """New values for what changed; empty where the command changed nothing."""
    operations: tuple[Operation, ...] = ()
    """The operations that the command was about, changed or not."""
    maintenance: Maintenance | None = None
    """What was requested or resumed."""


class WorkingSet:
    """One decision in progress; the arguments are those of `decide.decide`."""

    def __init__(
        self, snapshot: Snapshot, now: datetime, mint: Callable[[], str], policy: Policy
    ) -> None:
        self.snapshot = snapshot
        self.now = now
        self.mint = mint
        self.policy = policy
        self.scopes = TrackedDict(snapshot.scopes)
        self.operations = TrackedDict(snapshot.operations)
        self.maintenances = TrackedDict(snapshot.maintenances)
        self.machines = TrackedDict(snapshot.machines)
        self.holds = list(snapshot.holds)
        self.tombstones: list[Tombstone] = []
        self.answered: Maintenance | None = None
        """The maintenance that was requested or resumed."""
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
        """Return an operation of the snapshot; an unknown one is refused (NOT_FOUND)."""
        operation = self.operations.get(operation_id)
        if operation is None:
            message = f"no operation {operation_id!r}: see 'forewarn history'"
            raise Refused(ErrorCode.NOT_FOUND, message, operation=operation_id)
        return operation

    def claimed(self, operation_id: str, attempt: int) -> Operation:
        """Return a Started operation; a claim that is not the latest is refused (STALE)."""
        operation = self.named(operation_id)
        if operation.status is not EventStatus.STARTED or operation.attempt != attempt:
            message = (
                f"attempt {attempt} at operation {operation_id} is stale: the operation is "
                f"{operation.status}, at attempt {operation.attempt}"
            )
            raise Refused(ErrorCode.STALE, message, operation=operation_id, attempt=attempt)
        return operation

    def put(self, operation: Operation) -> None:
        """Set the new value of an operation, or add it."""
        if self._by_scope is not None and operation.id not in self.operations:
            self._index(self._by_scope, operation)
        self.operations[operation.id] = operation

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
        groups = planner.by_scope(step.machines)
        off = self.off(step)
        automatic = {
            scope
            for scope in groups
            if maintenance.source is EventSource.USER
            and maintenance.event_type in self.scopes[scope].automatically_approve
        }
        least = max(
            notice.minimum(maintenance.event_type, self.scopes[scope].terminate_notice_minutes)
            for scope in groups
        )
        if no_notice or groups.keys() <= off | automatic:
            least = timedelta(0)
        not_before = notice.not_before(asked, least, self.now)
        at_once = not_before == notice.whole_seconds(self.now)
        if not (asked is None or at_once):
            automatic = set()
        operation_id = f"{number}.{maintenance.announced + 1}"
        operation = Operation(
            id=operation_id,
            maintenance=number,
            event_type=maintenance.event_type,
            source=maintenance.source,
            description=maintenance.description,
            duration_seconds=maintenance.duration_seconds,
            status=lifecycle.step(operation_id, None, Trigger.ANNOUNCE),
            announced_at=self.now,
            not_before=not_before,
            rolling_update=step.rolling_update,
            hosts=tuple(sorted({machine.host for machine in step.machines if machine.host})),
            events=tuple(
                self._event(members, automatic=scope in automatic, silent=scope in off)
                for scope, members in sorted(groups.items())
            ),
        )
        self.maintenances[number] = replace(maintenance, announced=maintenance.announced + 1)
        if no_notice:
            self._start(operation, StartCause.NO_NOTICE)
        elif self._covered(operation):
            self.hold(operation)
        elif at_once:
            self._start_if_free(operation)
        else:
            self.put(operation)
        return operation.id

    def _event(self, members: list[Machine], *, automatic: bool, silent: bool) -> Event:
        scope = self.scopes[members[0].scope]
        return Event(
            id=self.mint().upper(),
            scope=scope.key,
            update_domain=members[0].update_domain,
            machines=tuple(machine.name for machine in members),
            published=0,  # until `decision` knows the incarnation; for ever where it is silent
            approval=Approval(kind=ApproverKind.AUTOMATIC, by=scope.name, at=self.now)
            if automatic
            else None,
            silent=silent,
        )

    def start_if_ready(self, operation: Operation) -> None:
        """Set an operation, started if it is ready, free to start and not held."""
        if operation.held_at is None and operation.ready(self.now):
            self._start_if_free(operation)
        else:
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
            # A clock that was set back may have put its NotBefore ahead again.
            self.start_if_ready(replace(other, waits_for=""))
        self.continue_rolling_updates()

    def hold(self, operation: Operation) -> None:
        """Set a Scheduled operation, held, with what is left of its notice."""
        if operation.held_at is None:
            left = max(timedelta(0), operation.not_before - self.now)
            seconds = -(-left // timedelta(seconds=1))
            operation = replace(
                operation, held_at=self.now, notice_left_seconds=seconds, waits_for=""
            )
        self.put(operation)

    def release(self, operation: Operation) -> None:
        """Set a held operation, with the notice that it had left unless another hold covers it.

        NotBefore never moves to before what guests have read.
        """
        if operation.held_at is None or self._covered(operation):
            self.put(operation)
            return
        left = timedelta(seconds=operation.notice_left_seconds)
        not_before = operation.not_before
        if not operation.approved:
            not_before = max(not_before, notice.whole_seconds(self.now + left))
        self.start_if_ready(
            replace(operation, held_at=None, notice_left_seconds=0, not_before=not_before)
        )

    def pause_rolling_update(self, operation: Operation, reason: str) -> None:
        """Pause the rolling update that an operation belongs to, unless it is finished."""
        index = operation.rolling_update
        maintenance = self.maintenances.get(operation.maintenance)
        if index is None or maintenance is None:
            return
        if maintenance.rolling_updates[index].state is not RollingState.FINISHED:
            paused = {"state": RollingState.PAUSED, "reason": reason[-MAX_OUTCOME:]}
            self._put_rolling_update(maintenance, index, **paused)

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
        return {name for name in scopes if not self.policy.is_on(self.scopes[name], self.now)}

    def conflicting(self, step: planner.PlannedOperation) -> tuple[Operation, Event, str] | None:
        """Return a live operation that shares a machine with a step, its event, and the name.

        Of several it is the first by start order, so that the store's order does not decide.
        """
        names = {machine.key for machine in step.machines}
        found = (
            (other, event, name)
            for scope in dict.fromkeys(machine.scope for machine in step.machines)
            for other in self.live_in(scope)
            for event in other.events
            for name in event.machines
            if key(name) in names
        )
        return min(found, key=lambda one: start_order(one[0]), default=None)

    def decision(self, about: Iterable[str]) -> Decision:
        """Return the result, the answer being the operations `about` (ids)."""
        self._publish()
        before = self.snapshot
        return Decision(
            changes=Changes(
                maintenances=self.maintenances.changed(),
                operations=self.operations.changed(),
                scopes=self.scopes.changed(),
                machines=self.machines.changed(),
                removed_machines=tuple(tombstone.key for tombstone in self.tombstones),
                tombstones=tuple(self.tombstones),
                holds=tuple(hold for hold in self.holds if hold not in before.holds),
                released=tuple(hold for hold in before.holds if hold not in self.holds),
            ),
            operations=tuple(self.operations[operation_id] for operation_id in about),
            maintenance=self.answered and self.maintenances[self.answered.number],
        )

    def _publish(self) -> None:
        """Raise the incarnation of the scopes whose visible events changed, and of no other."""
        incarnations: dict[str, int] = {}
        for operation_id in self.operations.written:
            after, before = (
                self.operations[operation_id],
                self.snapshot.operations.get(operation_id),
            )
            if before is not None and before.shown == after.shown:
                continue
            for event in after.events:
                if not event.silent:
                    incarnations[event.scope] = self.snapshot.scopes[event.scope].incarnation + 1
            if before is None:
                events = tuple(
                    event if event.silent else replace(event, published=incarnations[event.scope])
                    for event in after.events
                )
                self.operations[operation_id] = replace(after, events=events)
        for scope, incarnation in incarnations.items():
            self.scopes[scope] = replace(self.scopes[scope], incarnation=incarnation)

    def _continue(self, number: int, index: int, rolling: RollingUpdate) -> None:
        maintenance = self.maintenances[number]
        machines = next(planner.turns(rolling, self.machines.values()), ())
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
        done = (*rolling.done, *(machine.key for machine in machines))
        self._put_rolling_update(maintenance, index, done=done)
        self.announce(number, step)

    def _put_rolling_update(self, maintenance: Maintenance, index: int, **changes: object) -> None:
        updates = list(maintenance.rolling_updates)
        updates[index] = replace(updates[index], **changes)
        self.maintenances[maintenance.number] = replace(maintenance, rolling_updates=tuple(updates))

    def _start_if_free(self, operation: Operation) -> None:
        obstacle = self._obstacle(operation) if self.policy.starts else None
        if obstacle is not None:
            self.put(replace(operation, waits_for=obstacle.id))
        elif not self.policy.starts:
            self.put(operation)  # the next AdvanceTime starts it
        elif operation.silent:
            self._start(operation, StartCause.SILENT)
        else:
            approved = operation.approved
            self._start(operation, StartCause.APPROVED if approved else StartCause.NOTICE_OVER)

    def _start(self, operation: Operation, cause: StartCause) -> None:
        known = operation.id in self.operations
        before, trigger = (operation.status, Trigger.START) if known else (None, Trigger.STRIKE)
        status = lifecycle.step(operation.id, before, trigger)
        self.put(
            replace(operation, status=status, start_cause=cause, started_at=self.now, waits_for="")
        )

    def _obstacle(self, operation: Operation) -> Operation | None:
        """Return an operation that has another update domain of one of its scopes down.

        Of several it is the first by start order, so that the store's order does not decide.
        """
        if operation.event_type in planner.ALL_DOMAINS_AT_ONCE:
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
        return any(hold.covers(operation) for hold in self.holds)

    @staticmethod
    def _index(by_scope: dict[str, dict[str, None]], operation: Operation) -> None:
        for event in operation.events:
            by_scope.setdefault(event.scope, {})[operation.id] = None


def start_order(operation: Operation) -> tuple[datetime, int, str]:
    """Sort key: NotBefore, then maintenance, then id."""
    return operation.not_before, operation.maintenance, operation.id
