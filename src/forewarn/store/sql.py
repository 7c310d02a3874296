"""The store over connections: transactions, writing and copying, whatever the database."""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from forewarn.maintenance.accounts import AuditRecord
from forewarn.maintenance.model import (
    Changes,
    Hold,
    Maintenance,
    Operation,
    Sighting,
)
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.webhooks import Webhook
from forewarn.maintenance.world import KINDS, NOTHING
from forewarn.store import schema
from forewarn.store.connections import ROWS_AT_ONCE, Begin, C, DatabaseConnection, Pool, Row
from forewarn.store.port import (
    JUMP,
    NUL,
    ChangeRecord,
    Membership,
    Position,
    Replica,
    StoreUnavailable,
    StoreUnusable,
    micros,
    refuse_nul,
)
from forewarn.store.queries import LAST_MAINTENANCE, TRIMMED_NEWS, Reading
from forewarn.store.schema import encode, names_of

R = TypeVar("R", bound=Reading)

Had: TypeAlias = Mapping[tuple[str, Any], Any]
"""The values that the store has, by table of the World and key; None for none."""

TURN_SECONDS = 30
"""The longest wait of a transaction for the one before it: many times the longest (a whole fleet).
"""


def _upsert(
    table: str,
    columns: str,
    *keys: str,
    when: str = "",
    but: Mapping[str, str] = {},
    changed: Sequence[str] = (),
) -> str:
    """Return the statement that writes a row over the one with the same keys.

    Of that one, it writes all columns, or those that are `changed`.
    """
    names = changed or [name for name in columns.split(", ") if name not in keys]
    new = ", ".join(f"{name} = {but.get(name, f'excluded.{name}')}" for name in names)
    condition = f" WHERE {when}" if when else ""
    return (
        f"INSERT INTO {table} ({columns}) {{rows}} "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {new}{condition}"
    )


@functools.cache
def _put(table: str, changed: Sequence[str]) -> str:
    """Return the statement that writes a row, or these columns over those of the same key."""
    columns, _ = schema.ROWS[table]
    return _upsert(table, ", ".join(columns), columns[0], changed=changed)


_PUT: Final = _upsert("state", "kind, key, body", "kind", "key")
_ADD: Final = "INSERT INTO state (kind, key, body) {rows}"
_REMOVE: Final = "DELETE FROM state WHERE (kind, key) IN ({rows})"
_NAME: Final = "INSERT INTO names (name, operation) {rows} ON CONFLICT DO NOTHING"
_AUDIT: Final = "INSERT INTO audit (number, at, by, done, login, body) {rows}"
_PUT_REPLICA: Final = _upsert("replicas", "name, beat, body", "name")
_AGENT_SAID: Final = "CASE WHEN excluded.agent = '' THEN sightings.{0} ELSE excluded.{0} END"
_SEE: Final = _upsert(
    "sightings",
    "machine, asked, saved, version, agent, reason",
    "machine",
    when="sightings.asked <= excluded.asked",  # replicas tell of the same machine, in any order
    but={name: _AGENT_SAID.format(name) for name in ("agent", "reason")},
)
_HEAR: Final = _upsert(
    "relays",
    "host, heard, due, held, body",
    "host",
    when="relays.heard <= excluded.heard",
    but={"held": "relays.held"},  # `mark_relay` alone writes it
)
_SET_BACK: Final = (
    # Where a time later than now does harm, and whether the clock that dates rows has written it.
    ("changes", "at", True),  # `trim` ends at the first row that is not old
    ("news", "at", True),
    ("sightings", "asked", False),
    ("sightings", "saved", True),
    ("relays", "heard", False),
    ("relays", "due", False),
    ("relays", "held", False),
    ("replicas", "beat", True),
)


class Transaction(Reading):
    """Reading and writing as one: all of it is durable after the commit, or none of it is."""

    def __init__(self, connection: DatabaseConnection) -> None:
        super().__init__(connection)
        self.appended: Position | None = None
        """The change of this transaction in the outbox."""
        self._last = connection.last_change

    def position(self) -> Position:
        """Return the place of the last change of the outbox, this transaction's too."""
        return self.appended or super().position()

    def save(
        self,
        changes: Changes,
        had: Had = NOTHING,
        retired: Mapping[str, int | None] = NOTHING,
    ) -> None:
        """Write new values over the old; later readings of this transaction see them.

        Of operations and maintenances that are not in `had`, all is written, names too. `retired`
        are the last incarnations of removed scopes, by key; None for one that is there again.

        Removed values go last. A machine's scope, and an operation's maintenance, is there already
        or comes with it; a scope goes with or after its machines. An operation keeps its events,
        and these their scope and machines.

        Released holds go first: by kind and name, whatever else the value says. A new one is the
        only one of its kind and name. Of tombstones, revived ones go first. A host's latest drain
        replaces the one before. Revoked tokens go first; a new one is the only one of its name. Of
        relays' tokens, void ones go first, and one of a known digest replaces it.
        """
        self._remove("hold", map(_hold_key, changes.released))
        self._remove("tombstone", changes.revived)
        self._remove("token", changes.revoked_tokens)
        put: dict[tuple[str, str], object] = {}
        for kind in ("scope", "machine", "tombstone", "drain", "token"):
            values, key_of = getattr(changes, f"{kind}s"), KINDS[f"{kind}s"].key_of
            put |= {(kind, key_of(one)): one for one in values}
        put |= {("retired", name): at for name, at in retired.items() if at is not None}
        self._put(put)
        self._remove("retired", (name for name, at in retired.items() if at is None))
        # A second one of a name is a mistake of ours.
        self._put({("hold", _hold_key(one)): one for one in changes.holds}, _ADD)
        if changes.maintenances:
            self._save_maintenances({one.number: one for one in changes.maintenances}, had)
        if changes.operations:
            self._save_operations({one.id: one for one in changes.operations}, had)
        self._remove("machine", changes.removed_machines)
        self._remove("scope", changes.removed_scopes)
        if changes.removed_machines:
            if keep_out := self._connection.KEEP_REPORTS_OUT:  # the last: they wait from here on
                self._run(keep_out)
            self._among("DELETE FROM sightings WHERE machine {among}", changes.removed_machines)

    def next_maintenance_number(self) -> int:
        """Return the least number, from 1, above that of every maintenance ever saved.

        It is taken when a maintenance with it is saved: a refused request takes none.
        """
        return self._number(LAST_MAINTENANCE) + 1

    def skip_maintenance_numbers(self, count: int) -> None:
        """Skip this many numbers: maintenances that the store has lost may have had them."""
        self._count_up_to(self._number(LAST_MAINTENANCE) + count)

    def purge(self, ended_before: datetime, limit: int) -> int:
        """Forget up to `limit` operations that ended before this, the first ended first.

        A maintenance goes with the last of its operations; one without operations, with those of a
        later one. Its number is not given again. The operations of an open maintenance stay until
        it is over. Holds, tombstones and drains are not history: they stay, whatever happens to the
        operations.

        Returns:
            The number of operations that were forgotten.
        """
        old = self._run(
            "SELECT id, maintenance FROM operations WHERE live = 0 AND ended < ? "
            "AND maintenance NOT IN "
            "(SELECT number FROM maintenances WHERE open = 1) ORDER BY ended, number LIMIT ?",
            micros(ended_before),
            limit,
        )
        ids = [id_ for id_, _ in old]
        self._among("DELETE FROM names WHERE operation {among}", ids)
        self._among("DELETE FROM operations WHERE id {among}", ids)
        if old:  # one whose hosts were all drained has no operations: it goes with those after it
            self._run(
                "DELETE FROM maintenances WHERE open = 0 AND number <= ? AND NOT EXISTS "
                "(SELECT 1 FROM operations WHERE maintenance = maintenances.number)",
                max(number for _, number in old),
            )
        return len(old)

    def record(self, records: Sequence[AuditRecord]) -> None:
        """Add records to the audit log, each with the next number, whatever its `sequence` is."""
        ((last,),) = self._run("SELECT coalesce(max(number), 0) FROM audit")
        self._connection.write(
            _AUDIT,
            (
                (number, micros(one.at), one.by, int(one.done), int(one.is_login), _body(one))
                for number, one in enumerate(records, last + 1)
            ),
        )

    def purge_audit(self, before: datetime, limit: int, *, refusals: int) -> int:
        """Forget up to `limit` records that were written before this, the oldest first.

        Of refused requests, only the latest `refusals` are kept, whatever their age.

        Returns:
            The number of records that were forgotten.
        """
        oldest = "SELECT number FROM audit WHERE at < ? ORDER BY at LIMIT ?"
        refused = "SELECT number FROM audit WHERE done = 0 ORDER BY number DESC LIMIT ? OFFSET ?"
        old = [number for (number,) in self._run(oldest, micros(before), limit)]
        old += [number for (number,) in self._run(refused, limit - len(old), refusals)]
        self._among("DELETE FROM audit WHERE number {among}", old)
        return len(set(old))

    def put_webhooks(self, webhooks: Iterable[Webhook]) -> None:
        """Write webhooks over those of the same names."""
        self._put({("webhook", one.name): one for one in webhooks})

    def remove_webhooks(self, names: Iterable[str]) -> None:
        """Forget webhooks; a name that is not there does no harm."""
        self._remove("webhook", names)

    def put_setting(self, name: str, value: str) -> None:
        """Save a value for the service itself."""
        refuse_nul(name)
        self._put({("setting", name): value})

    def now(self) -> datetime | None:
        """Return the time of the transaction, None where the process's own clock counts.

        It is the database's clock at the beginning, and later than the last change unless the clock
        was set back by more than JUMP.
        """
        return self._connection.began_at

    def append(self, change: ChangeRecord, news: bytes = b"", skip: int = 0) -> Position:
        """Add a change to the outbox, at most one in a transaction; return its place.

        `news` are the items for outsiders; empty for none. `skip` is how many numbers to skip:
        changes that the store has lost may have had them.
        """
        assert self.appended is None, "a transaction has one change"
        number = self.position().sequence + 1 + skip
        at, body = micros(change.at), change.body.decode()
        row = (number, change.token, change.replica, at, change.format, change.tally, body)
        self._connection.send("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        if news:
            told = (number, at, news.decode())
            self._connection.send("INSERT INTO news VALUES (?, ?, ?)", told)
        if announce := self._connection.ANNOUNCE:
            self._connection.send(announce, (str(number),))
        self.appended = Position(number, change.token)
        return self.appended

    def trim(self, before: datetime, limit: int) -> int:
        """Forget up to `limit` of the oldest changes made before this; return the number of these.

        The last change stays, whatever its age.
        """
        # Without the last that was found: it is the last of all, or one too many.
        return len(self._trim("changes", self._oldest("changes", limit + 1)[:-1], before))

    def trim_news(self, before: datetime, limit: int) -> int:
        """Forget the news of up to `limit` of the oldest transactions, of those made before this.

        Returns:
            The number of these transactions.
        """
        old = self._trim("news", self._oldest("news", limit), before)
        if old:
            self._put({("number", TRIMMED_NEWS): old[-1]})
        return len(old)

    def _oldest(self, table: str, limit: int) -> list[Row]:
        return self._run(f"SELECT number, at FROM {table} ORDER BY number LIMIT ?", limit)

    def _trim(self, table: str, oldest: Iterable[Row], before: datetime) -> list[int]:
        old = [number for number, _ in takewhile(lambda row: row[1] < micros(before), oldest)]
        if old:
            self._run(f"DELETE FROM {table} WHERE number <= ?", old[-1])
        return old

    def set_back(self, now: datetime, at: datetime) -> None:
        """Date changes, news and sightings that are later than now to now.

        The clock was set back: old requests would count as later ones. Now is `at` by the clock
        that dates rows.
        """
        for table, name, by_row in _SET_BACK:
            to = micros(at if by_row else now)
            self._run(f"UPDATE {table} SET {name} = ? WHERE {name} > ?", to, to)

    def mark_relay(self, host: str, held_for: datetime | None) -> None:
        """Record the absence of its relay for which a host is held; None: it is over."""
        held = None if held_for is None else micros(held_for)
        self._run("UPDATE relays SET held = ? WHERE host = ?", held, host)

    def forget_relay(self, host: str) -> None:
        """Forget the report of this host's relay."""
        self._run("DELETE FROM relays WHERE host = ?", host)

    def put_relays(self, relays: Iterable[Relay]) -> None:
        """Write reports of relays, unless there are later ones; for `SqlStore.hear`."""
        by_host = {one.host: one for one in sorted(relays, key=attrgetter("host", "heard_at"))}
        self._connection.write(_HEAR, map(_row_of_relay, by_host.values()))  # in one order

    def forget_replicas(self, before: datetime) -> None:
        """Forget the replicas whose last report of themselves is from before this."""
        self._run("DELETE FROM replicas WHERE beat < ?", micros(before))

    def put_replica(self, replica: Replica) -> None:
        """Write a replica's report of itself; for `SqlStore.beat`."""
        beat_at = min(replica.beat_at, self.now() or replica.beat_at)
        row = (replica.name, micros(beat_at), _body(replica))
        self._connection.write(_PUT_REPLICA, [row])

    def put_sightings(self, seen: Mapping[str, Sighting], saved_at: datetime) -> None:
        """Write a replica's sightings of machines where there is none later; for `SqlStore.beat`.

        A machine that has left the fleet is left out: the replica may not know yet that it has.
        """
        listed = "SELECT key FROM state WHERE kind = 'machine' AND key {among}"
        known = {name for (name,) in self._among(listed, seen)}
        saved = micros(saved_at)
        self._connection.write(
            _SEE,
            (
                (name, micros(one.asked_at), saved, one.version, one.agent or "", one.reason)
                # In one order: two replicas may write of the same machines at once.
                for name, one in sorted(seen.items())
                if name in known
            ),
        )

    def _put(self, values: Mapping[tuple[str, str], object], how: str = _PUT) -> None:
        rows = ((*name, _body(value)) for name, value in values.items())
        self._connection.write(how, rows)

    def _remove(self, kind: str, keys: Iterable[str]) -> None:
        self._connection.write(
            _REMOVE, ((kind, name) for name in dict.fromkeys(keys) if "\0" not in name)
        )

    def _count_up_to(self, number: int) -> None:
        if number > self._number(LAST_MAINTENANCE):
            self._put({("number", LAST_MAINTENANCE): number})

    def _save_maintenances(self, maintenances: Mapping[int, Maintenance], had: Had) -> None:
        self._overwrite("maintenances", maintenances, had)
        self._count_up_to(max(maintenances))

    def _save_operations(self, operations: Mapping[str, Operation], had: Had) -> None:
        self._overwrite("operations", operations, had)
        new = (n for n in operations if had.get(("operations", n)) is None)
        self._connection.write(_NAME, ((name, n) for n in new for name in names_of(operations[n])))

    def _overwrite(self, table: str, values: Mapping[Any, Any], had: Had) -> None:
        """Write values by key.

        Only columns with something new are set: SQLite writes to each index over one that is set.
        """
        (_, *searched, body), found_in = schema.ROWS[table]
        rows: dict[tuple[str, ...], list[Row]] = {}
        for key, value in values.items():
            new, old = found_in(value), had.get((table, key))
            changed = searched
            if old is not None:
                each = zip(searched, new, found_in(old), strict=True)
                changed = [name for name, is_, was in each if is_ != was]
            rows.setdefault((*changed, body), []).append((key, *new, _body(value)))
        for columns, its in rows.items():
            self._connection.write(_put(table, columns), its)


def _body(value: object) -> str:
    body = encode(value)
    if NUL in body:
        refuse_nul(value)
    return body.decode()


def _hold_key(hold: Hold) -> str:
    return f"{hold.kind.value} {hold.name}"


def _row_of_relay(one: Relay) -> Row:
    held = None if one.held_for is None else micros(one.held_for)
    return one.host, micros(one.heard_at), micros(one.due_at), held, _body(one)


class SqlStore(Generic[C]):
    """The place of everything that must survive a crash: a database with this release's schema.

    StoreUnavailable: it cannot be used now, and nothing was changed. StoreUnusable: it was damaged
    or taken away since it was opened.
    """

    def __init__(self, pool: Pool[C]) -> None:
        self._pool = pool
        self._place = pool.place
        self._turn = threading.Lock()
        self._writing: int | None = None
        """The thread that has its turn to write."""

    @property
    def shared(self) -> bool:
        """True if several replicas may have it open; `join` is only for such a store."""
        return False

    @contextmanager
    def write(self) -> Iterator["Transaction"]:
        """Open the one writing transaction: commit at the block's end, roll back if it raises.

        A thread that has one open must not open another. After a statement that failed nothing is
        committed, even if the block goes on. Where the answer to a commit is lost, the store looks
        for the change that the transaction appended: if it is there, the block ends as usual.

        Raises:
            Refused: A text has a NUL character, which PostgreSQL cannot store.
            OutcomeUnknown: The answer to the commit was lost, and its effect could not be found out
                in time. A transaction without a change in the outbox ends so at once.
            StoreUnusable: The store was damaged or taken away since it was opened.
        """
        me = threading.get_ident()
        assert self._writing != me, "this thread has a transaction open already"
        if not self._turn.acquire(timeout=TURN_SECONDS):
            raise StoreUnavailable(
                f"cannot write to {self._place} now: another transaction has been open for more "
                f"than {TURN_SECONDS} s; nothing was changed; try again"
            )
        self._writing = me
        try:
            with self._opened(Transaction, lambda one: one.begin(writing=True)) as transaction:
                yield transaction
        finally:
            self._writing = None
            self._turn.release()

    @contextmanager
    def read(self) -> Iterator[Reading]:
        """Open a view of this instant; any thread may, while another writes."""
        with self._opened(Reading, lambda one: one.begin(writing=False)) as reading:
            yield reading

    def _report(self, *, sightings: bool = False) -> AbstractContextManager[Transaction]:
        """Open a transaction for reports; `sightings` is True if it writes such."""
        del sightings
        return self.write()

    def beat(self, replica: Replica, seen: Mapping[str, Sighting] = NOTHING) -> datetime:
        """Write a replica's report of itself and its sightings, in a transaction of its own.

        Of a machine, the latest sighting of any replica counts; its agent's report stays until the
        agent says something else. Nothing is written of a machine that has left the fleet. In a
        shared store it does not wait for the writing one, and may be lost in a crash.

        It counts from `replica.beat_at`, or from now if that is earlier: the process may have stood
        still since it made the report. If `replica.beat_at` is later by more than JUMP, the clock
        was set back and the process does not know it yet: its sightings are not written.

        Returns:
            The database's time, or `replica.beat_at` where the process's own clock counts.
        """
        with self._report(sightings=bool(seen)) as transaction:
            at = transaction.now() or replica.beat_at
            transaction.put_replica(replica)
            if replica.beat_at - at <= JUMP:
                transaction.put_sightings(seen, at)
        return at

    def see(self, seen: Mapping[str, Sighting], at: datetime) -> None:
        """Write sightings of machines, as `beat` does, where no replica has a row."""
        with self.write() as transaction:
            transaction.put_sightings(seen, at)

    def hear(self, relays: Iterable[Relay], at: datetime | None = None) -> None:
        """Write reports of relays, in a transaction of its own.

        Of a relay, the latest report to any replica counts; `held_for` stays as it is. Nothing is
        written if `at`, the database's time as the process has it, is later than that by more than
        JUMP: the clock was set back. In a shared store it does not wait for the writing one, and
        may be lost in a crash.
        """
        with self._report() as transaction:
            now = transaction.now()
            if at is None or now is None or at - now <= JUMP:
                transaction.put_relays(relays)

    def join(self, name: str) -> Membership:
        """Take the name of a replica for this process, as long as it lives.

        Raises:
            StoreUnavailable: There is no connection now.
            StoreUnusable: Another process has the name.
        """
        raise StoreUnusable(f"{self._place} is one process's: {name!r} cannot share it")

    def close(self) -> None:
        """Leave the store clean; nothing may be under way."""
        self._pool.close()

    @contextmanager
    def _opened(self, kind: Callable[[C], R], begin: Begin) -> Iterator[R]:
        """Begin a transaction; commit at the block's end, roll back if it raises."""
        connection = self._begun(begin)
        try:
            opened = kind(connection)
            yield opened
            connection.check()
            self._commit(connection, opened)
        except BaseException:
            connection.abandon()
            raise
        finally:
            self._pool.put_back(connection)

    def _begun(self, begin: Begin) -> C:
        connection = self._pool.take()
        try:
            connection.start(begin)
        except BaseException:
            self._pool.put_back(connection)
            raise
        return connection

    def _commit(self, connection: C, opened: Reading) -> None:
        del opened
        connection.commit()


Store: TypeAlias = SqlStore[Any]
"""A store, whichever database it is in."""

Told: TypeAlias = Callable[[str, int, int], None]
"""Called with a table, the number of rows copied, and the number of all its rows."""


def copy(source: Reading, target: Transaction, told: Told) -> int:
    """Copy a whole store into an empty one, and return the number of rows.

    It copies rows, not values: history that the rules never look at again is the same to the byte,
    and a new table is copied as soon as it is in the schema.

    Raises:
        StoreUnusable: The target is not empty.
    """
    old, new = source._connection, target._connection  # noqa: SLF001 - of this module
    copied = 0
    for table in schema.TABLES:
        if table == "meta":
            continue
        count = f"SELECT count(*) FROM {table}"
        ((there,),) = new.run(count)
        if there:
            raise StoreUnusable(
                f"the database to copy to is not empty: its table {table} has rows: create "
                "another one; nothing was changed"
            )
        ((all_of_it,),) = old.run(count)
        columns = ", ".join(schema.columns_of(table))
        rows = old.each(f"SELECT {columns} FROM {table} ORDER BY 1, 2")
        done = 0
        while part := list(islice(rows, ROWS_AT_ONCE)):
            new.write(f"INSERT INTO {table} ({columns}) {{rows}}", part)
            done += len(part)
            told(table, done, all_of_it)
        assert done == all_of_it, f"{table}: {done} of {all_of_it}"
        copied += done
    if count_on := new.COUNT_ON:
        new.run(count_on)
    return copied
