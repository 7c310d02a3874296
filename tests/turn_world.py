"""A maintenance whose units are carried out by hand, for the tests of its decider."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from builders import NOW
from forewarn.maintenance import time_windows, turn_check, turn_orders, turns
from forewarn.maintenance.footprints import Footprint
from forewarn.maintenance.model import DrainOptions, Maintenance
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Ask, Check, Obstacle, Wait
from forewarn.maintenance.units import MaintenanceState, TurnPolicy, Unit, UnitKind, UnitState
from forewarn.vocabulary import EventSource, EventType, TargetKind

RUNNING, WAITING, FAILED = UnitState.RUNNING, UnitState.WAITING, UnitState.FAILED
ALWAYS = Span(time_windows.FIRST, time_windows.ENDLESS)
HOUR = timedelta(hours=1)
MARGIN = timedelta(seconds=30)


def maintenance(*names: str, waves: Mapping[str, int] | None = None, **policy: Any) -> Maintenance:
    """Maintenance 1, a Reboot of hosts that take their turns by a policy."""
    units = tuple(
        Unit(name=name, kind=UnitKind.HOST, wave=(waves or {}).get(name, 0))
        for name in names or ("h0", "h1", "h2", "h3")
    )
    return Maintenance(
        number=1,
        event_type=EventType.REBOOT,
        source=EventSource.PLATFORM,
        target=TargetKind.HOST,
        targets=tuple(unit.name for unit in units),
        description="",
        duration_seconds=-1,
        live_migration=False,
        policy=TurnPolicy(**policy),
        draining=DrainOptions(reboot=True),
        units=units,
        state=MaintenanceState.RUNNING,
        requested_by="ann",
        requested_at=NOW,
        changed_at=NOW,
    )


class World:
    """A maintenance whose units take what `takes` says, and are carried out by hand."""

    def __init__(self, of: Maintenance, **takes: dict[str, int]) -> None:
        self.maintenance = of
        self.now = NOW
        self.takes = takes
        self.places: dict[str, set[str]] = {}
        self.other: dict[str, str] = {}

    def footprint(self, unit: Unit) -> Footprint:
        return Footprint(
            machines=(f"on-{unit.name}",),
            domains=self.takes.get(unit.name, {}),
            places=frozenset(self.places.get(unit.name, ())),
        )

    def step(self) -> turns.Step:
        self.maintenance, step = turns.step(
            self.maintenance,
            self.footprint,
            lambda unit, takes: self.other.get(unit.name, ""),
            self.now,
        )
        return step

    def asked(self) -> list[str]:
        """Take a step; return the units that it asks for, and note that they were asked for."""
        step = self.step()
        if not isinstance(step, Ask):
            return []
        for index in step.units:
            self.maintenance = turns.asked(self.maintenance, {index: index + 1}, self.now)
        return [self.maintenance.units[index].name for index in step.units]

    def end(self, name: str, state: UnitState = UnitState.DONE, reason: str = "") -> None:
        units = tuple(
            msgspec.structs.replace(u, state=state, reason=reason) if u.name == name else u
            for u in self.maintenance.units
        )
        self.maintenance = msgspec.structs.replace(self.maintenance, units=units)

    def ends(self, name: str, state: UnitState = UnitState.DONE) -> None:
        """Let a unit end as `follow` sees it."""
        self.end(name, state)
        self.maintenance = turn_check.needed(self.maintenance)

    def begins_check(self) -> CheckRun:
        step = self.step()
        assert isinstance(step, Check), step
        self.maintenance = turn_check.begun(self.maintenance, step.run, "r1", MARGIN)
        return step.run

    def check_ends(self, run: CheckRun, result: CheckResult) -> None:
        self.maintenance = turn_check.ended(self.maintenance, run.number, result)

    def order(self, kind: MaintenanceOrder, unit: str = "") -> None:
        self.maintenance = turn_orders.order(self.maintenance, kind, unit, "bob", self.now)

    def unit(self, name: str) -> Unit:
        return next(unit for unit in self.maintenance.units if unit.name == name)

    def waits(self) -> Obstacle:
        step = self.step()
        assert isinstance(step, Wait), step
        return step.obstacle


def windowed(**policy: Any) -> World:
    """12:00 on a Monday, and a window from 22:00 to 23:00."""
    return World(maintenance(windows=("daily 22:00-23:00",), **policy))


OPENS = datetime(2026, 3, 2, 22, tzinfo=UTC)
