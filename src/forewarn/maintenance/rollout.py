"""What a rollout does next: `step(rollout, footprint, occupied, now)`.

A rollout asks for ordinary maintenances and drains, unit by unit, and nothing else: the rules judge
each of them as if an operator had asked. The update domains of one maintenance go one after another
by `planner.turns`. `follow` takes over what became of the units that are under way; `step` then
says what to ask for, or what the rollout waits for. Both are pure, and are asked again after each
change and at the time that `step` names. Whoever drives them saves the request and the rollout in
one transaction, so that a crash neither loses nor repeats a unit.

A unit that cannot go now (a live event of one of its machines, another update domain of its scope)
says why and keeps no other from going. A unit that fails counts towards `stop_after`; then the
rollout halts, what has not started is cancelled, and an operator decides.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from forewarn.maintenance import notice, rollout_check, rollout_model, time_windows
from forewarn.maintenance.model import (
    Drain,
    HostState,
    Machine,
    Maintenance,
    Operation,
    Refused,
    RollingState,
    key,
    listed,
)
from forewarn.maintenance.planner import Request, start_order
from forewarn.maintenance.rollout_check import CheckRun
from forewarn.maintenance.rollout_model import Rollout, RolloutState, RolloutUnit, UnitState
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.transitions import left_host
from forewarn.vocabulary import ErrorCode, EventStatus, TargetKind

ASK_AGAIN_AFTER: Final = timedelta(seconds=60)
"""How long a unit waits after the rules refused its maintenance."""

LOOK_AGAIN_AFTER: Final = timedelta(seconds=60)
"""When to look again at units that something else is in the way of, whatever was told."""

SEVERAL: Final = -1
"""Stands for several update domains of a scope."""

NO_WINDOW: Final = "no window of the policy is long enough"
"""Why nothing can be asked for within the next year."""

MAX_REASON: Final = 500
"""Characters of a reason that are kept: an outcome may be long, and a rollout has many units."""

replace = msgspec.structs.replace


class Footprint(msgspec.Struct, frozen=True, kw_only=True):
    """What a unit takes while it is under way."""

    machines: tuple[str, ...]
    """Their names."""
    domains: Mapping[str, int]
    """The update domain of each scope (by key), or SEVERAL."""
    places: frozenset[str] = frozenset()
    """Where its machines are, by the policy's `spread`."""


Footprints: TypeAlias = Callable[[RolloutUnit], Footprint]
"""From a unit to what it takes, in the fleet as it is now."""

Occupied: TypeAlias = Callable[[RolloutUnit, Footprint], str]
"""Tells what of other maintenance is in the way of a unit; `""` for nothing."""


class Obstacle(StrEnum):
    """What a rollout waits for."""

    UNITS = "units"
    """The units that are under way."""
    AT_ONCE = "at-once"
    """As many units as the policy allows are under way."""
    UPDATE_DOMAIN = "update-domain"
    """Units under way have another update domain of the same scope."""
    SPREAD = "spread"
    """Units under way are in the same place."""
    MAINTENANCE = "maintenance"
    """Other maintenance is in the way."""
    REFUSED = "refused"
    """The rules refused the maintenance; it is asked for again."""
    WINDOW = "window"
    PAUSE = "pause"
    """The pause between two waves."""
    CONFIRMATION = "confirmation"
    CHECK = "check"
    """The check has not passed yet since a unit ended."""
    OPERATOR = "operator"
    """It is paused or halted."""

    @property
    def words(self) -> str:
        """What people read of it in a plan."""
        return _WORDS.get(self, self.value)


_WORDS: Final = {
    Obstacle.UNITS: "earlier units",
    Obstacle.AT_ONCE: "the limit of units at once",
    Obstacle.UPDATE_DOMAIN: "update domains",
    Obstacle.MAINTENANCE: "other maintenance",
    Obstacle.REFUSED: "the rules",
    Obstacle.WINDOW: "windows",
    Obstacle.PAUSE: "pauses between waves",
    Obstacle.OPERATOR: "an operator",
}


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for the maintenance of units, or the drains of their hosts, each by itself."""

    units: tuple[int, ...]
    """Their places in `Rollout.units`."""
    window: Span
    """When they may start."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Run the check: nothing is asked for before it has passed."""

    run: CheckRun


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to ask for now."""

    obstacle: Obstacle
    until: datetime | None = None
    """When to ask again even if nothing changes; None for never."""
    why: str = ""


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Too many units failed, or the check did."""

    reason: str


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing follows any more."""


Step: TypeAlias = Ask | Check | Wait | Stop | Done


def check_policy(policy: rollout_model.RolloutPolicy) -> None:
    """Refuse a policy that cannot be read (INVALID)."""
    for where, windows in (("policy.zone", ()), ("policy.windows", policy.windows)):
        try:
            time_windows.check(windows, policy.zone)
        except ValueError as error:
            raise Refused(ErrorCode.INVALID, str(error), where=where) from error
    waves = policy.waves[:-1] if policy.waves[-1:] == ("rest",) else policy.waves
    amounts = "a number of units or a part of all, such as 5 or 10%"
    for name, texts, pattern, expected in (
        ("at_once", (policy.at_once,), rollout_model.AMOUNT, amounts),
        ("waves", waves, rollout_model.AMOUNT, f"{amounts}; the last one may be rest"),
        ("spread", (policy.spread,), rollout_model.SPREAD, "host, fault-domain or tag:KEY"),
    ):
        for text in texts:
            if not re.fullmatch(pattern, text):
                message = f"invalid {name} {text[:80]!r}: expected {expected}"
                raise Refused(ErrorCode.INVALID, message, where=f"policy.{name}")
    for blackout in policy.blackouts:
        if blackout.opens >= blackout.closes:
            message = f"the blackout from {notice.spoken(blackout.opens)} ends before it begins"
            raise Refused(ErrorCode.INVALID, message, where="policy.blackouts")


def footprint(machines: Iterable[Machine], spread: str) -> Footprint:
    """Return what machines take."""
    domains: dict[str, set[int]] = {}
    places: set[str] = set()
    names: list[str] = []
    tag = spread.removeprefix("tag:") if spread.startswith("tag:") else None
    for machine in machines:
        names.append(machine.name)
        domains.setdefault(machine.scope, set()).add(machine.update_domain)
        if tag is not None:
            places.update(value for name, value in machine.tags if name == tag)
        elif spread == "host" and machine.host:
            places.add(machine.host)
        elif spread == "fault-domain":
            places.add(f"{machine.scope}/{machine.fault_domain}")
    return Footprint(
        machines=tuple(names),
        domains={s: SEVERAL if len(found) > 1 else min(found) for s, found in domains.items()},
        places=frozenset(places),
    )


def in_the_way(
    unit: RolloutUnit, takes: Footprint, live: Iterable[Operation], drains: Iterable[Drain] = ()
) -> str:
    """Return what of the live operations in a unit's scopes keeps it from being asked for.

    The rules would refuse it, or let it wait in a queue; `""` where nothing is in the way. A host
    is not drained before the machines that other `drains` moved to it are home again.
    """
    names = {key(name) for name in takes.machines}
    for drain in drains if unit.drain else ():
        if drain.goes_on and drain.host != unit.name:
            here = [g.name for g in drain.guests if g.to_host == unit.name or key(g.name) in names]
            if here:
                return f"{listed(here)} of host {drain.host} is there until that host is up again"
    # By start order, so that the store's order does not decide what is told. What is held, or has
    # its window ahead, gives way to other update domains.
    for operation in sorted(live, key=start_order):
        if not operation.status.over:
            shared = [name for name in operation.machines if key(name) in names]
            if shared:
                return f"{listed(shared)} has {operation.id}, which is {operation.status}"
        for event in () if operation.gives_way else operation.events:
            mine = takes.domains.get(event.scope)
            if mine is not None and mine != event.update_domain:
                domain = f"update domain {event.update_domain} of {event.scope}"
                return f"{domain} has {operation.id}, which is {operation.status}"
    return ""


# What became of the units that are under way.


class UnitNews(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know of the units that are under way."""

    maintenances: Mapping[int, Maintenance]
    operations: Mapping[int, Sequence[Operation]]
    """By the number of their maintenance."""
    drains: Mapping[str, Drain]


def follow(rollout: Rollout, news: UnitNews, now: datetime) -> Rollout:
    """Return the rollout with what became of its units."""
    units = list(rollout.units)
    has_ended = False
    for index, unit in enumerate(units):
        if unit.state is not UnitState.RUNNING:
            continue
        if unit.drain:
            followed = _follow_drain(unit, news.drains.get(unit.name))
        else:
            operations = news.operations.get(unit.maintenance, ())
            followed = _follow(unit, news.maintenances.get(unit.maintenance), operations)
        if followed.state is not unit.state:
            followed = replace(followed, changed_at=now)
            has_ended = True
        units[index] = followed
    followed_by = _with_units(rollout, units)
    return rollout_check.needed(followed_by) if has_ended else followed_by


def _follow(
    unit: RolloutUnit, maintenance: Maintenance | None, operations: Sequence[Operation]
) -> RolloutUnit:
    if maintenance is None or not operations:
        return _failed(unit, f"maintenance {unit.maintenance} is not in the history any more")
    for operation in operations:
        if operation.status is EventStatus.FAILED:
            return _failed(unit, f"{operation.id} is Failed: {operation.outcome}")
    live = [operation for operation in operations if operation.live]
    if live:
        return replace(unit, reason=_slowed_by(live))
    for rolling in maintenance.rolling_updates:
        if rolling.state is RollingState.PAUSED:
            return _failed(unit, f"maintenance {maintenance.number} is paused: {rolling.reason}")
    if maintenance.open:
        return replace(unit, reason="")
    # The unit of a host does not answer for machines that have left the host.
    cut = [
        o.outcome
        for o in operations
        if o.status is EventStatus.CANCELED and o.outcome != left_host(o.on_host)
    ]
    cut += [rolling.reason for rolling in maintenance.rolling_updates if rolling.reason]
    if not cut:
        return replace(unit, state=UnitState.DONE, reason="")
    completed = {
        key(name)
        for operation in operations
        if operation.status is EventStatus.COMPLETED
        for name in operation.machines
    }
    closes = maintenance.closes_at
    closed = closes is not None and set(cut) == {notice.window_closes(closes)}
    if unit.recalled or closed:
        return replace(
            unit,
            state=UnitState.WAITING,
            reason=cut[0][:MAX_REASON],
            done=tuple(sorted({*unit.done, *completed})),
        )
    return _failed(unit, cut[0])


def _follow_drain(unit: RolloutUnit, drain: Drain | None) -> RolloutUnit:
    if drain is None:
        return _failed(unit, f"host {unit.name} is not drained")
    if drain.state is HostState.STUCK:
        return _failed(unit, f"the drain is stuck: {drain.reason}")
    if drain.state is not HostState.UP:
        reason = f"{drain.state}: {drain.reason}" if drain.reason else str(drain.state)
        return replace(unit, reason=reason[:MAX_REASON])
    if drain.reboot_asked_at is None:
        return _failed(unit, "the host was undrained")
    return replace(unit, state=UnitState.DONE, reason="")


def _failed(unit: RolloutUnit, reason: str) -> RolloutUnit:
    return replace(unit, state=UnitState.FAILED, reason=reason[:MAX_REASON].removesuffix(": "))


def _slowed_by(live: Iterable[Operation]) -> str:
    for operation in live:
        if operation.held_at is not None:
            return f"{operation.id} is held"
        if operation.outcome_unknown:
            return f"the outcome of {operation.id} is unknown"
        if operation.awaited and operation.status is not EventStatus.STARTED:
            return f"{operation.id} awaits {listed(operation.awaited)}"
    return ""


def _with_units(rollout: Rollout, units: Sequence[RolloutUnit]) -> Rollout:
    new = tuple(units)
    return rollout if new == rollout.units else replace(rollout, units=new)


# What follows.


def step(
    rollout: Rollout, footprints: Footprints, occupied: Occupied, now: datetime
) -> tuple[Rollout, Step]:
    """Return what a rollout, as `follow` returned it, does now; and the rollout with its reasons.

    `footprints` are what each unit takes, `occupied` tells what of other maintenance is in the way.
    """
    if rollout.state.over:
        return rollout, Done()
    census = _census(rollout.units)
    failed = [unit for unit in census.failed if not unit.accepted]
    if rollout.state is RolloutState.RUNNING and len(failed) >= rollout.policy.stop_after:
        names = listed([unit.name for unit in failed])
        reason = f"{names} failed: {failed[0].reason}"[:MAX_REASON]
        return _halted(rollout, reason, now), Stop(reason=reason)
    if rollout.state is not RolloutState.RUNNING:
        return rollout, Wait(obstacle=Obstacle.OPERATOR, why=rollout.reason)
    try:  # it could be read when it began, but this machine may have other time zones
        time_windows.check(rollout.policy.windows, rollout.policy.zone)
    except ValueError as error:
        why = f"the windows cannot be read any more: {error}"[:MAX_REASON]
        return _halted(rollout, why, now), Stop(reason=why)
    checks = rollout_check.blocks(rollout)
    if not census.running and not census.waiting and not checks:
        return replace(rollout, state=RolloutState.DONE, reason="", changed_at=now), Done()
    if checks:
        rollout, step = _check(rollout, now)
    else:
        rollout, step = _step(rollout, census, footprints, occupied, now=now)
    if isinstance(step, Wait) and step.why != rollout.reason:
        rollout = replace(rollout, reason=step.why)
    elif isinstance(step, Ask) and rollout.reason:
        rollout = replace(rollout, reason="")
    return rollout, step


class _Census(msgspec.Struct, frozen=True):
    """The units by what they are at."""

    waiting: list[int]
    """Their places in `Rollout.units`."""
    running: list[RolloutUnit]
    failed: list[RolloutUnit]


def _census(units: Sequence[RolloutUnit]) -> _Census:
    """Look at each unit once: a rollout has thousands, and asks after each change."""
    waiting, running, failed = UnitState.WAITING, UnitState.RUNNING, UnitState.FAILED
    found = _Census([], [], [])
    for index, unit in enumerate(units):
        state = unit.state
        if state is waiting:
            found.waiting.append(index)
        elif state is running:
            found.running.append(unit)
        elif state is failed:
            found.failed.append(unit)
    return found


def _step(
    rollout: Rollout, census: _Census, footprints: Footprints, occupied: Occupied, *, now: datetime
) -> tuple[Rollout, Step]:
    policy, units = rollout.policy, rollout.units
    waves = {unit.wave for unit in census.running}
    wave = min(waves | {units[index].wave for index in census.waiting})
    if wave > rollout.wave:
        rollout = replace(rollout, wave=wave, wave_at=now, confirmed=False)
    if (pause := _pause(rollout, now)) is not None:
        return rollout, pause
    rollout = rollout_check.needed_after_pause(rollout)
    if rollout_check.blocks(rollout):
        return _check(rollout, now)
    room = rollout_model.amount(policy.at_once, len(units)) - len(census.running)
    if room <= 0:
        return rollout, Wait(obstacle=Obstacle.AT_ONCE)
    waiting = [index for index in census.waiting if units[index].wave == wave]
    if not waiting:
        return rollout, Wait(obstacle=Obstacle.UNITS)
    by_drain = all(units[index].drain for index in waiting)
    window = _window(rollout, now, by_drain=by_drain)
    if isinstance(window, Wait):
        return rollout, window
    return _ask(
        rollout, waiting, now, room=room, window=window, footprints=footprints, occupied=occupied
    )


def _check(rollout: Rollout, now: datetime) -> tuple[Rollout, Step]:
    policy, progress = rollout.policy, rollout.check
    tried = f"check {policy.check} failed {progress.failed} of {policy.check_tries} times"
    why = f"{tried}: {progress.reason}"[:MAX_REASON].removesuffix(": ")
    if progress.failed >= policy.check_tries:
        return _halted(rollout, why, now), Stop(reason=why)
    if (until := rollout_check.waits_until(rollout, now)) is not None:
        told = why if progress.failed else f"check {policy.check} has not passed yet"
        return rollout, Wait(obstacle=Obstacle.CHECK, until=until, why=told)
    return rollout, Check(run=rollout_check.next_run(rollout, now))


def _pause(rollout: Rollout, now: datetime) -> Wait | None:
    if rollout.wave_at is None or rollout.confirmed:
        return None
    name = f"wave {rollout.wave + 1}"
    if rollout.unconfirmed:
        why = f"{name} waits for 'forewarn rollout resume {rollout.number}'"
        return Wait(obstacle=Obstacle.CONFIRMATION, why=why)
    until = rollout.wave_at + timedelta(seconds=rollout.policy.pause_seconds)
    if until <= now:
        return None
    return Wait(
        obstacle=Obstacle.PAUSE, until=until, why=f"{name} begins at {notice.spoken(until)}"
    )


def notice_of(rollout: Rollout) -> timedelta:
    """Return the notice that its guests have."""
    least = notice.LEAST.get(rollout.task.event_type)
    if least is None:  # a Terminate's is its scale set's own
        least = timedelta(minutes=max(notice.TERMINATE_MINUTES))
    return max(least, timedelta(seconds=rollout.policy.notice_seconds))


def not_before(rollout: Rollout, now: datetime) -> datetime:
    """Return when a unit that is asked for now may start without approval, at the earliest."""
    earliest = now + notice_of(rollout)
    until = rollout.policy.approval_until
    return earliest if until is None else max(earliest, until)


def _window(rollout: Rollout, now: datetime, *, by_drain: bool) -> Span | Wait:
    """Return the next window that a unit fits into, or the wait until it may be asked for.

    A maintenance is asked for before its window opens, so that its notice is over when it opens;
    a drain is asked for in the window.
    """
    policy = rollout.policy
    second = timedelta(seconds=1)
    lead = timedelta(0) if by_drain else notice_of(rollout) + second
    earliest = now if by_drain else not_before(rollout, now) + second
    cutoff = timedelta(seconds=policy.cutoff_seconds)
    for span in time_windows.following(policy.windows, policy.zone, policy.blackouts, now):
        if max(earliest, span.opens) >= span.closes or max(now, span.opens) > span.closes - cutoff:
            continue
        asked_at = max(span.opens, time_windows.FIRST + lead) - lead
        if asked_at <= now:
            return span
        why = f"the window opens at {notice.spoken(span.opens)}"
        return Wait(obstacle=Obstacle.WINDOW, until=asked_at, why=why)
    return Wait(obstacle=Obstacle.WINDOW, until=now + timedelta(days=1), why=NO_WINDOW)


class _Taken:
    """What the units under way take."""

    def __init__(self) -> None:
        self._domains: dict[str, tuple[int, str]] = {}
        self._places: dict[str, str] = {}

    def add(self, unit: RolloutUnit, takes: Footprint) -> None:
        for scope, domain in takes.domains.items():
            there = self._domains.get(scope, (domain, ""))
            # Machines that moved may have brought two units under way into one scope.
            self._domains[scope] = domain if there[0] == domain else SEVERAL, unit.name
        for place in takes.places:
            self._places[place] = unit.name

    def in_the_way(self, takes: Footprint) -> tuple[Obstacle, str] | None:
        for scope, domain in takes.domains.items():
            there = self._domains.get(scope)
            if there is not None and (there[0] != domain or domain == SEVERAL):
                why = f"{there[1]} has an update domain of {scope}"
                return Obstacle.UPDATE_DOMAIN, why
        for place in takes.places:
            if (name := self._places.get(place)) is not None:
                return Obstacle.SPREAD, f"{name} is under way in {place}"
        return None


def _ask(
    rollout: Rollout,
    waiting: Sequence[int],
    now: datetime,
    *,
    room: int,
    window: Span,
    footprints: Footprints,
    occupied: Occupied,
) -> tuple[Rollout, Step]:
    """Choose the units that can go now; the others say why they cannot."""
    units = list(rollout.units)
    taken = _Taken()
    running = [unit for unit in units if unit.state is UnitState.RUNNING]
    for unit in running:
        taken.add(unit, footprints(unit))
    chosen: list[int] = []
    obstacles: list[Obstacle] = []
    until: list[datetime] = []
    for index in waiting:
        unit = units[index]
        if unit.retry_at is not None and unit.retry_at > now:
            obstacles.append(Obstacle.REFUSED)
            until.append(unit.retry_at)
            continue
        takes = footprints(unit)
        if not _left(unit, takes) and not unit.drain:
            state, reason = UnitState.SKIPPED, "it has no machines"
            if unit.done:
                state, reason = UnitState.DONE, ""
            units[index] = replace(unit, state=state, reason=reason, changed_at=now)
            continue
        found = taken.in_the_way(takes)
        if found is None and (other := occupied(unit, takes)):
            found = Obstacle.MAINTENANCE, other
            until.append(now + LOOK_AGAIN_AFTER)
        if found is not None:
            obstacles.append(found[0])
            units[index] = replace(unit, reason=found[1][:MAX_REASON])
            continue
        chosen.append(index)
        taken.add(unit, takes)
        if len(chosen) == room:
            break
    rollout = _with_units(rollout, units)
    if chosen:
        return rollout, Ask(units=tuple(chosen), window=window)
    if not obstacles:  # all were skipped
        return rollout, Wait(obstacle=Obstacle.UNITS, until=now)
    names = listed([units[i].name for i in waiting if not units[i].state.over])
    why = "" if running else f"{names} cannot go now"
    return rollout, Wait(obstacle=obstacles[0], until=min(until, default=None), why=why)


def request(
    rollout: Rollout, unit: RolloutUnit, takes: Footprint, window: Span, now: datetime
) -> Request:
    """Return the maintenance that a unit asks for: of all of it, or of what is left of it."""
    task = rollout.task
    whole = not unit.done and unit.kind is not TargetKind.MACHINES
    policy = rollout.policy
    earliest = not_before(rollout, now) + timedelta(seconds=1)
    is_given = policy.notice_seconds > 0 or policy.approval_until is not None
    longer = is_given and earliest > window.opens
    return Request(
        event_type=task.event_type,
        machines=() if whole else _left(unit, takes),
        scope=unit.name if whole and unit.kind is TargetKind.SCOPE else "",
        host=unit.name if whole and unit.kind is TargetKind.HOST else "",
        source=task.source,
        not_before=notice.whole_seconds(earliest) if longer else None,
        notice_seconds=0 if longer else policy.notice_seconds,
        opens_at=window.opens if window.opens > now else None,
        closes_at=None if window.closes == time_windows.ENDLESS else window.closes,
        duration_seconds=task.duration_seconds,
        description=task.description,
        without_notice=task.without_notice,
        requested_by=rollout.requested_by,
        approval_until=policy.approval_until,
    )


def _left(unit: RolloutUnit, takes: Footprint) -> tuple[str, ...]:
    return tuple(name for name in takes.machines if key(name) not in unit.done)


def asked(rollout: Rollout, index: int, number: int, now: datetime) -> Rollout:
    """Return the rollout after a unit's maintenance (its number) or drain (0) was asked for."""
    return _put(
        rollout,
        index,
        state=UnitState.RUNNING,
        maintenance=number,
        reason="",
        recalled=False,
        retry_at=None,
        changed_at=now,
    )


def refused(rollout: Rollout, index: int, refusal: Refused, now: datetime) -> Rollout:
    """Return the rollout after the rules refused what a unit asked for: it is asked again later."""
    reason = refusal.message[:MAX_REASON]
    return _put(rollout, index, reason=reason, retry_at=now + ASK_AGAIN_AFTER)


def _put(rollout: Rollout, index: int, **fields: object) -> Rollout:
    units = list(rollout.units)
    units[index] = replace(units[index], **fields)
    return replace(rollout, units=tuple(units))


def _halted(rollout: Rollout, reason: str, now: datetime) -> Rollout:
    return _recalled(replace(rollout, state=RolloutState.HALTED, reason=reason, changed_at=now))


def _recalled(rollout: Rollout) -> Rollout:
    return _with_units(
        rollout,
        [
            replace(unit, recalled=True)
            if unit.state is UnitState.RUNNING and not unit.drain
            else unit
            for unit in rollout.units
        ],
    )


def to_recall(rollout: Rollout) -> list[int]:
    """Return the maintenances whose unstarted operations are to be cancelled."""
    return [
        unit.maintenance
        for unit in rollout.units
        if unit.recalled and unit.state is UnitState.RUNNING
    ]


# What operators order.


class RolloutOrderKind(StrEnum):
    """An order about a rollout."""

    PAUSE = "pause"
    """Ask for nothing further; what is announced goes on."""
    RESUME = "resume"
    """Go on after a pause or a halt, or begin the wave that waits for it."""
    STOP = "stop"
    """End the rollout, and cancel what has not started."""
    SKIP = "skip"
    """Leave a unit out."""
    RETRY = "retry"
    """Give a unit that failed or was skipped another turn."""


def granted(wanted: Rollout, known: Iterable[Rollout]) -> Rollout | None:
    """Return the rollout that was started with the idempotency key of a request.

    Raises:
        Refused: It was another request (CONFLICT).
    """
    key = wanted.idempotency_key
    found = next((one for one in known if key and one.idempotency_key == key), None)
    if found is None:
        return None
    asked, before = (
        {(unit.kind, unit.key, unit.drain) for unit in one.units} for one in (wanted, found)
    )
    if asked != before or (wanted.task, wanted.policy) != (found.task, found.policy):
        message = (
            f"the idempotency key {key!r} was used for another request, rollout {found.number}: "
            "choose a new one"
        )
        raise Refused(ErrorCode.CONFLICT, message, rollout=found.number)
    return found


def order(rollout: Rollout, kind: RolloutOrderKind, unit: str, by: str, now: datetime) -> Rollout:
    """Return the rollout after an operator's order.

    Raises:
        Refused: It makes no sense now (CONFLICT), or there is no such unit (NOT_FOUND).
    """
    if rollout.state.over:
        message = f"rollout {rollout.number} is {rollout.state}"
        raise Refused(ErrorCode.TOO_LATE, message, rollout=rollout.number)
    new = rollout
    match kind:
        case RolloutOrderKind.PAUSE:
            if rollout.state is not RolloutState.RUNNING:
                raise _conflict(rollout)
            new = replace(rollout, state=RolloutState.PAUSED, reason=f"paused by {by}")
        case RolloutOrderKind.RESUME:
            new = _resumed(rollout, now)
        case RolloutOrderKind.STOP:
            stopped = replace(rollout, state=RolloutState.STOPPED, reason=f"stopped by {by}")
            new = _recalled(stopped)
        case RolloutOrderKind.SKIP:
            new = _skipped(rollout, unit, by, now)
        case RolloutOrderKind.RETRY:
            new = _retried(rollout, unit, now)
    changed_at = rollout.changed_at if new.state is rollout.state else now
    return replace(new, changed_by=by, changed_at=changed_at)


def _resumed(rollout: Rollout, now: datetime) -> Rollout:
    if rollout.state is RolloutState.RUNNING:
        if _pause(rollout, now) is None:
            raise _conflict(rollout)
        return replace(rollout, confirmed=True, reason="")
    return going_on(rollout)


def going_on(rollout: Rollout) -> Rollout:
    """Return the rollout as it goes on: with its failures accepted, and its check run again."""
    units = [
        replace(unit, accepted=True) if unit.state is UnitState.FAILED else unit
        for unit in rollout.units
    ]
    again = rollout_check.begin_again(_with_units(rollout, units))
    return replace(again, state=RolloutState.RUNNING, reason="")


def _skipped(rollout: Rollout, name: str, by: str, now: datetime) -> Rollout:
    index = _index(rollout, name)
    unit = rollout.units[index]
    if unit.state is UnitState.RUNNING:
        message = (
            f"{unit.name} is under way: cancel maintenance {unit.maintenance} first"
            if unit.maintenance
            else f"{unit.name} is under way: undrain it first"
        )
        raise Refused(ErrorCode.CONFLICT, message, rollout=rollout.number, unit=unit.name)
    if unit.state.over and unit.state is not UnitState.FAILED:
        raise _conflict_of(rollout, unit)
    return _put(rollout, index, state=UnitState.SKIPPED, reason=f"skipped by {by}", changed_at=now)


def _retried(rollout: Rollout, name: str, now: datetime) -> Rollout:
    index = _index(rollout, name)
    unit = rollout.units[index]
    if unit.state not in {UnitState.FAILED, UnitState.SKIPPED}:
        raise _conflict_of(rollout, unit)
    return _put(
        rollout,
        index,
        state=UnitState.WAITING,
        reason="",
        accepted=False,
        recalled=False,
        retry_at=None,
        changed_at=now,
    )


def _index(rollout: Rollout, name: str) -> int:
    for index, unit in enumerate(rollout.units):
        if name in {unit.name, unit.key} or unit.key == key(name):
            return index
    message = f"no unit {name!r} in rollout {rollout.number}: see 'forewarn rollout show'"
    raise Refused(ErrorCode.NOT_FOUND, message, rollout=rollout.number, unit=name)


def _conflict(rollout: Rollout) -> Refused:
    message = f"rollout {rollout.number} is {rollout.state}"
    return Refused(ErrorCode.CONFLICT, message, rollout=rollout.number)


def _conflict_of(rollout: Rollout, unit: RolloutUnit) -> Refused:
    message = f"{unit.name} is {unit.state} in rollout {rollout.number}"
    return Refused(ErrorCode.CONFLICT, message, rollout=rollout.number, unit=unit.name)
