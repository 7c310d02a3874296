"""One connection inside one transaction: runs statements, and says in our words what went wrong."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Executable, RowMapping
from sqlalchemy.exc import DBAPIError

from forewarn.store.port import StoreError

ROWS_AT_ONCE = 5000
"""Rows held as rows while many are read or written; bounds the memory beside the values."""

Explain = Callable[[DBAPIError], StoreError | None]
"""Tells what a database's error means for the operator; None where it is our own mistake."""


class Line:
    """Statements go through here, so that none follows one that failed.

    After some failures SQLite has rolled back by itself, and the next statement would be a
    transaction of its own.
    """

    def __init__(self, connection: Connection, explain: Explain) -> None:
        self._connection = connection
        self._explain = explain
        self.failure: Exception | None = None
        self.dialect = connection.dialect.name

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Translate what a database raises inside, and remember that it did."""
        if self.failure is not None:
            raise self.failure
        try:
            yield
        except DBAPIError as error:
            explained = self._explain(error)
            self.failure = explained or error
            if explained is None:
                raise
            raise explained from error

    def rows(self, statement: Executable) -> Sequence[Sequence[Any]]:
        """Return all that a query finds, as tuples."""
        with self.guarded():
            return self._connection.execute(statement).fetchall()

    def mappings(self, statement: Executable) -> Sequence[RowMapping]:
        """Return all that a query finds, by column."""
        with self.guarded():
            return self._connection.execute(statement).mappings().fetchall()

    def stream(self, statement: Executable) -> Iterator[Sequence[Any]]:
        """Yield what a query finds, a few rows in memory at a time."""
        with self.guarded():
            for part in self._connection.execute(statement).partitions(ROWS_AT_ONCE):
                yield from part

    def scalar(self, statement: Executable) -> Any:  # noqa: ANN401 - a column of any type
        """Return the first column of the first row, None if there is none."""
        with self.guarded():
            return self._connection.execute(statement).scalar()

    def write(self, statement: Executable, rows: Sequence[dict[str, Any]] | None = None) -> None:
        """Run a statement, once for each row if rows are given."""
        if rows is not None and not rows:
            return
        with self.guarded():
            self._connection.execute(statement, rows)
