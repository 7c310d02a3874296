"""The fleet of the kills: sets that share hosts, scale sets, a machine that is alone."""

from collections.abc import Sequence
from typing import Any, Final

MACHINES_OF_SCOPE: Final = 6
SETS: Final = ("web", "data")
SCALE_SETS: Final = {"batch": "Preempt", "jobs": "Terminate"}
"""How machines of each scale set go: one of low priority, and one that is told of deletions."""

MACHINES_OF_SCALE_SET: Final = 3

ALONE: Final = "bastion"
SCOPES: Final = (*SETS, *SCALE_SETS, ALONE)
OPERATORS: Final = ("ann", "bob")
HOSTS: Final = [f"h{number}" for number in range(MACHINES_OF_SCOPE)]
"""One has a machine of each set."""


def machines() -> list[str]:
    """Return the names of all machines; each begins with its scope's, and the first of it stays."""
    named = [f"{name}-{n}" for name in SETS for n in range(MACHINES_OF_SCOPE)]
    return [ALONE, *named, *(f"{s}_{n}" for s in SCALE_SETS for n in range(MACHINES_OF_SCALE_SET))]


def mortal() -> dict[str, str]:
    """Return how machines go that may be preempted or deleted, and are brought back."""
    numbers = range(1, MACHINES_OF_SCALE_SET)
    return {f"{name}_{n}": goes for name, goes in SCALE_SETS.items() for n in numbers}


def scale_sets(hosts: Sequence[str] = HOSTS) -> list[dict[str, Any]]:
    """Return the scale sets, each machine in a domain of its own."""
    return [
        {
            "name": name,
            "update_domains": MACHINES_OF_SCALE_SET,
            **({"priority": "low"} if goes == "Preempt" else {"terminate_notice_minutes": 5}),
            "machines": [
                {"index": n, "update_domain": n, "host": hosts[n % len(hosts)]}
                for n in range(MACHINES_OF_SCALE_SET)
            ],
        }
        for name, goes in SCALE_SETS.items()
    ]


def whole(hosts: Sequence[str] = HOSTS) -> dict[str, Any]:
    """Return sets of three domains each on shared hosts, and machines that are alone."""
    return {
        "availability_set": [
            {
                "name": scope,
                "update_domains": 3,
                "machines": [
                    {
                        "name": f"{scope}-{n}",
                        "update_domain": n % 3,
                        "host": hosts[n % len(hosts)],
                    }
                    for n in range(MACHINES_OF_SCOPE)
                ],
            }
            for scope in SETS
        ],
        "scale_set": scale_sets(hosts),
        "machine": [
            {"name": ALONE, "host": hosts[0]},
            *({"name": f"own-{operator}"} for operator in OPERATORS),
        ],
    }
