"""The next step of a maintenance: `step(maintenance, its, now)`.

A maintenance has units, which take their turns under a policy; a unit becomes an operation, or the
drain of a host. `follow` updates the units that are under way from their operations; `step` then
chooses the units that go next, or says what the maintenance waits for. Both are pure, and are
called again after each change and at the time that `step` names (`Transitions.take_turns`). The
requests and the maintenance are saved in one transaction, so that a crash neither loses nor repeats
a unit.

A unit that cannot go now (a live event of one of its machines, another update domain of its scope)
says why and keeps no other from going. A unit that fails counts towards `stop_after`; then the
maintenance halts, everything that has not started is cancelled, and an operator decides.

`units.TRANSITIONS` are the states of a maintenance; `turn_orders` has the orders of operators.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import takewhile
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec

from forewarn.maintenance import notice, planner, time_windows, turn_check, units
from forewarn.maintenance.footprints import SEVERAL, Footprint, UnitsInWorld
from forewarn.maintenance.model import (
    Drain,
    HostState,
    Maintenance,
    Operation,
    Refused,
    key,
    listed,
)
from forewarn.maintenance.time_windows import Span
from forewarn.maintenance.turn_check import CheckRun
from forewarn.maintenance.units import MaintenanceState, MaintenanceTrigger, Unit, UnitState
from forewarn.vocabulary import ErrorCode, EventStatus

ASK_AGAIN_AFTER: Final = timedelta(seconds=60)
"""The wait of a unit after the rules refused its maintenance."""

LOOK_AGAIN_AFTER: Final = timedelta(seconds=60)
"""The time after which units with something else in their way are looked at again, even without a
change."""

MAX_DRAINED: Final = 20
"""The most hosts whose drains begin in one transaction, for each takes the writer milliseconds: the
guests' approvals wait that long."""

NO_WINDOW: Final = "no window of the policy is long enough"
"""Why nothing can be asked for within the next year."""

MAX_REASON: Final = 500
"""Characters of a reason that are kept: an outcome may be long, and there are many units."""

NOT_REFUSED: Final[Mapping[str, None]] = MappingProxyType({"retry_at": None, "refused_at": None})
"""The fields of a unit that the rules no longer refuse."""

replace = msgspec.structs.replace


class Obstacle(StrEnum):
    """The things that a maintenance can wait for."""

    UNITS = "units"
    AT_ONCE = "at-once"
    """As many units as the policy allows are under way."""
    UPDATE_DOMAIN = "update-domain"
    """Units under way have another update domain of the same scope."""
    SPREAD = "spread"
    """Units under way are in the same place."""
    MAINTENANCE = "maintenance"
    REFUSED = "refused"
    """The rules refused the maintenance; it is asked for again."""
    WINDOW = "window"
    PAUSE = "pause"
    CONFIRMATION = "confirmation"
    CHECK = "check"
    """The check has not passed yet since a unit ended."""
    OPERATOR = "operator"

    @property
    def words(self) -> str:
        """The words for it in a plan that people read."""
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
    """Their places in `Maintenance.units`."""
    window: Span
    full: bool = False
    """True if the others wait AT_ONCE while all of these are under way."""


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Run the check: nothing is asked for before it has passed."""

    run: CheckRun


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing may be asked for yet."""

    obstacle: Obstacle
    until: datetime | None = None
    """The time to call `step` again even if nothing changes; None for never."""
    why: str = ""


Step: TypeAlias = Ask | Check | Wait


def check_policy(policy: units.TurnPolicy) -> None:
    """Refuse a policy that cannot be read (INVALID)."""

    def judge(where: str, check: Callable[..., object], *texts: object) -> None:
        try:
            check(*texts)
        except ValueError as error:
            raise planner.wrong(f"policy.{where}", str(error)) from error

    judge("zone", time_windows.check, (), policy.zone)
    judge("windows", time_windows.check, policy.windows, policy.zone)
    judge("at_once", units.read_amount, policy.at_once)
    judge("waves", units.read_waves, policy.waves)
    judge("spread", units.read_spread, policy.spread)
    for blackout in policy.blackouts:
        if blackout.opens >= blackout.closes:
            message = f"the one from {notice.spoken(blackout.opens)} ends before it begins"
            raise planner.wrong("policy.blackouts", message)


# What became of the units that are under way.


def follow(
    maintenance: Maintenance,
    its: UnitsInWorld,
    now: datetime,
    *,
    concerned: Iterable[int] | None = None,
    lost: Container[str] = frozenset(),
) -> Maintenance:
    """Return the maintenance with the results of its units that are under way.

    `its` are its units in the World; `lost` names operations that are missing from history.
    `concerned` are the places of the units to look at: of thousands, one has ended; None for all.

    A drain that was stuck may go on, as an operator retries it: then so does its unit.
    """
    after = list(maintenance.units)
    has_ended = False
    running, failed = UnitState.RUNNING, UnitState.FAILED
    for index in range(len(after)) if concerned is None else concerned:
        unit = after[index]
        drain = its.world.drains.get(unit.name) if unit.drain else None
        began_at = now if drain is None else drain.requested_at
        goes_on = unit.state is failed and drain and began_at <= (unit.changed_at or now)
        if unit.state is not running and not goes_on:
            continue
        name = f"{maintenance.number}.{unit.operation}"
        if unit.drain:
            followed = _follow_drain(maintenance, unit, drain)
        elif (operation := its.world.operations.get(name)) is not None:
            followed = _follow(unit, operation)
        elif name in lost:
            followed = _failed(unit, f"{name} is not in the history any more")
        else:
            continue
        if followed.state is UnitState.DONE and not unit.drain and its.machines(followed):
            followed = replace(followed, state=UnitState.WAITING)
        if followed.state is UnitState.WAITING and maintenance.state is MaintenanceState.STOPPED:
            followed = replace(followed, state=UnitState.SKIPPED, reason=maintenance.reason)
        if followed.state is not unit.state:
            followed = replace(followed, changed_at=now)
            has_ended = has_ended or followed.state is not UnitState.RUNNING
        after[index] = followed
    following = _with_units(maintenance, after)
    return turn_check.needed(following) if has_ended else following


def _follow(unit: Unit, operation: Operation) -> Unit:
    """Return a unit after its operation; DONE where nothing keeps what is left from going."""
    if operation.status is EventStatus.FAILED:
        return _failed(unit, f"{operation.id} is Failed: {operation.outcome}")
    if operation.live:
        return unit
    if operation.status is EventStatus.COMPLETED:
        done = dict.fromkeys((*unit.done, *map(key, operation.machines)))
        return replace(unit, state=UnitState.DONE, reason="", done=tuple(done))
    outcome, closes = operation.outcome, operation.closes_at
    is_late = closes is not None and outcome == notice.window_closes(closes)
    # The unit of a host does not answer for machines that have left the host.
    if unit.recalled or is_late or outcome == left_host(operation.on_host):
        return replace(unit, state=UnitState.WAITING, reason=outcome[:MAX_REASON])
    return _failed(unit, f"{operation.id} is {operation.status}: {outcome}")


def _follow_drain(maintenance: Maintenance, unit: Unit, drain: Drain | None) -> Unit:
    if drain is None:
        return _failed(unit, f"host {unit.name} is not drained")
    if drain.state is HostState.STUCK:
        return _failed(unit, f"the drain is stuck: {drain.reason}")
    assert maintenance.draining is not None
    if drain.rests and not maintenance.draining.reboot:
        return replace(unit, state=UnitState.DONE, reason="")
    if drain.state is not HostState.UP:
        reason = f"{drain.state}: {drain.reason}" if drain.reason else str(drain.state)
        running = replace(unit, state=UnitState.RUNNING, accepted=False)
        return replace(running, reason=reason[:MAX_REASON])
    if drain.booted_at is None:
        return _failed(unit, "the host was undrained")
    return replace(unit, state=UnitState.DONE, reason="")


def serves(maintenance: Maintenance, drain: Drain) -> bool:
    """Return True if the drain of a unit's host does the work of a unit that is retried.

    The unit follows it then: a turn of its own might come when it is over, and reboot the host a
    second time.
    """
    assert maintenance.draining is not None
    if drain.booted_at is not None:
        return maintenance.draining.reboot and drain.booted_at >= maintenance.requested_at
    ends_early = drain.state is HostState.RETURNING
    return drain.goes_on and not ends_early and drain.reboot is maintenance.draining.reboot


def _failed(unit: Unit, reason: str) -> Unit:
    return replace(unit, state=UnitState.FAILED, reason=reason[:MAX_REASON].removesuffix(": "))


def left_host(host: str) -> str:
    """Return the reason for cancelling an operation whose machines have all left the host."""
    return f"its machines have left host {host}"


def _with_units(maintenance: Maintenance, after: Sequence[Unit]) -> Maintenance:
    new = tuple(after)
    return maintenance if new == maintenance.units else replace(maintenance, units=new)


def _with_waiting(maintenance: Maintenance, **fields: object) -> Maintenance:
    waiting, every = UnitState.WAITING, maintenance.units
    return _with_units(
        maintenance, [replace(unit, **fields) if unit.state is waiting else unit for unit in every]
    )


def without(maintenance: Maintenance, gone: Container[str]) -> Maintenance:
    """Return the maintenance without these machines (keys) in units that may have a turn yet.

    They leave the fleet: a machine that takes the name of one of them was not asked for.
    """
    every = maintenance.units
    left = [
        one
        if one.state in {UnitState.RUNNING, UnitState.DONE}
        else replace(one, machines=tuple(name for name in one.machines if name not in gone))
        for one in every
    ]
    return _with_units(maintenance, left)


# What follows.


def step(
    maintenance: Maintenance, its: UnitsInWorld, now: datetime
) -> tuple[Maintenance, Step | None]:
    """Return a maintenance, as `follow` returned it, with its reasons; and its next step.

    `its` are its units in the fleet as it is now. None where nothing follows: it is over or halted.
    """
    if maintenance.state.over:
        return maintenance, None
    if maintenance.state is not MaintenanceState.RUNNING:
        return maintenance, Wait(obstacle=Obstacle.OPERATOR, why=maintenance.reason)
    running, waiting, skipped, failed = _places(maintenance.units)
    over = not running and not waiting
    if over or skipped:
        grown = its.grown(maintenance, skipped, over=over)
        if grown != maintenance:
            return step(grown, its, now)
    if len(failed) >= maintenance.policy.stop_after:
        names = listed([unit.name for unit in failed])
        reason = f"{names} failed: {failed[0].reason}"
        return _halted(maintenance, reason, now), None
    try:  # it could be read when it began, but this machine may have other time zones
        time_windows.check(maintenance.policy.windows, maintenance.policy.zone)
    except ValueError as error:
        return _halted(maintenance, f"the windows cannot be read any more: {error}", now), None
    following: Step | None
    if turn_check.blocks(maintenance):
        maintenance, following = _check(maintenance, now)
    elif over:
        return _over(maintenance, now), None
    else:
        maintenance, following = _step(maintenance, running, waiting, its, now)
    closes = maintenance.closes_at
    if isinstance(following, Wait) and closes is not None and closes > now:
        following = replace(following, until=min(following.until or closes, closes))
    if isinstance(following, Wait) and following.why != maintenance.reason:
        maintenance = replace(maintenance, reason=following.why)
    elif isinstance(following, Ask) and maintenance.reason:
        maintenance = replace(maintenance, reason="")
    return maintenance, following


def _places(every: Iterable[Unit]) -> tuple[list[int], list[int], list[int], list[Unit]]:
    """Return the places of units that run, wait, are skipped; and those whose failure counts.

    In one pass: of a forecast of 1,000 units, looking at each took two thirds of the time.
    """
    running: list[int] = []
    waiting: list[int] = []
    skipped: list[int] = []
    failed: list[Unit] = []
    is_running, is_waiting, is_done = UnitState.RUNNING, UnitState.WAITING, UnitState.DONE
    for index, unit in enumerate(every):
        state = unit.state
        if state is is_waiting:
            waiting.append(index)
        elif state is is_done:
            pass
        elif state is is_running:
            running.append(index)
        elif state is UnitState.SKIPPED:
            skipped.append(index)
        elif not unit.accepted:
            failed.append(unit)
    return running, waiting, skipped, failed


def _over(maintenance: Maintenance, now: datetime) -> Maintenance:
    closes = maintenance.closes_at
    reason = "" if closes is None else notice.window_closes(closes)
    late = any(u.state is UnitState.SKIPPED and u.reason == reason for u in maintenance.units)
    if reason and late:
        return entered(maintenance, MaintenanceTrigger.CLOSE, now, reason)
    return entered(maintenance, MaintenanceTrigger.END, now)


def _step(
    maintenance: Maintenance,
    running: Sequence[int],
    waiting: Sequence[int],
    its: UnitsInWorld,
    now: datetime,
) -> tuple[Maintenance, Step | None]:
    policy, every = maintenance.policy, maintenance.units
    closes = maintenance.closes_at
    if closes is not None and closes <= now and waiting:
        return _closed(maintenance, now)
    wave = every[min((*running[:1], *waiting[:1]))].wave  # units are in the order of waves
    if wave != maintenance.wave:
        # One that was begun before, as a unit of it is tried again, has had its pause.
        began_at = now if wave > maintenance.wave else None
        maintenance = replace(maintenance, wave=wave, wave_at=began_at, confirmed=False)
    if (pause := pause_of(maintenance, now)) is not None:
        return maintenance, pause
    maintenance = turn_check.needed_after_pause(maintenance)
    if turn_check.blocks(maintenance):
        return _check(maintenance, now)
    room = units.amount(policy.at_once, len(every)) - len(running)
    if room <= 0:
        return maintenance, Wait(obstacle=Obstacle.AT_ONCE)
    if waiting and every[waiting[-1]].wave != wave:  # mostly there is one wave, and many units
        waiting = [*takewhile(lambda index: every[index].wave == wave, waiting)]
    if not waiting:
        return maintenance, Wait(obstacle=Obstacle.UNITS)
    by_drain = all(every[index].drain for index in waiting)
    window = _window(maintenance, now, by_drain=by_drain)
    if window is None:
        return _closed(maintenance, now)
    if isinstance(window, Wait):
        return maintenance, window
    return _ask(maintenance, running, waiting, its, now, room=room, window=window)


def _check(maintenance: Maintenance, now: datetime) -> tuple[Maintenance, Step | None]:
    policy, progress = maintenance.policy, maintenance.check
    tried = f"check {policy.check} failed {progress.failed} of {policy.check_tries} times"
    why = f"{tried}: {progress.reason}"[:MAX_REASON].removesuffix(": ")
    if progress.failed >= policy.check_tries:
        return _halted(maintenance, why, now), None
    if (until := turn_check.waits_until(maintenance, now)) is not None:
        told = why if progress.failed else f"check {policy.check} has not passed yet"
        return maintenance, Wait(obstacle=Obstacle.CHECK, until=until, why=told)
    return maintenance, Check(run=turn_check.next_run(maintenance, now))


def pause_of(maintenance: Maintenance, now: datetime) -> Wait | None:
    """Return the wait for the wave that has its turn; None where none is left."""
    if maintenance.wave_at is None or maintenance.confirmed:
        return None
    name = f"wave {maintenance.wave + 1}"
    if maintenance.unconfirmed:
        why = f"{name} waits for 'forewarn maintenance resume {maintenance.number}'"
        return Wait(obstacle=Obstacle.CONFIRMATION, why=why)
    until = maintenance.wave_at + timedelta(seconds=maintenance.policy.pause_seconds)
    if until <= now:
        return None
    return Wait(
        obstacle=Obstacle.PAUSE, until=until, why=f"{name} begins at {notice.spoken(until)}"
    )


def notice_of(maintenance: Maintenance) -> timedelta:
    """Return the notice of its guests."""
    least = notice.minimum(maintenance.event_type, None)
    return max(least, timedelta(seconds=maintenance.policy.notice_seconds))


def not_before(maintenance: Maintenance, now: datetime) -> datetime:
    """Return the earliest time at which a unit that is asked for now may start without approval."""
    earliest = now + notice_of(maintenance)
    until = maintenance.policy.approval_until
    return earliest if until is None else max(earliest, until)


def _window(maintenance: Maintenance, now: datetime, *, by_drain: bool) -> Span | Wait | None:
    """Return the next window that a unit fits into, or the wait until it may be asked for.

    An operation is asked for before its window opens, so that its notice is over when it opens; a
    drain is asked for in the window. None: the only window is over.
    """
    policy = maintenance.policy
    second = timedelta(seconds=1)
    lead = timedelta(0) if by_drain else notice_of(maintenance) + second
    earliest = now if by_drain else not_before(maintenance, now) + second
    cutoff = timedelta(seconds=policy.cutoff_seconds)
    opens, closes = maintenance.opens_at, maintenance.closes_at
    if closes is not None and now > closes - cutoff:
        return None
    spans: Iterable[Span] = [Span(opens or time_windows.FIRST, closes or time_windows.ENDLESS)]
    is_plain = opens is not None or closes is not None
    if not is_plain:
        spans = time_windows.following(policy.windows, policy.zone, policy.blackouts, now)
    for span in spans:
        late = (
            max(earliest, span.opens) >= span.closes or max(now, span.opens) > span.closes - cutoff
        )
        if late and not is_plain:  # of a plain window, the operation's own notice decides
            continue
        asked_at = max(span.opens, time_windows.FIRST + lead) - lead
        if asked_at <= now:
            return span
        why = f"the window opens at {notice.spoken(span.opens)}"
        return Wait(obstacle=Obstacle.WINDOW, until=asked_at, why=why)
    return Wait(obstacle=Obstacle.WINDOW, until=now + timedelta(days=1), why=NO_WINDOW)


def _closed(maintenance: Maintenance, now: datetime) -> tuple[Maintenance, Wait]:
    assert maintenance.closes_at is not None
    without = left_out(maintenance, notice.window_closes(maintenance.closes_at), now)
    return without, Wait(obstacle=Obstacle.WINDOW, until=now)


def left_out(maintenance: Maintenance, reason: str, now: datetime) -> Maintenance:
    """Return the maintenance without the units that wait."""
    return _with_waiting(maintenance, state=UnitState.SKIPPED, reason=reason, changed_at=now)


class Occupancy:
    """The resources that the units under way occupy."""

    def __init__(self) -> None:
        self._domains: dict[str, tuple[int, str]] = {}
        self._places: dict[str, str] = {}

    def add(self, unit: Unit, takes: Footprint) -> None:
        """Add what a unit occupies."""
        for scope, domain in takes.domains.items():
            there = self._domains.get(scope, (domain, ""))
            # Machines that moved may have brought two units under way into one scope.
            self._domains[scope] = domain if there[0] == domain else SEVERAL, unit.name
        for place in takes.places:
            self._places[place] = unit.name

    def in_the_way(self, takes: Footprint) -> tuple[Obstacle, str] | None:
        """Return the obstacle to a unit beside these, and why; None where it can go."""
        for scope, domain in takes.domains.items():
            there = self._domains.get(scope)
            if there is not None and (there[0] != domain or domain == SEVERAL):
                why = f"{there[1]} has another update domain of {scope}"
                return Obstacle.UPDATE_DOMAIN, why
        for place in sorted(takes.places):  # every replica tells the same
            if (name := self._places.get(place)) is not None:
                return Obstacle.SPREAD, f"{name} is under way in {place}"
        return None


def _ask(
    maintenance: Maintenance,
    running: Sequence[int],
    waiting: Sequence[int],
    its: UnitsInWorld,
    now: datetime,
    *,
    room: int,
    window: Span,
) -> tuple[Maintenance, Step]:
    """Choose the units that can go now; the others say why they cannot."""
    every = list(maintenance.units)
    taken = Occupancy()
    for index in running:
        taken.add(every[index], its.footprint(every[index]))
    chosen: list[int] = []
    obstacles: list[Obstacle] = []
    until: list[datetime] = []
    for index in waiting:
        unit = every[index]
        if unit.retry_at is not None and unit.retry_at > now:
            obstacles.append(Obstacle.REFUSED)
            until.append(unit.retry_at)
            continue
        if unit.drain and window.opens > now:
            obstacles.append(Obstacle.WINDOW)
            until.append(window.opens)
            continue
        takes = its.footprint(unit)
        if not takes.machines and not unit.drain:
            tagged = " and ".join(map("=".join, unit.tags))
            state, reason = UnitState.SKIPPED, units.NO_MACHINES + f" with {tagged}" * bool(tagged)
            if unit.done:
                state, reason = UnitState.DONE, ""
            every[index] = replace(unit, state=state, reason=reason, changed_at=now)
            continue
        found = taken.in_the_way(takes)
        if found is None and (other := its.occupied(unit, takes)):
            found = Obstacle.MAINTENANCE, other
            until.append(now + LOOK_AGAIN_AFTER)
        if found is not None:
            obstacles.append(found[0])
            every[index] = replace(unit, reason=found[1][:MAX_REASON], **NOT_REFUSED)
            continue
        chosen.append(index)
        taken.add(unit, takes)
        if len(chosen) == room or (unit.drain and len(chosen) >= MAX_DRAINED):
            break  # the next step follows at once
    maintenance = _with_units(maintenance, every)
    if chosen:
        full = len(chosen) == room
        return maintenance, Ask(units=tuple(chosen), window=window, full=full)
    if not obstacles:  # all were skipped
        return maintenance, Wait(obstacle=Obstacle.UNITS, until=now)
    blocked = [every[index] for index in waiting if not every[index].state.over]
    names = listed([unit.name for unit in blocked])
    why = "" if running else f"{names} cannot go now: {blocked[0].reason}"[:MAX_REASON]
    return maintenance, Wait(obstacle=obstacles[0], until=min(until, default=None), why=why)


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The times between which the operation of a unit may start."""

    not_before: datetime | None
    """None for as soon as its notice allows."""
    notice_seconds: int
    """The least length of its notice; 0 for the least of its type."""
    opens_at: datetime | None
    closes_at: datetime | None


def start_of(maintenance: Maintenance, window: Span, now: datetime) -> Start:
    """Return when the operation of a unit may start that is asked for now."""
    policy = maintenance.policy
    opens_at = window.opens if window.opens > now else None
    earliest = not_before(maintenance, now) + timedelta(seconds=1)
    is_given = policy.notice_seconds > 0 or policy.approval_until is not None
    longer = is_given and earliest > window.opens
    asked: datetime | None = None
    if longer:
        asked = notice.whole_seconds(earliest)
    elif policy.notice_seconds:
        asked = max(now + timedelta(seconds=policy.notice_seconds), opens_at or now)
    return Start(
        not_before=asked,
        notice_seconds=0 if longer else policy.notice_seconds,
        opens_at=opens_at,
        closes_at=None if window.closes == time_windows.ENDLESS else window.closes,
    )


def asked(maintenance: Maintenance, asked_for: Mapping[int, int], now: datetime) -> Maintenance:
    """Return the maintenance after units (places) were asked for.

    `asked_for` has the ordinals of their operations; 0 for the drain of a host.
    """
    fields = {"state": UnitState.RUNNING, "reason": "", "recalled": False, **NOT_REFUSED}
    after = list(maintenance.units)
    for index, operation in asked_for.items():
        after[index] = replace(after[index], operation=operation, changed_at=now, **fields)
    return replace(maintenance, units=tuple(after))


def refused(
    maintenance: Maintenance, refusals: Mapping[int, Refused], now: datetime
) -> Maintenance:
    """Return the maintenance after the rules refused units (places): they are asked for again.

    A unit that no longer fits into its window is left out, and one that can never be allowed has
    failed.
    """
    after = list(maintenance.units)
    for index, refusal in refusals.items():
        closes = maintenance.closes_at
        if refusal.code is ErrorCode.NOTICE_TOO_SHORT and closes is not None:
            fields = {"state": UnitState.SKIPPED, "reason": notice.window_closes(closes)}
            after[index] = replace(after[index], changed_at=now, **fields)
        elif refusal.code is ErrorCode.NOT_ELIGIBLE and not after[index].drain:
            after[index] = replace(_failed(after[index], refusal.message), changed_at=now)
        else:
            reason, retry_at = refusal.message[:MAX_REASON], now + ASK_AGAIN_AFTER
            refused_at = after[index].refused_at or now
            refused = {"reason": reason, "retry_at": retry_at, "refused_at": refused_at}
            after[index] = replace(after[index], **refused)
    return replace(maintenance, units=tuple(after))


def resting(maintenance: Maintenance) -> Maintenance:
    """Return the maintenance without its units' reasons: now they wait for an operator."""
    return _with_waiting(maintenance, reason="")


def _halted(maintenance: Maintenance, reason: str, now: datetime) -> Maintenance:
    return recalled(entered(maintenance, MaintenanceTrigger.HALT, now, reason[:MAX_REASON]))


def entered(
    maintenance: Maintenance, trigger: MaintenanceTrigger, now: datetime, reason: str = ""
) -> Maintenance:
    """Return the maintenance in the state that a trigger leads to.

    Raises:
        Refused: The table has no such transition (CONFLICT).
    """
    state = units.TRANSITIONS.get((maintenance.state, trigger))
    if state is None:
        message = f"maintenance {maintenance.number} is {maintenance.state}"
        raise Refused(ErrorCode.CONFLICT, message, maintenance=maintenance.number)
    return replace(maintenance, state=state, reason=reason, changed_at=now)


def recalled(maintenance: Maintenance, places: Iterable[int] | None = None) -> Maintenance:
    """Return the maintenance with the unstarted part of its units recalled.

    `places` are those of some units; None for all that are under way.
    """
    some = range(len(maintenance.units)) if places is None else places
    after = list(resting(maintenance).units)
    for index in some:
        if after[index].state is UnitState.RUNNING and not after[index].drain:
            after[index] = replace(after[index], recalled=True)
    return _with_units(maintenance, after)


def to_recall(maintenance: Maintenance) -> list[str]:
    """Return the ids of the operations that are to be cancelled where they have not started."""
    return [
        f"{maintenance.number}.{unit.operation}"
        for unit in maintenance.units
        if unit.recalled and unit.state is UnitState.RUNNING
    ]
