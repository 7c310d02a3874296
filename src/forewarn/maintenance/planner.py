"""A request for maintenance becomes steps, and a step an operation with its events.

An event holds machines of one scope and one update domain (protocol.md section 4), and one domain
of a scope is down at a time. So a request for several domains is walked, one after the other; what
a walk's next step is, is found in the fleet as it is when the step is announced. What a request may
ask for is judged here; when an operation may start is `schedule`'s business.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from forewarn.maintenance import notice
from forewarn.maintenance.model import (
    Approval,
    Event,
    Machine,
    Maintenance,
    Operation,
    Refused,
    RollingUpdate,
    Scope,
    Snapshot,
    key,
)
from forewarn.vocabulary import (
    ApproverKind,
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
    Priority,
    ScopeKind,
)

MAX_TARGETS = 10_000
"""The most machines of one request: its one transaction stays under a second."""

MAX_DESCRIPTION = 500
"""The most characters of a description: clients read it into fixed fields and log lines."""

MAX_DURATION_SECONDS = 30 * 24 * 3600
"""The longest expected interruption, 30 days: more is a mistake in the unit."""

LIVE_MIGRATION = (
    "Virtual machine is being paused because of a memory-preserving Live Migration operation."
)
"""The description of a Freeze that a live migration causes (protocol.md section 4)."""

DESCRIPTIONS = {
    (EventType.FREEZE, EventSource.PLATFORM): "Host server is undergoing maintenance.",
    (EventType.FREEZE, EventSource.USER): "Virtual machine is going to be paused as requested "
    "by authorized user.",
    (EventType.REBOOT, EventSource.PLATFORM): "Host server is undergoing maintenance.",
    (EventType.REBOOT, EventSource.USER): "Virtual machine is going to be restarted as requested "
    "by authorized user.",
    (EventType.REDEPLOY, EventSource.PLATFORM): "Virtual machine has encountered a failure.",
    (EventType.REDEPLOY, EventSource.USER): "Virtual machine is going to be redeployed as "
    "requested by authorized user.",
    (EventType.PREEMPT, EventSource.PLATFORM): "",
    (EventType.PREEMPT, EventSource.USER): "",
    (EventType.TERMINATE, EventSource.PLATFORM): "Virtual machine is going to be deleted.",
    (EventType.TERMINATE, EventSource.USER): "Virtual machine is going to be deleted as requested "
    "by authorized user.",
}
"""What an event says where nobody gives another text. Clients match on those of protocol.md
section 4; Freeze/User, Reboot/Platform and the two of Terminate are open there and our choice."""

NO_NOTICE_TYPES = frozenset({EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY})
"""What an unforeseen failure can do to a machine; a deletion is never unforeseen."""

UNWALKED = frozenset({EventType.PREEMPT, EventType.TERMINATE})
"""What takes every update domain at once: the machines are lost in any case."""

AUTOMATIC_TYPES = frozenset({EventType.REBOOT, EventType.REDEPLOY})
"""What a scope may approve by itself when a user asks (protocol.md section 6)."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks for. One of `machines`, `scope` and `host`."""

    event_type: EventType
    machines: tuple[str, ...] = ()
    """Names, without regard to case; a name given twice counts once."""
    scope: str = ""
    """A scope's name: all of its machines."""
    host: str = ""
    """A host, as the fleet spells it: all machines on it."""
    source: EventSource = EventSource.PLATFORM
    not_before: datetime | None = None
    """Aware; None for as soon as the least notice allows."""
    duration_seconds: int = -1
    """The expected interruption; 0 none, -1 unknown."""
    description: str | None = None
    """None for the text that the type and source have by custom."""
    live_migration: bool = False
    """A Freeze that moves the machine: only chooses the description."""
    no_notice: bool = False
    """It has happened already: an unforeseen failure."""
    without_notice: bool = False
    """Whether machines whose scope is off may be stopped without any notice."""
    indivisible: bool = False
    """Whether the host's machines can only go down all at once, as for a patch of the host itself:
    refused where that would take two update domains of a scope."""
    requested_by: str = ""


class PlannedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that go down together: one operation, with an event in each scope."""

    machines: tuple[Machine, ...]
    """In the order of their names; of one update domain in each scope."""
    rolling_update: int | None
    """Which walk of the maintenance it is a step of."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a request became."""

    maintenance: Maintenance
    operations: tuple[Operation, ...]
    """New; Scheduled where they are announced, Started where they struck. Of a walk, the first."""
    superseded: tuple[Operation, ...] = ()
    """Pending operations that it cancelled."""


def targets(snapshot: Snapshot, request: Request) -> list[Machine]:
    """Return the machines that a request means, in the order of their names.

    Raises:
        Refused: INVALID, LIMIT or NOT_FOUND, naming what is wrong.
    """
    if sum(map(bool, (request.machines, request.scope, request.host))) != 1:
        raise Refused(ErrorCode.INVALID, "name machines, or one scope, or one host: one of them")
    if request.scope:
        scope = snapshot.scopes.get(key(request.scope))
        if scope is None:
            raise _unknown("scope", [request.scope])
        found = [m for m in snapshot.machines.values() if m.scope == scope.key]
        if not found:
            message = f"scope {scope.name} has no machines: there is nothing to maintain"
            raise Refused(ErrorCode.INVALID, message, scope=scope.name)
    elif request.host:
        found = [m for m in snapshot.machines.values() if m.host == request.host]
        if not found:
            message = (
                f"no machine of the fleet is on host {request.host!r}: see 'forewarn fleet list'"
            )
            raise Refused(ErrorCode.NOT_FOUND, message, what="host", name=request.host)
    else:
        missing = [name for name in request.machines if key(name) not in snapshot.machines]
        if missing:
            raise _unknown("machine", missing)
        wanted = {key(name) for name in request.machines}
        found = [snapshot.machines[name] for name in wanted]
    if len(found) > MAX_TARGETS:
        message = f"{len(found)} machines at once; at most {MAX_TARGETS}: split the request"
        raise Refused(ErrorCode.LIMIT, message, machines=len(found), most=MAX_TARGETS)
    return sorted(found, key=natural)


def plan(
    snapshot: Snapshot, request: Request, *, number: int, now: datetime
) -> tuple[Maintenance, list[PlannedOperation]]:
    """Turn a request into a maintenance and the steps that are announced at once.

    A scope of which several update domains are meant is walked, and so is a host that holds
    several domains of one scope: the first step is announced, and each other when the one before
    has ended well. A failure without notice, a preemption and a deletion are not walked.

    Args:
        snapshot: The machines asked for, their scopes, and all that is live there.
        request: What is asked.
        number: The maintenance's number, unused so far.
        now: The time of the request.

    Raises:
        Refused: INVALID, LIMIT, NOT_FOUND or NOT_ELIGIBLE.
    """
    _judge(request)
    machines = targets(snapshot, request)
    for scope_key in dict.fromkeys(machine.scope for machine in machines):
        _judge_eligible(request, snapshot.scopes[scope_key])
    all_at_once = request.no_notice or request.event_type in UNWALKED
    steps: list[PlannedOperation] = []
    walks: list[RollingUpdate] = []
    members: dict[str, list[Machine]] = {}
    for machine in machines:
        members.setdefault(machine.scope, []).append(machine)
    for walk in _walks(request, members):
        concerned = machines if walk.host else members[walk.scope]
        first = next_step(walk, concerned)
        following = after(walk, first)
        rest = next_step(following, concerned)
        if rest and request.indivisible and not request.no_notice:
            raise _torn(request.host, rest[0], snapshot.scopes[rest[0].scope])
        if rest and not all_at_once:
            steps.append(PlannedOperation(machines=first, rolling_update=len(walks)))
            walks.append(following)
            continue
        while first:
            steps.append(PlannedOperation(machines=first, rolling_update=None))
            walk = after(walk, first)  # noqa: PLW2901 - each step leaves less to walk
            first = next_step(walk, concerned)
    named = request.scope or request.host
    maintenance = Maintenance(
        number=number,
        event_type=request.event_type,
        source=request.source,
        targets=(named,) if named else tuple(machine.name for machine in machines),
        requested_by=request.requested_by,
        requested_at=now,
        description=_description(request),
        duration_seconds=request.duration_seconds,
        without_notice=request.without_notice,
        rolling_updates=tuple(walks),
    )
    return maintenance, steps


def next_step(walk: RollingUpdate, machines: Iterable[Machine]) -> tuple[Machine, ...]:
    """Return who has the next turn of a walk: the lowest domain of each scope that is left.

    Args:
        walk: How far it is.
        machines: The fleet as it is now, as far as the walk may concern it.

    Returns:
        In the order of their names; empty where nobody is left.
    """
    named, done = frozenset(walk.machines), frozenset(walk.done)
    left: dict[str, list[Machine]] = {}
    for machine in machines:
        meant = machine.host == walk.host if walk.host else machine.scope == walk.scope
        if meant and machine.key not in done and (not named or machine.key in named):
            left.setdefault(machine.scope, []).append(machine)
    turn: list[Machine] = []
    for members in left.values():
        lowest = min(machine.update_domain for machine in members)
        turn.extend(machine for machine in members if machine.update_domain == lowest)
    return tuple(sorted(turn, key=natural))


def after(walk: RollingUpdate, step: Iterable[Machine]) -> RollingUpdate:
    """Return the walk when these have had their turn."""
    done = (*walk.done, *(machine.key for machine in step))
    return msgspec.structs.replace(walk, done=done)


def operation(
    maintenance: Maintenance,
    step: PlannedOperation,
    scopes: Mapping[str, Scope],
    *,
    silent: Collection[str],
    not_before: datetime,
    automatic: bool,
    mint: Callable[[], str],
    now: datetime,
) -> Operation:
    """Return a step as an operation that is about to be announced.

    Its events carry `published` 0 until the document's incarnation is known; those in the `silent`
    scopes (keys) always do. `automatic` lets scopes approve it by their own setting.
    """
    groups: dict[str, list[Machine]] = {}
    for machine in step.machines:
        groups.setdefault(machine.scope, []).append(machine)
    return Operation(
        id=f"{maintenance.number}.{maintenance.announced + 1}",
        maintenance=maintenance.number,
        event_type=maintenance.event_type,
        source=maintenance.source,
        description=maintenance.description,
        duration_seconds=maintenance.duration_seconds,
        status=EventStatus.SCHEDULED,
        announced_at=now,
        not_before=not_before,
        rolling_update=step.rolling_update,
        hosts=tuple(sorted({machine.host for machine in step.machines if machine.host})),
        events=tuple(
            Event(
                id=mint().upper(),
                scope=scope_key,
                update_domain=members[0].update_domain,
                machines=tuple(machine.name for machine in members),
                published=0,
                approval=_own_approval(maintenance, scopes[scope_key], now) if automatic else None,
                silent=scope_key in silent,
            )
            for scope_key, members in sorted(groups.items())
        ),
    )


def least_notice(
    event_type: EventType, step: PlannedOperation, scopes: Mapping[str, Scope]
) -> timedelta:
    """Return the least notice that every scope of a step has."""
    return max(
        notice.minimum(event_type, scopes[machine.scope].terminate_notice_minutes)
        for machine in step.machines
    )


def approves_itself(event_type: EventType, source: EventSource, scope: Scope) -> bool:
    """Tell whether the scope approves this by its own setting (protocol.md section 6)."""
    return (
        source is EventSource.USER
        and event_type in AUTOMATIC_TYPES
        and event_type in scope.automatically_approve
    )


def _own_approval(maintenance: Maintenance, scope: Scope, now: datetime) -> Approval | None:
    if not approves_itself(maintenance.event_type, maintenance.source, scope):
        return None
    return Approval(kind=ApproverKind.AUTOMATIC, by=scope.name, at=now)


def _walks(request: Request, members: Mapping[str, list[Machine]]) -> list[RollingUpdate]:
    if request.host:
        return [RollingUpdate(host=request.host)]
    if request.scope:
        return [RollingUpdate(scope=key(request.scope))]
    return [
        RollingUpdate(scope=scope, machines=tuple(machine.key for machine in named))
        for scope, named in sorted(members.items())
    ]


def natural(machine: Machine) -> tuple[tuple[int, int, str], ...]:
    """Return what machines are ordered by: names, with their numbers as numbers."""
    parts = re.findall(r"\d+|\D+", machine.key)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


def _judge(request: Request) -> None:
    if request.duration_seconds < -1 or request.duration_seconds > MAX_DURATION_SECONDS:
        message = (
            f"a duration of {request.duration_seconds} s: give 0 for none, -1 for unknown, "
            f"or 1 to {MAX_DURATION_SECONDS} seconds"
        )
        raise Refused(ErrorCode.INVALID, message, duration_seconds=request.duration_seconds)
    text = request.description or ""
    if len(text) > MAX_DESCRIPTION or not text.isprintable():
        message = f"a description is one line of at most {MAX_DESCRIPTION} printable characters"
        raise Refused(ErrorCode.INVALID, message, length=len(text))
    if request.live_migration and request.event_type is not EventType.FREEZE:
        raise Refused(ErrorCode.INVALID, "only a Freeze can be a live migration")
    if request.not_before is not None and request.not_before.tzinfo is None:
        message = f"NotBefore {request.not_before.isoformat()} names no time zone: add one, as Z"
        raise Refused(ErrorCode.INVALID, message)
    if request.indivisible and not request.host:
        raise Refused(ErrorCode.INVALID, "only a host's machines can be indivisible: name a host")
    if request.no_notice:
        _judge_no_notice(request)


def _judge_no_notice(request: Request) -> None:
    if request.source is not EventSource.PLATFORM or request.event_type not in NO_NOTICE_TYPES:
        kinds = ", ".join(sorted(NO_NOTICE_TYPES))
        message = f"only the platform's own {kinds} can strike without notice"
        raise Refused(ErrorCode.NOT_ELIGIBLE, message)
    if request.not_before is not None:
        message = "what strikes without notice has happened already: leave NotBefore out"
        raise Refused(ErrorCode.INVALID, message)


def _judge_eligible(request: Request, scope: Scope) -> None:
    if request.event_type is EventType.PREEMPT and scope.priority is not Priority.LOW:
        message = (
            f"{scope.name} is of regular priority: only low-priority machines can be preempted"
        )
        raise Refused(ErrorCode.NOT_ELIGIBLE, message, scope=scope.name)
    if request.event_type is EventType.TERMINATE and (
        scope.kind is not ScopeKind.SCALE_SET or scope.terminate_notice_minutes is None
    ):
        message = (
            f"{scope.name} is no scale set with terminate_notice_minutes: "
            "without that a deletion has no event"
        )
        raise Refused(ErrorCode.NOT_ELIGIBLE, message, scope=scope.name)


def _torn(host: str, machine: Machine, scope: Scope) -> Refused:
    message = (
        f"host {host} holds several update domains of {scope.name}, {machine.name} among them: "
        "all at once would take them down together; move machines away, or ask without indivisible"
    )
    return Refused(ErrorCode.NOT_ELIGIBLE, message, scope=scope.name, machine=machine.name)


def _description(request: Request) -> str:
    if request.description is not None:
        return request.description
    if request.live_migration:
        return LIVE_MIGRATION
    return DESCRIPTIONS[request.event_type, request.source]


def _unknown(what: str, names: Iterable[str]) -> Refused:
    listed = sorted(set(names))
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    shown = ", ".join(map(repr, listed[:5])) + more
    message = f"no {what} of the fleet is called {shown}: see 'forewarn fleet list'"
    return Refused(ErrorCode.NOT_FOUND, message, what=what, name=listed[0])
