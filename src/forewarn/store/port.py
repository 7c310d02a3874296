"""The values that a store takes and returns, and its errors."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from forewarn.maintenance.model import (
    Operation,
    Refused,
)
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

JUMP: Final = timedelta(seconds=2)
"""The tolerance for a wall clock: if it parts from the monotonic one by more, it has jumped. NTP
steps what it cannot slew (over 0.128 s), and a leap second is 1 s."""
MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """Return an aware time as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


def moment(number: int) -> datetime:
    """Return the time of so many microseconds since 1970."""
    return EPOCH + timedelta(0, 0, number)


class StoreError(Exception):
    """The store cannot do its work; the message is one line for the operator."""

    code = ErrorCode.UNAVAILABLE


class StoreUnavailable(StoreError):  # noqa: N818 - a state of the store, not a mistake
    """It cannot be used for now (a full disk, a lock, a lost connection); nothing was changed."""


class OutcomeUnknown(StoreError):  # noqa: N818 - a state of the store, not a mistake
    """The answer to a commit was lost, and nobody can tell now if it took effect."""

    code = ErrorCode.UNKNOWN_OUTCOME


class StoreUnusable(StoreError):  # noqa: N818 - a state of the store, not a mistake
    """It is damaged, not ours, a newer release's, or may not be written to."""


class ChangesBeside(StoreUnusable):
    """A file beside the database holds changes; the next to open the database puts them into it."""

    def __init__(self, path: Path, beside: Path) -> None:
        super().__init__(f"{path} is incomplete: {beside} holds changes that belong into it")
        self.path = path
        self.beside = beside


Place: TypeAlias = tuple[datetime, int]
"""The time at which an operation was announced, and its number in the order of first saving."""


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for operations, newest first; None and empty mean any."""

    machine: str = ""
    scope: str = ""
    maintenance: int | None = None
    event_types: tuple[EventType, ...] = ()
    statuses: tuple[EventStatus, ...] = ()
    since: datetime | None = None
    """Announced at or after this."""
    until: datetime | None = None
    """Announced before this."""
    after: Place | None = None
    """`Page.next` of the page before; None for the first page."""
    limit: int = 100


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of operations."""

    operations: tuple[Operation, ...]
    next: Place | None = None
    """The place where it ended, rather than a count, so that pages neither repeat nor skip an
    operation while new ones arrive; None for the last page."""


class Position(msgspec.Struct, frozen=True):
    """A place in the outbox: the number of a change, and its token."""

    sequence: int = 0
    """0 is before the first change."""
    token: str = ""


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the outbox: the changes of one transaction, for the replicas to read."""

    sequence: int = 0
    """From 1, in the order of the commits, without gaps but where the store has lost changes; 0
    before it is appended."""
    token: str
    """Unique. After a lost tail another change may have the number, but never the token."""
    replica: str = ""
    """The name of the replica whose transaction it was."""
    at: datetime
    format: int = 0
    """The format of `body`: replicas of two releases may run side by side."""
    tally: int = 0
    """`World.tally` of its replica, with these changes."""
    body: bytes = b""
    """JSON, or empty."""

    @property
    def position(self) -> Position:
        """Its place."""
        return Position(self.sequence, self.token)


class NewsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The news of one transaction."""

    sequence: int
    """The number of its change in the outbox."""
    at: datetime
    items: bytes
    """As `maintenance.news` encodes them, one or more."""


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """A replica's latest report of itself."""

    name: str
    process: str
    """An id of the process: a different one means a restart."""
    version: str
    started_at: datetime
    beat_at: datetime
    """The time of the report: by the database's clock where that has one, else by its own."""
    applied: int = 0
    """The number of the last change that its guests and operators can see."""
    behind_ms: int = 0
    """Milliseconds since it last knew every change there was."""
    serving: bool = True
    clock_ahead_ms: int = 0
    """Milliseconds by which its clock was ahead of the database's; negative: behind."""
    addresses: tuple[str, ...] = ()
    stopped: bool = False
    """True if this was its last report: a replica that falls silent without it was lost."""


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for records of the audit log, newest first; None and empty mean any."""

    by: str = ""
    since: datetime | None = None
    """Written at or after this."""
    until: datetime | None = None
    """Written before this."""
    logins: bool = True
    """With who logged in to the page, and out; a log-in that was refused is listed in any case."""
    before: int | None = None
    """A record number; only smaller ones are listed: that of the last record of the page before."""
    limit: int = 100


class Membership(Protocol):
    """A replica's name, taken as long as this is open; and notifications of changes."""

    def wait(self, seconds: float) -> int:
        """Wait until somebody has committed a change.

        A notification may be late or, where the connection was lost, missing: look by the clock,
        too.

        Returns:
            The greatest number of the announced changes, 0 if none was in time.

        Raises:
            StoreUnavailable: The connection was lost, and the name with it: close this, and join
                again.
        """

    def close(self) -> None:
        """Give the name back."""


NUL: Final = b"\\u0000"
"""In JSON a NUL, or the end of a backslash and a word."""


def refuse_nul(*values: object) -> None:
    """Refuse texts with a NUL character, which not every database can store."""
    if NUL not in msgspec.json.encode(values):
        return
    left: list[object] = [msgspec.to_builtins(values)]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, (list, tuple)):
            left += one
        elif isinstance(one, str) and "\0" in one:
            raise Refused(ErrorCode.INVALID, f"{one[:50]!r} has a NUL character: remove it")
