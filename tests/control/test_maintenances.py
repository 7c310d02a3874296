"""Maintenances through the control plane: unit by unit, halted, killed, at cross purposes."""

import itertools
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from builders import NOW, SECOND
from control.conftest import done, put
from control.unit_site import REBOOT, ManualChecks, UnitSite, asked_for, played
from forewarn.control import maintenances
from forewarn.control.maintenances import UnitTargets
from forewarn.control.plane import Stepped
from forewarn.maintenance import fleet_file, host_drain, planner
from forewarn.maintenance.model import (
    Changes,
    DrainOptions,
    HoldKind,
    HostState,
    Policy,
    Refused,
)
from forewarn.maintenance.planner import Request
from forewarn.maintenance.turn_check import CheckResult, CheckRun
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.turns import Obstacle
from forewarn.maintenance.units import (
    CheckProgress,
    MaintenanceState,
    TurnOrder,
    UnitKind,
    UnitState,
)
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType, TargetKind

RUNNING, WAITING, DONE = UnitState.RUNNING, UnitState.WAITING, UnitState.DONE
FAILED, SKIPPED = UnitState.FAILED, UnitState.SKIPPED


def test_a_maintenance_of_hosts_asks_for_one_after_another_until_it_is_done() -> None:
    async def story(site: UnitSite) -> None:
        begun = site.begin()
        assert [unit.state for unit in begun.units] == [RUNNING, WAITING, WAITING]
        assert site.maintenance() == begun
        await site.reach(site.is_in(MaintenanceState.DONE))

    site = played(story)
    assert set(site.states().values()) == {DONE}
    assert {o.status for o in site.all_operations()} == {EventStatus.COMPLETED}
    assert {o.maintenance for o in site.all_operations()} == {1}
    machines = {o.id: (o.on_host, o.machines) for o in site.all_operations()}
    assert sorted(machines.values()) == [
        ("h1", ("db", "web-0")),
        ("h1", ("web-1",)),
        ("h2", ("web-2",)),
        ("h3", ("cache",)),
    ]
    for index, unit in enumerate(site.maintenance().units):
        its = [o.on_host for o in site.all_operations() if o.unit == index]
        assert set(its) == {unit.name}


def test_hosts_that_can_be_drained_are_drained_and_rebooted() -> None:
    async def story(site: UnitSite) -> None:
        site.begin(UnitTargets(all_hosts=True), drained=("h1", "h2", "h3"))
        await site.reach(site.is_in(MaintenanceState.DONE), rounds=1000)

    site = played(story)
    assert sorted(site.reboots) == ["h1", "h2", "h3"]
    assert set(site.states().values()) == {DONE}
    assert {drain.state for drain in site.drains().values()} == {HostState.UP}
    assert site.where("web-0", "web-2", "cache") == ["h1", "h2", "h3"]


def test_a_unit_whose_drain_is_stuck_is_retried_with_its_drain() -> None:
    async def story(site: UnitSite) -> None:
        site.failing = {"cache"}  # which is on h3
        site.begin(UnitTargets(hosts=("h3", "h2")), drained=("h3", "h2"))
        await site.reach(site.is_in(MaintenanceState.HALTED), rounds=1000)
        assert site.reboots == []
        site.failing.clear()
        site.order(MaintenanceOrder.RETRY, "h3")
        assert site.drains()["h3"].state is HostState.DRAINING
        site.order(MaintenanceOrder.RESUME)
        await site.reach(site.is_in(MaintenanceState.DONE), rounds=1000)

    site = played(story)
    assert site.reboots == ["h3", "h2"]
    assert set(site.states().values()) == {DONE}


def test_a_drain_that_is_retried_by_itself_takes_its_unit_with_it() -> None:
    async def story(site: UnitSite) -> None:
        site.reboot_fails = True
        site.begin(UnitTargets(hosts=("h3", "h2")), drained=("h3", "h2"))
        await site.reach(site.is_in(MaintenanceState.HALTED), rounds=1000)
        site.reboot_fails = False
        (failed,) = [name for name, state in site.states().items() if state is FAILED]
        done(site.plane.order_drain(failed, host_drain.retry))
        await site.reach(lambda: site.states()[failed] is DONE, rounds=1000)
        assert site.maintenance().state is MaintenanceState.HALTED
        with pytest.raises(Refused) as refusal:  # or the host would be rebooted once more
            site.order(MaintenanceOrder.RETRY, failed)
        assert refusal.value.code is ErrorCode.CONFLICT
        site.order(MaintenanceOrder.RESUME)
        await site.reach(site.is_in(MaintenanceState.DONE), rounds=1000)

    site = played(story)
    assert sorted(site.reboots[1:]) == ["h2", "h3"]


def test_hosts_that_are_drained_without_a_reboot_stay_empty_one_after_another() -> None:
    asked = asked_for(
        UnitTargets(hosts=("h1", "h2")), draining=DrainOptions(), order=TurnOrder.LISTED
    )

    async def story(site: UnitSite) -> None:
        site.start_as_asked(asked, ("h1", "h2"))
        await site.reach(site.is_in(MaintenanceState.DONE), rounds=1000)

    site = played(story)
    assert site.drains()["h1"].changed_at <= site.drains()["h2"].requested_at
    assert {name: drain.state for name, drain in site.drains().items()} == {
        "h1": HostState.EMPTY,
        "h2": HostState.EMPTY,
    }
    assert site.reboots == []


def test_a_unit_whose_window_closes_has_its_turn_in_the_next_one() -> None:
    async def story(site: UnitSite) -> None:
        site.begin(UnitTargets(machines=("cache",)), windows=("daily 12:30-13:00",))
        await site.reach(lambda: site.unit("cache").state is RUNNING, approving=False)
        done(site.plane.hold(HoldKind.MACHINE, "cache", reason="", by="ann"))
        await site.reach(lambda: site.unit("cache").state is WAITING, approving=False)
        assert site.clock.now() >= NOW + timedelta(hours=1)
        done(site.plane.release(HoldKind.MACHINE, "cache"))
        site.clock.advance(timedelta(hours=23))
        await site.reach(site.is_in(MaintenanceState.DONE))

    site = played(story)
    assert [o.status for o in site.all_operations()] == [
        EventStatus.CANCELED,
        EventStatus.COMPLETED,
    ]
    started = site.all_operations()[1].started_at
    assert started is not None
    assert started >= NOW + timedelta(hours=24, minutes=30)


class LimitedSite(UnitSite):
    """One that lets no more user-initiated maintenance in."""

    rules = Policy(user_initiated_limit=1)


def test_a_unit_that_the_rules_refuse_says_why_and_waits() -> None:
    async def story(site: UnitSite) -> None:
        users = msgspec.structs.replace(REBOOT, source=EventSource.USER)
        machines = UnitTargets(machines=("db", "cache"))
        begun = site.start_as_asked(asked_for(machines, users, at_once="2", order=TurnOrder.LISTED))
        assert [unit.state for unit in begun.units] == [RUNNING, WAITING]

    site = played(story, LimitedSite())
    unit = site.unit("cache")
    assert (unit.state, unit.operation) == (WAITING, 0)
    assert "user_initiated_limit" in unit.reason
    assert unit.retry_at is not None


def test_a_machine_that_would_be_in_two_units_is_refused() -> None:
    with pytest.raises(Refused) as refusal:
        UnitSite().plan(UnitTargets(hosts=("h1",), scopes=("db",)))
    assert refusal.value.code is ErrorCode.INVALID
    assert refusal.value.facts == {"machine": "db"}


def test_a_deletion_that_cannot_be_is_refused_before_it_begins() -> None:
    preempt = msgspec.structs.replace(REBOOT, event_type=EventType.PREEMPT)
    with pytest.raises(Refused) as refusal:
        UnitSite().prepare(asked_for(UnitTargets(machines=("db",)), preempt))
    assert refusal.value.code is ErrorCode.NOT_ELIGIBLE


def test_a_deletion_is_of_the_machines_that_there_are_when_it_is_asked_for() -> None:
    site = UnitSite()
    machines = [{"index": n, "update_domain": n} for n in range(2)]
    batch = {"name": "batch", "update_domains": 2, "priority": "low", "machines": machines}
    wanted = msgspec.convert({"scale_set": [batch]}, fleet_file.Fleet)
    done(site.plane.apply_fleet(wanted))
    preempt = msgspec.structs.replace(REBOOT, event_type=EventType.PREEMPT)
    prepared, _ = site.prepare(asked_for(UnitTargets(scopes=("batch",)), preempt))
    assert {unit.name: unit.machines for unit in prepared.units} == {
        "batch/0": ("batch_0",),
        "batch/1": ("batch_1",),
    }
    assert {unit.kind for unit in prepared.units} == {UnitKind.MACHINES}


def test_a_maintenance_that_has_no_operation_yet_is_cancelled_by_its_number() -> None:
    site = UnitSite()
    done(site.plane.hold(HoldKind.EVERYTHING, "", reason="storm", by="ann"))
    site.begin(at_once="1")
    assert site.all_operations() == []
    assert done(site.plane.cancel(["1"], reason="not today")) == ()
    assert site.maintenance().state is MaintenanceState.STOPPED


def test_several_scopes_have_one_domain_each_announced_at_once() -> None:
    site = UnitSite()
    batch = {"name": "batch", "machines": [{"name": "batch-0"}, {"name": "batch-1"}]}
    wanted = msgspec.convert({"availability_set": [batch]}, fleet_file.Fleet)
    done(site.plane.apply_fleet(wanted))
    begun = site.begin(UnitTargets(scopes=("batch", "web")), at_once="100%")
    assert begun.target is TargetKind.SCOPE
    assert begun.targets == ("batch", "web")
    assert sorted(o.machines for o in site.live()) == [("batch-0",), ("web-0",)]
    assert site.states() == {
        "batch/0": RUNNING,
        "web/0": RUNNING,
        "batch/1": WAITING,
        "web/1": WAITING,
    }


def test_a_request_that_is_sent_again_starts_nothing_more_and_another_is_refused() -> None:
    site = UnitSite()
    keyed = msgspec.structs.replace(REBOOT, idempotency_key="k")
    first = site.start_as_asked(asked_for(DB_AND_CACHE, keyed))
    again = msgspec.structs.replace(keyed, requested_by="bob")
    assert site.start_as_asked(asked_for(DB_AND_CACHE, again)) == first
    same = UnitTargets(machines=("Cache", "db", "cache"))
    with site.store.read() as reading:
        digest = reading.maintenances([1])[1].request_digest
    assert planner.digest(keyed, *asked_for(same, keyed).more) == digest
    other = msgspec.structs.replace(keyed, event_type=EventType.FREEZE)
    for wanted in (
        asked_for(UnitTargets(machines=("db",)), keyed),
        asked_for(DB_AND_CACHE, keyed, at_once="2"),
        asked_for(DB_AND_CACHE, other),
    ):
        with pytest.raises(Refused) as refused:
            site.start_as_asked(wanted)
        assert (refused.value.code, refused.value.facts) == (
            ErrorCode.CONFLICT,
            {"maintenance": 1},
        )
    with site.store.read() as reading:
        assert [one.number for one in reading.latest_maintenances(None, 9)] == [1]


@pytest.mark.parametrize(
    ("targets", "code"),
    [
        (UnitTargets(), ErrorCode.INVALID),
        (UnitTargets(hosts=("h9",)), ErrorCode.NOT_FOUND),
        (UnitTargets(scopes=("none",)), ErrorCode.NOT_FOUND),
        (UnitTargets(machines=("none",)), ErrorCode.NOT_FOUND),
        (UnitTargets(tags=(("role", "leader"),)), ErrorCode.INVALID),
        (UnitTargets(machines=("db", "DB")), ErrorCode.INVALID),
        (UnitTargets(scopes=("web", "WEB")), ErrorCode.INVALID),
    ],
)
def test_targets_that_name_nothing_are_refused(targets: UnitTargets, code: ErrorCode) -> None:
    with pytest.raises(Refused) as refused:
        UnitSite().prepare(asked_for(targets))
    assert refused.value.code is code


def test_machines_are_named_by_their_tags() -> None:
    site = UnitSite()
    tagged = {"machine": [{"name": "db", "host": "h1", "tags": {"role": "leader"}}]}
    done(site.plane.apply_fleet(msgspec.convert(tagged, fleet_file.Fleet)))
    begun = site.begin(UnitTargets(tags=(("role", "leader"),), machines=("cache",)))
    assert sorted(begun.targets) == sorted(unit.name for unit in begun.units) == ["cache", "db"]


def test_an_order_for_what_is_over_or_unknown_is_refused() -> None:
    site = UnitSite()
    site.begin()
    site.order(MaintenanceOrder.STOP)
    for number, code in ((1, ErrorCode.TOO_LATE), (9, ErrorCode.NOT_FOUND)):
        with pytest.raises(Refused) as refused:
            site.order(MaintenanceOrder.RESUME, number=number)
        assert (refused.value.code, refused.value.facts) == (code, {"maintenance": number})


def test_an_order_tells_what_it_has_announced() -> None:
    site = UnitSite()
    site.begin()
    site.order(MaintenanceOrder.PAUSE)
    assert site.order(MaintenanceOrder.SKIP, "h2") == ()
    done(site.plane.cancel(["1.1"], reason="not now"))
    (announced,) = site.order(MaintenanceOrder.RESUME)
    assert (announced.id, announced.on_host) == ("1.2", "h3")


# The check.

CHECKED = {"check": "smoke", "check_tries": 2, "check_within_seconds": 200}
YEARS = timedelta(days=800)
DB_AND_CACHE = UnitTargets(machines=("db", "cache"))


def test_a_check_that_fails_too_often_halts_the_maintenance_and_passes_after_a_resume() -> None:
    async def story(site: UnitSite) -> None:
        site.checks.fails = 2
        site.begin(DB_AND_CACHE, **CHECKED)
        await site.reach(site.is_in(MaintenanceState.HALTED))
        assert "cold caches" in site.maintenance().reason
        first, second = (run.began_at for run in site.checks.runs)
        assert second - first >= 100 * SECOND
        site.order(MaintenanceOrder.RESUME)
        await site.reach(site.is_in(MaintenanceState.DONE))

    site = played(story)
    assert len(site.checks.runs) == 4


def test_a_check_that_raises_has_failed() -> None:
    class Broken(ManualChecks):
        async def run(self, run: CheckRun) -> CheckResult:
            raise OSError("no disk")

    async def story(site: UnitSite) -> None:
        site.begin(DB_AND_CACHE, **CHECKED)
        await site.reach(site.is_in(MaintenanceState.HALTED))

    site = UnitSite()
    site.checks = Broken()
    assert "no disk" in played(story, site).maintenance().reason


def test_only_one_replica_runs_a_check_and_another_when_its_lease_is_over() -> None:
    site = UnitSite()

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
            UnitSite().begin(**given)
        assert refused.value.code is ErrorCode.INVALID


@pytest.mark.parametrize(
    ("event_type", "least"), [(EventType.REBOOT, 900), (EventType.REDEPLOY, 600)]
)
def test_a_policy_takes_no_notice_below_the_least(event_type: EventType, least: int) -> None:
    def prepare(seconds: int) -> None:
        request = Request(event_type=event_type)
        asked = asked_for(UnitTargets(scopes=("web",)), request, notice_seconds=seconds)
        UnitSite().prepare(asked)

    prepare(least)
    with pytest.raises(Refused) as refused:
        prepare(least - 1)
    assert refused.value.code is ErrorCode.NOTICE_TOO_SHORT
    assert refused.value.facts == {"where": "policy.notice_seconds"}


def by_name(site: UnitSite) -> None:
    site.begin(UnitTargets(machines=("db", "cache", "web-0")), at_once="2")


def by_scope(site: UnitSite) -> None:
    """Where nobody names a policy."""
    three = [{"name": f"batch-{n}", "update_domain": n} for n in range(3)]
    fleet = {"availability_set": [{"name": "batch", "update_domains": 3, "machines": three}]}
    done(site.plane.apply_fleet(msgspec.convert(fleet, fleet_file.Fleet)))
    done(site.plane.request(Request(event_type=EventType.REBOOT, scope="batch")))


def checked(site: UnitSite) -> None:
    site.begin(DB_AND_CACHE, **CHECKED)


@pytest.mark.parametrize("begin", [by_name, by_scope, checked])
def test_a_service_that_is_killed_after_any_commit_asks_for_each_unit_once(
    begin: Callable[[UnitSite], None],
) -> None:
    for kill_at in itertools.count(1):
        site = UnitSite()

        async def story(site: UnitSite, kill_at: int = kill_at) -> None:
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


class Farm(UnitSite):
    """Hosts that are drained."""

    def __init__(self, of: fleet_file.Fleet) -> None:
        super().__init__(of)
        self.home = {machine.name: machine.host for machine in self.machines()}
        self.names = tuple(sorted(set(self.home.values())))
        self.number = 1
        """Of the maintenance that is followed."""
        self.together: dict[frozenset[str], None] = {}
        """The units that were seen under way together, in the order of that."""

    def roll(self, *, approving: bool = False, **policy: Any) -> PlannedTurns:
        """Plan the drain and reboot of all, carry it out to its end, and return the plan."""

        async def story(site: UnitSite) -> None:
            site.begin(UnitTargets(hosts=self.names), drained=self.names, **policy)
            await self.reach(self.ended, approving=approving, rounds=3000)

        plan = self.plan(UnitTargets(hosts=self.names), drained=self.names, **policy)
        played(story, self)
        return plan

    def ended(self) -> bool:
        names = (name for name, state in self.states(self.number).items() if state is RUNNING)
        self.together[frozenset(names)] = None
        return self.maintenance(self.number).state is not MaintenanceState.RUNNING


def test_a_host_is_drained_when_the_machines_of_another_drain_are_home_again() -> None:
    names = [f"{scope}-{n}" for scope in ("web", "db") for n in range(3)]
    alone = [{"name": name, "host": f"h{1 + int(name[-1])}"} for name in names]
    farm = Farm(msgspec.convert({"machine": alone}, fleet_file.Fleet))

    async def story(_: UnitSite) -> None:
        await farm.drain("h1", reboot=True)
        await farm.reach(lambda: "h1" not in farm.where(*farm.home), approving=False)
        begun = farm.begin(UnitTargets(hosts=("h2", "h3")), drained=farm.names, at_once="2")
        farm.number = begun.number
        await farm.settle()
        assert set(farm.states(farm.number).values()) == {WAITING}
        assert "of host h1" in farm.unit("h2", farm.number).reason
        await farm.reach(farm.ended, approving=False, rounds=1000)

    played(story, farm)
    assert farm.where(*farm.home) == [*farm.home.values()]
    assert {*Counter(o.machines for o in farm.all_operations()).values()} == {2}


def test_a_plan_knows_holds_and_what_is_live() -> None:
    site = UnitSite()
    done(site.plane.hold(HoldKind.MACHINE, "cache", reason="storm", by="ann"))
    assert site.plan(UnitTargets(machines=("cache", "db")), order=TurnOrder.LISTED).first == ("db",)
    site.begin(UnitTargets(machines=("db",)))
    plan = site.plan(UnitTargets(machines=("cache", "db")))
    assert plan.first == ()
    assert plan.waits_for is Obstacle.MAINTENANCE


def test_all_units_that_may_go_are_asked_for_in_one_step() -> None:
    site = UnitSite()
    site.begin(at_once="2", spread="host")
    assert [*site.states().values()].count(RUNNING) == 2
    assert sorted(o.id for o in site.all_operations()) == ["1.1", "1.2"]
    asked = [unit.operation for unit in site.maintenance().units if unit.state is RUNNING]
    assert sorted(asked) == [1, 2]
    assert not site.take_turns().changed


@pytest.mark.parametrize("kind", [HoldKind.MACHINE, HoldKind.HOST])
def test_a_unit_that_is_on_hold_gives_its_place_to_others(kind: HoldKind) -> None:
    place = "h3" if kind is HoldKind.HOST else "cache"

    async def story(site: UnitSite) -> None:
        done(site.plane.hold(kind, place, reason="storm", by="ann"))
        site.begin(UnitTargets(machines=("cache", "db")), order=TurnOrder.LISTED)
        await site.reach(lambda: site.unit("db").state is DONE)
        assert "on hold, by ann" in site.unit("cache").reason
        assert site.unit("cache").operation == 0
        done(site.plane.release(kind, place))
        await site.settle()
        site.clock.advance(SECOND)
        await site.settle()
        assert site.unit("cache").state is RUNNING
        await site.reach(site.is_in(MaintenanceState.DONE))

    played(story)
