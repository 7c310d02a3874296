"""The predicted end of each unit of a maintenance: the rules themselves, in virtual time.

`play` calls the service's own commands on a World of its own, and advances time from one change to
the next. Guests approve at once, or never. Every task succeeds, and takes the expected duration (no
time where it is unknown); machines are back, checks pass, and an operator confirms each wave, at
once. Other maintenances and drains go on beside it. So a plan cannot say what the service would not
do.
"""

from collections.abc import Callable, Iterable, Set
from datetime import datetime, timedelta
from itertools import count
from typing import Final

import msgspec

from forewarn.maintenance import commands, host_drain, time_windows, turn_check, turn_plan
from forewarn.maintenance.footprints import Footprint
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Drain,
    Enablement,
    Maintenance,
    Operation,
    Policy,
    Sighting,
    key,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.transitions import Decision, Transitions
from forewarn.maintenance.turn_check import CheckResult
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turn_plan import PlannedTurns, PlannedWave
from forewarn.maintenance.turns import Ask, Check, Obstacle, Step, Wait
from forewarn.maintenance.units import MaintenanceState, Unit, UnitState
from forewarn.maintenance.world import World
from forewarn.vocabulary import AgentStatus, ApproverKind, EventStatus

MOST_DECISIONS: Final = 10_000
"""The most decisions of a forecast: some seconds of a thread that shares the process with guests.
What would take more is played only as far as it goes at once."""

UNITS_OF_A_DECISION: Final = 5
"""The units that cost as much as a decision to look at, in vain, because others are in their way:
all hosts of a large scale set, after each change."""

OF_A_UNIT: Final = 3
OF_A_MOVE: Final = 5
"""The decisions that a unit takes, and each of the two moves of a machine whose host is drained."""

FURTHEST: Final = timedelta(days=366)
"""The horizon of a forecast: as far as windows are looked for."""

NEVER: Final = 2 * FURTHEST

FIRST_NUMBER: Final = 1 << 40
"""The number of the maintenance in its forecast, and the first of those that its drains ask for."""

A_MOMENT: Final = timedelta(seconds=1)
"""The least time that a task still takes that is under way already."""

replace = msgspec.structs.replace


class Course(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted course of a maintenance."""

    begun: Maintenance
    """The maintenance after everything that goes at once."""
    waits: Wait | None
    """The wait of the other units then; None where all went at once."""
    ended: Maintenance | None = None
    """The maintenance at the end; units that are not over then wait for an operator. None where it
    was not played to its end, or takes too many decisions."""


def play(
    world: World,
    wanted: Maintenance,
    rules: Policy,
    now: datetime,
    *,
    approving: bool,
    survey: HostSurvey | None = None,
    to_the_end: bool = True,
) -> Course:
    """Predict the course of a new maintenance.

    Args:
        world: A copy, which is played in: all scopes that it may meet, with what is live in them.
        wanted: The maintenance, arranged.
        rules: The service's.
        now: The time of the request.
        approving: True if guests approve each event at once; otherwise they never do.
        survey: A look at the hosts; None where no unit is drained.
        to_the_end: True to play on after everything that goes at once.
    """
    course = _Play(world, rules, now, survey, approving=approving)
    course.decide(commands.start_maintenance, wanted, FIRST_NUMBER)
    begun, waits, until = course.maintenance, None, now + FURTHEST
    try:
        course.settle()
        begun, waits = course.maintenance, course.waits
        while to_the_end and (at := course.next()) is not None and at <= until:
            course.now = at
            course.settle()
    except _TooLong:
        to_the_end = False
    return Course(begun=begun, waits=waits, ended=course.maintenance if to_the_end else None)


def planned(
    maintenance: Maintenance,
    footprints: Callable[[Unit], Footprint],
    worlds: Callable[[], World],
    rules: Policy,
    now: datetime,
    *,
    survey: HostSurvey | None = None,
    to_the_end: bool = True,
) -> PlannedTurns:
    """Return the plan of a new maintenance, arranged.

    `footprints` are those of the units; `worlds` returns a World to play in, as `play` says.
    """
    machines = {unit.key: len(footprints(unit).machines) for unit in maintenance.units}
    going: dict[int, list[int]] = {}
    empty: list[str] = []
    for index, unit in enumerate(maintenance.units):
        if machines[unit.key] or unit.drain:
            going.setdefault(unit.wave, []).append(index)
        else:
            empty.append(unit.name)
    moves = 2 * sum(machines[unit.key] for unit in maintenance.units if unit.drain)
    if OF_A_UNIT * len(maintenance.units) + OF_A_MOVE * moves > MOST_DECISIONS:
        to_the_end = False
    latest = play(
        worlds(), maintenance, rules, now, approving=False, survey=survey, to_the_end=to_the_end
    )
    earliest = latest
    if latest.ended is not None:
        earliest = play(worlds(), maintenance, rules, now, approving=True, survey=survey)
    waves = tuple(
        PlannedWave(
            number=number + 1,
            units=tuple(maintenance.units[index].name for index in its),
            machines=sum(machines[maintenance.units[index].key] for index in its),
            earliest=_over_at(earliest, its),
            latest=_over_at(latest, its),
        )
        for number, its in sorted(going.items())
    )
    policy, begun = maintenance.policy, latest.begun.units
    waiting = [unit for unit in begun if unit.state is UnitState.WAITING]
    waits = latest.waits if waiting else None
    reason = ""
    if waits is not None:
        reason = waits.why if waits.obstacle is Obstacle.WINDOW else waiting[0].reason
    windows = time_windows.following(policy.windows, policy.zone, policy.blackouts, now)
    every = [index for its in going.values() for index in its]
    return PlannedTurns(
        waves=waves,
        units=len(every),
        machines=sum(wave.machines for wave in waves),
        drained=sum(maintenance.units[index].drain for index in every),
        first=tuple(unit.name for unit in begun if unit.state not in _NOT_GONE),
        waits_for=None if waits is None else waits.obstacle,
        reason=reason,
        window=windows[0] if policy.windows and windows else None,
        without_machines=tuple(empty),
        earliest=_over_at(earliest, every),
        latest=_over_at(latest, every),
        stands=_stands(latest.ended),
        duration_known=maintenance.duration_seconds >= 0,
    )


_NOT_GONE: Final = frozenset((UnitState.WAITING, UnitState.SKIPPED, UnitState.FAILED))


def _over_at(course: Course, places: Iterable[int]) -> datetime | None:
    if course.ended is None:
        return None
    its = [course.ended.units[index] for index in places]
    over = {state for state in UnitState if state.over}
    if course.ended.state is MaintenanceState.HALTED:
        over.discard(UnitState.FAILED)  # it is the rules that do not allow it
    times = [unit.changed_at for unit in its if unit.state in over and unit.changed_at is not None]
    return max(times, default=None) if len(times) == len(its) else None


def _stands(ended: Maintenance | None) -> str:
    """Return the reason why a maintenance never ends; `""` where it does, or nobody knows."""
    if ended is None or ended.state is MaintenanceState.DONE:
        return ""
    left = [unit for unit in ended.units if not unit.state.over]
    whys = [f"{unit.name} cannot go now: {unit.reason}" for unit in left if unit.reason]
    # Where it goes on, its own reason may be a window: that opens again and again.
    whys.insert(len(whys) if ended.state is MaintenanceState.RUNNING else 0, ended.reason)
    return next(filter(None, (*whys, *(f"{unit.name} is held" for unit in left))), "")


def _due_at(operation: Operation) -> datetime | None:
    # What is held moves its NotBefore on and on, until its hold ends or its window closes.
    return operation.wakeup_at if operation.held_at is None else operation.closes_at


class _TooLong(Exception):  # noqa: N818 - what happened: too many decisions
    """A forecast takes more than MOST_DECISIONS."""


class _Play:
    """A World, and the outside: guests, a connector, hosts, an operator who confirms."""

    def __init__(
        self,
        world: World,
        rules: Policy,
        now: datetime,
        survey: HostSurvey | None,
        *,
        approving: bool,
    ) -> None:
        self.now = now
        self._left = MOST_DECISIONS
        self.maintenance: Maintenance
        self.waits: Wait | None = None
        self._world = world
        self._rules = rules
        self._approving = approving
        self._hosts = _Hosts(survey) if survey is not None else None
        self._numbers = count(FIRST_NUMBER + 1)
        self._events = count(1)
        self._ends: dict[str, datetime] = {}
        """End times of the tasks that are under way, by operation."""
        self._under_way = {*world.started}
        """Operations whose tasks were under way at the beginning."""
        self._wake_at: dict[int | str, datetime] = {}
        """When a maintenance, or the drain of a host, is due by time alone."""
        self._moved = False
        """True if guests, tasks or time have changed something at this instant."""
        self._looked: dict[int, Maintenance] = {}
        """The maintenances after their last turns; others have turns in any case."""
        self._steps: dict[int, Step | None] = {}
        """Their steps, until these are taken."""
        self._sighting: Sighting | None = None
        for name, scope in [*world.scopes.items()]:
            if rules.enablement is not Enablement.ALWAYS and rules.is_on(scope, now):
                world.scopes[name] = replace(scope, asked_at=now + NEVER)  # it stays on
        awaited = [o.id for o in self._live() if o.awaited and o.status is not EventStatus.FAILED]
        self.decide(self._return, awaited)

    def decide(self, command: Callable[..., Iterable[str]], *given: object) -> Decision:
        """Decide a command, and keep its changes.

        Raises:
            Refused: The rules do not allow it, and nothing has changed.
        """
        self._left -= 1
        if self._left < 0:
            raise _TooLong
        working = Transitions(
            self._world,
            self.now,
            lambda: f"{next(self._events):032x}",
            self._rules,
            lambda _: self._sighting,
        )
        with self._world.atomic():
            decision = working.decision(command(working, *given))
        self._keep(decision.changes)
        for number, step in decision.steps.items():
            after = self._world.maintenances.get(number)
            if after is None:
                continue
            obstacle = step.obstacle if isinstance(step, Wait) else None
            if obstacle is not Obstacle.AT_ONCE:  # else it has looked at none
                self._left -= sum(1 for unit in after.units if unit.reason) // UNITS_OF_A_DECISION
            # Nothing but the ends of its units can change that: they bring the next turn.
            if obstacle in {Obstacle.AT_ONCE, Obstacle.UNITS}:
                self._looked[number], self._steps[number] = after, step
        return decision

    def next(self) -> datetime | None:
        """Return the time of the next happening; None for never."""
        if self.maintenance.state.over:
            return None
        holds = (hold.until for hold in self._world.holds.values())
        wakeups = map(_due_at, self._live())
        times = (*self._ends.values(), *wakeups, *holds, *self._wake_at.values())
        return min((at for at in times if at is not None and at > self.now), default=None)

    def settle(self) -> None:
        """Carry out everything that happens at this instant."""
        self._moved = False
        if any(at <= self.now for at in self._wake_at.values()):
            self._looked, self._wake_at = {}, {}
        while True:
            while self._end_tasks() or self._pass_time() or self._approve() or self._begin_tasks():
                self._moved = True
            if not self._take_turns() and not self._step_drains():
                return

    def _live(self) -> list[Operation]:
        return [*self._world.operations.values()]

    def _keep(self, changes: Changes | None = None) -> None:
        """Keep what was changed: by a decision, or without one."""
        if changes is None:
            changes = self._world.changes(self._world.since(0))
        self._world.settle()
        for one in changes.maintenances:
            if one.number == FIRST_NUMBER:
                self.maintenance = one
        freed = changes.released or changes.machines or changes.removed_machines
        if changes.drains or freed:
            self._looked = {}
        for number in {o.maintenance for o in changes.operations if o.status.over or o.gives_way}:
            self._looked = {n: one for n, one in self._looked.items() if n == number}

    # Guests and the connector.

    def _pass_time(self) -> bool:
        if self._world.expired_holds(self.now):
            self.decide(commands.expire_holds)
            return True
        due = [
            one.id for one in self._live() if (at := _due_at(one)) is not None and at <= self.now
        ]
        return bool(due) and bool(self.decide(commands.advance_time, due).changes)

    def _approve(self) -> bool:
        pending = [one for one in self._live() if one.pending and not one.approved]
        if not self._approving or not pending:
            return False
        approval = Approval(kind=ApproverKind.OPERATOR, by="", at=self.now)
        events = [event.id for one in pending for event in one.events]
        self.decide(commands.approve_events, events, approval, None)
        return True

    def _begin_tasks(self) -> bool:
        started = [self._world.operations[name] for name in self._world.started]
        new = [one for one in started if one.id not in self._ends and not one.outcome_unknown]
        for one in new:
            took = timedelta(seconds=max(0, one.duration_seconds))
            if one.host_boot_id and self._hosts is not None:
                took = NEVER  # as long as its host's own reboot
                self._hosts.turn_off(self._vm_ids(one))
            soonest = self.now + A_MOMENT * (one.id in self._under_way)
            self._ends[one.id] = max(soonest, (one.started_at or self.now) + took)
        return any(self._ends[one.id] <= self.now for one in new)

    def _end_tasks(self) -> bool:
        ended = [name for name, at in self._ends.items() if at <= self.now]
        for name in ended:
            del self._ends[name]
        if not ended:
            return False
        self.decide(self._finish, ended)
        return True

    def _finish(self, working: Transitions, ended: list[str]) -> Iterable[str]:
        for name in ended:
            one = working.named(name)
            hosts = dict.fromkeys(one.machines, one.to_host) if one.to_host else {}
            if self._hosts is not None:
                self._hosts.move(self._vm_ids(one), one.to_host)
            commands.finish_task(
                working, name, one.attempt, succeeded=True, message="", hosts=hosts
            )
        return self._return(working, ended)

    def _return(self, working: Transitions, operations: list[str]) -> Iterable[str]:
        """Record that all machines of these are back: at other times nobody listens."""
        self._sighting = Sighting(asked_at=self.now + NEVER, version="", agent=AgentStatus.BACK)
        commands.record_returns(working, operations)
        self._sighting = None
        return operations

    def _vm_ids(self, operation: Operation) -> list[str]:
        machines = self._world.machines
        return [machines[key(n)].vm_id for n in operation.machines if key(n) in machines]

    # The service's own rounds, and an operator who confirms.

    def _take_turns(self) -> bool:
        open_, looked = self._world.maintenances, self._looked
        due = [n for n in sorted(open_) if n in self._steps or looked.get(n) is not open_[n]]
        return sum(self._take_turn(number) for number in due if number in open_) > 0

    def _take_turn(self, number: int) -> bool:
        after: Maintenance | None = self._world.maintenances[number]
        step, has_changed = self._steps.pop(number, None), False
        self._wake_at.pop(number, None)
        if self._looked.get(number) is not after:
            decision = self.decide(commands.take_turns, number)
            step, has_changed = decision.steps.get(number), bool(decision.changes)
            self._steps.pop(number, None)
            if (after := self._world.maintenances.get(number)) is not None:
                self._looked[number] = after
        if number == FIRST_NUMBER:
            self.waits = step if isinstance(step, Wait) else None
        if isinstance(step, Check) and after is not None:
            begun = turn_check.begun(after, step.run, "", timedelta(0))
            passed = turn_check.ended(begun, step.run.number, CheckResult(passed=True))
            self._world.maintenances[number] = passed
            self._keep()
            return True
        if isinstance(step, Ask) and self._hosts is not None:
            survey = self._hosts.survey(self.now)
            for _ in turn_plan.drain(self._world, number, step.units, survey, self.now):
                pass
            self._keep()
            return True
        if isinstance(step, Wait) and step.obstacle is Obstacle.CONFIRMATION:
            self.decide(commands.order_maintenance, number, MaintenanceOrder.RESUME, "", "")
            return True
        if isinstance(step, Wait) and step.obstacle is not Obstacle.MAINTENANCE:
            self._wake(number, step.until, again=step.obstacle is Obstacle.REFUSED)
        return has_changed

    def _wake(self, who: int | str, at: datetime | None, *, again: bool) -> None:
        """Wake again at `at`; a repeated request (`again`) only if something has happened."""
        if at is not None and (self._moved or not again):
            self._wake_at[who] = at

    def _step_drains(self) -> bool:
        if self._hosts is None:
            return False
        going = [one for one in self._world.drains.values() if one.goes_on]
        return sum(self._step_drain(one) for one in going) > 0

    def _step_drain(self, drain: Drain) -> bool:
        assert self._hosts is not None
        on = self._hosts.boot(self.now)
        for name in [name for name in self._ends if on]:
            if not on.isdisjoint(self._vm_ids(self._world.operations[name])):
                self._ends[name] = self.now
        survey = self._hosts.survey(self.now)
        view = host_drain.DrainView(world=self._world, drain=drain, survey=survey)
        step = host_drain.step(view, self.now, self._rules.host_back)
        step = host_drain.ask_first(view, step, self._ask, self.now)
        if step.cancel:
            self.decide(commands.cancel_operations, step.cancel, "")
        if step.reboot:
            took = timedelta(seconds=max(0, self.maintenance.duration_seconds))
            self._hosts.reboot(drain.host, self.now + took)
        boots_at = self._hosts.boots_at(drain.host)
        self._wake(drain.host, boots_at or step.wake_at, again=boots_at is None)
        self._world.drains[drain.host] = step.drain
        self._keep()
        return step.drain != drain

    def _ask(self, request: Request) -> int:
        number = next(self._numbers)
        self.decide(commands.request_maintenance, request, number)
        return number


class _Hosts:
    """The hosts of a look, as machines move, are shut down and come back."""

    def __init__(self, survey: HostSurvey) -> None:
        self._hosts = dict(survey.hosts)
        self._keys = survey.keys
        self._at = {guest.vm_id: host for host, f in survey.hosts.items() for guest in f.guests}
        self._boots: dict[str, datetime] = {}
        """When the hosts that reboot are up again."""
        self._off: set[str] = set()
        """The machines that are shut down until then."""

    def survey(self, now: datetime) -> HostSurvey:
        """Look at all hosts."""
        return HostSurvey(began_at=now, hosts=self._hosts, keys=self._keys)

    def boots_at(self, host: str) -> datetime | None:
        """Return the time at which a rebooting host is up again; None where it is not rebooting."""
        return self._boots.get(host)

    def reboot(self, host: str, until: datetime) -> None:
        """Reboot a host."""
        self._boots[host] = until

    def boot(self, now: datetime) -> set[str]:
        """Finish the reboots that are due; return the machines that these hosts start."""
        started: set[str] = set()
        for host in [host for host, at in self._boots.items() if at <= now]:
            del self._boots[host]
            facts = self._hosts[host]
            self._hosts[host] = replace(facts, boot_id=f"{facts.boot_id}+")
            started |= {guest.vm_id for guest in facts.guests} & self._off
        self._switch(started, running=True)
        self._off -= started
        return started

    def turn_off(self, vm_ids: Iterable[str]) -> None:
        """Shut machines down, until their host has rebooted."""
        off = {vm_id for vm_id in vm_ids if vm_id in self._at}
        self._switch(off, running=False)
        self._off |= off

    def _switch(self, vm_ids: Set[str], *, running: bool) -> None:
        for host in {self._at[vm_id] for vm_id in vm_ids}:
            facts = self._hosts[host]
            guests = tuple(
                replace(one, running=running) if one.vm_id in vm_ids else one
                for one in facts.guests
            )
            self._hosts[host] = replace(facts, guests=guests)

    def move(self, vm_ids: Iterable[str], to_host: str) -> None:
        """Move machines to a host; `""`: they stay."""
        for vm_id in vm_ids:
            host = self._at.get(vm_id)
            if host is None or to_host in {"", host} or to_host not in self._hosts:
                continue
            (guest,) = (one for one in self._hosts[host].guests if one.vm_id == vm_id)
            for name, guests, sign in (
                (host, [one for one in self._hosts[host].guests if one is not guest], 1),
                (to_host, [*self._hosts[to_host].guests, guest], -1),
            ):
                free = self._hosts[name].free_memory_mib + sign * guest.memory_mib
                facts = replace(self._hosts[name], guests=tuple(guests), free_memory_mib=free)
                self._hosts[name] = facts
            self._at[vm_id] = to_host
