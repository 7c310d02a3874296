"""Walks, holds, doubts, silent events, hosts, lost machines, and when a scope last asked.

No table is copied. With references looked after, as they are here, SQLite deletes the rows of a
table that is dropped, and with those of `operations` all events would go.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    nothing, zero, none_listed = sa.text("''"), sa.text("0"), sa.text("'[]'")
    op.add_column("scopes", sa.Column("asked_at", sa.BigInteger))
    op.create_index(op.f("ix_machines_host"), "machines", ["host"])
    for column in (
        sa.Column("without_notice", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("rolling_updates", sa.Text, nullable=False, server_default=none_listed),
        sa.Column("announced", sa.BigInteger, nullable=False, server_default=zero),
        sa.Column("open", sa.Boolean, nullable=False, server_default=sa.false()),
    ):
        op.add_column("maintenances", column)
    op.create_index(op.f("ix_maintenances_open_number"), "maintenances", ["open", "number"])
    for column in (
        sa.Column("hosts", sa.Text, nullable=False, server_default=none_listed),
        sa.Column("rolling_update", sa.Integer),
        sa.Column("held_at", sa.BigInteger),
        sa.Column("notice_left_seconds", sa.BigInteger, nullable=False, server_default=zero),
        sa.Column("acknowledged_by", sa.Text, nullable=False, server_default=nothing),
        sa.Column("outcome_unknown", sa.Text, nullable=False, server_default=nothing),
        sa.Column("repeat_after", sa.BigInteger, nullable=False, server_default=zero),
    ):
        op.add_column("operations", column)
    op.add_column(
        "events", sa.Column("silent", sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.create_table(
        "holds",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("kind", "name", name=op.f("pk_holds")),
    )
    op.create_table(
        "lost_machines",
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("operation", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_lost_machines")),
    )
    _count_announced()
    _note_hosts()


def _count_announced() -> None:
    """Write down the last ordinal of each maintenance: an operation's id is `<number>.<ordinal>`.

    It is the last that history still holds; none of these maintenances announces another.
    """
    op.execute(
        "UPDATE maintenances SET announced = coalesce((SELECT max(CAST(substr(operations.id, "
        "length(CAST(maintenances.number AS TEXT)) + 2) AS INTEGER)) FROM operations "
        "WHERE operations.maintenance = maintenances.number), 0)"
    )


def _note_hosts() -> None:
    """Write down the hosts of what is live, as they are now, so that a hold of a host covers it."""
    connection = op.get_bind()
    found = connection.execute(
        sa.text(
            "SELECT operations.id, machines.host FROM operations "
            "JOIN operation_machines ON operation_machines.operation = operations.id "
            "JOIN machines ON machines.key = operation_machines.machine "
            "WHERE operations.status IN ('Scheduled', 'Started') AND machines.host <> ''"
        )
    )
    hosts: dict[str, set[str]] = {}
    for operation, host in found:
        hosts.setdefault(operation, set()).add(host)
    noted = [{"id": id_, "hosts": json.dumps(sorted(on))} for id_, on in hosts.items()]
    if noted:
        statement = sa.text("UPDATE operations SET hosts = :hosts WHERE id = :id")
        connection.execute(statement, noted)
