"""SQLite: how it is set up, what its errors mean, and what is looked at before it may write."""

import os
import sqlite3
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool

from forewarn.store import schema
from forewarn.store.port import ChangesBeside, StoreError, StoreUnavailable, StoreUnusable

BUSY_SECONDS = 10
"""How long another program's lock (a backup's, a shell's) is waited for."""

IDLE_CONNECTIONS = 4
"""Connections kept open: a writer's and a few readers'; each may hold 2 MB of pages."""

MAX_CONNECTIONS = 36
"""Connections at once: one for each of asyncio's 32 worker threads, and a few."""

KEPT_WAL_BYTES = 64 * 2**20
"""What the -wal file is cut back to after a large transaction."""

APPLICATION_ID = int.from_bytes(b"Fwrn", "big")
"""SQLite's mark of whose database it is (`file` shows it); set with the first schema."""

WRITING = "forewarn_writing"
"""The execution option of a connection whose transactions write."""

_MAGIC = b"SQLite format 3\0"

_EMPTY = "it is empty: put the backup back, or remove it for a new database"

_DAMAGED = "the file is damaged: restore it from a backup"

_INTEGRITY = text("PRAGMA integrity_check(1)")

_SOUND = "ok"
"""What SQLite answers where it finds no fault."""

_GRANT = "give the service's user the right to, or name another"

_AWAY = {
    sqlite3.SQLITE_FULL: "the disk is full: make room",
    sqlite3.SQLITE_BUSY: "another program holds it: end that program's transaction",
    sqlite3.SQLITE_LOCKED: "another connection holds it: wait",
    sqlite3.SQLITE_IOERR: "the disk does not read or write: look at the disk and its quotas",
    sqlite3.SQLITE_CANTOPEN: "its files cannot be opened now: look at the limit of open files",
    sqlite3.SQLITE_NOMEM: "the memory is used up: make room",
}
_USELESS = {
    sqlite3.SQLITE_READONLY: f"it may not be written to: {_GRANT}",
    sqlite3.SQLITE_PERM: f"it may not be written to: {_GRANT}",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: "the file is no SQLite database: name another, or move it away",
}


def file_engine(path: Path) -> Engine:
    """Return an engine over a file; nothing is opened yet."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=QueuePool,
        pool_size=IDLE_CONNECTIONS,
        max_overflow=MAX_CONNECTIONS - IDLE_CONNECTIONS,
        pool_timeout=BUSY_SECONDS,
        connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
    )
    _set_up(engine)
    return engine


def memory_engine() -> Engine:
    """Return an engine over one connection to a database in memory."""
    engine = create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    _set_up(engine)
    return engine


def _set_up(engine: Engine) -> None:
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)


def _on_connect(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    # The driver must not begin by itself: it does so only before the first writing statement,
    # and what was read before that is then no part of the transaction (increments get lost).
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        "synchronous = FULL",  # what was committed survives the loss of power
        "foreign_keys = ON",
        f"busy_timeout = {BUSY_SECONDS * 1000}",
        f"journal_size_limit = {KEPT_WAL_BYTES}",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    writing = connection.get_execution_options().get(WRITING, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


def explain(error: BaseException, place: str) -> StoreError | None:
    """Return what an error of SQLite's means, None where it is a mistake of ours."""
    original = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF  # the upper bits are details
    name = getattr(original, "sqlite_errorname", "")
    if code in _AWAY:
        return StoreUnavailable(
            f"{place} cannot be used now, {_AWAY[code]} and try again; nothing was changed ({name})"
        )
    if code in _USELESS:
        return StoreUnusable(f"{place} cannot be used, {_USELESS[code]} ({name})")
    return None


def check_place(path: Path) -> None:
    """See that a database can be there, without touching anything.

    Raises:
        StoreUnusable: It cannot: what is wrong, and what to do.
    """
    try:
        fault = _fault_of_place(path)
    except OSError as error:
        fault = f"it may not be looked at ({error.strerror}): {_GRANT}"
    if fault:
        raise StoreUnusable(f"{path} cannot be used, {fault}")


def _fault_of_place(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist: make it, or name another"
    if not os.access(folder, os.W_OK | os.X_OK):
        return (
            f"the folder {folder} may not be written to, "
            f"and SQLite keeps files beside the database: {_GRANT}"
        )
    if not path.exists():
        return ""
    if not path.is_file():
        return "it is no file (a folder, a device or a pipe): name a file"
    if not os.access(path, os.R_OK | os.W_OK):
        return f"it may not be read or written to: {_GRANT}"
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if not head:
        return _EMPTY
    if head != _MAGIC:
        return f"{_USELESS[sqlite3.SQLITE_NOTADB]}; it was left as it is"
    return ""


def check_whole(path: Path) -> None:
    """See that no changes stand beside the file, without opening it.

    As soon as anything opens a database, SQLite puts them into it, and does not ask whether the
    two belong together: after a crash they do, beside a copy put in its place they do not.

    Raises:
        ChangesBeside: They do.
    """
    beside = _filled(path, "-wal") or _filled(path, "-journal")
    if beside is not None:
        raise ChangesBeside(path, beside)


def _filled(path: Path, end: str) -> Path | None:
    beside = path.with_name(path.name + end)
    return beside if beside.exists() and beside.stat().st_size else None


def check_contents(path: Path, *, thoroughly: bool = False) -> None:
    """See that a database there is one that this release can use, without touching it.

    Args:
        path: A file where `check_place` found no fault; nobody else of ours has it open.
        thoroughly: Whether each page is looked at, as a copy's should be: what was cut short or
            mixed with another state can pass for whole otherwise.

    Raises:
        StoreUnusable: It is empty, another program's, a newer release's, or damaged.
    """
    # Opened in the usual way SQLite would make files beside it, and tidy up after a crash.
    # Without a -wal file nothing is pending, and the file alone says all.
    alone = _filled(path, "-wal") is None
    uri = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if alone else "")
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True), poolclass=StaticPool
    )
    try:
        with engine.connect() as connection:
            empty = not connection.execute(text("SELECT count(*) FROM sqlite_master")).scalar()
            ours = connection.execute(text("PRAGMA application_id")).scalar() == APPLICATION_ID
            found = schema.revision(connection)
            fault = connection.execute(_INTEGRITY).scalar() if thoroughly else _SOUND
    except DBAPIError as error:
        explained = explain(error, str(path))
        if explained is None:
            raise
        raise explained from error
    finally:
        engine.dispose()
    if empty:
        raise StoreUnusable(f"{path} cannot be used, {_EMPTY}")
    if not ours:
        raise StoreUnusable(
            f"{path} cannot be used, it is another program's SQLite database: name another file"
        )
    if fault != _SOUND:
        raise StoreUnusable(f"{path} cannot be used, {_DAMAGED} ({' '.join(str(fault).split())})")
    if not schema.is_known(found):
        raise StoreUnusable(
            f"{path} cannot be used, it was written by a newer release of Forewarn "
            f"(its schema is {found!r}, this release's is {schema.HEAD!r}): "
            "install that release, or name another file; it was left as it is"
        )


def create_or_migrate(engine: Engine) -> None:
    """Make the database of a file what this release needs, in one transaction.

    Raises:
        StoreUnusable: Its file system is not fit for it.
        DBAPIError: It cannot be done now; nothing of it was.
    """
    with engine.connect() as connection:
        # Outside any transaction: the journal cannot be changed within one. The file keeps it.
        cursor = connection.connection.cursor()
        cursor.execute("PRAGMA journal_mode = WAL")
        mode = cursor.fetchone()
        cursor.close()
    if mode != ("wal",):
        raise StoreUnusable(
            f"{engine.url.database} cannot be used, its file system shares no memory between "
            "connections, as SQLite's write-ahead log needs: name a file on a local disk"
        )
    with engine.execution_options(**{WRITING: True}).begin() as connection:
        schema.migrate(connection)
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
