"""Rollouts through the control plane: asked for unit by unit, halted, killed, at cross purposes."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from builders import NOW, SECOND
from control.conftest import done, put
from control.test_host_drains import Site
from forewarn.control import rollouts
from forewarn.control.outbox import everything, known_of
from forewarn.control.rollouts import Rollouts, RolloutTargets
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes, HoldKind, HostState, Operation, Refused
from forewarn.maintenance.planner import Request
from forewarn.maintenance.rollout import Obstacle, RolloutOrderKind
from forewarn.maintenance.rollout_check import CheckResult, CheckRun
from forewarn.maintenance.rollout_model import (
    CheckProgress,
    Rollout,
    RolloutOrder,
    RolloutPolicy,
    RolloutState,
    RolloutTask,
    RolloutUnit,
    UnitState,
)
from forewarn.maintenance.rollout_plan import PlannedRollout
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import ErrorCode, EventStatus, EventType

REBOOT = RolloutTask(event_type=EventType.REBOOT)
HOSTS = RolloutTargets(hosts=("h1", "h2", "h3"))
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


class RolloutSite(Site):
    """A service without sockets that has rollouts too."""

    def _wire(self) -> None:
        super()._wire()
        if not hasattr(self, "checks"):
            self.checks = ManualChecks()
        self.rollouts = Rollouts(self.plane, self.clock, self.hosts.survey, self.checks)

    def start(self) -> None:
        super().start()
        with self.store.read() as reading:
            self.rollouts.learn(everything(known_of(reading)))
        self.feed.subscribe(self.rollouts.learn)
        self._tasks.append(asyncio.create_task(self.rollouts.run()))

    def prepare(
        self,
        targets: RolloutTargets = HOSTS,
        *,
        task: RolloutTask = REBOOT,
        drained: tuple[str, ...] = (),
        **policy: Any,
    ) -> Rollout:
        with self.store.read() as reading:
            rollout, _ = rollouts.prepared(
                reading,
                reading.machines(),
                targets,
                task,
                RolloutPolicy(**policy),
                drained=drained,
                by="ann",
                now=self.clock.now(),
            )
        return rollout

    def begin(self, *given: Any, **policy: Any) -> Rollout:
        started: Rollout = done(self.plane.order(rollouts.start, self.prepare(*given, **policy)))
        return started

    def rollout(self, number: int = 1) -> Rollout:
        with self.store.read() as reading:
            return reading.rollouts()[number]

    def unit(self, name: str, number: int = 1) -> RolloutUnit:
        return next(unit for unit in self.rollout(number).units if unit.name == name)

    def states(self, number: int = 1) -> dict[str, UnitState]:
        return {unit.name: unit.state for unit in self.rollout(number).units}

    def order(self, kind: RolloutOrderKind, unit: str = "", number: int = 1) -> Rollout:
        ordered: Rollout = done(self.plane.order(rollouts.steer, number, kind, unit, by="bob"))
        return ordered

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
        raise AssertionError(self.rollout())

    def is_in(self, *states: RolloutState, number: int = 1) -> Callable[[], bool]:
        return lambda: self.rollout(number).state in states

    def all_operations(self) -> list[Operation]:
        with self.store.read() as reading:
            numbers = [one.number for one in reading.latest_maintenances(None, 1000)]
            return [o for n in numbers for o in reading.operations_of_maintenance(n).values()]


def played(
    story: Callable[[RolloutSite], Awaitable[None]], site: RolloutSite | None = None
) -> RolloutSite:
    site = site or RolloutSite()
    site.play(lambda: story(site))
    return site


def test_a_rollout_over_hosts_asks_for_one_after_another_until_it_is_done() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin()
        await site.reach(lambda: RUNNING in site.states().values(), approving=False)
        assert sorted(site.states().values()) == [RUNNING, WAITING, WAITING]
        await site.reach(site.is_in(RolloutState.DONE))

    site = played(story)
    assert set(site.states().values()) == {DONE}
    assert {o.status for o in site.all_operations()} == {EventStatus.COMPLETED}
    asked = [unit.maintenance for unit in site.rollout().units]
    assert len(set(asked)) == 3
    with site.store.read() as reading:
        targets = {m.targets for m in reading.maintenances(asked).values()}
    assert targets == {("h1",), ("h2",), ("h3",)}


def test_hosts_that_can_be_drained_are_drained_and_rebooted() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin(RolloutTargets(all_hosts=True), drained=("h1", "h2", "h3"))
        await site.reach(site.is_in(RolloutState.DONE), rounds=1000)

    site = played(story)
    assert sorted(site.reboots) == ["h1", "h2", "h3"]
    assert set(site.states().values()) == {DONE}
    assert {drain.state for drain in site.drains().values()} == {HostState.UP}
    assert site.where("web-0", "web-2", "cache") == ["h1", "h2", "h3"]


def test_a_drain_that_is_stuck_halts_the_rollout() -> None:
    async def story(site: RolloutSite) -> None:
        site.reboot_fails = True
        site.begin(RolloutTargets(hosts=("h3", "h2")), drained=("h3", "h2"))
        await site.reach(site.is_in(RolloutState.HALTED), rounds=1000)
        site.reboot_fails = False

    site = played(story)
    assert sorted(site.states().values()) == [FAILED, WAITING]
    assert "permission denied" in site.rollout().reason


def test_a_failure_halts_it_and_cancels_what_has_not_started() -> None:
    async def story(site: RolloutSite) -> None:
        site.failing = {"cache"}
        site.begin(RolloutTargets(machines=("cache", "db")), at_once="2")
        await site.reach(lambda: list(site.states().values()) == [RUNNING] * 2, approving=False)
        number = site.unit("cache").maintenance
        done(site.plane.approve_for_guests([str(number)], by="test"))
        await site.reach(site.is_in(RolloutState.HALTED), approving=False)
        await site.reach(lambda: site.unit("db").state is WAITING, approving=False, rounds=20)

    site = played(story)
    assert site.unit("cache").state is FAILED
    assert "no memory" in site.rollout().reason
    assert not site.live()


def test_after_a_failure_it_goes_on_with_a_retry() -> None:
    async def story(site: RolloutSite) -> None:
        site.failing = {"cache"}
        site.begin(RolloutTargets(machines=("cache", "db")))
        await site.reach(site.is_in(RolloutState.HALTED))
        site.failing = set()
        site.order(RolloutOrderKind.RETRY, "CACHE")
        site.order(RolloutOrderKind.RESUME)
        await site.reach(site.is_in(RolloutState.DONE))

    assert set(played(story).states().values()) == {DONE}


def test_a_pause_leaves_what_is_announced() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin()
        await site.reach(lambda: RUNNING in site.states().values(), approving=False)
        site.order(RolloutOrderKind.PAUSE)
        await site.reach(lambda: DONE in site.states().values())
        await site.settle()
        assert sorted(site.states().values()) == [DONE, WAITING, WAITING]
        site.order(RolloutOrderKind.RESUME)
        await site.reach(site.is_in(RolloutState.DONE))

    played(story)


def test_a_stop_cancels_what_is_announced() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin()
        await site.reach(lambda: RUNNING in site.states().values(), approving=False)
        site.order(RolloutOrderKind.STOP)
        assert not site.live()
        await site.reach(lambda: not site.rollout().goes_on, rounds=20)

    site = played(story)
    assert site.rollout().state is RolloutState.STOPPED
    assert {o.status for o in site.all_operations()} == {EventStatus.CANCELED}


def test_what_has_started_goes_on_after_a_stop_and_is_followed() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin(RolloutTargets(scopes=("web",)))
        await site.reach(lambda: any(o.status is EventStatus.STARTED for o in site.live()))
        site.order(RolloutOrderKind.STOP)
        await site.reach(lambda: not site.rollout().goes_on)

    site = played(story)
    assert site.unit("web").done
    assert [o.status for o in site.all_operations()] == [EventStatus.COMPLETED]


def test_two_rollouts_that_want_the_same_machines_both_come_to_their_end() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin(at_once="3")
        site.begin(RolloutTargets(machines=("web-0", "web-1", "web-2", "db")), at_once="4")
        await site.reach(site.is_in(RolloutState.DONE), rounds=600)
        await site.reach(site.is_in(RolloutState.DONE, number=2), rounds=600)

    site = played(story)
    assert {o.status for o in site.all_operations()} == {EventStatus.COMPLETED}


def test_a_unit_whose_machine_is_gone_is_left_out() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin(RolloutTargets(machines=("cache", "db")))
        done(site.plane.remove_machines(["db"]))
        await site.reach(site.is_in(RolloutState.DONE))

    site = played(story)
    assert site.states() == {"cache": DONE, "db": SKIPPED}


def test_a_unit_that_other_maintenance_holds_up_says_so_and_lets_others_go() -> None:
    async def story(site: RolloutSite) -> None:
        done(site.plane.request(Request(event_type=EventType.FREEZE, machines=("db",))))
        site.begin(RolloutTargets(machines=("db", "cache")))
        await site.reach(lambda: site.unit("cache").state is RUNNING, approving=False)
        assert "1.1" in site.unit("db").reason
        await site.reach(site.is_in(RolloutState.DONE))

    played(story)


def test_a_unit_whose_guest_holds_says_so_and_keeps_no_other_from_going() -> None:
    async def story(site: RolloutSite) -> None:
        targets = RolloutTargets(machines=("db", "cache", "web-0"))
        site.begin(targets, at_once="2", order=RolloutOrder.LISTED)
        await site.reach(lambda: site.unit("db").state is RUNNING, approving=False)
        done(site.plane.hold(HoldKind.MACHINE, "db", reason="a backup", by="ann"))
        await site.reach(lambda: list(site.states().values()).count(DONE) == 2)
        assert site.unit("db").state is RUNNING
        assert "held" in site.unit("db").reason
        done(site.plane.release(HoldKind.MACHINE, "db"))
        await site.reach(site.is_in(RolloutState.DONE))

    played(story)


def test_a_unit_whose_host_has_no_machines_any_more_is_left_out() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin()
        with site.store.read() as reading:
            gone = [machine.name for machine in reading.machines().values() if machine.host == "h3"]
        done(site.plane.remove_machines(gone))
        await site.reach(site.is_in(RolloutState.DONE))

    assert sorted(played(story).states().values()) == [DONE, DONE, SKIPPED]


def test_a_unit_whose_window_closes_has_its_turn_in_the_next_one() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin(RolloutTargets(machines=("cache",)), windows=("daily 12:30-13:00",))
        await site.reach(lambda: site.unit("cache").state is RUNNING, approving=False)
        done(site.plane.hold(HoldKind.MACHINE, "cache", reason="", by="ann"))
        await site.reach(lambda: site.unit("cache").state is WAITING, approving=False)
        assert site.clock.now() >= NOW + timedelta(hours=1)
        done(site.plane.release(HoldKind.MACHINE, "cache"))
        site.clock.advance(timedelta(hours=23))
        await site.reach(site.is_in(RolloutState.DONE))

    site = played(story)
    assert [o.status for o in site.all_operations()] == [
        EventStatus.COMPLETED,
        EventStatus.CANCELED,
    ]
    started = site.all_operations()[0].started_at
    assert started is not None
    assert started >= NOW + timedelta(hours=24, minutes=30)


def test_a_service_that_is_killed_after_any_commit_asks_for_each_unit_once() -> None:
    kill_at = 1
    while True:
        site = RolloutSite()

        async def story(site: RolloutSite = site, kill_at: int = kill_at) -> None:
            site.begin(RolloutTargets(machines=("db", "cache", "web-0")), at_once="2")
            site.store.last_commit = site.store.commits + kill_at

            def over() -> bool:
                return site.rollout().state is RolloutState.DONE

            for _ in range(300):
                await site.settle()
                if over():
                    return
                try:
                    site.approve()
                except StoreUnavailable:
                    continue
                await site.settle()
                site.clock.advance(20 * SECOND)
            raise AssertionError(site.rollout())

        site.play(story)
        with site.store.read() as reading:
            assert len(reading.latest_maintenances(None, 100)) == 3, kill_at
        assert {o.status for o in site.all_operations()} == {EventStatus.COMPLETED}
        if not site.kills:
            assert kill_at > 6
            return
        kill_at += 1


def test_a_rollout_that_the_rules_refuse_says_why() -> None:
    async def story(site: RolloutSite) -> None:
        rollout = site.prepare(RolloutTargets(machines=("db",)))
        task = RolloutTask(event_type=EventType.PREEMPT)
        done(site.plane.order(rollouts.start, msgspec.structs.replace(rollout, task=task)))
        await site.reach(lambda: bool(site.unit("db").reason), approving=False, rounds=5)

    site = played(story)
    assert "priority" in site.unit("db").reason
    assert site.unit("db").state is WAITING


@pytest.mark.parametrize(
    ("targets", "code"),
    [
        (RolloutTargets(), ErrorCode.INVALID),
        (RolloutTargets(hosts=("h9",)), ErrorCode.NOT_FOUND),
        (RolloutTargets(scopes=("none",)), ErrorCode.NOT_FOUND),
        (RolloutTargets(machines=("none",)), ErrorCode.NOT_FOUND),
        (RolloutTargets(tags=(("role", "leader"),)), ErrorCode.INVALID),
        (RolloutTargets(scopes=("db",), machines=("db",)), ErrorCode.INVALID),
    ],
)
def test_targets_that_name_nothing_are_refused(targets: RolloutTargets, code: ErrorCode) -> None:
    with pytest.raises(Refused) as refused:
        RolloutSite().prepare(targets)
    assert refused.value.code is code


def test_machines_are_named_by_their_tags() -> None:
    site = RolloutSite()
    tagged = {"machine": [{"name": "db", "host": "h1", "tags": {"role": "leader"}}]}
    done(site.plane.apply_fleet(msgspec.convert(tagged, fleet_file.Fleet)))
    rollout = site.prepare(RolloutTargets(tags=(("role", "leader"),), machines=("cache",)))
    assert sorted(unit.name for unit in rollout.units) == ["cache", "db"]


def test_rollouts_that_are_over_make_room_for_new_ones() -> None:
    site = RolloutSite()
    for _ in range(3):
        site.begin()
    with pytest.raises(Refused) as refused:
        site.order(RolloutOrderKind.STOP, number=9)
    assert refused.value.code is ErrorCode.NOT_FOUND
    with site.store.read() as reading:
        assert list(reading.rollouts()) == [1, 2, 3]


# The check.

CHECKED = {"check": "smoke", "check_tries": 2, "check_within_seconds": 200}
YEARS = timedelta(days=800)
DB_AND_CACHE = RolloutTargets(machines=("db", "cache"))


def test_each_unit_is_followed_by_a_check() -> None:
    async def story(site: RolloutSite) -> None:
        site.begin(DB_AND_CACHE, **CHECKED)
        await site.reach(site.is_in(RolloutState.DONE))

    site = played(story)
    assert [run.number for run in site.checks.runs] == [1, 2]
    assert {run.name for run in site.checks.runs} == {"smoke"}
    assert {run.seconds for run in site.checks.runs} == {100}


def test_no_further_unit_is_asked_for_while_a_check_runs() -> None:
    async def story(site: RolloutSite) -> None:
        site.checks.open.clear()
        site.begin(DB_AND_CACHE, **CHECKED)
        await site.reach(lambda: bool(site.checks.runs))
        await site.settle()
        assert sorted(site.states().values()) == [DONE, WAITING]
        site.checks.open.set()
        await site.reach(site.is_in(RolloutState.DONE))

    played(story)


def test_a_check_that_fails_too_often_halts_the_rollout_and_passes_after_a_resume() -> None:
    async def story(site: RolloutSite) -> None:
        site.checks.fails = 2
        site.begin(DB_AND_CACHE, **CHECKED)
        await site.reach(site.is_in(RolloutState.HALTED))
        assert "cold caches" in site.rollout().reason
        first, second = (run.began_at for run in site.checks.runs)
        assert second - first >= 100 * SECOND
        site.order(RolloutOrderKind.RESUME)
        await site.reach(site.is_in(RolloutState.DONE))

    site = played(story)
    assert len(site.checks.runs) == 4


def test_a_check_that_raises_has_failed() -> None:
    class Broken(ManualChecks):
        async def run(self, run: CheckRun) -> CheckResult:
            raise OSError("no disk")

    async def story(site: RolloutSite) -> None:
        site.begin(DB_AND_CACHE, **CHECKED)
        await site.reach(site.is_in(RolloutState.HALTED))

    site = RolloutSite()
    site.checks = Broken()
    assert "no disk" in played(story, site).rollout().reason


def test_a_service_that_is_killed_after_any_commit_runs_a_check_after_each_unit() -> None:
    kill_at = 1
    while True:
        site = RolloutSite()

        async def story(site: RolloutSite = site, kill_at: int = kill_at) -> None:
            site.begin(DB_AND_CACHE, **CHECKED)
            site.store.last_commit = site.store.commits + kill_at
            for _ in range(300):
                await site.settle()
                if site.rollout().state is RolloutState.DONE:
                    return
                try:
                    site.approve()
                except StoreUnavailable:
                    continue
                await site.settle()
                site.clock.advance(20 * SECOND)
            raise AssertionError(site.rollout())

        site.play(story)
        assert site.rollout().check.passed_at is not None
        ended = [unit.changed_at for unit in site.rollout().units if unit.changed_at]
        assert site.rollout().check.passed_at >= max(ended), kill_at
        if not site.kills:
            assert kill_at > 8
            return
        kill_at += 1


def test_only_one_replica_runs_a_check_and_another_when_its_lease_is_over() -> None:
    site = RolloutSite()

    def step(replica: str) -> rollouts.Stepped:
        stepped: rollouts.Stepped = done(
            site.plane.order(rollouts.step, 1, None, replica=replica, margin=timedelta(seconds=30))
        )
        return stepped

    site.begin(RolloutTargets(machines=("db",)), **CHECKED)
    due = msgspec.structs.replace(site.rollout(), check=CheckProgress(due=True))
    put(site.plane, Changes(rollouts=(due,)))
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
        done(site.plane.order(rollouts.record_check, stale, CheckResult(passed=True)))
        assert site.rollout().check.lease_until is not None
    done(site.plane.order(rollouts.record_check, fourth, CheckResult(passed=True)))
    assert step("r1").check is None
    assert site.rollout().units[0].state is RUNNING


def test_a_rollout_that_drains_hosts_takes_no_other_notice_than_theirs() -> None:
    for given in (
        {"drained": ("h1",), "approval_until": NOW},
        {"drained": ("h1",), "notice_seconds": 1800},
        {"approval_until": NOW + YEARS},
    ):
        with pytest.raises(Refused) as refused:
            RolloutSite().prepare(HOSTS, **given)
        assert refused.value.code is ErrorCode.INVALID


@pytest.mark.parametrize(
    ("event_type", "least"), [(EventType.REBOOT, 900), (EventType.REDEPLOY, 600)]
)
def test_a_rollout_takes_no_notice_below_the_least(event_type: EventType, least: int) -> None:
    def prepare(seconds: int) -> None:
        web = RolloutTargets(scopes=("web",))
        task = RolloutTask(event_type=event_type)
        RolloutSite().prepare(web, task=task, notice_seconds=seconds)

    prepare(least)
    with pytest.raises(Refused) as refused:
        prepare(least - 1)
    assert refused.value.code is ErrorCode.NOTICE_TOO_SHORT
    assert refused.value.facts == {"where": "policy.notice_seconds"}


def test_until_a_time_no_step_of_a_unit_starts_without_approval() -> None:
    until = NOW + timedelta(hours=5)

    async def story(site: RolloutSite) -> None:
        site.begin(RolloutTargets(scopes=("web",)), approval_until=until)
        await site.reach(lambda: RUNNING in site.states().values(), approving=False)
        done(site.plane.approve_for_guests(["1.1"], by="test"))
        await site.reach(lambda: len(site.all_operations()) > 1, approving=False)
        site.clock.advance(timedelta(hours=4))
        await site.settle()
        assert {o.status for o in site.live()} == {EventStatus.SCHEDULED}
        await site.reach(site.is_in(RolloutState.DONE), approving=False, rounds=1500)

    site = played(story)
    first, *later = sorted(site.all_operations(), key=lambda o: o.id)
    assert first.started_at is not None
    assert first.started_at < until
    assert later
    assert all(o.started_at is not None and o.started_at >= until for o in later)


def farm_of(hosts: int, *, shared: bool, settle: int = 0) -> fleet_file.Fleet:
    """Hosts with three machines each: of one update domain of three scopes, or each alone."""
    machines = {
        scope: [
            {"name": f"{scope}-{n}", "host": f"h{n + 1}", "update_domain": n} for n in range(hosts)
        ]
        for scope in ("web", "app", "db")
    }
    sets = [
        {"name": scope, "update_domains": hosts, "machines": its, "settle_seconds": settle}
        for scope, its in machines.items()
    ]
    alone = [{"name": m["name"], "host": m["host"]} for its in machines.values() for m in its]
    plain = {"availability_set": sets} if shared else {"machine": alone}
    return msgspec.convert(plain, fleet_file.Fleet)


class Farm(RolloutSite):
    """Hosts that are drained."""

    def __init__(self, of: fleet_file.Fleet) -> None:
        super().__init__(of)
        self.home = {machine.name: machine.host for machine in self.machines()}
        self.names = tuple(sorted(set(self.home.values())))
        self.together: dict[frozenset[str], None] = {}
        """The units that were seen under way together, in the order of that."""

    def roll(self, *, approving: bool = False, **policy: Any) -> PlannedRollout:
        """Plan a rollout, carry it out to its end, and return the plan."""

        async def story(site: RolloutSite) -> None:
            site.begin(RolloutTargets(hosts=self.names), drained=self.names, **policy)
            await self.reach(self.ended, approving=approving, rounds=3000)

        with self.store.read() as reading:
            _, plan = rollouts.prepared(
                reading,
                reading.machines(),
                RolloutTargets(hosts=self.names),
                msgspec.structs.replace(REBOOT, duration_seconds=180),
                RolloutPolicy(**policy),
                drained=self.names,
                by="ann",
                now=self.clock.now(),
            )
        played(story, self)
        return plan

    def ended(self) -> bool:
        names = (name for name, state in self.states().items() if state is RUNNING)
        self.together[frozenset(names)] = None
        return self.rollout().state is not RolloutState.RUNNING


@pytest.mark.parametrize("shared", [True, False])
def test_while_hosts_are_drained_each_machine_moves_away_once_and_home_once(
    *, shared: bool
) -> None:
    farm = Farm(farm_of(4, shared=shared))
    farm.roll(at_once="2")
    assert farm.rollout().state is RolloutState.DONE
    assert farm.where(*farm.home) == [*farm.home.values()]
    assert {*Counter(o.machines for o in farm.all_operations()).values()} == {2}


def test_a_host_is_drained_when_the_machines_of_another_drain_are_home_again() -> None:
    farm = Farm(farm_of(3, shared=False))

    async def story(_: RolloutSite) -> None:
        await farm.drain("h1", reboot=True)
        await farm.reach(lambda: "h1" not in farm.where(*farm.home), approving=False)
        farm.begin(RolloutTargets(hosts=("h2", "h3")), drained=farm.names, at_once="2")
        await farm.settle()
        assert set(farm.states().values()) == {WAITING}
        assert "of host h1" in farm.unit("h2").reason
        await farm.reach(farm.ended, approving=False, rounds=1000)

    played(story, farm)
    assert farm.where(*farm.home) == [*farm.home.values()]
    assert {*Counter(o.machines for o in farm.all_operations()).values()} == {2}


def test_two_hosts_that_share_a_scope_are_not_drained_together() -> None:
    farm = Farm(farm_of(4, shared=True))
    farm.roll(at_once="2")
    assert {len(units) for units in farm.together} <= {0, 1}
    apart = Farm(farm_of(4, shared=False))
    apart.roll(at_once="2")
    assert max(len(units) for units in apart.together) == 2


def test_a_plan_knows_holds_and_what_is_live() -> None:
    site = RolloutSite()
    done(site.plane.hold(HoldKind.MACHINE, "cache", reason="storm", by="ann"))
    with site.store.read() as reading:
        _, plan = rollouts.prepared(
            reading,
            reading.machines(),
            RolloutTargets(machines=("cache", "db")),
            REBOOT,
            RolloutPolicy(order=RolloutOrder.LISTED),
            drained=(),
            by="ann",
            now=NOW,
        )
    assert plan.first == ("db",)
    site.begin(RolloutTargets(machines=("db",)))
    done(site.plane.order(rollouts.step, 1, None))
    with site.store.read() as reading:
        _, plan = rollouts.prepared(
            reading,
            reading.machines(),
            RolloutTargets(machines=("cache", "db")),
            REBOOT,
            RolloutPolicy(),
            drained=(),
            by="ann",
            now=NOW,
        )
    assert plan.first == ()
    assert plan.waits_for is Obstacle.MAINTENANCE


def test_all_units_that_may_go_are_asked_for_in_one_step() -> None:
    site = RolloutSite()
    site.begin(at_once="2", spread="host")
    stepped = done(site.plane.order(rollouts.step, 1, None))
    assert stepped.changed
    assert [*site.states().values()].count(RUNNING) == 2
    asked = [unit.maintenance for unit in site.rollout().units if unit.maintenance]
    assert sorted({o.maintenance for o in site.all_operations()}) == sorted(asked) == [1, 2]
    assert not done(site.plane.order(rollouts.step, 1, None)).changed


@pytest.mark.parametrize("kind", [HoldKind.MACHINE, HoldKind.HOST])
def test_a_unit_that_is_on_hold_gives_its_place_to_others(kind: HoldKind) -> None:
    place = "h3" if kind is HoldKind.HOST else "cache"

    async def story(site: RolloutSite) -> None:
        done(site.plane.hold(kind, place, reason="storm", by="ann"))
        site.begin(RolloutTargets(machines=("cache", "db")), order=RolloutOrder.LISTED)
        await site.reach(lambda: site.unit("db").state is DONE)
        assert "on hold, by ann" in site.unit("cache").reason
        assert site.unit("cache").maintenance == 0
        done(site.plane.release(kind, place))
        await site.settle()
        site.clock.advance(SECOND)
        await site.settle()
        assert site.unit("cache").state is RUNNING
        await site.reach(site.is_in(RolloutState.DONE))

    played(story)
