"""Records of removed machines and scopes, in case one is added again under its name.

A machine may still hold the number of the document that it read last. Where its scope counts from 0
again, or the machine is added to another scope that has not come so far, that number would come
back with other events behind it (protocol.md section 7), and a client that compares numbers would
see nothing new.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from forewarn.maintenance.model import Tombstone
from forewarn.maintenance.world import Name, World
from forewarn.store.queries import Reading
from forewarn.store.sql import Transaction

SETTING: Final = "retired incarnations"
"""The store's setting with the last incarnations of removed scopes: JSON, by the scope's key;
scopes that never had an event are not in it."""

MAX_REMOVED: Final = 10_000
"""The most machines removed by operators that are remembered, the latest. A machine that comes back
to another scope does so soon, and fleets that grow and shrink by ever new names must not be
remembered for ever. Machines deleted by a Preempt or Terminate are remembered until they are added
again."""

replace = msgspec.structs.replace

_numbers = msgspec.json.Decoder(dict[str, int])


def scopes(reading: Reading) -> dict[str, int]:
    """Return the last incarnation of each scope that was removed, by key."""
    kept = reading.setting(SETTING)
    return _numbers.decode(kept) if kept else {}


def record(world: World, before: Mapping[Name, Any], now: datetime) -> None:
    """Leave a tombstone of each removed machine.

    `before` are the earlier values, as `World.since` returned them. Where these are too many, the
    oldest of those that operators removed go.
    """
    for (kind, name), machine in before.items():
        if kind != "machines" or machine is None or name in world.machines:
            continue
        # A machine that asks before the change is published may still read the next incarnation.
        scope = world.scopes.get(machine.scope)
        incarnation = scope.incarnation if scope else world.retired.get(machine.scope, 0)
        is_deleted = ("tombstones", name) in before and name in world.tombstones
        tombstone = world.tombstones[name] if is_deleted else Tombstone(name=machine.name, at=now)
        if tombstone.event_type or incarnation > 0:
            world.tombstones[name] = replace(
                tombstone, scope=machine.scope, incarnation=incarnation
            )
    removed = [one for one in world.tombstones.values() if one.event_type is None]
    removed.sort(key=lambda tombstone: (tombstone.at, tombstone.key))
    for tombstone in removed[: max(0, len(removed) - MAX_REMOVED)]:
        del world.tombstones[tombstone.key]


def keep(transaction: Transaction, world: World, before: Mapping[Name, Any]) -> None:
    """Write down the incarnations of removed scopes, if these have changed."""
    if any(kind == "retired" for kind, _ in before):
        transaction.put_setting(SETTING, msgspec.json.encode(world.retired).decode())


def highest(world: World) -> int:
    """Return the highest incarnation of all scopes and machines, also removed ones."""
    there = (scope.incarnation for scope in world.scopes.values())
    left = (tombstone.incarnation for tombstone in world.tombstones.values())
    return max((*there, *left, *world.retired.values()), default=0)


def lift(world: World, by: int) -> None:
    """Raise the incarnations of all scopes, and of all that was removed."""
    for name, scope in [*world.scopes.items()]:
        world.scopes[name] = replace(scope, incarnation=scope.incarnation + by)
    for name, number in [*world.retired.items()]:
        world.retired[name] = number + by
    for name, one in [*world.tombstones.items()]:
        if one.incarnation > 0:
            world.tombstones[name] = replace(one, incarnation=one.incarnation + by)
