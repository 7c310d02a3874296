"""What can be asked of a database; each question is a bounded number of queries.

What is asked for each request is a statement that is built once: SQLAlchemy takes longer to build a
statement than SQLite to answer it.
"""

import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    Select,
    Table,
    bindparam,
    func,
    literal,
    literal_column,
    select,
    tuple_,
)

from forewarn.maintenance.accounts import AuditRecord, Token
from forewarn.maintenance.model import (
    Drain,
    Hold,
    Machine,
    Maintenance,
    Operation,
    Scope,
    Tombstone,
    key,
)
from forewarn.maintenance.relays import Relay, RelayToken
from forewarn.maintenance.rollout_model import Rollout
from forewarn.maintenance.webhooks import Webhook
from forewarn.store import tables
from forewarn.store.port import (
    AuditQuery,
    ChangeRecord,
    HistoryQuery,
    NewsRecord,
    Page,
    Position,
    Replica,
    SeenMachine,
    StoreUnavailable,
)
from forewarn.store.tables import Instant, Mapping, Row, V
from forewarn.vocabulary import EventStatus

KEYS_AT_ONCE = 900
"""Keys in one statement: below the 999 variables that the most cautious SQLite takes."""

ROWS_AT_ONCE = 5000
"""Rows held as rows while many are read or written; bounds the memory beside the values."""

TRIMMED_NEWS = "trimmed news"
"""The counter of transactions that had news, up to the last one whose news was trimmed."""

FAILURE = "forewarn_failure"
"""Where a connection's `info` keeps what a statement of its transaction raised."""

T = TypeVar("T")

_scopes = tables.scopes.c
_machines = tables.machines.c
_maintenances = tables.maintenances.c
_operations = tables.operations.c
_events = tables.events.c
_changes = tables.changes.c
_news = tables.news.c
_audit = tables.audit.c


def among(statement: Select[Any], column: ColumnElement[Any]) -> Select[Any]:
    """Return the statement for rows that have one of some keys in a column: for `_each`."""
    return statement.where(column.in_(bindparam("keys", expanding=True)))


@functools.cache
def _among(mapping: Mapping[Any], column: ColumnElement[Any]) -> Select[Any]:
    return among(mapping.select(), column)


_OPERATIONS = tables.OPERATIONS.select(_operations.sequence)
_OPERATIONS_BY_ID = among(_OPERATIONS, _operations.id)
_OPERATIONS_OF_EVENTS = _OPERATIONS.where(
    _operations.id.in_(among(select(_events.operation), _events.id))
)
_LIVE_OPERATIONS = _OPERATIONS.where(
    _operations.id.in_(among(select(_events.operation).where(_events.live), _events.scope))
)
_OPEN_MAINTENANCES = (
    tables.MAINTENANCES.select().where(_maintenances.open).order_by(_maintenances.number)
)
_OUTCOMES = among(
    select(_operations.maintenance, _operations.status, func.count().label("many")).group_by(
        _operations.maintenance, _operations.status
    ),
    _operations.maintenance,
)
_COUNTER = select(tables.counters.c.value).where(tables.counters.c.name == bindparam("name"))
_LAST_CHANGE = select(_changes.sequence, _changes.token).where(
    _changes.sequence == select(func.max(_changes.sequence)).scalar_subquery()
)


def chunks(keys: Iterable[T]) -> Iterator[list[T]]:
    """Yield the keys, each once, in lists that fit one statement.

    Without those that no row can have and PostgreSQL would not look for.
    """
    found = [one for one in dict.fromkeys(keys) if not isinstance(one, str) or "\0" not in one]
    for first in range(0, len(found), KEYS_AT_ONCE):
        yield found[first : first + KEYS_AT_ONCE]


def check(connection: Connection) -> None:
    """Raise again what an earlier statement of the transaction raised.

    After some failures SQLite has rolled back by itself, and the next statement would be a
    transaction of its own.
    """
    if connection.invalidated:
        raise StoreUnavailable("the connection was lost; nothing was changed; try again")
    if (failure := connection.info.get(FAILURE)) is not None:
        raise failure


class SqlReading:
    """`port.Reading` over SQL, which has the docstrings."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _run(
        self, statement: Executable, values: Sequence[Row] | Row | None = None
    ) -> CursorResult[Any]:
        """Run a statement, once for each row if rows are given; none follows one that failed."""
        check(self._connection)
        return self._connection.execute(statement, values)

    def _rows(self, statement: Executable) -> Sequence[Any]:
        return self._run(statement).fetchall()

    def _each(self, statement: Select[Any], keys: Iterable[Any]) -> Iterator[CursorResult[Any]]:
        """Run a statement of `among` for a few of the keys at a time."""
        for chunk in chunks(keys):
            yield self._run(statement, {"keys": chunk})

    def scopes(self, keys: Collection[str] | None = None) -> dict[str, Scope]:
        found = {scope.key: scope for scope in self._values(tables.SCOPES, _scopes.key, keys)}
        return dict(sorted(found.items()))

    def machines(self, keys: Collection[str] | None = None) -> dict[str, Machine]:
        return self._machines_where(_machines.key, keys)

    def machines_of(self, scopes: Collection[str]) -> dict[str, Machine]:
        return self._machines_where(_machines.scope, scopes)

    def machines_on(self, hosts: Collection[str]) -> dict[str, Machine]:
        return self._machines_where(_machines.host, hosts)

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        return self._operations(self._each(_OPERATIONS_BY_ID, ids))

    def operations_of_maintenance(self, number: int) -> dict[str, Operation]:
        of_it = _OPERATIONS.where(_operations.maintenance == number)
        return self._operations([self._run(of_it.order_by(_operations.sequence))])

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        return self._operations(self._each(_OPERATIONS_OF_EVENTS, event_ids))

    def live_operations(self, scopes: Collection[str] | None = None) -> dict[str, Operation]:
        if scopes is None:
            return self._operations([self._run(_OPERATIONS.where(_operations.live))])
        return self._operations(self._each(_LIVE_OPERATIONS, scopes))

    def maintenances(self, numbers: Collection[int]) -> dict[int, Maintenance]:
        found = self._values(tables.MAINTENANCES, _maintenances.number, numbers)
        return {maintenance.number: maintenance for maintenance in found}

    def open_maintenances(self) -> dict[int, Maintenance]:
        found = self._maintenances(_OPEN_MAINTENANCES)
        return {maintenance.number: maintenance for maintenance in found}

    def latest_maintenances(self, before: int | None, limit: int) -> list[Maintenance]:
        number = _maintenances.number
        statement = tables.MAINTENANCES.select().order_by(number.desc()).limit(limit)
        return self._maintenances(statement if before is None else statement.where(number < before))

    def maintenance_of_key(self, idempotency_key: str) -> Maintenance | None:
        if "\0" in idempotency_key:  # no row has it, and PostgreSQL would not look for it
            return None
        # The condition on no key is the index's own.
        asked = _maintenances.idempotency_key
        statement = tables.MAINTENANCES.select().where(
            asked == idempotency_key, asked != literal_column("''")
        )
        latest = statement.order_by(_maintenances.number.desc()).limit(1)
        return next(iter(self._maintenances(latest)), None)

    def next_wakeup(self) -> datetime | None:
        moment: datetime | None = self._run(select(func.min(_operations.wakeup_at))).scalar()
        return moment

    def unacknowledged_failures(self, limit: int) -> dict[str, Operation]:
        failed = _operations.status == EventStatus.FAILED
        statement = _OPERATIONS.where(failed, _operations.acknowledged_by == "")
        latest_first = statement.order_by(_operations.ended_at.desc(), _operations.sequence.desc())
        return self._operations([self._run(latest_first.limit(limit))])

    def holds(self) -> tuple[Hold, ...]:
        found = self._values(tables.HOLDS, tables.holds.c.name, None)
        return tuple(sorted(found, key=lambda hold: (hold.at, hold.kind, hold.name)))

    def tombstones(self) -> dict[str, Tombstone]:
        found = self._values(tables.TOMBSTONES, tables.tombstones.c.key, None)
        return {tombstone.key: tombstone for tombstone in found}

    def rollouts(self, numbers: Collection[int] | None = None) -> dict[int, Rollout]:
        found = self._values(tables.ROLLOUTS, tables.rollouts.c.number, numbers)
        return dict(sorted((rollout.number, rollout) for rollout in found))

    def drains(self) -> dict[str, Drain]:
        found = self._values(tables.DRAINS, tables.drains.c.host, None)
        return {drain.host: drain for drain in found}

    def history(self, query: HistoryQuery) -> Page:
        if "\0" in query.machine + query.scope:
            return Page(operations=())
        found = self._rows(_page(query))
        page = found[: query.limit]
        is_last = len(found) <= query.limit
        following = None if is_last else (page[-1].announced_at, page[-1].sequence)
        return Page(operations=tuple(_by_id(page).values()), next=following)

    def setting(self, name: str) -> str | None:
        named = select(tables.settings.c.value).where(tables.settings.c.name == name)
        value: str | None = self._run(named).scalar()
        return value

    def position(self) -> Position:
        row = self._run(_LAST_CHANGE).first()
        return Position() if row is None else Position(row.sequence, row.token)

    def changes_after(self, sequence: int, limit: int) -> list[ChangeRecord]:
        following = tables.CHANGES.select().where(_changes.sequence > sequence)
        in_order = following.order_by(_changes.sequence).limit(limit)
        return [tables.CHANGES.value(row) for row in self._rows(in_order)]

    def change(self, sequence: int) -> ChangeRecord | None:
        found = self._values(tables.CHANGES, _changes.sequence, [sequence])
        return next(found, None)

    def news_after(self, sequence: int, limit: int) -> list[NewsRecord]:
        following = tables.NEWS.select().where(_news.sequence > sequence)
        in_order = following.order_by(_news.sequence).limit(limit)
        return [tables.NEWS.value(row) for row in self._rows(in_order)]

    def news_trimmed(self) -> int:
        return self._counter(TRIMMED_NEWS)

    def outcomes(self, numbers: Collection[int]) -> dict[int, dict[EventStatus, int]]:
        found: dict[int, dict[EventStatus, int]] = {}
        for result in self._each(_OUTCOMES, numbers):
            for row in result.fetchall():
                found.setdefault(row.maintenance, {})[row.status] = row.many
        return found

    def _counter(self, name: str) -> int:
        return self._run(_COUNTER, {"name": name}).scalar() or 0

    def replicas(self) -> dict[str, Replica]:
        found = self._values(tables.REPLICAS, tables.replicas.c.name, None)
        return {replica.name: replica for replica in found}

    def sightings(self, since: datetime | None = None) -> dict[str, SeenMachine]:
        statement = tables.SIGHTINGS.select()
        if since is not None:
            statement = statement.where(tables.sightings.c.saved_at >= since)
        found = map(tables.SIGHTINGS.value, self._rows(statement))
        return {seen.machine: seen for seen in found}

    def tokens(self) -> dict[str, Token]:
        found = self._values(tables.TOKENS, tables.tokens.c.name, None)
        return dict(sorted((token.name, token) for token in found))

    def webhooks(self) -> dict[str, Webhook]:
        found = self._values(tables.WEBHOOKS, tables.webhooks.c.name, None)
        return dict(sorted((webhook.name, webhook) for webhook in found))

    def relay_tokens(self, hosts: Collection[str] | None = None) -> dict[str, RelayToken]:
        found = self._values(tables.RELAY_TOKENS, tables.relay_tokens.c.host, hosts)
        oldest_first = sorted(found, key=lambda token: (token.created_at, token.digest))
        return {token.digest: token for token in oldest_first}

    def relays(
        self, hosts: Collection[str] | None = None, since: datetime | None = None
    ) -> dict[str, Relay]:
        statement, column = tables.RELAYS.select(), tables.relays.c
        if since is not None:
            statement = statement.where(column.heard_at >= since)
        found = self._found(tables.RELAYS, statement, among(statement, column.host), hosts)
        return {relay.host: relay for relay in found}

    def audit(self, query: AuditQuery) -> list[AuditRecord]:
        if "\0" in query.by:
            return []
        found = tables.AUDIT.select().order_by(_audit.sequence.desc()).limit(query.limit)
        if query.by:
            found = found.where(_audit.by == query.by)
        if query.since is not None:
            found = found.where(_audit.at >= query.since)
        if query.until is not None:
            found = found.where(_audit.at < query.until)
        if query.before is not None:
            found = found.where(_audit.sequence < query.before)
        return [tables.AUDIT.value(row) for row in self._rows(found)]

    def count(self, table: Table) -> int:
        """Return how many rows a table has."""
        found: int = self._run(select(func.count()).select_from(table)).scalar_one()
        return found

    def rows(self, table: Table) -> Iterator[list[dict[str, Any]]]:
        """Yield all rows of a table, some at a time, in the order of its key."""
        in_order = select(table).order_by(*table.primary_key.columns)
        for part in self._run(in_order).mappings().partitions(ROWS_AT_ONCE):
            yield [dict(row) for row in part]

    def _machines_where(
        self, column: ColumnElement[str], keys: Collection[str] | None
    ) -> dict[str, Machine]:
        found: dict[str, Machine] = {}
        for machine in self._values(tables.MACHINES, column, keys):
            name = machine.name
            found[name if name == (lower := key(name)) else lower] = machine
        return found

    def _values(
        self, mapping: Mapping[V], column: ColumnElement[T], keys: Iterable[T] | None
    ) -> Iterator[V]:
        """Yield the values whose column has one of these keys, or all of a table."""
        yield from self._found(mapping, mapping.select(), _among(mapping, column), keys)

    def _found(
        self,
        mapping: Mapping[V],
        everything: Select[Any],
        some: Select[Any],
        keys: Iterable[Any] | None,
    ) -> Iterator[V]:
        """Yield what one statement finds, or another one of `among` for these keys."""
        for result in [self._run(everything)] if keys is None else self._each(some, keys):
            for part in result.partitions(ROWS_AT_ONCE):
                yield from map(mapping.value, part)

    def _maintenances(self, statement: Select[Any]) -> list[Maintenance]:
        return [tables.MAINTENANCES.value(row) for row in self._rows(statement)]

    def _operations(self, results: Iterable[CursorResult[Any]]) -> dict[str, Operation]:
        return _by_id(row for result in results for row in result.fetchall())


def _by_id(rows: Iterable[Any]) -> dict[str, Operation]:
    found = map(tables.OPERATIONS.value, rows)
    return {operation.id: operation for operation in found}


def _page(query: HistoryQuery) -> Select[Any]:
    """Return the statement that finds a page and, if there is more, one operation beyond it."""
    found = _OPERATIONS
    if query.after is not None:
        announced, sequence = query.after
        found = found.where(
            tuple_(_operations.announced_at, _operations.sequence)
            < tuple_(literal(announced, Instant), literal(sequence))
        )
    if query.machine:
        concerned = select(tables.operation_machines.c.operation).where(
            tables.operation_machines.c.machine == query.machine
        )
        found = found.where(_operations.id.in_(concerned))
    if query.scope:
        shown = select(_events.operation).where(_events.scope == query.scope)
        found = found.where(_operations.id.in_(shown))
    if query.maintenance is not None:
        found = found.where(_operations.maintenance == query.maintenance)
    if query.event_types:
        found = found.where(_operations.event_type.in_(query.event_types))
    if query.statuses:
        found = found.where(_operations.status.in_(query.statuses))
    if query.since is not None:
        found = found.where(_operations.announced_at >= query.since)
    if query.until is not None:
        found = found.where(_operations.announced_at < query.until)
    newest_first = found.order_by(_operations.announced_at.desc(), _operations.sequence.desc())
    return newest_first.limit(query.limit + 1)
