"""A service without sockets that drives the units of maintenances, for tests."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from builders import SECOND
from control.conftest import done
from control.test_host_drains import Site
from forewarn.control import maintenances
from forewarn.control.maintenances import Asked, Maintenances, UnitTargets
from forewarn.control.outbox import everything, state_of
from forewarn.control.plane import Stepped
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import DrainOptions, Maintenance, Operation
from forewarn.maintenance.planner import Request
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.units import MaintenanceState, TurnPolicy, Unit, UnitState
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import EventType

REBOOT = Request(event_type=EventType.REBOOT, requested_by="ann")
HOSTS = UnitTargets(hosts=("h1", "h2", "h3"))
RUNNING, WAITING, DONE = UnitState.RUNNING, UnitState.WAITING, UnitState.DONE
FAILED, SKIPPED = UnitState.FAILED, UnitState.SKIPPED


class ManualChecks:
    """Checks whose ends the test decides; by default each passes at once."""

    names = frozenset({"smoke"})

    def __init__(self) -> None:
        self.runs: list[CheckRun] = []
        self.fails = 0
        """How many of the next runs fail."""
        self.open = asyncio.Event()
        self.open.set()

    async def run(self, run: CheckRun) -> CheckResult:
        self.runs.append(run)
        await self.open.wait()
        if self.fails:
            self.fails -= 1
            return CheckResult(passed=False, message="cold caches")
        return CheckResult(passed=True)


class UnitSite(Site):
    """A service without sockets that drives the units of maintenances too."""

    def _wire(self) -> None:
        super()._wire()
        if not hasattr(self, "checks"):
            self.checks = ManualChecks()
        self.maintenances = Maintenances(self.plane, self.clock, self.hosts.survey, self.checks)

    def start(self) -> None:
        super().start()
        with self.store.read() as reading:
            self.maintenances.learn(everything(state_of(reading)))
        self.feed.subscribe(self.maintenances.learn)
        self._tasks.append(asyncio.create_task(self.maintenances.run()))

    def survey_of(self, drained: tuple[str, ...]) -> HostSurvey:
        """Look at the hosts, of which these can be rebooted."""
        try:
            self.connector.survey().send(None)
        except StopIteration as found:  # it waits for nothing
            hosts = found.value
        known = {
            name: msgspec.structs.replace(facts, can_reboot=name in drained)
            for name, facts in hosts.items()
        }
        keys = {machine.vm_id: machine.key for machine in self.machines()}
        return HostSurvey(began_at=self.clock.now(), hosts=known, keys=keys)

    def prepare(
        self, asked: Asked, drained: tuple[str, ...] = ()
    ) -> tuple[Maintenance, Callable[[], PlannedTurns]]:
        if drained and asked.draining is None:
            asked = msgspec.structs.replace(asked, draining=DrainOptions(reboot=True))
        survey = self.survey_of(drained) if drained else None
        with self.store.read() as reading:
            return maintenances.prepared(
                state_of(reading),
                asked,
                self.plane.policy,
                now=self.clock.now(),
                survey=survey,
            )

    def plan(
        self, targets: UnitTargets = HOSTS, *, drained: tuple[str, ...] = (), **policy: Any
    ) -> PlannedTurns:
        return self.prepare(asked_for(targets, **policy), drained)[1]()

    def begin(
        self, targets: UnitTargets = HOSTS, *, drained: tuple[str, ...] = (), **policy: Any
    ) -> Maintenance:
        return self.start_as_asked(asked_for(targets, **policy), drained)

    def start_as_asked(self, asked: Asked, drained: tuple[str, ...] = ()) -> Maintenance:
        wanted, _ = self.prepare(asked, drained)
        return done(self.plane.order(maintenances.start, wanted, asked))

    def pass_time(self) -> None:
        """Let time pass until a part of the service has waited long enough."""
        until = min(at for at, _ in self.clock._sleepers)
        self.clock.advance(max(SECOND / 1000, (until - self.clock.monotonic()) * SECOND))

    def maintenance(self, number: int = 1) -> Maintenance:
        with self.store.read() as reading:
            return reading.maintenances([number])[number]

    def unit(self, name: str, number: int = 1) -> Unit:
        return next(unit for unit in self.maintenance(number).units if unit.name == name)

    def states(self, number: int = 1) -> dict[str, UnitState]:
        return {unit.name: unit.state for unit in self.maintenance(number).units}

    def order(
        self, kind: MaintenanceOrder, unit: str = "", number: int = 1
    ) -> tuple[Operation, ...]:
        return done(self.plane.order(maintenances.order, number, kind, unit, by="bob"))

    def take_turns(self, number: int = 1) -> Stepped:
        return done(self.plane.order(maintenances.take_turns, number, None))

    async def reach(
        self, ready: Callable[[], bool], *, approving: bool = True, rounds: int = 300
    ) -> None:
        """Let time pass, and approve whatever is announced, until something is so."""
        for _ in range(rounds):
            await self.settle()
            if ready():
                return
            if approving:
                try:
                    self.approve()
                except StoreUnavailable:  # killed there: the next process goes on
                    continue
                await self.settle()
            self.clock.advance(20 * SECOND)
        raise AssertionError(self.maintenance())

    def is_in(self, *states: MaintenanceState, number: int = 1) -> Callable[[], bool]:
        return lambda: self.maintenance(number).state in states

    def all_operations(self) -> list[Operation]:
        with self.store.read() as reading:
            numbers = [one.number for one in reading.latest_maintenances(None, 1000)]
            return [o for n in numbers for o in reading.operations_of_maintenance(n).values()]


def asked_for(
    targets: UnitTargets,
    request: Request = REBOOT,
    draining: DrainOptions | None = None,
    **policy: Any,
) -> Asked:
    policed = TurnPolicy(**policy)
    return Asked(request=request, targets=targets, policy=policed, draining=draining)


def played(story: Callable[[UnitSite], Awaitable[None]], site: UnitSite | None = None) -> UnitSite:
    site = site or UnitSite()
    site.play(lambda: story(site))
    return site
