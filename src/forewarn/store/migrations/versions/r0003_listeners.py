"""The listener that a machine asks at: two bridges may hold equal addresses."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    listener = sa.Column("listener", sa.Text, nullable=False, server_default=sa.text("''"))
    op.add_column("machines", listener)
