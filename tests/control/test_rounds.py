"""What fails in a part's rounds: contained to one thing, an alert, and told by readiness."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest

import patience
from builders import MINUTE, NOW, SECOND
from control.conftest import House, Scripted, done
from control.site import Site, UnitTargets, played
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.connectors.simulated import SimulatedConnector
from forewarn.control.executor import LEASE, RENEW_EVERY, Executor
from forewarn.control.maintenances import Maintenances
from forewarn.control.plane import Operations, Plane, Retention, Stepped
from forewarn.control.ticker import FAILING, LONGEST_NAP, TRIED_AGAIN, ReturnWatch, Rounds, Ticker
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import Changes, Refused, Sighting
from forewarn.maintenance.planner import Request
from forewarn.maintenance.units import MaintenanceState
from forewarn.store.port import StoreUnusable
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

REBOOT = EventType.REBOOT


def alerts(part: Rounds) -> list[tuple[AlertKind, str]]:
    return [(alert.kind, alert.about) for alert in part.alerts()]


@asynccontextmanager
async def running(house: House, part: Rounds) -> AsyncIterator[None]:
    task = asyncio.create_task(part.run())
    yield
    part.stop()
    house.clock.advance(MINUTE)
    await task


async def let_pass(house: House, time: timedelta, rounds: int = 1) -> None:
    for _ in range(rounds):
        await patience.settled()
        house.clock.advance(time)
        await patience.settled()


def test_a_maintenance_whose_time_zone_is_gone_halts_and_stops_no_other() -> None:
    def moved_to_mars(unit: UnitOfWork, _: object, number: int) -> None:
        known = unit.world.maintenances[number]
        policy = msgspec.structs.replace(known.policy, zone="Mars/Olympus")
        unit.world.maintenances[number] = msgspec.structs.replace(known, policy=policy)

    async def story(site: Site) -> None:
        begun = site.begin(UnitTargets(machines=("db",)))
        done(site.plane.order(moved_to_mars, begun.number))
        site.begin(UnitTargets(machines=("web-0",)))
        await site.reach(site.is_in(MaintenanceState.DONE, number=2))

    site = played(story)
    assert site.maintenance(1).state is MaintenanceState.HALTED
    assert "Mars/Olympus" in site.maintenance(1).reason


def test_a_maintenance_that_fails_in_each_step_stops_no_other_and_is_an_alert() -> None:
    class Broken(Maintenances):
        def _step(self, each: int, survey: HostSurvey | None) -> "Future[Stepped]":
            if each == 1:
                raise ArithmeticError("no")
            return super()._step(each, survey)

    class BrokenSite(Site):
        def _wire(self) -> None:
            super()._wire()
            self.maintenances = Broken(self.plane, self.clock, self.hosts.survey, self.checks)

    async def story(site: Site) -> None:
        site.begin(UnitTargets(machines=("db", "cache")))
        site.begin(UnitTargets(machines=("web-0",)))
        await site.reach(site.is_in(MaintenanceState.DONE, number=2))
        for _ in range(FAILING):
            site.clock.advance(20 * SECOND)
            await site.settle()
        assert alerts(site.maintenances) == [(AlertKind.FAILING, "maintenance 1")]
        assert site.maintenances.obstacle == ""

    played(story, BrokenSite())


async def test_an_operation_that_cannot_go_on_keeps_no_other_from_starting(house: House) -> None:
    house.ask(REBOOT, "bastion")
    house.ask(REBOOT, "web-0")
    with house.store.read() as reading:
        whole = Changes(scopes=(reading.scopes()["bastion"],))
    house.put(Changes(removed_scopes=("bastion",)))
    ticker = Ticker(house.plane, house.clock, Retention())
    async with running(house, ticker):
        await let_pass(house, 15 * MINUTE)
        assert house.operation("2.1").status is EventStatus.STARTED
        await let_pass(house, SECOND, FAILING)
        assert alerts(ticker) == [(AlertKind.FAILING, "1.1")]
        assert ticker.obstacle == ""
        house.put(whole)
        await let_pass(house, SECOND, 2)
        assert house.operation("1.1").status is EventStatus.STARTED
        await let_pass(house, TRIED_AGAIN)
        assert alerts(ticker) == []


class Tidying(Plane):
    """Has two batches to purge, and the second one lasts until it is ended."""

    asked = 0

    def forget(self, keep: Retention) -> "Future[bool]":
        self.asked += 1
        self.batch: Future[bool] = Future()
        if self.asked == 1:
            self.batch.set_result(True)
        return self.batch


async def test_a_long_purge_lets_operations_start_meanwhile(house: House) -> None:
    house.ask(REBOOT, "web-0")
    plane = Tidying(house.plane.writer, house.plane.mint)
    async with running(house, Ticker(plane, house.clock, Retention())):
        await let_pass(house, 15 * MINUTE)
        found = plane.asked, house.operation("1.1").status
        plane.batch.set_result(False)
        assert found == (2, EventStatus.STARTED)


class Forgetful(Plane):
    """Cannot record what became of one operation."""

    broken = "1.1"
    error: Exception = ArithmeticError("no")
    asked = 0

    def record_returns(self, operations: Any) -> "Future[Operations]":
        return self._failed() if self.broken in operations else super().record_returns(operations)

    def finish(self, operation: str, attempt: int, outcome: Outcome) -> "Future[Operations]":
        if self.broken == operation:
            self.asked += 1
            return self._failed()
        return super().finish(operation, attempt, outcome)

    def _failed(self) -> "Future[Operations]":
        failed: Future[Operations] = Future()
        failed.set_exception(self.error)
        return failed


def executor_of(house: House, plane: Plane) -> Executor:
    """One whose connector succeeds at once."""
    connector = SimulatedConnector(house.clock, {REBOOT: timedelta(0)})
    return Executor(plane, connector, house.clock, "here")


@pytest.mark.parametrize("error", [Forgetful.error, Refused(ErrorCode.INVALID, "has a NUL")])
async def test_an_outcome_that_cannot_be_recorded_is_an_alert_until_it_is(
    house: House, error: Exception
) -> None:
    plane = Forgetful(house.plane.writer, house.plane.mint)
    plane.error = error
    house.ask(REBOOT, "web-0", no_notice=True)
    house.ask(REBOOT, "bastion", no_notice=True)
    executor = executor_of(house, plane)
    async with running(house, executor):
        await let_pass(house, SECOND, FAILING)
        assert house.operation("2.1").status is EventStatus.COMPLETED
        assert alerts(executor) == [(AlertKind.FAILING, "1.1")]
        await let_pass(house, SECOND, 200)
        assert plane.asked < 15
        assert alerts(executor) == [(AlertKind.FAILING, "1.1")]
        plane.broken = ""
        await let_pass(house, SECOND, int(LONGEST_NAP / SECOND))
        assert house.operation("1.1").status is EventStatus.COMPLETED
        assert alerts(executor) == []


async def test_an_operation_that_cannot_be_claimed_keeps_no_other_from_its_connector(
    house: House,
) -> None:
    for machine in ("web-0", "bastion"):
        house.ask(REBOOT, machine, no_notice=True)
    whole = house.operation("1.1")
    broken = msgspec.structs.replace(whole, held_at=NOW)  # no rule leads to this
    house.put(Changes(operations=(broken,)))
    executor = executor_of(house, house.plane)
    async with running(house, executor):
        await let_pass(house, SECOND, FAILING)
        assert house.operation("2.1").status is EventStatus.COMPLETED
        assert alerts(executor) == [(AlertKind.FAILING, "1.1")]
        assert executor.obstacle == ""
        house.put(Changes(operations=(whole,)))
        await let_pass(house, SECOND, 2)
        assert house.operation("1.1").status is EventStatus.COMPLETED
        assert alerts(executor) == []


async def test_a_claim_that_cannot_be_renewed_keeps_no_other_from_being_renewed(
    house: House,
) -> None:
    for machine in ("web-0", "bastion"):
        house.ask(REBOOT, machine, no_notice=True)
    executor = Executor(house.plane, Scripted(), house.clock, "here")
    async with running(house, executor):
        await let_pass(house, SECOND)
        whole = house.operation("1.1")
        broken = msgspec.structs.replace(whole, held_at=NOW)  # no rule leads to this
        house.put(Changes(operations=(broken,)))
        await let_pass(house, SECOND, int(RENEW_EVERY / SECOND))
        assert house.operation("1.1").lease_until == NOW + LEASE
        assert house.operation("2.1").lease_until == NOW + LEASE + RENEW_EVERY
        assert alerts(executor) == []
        house.put(Changes(operations=(whole,)))


async def test_a_machine_whose_return_cannot_be_recorded_keeps_no_other_down(house: House) -> None:
    sightings: dict[str, Sighting] = {
        name: Sighting(asked_at=NOW, version="2020-07-01") for name in ("web-0", "bastion")
    }
    plane = Forgetful(house.plane.writer, house.plane.mint, sighting=sightings.get)
    plane.broken = ""
    for name in sightings:
        done(plane.request(Request(event_type=REBOOT, machines=(name,), no_notice=True)))
    for task in done(plane.claim("here", MINUTE, 10)):
        done(plane.finish(task.operation, task.attempt, Outcome(succeeded=True)))
    plane.broken = "1.1"
    watch = ReturnWatch(plane, house.clock, sightings.get, lambda _: None)
    watch.learn(Changes(operations=tuple(map(house.operation, ("1.1", "2.1")))))
    house.feed.subscribe(watch.learn)
    async with running(house, watch):
        house.clock.advance(2 * SECOND)
        for name in sightings:
            sightings[name] = Sighting(asked_at=house.clock.now(), version="2020-07-01")
        await let_pass(house, SECOND, FAILING + 1)
        assert house.operation("2.1").status is EventStatus.COMPLETED
        assert house.operation("1.1").status is EventStatus.RETURNING
        assert alerts(watch) == [(AlertKind.FAILING, "1.1")]
        plane.broken = ""
        await let_pass(house, SECOND, 2)
        assert house.operation("1.1").status is EventStatus.COMPLETED


class Broken(Rounds):
    """Fails as often as it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("the part", clock)
        self.fails = 0
        self.error: Exception = ArithmeticError("no")

    async def _round(self) -> timedelta:
        if self.fails:
            self.fails -= 1
            raise self.error
        return SECOND


@pytest.mark.parametrize("error", [ArithmeticError("no"), StoreUnusable("no")])
async def test_a_part_whose_rounds_fail_is_an_obstacle_from_the_third_on(
    house: House, error: Exception
) -> None:
    """A value that cannot be read does not pass by itself, as a store does that is away."""
    part = Broken(house.clock)
    part.fails, part.error = FAILING, error
    async with running(house, part):
        await let_pass(house, timedelta(0))
        assert (part.obstacle, alerts(part)) == ("", [])
        await let_pass(house, SECOND, FAILING - 1)
        assert f"{type(error).__name__}: no" in part.obstacle
        assert alerts(part) == [(AlertKind.FAILING, "the part")]
        await let_pass(house, SECOND)
        assert (part.obstacle, alerts(part)) == ("", [])
