"""The orders of operators about a maintenance that has units."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import msgspec

from forewarn.maintenance import turn_check, turns
from forewarn.maintenance.model import Drain, Maintenance, Refused, key
from forewarn.maintenance.units import MaintenanceState, MaintenanceTrigger, Unit, UnitState
from forewarn.maintenance.world import NOTHING
from forewarn.vocabulary import ErrorCode

replace = msgspec.structs.replace


class MaintenanceOrder(StrEnum):
    """An order about a maintenance that has units."""

    PAUSE = "pause"
    """Ask for nothing further; what is announced goes on."""
    RESUME = "resume"
    """Go on after a pause or a halt, or begin the wave that waits for it."""
    STOP = "stop"
    """End it, and cancel what has not started."""
    SKIP = "skip"
    RETRY = "retry"
    """Give a unit that failed or was skipped another turn."""


def order(
    maintenance: Maintenance,
    kind: MaintenanceOrder,
    unit: str,
    by: str,
    now: datetime,
    *,
    reason: str = "",
    drains: Mapping[str, Drain] = NOTHING,
) -> Maintenance:
    """Return the maintenance after an operator's order; `reason` is why it stops, if given.

    `drains` are those of the hosts among its units.

    Raises:
        Refused: It makes no sense now (CONFLICT), or not any more (TOO_LATE), or there is no such
            unit (NOT_FOUND).
    """
    if maintenance.state.over:
        message = f"maintenance {maintenance.number} is {maintenance.state}"
        if maintenance.state is MaintenanceState.ANNOUNCED:
            message = (
                f"all of maintenance {maintenance.number} is announced, and nothing follows: "
                f"'forewarn cancel {maintenance.number}' cancels it until it starts"
            )
        raise Refused(ErrorCode.TOO_LATE, message, maintenance=maintenance.number)
    new = maintenance
    match kind:
        case MaintenanceOrder.PAUSE:
            paused = turns.entered(maintenance, MaintenanceTrigger.PAUSE, now, f"paused by {by}")
            new = turns.resting(paused)
        case MaintenanceOrder.RESUME:
            new = _resumed(maintenance, now)
        case MaintenanceOrder.STOP:
            told = reason or f"stopped by {by}"
            left_out = turns.left_out(maintenance, told, now)
            new = turns.recalled(turns.entered(left_out, MaintenanceTrigger.STOP, now, told))
        case MaintenanceOrder.SKIP:
            new = _skipped(maintenance, unit, by, now)
        case MaintenanceOrder.RETRY:
            new = _retried(maintenance, unit, drains, now)
    return replace(new, changed_by=by)


def _resumed(maintenance: Maintenance, now: datetime) -> Maintenance:
    if maintenance.state is MaintenanceState.RUNNING and turns.pause_of(maintenance, now):
        return replace(maintenance, confirmed=True, reason="")
    after = maintenance.units
    if maintenance.state is MaintenanceState.HALTED:  # a pause was ordered for another reason
        after = tuple(
            replace(unit, accepted=True) if unit.state is UnitState.FAILED else unit
            for unit in after
        )
    again = turn_check.begin_again(replace(maintenance, units=after))
    return turns.entered(again, MaintenanceTrigger.RESUME, now)


def _skipped(maintenance: Maintenance, name: str, by: str, now: datetime) -> Maintenance:
    index = _index(maintenance, name)
    unit = maintenance.units[index]
    if unit.state is UnitState.RUNNING:
        message = (
            f"{unit.name} is under way: undrain it first"
            if unit.drain
            else f"{unit.name} is under way: cancel {maintenance.number}.{unit.operation} first"
        )
        raise Refused(ErrorCode.CONFLICT, message, maintenance=maintenance.number, unit=unit.name)
    if unit.state.over and unit.state is not UnitState.FAILED:
        raise _conflict_of(maintenance, unit, "only a waiting or failed unit can be skipped")
    return _put(
        maintenance, index, state=UnitState.SKIPPED, reason=f"skipped by {by}", changed_at=now
    )


def _retried(
    maintenance: Maintenance, name: str, drains: Mapping[str, Drain], now: datetime
) -> Maintenance:
    index = _index(maintenance, name)
    unit = maintenance.units[index]
    if unit.state not in {UnitState.FAILED, UnitState.SKIPPED}:
        raise _conflict_of(maintenance, unit, "only a failed or skipped unit can be retried")
    drain = drains.get(unit.name) if unit.drain else None
    goes_on = drain is not None and turns.serves(maintenance, drain)
    return _put(
        maintenance,
        index,
        state=UnitState.RUNNING if goes_on else UnitState.WAITING,
        reason="",
        accepted=False,
        recalled=False,
        **turns.NOT_REFUSED,
        changed_at=now,
    )


def unit_named(maintenance: Maintenance, name: str) -> Unit:
    """Return the unit that an operator names; NOT_FOUND where there is none."""
    return maintenance.units[_index(maintenance, name)]


def _index(maintenance: Maintenance, name: str) -> int:
    for index, unit in enumerate(maintenance.units):
        if name in {unit.name, unit.key} or unit.key == key(name):
            return index
    message = (
        f"no unit {name!r} in maintenance {maintenance.number}: "
        f"see 'forewarn maintenance show {maintenance.number}'"
    )
    raise Refused(ErrorCode.NOT_FOUND, message, maintenance=maintenance.number, unit=name)


def _conflict_of(maintenance: Maintenance, unit: Unit, expected: str) -> Refused:
    message = f"{unit.name} of maintenance {maintenance.number} is {unit.state}: {expected}"
    return Refused(ErrorCode.CONFLICT, message, maintenance=maintenance.number, unit=unit.name)


def _put(maintenance: Maintenance, index: int, **fields: object) -> Maintenance:
    every = list(maintenance.units)
    every[index] = replace(every[index], **fields)
    return replace(maintenance, units=tuple(every))
