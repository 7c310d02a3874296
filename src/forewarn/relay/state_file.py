"""What a relay knows, in a file: after a restart guests are answered from it at once.

A change is written before any guest reads it, so that no guest reads an older document after a
restart; where it cannot be written, the file is removed. One line says what follows. Then come a
snapshot and the changes after it, each as news in a line of its own: to write all machines of a
host for each change of one would take half of the relay's processor time. Each line begins with a
sum of all lines so far, which tells whether the disk has kept them. Only the last line may be cut
off, by a kill: no guest has read it. The file's time of modification tells how old its documents
are: it is moved on for as long as the relay hears of the service. It is a copy of what the service
has: where it cannot be used, guests get no answers until a replica is reached, and nothing else is
lost.
"""

import contextlib
import os
import zlib
from pathlib import Path
from typing import Final

import msgspec

from forewarn.relay import host_documents
from forewarn.relay.host_documents import HostDocuments, NewsRefused
from forewarn.server import relay_feed
from forewarn.server.relay_feed import News

NAME: Final = "documents.json"
FORMAT: Final = 1
HEAD: Final = b"forewarn-relay %d" % FORMAT

MAX_BYTES: Final = 128 * 1024 * 1024
"""The largest file that is read: twice the longest news."""

MAX_CHANGES: Final = 100
"""Changes after a snapshot, before the next one: a start reads all of them."""


class StateUnusable(Exception):  # noqa: N818 - a state of the file, not a mistake of ours
    """The file cannot be used; the message is one line for the operator."""


class StateFile:
    """The file in a folder; any thread may use it, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._sum = self._bytes = self._changes = 0

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
        head, *lines = data.split(b"\n")
        if head != HEAD or len(data) > MAX_BYTES:
            raise StateUnusable(f"{self._path} was not written by a relay of this release")
        known, total = None, 0
        try:
            for line in lines[:-1]:  # behind the last newline is what a kill cut off
                body = line[9:]
                total = zlib.crc32(body, total)
                if line[:9] != b"%08x " % total:
                    raise StateUnusable(f"{self._path} is damaged: its sum is another one")
                known, _ = host_documents.take(known, relay_feed.decode_news(body))
        except (msgspec.DecodeError, NewsRefused) as error:
            raise StateUnusable(f"{self._path} cannot be read: {error}") from error
        if known is None:
            raise StateUnusable(f"{self._path} is damaged: it is cut off")
        return known, at

    def write(self, known: HostDocuments, news: News | None = None) -> None:
        """Write what the relay knows; OSError if that is not possible.

        It is not forced to the disk: a power cut ends the guests, too, and what it damages is not
        read. That would take longer than all else between a change and the guests.

        Args:
            known: All of it.
            news: What led to it from what was written last, and is added to the file; None to
                replace the file.
        """
        if news is None or not self._append(news):
            self._replace(known)

    def _append(self, news: News) -> bool:
        """Add news to the file; return whether that is the file that was written last."""
        line = self._line(news)
        self._changes += 1
        if self._changes > MAX_CHANGES or self._bytes + len(line) > MAX_BYTES:
            return False
        try:
            with self._path.open("r+b") as file:
                if not self._bytes or file.seek(0, os.SEEK_END) != self._bytes:
                    return False
                file.write(line)
        except FileNotFoundError:
            return False
        self._bytes += len(line)
        return True

    def _replace(self, known: HostDocuments) -> None:
        """Replace the file, mode 0600, by one with a snapshot."""
        self._sum = self._changes = 0
        data = HEAD + b"\n" + self._line(host_documents.snapshot(known))
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
        self._bytes = len(data)

    def _line(self, news: News) -> bytes:
        body = relay_feed.encode(news)
        self._sum = zlib.crc32(body, self._sum)
        return b"%08x %s\n" % (self._sum, body)

    def touch(self, at: float) -> None:
        """Note that the file was still true then, in seconds since 1970; errors are ignored."""
        with contextlib.suppress(OSError):
            os.utime(self._path, (at, at))

    def remove(self) -> None:
        """Remove the file: its documents are not to be read any more; OSError if it stays."""
        self._bytes = 0
        self._path.unlink(missing_ok=True)
