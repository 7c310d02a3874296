"""What a rollout says of itself after each step and order: reasons, times, refusals' facts."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import rollout as deciding
from forewarn.maintenance import rollout_model, rollout_plan
from forewarn.maintenance.model import Drain, DrainGuest, HostState, Refused, Way
from forewarn.maintenance.rollout import (
    Ask,
    Done,
    Footprint,
    Obstacle,
    RolloutOrderKind,
    Stop,
    UnitNews,
    Wait,
)
from forewarn.maintenance.rollout_model import (
    CONFIRM,
    Rollout,
    RolloutPolicy,
    RolloutState,
    RolloutTask,
    RolloutUnit,
    UnitState,
)
from forewarn.maintenance.time_windows import Span
from forewarn.vocabulary import ErrorCode, EventStatus, EventType, TargetKind
from rollout_world import ALWAYS, FAILED, HOUR, OPENS, RUNNING, World, rollout, windowed

NOTHING = UnitNews(maintenances={}, operations={}, drains={})


def refused(order: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as found:
        order()
    return found.value


# Orders.


def test_a_pause_and_a_stop_tell_who_ordered_them_and_when() -> None:
    for kind, state in (
        (RolloutOrderKind.PAUSE, RolloutState.PAUSED),
        (RolloutOrderKind.STOP, RolloutState.STOPPED),
    ):
        world = World(rollout())
        world.now += HOUR
        world.order(kind)
        assert world.rollout.state is state
        assert "bob" in world.rollout.reason
        assert (world.rollout.changed_by, world.rollout.changed_at) == ("bob", NOW + HOUR)


def test_an_order_that_leaves_the_state_leaves_its_time() -> None:
    world = World(rollout())
    world.now += HOUR
    world.order(RolloutOrderKind.SKIP, "h1")
    assert (world.rollout.changed_by, world.rollout.changed_at) == ("bob", NOW)
    unit = world.unit("h1")
    assert "bob" in unit.reason
    assert unit.changed_at == NOW + HOUR


def test_a_unit_that_is_retried_is_as_new() -> None:
    world = World(rollout("h0"))
    failed = RolloutUnit(
        name="h0",
        kind=TargetKind.HOST,
        state=FAILED,
        reason="no power",
        accepted=True,
        recalled=True,
        retry_at=NOW,
        changed_at=NOW,
    )
    world.rollout = msgspec.structs.replace(world.rollout, units=(failed,))
    world.now += HOUR
    world.order(RolloutOrderKind.RETRY, "h0")
    assert world.unit("h0") == RolloutUnit(name="h0", kind=TargetKind.HOST, changed_at=world.now)


def test_a_unit_that_was_asked_for_is_under_way_and_nothing_else() -> None:
    waiting = RolloutUnit(
        name="h0", kind=TargetKind.HOST, reason="blocked", recalled=True, retry_at=NOW
    )
    of = msgspec.structs.replace(rollout(), units=(waiting,))
    (unit,) = deciding.asked(of, 0, 7, NOW).units
    assert unit == RolloutUnit(
        name="h0", kind=TargetKind.HOST, state=RUNNING, maintenance=7, changed_at=NOW
    )


def test_a_resumed_rollout_has_no_reason_any_more() -> None:
    world = World(rollout())
    world.order(RolloutOrderKind.PAUSE)
    world.order(RolloutOrderKind.RESUME)
    assert world.rollout.reason == ""
    world = World(rollout("h0", "h1", waves={"h1": 1}, pause_seconds=600))
    world.asked()
    world.end("h0")
    step = world.step()
    assert isinstance(step, Wait)
    assert "wave 2" in step.why
    assert world.rollout.reason == step.why
    assert world.rollout.confirmed is False
    world.order(RolloutOrderKind.RESUME)
    assert world.rollout.reason == ""


def test_a_refused_order_names_the_rollout_and_the_unit() -> None:
    world = World(rollout("h0", "h1"))
    world.asked()
    skip, retry = RolloutOrderKind.SKIP, RolloutOrderKind.RETRY
    for kind, unit in ((skip, "h0"), (retry, "h1"), (skip, "h9")):
        assert refused(partial(world.order, kind, unit)).facts == {"rollout": 1, "unit": unit}
    running = refused(lambda: world.order(skip, "h0"))
    assert "maintenance 1" in running.message
    assert refused(lambda: world.order(RolloutOrderKind.RESUME)).facts == {"rollout": 1}
    world.order(RolloutOrderKind.STOP)
    assert refused(lambda: world.order(skip, "h1")).facts == {"rollout": 1}


# Steps.


def test_a_halt_says_what_failed_and_since_when() -> None:
    world = World(rollout())
    world.asked()
    world.end("h0", FAILED, "no power")
    world.now += HOUR
    step = world.step()
    assert isinstance(step, Stop)
    assert "no power" in world.rollout.reason
    assert world.rollout.changed_at == NOW + HOUR
    waits = world.step()
    assert isinstance(waits, Wait)
    assert waits.why == world.rollout.reason


def test_a_rollout_that_is_done_says_since_when_and_no_reason() -> None:
    world = World(rollout("h0", "h1", waves={"h1": 1}, pause_seconds=CONFIRM))
    world.asked()
    world.end("h0")
    step = world.step()
    assert isinstance(step, Wait)
    assert "wave 2" in step.why
    world.order(RolloutOrderKind.SKIP, "h1")
    world.now += HOUR
    assert isinstance(world.step(), Done)
    assert (world.rollout.reason, world.rollout.changed_at) == ("", NOW + HOUR)


def test_what_is_asked_for_ends_the_reason_of_the_wait() -> None:
    world = windowed()
    step = world.step()
    assert isinstance(step, Wait)
    assert step.why
    assert world.rollout.reason == step.why
    assert step.until is not None
    world.now = step.until
    assert isinstance(world.step(), Ask)
    assert world.rollout.reason == ""


def test_a_wait_for_units_has_no_reason_and_one_for_others_has() -> None:
    world = World(rollout("h0", "h1", at_once="2"), h0={"web": 0}, h1={"web": 1})
    world.asked()
    step = world.step()
    assert isinstance(step, Wait)
    assert (step.obstacle, step.why) == (Obstacle.UPDATE_DOMAIN, "")


def test_units_without_machines_are_left_out_with_a_reason_and_the_next_step_follows_at_once() -> (
    None
):
    nothing = Footprint(machines=(), domains={})
    of, step = deciding.step(rollout("h0"), lambda unit: nothing, lambda unit, takes: "", NOW)
    assert step == Wait(obstacle=Obstacle.UNITS, until=NOW)
    (unit,) = of.units
    assert (unit.state, unit.changed_at) == (UnitState.SKIPPED, NOW)
    assert unit.reason
    partly = RolloutUnit(name="h0", kind=TargetKind.HOST, done=("web-0",))
    of = msgspec.structs.replace(rollout(), units=(partly,))
    of, _ = deciding.step(of, lambda unit: nothing, lambda unit, takes: "", NOW)
    assert (of.units[0].state, of.units[0].reason) == (UnitState.DONE, "")


def test_a_notice_that_ends_with_the_window_is_too_long() -> None:
    world = windowed()
    world.now = OPENS + 45 * MINUTE - SECOND
    assert world.waits() is Obstacle.WINDOW
    world.now -= SECOND
    assert world.asked() == ["h0"]


def test_without_a_window_that_is_long_enough_it_looks_again_a_day_later() -> None:
    step = World(rollout(windows=("daily 22:00-22:10",), cutoff_seconds=3600)).step()
    assert isinstance(step, Wait)
    assert step.until == NOW + timedelta(days=1)


# What is asked for.


@pytest.mark.parametrize(
    ("event_type", "minutes"),
    [
        (EventType.FREEZE, 15),
        (EventType.REBOOT, 15),
        (EventType.REDEPLOY, 10),
        (EventType.TERMINATE, 15),
    ],
)
def test_the_notice_is_that_of_the_type(event_type: EventType, minutes: int) -> None:
    task = RolloutTask(event_type=event_type)
    of = msgspec.structs.replace(rollout(), task=task)
    assert deciding.notice_of(of) == minutes * MINUTE


def test_what_is_asked_for_carries_the_whole_task() -> None:
    task = RolloutTask(
        event_type=EventType.FREEZE,
        duration_seconds=7,
        description="firmware",
        without_notice=True,
    )
    until = NOW + 9 * HOUR
    of = msgspec.structs.replace(rollout(approval_until=until), task=task)
    takes = Footprint(machines=("web-0",), domains={})
    asked = deciding.request(of, of.units[0], takes, Span(NOW, until + HOUR), NOW)
    assert asked.event_type is EventType.FREEZE
    assert (asked.duration_seconds, asked.description) == (7, "firmware")
    assert (asked.without_notice, asked.requested_by) == (True, "ann")
    assert (asked.approval_until, asked.opens_at) == (until, None)


def test_only_a_policy_that_says_so_asks_for_a_later_start() -> None:
    of = rollout()
    takes = Footprint(machines=("web-0",), domains={})
    assert deciding.request(of, of.units[0], takes, ALWAYS, NOW).not_before is None
    window = Span(NOW + 5 * HOUR, NOW + 6 * HOUR)
    early = rollout(notice_seconds=1)
    assert deciding.request(early, of.units[0], takes, window, NOW).not_before is None


def test_of_all_units_the_rest_is_one_at_least() -> None:
    assert [rollout_model.amount("rest", units) for units in (0, 1, 5)] == [1, 1, 5]


# What is in the way.


def test_live_operations_of_its_machines_and_of_other_domains_are_in_the_way() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    live = list(bench.snapshot.operations.values())
    unit = RolloutUnit(name="x", kind=TargetKind.MACHINES)

    def in_the_way(*machines: str, **domains: int) -> str:
        takes = Footprint(machines=machines, domains=domains)
        return deciding.in_the_way(unit, takes, live)

    assert "1.1" in in_the_way("WEB-0", web=0)
    assert "1.1" in in_the_way("web-1", web=1)
    assert in_the_way("web-3", web=0) == ""
    assert in_the_way("batch_0", batch=0) == ""
    over = [msgspec.structs.replace(one, status=EventStatus.COMPLETED) for one in live]
    assert deciding.in_the_way(unit, Footprint(machines=("web-0",), domains={}), over) == ""


def drained(host: str, state: HostState, **guests: str) -> Drain:
    return Drain(
        host=host,
        state=state,
        reboot=True,
        guests=tuple(
            DrainGuest(name=name, vm_id=name, way=Way.LIVE, to_host=to)
            for name, to in guests.items()
        ),
        requested_at=NOW,
        changed_at=NOW,
    )


@pytest.mark.parametrize("state", [HostState.DRAINING, HostState.REBOOTING, HostState.RETURNING])
def test_a_host_waits_for_drains_whose_machines_it_has_or_will_have(state: HostState) -> None:
    unit = RolloutUnit(name="h2", kind=TargetKind.HOST, drain=True)
    takes = Footprint(machines=("own", "Guest"), domains={})
    coming = drained("h1", state, other="h2")
    there = drained("h1", state, guest="h3")
    elsewhere = drained("h1", state, other="h3")
    itself = drained("h2", state, own="h3")
    assert "h1" in deciding.in_the_way(unit, takes, (), [coming])
    assert "h1" in deciding.in_the_way(unit, takes, (), [elsewhere, there])
    assert deciding.in_the_way(unit, takes, (), [elsewhere, itself]) == ""
    ended = [drained("h1", end, guest="h2") for end in (HostState.UP, HostState.STUCK)]
    assert deciding.in_the_way(unit, takes, (), ended) == ""
    stopped = RolloutUnit(name="h2", kind=TargetKind.HOST)
    assert deciding.in_the_way(stopped, takes, (), [coming]) == ""


def test_the_hosts_that_have_their_turn_soon_are_those_next_in_order() -> None:
    names = [f"h{n}" for n in range(8)]
    units = tuple(RolloutUnit(name=name, kind=TargetKind.HOST, drain=True) for name in names)
    units = (msgspec.structs.replace(units[0], state=UnitState.RUNNING), *units[1:])
    of = msgspec.structs.replace(rollout(*names, at_once="2"), units=units)
    assert rollout_plan.drained_soon(of, units[1]) == ("h2", "h3", "h4", "h5")
    stopped = msgspec.structs.replace(of, units=())
    assert rollout_plan.drained_soon(stopped, units[1]) == ()


def test_the_place_of_a_fault_domain_is_the_scopes_own() -> None:
    machine = Bench().snapshot.machines["web-0"]
    takes = deciding.footprint([machine], "fault-domain")
    assert takes.places == {f"web/{machine.fault_domain}"}
    assert deciding.footprint([machine], "").places == frozenset()


# What became of units.


def test_what_has_not_changed_is_the_same_value() -> None:
    of = rollout()
    assert deciding.follow(of, NOTHING, NOW) is of


def test_each_unit_under_way_is_followed() -> None:
    waiting, running = (
        RolloutUnit(name=name, kind=TargetKind.HOST, drain=True, state=state)
        for name, state in (("h0", UnitState.WAITING), ("h1", RUNNING))
    )
    of = msgspec.structs.replace(rollout(), units=(waiting, running))
    assert [unit.state for unit in deciding.follow(of, NOTHING, NOW).units] == [
        UnitState.WAITING,
        FAILED,
    ]


@pytest.mark.parametrize(
    ("drain", "told"),
    [
        ({"state": HostState.DRAINING, "reason": "web-0 moves"}, "draining: web-0 moves"),
        ({"state": HostState.DRAINING}, "draining"),
        ({"state": HostState.UP, "reboot_asked_at": NOW}, ""),
    ],
)
def test_a_unit_tells_what_the_drain_of_its_host_says(drain: dict[str, Any], told: str) -> None:
    unit = RolloutUnit(
        name="h0", kind=TargetKind.HOST, drain=True, state=RUNNING, reason="as before"
    )
    of = msgspec.structs.replace(rollout(), units=(unit,))
    drains = {"h0": Drain(host="h0", requested_at=NOW, changed_at=NOW, **drain)}
    news = UnitNews(maintenances={}, operations={}, drains=drains)
    assert deciding.follow(of, news, NOW).units[0].reason == told


def test_a_unit_that_ended_well_has_no_reason() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    unit = RolloutUnit(
        name="web-0", kind=TargetKind.MACHINES, state=RUNNING, maintenance=1, reason="slow"
    )
    of = msgspec.structs.replace(rollout(), units=(unit,))

    def reason() -> str:
        operations = {1: list(bench.snapshot.operations.values())}
        maintenances = bench.snapshot.maintenances
        news = UnitNews(maintenances=maintenances, operations=operations, drains={})
        return deciding.follow(of, news, bench.now).units[0].reason

    assert reason() == ""
    bench.let_pass(15 * MINUTE)
    bench.finish("1.1")
    assert reason() == ""


# Policies and requests.


@pytest.mark.parametrize(
    ("policy", "where"),
    [
        ({"zone": "Mars/Olympus"}, "policy.zone"),
        ({"windows": ("some day",)}, "policy.windows"),
        ({"at_once": "rest"}, "policy.at_once"),
        ({"blackouts": (Span(NOW, NOW),)}, "policy.blackouts"),
    ],
)
def test_a_refused_policy_says_where(policy: dict[str, Any], where: str) -> None:
    refusal = refused(lambda: deciding.check_policy(RolloutPolicy(**policy)))
    assert (refusal.code, refusal.facts) == (ErrorCode.INVALID, {"where": where})


def keyed(of: Rollout, key: str, **more: Any) -> Rollout:
    return msgspec.structs.replace(of, idempotency_key=key, **more)


def test_a_request_that_is_sent_again_means_the_same_rollout_and_another_is_refused() -> None:
    known = keyed(rollout("h0", "h1"), "k")
    assert deciding.granted(keyed(rollout("h1", "h0"), "k"), [rollout(), known]) is known
    assert deciding.granted(keyed(rollout("h0", "h1"), "other"), [known]) is None
    assert deciding.granted(rollout(), [rollout()]) is None
    task = RolloutTask(event_type=EventType.FREEZE)
    for wanted in (rollout("h0"), rollout("h0", "h1", at_once="2")):
        refusal = refused(partial(deciding.granted, keyed(wanted, "k"), [known]))
        assert (refusal.code, refusal.facts) == (ErrorCode.CONFLICT, {"rollout": 1})
    other = keyed(rollout("h0", "h1"), "k", task=task)
    assert refused(lambda: deciding.granted(other, [known])).code is ErrorCode.CONFLICT
