"""The journal: the agent's records in an SQLite database, each durable before the agent goes on.

After a kill or a power cut a record is there whole or not at all (write-ahead log, `synchronous =
FULL`), and one process has the file, by a lock that ends with the process (`locking_mode =
EXCLUSIVE`). A record's checksum covers its number, so a page that was changed, lost or copied is
noticed. Damage is never repaired by guessing: the agent refuses to start, and says what to do.
"""

import contextlib
import os
import shutil
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from forewarn.agent.state import AnyRecord, Checkpoint

NAME: Final = "journal.db"

MAX_BYTES: Final = 64 * 1024 * 1024
"""The largest journal that is read; it is shortened long before."""

SHORTEN_AT: Final = 1000
"""The number of records at which the journal is shortened: an event has about ten."""

SHORTEN_BYTES: Final = 8 * 1024 * 1024
"""The size of its records at which it is shortened: an event is written with its texts and its
rule. Where the state is larger than half of this, the records may be twice as large as the state.
"""

FORMAT: Final = 1
"""The database's user_version; another is of another release."""

PAGE_BYTES: Final = 1024
"""A record writes one or two pages: 4.0 ms with these, 5.7 ms with SQLite's 4096 (600 records)."""

LOG_PAGES: Final = 50
"""The length of the write-ahead log, in pages: syncing is faster while the file keeps its length.
"""

ROOM_BYTES: Final = 1024 * 1024
"""The room on the disk that each of its files takes when it is opened: with a full disk the agent
goes on, for hundreds of records at once, and for any number in events one after another."""

LEAST_FREE_BYTES: Final = 16 * ROOM_BYTES
"""With less than this free it takes none: the rest is for all others."""

TAKE_ROOM: Final = (
    "DROP TABLE IF EXISTS room",
    f"CREATE TABLE room AS VALUES (zeroblob({ROOM_BYTES}))",
    "PRAGMA wal_checkpoint(RESTART)",  # writes it into the database's own file
    "DROP TABLE room",  # the next records get its pages; no file gets shorter while it is open
)

SET_UP: Final = (
    f"PRAGMA page_size = {PAGE_BYTES}",
    "PRAGMA locking_mode = EXCLUSIVE",  # before the first access: no shared memory is needed then
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    f"PRAGMA wal_autocheckpoint = {LOG_PAGES}",
)


class JournalError(Exception):
    """The journal cannot be read, written or locked; the message says why and what to do.

    `for_now` says that the disk could not be used, or that another process has the journal: the
    next start may find everything in order.
    """

    def __init__(self, message: str, *, for_now: bool = False) -> None:
        super().__init__(message)
        self.for_now = for_now


class Journal:
    """One agent's journal, open and locked until it is closed. One thread at a time uses it.

    It makes its folder, mode 0700. It raises JournalError if the journal is damaged, another agent
    has it, or it cannot use the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self.length = 0
        """The number of its records."""
        self._last = self._bytes = self._state_bytes = 0
        self.records: tuple[AnyRecord, ...] = self._begin()
        """Its records when it was opened."""
        self._file = self._on_disk()

    def _begin(self) -> tuple[AnyRecord, ...]:
        """Open the file, made if need be, and return what it holds."""
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._path.exists():
                _create(self._path)
            found = self._path.stat()
        except OSError as error:
            message = f"cannot use the journal in {folder} (state.folder): {error.strerror}"
            raise JournalError(message, for_now=True) from error
        if found.st_size > MAX_BYTES:
            message = f"{self._path} is over {MAX_BYTES} bytes: it is not an agent's journal"
            raise JournalError(message)
        try:
            self._database = sqlite3.connect(
                self._path, timeout=0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        try:
            records = self._open()
        except BaseException:
            self._database.close()
            raise
        self.length = len(records)
        return records

    def _on_disk(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def is_lost(self) -> bool:
        """True if somebody removed the file, or put another in its place.

        No later process would read the records that are written then.
        """
        return self._file is None or self._on_disk() != self._file

    def remake(self, state: Checkpoint) -> None:
        """Make the file again, with all that the agent knows; a JournalError leaves it lost."""
        self._file = None  # a new one counts only once the state is in it
        self._database.close()
        self._begin()
        self.append(state)
        self._file = self._on_disk()

    def append(self, *records: AnyRecord) -> None:
        """Write records, and return when they are on the disk: all of them, or none.

        A checkpoint comes alone, and replaces all before it. After a JournalError the journal is as
        before, and the caller may try again.
        """
        bodies = enumerate(map(msgspec.json.encode, records), self._last + 1)
        rows = [(number, _checksum(number, body), body) for number, body in bodies]
        is_checkpoint = any(isinstance(record, Checkpoint) for record in records)
        try:
            with self._database:  # commits at its end, or rolls back
                self._database.execute("BEGIN IMMEDIATE")
                if is_checkpoint:
                    self._database.execute("DELETE FROM records")
                self._database.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise JournalError(f"cannot write {self._path}: {error}") from error
        size = sum(len(body) for _, _, body in rows)
        self._last += len(rows)
        self.length = 1 if is_checkpoint else self.length + len(rows)
        self._bytes = size if is_checkpoint else self._bytes + size
        if is_checkpoint:
            self._state_bytes = size

    @property
    def is_long(self) -> bool:
        """True if it is time to shorten it."""
        most = max(SHORTEN_BYTES, 2 * self._state_bytes)
        return self.length > SHORTEN_AT or self._bytes > most

    def close(self) -> None:
        """Close and unlock it."""
        self._database.close()

    def _open(self) -> tuple[AnyRecord, ...]:
        try:
            for statement in SET_UP:
                self._database.execute(statement)
            with self._database:
                self._database.execute("BEGIN IMMEDIATE")  # takes the lock
                self._database.execute(
                    "CREATE TABLE IF NOT EXISTS records (sequence INTEGER PRIMARY KEY, "
                    "checksum INTEGER NOT NULL, body BLOB NOT NULL)"
                )
                (version,) = self._database.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    self._database.execute(f"PRAGMA user_version = {FORMAT}")
            (verdict,) = self._database.execute("PRAGMA quick_check(1)").fetchone()
            rows = self._database.execute("SELECT * FROM records ORDER BY sequence").fetchall()
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        if version not in {0, FORMAT}:
            raise JournalError(f"{self._path} has format {version}: run the release that wrote it")
        if verdict != "ok":
            raise self._damaged(verdict)
        if rows and not isinstance(rows[-1][0], int):  # the table itself was changed
            raise self._damaged("the table")
        with contextlib.suppress(OSError, sqlite3.Error):  # an append says what is wrong
            if shutil.disk_usage(self._path.parent).free >= LEAST_FREE_BYTES:
                for statement in TAKE_ROOM:
                    self._database.execute(statement)
        self._last = rows[-1][0] if rows else 0
        self._bytes = sum(len(body) for _, _, body in rows if isinstance(body, bytes))
        return tuple(self._decoded(rows))

    def _decoded(self, rows: Sequence[tuple[Any, Any, Any]]) -> Iterator[AnyRecord]:
        for expected, (sequence, checksum, body) in enumerate(rows, self._last - len(rows) + 1):
            is_whole = isinstance(body, bytes) and checksum == _checksum(sequence, body)
            if sequence != expected or not is_whole:
                raise self._damaged(f"record {expected}")
            try:
                yield msgspec.json.decode(body, type=AnyRecord)
            except msgspec.DecodeError as error:
                message = (
                    f"{self._path} has a record {sequence} that this version does not know: "
                    f"{error}; run the version that wrote it until no event is left"
                )
                raise JournalError(message) from error

    def _unusable(self, error: sqlite3.Error) -> JournalError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return JournalError(
                f"another agent has {self._path}: stop that one, or give this one its own "
                "state.folder",
                for_now=True,
            )
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            return self._damaged(str(error))
        message = f"cannot use {self._path}: {error}; check its owner and its disk"
        return JournalError(message, for_now=True)

    def _damaged(self, what: str) -> JournalError:
        return JournalError(
            f"{self._path} is damaged ({what}): check which actions were done, undo them by hand, "
            "and move the file away"
        )


def _checksum(sequence: int, body: bytes) -> int:
    return zlib.crc32(b"%d " % sequence + body)


def _create(path: Path) -> None:
    """Make an empty file that only its owner reads, and its name durable."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if os.name == "nt":
        return  # Windows opens no folders; its file system journals names itself
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
