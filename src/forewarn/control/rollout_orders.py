"""What the service does in a transaction for rollouts: start one, take its next step, steer it.

`Plane.order` runs each function as one of the writer's jobs. A step
asks for one unit and notes that it has in one transaction, so that whoever is killed in between has
done both or neither. So with a check: who has noted that it runs is the one to run it.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from forewarn.control import loading
from forewarn.control.unit_of_work import Decide, UnitOfWork, Work
from forewarn.maintenance import decide, host_drain, host_plan, rollout, rollout_check
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import Changes, Drain, HostState, Refused
from forewarn.maintenance.planner import Request
from forewarn.maintenance.rollout import (
    Ask,
    Check,
    Footprint,
    RolloutOrderKind,
    Stop,
    UnitNews,
    Wait,
)
from forewarn.maintenance.rollout_check import CheckResult, CheckRun
from forewarn.maintenance.rollout_model import Rollout, RolloutUnit
from forewarn.vocabulary import ErrorCode

MAX_ROLLOUTS: Final = 50
"""Rollouts under way at once: each is looked at after each change."""

KEPT_ROLLOUTS: Final = 200
"""Rollouts that are kept; then each new one takes the place of the oldest that is over."""

CHECK_MARGIN: Final = timedelta(seconds=30)
"""How much longer than a check may take its result is waited for: the program's end, and a store
that is away for a moment. Then another replica runs it."""

replace = msgspec.structs.replace


class SteppedRollout(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to do after a step of a rollout."""

    changed: bool = False
    """Whether another step follows at once."""
    survey: bool = False
    """Whether to look at the hosts before it."""
    check: CheckRun | None = None
    """The check to run now; whoever took the step has it until its lease is over."""
    wake_at: datetime | None = None
    """When the next step is due if nothing changes before."""


def start(unit: UnitOfWork, _: Decide, wanted: Rollout) -> Work[Rollout]:
    """Start a rollout; the answer is it, with its number.

    One that was started already under its idempotency key is answered as it is now.
    """
    known = unit.store.rollouts()
    if (asked := rollout.granted(wanted, known.values())) is not None:
        return Work(asked)
    number = max(known, default=0) + 1
    started = replace(wanted, number=number, requested_at=unit.now, changed_at=unit.now)
    over = [number for number, one in known.items() if not one.goes_on]
    if len(known) - len(over) >= MAX_ROLLOUTS:
        message = f"{len(known) - len(over)} rollouts are under way, at most {MAX_ROLLOUTS}"
        raise Refused(ErrorCode.LIMIT, message, most=MAX_ROLLOUTS)
    old = tuple(over[: max(0, len(known) + 1 - KEPT_ROLLOUTS)])
    return Work(started, Changes(rollouts=(started,), removed_rollouts=old))


def step(
    unit: UnitOfWork,
    decided: Decide,
    number: int,
    survey: HostSurvey | None,
    *,
    replica: str = "",
    margin: timedelta = CHECK_MARGIN,
) -> Work[SteppedRollout]:
    """Do what follows for a rollout: ask for one unit, halt it, or note what became of it.

    A check that is to run now is this replica's to run; its result is waited for so much longer
    than it may take.
    """
    before = unit.rollout(number)
    if before is None or not before.goes_on:
        return Work(SteppedRollout())
    news = loading.rollout_news(unit, before)
    following = rollout.follow(before, news, unit.now)
    reader = loading.UnitReader(unit, before)

    def footprint(one: RolloutUnit) -> Footprint:
        return rollout.footprint(reader.machines(one), before.policy.spread)

    def occupied(one: RolloutUnit, takes: Footprint) -> str:
        return rollout.in_the_way(one, takes, unit.live_operations(takes.domains).values())

    following, step = rollout.step(following, footprint, occupied, unit.now)
    changes = Changes()
    if isinstance(step, Ask):
        index, asked = step.units[0], following.units[step.units[0]]
        if asked.drain and survey is None:
            return Work(SteppedRollout(survey=True))
        try:
            if asked.drain:
                assert survey is not None
                maintenance, changes = 0, _drain_unit(unit, following, asked, survey)
            else:
                takes = footprint(asked)
                request = rollout.request(following, asked, takes, step.window, unit.now)
                maintenance, changes = _ask(unit, decided, request)
            following = rollout.asked(following, index, maintenance, unit.now)
        except Refused as refusal:
            following = rollout.refused(following, index, refusal, unit.now)
    elif isinstance(step, Check):
        following = rollout_check.begun(following, step.run, replica, margin)
    elif isinstance(step, Stop):
        changes = _recall(unit, decided, following, news)
    if following != before:
        changes = replace(changes, rollouts=(following,))
    stepped = SteppedRollout(
        changed=bool(changes),
        check=step.run if isinstance(step, Check) else None,
        wake_at=step.until if isinstance(step, Wait) else None,
    )
    return Work(stepped, changes)


def record_check(unit: UnitOfWork, _: Decide, run: CheckRun, result: CheckResult) -> Work[None]:
    """Record how a rollout's check ended, if that run is still waited for."""
    before = unit.rollout(run.rollout)
    after = before and rollout_check.ended(before, run.number, result)
    if after is None or after == before:
        return Work(None)
    return Work(None, Changes(rollouts=(after,)))


def steer(
    unit: UnitOfWork, decided: Decide, number: int, kind: RolloutOrderKind, name: str, *, by: str
) -> Work[Rollout]:
    """Do what an operator orders about a rollout; `name` is a unit's."""
    before = unit.rollout(number)
    if before is None:
        message = f"no rollout {number}: see 'forewarn rollout list'"
        raise Refused(ErrorCode.NOT_FOUND, message, rollout=number)
    ordered = rollout.order(before, kind, name, by, unit.now)
    changes = _recall(unit, decided, ordered, loading.rollout_news(unit, ordered))
    return Work(ordered, replace(changes, rollouts=(ordered,)))


def _ask(unit: UnitOfWork, decided: Decide, request: Request) -> tuple[int, Changes]:
    """Ask for the maintenance of a unit, as an operator would."""
    number = unit.next_maintenance_number()
    snapshot = loading.for_request(unit, request, limited=True)
    return number, decided(unit, snapshot, decide.request_maintenance, request, number).changes


def _drain_unit(unit: UnitOfWork, of: Rollout, one: RolloutUnit, survey: HostSurvey) -> Changes:
    """Ask for the drain of a unit's host, as an operator would."""
    wanted = Drain(
        host=one.name,
        state=HostState.UP,
        reboot=True,
        without_notice=of.task.without_notice,
        requested_by=of.requested_by,
        requested_at=unit.now,
        changed_at=unit.now,
    )
    before = unit.drains()
    host_plan.check([wanted], before, survey, loading.on_hosts(unit, survey))
    return Changes(drains=(host_drain.request(before.get(one.name), wanted, unit.now),))


def _recall(unit: UnitOfWork, decided: Decide, of: Rollout, news: UnitNews) -> Changes:
    numbers = rollout.to_recall(of)
    live = {o.id: o for n in numbers for o in news.operations.get(n, ()) if o.live}
    if not live:
        return Changes()
    snapshot = loading.around(unit, live, rolling=True)
    reason = f"rollout {of.number} is {of.state}"
    return decided(unit, snapshot, decide.recall_maintenances, numbers, reason).changes
