"""The first schema: what `tables` says, for as long as no release has a database of it."""

from alembic import op

from forewarn.store import tables

revision = "1"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    tables.metadata.create_all(op.get_bind(), checkfirst=False)
