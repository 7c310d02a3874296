"""Takes the commits of all replicas into the World, and publishes them, in their order.

A transaction is one path (`Follower.transact`): begin, take over what others have committed, decide
on the World, write, commit, publish. One that saves something appends it to the store's outbox, as
one row; the rows are numbered in the order of the commits, because one transaction writes at a
time. The last row that is in the World was published to the process's memory, too, so one
comparison with the last row of the store tells everything: there are commits of others, or one
whose answer was lost, or the store has lost its last changes.

A row has a token, which no other row ever has. If the last row that is known is gone from the
store, or another has its number, the store has lost its last changes (an asynchronous standby was
promoted, a backup was restored): all is read again then before anything is decided.

Where one process has the store, it finds no other rows, and the thread does not run.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control import recovery
from forewarn.control.changefeed import Changefeed, Reached
from forewarn.control.unit_of_work import Job, UnitOfWork
from forewarn.maintenance.model import (
    Changes,
    Maintenance,
    Operation,
)
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.maintenance.world import IndexBroken, LiveState, World
from forewarn.store.port import (
    ChangeRecord,
    Membership,
    Position,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from forewarn.store.queries import Reading
from forewarn.store.sql import Store, Transaction
from forewarn.vocabulary import EventStatus

JSON: Final = 1
"""The format of a row: a JSON list of Changes."""

REREAD: Final = 0
"""The format of a row without a body: the changes are too large for it, so memory is read again."""

MAX_VALUES: Final = 2000
"""The most values in one row, about a megabyte: a whole fleet is read again instead."""

MAX_ROWS: Final = 500
"""The most rows that are read at once: a writer's largest batch of them is a second's work."""

POLL_SECONDS: Final = 1.0
"""The longest wait of the thread for a notification before it looks all the same."""

CUT_OFF_SECONDS: Final = 5.0
"""The time without a look at the outbox after which this process counts as cut off from the store:
as long as guests may miss anything at all (`notice.OUTAGE_SECONDS`)."""

MAX_ENDED: Final = 10_000
"""The number of operations that ended lately and are remembered: more than end within any tail
that is lost."""

LOST: Final = "canceled: the database lost its last changes, this operation among them"
"""The outcome of an operation that the store no longer has."""

AFTER_TROUBLE_SECONDS: Final = 0.5
"""The wait of the thread after the store was away: a new primary is found soon."""

_encode = msgspec.json.Encoder().encode
decode: Final = msgspec.json.Decoder(list[Changes]).decode
"""Read the body of a row of the format JSON."""

replace = msgspec.structs.replace
_log = structlog.get_logger(__name__)


class LostTail(StoreUnavailable):
    """The store has lost the last changes that this process knows; it is read again."""

    def __init__(self) -> None:
        super().__init__(
            "the database has lost its last changes and is being read again; nothing was changed"
        )


DIFFERS: Final = "memory differs from that of another replica, and is read again"
"""The log's line for a World that is not what the replica had whose change was taken over."""

KEPT: Final = ("scopes", "machines", "operations", "maintenances", "holds", "drains", "tokens")
"""The tables of live state that a process keeps beside the World of its writer."""


def encoded(saved: Sequence[Changes]) -> tuple[int, bytes]:
    """Return the format and the body of the row that holds these changes."""
    values = sum(len(getattr(each, name)) for each in saved for name in each.__struct_fields__)
    return (REREAD, b"") if values > MAX_VALUES else (JSON, _encode(saved))


def state_of(reading: Reading) -> LiveState:
    """Return all live state in the store."""
    return LiveState(
        reading.scopes(),
        reading.machines(),
        reading.live_operations(),
        reading.open_maintenances(),
        {(hold.kind, hold.name): hold for hold in reading.holds()},
        reading.drains(),
        reading.tokens(),
        reading.tombstones(),
        reading.retired(),
    )


def difference(before: LiveState, after: LiveState, ended: Mapping[str, Operation]) -> Changes:
    """Return the changes that lead from one state of memory to another.

    `ended` has the operations that are live before and not after, as far as the store has them; the
    others were lost, and guests see them end.
    """
    gone = before.operations.keys() - after.operations.keys()
    lost = (_ended(before.operations[name]) for name in gone - ended.keys())
    over = before.maintenances.keys() - after.maintenances.keys()
    new = {kind: _new(getattr(before, kind), getattr(after, kind)) for kind in KEPT}
    new["operations"] = (*(ended[name] for name in gone & ended.keys()), *lost, *new["operations"])
    stopped = (_stopped(before.maintenances[number]) for number in over)
    new["maintenances"] = (*stopped, *new["maintenances"])
    return Changes(
        **new,
        removed_machines=tuple(before.machines.keys() - after.machines.keys()),
        removed_scopes=tuple(before.scopes.keys() - after.scopes.keys()),
        revoked_tokens=tuple(
            name for name, token in before.tokens.items() if after.tokens.get(name) != token
        ),
        released=tuple(hold for name, hold in before.holds.items() if name not in after.holds),
    )


def everything(state: LiveState) -> Changes:
    """Return the whole state as one change, for the parts of a process at its start."""
    return difference(LiveState(), state, {})


def _ended(lost: Operation) -> Operation:
    return replace(
        lost,
        status=EventStatus.CANCELED,
        ended_at=lost.announced_at,
        outcome=LOST,
        lease_until=None,
        awaited=(),
        up_at=None,
    )


def _stopped(gone: Maintenance) -> Maintenance:
    """Return a maintenance as stopped, for the memory of parts that keep the open ones alone."""
    after = tuple(
        replace(u, state=UnitState.SKIPPED) if not u.state.over else u for u in gone.units
    )
    return replace(gone, units=after, state=MaintenanceState.STOPPED)


def _new(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in after.items() if before.get(name) != value)


@dataclass(eq=False, repr=False)
class Follower:
    """The World, and the place in the outbox up to which it has the commits of all replicas.

    The process's memory was told of all up to there, too. Whichever thread holds the lock has the
    World: the writer's in a transaction, or the one that looks for the commits of others.

    `feed` publishes to memory; the machine's own clock measures the age of what was read.
    """

    store: Store
    feed: Changefeed
    real: Clock
    _: KW_ONLY
    replica: str = ""
    mint: Callable[[], str] | None = None
    """Returns the next token; None for the replica's name and a number."""
    unit: Callable[[Transaction, World, datetime], UnitOfWork] = UnitOfWork
    applied: Position = field(default_factory=Position)
    """The last row that is in the World, and was published."""
    looked_at: float = 0.0
    """When it was last known to be the last of the store, in real seconds."""
    lost: recovery.LostChanges | None = None
    """When the store last lost changes, as far as this process has read."""
    next_wakeup: datetime | None = None
    """The earliest time at which something in the World is due; any thread may read it."""
    _world: World = field(default_factory=World)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: dict[str, int] = field(default_factory=dict)
    """The last attempts of what has ended lately, by operation, 0 for what had not started: memory
    forgets these, and the store may have lost it."""

    def __post_init__(self) -> None:
        """Begin the tokens, and count the time since the last look from now on."""
        numbers = itertools.count(1)
        self._token = self.mint or (lambda: f"{self.replica}-{next(numbers)}")
        self.looked_at = self.real.monotonic()

    def begin(self, reading: Reading) -> None:
        """Take over all in the store, and publish what is committed from then on."""
        with self._lock:
            self._world = World(state_of(reading))
            self.applied, self.lost = reading.position(), recovery.latest_loss(reading)
            self.next_wakeup = self._world.next_wakeup()
        self.looked_at = self.real.monotonic()

    def known(self) -> LiveState:
        """Return the live state up to `applied`, for the process's memory.

        The values are the World's own, so that they are there once.
        """
        with self._lock:
            return self._kept()

    def _kept(self) -> LiveState:
        return LiveState(**{kind: dict(getattr(self._world, kind)) for kind in KEPT})

    @property
    def behind_seconds(self) -> float:
        """Seconds since it last knew all there is; 0 where one process has the store."""
        return self.real.monotonic() - self.looked_at if self.store.shared else 0.0

    @property
    def cut_off(self) -> bool:
        """True if it has not reached the store for too long."""
        return self.behind_seconds > CUT_OFF_SECONDS

    # The writer's side.

    def transact(
        self, jobs: Iterable[Job], time_of: Callable[[Transaction], datetime]
    ) -> list[Any]:
        """Run jobs in one transaction, commit and publish it; return their results or refusals.

        Nothing of it is kept if it raises.

        Raises:
            StoreError: As `Store.write` does.
            LostTail: The store has lost its last changes.
        """
        with ExitStack() as held:
            with self.store.write() as transaction:
                # Only now: the thread reads what others commit while this waits for its turn.
                held.enter_context(self._lock)
                held.push(self._undo)
                if self._has_lost(transaction):
                    decided = None
                    self._recover(transaction)
                else:
                    unit = self.unit(transaction, self._world, time_of(transaction))
                    answers = [unit.answer(job) for job in jobs]
                    unit.save()
                    told = unit.told()
                    own = self.append(transaction, unit.saved, unit.now, told)
                    decided = own, unit.saved, told, answers, self.real.monotonic()
            if decided is None:
                _log.error(
                    "the database lost its last changes; incarnations were raised, and what had "
                    "started counts as begun elsewhere",
                    known_to=self.applied.sequence,
                )
                with self.store.read() as reading:
                    self._read_again(reading, lost=True)
                raise LostTail
            own, saved, told, answers, self.looked_at = decided
            try:
                self._take(own, saved, told)
            except Exception as error:  # noqa: BLE001 - it was committed: no job may run again
                self.feed.fail(error)
        return answers

    def append(
        self, transaction: Transaction, saved: Sequence[Changes], now: datetime, news: bytes = b""
    ) -> Position | None:
        """Append the changes of a transaction to the outbox, and its news, if it saved anything."""
        if not saved:
            return None
        # Nobody reads what a process on its own has written: its rows only number the changes.
        form, body = encoded(saved) if self.store.shared else (REREAD, b"")
        at, token = transaction.now() or now, self._token()
        change = ChangeRecord(
            token=token,
            replica=self.replica,
            at=at,
            format=form,
            tally=self._world.tally,
            body=body,
        )
        return transaction.append(change, news)

    def _undo(self, failed: type[BaseException] | None, *_: object) -> None:
        # Where nobody can tell what the store has, the next transaction finds the row.
        if failed is None:
            return
        try:
            self._world.undo()
        except IndexBroken:
            self._world = World(self._world.before())

    # The thread's side.

    def look(self, told: int = 0) -> None:
        """Take over all that was committed.

        `told` is the number of a change that was announced, 0 for none: nothing is read if that is
        in the World already, as its own mostly are.

        Raises:
            StoreError: The store cannot be read now.
        """
        if self._knows(told):
            return
        began = self.real.monotonic()
        if told <= self.applied.sequence:
            with self.store.read() as reading:
                position = reading.position()
            if position == self.applied:
                self.looked_at = began
                return
        # While the writer has the lock, nobody else can commit.
        with self._lock:
            if self._knows(told):
                return
            began = self.real.monotonic()
            with self.store.read() as reading:
                lost = self._has_lost(reading)
        if lost:  # and another transaction may have recovered by then
            with suppress(LostTail):
                self.transact((), lambda one: one.now() or self.real.now())
        self.looked_at = began

    def _knows(self, told: int) -> bool:
        return 0 < told <= self.applied.sequence and self.behind_seconds < POLL_SECONDS

    def _has_lost(self, reading: Reading) -> bool:
        """Take over the commits that are not in the World yet; the lock is held.

        It returns True if the last one that is in the World is no longer in the store.
        """
        try:
            while reading.position() != self.applied:
                if (rows := self._after(reading)) is None:
                    return True
                for row in rows:
                    if row.sequence != self.applied.sequence + 1 or row.format != JSON:
                        # Rows were trimmed while this process stood still, or one is of a later
                        # release.
                        self._read_again(reading)
                        break
                    changes = decode(row.body)
                    for each in changes:
                        self._world.take(each)
                    self._take(row.position, changes)
                    if row.tally != self._world.tally:
                        _log.error(DIFFERS, change=row.sequence, replica=row.replica)
                        self._read_again(reading)
                        break
        except StoreError:
            raise
        except Exception as error:
            self.feed.fail(error)
            raise
        return False

    def _after(self, reading: Reading) -> list[ChangeRecord] | None:
        """Return the rows after the last one that is known, as many as are read at once.

        None if that one is no longer in the store, and was not trimmed.
        """
        applied = self.applied
        rows = reading.changes_after(max(0, applied.sequence - 1), MAX_ROWS)
        if applied.sequence == 0:
            return rows
        if rows and rows[0].sequence == applied.sequence:
            return rows[1:] if rows[0].token == applied.token else None
        # The last row is never trimmed. This one was, or another replica has noticed the loss first
        # and left out its number.
        return rows if rows and recovery.latest_loss(reading) == self.lost else None

    def _take(
        self, position: Position | None, saved: Sequence[Changes], news: bytes | None = None
    ) -> None:
        """Keep what was committed and is in the World, and publish it; the lock is held."""
        self._world.settle()
        if position is not None:
            self._publish(saved, position, Reached(position.sequence, news))

    def _publish(self, saved: Sequence[Changes], position: Position, reached: Reached) -> None:
        self.next_wakeup = self._world.next_wakeup()
        self.feed.publish(saved, reached)
        self.applied = position
        for operation in itertools.chain.from_iterable(each.operations for each in saved):
            if operation.ended_at is not None:
                self._ended[operation.id] = operation.attempt
        for name in [*itertools.islice(self._ended, max(0, len(self._ended) - MAX_ENDED))]:
            del self._ended[name]

    def _recover(self, transaction: Transaction) -> None:
        """Make a store that has lost changes safe to go on with; the lock is held."""
        now = transaction.now() or self.real.now()
        noticed = recovery.LostChanges(at=now, token=self._token(), changes=0, replica=self.replica)
        unit = UnitOfWork(transaction, World(state_of(transaction)), now)
        recovery.recover(
            unit,
            self.applied,
            self.lost,
            noticed,
            known=self._world,
            known_at=now - timedelta(seconds=self.real.monotonic() - self.looked_at),
            ended=self._ended,
            mint=self._token,
        )
        unit.save()
        if unit.saved:  # the others read again, too, and what was noticed with it
            change = ChangeRecord(token=self._token(), replica=self.replica, at=now)
            told = recovery.news_of_loss(transaction, noticed)
            skip = recovery.SKIPPED_CHANGES + recovery.BURST * recovery.passed(transaction, now)
            transaction.append(change, told, skip if told else 0)

    def _read_again(self, reading: Reading, *, lost: bool = False) -> None:
        """Fill the World again, and publish what is different; the lock is held.

        `lost` is True if the last published row is no longer in the store.
        """
        before, after = self._kept(), state_of(reading)
        ended = reading.operations(before.operations.keys() - after.operations.keys())
        position, self.lost = reading.position(), recovery.latest_loss(reading)
        self._world = World(after)
        changes = difference(before, after, ended)
        reached = Reached(position.sequence, lost=lost)
        self._publish([changes] if changes else [], position, reached)


class FollowerThread:
    """Holds this replica's name, and looks at the outbox after each commit of any replica.

    `process` is the id in the replica's own row: another process with that name ends the service.
    """

    def __init__(
        self, follower: Follower, store: Store, membership: Membership, process: str
    ) -> None:
        self._follower = follower
        self._store = store
        self._membership: Membership | None = membership
        self._process = process
        self._told = 0
        """The number of the change that was announced last; 0 for none."""
        self._stop = threading.Event()
        self.ended: Future[None] = Future()
        """Done when the thread has ended; raises what ended it before `close`."""
        self.ended.set_running_or_notify_cancel()
        self._thread = threading.Thread(target=self._run, name="forewarn-follower", daemon=True)

    def start(self) -> None:
        """Look for the first time and from now on."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and give the name back."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._follow()
        except BaseException as error:  # noqa: BLE001 - the service ends with it
            _log.exception("what other replicas commit cannot be followed any more")
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)
        finally:
            if self._membership is not None:
                self._membership.close()

    def _follow(self) -> None:
        try:
            if self._membership is None:
                self._membership, self._told = self._join(), 0
            self._follower.look(self._told)
            self._told = self._membership.wait(POLL_SECONDS)
        except StoreError as error:  # a password or a right may be changed right now
            if not self._follower.cut_off:
                _log.warning("what other replicas commit cannot be read", why=str(error))
            if self._membership is not None:
                self._membership.close()
                self._membership = None
            self._stop.wait(AFTER_TROUBLE_SECONDS)

    def _join(self) -> Membership:
        """Take the name again. The database may think for a while that the lost session lives.

        Raises:
            RuntimeError: Another process has the name.
        """
        try:
            return self._store.join(self._follower.replica)
        except StoreUnusable as error:
            with self._store.read() as reading:
                row = reading.replicas().get(self._follower.replica)
            if row is not None and row.process != self._process:
                raise RuntimeError(str(error)) from error
            raise StoreUnavailable(str(error)) from error
