"""The first schema. Constraints and indexes are named by the convention of `tables.metadata`."""

import sqlalchemy as sa
from alembic import op

revision = "1"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "scopes",
        *_texts("key", key=True),
        *_texts("name", "kind", "priority", "automatically_approve"),
        *_numbers("update_domains", "incarnation"),
        *_texts("queue", null=True),
        *_numbers("terminate_notice_minutes", "settle_seconds", "asked_at", null=True),
    )
    op.create_table(
        "machines",
        *_texts("key", key=True),
        *_texts("name", "vm_id", "host", "address", "listener", "role", "tags", "profile"),
        _reference("scope", sa.Text, "scopes.key"),
        *_numbers("update_domain", "fault_domain"),
    )
    _indexes("machines", ["scope"], ["host"])
    op.create_table(
        "maintenances",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        *_texts("event_type", "source", "target", "targets", "requested_by", "description"),
        *_texts("rolling_updates", "interventions", "to_host", "host_boot_id"),
        *_numbers("requested_at", "duration_seconds", "announced"),
        *_booleans("live_migration", "without_notice", "open"),
    )
    _indexes("maintenances", ["open", "number"])
    op.create_table(
        "operations",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        _reference("maintenance", sa.BigInteger, "maintenances.number"),
        *_texts("event_type", "source", "description", "status", "hosts", "waits_for", "outcome"),
        *_texts("acknowledged_by", "executor", "outcome_unknown", "interventions"),
        *_texts("target", "awaited", "reporting", "to_host", "host_boot_id"),
        *_texts("start_cause", null=True),
        *_numbers("duration_seconds", "announced_at", "not_before", "notice_left_seconds"),
        *_numbers("attempt", "repeat_after"),
        *_numbers("started_at", "ended_at", "rolling_update", "held_at", "lease_until", null=True),
        *_numbers("carried_out_at", "back_by", "up_at", "wakeup_at", null=True),
        *_booleans("live_migration", "live"),
    )
    _indexes(
        "operations",
        ["maintenance"],
        ["announced_at", "sequence"],
        ["wakeup_at", "sequence"],
        ["live", "sequence"],
        ["status", "lease_until"],
        ["status", "announced_at", "sequence"],
        ["ended_at", "sequence"],
    )
    op.create_table(
        "events",
        *_texts("id", key=True),
        _reference("operation", sa.Text, "operations.id", ondelete="CASCADE"),
        *_numbers("position", "update_domain", "published"),
        *_booleans("live", "silent"),
        *_texts("scope", "machines"),
        *_texts("approval", null=True),
    )
    _indexes("events", ["operation", "position"], ["scope", "live", "operation"])
    op.create_table(
        "operation_machines",
        *_texts("machine", key=True),
        _reference("operation", sa.Text, "operations.id", ondelete="CASCADE", key=True),
    )
    _indexes("operation_machines", ["operation"])
    op.create_table(
        "holds", *_texts("kind", "name", key=True), *_texts("reason", "by"), *_numbers("at")
    )
    op.create_table(
        "tombstones",
        *_texts("key", key=True),
        *_texts("name", "operation", "scope"),
        *_texts("event_type", null=True),
        *_numbers("at", "incarnation"),
    )
    op.create_table(
        "drains",
        *_texts("host", key=True),
        *_texts("state", "stay", "after", "requested_by", "guests", "boot_id", "reason"),
        *_texts("stuck_in", null=True),
        *_booleans("reboot", "bring_home", "without_notice"),
        *_numbers("requested_at", "changed_at"),
        *_numbers("reboot_asked_at", "silent_since", null=True),
    )
    op.create_table("counters", *_texts("name", key=True), *_numbers("value"))
    op.create_table("settings", *_texts("name", key=True), *_texts("value"))


def _texts(*names: str, key: bool = False, null: bool = False) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=null, primary_key=key) for name in names]


def _numbers(*names: str, null: bool = False) -> list[sa.Column[int]]:
    """Return columns of whole numbers, and of times in microseconds since 1970."""
    return [sa.Column(name, sa.BigInteger, nullable=null) for name in names]


def _booleans(*names: str) -> list[sa.Column[bool]]:
    return [sa.Column(name, sa.Boolean, nullable=False) for name in names]


def _reference(
    name: str,
    kind: type[sa.Text | sa.BigInteger],
    to: str,
    *,
    ondelete: str | None = None,
    key: bool = False,
) -> sa.Column[object]:
    reference = sa.ForeignKey(to, ondelete=ondelete)
    return sa.Column(name, kind, reference, nullable=False, primary_key=key)


def _indexes(table: str, *indexes: list[str]) -> None:
    for columns in indexes:
        op.create_index(op.f("_".join(["ix", table, *columns])), table, columns)
