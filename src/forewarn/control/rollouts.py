"""Drives rollouts: has the plane take each step. And prepares one from what an operator names.

`maintenance.rollout` decides. A step follows each change that may concern a rollout, and the time
that the step before named. A check runs beside the steps, and what it came to is
recorded as a change of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control import lookup
from forewarn.control.plane import Plane, Stepped
from forewarn.control.ticker import Steps
from forewarn.control.unit_of_work import Decide, UnitOfWork, Work
from forewarn.maintenance import (
    commands,
    host_drain,
    host_plan,
    notice,
    planner,
    rollout_check,
    rollout_plan,
)
from forewarn.maintenance import rollout as deciding
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Changes,
    Drain,
    Hold,
    HostState,
    Machine,
    Operation,
    Refused,
    key,
    unknown,
)
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
from forewarn.maintenance.rollout_model import (
    MAX_UNITS,
    Rollout,
    RolloutPolicy,
    RolloutTask,
    RolloutUnit,
)
from forewarn.maintenance.rollout_plan import PlannedRollout
from forewarn.store.port import Reading, StoreError
from forewarn.vocabulary import ErrorCode, EventType, TargetKind

GAP_SECONDS = 0.1
"""The least time between two rounds: in a storm of changes, one round serves many."""

LONGEST_GAP_SECONDS = 10.0

SHARE = 0.1
"""The part of the time that rounds take at most: the writer has guests to serve, too."""

RECORD_AGAIN: Final = timedelta(seconds=1)
"""How long to wait before a check's result is recorded again: the store was away."""

MAX_ROLLOUTS: Final = 50
"""Rollouts under way at once: each is looked at after each change."""

KEPT_ROLLOUTS: Final = 200
"""Rollouts that are kept; then each new one takes the place of the oldest that is over."""

MAX_ASKED: Final = 100
"""The most units that are asked for in one transaction: it takes a fraction of a second."""

CHECK_MARGIN: Final = timedelta(seconds=30)
"""How much longer than a check may take its result is waited for: the program's end, and a store
that is away for a moment. Then another replica runs it."""

replace = msgspec.structs.replace

_log = structlog.get_logger(__name__)


class RolloutTargets(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator names; each host, scope and machine is a unit."""

    hosts: tuple[str, ...] = ()
    all_hosts: bool = False
    """Every host that a machine is on, and that the connector can drain."""
    scopes: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    """Machines with all of these tags, each a unit."""


class Checks(Protocol):
    """Runs the checks that the settings name."""

    @property
    def names(self) -> Collection[str]:
        """What a rollout's policy may name."""

    async def run(self, run: CheckRun) -> CheckResult:
        """Run a check to its end, within the time that it may take; what goes wrong has failed."""


class Rollouts(Steps[int]):
    """Drives all rollouts. Lives on the event loop's thread.

    `scale` is how many seconds of the clock are one of a check's program.
    """

    def __init__(
        self,
        plane: Plane,
        clock: Clock,
        survey: Callable[[], Awaitable[HostSurvey]],
        checks: Checks,
        *,
        replica: str = "",
        scale: float = 1.0,
    ) -> None:
        super().__init__("rollouts", clock, "rollout")
        self._plane = plane
        self._survey = survey
        self.checks = checks
        self._replica = replica
        self._margin = CHECK_MARGIN * max(1.0, scale)
        self.rollouts: dict[int, Rollout] = {}
        """Every rollout that the store has, as of the last change."""

    def learn(self, changes: Changes) -> None:
        """Follow what changed, and wake up where it may concern a rollout."""
        for rollout in changes.rollouts:
            before = self.rollouts.get(rollout.number)
            self.rollouts[rollout.number] = rollout
            if before is None or before.state is not rollout.state:
                _log.info(
                    "rollout", rollout=rollout.number, state=rollout.state, reason=rollout.reason
                )
        for number in changes.removed_rollouts:
            self.rollouts.pop(number, None)
        concerned = (changes.rollouts, changes.operations, changes.drains, changes.maintenances)
        if any((*concerned, changes.released)) and any(
            rollout.goes_on for rollout in self.rollouts.values()
        ):
            self._wake.set()

    async def _round(self) -> timedelta:
        began = self._clock.monotonic()
        nap = await super()._round()
        gap = (self._clock.monotonic() - began) / SHARE
        await self._clock.wait(min(max(GAP_SECONDS, gap), LONGEST_GAP_SECONDS), self._stop)
        return nap

    def _going(self) -> list[int]:
        return [number for number, rollout in self.rollouts.items() if rollout.goes_on]

    def _step(self, each: int, survey: HostSurvey | None) -> "Future[Stepped]":
        replica, margin = self._replica, self._margin
        return self._plane.order(step, each, survey, replica=replica, margin=margin)

    def _ordered(self, each: int, stepped: Stepped) -> Coroutine[Any, Any, None] | None:
        del each
        return None if stepped.check is None else self._run_check(stepped.check)

    async def _look(self) -> HostSurvey:
        return await self._survey()

    async def _run_check(self, run: CheckRun) -> None:
        """Run a check and record how it ended, however long the store is away."""
        try:
            result = await self.checks.run(run)
        except Exception as error:  # noqa: BLE001 - an exception is a failure too
            _log.exception("a check failed to run", rollout=run.rollout, check=run.name)
            result = CheckResult(passed=False, message=f"{type(error).__name__}: {error}")
        _log.info("check", rollout=run.rollout, check=run.name, **msgspec.structs.asdict(result))
        while True:
            try:
                recorded = self._plane.order(record_check, run, result)
                return await asyncio.wrap_future(recorded)
            except StoreError as error:
                _log.warning("the result of a check waits for the store", reason=error)
            except Exception:  # noqa: BLE001 - the check runs again when its lease is over
                _log.exception("the result of a check was not recorded", rollout=run.rollout)
                return None
            await self._clock.wait(RECORD_AGAIN.total_seconds(), self._stop)
            if self._stop.is_set():
                return None


# What `Plane.order` does in a transaction. A step asks for all units that may go and notes that it
# has, so that whoever is killed in between has done both or neither. So with a check: who has noted
# that it runs is the one to run it.


def start(unit: UnitOfWork, _: Decide, wanted: Rollout) -> Work[Rollout]:
    """Start a rollout; the answer is it, with its number.

    One that was started already under its idempotency key is answered as it is now.
    """
    known = dict(sorted(unit.world.rollouts.items()))
    if (asked := deciding.granted(wanted, known.values())) is not None:
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
) -> Work[Stepped]:
    """Do what follows for a rollout: ask for units, halt it, or note what became of them.

    A check that is to run now is this replica's to run; its result is waited for so much longer
    than it may take.
    """
    before = unit.rollout(number)
    if before is None or not before.goes_on:
        return Work(Stepped())
    news = lookup.rollout_news(unit, before)
    following = deciding.follow(before, news, unit.now)

    def footprint(one: RolloutUnit) -> Footprint:
        return deciding.footprint(lookup.machines_of_unit(unit, one), before.policy.spread)

    def occupied(one: RolloutUnit, takes: Footprint) -> str:
        live = unit.live_operations(takes.domains).values()
        its = lookup.machines_of_unit(unit, one)
        return _occupied(one, its, takes, holds=unit.holds(), live=live, drains=unit.drains())

    following, step = deciding.step(following, footprint, occupied, unit.now)
    changes = Changes()
    if isinstance(step, Ask):
        if survey is None and any(following.units[index].drain for index in step.units):
            return Work(Stepped(survey=True))
        for index in step.units[:MAX_ASKED]:
            asked = following.units[index]
            try:
                if asked.drain:
                    assert survey is not None
                    maintenance, changes = 0, _drain_unit(unit, following, asked, survey)
                else:
                    takes = footprint(asked)
                    request = deciding.request(following, asked, takes, step.window, unit.now)
                    maintenance, changes = _ask(unit, decided, request)
                following = deciding.asked(following, index, maintenance, unit.now)
            except Refused as refusal:
                following = deciding.refused(following, index, refusal, unit.now)
            else:  # what the next one asks for is judged by
                unit.apply(replace(changes, rollouts=(following,)))
        changes = Changes()
    elif isinstance(step, Check):
        following = rollout_check.begun(following, step.run, replica, margin)
    elif isinstance(step, Stop):
        changes = _recall(unit, decided, following, news)
    if following != unit.rollout(number):
        changes = replace(changes, rollouts=(following,))
    stepped = Stepped(
        changed=following != before or bool(changes),
        check=step.run if isinstance(step, Check) else None,
        wake_at=step.until if isinstance(step, Wait) else None,
    )
    return Work(stepped, changes)


def _occupied(
    one: RolloutUnit,
    machines: Iterable[Machine],
    takes: Footprint,
    *,
    holds: Iterable[Hold],
    live: Iterable[Operation],
    drains: Mapping[str, Drain],
) -> str:
    """Return what holds a unit, or is in its way; `""` if it can go. `live` is in its scopes."""
    host = one.name if one.kind is TargetKind.HOST else ""
    left = (machine for machine in machines if machine.key not in one.done)
    if held := planner.on_hold(left, holds, host):
        return held
    return deciding.in_the_way(one, takes, live, drains.values() if one.drain else ())


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
    ordered = deciding.order(before, kind, name, by, unit.now)
    changes = _recall(unit, decided, ordered, lookup.rollout_news(unit, ordered))
    return Work(ordered, replace(changes, rollouts=(ordered,)))


def _ask(unit: UnitOfWork, decided: Decide, request: Request) -> tuple[int, Changes]:
    """Ask for the maintenance of a unit, as an operator would."""
    number = unit.next_maintenance_number()
    return number, decided(unit, commands.request_maintenance, request, number).changes


def _drain_unit(unit: UnitOfWork, of: Rollout, one: RolloutUnit, survey: HostSurvey) -> Changes:
    """Ask for the drain of a unit's host, as an operator would."""
    wanted = Drain(
        host=one.name,
        state=HostState.UP,
        reboot=True,
        without_notice=of.task.without_notice,
        avoid=rollout_plan.drained_soon(of, one),
        requested_by=of.requested_by,
        requested_at=unit.now,
        changed_at=unit.now,
    )
    before = unit.drains()
    host_plan.check([wanted], before, survey, lookup.on_hosts(unit, survey))
    return Changes(drains=(host_drain.request(before.get(one.name), wanted, unit.now),))


def _recall(unit: UnitOfWork, decided: Decide, of: Rollout, news: UnitNews) -> Changes:
    numbers = deciding.to_recall(of)
    live = {o.id: o for n in numbers for o in news.operations.get(n, ()) if o.live}
    if not live:
        return Changes()
    reason = f"rollout {of.number} is {of.state}"
    return decided(unit, commands.recall_maintenances, numbers, reason).changes


# What an operator asks for.


def prepared(
    reading: Reading,
    fleet: Mapping[str, Machine],
    targets: RolloutTargets,
    task: RolloutTask,
    policy: RolloutPolicy,
    *,
    drained: Collection[str],
    by: str,
    now: datetime,
) -> tuple[Rollout, PlannedRollout]:
    """Return the rollout that an operator asks for, as number 0, and its plan.

    `fleet` are all machines, by key; `drained` the hosts that the connector can drain and reboot.

    Raises:
        Refused: The policy cannot be read or nothing is named (INVALID), a name is unknown
            (NOT_FOUND), or these are too many units (LIMIT).
    """
    deciding.check_policy(policy)
    if task.event_type is not EventType.REBOOT:
        drained = ()
    units, members = _units(fleet, targets, drained)
    _check_notice(policy, task.event_type, units, now)
    if not units:
        raise Refused(ErrorCode.INVALID, "no unit: name hosts, scopes, machines or tags that exist")
    if len(units) > MAX_UNITS:
        message = f"{len(units)} units in one rollout, at most {MAX_UNITS}: split it"
        raise Refused(ErrorCode.LIMIT, message, units=len(units), most=MAX_UNITS)
    takes = {name: deciding.footprint(its, policy.spread) for name, its in members.items()}
    rollout = Rollout(
        number=0,
        task=task,
        policy=policy,
        units=rollout_plan.arranged(units, lambda unit: takes[unit.key], policy),
        requested_by=by,
        requested_at=now,
        changed_at=now,
    )
    holds, drains = reading.holds(), reading.drains()
    live_in: dict[str, dict[str, Operation]] = {}
    for operation in reading.live_operations().values():
        for event in operation.events:
            live_in.setdefault(event.scope, {})[operation.id] = operation

    def occupied(unit: RolloutUnit, its: Footprint) -> str:
        live: dict[str, Operation] = {}
        for scope in its.domains:
            live |= live_in.get(scope, {})
        found = live.values()
        return _occupied(unit, members[unit.key], its, holds=holds, live=found, drains=drains)

    plan = rollout_plan.planned(rollout, lambda unit: takes[unit.key], occupied, now)
    return rollout, plan


def _check_notice(
    policy: RolloutPolicy, event_type: EventType, units: Iterable[RolloutUnit], now: datetime
) -> None:
    drains = any(unit.drain for unit in units)
    for name, given in (
        ("approval_until", policy.approval_until),
        ("notice_seconds", policy.notice_seconds),
    ):
        if drains and given:
            message = (
                f"{name} is not for hosts that are drained: their machines move away live, with "
                "the least notice; leave it out, or do not drain the hosts"
            )
            raise Refused(ErrorCode.INVALID, message, where=f"policy.{name}")
    least = notice.LEAST.get(event_type, timedelta(minutes=min(notice.TERMINATE_MINUTES)))
    if 0 < policy.notice_seconds < least.total_seconds():
        message = (
            f"notice_seconds {policy.notice_seconds} is too short: a {event_type} has at least "
            f"{least.total_seconds():.0f} s of notice"
        )
        raise Refused(ErrorCode.NOTICE_TOO_SHORT, message, where="policy.notice_seconds")
    until = policy.approval_until
    if until is not None and until > now + notice.FURTHEST:
        message = f"approval_until is more than {notice.FURTHEST.days} days ahead"
        raise Refused(ErrorCode.INVALID, message, where="policy.approval_until")


def _units(
    fleet: Mapping[str, Machine], targets: RolloutTargets, drained: Collection[str]
) -> tuple[list[RolloutUnit], dict[str, list[Machine]]]:
    """Return the units that are named, each once, and their machines by the units' keys."""
    hosts = dict.fromkeys(targets.hosts)
    machines = dict.fromkeys(targets.machines)
    if targets.all_hosts or targets.tags:
        wanted = set(targets.tags)
        for machine in sorted(fleet.values(), key=lambda each: each.key):
            if targets.all_hosts and machine.host:
                hosts.setdefault(machine.host)
            if wanted and wanted <= set(machine.tags):
                machines.setdefault(machine.name)
    if targets.all_hosts:
        hosts |= dict.fromkeys(sorted(drained))
    on_hosts = _grouped(fleet.values(), lambda each: each.host)
    of_scopes = _grouped(fleet.values() if targets.scopes else (), lambda each: each.scope)
    units: list[RolloutUnit] = []
    members: dict[str, list[Machine]] = {}

    def add(kind: TargetKind, name: str, its: list[Machine], *, drain: bool = False) -> None:
        unit = RolloutUnit(name=name, kind=kind, drain=drain)
        if not its and not drain:
            what = {TargetKind.HOST: "host", TargetKind.SCOPE: "scope"}.get(kind, "machine")
            raise unknown(what, name)
        if unit.key in members:
            message = f"{name} is named twice, or is the name of two units"
            raise Refused(ErrorCode.INVALID, message, name=name)
        members[unit.key] = its
        units.append(unit)

    for host in hosts:
        add(TargetKind.HOST, host, on_hosts.get(host, []), drain=host in drained)
    for scope in dict.fromkeys(targets.scopes):
        add(TargetKind.SCOPE, scope, of_scopes.get(key(scope), []))
    for name in machines:
        its = [fleet[key(name)]] if key(name) in fleet else []
        add(TargetKind.MACHINES, name, its)
    return units, members


def _grouped(
    machines: Iterable[Machine], of: Callable[[Machine], str]
) -> Mapping[str, list[Machine]]:
    found: dict[str, list[Machine]] = {}
    for machine in machines:
        found.setdefault(of(machine), []).append(machine)
    return found
