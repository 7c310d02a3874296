"""What follows when the store has lost changes that guests, operators and connectors know.

An asynchronous standby that is promoted lacks the last transactions of the primary, and a restored
backup all since. What was lost may have been read, approved and carried out:

- Guests may hold numbers of documents that will come again with other events behind them: every
  incarnation is raised, as `forewarn restore-check` does, by whichever replica notices first.
- Tasks may have been claimed, or carried out, of which the store knows nothing: what is Started,
  and what this replica knows to have been begun since, counts as begun elsewhere, so its
  connector's check has to say that it was not done (else `on_unknown` decides). Attempts go on from
  higher numbers: the report of a claim that was lost is refused.
- Maintenances that are gone had numbers, and their tasks are named by these: new ones get others.
  A rolling update that had begun with an operation that is gone is paused: the next one would do
  its work again.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from forewarn.control import tombstones
from forewarn.maintenance import news
from forewarn.maintenance.model import Changes, Maintenance, Operation, RollingState
from forewarn.store.port import Position, Reading, Transaction
from forewarn.vocabulary import EventStatus

SETTING: Final = "lost changes"
"""The store's setting with the latest `LostChanges`: JSON."""

RESTORED: Final = "restored"
"""The store's setting with the highest incarnation that `forewarn restore-check` made."""

RAISE_BY: Final = 1_000_000
"""How far incarnations are raised: further than any tail that is lost."""

SKIPPED_ATTEMPTS: Final = 1000
"""How many numbers of attempts are left out: more than were claimed in any tail that is lost."""

SKIPPED_NUMBERS: Final = 1000
"""How many numbers of maintenances, and of one's operations, are left out: more than there were in
any such tail."""

SKIPPED_CHANGES: Final = 1_000_000
"""How many numbers of changes are left out: more than there were in any such tail. Outsiders know
items of news by these, so none may come again with another item behind it."""

REASON: Final = "the database lost an operation that had started: look what was done"
"""Why a rolling update is paused."""

NOBODY: Final = "?"
"""The name of the replica that may have begun a task of which the store knows nothing."""

replace = msgspec.structs.replace


class LostChanges(msgspec.Struct, frozen=True, kw_only=True):
    """That the store lost its last changes, as the first replica to notice wrote it down."""

    at: datetime
    token: str
    """Another one each time."""
    changes: int
    """How many it knew that were gone, at least."""
    replica: str


def latest(reading: Reading) -> LostChanges | None:
    """Return what was written down last; None if the store never lost anything."""
    kept = reading.setting(SETTING)
    return None if kept is None else msgspec.json.decode(kept, type=LostChanges)


def news_of(transaction: Transaction, noticed: LostChanges) -> bytes:
    """Return the news of the loss, as it is stored; nothing if another replica noticed first."""
    found = latest(transaction)
    if found is None or found.token != noticed.token:
        return b""
    return news.encode([news.lost(found.changes, found.replica, found.at)])


def skipped(maintenance: Maintenance) -> Maintenance:
    """Return a maintenance that gives its operations no number that a lost one may have had."""
    return replace(maintenance, announced=maintenance.announced + SKIPPED_NUMBERS)


def recover(
    transaction: Transaction,
    begun: Mapping[str, int],
    applied: Position,
    before: LostChanges | None,
    noticed: LostChanges,
) -> Changes:
    """Make the store safe to go on with; return what that changed.

    Args:
        transaction: Of the store that has lost changes.
        begun: The last attempts of what had started, as this replica knew it, by operation.
        applied: The last change that this replica knew.
        before: What `latest` was when this replica last read the store: where it is another one
            now, another replica noticed first.
        noticed: What to write down if this one is the first.
    """
    is_first = latest(transaction) == before
    live = transaction.live_operations()
    doubted = tuple(
        _doubted(operation)
        for name, operation in live.items()
        if (is_first and operation.status is EventStatus.STARTED)
        or _is_behind(operation, begun.get(name))
    )
    changes = Changes(operations=doubted, maintenances=_behind(transaction, begun))
    if is_first:
        scopes = transaction.scopes().values()
        raised = tuple(replace(s, incarnation=s.incarnation + RAISE_BY) for s in scopes)
        changes = replace(changes, scopes=raised)
        tombstones.lift(transaction, RAISE_BY)
        transaction.skip_maintenance_numbers(SKIPPED_NUMBERS)
        lost = max(1, applied.sequence - transaction.position().sequence)
        written = msgspec.json.encode(replace(noticed, changes=lost)).decode()
        transaction.put_setting(SETTING, written)
    transaction.save(changes)
    return changes


def _behind(reading: Reading, begun: Mapping[str, int]) -> tuple[Maintenance, ...]:
    """Return the maintenances of operations that had started and are gone, paused."""
    gone = begun.keys() - reading.operations(begun.keys()).keys()
    concerned = reading.maintenances({int(name.partition(".")[0]) for name in gone}).values()
    return tuple(
        replace(
            skipped(maintenance),
            rolling_updates=tuple(
                replace(rolling, state=RollingState.PAUSED, reason=REASON)
                if rolling.state is RollingState.RUNNING
                else rolling
                for rolling in maintenance.rolling_updates
            ),
        )
        for maintenance in concerned
        if any(rolling.state is RollingState.RUNNING for rolling in maintenance.rolling_updates)
    )


def _is_behind(stored: Operation, attempt: int | None) -> bool:
    """Tell whether a task may have been begun since what the store has."""
    return attempt is not None and (stored.unstarted or attempt > stored.attempt)


def _doubted(operation: Operation) -> Operation:
    return replace(
        operation,
        attempt=operation.attempt + SKIPPED_ATTEMPTS,
        claimed_by=(*(name for name in operation.claimed_by if name != NOBODY), NOBODY),
        lease_until=None,
    )
