"""What a relay knows of its host, which news it takes, and how old all of it is.

News comes from a replica that may be behind, of another release, or somebody else. What does not
fit is refused whole: the documents stay as they were, and the relay asks for a snapshot. So no
answer of anybody's ever empties a document that a guest reads; only news that fits does.

The documents are as the service has them while a replica holds the relay's request for news: it
would have answered. When that request ends without an answer they were so until the path was seen
to work last: `DARK_SECONDS` before, if the system's probes found it dead, else when the request was
sent, for a replica that froze answers those probes as well. All times are monotonic.

`StateFile` keeps them on the disk, so that after a restart guests are answered from it at once. A
change is written before any guest reads it, so that no guest reads an older document after a
restart; where it cannot be written, the file is removed. One line says what follows. Then come a
snapshot and the changes after it, each as news in a line of its own: to write all machines of a
host for each change of one would take half of the relay's processor time. Each line begins with a
sum of all lines so far, which tells whether the disk has kept them. Only the last line may be cut
off, by a kill: no guest has read it. The file's time of modification tells how old its documents
are: it is moved on for as long as the relay hears of the service.
"""

import contextlib
import os
import zlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from forewarn.maintenance.model import Machine
from forewarn.server import relay_feed
from forewarn.server.relay_feed import GuestRules, News, ScopeDocument

V = TypeVar("V")

MAX_MACHINES: Final = 20_000
"""The most machines of a host that are taken: more than any host has, in 100 MB."""

MAX_POSITION: Final = 200
"""Characters of a position: the service's own have 40."""

SHOWN_SECONDS: Final = 5.0
"""Guests are told of an age above this: a change of the replica is over by then."""

DARK_SECONDS: Final = 5.0
"""How long a path that is dead may go unnoticed: the system's probes take as long."""

REVOKED_SECONDS: Final = 5.0
"""How long every replica must have refused the token before guests are not answered any more: a
replica may hear of a new token a moment after the others."""

FILE_NAME: Final = "documents.json"
FORMAT: Final = 1
HEAD: Final = b"forewarn-relay %d" % FORMAT

MAX_FILE_BYTES: Final = 128 * 1024 * 1024
"""The largest file that is read: twice the longest news."""

MAX_CHANGES: Final = 100
"""Changes after a snapshot, before the next one: a start reads all of them."""

replace = msgspec.structs.replace


class NewsFault(StrEnum):
    """Why news is refused: a metric's label."""

    OTHER_HOST = "other-host"
    """It is of another host than the news before: the token is another host's."""
    BACKWARDS = "backwards"
    """It is older than what the relay has: the replica is behind."""
    NO_BASE = "no-base"
    """It says what changed since something that the relay does not have."""
    INCOMPLETE = "incomplete"
    """It has a machine without the document that the machine reads."""
    LIMIT = "limit"
    """It has more machines than MAX_MACHINES, or a position over MAX_POSITION."""


class NewsRefused(Exception):  # noqa: N818 - a fault of the sender's, not of ours
    """News that is not taken; nothing changed."""

    def __init__(self, fault: NewsFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class HostDocuments(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the relay knows of its host."""

    host: str
    position: str
    rules: GuestRules = GuestRules()
    machines: dict[str, Machine] = {}
    """By key. Replaced with each change, never changed."""
    documents: dict[str, ScopeDocument] = {}
    """By the scope's key; likewise."""


def take(held: HostDocuments | None, news: News) -> tuple[HostDocuments, News]:
    """Return what the relay knows with this news, and what changed; NewsRefused if it does not fit.

    `held` is None before the first snapshot. What changed is news without what was known before.
    """
    if len(news.position) > MAX_POSITION:
        raise NewsRefused(NewsFault.LIMIT, f"its position is over {MAX_POSITION} characters")
    if held is not None and news.host != held.host:
        raise NewsRefused(
            NewsFault.OTHER_HOST, f"it is of host {news.host[:100]!r}, and this is {held.host!r}"
        )
    if held is not None and _is_behind(news.position, held.position):
        message = f"its position {news.position[:100]!r} is before {held.position!r}"
        raise NewsRefused(NewsFault.BACKWARDS, message)
    if not news.snapshot and (held is None or epoch(held.position) != epoch(news.position)):
        raise NewsRefused(NewsFault.NO_BASE, "it is no snapshot, and does not follow the last news")
    before = held or HostDocuments(host=news.host, position="")
    base = HostDocuments(host=news.host, position="") if news.snapshot else before
    told = {each.key: each for each in news.machines}
    machines = {**base.machines, **told}
    documents = {**base.documents, **{each.scope.key: each for each in news.scopes}}
    for key in news.removed_machines:
        machines.pop(key, None)
    for key in news.removed_scopes:
        documents.pop(key, None)
    if len(machines) > MAX_MACHINES:
        message = f"it has {len(machines)} machines, and at most {MAX_MACHINES} are taken"
        raise NewsRefused(NewsFault.LIMIT, message)
    # A host may have thousands of machines, and news of one: the others were looked at before.
    for machine in (machines if news.removed_scopes else told).values():
        if machine.scope not in documents and machine.key in machines:
            message = f"it has machine {machine.name!r} without its scope {machine.scope!r}"
            raise NewsRefused(NewsFault.INCOMPLETE, message)
    after = HostDocuments(
        host=news.host,
        position=news.position,
        rules=before.rules if news.rules is None else news.rules,
        machines=machines,
        documents=documents,
    )
    gone: tuple[Iterable[str], Iterable[str]] = (news.removed_machines, news.removed_scopes)
    if news.snapshot:
        gone = before.machines, before.documents
    change = News(
        host=after.host,
        position=after.position,
        machines=_changed(before.machines, machines, told),
        removed_machines=_removed(before.machines, machines, gone[0]),
        scopes=_changed(before.documents, documents, [each.scope.key for each in news.scopes]),
        removed_scopes=_removed(before.documents, documents, gone[1]),
        rules=None if after.rules == before.rules else after.rules,
    )
    return after, change


def _changed(before: Mapping[str, V], after: Mapping[str, V], keys: Iterable[str]) -> tuple[V, ...]:
    return tuple(after[key] for key in keys if key in after and before.get(key) != after[key])


def _removed(
    before: Mapping[str, V], after: Mapping[str, V], keys: Iterable[str]
) -> tuple[str, ...]:
    return tuple(key for key in dict.fromkeys(keys) if key in before and key not in after)


def snapshot(held: HostDocuments) -> News:
    """Return the news that holds all of it."""
    return News(
        host=held.host,
        position=held.position,
        snapshot=True,
        machines=tuple(held.machines.values()),
        scopes=tuple(held.documents.values()),
        rules=held.rules,
    )


def epoch(position: str) -> str:
    """Return what a position begins with: within one epoch, positions only grow."""
    return position.rpartition(".")[0]


def _is_behind(new: str, old: str) -> bool:
    number, known = new.rpartition(".")[2], old.rpartition(".")[2]
    if epoch(new) != epoch(old) or not (number.isdecimal() and known.isdecimal()):
        return False  # of another epoch, or of a form that a later release gave it
    return int(number) < int(known)


class Freshness(msgspec.Struct, frozen=True):
    """What is known of the age of the documents."""

    true_until: float
    """When they were as the service has them for certain; the past while `is_true`."""
    is_true: bool = False
    """Whether a replica holds a request for news, or has just answered one."""
    refused_since: float | None = None
    """Since when every replica that answers refuses the token; None while none does."""

    def age(self, now: float) -> float:
        """Return for how long the documents may have been out of date."""
        return 0.0 if self.is_true else max(0.0, now - self.true_until)

    def shown_age(self, now: float) -> int:
        """Return the age that guests are told in whole seconds; 0 for none."""
        age = self.age(now)
        return int(age) if age > SHOWN_SECONDS else 0

    def is_revoked(self, now: float) -> bool:
        """Tell whether the host is no more trusted to know its documents."""
        return self.refused_since is not None and now - self.refused_since >= REVOKED_SECONDS

    def serves(self, now: float, max_stale_seconds: float) -> bool:
        """Tell whether guests are answered; `max_stale_seconds` of 0 is no limit."""
        if self.is_revoked(now):
            return False
        return not max_stale_seconds or self.age(now) <= max_stale_seconds

    def heard(self, now: float) -> "Freshness":
        """Return what is known once a replica has answered, or has taken a request for news."""
        return Freshness(true_until=now, is_true=True)

    def lost(self, now: float, asked_at: float, *, is_dark: bool) -> "Freshness":
        """Return what is known once a request that was sent at `asked_at` ends without an answer.

        `is_dark`: the system ended the connection; else the time for the answer was over.
        """
        if not self.is_true:
            return self
        until = max(asked_at, now - DARK_SECONDS) if is_dark else asked_at
        return replace(self, true_until=max(self.true_until, until), is_true=False)

    def refused(self, now: float) -> "Freshness":
        """Return what is known once every replica that answers has refused the token."""
        since = now if self.refused_since is None else self.refused_since
        until = now if self.is_true else self.true_until
        return replace(self, true_until=until, is_true=False, refused_since=since)

    def accepted(self) -> "Freshness":
        """Return what is known once a replica has taken the token."""
        return replace(self, refused_since=None)


class StateUnusable(Exception):  # noqa: N818 - a state of the file, not a mistake of ours
    """The file or its folder cannot be used; the message is one line for the operator."""


class StateFile:
    """The file in a folder; any thread may use it, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._sum = self._bytes = self._changes = 0
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
        """Let another relay have the folder."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def read(self) -> tuple[HostDocuments, float] | None:
        """Return what the file holds, and when it was true last, in seconds since 1970.

        None where there is no file; StateUnusable if it cannot be used. One that cannot be written
        may be older than what guests have read since, and could not be removed then.
        """
        try:
            with self._path.open("r+b") as file:
                at = os.fstat(file.fileno()).st_mtime
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateUnusable(f"{self._path} cannot be used: {error.strerror}") from error
        head, *lines = data.split(b"\n")
        if head != HEAD or len(data) > MAX_FILE_BYTES:
            raise StateUnusable(f"{self._path} was not written by a relay of this release")
        known, total = None, 0
        try:
            for line in lines[:-1]:  # behind the last newline is what a kill cut off
                body = line[9:]
                total = zlib.crc32(body, total)
                if line[:9] != b"%08x " % total:
                    raise StateUnusable(f"{self._path} is damaged: its checksum is wrong")
                known, _ = take(known, relay_feed.decode_news(body))
        except (msgspec.DecodeError, NewsRefused) as error:
            raise StateUnusable(f"{self._path} cannot be read: {error}") from error
        if known is None:
            raise StateUnusable(f"{self._path} is damaged: its end is missing")
        return known, at

    def write(self, known: HostDocuments, news: News | None = None) -> None:
        """Write what the relay knows; OSError if that is not possible.

        It is not forced to the disk: a power cut ends the guests, too, and what it damages is not
        read. That would take longer than all else between a change and the guests.

        The news that led to it from what was written last is added to the file; None replaces the
        file.
        """
        if news is None or not self._append(news):
            self._replace(known)

    def _append(self, news: News) -> bool:
        """Add news to the file; return whether that is the file that was written last."""
        line = self._line(news)
        self._changes += 1
        if self._changes > MAX_CHANGES or self._bytes + len(line) > MAX_FILE_BYTES:
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
        data = HEAD + b"\n" + self._line(snapshot(known))
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_name(FILE_NAME + ".new")
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
