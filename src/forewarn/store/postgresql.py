"""PostgreSQL: connecting and setting up, the meaning of its errors, and one writer at a time.

Replicas take turns by an advisory lock, as SQLite's processes do by BEGIN IMMEDIATE. So a writing
transaction sees all that was committed before it, and the outbox is in the order of the commits.

A COMMIT whose answer is lost is looked up by the token of its change (`_resolve`): it took effect,
or nothing was changed, or, where nobody can look in time, its outcome is unknown.
"""

import functools
import hashlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict

from forewarn.clock import SystemClock
from forewarn.store import schema
from forewarn.store.connections import (
    IDLE_CONNECTIONS,
    ROWS_AT_ONCE,
    Begin,
    DatabaseConnection,
    Pool,
    Row,
)
from forewarn.store.port import (
    JUMP,
    Membership,
    OutcomeUnknown,
    Position,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    moment,
)
from forewarn.store.queries import Reading
from forewarn.store.sql import SqlStore, Transaction

OLDEST: Final = 14
"""The oldest release of PostgreSQL that its project still maintained when this was written."""

LOCK_TRIES: Final = 3
"""The number of requests for the write lock: a waiting client cannot tell a server that has gone
silent from another replica's long transaction, so the server is to answer in between."""

RETRY_SECONDS: Final = 0.2
"""The pause between two attempts to learn the outcome of a commit."""

FEW: Final = 3
"""Up to so many rows are written as values: an array takes 10 us to make. More go as arrays, and in
binary: as text each quote of a body is escaped, which takes 60 times as long."""

CHANNEL: Final = "forewarn"
_NUMBER: Final = re.compile(r"[0-9]{1,18}")

MARK: Final = "forewarn"
"""The comment on a table of ours, by which a database is known to be Forewarn's."""

T = TypeVar("T")

_CLOCK: Final = SystemClock()
_LOCK: Final = int.from_bytes(b"Fwrn", "big")
_TAKE_LOCK: Final = f"SELECT pg_advisory_xact_lock({_LOCK}, 0)"
_ALONE: Final = 1
"""The lock that replicas share as long as they have joined."""
_LOCK_SIGHTINGS: Final = f"SELECT pg_advisory_xact_lock({_LOCK}, 2)"
_SHARE_SIGHTINGS: Final = f"SELECT pg_advisory_xact_lock_shared({_LOCK}, 2)"
"""Beats share this lock, and a transaction that removes machines has it alone: a beat would write a
machine's row again that is being removed, and each would wait for rows that the other has."""
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_BEGIN_WRITING: Final = (
    # One round trip. Each statement of it has a snapshot of its own: the last one sees what was
    # committed while the lock was waited for.
    f"BEGIN; SET LOCAL lock_timeout = %d; {_TAKE_LOCK}; "
    f"SELECT {_NOW}, last.number, last.token, last.at FROM (SELECT 1) AS one LEFT JOIN "
    "(SELECT number, token, at FROM changes ORDER BY number DESC LIMIT 1) AS last ON true"
)
_COUNT_ON: Final = (
    "SELECT setval(pg_get_serial_sequence('operations', 'number'), "
    "coalesce(max(number), 0) + 1, false) FROM operations"
)
_BEGIN_READING: Final = (
    # A transaction that only reads blocks no other, and may take its time between two statements:
    # a start makes a whole fleet of the first one's rows.
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
    "SET LOCAL idle_in_transaction_session_timeout = %d; "
    "SELECT 1"  # this takes the snapshot
)
_TABLES: Final = (
    "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = ANY(current_schemas(false))"
)
_ROOM: Final = dict.fromkeys(
    ("state", "operations", "maintenances", "sightings"), "WITH (fillfactor = 70)"
)
"""Room in each page for the next value of a row that is there, without another entry in indexes."""
_BEGIN_REPORT: Final = f"BEGIN; SET LOCAL synchronous_commit = off; %sSELECT {_NOW}"

_PASSING: Final = {
    "08": "the connection was lost",
    "25006": "this server is a standby, and takes no changes",
    "25P03": "the transaction was held up for too long",
    "25P04": "the transaction took too long",
    "40": "another transaction was in the way",
    "53": "the server has no room, memory or connections left: make some free",
    "55P03": "a replica's transaction, or a lock of somebody else, is taking too long",
    "57": "the server is stopping or starting, or an administrator cancelled it",
    "58": "the server cannot read or write its files: look at its log and its disk",
}
"""States that pass, by SQLSTATE or its class, and what to do about each."""

_LASTING: Final = {
    "28": "the server does not let this user in: check the user, its password and pg_hba.conf",
    "3D": "there is no such database: create it, or name another one",
    "3F": "its schema is gone: restore it from a backup",
    "42501": "the user lacks the right: make it the owner of the database",
    "42703": "a column is missing: another release's schema, or one that was changed by hand",
    "42P01": "a table is missing: restore the database from a backup",
    "XX": "the database is damaged: restore it from a backup",
}
"""States that do not pass by themselves."""

_REFUSALS: Final = {
    "authentication failed": "28",
    "no password supplied": "28",
    "no pg_hba.conf entry": "28",
    "pg_hba.conf rejects": "28",
    "is not permitted to log in": "28",
    "permission denied for database": "42501",
    'role "': "28",
    'database "': "3D",
}
"""A connection that fails has no SQLSTATE; its message in English tells as much."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of waits, in seconds; tests have shorter ones."""

    lock: float = 10.0
    """A transaction for another replica's: clients give up after about as long."""
    silence: float = 2.0
    """An answer while nothing is asked but for the lock: see LOCK_TRIES."""
    answer: float = 10.0
    """An answer while the write lock is held: a server that is frozen, and a COMMIT whose standby
    is away, never answer. Many times the slowest statement of a writing transaction."""
    reading: float = 60.0
    """An answer to a question: a start reads the whole fleet by one."""
    outcome: float = 10.0
    """The outcome of a commit whose answer is lost, from when it was sent: where the answer was
    awaited for as long as that, nobody looks for it, for the client would go away meanwhile."""
    name: float = 7.0
    """A replica's name: the server notices after 5 s that its last holder's host lost its power."""
    idle: float = 5.0
    """A sign of life while a transaction is open: a process that is frozen with the write lock in
    hand loses it."""
    path: float = 5.0
    """A path that has gone dark: for an answer, and for the server to notice."""


_PATIENCE: Final = Patience()


class _PsycopgConnection(psycopg.Connection[Any]):
    """A connection that waits for each answer only for a time, and remembers warnings."""

    patience: float | None = None
    """Seconds to wait for an answer; None for no limit."""
    warned = ""

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for an answer; close the connection if none comes in time."""
        try:
            return super().wait(gen, interval, self.patience if timeout is None else timeout)
        except psycopg.OperationalError:
            if timeout is None and self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                self.pgconn.finish()
            raise


class Access:
    """The address of the database, and the way to connect to it.

    Args:
        url: As libpq takes it, without a password.
        password_file: The file with the password, read for each connection; None where libpq finds
            it, or none is needed.
        patience: The limits of waits.
    """

    def __init__(self, url: str, password_file: Path | None, patience: Patience) -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error as error:
            raise StoreUnusable(f"invalid store.url: {_one_line(error)}") from error
        milliseconds = int(patience.path * 1000)
        probes = max(1, int(patience.path) - 2)  # after 2 s, each second one
        options: dict[str, Any] = {
            "keepalives_idle": 2,
            "keepalives_interval": 1,
            "keepalives_count": probes,
            "tcp_user_timeout": milliseconds,
            "connect_timeout": 3,
            "target_session_attrs": "read-write",
            "application_name": "forewarn",
        }
        session = {
            "tcp_keepalives_idle": 2,
            "tcp_keepalives_interval": 1,
            "tcp_keepalives_count": probes,
            "tcp_user_timeout": milliseconds,
            "default_transaction_isolation": r"read\ committed",
            "lock_timeout": int(patience.lock * 1000),
            "idle_in_transaction_session_timeout": int(patience.idle * 1000),
        }
        self.patience = patience
        self._given = options | given
        own = " ".join(f"-c {name}={value}" for name, value in session.items())
        self._given["options"] = f"{own} {given.get('options') or ''}".rstrip()
        self._password_file = password_file
        hosts = given.get("host") or given.get("service") or "localhost"
        self.place = f"postgresql://{hosts}/{given.get('dbname') or ''}"
        """The database without its user, for messages."""

    def connect(self) -> _PsycopgConnection:
        """Return a new connection that begins no transaction by itself."""
        more = {} if self._password_file is None else {"password": _secret(self._password_file)}
        try:
            connection = _PsycopgConnection.connect(autocommit=True, **(self._given | more))
        except psycopg.Error as error:
            raise self.explain_failure(error) from error

        def warned(diagnostic: psycopg.errors.Diagnostic) -> None:
            if diagnostic.severity_nonlocalized == "WARNING":
                connection.warned = diagnostic.message_primary or "a warning"

        connection.add_notice_handler(warned)
        connection.patience = self.patience.answer
        return connection

    def explain_failure(self, error: psycopg.Error) -> StoreError:
        """Return the meaning of a failed connection."""
        said = _one_line(error)
        if (explained := explain(error, self.place)) is not None and error.sqlstate:
            return explained
        for words, code in _REFUSALS.items():
            if words in said:
                return StoreUnusable(f"cannot use {self.place}: {_LASTING[code]} ({said})")
        return StoreUnavailable(
            f"cannot connect to {self.place}: check that a server runs there that takes changes; "
            f"nothing was changed ({said})"
        )


def _secret(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        # Its group may read it, as systemd hands a credential on.
        if os.name != "posix" or not mode & 0o037:
            return path.read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreUnusable(f"cannot read the password file {path}: {error}") from error
    raise StoreUnusable(
        f"password file {path} has mode {mode:04o}, so others may read or change it: give it "
        "mode 0640 or 0600, and change the password if anybody has seen it"
    )


def explain(error: BaseException, place: str) -> StoreError | None:
    """Return the meaning of an error of PostgreSQL's, None for a mistake of ours."""
    if isinstance(error, StoreError):
        return error
    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate or ""
    said = _one_line(error)
    if lasting := _LASTING.get(state) or _LASTING.get(state[:2]):
        return StoreUnusable(f"cannot use {place}: {lasting} ({said})")
    if passing := _PASSING.get(state) or _PASSING.get(state[:2]):
        return StoreUnavailable(
            f"cannot use {place} now: {passing}; nothing was changed; try again ({said})"
        )
    # Without a state it is the driver's own: an argument that cannot be sent, or a lost connection.
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and not state:
        return StoreUnavailable(
            f"cannot use {place} now: the connection was lost; nothing was changed; try again "
            f"({said})"
        )
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def open_store(
    url: str,
    *,
    password_file: Path | None = None,
    patience: Patience = _PATIENCE,
    made: Callable[[], None] = lambda: None,
) -> "PostgresqlStore":
    """Open a database; one of another schema is refused, and left as it is.

    Args:
        url: As libpq takes it, such as `postgresql://forewarn@db1,db2/forewarn`; no password.
        password_file: The file with the password.
        patience: The limits of waits.
        made: Called after a new database of ours was made.

    Raises:
        StoreUnusable: It cannot be used as it is: the message says why and what to do, and
            nothing was changed.
        StoreUnavailable: It cannot be used now.
    """
    access = Access(url, password_file, patience)
    deciding = _Deciding(patience.idle / 3)
    pool = Pool(
        lambda: PostgresqlConnection(access, deciding),
        patience.lock,
        access.place,
        release=deciding.close,
    )
    with pool.opening(explain), pool.taken() as connection:
        new = _create(connection, access)
    if new:
        made()
    return PostgresqlStore(pool, access)


class PostgresqlConnection(DatabaseConnection):
    """A connection to a server."""

    ERRORS = psycopg.Error
    ANNOUNCE = f"SELECT pg_notify('{CHANNEL}', ?)"
    KEEP_REPORTS_OUT = _LOCK_SIGHTINGS
    COUNT_ON = _COUNT_ON
    driver: _PsycopgConnection

    def __init__(self, access: Access, deciding: "_Deciding") -> None:
        super().__init__(access.place, explain)
        self.driver = access.connect()
        self._patience = access.patience
        self._deciding = deciding
        self._unsent: list[tuple[str, Sequence[Any]]] = []
        """The statements without an answer that have not been sent: they go in one round trip."""
        self._sending = Lock()
        """Held while they are sent: a statement of another thread would break the pipeline."""

    @property
    def is_idle(self) -> bool:
        return self.driver.info.transaction_status == pq.TransactionStatus.IDLE

    def begin(self, *, writing: bool) -> None:
        driver, patience = self.driver, self._patience
        driver.patience = patience.answer
        if writing:
            now, number, token, at = _begin_writing(patience, driver)
            self.last_change = Position(number, token) if number else Position()
            self.began_at = moment(now)
            if number and (after := moment(at + 1)) - self.began_at <= JUMP:
                self.began_at = max(self.began_at, after)
            driver.patience = patience.answer
            self._deciding.connection = self
        else:
            driver.execute(_BEGIN_READING % int(patience.reading * 1000))
            driver.patience = patience.reading

    def begin_report(self, *, sightings: bool) -> None:
        """Begin a transaction that neither waits for the writing one nor for the disk."""
        self.driver.patience = self._patience.answer
        # The lock is before the time: others read what was written since their last look.
        lock = f"{_SHARE_SIGHTINGS}; " if sightings else ""
        (now,) = _last_row(self.driver.execute(_BEGIN_REPORT % lock))
        self.began_at, self.last_change = moment(now), None

    def end(self, *, commit: bool) -> None:
        if self._deciding.connection is self:
            self._deciding.connection = None
        if not commit:
            self._unsent = []
            self.driver.rollback()
        elif self._unsent:
            self._send_all(self.driver.commit)
        else:
            self.driver.commit()

    def _execute(self, sql: str, values: Sequence[Any]) -> Iterable[Row]:
        if self._unsent:
            self._send_all()
        cursor = self.driver.execute(_text(sql), values)
        return () if cursor.description is None else cursor

    def _send(self, sql: str, values: Sequence[Any]) -> None:
        self._unsent.append((_text(sql), values))

    def _write(self, sql: str, rows: list[Row]) -> None:
        if len(rows) <= FEW:
            marks = ", ".join([f"({', '.join(['%b'] * len(rows[0]))})"] * len(rows))
            self._send(sql.format(rows=f"VALUES {marks}"), [*itertools.chain(*rows)])
            return
        columns = [*map(list, zip(*rows, strict=True))]
        arrays = ", ".join(f"%b::{_type_of(column)}[]" for column in columns)
        self._send(sql.format(rows=f"SELECT * FROM unnest({arrays})"), columns)
        if len(rows) == ROWS_AT_ONCE:  # the rest of a history may follow: it does not fit in memory
            self._send_all()

    def say_alive(self) -> None:
        """Send the server a sign of life amid a transaction; any thread may."""
        if self._sending.acquire(blocking=False):
            try:
                self.driver.execute("SELECT 1")
            finally:
                self._sending.release()

    def _send_all(self, last: Callable[[], None] = lambda: None) -> None:
        unsent, self._unsent = self._unsent, []
        with self._sending, self.driver.pipeline():
            for sql, values in unsent:
                self.driver.execute(sql, values)
            last()

    @staticmethod
    def keys(keys: Collection[Any]) -> object:
        return list(keys)


@functools.cache
def _text(sql: str) -> str:
    return sql.format(among="= ANY(?)").replace("?", "%s")


def _type_of(column: list[Any]) -> str:
    """Return the type of a column; None alone is a number's, for no text may be missing."""
    return "text" if any(isinstance(value, str) for value in column[:1]) else "bigint"


def _begin_writing(patience: Patience, driver: _PsycopgConnection) -> tuple[Any, ...]:
    """Take the write lock; return the database's time and the last change."""
    turn = patience.lock / LOCK_TRIES
    driver.patience = turn + patience.silence
    begin = _BEGIN_WRITING % int(turn * 1000)
    for _ in range(LOCK_TRIES - 1):
        try:
            cursor = driver.execute(begin)
        except psycopg.errors.LockNotAvailable:
            driver.rollback()
        else:
            break
    else:
        cursor = driver.execute(begin)
    return _last_row(cursor)


def _last_row(cursor: psycopg.Cursor[Any]) -> tuple[Any, ...]:
    """Return the row of the last of several statements."""
    while cursor.nextset():
        pass
    found: tuple[Any, ...] | None = cursor.fetchone()
    assert found is not None
    return found


def _create(connection: PostgresqlConnection, access: Access) -> bool:
    """Make the schema that this release needs, in one transaction; return True if it was new."""
    driver, place = connection.driver, access.place
    driver.patience = access.patience.reading  # another replica may be at it
    with driver.transaction():
        driver.execute(_TAKE_LOCK)
        _check_server(driver, place)
        tables = driver.execute(_TABLES).fetchall()
        if not tables:
            for statement in schema.statements("BIGSERIAL PRIMARY KEY", "BIGINT", _ROOM):
                driver.execute(statement)
            driver.execute(f"COMMENT ON TABLE meta IS '{MARK}'")
            return True
        ours = (
            "SELECT obj_description(coalesce(to_regclass('meta'), to_regclass('alembic_version')))"
        )
        if driver.execute(ours).fetchone() != (MARK,):
            raise StoreUnusable(
                f"cannot use {place}: it has tables of another program: create a database for "
                "Forewarn alone; nothing was changed"
            )
        version = ""
        if ("meta",) in tables:
            ((version,),) = driver.execute("SELECT value FROM meta WHERE name = 'schema'")
        if trouble := schema.fault_of(version):
            raise StoreUnusable(f"cannot use {place}: {trouble}; nothing was changed")
    return False


def _check_server(driver: _PsycopgConnection, place: str) -> None:
    version = driver.info.server_version // 10_000
    encoding = driver.info.parameter_status("server_encoding") or ""
    (synchronous_commit,) = driver.execute("SHOW synchronous_commit").fetchone() or ("",)
    if fault := fault_of_server(version, encoding, synchronous_commit):
        raise StoreUnusable(f"cannot use {place}: {fault}")


def fault_of_server(version: int, encoding: str, synchronous_commit: str) -> str:
    """Return the reason why a server, or a database of it, cannot be used; `""` if it can."""
    if version < OLDEST:
        return f"PostgreSQL {version} is too old: upgrade it to {OLDEST} or newer"
    if encoding != "UTF8":
        return f"its encoding is {encoding}: create it with ENCODING 'UTF8'"
    if synchronous_commit == "off":
        return (
            "synchronous_commit is off, so a crash of the server would lose approvals: set it to "
            "on for this user"
        )
    return ""


class _Deciding:
    """Tells the server, as long as a transaction is open, that its process is not frozen.

    A decision about a whole fleet takes seconds, in which nothing is asked of the server.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.connection: PostgresqlConnection | None = None
        """The one with the open transaction."""
        self._closed = Event()
        self._thread = Thread(target=self._run, name="forewarn-deciding", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._seconds):
            if (connection := self.connection) is not None:
                # What is wrong with the connection, the next statement of the transaction says.
                with suppress(psycopg.Error):
                    connection.say_alive()


class PostgresqlStore(SqlStore[PostgresqlConnection]):
    """A store in a database that several replicas share."""

    def __init__(self, pool: Pool[PostgresqlConnection], access: Access) -> None:
        super().__init__(pool)
        self._access = access

    @property
    def shared(self) -> bool:
        return True

    def join(self, name: str) -> Membership:
        return _PostgresqlMembership(self._access, name)

    def _report(self, *, sightings: bool = False) -> AbstractContextManager[Transaction]:
        return self._opened(Transaction, lambda one: one.begin_report(sightings=sightings))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep replicas from joining; StoreUnusable if any has joined."""
        with self._access.connect() as connection:
            taken = connection.execute(f"SELECT pg_try_advisory_lock({_LOCK}, {_ALONE})").fetchone()
            if taken != (True,):
                raise StoreUnusable(
                    f"{self._place} is in use by a service: stop every replica, and try again"
                )
            yield

    def _begun(self, begin: Begin) -> PostgresqlConnection:
        # Those in the pool may all have been lost while they were idle: nothing was sent yet.
        # One that was waited for in vain tells of the others, too.
        deadline = _CLOCK.monotonic() + self._access.patience.silence
        left = IDLE_CONNECTIONS
        while True:
            connection = self._pool.take()
            try:
                connection.start(begin)
            except BaseException as error:
                lost = isinstance(error, StoreError) and connection.driver.closed
                self._pool.put_back(connection)
                if not (lost and left and _CLOCK.monotonic() <= deadline):
                    raise
                left -= 1
            else:
                return connection

    def _commit(self, connection: PostgresqlConnection, opened: Reading) -> None:
        driver = connection.driver
        driver.warned = ""
        began = _CLOCK.monotonic()
        try:
            connection.commit()
        except (StoreError, psycopg.Error) as error:
            if not driver.closed:
                raise  # an error that the server told is its answer
            if isinstance(opened, Transaction):
                if connection.last_change is None:
                    raise  # a report, which comes again
                self._resolve(opened.appended, error, _CLOCK.monotonic() - began)
            return  # a reading one had read all by then
        if driver.warned:
            # It is committed here. A standby may not have it, and may become the primary.
            raise OutcomeUnknown(
                f"{self._place} could not say that a standby has the change: look whether it was "
                f"made before you try again ({driver.warned})"
            )

    def _resolve(self, appended: Position | None, lost: Exception, waited: float) -> None:
        """Return if a change took effect whose answer was lost; otherwise raise the outcome.

        A session that still commits holds the write lock: with the lock in hand, a change that is
        not there will never be.
        """
        why = _one_line(lost.__cause__ or lost)
        deadline = _CLOCK.monotonic() + self._access.patience.outcome - waited
        while appended is not None and (left := deadline - _CLOCK.monotonic()) > 0:
            try:
                if self._is_committed(appended, left):
                    return
            except (psycopg.Error, StoreError):
                Event().wait(RETRY_SECONDS)  # for a standby to be promoted, or a path to come back
            else:
                raise StoreUnavailable(
                    f"the connection to {self._place} was lost before the change was committed: "
                    f"nothing was changed; try again ({why})"
                ) from lost
        raise OutcomeUnknown(
            f"the connection to {self._place} was lost while the change was committed: look "
            f"whether it was made before you try again ({why})"
        ) from lost

    def _is_committed(self, change: Position, seconds: float) -> bool:
        with self._access.connect() as driver:
            driver.patience = seconds
            driver.execute(f"BEGIN; SET LOCAL lock_timeout = {max(1, int(seconds * 1000))}")
            driver.execute(_TAKE_LOCK)
            # A write: a synchronous standby has the change before it, if this is committed.
            found = driver.execute(
                "UPDATE changes SET token = token WHERE number = %s AND token = %s",
                (change.sequence, change.token),
            )
            driver.warned = ""
            driver.execute("COMMIT")
            if driver.warned:
                raise StoreUnavailable(driver.warned)
            return found.rowcount == 1


class _PostgresqlMembership:
    """`port.Membership` by a connection of its own, which holds a lock on the name."""

    def __init__(self, access: Access, name: str) -> None:
        self._access = access
        self._connection = access.connect()
        lock = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
        try:
            milliseconds = int(access.patience.name * 1000)
            self._connection.execute(f"SET lock_timeout = {milliseconds}")
            shared = f"SELECT pg_advisory_lock_shared({_LOCK}, {_ALONE})"
            self._connection.execute(shared)
            self._connection.execute("SELECT pg_advisory_lock(%s)", (lock,))
            self._connection.execute(f"LISTEN {CHANNEL}")
        except psycopg.Error as error:
            self._connection.close()
            if error.sqlstate == "55P03":
                raise StoreUnusable(
                    f"another process is the replica {name!r} of {access.place}, or copies or "
                    "checks the database: end it, or set replica.name to another name"
                ) from error
            raise explain(error, access.place) or error from error

    def wait(self, seconds: float) -> int:
        try:
            told = [*self._connection.notifies(timeout=seconds, stop_after=1)]
        except psycopg.Error as error:
            raise explain(error, self._access.place) or error from error
        # Any user of the server may notify, of anything.
        numbers = [one.payload for one in told if _NUMBER.fullmatch(one.payload)]
        return max(map(int, numbers), default=0)

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()
