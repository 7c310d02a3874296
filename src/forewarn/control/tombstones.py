"""What was removed, in case it is added again under its name.

A machine may still hold the number of the document that it read last. Where its scope counts from
0 again, or the machine is added to another scope that has not come so far, that number would come
back with other events behind it (protocol.md section 7), and a client that compares numbers would
see nothing new.
"""

from datetime import datetime
from typing import Final

import msgspec

from forewarn.maintenance.model import Changes, Tombstone
from forewarn.store.port import Reading, Transaction

SETTING: Final = "retired incarnations"
"""The store's setting with the last incarnations of removed scopes: JSON, by the scope's key;
scopes that never had an event are not in it."""

MAX_REMOVED: Final = 10_000
"""How many machines that operators removed are remembered, the latest. Who comes back to another
scope does so soon, and fleets that grow and shrink by ever new names must not be remembered for
ever. What a Preempt or Terminate deleted is remembered until it is added again."""

replace = msgspec.structs.replace

_numbers = msgspec.json.Decoder(dict[str, int])


def scopes(reading: Reading) -> dict[str, int]:
    """Return the last incarnation of each scope that was removed, by key."""
    kept = reading.setting(SETTING)
    return _numbers.decode(kept) if kept else {}


def record(transaction: Transaction, changes: Changes, now: datetime) -> Changes:
    """Return the changes with a tombstone of each machine that they remove, whoever removes it.

    The last incarnations of the scopes that they remove are written down at once.
    """
    if changes.removed_scopes:
        removed = transaction.scopes(changes.removed_scopes)
        last = {name: s.incarnation for name, s in removed.items() if s.incarnation > 0}
        if last:
            _put(transaction, scopes(transaction) | last)
    if not changes.removed_machines:
        return changes
    machines = transaction.machines(changes.removed_machines)
    known = transaction.scopes({machine.scope for machine in machines.values()})
    # A machine that asks while the change is told may still read what its scope comes to by it.
    known |= {scope.key: scope for scope in changes.scopes if scope.key in known}
    deleted = {tombstone.key: tombstone for tombstone in changes.tombstones}
    made = [tombstone for name, tombstone in deleted.items() if name not in machines]
    for name, machine in machines.items():
        incarnation = known[machine.scope].incarnation
        tombstone = deleted.get(name) or Tombstone(name=machine.name, at=now)
        if tombstone.event_type or incarnation > 0:
            made.append(replace(tombstone, scope=machine.scope, incarnation=incarnation))
    excess = _excess(transaction, sum(tombstone.event_type is None for tombstone in made))
    return replace(changes, tombstones=tuple(made), revived=(*changes.revived, *excess))


def _excess(reading: Reading, new: int) -> list[str]:
    """Return the keys of the oldest removed machines, as many as are too many with these new."""
    if not new:
        return []
    removed = [t for t in reading.tombstones().values() if t.event_type is None]
    removed.sort(key=lambda tombstone: (tombstone.at, tombstone.key))
    return [tombstone.key for tombstone in removed[: max(0, len(removed) + new - MAX_REMOVED)]]


def forget(transaction: Transaction, changes: Changes) -> None:
    """Forget the scopes that a change of the fleet adds again."""
    kept = scopes(transaction)
    back = {scope.key for scope in changes.scopes}
    if not back.isdisjoint(kept):
        _put(transaction, {name: number for name, number in kept.items() if name not in back})


def highest(reading: Reading) -> int:
    """Return the highest incarnation of all that was removed; 0 where there is none."""
    left = (tombstone.incarnation for tombstone in reading.tombstones().values())
    return max((*scopes(reading).values(), *left), default=0)


def lift(transaction: Transaction, by: int) -> None:
    """Raise the incarnations of all that was removed, as a restored database's scopes are."""
    if numbers := scopes(transaction):
        _put(transaction, {name: number + by for name, number in numbers.items()})
    read = [t for t in transaction.tombstones().values() if t.incarnation > 0]
    if read:
        lifted = tuple(replace(t, incarnation=t.incarnation + by) for t in read)
        transaction.save(Changes(tombstones=lifted))


def _put(transaction: Transaction, numbers: dict[str, int]) -> None:
    transaction.put_setting(SETTING, msgspec.json.encode(numbers).decode())
