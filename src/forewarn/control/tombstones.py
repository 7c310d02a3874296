"""The incarnations of what was removed, in case it is added again under its name.

A machine may still hold the number of the document that it read last. Where its scope counts from
0 again, or the machine is added to another scope that has not come so far, that number would come
back with other events behind it (protocol.md section 7), and a client that compares numbers would
see nothing new.
"""

from typing import Final

import msgspec

from forewarn.maintenance.model import Changes, Parting
from forewarn.store.port import Reading, Transaction

SETTING: Final = "retired incarnations"
"""What the store keeps those of scopes under: JSON, by the scope's key; scopes that never had an
event are not in it."""

MACHINES: Final = "removed machines"
"""What the store keeps those of machines under: JSON, by the machine's key, the latest last;
machines that never had an event to read are not in it."""

MAX_MACHINES: Final = 10_000
"""How many removed machines are remembered, the latest: 400 KB, read and written in some
milliseconds. Who comes back to another scope does so soon, and fleets that grow and shrink by
ever new names must not be remembered for ever."""

_numbers = msgspec.json.Decoder(dict[str, int])
_partings = msgspec.json.Decoder(dict[str, Parting])


def read(reading: Reading) -> dict[str, int]:
    """Return the last incarnation of each scope that was removed, by key."""
    kept = reading.setting(SETTING)
    return _numbers.decode(kept) if kept else {}


def partings(reading: Reading) -> dict[str, Parting]:
    """Return what each machine that was removed may have read last, by key, the latest last."""
    kept = reading.setting(MACHINES)
    return _partings.decode(kept) if kept else {}


def note(transaction: Transaction, changes: Changes) -> None:
    """Write down what changes that are about to be saved remove, whoever removes it."""
    if changes.removed_scopes:
        numbers = read(transaction)
        scopes = transaction.scopes(changes.removed_scopes)
        last = {name: s.incarnation for name, s in scopes.items() if s.incarnation > 0}
        if last:
            _put(transaction, SETTING, numbers | last)
    if changes.removed_machines:
        _part(transaction, changes)


def _part(transaction: Transaction, changes: Changes) -> None:
    machines = transaction.machines(changes.removed_machines)
    scopes = transaction.scopes({machine.scope for machine in machines.values()})
    # A machine that asks while the change is told may still read what its scope comes to by it.
    scopes |= {scope.key: scope for scope in changes.scopes if scope.key in scopes}
    parted = partings(transaction)
    left = dict(parted)
    for name in changes.removed_machines:
        if name in machines and (scope := scopes[machines[name].scope]).incarnation > 0:
            left.pop(name, None)
            left[name] = Parting(scope.key, scope.incarnation)
    for name in list(left)[: max(0, len(left) - MAX_MACHINES)]:
        del left[name]
    if left != parted:
        _put(transaction, MACHINES, left)


def forget(transaction: Transaction, changes: Changes) -> None:
    """Forget what a change of the fleet adds again: it is known by itself from then on."""
    for setting, kept, back in (
        (SETTING, read(transaction), {scope.key for scope in changes.scopes}),
        (MACHINES, partings(transaction), {machine.key for machine in changes.machines}),
    ):
        if not back.isdisjoint(kept):
            left = {name: value for name, value in kept.items() if name not in back}
            _put(transaction, setting, left)


def highest(reading: Reading) -> int:
    """Return the highest of all of them; 0 where there is none."""
    left = (parting.incarnation for parting in partings(reading).values())
    return max((*read(reading).values(), *left), default=0)


def lift(transaction: Transaction, by: int) -> None:
    """Raise all of them, as a restored database's scopes are."""
    if numbers := read(transaction):
        _put(transaction, SETTING, {name: number + by for name, number in numbers.items()})
    if parted := partings(transaction):
        lifted = {n: Parting(p.scope, p.incarnation + by) for n, p in parted.items()}
        _put(transaction, MACHINES, lifted)


def _put(transaction: Transaction, setting: str, value: object) -> None:
    transaction.put_setting(setting, msgspec.json.encode(value).decode())
