"""The promises of every store; tests/store checks them on each."""

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import msgspec

from forewarn.maintenance.accounts import AuditRecord, Token
from forewarn.maintenance.model import (
    Changes,
    Drain,
    Hold,
    Machine,
    Maintenance,
    Operation,
    Refused,
    Scope,
    Sighting,
    Tombstone,
)
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.webhooks import Webhook
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

TURN_SECONDS = 30
"""The longest wait of a transaction for the one before it: many times the longest (a whole fleet).
"""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

JUMP: Final = timedelta(seconds=2)
"""The tolerance for a wall clock: if it parts from the monotonic one by more, it has jumped. NTP
steps what it cannot slew (over 0.128 s), and a leap second is 1 s."""
MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """Return an aware time as microseconds since 1970."""
    return (moment - EPOCH) // MICROSECOND


class StoreError(Exception):
    """The store cannot do its work; the message is one line for the operator."""


class StoreUnavailable(StoreError):  # noqa: N818 - a state of the store, not a mistake
    """It cannot be used for now (a full disk, a lock, a lost connection); nothing was changed."""


class OutcomeUnknown(StoreError):  # noqa: N818 - a state of the store, not a mistake
    """The answer to a commit was lost, and nobody can tell now if it took effect."""


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


class NewChange(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one transaction, for the replicas to read."""

    token: str
    """Unique. After a lost tail another change may have the number, but never the token."""
    replica: str
    """The name of the replica whose transaction it was."""
    at: datetime
    format: int
    """The format of `body`: replicas of two releases may run side by side."""
    body: bytes
    """JSON, or empty."""


class ChangeRecord(NewChange, frozen=True, kw_only=True):
    """A row of the outbox."""

    sequence: int
    """From 1, in the order of the commits, without gaps but where the store has lost changes."""

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


class SeenMachine(Sighting, frozen=True, kw_only=True):
    """The latest sighting of a machine by a replica."""

    machine: str


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


class Reading(Protocol):
    """A consistent view of one instant. Keys are lower-case names; unknown ones are left out."""

    def scopes(self, keys: Collection[str] | None = None) -> dict[str, Scope]:
        """Return these scopes by key, or all of them."""

    def machines(self, keys: Collection[str] | None = None) -> dict[str, Machine]:
        """Return these machines by key, or all of them."""

    def operations(self, ids: Collection[str]) -> dict[str, Operation]:
        """Return these operations, live or over, by id."""

    def operations_of_maintenance(self, number: int) -> dict[str, Operation]:
        """Return a maintenance's operations, live or over, by id."""

    def operations_of_events(self, event_ids: Collection[str]) -> dict[str, Operation]:
        """Return the operations, live or over, that these events (upper-case ids) belong to."""

    def live_operations(self) -> dict[str, Operation]:
        """Return the live operations (`Operation.live`), by id."""

    def maintenances(self, numbers: Collection[int]) -> dict[int, Maintenance]:
        """Return these maintenances by number."""

    def open_maintenances(self) -> dict[int, Maintenance]:
        """Return the maintenances with `Maintenance.open`, by number, the oldest first."""

    def latest_maintenances(self, before: int | None, limit: int) -> list[Maintenance]:
        """Return up to `limit` maintenances with numbers below `before`, the newest first."""

    def maintenance_of_key(self, idempotency_key: str) -> Maintenance | None:
        """Return the latest maintenance that was requested with this idempotency key."""

    def next_wakeup(self) -> datetime | None:
        """Return the earliest `Operation.wakeup_at` of all operations, None if there is none."""

    def unacknowledged_failures(self, limit: int) -> dict[str, Operation]:
        """Return up to `limit` Failed operations that nobody acknowledged, the latest first."""

    def holds(self) -> tuple[Hold, ...]:
        """Return all holds, the oldest first, those of one instant by kind and name."""

    def tombstones(self) -> dict[str, Tombstone]:
        """Return all tombstones, by the machine's key."""

    def drains(self) -> dict[str, Drain]:
        """Return the latest drain of each host, by the host as it is written."""

    def history(self, query: HistoryQuery) -> Page:
        """Return one page of operations, newest announcement first.

        Pages neither repeat nor skip an operation while new ones are announced.
        """

    def ended(self, since: datetime, limit: int) -> list[Operation]:
        """Return operations that ended since then and are not live, the latest end first."""

    def ends(self, since: datetime) -> dict[EventStatus, int]:
        """Return how many of all these have each status."""

    def tokens(self) -> dict[str, Token]:
        """Return the tokens of operators by name, in the order of names."""

    def webhooks(self) -> dict[str, Webhook]:
        """Return the webhooks by name, in the order of names."""

    def relays(
        self, hosts: Collection[str] | None = None, since: datetime | None = None
    ) -> dict[str, Relay]:
        """Return the latest reports of these hosts' relays, or of all, if they came since then."""

    def audit(self, query: AuditQuery) -> list[AuditRecord]:
        """Return records of the audit log, the newest first."""

    def setting(self, name: str) -> str | None:
        """Return a value that the service saved for itself; None without one."""

    def position(self) -> Position:
        """Return the place of the last change of the outbox."""

    def changes_after(self, sequence: int, limit: int) -> list[ChangeRecord]:
        """Return up to `limit` changes with greater numbers, in their order.

        The first of them has the number `sequence + 1`, unless that was trimmed.
        """

    def news_after(self, sequence: int, limit: int) -> list[NewsRecord]:
        """Return the news of up to `limit` transactions with greater numbers, in their order."""

    def news_trimmed(self) -> int:
        """Return the number of the last transaction whose news was trimmed; 0 without one."""

    def outcomes(self, numbers: Collection[int]) -> dict[int, dict[EventStatus, int]]:
        """Return the number of operations of these maintenances in each status."""

    def replicas(self) -> dict[str, Replica]:
        """Return each replica's latest report of itself, by name."""

    def sightings(self, since: datetime | None = None) -> dict[str, SeenMachine]:
        """Return the replicas' sightings of machines, by key, as far as written since then."""


class Transaction(Reading, Protocol):
    """Reading and writing as one: all of it is durable after the commit, or none of it is."""

    def save(self, changes: Changes) -> None:
        """Write new values over the old; later readings of this transaction see them.

        Removed values go last. A machine's scope, and an operation's maintenance, is there already
        or comes with it; a scope goes with or after its machines. An operation keeps its events,
        and these their scope and machines.

        Released holds go first: by kind and name, whatever else the value says. A new one is the
        only one of its kind and name. Of tombstones, revived ones go first. A host's latest drain
        replaces the one before. Revoked tokens go first; a new one is the only one of its name. Of
        relays' tokens, void ones go first, and one of a known digest replaces it.
        """

    def next_maintenance_number(self) -> int:
        """Return the least number, from 1, above that of every maintenance ever saved.

        It is taken when a maintenance with it is saved: a refused request takes none.
        """

    def skip_maintenance_numbers(self, count: int) -> None:
        """Skip this many numbers: maintenances that the store has lost may have had them."""

    def purge(self, ended_before: datetime, limit: int) -> int:
        """Forget up to `limit` operations that ended before this, the first ended first.

        A maintenance goes with the last of its operations; one without operations, with those of a
        later one. Its number is not given again. The operations of an open maintenance stay until
        it is over. Holds, tombstones and drains are not history: they stay, whatever happens to the
        operations.

        Returns:
            The number of operations that were forgotten.
        """

    def record(self, records: Sequence[AuditRecord]) -> None:
        """Add records to the audit log, each with the next number, whatever its `sequence` is."""

    def purge_audit(self, before: datetime, limit: int, *, refusals: int) -> int:
        """Forget up to `limit` records that were written before this, the oldest first.

        Of refused requests, only the latest `refusals` are kept, whatever their age.

        Returns:
            The number of records that were forgotten.
        """

    def put_webhooks(self, webhooks: Iterable[Webhook]) -> None:
        """Write webhooks over those of the same names."""

    def remove_webhooks(self, names: Iterable[str]) -> None:
        """Forget webhooks; a name that is not there does no harm."""

    def put_setting(self, name: str, value: str) -> None:
        """Save a value for the service itself."""

    def now(self) -> datetime | None:
        """Return the time of the transaction, None where the process's own clock counts.

        It is the database's clock at the beginning, and later than the last change unless the clock
        was set back by more than JUMP.
        """

    def append(self, change: NewChange, news: bytes = b"", skip: int = 0) -> Position:
        """Add a change to the outbox, at most one in a transaction; return its place.

        `news` are the items for outsiders; empty for none. `skip` is how many numbers to skip:
        changes that the store has lost may have had them.
        """

    def trim(self, before: datetime, limit: int) -> int:
        """Forget up to `limit` of the oldest changes made before this; return the number of these.

        The last change stays, whatever its age.
        """

    def trim_news(self, before: datetime, limit: int) -> int:
        """Forget the news of up to `limit` of the oldest transactions, of those made before this.

        Returns:
            The number of these transactions.
        """

    def set_back(self, now: datetime, at: datetime) -> None:
        """Date sightings of machines, relays and replicas that are later than now to now.

        The clock was set back: old requests would count as later ones. Now is `at` by the clock
        that dates rows.
        """

    def mark_relay(self, host: str, held_for: datetime | None) -> None:
        """Record the absence of its relay for which a host is held; None: it is over."""

    def forget_relay(self, host: str) -> None:
        """Forget the report of this host's relay."""


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


class Store(Protocol):
    """The place of everything that must survive a crash.

    StoreUnavailable: it cannot be used now, and nothing was changed. StoreUnusable: it was damaged
    or taken away since it was opened.
    """

    @property
    def shared(self) -> bool:
        """True if several replicas may have it open; `join` is only for such a store."""

    def write(self) -> AbstractContextManager[Transaction]:
        """Open the one writing transaction: commit at the block's end, roll back if it raises.

        A thread that has one open must not open another. After a statement that failed nothing is
        committed, even if the block goes on. Where the answer to a commit is lost, the store looks
        for the change that the transaction appended: if it is there, the block ends as usual.

        Raises:
            Refused: A text has a NUL character, which PostgreSQL cannot store.
            OutcomeUnknown: The answer to the commit was lost, and its effect could not be found out
                in time. A transaction without a change in the outbox ends so at once.
            StoreUnusable: The store was damaged or taken away since it was opened.
        """

    def read(self) -> AbstractContextManager[Reading]:
        """Open a view of this instant; any thread may, while another writes."""

    def beat(self, replica: Replica, seen: Iterable[SeenMachine] = ()) -> datetime:
        """Write a replica's report of itself and its sightings, in a transaction of its own.

        Of a machine, the latest sighting of any replica counts; its agent's report stays until the
        agent says something else. Nothing is written of a machine that has left the fleet. In a
        shared store it does not wait for the writing one, and may be lost in a crash.

        It counts from `replica.beat_at`, or from now if that is earlier: the process may have stood
        still since it made the report. If `replica.beat_at` is later by more than JUMP, the clock
        was set back and the process does not know it yet: its sightings are not written.

        Returns:
            The database's time, or `replica.beat_at` where the process's own clock counts.
        """

    def see(self, seen: Iterable[SeenMachine], at: datetime) -> None:
        """Write sightings of machines, as `beat` does, where no replica has a row."""

    def hear(self, relays: Iterable[Relay], at: datetime | None = None) -> None:
        """Write reports of relays, in a transaction of its own.

        Of a relay, the latest report to any replica counts; `held_for` stays as it is. Nothing is
        written if `at`, the database's time as the process has it, is later than that by more than
        JUMP: the clock was set back. In a shared store it does not wait for the writing one, and
        may be lost in a crash.
        """

    def join(self, name: str) -> Membership:
        """Take the name of a replica for this process, as long as it lives.

        Raises:
            StoreUnavailable: There is no connection now.
            StoreUnusable: Another process has the name.
        """

    def close(self) -> None:
        """Leave the store clean; nothing may be under way."""


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


class WriterTurn:
    """Allows one thread at a time to write, in this process; `place` is the store's name."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._holder: int | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the turn; a thread that holds it must not ask for it again."""
        me = threading.get_ident()
        assert self._holder != me, "this thread has a transaction open already"
        if not self._lock.acquire(timeout=TURN_SECONDS):
            raise StoreUnavailable(
                f"cannot write to {self._place} now: another transaction has been open for more "
                f"than {TURN_SECONDS} s; nothing was changed; try again"
            )
        self._holder = me
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()
