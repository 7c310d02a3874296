"""The schema. A change of it is a migration too: a test compares the two.

Times are whole microseconds since 1970 in UTC, in every engine: SQLite has no type that keeps a
time zone. What is never searched for (tags, profiles, the names of an event's machines, walks) is
one JSON text.

A column that came after the first schema, and is never NULL, has a default: only so can SQLite add
it to a table that stands. The other way is to copy the table and drop the old one, which takes the
rows that refer to it along.
"""

from datetime import UTC, datetime, timedelta

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
    false,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

NOTHING = text("''")
NO_NUMBER = text("0")
NONE_LISTED = text("'[]'")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """Return an aware time as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


class Instant(TypeDecorator[datetime]):
    """An aware time, kept as microseconds since 1970 in UTC; exact for every `datetime`."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Return what is stored."""
        return None if value is None else micros(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        """Return what was meant."""
        return None if value is None else EPOCH + timedelta(microseconds=value)


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
    Column("kind", Text, nullable=False),
    Column("update_domains", Integer, nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("priority", Text, nullable=False),
    Column("automatically_approve", Text, nullable=False),
    Column("terminate_notice_minutes", Integer),
    Column("asked_at", Instant),
)

machines = Table(
    "machines",
    metadata,
    Column("key", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("scope", Text, ForeignKey("scopes.key"), nullable=False),
    Column("update_domain", Integer, nullable=False),
    Column("fault_domain", Integer, nullable=False),
    Column("vm_id", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("address", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("tags", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("listener", Text, nullable=False, server_default=NOTHING),
    Index(None, "scope"),
    Index(None, "host"),
)

maintenances = Table(
    "maintenances",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("event_type", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("targets", Text, nullable=False),
    Column("requested_by", Text, nullable=False),
    Column("requested_at", Instant, nullable=False),
    Column("description", Text, nullable=False),
    Column("duration_seconds", BigInteger, nullable=False),
    Column("without_notice", Boolean, nullable=False, server_default=false()),
    Column("rolling_updates", Text, nullable=False, server_default=NONE_LISTED),
    Column("announced", BigInteger, nullable=False, server_default=NO_NUMBER),
    # `Maintenance.open`, so that open ones are found beside any length of history.
    Column("open", Boolean, nullable=False, server_default=false()),
    Column("interventions", Text, nullable=False, server_default=NONE_LISTED),
    Index(None, "open", "number"),
)

operations = Table(
    "operations",
    metadata,
    # The order of first saving: it breaks the ties of times, so that pages of history are stable.
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("id", Text, nullable=False),
    Column("maintenance", BigInteger, ForeignKey("maintenances.number"), nullable=False),
    Column("event_type", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("duration_seconds", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("announced_at", Instant, nullable=False),
    Column("not_before", Instant, nullable=False),
    Column("start_cause", Text),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("waits_for", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("executor", Text, nullable=False),
    Column("lease_until", Instant),
    # `schedule.wakeup_at` of what is stored, so that what is due is one look into an index.
    Column("wakeup_at", Instant),
    Column("hosts", Text, nullable=False, server_default=NONE_LISTED),
    Column("rolling_update", Integer),
    Column("held_at", Instant),
    Column("notice_left_seconds", BigInteger, nullable=False, server_default=NO_NUMBER),
    Column("acknowledged_by", Text, nullable=False, server_default=NOTHING),
    Column("outcome_unknown", Text, nullable=False, server_default=NOTHING),
    Column("repeat_after", BigInteger, nullable=False, server_default=NO_NUMBER),
    Column("interventions", Text, nullable=False, server_default=NONE_LISTED),
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
    Column("machines", Text, nullable=False),
    Column("published", BigInteger, nullable=False),
    Column("approved_kind", Text),
    Column("approved_by", Text),
    Column("approved_address", Text),
    Column("approved_at", Instant),
    Column("silent", Boolean, nullable=False, server_default=false()),
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
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", Instant, nullable=False),
)

lost_machines = Table(
    # They refer to no operation's row: they are remembered for longer than it is.
    "lost_machines",
    metadata,
    Column("key", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("operation", Text, nullable=False),
    Column("at", Instant, nullable=False),
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
