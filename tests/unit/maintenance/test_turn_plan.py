"""The order of a maintenance's units, and its plan."""

from random import Random
from typing import Any

import msgspec
import pytest

from builders import NOW
from forewarn.maintenance import turn_plan
from forewarn.maintenance.footprints import Footprint
from forewarn.maintenance.model import Maintenance
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.turns import Obstacle
from forewarn.maintenance.units import TurnOrder, TurnPolicy
from turn_world import maintenance

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


def planned(of: Maintenance, takes: Takes, **held: str) -> PlannedTurns:
    """Plan it while something holds some of its units."""
    return turn_plan.planned(
        of, lambda unit: takes[unit.key], lambda unit, _: held.get(unit.name, ""), NOW
    )


def test_units_that_take_the_same_domains_go_together() -> None:
    takes = hosts(30, domains=3)
    plan = planned(made(takes, at_once="100%"), takes)
    assert plan.first == tuple(f"h{n}" for n in range(0, 30, 3))
    assert plan.waits_for is Obstacle.UPDATE_DOMAIN
    assert "h27" in plan.reason
    assert (plan.units, plan.machines) == (30, 30)


def test_a_single_unit_waits_for_nothing() -> None:
    takes = hosts(1)
    plan = planned(made(takes), takes)
    assert (plan.first, plan.waits_for, plan.window) == (("h0",), None, None)


@pytest.mark.parametrize("at_once", ["1", "2"])
def test_a_plan_tells_how_many_go_at_once(at_once: str) -> None:
    takes = hosts(3)
    plan = planned(made(takes, at_once=at_once), takes)
    assert len(plan.first) == int(at_once)
    assert plan.waits_for is Obstacle.AT_ONCE


def test_a_plan_knows_what_is_held_and_what_is_under_way() -> None:
    takes = hosts(3)
    plan = planned(made(takes), takes, h0="on hold, by ann", h1="2.1 is live")
    assert plan.first == ("h2",)
    alone = planned(made(hosts(1)), takes, h0="on hold, by ann")
    assert alone.first == ()
    assert (alone.waits_for, alone.reason) == (Obstacle.MAINTENANCE, "on hold, by ann")


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


def test_the_tightest_order_lets_more_units_go_at_once_than_the_given_one() -> None:
    takes = large(Random(2), 300)
    first = {
        order: len(planned(made(takes, at_once="100%", order=order), takes).first)
        for order in TurnOrder
    }
    assert first[TurnOrder.TIGHTEST] > first[TurnOrder.LISTED]
