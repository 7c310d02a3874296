"""The order of a rollout's units, and how it will go."""

from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW
from forewarn.maintenance import rollout_forecast
from forewarn.maintenance.model import Drain, HostState
from forewarn.maintenance.rollout import SEVERAL, Footprint, Obstacle
from forewarn.maintenance.rollout_model import (
    CONFIRM,
    CheckProgress,
    Rollout,
    RolloutOrder,
    RolloutPolicy,
    RolloutState,
    RolloutTask,
    RolloutUnit,
    UnitState,
)
from forewarn.vocabulary import EventType, TargetKind

Takes = dict[str, Footprint]


def made(takes: Takes, *, seconds: int = 600, drain: bool = False, **policy: Any) -> Rollout:
    rules = RolloutPolicy(**policy)
    units = [RolloutUnit(name=name, kind=TargetKind.HOST, drain=drain) for name in takes]
    return Rollout(
        number=1,
        task=RolloutTask(event_type=EventType.REBOOT, duration_seconds=seconds),
        policy=rules,
        units=rollout_forecast.arranged(units, lambda unit: takes[unit.key], rules),
        requested_at=NOW,
        changed_at=NOW,
    )


def hosts(count: int, domains: int = 0) -> Takes:
    """Hosts with one machine each: of one scope with so many domains, or each of its own."""
    return {
        f"h{n}": Footprint(
            machines=(f"m{n}",), domains={"web": n % domains} if domains else {f"m{n}": 0}
        )
        for n in range(count)
    }


def large(chance: Random, count: int = 1000) -> Takes:
    """Hosts in 20 racks with ten machines each; a scope's domain is its host's rack."""
    takes: Takes = {}
    for number in range(count):
        rack = number % 20
        scopes = {f"s{chance.randrange(400)}": rack % 5 for _ in range(10)}
        names = tuple(f"m{number}-{n}" for n in range(10))
        takes[f"h{number}"] = Footprint(machines=names, domains=scopes)
    return takes


def test_units_that_take_the_same_domains_go_together() -> None:
    takes = hosts(30, domains=3)
    forecast = rollout_forecast.forecast(made(takes, at_once="100%"), takes, NOW)
    assert forecast.rounds == 3
    assert (forecast.units, forecast.machines) == (30, 30)
    assert forecast.earliest_end == NOW + 3 * 10 * MINUTE
    assert forecast.latest_end == NOW + 3 * 25 * MINUTE
    assert forecast.limited_by == (Obstacle.UPDATE_DOMAIN,)


def test_a_single_unit_waits_for_nothing() -> None:
    takes = hosts(1)
    forecast = rollout_forecast.forecast(made(takes), takes, NOW)
    assert forecast.latest_end == NOW + 25 * MINUTE
    assert forecast.limited_by == ()
    assert forecast.notes == ()


def test_the_order_is_as_given_where_that_is_asked_for() -> None:
    takes = hosts(9, domains=3)
    listed = made(takes, order=RolloutOrder.LISTED)
    assert [unit.name for unit in listed.units] == list(takes)
    tightest = made(takes)
    assert [unit.name for unit in tightest.units] == [
        f"h{n}" for first in range(3) for n in range(first, 9, 3)
    ]


def test_units_are_dealt_to_waves_by_number_and_by_part() -> None:
    takes = hosts(20)
    waves = [unit.wave for unit in made(takes, waves=("1", "10%", "rest")).units]
    assert waves == [0] + [1] * 2 + [2] * 17
    assert [u.wave for u in made(takes, waves=("5",)).units] == [0] * 5 + [1] * 15
    assert [u.wave for u in made(takes, waves=("100%", "5")).units] == [0] * 20


def test_a_plan_counts_the_pauses_between_waves() -> None:
    takes = hosts(4)
    rollout = made(takes, waves=("1", "rest"), at_once="4", pause_seconds=3600)
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    assert [wave.number for wave in forecast.waves] == [1, 2]
    assert [len(wave.units) for wave in forecast.waves] == [1, 3]
    assert forecast.earliest_end == NOW + timedelta(hours=1) + 20 * MINUTE
    assert forecast.limited_by[0] is Obstacle.PAUSE


def test_a_plan_counts_the_checks_after_units() -> None:
    takes = hosts(3)
    rollout = made(takes, check="smoke", check_within_seconds=120)
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    assert forecast.earliest_end == NOW + 30 * MINUTE
    assert forecast.latest_end == NOW + 3 * (25 + 2) * MINUTE
    assert Obstacle.CHECK in forecast.limited_by
    several = made(takes, at_once="2", check="smoke", check_within_seconds=120)
    forecast = rollout_forecast.forecast(several, takes, NOW)
    assert forecast.latest_end == NOW + 2 * (25 + 2) * MINUTE


def test_a_check_that_outlasts_other_units_does_not_turn_the_plan_back() -> None:
    takes = hosts(4)
    rollout = made(takes, at_once="2", check="smoke", check_within_seconds=3600, seconds=60)
    first = msgspec.structs.replace(
        rollout.units[0], state=UnitState.RUNNING, changed_at=NOW - 15 * MINUTE
    )
    under_way = msgspec.structs.replace(rollout, units=(first, *rollout.units[1:]))
    forecast = rollout_forecast.forecast(under_way, takes, NOW)
    # h0 ends, and is checked for an hour, in which h1 ends, which is checked too; then two more.
    assert forecast.latest_end == NOW + MINUTE + 2 * timedelta(hours=1) + 16 * MINUTE + timedelta(
        hours=1
    )


def test_a_plan_of_what_is_halted_tells_how_it_goes_on_once_it_is_resumed() -> None:
    takes = hosts(2)
    rollout = made(takes, check="smoke", check_tries=1)
    failed = msgspec.structs.replace(rollout.units[0], state=UnitState.FAILED)
    progress = CheckProgress(due=True, failed=1, run=1, began_at=NOW)
    halted = msgspec.structs.replace(
        rollout,
        units=(failed, rollout.units[1]),
        state=RolloutState.HALTED,
        check=progress,
    )
    forecast = rollout_forecast.forecast(halted, takes, NOW)
    assert forecast.earliest_end == NOW + 10 * MINUTE
    assert forecast.units == 1


def test_a_plan_counts_how_long_guests_have_to_approve() -> None:
    takes = hosts(2)
    until = NOW + timedelta(hours=48)
    rollout = made(takes, at_once="2", approval_until=until)
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    assert forecast.earliest_end == NOW + 10 * MINUTE
    assert forecast.latest_end == until + 10 * MINUTE


def test_a_plan_tells_that_a_wave_has_to_be_confirmed() -> None:
    takes = hosts(4)
    rollout = made(takes, waves=("1", "rest"), at_once="4", pause_seconds=CONFIRM)
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    assert Obstacle.CONFIRMATION in forecast.limited_by
    assert forecast.latest_end == NOW + 50 * MINUTE


def test_a_plan_goes_on_in_the_next_window() -> None:
    takes = hosts(10)
    rollout = made(takes, windows=("daily 22:00-23:00",), seconds=1200)
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    starts = [unit.earliest_start for wave in forecast.waves for unit in wave.units]
    assert {start.hour for start in starts} == {22}
    assert len({start.date() for start in starts}) > 1
    assert forecast.limited_by[0] is Obstacle.WINDOW


def test_a_plan_that_cannot_end_says_so() -> None:
    takes = hosts(2)
    rollout = made(takes, windows=("daily 22:00-22:10",), cutoff_seconds=3600)
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    assert forecast.latest_end is None
    assert forecast.units == 0


def test_units_without_machines_are_named() -> None:
    takes = hosts(2) | {"h9": Footprint(machines=(), domains={})}
    forecast = rollout_forecast.forecast(made(takes), takes, NOW)
    assert forecast.without_machines == ("h9",)
    assert forecast.units == 2


def test_a_plan_begins_where_a_rollout_is() -> None:
    takes = hosts(3)
    rollout = made(takes)
    first, second, third = rollout.units
    states = (UnitState.DONE, UnitState.RUNNING, UnitState.WAITING)
    units = tuple(
        msgspec.structs.replace(unit, state=state)
        for unit, state in zip((first, second, third), states, strict=True)
    )
    under_way = msgspec.structs.replace(rollout, units=units)
    forecast = rollout_forecast.forecast(under_way, takes, NOW)
    assert forecast.units == 2
    assert forecast.earliest_end == NOW + 20 * MINUTE


def test_a_plan_counts_the_notices_of_machines_that_leave_and_come_home() -> None:
    takes = hosts(4, domains=4)
    forecast = rollout_forecast.forecast(made(takes, drain=True, at_once="2"), takes, NOW)
    assert forecast.earliest_end == NOW + 4 * (1 + 10 + 1) * MINUTE
    assert forecast.latest_end == NOW + 4 * (16 + 10 + 16) * MINUTE
    assert (forecast.drained, forecast.most_at_once) == (4, 1)
    assert len(forecast.notes) == 3
    assert forecast.limited_by == (Obstacle.UPDATE_DOMAIN,)
    stopped = rollout_forecast.forecast(made(hosts(4), at_once="2"), hosts(4), NOW)
    assert (stopped.drained, stopped.most_at_once) == (0, 2)


def test_a_plan_counts_the_notice_of_each_update_domain_of_a_unit() -> None:
    takes = {"h0": Footprint(machines=("a", "b", "c"), domains={"web": SEVERAL}, turns=3)}
    drained = rollout_forecast.forecast(made(takes, drain=True), takes, NOW)
    assert drained.latest_end == NOW + (3 * 16 + 10 + 3 * 16) * MINUTE
    rolling = rollout_forecast.forecast(made(takes), takes, NOW)
    assert rolling.earliest_end == NOW + 3 * 10 * MINUTE
    assert rolling.latest_end == NOW + 3 * 25 * MINUTE


def test_update_domains_that_a_window_cuts_off_have_their_turn_in_the_next_one() -> None:
    takes = {"h0": Footprint(machines=("a", "b", "c"), domains={"web": SEVERAL}, turns=3)}
    rollout = made(takes, windows=("daily 22:00-22:40",))
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    night = NOW + timedelta(hours=10)
    # Two of them at 22:00 and 22:25; the third would be at 22:50.
    assert forecast.latest_end == night + timedelta(days=1) + 10 * MINUTE
    assert forecast.earliest_end == night + 30 * MINUTE


def test_a_plan_of_a_drain_that_is_under_way_counts_what_is_left_of_it() -> None:
    takes = hosts(1)
    rollout = made(takes, drain=True)
    unit = msgspec.structs.replace(rollout.units[0], state=UnitState.RUNNING)
    rollout = msgspec.structs.replace(rollout, units=(unit,))

    def ends(state: HostState, minutes: int) -> tuple[timedelta, timedelta]:
        since = NOW - minutes * MINUTE
        drain = Drain(host="h0", state=state, requested_at=since, changed_at=since)
        forecast = rollout_forecast.forecast(rollout, takes, NOW, {"h0": drain})
        assert forecast.earliest_end is not None
        assert forecast.latest_end is not None
        return forecast.earliest_end - NOW, forecast.latest_end - NOW

    assert ends(HostState.WAITING, 7) == (12 * MINUTE, 42 * MINUTE)
    assert ends(HostState.DRAINING, 7) == (12 * MINUTE, 35 * MINUTE)
    assert ends(HostState.REBOOTING, 7) == (4 * MINUTE, 19 * MINUTE)
    assert ends(HostState.REBOOTING, 70) == (1 * MINUTE, 16 * MINUTE)
    assert ends(HostState.RETURNING, 7) == (1 * MINUTE, 9 * MINUTE)


def test_where_machines_can_only_move_to_hosts_of_the_rollout_these_wait_for_them() -> None:
    takes = hosts(4)
    takes["h0"] = msgspec.structs.replace(takes["h0"], turns=2)
    rollout = made(takes, drain=True, at_once="2", order=RolloutOrder.LISTED)
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    (wave,) = forecast.waves
    starts = {unit.name: unit.latest_start - NOW for unit in wave.units}
    first = (2 * 16 + 10 + 2 * 16) * MINUTE
    assert starts == {"h0": 0 * MINUTE, "h1": 0 * MINUTE, "h2": first, "h3": first}
    assert Obstacle.MAINTENANCE not in forecast.limited_by


def test_hosts_are_not_drained_together_where_their_machines_would_have_nowhere_to_go() -> None:
    takes = hosts(2)
    rollout = made(takes, drain=True, at_once="2")
    one = (16 + 10 + 16) * MINUTE
    assert rollout_forecast.forecast(rollout, takes, NOW).latest_end == NOW + 2 * one
    assert rollout_forecast.forecast(rollout, takes, NOW, spare=1).latest_end == NOW + one


@pytest.mark.parametrize(("at_once", "drain"), [("1", True), ("10%", False)])
def test_ten_thousand_machines_on_a_thousand_hosts_are_planned(
    at_once: str, *, drain: bool
) -> None:
    takes = large(Random(1))
    rollout = made(takes, at_once=at_once, drain=drain)
    forecast = rollout_forecast.forecast(rollout, takes, NOW)
    assert forecast.machines == 10_000
    assert forecast.latest_end is not None


def test_the_tightest_order_needs_fewer_rounds_than_the_given_one() -> None:
    takes = large(Random(2), 300)
    rounds = {
        order: rollout_forecast.forecast(
            made(takes, at_once="100%", order=order), takes, NOW
        ).rounds
        for order in RolloutOrder
    }
    assert rounds[RolloutOrder.TIGHTEST] < rounds[RolloutOrder.LISTED]
