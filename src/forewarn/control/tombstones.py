"""Records of removed machines and scopes, in case one is added again under its name.

A machine may still hold the number of the document that it read last. Where its scope counts from 0
again, or the machine is added to another scope that has not come so far, that number would come
back with other events behind it (protocol.md section 7), and a client that compares numbers would
see nothing new.
"""

import heapq
from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec

from forewarn.maintenance.model import Tombstone, mapped
from forewarn.maintenance.world import World

MAX_REMOVED: Final = 10_000
"""The most machines removed by operators that are remembered, the latest. A machine that comes back
to another scope does so soon, and fleets that grow and shrink by ever new names must not be
remembered for ever."""

MAX_DELETED: Final = 100_000
"""The most machines deleted by a Preempt or Terminate that are remembered, the latest: a fleet file
that still names one would add it again."""

replace = msgspec.structs.replace


def record(world: World, removed: Collection[str], now: datetime) -> None:
    """Leave a tombstone of each machine (keys) that an operator removes, before it is gone.

    One that has read no event needs none.
    """
    for machine in map(world.machines.__getitem__, removed):
        if world.latest_incarnation(machine.scope) > 0:
            world.tombstones[machine.key] = mapped(Tombstone, machine, at=now)


def forget(world: World, limit: int) -> int:
    """Forget up to `limit` machines of each kind, the oldest of too many; return how many."""
    known, forgotten = world.tombstones.values(), 0
    for is_deleted, most in ((False, MAX_REMOVED), (True, MAX_DELETED)):
        kept = [one for one in known if (one.event_type is not None) is is_deleted]
        surplus = min(limit, max(0, len(kept) - most))
        for one in heapq.nsmallest(surplus, kept, key=lambda one: (one.at, one.key)):
            del world.tombstones[one.key]
        forgotten = max(forgotten, surplus)
    return forgotten


def highest(world: World) -> int:
    """Return the highest incarnation of all scopes, also removed ones."""
    there = (scope.incarnation for scope in world.scopes.values())
    return max((*there, *world.retired.values()), default=0)


def lift(world: World, by: int) -> None:
    """Raise the incarnations of all scopes, also of removed ones."""
    for name, scope in [*world.scopes.items()]:
        world.scopes[name] = replace(scope, incarnation=scope.incarnation + by)
    for name, number in [*world.retired.items()]:
        world.retired[name] = number + by
