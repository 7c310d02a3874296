"""The order of a maintenance's units, and its plan."""

from itertools import cycle
from random import Random
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, maintenance
from forewarn.maintenance import turn_forecast, turn_plan
from forewarn.maintenance.commands import ALWAYS_ON
from forewarn.maintenance.footprints import Footprint
from forewarn.maintenance.host_plan import HostSurvey
from forewarn.maintenance.model import (
    GuestFacts,
    Hold,
    HoldKind,
    HostFacts,
    Machine,
    Maintenance,
    Scope,
)
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.turns import Obstacle
from forewarn.maintenance.units import TurnOrder, TurnPolicy, UnitState
from forewarn.maintenance.world import LiveState, World
from forewarn.vocabulary import ScopeKind

HOUR = 60 * MINUTE
Takes = dict[str, Footprint]


def made(takes: Takes, *, drain: bool = False, **policy: Any) -> Maintenance:
    of = msgspec.structs.replace(maintenance(*takes), policy=TurnPolicy(**policy))
    given = [msgspec.structs.replace(unit, drain=drain) for unit in of.units]
    units = turn_plan.arranged(given, lambda unit: takes[unit.key], of.policy)
    return msgspec.structs.replace(of, units=units)


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


def world_of(takes: Takes, *held: str) -> World:
    """A World of what hosts take; some hosts are held."""
    machines = {
        name: Machine(
            name=name,
            scope=scope,
            update_domain=domain,
            fault_domain=0,
            vm_id=f"id-{name}",
            host=host,
        )
        for host, its in takes.items()
        for name, (scope, domain) in zip(its.machines, cycle(its.domains.items()), strict=False)
    }
    names = {one.scope for one in machines.values()}
    scopes = {n: Scope(name=n, kind=ScopeKind.AVAILABILITY_SET, update_domains=5) for n in names}
    holds = {
        (HoldKind.HOST, name): Hold(kind=HoldKind.HOST, name=name, reason="", by="ann", at=NOW)
        for name in held
    }
    return World(LiveState(scopes=scopes, machines=machines, holds=holds))


def survey_of(takes: Takes) -> HostSurvey:
    """A look that finds the machines on the hosts that take them."""
    hosts = {
        host: HostFacts(
            answers=True,
            boot_id="1",
            free_memory_mib=100_000,
            can_reboot=True,
            guests=tuple(
                GuestFacts(vm_id=f"id-{n}", name=n, running=True, memory_mib=1)
                for n in its.machines
            ),
        )
        for host, its in takes.items()
    }
    keys = {f"id-{name}": name for its in takes.values() for name in its.machines}
    return HostSurvey(began_at=NOW, hosts=hosts, keys=keys)


def planned(of: Maintenance, takes: Takes, *held: str) -> PlannedTurns:
    drains = any(unit.drain for unit in of.units)
    return turn_forecast.planned(
        of,
        lambda unit: takes[unit.key],
        lambda: world_of(takes, *held),
        ALWAYS_ON,
        NOW,
        survey=survey_of(takes) if drains else None,
    )


def test_units_that_take_the_same_domains_go_together() -> None:
    takes = hosts(30, domains=3)
    plan = planned(made(takes, at_once="100%"), takes)
    assert plan.first == tuple(f"h{n}" for n in range(0, 30, 3))
    assert plan.waits_for is Obstacle.UPDATE_DOMAIN
    assert "h27" in plan.reason
    assert (plan.units, plan.machines) == (30, 30)


def test_hosts_whose_machines_only_a_look_has_found_are_drained_apart() -> None:
    takes = hosts(2, domains=2)
    world = world_of(takes)
    for name, machine in [*world.machines.items()]:
        world.machines[name] = msgspec.structs.replace(machine, host="")
    world.maintenances[1] = made(takes, drain=True, at_once="100%")
    survey = survey_of({**takes, "h2": Footprint(machines=(), domains={})})
    for index in range(2):
        turn_plan.drain(world, 1, index, survey, NOW)
    first, second = world.maintenances[1].units
    assert first.state is UnitState.RUNNING
    assert (second.state, second.name in world.drains) == (UnitState.WAITING, False)
    assert second.retry_at is not None


def test_a_plan_tells_how_many_go_at_once_and_what_the_others_wait_for() -> None:
    for count, at_once, waits_for in (
        (3, 1, Obstacle.AT_ONCE),
        (3, 2, Obstacle.AT_ONCE),
        (1, 1, None),
    ):
        takes = hosts(count)
        plan = planned(made(takes, at_once=str(at_once)), takes)
        assert (len(plan.first), plan.waits_for, plan.window) == (at_once, waits_for, None)


def test_a_plan_knows_what_is_held() -> None:
    takes = hosts(3)
    plan = planned(made(takes), takes, "h0", "h1")
    assert plan.first == ("h2",)
    assert (plan.latest, plan.waves[0].latest) == (None, None)
    assert "ann" in plan.stands
    alone = planned(made(hosts(1)), takes, "h0")
    assert alone.first == ()
    assert alone.waits_for is Obstacle.MAINTENANCE
    assert "ann" in alone.reason


def test_a_plan_tells_when_each_wave_is_over_if_guests_approve_and_if_none_does() -> None:
    takes = hosts(4)
    of = msgspec.structs.replace(
        made(takes, waves=("1", "rest"), pause_seconds=3600, order=TurnOrder.LISTED),
        duration_seconds=300,
    )
    plan = planned(of, takes)
    notice = 15 * MINUTE
    task = 5 * MINUTE
    earliest = [NOW + task, NOW + HOUR + 4 * task]
    latest = [NOW + notice + task, NOW + notice + HOUR + 3 * notice + 4 * task]
    for told, expected in (
        ([wave.earliest for wave in plan.waves], earliest),
        ([wave.latest for wave in plan.waves], latest),
    ):
        for at, about in zip(told, expected, strict=True):
            assert at is not None
            assert about <= at <= about + 4 * SECOND  # each notice ends with a whole second
    assert (plan.earliest, plan.latest) == (plan.waves[1].earliest, plan.waves[1].latest)
    assert plan.duration_known


def test_a_plan_tells_the_next_window_and_waits_for_it() -> None:
    takes = hosts(2)
    plan = planned(made(takes, windows=("Sat 02:00-04:00",)), takes)
    assert plan.first == ()
    assert plan.window is not None
    assert (plan.window.opens.weekday(), plan.window.opens.hour) == (5, 2)
    assert plan.waits_for is Obstacle.WINDOW


def test_the_waves_of_a_plan_name_their_units_in_their_order() -> None:
    takes = hosts(4)
    plan = planned(made(takes, waves=("1", "rest"), order=TurnOrder.LISTED), takes)
    assert [(wave.number, wave.units, wave.machines) for wave in plan.waves] == [
        (1, ("h0",), 1),
        (2, ("h1", "h2", "h3"), 3),
    ]


def test_the_order_is_as_given_where_that_is_asked_for() -> None:
    takes = hosts(9, domains=3)
    listed = made(takes, order=TurnOrder.LISTED)
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


def test_units_without_machines_are_named() -> None:
    takes = {"h9": Footprint(machines=(), domains={})} | hosts(2)
    plan = planned(made(takes, at_once="2", order=TurnOrder.LISTED), takes)
    assert plan.without_machines == ("h9",)
    assert plan.first == ("h0", "h1")
    assert plan.units == 2


@pytest.mark.parametrize(("at_once", "drain"), [("1", True), ("10%", False)])
def test_ten_thousand_machines_on_a_thousand_hosts_are_planned(
    at_once: str, *, drain: bool
) -> None:
    takes = large(Random(1))
    plan = planned(made(takes, at_once=at_once, drain=drain), takes)
    assert plan.machines == 10_000
    assert plan.first
    assert (plan.earliest is None) == drain  # that would be 20,000 moves: it is not foreseen
