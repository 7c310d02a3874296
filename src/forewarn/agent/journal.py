"""The journal: records on disk, each synced before the agent goes on.

One line a record: its checksum and its JSON. The last line may be torn by a kill or a lost power
supply; it was never acknowledged, and is dropped. Any other line that does not fit is damage, which
nobody can repair by guessing: the agent refuses to start, and says where.

When many lines have come together the journal is made short: a new file with one record of all that
is still so takes the old one's place, by one rename.
"""

import contextlib
import importlib
import os
import zlib
from pathlib import Path
from typing import IO, Final

import msgspec

from forewarn.agent.records import Fact, Kept

NAME: Final = "journal"
LOCK_NAME: Final = "journal.lock"

MAX_BYTES: Final = 64 * 1024 * 1024
"""The largest journal that is read: it is made short long before."""

SHORTEN_AT: Final = 1000
"""How many lines a journal may have before it is made short: an event has about ten."""

CHECKSUM_LENGTH: Final = 8


class JournalUnusable(Exception):  # noqa: N818 - named for what is the matter
    """The journal cannot be read, written or had alone; the message says which and what to do."""


class Journal:
    """One agent's journal, open and locked until it is closed.

    Args:
        folder: Its own folder; made, mode 0700, if it does not exist.

    Raises:
        JournalUnusable: It is damaged, another agent has it, or the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(folder / LOCK_NAME)
        except OSError as error:
            message = f"the journal in {folder} cannot be used: {error.strerror}"
            raise JournalUnusable(message) from error
        try:
            new = not self._path.exists()
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | _BINARY, 0o600)
            if new:
                _sync_folder(folder)
        except OSError as error:
            self._lock.close()
            message = f"the journal in {folder} cannot be used: {error.strerror}"
            raise JournalUnusable(message) from error
        try:
            self.records: tuple[Fact, ...] = self._read()
            """What it held when it was opened."""
        except BaseException:
            self.close()
            raise
        self.lines = len(self.records)
        """How many records it holds now."""
        self._renamed = False

    def append(self, record: Fact) -> None:
        """Write a record, and return when it is on the disk.

        Raises:
            JournalUnusable: It is not; the journal is as before, and it may be tried again.
        """
        line = _line(record)
        try:
            self._sync_name()
            _write(self._file, line, self._size)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # what is torn is also dropped when it is read
                os.ftruncate(self._file, self._size)
            message = f"{self._path} cannot be written: {error.strerror}"
            raise JournalUnusable(message) from error
        self._size += len(line)
        self.lines += 1

    def shorten(self, kept: Kept) -> None:
        """Put one record in the place of all: what is still so.

        Raises:
            JournalUnusable: It could not be done; what the journal says is as before.
        """
        line = _line(kept)
        beside = self._path.with_suffix(".new")
        try:
            file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, 0o600)
            with contextlib.ExitStack() as opened:
                opened.callback(os.close, file)
                _write(file, line, 0)
                os.fsync(file)
                if not _BINARY:
                    beside.replace(self._path)
                    opened.pop_all()
                    os.close(self._file)
                    self._file = file
            if _BINARY:
                self._replace_closed(beside)
            self._size, self.lines, self._renamed = len(line), 1, True
            self._sync_name()
        except OSError as error:
            message = f"{self._path} cannot be made short: {error.strerror}"
            raise JournalUnusable(message) from error

    def _replace_closed(self, beside: Path) -> None:
        """Let the new file take the old one's place where neither may be open: on Windows."""
        os.close(self._file)
        try:
            beside.replace(self._path)
        finally:
            self._file = os.open(self._path, os.O_RDWR | _BINARY)

    def _sync_name(self) -> None:
        """Bring the new name to the disk, before anything counts that is written under it."""
        if self._renamed:
            _sync_folder(self._path.parent)
            self._renamed = False

    def close(self) -> None:
        """Let go of it."""
        os.close(self._file)
        self._lock.close()

    def _read(self) -> tuple[Fact, ...]:
        data = b""
        while chunk := os.read(self._file, 1 << 20):
            data += chunk
            if len(data) > MAX_BYTES:
                message = f"{self._path} is over {MAX_BYTES} bytes: it is no journal of an agent"
                raise JournalUnusable(message)
        lines = data.split(b"\n")
        torn = lines.pop()  # "" where the last line is whole
        records: list[Fact] = []
        for number, line in enumerate(lines, 1):
            body = line[CHECKSUM_LENGTH + 1 :]
            if line[: CHECKSUM_LENGTH + 1] != b"%08x " % zlib.crc32(body):
                if number == len(lines) and not torn:
                    torn = line + b"\n"  # its end came to the disk before its middle
                    break
                message = (
                    f"{self._path} is damaged in line {number} of {len(lines)}: look which actions "
                    "were done, undo them by hand, and move the file away"
                )
                raise JournalUnusable(message)
            try:
                records.append(msgspec.json.decode(body, type=Fact))
            except msgspec.DecodeError as error:
                message = (
                    f"{self._path} has a record in line {number} that this version does not know: "
                    f"{error}; run the version that wrote it until nothing is in hand"
                )
                raise JournalUnusable(message) from error
        self._size = len(data) - len(torn)
        os.ftruncate(self._file, self._size)
        return tuple(records)


_BINARY: Final = getattr(os, "O_BINARY", 0)
"""Of Windows alone, which would turn line ends otherwise."""


def _line(record: Fact) -> bytes:
    body = msgspec.json.encode(record)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _write(file: int, data: bytes, at: int) -> None:
    os.lseek(file, at, os.SEEK_SET)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_folder(folder: Path) -> None:
    """Bring a new name in a folder to the disk, where the platform can."""
    if _BINARY:
        return  # Windows opens no folders; its file system journals names itself
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _locked(path: Path) -> IO[bytes]:
    """Return the lock's file, held by this process alone until it is closed."""
    file = path.open("ab")
    try:
        _lock(file)
    except OSError as error:
        file.close()
        message = f"another agent has {path}: stop that one, or give this one its own state.folder"
        raise JournalUnusable(message) from error
    return file


def _lock(file: IO[bytes]) -> None:
    try:
        import fcntl  # noqa: PLC0415 - POSIX only
    except ModuleNotFoundError:
        windows = importlib.import_module("msvcrt")  # by name, for no other platform knows it
        windows.locking(file.fileno(), windows.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
