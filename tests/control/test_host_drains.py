"""Drains by the control plane: to their end, through a kill after each commit, and refused."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import patience
from builders import NOW, SECOND, mint
from control.conftest import Counting, done
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome, Task
from forewarn.connectors.simulated import SimulatedConnector
from forewarn.control import host_drains as driver
from forewarn.control import relay_watch
from forewarn.control.changefeed import Changefeed
from forewarn.control.executor import Executor
from forewarn.control.host_drains import HostDrains
from forewarn.control.outbox import everything, state_of
from forewarn.control.plane import Plane, Retention
from forewarn.control.ticker import Ticker
from forewarn.control.writer import Writer
from forewarn.maintenance import fleet_file, host_drain
from forewarn.maintenance.model import (
    Changes,
    Drain,
    HostFacts,
    HostState,
    Machine,
    Operation,
    Policy,
    Refused,
    Stay,
)
from forewarn.maintenance.relays import Relay, new_token
from forewarn.store.port import StoreUnavailable
from forewarn.store.sql import Transaction
from forewarn.vocabulary import ErrorCode, EventStatus

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
ON_H1 = ("db", "web-0", "web-1")


class Mortal(Counting):
    """A store that takes no more writes after so many commits: its service is dead by then."""

    last_commit: int | None = None

    @property
    def dead(self) -> bool:
        return self.last_commit is not None and self.commits >= self.last_commit

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        if self.dead:
            raise StoreUnavailable("killed")
        with super().write() as transaction:
            yield transaction


class Rebooted(SimulatedConnector):
    """Counts reboots, and checks that no machine of the fleet is on a host that is rebooted."""

    def __init__(self, site: "Site") -> None:
        super().__init__(site.clock, {}, site.machines)
        self._site = site
        self.silent = ""
        self.survey_fails = False
        self.survey_hangs = False
        self.hanging = asyncio.Event()
        self.surveys = 0
        self.tasks: list[Task] = []

    async def perform(self, task: Task) -> Outcome:
        self.tasks.append(task)
        outcome = await super().perform(task)
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
        if self._site.reboot_fails:
            return Outcome(succeeded=False, message="permission denied")
        if self._site.reboot_hangs:
            await asyncio.Event().wait()
        return await super().reboot_host(host)


class Site:
    """A service without sockets, whose processes can be killed and started again."""

    rules = Policy()

    def __init__(self, of: fleet_file.Fleet = FLEET) -> None:
        self.store = Mortal()
        self.clock = ManualClock(NOW)
        self.reboots: list[str] = []
        self.failing: set[str] = set()
        self.reboot_fails = False
        self.reboot_hangs = False
        self.host_back = Policy().host_back
        self.kills = 0
        self.connector = Rebooted(self)
        self._mint = mint("b")
        self._tasks: list[asyncio.Task[None]] = []
        self._wire()
        done(self.plane.apply_fleet(of))

    def machines(self) -> list[Machine]:
        with self.store.read() as reading:
            return [*reading.machines().values()]

    def _wire(self) -> None:
        self.feed = Changefeed()
        self.plane = Plane(Writer(self.store, self.clock, self.feed), self._mint, self.rules)
        self.hosts = HostDrains(
            self.plane, self.connector, self.clock, self.machines, self.host_back
        )
        self.ticker = Ticker(self.plane, self.clock, Retention())
        self.executor = Executor(self.plane, self.connector, self.clock, "here")

    def start(self) -> None:
        self._wire()
        done(self.plane.release_claims())
        with self.store.read() as reading:
            self.hosts.learn(everything(state_of(reading)))
        parts = (self.ticker, self.executor, self.hosts)
        for part in parts:
            self.feed.subscribe(part.learn)
            self._tasks.append(asyncio.create_task(part.run()))

    def driving(self) -> "asyncio.Task[None]":
        """The task that drives the drains."""
        return self._tasks[-1]

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

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
        for _ in range(rounds):
            await self.settle()
            if self.state(host) in states:
                return
            self.approve()
            await self.settle()
            self.clock.advance(20 * SECOND)
        raise AssertionError(f"{host} is {self.drains()[host]}")

    def approve(self) -> None:
        for operation in self.live():
            if operation.pending:
                try:
                    done(self.plane.approve_for_guests([operation.id], by="test"))
                except StoreUnavailable:
                    return

    def live(self) -> list[Operation]:
        with self.store.read() as reading:
            return [o for o in reading.live_operations().values() if not o.status.over]

    def operations(self) -> list[Operation]:
        with self.store.read() as reading:
            latest = reading.latest_maintenances(None, 1000)
            return [*reading.operations([f"{one.number}.1" for one in latest]).values()]

    def drains(self) -> dict[str, Drain]:
        with self.store.read() as reading:
            return reading.drains()

    def state(self, host: str = "h1") -> HostState:
        return self.drains()[host].state

    def where(self, *names: str) -> list[str]:
        known = {machine.name: machine.host for machine in self.machines()}
        return [known[name] for name in names]

    async def drain(self, name: str, **more: Any) -> Drain:
        wanted = drain_of(name, **more)
        return done(self.plane.drain_host(wanted, await self.hosts.survey()))


def drain_of(name: str, **more: Any) -> Drain:
    common = {"state": HostState.UP, "requested_at": NOW, "changed_at": NOW, "requested_by": "ann"}
    return Drain(host=name, **(common | more))


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_host_has_its_machines_back_once_its_relay_has_asked_since_the_reboot(
    site: Site,
) -> None:
    token = new_token("h1", "d", by="ann", at=NOW)

    def hear() -> None:
        now = site.clock.now()
        times = {"started_at": now, "heard_at": now, "due_at": now}
        told = {"replica": "a", "version": "1", "etag": "", "machines": 0}
        site.store.hear([Relay(host="h1", **told, **times)])

    async def story() -> None:
        done(site.plane.order(relay_watch.create_token, token))
        hear()
        await site.drain("h1", reboot=True)
        await site.until(HostState.BACK)
        before = len(site.operations())
        for _ in range(20):
            site.clock.advance(20 * SECOND)
            await site.settle()
        assert site.state() is HostState.BACK
        assert "relay" in site.drains()["h1"].reason
        assert len(site.operations()) == before
        hear()
        await site.until(HostState.UP)
        assert site.where(*ON_H1) == ["h1"] * 3

    site.play(story)


async def test_a_host_that_stays_empty_is_looked_at_until_it_is_opened(site: Site) -> None:
    await site.drain("h3")
    await site.until(HostState.EMPTY, host="h3")
    for _ in range(10):
        site.clock.advance(20 * SECOND)
        await site.settle()
    assert site.state("h3") is HostState.EMPTY
    done(site.plane.apply_fleet(FLEET))  # which was written before the drain
    site.clock.advance(driver.LOOK_AGAIN)
    await site.settle()
    assert site.state("h3") is HostState.STUCK
    assert "cache" in site.drains()["h3"].reason
    done(site.plane.order_drain("h3", host_drain.retry))
    await site.until(HostState.EMPTY, host="h3")
    assert site.where("cache") != ["h3"]


async def test_no_host_is_rebooted_by_a_service_that_stood_still_since_it_looked(
    site: Site,
) -> None:
    def stand_still(changes: Changes) -> None:
        if any(drain.state is HostState.REBOOTING for drain in changes.drains):
            site.clock.advance(2 * host_drain.LOOK_AGE_LIMIT)

    site.feed.subscribe(stand_still)
    await site.drain("h1", reboot=True)
    await site.until(HostState.STUCK)
    assert site.reboots == []


async def test_a_drain_that_cannot_be_decided_on_keeps_no_other_from_going_on(site: Site) -> None:
    await site.drain("h1", reboot=True)
    await site.settle()
    broken = site.drains()["h1"]
    site.hosts.drains = {"nobody knows it": broken, **site.hosts.drains}
    await site.until(HostState.UP)
    assert site.reboots == ["h1"]


def test_a_reboot_command_has_the_time_that_its_host_has(site: Site) -> None:
    async def story() -> None:
        await site.drain("h1", reboot=True)
        await site.until(HostState.STUCK)
        assert site.drains()["h1"].stuck_in is HostState.REBOOTING
        assert site.clock.now() - NOW < Policy().host_back
        assert site.reboots == ["h1"]

    site.reboot_hangs = True
    site.host_back = timedelta(0)
    site.play(story)


async def test_hosts_that_cannot_be_looked_at_make_the_drain_wait_and_then_stop(site: Site) -> None:
    await site.drain("h1")
    await site.settle()
    site.connector.survey_fails = True
    await site.until(HostState.STUCK)
    assert "no library" in site.drains()["h1"].reason


async def test_a_drain_waits_for_a_store_that_is_away(site: Site) -> None:
    await site.drain("h1")
    site.store.away = True
    await site.settle()
    assert site.live() == []
    site.store.away = False
    await site.until(HostState.EMPTY)
    assert "h1" not in site.where(*ON_H1)


@pytest.mark.parametrize(("bring_home", "every"), [(True, 2), (False, 7)])
def test_a_kill_after_any_commit_changes_nothing_about_the_end(
    bring_home: bool, every: int
) -> None:
    whole = Site()
    before, after = commits_of(whole, bring_home=bring_home)
    stuck = 0
    for commit in range(before + 1, after, every):
        site = Site()
        site.store.last_commit = commit
        stuck += killed(site, bring_home=bring_home)
        assert site.kills == 1
        assert site.where(*ON_H1) == whole.where(*ON_H1)
        moves = [o for o in site.operations() if o.status is EventStatus.COMPLETED]
        assert len(moves) == len(whole.operations()) == len(site.operations())
        assert site.reboots == ["h1"]
    # Where it was killed between the commit and the reboot command, nobody knew whether that ran.
    assert stuck or every > 2


def commits_of(site: Site, *, bring_home: bool) -> tuple[int, int]:
    counted = [0]

    async def story() -> None:
        await site.settle()
        counted[0] = site.store.commits
        await site.drain("h1", reboot=True, bring_home=bring_home)
        await site.until(HostState.UP)

    site.play(story)
    return counted[0], site.store.commits


def killed(site: Site, *, bring_home: bool) -> bool:
    """Drain h1 through a kill; tell whether an operator was needed."""
    stuck = []

    async def story() -> None:
        await site.settle()
        await site.drain("h1", reboot=True, bring_home=bring_home)
        await site.until(HostState.UP, HostState.STUCK, rounds=300)
        if site.state() is HostState.STUCK:
            stuck.append(site.drains()["h1"])
            assert stuck[0].stuck_in is HostState.REBOOTING
            assert site.reboots == []
            done(site.plane.order_drain("h1", host_drain.retry))
            await site.until(HostState.UP)

    site.play(story)
    return bool(stuck)


async def test_what_could_not_be_drained_is_refused_and_the_plan_says_why(site: Site) -> None:
    survey = await site.hosts.survey()
    h1 = survey.hosts["h1"]
    (guest, *others) = h1.guests
    fixed = msgspec.structs.replace(guest, obstacles=("a device",))
    facts = msgspec.structs.replace(h1, can_reboot=False, guests=(fixed, *others))
    survey = msgspec.structs.replace(survey, hosts=survey.hosts | {"h1": facts})
    wanted = drain_of("h1", reboot=True)
    (plan,) = done(site.plane.plan_drains([wanted], survey))
    assert len(plan.problems) == 2
    drained = site.plane.drain_host(wanted, survey)
    for refused in (drained, site.plane.plan_drains([wanted], survey, judge=True)):
        with pytest.raises(Refused) as refusal:
            done(refused)
        assert refusal.value.code is ErrorCode.NOT_ELIGIBLE
    done(site.plane.drain_host(drain_of("h1", stay=Stay.REDEPLOY), survey))


def test_an_order_about_a_host_that_is_not_drained_is_refused(site: Site) -> None:
    with pytest.raises(Refused) as refusal:
        done(site.plane.order_drain("h1", host_drain.retry))
    assert refusal.value.code is ErrorCode.NOT_FOUND


def test_a_look_that_takes_its_time_is_still_young_enough_for_a_reboot() -> None:
    assert timedelta(seconds=driver.SURVEY_SECONDS) < host_drain.LOOK_AGE_LIMIT


async def test_a_look_to_be_shown_is_a_recent_one(site: Site) -> None:
    first = await site.hosts.recent_survey()
    assert await site.hosts.recent_survey() is first
    assert await site.hosts.survey() is not first
    site.clock.advance(driver.RECENT)
    assert (await site.hosts.recent_survey()).began_at == site.clock.now()


async def test_viewers_wait_for_one_look_together_and_one_that_leaves_does_not_end_it(
    site: Site,
) -> None:
    site.connector.survey_hangs = True
    viewers = [asyncio.create_task(site.hosts.recent_survey()) for _ in range(5)]
    await patience.settled()
    assert site.connector.surveys == 1
    viewers[0].cancel()
    await patience.settled()
    assert [viewer.done() for viewer in viewers] == [True, False, False, False, False]
    site.connector.hanging.set()
    assert len({id(await viewer) for viewer in viewers[1:]}) == 1


async def test_hosts_that_stay_empty_are_looked_at_together(site: Site) -> None:
    for host in ("h2", "h3"):
        await site.drain(host)
        await site.until(HostState.EMPTY, host=host)
    site.clock.advance(2 * driver.LOOK_AGAIN)
    await site.settle()
    before = site.connector.surveys
    site.clock.advance(driver.LOOK_AGAIN)
    await site.settle()
    assert site.connector.surveys == before + 1


async def test_a_service_that_stops_does_not_wait_for_a_look_at_the_hosts(site: Site) -> None:
    await site.drain("h1")
    site.connector.survey_hangs = True
    await site.settle()
    running = site.driving()
    assert not running.done()
    site.hosts.stop()
    await site.settle()
    assert running.done()
    assert running.exception() is None
