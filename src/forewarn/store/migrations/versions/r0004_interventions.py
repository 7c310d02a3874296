"""What operators did with what was under way; and history by status in the order of its pages."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("maintenances", "operations"):
        none_listed = sa.text("'[]'")
        column = sa.Column("interventions", sa.Text, nullable=False, server_default=none_listed)
        op.add_column(table, column)
    op.create_index(
        op.f("ix_operations_status_announced_at_sequence"),
        "operations",
        ["status", "announced_at", "sequence"],
    )
