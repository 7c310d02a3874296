"""The documents of a relay's host: which ones it accepts, and their age.

A HostDocument comes from a replica that may be of another release, or from an impostor. One that
does not fit is refused: the documents stay as they were, and the relay asks the next replica. So no
bad answer ever empties a document that a guest reads; only a document that fits does.

The documents are the service's while a replica holds the relay's request for its host: it would
have answered. When that request ends without an answer they were so until the path was last seen to
work: `DARK_SECONDS` before, if the system's probes found it dead, else when the request was sent,
for a replica that froze answers those probes as well. All times are monotonic.

`StateFile` keeps them on the disk, so that after a restart guests are answered from it at once. It
is one JSON object, replaced with each change before any guest reads that, so that no guest reads an
older document after a restart; where it cannot be written, it is removed. Its time of modification
is the age of its documents: it is moved on for as long as the relay hears of the service.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from forewarn.maintenance.model import Machine
from forewarn.server import relay_feed
from forewarn.server.guest.machines import network_of
from forewarn.server.relay_feed import (
    MAX_ETAG,
    GuestRules,
    HostDocument,
    ScopeDocument,
    Unreadable,
)

V = TypeVar("V")

MAX_MACHINES: Final = 20_000
"""The most machines of a host that are accepted: more than any host has, in 100 MB."""

SHOWN_SECONDS: Final = 5.0
"""The least age that guests read: a change of the replica is over by then."""

DARK_SECONDS: Final = 5.0
"""The time for which a dead path may go unnoticed: the system's probes take as long."""

REVOKED_SECONDS: Final = 5.0
"""The time from the first refusal of the token to the one after which guests get no more answers: a
replica may hear of a new token a moment after the others. While none answers, nothing is known."""

FILE_NAME: Final = "documents.json"
FORMAT: Final = 2
"""The format of the file; 1 was a journal."""

MAX_FILE_BYTES: Final = 128 * 1024 * 1024
"""The largest file that is read: twice the longest document."""

replace = msgspec.structs.replace


class DocumentRefused(Exception):  # noqa: N818 - a fault of the sender's, not of ours
    """A document of a host that is not accepted; the message says why, for people."""


class HostDocuments(msgspec.Struct, frozen=True, kw_only=True):
    """The relay's knowledge of its host."""

    host: str
    etag: str
    rules: GuestRules = GuestRules()
    machines: dict[str, Machine] = {}
    """By key. Replaced with each change, never changed."""
    documents: dict[str, ScopeDocument] = {}
    """By the scope's key; likewise."""
    awaited: tuple[str, ...] = ()


def take(held: HostDocuments | None, etag: str, told: HostDocument) -> HostDocuments:
    """Return the relay's documents by this document; DocumentRefused if it does not fit.

    `held` are the documents before, None for none.
    """
    if not 0 < len(etag) <= MAX_ETAG or not etag.isascii():
        message = f"invalid ETag {etag!a}: expected 1 to {MAX_ETAG} ASCII characters"
        raise DocumentRefused(message)
    if held is not None and told.host != held.host:
        message = (
            f"it is of host {told.host[:100]!r}, and this is {held.host!r}: the token is another "
            f"host's, or stop the relay and remove {FILE_NAME} if this machine has that name now"
        )
        raise DocumentRefused(message)
    if len(told.machines) > MAX_MACHINES:
        message = f"it has {len(told.machines)} machines, and at most {MAX_MACHINES} are taken"
        raise DocumentRefused(message)
    documents = {each.scope.key: each for each in told.scopes}
    for machine in told.machines:
        if machine.scope not in documents:
            message = f"it has machine {machine.name!r} without its scope {machine.scope!r}"
            raise DocumentRefused(message)
        try:
            network_of(machine.address)
        except OSError:
            message = f"it has machine {machine.name!r} with the address {machine.address!r}"
            raise DocumentRefused(message) from None
    return HostDocuments(
        host=told.host,
        etag=etag,
        rules=told.rules,
        machines={each.key: each for each in told.machines},
        documents=documents,
        awaited=told.awaited,
    )


def difference(
    before: Mapping[str, V], after: Mapping[str, V]
) -> tuple[tuple[V, ...], tuple[str, ...]]:
    """Return the values that are new or changed, and the keys that are gone."""
    changed = (value for key, value in after.items() if before.get(key) != value)
    return tuple(changed), tuple(before.keys() - after.keys())


class Freshness(msgspec.Struct, frozen=True):
    """The age of the documents, as far as it is known."""

    true_until: float
    """The time at which they certainly were the service's; the past while `is_true`."""
    is_true: bool = False
    """True if a replica holds a request for the host, or has just answered one."""
    refused_since: float | None = None
    """Since when every replica that answers refuses the token; None while none does."""
    is_revoked: bool = False
    """True if the host is no longer trusted with its documents."""

    def age(self, now: float) -> float:
        """Return for how long the documents may have been out of date."""
        return 0.0 if self.is_true else max(0.0, now - self.true_until)

    def shown_age(self, now: float) -> int:
        """Return the age for guests in whole seconds; 0 for none."""
        age = self.age(now)
        return int(age) if age > SHOWN_SECONDS else 0

    def serves(self, now: float, max_stale_seconds: float) -> bool:
        """Return True if guests are answered; `max_stale_seconds` of 0 is no limit."""
        if self.is_revoked:
            return False
        return not max_stale_seconds or self.age(now) <= max_stale_seconds

    def heard(self, now: float) -> "Freshness":
        """Return the freshness once a replica has answered, or has taken a request for the host."""
        return Freshness(true_until=now, is_true=True)

    def lost(self, now: float, asked_at: float, *, is_dark: bool) -> "Freshness":
        """Return the freshness once a request of `asked_at` has ended without an answer.

        `is_dark`: the system ended the connection; else the time for the answer was over.
        """
        if not self.is_true:
            return self
        until = max(asked_at, now - DARK_SECONDS) if is_dark else asked_at
        return replace(self, true_until=max(self.true_until, until), is_true=False)

    def refused(self, now: float) -> "Freshness":
        """Return the freshness once every replica that answers has refused the token."""
        since = now if self.refused_since is None else self.refused_since
        until = now if self.is_true else self.true_until
        return Freshness(
            true_until=until, refused_since=since, is_revoked=now - since >= REVOKED_SECONDS
        )


class StateUnusable(Exception):  # noqa: N818 - a state of the file, not a mistake of ours
    """The file or its folder cannot be used; the message is one line for the operator."""


class SavedDocuments(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file."""

    format: int
    known: HostDocuments


_read_saved = relay_feed.reader(msgspec.json.Decoder(SavedDocuments))


class StateFile:
    """The file in a folder; any thread may use it, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._folder: int | None = None

    def lock(self) -> None:
        """Keep other relays out of the folder until `unlock`; StateUnusable if one is there."""
        folder = self._path.parent
        try:
            import fcntl  # noqa: PLC0415 - Windows has none

            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = os.open(folder, os.O_RDONLY)
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            advice = "stop that one, or give this one its own state.folder"
            raise StateUnusable(f"another relay has {folder}: {advice}") from error
        except (ImportError, OSError):
            return  # a folder that cannot be had cannot be written to either, as `write` says

    def unlock(self) -> None:
        """Release the folder for another relay."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def read(self) -> tuple[HostDocuments, float] | None:
        """Return the content of the file, and when it was last true, in seconds since 1970.

        None where there is no file; StateUnusable if it cannot be used. A file that cannot be
        written may be older than what guests have read since, and could not be removed then.
        """
        try:
            with self._path.open("r+b") as file:
                at = os.fstat(file.fileno()).st_mtime
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateUnusable(f"{self._path} cannot be used: {error.strerror}") from error
        try:
            saved = _read_saved(data)
        except Unreadable as error:
            raise StateUnusable(f"{self._path} is damaged: {error}") from error
        if saved.format != FORMAT or len(data) > MAX_FILE_BYTES:
            raise StateUnusable(f"{self._path} was not written by a relay of this release")
        return saved.known, at

    def write(self, known: HostDocuments, at: float) -> None:
        """Replace the file, mode 0600, by one with these documents; OSError if that fails.

        They were true at that time, in seconds since 1970.
        """
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_name(FILE_NAME + ".new")
        new.unlink(missing_ok=True)
        try:
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(relay_feed.encode(SavedDocuments(format=FORMAT, known=known)))
                file.flush()
                os.utime(new, (at, at))
                os.fsync(file.fileno())
            new.replace(self._path)
            self._sync()
        except OSError:
            with contextlib.suppress(OSError):  # a disk that is full has room again
                new.unlink()
            raise

    def touch(self, at: float) -> None:
        """Note that the file was still true then, in seconds since 1970; errors are ignored."""
        with contextlib.suppress(OSError):
            os.utime(self._path, (at, at))

    def remove(self) -> None:
        """Remove the file: its documents are not to be read any longer; OSError if it stays."""
        self._path.unlink(missing_ok=True)
        self._sync()

    def _sync(self) -> None:
        """Make the change of a name last, also over a power cut."""
        if self._folder is not None:  # only what `lock` could open
            os.fsync(self._folder)
