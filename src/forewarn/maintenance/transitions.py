"""The transitions of one decision: whether an operation is announced, may start, and how it ends.

`Transitions` does the steps of one decision of `commands.decide` that several commands share, each
by the table below: announce or queue, start or wait, hold, end, and have the units of a maintenance
take their turns. It changes the World; `decision` returns what is new.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from forewarn.maintenance import footprints, model, notice, planner, turns
from forewarn.maintenance.footprints import UnitsInWorld
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.maintenance.world import Name, World
from forewarn.vocabulary import (
    AgentStatus,
    ApproverKind,
    ErrorCode,
    EventSource,
    EventStatus,
    TargetKind,
)

MAX_OUTCOME = 2000
"""Characters of an outcome that are kept, from its end, where programs say what went wrong."""

replace = msgspec.structs.replace


class Trigger(StrEnum):
    """The causes of a change of an operation's status."""

    QUEUE = "queue"
    """It waits, unannounced, for another update domain of a scope."""
    ANNOUNCE = "announce"
    STRIKE = "strike"
    """It starts without notice: an unforeseen failure, or an automatic approval."""
    START = "start"
    """Each of its events is approved, or its NotBefore has come."""
    RETURN = "return"
    """The connector has carried it out, and machines that were listening have to ask again."""
    SUCCEED = "succeed"
    """It is carried out, and its machines are back."""
    FAIL = "fail"
    """The connector could not carry it out, or a machine did not come back."""
    CANCEL = "cancel"
    """An operator cancels it, a stronger operation supersedes it, or its window closes."""


TRANSITIONS: Final[Mapping[tuple[EventStatus | None, Trigger], EventStatus]] = MappingProxyType(
    {
        (None, Trigger.QUEUE): EventStatus.QUEUED,
        (None, Trigger.ANNOUNCE): EventStatus.SCHEDULED,
        (None, Trigger.STRIKE): EventStatus.STARTED,
        (EventStatus.QUEUED, Trigger.ANNOUNCE): EventStatus.SCHEDULED,
        (EventStatus.QUEUED, Trigger.STRIKE): EventStatus.STARTED,
        (EventStatus.QUEUED, Trigger.CANCEL): EventStatus.CANCELED,
        (EventStatus.SCHEDULED, Trigger.START): EventStatus.STARTED,
        (EventStatus.SCHEDULED, Trigger.CANCEL): EventStatus.CANCELED,
        (EventStatus.STARTED, Trigger.SUCCEED): EventStatus.COMPLETED,
        (EventStatus.STARTED, Trigger.FAIL): EventStatus.FAILED,
        (EventStatus.STARTED, Trigger.RETURN): EventStatus.RETURNING,
        (EventStatus.RETURNING, Trigger.SUCCEED): EventStatus.COMPLETED,
        (EventStatus.RETURNING, Trigger.FAIL): EventStatus.FAILED,
    }
)
"""From where, by what, to where; None is an operation that does not exist yet (protocol.md section
6). A pair that is not in the table raises and changes nothing. `docs/lifecycle.md` is drawn from
it, and a test compares the two."""


_RECALLED: Final = frozenset((MaintenanceState.HALTED, MaintenanceState.STOPPED))
"""The states in which the unstarted operations of units are cancelled."""


def step(operation: str, status: EventStatus | None, trigger: Trigger) -> EventStatus:
    """Return the next status of an operation; TOO_LATE if the table has no such transition.

    None is the status of one that does not exist yet.
    """
    following = TRANSITIONS.get((status, trigger))
    if following is None:
        possible = " or ".join(other for start, other in TRANSITIONS if start is status)
        message = f"cannot {trigger} operation {operation}: it is {status or 'new'}, " + (
            f"and can only {possible}" if possible else "which is final"
        )
        raise model.Refused(
            ErrorCode.TOO_LATE, message, operation=operation, status=str(status), trigger=trigger
        )
    return following


def is_back(operation: model.Operation, name: str, sighting: model.Sightings) -> bool:
    """Tell whether an awaited machine is back, by its latest request.

    It asked after its operation was carried out; of one that is Completed, its agent says `back`.
    Nothing but an operator's word ends a failure.
    """
    if operation.status is EventStatus.FAILED:
        return False
    if operation.status.over:
        seen = sighting(model.key(name))
        return seen is not None and seen.agent is AgentStatus.BACK
    return asked_again(operation, name, sighting) is not None


def asked_again(
    operation: model.Operation, name: str, sighting: model.Sightings
) -> model.Sighting | None:
    """Return a machine's request since an operation was carried out, or failed; or None.

    A request after the start proves nothing: a client that waits for news asks again at once,
    before the machine goes down.
    """
    since = operation.carried_out_at or operation.ended_at
    seen = sighting(model.key(name))
    return seen if since and seen and seen.asked_at > since else None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command."""

    before: Mapping[Name, Any]
    """The earlier values of everything that changed, by table and key."""
    changes: model.Changes
    """New values of everything that changed; empty where the command changed nothing."""
    operations: tuple[model.Operation, ...] = ()
    """The operations that the command was about, changed or not."""
    maintenance: model.Maintenance | None = None
    """The maintenance that was requested, ordered, or took its turns."""
    steps: Mapping[int, turns.Step | None]
    """The next steps of the maintenances that took their turns."""


@dataclass(eq=False, repr=False)
class Transitions:
    """One decision in progress; the first five fields are the arguments of `commands.decide`."""

    world: World
    now: datetime
    mint: Callable[[], str]
    policy: model.Policy
    sighting: model.Sightings
    answered: model.Maintenance | None = None
    """The maintenance that was requested, ordered, or took its turns."""
    steps: dict[int, turns.Step | None] = field(default_factory=dict)
    """The next steps of the maintenances that took their turns."""
    _ended: list[str] = field(default_factory=list)
    """Operations that ended, or whose domains came up."""
    made_room: list[str] = field(default_factory=list)
    """Operations that dropped out of a scope, and may be down in others, or that others pass."""
    entered: list[str] = field(default_factory=list)
    _pending_of_users: int | None = None
    """The number of pending events of user-initiated maintenance; None before it is counted."""

    def __post_init__(self) -> None:
        """Bind the World's tables to attributes, for short names."""
        self._mark = self.world.mark()
        self.scopes = self.world.scopes
        self.operations = self.world.operations
        self.maintenances = self.world.maintenances
        self.machines = self.world.machines
        self.holds = self.world.holds

    def named(self, operation_id: str) -> model.Operation:
        """Return an operation; one that is unknown, or over and not recalled, is NOT_FOUND."""
        operation = self.operations.get(operation_id)
        if operation is None:
            message = f"no operation {operation_id!r}: see 'forewarn history'"
            raise model.Refused(ErrorCode.NOT_FOUND, message, operation=operation_id)
        return operation

    def is_claimed(self, operation_id: str, attempt: int) -> bool:
        """Tell whether an operation is Started, and this its latest claim."""
        operation = self.operations.get(operation_id)
        if operation is None or operation.status is not EventStatus.STARTED:
            return False
        return operation.attempt == attempt

    def claimed(self, operation_id: str, attempt: int) -> model.Operation:
        """Return a Started operation; a claim that is not the latest is refused (STALE)."""
        operation = self.named(operation_id)
        if not self.is_claimed(operation_id, attempt):
            message = (
                f"attempt {attempt} at operation {operation_id} is stale: the operation is "
                f"{operation.status}, at attempt {operation.attempt}"
            )
            raise model.Refused(ErrorCode.STALE, message, operation=operation_id, attempt=attempt)
        return operation

    def put(self, operation: model.Operation) -> None:
        """Set the new value of an operation, or add it."""
        self.operations[operation.id] = operation

    def enter(
        self,
        number: int,
        step: planner.PlannedOperation,
        asked: datetime | None = None,
        *,
        notice_seconds: int = 0,
        no_notice: bool = False,
        **given: object,
    ) -> str:
        """Add a planned operation as the next one of its maintenance; return its id.

        `given` are fields of it that differ from the maintenance's. `notice_seconds` is the least
        length of its notice.

        An unforeseen failure starts at once. Anything else is announced, or queued: behind
        operations on another update domain of one of its scopes, while a hold covers it, and until
        its window opens within its notice.
        """
        maintenance = self.maintenances[number]
        off = self.off({machine.scope for machine in step.machines})
        if step.unit is not None:
            unit = maintenance.units[step.unit]
            given |= {"target": unit.target, "on_host": unit.host}
        elif maintenance.target is TargetKind.HOST:
            given |= {"on_host": maintenance.targets[0]}
        ordinal = maintenance.announced + 1
        operation = model.mapped(
            model.Operation,
            maintenance,
            id=f"{number}.{ordinal}",
            maintenance=number,
            status=EventStatus.QUEUED,
            announced_at=self.now,
            not_before=self.now,
            unit=step.unit,
            hosts=tuple(sorted({machine.host for machine in step.machines if machine.host})),
            events=tuple(
                model.OperationEvent(
                    id=self.mint().upper(),
                    scope=scope,
                    update_domain=members[0].update_domain,
                    machines=tuple(machine.name for machine in members),
                    published=0,
                    silent=scope in off,
                )
                for scope, members in sorted(planner.by_scope(step.machines).items())
            ),
            **given,
        )
        self.maintenances[number] = replace(maintenance, announced=ordinal)
        if no_notice:
            not_before = notice.whole_seconds(self.now)
            self._start(replace(operation, not_before=not_before), model.StartCause.NO_NOTICE)
        else:
            self.announce_or_queue(operation, asked, timedelta(seconds=notice_seconds))
        self.entered.append(operation.id)
        return operation.id

    def announce_or_queue(
        self,
        operation: model.Operation,
        asked: datetime | None = None,
        longer: timedelta = timedelta(0),
    ) -> None:
        """Announce a new or queued operation, unless it is early, held, or another comes first.

        Its notice begins here. It starts at once where every scope is off or approves it, unless a
        later NotBefore is asked for; otherwise it is Scheduled. An event whose scope has turned off
        since it was queued has its notice all the same.
        """
        before = self._status(operation)
        scopes = {event.scope: self.scopes[event.scope] for event in operation.events}
        silent = self.off(event.scope for event in operation.events if event.silent)
        automatic = {
            name: model.Approval(kind=ApproverKind.AUTOMATIC, by=scope.name, at=self.now)
            for name, scope in scopes.items()
            if operation.source is EventSource.USER
            and operation.event_type in scope.automatically_approve
        }
        minutes = {scope.terminate_notice_minutes for scope in scopes.values()}
        least = max(notice.minimum(operation.event_type, each) for each in minutes)
        if scopes.keys() <= silent | automatic.keys():
            least = timedelta(0)
        if longer and asked is not None and asked < self.now + least:
            raise notice.too_short(longer, least, operation.event_type, self.now)
        not_before = self._not_before(operation, asked, least)
        if operation.closed(not_before):
            self._close_unannounced(operation, not_before)
            return
        operation = replace(operation, not_before=not_before)
        if before is None and operation.opens_at is not None:
            # A second more, so that its notice, in whole seconds, is over when its window opens.
            ahead = max(least, longer)
            ahead += timedelta(seconds=1 if ahead else 0)
            opens_at = max(operation.opens_at, self.now + ahead)
            operation = replace(operation, announced_at=opens_at - ahead)
        held_at = (operation.held_at or self.now) if self.covered(operation) else None
        is_early = operation.opens_at is not None and operation.announced_at > self.now
        behind = None if is_early or held_at else self._ahead(operation)
        if is_early or held_at or behind:
            if before is None:
                step(operation.id, before, Trigger.QUEUE)
            self.put(replace(operation, waits_for=behind.id if behind else "", held_at=held_at))
            return
        opened = operation.opens_at is None or operation.opens_at <= self.now
        at_once = opened and not_before == notice.whole_seconds(self.now)
        if not_before > notice.whole_seconds(self.now + least):
            automatic = {}  # somebody asked for a later time
        announced = replace(
            operation,
            status=step(operation.id, before, Trigger.ANNOUNCE),
            announced_at=self.now,
            held_at=None,
            events=tuple(
                replace(event, silent=event.scope in silent, approval=automatic.get(event.scope))
                for event in operation.events
            ),
        )
        if at_once and not announced.arrived:
            self._start_if_free(announced)
        else:
            self.put(announced)

    def _not_before(
        self, operation: model.Operation, asked: datetime | None, least: timedelta
    ) -> datetime:
        """Return the NotBefore of an operation that is announced now; of a new one it is judged."""
        is_new = operation.id not in self.operations
        if not is_new and operation.not_before > self.now + least:
            asked = operation.not_before
        if operation.opens_at is not None and operation.opens_at > (asked or self.now + least):
            asked = operation.opens_at
        if is_new:
            return notice.not_before(asked, least, self.now)
        # What lets it go on now, such as the outcome of another one, is never refused for it.
        return notice.whole_seconds(asked or self.now + least)

    def _close_unannounced(self, operation: model.Operation, not_before: datetime) -> None:
        if operation.id in self.operations:
            self.close_window(operation)
            return
        assert operation.closes_at is not None
        message = (
            f"the window closes at {notice.spoken(operation.closes_at)}, before the notice of the "
            f"guests is over at {notice.spoken(not_before)}"
        )
        raise model.Refused(ErrorCode.NOTICE_TOO_SHORT, message, earliest=not_before.isoformat())

    def close_window(self, operation: model.Operation) -> None:
        """Cancel an operation that can no longer start in its window."""
        assert operation.closes_at is not None
        self.end(operation, Trigger.CANCEL, notice.window_closes(operation.closes_at))

    def start_if_ready(self, operation: model.Operation) -> None:
        """Set an operation, started if it is ready, free to start and not held."""
        blocked = operation.held_at is not None or operation.arrived
        if not blocked and operation.ready(self.now):
            self._start_if_free(operation)
        else:
            self.put(operation)

    def carried_out(self, operation: model.Operation, outcome: str) -> None:
        """Set an operation that its connector has carried out: over, or waiting for machines."""
        if not operation.awaited:
            self.end(operation, Trigger.SUCCEED, outcome)
            return
        self.put(
            replace(
                operation,
                status=step(operation.id, operation.status, Trigger.RETURN),
                carried_out_at=self.now,
                back_by=self.now + self.policy.back,
                lease_until=None,
                outcome_unknown="",
                outcome=outcome[-MAX_OUTCOME:],
            )
        )

    def end(self, operation: model.Operation, trigger: Trigger, outcome: str) -> None:
        """End an operation; its domains stay down until its machines have recovered."""
        status = step(operation.id, operation.status, trigger)
        ended = replace(
            operation,
            status=status,
            ended_at=self.now,
            waits_for="",
            held_at=None,
            arrived=(),
            lease_until=None,
            outcome_unknown="",
            outcome=outcome[-MAX_OUTCOME:],
        )
        if status is EventStatus.COMPLETED:
            self._await(ended, self._not_back(ended, ended.reporting))
            self._repair(ended)
        else:
            self._await(ended, ended.machines if status is EventStatus.FAILED else ())

    def _repair(self, operation: model.Operation) -> None:
        names: set[str] = set()
        for scope in [event.scope for event in operation.events]:
            for other in self.world.live_in(scope):
                if other.status.over and other.id != operation.id:
                    names = names or {model.key(name) for name in operation.machines}
                    left = tuple(name for name in other.awaited if model.key(name) not in names)
                    if left != other.awaited:
                        self._await(other, left)

    def _await(self, operation: model.Operation, awaited: tuple[str, ...]) -> None:
        up_at = None
        if operation.status is EventStatus.COMPLETED and not awaited:
            scopes = [self.scopes.get(event.scope) for event in operation.events]
            settle = max(
                (self.policy.settle_of(scope) for scope in scopes if scope is not None),
                default=timedelta(0),
            )
            up_at = self.now + settle if settle else None
        self.settle(replace(operation, awaited=awaited, up_at=up_at))

    def settle(self, operation: model.Operation) -> None:
        """Set an operation that is over; those that waited for it go on at the command's end."""
        self.put(operation)
        self._ended.append(operation.id)

    def _go_on(self) -> None:
        concerned: dict[int, dict[int, None]] = {}
        while self._ended or self.made_room:
            up, self.made_room = {*self.made_room}, []
            while self._ended or up:  # what is queued may end here: its window is too short
                ended, self._ended = self._ended, []
                for operation in map(self.operations.__getitem__, ended):
                    if operation.unit is not None:
                        concerned.setdefault(operation.maintenance, {})[operation.unit] = None
                up.update(name for name in ended if not self.operations[name].down)
                self._let_go_on(up)
                up = set()
            for number, its in concerned.items():
                self.take_turns(number, concerned=its)
            concerned = {}

    def _let_go_on(self, up: set[str]) -> None:
        # What has dropped out of a scope may wait for nothing in those that it is left in.
        names = {*up, *(other for name in up for other in self.world.waiting_for.of(name))}
        waiting = [o for o in map(self.operations.__getitem__, names) if o.waits_for]
        for other in sorted((o for o in waiting if o.pending), key=planner.start_order):
            # A clock that was set back may have put its NotBefore ahead again.
            self.start_if_ready(replace(other, waits_for=""))
        for other in sorted((o for o in waiting if not o.pending), key=planner.queue_order):
            self.announce_or_queue(replace(other, waits_for=""))

    def take_turns(
        self,
        number: int,
        *,
        concerned: Iterable[int] | None = None,
        lost: Container[str] = frozenset(),
    ) -> None:
        """Update the units of a maintenance, start those that may go, and keep its step.

        `concerned` are the places of the units whose operations have ended; None for all. A unit
        whose host is to be drained is left to the caller, which looks at the hosts: `Ask` names
        only such. `lost` names operations that are missing from history. There is no step where
        there is no such maintenance, or it has nothing left to follow.
        """
        maintenance = self.maintenances.get(number)
        if maintenance is None or not maintenance.open:
            return
        its = UnitsInWorld(maintenance, self.world, self.policy.queues)
        following = turns.follow(maintenance, its, self.now, concerned=concerned, lost=lost)
        while True:
            its = UnitsInWorld(following, self.world, self.policy.queues)
            following, step = turns.step(following, its, self.now)
            self.steps[number] = step
            if following != self.maintenances[number]:
                self.maintenances[number] = following
            if following.state in _RECALLED:
                self.recall(following, f"maintenance {number} is {following.state}")
                return
            if isinstance(step, turns.Wait) and step.until == self.now:
                continue
            if not isinstance(step, turns.Ask):
                return
            drained = tuple(i for i in step.units if following.units[i].drain)
            machines = {i: its.machines(following.units[i]) for i in step.units if i not in drained}
            self._ask_for(number, machines, step.window)
            following = self.maintenances[number]
            if drained:
                self.steps[number] = replace(step, units=drained)
                return
            if step.full and all(following.units[i].state is UnitState.RUNNING for i in step.units):
                at_once = turns.Obstacle.AT_ONCE
                self.steps[number] = turns.Wait(obstacle=at_once, until=following.closes_at)
                return

    def _ask_for(
        self, number: int, machines: Mapping[int, list[model.Machine]], window: Span
    ) -> None:
        """Enter the next operations of units (places), or note why the rules refuse them.

        Where some can never be allowed, none is entered: they have failed, and may halt the others.
        """
        maintenance = self.maintenances[number]
        start = msgspec.structs.asdict(turns.start_of(maintenance, window, self.now))
        not_before = start.pop("not_before")
        refusals: dict[int, model.Refused] = {}
        asked: dict[int, int] = {}
        steps = {
            index: planner.PlannedOperation(machines=next(planner.turns(its)), unit=index)
            for index, its in machines.items()
        }
        for index, step in steps.items():
            with planner.refusing(refusals, index):
                self.check(step, maintenance)
        if any(refusal.code is ErrorCode.NOT_ELIGIBLE for refusal in refusals.values()):
            steps, self._pending_of_users = {}, None
        for index in [index for index in steps if index not in refusals]:
            mark, entered, step = self.world.mark(), len(self.entered), steps[index]
            with planner.refusing(refusals, index):
                if (found := self.conflicting(step)) is not None:
                    raise planner.has_event(*found)
                self.enter(number, step, not_before, **start)
                asked[index] = self.maintenances[number].announced
            if index in refusals:
                self.world.undo(mark)
                del self.entered[entered:]
        maintenance = turns.asked(self.maintenances[number], asked, self.now)
        self.maintenances[number] = turns.refused(maintenance, refusals, self.now)

    def recall(self, maintenance: model.Maintenance, reason: str) -> None:
        """Cancel the unstarted operations of units that are recalled; the others go on."""
        for name in turns.to_recall(maintenance):
            operation = self.operations.get(name)
            if operation is not None and operation.unstarted:
                self.end(operation, Trigger.CANCEL, reason)

    def check(self, step: planner.PlannedOperation, maintenance: model.Maintenance) -> None:
        """Refuse an operation whose guests would get no notice, or that may not be (NOT_ELIGIBLE).

        Too many pending events of users are LIMIT.
        """
        for scope in planner.by_scope(step.machines):
            planner.check_eligible(maintenance.event_type, self.scopes[scope])
        off = self.off({machine.scope for machine in step.machines})
        if off and not maintenance.without_notice:
            raise planner.is_off(self.scopes[min(off)].name)
        limit = self.policy.user_initiated_limit
        if limit and maintenance.source is EventSource.USER:
            events = {(machine.scope, machine.update_domain) for machine in step.machines}
            self.check_limit(limit, len(events))

    def check_limit(self, limit: int, more: int) -> None:
        """Refuse (LIMIT) so many more pending events of user-initiated maintenance."""
        if self._pending_of_users is None:
            self._pending_of_users = sum(
                len(operation.events)
                for operation in self.operations.values()
                if operation.source is EventSource.USER and operation.unstarted
            )
        pending = self._pending_of_users
        if pending + more > limit:
            raise planner.too_many(pending, more, limit)
        self._pending_of_users += more  # as if it were entered, and did not start at once

    def look_for_returns(self, operation: model.Operation) -> None:
        """Stop waiting for the machines of an operation that are back, or left the fleet."""
        left = self._not_back(operation, operation.awaited)
        if operation.status is not EventStatus.RETURNING:
            if left != operation.awaited:
                self._await(operation, left)
            return
        talking = {
            name
            for name in operation.awaited
            if (seen := asked_again(operation, name, self.sighting)) is not None and seen.agent
        }.union(operation.reporting)
        reporting = tuple(name for name in operation.machines if name in talking)
        returning = replace(operation, awaited=left, reporting=reporting)
        if returning.awaited:
            self.put(returning)
        else:
            self.end(returning, Trigger.SUCCEED, operation.outcome)

    def _not_back(self, operation: model.Operation, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            name
            for name in names
            if model.key(name) in self.machines and not is_back(operation, name, self.sighting)
        )

    def hold(self, operation: model.Operation, since: datetime | None = None) -> None:
        """Set an operation that has not started, held since then; None: since now.

        A Scheduled one keeps the remainder of its notice, which began no earlier than its
        announcement. A Queued one gives its place to others.
        """
        since = min(since or self.now, self.now)
        if not operation.pending:
            operation = replace(operation, held_at=operation.held_at or since, waits_for="")
            self.made_room.append(operation.id)
        elif operation.held_at is None:
            since = max(operation.announced_at, since)
            left = max(timedelta(0), operation.not_before - since)
            seconds = -(-left // timedelta(seconds=1))
            operation = replace(operation, held_at=since, notice_left_seconds=seconds, waits_for="")
        self.put(operation)

    def release(self, operation: model.Operation) -> None:
        """Set a held operation, with the rest of its notice, unless another hold covers it.

        NotBefore never moves to before what guests have read. A Queued one has its turn again.
        """
        if operation.held_at is None or self.covered(operation):
            self.put(operation)
            return
        if not operation.pending:
            self.announce_or_queue(replace(operation, held_at=None))
            return
        left = timedelta(seconds=operation.notice_left_seconds)
        not_before = operation.not_before
        if not operation.approved:
            not_before = max(not_before, notice.whole_seconds(self.now + left))
        self.start_if_ready(
            replace(operation, held_at=None, notice_left_seconds=0, not_before=not_before)
        )

    def off(self, scopes: Iterable[str]) -> set[str]:
        """Return those of these scopes (keys) that are off (protocol.md section 8)."""
        return {name for name in scopes if not self.policy.is_on(self.scopes[name], self.now)}

    def conflicting(
        self, step: planner.PlannedOperation
    ) -> tuple[model.Operation, model.OperationEvent, str] | None:
        """Return a live operation that shares a machine with a step, its event, and the name.

        Of several it is the first by start order, so that the store's order does not decide.
        """
        found = (
            (other, event, name)
            for machine in step.machines
            for other in self.world.live_on(machine.key)
            if not other.status.over
            for event in other.events
            for name in event.machines
            if model.key(name) == machine.key
        )
        return min(found, key=lambda one: planner.start_order(one[0]), default=None)

    def decision(self, about: Iterable[str]) -> Decision:
        """Return the result, the answer being the operations `about` (ids)."""
        self._go_on()
        before = self.world.since(self._mark)
        self._publish(before)
        return Decision(
            before=before,
            changes=self.world.changes(before),
            operations=tuple(self.operations[operation_id] for operation_id in about),
            maintenance=self.answered and self.maintenances[self.answered.number],
            steps=self.steps,
        )

    def _publish(self, earlier: dict[Name, Any]) -> None:
        """Raise the incarnation of the scopes whose visible events changed, and of no other.

        These are added to the earlier values of what the decision has changed.
        """
        incarnations: dict[str, int] = {}
        for (kind, name), before in earlier.items():
            if kind != "operations":
                continue
            after = self.operations[name]
            for scope in after.moved_from(before):
                incarnations[scope] = self.scopes[scope].incarnation + 1
            if after.shown and not (before and before.shown):
                events = tuple(
                    event if event.silent else replace(event, published=incarnations[event.scope])
                    for event in after.events
                )
                self.operations[name] = replace(after, events=events)
        for scope, incarnation in incarnations.items():
            earlier.setdefault(("scopes", scope), self.scopes[scope])
            self.scopes[scope] = replace(self.scopes[scope], incarnation=incarnation)

    def _status(self, operation: model.Operation) -> EventStatus | None:
        known = self.operations.get(operation.id)
        return None if known is None else known.status

    def _start_if_free(self, operation: model.Operation) -> None:
        obstacle = self._obstacle(operation)
        if obstacle is not None:
            self.put(replace(operation, waits_for=obstacle.id))
        elif operation.closed(self.now) or not self.policy.starts:
            self.put(operation)  # the next `advance_time` cancels or starts it
        elif operation.silent:
            self._start(operation, model.StartCause.SILENT)
        elif operation.approved:
            self._start(operation, model.StartCause.APPROVED)
        else:
            self._start(operation, model.StartCause.NOTICE_OVER)

    def _start(self, operation: model.Operation, cause: model.StartCause) -> None:
        before = self._status(operation)
        trigger = Trigger.START if before is EventStatus.SCHEDULED else Trigger.STRIKE
        seen = {
            name: sight
            for name in operation.machines
            if (sight := self.sighting(model.key(name))) is not None
            and sight.asked_at > self.now - self.policy.listening
        }
        if operation.event_type in planner.ALL_DOMAINS_AT_ONCE:
            seen = {}
        self.put(
            replace(
                operation,
                status=step(operation.id, before, trigger),
                start_cause=cause,
                started_at=self.now,
                waits_for="",
                awaited=tuple(seen),
                reporting=tuple(name for name, sight in seen.items() if sight.agent),
            )
        )

    def _obstacle(self, operation: model.Operation) -> model.Operation | None:
        down = self._elsewhere(operation, self.world.down_in)
        return min((other for other, _ in down), key=planner.start_order, default=None)

    def _ahead(self, operation: model.Operation) -> model.Operation | None:
        """Return an operation that must be over before this one is announced.

        It takes another update domain of one of its scopes, and is down, announced, or queued
        earlier. But what is queued cannot go on while an earlier failure keeps a domain down, so
        maintenance that may repair the failure goes ahead of it.
        """
        apart = self._elsewhere(operation, self.world.live_in)
        if not apart:
            return None
        turn = planner.queue_order(operation)
        live = (one for event in operation.events for one in self.world.live_in(event.scope))
        repaired = footprints.repaired_by(map(model.key, operation.machines), live)
        ahead = (
            other
            for other, scope in apart
            if self.policy.queues(self.scopes[scope])
            and (
                other.down
                or other.pending
                or (
                    not other.gives_way
                    and not footprints.lets_repair(other, scope, repaired)
                    and planner.queue_order(other) < turn
                )
            )
        )
        return min(ahead, key=planner.start_order, default=None)

    @staticmethod
    def _elsewhere(
        operation: model.Operation, others: Callable[[str], Iterable[model.Operation]]
    ) -> list[tuple[model.Operation, str]]:
        """Return those of `others` (of a scope) in other update domains, each with the scope.

        Who chooses one of them takes the first by start order: the store's order decides nothing.
        """
        if operation.event_type in planner.ALL_DOMAINS_AT_ONCE:
            return []
        return [
            (other, event.scope)
            for event in operation.events
            for other in others(event.scope)
            if event.is_apart(other.events)
        ]

    def covered(self, operation: model.Operation) -> bool:
        """Tell whether a hold keeps an operation from starting."""
        return any(hold.covers(operation) for hold in self.holds.values())
