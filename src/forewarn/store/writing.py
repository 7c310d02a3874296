"""What can be changed, all in one transaction with what is read in it."""

import functools
from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import Executable, Table, bindparam, delete, insert, select, update
from sqlalchemy.dialects import sqlite

from forewarn.maintenance.model import Changes, Operation, key
from forewarn.store import rows, tables
from forewarn.store.line import ROWS_AT_ONCE, Line
from forewarn.store.reading import SqlReading, chunks

_LAST_MAINTENANCE = "maintenance"
"""The counter of the numbers given to maintenances."""

_INSERTS = {"sqlite": sqlite.insert}
"""How each engine inserts or else updates; PostgreSQL's has the same methods."""


class SqlTransaction(SqlReading):
    """`port.Transaction` over SQL."""

    def __init__(self, line: Line) -> None:
        super().__init__(line)
        self._upserts = _upserts(line.dialect)

    def save(self, changes: Changes) -> None:
        """Write new values over the old; later readings of this transaction see them."""
        self._put(tables.scopes, map(rows.scope_row, changes.scopes))
        # In the index's order of hosts: in a fleet file's order, a first hundred thousand machines
        # take half as long again.
        machines = {machine.key: machine for machine in changes.machines}.values()
        by_host = sorted(machines, key=lambda machine: machine.host)
        self._put(tables.machines, map(rows.machine_row, by_host))
        if changes.maintenances:
            self._put(tables.maintenances, map(rows.maintenance_row, changes.maintenances))
            self._raise_counter(max(m.number for m in changes.maintenances))
        self._save_operations({operation.id: operation for operation in changes.operations})
        released = [{"_kind": hold.kind.value, "_name": hold.name} for hold in changes.released]
        self._line.write(_RELEASE, released)
        self._line.write(insert(tables.holds), [rows.hold_row(hold) for hold in changes.holds])
        for keys in chunks(changes.found):
            lost = tables.lost_machines
            self._line.write(delete(lost).where(lost.c.key.in_(keys)))
        self._put(tables.lost_machines, map(rows.lost_row, changes.lost))
        for keys in chunks(changes.removed_machines):
            self._line.write(delete(tables.machines).where(tables.machines.c.key.in_(keys)))
        for keys in chunks(changes.removed_scopes):
            self._line.write(delete(tables.scopes).where(tables.scopes.c.key.in_(keys)))

    def next_maintenance_number(self) -> int:
        """Return a number that no maintenance has had before, from 1."""
        name, value = tables.counters.c.name, tables.counters.c.value
        given: int | None = self._line.scalar(select(value).where(name == _LAST_MAINTENANCE))
        number = (given or 0) + 1
        self._put(tables.counters, [{"name": _LAST_MAINTENANCE, "value": number}])
        return number

    def purge(self, ended_before: datetime, limit: int) -> int:
        """Forget up to `limit` operations that ended before this; return how many."""
        operations = tables.operations.c
        still_open = select(tables.maintenances.c.number).where(tables.maintenances.c.open)
        old = (
            select(operations.id, operations.maintenance)
            .where(operations.ended_at < ended_before, operations.maintenance.not_in(still_open))
            .order_by(operations.ended_at, operations.sequence)
            .limit(limit)
        )
        found = self._line.rows(old)
        for ids in chunks(id_ for id_, _ in found):
            self._line.write(delete(tables.operations).where(operations.id.in_(ids)))
        number = tables.maintenances.c.number
        kept = select(operations.id).where(operations.maintenance == number).exists()
        for numbers in chunks(of for _, of in found):
            self._line.write(delete(tables.maintenances).where(number.in_(numbers), ~kept))
        return len(found)

    def put_setting(self, name: str, value: str) -> None:
        """Write a value down for the service itself."""
        self._put(tables.settings, [{"name": name, "value": value}])

    def _put(self, table: Table, new: Iterable[rows.Row]) -> None:
        remaining = iter(new)
        while part := list(islice(remaining, ROWS_AT_ONCE)):
            self._line.write(self._upserts[table], part)

    def _raise_counter(self, number: int) -> None:
        name, value = tables.counters.c.name, tables.counters.c.value
        given: int | None = self._line.scalar(select(value).where(name == _LAST_MAINTENANCE))
        if number > (given or 0):
            self._put(tables.counters, [{"name": _LAST_MAINTENANCE, "value": number}])

    def _save_operations(self, operations: dict[str, Operation]) -> None:
        """Write operations, and of their events only what differs from what is stored."""
        self._put(tables.operations, map(rows.operation_row, operations.values()))
        stored = self._stored_events(operations)
        new: list[rows.Row] = []
        changed: list[rows.Row] = []
        moved: set[str] = set()
        for operation in operations.values():
            for row in rows.event_rows(operation):
                before = stored.pop(row["id"], None)
                if before is None:
                    new.append(row)
                elif before != row:
                    changed.append({**row, "_id": row["id"]})
                if before is None or before["machines"] != row["machines"]:
                    moved.add(operation.id)
        moved.update(row["operation"] for row in stored.values())
        for ids in chunks(stored):
            self._line.write(delete(tables.events).where(tables.events.c.id.in_(ids)))
        self._line.write(insert(tables.events), new)
        self._line.write(_CHANGE_EVENT, changed)
        self._index_machines([operations[id_] for id_ in moved])

    def _stored_events(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        stored: dict[str, dict[str, Any]] = {}
        column = tables.events.c.operation
        for statement in self._each(select(tables.events), column, ids):
            stored.update((row["id"], dict(row)) for row in self._line.mappings(statement))
        return stored

    def _index_machines(self, operations: list[Operation]) -> None:
        table = tables.operation_machines
        for ids in chunks(operation.id for operation in operations):
            self._line.write(delete(table).where(table.c.operation.in_(ids)))
        pairs = (
            {"machine": machine, "operation": operation.id}
            for operation in operations
            for machine in sorted({key(name) for name in operation.machines})
        )
        while part := list(islice(pairs, ROWS_AT_ONCE)):
            self._line.write(insert(table), part)


_CHANGE_EVENT = update(tables.events).where(tables.events.c.id == bindparam("_id"))
_RELEASE = delete(tables.holds).where(
    tables.holds.c.kind == bindparam("_kind"), tables.holds.c.name == bindparam("_name")
)


@functools.cache
def _upserts(dialect: str) -> dict[Table, Executable]:
    """Return for each table the statement that writes a row over the one of the same key."""
    by_key = {
        tables.scopes: "key",
        tables.machines: "key",
        tables.maintenances: "number",
        tables.operations: "id",
        tables.lost_machines: "key",
        tables.counters: "name",
        tables.settings: "name",
    }
    return {table: _upsert(dialect, table, column) for table, column in by_key.items()}


def _upsert(dialect: str, table: Table, by: str) -> Executable:
    statement = _INSERTS[dialect](table)
    kept = {by, "sequence"}  # an operation keeps its place in the order of first saving
    new = {column.name: statement.excluded[column.name] for column in table.c}
    return statement.on_conflict_do_update(
        index_elements=[by], set_={name: value for name, value in new.items() if name not in kept}
    )
