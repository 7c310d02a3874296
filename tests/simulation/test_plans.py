"""What a plan says holds: maintenance of random clusters begins, and is over, as its plan says.

The service drives them as in earnest, on a clock that the test moves. Nothing fails, nobody holds
anything and nobody approves.
"""

from datetime import timedelta
from random import Random
from typing import Any

import msgspec
import pytest

from control.site import REBOOT, Site, asked_for, played
from forewarn.control.maintenances import Asked, UnitTargets
from forewarn.maintenance import fleet_file
from forewarn.maintenance.turn_plan import PlannedTurns
from forewarn.maintenance.units import UnitState
from forewarn.vocabulary import EventType

PLANNED = range(2, 9)
"""In 2 and 3 hosts are drained; in 3 and 5 a host has several update domains of a scope."""

MORE = (1, *range(9, 201))
"""For a proof."""

ROUND = timedelta(seconds=1)
"""How much later than decided the service may come to each unit: it looks each second, and its
rounds have gaps between them."""


def cluster(chance: Random) -> fleet_file.Fleet:
    """Hosts that share scopes, or hold several update domains of one, or neither."""
    hosts = [f"h{n}" for n in range(chance.randint(2, 6))]
    scopes = range(chance.randint(1, 6))
    spread = chance.random() < 0.5
    sets: list[dict[str, Any]] = []
    for scope in scopes:
        size = chance.randint(1, len(hosts))
        machines = []
        for n, host in enumerate(chance.sample(hosts, size)):
            where = host if spread else chance.choice(hosts)
            machines.append({"name": f"s{scope}-{n}", "host": where, "update_domain": n % 3})
        sets.append({"name": f"s{scope}", "update_domains": 3, "machines": machines})
    alone = [{"name": f"alone-{host}", "host": host} for host in hosts]
    return msgspec.convert({"availability_set": sets, "machine": alone}, fleet_file.Fleet)


def planned_and_played(seed: int, *, approving: bool) -> tuple[PlannedTurns, Site]:
    """Plan maintenance of a random cluster, and carry it out on a clock that goes by seconds."""
    chance = Random(seed)
    site = Site(cluster(chance))
    names = sorted({machine.host for machine in site.machines()})
    scopes = sorted({machine.scope for machine in site.machines()})
    drained = tuple(names) if chance.random() < 0.3 else ()
    targets = chance.choice(
        [UnitTargets(hosts=tuple(names)), UnitTargets(scopes=tuple(scopes))]
        if not drained
        else [UnitTargets(hosts=tuple(names))]
    )
    policy = {
        "at_once": chance.choice(["1", "2", "50%", "100%"]),
        "waves": chance.choice([(), (), ("1", "rest")]),
        "pause_seconds": chance.choice([0, 600]),
        "windows": chance.choice([(), (), ("daily 10:00-16:00", "daily 22:00-23:30")]),
        "notice_seconds": 0 if drained else chance.choice([0, 1800]),
        "check": chance.choice(["", "smoke"]),
    }
    took = timedelta(seconds=chance.choice([0, 90, 300]))
    site.connector.durations = {EventType.REBOOT: took, EventType.FREEZE: timedelta(0)}
    site.connector.host_reboot = took
    request = msgspec.structs.replace(REBOOT, duration_seconds=int(took.total_seconds()))
    asked = asked_for(targets, request, **policy)
    return carried_out(site, asked, drained, approving=approving), site


def carried_out(
    site: Site, asked: Asked, drained: tuple[str, ...] = (), *, approving: bool = False
) -> PlannedTurns:
    """Plan maintenance, and carry it out on a clock that goes by seconds."""
    plan = site.prepare(asked, drained)[1]()

    async def story(_: Site) -> None:
        number = site.start_as_asked(asked, drained).number
        for _ in range(50_000):
            await site.settle()
            if approving:
                site.approve()
                await site.settle()
            if site.maintenance(number).state.over:
                return
            site.pass_time()
        raise AssertionError(site.maintenance(number))

    played(story, site)
    return plan


@pytest.mark.parametrize("approving", [True, False])
@pytest.mark.parametrize(
    "seed", [*PLANNED, *(pytest.param(seed, marks=pytest.mark.soak) for seed in MORE)]
)
def test_units_are_over_when_the_plan_says(seed: int, *, approving: bool) -> None:
    plan, site = planned_and_played(seed, approving=approving)
    units = {unit.name: unit for unit in site.maintenance().units}
    assert {unit.state for unit in units.values()} <= {UnitState.DONE, UnitState.SKIPPED}
    for wave in plan.waves:
        over = max(units[name].changed_at for name in wave.units)
        foreseen = wave.earliest if approving else wave.latest
        assert foreseen is not None
        assert timedelta(0) <= over - foreseen <= ROUND * (2 + len(units))


def test_a_plan_counts_on_the_other_domains_of_maintenance_that_is_under_way() -> None:
    site = Site()
    site.connector.durations = dict.fromkeys(EventType, timedelta(0))
    web = asked_for(UnitTargets(scopes=("web",)))
    first = site.start_as_asked(web)
    plan = carried_out(site, web)
    over = max(unit.changed_at for unit in site.maintenance(first.number + 1).units)
    assert timedelta(0) <= over - plan.latest <= 5 * ROUND
