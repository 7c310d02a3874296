"""The store over SQLAlchemy Core: `open_sqlite` for a file, `in_memory` for tests."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

import filelock
from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from forewarn.store import creation, sqlite, tables
from forewarn.store.line import Line
from forewarn.store.port import (
    Reading,
    Store,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
    Transaction,
)
from forewarn.store.reading import SqlReading
from forewarn.store.writing import SqlTransaction

TURN_SECONDS = 30
"""How long a transaction waits for the one before it: many times the longest (a whole fleet)."""

_FIRST_LOOK = select(tables.settings.c.name).limit(1)


LOCK_SECONDS: Final = 1.0
"""How long another process's lock is waited for: a service that was killed while it started a
program leaves it with that child for a moment, and its successor must not give up on it."""


def open_sqlite(
    path: Path,
    *,
    thoroughly: bool = False,
    whole: bool = False,
    made: Callable[[], None] = lambda: None,
) -> Store:
    """Open the database in this file, and migrate it first where that is needed.

    Where there is no file, a new database is made. One process at a time has it: a lock is held on
    `<path>.lock` until the store is closed.

    Args:
        path: The database's file; its folder exists.
        thoroughly: Whether each page of it is looked at first.
        whole: Whether the file must hold all there is, as a copy does that was just put there.
        made: Called where there was none, once the new one is there.

    Raises:
        ChangesBeside: It must, and does not; nothing was opened.
        StoreUnusable: It cannot be used as it is: the message says why and what to do, and
            nothing was changed.
        StoreUnavailable: It cannot be used now.
    """
    path = path.resolve()
    sqlite.check_place(path)
    release = _lock(path)
    engine = sqlite.file_engine(path)
    try:
        if whole:
            sqlite.check_whole(path)
        if path.exists():
            sqlite.check_contents(path, thoroughly=thoroughly)
        else:
            creation.create(path)
            made()
        sqlite.create_or_migrate(engine)
    except BaseException as error:
        engine.dispose()
        release()
        explained = sqlite.explain(error, str(path))
        if explained is None:
            raise
        raise explained from error
    return SqlStore(engine, place=str(path), release=release)


def in_memory() -> Store:
    """Open an empty database that lives as long as the store does."""
    engine = sqlite.memory_engine()
    with engine.execution_options(**{sqlite.WRITING: True}).begin() as connection:
        tables.metadata.create_all(connection)
    return SqlStore(engine, place="The database in memory", shared=True)


def _lock(path: Path) -> Callable[[], None]:
    place = path.with_name(path.name + ".lock")
    lock = filelock.FileLock(
        place,
        mode=creation.MODE,
        thread_local=False,  # whichever thread closes the store lets go of it
        fallback_to_soft=False,  # a lock that a crash leaves behind would need a person
    )
    try:
        _make_for_owner(place, path)
        lock.acquire(timeout=LOCK_SECONDS)
    except filelock.Timeout as error:
        raise StoreUnusable(
            f"{path} is in use by another process (it holds {lock.lock_file}): "
            "end that one, or name another file"
        ) from error
    except OSError as error:
        raise StoreUnusable(
            f"{path} cannot be used, its lock {lock.lock_file} cannot be taken "
            f"({error.strerror or error}): the file system must know locks, and the service's "
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
        made = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, creation.MODE)
        try:
            os.fchown(made, owner.st_uid, owner.st_gid)
        finally:
            os.close(made)


class SqlStore:
    """`port.Store` over SQL.

    Args:
        engine: Where the schema is as it must be.
        place: What it is called in messages.
        shared: Whether there is one connection for all, so that readers take turns with writers.
        release: Called once the store is closed.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        place: str,
        shared: bool = False,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._writer = engine.execution_options(**{sqlite.WRITING: True})
        self._place = place
        self._shared = shared
        self._release = release
        self._turn = _Turn(place)

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Open the one writing transaction: commit at the block's end, roll back if it raises."""
        with self._turn.taken(), self._line(self._writer) as line:
            yield SqlTransaction(line)

    @contextmanager
    def read(self) -> Iterator[Reading]:
        """Open a view of this instant."""
        turn: AbstractContextManager[None] = self._turn.taken() if self._shared else nullcontext()
        with turn, self._line(self._engine) as line:
            line.scalar(_FIRST_LOOK)  # a transaction sees what there was at its first look
            yield SqlReading(line)

    def close(self) -> None:
        """Leave the store clean; nothing may be under way."""
        self._engine.dispose()
        self._release()

    @contextmanager
    def _line(self, engine: Engine) -> Iterator[Line]:
        with self._connected(engine) as connection:
            line = Line(connection, self._explain)
            try:
                with line.guarded():
                    connection.begin()
                yield line
                with line.guarded():
                    connection.commit()
            except BaseException:
                # The first error is the one to tell; SQLite may have rolled back already.
                with suppress(SQLAlchemyError):
                    connection.rollback()
                raise

    @contextmanager
    def _connected(self, engine: Engine) -> Iterator[Connection]:
        try:
            connection = engine.connect()
        except PoolTimeout as error:
            raise StoreUnavailable(
                f"{self._place} cannot be used now, all {sqlite.MAX_CONNECTIONS} connections are "
                "taken: try again; nothing was changed"
            ) from error
        except DBAPIError as error:
            explained = self._explain(error)
            if explained is None:
                raise
            raise explained from error
        with connection:
            yield connection

    def _explain(self, error: DBAPIError) -> StoreError | None:
        return sqlite.explain(error, self._place)


class _Turn:
    """One at a time, in this process; whoever has the turn must not ask for it again."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._holder: int | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        me = threading.get_ident()
        assert self._holder != me, "a transaction is open in this thread already"
        if not self._lock.acquire(timeout=TURN_SECONDS):
            raise StoreUnavailable(
                f"{self._place} cannot be used now, another transaction has lasted over "
                f"{TURN_SECONDS} s: try again; nothing was changed"
            )
        self._holder = me
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()
