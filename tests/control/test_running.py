"""The ticker and the executor, run on a clock that is advanced by hand."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

import patience
from builders import MINUTE, NOW, SECOND
from control.conftest import Counting, House, done
from control.scripted import Scripted
from forewarn.connectors.port import Found, Outcome, Task
from forewarn.connectors.simulated import DURATIONS, SimulatedConnector
from forewarn.control.executor import (
    CLAIM_AGAIN,
    LEASE,
    MAX_REPEATS,
    RENEW_EVERY,
    Executor,
    OnUnknown,
)
from forewarn.control.plane import Retention
from forewarn.control.ticker import AFTER_TROUBLE, Ticker
from forewarn.maintenance import fleet_file, planner
from forewarn.maintenance.model import Changes, HoldKind, Verdict
from forewarn.store.port import Transaction
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import EventSource, EventStatus, EventType, TargetKind
from store.shared import lost_tail

REBOOT = EventType.REBOOT


class Acting(Scripted):
    """The connector of an executor that runs, beside a ticker, around a story."""

    def __init__(self, house: House) -> None:
        super().__init__()
        self.house = house

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            house = self.house
            ticker = Ticker(house.plane, house.clock, Retention())
            executor = Executor(house.plane, self, house.clock, "here")
            house.feed.subscribe(ticker.learn)
            house.feed.subscribe(executor.learn)
            tasks = [asyncio.create_task(ticker.run()), asyncio.create_task(executor.run())]
            await patience.settled()
            try:
                await story()
            finally:
                ticker.stop()
                executor.stop()
                await asyncio.wait_for(asyncio.gather(*tasks), patience.SECONDS)

        asyncio.run(run())


def play(house: House, story: Callable[[Scripted], Awaitable[None]]) -> None:
    connector = Acting(house)
    connector.play(lambda: story(connector))


@pytest.fixture
def connector(house: House) -> Acting:
    return Acting(house)


async def passes(house: House, time: timedelta) -> None:
    house.clock.advance(time)
    await patience.settled()


async def test_an_operation_starts_at_its_not_before_and_ends_with_its_outcome(
    house: House, connector: Acting
) -> None:
    house.ask(REBOOT, "web-0")
    await patience.settled()
    await passes(house, 15 * MINUTE - SECOND)
    assert house.operation("1.1").status is EventStatus.SCHEDULED
    await passes(house, SECOND)
    assert house.operation("1.1").started_at == NOW + 15 * MINUTE
    assert connector.asked == [("perform", "1.1", 1)]
    assert not connector.tasks[0].unforeseen
    connector.outcomes["1.1"].set_result(Outcome(succeeded=True, message="fine"))
    await patience.settled()
    assert house.operation("1.1").status is EventStatus.COMPLETED
    assert house.operation("1.1").outcome == "fine"


def test_what_other_replicas_leave_of_their_share_is_claimed_a_moment_later(house: House) -> None:
    async def run() -> None:
        connector = Scripted()
        executor = Executor(house.plane, connector, house.clock, "here", replicas=lambda: 2)
        house.ask(REBOOT, "web-0", "bastion", "batch_0", no_notice=True)
        task = asyncio.create_task(executor.run())
        await patience.settled()
        assert len(connector.asked) == 2
        await passes(house, CLAIM_AGAIN)
        assert len(connector.asked) == 3
        executor.stop()
        await task

    asyncio.run(run())


@pytest.mark.usefixtures("connector")
async def test_an_earlier_not_before_moves_the_wakeup_forward(house: House) -> None:
    house.ask(REBOOT, "web-0", not_before=NOW + timedelta(days=1))
    await patience.settled()
    house.ask(EventType.PREEMPT, "batch_0")
    await patience.settled()
    await passes(house, 30 * SECOND)
    assert house.operation("2.1").status is EventStatus.STARTED
    assert house.operation("1.1").status is EventStatus.SCHEDULED


@pytest.mark.usefixtures("connector")
async def test_an_earlier_end_of_a_hold_moves_the_wakeup_forward(house: House) -> None:
    until = NOW + SECOND
    done(house.plane.hold(HoldKind.SCOPE, "web", reason="", by="ann", until=until))
    await patience.settled()
    await passes(house, SECOND)
    with house.store.read() as reading:
        assert reading.holds() == ()


async def test_an_approval_is_carried_out_at_once(house: House, connector: Acting) -> None:
    plan = house.ask(REBOOT, "web-0")
    event_id = plan.operations[0].events[0].id
    done(house.plane.approve("web", [event_id], by="web-0", address="10.0.0.10"))
    await patience.settled()
    assert connector.asked == [("perform", "1.1", 1)]


async def test_what_fails_is_recorded_with_its_reason(house: House, connector: Acting) -> None:
    house.ask(REBOOT, "web-0", "bastion", no_notice=True)
    await patience.settled()
    connector.outcomes["1.1"].set_result(Outcome(succeeded=False, message="no such domain"))
    connector.outcomes["1.2"].set_exception(OSError("connector gone"))
    await patience.settled()
    assert house.operation("1.1").status is EventStatus.FAILED
    assert house.operation("1.1").outcome == "no such domain"
    assert house.operation("1.2").status is EventStatus.FAILED
    assert house.operation("1.2").outcome == "OSError: connector gone"


async def test_a_long_act_keeps_its_lease(house: House, connector: Acting) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    await patience.settled()
    for _ in range(6):
        await passes(house, RENEW_EVERY)
    assert house.operation("1.1").attempt == 1
    assert house.operation("1.1").lease_until == house.clock.now() + LEASE
    connector.outcomes["1.1"].set_result(Outcome(succeeded=True))
    await patience.settled()
    assert house.operation("1.1").status is EventStatus.COMPLETED


async def test_a_task_that_the_store_has_lost_keeps_nothing_else_from_being_claimed(
    house: House, connector: Acting
) -> None:
    assert isinstance(house.store, InMemoryStore)
    with lost_tail(house.store):
        house.ask(REBOOT, "web-0", no_notice=True)
        await patience.settled()
    with house.store.write() as transaction:
        transaction.skip_maintenance_numbers(1)
    await passes(house, RENEW_EVERY)
    house.ask(REBOOT, "bastion", no_notice=True)
    await patience.settled()
    await passes(house, RENEW_EVERY)
    assert [task.operation for task in connector.tasks] == ["1.1", "2.1"]


async def test_the_claim_of_an_act_that_has_just_ended_is_not_lost(
    house: House, connector: Acting
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    await patience.settled()
    await passes(house, RENEW_EVERY / 2)
    connector.may_forget.clear()
    connector.outcomes["1.1"].set_result(Outcome(succeeded=True))
    await patience.settled()
    assert connector.asked[-1] == ("forget", "1.1", 1)
    with capture_logs() as told:
        await passes(house, RENEW_EVERY / 2)
    assert [each for each in told if each["log_level"] != "info"] == []
    connector.may_forget.set()


@pytest.mark.parametrize("found", [Outcome(succeeded=True, message="done before"), Found.NOT_DONE])
def test_after_a_restart_an_act_is_checked_before_it_is_repeated(
    house: House, found: Outcome | Found
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("who is gone", MINUTE, 1))
    done(house.plane.release_claims())

    async def story(connector: Scripted) -> None:
        await patience.settled()
        # the act was claimed before the story began, so it has been checked as not done
        assert connector.asked[0] == ("check", "1.1", 2)
        assert connector.asked[1] == ("perform", "1.1", 2)

    async def found_story(connector: Scripted) -> None:
        assert connector.asked == [("check", "1.1", 2), ("forget", "1.1", 2)]
        assert house.operation("1.1").status is EventStatus.COMPLETED
        assert house.operation("1.1").outcome == "done before"

    if isinstance(found, Outcome):
        play_with(house, found, found_story)
    else:
        play(house, story)


def play_with(
    house: House,
    earlier: Outcome | Found,
    story: Callable[[Scripted], Awaitable[None]],
    on_unknown: OnUnknown = "ask",
) -> None:
    async def run() -> None:
        connector = Scripted()
        connector.earlier = earlier
        executor = Executor(house.plane, connector, house.clock, "here", on_unknown=on_unknown)
        house.feed.subscribe(executor.learn)
        task = asyncio.create_task(executor.run())
        await patience.settled()
        await story(connector)
        executor.stop()
        await asyncio.wait_for(task, patience.SECONDS)

    asyncio.run(run())


def claimed_before(house: House) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("who is gone", MINUTE, 1))
    done(house.plane.release_claims())


def test_an_operator_is_asked_where_nobody_knows_and_may_have_it_repeated(house: House) -> None:
    claimed_before(house)

    async def story(connector: Scripted) -> None:
        await patience.settled()
        operation = house.operation("1.1")
        assert (operation.status, operation.lease_until) == (EventStatus.STARTED, None)
        assert "nobody knows" in operation.outcome_unknown
        await passes(house, LEASE)
        assert connector.asked == [("check", "1.1", 2)]
        connector.earlier = Found.NOT_DONE
        done(house.plane.resolve(["1.1"], Verdict.REPEAT, "ann"))
        await patience.settled()
        assert connector.asked[1:] == [("check", "1.1", 3), ("perform", "1.1", 3)]
        assert house.operation("1.1").repeat_after == 2
        connector.outcomes["1.1"].set_result(Outcome(succeeded=True))
        await patience.settled()
        assert house.operation("1.1").status is EventStatus.COMPLETED

    play_with(house, Found.UNKNOWN, story)


def test_what_nobody_knows_is_repeated_where_the_settings_say_so(house: House) -> None:
    claimed_before(house)

    async def story(connector: Scripted) -> None:
        await patience.settled()
        assert connector.asked == [("check", "1.1", 2), ("perform", "1.1", 2)]
        for _ in range(MAX_REPEATS):
            assert house.operation("1.1").status is EventStatus.STARTED
            connector.outcomes["1.1"].set_result(Found.UNKNOWN)
            await patience.settled()
        assert house.operation("1.1").status is EventStatus.FAILED
        assert "nobody knows" in house.operation("1.1").outcome

    play_with(house, Found.UNKNOWN, story, "repeat")


def test_what_nobody_knows_has_failed_where_the_settings_say_so(house: House) -> None:
    claimed_before(house)

    async def story(connector: Scripted) -> None:
        await patience.settled()
        assert connector.asked == [("check", "1.1", 2), ("forget", "1.1", 2)]
        assert house.operation("1.1").status is EventStatus.FAILED
        assert "nobody knows" in house.operation("1.1").outcome

    play_with(house, Found.UNKNOWN, story, "fail")


def unknown_to_another(house: House) -> None:
    """Let another replica report a task as unknown that this one had claimed before."""
    (task,) = done(house.plane.claim("there", MINUTE, 1))
    done(house.plane.report_unknown("1.1", task.attempt, "nobody knows"))


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_replica_that_comes_back_tells_the_outcome_that_it_alone_knows(
    house: House, *, succeeded: bool
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("here", MINUTE, 1))
    house.clock.advance(2 * MINUTE)
    unknown_to_another(house)

    async def story(connector: Scripted) -> None:
        assert connector.asked == [("check", "1.1", 2), ("forget", "1.1", 2)]
        ended = house.operation("1.1")
        assert ended.status is (EventStatus.COMPLETED if succeeded else EventStatus.FAILED)
        assert (ended.outcome, ended.outcome_unknown) == ("all of it", "")

    play_with(house, Outcome(succeeded=succeeded, message="all of it"), story)


def test_a_replica_that_was_cut_off_tells_the_outcome_as_soon_as_it_hears_of_the_doubt(
    house: House,
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("here", MINUTE, 1))
    house.clock.advance(2 * MINUTE)
    done(house.plane.claim("there", MINUTE, 1))

    async def story(connector: Scripted) -> None:
        await patience.settled()
        assert connector.asked == []
        done(house.plane.report_unknown("1.1", 2, "nobody knows"))
        await patience.settled()
        assert house.operation("1.1").status is EventStatus.COMPLETED

    play_with(house, Outcome(succeeded=True), story)


class Interrupted(Counting):
    """A store that is away for one transaction."""

    fails_in = 0

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        self.fails_in -= 1
        self.away = self.fails_in == 0
        with super().write() as transaction:
            yield transaction


def test_an_outcome_is_looked_for_again_after_the_store_was_away(house: House) -> None:
    store = house.store = Interrupted(house.store)
    house.restart()
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("here", MINUTE, 1))
    house.clock.advance(2 * MINUTE)
    done(house.plane.claim("there", MINUTE, 1))

    async def story(_: Scripted) -> None:
        done(house.plane.report_unknown("1.1", 2, "nobody knows"))
        store.fails_in = 2  # it claims before it looks
        await patience.settled()
        assert (store.refused, house.operation("1.1").status) == (1, EventStatus.STARTED)
        await passes(house, AFTER_TROUBLE)
        assert house.operation("1.1").status is EventStatus.COMPLETED

    play_with(house, Outcome(succeeded=True), story)


def test_a_doubt_that_is_heard_of_together_with_a_start_is_looked_at_too(house: House) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("here", MINUTE, 1))
    house.clock.advance(2 * MINUTE)

    async def run() -> None:
        connector = Scripted()
        connector.earlier = Outcome(succeeded=True)
        executor = Executor(house.plane, connector, house.clock, "here", replicas=lambda: 9)
        done(house.plane.claim("there", MINUTE, 1))
        task = asyncio.create_task(executor.run())
        await patience.settled()
        done(house.plane.report_unknown("1.1", 2, "nobody knows"))
        house.ask(REBOOT, "bastion", no_notice=True)
        executor.learn(Changes(operations=(house.operation("2.1"), house.operation("1.1"))))
        await patience.settled()
        assert house.operation("1.1").status is EventStatus.COMPLETED
        executor.stop()
        await task

    asyncio.run(run())


@pytest.mark.parametrize("found", [Found.UNKNOWN, Found.NOT_DONE])
def test_a_replica_that_knows_no_outcome_either_leaves_the_doubt_to_an_operator(
    house: House, found: Found
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("here", MINUTE, 1))
    house.clock.advance(2 * MINUTE)
    unknown_to_another(house)

    async def story(connector: Scripted) -> None:
        assert connector.asked == [("check", "1.1", 2)]
        assert house.operation("1.1").outcome_unknown == "nobody knows"

    play_with(house, found, story)


def test_nobody_looks_for_what_it_reported_or_never_claimed(house: House) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("elsewhere", MINUTE, 1))
    house.clock.advance(2 * MINUTE)
    unknown_to_another(house)
    assert done(house.plane.unknown_tasks("there")) == ()
    assert done(house.plane.unknown_tasks("here")) == ()
    (task,) = done(house.plane.unknown_tasks("elsewhere"))
    assert (task.attempt, task.claimed_elsewhere) == (2, ("there",))


async def test_an_act_whose_bearer_is_lost_on_the_way_is_doubtful_too(
    house: House, connector: Acting
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    await patience.settled()
    connector.outcomes["1.1"].set_result(Found.UNKNOWN)
    await patience.settled()
    assert house.operation("1.1").outcome_unknown


async def test_an_outcomes_hosts_become_the_machines_own(house: House, connector: Acting) -> None:
    house.ask(EventType.REDEPLOY, "web-0", "web-3", no_notice=True)
    await patience.settled()
    hosts = {"WEB-0": "h7", "web-1": "h9"}
    connector.outcomes["1.1"].set_result(Outcome(succeeded=True, hosts=hosts))
    await patience.settled()
    with house.store.read() as reading:
        machines = reading.machines(["web-0", "web-1", "web-3"])
    assert [machine.host for machine in machines.values()] == ["h7", "h1", ""]
    assert "web-1:" in house.operation("1.1").outcome


@pytest.mark.parametrize(
    ("asked", "target"),
    [
        ({"machines": ("web-0",)}, TargetKind.MACHINES),
        ({"scope": "web"}, TargetKind.SCOPE),
        ({"host": "h0"}, TargetKind.HOST),
    ],
)
async def test_a_task_tells_what_was_asked_for_and_how(
    house: House, connector: Acting, asked: dict[str, Any], target: TargetKind
) -> None:
    request = planner.Request(
        event_type=EventType.FREEZE, live_migration=True, no_notice=True, **asked
    )
    done(house.plane.request(request))
    await patience.settled()
    for task in connector.tasks:
        assert (task.target, task.live_migration) == (target, True)
        assert task.description == planner.LIVE_MIGRATION
        assert task.unforeseen
        with house.store.read() as reading:
            known = reading.machines([name.lower() for name in task.machines])
        assert task.vm_ids == tuple(known[name.lower()].vm_id for name in task.machines)
    assert connector.tasks
    connector.outcomes["1.1"].set_result(Outcome(succeeded=True))
    await patience.settled()
    with house.store.read() as reading:
        assert reading.machines(["web-0"])["web-0"].host == ""


def test_what_is_left_of_acts_that_are_over_is_swept_before_any_other(house: House) -> None:
    claimed_before(house)
    house.ask(REBOOT, "web-1")

    async def story(connector: Scripted) -> None:
        await patience.settled()
        assert [set(live) for live in connector.swept] == [{"1.1"}]
        assert connector.asked

    play_with(house, Found.NOT_DONE, story)


def test_stopping_leaves_acts_under_way_to_who_comes_next(house: House) -> None:
    async def story(connector: Scripted) -> None:
        house.ask(REBOOT, "web-0", no_notice=True)
        await patience.settled()
        assert connector.asked

    play(house, story)
    assert house.operation("1.1").status is EventStatus.STARTED
    assert house.operation("1.1").attempt == 1


async def test_an_outcome_of_a_lost_claim_is_not_recorded(house: House, connector: Acting) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    await patience.settled()
    done(house.plane.release_claims())
    done(house.plane.claim("another", timedelta(hours=1), 1))
    connector.outcomes["1.1"].set_result(Outcome(succeeded=False))
    await patience.settled()
    assert house.operation("1.1").status is EventStatus.STARTED
    assert house.operation("1.1").attempt == 2


def test_old_history_is_purged_as_time_goes_by(house: House) -> None:
    house.ask(REBOOT, "web-0")
    done(house.plane.cancel(["1"], reason=""))

    async def story(_: Scripted) -> None:
        await passes(house, timedelta(days=91))
        with house.store.read() as reading:
            assert reading.operations(["1.1"]) == {}

    play(house, story)


def test_a_simulated_act_lasts_its_duration_from_its_start(house: House) -> None:
    async def run() -> None:
        connector = SimulatedConnector(house.clock, {EventType.FREEZE: timedelta(seconds=5)})
        freeze, reboot = act(EventType.FREEZE), act(REBOOT)
        house.clock.advance(2 * SECOND)
        frozen = asyncio.create_task(connector.perform(freeze))
        rebooted = asyncio.create_task(connector.perform(reboot))
        await patience.settled()
        assert await connector.check(freeze) is Found.NOT_DONE
        await passes(house, 2 * SECOND)
        assert not frozen.done()
        await passes(house, SECOND)
        assert await frozen == Outcome(succeeded=True)
        assert await connector.check(freeze) == Outcome(succeeded=True)
        assert not rebooted.done()
        await passes(house, DURATIONS[REBOOT])
        assert await rebooted == Outcome(succeeded=True)

    asyncio.run(run())


def act(event_type: EventType) -> Task:
    return Task(
        operation="1.1",
        attempt=1,
        event_type=event_type,
        source=EventSource.PLATFORM,
        machines=("web-0",),
        hosts=("h0",),
        vm_ids=("id-of-web-0",),
        target=TargetKind.MACHINES,
        live_migration=False,
        description="",
        duration_seconds=-1,
        started_at=NOW,
    )


def test_thousands_that_are_due_at_once_all_start(house: House) -> None:
    count = 2500
    machines = tuple(fleet_file.StandaloneMachine(name=f"m{n}") for n in range(count))
    done(house.plane.apply_fleet(fleet_file.Fleet(machine=machines)))
    request = planner.Request(event_type=REBOOT, machines=tuple(m.name for m in machines))
    done(house.plane.request(request))

    async def story(connector: Scripted) -> None:
        await passes(house, 15 * MINUTE)
        assert len(connector.asked) == count

    play(house, story)
