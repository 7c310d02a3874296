"""A rollout whose units are carried out by hand, for the tests of its decider."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from builders import NOW
from forewarn.maintenance import rollout as deciding
from forewarn.maintenance import rollout_check, time_windows
from forewarn.maintenance.rollout import (
    Ask,
    Check,
    Footprint,
    Obstacle,
    RolloutOrderKind,
    Wait,
)
from forewarn.maintenance.rollout_check import CheckResult, CheckRun
from forewarn.maintenance.rollout_model import (
    Rollout,
    RolloutPolicy,
    RolloutTask,
    RolloutUnit,
    UnitState,
)
from forewarn.maintenance.time_windows import Span
from forewarn.vocabulary import EventType, TargetKind

RUNNING, WAITING, FAILED = UnitState.RUNNING, UnitState.WAITING, UnitState.FAILED
ALWAYS = Span(time_windows.FIRST, time_windows.ENDLESS)
HOUR = timedelta(hours=1)
MARGIN = timedelta(seconds=30)


def rollout(*names: str, waves: Mapping[str, int] | None = None, **policy: Any) -> Rollout:
    units = tuple(
        RolloutUnit(name=name, kind=TargetKind.HOST, wave=(waves or {}).get(name, 0))
        for name in names or ("h0", "h1", "h2", "h3")
    )
    return Rollout(
        number=1,
        task=RolloutTask(event_type=EventType.REBOOT),
        policy=RolloutPolicy(**policy),
        units=units,
        requested_by="ann",
        requested_at=NOW,
        changed_at=NOW,
    )


class World:
    """A rollout whose units take what `takes` says, and are carried out by hand."""

    def __init__(self, of: Rollout, **takes: dict[str, int]) -> None:
        self.rollout = of
        self.now = NOW
        self.takes = takes
        self.places: dict[str, set[str]] = {}
        self.other: dict[str, str] = {}

    def footprint(self, unit: RolloutUnit) -> Footprint:
        return Footprint(
            machines=(f"on-{unit.name}",),
            domains=self.takes.get(unit.name, {}),
            places=frozenset(self.places.get(unit.name, ())),
        )

    def step(self) -> deciding.Step:
        self.rollout, step = deciding.step(
            self.rollout,
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
            self.rollout = deciding.asked(self.rollout, index, index + 1, self.now)
        return [self.rollout.units[index].name for index in step.units]

    def end(self, name: str, state: UnitState = UnitState.DONE, reason: str = "") -> None:
        units = tuple(
            msgspec.structs.replace(u, state=state, reason=reason) if u.name == name else u
            for u in self.rollout.units
        )
        self.rollout = msgspec.structs.replace(self.rollout, units=units)

    def ends(self, name: str, state: UnitState = UnitState.DONE) -> None:
        """Let a unit end as `follow` sees it."""
        self.end(name, state)
        self.rollout = rollout_check.needed(self.rollout)

    def begins_check(self) -> CheckRun:
        step = self.step()
        assert isinstance(step, Check), step
        self.rollout = rollout_check.begun(self.rollout, step.run, "r1", MARGIN)
        return step.run

    def check_ends(self, run: CheckRun, result: CheckResult) -> None:
        self.rollout = rollout_check.ended(self.rollout, run.number, result)

    def order(self, kind: RolloutOrderKind, unit: str = "") -> None:
        self.rollout = deciding.order(self.rollout, kind, unit, "bob", self.now)

    def unit(self, name: str) -> RolloutUnit:
        return next(unit for unit in self.rollout.units if unit.name == name)

    def waits(self) -> Obstacle:
        step = self.step()
        assert isinstance(step, Wait), step
        return step.obstacle


def windowed(**policy: Any) -> World:
    """12:00 on a Monday, and a window from 22:00 to 23:00."""
    return World(rollout(windows=("daily 22:00-23:00",), **policy))


OPENS = datetime(2026, 3, 2, 22, tzinfo=UTC)
