"""The schema, and which struct each table holds. A change is a migration too: a test compares them.

Times are whole microseconds since 1970 in UTC, in every engine: SQLite has no type that keeps a
time zone. What is never searched for (tags, profiles, the names of an event's machines) is one
JSON text.
"""

import sys
from operator import attrgetter

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from forewarn.maintenance import decide, model
from forewarn.store.mapping import Enumerated, Instant, Json, Mapping, Shared
from forewarn.vocabulary import EventSource, EventStatus, EventType, Priority, ScopeKind

_said = msgspec.json.Decoder(dict[str, str])


def _encode_profile(profile: model.Profile) -> bytes:
    """Write every value that is not empty, the defaults too: they may change one day."""
    names = profile.__struct_fields__
    return msgspec.json.encode({name: v for name in names if (v := getattr(profile, name))})


def _decode_profile(text: str) -> model.Profile:
    said = _said.decode(text)
    names = model.Profile.__struct_fields__
    return model.Profile(**{name: sys.intern(said.get(name, "")) for name in names})


NAMES = Json(tuple[str, ...])
INTERVENTIONS = Json(tuple[model.Intervention, ...])

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

scopes = Table(
    "scopes",
    metadata,
    Column("key", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("kind", Enumerated(ScopeKind), nullable=False),
    Column("update_domains", Integer, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("priority", Enumerated(Priority), nullable=False),
    Column("automatically_approve", Json(tuple[EventType, ...], shared=True), nullable=False),
    Column("terminate_notice_minutes", Integer),
    Column("asked_at", Instant),
)

machines = Table(
    "machines",
    metadata,
    Column("key", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("scope", Shared, ForeignKey("scopes.key"), nullable=False),
    Column("update_domain", Integer, nullable=False),
    Column("fault_domain", Integer, nullable=False),
    Column("vm_id", Text, nullable=False),
    Column("host", Shared, nullable=False),
    Column("address", Text, nullable=False),
    Column("listener", Shared, nullable=False),
    Column("role", Shared, nullable=False),
    Column("tags", Json(tuple[tuple[str, str], ...], shared=True), nullable=False),
    Column(
        "profile",
        Json(model.Profile, shared=True, encode=_encode_profile, decode=_decode_profile),
        nullable=False,
    ),
    Index(None, "scope"),
    Index(None, "host"),
)

maintenances = Table(
    "maintenances",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("event_type", Enumerated(EventType), nullable=False),
    Column("source", Enumerated(EventSource), nullable=False),
    Column("targets", NAMES, nullable=False),
    Column("requested_by", Text, nullable=False),
    Column("requested_at", Instant, nullable=False),
    Column("description", Text, nullable=False),
    Column("duration_seconds", BigInteger, nullable=False),
    Column("without_notice", Boolean, nullable=False),
    Column("rolling_updates", Json(tuple[model.RollingUpdate, ...]), nullable=False),
    Column("announced", BigInteger, nullable=False),
    # `Maintenance.open`, so that open ones are found beside any length of history.
    Column("open", Boolean, nullable=False),
    Column("interventions", INTERVENTIONS, nullable=False),
    Index(None, "open", "number"),
)

operations = Table(
    "operations",
    metadata,
    # The order of first saving: it breaks the ties of times, so that pages of history are stable.
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("id", Text, nullable=False),
    Column("maintenance", BigInteger, ForeignKey("maintenances.number"), nullable=False),
    Column("event_type", Enumerated(EventType), nullable=False),
    Column("source", Enumerated(EventSource), nullable=False),
    Column("description", Text, nullable=False),
    Column("duration_seconds", BigInteger, nullable=False),
    Column("status", Enumerated(EventStatus), nullable=False),
    Column("announced_at", Instant, nullable=False),
    Column("not_before", Instant, nullable=False),
    Column("start_cause", Enumerated(model.StartCause)),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("hosts", NAMES, nullable=False),
    Column("rolling_update", Integer),
    Column("held_at", Instant),
    Column("notice_left_seconds", BigInteger, nullable=False),
    Column("waits_for", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("acknowledged_by", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("executor", Text, nullable=False),
    Column("lease_until", Instant),
    Column("outcome_unknown", Text, nullable=False),
    Column("repeat_after", BigInteger, nullable=False),
    Column("interventions", INTERVENTIONS, nullable=False),
    # `wakeup_at` of what is stored, so that what is due is one look into an index.
    Column("wakeup_at", Instant),
    UniqueConstraint("id"),
    Index(None, "maintenance"),
    Index(None, "announced_at", "sequence"),
    Index(None, "wakeup_at", "sequence"),
    Index(None, "status", "lease_until"),
    Index(None, "status", "announced_at", "sequence"),
    Index(None, "ended_at", "sequence"),
)

events = Table(
    "events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("operation", Text, ForeignKey("operations.id", ondelete="CASCADE"), nullable=False),
    Column("position", Integer, nullable=False),
    # Whether it is Scheduled or Started: what is live in a scope is found beside any history.
    Column("live", Boolean, nullable=False),
    Column("scope", Text, nullable=False),
    Column("update_domain", Integer, nullable=False),
    Column("machines", NAMES, nullable=False),
    Column("published", BigInteger, nullable=False),
    Column("approval", Json(model.Approval)),
    Column("silent", Boolean, nullable=False),
    Index(None, "operation", "position"),
    Index(None, "scope", "live", "operation"),
)

operation_machines = Table(
    # Which operations concerned a machine, by key: the index of history by machine.
    "operation_machines",
    metadata,
    Column("machine", Text, primary_key=True),
    Column("operation", Text, ForeignKey("operations.id", ondelete="CASCADE"), primary_key=True),
    Index(None, "operation"),
)

holds = Table(
    "holds",
    metadata,
    Column("kind", Enumerated(model.HoldKind), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", Instant, nullable=False),
)

tombstones = Table(
    # They refer to no operation's row: they are remembered for longer than it is.
    "tombstones",
    metadata,
    Column("key", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("event_type", Enumerated(EventType)),
    Column("operation", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Column("scope", Text, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
)

counters = Table(
    # The last number given; it outlives what it was given to.
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
)

settings = Table(
    "settings",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

SCOPES = Mapping(model.Scope, scopes, key=attrgetter("key"))
MACHINES = Mapping(model.Machine, machines, key=attrgetter("key"))
MAINTENANCES = Mapping(model.Maintenance, maintenances, open=attrgetter("open"))
OPERATIONS = Mapping(model.Operation, operations, elsewhere=("events",), wakeup_at=decide.wakeup_at)
EVENTS = Mapping(model.Event, events)
HOLDS = Mapping(model.Hold, holds)
TOMBSTONES = Mapping(model.Tombstone, tombstones, key=attrgetter("key"))
