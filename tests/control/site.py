"""A service without sockets, whose processes can be killed: it drives drains and maintenances."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

import patience
from builders import NOW, SECOND, mint
from control.conftest import Counting, done
from forewarn.clock import ManualClock
from forewarn.connectors.port import AsItIs, Outcome, Task, unchanged
from forewarn.connectors.simulated import SimulatedConnector
from forewarn.control import maintenances
from forewarn.control.changefeed import Changefeed
from forewarn.control.executor import Executor
from forewarn.control.host_drains import HostDrains
from forewarn.control.maintenances import Asked, Maintenances, UnitTargets
from forewarn.control.outbox import everything, state_of
from forewarn.control.plane import Plane, Retention
from forewarn.control.ticker import Ticker
from forewarn.control.writer import Writer
from forewarn.maintenance import fleet_file
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Drain,
    DrainOptions,
    HostFacts,
    HostState,
    Machine,
    Maintenance,
    Operation,
    Policy,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.units import MaintenanceState, TurnPolicy
from forewarn.store.port import StoreUnavailable
from forewarn.store.queries import Reading
from forewarn.vocabulary import EventType

T = TypeVar("T")

REBOOT = Request(event_type=EventType.REBOOT, requested_by="ann")
HOSTS = UnitTargets(hosts=("h1", "h2", "h3"))

FLEET = msgspec.convert(
    {
        "availability_set": [
            {
                "name": "web",
                "update_domains": 2,
                "machines": [
                    {"name": "web-0", "host": "h1", "update_domain": 0},
                    {"name": "web-1", "host": "h1", "update_domain": 1},
                    {"name": "web-2", "host": "h2", "update_domain": 1},
                ],
            }
        ],
        "machine": [{"name": "db", "host": "h1"}, {"name": "cache", "host": "h3"}],
    },
    fleet_file.Fleet,
)


class Checks:
    """Checks that pass at once, or raise."""

    names = frozenset({"smoke"})
    error: Exception | None = None

    async def run(self, _: CheckRun) -> CheckResult:
        if self.error:
            raise self.error
        return CheckResult(passed=True)


class Mortal(Counting):
    """A store that takes no more writes after so many commits: its service is dead by then."""

    last_commit: int | None = None

    @property
    def dead(self) -> bool:
        return self.last_commit is not None and self.commits >= self.last_commit

    def before_write(self) -> None:
        if self.dead:
            raise StoreUnavailable("killed")


class Rebooted(SimulatedConnector):
    """Counts reboots, and checks that no machine of the fleet is on a host that is rebooted."""

    def __init__(self, site: "Site") -> None:
        super().__init__(site.clock, {}, site.machines)
        self._site = site
        self.survey_fails = False
        self.survey_hangs = False
        self.hanging = asyncio.Event()
        self.surveys = 0

    async def perform(self, task: Task, as_it_is: AsItIs = unchanged) -> Outcome:
        outcome = await super().perform(task, as_it_is)
        failing = task.machines[0] in self._site.failing
        return Outcome(succeeded=False, message="no memory") if failing else outcome

    async def survey(self) -> dict[str, HostFacts]:
        self.surveys += 1
        if self.survey_fails:
            raise RuntimeError("no library")
        if self.survey_hangs:
            await self.hanging.wait()
        return await super().survey()

    async def reboot_host(self, host: str) -> Outcome:
        if self._site.store.dead:
            raise RuntimeError("nobody is left to run the command")
        facts = (await self.survey())[host]
        assert not any(guest.running for guest in facts.guests)
        self._site.reboots.append(host)
        if self._site.reboot_hangs:
            await asyncio.Event().wait()
        return await super().reboot_host(host)


class Site:
    """A service without sockets, whose processes can be killed and started again."""

    def __init__(self, of: fleet_file.Fleet = FLEET) -> None:
        self.store = Mortal()
        self.clock = ManualClock(NOW)
        self.reboots: list[str] = []
        self.failing: set[str] = set()
        self.reboot_hangs = False
        self.host_back = Policy().host_back
        self.kills = 0
        self.connector = Rebooted(self)
        self.checks = Checks()
        self._mint = mint("b")
        self.tasks: list[asyncio.Task[None]] = []
        self._wire()
        done(self.plane.apply_fleet(of))

    def look(self, question: Callable[[Reading], T]) -> T:
        with self.store.read() as reading:
            return question(reading)

    def machines(self) -> list[Machine]:
        return [*self.look(lambda reading: reading.machines()).values()]

    def _wire(self) -> None:
        self.feed = Changefeed()
        self.plane = Plane(Writer(self.store, self.clock, self.feed), self._mint, Policy())
        self.hosts = HostDrains(
            self.plane, self.connector, self.clock, self.machines, self.host_back
        )
        self.ticker = Ticker(self.plane, self.clock, Retention())
        self.executor = Executor(self.plane, self.connector, self.clock, "here")
        self.maintenances = Maintenances(self.plane, self.clock, self.hosts.survey, self.checks)

    def start(self) -> None:
        self._wire()
        done(self.plane.release_claims())
        known = self.look(lambda reading: everything(state_of(reading)))
        self.hosts.learn(known)
        self.maintenances.learn(known)
        for part in (self.ticker, self.executor, self.maintenances, self.hosts):
            self.feed.subscribe(part.learn)
            self.tasks.append(asyncio.create_task(part.run()))

    async def kill(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.tasks = []

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            self.start()
            try:
                await story()
            finally:
                await self.kill()

        asyncio.run(asyncio.wait_for(run(), patience.SECONDS))

    async def settle(self) -> None:
        await patience.settled()
        if self.store.dead:
            await self.kill()
            self.store.last_commit = None
            self.kills += 1
            self.start()
            await self.settle()

    async def until(self, *states: HostState, host: str = "h1", rounds: int = 120) -> None:
        """Approve whatever is announced, and let time pass, until a host is in a state."""
        await self.reach(lambda: self.state(host) in states, rounds=rounds)

    def approve(self) -> None:
        for operation in self.live():
            if operation.pending:
                try:
                    done(self.plane.approve_for_guests([operation.id], by="test"))
                except StoreUnavailable:
                    return

    def live(self) -> list[Operation]:
        live = self.look(lambda reading: reading.live_operations())
        return [one for one in live.values() if not one.status.over]

    def drains(self) -> dict[str, Drain]:
        return self.look(lambda reading: reading.drains())

    def state(self, host: str) -> HostState:
        drain = self.drains().get(host)
        return HostState.UP if drain is None else drain.state

    async def drain(self, name: str, **more: Any) -> Drain:
        wanted = drain_of(name, requested_at=self.clock.now(), **more)
        return done(self.plane.drain_host(wanted, await self.hosts.survey()))

    # Maintenances.

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
        state, now = self.look(state_of), self.clock.now()
        return maintenances.prepared(state, asked, self.plane.policy, now=now, survey=survey)

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
        return self.look(lambda reading: reading.maintenances([number]))[number]

    async def reach(
        self, ready: Callable[[], bool], *, approving: bool = True, rounds: int = 300
    ) -> None:
        """Let time pass, and approve whatever is announced, until something is so."""
        for _ in range(rounds):
            await self.settle()
            if ready():
                return
            if approving:
                self.approve()
                await self.settle()
            self.clock.advance(20 * SECOND)
        raise AssertionError([*self.drains().values(), *self.all_operations()])

    def is_in(self, *states: MaintenanceState, number: int = 1) -> Callable[[], bool]:
        return lambda: self.maintenance(number).state in states

    def all_operations(self) -> list[Operation]:
        with self.store.read() as reading:
            numbers = [one.number for one in reading.latest_maintenances(None, 1000)]
            return [o for n in numbers for o in reading.operations_of_maintenance(n).values()]


def drain_of(name: str, **more: Any) -> Drain:
    common = {"state": HostState.UP, "requested_at": NOW, "changed_at": NOW, "requested_by": "ann"}
    return Drain(host=name, **(common | more))


def asked_for(
    targets: UnitTargets,
    request: Request = REBOOT,
    draining: DrainOptions | None = None,
    **policy: Any,
) -> Asked:
    policed = TurnPolicy(**policy)
    return Asked(request=request, targets=targets, policy=policed, draining=draining)


def played(story: Callable[[Site], Awaitable[None]], site: Site | None = None) -> Site:
    site = site or Site()
    site.play(lambda: story(site))
    return site
