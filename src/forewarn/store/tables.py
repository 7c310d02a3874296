"""The schema, and which struct each table holds. A change is a migration too: a test compares them.

A struct's fields are the columns of its table (`mapping.columns`); what is written out here is what
a type does not say: keys, references, indexes, and what is derived from a value. Times are whole
microseconds since 1970 in UTC, in every engine: SQLite has no type that keeps a time zone.
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
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from forewarn.maintenance import accounts, decide, model
from forewarn.maintenance.relays import Relay, RelayToken
from forewarn.maintenance.rollout_model import Rollout
from forewarn.maintenance.webhooks import Webhook
from forewarn.store import port
from forewarn.store.mapping import Instant, Json, Mapping, Shared, columns
from forewarn.vocabulary import EventType

_given = msgspec.json.Decoder(dict[str, str])


def _encode_profile(profile: model.Profile) -> bytes:
    """Write every value that is not empty, the defaults too: they may change one day."""
    given = msgspec.structs.asdict(profile)
    return msgspec.json.encode({name: value for name, value in given.items() if value})


def _decode_profile(text: str) -> model.Profile:
    given = _given.decode(text)
    names = model.Profile.__struct_fields__
    return model.Profile(**{name: sys.intern(given.get(name, "")) for name in names})


def _number(name: str) -> Column[int]:
    kind = BigInteger().with_variant(Integer, "sqlite")  # the number of the row itself there
    return Column(name, kind, primary_key=True, autoincrement=False)


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
    *columns(model.Scope, automatically_approve=Json(tuple[EventType, ...], shared=True)),
)

machines = Table(
    "machines",
    metadata,
    Column("key", Text, primary_key=True),
    *columns(
        model.Machine,
        scope=Column("scope", Shared, ForeignKey("scopes.key"), nullable=False),
        host=Shared,
        listener=Shared,
        role=Shared,
        tags=Json(tuple[tuple[str, str], ...], shared=True),
        profile=Json(model.Profile, shared=True, encode=_encode_profile, decode=_decode_profile),
    ),
    Index(None, "scope"),
    Index(None, "host"),
)

maintenances = Table(
    "maintenances",
    metadata,
    *columns(
        model.Maintenance,
        number=Column("number", BigInteger, primary_key=True, autoincrement=False),
    ),
    # `Maintenance.open`, so that open ones are found beside any length of history.
    Column("open", Boolean, nullable=False),
    Index(None, "open", "number"),
    Index(
        "ix_maintenances_idempotency_key",
        "idempotency_key",
        sqlite_where=text("idempotency_key <> ''"),
        postgresql_where=text("idempotency_key <> ''"),
    ),
)

operations = Table(
    "operations",
    metadata,
    # The order of first saving: it breaks the ties of times, so that pages of history are stable.
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    *columns(
        model.Operation,
        maintenance=Column(
            "maintenance", BigInteger, ForeignKey("maintenances.number"), nullable=False
        ),
    ),
    # `wakeup_at` of what is stored, so that what is due is one look into an index.
    Column("wakeup_at", Instant),
    # `Operation.live`, so that what is live is found beside any length of history.
    Column("live", Boolean, nullable=False),
    UniqueConstraint("id"),
    Index(None, "maintenance"),
    Index(None, "announced_at", "sequence"),
    Index(None, "wakeup_at", "sequence"),
    Index(None, "live", "sequence"),
    Index(None, "status", "lease_until"),
    Index(None, "status", "announced_at", "sequence"),
    Index(None, "ended_at", "sequence"),
)

events = Table(
    # Which operation an event belongs to; the operation's row holds the event.
    "events",
    metadata,
    Column("id", Text, primary_key=True),
    Column("operation", Text, ForeignKey("operations.id", ondelete="CASCADE"), nullable=False),
    Column("scope", Text, nullable=False),
    # Its operation's: what is live in a scope is found beside any history.
    Column("live", Boolean, nullable=False),
    Index(None, "operation"),
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

holds = Table("holds", metadata, *columns(model.Hold), PrimaryKeyConstraint("kind", "name"))

tombstones = Table(
    # They refer to no operation's row: they are remembered for longer than it is.
    "tombstones",
    metadata,
    Column("key", Text, primary_key=True),
    *columns(model.Tombstone),
)

drains = Table(
    "drains",
    metadata,
    *columns(model.Drain, host=Column("host", Text, primary_key=True)),
)

rollouts = Table(
    "rollouts",
    metadata,
    *columns(Rollout, number=Column("number", BigInteger, primary_key=True, autoincrement=False)),
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

changes = Table(
    # The outbox: what each transaction changed, for the replicas to read.
    "changes",
    metadata,
    *columns(
        port.ChangeRecord,
        sequence=_number("sequence"),
    ),
)

news = Table(
    # What outsiders are told of the transactions in the outbox; it is kept for longer than these.
    "news",
    metadata,
    *columns(
        port.NewsRecord,
        sequence=_number("sequence"),
    ),
)

replicas = Table(
    "replicas",
    metadata,
    *columns(port.Replica, name=Column("name", Text, primary_key=True)),
)

sightings = Table(
    # What replicas saw of machines: whether each listens, and what its agent said last.
    "sightings",
    metadata,
    *columns(port.SeenMachine, machine=Column("machine", Text, primary_key=True)),
    # The time of the beat that wrote it, so that replicas read what is new to them.
    Column("saved_at", Instant, nullable=False),
    Index(None, "saved_at"),
)

tokens = Table(
    "tokens",
    metadata,
    *columns(accounts.Token, name=Column("name", Text, primary_key=True)),
)

audit = Table(
    "audit",
    metadata,
    *columns(
        accounts.AuditRecord,
        sequence=_number("sequence"),
    ),
    # `AuditRecord.done`, so that strangers' refusals can be counted apart.
    Column("done", Boolean, nullable=False),
    Index(None, "at"),
    Index(None, "by", "sequence"),
    Index(None, "done", "sequence"),
)

relay_tokens = Table(
    "relay_tokens",
    metadata,
    *columns(RelayToken, digest=Column("digest", Text, primary_key=True)),
    Index(None, "host"),
)

relays = Table(
    # What was heard last of the relay of each host.
    "relays",
    metadata,
    *columns(Relay, host=Column("host", Text, primary_key=True)),
)

webhooks = Table(
    "webhooks",
    metadata,
    *columns(Webhook, name=Column("name", Text, primary_key=True)),
)

SCOPES = Mapping(model.Scope, scopes, key=attrgetter("key"))
MACHINES = Mapping(model.Machine, machines, key=attrgetter("key"))
MAINTENANCES = Mapping(model.Maintenance, maintenances, open=attrgetter("open"))
OPERATIONS = Mapping(
    model.Operation, operations, wakeup_at=decide.wakeup_at, live=attrgetter("live")
)
HOLDS = Mapping(model.Hold, holds)
TOMBSTONES = Mapping(model.Tombstone, tombstones, key=attrgetter("key"))
DRAINS = Mapping(model.Drain, drains)
ROLLOUTS = Mapping(Rollout, rollouts)
CHANGES = Mapping(port.ChangeRecord, changes)
NEWS = Mapping(port.NewsRecord, news)
REPLICAS = Mapping(port.Replica, replicas)
SIGHTINGS = Mapping(port.SeenMachine, sightings)
TOKENS = Mapping(accounts.Token, tokens)
AUDIT = Mapping(accounts.AuditRecord, audit, done=attrgetter("done"))
RELAY_TOKENS = Mapping(RelayToken, relay_tokens)
RELAYS = Mapping(Relay, relays)
WEBHOOKS = Mapping(Webhook, webhooks)
