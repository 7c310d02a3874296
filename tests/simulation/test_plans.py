"""What a plan says holds: maintenance of random clusters begins as its plan says, and ends well.

The service drives them as in earnest, on a clock that the test moves. Nothing fails, nobody holds
anything and nobody approves.
"""

from random import Random
from typing import Any

import msgspec
import pytest

from control.test_maintenances import Farm
from forewarn.maintenance import fleet_file
from forewarn.maintenance.footprints import UnitsInWorld
from forewarn.maintenance.model import HostState, Machine
from forewarn.maintenance.units import MaintenanceState, Unit, UnitState
from simulation.test_seeds import broken

SEEDS = (*range(1, 9), 43, 106, 126)
"""In 43 two hosts can only be drained one after the other; in 106 and 126 a host has several update
domains of a scope."""


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


def shared(farm: Farm, units: frozenset[str]) -> list[str]:
    """Return the scopes of which several units have different update domains."""
    taken: dict[str, dict[str, set[int]]] = {}
    for machine in farm.machines():
        if (host := farm.home[machine.name]) in units:
            taken.setdefault(machine.scope, {}).setdefault(host, set()).add(machine.update_domain)
    return [s for s, of in taken.items() if len(of) > 1 and len(set().union(*of.values())) > 1]


def play(seed: int) -> Farm:
    """Play one cluster's maintenance to its end, and judge it."""
    chance = Random(seed)
    farm = Farm(cluster(chance))
    plan = farm.roll(
        at_once=chance.choice(["1", "2", "50%", "100%"]),
        waves=chance.choice([(), (), ("1", "rest")]),
        pause_seconds=chance.choice([0, 600]),
        order=chance.choice(["tightest", "listed"]),
    )
    assert set(farm.states().values()) == {UnitState.DONE}
    assert {drain.state for drain in farm.drains().values()} == {HostState.UP}
    assert farm.where(*farm.home) == [*farm.home.values()]
    assert len(farm.all_operations()) == 2 * len(farm.home), "some machines moved twice"
    for units in farm.together:
        assert not shared(farm, units), f"{units} have several update domains of one scope"
    first = next(units for units in farm.together if units)
    assert first <= set(plan.first), "the plan says that others go first"
    return farm


@pytest.mark.parametrize("seed", SEEDS)
def test_maintenance_of_drained_hosts_begins_as_its_plan_says(seed: int) -> None:
    assert play(seed).maintenance().state is MaintenanceState.DONE


def only_there(self: UnitsInWorld, unit: Unit) -> list[Machine]:
    """A host whose machines have left takes nothing."""
    return machines(self, msgspec.structs.replace(unit, drain=False))


machines = UnitsInWorld.machines


@pytest.mark.parametrize(
    ("place", "name", "other"),
    [
        pytest.param(
            *(UnitsInWorld, "machines", only_there), id="update domains", marks=pytest.mark.soak
        ),
    ],
)
def test_a_broken_rule_is_noticed(place: Any, name: str, other: Any) -> None:
    with broken(place, name, other), pytest.raises(AssertionError):  # noqa: PT012 - until one does
        for seed in SEEDS:
            play(seed)
