"""The schema: which struct each table holds, and how a value becomes a row and a row a value.

A struct's fields are the columns of its table, by the same names (`columns`), and the type of a
field says what its column holds. What is written out for each table is what a type does not say:
keys, references, indexes, and what is derived from a value. A new field or table is a migration
too: a test compares them. A round trip is exact. Times are whole microseconds since 1970 in UTC, in
every engine: SQLite has no type that keeps a time zone.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, TypeVar, get_args

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    Table,
    Text,
    UniqueConstraint,
    select,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

from forewarn.maintenance import accounts, model
from forewarn.maintenance.relays import Relay, RelayToken
from forewarn.maintenance.rollout_model import Rollout
from forewarn.maintenance.webhooks import Webhook
from forewarn.store import port
from forewarn.store.port import EPOCH, micros
from forewarn.vocabulary import EventType

MAX_SHARED = 4096
"""How many JSON texts stay decoded where rows share them: a few hundred bytes each."""

Row = dict[str, Any]
"""A row to write, by column."""

Processor = Callable[[Any], Any]
"""Converts one value of a column. SQLAlchemy calls it for each row, so C functions pay off."""

ColumnType = TypeEngine[Any] | type[TypeEngine[Any]]

V = TypeVar("V", bound=msgspec.Struct)


class Instant(TypeDecorator[datetime]):
    """An aware time, stored as microseconds since 1970 in UTC; exact for every `datetime`."""

    impl = BigInteger
    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> Processor:
        return lambda value: None if value is None else micros(value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor:
        return lambda value: None if value is None else EPOCH + timedelta(0, 0, value)


class Enumerated(TypeDecorator[StrEnum]):
    """A member of an enumeration, stored as its value."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def bind_processor(self, dialect: Dialect) -> Processor:
        texts: dict[str | None, str | None] = {member: member.value for member in self.kind}
        return (texts | {None: None}).__getitem__

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor:
        members: dict[str | None, StrEnum | None] = {member.value: member for member in self.kind}
        return (members | {None: None}).__getitem__


class Shared(TypeDecorator[str]):
    """A text that many rows share, such as a host: 100,000 machines hold one copy of it."""

    impl = Text
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor:
        return sys.intern


class Json(TypeDecorator[Any]):
    """A value that is never searched for, stored as one JSON text.

    `shared` is for values of which many rows have equal ones: they share the one that is read.
    """

    impl = Text
    cache_ok = True

    def __init__(
        self,
        kind: Any,  # noqa: ANN401 - a type, or what stands for one, such as `tuple[str, ...]`
        *,
        shared: bool = False,
        encode: Callable[[Any], bytes] = msgspec.json.encode,
        decode: Callable[[str], Any] | None = None,
    ) -> None:
        super().__init__()
        self.kind = kind
        self.shared = shared
        self.encode = encode
        self.decode = decode
        decoded = decode or msgspec.json.Decoder(kind).decode

        def read(text: str | None) -> Any:  # noqa: ANN401 - of any kind
            return None if text is None else decoded(text)

        self._read = functools.lru_cache(MAX_SHARED)(read) if shared else read

    def bind_processor(self, dialect: Dialect) -> Processor:
        encode = self.encode
        return lambda value: None if value is None else encode(value).decode()

    def result_processor(self, dialect: Dialect, coltype: object) -> Processor:
        return self._read


_SIMPLE: dict[Any, ColumnType] = {
    str: Text,
    int: BigInteger,
    bool: Boolean,
    bytes: LargeBinary,
    datetime: Instant,
}


def columns(kind: type[V], **given: ColumnType | Column[Any]) -> Iterator[Column[Any]]:
    """Yield a column for each field of a struct; what may be None is nullable.

    `given` is what a field's type does not say: its column, or the column's type.
    """
    for field in msgspec.structs.fields(kind):
        choices = get_args(field.type)
        nullable = NoneType in choices
        special = given.get(field.name, choices[0] if nullable else field.type)
        if isinstance(special, Column):
            yield special
        else:
            yield Column(field.name, _column_type(special), nullable=nullable)


def _column_type(kind: Any) -> ColumnType:  # noqa: ANN401 - a column's type, or a field's
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Enumerated(kind)
    if isinstance(kind, TypeEngine) or (isinstance(kind, type) and issubclass(kind, TypeEngine)):
        return kind
    return _SIMPLE.get(kind) or Json(kind)


class Mapping(Generic[V]):
    """One type of struct and its table.

    `derived` is what further columns hold of a value: the keys and the indexes.
    """

    def __init__(self, kind: type[V], table: Table, **derived: Callable[[V], Any]) -> None:
        self.table = table
        self._select = select(*(table.c[name] for name in kind.__struct_fields__))
        self._derived = derived
        # Compiled, as dataclasses do: a dictionary for each row would cost a start with 100,000
        # machines a tenth of a second.
        values = [f"{name}=row[{place}]" for place, name in enumerate(kind.__struct_fields__)]
        source = f"lambda row: kind({', '.join(values)})"
        self.value: Callable[[Any], V] = eval(source, {"kind": kind})  # noqa: S307 - names of ours
        """Returns the value of a row that `select` found."""

    def select(self, *more: Any) -> Select[Any]:  # noqa: ANN401 - columns of any type
        """Return a query for what `value` needs, and after that for more columns."""
        return self._select.add_columns(*more) if more else self._select

    def row(self, value: V) -> Row:
        """Return the row of a value."""
        row = msgspec.structs.asdict(value)
        for name, derive in self._derived.items():
            row[name] = derive(value)
        return row


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
    "drains", metadata, *columns(model.Drain, host=Column("host", Text, primary_key=True))
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
    *columns(port.ChangeRecord, sequence=_number("sequence")),
)

news = Table(
    # What outsiders are told of the transactions in the outbox; it is kept for longer than these.
    "news",
    metadata,
    *columns(port.NewsRecord, sequence=_number("sequence")),
)

replicas = Table(
    "replicas", metadata, *columns(port.Replica, name=Column("name", Text, primary_key=True))
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
    "tokens", metadata, *columns(accounts.Token, name=Column("name", Text, primary_key=True))
)

audit = Table(
    "audit",
    metadata,
    *columns(accounts.AuditRecord, sequence=_number("sequence")),
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
    "webhooks", metadata, *columns(Webhook, name=Column("name", Text, primary_key=True))
)

SCOPES = Mapping(model.Scope, scopes, key=attrgetter("key"))
MACHINES = Mapping(model.Machine, machines, key=attrgetter("key"))
MAINTENANCES = Mapping(model.Maintenance, maintenances, open=attrgetter("open"))
OPERATIONS = Mapping(
    model.Operation, operations, wakeup_at=attrgetter("wakeup_at"), live=attrgetter("live")
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
