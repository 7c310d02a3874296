"""Recovery of a store that has lost changes which guests, operators and connectors know.

An asynchronous standby that is promoted lacks the last transactions of the primary, and a restored
backup all since. Lost changes may have been read, approved and carried out.

- Guests may hold numbers of documents that will come again with other events behind them: every
  incarnation is raised, as `forewarn restore-check` does, by whichever replica notices first. A
  scope that is gone counts as removed.
- Tasks may have been claimed, or carried out, without a trace in the store: Started operations,
  and those that this replica knows to have begun since, count as begun elsewhere, so their
  connector's check has to say that they were not done (else `on_unknown` decides). Attempts go
  on from higher numbers: the report of a claim that was lost is refused.
- Maintenances that are gone had numbers, and their tasks are named by these: new ones get others.
  A maintenance that had begun with an operation that is gone is halted: the next one would do
  its work again. So is a drain stuck that had begun with a move that is gone.
- A host's reboot command may have run, and people rely on a host that is drained: a drain whose
  request or reboot is gone goes on as this replica knew it, and the units that wait for their
  turn with that host follow it. After a reboot only another boot id, or an operator, leads
  further.
- Operators rely on what they have stopped: holds that are gone are placed again, but for those of
  hosts whose relay is away, which are judged again; a maintenance that was paused or stopped is
  halted, and what was canceled is canceled again; tokens are those that it knows. Only the first
  replica to notice does so: another may not know what was ordered since.
"""

from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final

import msgspec

from forewarn.control import tombstones
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import commands, host_drain, news, relays, turns
from forewarn.maintenance.commands import NOBODY
from forewarn.maintenance.model import Changes, Drain, HostState, Operation, Policy, Refused
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.maintenance.world import World
from forewarn.store.port import ChangeRecord, Position
from forewarn.store.queries import Reading
from forewarn.store.sql import Transaction
from forewarn.vocabulary import EventStatus

LOST_CHANGES: Final = "lost changes"
"""The store's setting with the latest `LostChanges`: JSON."""

RESTORED: Final = "restored"
"""The store's setting with the token of the last `forewarn restore-check`."""

RAISE_BY: Final = 1_000_000
"""The amount by which incarnations are raised: further than any tail that is lost."""

SKIPPED_ATTEMPTS: Final = 1000
"""The number of attempt numbers that are skipped: more than were claimed in any tail that is lost.
"""

SKIPPED_NUMBERS: Final = 1000
"""The number of maintenance numbers, and of operation ordinals, that are skipped: more than there
were in any such tail."""

SKIPPED_CHANGES: Final = 1_000_000
"""The number of change numbers that are skipped: more than there were in any such tail. Outsiders
know items of news by these, so none may come again with another item behind it."""

BURST: Final = 1000
"""The most changes of the whole fleet in a second, over a long time."""

LOST_OPERATION: Final = "the database lost an operation that had started: look what was done"
LOST_END: Final = "it had ended, and the database lost that: look what was done"
BACKUP: Final = "restored from a backup, and may have gone on since: look what was done"
"""The reasons for halting a maintenance, or a drain."""

_NOTHING_STARTS: Final = Policy(starts=False)

replace = msgspec.structs.replace


class LostChanges(msgspec.Struct, frozen=True, kw_only=True):
    """A loss of the store's last changes, as the first replica to notice wrote it down."""

    at: datetime
    token: str
    """Different for each loss."""
    changes: int
    """The least number of lost changes: those that it knew."""
    replica: str


def latest_loss(reading: Reading) -> LostChanges | None:
    """Return the latest recorded loss; None if the store never lost anything."""
    kept = reading.setting(LOST_CHANGES)
    return None if kept is None else msgspec.json.decode(kept, type=LostChanges)


def passed(reading: Reading, now: datetime) -> int:
    """Return the seconds since the store's last change: that many more numbers are skipped.

    A service may have gone on from this state before: the same backup is restored a second time, or
    the recovery from a loss was lost too. In that time it gave at most one number each second.
    """
    last = reading.changes_after(reading.position().sequence - 1, 1)
    return max([0, *(int((now - one.at).total_seconds()) for one in last)])


def news_of_loss(transaction: Transaction, noticed: LostChanges) -> bytes:
    """Return the news of a loss, as it is stored; none if another replica noticed it first."""
    found = latest_loss(transaction)
    if found is None or found.token != noticed.token:
        return b""
    return news.encode([news.lost(found.changes, found.replica, found.at)])


def halt(world: World, number: int, reason: str, now: datetime, more: int = 0) -> None:
    """Halt a maintenance that runs; skip the numbers that its lost operations may have had."""
    one = world.maintenances[number]
    one = replace(one, announced=one.announced + SKIPPED_NUMBERS + more)
    if one.state is MaintenanceState.RUNNING:
        halted = replace(one, state=MaintenanceState.HALTED, reason=reason, changed_at=now)
        one = turns.recalled(halted)
    world.maintenances[number] = one


def recover(
    unit: UnitOfWork,
    applied: Position,
    before: LostChanges | None,
    noticed: LostChanges,
    *,
    known: World,
    known_at: datetime,
    ended: Mapping[str, int],
    mint: Callable[[], str],
) -> None:
    """Make the store safe to go on with.

    Args:
        unit: A transaction of the store that has lost changes.
        applied: The last change that this replica knew.
        before: The `latest_loss` when this replica last read the store: if there is a later one
            now, another replica noticed first; an earlier one, and its record was lost with it.
        noticed: The loss to record if this replica is the first to notice.
        known: The World of this replica: what operators rely on is not to be lost.
        known_at: When that was all there was: what is dated later was made since the loss.
        ended: The last attempts of operations that ended lately, by id; 0 for those never claimed.
        mint: Makes ids.
    """
    world, store = unit.world, unit.store
    begun = {one.id: one.attempt for one in known.operations.values() if one.started_at}
    begun |= {name: attempt for name, attempt in ended.items() if attempt}
    stored, more = latest_loss(store), passed(store, noticed.at)
    is_first = stored is None or (before is not None and stored.at <= before.at)
    for name, one in [*world.operations.items()]:
        if (is_first and one.status is EventStatus.STARTED) or _is_behind(one, begun.get(name)):
            world.operations[name] = doubted(one)
    gone = begun.keys() - unit.operations(begun.keys()).keys()
    for number in {int(name.partition(".")[0]) for name in gone} & world.maintenances.keys():
        halt(world, number, LOST_OPERATION, noticed.at, more)
    for drain in known.drains.values():
        _recover_drain(world, drain, gone, noticed.at)
    for name in {*known.scopes, *known.retired} - world.scopes.keys():
        if (last := known.latest_incarnation(name)) > world.latest_incarnation(name):
            world.retired[name] = last
    if is_first:
        canceled, now = ended.keys() - begun.keys(), noticed.at
        _stop_again(world, known, canceled, known_at=known_at, now=now, mint=mint)
        tombstones.lift(world, RAISE_BY + more)
        store.skip_maintenance_numbers(SKIPPED_NUMBERS + more)
        lost = applied.sequence - store.position().sequence
        changes = lost if 0 < lost < SKIPPED_CHANGES else 1
        written = msgspec.json.encode(replace(noticed, changes=changes)).decode()
        store.put_setting(LOST_CHANGES, written)


def _stop_again(
    world: World,
    known: World,
    canceled: Set[str],
    *,
    known_at: datetime,
    now: datetime,
    mint: Callable[[], str],
) -> None:
    running = MaintenanceState.RUNNING
    for number, stored in [*world.maintenances.items()]:
        one = known.maintenances.get(number)
        is_over = one is None and stored.requested_at <= known_at
        if stored.state is running and (is_over or (one and one.state is not running)):
            halt(world, number, one.reason if one else LOST_END, now)
    old = (name for name, token in world.tokens.items() if token.created_at <= known_at)
    revoked = tuple(name for name in old if name not in known.tokens)
    made = tuple(t for name, t in known.tokens.items() if world.tokens.get(name) != t)
    world.take(Changes(tokens=made, revoked_tokens=revoked))
    there = [world.operations[name] for name in sorted(world.operations.keys() & canceled)]
    again = [one.id for one in there if one.unstarted]
    orders: list[commands.Command] = [
        partial(commands.cancel_operations, operations=again, reason=LOST_END),
        *(partial(commands.place_hold, hold=h) for h in known.holds.values() if h.by != relays.BY),
    ]
    for command in orders:
        with suppress(Refused):  # it is there, or its time is over
            commands.decide(world, command, now, mint, _NOTHING_STARTS)


def _recover_drain(world: World, known: Drain, gone: Set[str], now: datetime) -> None:
    host, stored = known.host, world.drains.get(known.host)
    if stored is not None and stored.requested_at > known.requested_at:
        return
    asked = known.reboot_asked_at
    rebooted = None if stored is None else stored.reboot_asked_at
    is_behind = asked is not None and (rebooted is None or rebooted < asked)
    if stored is None or stored.requested_at < known.requested_at or is_behind:
        world.drains[host] = stored = known
        for number, maintenance in [*world.maintenances.items()]:
            its = {
                place: 0
                for place, unit in enumerate(maintenance.units)
                if unit.drain and unit.host == host and unit.state is UnitState.WAITING
            }
            world.maintenances[number] = turns.asked(maintenance, its, now)
    if stored.goes_on and any(f"{n}.1" in gone for n in known.maintenances):
        world.drains[host] = host_drain.stuck(stored, now, LOST_OPERATION)


def _is_behind(stored: Operation, attempt: int | None) -> bool:
    return attempt is not None and (stored.unstarted or attempt > stored.attempt)


def doubted(operation: Operation) -> Operation:
    """Return an operation as begun elsewhere: only its connector's check leads further."""
    return replace(
        operation,
        attempt=operation.attempt + SKIPPED_ATTEMPTS,
        claimed_by=(*(name for name in operation.claimed_by if name != NOBODY), NOBODY),
        lease_until=None,
    )


def restored(unit: UnitOfWork, token: str, more: int) -> None:
    """Make a restored backup safe to go on with, whose incarnations were raised.

    What was under way may be over since: its connector has to say that it was not done, and an
    operator what else is to be done again. The numbers that maintenances and operations may have
    had since are not given again, `more` than usual: programs, and what is left of their runs, go
    by them. The outbox goes on from the change with this token as another one.
    """
    world, store, now = unit.world, unit.store, unit.now
    for number in [*world.maintenances]:
        halt(world, number, BACKUP, now, more)
    for host, drain in [*world.drains.items()]:
        if drain.state is HostState.DRAINING:  # a host that is empty shows if it has rebooted
            world.drains[host] = host_drain.stuck(drain, now, BACKUP)
    for name in [*world.started]:
        world.operations[name] = doubted(world.operations[name])
    unit.save()
    store.put_setting(RESTORED, token)
    store.skip_maintenance_numbers(SKIPPED_NUMBERS + more)
    lost = news.encode([news.lost(0, "restore-check", now)])
    change = ChangeRecord(token=token, at=now)
    store.append(change, lost, SKIPPED_CHANGES + BURST * more)
