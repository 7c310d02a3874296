"""The counters against a slow count of everything, over changes at random."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from forewarn.maintenance.model import Changes, Machine, Operation, StartCause, key
from forewarn.maintenance.units import Unit, UnitKind, UnitState
from forewarn.server.page import maintenance as page
from forewarn.server.page import now, timeline
from forewarn.server.page.fleet_map import Condition
from forewarn.server.page.now import Facts
from forewarn.store.port import StoreUnavailable
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventStatus
from page.operations import NOW, operation
from turn_world import maintenance

MACHINES = tuple(f"m-{n}" for n in range(30))
FOLLOWING = {
    EventStatus.QUEUED: (EventStatus.SCHEDULED, EventStatus.CANCELED),
    EventStatus.SCHEDULED: (EventStatus.STARTED, EventStatus.CANCELED),
    EventStatus.STARTED: (EventStatus.RETURNING, EventStatus.FAILED, EventStatus.COMPLETED),
    EventStatus.RETURNING: (EventStatus.COMPLETED, EventStatus.FAILED),
}
REPLACE = msgspec.structs.replace


def machine(name: str, domain: int = 0) -> Machine:
    return Machine(
        name=name,
        scope="web" if domain < 5 else "db",
        update_domain=domain,
        fault_domain=0,
        vm_id="00000000-0000-4000-8000-000000000000",
    )


class Town:
    """A fleet and its operations, changed at random; `told` hears of each change first."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.numbers = itertools.count(1)
        self.now = NOW
        self.machines: dict[str, Machine] = {}
        self.operations: dict[str, Operation] = {}
        self.past: list[Operation] = []

    def step(self, told: Callable[[Changes], None], *, with_fleet: bool = True) -> None:
        self.now += timedelta(seconds=self.chance.randrange(1, 400))
        kinds = (self.announce, self.advance, self.advance, self.fleet)
        changes = self.chance.choice(kinds if with_fleet else kinds[:3])()
        told(changes)
        for name in changes.removed_machines:
            del self.machines[name]
        self.machines |= {m.key: m for m in changes.machines}
        self.operations |= {o.id: o for o in changes.operations}

    def fleet(self) -> Changes:
        gone = self.chance.sample(sorted(self.machines), min(2, len(self.machines)))
        names = self.chance.sample(MACHINES, 4)
        found = tuple(machine(name, self.chance.randrange(8)) for name in names)
        return Changes(machines=found, removed_machines=tuple(gone))

    def announce(self) -> Changes:
        status = self.chance.choice((EventStatus.QUEUED, EventStatus.SCHEDULED))
        made = operation(
            next(self.numbers),
            status,
            machines=tuple(self.chance.sample(MACHINES, self.chance.choice((1, 1, 5)))),
            announced=self.now,
        )
        return Changes(operations=(made,))

    def advance(self) -> Changes:
        live = [o for o in self.operations.values() if not o.status.over or o.awaited]
        picked = self.chance.sample(live, min(3, len(live)))
        return Changes(operations=tuple(self.advanced(each) for each in picked))

    def advanced(self, each: Operation) -> Operation:
        if each.status.over:
            return REPLACE(each, awaited=(), acknowledged_by="ann")
        status = self.chance.choice(FOLLOWING[each.status])
        more: dict[str, Any] = {}
        if status is EventStatus.STARTED:
            more["started_at"] = self.now
            if self.chance.random() < 0.5:
                (event,) = each.events
                word = {"kind": "guest", "by": "m", "at": self.now.isoformat()}
                approval = msgspec.convert(word, now.model.Approval)
                more["events"] = (REPLACE(event, approval=approval),)
                more["start_cause"] = StartCause.APPROVED
        if status.over:
            more["ended_at"] = self.now
            more["awaited"] = each.machines if status is EventStatus.FAILED else ()
        return REPLACE(each, status=status, **more)


def begun(machines: dict[str, Machine], *live: Operation) -> Facts:
    """Return what has learned of these, as at a start: before the machines are there."""
    known = dict(machines)
    machines.clear()
    counted = Facts(machines)
    counted.learn(Changes(machines=tuple(known.values()), operations=live))
    machines.update(known)
    return counted


def check(counted: Facts, town: Town) -> None:
    taken = counted.taken(town.now)
    operations = town.operations.values()
    assert set(taken.live) == {o for o in operations if o.live}
    week = town.now - now.PAST
    assert set(taken.past) == {
        o for o in operations if o.ended_at and o.ended_at >= week and not o.live
    }
    assert taken.machines == len(town.machines)
    assert taken.sizes == Counter((m.scope, m.update_domain) for m in town.machines.values())
    for found in Condition:
        names = (
            name for o in operations if o.live and now.condition(o) is found for name in o.machines
        )
        assert taken.conditions[found] == Counter(map(key, names))
    # To the minute: what lies within it may count or not.
    begin = (town.now - now.DAY).replace(second=0, microsecond=0)
    ended = Counter(o.status for o in operations if o.ended_at and o.ended_at >= begin)
    started = [o for o in operations if o.started_at and o.started_at >= begin]
    approved = [o for o in started if o.start_cause is StartCause.APPROVED]
    waits = sorted(e.approval.at - o.announced_at for o in approved for e in o.events if e.approval)
    assert taken.day == now.Day(
        completed=ended[EventStatus.COMPLETED],
        failed=ended[EventStatus.FAILED],
        cancelled=ended[EventStatus.CANCELED],
        started=len(started),
        approved=len(approved),
        approval=waits[(len(waits) - 1) // 2] if waits else None,
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_counters_equal_a_count_of_everything(seed: int) -> None:
    town = Town(seed)
    counted = begun(town.machines)
    for _ in range(300):
        town.step(counted.learn)
        check(counted, town)


def saved(town: Town) -> InMemoryStore:
    """A store that has the town's operations."""
    store = InMemoryStore()
    with store.write() as transaction:
        transaction.save(
            Changes(
                scopes=(scope(),),
                machines=tuple(machine(name) for name in MACHINES),
                maintenances=tuple(asked(o) for o in town.operations.values()),
                operations=tuple(town.operations.values()),
            )
        )
    return store


def scope() -> Any:
    wanted = {"name": "web", "kind": "availability_set", "update_domains": 5}
    return msgspec.convert(wanted, now.model.Scope)


def asked(of: Operation) -> Any:
    return now.model.mapped(
        now.model.Maintenance,
        of,
        number=of.maintenance,
        targets=of.machines,
        requested_by="ann",
        requested_at=of.announced_at,
    )


@pytest.mark.parametrize("seed", range(12))
def test_what_ended_before_the_start_is_counted_once_whatever_happens_while_it_is_read(
    seed: int,
) -> None:
    town = Town(seed)
    for _ in range(200):
        town.step(lambda changes: None)
    store = saved(town)
    counted = begun(town.machines, *(o for o in town.operations.values() if o.live))

    later: list[Changes] = []
    """The store has them, and the feed has not told of them."""

    async def ask(question: Callable[[Any], Any]) -> Any:
        when = town.chance.choice(("before", "after", "ahead"))
        with store.read() as reading:
            found = question(reading)
        for _ in range(30):
            town.step(counted.learn)
        for _ in range(30 if when == "ahead" else 0):
            town.step(later.append, with_fleet=False)
        if when != "before":
            with saved(town).read() as reading:
                found = question(reading)
        return found

    async def read() -> None:
        await asyncio.gather(counted.read(ask, town.now), counted.read(ask, town.now))
        await counted.read(ask, town.now)

    asyncio.run(read())
    for changes in later:
        counted.learn(changes)
    check(counted, town)
    for _ in range(100):
        town.step(counted.learn)
    check(counted, town)


def test_a_store_that_is_away_is_asked_again() -> None:
    counted = Facts({})
    asks = []

    async def ask(question: Callable[[Any], Any]) -> Any:
        asks.append(question)
        if len(asks) == 1:
            raise StoreUnavailable("the disk is full")
        return [operation(status=EventStatus.COMPLETED)]

    async def read() -> None:
        with pytest.raises(StoreUnavailable):
            await counted.read(ask, NOW)
        await counted.read(ask, NOW)
        await counted.read(ask, NOW)

    asyncio.run(read())
    assert len(asks) == 2
    assert counted.taken(NOW).day.completed == 1


def test_what_is_kept_of_the_past_is_bounded_and_the_counters_go_on() -> None:
    counted = Facts({})
    for number in range(1, now.MAX_PAST + 12):
        counted.learn(Changes(operations=(operation(number, EventStatus.STARTED),)))
        counted.learn(Changes(operations=(operation(number, EventStatus.COMPLETED),)))
    taken = counted.taken(NOW)
    assert len(taken.past) == now.MAX_PAST
    assert taken.past[-1].maintenance == now.MAX_PAST + 11
    assert taken.day.completed == now.MAX_PAST + 11


def test_the_fleet_is_handed_over_only_where_its_shape_is_new() -> None:
    machines = {"m-0": machine("m-0")}
    counted = begun(machines)
    taken = counted.taken(NOW)
    assert taken.keys == ("m-0",)
    assert counted.taken(NOW, taken.shape).keys is None
    counted.learn(Changes(machines=(REPLACE(machines["m-0"], host="h2"),)))
    assert counted.taken(NOW, taken.shape).sizes is None, "it moved to another host, no more"
    counted.learn(Changes(machines=(machine("m-0", 3),)))
    assert counted.taken(NOW, taken.shape).sizes == {("web", 3): 1}


def test_a_machine_of_two_operations_counts_once() -> None:
    counted = Facts({})
    counted.learn(Changes(operations=(operation(1), operation(2))))
    assert len(counted.taken(NOW).conditions[Condition.NOTICE]) == 1
    counted.learn(Changes(operations=(operation(1, EventStatus.CANCELED),)))
    assert len(counted.taken(NOW).conditions[Condition.NOTICE]) == 1
    assert timeline.is_down(operation(1, EventStatus.RETURNING))


def test_each_machine_of_a_maintenance_counts_once_by_its_latest_operation() -> None:
    waiting = Unit(name="web/1", kind=UnitKind.UPDATE_DOMAIN, operation=2)
    done = Unit(name="web/0", kind=UnitKind.UPDATE_DOMAIN, operation=3, state=UnitState.DONE)
    value = msgspec.structs.replace(maintenance("h0"), units=(done, waiting))
    ends = (EventStatus.FAILED, EventStatus.CANCELED, EventStatus.COMPLETED)
    its = [
        msgspec.structs.replace(operation(n, status, machines=machines), id=f"1.{n}")
        for n, status, machines in zip(
            (1, 2, 3), ends, (("web-0", "web-3"), ("web-1",), ("web-0", "web-3")), strict=True
        )
    ]
    counts = page._counts(value, its, 1)
    assert {name: count for name, count in counts.items() if count} == {"done": 2, "notice": 1}
    failed = page._counts(value, its[:1], 0)
    assert {name: count for name, count in failed.items() if count} == {"failed": 2}
