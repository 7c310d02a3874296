"""The fleet of the kills: fleet.yaml, on as many hosts as there are."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

FLEET: Final = yaml.safe_load(Path(__file__).with_name("fleet.yaml").read_text("utf-8"))
SETS: Final = ("web", "data")
SCALE_SETS: Final = {"batch": "Preempt", "jobs": "Terminate"}
"""How machines of each scale set go."""

ALONE: Final = "bastion"
SCOPES: Final = (*SETS, *SCALE_SETS, ALONE)
OPERATORS: Final = ("ann", "bob")
HOSTS: Final = [f"h{number}" for number in range(6)]


def machines() -> list[str]:
    """Return the names of all machines; each begins with its scope's, and the first of it stays."""
    named = [one["name"] for each in FLEET["availability_set"] for one in each["machines"]]
    return [ALONE, *named, *(f"{name}_{n}" for name in SCALE_SETS for n in range(3))]


def mortal() -> dict[str, str]:
    """Return how machines go that may be preempted or deleted, and are brought back."""
    return {f"{name}_{n}": goes for name, goes in SCALE_SETS.items() for n in (1, 2)}


def whole(hosts: Sequence[str] = HOSTS) -> dict[str, Any]:
    """Return the fleet on these hosts."""
    told = re.sub(r'"h(\d)"', lambda n: f'"{hosts[int(n[1]) % len(hosts)]}"', json.dumps(FLEET))
    found: dict[str, Any] = json.loads(told)
    return found
