"""What goes over the operators' API, as values: JSON in and out by these shapes alone.

Times are ISO 8601 with their zone, answered in UTC (`2026-03-01T12:00:00Z`) and in the service's
own time, which `GET /v1/clock` tells. Fields that do not apply are null where they are a time, a
number or an object, and `""` where they are text. Unknown keys of a request are refused. A
client should pass over keys of an answer that it does not know: later releases add some.

Every refusal and failure is a `Failure`, with the status that `STATUS` gives its code.
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final

import msgspec

from forewarn.maintenance.model import AuditAction, RollingState, StartCause
from forewarn.vocabulary import (
    ApproverKind,
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
    Priority,
    ScopeKind,
)

MAX_NAMES: Final = 100
"""The most names that a `Names` spells out: an answer stays readable, its count is whole."""

MAX_NUMBER: Final = 2**53
"""The highest number of a maintenance that is looked for: beyond it JavaScript's are not exact, and
a little further no store has a column for it."""

MAX_LIMIT: Final = 1000
"""The most entries of one page; whoever has more to read pages on by `next`."""

DEFAULT_LIMIT: Final = 100
"""The entries of a page where nobody asks for another number."""

STATUS: Final[Mapping[ErrorCode, int]] = MappingProxyType(
    {
        ErrorCode.INVALID: 400,
        ErrorCode.UNAUTHORIZED: 401,
        ErrorCode.NOT_FOUND: 404,
        ErrorCode.CONFLICT: 409,
        ErrorCode.TOO_LATE: 409,
        ErrorCode.STALE: 409,
        ErrorCode.LIMIT: 422,
        ErrorCode.NOTICE_TOO_SHORT: 422,
        ErrorCode.NOT_ELIGIBLE: 422,
        ErrorCode.UNAVAILABLE: 503,
        ErrorCode.INTERNAL: 500,
    }
)
"""The status of each code's answer. The transport's own refusals are `invalid` with a status of
their own: 405 a method, 413 a body (`limit`), 415 a content type, 421 a host, 403 an origin."""

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time that names its zone."""

ShortText = Annotated[str, msgspec.Meta(max_length=256)]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer is made of."""


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request is made of: an unknown key is a mistake and is refused."""


# What went wrong.


class Error(Value, frozen=True, kw_only=True):
    """What went wrong."""

    code: ErrorCode
    message: str
    """What is wrong, what was expected, and what to do, for people."""
    facts: dict[str, str | int] = {}
    """What the message speaks of, by name, for programs."""


class Failure(Value, frozen=True, kw_only=True):
    """The body of every answer that is no success."""

    error: Error


# The fleet.


class Removal(Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Machines to take out of the fleet, all or none, with scopes that they leave empty."""

    names: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=10_000)]
    by: ShortText = ""
    """Who removes them, kept in the log."""


class Names(Value, frozen=True, kw_only=True):
    """Names and how many there are in all."""

    count: int
    names: tuple[str, ...] = ()
    """The first MAX_NAMES of them."""


class FleetChange(Value, frozen=True, kw_only=True):
    """What applying a fleet, or removing machines, changed or would change."""

    dry_run: bool
    added: Names
    changed: Names
    removed: Names
    missing: Names
    """Machines of the fleet that the file does not name; only `prune` removes them."""
    lost: Names
    """Machines of the file that were preempted or terminated, and so were left out; `again` adds
    them."""
    unchanged: int
    warnings: tuple[str, ...] = ()
    """What may not be meant, for people: a listener that the service does not have, a hold that
    outlives what is removed."""


class Lost(Value, frozen=True, kw_only=True):
    """A machine that was preempted or terminated: gone from the fleet, and remembered."""

    name: str
    event_type: EventType
    operation: str
    at: datetime


class LostPage(Value, frozen=True, kw_only=True):
    """Lost machines in the order of their names in lower case."""

    lost: tuple[Lost, ...]
    next: str = ""
    """The `cursor` of the next page; `""` after the last."""


class Seen(Value, frozen=True, kw_only=True):
    """When a machine last asked for its events, and by which api-version."""

    at: datetime
    version: str


class Machine(Value, frozen=True, kw_only=True):
    """A machine of the fleet."""

    name: str
    scope: str
    kind: ScopeKind
    """Of its scope."""
    update_domain: int
    fault_domain: int
    host: str
    address: str
    listener: str
    """The name of the listener that it asks at; `""` for those without a name."""
    last_seen: Seen | None
    """Null for a machine that has not asked since the service started."""
    events: tuple[str, ...]
    """The ids of its live events."""


class MachinePage(Value, frozen=True, kw_only=True):
    """Machines in the order of their names in lower case."""

    machines: tuple[Machine, ...]
    next: str = ""
    """The `cursor` of the next page; `""` after the last."""


class MachineDetail(Machine, frozen=True, kw_only=True):
    """A machine with all that is known of it."""

    vm_id: str
    role: str
    tags: dict[str, str]
    profile: dict[str, str]
    """What its instance metadata says beside its place, in the fleet file's spelling."""


class Scope(Value, frozen=True, kw_only=True):
    """Machines that share one document."""

    name: str
    kind: ScopeKind
    update_domains: int
    incarnation: int
    """Of its document."""
    priority: Priority
    automatically_approve: tuple[EventType, ...]
    terminate_notice_minutes: int | None
    machines: int
    """How many."""
    events: tuple[str, ...]
    """The ids of its live events."""


class ScopePage(Value, frozen=True, kw_only=True):
    """Scopes in the order of their names in lower case."""

    scopes: tuple[Scope, ...]
    next: str = ""
    """The `cursor` of the next page; `""` after the last."""


class UpdateDomain(Value, frozen=True, kw_only=True):
    """The machines of a scope that may be down together."""

    number: int
    machines: Names


class ScopeDetail(Scope, frozen=True, kw_only=True):
    """A scope with its machines, domain by domain."""

    domains: tuple[UpdateDomain, ...]
    """Each of them, also one without machines."""


# Maintenance.


class MaintenanceRequest(Asked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator asks for: one of `machines`, `scope` and `host`."""

    event_type: EventType
    machines: Annotated[tuple[str, ...], msgspec.Meta(max_length=10_000)] = ()
    scope: str = ""
    """All machines of this scope."""
    host: ShortText = ""
    """All machines on this host, as the fleet spells it."""
    source: EventSource = EventSource.PLATFORM
    not_before: Moment | None = None
    """Null for as soon as the least notice allows."""
    duration_seconds: int = -1
    """The expected interruption; 0 none, -1 unknown."""
    description: str | None = None
    """Null for the text that the type and source have by custom."""
    live_migration: bool = False
    """A Freeze that moves the machine: only chooses the description."""
    no_notice: bool = False
    """It has happened already: an unforeseen failure."""
    indivisible: bool = False
    """A host's machines can only go down all at once; refused where two domains would."""
    without_notice: bool = False
    """Whether machines whose scope is off may be stopped without any notice."""
    by: ShortText = ""
    """Who asks, kept in history."""


class Approval(Value, frozen=True, kw_only=True):
    """The word that let an event start."""

    kind: ApproverKind
    by: str
    """The machine's name, the operator's, or the scope's for an automatic one."""
    address: str
    """Where the word came from; `""` where there is no address."""
    at: datetime


class Event(Value, frozen=True, kw_only=True):
    """What an operation shows in one scope."""

    id: str
    scope: str
    update_domain: int
    machines: tuple[str, ...]
    approval: Approval | None
    silent: bool
    """Its scope was off when it was announced: no guest sees it, and it needs no approval."""


class Intervention(Value, frozen=True, kw_only=True):
    """An operator's word that changed the course of an operation or a maintenance."""

    action: AuditAction
    by: str
    at: datetime
    detail: str
    """What was held or released and why, until when it was postponed, or why it had stopped."""


class Operation(Value, frozen=True, kw_only=True):
    """What is carried out as one; all of it starts at one instant."""

    id: str
    """`<maintenance>.<n>`, such as `12.1`."""
    maintenance: int
    event_type: EventType
    source: EventSource
    description: str
    duration_seconds: int
    """The expected interruption; 0 none, -1 unknown."""
    status: EventStatus
    announced_at: datetime
    not_before: datetime
    notice_left_seconds: int | None
    """Until NotBefore, rounded up, 0 once it has come; what it would have if it were released now
    while it is held; null unless Scheduled."""
    start_cause: StartCause | None
    started_at: datetime | None
    ended_at: datetime | None
    took_seconds: float | None
    """From start to end; null until it has ended, and for what never started."""
    waits_for: str
    """The operation that must end before this one may start; `""` for none."""
    held_at: datetime | None
    """Since when a hold keeps it from starting; null while none does."""
    hosts: tuple[str, ...]
    """The hosts that its machines were on when it was announced, as far as they are known."""
    rolling_update: int | None
    """Which of its maintenance's walks it is a step of, from 0; null for none."""
    outcome_unknown: str
    """Why nobody knows whether it was carried out; `""` where there is no doubt."""
    outcome: str
    """What the connector said at its end, or why it was cancelled."""
    acknowledged_by: str
    """The operator who took note of its failure; `""` while nobody has."""
    attempt: int
    """How many times an executor has taken it on."""
    interventions: tuple[Intervention, ...]
    """What operators did with it, the first first."""
    events: tuple[Event, ...]


class OperationList(Value, frozen=True, kw_only=True):
    """Operations that a request was about, as they are after it."""

    operations: tuple[Operation, ...]


class Walk(Value, frozen=True, kw_only=True):
    """A scope, or a host, taken one update domain after another."""

    scope: str
    """The scope that is walked; `""` where a host is."""
    host: str
    state: RollingState
    reason: str
    """Why it stopped, or ended before its end; `""` otherwise."""
    done: Names
    """The machines that had their turn, or have it."""
    more: bool
    """Whether a further step would be announced if the step before had ended well by now."""


class FurtherPlace(Value, frozen=True, kw_only=True):
    """Machines of one scope and update domain that have their turn together."""

    scope: str
    update_domain: int
    machines: Names


class FurtherStep(Value, frozen=True, kw_only=True):
    """A step of a walk that is not announced yet, as it would be in the fleet of now."""

    rolling_update: int
    """Which of the maintenance's walks, from 0."""
    places: tuple[FurtherPlace, ...]


class Maintenance(Value, frozen=True, kw_only=True):
    """What an operator asked for."""

    number: int
    """0 in a dry run."""
    event_type: EventType
    source: EventSource
    targets: tuple[str, ...]
    """Machines, or the one scope or host, as they were asked for."""
    requested_by: str
    requested_at: datetime
    description: str
    duration_seconds: int
    without_notice: bool
    announced: int
    """How many operations it has had so far."""
    rolling_updates: tuple[Walk, ...]
    """What is taken one update domain after another; empty where one step was all."""
    interventions: tuple[Intervention, ...]
    """What operators did with its walks, the first first."""


class Plan(Value, frozen=True, kw_only=True):
    """What a request for maintenance became, or would become."""

    dry_run: bool
    maintenance: Maintenance
    operations: tuple[Operation, ...]
    """What is announced at once: of a walk, the first step."""
    further: tuple[FurtherStep, ...]
    """What its walks will announce after that, the first next."""
    superseded: tuple[Operation, ...]
    """Pending operations that it cancelled."""


class MaintenanceDetail(Value, frozen=True, kw_only=True):
    """A maintenance and its operations."""

    maintenance: Maintenance
    operations: tuple[Operation, ...]
    further: tuple[FurtherStep, ...]
    """What its walks have still to announce, the first next."""


class MaintenancePage(Value, frozen=True, kw_only=True):
    """Maintenances, the newest first."""

    maintenances: tuple[Maintenance, ...]
    next: str = ""
    """The `cursor` of the next page; `""` after the last."""


class ShownTo(Value, frozen=True, kw_only=True):
    """Which of an event's machines can read of it (protocol.md section 2)."""

    machines: int
    """All that it affects."""
    seen: int
    """Those that have asked for events since the service started."""
    showing: int
    """Those whose last request was by a version that shows events of this type."""


class LiveEvent(Value, frozen=True, kw_only=True):
    """An event that guests see, or would see by a version that shows it."""

    id: str
    operation: str
    maintenance: int
    event_type: EventType
    source: EventSource
    status: EventStatus
    scope: str
    update_domain: int
    machines: tuple[str, ...]
    description: str
    duration_seconds: int
    announced_at: datetime
    not_before: datetime
    notice_left_seconds: int | None
    """Until NotBefore, rounded up, 0 once it has come; null once Started."""
    started_at: datetime | None
    approval: Approval | None
    waits_for: str
    """The operation that must end before this one may start; `""` for none."""
    held_at: datetime | None
    """Since when a hold keeps it from starting; null while none does."""
    hosts: tuple[str, ...]
    outcome_unknown: str
    """Why nobody knows whether it was carried out; `""` where there is no doubt."""
    silent: bool
    """Its scope was off when it was announced: no guest sees it, and it needs no approval."""
    shown_to: ShownTo


class EventList(Value, frozen=True, kw_only=True):
    """What is live, by NotBefore."""

    now: datetime
    """The service's time, by which the notice left was counted."""
    events: tuple[LiveEvent, ...]


class HistoryPage(Value, frozen=True, kw_only=True):
    """Operations, the newest announcement first."""

    operations: tuple[Operation, ...]
    next: str = ""
    """The `cursor` of the next page; `""` after the last."""
