"""SQLite: opening and setting up a file, the meaning of its errors, and the creation of a new one.

On a full disk a write fails with StoreUnavailable and changes nothing, and reading goes on
(`explain` has the other errors).
"""

import functools
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from forewarn.store import schema
from forewarn.store.connections import DatabaseConnection, Pool, Row
from forewarn.store.port import (
    ChangesBeside,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from forewarn.store.sql import TURN_SECONDS, SqlStore, Store

BUSY_SECONDS = 5
"""The longest wait for another program's lock (a backup's, a shell's); waiting requests are refused
with it. Most clients wait 10 s or more."""

LOCK_SECONDS: Final = 1.0
"""The longest wait for another process's lock: a service that was killed while it started a program
leaves it with that child for a moment, and its successor must not give up on it."""

KEPT_WAL_BYTES = 64 * 2**20
"""The size to which the -wal file is cut back after a large transaction."""

MODE: Final = 0o600
"""The database's mode, which SQLite gives to the files beside it too: it tells of the whole fleet,
and nobody but the service needs it."""

APPLICATION_ID = int.from_bytes(b"Fwrn", "big")
"""SQLite's mark of the application that owns a database (`file` shows it); set with the first
schema."""

IN_MEMORY = Path(":memory:")

_MAGIC = b"SQLite format 3\0"

_NARROW = {"names": "WITHOUT ROWID"}
"""Table options: rows that are only their key need no row id; longer rows would be slower so."""

_FIRST_LOOK = "SELECT value FROM meta WHERE name = 'schema'"
"""The first read of a transaction, which fixes its view."""

_SOUND = "ok"
"""SQLite's answer where it finds no fault."""

_GRANT = "give the service's user that right, or name another path"
_EMPTY = "the file is empty: put the backup back, or remove the file for a new database"
_DAMAGED = "the file is damaged: restore it from a backup"
_OTHER_FORMAT = "the file is not an SQLite database: name another path, or move the file away"

_AWAY = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space",
    sqlite3.SQLITE_BUSY: "another program has it locked: end that program's transaction",
    sqlite3.SQLITE_LOCKED: "another connection has it locked: wait",
    sqlite3.SQLITE_IOERR: "reading or writing failed: check the disk, its quota and the file-size "
    "limit",
    sqlite3.SQLITE_CANTOPEN: "its files cannot be opened: check the limit of open files",
    sqlite3.SQLITE_NOMEM: "there is no memory left: free some",
    # A file system that turns read-only, after an error of the disk, can turn back.
    sqlite3.SQLITE_READONLY: "the file or its file system has become read-only: make it writable",
    sqlite3.SQLITE_PERM: "the file or its file system has become read-only: make it writable",
}
"""States that pass, and the remedy for each."""

_USELESS = {
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _OTHER_FORMAT,
    sqlite3.SQLITE_READONLY_DBMOVED: "the file was moved or removed while it was in use: put it "
    "back, and start again",
}


def open_store(
    path: Path,
    *,
    thoroughly: bool = False,
    whole: bool = False,
    made: Callable[[], None] = lambda: None,
) -> Store:
    """Open the database in this file; one of another schema is refused, and left as it is.

    Where there is no file, a new database is made. One process at a time has it: a lock is held on
    `<path>.lock` until the store is closed.

    Args:
        path: The database's file; its folder exists.
        thoroughly: True to check its indexes first too, and not only its pages.
        whole: True to refuse a file with changes beside it, such as a copy that was put in the
            place of another database.
        made: Called after a new database was made.

    Raises:
        ChangesBeside: `whole`, and there are such changes; nothing was opened.
        StoreUnusable: It cannot be used as it is: the message says why and what to do, and
            nothing was changed.
        StoreUnavailable: It cannot be used now.
    """
    path = path.resolve()
    _check_place(path)
    pool = connections(path, _lock(path))
    with pool.opening(explain):
        if whole:
            _check_whole(path)
        if path.exists():
            _check_contents(path, thoroughly=thoroughly)
        else:
            _create(path)
            made()
        with pool.taken() as connection:
            prepare(connection)
    return SqlStore(pool)


class DatabaseFile:
    """The file that all connections of a store have; not another one of the same name.

    If it is removed or replaced, what is written from then on is lost: SQLite goes on in the file
    that has no name any more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: tuple[int, int] | None = None

    def check(self) -> None:
        """Raise StoreUnavailable unless the file is still the one that was there first."""
        try:
            found = self._path.stat()
            identity = found.st_dev, found.st_ino
        except FileNotFoundError:
            identity = None
        except OSError as error:
            message = f"cannot use {self._path} now: {error.strerror}; nothing was changed"
            raise StoreUnavailable(message) from error
        self._known = self._known or identity
        if identity != self._known:
            raise StoreUnavailable(
                f"cannot use {self._path} now: the file was removed or replaced while it was in "
                "use, and what is written would be lost: put it back (a service that runs still "
                "has it open, below /proc/PID/fd), and try again; nothing was changed"
            )


class FleetingConnection(sqlite3.Connection):
    """A connection to a database in memory, which goes with it: nobody need close it first.

    Others warn of that from Python 3.13 on.
    """

    def __del__(self) -> None:
        """Close it."""
        self.close()


class SqliteConnection(DatabaseConnection):
    """A connection to a file; one in memory begins with the content of `image`."""

    ERRORS = sqlite3.Error
    driver: sqlite3.Connection

    def __init__(
        self, path: Path, place: str = "", image: bytes = b"", file: DatabaseFile | None = None
    ) -> None:
        super().__init__(place or str(path), explain)
        self._file = file
        if file is not None:
            file.check()
        # The driver must not begin by itself: it does so only before the first writing statement,
        # and what was read before that is then no part of the transaction (increments get lost).
        with self._told():
            self.driver = sqlite3.connect(
                path,
                timeout=BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                factory=FleetingConnection if path == IN_MEMORY else sqlite3.Connection,
            )
            if image:  # before any statement: those that are kept would crash
                self.driver.deserialize(image)
            for pragma in (
                "synchronous = FULL",  # what was committed survives the loss of power
                f"busy_timeout = {BUSY_SECONDS * 1000}",
                f"journal_size_limit = {KEPT_WAL_BYTES}",
            ):
                self.driver.execute(f"PRAGMA {pragma}")

    @property
    def is_idle(self) -> bool:
        return not self.driver.in_transaction

    def begin(self, *, writing: bool) -> None:
        if writing and self._file is not None:
            self._file.check()
        self.driver.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
        if not writing:
            self.driver.execute(_FIRST_LOOK)

    def end(self, *, commit: bool) -> None:
        if self.driver.in_transaction:  # after some errors SQLite has rolled back by itself
            self.driver.execute("COMMIT" if commit else "ROLLBACK")

    def _execute(self, sql: str, values: Sequence[Any]) -> Iterable[Row]:
        return self.driver.execute(_text(sql), values)

    def _send(self, sql: str, values: Sequence[Any]) -> None:
        self.driver.execute(_text(sql), values)

    def _write(self, sql: str, rows: list[Row]) -> None:
        self.driver.executemany(_text(sql, len(rows[0])), rows)

    @staticmethod
    def keys(keys: Collection[Any]) -> object:
        return msgspec.json.encode(keys).decode()


@functools.cache
def _text(sql: str, columns: int = 0) -> str:
    rows = f"VALUES ({', '.join('?' * columns)})"
    return sql.format(among="IN (SELECT value FROM json_each(?))", rows=rows)


class InMemoryStore(SqlStore[SqliteConnection]):
    """A store that is gone with its process, for the emulator and for tests.

    Its one connection is the whole database, so readers take turns with the writer.
    """

    def __init__(self) -> None:
        place = "the store in memory"
        super().__init__(
            Pool(
                lambda: SqliteConnection(IN_MEMORY, place, _empty_database()),
                TURN_SECONDS,
                place,
                most=1,
            )
        )

    def close(self) -> None:
        """Do nothing: a service may start again with the same store."""

    def discard(self) -> None:
        """Close the database, whose rows are gone then: nobody opens the store again."""
        super().close()


@functools.cache
def _empty_database() -> bytes:
    """Return a database without rows: to make one takes forty times as long as to copy it."""
    with closing(SqliteConnection(IN_MEMORY)) as connection:
        _make_schema(connection)
        return connection.driver.serialize()


def connections(path: Path, release: Callable[[], None] = lambda: None) -> Pool[SqliteConnection]:
    """Return connections to a file; nothing is opened yet."""
    file = DatabaseFile(path)
    return Pool(lambda: SqliteConnection(path, file=file), BUSY_SECONDS, str(path), release=release)


def explain(error: BaseException, place: str) -> StoreError | None:
    """Return the meaning of an error of SQLite's, None for a mistake of ours.

    A change that was written and not synced is committed for the next process that opens the file,
    though this process goes on without it.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    name = getattr(error, "sqlite_errorname", "")
    kind = code & 0xFF  # the upper bits are details
    if useless := _USELESS.get(code) or _USELESS.get(kind):
        return StoreUnusable(f"cannot use {place}: {useless} ({name})")
    if code == sqlite3.SQLITE_IOERR_FSYNC:
        return OutcomeUnknown(
            f"the disk of {place} could not say that it has a change: check the disk, and look "
            f"whether the change was made before you try again ({name})"
        )
    if away := _AWAY.get(kind):
        return StoreUnavailable(
            f"cannot use {place} now: {away}, and try again; nothing was changed ({name})"
        )
    return None


def prepare(connection: SqliteConnection) -> None:
    """Make the schema that this release needs in the database of a file, in one transaction."""
    # Outside any transaction: the journal cannot be changed within one. The file keeps it.
    if connection.run("PRAGMA journal_mode = WAL") != [("wal",)]:
        raise StoreUnusable(
            f"cannot use {connection.place}: its file system shares no memory between "
            "connections, which SQLite's write-ahead log needs: name a path on a local disk"
        )
    _make_schema(connection)


def _make_schema(connection: SqliteConnection) -> None:
    connection.start(lambda it: it.begin(writing=True))
    if not connection.run("SELECT name FROM sqlite_master LIMIT 1"):
        for statement in schema.statements("INTEGER PRIMARY KEY", "INTEGER", _NARROW):
            connection.run(statement)
        connection.run(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.commit()


# What is checked before anything is written.


def _check_place(path: Path) -> None:
    """Refuse a path where no database can be, without touching anything."""
    try:
        fault = _fault_of_place(path)
    except OSError as error:
        fault = f"the service may not read its folder ({error.strerror}): {_GRANT}"
    if fault:
        raise StoreUnusable(f"cannot use {path}: {fault}")


def _fault_of_place(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist: make it, or name another path"
    if not os.access(folder, os.W_OK | os.X_OK):
        return (
            f"the service may not write to the folder {folder}, "
            f"and SQLite keeps files beside the database: {_GRANT}"
        )
    if not path.exists():
        return ""
    if not path.is_file():
        return "it is a folder, a device or a pipe: name a file"
    if not os.access(path, os.R_OK | os.W_OK):
        return f"the service may not read and write it: {_GRANT}"
    if (links := path.stat().st_nlink) > 1:
        # The lock goes by the name: by another one a second process would get in.
        return f"the file has {links} names (hard links): remove the others, or name a copy"
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
    if not head:
        return _EMPTY
    return "" if head == _MAGIC else f"{_OTHER_FORMAT}; it was left as it is"


def _check_whole(path: Path) -> None:
    """Refuse a file with changes beside it, without opening it.

    As soon as anything opens a database, SQLite puts them into it, and does not ask whether the
    two belong together: after a crash they do, beside a copy put in its place they do not.
    """
    beside = _filled(path, "-wal") or _filled(path, "-journal")
    if beside is not None:
        raise ChangesBeside(path, beside)


def _filled(path: Path, end: str) -> Path | None:
    beside = path.with_name(path.name + end)
    return beside if beside.exists() and beside.stat().st_size else None


def _check_contents(path: Path, *, thoroughly: bool) -> None:
    """Refuse a database that is empty, another program's, a newer release's, or damaged.

    A copy needs a thorough look, which compares indexes with their tables too: a mixture with
    another state can pass for whole otherwise.
    """
    # Opened in the usual way SQLite would make files beside it, and tidy up after a crash.
    # Without a -wal file nothing is pending, and the file alone says all.
    alone = _filled(path, "-wal") is None
    uri = f"{path.absolute().as_uri()}?mode=ro" + ("&immutable=1" if alone else "")
    with closing(sqlite3.connect(uri, uri=True)) as driver:

        def ask(question: str) -> Any:  # noqa: ANN401 - a text or a number
            return driver.execute(question).fetchone()[0]

        tables = {name for (name,) in driver.execute("SELECT name FROM sqlite_master")}
        ours = ask("PRAGMA application_id") == APPLICATION_ID
        found = ask(_FIRST_LOOK) if ours and "meta" in tables else ""
        # The quick one leaves out only whether indexes agree with their tables. Without any,
        # a damaged file can pass for one of an empty fleet, which tells guests to recover.
        fault = ask(f"PRAGMA {'integrity_check' if thoroughly else 'quick_check'}(1)")
    if not tables:
        raise StoreUnusable(f"cannot use {path}: {_EMPTY}")
    if not ours:
        raise StoreUnusable(
            f"cannot use {path}: it is another program's SQLite database: name another path"
        )
    if fault != _SOUND:
        raise StoreUnusable(f"cannot use {path}: {_DAMAGED} ({' '.join(str(fault).split())})")
    if trouble := schema.fault_of(found):
        raise StoreUnusable(f"cannot use {path}: {trouble}; the file was left as it is")
    if missing := sorted(schema.TABLES.keys() - tables):
        raise StoreUnusable(f"cannot use {path}: {_DAMAGED} (no table {', '.join(missing)})")


# A new database is made whole under another name, and given its own by one rename. So a kill
# leaves no database or all of it, never an empty file, which `_check_place` refuses.


def _create(path: Path) -> None:
    """Make a database of this release where there is none; if that fails, leave nothing."""
    try:
        _check_whole(path)
    except ChangesBeside as error:
        raise StoreUnusable(
            f"{path} does not exist, but {error.beside} does, and holds changes that belong to it: "
            "put both back, or move that file away for a new database; it was left as it is"
        ) from error
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        _remove(unfinished)
        try:
            os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE))
            _fill(unfinished, str(path))
            unfinished.rename(path)
        except BaseException:
            _remove(unfinished)
            raise
        try:
            _sync(path.parent)  # so that the rename survives the loss of power
        except OSError:
            path.unlink()  # the next start is to tell of a new database, as this one cannot
            raise
    except OSError as error:
        raise StoreUnavailable(
            f"cannot make {path} now: {error.strerror or error}: check the disk, and try again; "
            "nothing was changed"
        ) from error


def _fill(path: Path, place: str) -> None:
    with closing(SqliteConnection(path, place)) as connection:
        prepare(connection)
        # All of it has to be in the one file before that is moved.
        ((busy, *_),) = connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
        assert busy == 0, f"somebody else has {path} open"


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(path: Path) -> Callable[[], None]:
    """Lock the database for this process; return the function that unlocks it."""
    import filelock  # noqa: PLC0415 - an emulator opens no file, and its extra does not have it

    place = path.with_name(path.name + ".lock")
    lock = filelock.FileLock(
        place,
        mode=MODE,
        thread_local=False,  # whichever thread closes the store lets go of it
        fallback_to_soft=False,  # a lock that a crash leaves behind would need a person
    )
    try:
        _make_for_owner(place, path)
        lock.acquire(timeout=LOCK_SECONDS)
    except filelock.Timeout as error:
        raise StoreUnusable(
            f"{path} is in use by another process, which holds {lock.lock_file}: "
            "end that process, or name another path"
        ) from error
    except OSError as error:
        raise StoreUnusable(
            f"cannot use {path}: cannot take its lock {lock.lock_file} "
            f"({error.strerror or error}): the file system must support locks, and the service's "
            "user must have the right to write there"
        ) from error
    return lock.release


def _make_for_owner(lock: Path, path: Path) -> None:
    """Where root opens a service's database, make the lock that service's.

    SQLite does so with its files beside the database. A lock that stayed root's would keep the
    service out later.
    """
    if os.name != "posix" or os.geteuid() != 0 or not path.exists():
        return
    owner = path.stat()
    # Only what was just made is given away: what is there already may be a link to elsewhere.
    with suppress(FileExistsError):
        made = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        try:
            os.fchown(made, owner.st_uid, owner.st_gid)
        finally:
            os.close(made)
