"""A new database: made whole under another name, and given its own by one rename.

So a kill leaves no database or all of it, never an empty file: one that is found empty was not
left by a service, and is refused (`sqlite.check_place`).
"""

import os
from pathlib import Path
from typing import Final

from sqlalchemy import text

from forewarn.store import sqlite
from forewarn.store.port import ChangesBeside, StoreUnavailable, StoreUnusable

MODE: Final = 0o600
"""The database's mode, which SQLite gives to what it keeps beside it too: it tells of the whole
fleet, and nobody but the service needs it."""


def create(path: Path) -> None:
    """Make a database of this release at a place where there is none.

    Args:
        path: Where `sqlite.check_place` found no fault; this process alone is at it.

    Raises:
        StoreUnusable: What is left of another database stands there.
        StoreUnavailable: It cannot be made now; nothing is left of it.
        DBAPIError: Likewise.
    """
    try:
        sqlite.check_whole(path)
    except ChangesBeside as error:
        raise StoreUnusable(
            f"{path} is not there, but {error.beside} is, with changes that belong to it: put both "
            "back, or move that away for a new database; it was left as it is"
        ) from error
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        _remove(unfinished)
        try:
            os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE))
            _fill(unfinished)
            unfinished.rename(path)
        except BaseException:
            _remove(unfinished)
            raise
        try:
            _sync(path.parent)
        except OSError:
            path.unlink()  # the next start is to tell of a new database, as this one cannot
            raise
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be made now ({error.strerror or error}): look at the disk, and try "
            "again; nothing was changed"
        ) from error


def _fill(path: Path) -> None:
    engine = sqlite.file_engine(path)
    try:
        sqlite.create_or_migrate(engine)
        with engine.connect() as connection:
            # All of it has to be in the one file before that is moved.
            done = connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).one()
        assert done[0] == 0, f"somebody else has {path} open"
    finally:
        engine.dispose()


def _remove(path: Path) -> None:
    """Remove what a kill, or an error, left of an attempt."""
    for end in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Have the rename survive the loss of power."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
