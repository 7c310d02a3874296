"""Maintenances through the control plane: unit by unit, halted, killed, at cross purposes."""

import itertools
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from builders import NOW, SECOND
from control.conftest import done, put
from control.site import REBOOT, ManualChecks, Site, asked_for, played
from forewarn.control import maintenances
from forewarn.control.maintenances import UnitTargets
from forewarn.control.plane import Stepped
from forewarn.maintenance import fleet_file, planner
from forewarn.maintenance.model import Changes, DrainOptions, HostState, Policy, Refused
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Obstacle
from forewarn.maintenance.units import CheckProgress, MaintenanceState, TurnOrder, UnitState
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus

RUNNING, WAITING, DONE = UnitState.RUNNING, UnitState.WAITING, UnitState.DONE
FAILED, SKIPPED = UnitState.FAILED, UnitState.SKIPPED


@pytest.fixture
def site() -> Site:
    return Site()


async def test_hosts_that_can_be_drained_are_drained_and_rebooted(site: Site) -> None:
    site.begin(UnitTargets(all_hosts=True), drained=("h1", "h2", "h3"))
    await site.reach(site.is_in(MaintenanceState.DONE), rounds=1000)
    assert sorted(site.reboots) == ["h1", "h2", "h3"]
    assert set(site.states().values()) == {DONE}
    assert {drain.state for drain in site.drains().values()} == {HostState.UP}
    assert site.where("web-0", "web-2", "cache") == ["h1", "h2", "h3"]


async def test_a_unit_whose_drain_is_stuck_is_retried_with_its_drain(site: Site) -> None:
    site.failing = {"cache"}  # which is on h3
    site.begin(UnitTargets(hosts=("h3", "h2")), drained=("h3", "h2"))
    await site.reach(site.is_in(MaintenanceState.HALTED), rounds=1000)
    assert site.reboots == []
    site.failing.clear()
    site.order(MaintenanceOrder.RETRY, "h3")
    assert site.drains()["h3"].state is HostState.DRAINING
    site.order(MaintenanceOrder.RESUME)
    await site.reach(site.is_in(MaintenanceState.DONE), rounds=1000)
    assert site.reboots == ["h3", "h2"]
    assert set(site.states().values()) == {DONE}


async def test_hosts_that_are_drained_without_a_reboot_stay_empty_one_after_another(
    site: Site,
) -> None:
    asked = asked_for(
        UnitTargets(hosts=("h1", "h2")), draining=DrainOptions(), order=TurnOrder.LISTED
    )
    site.start_as_asked(asked, ("h1", "h2"))
    await site.reach(site.is_in(MaintenanceState.DONE), rounds=1000)
    assert site.drains()["h1"].changed_at <= site.drains()["h2"].requested_at
    assert {name: drain.state for name, drain in site.drains().items()} == {
        "h1": HostState.EMPTY,
        "h2": HostState.EMPTY,
    }
    assert site.reboots == []


def test_a_request_is_the_same_however_its_machines_are_written() -> None:
    keyed = msgspec.structs.replace(REBOOT, idempotency_key="k")
    same = UnitTargets(machines=("Cache", "db", "cache"))
    digests = {planner.digest(keyed, *asked_for(of, keyed).more) for of in (DB_AND_CACHE, same)}
    assert len(digests) == 1


def test_machines_are_named_by_their_tags(site: Site) -> None:
    tagged = {"machine": [{"name": "db", "host": "h1", "tags": {"role": "leader"}}]}
    done(site.plane.apply_fleet(msgspec.convert(tagged, fleet_file.Fleet)))
    begun = site.begin(UnitTargets(tags=(("role", "leader"),), machines=("cache",)))
    assert sorted(begun.targets) == sorted(unit.name for unit in begun.units) == ["cache", "db"]


# The check.

CHECKED = {"check": "smoke", "check_tries": 2, "check_within_seconds": 200}
YEARS = timedelta(days=800)
DB_AND_CACHE = UnitTargets(machines=("db", "cache"))


def test_a_check_that_raises_has_failed() -> None:
    class Broken(ManualChecks):
        async def run(self, run: CheckRun) -> CheckResult:
            raise OSError("no disk")

    async def story(site: Site) -> None:
        site.begin(DB_AND_CACHE, **CHECKED)
        await site.reach(site.is_in(MaintenanceState.HALTED))

    site = Site()
    site.checks = Broken()
    assert "no disk" in played(story, site).maintenance().reason


def test_only_one_replica_runs_a_check_and_another_when_its_lease_is_over(site: Site) -> None:
    def step(replica: str) -> Stepped:
        margin = timedelta(seconds=30)
        order = site.plane.order
        return done(order(maintenances.take_turns, 1, None, replica=replica, margin=margin))

    site.begin(DB_AND_CACHE, order=TurnOrder.LISTED, **CHECKED)
    due = msgspec.structs.replace(site.maintenance(), check=CheckProgress(due=True))
    put(site.plane, Changes(maintenances=(due,)))
    first = step("r1").check
    assert first is not None
    second = step("r2")
    assert second.check is None
    assert second.wake_at == site.clock.now() + timedelta(seconds=130)
    done(site.plane.release_claims("r2", alone=False))
    assert step("r2").check is None
    done(site.plane.release_claims("r1", alone=False))
    third = step("r2").check
    assert third is not None
    site.clock.advance(130 * SECOND)
    fourth = step("r1").check
    assert fourth is not None
    for stale in (first, third):
        done(site.plane.order(maintenances.record_check, stale, CheckResult(passed=True)))
        assert site.maintenance().check.lease_until is not None
    done(site.plane.order(maintenances.record_check, fourth, CheckResult(passed=True)))
    assert step("r1").check is None
    assert site.maintenance().check.lease_until is None


def test_one_that_drains_hosts_takes_no_other_notice_than_theirs() -> None:
    for given in (
        {"drained": ("h1",), "approval_until": NOW},
        {"drained": ("h1",), "notice_seconds": 1800},
        {"approval_until": NOW + YEARS},
    ):
        with pytest.raises(Refused) as refused:
            Site().begin(**given)
        assert refused.value.code is ErrorCode.INVALID


def by_name(site: Site) -> None:
    site.begin(UnitTargets(machines=("db", "cache", "web-0")), at_once="2")


def checked(site: Site) -> None:
    site.begin(DB_AND_CACHE, **CHECKED)


@pytest.mark.parametrize("begin", [by_name, checked])
def test_a_service_that_is_killed_after_any_commit_asks_for_each_unit_once(
    begin: Callable[[Site], None],
) -> None:
    for kill_at in itertools.count(1):
        site = Site()

        async def story(site: Site, kill_at: int = kill_at) -> None:
            begin(site)
            site.store.last_commit = site.store.commits + kill_at
            await site.reach(site.is_in(MaintenanceState.DONE))

        played(story, site)
        maintenance = site.maintenance()
        assert len(site.all_operations()) == len(maintenance.units), kill_at
        assert {o.status for o in site.all_operations()} == {EventStatus.COMPLETED}
        if maintenance.policy.check:
            ended = [unit.changed_at for unit in maintenance.units if unit.changed_at]
            assert maintenance.check.passed_at is not None
            assert maintenance.check.passed_at >= max(ended), kill_at
        if not site.kills:
            assert kill_at > 6
            return


def test_a_host_is_drained_when_the_machines_of_another_drain_are_home_again() -> None:
    names = [f"{scope}-{n}" for scope in ("web", "db") for n in range(3)]
    alone = [{"name": name, "host": f"h{1 + int(name[-1])}"} for name in names]
    farm = Site(msgspec.convert({"machine": alone}, fleet_file.Fleet))
    home = {machine.name: machine.host for machine in farm.machines()}
    hosts = tuple(sorted(set(home.values())))

    async def story(_: Site) -> None:
        await farm.drain("h1", reboot=True)
        await farm.reach(lambda: "h1" not in farm.where(*home), approving=False)
        begun = farm.begin(UnitTargets(hosts=("h2", "h3")), drained=hosts, at_once="2").number
        await farm.settle()
        assert set(farm.states(begun).values()) == {WAITING}
        assert "of host h1" in farm.unit("h2", begun).reason

        def over() -> bool:
            return farm.maintenance(begun).state is not MaintenanceState.RUNNING

        await farm.reach(over, approving=False, rounds=1000)

    played(story, farm)
    assert farm.where(*home) == [*home.values()]
    assert {*Counter(o.machines for o in farm.all_operations()).values()} == {2}


def test_a_plan_of_users_knows_how_much_they_have_asked_for(site: Site) -> None:
    site.plane.policy = Policy(user_initiated_limit=1)
    asked = asked_for(UnitTargets(machines=("cache",)))
    of_user = msgspec.structs.replace(asked.request, source=EventSource.USER)
    asked = msgspec.structs.replace(asked, request=of_user)
    assert site.prepare(asked)[1]().first == ("cache",)
    done(site.plane.request(msgspec.structs.replace(of_user, machines=("db",))))
    plan = site.prepare(asked)[1]()
    assert (plan.first, plan.waits_for) == ((), Obstacle.REFUSED)
