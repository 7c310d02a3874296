"""A request for maintenance becomes operations and their events.

Machines are grouped by scope and update domain: an event holds machines of one scope and one
update domain (protocol.md section 4), and each group is an operation of its own, because nothing
makes two groups go down together. What a request may ask for is judged here; when an operation
may start is `schedule`'s business.
"""

import re
from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from forewarn.maintenance import notice
from forewarn.maintenance.errors import Refused
from forewarn.maintenance.model import (
    Event,
    Machine,
    Maintenance,
    Operation,
    Scope,
    Snapshot,
    key,
)
from forewarn.vocabulary import (
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

AUTOMATIC_TYPES = frozenset({EventType.REBOOT, EventType.REDEPLOY})
"""What a scope may approve by itself when a user asks (protocol.md section 6)."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks for. Either `machines` or `scope`, not both."""

    event_type: EventType
    machines: tuple[str, ...] = ()
    """Names, without regard to case; a name given twice counts once."""
    scope: str = ""
    """A scope's name: all of its machines."""
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
    requested_by: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a request became."""

    maintenance: Maintenance
    operations: tuple[Operation, ...]
    """New; Scheduled where they are announced, Started where they struck."""
    superseded: tuple[Operation, ...] = ()
    """Pending operations that it cancelled."""


def targets(snapshot: Snapshot, request: Request) -> list[Machine]:
    """Return the machines that a request means, in the order of their names.

    Raises:
        Refused: INVALID, LIMIT or NOT_FOUND, naming what is wrong.
    """
    if bool(request.machines) == bool(request.scope):
        raise Refused(ErrorCode.INVALID, "name either machines or one scope, not both")
    if request.scope:
        scope = snapshot.scopes.get(key(request.scope))
        if scope is None:
            raise _unknown("scope", [request.scope])
        found = [m for m in snapshot.machines.values() if m.scope == scope.key]
        if not found:
            message = f"scope {scope.name} has no machines: there is nothing to maintain"
            raise Refused(ErrorCode.INVALID, message, scope=scope.name)
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
    snapshot: Snapshot,
    request: Request,
    *,
    number: int,
    mint: Callable[[], str],
    now: datetime,
) -> Plan:
    """Turn a request into Scheduled operations, one for each scope and update domain.

    Args:
        snapshot: The machines asked for, their scopes, and all that is live there.
        request: What is asked.
        number: The maintenance's number, unused so far.
        mint: Gives a new GUID at each call.
        now: The time of the announcement.

    Returns:
        The plan; its events carry `published` 0 until the document's incarnation is known.

    Raises:
        Refused: INVALID, LIMIT, NOT_FOUND, NOT_ELIGIBLE or NOTICE_TOO_SHORT.
    """
    _judge(request)
    machines = targets(snapshot, request)
    description = _description(request)
    operations = []
    groups: dict[tuple[str, int], list[Machine]] = {}
    for machine in machines:
        groups.setdefault((machine.scope, machine.update_domain), []).append(machine)
    for ordinal, ((scope_key, domain), members) in enumerate(sorted(groups.items()), 1):
        scope = snapshot.scopes[scope_key]
        _judge_eligible(request, scope)
        event = Event(
            id=mint().upper(),
            scope=scope_key,
            update_domain=domain,
            machines=tuple(machine.name for machine in members),
            published=0,
        )
        operations.append(
            Operation(
                id=f"{number}.{ordinal}",
                maintenance=number,
                event_type=request.event_type,
                source=request.source,
                description=description,
                duration_seconds=request.duration_seconds,
                status=EventStatus.SCHEDULED,
                announced_at=now,
                not_before=_not_before(request, scope, now),
                events=(event,),
            )
        )
    maintenance = Maintenance(
        number=number,
        event_type=request.event_type,
        source=request.source,
        targets=(request.scope,) if request.scope else tuple(m.name for m in machines),
        requested_by=request.requested_by,
        requested_at=now,
        description=description,
        duration_seconds=request.duration_seconds,
    )
    return Plan(maintenance=maintenance, operations=tuple(operations))


def approves_itself(request: Request, scope: Scope) -> bool:
    """Tell whether the scope approves this by its own setting (protocol.md section 6)."""
    return (
        request.source is EventSource.USER
        and request.event_type in AUTOMATIC_TYPES
        and request.event_type in scope.automatically_approve
    )


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


def _not_before(request: Request, scope: Scope, now: datetime) -> datetime:
    if request.no_notice or approves_itself(request, scope):
        return notice.whole_seconds(now)
    least = notice.minimum(request.event_type, scope.terminate_notice_minutes)
    return notice.not_before(request.not_before, least, now)


def _description(request: Request) -> str:
    if request.description is not None:
        return request.description
    if request.live_migration:
        return LIVE_MIGRATION
    return DESCRIPTIONS[request.event_type, request.source]


def _unknown(what: str, names: Iterable[str]) -> Refused:
    listed = sorted(set(names))
    shown = ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
    message = f"no {what} of the fleet is called {shown}: see 'forewarn fleet list'"
    return Refused(ErrorCode.NOT_FOUND, message, what=what, name=listed[0])
