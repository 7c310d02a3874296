"""Values to store: plain ones to vary by hand, and every one that the model allows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st

from forewarn.maintenance.accounts import DONE, AuditRecord, Token
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Drain,
    DrainGuest,
    DrainOptions,
    Hold,
    HoldKind,
    HostState,
    Machine,
    Maintenance,
    Operation,
    OperationEvent,
    Profile,
    Queueing,
    Scope,
    StartCause,
    Stay,
    Tombstone,
    Way,
)
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.units import (
    CheckProgress,
    MaintenanceState,
    TurnOrder,
    TurnPolicy,
    Unit,
    UnitKind,
    UnitState,
)
from forewarn.maintenance.webhooks import Webhook
from forewarn.vocabulary import (
    AccessRole,
    ApproverKind,
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
    Priority,
    ScopeKind,
    TargetKind,
    TokenAudience,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

WEB = Scope(name="Web", kind=ScopeKind.AVAILABILITY_SET, update_domains=3)
BATCH = Scope(name="batch", kind=ScopeKind.SCALE_SET, update_domains=5)


def machine(name: str, scope: str = "web", **fields: Any) -> Machine:
    known = {"update_domain": 0, "fault_domain": 0, "vm_id": f"id-of-{name}"}
    return Machine(name=name, scope=scope, **(known | fields))


def maintenance(
    number: int, state: MaintenanceState = MaintenanceState.ANNOUNCED, *units: UnitState
) -> Maintenance:
    """A maintenance with an update domain in each of these states."""
    return Maintenance(
        state=state,
        units=tuple(
            Unit(
                name=f"web/{domain}",
                kind=UnitKind.UPDATE_DOMAIN,
                scope="web",
                update_domain=domain,
                state=state,
            )
            for domain, state in enumerate(units)
        ),
        number=number,
        event_type=EventType.REBOOT,
        source=EventSource.USER,
        targets=("Web-0",),
        requested_by="ops",
        requested_at=NOW,
        description="",
        duration_seconds=-1,
        target=TargetKind.MACHINES,
        live_migration=False,
    )


def event(id_: str, scope: str = "web", *machines: str, **fields: Any) -> OperationEvent:
    known: dict[str, Any] = {"update_domain": 0, "published": 1}
    return OperationEvent(id=id_, scope=scope, machines=machines, **(known | fields))


def operation(id_: str, *events: OperationEvent, **fields: Any) -> Operation:
    known: dict[str, Any] = {
        "event_type": EventType.REBOOT,
        "source": EventSource.USER,
        "description": "",
        "duration_seconds": -1,
        "target": TargetKind.MACHINES,
        "live_migration": False,
        "status": EventStatus.SCHEDULED,
        "announced_at": NOW,
        "not_before": NOW + 15 * MINUTE,
    }
    shown = events or (event(f"EVENT-{id_}", "web", "Web-0"),)
    number = int(id_.partition(".")[0])
    return Operation(id=id_, maintenance=number, events=shown, **(known | fields))


def hold(kind: HoldKind, name: str = "", **fields: Any) -> Hold:
    known = {"reason": "wait", "by": "ops", "at": NOW}
    return Hold(kind=kind, name=name, **(known | fields))


def tombstone(name: str, **fields: Any) -> Tombstone:
    known = {"event_type": EventType.PREEMPT, "operation": "1.1", "at": NOW, "scope": "web"}
    return Tombstone(name=name, **(known | fields))


def drain(host: str, **fields: Any) -> Drain:
    known = {"state": HostState.DRAINING, "requested_at": NOW, "changed_at": NOW}
    return Drain(host=host, **(known | fields))


GOING = (MaintenanceState.RUNNING, UnitState.DONE, UnitState.WAITING)
HALTED = (MaintenanceState.HALTED, UnitState.FAILED)
ENDING = (MaintenanceState.STOPPED, UnitState.RUNNING)
OVER = (MaintenanceState.DONE, UnitState.DONE)
"""States of a maintenance and its units: the first three are open."""


def with_maintenances(*operations: Operation) -> Changes:
    """These operations and what they belong to, as a decision would hand them over."""
    numbers = sorted({o.maintenance for o in operations})
    return Changes(maintenances=tuple(map(maintenance, numbers)), operations=operations)


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.integers(1, 2**63 - 2)
MOMENTS = st.datetimes(timezones=st.just(UTC))
LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
SOME = st.text(LETTERS, max_size=8)
NAMES = st.text(LETTERS, min_size=1, max_size=8)


Some = st.SearchStrategy[Any]


def every(
    kind: type[msgspec.Struct], /, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    """Every value of a struct; its fields without a strategy are any text."""
    unnamed = {name: SOME for name in kind.__struct_fields__ if name not in fields}
    return st.builds(kind, **unnamed, **fields)


PROFILES = every(Profile)
MACHINES = every(
    Machine,
    name=NAMES,
    update_domain=INT32,
    fault_domain=INT32,
    tags=st.lists(st.tuples(SOME, SOME), max_size=3).map(tuple),
    profile=PROFILES,
)
SCOPES = every(
    Scope,
    name=NAMES,
    kind=st.sampled_from(ScopeKind),
    update_domains=INT32,
    incarnation=INT64,
    priority=st.sampled_from((None, *Priority)),
    automatically_approve=st.lists(st.sampled_from(EventType), max_size=2).map(tuple),
    terminate_notice_minutes=st.none() | INT32,
    queue=st.none() | st.sampled_from(Queueing),
    settle_seconds=st.none() | INT32,
    asked_at=st.none() | MOMENTS,
)
APPROVALS = every(Approval, kind=st.sampled_from(ApproverKind), at=MOMENTS)
EVENTS = every(
    OperationEvent,
    id=NAMES,
    update_domain=INT32,
    machines=st.lists(SOME, max_size=4).map(tuple),
    published=INT64,
    approval=st.none() | APPROVALS,
    silent=st.booleans(),
)
OPERATIONS = every(
    Operation,
    id=NAMES,
    maintenance=NUMBERS,
    event_type=st.sampled_from(EventType),
    source=st.sampled_from(EventSource),
    duration_seconds=INT64,
    status=st.sampled_from(EventStatus),
    announced_at=MOMENTS,
    not_before=MOMENTS,
    opens_at=st.none() | MOMENTS,
    closes_at=st.none() | MOMENTS,
    events=st.lists(EVENTS, max_size=3, unique_by=lambda e: e.id).map(tuple),
    arrived=st.lists(SOME, max_size=3).map(tuple),
    dropped=st.lists(
        EVENTS.map(lambda e: msgspec.structs.replace(e, id=f"{e.id}-dropped")),
        max_size=2,
        unique_by=lambda e: e.id,
    ).map(tuple),
    start_cause=st.none() | st.sampled_from(StartCause),
    started_at=st.none() | MOMENTS,
    ended_at=st.none() | MOMENTS,
    attempt=INT64,
    lease_until=st.none() | MOMENTS,
    claimed_by=st.lists(SOME, max_size=3).map(tuple),
    hosts=st.lists(SOME, max_size=3).map(tuple),
    unit=st.none() | INT32,
    held_at=st.none() | MOMENTS,
    notice_left_seconds=INT64,
    repeat_after=INT64,
    carried_out_at=st.none() | MOMENTS,
    target=st.sampled_from(TargetKind),
    live_migration=st.booleans(),
    awaited=st.lists(SOME, max_size=3).map(tuple),
    reporting=st.lists(SOME, max_size=3).map(tuple),
    back_by=st.none() | MOMENTS,
    up_at=st.none() | MOMENTS,
)
UNITS = every(
    Unit,
    kind=st.sampled_from(UnitKind),
    update_domain=INT32,
    machines=st.lists(SOME, max_size=2).map(tuple),
    wave=INT32,
    state=st.sampled_from(UnitState),
    drain=st.booleans(),
    operation=INT64,
    done=st.lists(SOME, max_size=2).map(tuple),
    recalled=st.booleans(),
    accepted=st.booleans(),
    changed_at=st.none() | MOMENTS,
    retry_at=st.none() | MOMENTS,
    refused_at=st.none() | MOMENTS,
)
SECONDS = st.integers(0, 3600)
POLICIES = every(
    TurnPolicy,
    waves=st.lists(SOME, max_size=2).map(tuple),
    pause_seconds=st.integers(-1, 3600),
    windows=st.lists(SOME, max_size=2).map(tuple),
    blackouts=st.lists(st.builds(Span, MOMENTS, MOMENTS), max_size=2).map(tuple),
    cutoff_seconds=SECONDS,
    notice_seconds=SECONDS,
    stop_after=st.integers(1, 99),
    order=st.sampled_from(TurnOrder),
    approval_until=st.none() | MOMENTS,
    check_tries=st.integers(1, 100),
    check_within_seconds=st.integers(1, 3600),
)
CHECKS = every(
    CheckProgress,
    due=st.booleans(),
    run=INT64,
    failed=INT32,
    began_at=st.none() | MOMENTS,
    lease_until=st.none() | MOMENTS,
    passed_at=st.none() | MOMENTS,
)
DRAINING = every(
    DrainOptions,
    reboot=st.booleans(),
    bring_home=st.booleans(),
    stay=st.sampled_from(Stay),
)
MAINTENANCES = every(
    Maintenance,
    number=NUMBERS,
    event_type=st.sampled_from(EventType),
    source=st.sampled_from(EventSource),
    target=st.sampled_from(TargetKind),
    targets=st.lists(SOME, max_size=3).map(tuple),
    live_migration=st.booleans(),
    requested_at=MOMENTS,
    opens_at=st.none() | MOMENTS,
    closes_at=st.none() | MOMENTS,
    duration_seconds=INT64,
    without_notice=st.booleans(),
    units=st.lists(UNITS, max_size=3).map(tuple),
    policy=POLICIES,
    draining=st.none() | DRAINING,
    state=st.sampled_from(MaintenanceState),
    wave=INT32,
    wave_at=st.none() | MOMENTS,
    confirmed=st.booleans(),
    check=CHECKS,
    changed_at=st.none() | MOMENTS,
    announced=INT64,
)
HOLDS = every(Hold, kind=st.sampled_from(HoldKind), at=MOMENTS, until=st.none() | MOMENTS)
TOMBSTONES = every(
    Tombstone,
    name=NAMES,
    event_type=st.none() | st.sampled_from(EventType),
    at=MOMENTS,
    incarnation=INT64,
)
DRAINS = every(
    Drain,
    host=NAMES,
    state=st.sampled_from(HostState),
    reboot=st.booleans(),
    bring_home=st.booleans(),
    without_notice=st.booleans(),
    stay=st.sampled_from(Stay),
    avoid=st.lists(NAMES, max_size=2).map(tuple),
    requested_at=MOMENTS,
    changed_at=MOMENTS,
    guests=st.lists(
        every(
            DrainGuest,
            memory_mib=INT64,
            visits=st.booleans(),
            way=st.sampled_from(Way),
            obstacles=st.lists(SOME, max_size=2).map(tuple),
            leaves_by=INT64,
            returns_by=INT64,
        ),
        max_size=2,
    ).map(tuple),
    reboot_asked_at=st.none() | MOMENTS,
    silent_since=st.none() | MOMENTS,
    stuck_in=st.none() | st.sampled_from(HostState),
)
TOKENS = every(
    Token,
    role=st.sampled_from(AccessRole),
    created_at=MOMENTS,
    expires_at=st.none() | MOMENTS,
    audience=st.sampled_from(TokenAudience),
    used_at=st.none() | MOMENTS,
)
RECORDS = every(
    AuditRecord,
    sequence=st.just(1),
    at=MOMENTS,
    role=st.none() | st.sampled_from(AccessRole),
    outcome=st.sampled_from([DONE, ErrorCode.FORBIDDEN.value]),
)
PLACES = st.integers(0, 2**53)
WEBHOOKS = every(
    Webhook,
    types=st.lists(SOME).map(tuple),
    cursor=st.tuples(PLACES, PLACES),
    waiting_since=st.none() | MOMENTS,
    next_try_at=st.none() | MOMENTS,
    tries=PLACES,
    missed_at=st.none() | MOMENTS,
)
RELAYS = every(
    Relay,
    started_at=MOMENTS,
    heard_at=MOMENTS,
    due_at=MOMENTS,
    machines=st.integers(0, 10**6),
    held_for=st.none() | MOMENTS,
)
