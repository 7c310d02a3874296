"""Maintenances and drains through the control plane: halted, killed, at cross purposes, refused."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

import patience
from builders import NOW, SECOND
from control.conftest import done, put
from control.site import FLEET, ON_H1, REBOOT, ManualChecks, Site, asked_for, drain_of, played
from forewarn.control import host_drains as driver
from forewarn.control import maintenances, relay_watch
from forewarn.control.maintenances import UnitTargets
from forewarn.control.plane import Stepped
from forewarn.maintenance import fleet_file, host_drain, planner
from forewarn.maintenance.model import (
    Changes,
    DrainOptions,
    HostState,
    Policy,
    Refused,
    Stay,
)
from forewarn.maintenance.relays import Relay, new_token
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
