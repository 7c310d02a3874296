"""The commands, and the decision that follows from each: `decide(world, command, now, mint)`.

A decision changes the World and nothing else, and tells what it has changed; a refused command
changes nothing. A command is a function from the transitions to the ids of the operations that it
was about: a call of one of the functions below `decide`, whose names are verbs.

An operation is ready when each of its events is approved or its NotBefore has come. A ready one
starts (`Transitions.start_if_ready`) unless a hold covers it or another update domain of one of its
scopes is down; then it records which operation it waits for, to be looked at when that one ends. An
executor's claim is a lease with a fencing number: a report under an older number is refused.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Set
from datetime import datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import msgspec

from forewarn.maintenance import invariants, notice, planner, turn_orders, turns, units
from forewarn.maintenance.model import (
    Approval,
    Hold,
    Machine,
    Maintenance,
    Operation,
    Policy,
    Refused,
    Sightings,
    Tombstone,
    Verdict,
    key,
    listed,
    no_maintenance,
    unseen,
)
from forewarn.maintenance.transitions import (
    MAX_OUTCOME,
    Decision,
    Transitions,
    Trigger,
    asked_again,
    is_back,
)
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import left_host
from forewarn.maintenance.units import MaintenanceState
from forewarn.maintenance.world import NOTHING, World
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

ALWAYS_ON = Policy()
"""The rules where the settings say nothing."""

HELD_ON = timedelta(minutes=15)
"""The step by which NotBefore moves on when it comes during a hold: guests keep reading a time that
lies ahead, and it does not change too often."""

NO_REASON = "nobody knows whether it was carried out"
"""The text of `Operation.outcome_unknown`, which must not be empty, where no reason was given."""

NOBODY: Final = "?"
"""The name of an unknown replica that may have begun a task that the store has lost."""

Command = Callable[[Transitions], Iterable[str]]
"""A request or report: it decides by the transitions, and returns the ids of the operations that it
was about."""

replace = msgspec.structs.replace

S = TypeVar("S", bound=msgspec.Struct)


def has_returned(operation: Operation, sighting: Sightings) -> bool:
    """Return True if a machine that an operation awaits is back."""
    return any(is_back(operation, name, sighting) for name in operation.awaited)


def decide(
    world: World,
    command: Command,
    now: datetime,
    mint: Callable[[], str],
    policy: Policy = ALWAYS_ON,
    *,
    sighting: Sightings = unseen,
) -> Decision:
    """Carry a command out on the World; where this raises, nothing has changed.

    It looks at nothing but the World; `mint` returns a new GUID at each call, for events that are
    announced.

    Raises:
        Refused: The rules do not allow it.
        InvariantBroken: The decision would break what must always hold: a defect.
    """
    with world.atomic():
        working = Transitions(world, now, mint, policy, sighting)
        decision = working.decision(command(working))
        if decision.changes:
            invariants.check(world, decision.changes.operations)
            invariants.check_succession(world, decision.before, decision.changes)
    return decision


# The commands.


def request_maintenance(working: Transitions, request: planner.Request, number: int) -> list[str]:
    """An operator asks for maintenance; the number is unused so far."""
    maintenance, steps = planner.plan(working.world, request, number=number, now=working.now)
    for ordinal, step in enumerate(steps, 1):
        _make_way(working, step, request, f"{number}.{ordinal}")
    if not request.no_notice:
        machines = tuple(machine for step in steps for machine in step.machines)
        working.check(planner.PlannedOperation(machines=machines), maintenance)
    _check_open(working, maintenance)
    working.maintenances[maintenance.number] = working.answered = maintenance
    asked = planner.asked_start(request, working.now)
    enter = partial(
        working.enter, notice_seconds=request.notice_seconds, no_notice=request.no_notice
    )
    for step in steps:
        enter(maintenance.number, step, asked)
    if maintenance.units:
        entered = working.maintenances[number]
        ordinals = {step.unit: n for n, step in enumerate(steps, 1) if step.unit is not None}
        working.maintenances[number] = turns.asked(entered, ordinals, working.now)
        working.take_turns(number)  # the others say what they wait for
    return working.entered


def _make_way(
    working: Transitions, step: planner.PlannedOperation, request: planner.Request, successor: str
) -> None:
    supersedes = request.no_notice or request.event_type in planner.ALL_DOMAINS_AT_ONCE
    while (found := working.conflicting(step)) is not None:
        other = found[0]
        if not (supersedes and other.unstarted):
            raise planner.has_event(*found)
        working.end(other, Trigger.CANCEL, f"superseded by {successor}")


def start_maintenance(working: Transitions, wanted: Maintenance, number: int) -> list[str]:
    """An operator asks for maintenance whose units take their turns by a policy."""
    maintenance = replace(wanted, number=number, requested_at=working.now, changed_at=working.now)
    _check_open(working, maintenance)
    working.maintenances[number] = working.answered = maintenance
    working.take_turns(number)
    return working.entered


def _check_open(working: Transitions, maintenance: Maintenance) -> None:
    under_way = sum(one.open for one in working.maintenances.values())
    if maintenance.units and under_way >= units.MAX_OPEN:
        message = f"{under_way} maintenances with units are under way, at most {units.MAX_OPEN}"
        raise Refused(ErrorCode.LIMIT, message, most=units.MAX_OPEN)


def take_turns(working: Transitions, number: int, lost: Container[str] = frozenset()) -> list[str]:
    """Continue a maintenance after time has passed or something has changed: its units take turns.

    `lost` names operations that are missing from history.
    """
    working.answered = working.maintenances.get(number)
    working.take_turns(number, lost=lost)
    return working.entered


def order_maintenance(
    working: Transitions, number: int, kind: MaintenanceOrder, unit: str, by: str
) -> list[str]:
    """An operator says how a maintenance goes on; `unit` is for those orders that name one."""
    drains, known = working.world.drains, working.maintenances.get(number)
    if known is None:
        raise no_maintenance(number)
    maintenance = turn_orders.order(known, kind, unit, by, working.now, drains=drains)
    if kind is MaintenanceOrder.PAUSE:  # what is Queued is not announced yet
        queued = (
            working.operations[name]
            for name in working.world.of_maintenance.of(number)
            if working.operations[name].status is EventStatus.QUEUED
        )
        places = [one.unit for one in queued if one.unit is not None]
        maintenance = turns.recalled(maintenance, places)
    working.maintenances[number] = working.answered = maintenance
    if maintenance.state is not MaintenanceState.RUNNING:
        working.recall(maintenance, maintenance.reason)
    working.take_turns(number)
    return working.entered


def approve_events(
    working: Transitions, event_ids: Collection[str], approval: Approval, scope: str | None
) -> list[str]:
    """A guest or an operator approves events: all of them or, if one is unknown, none.

    Ids are taken in any case. The scope is the key of the approver's; None for an operator, who may
    approve in every scope.
    """
    named = dict.fromkeys(event_id.upper() for event_id in event_ids)
    of_event = working.world.of_event
    about = dict.fromkeys(one for event_id in named for one in of_event.of(event_id))
    known = {
        event.id
        for operation_id in about
        for event in working.operations[operation_id].all_events
        if scope is None or (event.scope == scope and event.published)
    }
    for event_id in named:
        if event_id not in known:
            message = f"event {event_id} was never published here, or its history has been purged"
            raise Refused(ErrorCode.NOT_FOUND, message, event_id=event_id)
    for operation_id in about:
        operation = working.operations[operation_id]
        if operation.status is EventStatus.QUEUED:
            message = f"operation {operation_id} is Queued: approve it once it is announced"
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        events = tuple(
            replace(event, approval=approval)
            if event.id in named and event.approval is None
            else event
            for event in operation.events
        )
        if operation.pending and events != operation.events:
            working.start_if_ready(replace(operation, events=events))
    return list(about)


def cancel_operations(
    working: Transitions,
    operations: Collection[str],
    reason: str,
    maintenances: Collection[int] = (),
    by: str = "",
) -> Collection[str]:
    """An operator cancels operations that have not started, all or none.

    For the maintenances with these numbers, this includes the turns of their other units;
    operations that have started or ended are left alone.
    """
    nothing_left = dict.fromkeys(maintenances)
    for number in maintenances:
        maintenance = working.maintenances.get(number)
        if maintenance is not None and not maintenance.state.over:
            nothing_left.pop(number, None)
            stop = MaintenanceOrder.STOP
            working.maintenances[number] = turn_orders.order(
                maintenance, stop, "", by, working.now, reason=reason
            )
    for operation_id in operations:
        operation = working.named(operation_id)
        if operation.maintenance not in maintenances or operation.unstarted:
            working.end(operation, Trigger.CANCEL, reason)
            nothing_left.pop(operation.maintenance, None)
    for number in nothing_left:
        message = (
            f"nothing left to cancel of maintenance {number}: everything has started or finished"
        )
        raise Refused(ErrorCode.TOO_LATE, message, maintenance=number)
    return operations


def advance_time(working: Transitions, ids: Iterable[str] | None = None) -> list[str]:
    """Time has passed: start the operations of these that are due; None for all."""
    ids = [*working.operations] if ids is None else ids
    due = [
        operation
        for operation in map(working.operations.__getitem__, ids)
        if (at := operation.wakeup_at) is not None and at <= working.now
    ]
    for operation in sorted((o for o in due if not o.gives_way), key=planner.start_order):
        if operation.status is EventStatus.RETURNING:
            _give_up(working, operation)
        elif operation.status.over:
            working.settle(replace(operation, up_at=None))
        elif operation.closed(working.now):
            working.close_window(operation)
        elif operation.held_at is None:
            working.start_if_ready(operation)
        else:
            ahead = notice.whole_seconds(working.now + HELD_ON)
            working.put(replace(operation, not_before=ahead))
    for operation in sorted((o for o in due if o.gives_way), key=planner.queue_order):
        if operation.closed(working.now):
            working.close_window(operation)
        else:
            working.announce_or_queue(operation)
    return [operation.id for operation in due]


def _give_up(working: Transitions, operation: Operation) -> None:
    working.look_for_returns(operation)
    operation = working.operations[operation.id]
    if operation.status is EventStatus.RETURNING:
        assert operation.back_by is not None
        assert operation.carried_out_at is not None
        seconds = round((operation.back_by - operation.carried_out_at).total_seconds())
        outcome = f"{listed(operation.awaited)} did not come back within {seconds} s"
        working.end(operation, Trigger.FAIL, f"{operation.outcome}\n{outcome}".strip())


def record_returns(working: Transitions, operations: Collection[str]) -> Collection[str]:
    """Awaited machines of these operations may be back: they asked, or left the fleet."""
    for operation_id in operations:
        operation = working.named(operation_id)
        if operation.awaited:
            working.look_for_returns(operation)
    return operations


def place_hold(working: Transitions, hold: Hold) -> list[str]:
    """An operator places a hold."""
    if hold.until is not None and hold.expired(working.now):
        message = f"expected a time after {notice.spoken(working.now)}"
        raise planner.wrong("until", f"{notice.spoken(hold.until)} has passed: {message}")
    if (other := working.holds.get((hold.kind, hold.name))) is not None:
        message = (
            f"{hold} is already on hold, by {other.by or 'somebody'} since "
            f"{notice.spoken(other.at)}: release it first to change it"
        )
        raise Refused(ErrorCode.CONFLICT, message)
    working.holds[hold.kind, hold.name] = hold
    covered = [o for o in working.operations.values() if o.unstarted and hold.covers(o)]
    for operation in covered:
        working.hold(operation, hold.at)
    return [operation.id for operation in covered]


def release_hold(working: Transitions, hold: Hold) -> list[str]:
    """An operator releases a hold, by its kind and name."""
    if (hold.kind, hold.name) not in working.holds:
        raise Refused(ErrorCode.NOT_FOUND, f"{hold} is not on hold: see 'forewarn hold list'")
    del working.holds[hold.kind, hold.name]
    covered = [o for o in working.operations.values() if o.unstarted and hold.covers(o)]
    for operation in sorted(covered, key=lambda o: (not o.pending, planner.queue_order(o))):
        working.release(operation)
    return [operation.id for operation in covered]


def expire_holds(working: Transitions) -> list[str]:
    """Time has passed: release the holds whose time is over."""
    ended = working.world.expired_holds(working.now)
    return [*dict.fromkeys(name for hold in ended for name in release_hold(working, hold))]


def postpone_operations(
    working: Transitions, operations: Collection[str], asked: datetime
) -> Collection[str]:
    """An operator moves operations later, all or none."""
    for operation_id in operations:
        operation = working.named(operation_id)
        if not operation.unstarted or (operation.pending and operation.approved):
            state = "approved" if operation.pending else str(operation.status)
            message = (
                f"operation {operation_id} is {state}: only an operation that is neither started "
                "nor approved can be postponed; place a hold to keep an approved one from starting"
            )
            raise Refused(ErrorCode.TOO_LATE, message, operation=operation_id)
        if working.now < operation.not_before == notice.whole_seconds(asked):
            continue  # repeated, as after a lost answer
        not_before = notice.later(asked, operation.not_before, working.now)
        if operation.closed(not_before):
            assert operation.closes_at is not None
            message = (
                f"operation {operation_id} cannot be postponed to {notice.spoken(not_before)}: its "
                f"window closes at {notice.spoken(operation.closes_at)}"
            )
            raise Refused(ErrorCode.NOT_ELIGIBLE, message, operation=operation_id)
        later = replace(operation, not_before=not_before)
        if operation.pending:
            later = replace(later, waits_for="")
        elif operation.gives_way and operation.announced_at > working.now:  # its window is ahead
            by_then = operation.announced_at + (not_before - operation.not_before)
            later = replace(later, announced_at=by_then)
        if operation.pending and operation.held_at is not None:
            left = -(-(not_before - working.now).total_seconds() // 1)
            later = replace(later, notice_left_seconds=int(left))
        working.put(later)
    return operations


def acknowledge_failures(
    working: Transitions, operations: Collection[str], by: str, *, even_if_down: bool = False
) -> Collection[str]:
    """An operator acknowledges failed operations, all or none.

    `even_if_down`: the operator knows that machines which have not asked since may still be down.
    """
    for operation_id in operations:
        operation = working.named(operation_id)
        if operation.status is not EventStatus.FAILED and not (
            operation.status.over and operation.down
        ):
            message = (
                f"operation {operation_id} is {operation.status}: only failed operations can be "
                "acknowledged, and completed ones whose machines are not back"
            )
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        if not even_if_down:
            _require_heard(working, operation)
        who = operation.acknowledged_by or by
        working.settle(replace(operation, acknowledged_by=who, awaited=(), up_at=None))
    return operations


def _require_heard(working: Transitions, operation: Operation) -> None:
    """Refuse (CONFLICT) an acknowledgement unless all machines are known to be up."""
    unheard = [
        name
        for name in operation.awaited
        if key(name) in working.machines and not asked_again(operation, name, working.sighting)
    ]
    if not unheard:
        return
    ended = "was carried out" if operation.carried_out_at else "failed"
    message = (
        f"not heard since operation {operation.id} {ended}: "
        f"{listed([_last_request(working, name) for name in unheard])}; acknowledging lets the "
        "next update domain go: look there first, or add --even-if-down"
    )
    facts = {"operation": operation.id, "machine": unheard[0], "where": "even_if_down"}
    raise Refused(ErrorCode.CONFLICT, message, **facts)


def _last_request(working: Transitions, name: str) -> str:
    seen = working.sighting(key(name))
    last = "never asked" if seen is None else f"last request {notice.spoken(seen.asked_at)}"
    return f"{name} ({last})"


def extend_notices(working: Transitions, length: timedelta) -> list[str]:
    """Guests could not read their documents for this long: Scheduled operations move later by it.

    None moves further than to the notice that it was announced with, from now on. The clock may
    have been years behind, at a start without a battery, before it was set right.
    """
    now = working.now
    about = [o for o in working.operations.values() if o.pending and not o.silent]
    for operation in about:
        whole = now + (operation.not_before - operation.announced_at)
        moved = max(operation.not_before, min(operation.not_before + length, whole))
        later = replace(operation, not_before=notice.whole_seconds(moved))
        working.put(later if later.ready(now) else replace(later, waits_for=""))
    for operation in working.operations.values():
        if operation.status.over:
            continue
        # A machine that comes back cannot ask meanwhile, and an executor cannot renew its lease.
        working.put(earlier(operation, -length, "back_by", "lease_until"))
    for name, scope in working.scopes.items():
        if scope.asked_at is not None:
            asked_at = max(scope.asked_at, min(now, scope.asked_at + length))
            working.scopes[name] = replace(scope, asked_at=asked_at)
    return [operation.id for operation in about]


def set_back(working: Transitions, length: timedelta) -> list[str]:
    """The clock was set back by this much while no process decided.

    What somebody waits for comes as soon as it would have; a machine that is awaited, or down since
    a failure, has to ask later than now. A host that boots from now on has booted since its
    maintenance was requested. NotBefore stays: guests have read it. No token of a relay is younger
    than now: who asks from now on asks later than it was made, and than a host changed that is
    drained.
    """
    now = working.now
    for operation in working.operations.values():
        dated = earlier(operation, length, "back_by", "up_at", "lease_until")
        working.put(_no_later(dated, now, "carried_out_at", "ended_at"))
    for number, maintenance in working.maintenances.items():
        check = earlier(maintenance.check, length, "began_at", "lease_until", "passed_at")
        dated_units = (earlier(u, length, "retry_at", "refused_at") for u in maintenance.units)
        its = tuple(_no_later(unit, now, "changed_at") for unit in dated_units)
        working.maintenances[number] = replace(
            earlier(maintenance, length, "requested_at", "wave_at"), check=check, units=its
        )
    for host, drain in working.world.drains.items():
        dated_drain = earlier(drain, length, "reboot_asked_at", "booted_at", "silent_since")
        working.world.drains[host] = _no_later(dated_drain, now, "requested_at", "changed_at")
    for name, token in working.world.tokens.items():
        if token.host:
            working.world.tokens[name] = _no_later(token, now, "created_at", "used_at")
    return []


def earlier(value: S, length: timedelta, *fields: str) -> S:
    """Return a value whose times in these fields are so much earlier."""
    moved: S = replace(value, **{name: at - length for name, at in _times(value, fields)})
    return moved


def _no_later(value: S, now: datetime, *fields: str) -> S:
    capped: S = replace(value, **{name: min(at, now) for name, at in _times(value, fields)})
    return capped


def _times(value: msgspec.Struct, fields: Iterable[str]) -> list[tuple[str, datetime]]:
    return [(name, at) for name in fields if (at := getattr(value, name)) is not None]


def record_requests(working: Transitions, scopes: Iterable[str]) -> list[str]:
    """Machines of these scopes (keys) asked; a clock that was set back makes it no earlier."""
    for name in scopes:
        scope = working.scopes[name]
        if scope.asked_at is None or scope.asked_at < working.now:
            working.scopes[name] = replace(scope, asked_at=working.now)
    return []


def follow_moves(working: Transitions, moved: Set[str]) -> list[str]:
    """Machines (keys) have other hosts than before, or are new or gone.

    The World has them where they are now.
    """
    world = working.world
    hosts = {machine.host for name in moved if (machine := working.machines.get(name)) is not None}
    names = {
        *(id_ for name in moved for id_ in world.live_of_machine.of(name)),
        *(id_ for host in hosts for id_ in world.live_of_host.of(host)),
    }
    about = [o for o in map(working.operations.__getitem__, names) if o.unstarted]
    about.sort(key=planner.start_order)
    for operation in about:
        here = world.machines_on(operation.on_host) if operation.on_host else ()
        _locate(working, operation, here)
    return [operation.id for operation in about]


def _locate(working: Transitions, operation: Operation, here: Iterable[Machine]) -> None:
    """Set an operation that has not started, with the hosts that its machines have now.

    It is held where one has come to a held host, and goes on where the last has left one. Of a
    host's maintenance, machines that have left the host drop out; `here` are all that are on it.
    """
    on = {
        name: machine.host
        for name in operation.machines
        if (machine := working.machines.get(key(name))) is not None
    }
    host = operation.on_host
    left = {name for name, now_on in on.items() if host and now_on not in {"", host}}
    if left == {*operation.machines}:
        working.end(operation, Trigger.CANCEL, left_host(host))
        return
    announces_next = operation.unit is not None
    goes_alone = operation.event_type in planner.ALL_DOMAINS_AT_ONCE
    arrived = () if announces_next or goes_alone else (m.name for m in here if m.name not in on)
    located = replace(
        _without(operation, left) if left else operation,
        hosts=tuple(sorted({on[name] for name in on.keys() - left} - {""})),
        arrived=tuple(sorted(arrived)),
    )
    if located.dropped != operation.dropped:
        working.made_room.append(operation.id)  # what waited for it there goes on
    if working.covered(located):
        working.hold(located)
    elif located.held_at is not None:
        working.release(located)
    elif not located.pending:
        working.put(located)
    else:  # what kept it from starting may have left
        working.start_if_ready(located)


def _without(operation: Operation, left: Set[str]) -> Operation:
    """Return an operation without some of its machines, but not all."""
    events = [
        replace(event, machines=tuple(name for name in event.machines if name not in left))
        for event in operation.events
    ]
    gone = {event.id for event in events if not event.machines}
    return replace(
        operation,
        events=tuple(event for event in events if event.machines),
        dropped=(*operation.dropped, *(e for e in operation.events if e.id in gone)),
    )


def claim_tasks(
    working: Transitions, operations: Collection[str], executor: str, lease: timedelta
) -> Collection[str]:
    """An executor claims Started operations for the length of a lease."""
    for operation_id in operations:
        operation = working.named(operation_id)
        leased = operation.lease_until is not None and operation.lease_until > working.now
        if operation.status is not EventStatus.STARTED or leased or operation.outcome_unknown:
            message = (
                f"operation {operation_id} cannot be claimed: it is {operation.status}"
                + (f", leased to {operation.executor}" if leased else "")
                + (", and its outcome is unknown" if operation.outcome_unknown else "")
            )
            raise Refused(ErrorCode.CONFLICT, message, operation=operation_id)
        in_doubt = operation.attempt > operation.repeat_after
        before = operation.claimed_by if in_doubt else ()
        working.put(
            replace(
                operation,
                attempt=operation.attempt + 1,
                executor=executor,
                claimed_by=before if executor in before else (*before, executor),
                lease_until=working.now + lease,
            )
        )
    return operations


def renew_leases(working: Transitions, attempts: Mapping[str, int], lease: timedelta) -> list[str]:
    """An executor is still at work on the attempts that it claimed, and extends their leases.

    The answer has those that are still the latest claim of their operation.
    """
    renewed = [name for name, attempt in attempts.items() if working.is_claimed(name, attempt)]
    for name in renewed:
        working.put(replace(working.operations[name], lease_until=working.now + lease))
    return renewed


def release_leases(
    working: Transitions, operations: Collection[str], heir: str = ""
) -> Collection[str]:
    """The executors of these operations are known to be gone: anyone may claim them at once.

    An heir has what they left: their claims count as its own, except for those of NOBODY.
    """
    for operation_id in operations:
        operation = replace(working.named(operation_id), lease_until=None)
        if heir:
            lost = (name for name in operation.claimed_by if name == NOBODY)
            operation = replace(operation, executor=heir, claimed_by=(heir, *lost))
        working.put(operation)
    return operations


def finish_task(
    working: Transitions,
    operation_id: str,
    attempt: int,
    *,
    succeeded: bool,
    message: str,
    hosts: Mapping[str, str] = NOTHING,
) -> list[str]:
    """An executor reports how an operation ended.

    `hosts` are the new hosts of its machines by name, as far as the connector knows them.
    """
    operation = working.claimed(operation_id, attempt)
    own = {key(name) for name in operation.machines}
    others = [name for name in hosts if key(name) not in own]
    if others:
        named = listed([name if name.isprintable() else repr(name) for name in others])
        ignored = f"ignored hosts of {named}: not a machine of this operation"
        message = f"{message}\n{ignored}".strip()
    trigger = Trigger.SUCCEED if succeeded else Trigger.FAIL
    _record_end(working, operation, trigger, message, hosts)
    return [operation.id]


def report_unknown_outcome(
    working: Transitions, operation_id: str, attempt: int, message: str
) -> list[str]:
    """An executor reports that nobody knows whether an operation was carried out."""
    operation = working.claimed(operation_id, attempt)
    why = message[-MAX_OUTCOME:] or NO_REASON
    working.put(replace(operation, outcome_unknown=why, lease_until=None))
    return [operation.id]


def may_be_known_to(operation: Operation, executor: str) -> bool:
    """Return True if an executor may know the outcome that another one reported as unknown."""
    claimed = executor in operation.claimed_by and executor != operation.executor
    return bool(operation.outcome_unknown) and claimed


def resolve_outcomes(
    working: Transitions, operations: Collection[str], verdict: Verdict, by: str
) -> Collection[str]:
    """An operator records the result of operations whose outcome is unknown, all or none."""
    trigger = Trigger.SUCCEED if verdict is Verdict.SUCCEEDED else Trigger.FAIL
    for operation in map(working.named, operations):
        unknown = operation.outcome_unknown
        if not unknown:
            name = operation.id
            message = f"the outcome of operation {name} is not unknown: it is {operation.status}"
            raise Refused(ErrorCode.CONFLICT, message, operation=name)
        if verdict is Verdict.REPEAT:
            again = {"lease_until": None, "repeat_after": operation.attempt}
            working.put(replace(operation, outcome_unknown="", **again))
        else:
            outcome = f"{verdict}, says {by or 'an operator'}; before that: {unknown}"
            _record_end(working, operation, trigger, outcome[:MAX_OUTCOME], NOTHING)
    return operations


def _record_end(
    working: Transitions,
    operation: Operation,
    trigger: Trigger,
    outcome: str,
    hosts: Mapping[str, str],
) -> None:
    """End an operation, and record where that left its machines.

    A host that is named counts even after a failure: some machines may have moved before it. After
    a successful Redeploy or live migration, a machine whose host is not named is on an unknown one.
    """
    event_type = operation.event_type
    succeeded = trigger is Trigger.SUCCEED
    deleted = succeeded and event_type in planner.ALL_DOMAINS_AT_ONCE
    moved = succeeded and (operation.live_migration or event_type is EventType.REDEPLOY)
    named = {key(name): host for name, host in hosts.items()}
    elsewhere: set[str] = set()
    for name in map(key, operation.machines):
        if (machine := working.machines.get(name)) is not None:
            host = named.get(name, "" if moved else machine.host)
            if host != machine.host:
                working.machines[name] = replace(machine, host=host)
                elsewhere.add(name)
    if succeeded:
        working.carried_out(operation, outcome)
    else:
        working.end(operation, trigger, outcome)
    lost = [(event.scope, name) for event in operation.events for name in event.machines]
    for scope, name in lost if deleted else ():
        if key(name) in working.machines:
            del working.machines[key(name)]  # its unit goes on without it
        working.world.tombstones[key(name)] = Tombstone(
            name=name, event_type=event_type, operation=operation.id, at=working.now, scope=scope
        )
        elsewhere.add(key(name))
    if elsewhere:
        follow_moves(working, elsewhere)
