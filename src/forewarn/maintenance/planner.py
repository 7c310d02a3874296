"""Turns a request for maintenance into units and planned operations.

An event holds machines of one scope and one update domain (protocol.md section 4), and one domain
of a scope is down at a time. So a request for several domains becomes a maintenance with units: one
has its turn after another (`maintenance.turns`), each with the machines that it has then.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar

import msgspec

from forewarn.maintenance import model, notice, standing
from forewarn.maintenance.units import MaintenanceState, TurnPolicy, Unit, UnitKind
from forewarn.maintenance.world import World
from forewarn.vocabulary import (
    ErrorCode,
    EventSource,
    EventType,
    Priority,
    ScopeKind,
    TargetKind,
)

K = TypeVar("K", bound=Hashable)

MAX_NOTICE_SECONDS = int(notice.FURTHEST.total_seconds())

MAX_TARGETS = 10_000
"""Machines of one request: its one transaction stays under a second."""

MAX_DESCRIPTION = 500
"""Characters of a description: clients read it into fixed fields and log lines."""

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
"""The default descriptions. Clients match on those of protocol.md section 4; it leaves Freeze/User,
Reboot/Platform and both of Terminate open, and they are our choice."""

NO_NOTICE_TYPES = frozenset({EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY})
"""Types of events that an unforeseen failure can cause; a deletion is never unforeseen."""

ALL_DOMAINS_AT_ONCE = frozenset({EventType.PREEMPT, EventType.TERMINATE})
"""Types that take every update domain at once, and wait for none: the machines go away anyway."""


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's request, apart from its targets."""

    event_type: EventType
    source: EventSource = EventSource.PLATFORM
    not_before: datetime | None = None
    """Aware; None for as soon as the least notice allows. What needs no notice waits for it too."""
    notice_seconds: Annotated[int, msgspec.Meta(ge=0, le=MAX_NOTICE_SECONDS)] = 0
    """NotBefore as seconds after the request; 0 for `not_before`."""
    opens_at: datetime | None = None
    """Aware; nothing starts before it, approved or not. None for no such limit."""
    closes_at: datetime | None = None
    """Aware; an operation that has not started by then is cancelled. None for no such limit."""
    duration_seconds: int = -1
    """The expected interruption; 0 none, -1 unknown."""
    description: str | None = None
    """None for the default of the type and source."""
    live_migration: bool = False
    """A Freeze that moves the machines to other hosts."""
    to_host: str = ""
    """Where a move goes; `""`: the connector chooses."""
    host_boot_id: str = ""
    """Set for a Reboot that lasts as long as its host's own: the host's boot id before it."""
    no_notice: bool = False
    """It has happened already: an unforeseen failure."""
    without_notice: bool = False
    """True to go on even if machines whose scope is off get no notice."""
    indivisible: bool = False
    """True if the host's machines can only go down all at once, as when the host itself is patched:
    refused if that would take down two update domains of a scope."""
    idempotency_key: str = ""
    """The client's key for the request: sent again, it schedules nothing more. `""` for none."""


class Request(RequestOptions, frozen=True, kw_only=True):
    """An operator's request: for `machines`, `scope` or `host`, exactly one of them."""

    machines: tuple[str, ...] = ()
    """Names in any case; a name given twice counts once."""
    scope: str = ""
    host: str = ""
    """A host, as the fleet file spells it: all machines on it."""
    requested_by: str = ""


def digest(request: Request, *more: object) -> str:
    """Return a text that is equal for requests with equal content, regardless of the sender."""
    machines = tuple(sorted({model.key(name) for name in request.machines}))
    same = msgspec.structs.replace(
        request, machines=machines, scope=model.key(request.scope), requested_by=""
    )
    return hashlib.sha256(msgspec.json.encode((same, *more))).hexdigest()


class PlannedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """Machines that go down together: one operation, with an event in each scope."""

    machines: tuple[model.Machine, ...]
    """In the order of their names; of one update domain in each scope."""
    unit: int | None = None
    """The place of its unit in the maintenance; None where that has no units."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request."""

    maintenance: model.Maintenance
    operations: tuple[model.Operation, ...]
    """New ones, Scheduled or already Started."""
    superseded: tuple[model.Operation, ...] = ()
    """Pending operations that it cancelled."""


def targets(world: World, request: Request) -> list[model.Machine]:
    """Return the machines that a request names, ordered by name."""
    if sum(map(bool, (request.machines, request.scope, request.host))) != 1:
        message = "expected something to maintain: machines, scopes, hosts or tags"
        raise model.Refused(ErrorCode.INVALID, message)
    if request.scope:
        scope = world.scopes.get(model.key(request.scope))
        if scope is None:
            raise model.unknown("scope", request.scope)
        found = world.machines_of(scope.key)
        if not found:
            raise model.Refused(
                ErrorCode.INVALID, f"scope {scope.name} has no machines", scope=scope.name
            )
    elif request.host:
        found = world.machines_on(request.host)
        if not found:
            message = f"no machine is on host {request.host!r}: see 'forewarn fleet list'"
            raise model.Refused(ErrorCode.NOT_FOUND, message, what="host", name=request.host)
    else:
        missing = [name for name in request.machines if model.key(name) not in world.machines]
        if missing:
            raise model.unknown("machine", *sorted(set(missing)))
        wanted = {model.key(name) for name in request.machines}
        found = [world.machines[name] for name in wanted]
    if len(found) > MAX_TARGETS:
        message = f"{len(found)} machines in one request, at most {MAX_TARGETS}: split the request"
        raise model.Refused(ErrorCode.LIMIT, message, machines=len(found), most=MAX_TARGETS)
    return sorted(found, key=natural)


def plan(
    world: World, request: Request, *, number: int, now: datetime
) -> tuple[model.Maintenance, list[PlannedOperation]]:
    """Turn a request into a maintenance and the operations that are announced now.

    Each update domain of a scope is a unit, and so is a host. Of each scope the first one that no
    hold covers is announced now, the next when that has completed. Where all is announced now, the
    maintenance has no units. A failure without notice, a preemption and a deletion take all domains
    at once.
    """
    check(request)
    _check_window(request, now)
    machines = targets(world, request)
    for scope in by_scope(machines):
        check_eligible(request.event_type, world.scopes[scope])
    all_at_once = request.no_notice or request.event_type in ALL_DOMAINS_AT_ONCE
    parts = [machines] if request.host else [*by_scope(machines).values()]
    units: list[Unit] = []
    steps: list[PlannedOperation] = []
    for part in sorted(parts, key=lambda part: part[0].scope):
        every = [*turns(part)]
        holds, to_host = world.holds.values(), request.to_host
        first = next((turn for turn in every if not on_hold(turn, holds, to_host)), every[0])
        rest = [turn for turn in every if turn is not first]
        if rest and request.indivisible and not request.no_notice:
            raise _divided(request.host, rest[0][0], world)
        for turn in (first, *rest) if all_at_once else (first,):
            unit = len(units) + (0 if request.host else every.index(turn))
            steps.append(PlannedOperation(machines=turn, unit=unit))
        units += _units_of(request, every, world)
    if len(steps) == sum(1 for part in parts for _ in turns(part)):
        units, steps = [], [msgspec.structs.replace(step, unit=None) for step in steps]
    named = request.scope or request.host
    one = TargetKind.HOST if request.host else TargetKind.SCOPE
    kind = one if named else TargetKind.MACHINES
    maintenance = model.mapped(
        model.Maintenance,
        request,
        number=number,
        targets=(named,) if named else tuple(machine.name for machine in machines),
        requested_at=now,
        description=description(request),
        target=kind,
        units=tuple(units),
        policy=TurnPolicy(at_once="100%", notice_seconds=request.notice_seconds),
        state=MaintenanceState.RUNNING if units else MaintenanceState.ANNOUNCED,
        changed_at=now if units else None,
        request_digest=digest(request) if request.idempotency_key else "",
    )
    return maintenance, steps


def description(request: Request) -> str:
    """Return the text that guests read."""
    if request.description is not None:
        return request.description
    default = DESCRIPTIONS[request.event_type, request.source]
    return LIVE_MIGRATION if request.live_migration else default


def _units_of(
    request: Request, every: list[tuple[model.Machine, ...]], world: World
) -> Iterator[Unit]:
    """Yield the unit of a host, or those of the update domains of one scope."""
    if request.host:
        yield Unit(name=request.host, kind=UnitKind.HOST)
        return
    for turn in every:
        first = turn[0]
        unit = of_domain(world.scopes[first.scope].name, first.update_domain)
        if request.scope:
            yield unit
            continue
        name = first.name if len(turn) == 1 else unit.name
        keys = tuple(machine.key for machine in turn)
        yield Unit(name=name, kind=UnitKind.MACHINES, machines=keys)


def of_domain(scope: str, domain: int, *, wave: int = 0) -> Unit:
    """Return the unit of an update domain, by the name of its scope."""
    name = f"{scope}/{domain}"
    kind = UnitKind.UPDATE_DOMAIN
    return Unit(name=name, kind=kind, scope=model.key(scope), update_domain=domain, wave=wave)


def _divided(host: str, other: model.Machine, world: World) -> model.Refused:
    where = world.scopes[other.scope].name
    message = (
        f"host {host} holds several update domains of {where} ({other.name} is in another), which "
        "would go down together; move machines away, or leave it out"
    )
    facts = {"scope": where, "machine": other.name}
    return wrong("indivisible", message, ErrorCode.NOT_ELIGIBLE, **facts)


def turns(machines: Iterable[model.Machine]) -> Iterator[tuple[model.Machine, ...]]:
    """Yield the machines that go down together: in each turn the next update domain of each scope.

    A turn is ordered by name.
    """
    left: dict[str, dict[int, list[model.Machine]]] = {}
    for machine in machines:
        left.setdefault(machine.scope, {}).setdefault(machine.update_domain, []).append(machine)
    in_order = ([domains[number] for number in sorted(domains)] for domains in left.values())
    for turn in itertools.zip_longest(*in_order, fillvalue=()):
        yield tuple(sorted(itertools.chain.from_iterable(turn), key=natural))


def on_hold(machines: Collection[model.Machine], holds: Iterable[model.Hold], *hosts: str) -> str:
    """Describe the hold that would keep a unit with these machines from starting; `""` for none.

    Such a unit is not asked for: its guests would prepare, and it would take the place of another.
    `hosts` are the unit's own, where it is one, and the one that its machines move to.
    """
    scopes = {machine.scope for machine in machines}
    below = {*hosts, *(machine.host for machine in machines)}
    keys = {machine.key for machine in machines}
    for hold in holds:
        if hold.touches(scopes, below, keys):
            return standing.of_hold(hold, notice.spoken)
    return ""


def has_event(other: model.Operation, event: model.OperationEvent, name: str) -> model.Refused:
    """Return the refusal (CONFLICT) of another operation on a machine that has a live event."""
    message = (
        f"{name} already has a live event: {other.event_type} {event.id} of operation "
        f"{other.id} is {other.status}; "
        + ("cancel it first" if other.unstarted else "wait until it is over")
    )
    facts = {"machine": name, "event_id": event.id, "operation": other.id}
    return model.Refused(ErrorCode.CONFLICT, message, **facts)


def too_many(pending: int, more: int, limit: int) -> model.Refused:
    """Return the refusal (LIMIT) of more pending events than users may have."""
    message = (
        f"too many pending events of user-initiated maintenance: {pending} now, {more} more asked "
        f"for, at most {limit} allowed (user_initiated_limit); wait until some start"
    )
    return model.Refused(ErrorCode.LIMIT, message, pending=pending, limit=limit)


@contextmanager
def refusing(refusals: dict[int, model.Refused], place: int) -> Iterator[None]:
    """Record the refusal that the block raises, under a place."""
    try:
        yield
    except model.Refused as refusal:
        refusals[place] = refusal


def is_off(scope: str) -> model.Refused:
    """Return the refusal (NOT_ELIGIBLE) of maintenance without notice for a scope that is off."""
    message = (
        f"scope {scope} is off: none of its machines has asked for events lately, so they would "
        "stop without notice; allow that to do it anyway"
    )
    return model.Refused(ErrorCode.NOT_ELIGIBLE, message, where="without_notice", scope=scope)


def grouped(
    machines: Iterable[model.Machine], of: Callable[[model.Machine], K]
) -> dict[K, list[model.Machine]]:
    """Return machines by something that they share, in their order."""
    members: dict[K, list[model.Machine]] = {}
    for machine in machines:
        members.setdefault(of(machine), []).append(machine)
    return members


def by_scope(machines: Iterable[model.Machine]) -> dict[str, list[model.Machine]]:
    """Return machines by the key of their scope, in their order."""
    return grouped(machines, attrgetter("scope"))


def queue_order(operation: model.Operation) -> tuple[bool, datetime, int, int]:
    """Sort key of Queued operations: start of their turn, then maintenance and ordinal.

    Types that take every update domain at once come first: they wait for none, and the others for
    them.
    """
    waits = operation.event_type not in ALL_DOMAINS_AT_ONCE
    return waits, operation.announced_at, operation.maintenance, operation.ordinal


def start_order(operation: model.Operation) -> tuple[datetime, int, str]:
    """Sort key: NotBefore, then maintenance, then id."""
    return operation.not_before, operation.maintenance, operation.id


def natural(machine: model.Machine) -> list[Any]:
    """Sort key: the machine's name, with its numbers as numbers."""
    return numbered(machine.key)


def numbered(name: str) -> list[Any]:
    """Sort key: a name, with its numbers as numbers."""
    parts: list[Any] = _NUMBERS.split(name)  # text and numbers in turns, text first
    parts[1::2] = map(int, parts[1::2])
    return parts


_NUMBERS: Final = re.compile(r"(\d+)")


HAS_FAILED: Final = "a failure without notice has already happened: leave it out"


def wrong(
    where: str, message: str, code: ErrorCode = ErrorCode.INVALID, **facts: str | int
) -> model.Refused:
    """Return the refusal of a field, which each surface calls by its own name."""
    return model.Refused(code, f"at {where}: {message}", where=where, **facts)


def check(request: Request) -> None:
    """Refuse a request that contradicts itself (INVALID), whatever its target."""
    if request.duration_seconds < -1 or request.duration_seconds > MAX_DURATION_SECONDS:
        message = f"expected 1 to {MAX_DURATION_SECONDS} s, 0 for none or -1 for unknown"
        raise wrong("duration_seconds", message, duration_seconds=request.duration_seconds)
    text = request.description or ""
    if len(text) > MAX_DESCRIPTION or not text.isprintable():
        message = f"expected one line of at most {MAX_DESCRIPTION} printable characters"
        raise wrong("description", message, length=len(text))
    if request.live_migration and request.event_type is not EventType.FREEZE:
        raise wrong("live_migration", "only a Freeze can be one")
    moves = request.live_migration or request.event_type is EventType.REDEPLOY
    if request.to_host and not moves:
        raise wrong("to_host", "only a Redeploy or a live migration moves machines")
    if request.not_before is not None and request.notice_seconds:
        raise wrong("notice_seconds", "NotBefore is given already: leave one of the two out")
    for name in ("not_before", "opens_at", "closes_at"):
        moment: datetime | None = getattr(request, name)
        if moment is not None and moment.tzinfo is None:
            raise wrong(name, f"{moment.isoformat()} has no time zone: add one, such as Z")
    if request.indivisible and not request.host:
        raise wrong("indivisible", "it is for one host")
    if not request.no_notice:
        return
    if request.source is not EventSource.PLATFORM or request.event_type not in NO_NOTICE_TYPES:
        kinds = ", ".join(sorted(NO_NOTICE_TYPES))
        message = f"only {kinds} of the platform can happen without notice"
        raise wrong("no_notice", message, ErrorCode.NOT_ELIGIBLE)
    for name in ("not_before", "notice_seconds"):
        if getattr(request, name):
            raise wrong(name, HAS_FAILED)


def asked_start(request: Request, now: datetime) -> datetime | None:
    """Return the NotBefore that a request made now asks for; None for none.

    A notice that is longer than the least one is over when the window opens, at the earliest.
    """
    if request.notice_seconds:
        return max(now + timedelta(seconds=request.notice_seconds), request.opens_at or now)
    return request.not_before


def _check_window(request: Request, now: datetime) -> None:
    """Refuse a window that nothing can start in."""
    opens, closes, asked = request.opens_at, request.closes_at, asked_start(request, now)
    if opens is None and closes is None:
        return
    if request.no_notice:
        raise wrong("closes_at" if opens is None else "opens_at", HAS_FAILED)
    if closes is not None and closes <= max(now, opens or now, asked or now):
        message = f"expected a time after {notice.spoken(max(now, opens or now, asked or now))}"
        raise wrong("closes_at", message, closes=closes.isoformat())
    if opens is not None and asked is not None and asked < opens:
        message = f"it is after NotBefore, {notice.spoken(asked)}: leave that out"
        raise wrong("opens_at", message, opens=opens.isoformat())


def check_eligible(event_type: EventType, scope: model.Scope) -> None:
    """Refuse (NOT_ELIGIBLE) a deletion that the machines of a scope cannot have."""
    if event_type is EventType.PREEMPT and scope.priority is not Priority.LOW:
        message = f"{scope.name} has regular priority: only low-priority machines can be preempted"
        raise model.Refused(ErrorCode.NOT_ELIGIBLE, message, scope=scope.name)
    if event_type is EventType.TERMINATE and (
        scope.kind is not ScopeKind.SCALE_SET or scope.terminate_notice_minutes is None
    ):
        message = (
            f"{scope.name} is not a scale set with terminate_notice_minutes: "
            "without it, a deletion has no event"
        )
        raise model.Refused(ErrorCode.NOT_ELIGIBLE, message, scope=scope.name)
