"""A service that is killed again and again during a maintenance: each unit has its turn once.

A check follows each unit, and is killed with the service, too.

Failures name the seed; SEED and SERVICE_KILLS in the environment set it and the kills. The
judge is the history. `make test` kills a service after every commit: control/test_maintenances.
"""

import os
import random
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import patience
from end_to_end.running import Running
from seeds import SEED

KILLS = int(os.environ.get("SERVICE_KILLS", "12"))

LONGEST_LIFE = 1.0
"""Seconds: the whole maintenance takes a few seconds."""

pytestmark = pytest.mark.soak

MACHINES = tuple(f"web-{n}" for n in range(8))
FLEET = {
    "availability_set": [
        {
            "name": "web",
            "update_domains": 4,
            "machines": [
                {"name": name, "host": f"h{n}", "update_domain": n % 4}
                for n, name in enumerate(MACHINES)
            ],
        }
    ],
}


def approve(service: Running) -> None:
    waiting = [
        event["id"]
        for event in service.operator.get("/v1/events")["events"]
        if event["status"] == "Scheduled"
    ]
    if waiting:
        service.operator.ask("POST", "/v1/approvals", {"references": waiting})


def test_a_maintenance_that_is_killed_at_random_moments_asks_for_each_unit_once(
    tmp_path: Path,
) -> None:
    chance = random.Random(SEED)
    looks = tmp_path / "looks"
    check = (
        f'[[maintenance.check]]\nname = "looks"\nprogram = ["/bin/sh", "-c", "echo >> {looks}"]\n'
    )
    service = Running(tmp_path, more=check)
    service.start()
    assert service.operator.ask("PUT", "/v1/fleet", FLEET).status == 200
    body = {
        "event_type": "Freeze",
        "machines": MACHINES,
        "policy": {"at_once": "2", "waves": ["1", "rest"], "check": "looks"},
    }
    started = service.operator.ask("POST", "/v1/maintenances", body)
    assert started.status == 201, started.body
    for _ in range(KILLS):
        end = time.monotonic() + chance.uniform(0, LONGEST_LIFE)
        while time.monotonic() < end:
            approve(service)
        service.kill()
        service.start()

    def done() -> Any:
        found = service.operator.get("/v1/maintenances/1")
        assert found["maintenance"]["status"] in {"running", "done"}, (SEED, found)
        approve(service)
        return found if found["maintenance"]["status"] == "done" else None

    found = patience.until(done, lambda: SEED)

    operations = service.operator.get("/v1/history?limit=1000")["operations"]
    done = Counter(name for o in operations for event in o["events"] for name in event["machines"])
    assert {o["status"] for o in operations} == {"Completed"}, f"SEED={SEED}"
    assert done == dict.fromkeys(MACHINES, 1), f"SEED={SEED}"
    assert {unit["status"] for unit in found["units"]} == {"done"}
    last = max(datetime.fromisoformat(unit["changed_at"]) for unit in found["units"])
    assert looks.stat().st_mtime >= last.timestamp(), "the last unit was not checked"
    assert service.stop() == 0
