"""The first schema: fleet, maintenances, operations with their events, settings."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "scopes",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("update_domains", sa.Integer, nullable=False),
        sa.Column("incarnation", sa.BigInteger, nullable=False),
        sa.Column("priority", sa.Text, nullable=False),
        sa.Column("automatically_approve", sa.Text, nullable=False),
        sa.Column("terminate_notice_minutes", sa.Integer),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_scopes")),
    )
    op.create_table(
        "machines",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("update_domain", sa.Integer, nullable=False),
        sa.Column("fault_domain", sa.Integer, nullable=False),
        sa.Column("vm_id", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("profile", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_machines")),
        sa.ForeignKeyConstraint(["scope"], ["scopes.key"], name=op.f("fk_machines_scope")),
    )
    op.create_index(op.f("ix_machines_scope"), "machines", ["scope"])
    op.create_table(
        "maintenances",
        sa.Column("number", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("targets", sa.Text, nullable=False),
        sa.Column("requested_by", sa.Text, nullable=False),
        sa.Column("requested_at", sa.BigInteger, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("duration_seconds", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_maintenances")),
    )
    op.create_table(
        "operations",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("maintenance", sa.BigInteger, nullable=False),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("duration_seconds", sa.BigInteger, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("announced_at", sa.BigInteger, nullable=False),
        sa.Column("not_before", sa.BigInteger, nullable=False),
        sa.Column("start_cause", sa.Text),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("waits_for", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("executor", sa.Text, nullable=False),
        sa.Column("lease_until", sa.BigInteger),
        sa.Column("wakeup_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_operations")),
        sa.ForeignKeyConstraint(
            ["maintenance"], ["maintenances.number"], name=op.f("fk_operations_maintenance")
        ),
        sa.UniqueConstraint("id", name=op.f("uq_operations_id")),
    )
    for columns in (
        ["maintenance"],
        ["announced_at", "sequence"],
        ["wakeup_at", "sequence"],
        ["status", "lease_until"],
        ["ended_at", "sequence"],
    ):
        op.create_index(op.f("_".join(["ix_operations", *columns])), "operations", columns)
    op.create_table(
        "events",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("live", sa.Boolean, nullable=False),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("update_domain", sa.Integer, nullable=False),
        sa.Column("machines", sa.Text, nullable=False),
        sa.Column("published", sa.BigInteger, nullable=False),
        sa.Column("approved_kind", sa.Text),
        sa.Column("approved_by", sa.Text),
        sa.Column("approved_address", sa.Text),
        sa.Column("approved_at", sa.BigInteger),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
        sa.ForeignKeyConstraint(
            ["operation"],
            ["operations.id"],
            name=op.f("fk_events_operation"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(op.f("ix_events_operation_position"), "events", ["operation", "position"])
    op.create_index(
        op.f("ix_events_scope_live_operation"), "events", ["scope", "live", "operation"]
    )
    op.create_table(
        "operation_machines",
        sa.Column("machine", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("machine", "operation", name=op.f("pk_operation_machines")),
        sa.ForeignKeyConstraint(
            ["operation"],
            ["operations.id"],
            name=op.f("fk_operation_machines_operation"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(op.f("ix_operation_machines_operation"), "operation_machines", ["operation"])
    op.create_table(
        "counters",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_settings")),
    )
