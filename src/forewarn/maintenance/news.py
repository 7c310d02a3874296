"""News of changes for outsiders: items, each with a stable type and a few plain facts.

Items are drawn from the values before and after a decision, and written down in the transaction of
that change, so a reader misses nothing and reads nothing that was undone. Their form is public
(docs/reference/news.md): a type is never given another meaning.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from forewarn.maintenance import standing
from forewarn.maintenance.model import (
    Changes,
    Drain,
    Hold,
    HoldKind,
    HostState,
    Maintenance,
    Operation,
    Refused,
    key,
    mapped,
)
from forewarn.maintenance.units import MaintenanceState
from forewarn.maintenance.world import NOTHING, LiveState
from forewarn.vocabulary import (
    ApproverKind,
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
    TargetKind,
)

MAX_NAMES: Final = 20
"""Names of machines, scopes or events in one item: `machine_count` says how many there are."""

MAX_ITEMS: Final = 5000
"""Items of one transaction, some 2 MB: a release can move the notices of a whole fleet."""


class NewsType(StrEnum):
    """The types of news; docs/reference/news.md has a heading for each."""

    MAINTENANCE_SCHEDULED = "maintenance.scheduled"
    MAINTENANCE_PROGRESSED = "maintenance.progressed"
    MAINTENANCE_WAVE = "maintenance.wave"
    MAINTENANCE_PAUSED = "maintenance.paused"
    MAINTENANCE_HALTED = "maintenance.halted"
    MAINTENANCE_RESUMED = "maintenance.resumed"
    MAINTENANCE_STOPPED = "maintenance.stopped"
    MAINTENANCE_FINISHED = "maintenance.finished"
    OPERATION_QUEUED = "operation.queued"
    OPERATION_SCHEDULED = "operation.scheduled"
    OPERATION_APPROVED = "operation.approved"
    OPERATION_POSTPONED = "operation.postponed"
    OPERATION_STARTED = "operation.started"
    OPERATION_RETURNING = "operation.returning"
    OPERATION_COMPLETED = "operation.completed"
    OPERATION_FAILED = "operation.failed"
    OPERATION_CANCELED = "operation.canceled"
    OPERATION_OUTCOME_UNKNOWN = "operation.outcome_unknown"
    OPERATION_ACKNOWLEDGED = "operation.acknowledged"
    HOLD_PUT = "hold.put"
    HOLD_RELEASED = "hold.released"
    HOLD_EXPIRED = "hold.expired"
    HOST_UP = "host.up"
    HOST_DRAINING = "host.draining"
    HOST_EMPTY = "host.empty"
    HOST_REBOOTING = "host.rebooting"
    HOST_BACK = "host.back"
    HOST_RETURNING = "host.returning"
    HOST_STUCK = "host.stuck"
    FLEET_CHANGED = "fleet.changed"
    CHANGES_LOST = "store.changes_lost"
    OMITTED = "news.omitted"


class NewsData(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The facts of an item; fields that do not belong to its type, or are unknown, are left out."""

    maintenance: int = 0
    operation: str = ""
    host: str = ""
    status: str = ""
    """The status of the operation, or the state of the maintenance or host, after the change."""
    status_detail: str = ""
    """The words beside it (`standing`)."""
    event_type: EventType | None = None
    source: EventSource | None = None
    target: TargetKind | None = None
    description: str = ""
    duration_seconds: int | None = None
    not_before: datetime | None = None
    scopes: tuple[str, ...] = ()
    """Keys; at most MAX_NAMES."""
    targets: tuple[str, ...] = ()
    """The targets of the maintenance; at most MAX_NAMES."""
    machines: tuple[str, ...] = ()
    machine_count: int = 0
    event_ids: tuple[str, ...] = ()
    """The ids by which guests know the operation's events; at most MAX_NAMES."""
    by: str = ""
    approver: ApproverKind | None = None
    """The kind of approver that `by` is, where it approved."""
    reason: str = ""
    until: datetime | None = None
    """The time at which a hold ends by itself."""
    wave: int = 0
    """From 1."""
    waves: int = 0
    units: dict[str, int] = {}
    """The number of units of a maintenance in each state that occurs."""
    operations: dict[str, int] = {}
    """The number of operations of a maintenance that have ended with each status."""
    count: int = 0
    """The number of items that were left out, machines that left the fleet, or changes that were
    lost."""


class NewsItem(msgspec.Struct, frozen=True, gc=False):
    """One item: something that happened."""

    type: NewsType
    at: datetime
    subject: str
    """The subject: `operation 12.1`, `maintenance 12`, `host h1`, ..."""
    data: NewsData


class NumberedNews(msgspec.Struct, frozen=True, gc=False):
    """An item as outsiders read it."""

    id: str
    """`SEQUENCE-INDEX`: its transaction's number in the outbox, and its place there."""
    index: int
    type: str
    json: bytes
    """A JSON object: `NewsItem`'s, and its `id`."""


class _Typed(msgspec.Struct):
    type: str


_STATUS: Final = {status: NewsType(f"operation.{status.lower()}") for status in EventStatus}
_HOST: Final = {state: NewsType(f"host.{state}") for state in HostState}
_MAINTENANCE: Final = {
    MaintenanceState.RUNNING: NewsType.MAINTENANCE_RESUMED,
    MaintenanceState.PAUSED: NewsType.MAINTENANCE_PAUSED,
    MaintenanceState.HALTED: NewsType.MAINTENANCE_HALTED,
    MaintenanceState.STOPPED: NewsType.MAINTENANCE_STOPPED,
}

_AT_ONCE: Final = frozenset((MaintenanceState.HALTED, MaintenanceState.STOPPED))
"""The states that the first decision about a maintenance may already lead to."""

_ENDED: Final = frozenset(_STATUS[status] for status in EventStatus if status.over)

_encode = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(list[NewsItem]).decode
"""Return the items of one transaction, in their order."""
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_type_of = msgspec.json.Decoder(_Typed).decode


def encode(items: Sequence[NewsItem]) -> bytes:
    """Return the items of one transaction as they are stored; nothing for none.

    Of more than MAX_ITEMS, the last one says how many are left out.
    """
    if len(items) > MAX_ITEMS:
        left = len(items) - MAX_ITEMS + 1
        data = NewsData(count=left)
        omitted = NewsItem(type=NewsType.OMITTED, at=items[-1].at, subject="news", data=data)
        items = [*items[: MAX_ITEMS - 1], omitted]
    return _encode(items) if items else b""


def numbered(sequence: int, stored: bytes) -> tuple[NumberedNews, ...]:
    """Return the items of one transaction, each with its number, without looking into them."""
    found = []
    for index, raw in enumerate(_split(stored)):
        id_ = f"{sequence}-{index}"
        json = b'{"id":"%b",%b' % (id_.encode(), bytes(raw)[1:])
        found.append(NumberedNews(id_, index, _type_of(raw).type, json))
    return tuple(found)


def chosen(types: Collection[str]) -> frozenset[str]:
    """Return the types that a reader asks for; `operation` and `operation.` stand for all of those.

    Empty for all. Refused (INVALID) where there is no such type.
    """
    found: set[str] = set()
    for named in (one for each in types for one in each.split(",") if one):
        fitting = {t for t in NewsType if t == named or t.startswith(f"{named.rstrip('.*')}.")}
        if not fitting:
            message = (
                f"no type of news {named!r}: expected one such as operation.started, or operation"
            )
            raise Refused(ErrorCode.INVALID, message, type=named)
        found |= fitting
    return frozenset(found)


def of_operations(
    known: Mapping[str, Operation | None],
    operations: Iterable[Operation],
    now: datetime,
    live: Mapping[str, Operation] = NOTHING,
    holds: Iterable[Hold] = (),
) -> list[NewsItem]:
    """Return the news of a decision about operations.

    This runs for each approval of a guest, so it looks at no more than it must. `known` has the
    earlier value of an operation; None, or no entry, for a new one. `live` and `holds` are those
    after the decision.
    """
    found: list[NewsItem] = []
    for after in operations:
        before = known.get(after.id)
        kinds = (_STATUS[after.status],) if before is None else _kinds(before, after)
        if kinds:
            detail = standing.of_operation(after, live, holds, now)
            subject, data = f"operation {after.id}", _operation(after, detail)
            found += [NewsItem(kind, now, subject, data) for kind in kinds]
    return found


def of_others(
    before: LiveState, changes: Changes, new: Collection[int], now: datetime
) -> list[NewsItem]:
    """Return the news of a decision about anything but operations.

    `before` has the earlier values of its changes, and `new` the numbers of new maintenances.
    """
    found: list[NewsItem] = []
    for maintenance in changes.maintenances:
        known = before.maintenances.get(maintenance.number)
        _of_maintenance(found, known, maintenance, new, now)
    for hold in changes.released:
        kind = NewsType.HOLD_EXPIRED if hold.expired(now) else NewsType.HOLD_RELEASED
        found.append(_hold(kind, hold, now))
    found += [_hold(NewsType.HOLD_PUT, hold, now) for hold in changes.holds]
    for drain in changes.drains:
        _of_drain(found, before.drains.get(drain.host), drain, now)
    if changes.machines or changes.removed_machines:
        _of_fleet(found, changes, now)
    return found


def finished(
    numbers: Iterable[int], outcomes: Mapping[int, Mapping[EventStatus, int]], now: datetime
) -> list[NewsItem]:
    """Return the news of the maintenances, of these, whose operations are all over.

    `outcomes` has how many operations of each maintenance have each status; one whose hosts were
    drained may have none.
    """
    counted = [(number, outcomes.get(number, {})) for number in sorted(numbers)]
    return [
        NewsItem(
            type=NewsType.MAINTENANCE_FINISHED,
            at=now,
            subject=f"maintenance {number}",
            data=NewsData(maintenance=number, operations={str(s): n for s, n in counts.items()}),
        )
        for number, counts in counted
        if all(status.over for status in counts)
    ]


def ended(items: Iterable[NewsItem]) -> set[int]:
    """Return the numbers of the maintenances with an operation that is over by this news."""
    return {item.data.maintenance for item in items if item.type in _ENDED}


def closed(
    before: Mapping[int, Maintenance],
    maintenances: Iterable[Maintenance],
    new: Container[int] = frozenset(),
) -> set[int]:
    """Return the numbers of maintenances that were open before, or are new, and have ended.

    A new one has ended at once where none of its units has a turn: no operation tells of its end.
    """
    return {
        one.number
        for one in maintenances
        if not one.open and (one.number in before or (one.units and one.number in new))
    }


def lost(changes: int, replica: str, now: datetime) -> NewsItem:
    """Return the news that the database has lost its last changes."""
    data = NewsData(count=changes, by=replica)
    return NewsItem(type=NewsType.CHANGES_LOST, at=now, subject="store", data=data)


def _kinds(before: Operation, after: Operation) -> Sequence[NewsType]:
    status, events = after.status, after.events
    moved = status is not before.status
    kinds: list[NewsType] = []
    if events is not before.events and after.approved and not before.approved:
        kinds.append(NewsType.OPERATION_APPROVED)
    if moved:
        kinds.append(_STATUS[status])
    elif after.not_before > before.not_before and after.pending:
        kinds.append(NewsType.OPERATION_POSTPONED)
    if after.outcome_unknown and not before.outcome_unknown:
        kinds.append(NewsType.OPERATION_OUTCOME_UNKNOWN)
    if after.acknowledged_by and not before.acknowledged_by:
        kinds.append(NewsType.OPERATION_ACKNOWLEDGED)
    return kinds


def _operation(operation: Operation, detail: str) -> NewsData:
    events, machines = operation.events, operation.machines
    given = [event.approval for event in events if event.approval is not None]
    by, approver = operation.acknowledged_by, None
    if not by and given:
        approval = max(given, key=lambda one: one.at)
        by, approver = approval.by, approval.kind
    return NewsData(
        maintenance=operation.maintenance,
        operation=operation.id,
        status=operation.status,
        status_detail=detail,
        event_type=operation.event_type,
        source=operation.source,
        target=operation.target,
        description=operation.description,
        duration_seconds=operation.duration_seconds,
        not_before=None if operation.status is EventStatus.QUEUED else operation.not_before,
        scopes=tuple([event.scope for event in events[:MAX_NAMES]]),
        machines=machines[:MAX_NAMES],
        machine_count=len(machines),
        event_ids=tuple([event.id for event in events[:MAX_NAMES]]),
        by=by,
        approver=approver,
        reason=operation.outcome_unknown or operation.outcome,
    )


def _of_maintenance(
    found: list[NewsItem],
    before: Maintenance | None,
    after: Maintenance,
    new: Collection[int],
    now: datetime,
) -> None:
    kinds: list[NewsType] = []
    counts = _units(after)
    if before is None and after.number in new:
        kinds.append(NewsType.MAINTENANCE_SCHEDULED)
        if after.state in _AT_ONCE:
            kinds.append(_MAINTENANCE[after.state])
    elif before is None:
        return
    else:
        if counts != _units(before):
            kinds.append(NewsType.MAINTENANCE_PROGRESSED)
        if after.wave != before.wave:
            kinds.append(NewsType.MAINTENANCE_WAVE)
        if after.state is not before.state and after.state in _MAINTENANCE:
            kinds.append(_MAINTENANCE[after.state])
    if not kinds:
        return
    of_kind = dict.fromkeys(TargetKind, ()) | {after.target: after.targets}
    data = mapped(
        NewsData,
        after,
        maintenance=after.number,
        status=after.state,
        status_detail=standing.of_maintenance(after, now),
        targets=after.targets[:MAX_NAMES],
        machines=of_kind[TargetKind.MACHINES][:MAX_NAMES],
        machine_count=len(of_kind[TargetKind.MACHINES]),
        scopes=tuple(map(key, of_kind[TargetKind.SCOPE]))[:MAX_NAMES],
        host="".join(of_kind[TargetKind.HOST]) if len(after.targets) == 1 else "",
        wave=after.wave + 1 if after.units else 0,
        waves=max((unit.wave for unit in after.units), default=-1) + 1,
        units=counts,
        by=after.changed_by or after.requested_by,
    )
    subject = f"maintenance {after.number}"
    found += [NewsItem(type=kind, at=now, subject=subject, data=data) for kind in kinds]


def _units(maintenance: Maintenance) -> dict[str, int]:
    states = Counter(unit.state for unit in maintenance.units)
    return {str(state): count for state, count in states.items()}


def _hold(kind: NewsType, hold: Hold, now: datetime) -> NewsItem:
    data = NewsData(
        host=hold.name if hold.kind is HoldKind.HOST else "",
        scopes=(hold.name,) if hold.kind is HoldKind.SCOPE else (),
        machines=(hold.name,) if hold.kind is HoldKind.MACHINE else (),
        machine_count=1 if hold.kind is HoldKind.MACHINE else 0,
        by=hold.by,
        reason=hold.reason,
        until=hold.until,
    )
    return NewsItem(type=kind, at=now, subject=str(hold), data=data)


def _of_drain(found: list[NewsItem], before: Drain | None, after: Drain, now: datetime) -> None:
    if before is not None and before.state is after.state:
        return
    names = [guest.name for guest in after.guests]
    data = NewsData(
        host=after.host,
        status=after.state,
        status_detail=standing.of_host(after, now),
        machines=tuple(names[:MAX_NAMES]),
        machine_count=len(names),
        by=after.requested_by,
        reason=after.reason,
    )
    kind = _HOST[after.state]
    found.append(NewsItem(type=kind, at=now, subject=f"host {after.host}", data=data))


def _of_fleet(found: list[NewsItem], changes: Changes, now: datetime) -> None:
    names = [machine.name for machine in changes.machines] or list(changes.removed_machines)
    data = NewsData(
        machines=tuple(names[:MAX_NAMES]),
        machine_count=len(changes.machines),
        count=len(changes.removed_machines),
    )
    found.append(NewsItem(type=NewsType.FLEET_CHANGED, at=now, subject="fleet", data=data))
