"""The store over SQLAlchemy Core, whatever the database: its connections and transactions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from forewarn.store import tables
from forewarn.store.port import Reading, StoreError, StoreUnavailable, Transaction, WriterTurn
from forewarn.store.queries import Explain, GuardedConnection, SqlReading
from forewarn.store.writes import SqlTransaction

WRITING = "forewarn_writing"
"""The execution option of a connection whose transactions write."""

_FIRST_LOOK = select(tables.settings.c.name).limit(1)


class SqlStore:
    """`port.Store` over SQL.

    Args:
        engine: A database with this release's schema.
        place: What messages call it.
        explain: Tells what its errors mean.
        release: Called once the store is closed.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        place: str,
        explain: Callable[[BaseException, str], StoreError | None],
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._writer = engine.execution_options(**{WRITING: True})
        self._place = place
        self._explain: Explain = lambda error: explain(error, place)
        self._release = release
        self._turn = WriterTurn(place)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Open the one writing transaction: commit at the block's end, roll back if it raises."""
        with self._turn.taken(), self._transaction(self._writer) as connection:
            yield SqlTransaction(connection)

    @contextmanager
    def read(self) -> Iterator[Reading]:
        """Open a view of this instant."""
        with self._transaction(self._engine) as connection:
            connection.scalar(_FIRST_LOOK)  # a transaction sees what there was at its first look
            yield SqlReading(connection)

    def close(self) -> None:
        """Leave the store clean; nothing may be under way."""
        self._engine.dispose()
        self._release()

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[GuardedConnection]:
        with self._connected(engine) as connection:
            guarded = GuardedConnection(connection, self._explain)
            try:
                with guarded.guarded():
                    connection.begin()
                yield guarded
                with guarded.guarded():
                    connection.commit()
            except BaseException:
                # The first error is the one to tell; SQLite may have rolled back already.
                with suppress(SQLAlchemyError):
                    connection.rollback()
                raise

    @contextmanager
    def _connected(self, engine: Engine) -> Iterator[Connection]:
        try:
            connection = engine.connect()
        except PoolTimeout as error:
            raise StoreUnavailable(
                f"cannot use {self._place} now: all its connections are in use; nothing was "
                "changed; try again"
            ) from error
        except DBAPIError as error:
            explained = self._explain(error)
            if explained is None:
                raise
            raise explained from error
        with connection:
            yield connection
