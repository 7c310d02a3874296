"""Copy a whole store into an empty one: the fleet, its live events and the history.

It copies rows, not values: what the rules never look at again is the same to the byte, and a new
table is copied as soon as it is in the schema.
"""

from collections.abc import Callable
from typing import TypeAlias

from forewarn.store import tables
from forewarn.store.port import Reading, StoreUnusable, Transaction
from forewarn.store.queries import SqlReading
from forewarn.store.sql import SqlTransaction

Told: TypeAlias = Callable[[str, int, int], None]
"""Called with a table, and how many of how many rows are copied."""


def copy(source: Reading, target: Transaction, told: Told) -> int:
    """Copy all rows of a database; return how many.

    Raises:
        StoreUnusable: The target is not empty.
    """
    assert isinstance(source, SqlReading)
    assert isinstance(target, SqlTransaction)
    copied = 0
    for table in tables.metadata.sorted_tables:
        if target.count(table):
            raise StoreUnusable(
                f"the database to copy to is not empty: its table {table.name} has rows: create "
                "another one; nothing was changed"
            )
        done, all_of_it = 0, source.count(table)
        for rows in source.rows(table):
            target.insert_rows(table, rows)
            done += len(rows)
            told(table.name, done, all_of_it)
        assert target.count(table) == all_of_it == done, f"{table.name}: {done} of {all_of_it}"
        copied += done
    return copied
