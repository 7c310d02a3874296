"""Values to store: plain ones to vary by hand, and every one that the model allows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st

from forewarn.maintenance import model
from forewarn.maintenance.accounts import DONE, AuditRecord, Token
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.units import (
    MaintenanceState,
    Unit,
    UnitKind,
    UnitState,
)
from forewarn.maintenance.webhooks import Webhook
from forewarn.store import schema
from forewarn.store.queries import Reading
from forewarn.vocabulary import (
    ErrorCode,
    EventSource,
    EventStatus,
    EventType,
    ScopeKind,
    TargetKind,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

WEB = model.Scope(name="Web", kind=ScopeKind.AVAILABILITY_SET, update_domains=3)
BATCH = model.Scope(name="batch", kind=ScopeKind.SCALE_SET, update_domains=5)


def machine(name: str, scope: str = "web", **fields: Any) -> model.Machine:
    known = {"update_domain": 0, "fault_domain": 0, "vm_id": f"id-of-{name}"}
    return model.Machine(name=name, scope=scope, **(known | fields))


def maintenance(
    number: int, state: MaintenanceState = MaintenanceState.ANNOUNCED, *units: UnitState
) -> model.Maintenance:
    """A maintenance with an update domain in each of these states."""
    return model.Maintenance(
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


def event(id_: str, scope: str = "web", *machines: str, **fields: Any) -> model.OperationEvent:
    known: dict[str, Any] = {"update_domain": 0, "published": 1}
    return model.OperationEvent(id=id_, scope=scope, machines=machines, **(known | fields))


def operation(id_: str, *events: model.OperationEvent, **fields: Any) -> model.Operation:
    known: dict[str, Any] = {
        "maintenance": int(id_.partition(".")[0]),
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
    return model.Operation(id=id_, events=shown, **(known | fields))


def hold(kind: model.HoldKind, name: str = "", **fields: Any) -> model.Hold:
    known = {"reason": "wait", "by": "ops", "at": NOW}
    return model.Hold(kind=kind, name=name, **(known | fields))


def tombstone(name: str, **fields: Any) -> model.Tombstone:
    known = {"event_type": EventType.PREEMPT, "operation": "1.1", "at": NOW, "scope": "web"}
    return model.Tombstone(name=name, **(known | fields))


def drain(host: str, **fields: Any) -> model.Drain:
    known = {"state": model.HostState.DRAINING, "requested_at": NOW, "changed_at": NOW}
    return model.Drain(host=host, **(known | fields))


GOING = (MaintenanceState.RUNNING, UnitState.DONE, UnitState.WAITING)
HALTED = (MaintenanceState.HALTED, UnitState.FAILED)
ENDING = (MaintenanceState.STOPPED, UnitState.RUNNING)
OVER = (MaintenanceState.DONE, UnitState.DONE)
"""States of a maintenance and its units: the first three are open."""


def with_maintenances(*operations: model.Operation) -> model.Changes:
    """These operations and what they belong to, as a decision would hand them over."""
    numbers = sorted({o.maintenance for o in operations})
    return model.Changes(maintenances=tuple(map(maintenance, numbers)), operations=operations)


# Every value that the model allows: drawn by the types of the fields.

NUMBERS = st.integers(1, 2**63 - 2)
MOMENTS = st.datetimes(timezones=st.just(UTC))
LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
SOME = st.text(LETTERS, max_size=8)
NAMES = st.text(LETTERS, min_size=1, max_size=8)
LOWEST, HIGHEST = -(2**63), 2**63 - 1
FEW = 3
"""How many there are at most of what is several."""


def every(
    kind: type[msgspec.Struct], /, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    """Every value of a struct, some fields of which have a strategy of their own."""
    known = msgspec.inspect.type_info(kind)
    assert isinstance(known, msgspec.inspect.StructType)
    drawn = {one.name: of_type(one.type) for one in known.fields if one.name not in fields}
    return st.builds(kind, **drawn, **fields)


def of_type(known: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Every value of a type."""
    match known:
        case msgspec.inspect.StrType():
            return SOME
        case msgspec.inspect.BoolType():
            return st.booleans()
        case msgspec.inspect.IntType(ge=least, le=most):
            lowest, highest = (
                LOWEST if least is None else least,
                HIGHEST if most is None else most,
            )
            return st.integers(lowest, highest)
        case msgspec.inspect.DateTimeType():
            return MOMENTS
        case msgspec.inspect.EnumType(cls=enum):
            return st.sampled_from(enum)
        case msgspec.inspect.StructType(cls=struct):
            return every(struct)
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(of_type(item), max_size=FEW).map(tuple)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*map(of_type, items))
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*map(of_type, types))
        case msgspec.inspect.NoneType():
            return st.none()
    raise NotImplementedError(known)


def events(ending: str) -> st.SearchStrategy[Any]:
    """Events of an operation, whose ids have this ending."""
    drawn = every(model.OperationEvent, id=NAMES.map(lambda name: name + ending))
    return st.lists(drawn, max_size=FEW, unique_by=lambda event: event.id).map(tuple)


MACHINES = every(model.Machine, name=NAMES)
SCOPES = every(model.Scope, name=NAMES)
OPERATIONS = every(
    model.Operation, id=NAMES, maintenance=NUMBERS, events=events(""), dropped=events("-dropped")
)
MAINTENANCES = every(model.Maintenance, number=NUMBERS)
HOLDS = every(model.Hold)
TOMBSTONES = every(model.Tombstone, name=NAMES)
DRAINS = every(model.Drain, host=NAMES)
TOKENS = every(Token)
RECORDS = every(
    AuditRecord, sequence=st.just(1), outcome=st.sampled_from([DONE, ErrorCode.FORBIDDEN.value])
)
WEBHOOKS = every(Webhook)
RELAYS = every(Relay)
CHANGES = st.builds(
    model.Changes,
    scopes=st.tuples(SCOPES),
    machines=st.tuples(MACHINES),
    maintenances=st.tuples(MAINTENANCES),
    operations=st.tuples(OPERATIONS),
    holds=st.tuples(HOLDS),
    tombstones=st.tuples(TOMBSTONES),
    drains=st.tuples(DRAINS),
    tokens=st.tuples(TOKENS),
)
"""One of each, which need not belong together."""


def misfiled(reading: Reading) -> list[Any]:
    """Return the rows that are not found by what their bodies say."""
    found = []
    for table, (columns, searched) in schema.ROWS.items():
        for key, *row, body in reading._connection.run(f"SELECT {', '.join(columns)} FROM {table}"):
            if tuple(row) != searched(schema.decoded(table.removesuffix("s"), body)):
                found.append((table, key, *row))
    return found
