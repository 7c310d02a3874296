"""Small fleets, requests and ids for tests, and a bench that plays causes one after another."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml

from forewarn.maintenance import commands, fleet_file, invariants, model, planner
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.transitions import Decision
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, TurnPolicy, Unit, UnitKind
from forewarn.maintenance.world import LiveState, World
from forewarn.vocabulary import ApproverKind, EventSource, EventType, TargetKind

NOW = datetime(2026, 3, 2, 12, 0, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)

FLEET = msgspec.convert(
    yaml.safe_load(Path(__file__).with_name("fleet.yaml").read_text("utf-8")), fleet_file.Fleet
)
"""A few machines of every kind: see the file."""


def mint(prefix: str = "0") -> Callable[[], str]:
    """GUIDs that count up, so that tests can read them."""
    numbers = itertools.count(1)
    return lambda: f"{prefix * 8}-0000-4000-8000-{next(numbers):012x}"


def maintenance(
    *names: str, waves: Mapping[str, int] | None = None, **policy: Any
) -> model.Maintenance:
    """Maintenance 1, a Reboot of hosts that take their turns by a policy."""
    units = tuple(
        Unit(name=name, kind=UnitKind.HOST, wave=(waves or {}).get(name, 0))
        for name in names or ("h0", "h1", "h2", "h3")
    )
    return model.Maintenance(
        number=1,
        event_type=EventType.REBOOT,
        source=EventSource.PLATFORM,
        target=TargetKind.HOST,
        targets=tuple(unit.name for unit in units),
        description="",
        duration_seconds=-1,
        live_migration=False,
        policy=TurnPolicy(**policy),
        draining=model.DrainOptions(reboot=True),
        units=units,
        state=MaintenanceState.RUNNING,
        requested_by="ann",
        requested_at=NOW,
        changed_at=NOW,
    )


def survey_of(places: Mapping[str, Iterable[model.Machine]], **told: Any) -> HostSurvey:
    """A look that finds machines on their hosts, which are fine but for what is told of them."""
    facts = {"answers": True, "boot_id": "1", "can_reboot": True, "free_memory_mib": 100_000}
    hosts = {}
    for host, there in places.items():
        guests = (
            model.GuestFacts(vm_id=one.vm_id, name=one.name, running=True, memory_mib=1)
            for one in there
        )
        hosts[host] = model.HostFacts(**facts | told, guests=tuple(guests))
    keys = {one.vm_id: one.key for there in places.values() for one in there}
    return HostSurvey(began_at=NOW, hosts=hosts, keys=keys)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A World at one instant, with what is over besides: a test may keep it and alter a copy."""

    scopes: dict[str, model.Scope] = {}
    machines: dict[str, model.Machine] = {}
    operations: dict[str, model.Operation] = {}
    maintenances: dict[int, model.Maintenance] = {}
    holds: tuple[model.Hold, ...] = ()
    tombstones: dict[str, model.Tombstone] = {}
    retired: dict[str, int] = {}

    @classmethod
    def of(cls, world: World) -> "Snapshot":
        """What a World has."""
        tables = {name: dict(getattr(world, name)) for name in cls.__struct_fields__}
        return cls(**tables | {"holds": _in_order(world.holds.values())})

    def world(self) -> World:
        """The World that has it."""
        tables = msgspec.structs.asdict(self)
        tables["holds"] = {(hold.kind, hold.name): hold for hold in self.holds}
        return World(LiveState(**tables))


def succeed(before: Snapshot, after: Snapshot, changes: model.Changes | None = None) -> None:
    """Have one snapshot follow another, as a decision changed it; None for all that differs."""
    world = before.world()
    mark = world.mark()
    differs = model.Changes(
        scopes=_new(before.scopes, after.scopes),
        machines=_new(before.machines, after.machines),
        operations=_new(before.operations, after.operations),
    )
    world.take(differs)
    invariants.check_succession(world, world.since(mark), differs if changes is None else changes)


def _in_order(holds: Iterable[model.Hold]) -> tuple[model.Hold, ...]:
    return tuple(sorted(holds, key=lambda hold: (hold.at, hold.kind, hold.name)))


def _new(before: dict[Any, Any], after: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in after.items() if before.get(name) != value)


def applied(snapshot: Snapshot, changes: model.Changes) -> Snapshot:
    """What a store would hold after these changes."""
    world = snapshot.world()
    world.take(changes)
    return Snapshot.of(world)


class Bench:
    """A fleet in memory: causes go in, and every invariant is checked after each."""

    def __init__(self, wanted: fleet_file.Fleet = FLEET, now: datetime = NOW) -> None:
        self.now = now
        self.mint = mint("a")
        self.numbers = itertools.count(1)
        self.policy = model.Policy()
        self.sightings: dict[str, model.Sighting] = {}
        first = fleet_file.apply(World(), wanted, prune=False, mint=self.mint)
        self.snapshot = applied(Snapshot(), first.changes)
        self._filled: tuple[Snapshot, World] | None = None

    def world(self) -> World:
        """The World that decisions are made on: filled again where a test altered the snapshot."""
        if self._filled is None or self._filled[0] is not self.snapshot:
            self._filled = self.snapshot, self.snapshot.world()
        return self._filled[1]

    def decide(self, rule: Callable[..., Iterable[str]], *given: Any, **named: Any) -> Decision:
        world = self.world()
        try:
            decision = commands.decide(
                world,
                lambda working: rule(working, *given, **named),
                self.now,
                self.mint,
                self.policy,
                sighting=self.sightings.get,
            )
        except model.Refused:
            assert Snapshot.of(world) == self.snapshot
            raise
        self.snapshot = applied(self.snapshot, decision.changes)
        self._filled = self.snapshot, world
        assert Snapshot.of(world) == self.snapshot
        invariants.check(world)
        return decision

    def order(self, kind: MaintenanceOrder, unit: str = "", number: int = 1) -> Decision:
        return self.decide(commands.order_maintenance, number, kind, unit, "bob")

    def maintenance(self, number: int = 1) -> model.Maintenance:
        return self.snapshot.maintenances[number]

    def ask(self, event_type: EventType, *machines: str, **more: Any) -> Decision:
        request = planner.Request(event_type=event_type, machines=machines, **more)
        return self.decide(commands.request_maintenance, request=request, number=next(self.numbers))

    def ask_each_domain(self, event_type: EventType = EventType.REBOOT) -> None:
        """Ask for each update domain of `web` by itself: 1.1, 2.1 and 3.1, all announced."""
        self.policy = msgspec.structs.replace(self.policy, queue=model.Queueing.START)
        for domain in range(3):
            self.ask(event_type, f"web-{domain}", f"web-{domain + 3}")

    def approve(self, *event_ids: str, scope: str | None = None) -> Decision:
        return self.decide(
            commands.approve_events, event_ids=event_ids, approval=self.word(), scope=scope
        )

    def word(self, by: str = "web-0") -> model.Approval:
        return model.Approval(kind=ApproverKind.GUEST, by=by, address="10.0.0.10", at=self.now)

    def cancel(self, *operations: str, maintenance: int | None = None) -> Decision:
        if maintenance is not None:
            operations = tuple(
                o.id for o in self.snapshot.operations.values() if o.maintenance == maintenance
            )
        return self.decide(
            commands.cancel_operations,
            operations=operations,
            reason="not now",
            maintenances=() if maintenance is None else (maintenance,),
        )

    def hold(self, kind: model.HoldKind, name: str = "") -> Decision:
        hold = model.Hold(kind=kind, name=name, reason="storm", by="ann", at=self.now)
        return self.decide(commands.place_hold, hold)

    def let_pass(self, time: timedelta) -> Decision:
        self.now += time
        self.decide(commands.expire_holds)
        return self.decide(commands.advance_time)

    def claim(self, *operations: str, lease: timedelta = MINUTE) -> Decision:
        return self.decide(
            commands.claim_tasks, operations=operations, executor="here", lease=lease
        )

    def finish(self, operation: str, *, succeeded: bool = True, message: str = "") -> Decision:
        if self.operation(operation).lease_until is None:
            self.claim(operation)
        return self.decide(
            commands.finish_task,
            operation_id=operation,
            attempt=self.operation(operation).attempt,
            succeeded=succeeded,
            message=message,
        )

    def operation(self, operation_id: str) -> model.Operation:
        return self.snapshot.operations[operation_id]

    def event(self, operation_id: str) -> model.OperationEvent:
        (event,) = self.operation(operation_id).events
        return event

    def scope(self, name: str) -> model.Scope:
        return self.snapshot.scopes[model.key(name)]
