"""What can be asked of the store; each question is a bounded number of queries."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, RowMapping, Select, and_, func, or_, select

from forewarn.maintenance.model import Event, Hold, Lost, Machine, Maintenance, Operation, Scope
from forewarn.store import history, rows, tables
from forewarn.store.line import Line
from forewarn.store.port import HistoryQuery, Page
from forewarn.vocabulary import EventStatus

KEYS_AT_ONCE = 900
"""Keys in one statement: below the 999 variables that the most cautious SQLite takes."""

T = TypeVar("T")

_operations = tables.operations.c
_events = tables.events.c
_machine_columns = [tables.machines.c[name] for name in rows.MACHINE_COLUMNS]
_live = [status.value for status in EventStatus if status.visible]
_to_carry_out = and_(
    _operations.status == EventStatus.STARTED.value, _operations.outcome_unknown == ""
)


def chunks(keys: Iterable[T]) -> Iterator[list[T]]:
    """Yield the keys, each once, in lists that fit one statement."""
    remaining = iter(dict.fromkeys(keys))
    while chunk := list(islice(remaining, KEYS_AT_ONCE)):
        yield chunk


class SqlReading:
    """`port.Reading` over SQL."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def scopes(self, keys: Collection[str] | None = None) -> dict[str, Scope]:
        """Return these scopes by key, or all of them; in the order of their keys."""
        found: dict[str, Scope] = {}
        for statement in self._each(select(tables.scopes), tables.scopes.c.key, keys):
            for row in self._line.mappings(statement.order_by(tables.scopes.c.key)):
                found[row["key"]] = rows.scope_value(row)
        return found

    def machines(self, keys: Collection[str] | None = None) -> dict[str, Machine]:
        """Return these machines by key, or all of them."""
        return self._machines_where(tables.machines.c.key, keys)

    def machines_of(self, scopes: Collection[str]) -> dict[str, Machine]:
        """Return the machines of these scopes, by key."""
        return self._machines_where(tables.machines.c.scope, scopes)

    def machines_on(self, hosts: Collection[str]) -> dict[str, Machine]:
        """Return the machines on these hosts, by key; `""` is the unknown host."""
        return self._machines_where(tables.machines.c.host, hosts)

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        """Return these operations, live or over, by id."""
        found: dict[str, Operation] = {}
        for statement in self._each(select(tables.operations), _operations.id, ids):
            found.update(self._operations_of(statement))
        return found

    def operations_of_maintenance(self, number: int) -> dict[str, Operation]:
        """Return a maintenance's operations, live or over, by id, in the order of saving."""
        of_it = select(tables.operations).where(_operations.maintenance == number)
        return self._operations_of(of_it.order_by(_operations.sequence))

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        """Return the operations, live or over, that these events belong to."""
        ids: list[str] = []
        for statement in self._each(select(_events.operation), _events.id, event_ids):
            ids.extend(row[0] for row in self._line.rows(statement))
        return self.operations(ids)

    def live_operations(self, scopes: Collection[str] | None = None) -> dict[str, Operation]:
        """Return what is Scheduled or Started in these scopes, or anywhere, by id."""
        live = select(tables.operations).where(_operations.status.in_(_live))
        if scopes is None:
            return self._operations_of(live)
        ids: list[str] = []
        shown = select(_events.operation).where(_events.live)
        for statement in self._each(shown, _events.scope, scopes):
            ids.extend(row[0] for row in self._line.rows(statement))
        return self.operations(ids)

    def maintenances(self, numbers: Collection[int]) -> dict[int, Maintenance]:
        """Return these maintenances by number."""
        found: dict[int, Maintenance] = {}
        number = tables.maintenances.c.number
        for statement in self._each(select(tables.maintenances), number, numbers):
            for row in self._line.mappings(statement):
                found[row["number"]] = rows.maintenance_value(row)
        return found

    def open_maintenances(self) -> dict[int, Maintenance]:
        """Return the maintenances that are open, by number, the oldest first."""
        columns = tables.maintenances.c
        statement = select(tables.maintenances).where(columns.open).order_by(columns.number)
        found = self._line.mappings(statement)
        return {row["number"]: rows.maintenance_value(row) for row in found}

    def latest_maintenances(self, before: int | None, limit: int) -> list[Maintenance]:
        """Return up to `limit` maintenances with numbers below `before`, the newest first."""
        number = tables.maintenances.c.number
        statement = select(tables.maintenances).order_by(number.desc()).limit(limit)
        if before is not None:
            statement = statement.where(number < before)
        return [rows.maintenance_value(row) for row in self._line.mappings(statement)]

    def due(self, now: datetime, limit: int) -> dict[str, Operation]:
        """Return up to `limit` operations whose `schedule.wakeup_at` has come, earliest first."""
        statement = (
            select(tables.operations)
            .where(_operations.wakeup_at <= now)
            .order_by(_operations.wakeup_at, _operations.sequence)
            .limit(limit)
        )
        return self._operations_of(statement)

    def next_wakeup(self) -> datetime | None:
        """Return the earliest `schedule.wakeup_at` of all operations, None if there is none."""
        return self._moment(select(func.min(_operations.wakeup_at)))

    def claimable(self, now: datetime, limit: int) -> dict[str, Operation]:
        """Return up to `limit` operations that wait to be carried out, the first started first."""
        free = or_(_operations.lease_until.is_(None), _operations.lease_until <= now)
        statement = (
            select(tables.operations)
            .where(_to_carry_out, free)
            .order_by(_operations.started_at, _operations.sequence)
            .limit(limit)
        )
        return self._operations_of(statement)

    def next_lease_end(self) -> datetime | None:
        """Return when the first lease of those operations ends, None if there is none."""
        return self._moment(select(func.min(_operations.lease_until)).where(_to_carry_out))

    def unnoted_failures(self, limit: int) -> dict[str, Operation]:
        """Return up to `limit` Failed operations that nobody took note of, the latest first."""
        failed = _operations.status == EventStatus.FAILED.value
        statement = (
            select(tables.operations)
            .where(failed, _operations.acknowledged_by == "")
            .order_by(_operations.ended_at.desc(), _operations.sequence.desc())
            .limit(limit)
        )
        return self._operations_of(statement)

    def holds(self) -> tuple[Hold, ...]:
        """Return all holds, the oldest first."""
        found = map(rows.hold_value, self._line.mappings(select(tables.holds)))
        return tuple(sorted(found, key=lambda hold: (hold.at, hold.kind, hold.name)))

    def lost(self) -> dict[str, Lost]:
        """Return the lost machines that are remembered, by key."""
        found = self._line.mappings(select(tables.lost_machines))
        return {row["key"]: rows.lost_value(row) for row in found}

    def history(self, query: HistoryQuery) -> Page:
        """Return one page of operations, newest announcement first.

        Raises:
            Refused: The cursor is none of ours, or the limit is out of bounds.
        """
        found = self._line.mappings(history.statement(query))
        page = found[: query.limit]
        following = ""
        if len(found) > query.limit:
            last = page[-1]
            following = history.cursor(tables.micros(last["announced_at"]), last["sequence"])
        return Page(operations=tuple(self._with_events(page).values()), next=following)

    def setting(self, name: str) -> str | None:
        """Return a value that the service wrote down for itself, None if it never did."""
        named = select(tables.settings.c.value).where(tables.settings.c.name == name)
        value: str | None = self._line.scalar(named)
        return value

    def _machines_where(
        self, column: ColumnElement[str], keys: Collection[str] | None
    ) -> dict[str, Machine]:
        reader = rows.MachineReader()
        found: dict[str, Machine] = {}
        for statement in self._each(select(*_machine_columns), column, keys):
            found.update(reader.read(row) for row in self._line.stream(statement))
        return found

    def _operations_of(self, statement: Select[Any]) -> dict[str, Operation]:
        return self._with_events(self._line.mappings(statement))

    def _with_events(self, found: Sequence[RowMapping]) -> dict[str, Operation]:
        events: dict[str, list[Event]] = {row["id"]: [] for row in found}
        for statement in self._each(select(tables.events), _events.operation, events):
            in_order = statement.order_by(_events.operation, _events.position)
            for row in self._line.mappings(in_order):
                events[row["operation"]].append(rows.event_value(row))
        return {row["id"]: rows.operation_value(row, tuple(events[row["id"]])) for row in found}

    def _moment(self, statement: Select[Any]) -> datetime | None:
        moment: datetime | None = self._line.scalar(statement)
        return moment

    @staticmethod
    def _each(
        statement: Select[Any],
        column: ColumnElement[T],
        keys: Iterable[T] | None,
    ) -> Iterator[Select[Any]]:
        """Yield the statement for a few of the keys at a time, or as it is for None."""
        if keys is None:
            yield statement
            return
        for chunk in chunks(keys):
            yield statement.where(column.in_(chunk))
