"""The incarnations of scopes that were removed, in case one is added again under its name.

Its machines may still hold the number of the document that they read last. Counting from 0 again
would bring that number back with other events behind it (protocol.md section 7), and a client that
compares numbers would see nothing new.
"""

from typing import Final

import msgspec

from forewarn.maintenance.model import Changes, Snapshot
from forewarn.store.port import Reading, Transaction

SETTING: Final = "retired incarnations"
"""What the store keeps them under: JSON, by the scope's key; scopes that never had an event are
not in it."""

_numbers = msgspec.json.Decoder(dict[str, int])


def read(reading: Reading) -> dict[str, int]:
    """Return the last incarnation of each scope that was removed, by key."""
    kept = reading.setting(SETTING)
    return _numbers.decode(kept) if kept else {}


def note(transaction: Transaction, before: Snapshot, changes: Changes) -> None:
    """Write down what a change of the fleet removes, and forget what it adds again."""
    kept = read(transaction)
    after = dict(kept)
    for name in changes.removed_scopes:
        if (incarnation := before.scopes[name].incarnation) > 0:
            after[name] = incarnation
    for scope in changes.scopes:
        after.pop(scope.key, None)
    if after != kept:
        transaction.put_setting(SETTING, msgspec.json.encode(after).decode())


def lift(transaction: Transaction, by: int) -> None:
    """Raise all of them, as a restored database's scopes are."""
    kept = read(transaction)
    if kept:
        lifted = {name: incarnation + by for name, incarnation in kept.items()}
        transaction.put_setting(SETTING, msgspec.json.encode(lifted).decode())
