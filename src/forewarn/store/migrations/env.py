"""What Alembic runs around the migrations: on the connection that the store hands over."""

from alembic import context

from forewarn.store import tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables.metadata,
    render_as_batch=True,  # SQLite changes a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
