"""What a relay knows, in a file: after a restart guests are answered from it at once.

It is written before any guest reads what it holds, so that no guest reads an older document after a
restart; where it cannot be written, the old one is removed. One line says what follows, then come
the documents as JSON. The file is replaced as a whole, so it is the old one or the new one; a sum
of its bytes tells whether the disk has kept it. Its time of modification tells how old its
documents are: it is moved on for as long as the relay hears of the service. It is a copy of what
the service has: where it cannot be used, guests get no answers until a replica is reached, and
nothing else is lost.
"""

import contextlib
import os
import zlib
from pathlib import Path
from typing import Final

import msgspec

from forewarn.maintenance.model import Machine
from forewarn.relay.held import HostDocuments
from forewarn.server.relay_feed import GuestRules, ScopeDocument

NAME: Final = "documents.json"
FORMAT: Final = 1
MAGIC: Final = "forewarn-relay"

MAX_BYTES: Final = 128 * 1024 * 1024
"""The largest file that is read: twice the longest news."""


class StateUnusable(Exception):  # noqa: N818 - a state of the file, not a mistake of ours
    """The file cannot be used; the message is one line for the operator."""


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    position: str
    rules: GuestRules
    machines: tuple[Machine, ...]
    documents: tuple[ScopeDocument, ...]


class StateFile:
    """The file in a folder; any thread may use it, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> tuple[HostDocuments, float] | None:
        """Return what the file holds, and when it was true last, in seconds since 1970.

        None where there is no file; StateUnusable if it cannot be used.
        """
        try:
            with self._path.open("rb") as file:
                at = os.fstat(file.fileno()).st_mtime
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateUnusable(f"{self._path} cannot be read: {error.strerror}") from error
        head, _, body = data.partition(b"\n")
        words = head.decode("ascii", "replace").split(" ")
        if words[0] != MAGIC or len(words) < 2 or len(data) > MAX_BYTES:
            raise StateUnusable(f"{self._path} was not written by a relay")
        if words[1] != str(FORMAT):
            message = f"{self._path} is of another release: its format is {words[1][:20]}"
            raise StateUnusable(f"{message}, and this release reads {FORMAT}")
        if words[2:] != [f"{zlib.crc32(body):08x}"]:
            raise StateUnusable(f"{self._path} is damaged: its sum is another one")
        try:
            return _held(msgspec.json.decode(body, type=_Saved)), at
        except msgspec.DecodeError as error:
            raise StateUnusable(f"{self._path} cannot be read: {error}") from error

    def write(self, held: HostDocuments) -> None:
        """Replace the file, mode 0600; OSError if that is not possible.

        It is not forced to the disk: a power cut ends the guests, too, and what it damages is not
        read. That would take longer than all else between a change and the guests.
        """
        body = msgspec.json.encode(_saved(held))
        data = f"{MAGIC} {FORMAT} {zlib.crc32(body):08x}\n".encode() + body
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_name(NAME + ".new")
        new.unlink(missing_ok=True)
        try:
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            new.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):  # a disk that is full has room again
                new.unlink()
            raise

    def touch(self, at: float) -> None:
        """Note that the file was still true then, in seconds since 1970; errors are ignored."""
        with contextlib.suppress(OSError):
            os.utime(self._path, (at, at))

    def remove(self) -> None:
        """Remove the file: its documents are not to be read any more; OSError if it stays."""
        self._path.unlink(missing_ok=True)


def _saved(held: HostDocuments) -> _Saved:
    return _Saved(
        host=held.host,
        position=held.position,
        rules=held.rules,
        machines=tuple(held.machines.values()),
        documents=tuple(held.documents.values()),
    )


def _held(saved: _Saved) -> HostDocuments:
    return HostDocuments(
        host=saved.host,
        position=saved.position,
        rules=saved.rules,
        machines={each.key: each for each in saved.machines},
        documents={each.scope.key: each for each in saved.documents},
    )
