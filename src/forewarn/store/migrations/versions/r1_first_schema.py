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
        *_texts("name", "kind"),
        *_integers("update_domains"),
        *_bigs("incarnation"),
        *_texts("priority", "automatically_approve"),
        sa.Column("terminate_notice_minutes", sa.Integer),
        *_instants("asked_at"),
    )
    op.create_table(
        "machines",
        *_texts("key", key=True),
        *_texts("name"),
        _reference("scope", "scopes.key"),
        *_integers("update_domain", "fault_domain"),
        *_texts("vm_id", "host", "address", "listener", "role", "tags", "profile"),
    )
    _index("machines", "scope")
    _index("machines", "host")
    op.create_table(
        "maintenances",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        *_texts("event_type", "source", "targets", "requested_by"),
        *_bigs("requested_at"),
        *_texts("description"),
        *_bigs("duration_seconds"),
        *_booleans("without_notice"),
        *_texts("rolling_updates"),
        *_bigs("announced"),
        *_booleans("open"),
        *_texts("interventions"),
    )
    _index("maintenances", "open", "number")
    op.create_table(
        "operations",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        _reference("maintenance", "maintenances.number", sa.BigInteger),
        *_texts("event_type", "source", "description"),
        *_bigs("duration_seconds"),
        *_texts("status"),
        *_bigs("announced_at", "not_before"),
        sa.Column("start_cause", sa.Text),
        *_instants("started_at", "ended_at"),
        *_texts("hosts"),
        sa.Column("rolling_update", sa.Integer),
        *_instants("held_at"),
        *_bigs("notice_left_seconds"),
        *_texts("waits_for", "outcome", "acknowledged_by"),
        *_bigs("attempt"),
        *_texts("executor"),
        *_instants("lease_until"),
        *_texts("outcome_unknown"),
        *_bigs("repeat_after"),
        *_texts("interventions"),
        *_instants("wakeup_at"),
    )
    _index("operations", "maintenance")
    _index("operations", "announced_at", "sequence")
    _index("operations", "wakeup_at", "sequence")
    _index("operations", "status", "lease_until")
    _index("operations", "status", "announced_at", "sequence")
    _index("operations", "ended_at", "sequence")
    op.create_table(
        "events",
        *_texts("id", key=True),
        _reference("operation", "operations.id", ondelete="CASCADE"),
        *_integers("position"),
        *_booleans("live"),
        *_texts("scope"),
        *_integers("update_domain"),
        *_texts("machines"),
        *_bigs("published"),
        sa.Column("approval", sa.Text),
        *_booleans("silent"),
    )
    _index("events", "operation", "position")
    _index("events", "scope", "live", "operation")
    op.create_table(
        "operation_machines",
        *_texts("machine", key=True),
        _reference("operation", "operations.id", ondelete="CASCADE", key=True),
    )
    _index("operation_machines", "operation")
    op.create_table(
        "holds", *_texts("kind", "name", key=True), *_texts("reason", "by"), *_bigs("at")
    )
    op.create_table(
        "tombstones",
        *_texts("key", key=True),
        *_texts("name"),
        sa.Column("event_type", sa.Text),
        *_texts("operation"),
        *_bigs("at"),
        *_texts("scope"),
        *_bigs("incarnation"),
    )
    op.create_table("counters", *_texts("name", key=True), *_bigs("value"))
    op.create_table("settings", *_texts("name", key=True), *_texts("value"))


def _texts(*names: str, key: bool = False) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text, nullable=False, primary_key=key) for name in names]


def _integers(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.Integer, nullable=False) for name in names]


def _bigs(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


def _instants(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger) for name in names]


def _booleans(*names: str) -> list[sa.Column[bool]]:
    return [sa.Column(name, sa.Boolean, nullable=False) for name in names]


def _reference(
    name: str,
    to: str,
    kind: type[sa.Text | sa.BigInteger] = sa.Text,
    *,
    ondelete: str | None = None,
    key: bool = False,
) -> sa.Column[object]:
    reference = sa.ForeignKey(to, ondelete=ondelete)
    return sa.Column(name, kind, reference, nullable=False, primary_key=key)


def _index(table: str, *columns: str) -> None:
    op.create_index(op.f("_".join(["ix", table, *columns])), table, list(columns))
