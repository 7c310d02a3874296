"""Drives maintenances: submits each step to the plane. And prepares one from an operator's request.

`maintenance.turns` decides. The end of an operation lets the units of its own maintenance go on in
its transaction; a step here follows everything else that may concern a maintenance (the end of
other maintenance, a released hold, a drain, an order), and the time that the step before named. A
check runs beside the steps, and its result is recorded as a change of its own.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, Final, NoReturn, Protocol

import msgspec
import structlog

from forewarn.clock import Clock
from forewarn.control import lookup
from forewarn.control.plane import Plane, Stepped
from forewarn.control.ticker import Steps
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import (
    commands,
    footprints,
    host_drain,
    notice,
    planner,
    turn_check,
    turn_forecast,
    turn_orders,
    turn_plan,
    turns,
)
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Changes,
    DrainOptions,
    HostState,
    Machine,
    Maintenance,
    Operation,
    Policy,
    Refused,
    key,
    listed,
    mapped,
    no_maintenance,
    unknown,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.turns import Ask, Check, Wait
from forewarn.maintenance.units import (
    MAX_UNITS,
    MaintenanceState,
    TurnOrder,
    TurnPolicy,
    Unit,
    UnitKind,
    UnitState,
)
from forewarn.maintenance.world import LiveState, World
from forewarn.vocabulary import ErrorCode, EventSource, EventType, TargetKind

GAP_SECONDS = 0.1
"""The least time between two rounds: in a storm of changes, one round serves many."""

LONGEST_GAP_SECONDS = 10.0

SHARE = 0.1
"""The greatest part of the time that rounds may take: the writer has guests to serve, too."""

CHECK_MARGIN: Final = timedelta(seconds=30)
"""The additional wait for the result of a check after its time: for the program's end, and a store
that is away for a moment. Then another replica runs it."""

replace = msgspec.structs.replace

_log = structlog.get_logger(__name__)


class UnitTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The targets of an operator's request; each host, update domain and machine is a unit."""

    hosts: tuple[str, ...] = ()
    all_hosts: bool = False
    """Every host that a machine is on, and that the connector can drain."""
    scopes: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    """Machines with all of these tags, each a unit."""

    def named(self, units: Iterable[Unit]) -> tuple[str, ...]:
        """Return the names of the targets, with the units that hosts and machines stand for."""
        chosen = (unit.name for unit in units if unit.kind is not UnitKind.UPDATE_DOMAIN)
        return (*self.scopes, *chosen)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's request for maintenance by units under a policy."""

    request: Request
    """Without machines, scope and host."""
    targets: UnitTargets
    policy: TurnPolicy
    draining: DrainOptions | None = None
    """The options for draining hosts that the connector can drain; None where no host is drained.
    """

    @property
    def more(self) -> tuple[object, ...]:
        """The content of the request beside `request`, equal for requests with equal content."""
        machines = [*dict.fromkeys(map(key, self.targets.machines))]
        scopes = [*dict.fromkeys(map(key, self.targets.scopes))]
        hosts = [*dict.fromkeys(self.targets.hosts)]
        if self.policy.order is not TurnOrder.LISTED:  # else their order is asked for, too
            machines, scopes, hosts = sorted(machines), sorted(scopes), sorted(hosts)
        tags, all_hosts = self.targets.tags, self.targets.all_hosts
        return (machines, scopes, hosts, all_hosts, tags, self.policy, self.draining)


class Checks(Protocol):
    """Runs the checks that the settings name."""

    @property
    def names(self) -> Collection[str]:
        """The checks that a policy may name."""

    async def run(self, run: CheckRun) -> CheckResult:
        """Run a check to its end, within its time; an error counts as a failure."""


class Maintenances(Steps[int]):
    """Drives all maintenances that are open. Lives on the event loop's thread.

    `scale` is the number of seconds of the clock in one second of a check's program.
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
        super().__init__("maintenances", clock, "maintenance")
        self._plane = plane
        self._survey = survey
        self.checks = checks
        self._replica = replica
        self._margin = CHECK_MARGIN * max(1.0, scale)
        self.open: dict[int, Maintenance] = {}
        """Every maintenance that is open, as of the last change."""
        self._blocked: set[int] = set()
        """Those that other maintenance, or a hold, may be in the way of."""
        self._seen: HostSurvey | None = None
        """The look at the hosts in this round, one for all: it takes as long as a silent host."""

    def learn(self, changes: Changes) -> None:
        """Follow changes, and wake up where one may concern a maintenance."""
        for maintenance in changes.maintenances:
            self._put(maintenance)
        freed = changes.released or changes.machines or changes.removed_machines
        if freed or any(one.status.over or one.gives_way for one in changes.operations):
            self._due |= self._blocked
        if changes.drains:
            self._due |= self._blocked | {n for n, one in self.open.items() if one.draining}
        if self._due:
            self._wake.set()

    def _put(self, maintenance: Maintenance) -> None:
        number = maintenance.number
        before = self.open.pop(number, None)
        self._due.discard(number)
        self._blocked.discard(number)
        if maintenance.open:
            self.open[number] = maintenance
            self._due.add(number)
        else:
            self._wake_at.pop(number, None)
        if maintenance.units and (before is None or before.state is not maintenance.state):
            _log.info(
                "maintenance",
                maintenance=number,
                state=maintenance.state,
                reason=maintenance.reason,
            )

    async def _round(self) -> timedelta:
        began, self._seen = self._clock.monotonic(), None
        await super()._round()
        gap = (self._clock.monotonic() - began) / SHARE
        await self._clock.wait(min(max(GAP_SECONDS, gap), LONGEST_GAP_SECONDS), self._stop)
        return self._nap()

    def _goes_on(self, each: int) -> bool:
        return each in self.open

    async def _drive(self, each: int) -> datetime | None:
        self._blocked.add(each)  # what frees it meanwhile is not to be missed
        return await super()._drive(each)

    def _step(self, each: int, survey: HostSurvey | None) -> "Future[Stepped]":
        replica, margin = self._replica, self._margin
        return self._plane.order(take_turns, each, survey, replica=replica, margin=margin)

    def _ordered(self, each: int, stepped: Stepped) -> Coroutine[Any, Any, None] | None:
        self._blocked.discard(each)
        if stepped.blocked and each in self.open:
            self._blocked.add(each)
        return None if stepped.check is None else self._run_check(stepped.check)

    async def _look(self) -> HostSurvey:
        self._seen = self._seen or await self._survey()
        return self._seen

    async def _run_check(self, run: CheckRun) -> None:
        """Run a check and record its result, however long the store is away."""
        try:
            result = await self.checks.run(run)
        except Exception as error:  # noqa: BLE001 - an exception is a failure too
            _log.exception("a check failed to run", maintenance=run.maintenance, check=run.name)
            result = CheckResult(passed=False, message=f"{type(error).__name__}: {error}")
        _log.info(
            "check", maintenance=run.maintenance, check=run.name, **msgspec.structs.asdict(result)
        )
        record = partial(self._plane.order, record_check, run, result)
        await self._record_result(f"{self._one} {run.maintenance}", record, self._stop)


# The jobs of `Plane.order`. A step asks for all units that may go and notes that it has, in one
# transaction: a process that is killed has done both or neither. So with a check: the replica that
# has noted that it runs is the one to run it.


def start(unit: UnitOfWork, wanted: Maintenance, asked: Asked) -> Maintenance:
    """Start a maintenance that was prepared; the answer is it, with its number.

    One that was started already under its idempotency key is answered as it is now.
    """
    if (known := lookup.granted(unit.store, asked.request, *asked.more)) is not None:
        return known
    number = unit.next_maintenance_number()
    decision = unit.decide(commands.start_maintenance, wanted, number)
    assert decision.maintenance is not None
    return decision.maintenance


def take_turns(
    unit: UnitOfWork,
    number: int,
    survey: HostSurvey | None,
    *,
    replica: str = "",
    margin: timedelta = CHECK_MARGIN,
) -> Stepped:
    """Advance the units of a maintenance, or halt it, or record the results of its units.

    A check that is to run now is this replica's to run; `margin` is the additional wait for its
    result.
    """
    before = unit.world.maintenances.get(number)
    if before is None or not before.open:
        return Stepped()
    lost = _recalled(unit, before)
    decision = unit.decide(commands.take_turns, number, lost)
    following, step = decision.maintenance, decision.steps.get(number)
    assert following is not None
    if isinstance(step, Ask):
        if survey is None:
            return Stepped(changed=bool(decision.changes), survey=True)
        for _ in turn_plan.drain(unit.world, number, step.units, survey, unit.now):
            unit.tell()
    elif isinstance(step, Check):
        begun = turn_check.begun(following, step.run, replica, margin)
        unit.world.maintenances[number] = begun
    following = unit.world.maintenances[number]
    return Stepped(
        changed=following != before or bool(decision.changes),
        check=step.run if isinstance(step, Check) else None,
        blocked=any(one.state is UnitState.WAITING and one.reason for one in following.units),
        wake_at=step.until if isinstance(step, Wait) else None,
    )


def _nothing(targets: UnitTargets) -> Refused:
    """Return the refusal (INVALID) of targets that have no unit."""
    if targets.tags:
        tags = " and ".join(map("=".join, targets.tags))
        return Refused(ErrorCode.INVALID, f"no machine has {tags}", where="tags")
    names = [*targets.scopes, *targets.hosts, *(["any host"] if targets.all_hosts else [])]
    message = f"there is no machine in {listed(names)}" if names else "nothing is named to maintain"
    return Refused(ErrorCode.INVALID, f"{message}: expected machines, scopes, hosts or tags")


def _recalled(unit: UnitOfWork, maintenance: Maintenance) -> set[str]:
    running = (one for one in maintenance.units if one.state is UnitState.RUNNING)
    names = {f"{maintenance.number}.{one.operation}" for one in running if not one.drain}
    return names - unit.operations(names).keys()


def record_check(unit: UnitOfWork, run: CheckRun, result: CheckResult) -> None:
    """Record the result of a maintenance's check, if that run is still awaited."""
    before = unit.world.maintenances.get(run.maintenance)
    if before is not None:
        unit.world.maintenances[run.maintenance] = turn_check.ended(before, run.number, result)


def order(
    unit: UnitOfWork,
    number: int,
    kind: MaintenanceOrder,
    name: str,
    *,
    by: str,
) -> tuple[Operation, ...]:
    """Carry out an operator's order; `name` is a unit's. The answer are the announced operations.

    The retry of a unit whose drain is stuck is the retry of its drain.
    """
    known = unit.maintenance(number)
    if known is None:
        raise no_maintenance(number)
    if not known.open:
        turn_orders.order(known, kind, name, by, unit.now)  # which is refused
    _recalled(unit, known)
    if kind is MaintenanceOrder.RETRY:
        one = turn_orders.unit_named(known, name)
        its = unit.world.drains.get(one.name) if one.drain else None
        if its is not None and its.state is HostState.STUCK:
            view = lookup.drain(unit, one.name, None)
            unit.world.drains[one.name] = host_drain.retry(view, unit.now).drain
    return unit.decide(commands.order_maintenance, number, kind, name, by).operations


# What an operator asks for.


def prepared(
    state: LiveState,
    asked: Asked,
    rules: Policy,
    *,
    now: datetime,
    survey: HostSurvey | None = None,
) -> tuple[Maintenance, Callable[..., PlannedTurns]]:
    """Return the requested maintenance, as number 0, and a function that plans it.

    If drains are asked for, those hosts of the `survey` are drained that can be. Planning takes
    seconds: `to_the_end=False` leaves out the time when all is over.

    Raises:
        Refused: The policy cannot be read or nothing is named (INVALID), a name is unknown
            (NOT_FOUND), or these are too many units (LIMIT).
    """
    request, targets, policy = asked.request, asked.targets, asked.policy
    planner.check(request)
    turns.check_policy(policy)
    units, members = _units(state, targets, _drained(asked.draining, survey))
    _check_once(units, members)
    for machine in (machine for its in members.values() for machine in its):
        planner.check_eligible(request.event_type, state.scopes[machine.scope])
    if request.event_type in planner.ALL_DOMAINS_AT_ONCE:
        # Those there are now: what takes the place of a machine that is deleted is not meant.
        units = [
            replace(
                unit,
                kind=UnitKind.MACHINES,
                machines=tuple(machine.key for machine in members[unit.key]),
            )
            for unit in units
        ]
    _check_notice(policy, request.event_type, units, now)
    if not units:
        raise _nothing(targets)
    if len(units) > MAX_UNITS:
        message = f"{len(units)} units in one maintenance, at most {MAX_UNITS}: split it"
        raise Refused(ErrorCode.LIMIT, message, units=len(units), most=MAX_UNITS)
    takes = {name: footprints.footprint(its, policy.spread) for name, its in members.items()}
    kinds = {unit.target for unit in units}
    maintenance = mapped(
        Maintenance,
        request,
        number=0,
        targets=targets.named(units),
        target=kinds.pop() if len(kinds) == 1 else TargetKind.MIXED,
        description=planner.description(request),
        units=turn_plan.arranged(units, lambda unit: takes[unit.key], policy),
        policy=policy,
        draining=asked.draining,
        state=MaintenanceState.RUNNING,
        requested_at=now,
        changed_at=now,
        request_digest=planner.digest(request, *asked.more) if request.idempotency_key else "",
    )
    return maintenance, partial(
        turn_forecast.planned,
        maintenance,
        lambda unit: takes[unit.key],
        _worlds(
            state,
            [one.scope for its in members.values() for one in its],
            of_users=request.source is EventSource.USER,
        ),
        rules,
        now,
        survey=survey,
    )


def _drained(draining: DrainOptions | None, survey: HostSurvey | None) -> Collection[str]:
    if draining is None or survey is None:
        return ()
    hosts = survey.hosts.items()
    return [name for name, facts in hosts if facts.can_reboot or not draining.reboot]


def supposed(plane: Plane, state: LiveState, request: Request, now: datetime) -> planner.Plan:
    """Return the plan of a request without units; nothing changes."""
    machines = state.machines
    scopes = [key(request.scope)] if request.scope else []
    scopes += [machines[name].scope for name in map(key, request.machines) if name in machines]
    if request.host:
        scopes += [one.scope for one in machines.values() if one.host == request.host]
    world = _worlds(state, scopes, of_users=request.source is EventSource.USER)()
    return plane.plan(request, world, now)


def _worlds(state: LiveState, scopes: Iterable[str], *, of_users: bool) -> Callable[[], World]:
    """Return a function that makes a World of all scopes that are maintained beside these.

    These share operations or other maintenances, or have machines on hosts that are being drained.
    With `of_users` it has what users have asked for besides: there is a limit for all of that.
    """
    hosts = planner.grouped(state.machines.values(), attrgetter("host"))
    others = {
        one.number: {scope for unit in one.units for scope in _scopes_of(unit, state, hosts)}
        for one in state.maintenances.values()
        if one.state is MaintenanceState.RUNNING
    }
    in_scope: dict[str, list[Operation]] = {}
    new = dict.fromkeys(scopes)
    away = [key(g.name) for drain in state.drains.values() if drain.goes_on for g in drain.guests]
    new |= dict.fromkeys(state.machines[name].scope for name in away if name in state.machines)
    for operation in state.operations.values():
        for event in operation.events:
            in_scope.setdefault(event.scope, []).append(operation)
            if of_users and operation.source is EventSource.USER and operation.unstarted:
                new[event.scope] = None
    found: dict[str, None] = {}
    while new:
        found |= new
        met = {event.scope for s in new for o in in_scope.get(s, ()) for event in o.events}
        met |= {s for its in others.values() if not its.isdisjoint(new) for s in its}
        new = dict.fromkeys(sorted(met - found.keys()))
    concerned = LiveState(
        scopes={name: state.scopes[name] for name in found if name in state.scopes},
        machines={name: one for name, one in state.machines.items() if one.scope in found},
        operations={one.id: one for name in found for one in in_scope.get(name, ())},
        maintenances={n: state.maintenances[n] for n, its in others.items() if its & found.keys()},
        holds=state.holds,
        drains=state.drains,
    )
    return partial(World, concerned)


def _scopes_of(
    unit: Unit, state: LiveState, hosts: Mapping[str, Iterable[Machine]]
) -> Iterable[str]:
    """Yield the keys of the scopes that a unit has still to maintain."""
    if unit.state.over:
        return ()
    if unit.kind is UnitKind.UPDATE_DOMAIN:
        return (unit.scope,)
    if unit.kind is UnitKind.HOST:
        return (one.scope for one in hosts.get(unit.name, ()))
    return (state.machines[name].scope for name in unit.machines if name in state.machines)


def _check_notice(
    policy: TurnPolicy, event_type: EventType, units: Iterable[Unit], now: datetime
) -> None:
    def refuse(name: str, message: str) -> NoReturn:
        raise planner.wrong(f"policy.{name}", message)

    until, seconds = policy.approval_until, policy.notice_seconds
    if any(unit.drain for unit in units):
        for name, given in (("approval_until", until), ("notice_seconds", seconds)):
            if given:
                refuse(
                    name,
                    "it is not for hosts that are drained: their machines move away live, with the "
                    "least notice; leave it out, or do not drain the hosts",
                )
    least = notice.minimum(event_type, min(notice.TERMINATE_MINUTES))
    if 0 < seconds < least.total_seconds():
        where = "policy.notice_seconds"
        raise notice.too_short(timedelta(seconds=seconds), least, event_type, now, where)
    if until is not None and until <= now:
        refuse("approval_until", f"expected a time after {notice.spoken(now)}")
    if until is not None and until > now + notice.FURTHEST:
        refuse("approval_until", f"more than {notice.FURTHEST.days} days ahead")


def _units(
    state: LiveState, targets: UnitTargets, drained: Collection[str]
) -> tuple[list[Unit], dict[str, list[Machine]]]:
    """Return the units that are named, each once, and their machines by the units' keys."""
    scopes, fleet = state.scopes, state.machines
    hosts = dict.fromkeys(targets.hosts)
    machines = dict.fromkeys(targets.machines, targets.tags[:0])
    if targets.all_hosts or targets.tags:
        wanted = set(targets.tags)
        for machine in sorted(fleet.values(), key=lambda each: each.key):
            if targets.all_hosts and machine.host:
                hosts.setdefault(machine.host)
            if wanted and wanted <= set(machine.tags):
                machines.setdefault(machine.name, targets.tags)
    if targets.all_hosts:
        hosts |= dict.fromkeys(sorted(drained))
    on_hosts = planner.grouped(fleet.values(), attrgetter("host"))
    of_scopes = planner.by_scope(fleet.values() if targets.scopes else ())
    units: list[Unit] = []
    members: dict[str, list[Machine]] = {}

    def add(unit: Unit, what: str, its: list[Machine]) -> None:
        if not its and not unit.drain:
            raise unknown(what, unit.name)
        if unit.key in members:
            message = f"{unit.name} is named twice, or is the name of two units"
            raise Refused(ErrorCode.INVALID, message, name=unit.name)
        members[unit.key] = its
        units.append(unit)

    for host in hosts:
        unit = Unit(name=host, kind=UnitKind.HOST, drain=host in drained)
        add(unit, "host", on_hosts.get(host, []))
    for scope in dict.fromkeys(targets.scopes):
        if not (its := of_scopes.get(key(scope), [])):
            raise unknown("scope", scope)
        domains = planner.grouped(its, attrgetter("update_domain"))
        for domain in sorted(domains):
            add(planner.of_domain(scopes[key(scope)].name, domain), "scope", domains[domain])
    for name, tags in machines.items():
        its = [fleet[key(name)]] if key(name) in fleet else []
        unit = Unit(name=name, kind=UnitKind.MACHINES, machines=(key(name),), tags=tags)
        add(unit, "machine", its)
    return units, members


def _check_once(units: Iterable[Unit], members: Mapping[str, list[Machine]]) -> None:
    """Refuse (INVALID) a machine that is in two units: it would go down twice."""
    place: dict[str, str] = {}
    for unit in units:
        for machine in members[unit.key]:
            other = place.setdefault(machine.key, unit.name)
            if other != unit.name:
                message = f"{machine.name} is in {other} and in {unit.name}: name it once"
                raise Refused(ErrorCode.INVALID, message, machine=machine.name)
