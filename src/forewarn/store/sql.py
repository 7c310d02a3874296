"""The store over SQLAlchemy Core, whatever the database: connections, transactions, and writing."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, TypeAlias

from sqlalchemy import (
    Connection,
    CursorResult,
    Engine,
    Executable,
    Table,
    bindparam,
    case,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from forewarn.maintenance.accounts import AuditRecord
from forewarn.maintenance.model import Changes, Operation, key
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.webhooks import Webhook
from forewarn.store import tables
from forewarn.store.port import (
    Membership,
    NewChange,
    Position,
    Reading,
    Replica,
    SeenMachine,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    Transaction,
    WriterTurn,
    micros,
    refuse_nul,
)
from forewarn.store.queries import (
    FAILURE,
    ROWS_AT_ONCE,
    TRIMMED_NEWS,
    SqlReading,
    among,
    check,
    chunks,
)
from forewarn.store.tables import Mapping, Row, V

WRITING = "forewarn_writing"
"""The execution option of a connection whose transactions write."""

_FIRST_LOOK = select(tables.settings.c.name).limit(1)

_LAST_MAINTENANCE = "maintenance"
"""The counter of the numbers given to maintenances."""

_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""How each engine inserts or else updates."""


class SqlStore:
    """`port.Store` over an engine whose database has this release's schema.

    Messages call it by its place; `release` is called once it is closed.
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
        self._explain = explain
        self._release = release
        self._turn = WriterTurn(place)
        event.listen(engine, "handle_error", self._translate)

    @property
    def shared(self) -> bool:
        return False

    @contextmanager
    def write(self) -> Iterator["SqlTransaction"]:
        with self._turn.taken(), self._transaction(self._writer) as connection:
            yield SqlTransaction(connection)

    @contextmanager
    def read(self) -> Iterator[Reading]:
        with self._transaction(self._engine) as connection:
            connection.scalar(_FIRST_LOOK)  # a transaction sees what there was at its first look
            yield SqlReading(connection)

    def beat(self, replica: Replica, seen: Iterable[SeenMachine] = ()) -> datetime:
        with self.write() as transaction:
            transaction.put_replica(replica)
            transaction.put_sightings(seen, replica.beat_at)
        return replica.beat_at

    def see(self, seen: Iterable[SeenMachine], at: datetime) -> None:
        with self.write() as transaction:
            transaction.put_sightings(seen, at)

    def hear(self, relays: Iterable[Relay], at: datetime | None = None) -> None:
        with self.write() as transaction:
            transaction.put_relays(relays)

    def join(self, name: str) -> Membership:
        raise StoreUnusable(f"{self._place} is one process's: {name!r} cannot share it")

    def close(self) -> None:
        self._engine.dispose()
        self._release()

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        try:
            connection = engine.connect()
        except PoolTimeout as error:
            raise StoreUnavailable(
                f"cannot use {self._place} now: all its connections are in use; nothing was "
                "changed; try again"
            ) from error
        with connection:
            connection.info.pop(FAILURE, None)
            try:
                self._begin(connection)
                yield connection
                check(connection)
                self._commit(connection)
            except BaseException:
                # The first error is the one to tell; SQLite may have rolled back already.
                with suppress(SQLAlchemyError, StoreError):
                    connection.rollback()
                raise

    def _begin(self, connection: Connection) -> None:
        connection.begin()

    def _commit(self, connection: Connection) -> None:
        connection.commit()

    def _translate(self, context: ExceptionContext) -> None:
        """Raise what a database's error means, and remember that it came."""
        explained = self._explain(context.original_exception, self._place)
        # One that was lost has no `info`, and would try to connect again to have one.
        if context.connection is not None and not context.connection.invalidated:
            context.connection.info[FAILURE] = explained or context.sqlalchemy_exception
        if explained is not None:
            raise explained from context.original_exception


class SqlTransaction(SqlReading):
    """`port.Transaction` over SQL, which has the docstrings."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.appended: Position | None = None
        """The change of this transaction in the outbox."""
        self._live: dict[str, bool] = {}
        """Whether each operation that was read or written here is stored as live."""

    def save(self, changes: Changes) -> None:
        refuse_nul(changes)
        self._put(tables.SCOPES, changes.scopes)
        # In the index's order of hosts: in a fleet file's order, a first hundred thousand machines
        # take half as long again.
        machines = {machine.key: machine for machine in changes.machines}.values()
        self._put(tables.MACHINES, sorted(machines, key=lambda machine: machine.host))
        if changes.maintenances:
            self._put(tables.MAINTENANCES, changes.maintenances)
            self._count_up_to(max(m.number for m in changes.maintenances))
        self._save_operations({operation.id: operation for operation in changes.operations})
        self._write(
            _RELEASE, ({"_kind": hold.kind, "_name": hold.name} for hold in changes.released)
        )
        self._write(insert(tables.holds), map(tables.HOLDS.row, changes.holds))
        self._delete(tables.tombstones, "key", changes.revived)
        self._put(tables.TOMBSTONES, changes.tombstones)
        self._put(tables.DRAINS, changes.drains)
        self._put(tables.ROLLOUTS, changes.rollouts)
        self._delete(tables.rollouts, "number", changes.removed_rollouts)
        self._delete(tables.tokens, "name", changes.revoked_tokens)
        self._write(insert(tables.tokens), map(tables.TOKENS.row, changes.tokens))
        self._delete(tables.relay_tokens, "digest", changes.void_relay_tokens)
        self._put(tables.RELAY_TOKENS, changes.relay_tokens)
        self._delete(tables.machines, "key", changes.removed_machines)
        self._delete(tables.scopes, "key", changes.removed_scopes)
        self._delete(tables.sightings, "machine", changes.removed_machines)

    def next_maintenance_number(self) -> int:
        return self._last_number() + 1

    def skip_maintenance_numbers(self, count: int) -> None:
        self._count_up_to(self._last_number() + count)

    def purge(self, ended_before: datetime, limit: int) -> int:
        operations = tables.operations.c
        still_open = select(tables.maintenances.c.number).where(tables.maintenances.c.open)
        old = (
            select(operations.id, operations.maintenance)
            .where(
                operations.ended_at < ended_before,
                ~operations.live,
                operations.maintenance.not_in(still_open),
            )
            .order_by(operations.ended_at, operations.sequence)
            .limit(limit)
        )
        found = self._rows(old)
        self._delete(tables.operations, "id", (id_ for id_, _ in found))
        for id_, _ in found:
            self._live.pop(id_, None)
        number = tables.maintenances.c.number
        kept = select(operations.id).where(operations.maintenance == number).exists()
        for numbers in chunks(of for _, of in found):
            self._run(delete(tables.maintenances).where(number.in_(numbers), ~kept))
        return len(found)

    def record(self, records: Sequence[AuditRecord]) -> None:
        refuse_nul(records)
        last = self._run(select(func.max(tables.audit.c.sequence))).scalar() or 0
        numbered = (
            tables.AUDIT.row(one) | {"sequence": number}
            for number, one in enumerate(records, last + 1)
        )
        self._write(insert(tables.audit), numbered)

    def purge_audit(self, before: datetime, limit: int, *, refusals: int) -> int:
        found = tables.audit.c
        oldest = select(found.sequence, found.at).order_by(found.sequence).limit(limit)
        old = [row.sequence for row in takewhile(lambda row: row.at < before, self._rows(oldest))]
        refused = select(found.sequence).where(~found.done)
        latest = refused.order_by(found.sequence.desc()).offset(refusals).limit(limit - len(old))
        old += [row.sequence for row in self._rows(latest)]
        for some in chunks(old):
            self._run(delete(tables.audit).where(found.sequence.in_(some)))
        return len(set(old))

    def put_webhooks(self, webhooks: Iterable[Webhook]) -> None:
        refuse_nul(webhooks := list(webhooks))
        self._put(tables.WEBHOOKS, webhooks)

    def remove_webhooks(self, names: Iterable[str]) -> None:
        refuse_nul(names := list(names))
        self._delete(tables.webhooks, "name", names)

    def put_setting(self, name: str, value: str) -> None:
        refuse_nul(name, value)
        self._upsert(tables.settings, [{"name": name, "value": value}])

    def now(self) -> datetime | None:
        return None

    def append(self, change: NewChange, news: bytes = b"", skip: int = 0) -> Position:
        assert self.appended is None, "a transaction has one change"
        self.appended = Position(self._append(change, news, skip), change.token)
        return self.appended

    def _append(self, change: NewChange, news: bytes, skip: int) -> int:
        """Insert a change and its news, and return its number."""
        check(self._connection)
        at = micros(change.at)
        # By the driver's own text: for this one row SQLAlchemy would take as long as for ten.
        values = (1 + skip, change.token, change.replica, at, change.format, change.body)
        number: int = self._connection.exec_driver_sql(_APPEND, values).lastrowid
        if news:
            self._connection.exec_driver_sql(_APPEND_NEWS, (number, at, news))
        return number

    def trim(self, before: datetime, limit: int) -> int:
        # Without the last that was found: it is the last of all, or one too many.
        oldest = self._oldest(tables.changes, limit + 1)[:-1]
        return len(self._trim(tables.changes, oldest, before))

    def trim_news(self, before: datetime, limit: int) -> int:
        old = self._trim(tables.news, self._oldest(tables.news, limit), before)
        if old:
            self._upsert(tables.counters, [{"name": TRIMMED_NEWS, "value": old[-1].sequence}])
        return len(old)

    def _oldest(self, table: Table, limit: int) -> Sequence[Any]:
        in_order = select(table.c.sequence, table.c.at).order_by(table.c.sequence)
        return self._rows(in_order.limit(limit))

    def _trim(self, table: Table, oldest: Iterable[Any], before: datetime) -> list[Any]:
        """Delete those of the oldest rows that were written before this, and return them."""
        old = list(takewhile(lambda row: row.at < before, oldest))
        if old:
            self._run(delete(table).where(table.c.sequence <= old[-1].sequence))
        return old

    def set_back(self, now: datetime, at: datetime) -> None:
        for table, dates in _SEEN_AT.items():
            for name, by_row in dates.items():
                to = at if by_row else now
                self._run(update(table).where(table.c[name] > to).values({name: to}))

    def mark_relay(self, host: str, held_for: datetime | None) -> None:
        marked = update(tables.relays).where(tables.relays.c.host == host)
        self._run(marked.values(held_for=held_for))

    def forget_relay(self, host: str) -> None:
        self._delete(tables.relays, "host", [host])

    def put_relays(self, relays: Iterable[Relay]) -> None:
        """Write what was heard of relays, where nobody heard later; for `SqlStore.hear`."""
        refuse_nul(relays := sorted(relays, key=attrgetter("host")))  # in one order, as sightings
        self._put(tables.RELAYS, relays)

    def put_replica(self, replica: Replica) -> None:
        """Write what a replica says of itself; for `SqlStore.beat`."""
        self._put(tables.REPLICAS, [replica])

    def put_sightings(self, seen: Iterable[SeenMachine], saved_at: datetime) -> None:
        """Write what a replica saw of machines, where nobody saw later; for `SqlStore.beat`.

        A machine that has left the fleet is left out: the replica may not know yet that it has.
        """
        # In one order: two replicas may write of the same machines at once.
        by_key = {one.machine: one for one in sorted(seen, key=attrgetter("machine"))}
        known = {key for found in self._each(_MACHINE_KEYS, by_key) for (key,) in found}
        here = (one for name, one in by_key.items() if name in known)
        rows = (tables.SIGHTINGS.row(one) | {"saved_at": saved_at} for one in here)
        self._write(_upsert(self._connection.dialect.name, tables.sightings), rows)

    def insert_rows(self, table: Table, rows: Iterable[Row]) -> None:
        """Insert rows as another database has them."""
        self._write(insert(table), rows)

    def _put(self, mapping: Mapping[V], values: Iterable[V]) -> None:
        self._upsert(mapping.table, map(mapping.row, values))

    def _upsert(self, table: Table, rows: Iterable[Row]) -> None:
        self._write(_upsert(self._connection.dialect.name, table), rows)

    def _write(self, statement: Executable, rows: Iterable[Row]) -> None:
        remaining = iter(rows)
        while part := list(islice(remaining, ROWS_AT_ONCE)):
            self._run(statement, part)

    def _delete(self, table: Table, column: str, keys: Iterable[str | int]) -> None:
        for some in chunks(keys):
            self._run(delete(table).where(table.c[column].in_(some)))

    def _last_number(self) -> int:
        return self._counter(_LAST_MAINTENANCE)

    def _count_up_to(self, number: int) -> None:
        if number > self._last_number():
            self._upsert(tables.counters, [{"name": _LAST_MAINTENANCE, "value": number}])

    def _operations(self, results: Iterable[CursorResult[Any]]) -> dict[str, Operation]:
        found = super()._operations(results)
        self._live.update((operation.id, operation.live) for operation in found.values())
        return found

    def _save_operations(self, operations: dict[str, Operation]) -> None:
        """Write operations; where its events and machines are found is written with a new one."""
        events, stored = tables.events, self._live
        for result in self._each(_LIVE, [id_ for id_ in operations if id_ not in stored]):
            stored |= {row.id: row.live for row in result.all()}
        new = [operation for id_, operation in operations.items() if id_ not in stored]
        live = {id_: operation.live for id_, operation in operations.items()}
        turned = [id_ for id_, is_live in live.items() if stored.get(id_, is_live) != is_live]
        stored |= live
        self._put(tables.OPERATIONS, operations.values())
        self._write(
            insert(events),
            (
                {"id": event.id, "operation": o.id, "scope": event.scope, "live": o.live}
                for o in new
                for event in (*o.events, *o.dropped)
            ),
        )
        self._write(
            insert(tables.operation_machines),
            (
                {"machine": machine, "operation": operation.id}
                for operation in new
                for machine in {key(name) for name in operation.machines}
            ),
        )
        for some in chunks(turned):
            of_these = update(events).where(events.c.operation.in_(some))
            self._run(of_these.values(live=~events.c.live))


_MACHINE_KEYS = among(select(tables.machines.c.key), tables.machines.c.key)

_LIVE = among(select(tables.operations.c.id, tables.operations.c.live), tables.operations.c.id)

_SEEN_AT = {
    tables.sightings: {"asked_at": False, "saved_at": True},
    tables.relays: {"heard_at": False, "due_at": False, "held_for": False},
    tables.relay_tokens: {"created_at": False, "used_at": False},
    tables.replicas: {"beat_at": True},
}
"""When something was seen, and whether that is dated by the clock that dates rows."""

_RELEASE = delete(tables.holds).where(
    tables.holds.c.kind == bindparam("_kind"), tables.holds.c.name == bindparam("_name")
)

_APPEND = (
    "INSERT INTO changes (sequence, token, replica, at, format, body) "
    "SELECT coalesce(max(sequence), 0) + ?, ?, ?, ?, ?, ? FROM changes"
)

_APPEND_NEWS = "INSERT INTO news (sequence, at, items) VALUES (?, ?, ?)"


@functools.cache
def _upsert(dialect: str, table: Table) -> Executable:
    """Return the statement that writes a row over the one of the same key."""
    statement = _INSERTS[dialect](table)
    # An operation keeps its primary key, its place in the order of first saving.
    key_of = ["id"] if table is tables.operations else list(table.primary_key.columns.keys())
    kept = {*key_of, "sequence"}
    new = {one.name: statement.excluded[one.name] for one in table.c if one.name not in kept}
    where = None
    if table is tables.sightings:  # replicas tell of the same machine, in any order
        where = table.c.asked_at <= statement.excluded.asked_at
        silent = statement.excluded.agent.is_(None)
        new |= {n: case((silent, table.c[n]), else_=new[n]) for n in ("agent", "reason")}
    if table is tables.relays:
        where = table.c.heard_at <= statement.excluded.heard_at
        del new["held_for"]  # `mark_relay` alone writes it
    upsert: Executable = statement.on_conflict_do_update(
        index_elements=key_of, set_=new, where=where
    )
    return upsert


Told: TypeAlias = Callable[[str, int, int], None]
"""Called with a table, and how many of how many rows are copied."""


def copy(source: Reading, target: Transaction, told: Told) -> int:
    """Copy a whole store into an empty one, and return how many rows that were.

    It copies rows, not values: what the rules never look at again is the same to the byte, and a
    new table is copied as soon as it is in the schema.

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
