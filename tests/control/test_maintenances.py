"""Maintenances and drains through the control plane: maintenances.txt, and kills at any commit."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

import patience
from builders import NOW, SECOND
from control.conftest import done, put
from control.orders import PlaneStory
from control.site import FLEET, REBOOT, Site, asked_for, drain_of
from forewarn.control import host_drains as driver
from forewarn.control import maintenances, relay_watch
from forewarn.control.maintenances import Asked, UnitTargets
from forewarn.control.outbox import state_of
from forewarn.control.plane import Plane, Stepped
from forewarn.control.unit_of_work import UnitOfWork
from forewarn.maintenance import commands, fleet_file, host_drain, host_plan, planner
from forewarn.maintenance.alerts import Alert
from forewarn.maintenance.host_drain import DrainOrder, DrainStep, DrainView
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    Changes,
    DrainOptions,
    HostState,
    Policy,
    Refused,
    Stay,
)
from forewarn.maintenance.relays import new_token
from forewarn.maintenance.turn_check import CheckResult
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turns import Obstacle
from forewarn.maintenance.units import (
    CheckProgress,
    MaintenanceState,
    TurnOrder,
    TurnPolicy,
    UnitState,
)
from forewarn.vocabulary import ErrorCode, EventSource
from store.story import relay
from stories import RUNNER, elapsed, listed, stories_beside

RUNNING, WAITING, DONE = UnitState.RUNNING, UnitState.WAITING, UnitState.DONE
FAILED, SKIPPED = UnitState.FAILED, UnitState.SKIPPED


@pytest.fixture
def site() -> Site:
    return Site()


class SiteStory(PlaneStory):
    """A site whose service runs; all waits when a line is over.

    `until` and `reach` let time pass, and approve whatever is announced.
    """

    def __init__(self) -> None:
        self.site = Site()
        self.stored, self.clock = self.site.store, self.site.clock
        self.surveyed = 0
        self.retried, self.step = False, 1
        self.start()

    @property
    def plane(self) -> Plane:
        return self.site.plane

    def start(self) -> None:
        async def start() -> None:
            self.site.start()

        RUNNER.run(start())

    def kill(self) -> None:
        async def kill() -> None:
            await self.site.kill()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:  # what its parts have begun
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        RUNNER.run(kill())

    def carry_out(self, row: str) -> None:
        super().carry_out(row)
        RUNNER.run(self.site.settle())

    # Orders.

    def fleet(self, *machines: str, tags: str = "") -> None:
        """Apply machines alone, such as `db:h1`; without any, the fleet of the beginning."""
        tagged = dict(each.split(":") for each in listed(tags))
        alone = [
            {"name": name, "host": host, "tags": tagged}
            for name, host in (each.split(":") for each in machines)
        ]
        fleet = msgspec.convert({"machine": alone}, fleet_file.Fleet)
        done(self.plane.apply_fleet(fleet if machines else FLEET))

    def begin(self, drained: str = "", reboot: str = "yes", tags: str = "", **told: str) -> None:
        """Begin a maintenance of hosts or machines, which have commas between them."""
        kinds = {"hosts", "machines"} & told.keys()
        targets: dict[str, Any] = {kind: tuple(listed(told.pop(kind))) for kind in kinds}
        targets["tags"] = tuple(tuple(each.split(":")) for each in listed(tags))
        terms: dict[str, Any] = told | {"windows": listed(told.get("windows", ""))}
        policy = msgspec.convert(terms, TurnPolicy, strict=False)
        draining = DrainOptions(reboot=reboot == "yes") if drained else None
        asked = Asked(
            request=REBOOT, targets=UnitTargets(**targets), policy=policy, draining=draining
        )
        self.site.start_as_asked(asked, tuple(listed(drained)))

    def drain(self, host: str, reboot: str = "", away: str = "", bring_home: str = "yes") -> None:
        """Have a host drained; the store may be away from then on."""
        more = {"reboot": bool(reboot), "bring_home": bring_home == "yes"}
        RUNNER.run(self.site.drain(host, **more))
        self.stored.away = bool(away)

    def order(self, kind: str, unit: str = "", number: str = "1") -> None:
        given = (int(number), MaintenanceOrder(kind), unit)
        done(self.plane.order(maintenances.order, *given, by="bob"))

    def drain_order(self, kind: str, host: str) -> None:
        def order(view: DrainView, now: datetime) -> DrainStep:
            return host_drain.order(view, DrainOrder(kind), now)

        done(self.plane.order_drain(host, order))

    # Time and trouble.

    def until(self, host: str, state: str) -> None:
        RUNNER.run(self.site.until(HostState(state), host=host))

    def every(self, commits: str) -> None:
        """Only after each of so many commits the service is killed: that takes long enough."""
        self.step = int(commits)

    def through(self, host: str) -> None:
        """Let a drain go on to its end, and have a reboot retried of which nobody knows."""
        RUNNER.run(self.site.until(HostState.UP, HostState.STUCK, host=host, rounds=300))
        if self.site.state(host) is HostState.STUCK:
            self.host(host, "stuck", stuck_in="rebooting")
            self.rebooted()
            self.retried = True
            self.drain_order("retry", host)
            self.until(host, "up")

    def reach(self, state: str, number: str = "1", approving: str = "yes") -> None:
        ready = self.site.is_in(MaintenanceState(state), number=int(number))
        given = {"approving": approving == "yes", "rounds": 1000}
        RUNNER.run(self.site.reach(ready, **given))

    def pass_(self, span: str, times: str = "1") -> None:
        for _ in range(int(times)):
            self.clock.advance(elapsed(span))
            RUNNER.run(self.site.settle())

    def set_back(self, span: str) -> None:
        """The clock is set back, and the service knows."""
        by = elapsed(span)
        self.clock.jump(-by)
        done(self.plane.order(lambda unit: unit.decide(commands.set_back, by)))

    def fails(self, *machines: str) -> None:
        """What is done to these machines fails."""
        self.site.failing = {*machines}

    def survey(self, how: str) -> None:
        self.site.connector.survey_fails = how == "fails"
        self.site.connector.survey_hangs = how == "hangs"

    def reboot_hangs(self, span: str) -> None:
        """The command that reboots a host hangs, and has so much time."""
        self.kill()
        self.site.reboot_hangs, self.site.host_back = True, elapsed(span)
        self.start()

    def check_raises(self, why: str) -> None:
        self.site.checks.error = OSError(why)

    def stand_still_at_reboot(self) -> None:
        """The service gets no turn between the order to reboot a host and its command."""

        def stand_still(changes: Changes) -> None:
            if any(drain.state is HostState.REBOOTING for drain in changes.drains):
                self.clock.advance(2 * host_drain.LOOK_AGE_LIMIT)

        self.site.feed.subscribe(stand_still)

    def break_drain(self, like: str) -> None:
        """The service has a drain of a host that nobody knows."""
        drains = self.site.hosts.drains
        self.site.hosts.drains = {"nobody knows it": drains[like], **drains}

    def break_steps(self, number: str) -> None:
        """Each step of a maintenance fails."""
        sound = self.site.maintenances._step

        def step(each: int, survey: HostSurvey | None) -> "Future[Stepped]":
            if each == int(number):
                raise ArithmeticError("no")
            return sound(each, survey)

        self.site.maintenances._step = step  # type: ignore[method-assign]

    def lose_zone(self, number: str) -> None:
        """The time zone of a policy is gone."""

        def moved_to_mars(unit: UnitOfWork) -> None:
            known = unit.world.maintenances[int(number)]
            policy = msgspec.structs.replace(known.policy, zone="Mars/Olympus")
            moved = msgspec.structs.replace(known, policy=policy)
            unit.world.maintenances[known.number] = moved

        done(self.plane.order(moved_to_mars))

    def relay_token(self, host: str) -> None:
        token = new_token(host, "d", by="ann", at=NOW)
        done(self.plane.order(relay_watch.create_token, token))

    def relay_asks(self, host: str) -> None:
        self.stored.hear([relay(host, self.clock.now())])

    def stop_drains(self) -> None:
        """The part that drives drains ends at once, and well."""
        task = self.site.tasks[-1]
        assert not task.done()
        self.site.hosts.stop()
        RUNNER.run(self.site.settle())
        assert task.done()
        assert task.exception() is None

    # What must be so.

    def in_turn(self, first: str, second: str) -> None:
        """The drain of one host was over when that of another began."""
        drains = self.site.drains()
        assert drains[first].changed_at <= drains[second].requested_at

    def rebooted(self, *hosts: str) -> None:
        assert self.site.reboots == [*hosts]

    def unit(self, number: str, name: str, because: str) -> None:
        units = self.kept(number).units
        assert [because in unit.reason for unit in units if unit.name == name] == [True]

    def operations(self, count: str, *statuses: str) -> None:
        found = self.site.all_operations()
        assert len(found) == int(count)
        assert statuses in {(), (*{str(one.status) for one in found},)}

    def checked_last(self, number: str) -> None:
        """The check has passed since the last unit ended."""
        found = self.kept(number)
        assert found.check.passed_at is not None
        assert found.check.passed_at >= max(u.changed_at for u in found.units if u.changed_at)

    def surveys(self, count: str = "") -> None:
        """How often the hosts were looked at since this was said last."""
        before, self.surveyed = self.surveyed, self.site.connector.surveys
        assert not count or self.surveyed - before == int(count)

    def earlier_than(self, span: str) -> None:
        assert self.clock.now() - NOW < elapsed(span)

    def alerting(self) -> Iterable[Alert]:
        assert self.site.maintenances.obstacle == ""
        return self.site.maintenances.alerts()


@pytest.mark.parametrize("rows", stories_beside(__file__, "maintenances.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    told = SiteStory()
    try:
        assert told.play("maintenances.txt", rows)
    finally:
        told.kill()


@pytest.mark.parametrize("rows", stories_beside(__file__, "killed.txt"))
def test_the_story_holds_though_its_service_is_killed_after_any_commit(
    rows: list[tuple[int, str]],
) -> None:
    commit, retried = 1, 0
    while True:
        told = SiteStory()
        told.stored.last_commit = told.stored.commits + commit
        try:
            assert told.play("killed.txt", rows)
        finally:
            told.kill()
        retried += told.retried
        if not told.site.kills:
            break
        commit += told.step
    assert commit > 6
    assert (
        retried or told.step > 2 or not told.site.reboots
    )  # killed before the command of a reboot ran


def test_a_request_is_the_same_however_its_machines_are_written() -> None:
    keyed = msgspec.structs.replace(REBOOT, idempotency_key="k")
    same = UnitTargets(machines=("Cache", "db", "cache"))
    digests = {planner.digest(keyed, *asked_for(of, keyed).more) for of in (DB_AND_CACHE, same)}
    assert len(digests) == 1


# The check.

CHECKED = {"check": "smoke", "check_tries": 2, "check_within_seconds": 200}
YEARS = timedelta(days=800)
DB_AND_CACHE = UnitTargets(machines=("db", "cache"))


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


def test_a_plan_of_users_knows_how_much_they_have_asked_for(site: Site) -> None:
    site.plane.policy = Policy(user_initiated_limit=1)
    asked = asked_for(UnitTargets(machines=("cache",)))
    of_user = msgspec.structs.replace(asked.request, source=EventSource.USER)
    asked = msgspec.structs.replace(asked, request=of_user)
    assert site.prepare(asked)[1]().first == ("cache",)
    done(site.plane.request(msgspec.structs.replace(of_user, machines=("db",))))
    plan = site.prepare(asked)[1]()
    assert (plan.first, plan.waits_for) == ((), Obstacle.REFUSED)


async def test_what_could_not_be_drained_is_refused_and_the_plan_says_why(site: Site) -> None:
    survey = await site.hosts.survey()
    h1 = survey.hosts["h1"]
    (guest, *others) = h1.guests
    fixed = msgspec.structs.replace(guest, obstacles=("a device",))
    facts = msgspec.structs.replace(h1, can_reboot=False, guests=(fixed, *others))
    survey = msgspec.structs.replace(survey, hosts=survey.hosts | {"h1": facts})
    wanted = drain_of("h1", reboot=True)
    state = site.look(state_of)
    (plan,) = host_plan.planned(state, [wanted], survey, judge=False)
    assert len(plan.problems) == 2
    for drain in (
        lambda: host_plan.planned(state, [wanted], survey, judge=True),
        lambda: done(site.plane.drain_host(wanted, survey)),
    ):
        with pytest.raises(Refused) as refusal:
            drain()
        assert refusal.value.code is ErrorCode.NOT_ELIGIBLE
    done(site.plane.drain_host(drain_of("h1", stay=Stay.REDEPLOY), survey))


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


def test_a_reboot_command_that_fails_late_says_nothing_of_the_latest(site: Site) -> None:
    rebooting = drain_of("h1", boot_id="b", reboot_asked_at=NOW, reboot=True)
    rebooting = msgspec.structs.replace(rebooting, state=HostState.REBOOTING)
    put(site.plane, Changes(drains=(rebooting,)))
    done(site.plane.record_failed_reboot("h1", NOW - timedelta(hours=1), "no end"))
    assert site.drains()["h1"].reason == ""
    done(site.plane.record_failed_reboot("h1", NOW, "denied"))
    assert site.drains()["h1"].reason == "denied"
    done(site.plane.record_failed_reboot("h2", NOW, "denied"))  # the store has lost its drain


def costs(drained: int) -> tuple[int, int]:
    """The looks that it takes to drain so many hosts at once, and the transactions of one move."""
    machines = [{"name": f"m{n}", "host": f"h{n}"} for n in range(16)]
    site = Site(msgspec.convert({"machine": machines}, fleet_file.Fleet))
    hosts = [f"h{n}" for n in range(drained)]
    commits: list[int] = []

    async def story() -> None:
        for host in hosts:
            await site.drain(host, reboot=True)
        await site.settle()
        commits.append(site.store.commits)
        done(site.plane.approve_for_guests([site.live()[0].id], by="ann"))
        await site.settle()
        commits.append(site.store.commits)
        await site.reach(lambda: len(site.reboots) == drained)
        await site.reach(lambda: {site.state(host) for host in hosts} == {HostState.UP})

    site.play(story)
    return site.connector.surveys - drained, commits[1] - commits[0]


def test_drains_share_their_looks_and_take_steps_for_their_own_changes_alone() -> None:
    (looks, of_one), (by_eight, beside_eight) = costs(1), costs(8)
    assert by_eight < 2 * looks
    assert beside_eight == of_one
