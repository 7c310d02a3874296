"""The working copy of one decision: the snapshot's values, and what became of them.

`schedule` says what follows from a cause; the bench does the steps that several causes share, each
by the table of transitions: announce, start or wait, hold, end, and walk on. It changes nothing
but itself, and `decision` returns what is new.
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
    Lost,
    Maintenance,
    Operation,
    Policy,
    Refused,
    RollingState,
    RollingUpdate,
    Scope,
    Snapshot,
    StartCause,
    intervened,
    key,
)
from forewarn.vocabulary import ErrorCode, EventStatus

K = TypeVar("K")
V = TypeVar("V")


class TrackedDict(dict[K, V]):
    """A copy that knows what was written to it: what it came to costs what changed, not all."""

    def __init__(self, of: Mapping[K, V]) -> None:
        super().__init__(of)
        self._of = of
        self._written: dict[K, None] = {}

    def __setitem__(self, name: K, value: V) -> None:
        """Write a value down."""
        super().__setitem__(name, value)
        self._written[name] = None

    def changed(self) -> tuple[V, ...]:
        """Return the values that are other than they were, in the order of their writing."""
        before = self._of
        return tuple(
            self[name]
            for name in self._written
            if name not in before or (before[name] is not self[name] and before[name] != self[name])
        )


EXEMPT = planner.UNWALKED
"""What waits for no other update domain: the machine is lost in any case."""

HELD_ON = timedelta(minutes=15)
"""How far NotBefore moves on when it comes while a hold is on: guests go on reading a time that
lies ahead, and not too often another."""

MAX_OUTCOME = 2000
"""The most characters of an outcome that are kept: the end of a program's complaint."""

replace = msgspec.structs.replace


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a cause."""

    changes: Changes
    """New values for what changed; nothing where the cause changed nothing."""
    operations: tuple[Operation, ...] = ()
    """The operations that the cause was about, as they are now, changed or not."""
    maintenance: Maintenance | None = None
    """What was requested or resumed."""


class WorkingSet:
    """One decision under way.

    Args:
        snapshot: What it may look at; left as it is.
        now: The one time of it.
        mint: Gives a new GUID at each call.
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
        self.lost: list[Lost] = []
        self._changed: dict[str, None] = {}
        self._by_scope: dict[str, dict[str, None]] | None = None
        """The ids of operations by scope; None until somebody looks: many causes never do."""

    def live_in(self, scope: str) -> list[Operation]:
        """Return what is Scheduled or Started in a scope."""
        if self._by_scope is None:
            self._by_scope = {}
            for operation in self.operations.values():
                self._index(self._by_scope, operation)
        ids = self._by_scope.get(scope, ())
        return [o for o in map(self.operations.__getitem__, ids) if o.status.visible]

    def named(self, operation_id: str) -> Operation:
        """Return an operation of the snapshot, refusing one that there is not."""
        operation = self.operations.get(operation_id)
        if operation is None:
            message = f"there is no operation {operation_id!r}: see 'forewarn history'"
            raise Refused(ErrorCode.NOT_FOUND, message, operation=operation_id)
        return operation

    def claimed(self, operation_id: str, attempt: int) -> Operation:
        """Return a Started operation that this attempt has; a later claim refuses the older."""
        operation = self.named(operation_id)
        if operation.status is not EventStatus.STARTED or operation.attempt != attempt:
            message = (
                f"attempt {attempt} at operation {operation_id} is stale: it is "
                f"{operation.status} at attempt {operation.attempt}"
            )
            raise Refused(ErrorCode.STALE, message, operation=operation_id, attempt=attempt)
        return operation

    def put(self, operation: Operation) -> None:
        """Let an operation be so from now on."""
        if self._by_scope is not None and operation.id not in self.operations:
            self._index(self._by_scope, operation)
        self.operations[operation.id] = operation
        self._changed[operation.id] = None

    def intervene(self, operation: Operation, deed: AuditAction, by: str, note: str) -> None:
        """Let an operation be so from now on, by an operator's word that is written down."""
        interventions = intervened(operation.interventions, deed, by, self.now, note)
        self.put(replace(operation, interventions=interventions))

    def announce(
        self,
        number: int,
        step: planner.PlannedOperation,
        asked: datetime | None = None,
        *,
        no_notice: bool = False,
    ) -> str:
        """Let a step of a maintenance enter as its next operation; return its id.

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
        """Start it if it may, else write down what it waits for; nothing while it is held."""
        if operation.held_at is not None:
            return
        if operation.approved or operation.not_before <= self.now:
            self.start_if_free(operation, Trigger.START)

    def start_if_free(self, operation: Operation, trigger: Trigger) -> None:
        """Start what is ready, or write down what it waits for; neither if nothing may start."""
        if not self.policy.starts:
            self._leave_due(operation, trigger)
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

    def _go_on(self, operation: Operation) -> None:
        """Start what waits for nothing any more, if it is still ready.

        A clock that was set back makes a NotBefore lie ahead again: then time wakes it.
        """
        if operation.approved or operation.not_before <= self.now:
            self.start_if_free(operation, Trigger.START)
        else:
            self.put(operation)

    def _leave_due(self, operation: Operation, trigger: Trigger) -> None:
        """Let what is ready be found by the next look at what is due."""
        if trigger is Trigger.STRIKE:
            self._enter(operation)
        elif operation != self.operations.get(operation.id):
            self.put(operation)

    def end(self, operation: Operation, trigger: Trigger, outcome: str) -> None:
        """End it; look again at what waited for it, and walk on."""
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
            self.stop_walk(operation, f"{operation.id} is {status}: {outcome}".rstrip(": "))
        waiting = [o for o in self.operations.values() if o.waits_for == operation.id]
        for other in sorted(waiting, key=in_turn):
            self._go_on(replace(other, waits_for=""))
        self.walk_on()

    def hold(self, operation: Operation) -> None:
        """Keep what is Scheduled from starting; what is left of its notice is written down."""
        if operation.status is EventStatus.SCHEDULED and operation.held_at is None:
            self.put(self._held(replace(operation, waits_for="")))

    def release(self, operation: Operation) -> None:
        """Let it go on with the notice that it had left, unless another hold covers it.

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

    def move_on(self, operation: Operation) -> None:
        """Move the NotBefore of a held one ahead, so that guests go on reading a future time."""
        not_before = notice.whole_seconds(self.now + HELD_ON)
        self.put(replace(operation, not_before=not_before))

    def stop_walk(self, operation: Operation, reason: str) -> None:
        """Stop the walk that an operation is a step of, unless it is over."""
        assert operation.rolling_update is not None
        maintenance = self.maintenances.get(operation.maintenance)
        if (
            maintenance is None
            or maintenance.rolling_updates[operation.rolling_update].state is RollingState.FINISHED
        ):
            return
        stopped = {"state": RollingState.PAUSED, "reason": reason[-MAX_OUTCOME:]}
        self._put_walk(maintenance, operation.rolling_update, **stopped)

    def end_walks(self, number: int, reason: str) -> bool:
        """Let nothing more of a maintenance be announced; return whether anything was left."""
        maintenance = self.maintenances[number]
        left = maintenance.open
        for index in range(len(maintenance.rolling_updates)):
            changes = {"state": RollingState.FINISHED, "reason": reason}
            self._put_walk(self.maintenances[number], index, **changes)
        return left

    def resume_walks(self, number: int, by: str) -> bool:
        """Let stopped walks go on with their next step; return whether one was stopped.

        Args:
            number: Of the maintenance.
            by: The operator who says so.
        """
        stopped = [
            index
            for index, walk in enumerate(self.maintenances[number].rolling_updates)
            if walk.state is RollingState.PAUSED
        ]
        for index in stopped:
            maintenance = self.maintenances[number]
            words = intervened(
                maintenance.interventions,
                AuditAction.RESUME,
                by,
                self.now,
                maintenance.rolling_updates[index].reason,
            )
            self._put_walk(
                replace(maintenance, interventions=words),
                index,
                state=RollingState.RUNNING,
                reason="",
            )
        if stopped:
            self.walk_on()
        return bool(stopped)

    def walk_on(self) -> None:
        """Announce the next step of each walk whose step before is over; or find it at its end.

        A step that would touch a machine with a live event is left until that is over.
        """
        if not self.maintenances:
            return
        under_way = {
            (o.maintenance, o.rolling_update) for o in self.operations.values() if o.status.visible
        }
        for number in sorted(self.maintenances):
            for index, walk in enumerate(self.maintenances[number].rolling_updates):
                if walk.state is RollingState.RUNNING and (number, index) not in under_way:
                    self._walk_on(number, index, walk)

    def off(self, step: planner.PlannedOperation) -> set[str]:
        """Return the scopes of a step whose guests are not told (protocol.md section 8)."""
        scopes = {machine.scope for machine in step.machines}
        return {key for key in scopes if not self.policy.is_on(self.scopes[key], self.now)}

    def in_the_way(self, step: planner.PlannedOperation) -> tuple[Operation, Event, str] | None:
        """Return a live operation that shares a machine with a step, its event, and the name.

        Of several in the first scope, the first in turn, so that no store's order decides.
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
                return min(found, key=lambda one: in_turn(one[0]))
        return None

    def decision(self, about: Iterable[str], number: int | None = None) -> Decision:
        """Return the result, each scope moved on whose visible events changed, and no other."""
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
                removed_machines=tuple(lost.key for lost in self.lost),
                lost=tuple(self.lost),
                holds=tuple(hold for hold in self.holds if hold not in before.holds),
                released=tuple(hold for hold in before.holds if hold not in self.holds),
            ),
            operations=tuple(self.operations[operation_id] for operation_id in about),
            maintenance=None if number is None else self.maintenances[number],
        )

    def _walk_on(self, number: int, index: int, walk: RollingUpdate) -> None:
        maintenance = self.maintenances[number]
        machines = planner.next_step(walk, self.machines.values())
        if not machines:
            self._put_walk(maintenance, index, state=RollingState.FINISHED)
            return
        step = planner.PlannedOperation(machines=machines, rolling_update=index)
        if self.in_the_way(step) is not None:
            return
        if self.off(step) and not maintenance.without_notice:
            reason = f"{min(self.off(step))} is off by now: its guests would get no notice"
            self._put_walk(maintenance, index, state=RollingState.PAUSED, reason=reason)
            return
        self._put_walk(maintenance, index, done=planner.after(walk, machines).done)
        self.announce(number, step)

    def _put_walk(self, maintenance: Maintenance, index: int, **changes: object) -> None:
        walks = list(maintenance.rolling_updates)
        walks[index] = replace(walks[index], **changes)
        self.maintenances[maintenance.number] = replace(maintenance, rolling_updates=tuple(walks))

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
        """Return what is down in another update domain of one of its scopes.

        Of several, the first in turn, so that no store's order decides.
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
        return min(down, key=in_turn, default=None)

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


def in_turn(operation: Operation) -> tuple[datetime, int, str]:
    """Return what operations that are ready at once start in the order of."""
    return operation.not_before, operation.maintenance, operation.id


def _why(operation: Operation) -> StartCause:
    if operation.silent:
        return StartCause.SILENT
    return StartCause.APPROVED if operation.approved else StartCause.NOTICE_OVER


def _shown(operation: Operation | None) -> tuple[EventStatus, datetime | None] | None:
    """Return what of an operation a guest can see change: the rest is fixed for its life."""
    if operation is None or operation.status.over:
        return None
    scheduled = operation.status is EventStatus.SCHEDULED
    return operation.status, operation.not_before if scheduled else None
