"""How an operation, a maintenance or a rollout is, as a word, and what keeps it there. Pure."""

from collections.abc import Collection
from enum import StrEnum

import msgspec

from forewarn import times
from forewarn.maintenance.model import RollingState, listed
from forewarn.maintenance.rollout_model import RolloutState, UnitState
from forewarn.server.operator import schemas
from forewarn.server.operator.rollout_schemas import RolloutUnitView, RolloutView
from forewarn.vocabulary import EventStatus


class Tone(StrEnum):
    """How a word is drawn; each is told apart without its colour by the word itself."""

    QUIET = "quiet"
    NOTICE = "notice"
    DOWN = "down"
    DONE = "done"
    LOOK = "look"
    """Somebody should look."""
    FAILED = "failed"


class Standing(msgspec.Struct, frozen=True):
    """How something is."""

    word: str
    tone: Tone
    why: str = ""
    """What it waits for, or what came of it; `""` where the word says it all."""


def of_operation(operation: schemas.OperationView) -> Standing:
    """Return how an operation is."""
    match operation.status:
        case EventStatus.QUEUED | EventStatus.SCHEDULED:
            return _unstarted(operation)
        case EventStatus.STARTED | EventStatus.RETURNING:
            return _down(operation)
        case EventStatus.COMPLETED:
            why = operation.outcome
            if operation.awaited:
                why = f"waits for {listed(operation.awaited)}"
            elif operation.up_at is not None:
                why = f"settles until {times.hour(operation.up_at)}"
            return Standing("done", Tone.DONE, why)
        case EventStatus.FAILED:
            tone = Tone.QUIET if operation.acknowledged_by else Tone.FAILED
            return Standing("failed", tone, operation.outcome)
        case EventStatus.CANCELED:
            return Standing("cancelled", Tone.QUIET, operation.outcome)


def _unstarted(operation: schemas.OperationView) -> Standing:
    queued = operation.status is EventStatus.QUEUED
    word, tone = ("queued", Tone.QUIET) if queued else ("under notice", Tone.NOTICE)
    if operation.held_at is not None:
        return Standing("held", Tone.LOOK)
    if operation.waits_for:
        why = f"after {operation.waits_for}"
        if operation.waits_for_machines:
            why += f", which waits for {listed(operation.waits_for_machines)}"
        return Standing(word, tone, why)
    if not queued and all(event.approval for event in operation.events):
        return Standing("approved", tone)
    return Standing(word, tone)


def _down(operation: schemas.OperationView) -> Standing:
    if operation.outcome_unknown:
        return Standing("outcome unknown", Tone.LOOK, operation.outcome_unknown)
    if operation.status is EventStatus.RETURNING:
        return Standing("returning", Tone.DOWN, f"waits for {listed(operation.awaited)}")
    return Standing("down", Tone.DOWN)


def of_maintenance(
    maintenance: schemas.MaintenanceView, operations: Collection[schemas.OperationView]
) -> Standing:
    """Return how a maintenance is, by its operations as far as history has them."""
    for update in maintenance.rolling_updates:
        if update.state is RollingState.PAUSED:
            return Standing("paused", Tone.LOOK, update.reason)
    standings = [of_operation(operation) for operation in operations]
    for tone in (Tone.DOWN, Tone.LOOK, Tone.FAILED, Tone.NOTICE):
        for standing in standings:
            if standing.tone is tone:
                return standing
    if any(update.more for update in maintenance.rolling_updates):
        return Standing("waiting", Tone.QUIET, "the next step is announced when nothing blocks it")
    words = {standing.word for standing in standings}
    for word, tone in (("queued", Tone.QUIET), ("failed", Tone.QUIET), ("done", Tone.DONE)):
        if word in words:
            return Standing(word, tone)
    return Standing("cancelled", Tone.QUIET) if words else Standing("forgotten", Tone.QUIET)


ROLLOUT_TONES = {
    RolloutState.RUNNING: Tone.NOTICE,
    RolloutState.PAUSED: Tone.LOOK,
    RolloutState.HALTED: Tone.FAILED,
    RolloutState.STOPPED: Tone.QUIET,
    RolloutState.DONE: Tone.DONE,
}

UNIT_TONES = {
    UnitState.WAITING: Tone.QUIET,
    UnitState.RUNNING: Tone.DOWN,
    UnitState.DONE: Tone.DONE,
    UnitState.FAILED: Tone.FAILED,
    UnitState.SKIPPED: Tone.QUIET,
}


def of_rollout(rollout: RolloutView) -> Standing:
    """Return how a rollout is."""
    if rollout.unconfirmed:
        return Standing("waits for you", Tone.LOOK, rollout.reason)
    return Standing(rollout.state.value, ROLLOUT_TONES[rollout.state], rollout.reason)


def of_unit(unit: RolloutUnitView) -> Standing:
    """Return how a unit of a rollout is; one that waits for a reason is blocked."""
    blocked = unit.state is UnitState.WAITING and bool(unit.reason)
    if blocked:
        return Standing("blocked", Tone.LOOK, unit.reason)
    return Standing(unit.state.value, UNIT_TONES[unit.state], unit.reason)
