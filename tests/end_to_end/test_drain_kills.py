"""A service that is killed again and again while it drains, reboots and refills a host.

Failures name the seed; SEED and SERVICE_KILLS in the environment set it and the kills. The
judge is the history, and the file in which simulated hosts remember their reboots. `make test`
kills a service after every commit: control/test_host_drains.
"""

import json
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
from trace_judge import Trace

KILLS = int(os.environ.get("SERVICE_KILLS", "12"))

LONGEST_LIFE = 1.5
"""Seconds: a whole drain takes a few seconds, mostly its looks at the host."""

pytestmark = pytest.mark.soak

CONNECTOR = "freeze_seconds = 0.2\nhost_reboot_seconds = 0.5"
RULES = "[rules]\nhost_back_seconds = 5\n"
MACHINES = ("db", "web-0", "web-1", "web-2")
FLEET = {
    "availability_set": [
        {
            "name": "web",
            "update_domains": 2,
            "machines": [{"name": f"web-{n}", "host": "h1", "update_domain": 0} for n in range(3)],
        }
    ],
    "machine": [{"name": "db", "host": "h1"}, {"name": "cache", "host": "h2"}],
}


DRAINED = ("h1", "h2")
SEVERAL = {
    "availability_set": [
        {
            "name": "web",
            "update_domains": 3,
            "machines": [
                {"name": f"web-{n}", "host": f"h{1 + n % 3}", "update_domain": n % 3}
                for n in range(6)
            ],
        }
    ],
    "machine": [{"name": f"db-{n}", "host": f"h{1 + n}"} for n in range(3)],
}


def state(service: Running, host: str = "h1") -> str:
    return str(service.operator.get(f"/v1/hosts/{host}")["host"]["status"])


def approve(service: Running) -> list[Any]:
    """Approve what is announced; return all live events."""
    events: list[Any] = service.operator.get("/v1/events")["events"]
    waiting = [event["id"] for event in events if event["status"] == "Scheduled"]
    if waiting:
        service.operator.ask("POST", "/v1/approvals", {"references": waiting})
    return events


def live(service: Running, seconds: float) -> None:
    """Approve what is announced, for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        approve(service)
        time.sleep(0.02)


def settle_all(service: Running, number: int) -> Counter[str]:
    """Let a maintenance end; return how often an operator had to have each host tried again."""
    words: Counter[str] = Counter()
    path = f"/v1/maintenances/{number}"

    def is_done() -> bool:
        found = service.operator.get(path)
        for unit in found["units"]:
            host = service.operator.get(f"/v1/hosts/{unit['name']}")["host"]
            if host["status"] == "stuck":
                assert "rebooting" in host["status_detail"], host
                order = {"order": "retry", "unit": host["name"]}
                words[host["name"]] += 1
                service.operator.ask("POST", f"{path}/orders", order)
        if found["maintenance"]["status"] == "halted":
            service.operator.ask("POST", f"{path}/orders", {"order": "resume"})
        approve(service)
        return bool(found["maintenance"]["status"] == "done")

    patience.until(is_done, lambda: (SEED, service.operator.get(path)))
    return words


def reboots(folder: Path, host: str = "h1") -> Any:
    return json.loads((folder / "simulated-hosts.json").read_text())[host]["reboots"]


def load(service: Running, chance: random.Random, seconds: float) -> None:
    """Ask for other maintenance besides, and see that no machine is on a host that is empty."""
    names = [machine["name"] for machine in service.operator.get("/v1/fleet/machines")["machines"]]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        body = {"event_type": "Freeze", "machines": [chance.choice(names)]}
        asked = service.operator.ask("POST", "/v1/maintenances", body)
        assert asked.status in {201, 409}, asked.body
        host = chance.choice(DRAINED)
        before = state(service, host)
        there = service.operator.get(f"/v1/fleet/machines?host={host}")["machines"]
        if before == state(service, host) in {"empty", "rebooting"}:
            assert there == [], f"SEED={SEED}: {host} is {before}"
        live(service, 0.1)


def judged(operations: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with operations that are over, by the judge of all such tests."""
    trace = Trace()
    for each in operations:
        times = [datetime.fromisoformat(each[name]) for name in ("started_at", "ended_at")]
        for event in each["events"]:
            trace.down(each["id"], event["scope"], event["update_domain"], times[0], times[1])
    return trace.complaints


def test_drains_under_load_that_are_killed_hurt_nobody_and_end(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    service = Running(tmp_path, connector=CONNECTOR)
    service.settings.write_text(service.settings.read_text() + RULES)
    service.start()
    assert service.operator.ask("PUT", "/v1/fleet", SEVERAL).status == 200
    wanted = {"hosts": [*DRAINED], "reboot": True}
    asked = service.operator.ask("POST", "/v1/hosts/drain", wanted)
    assert asked.status == 200, asked.body
    for _ in range(KILLS):
        load(service, chance, chance.uniform(0, LONGEST_LIFE))
        service.kill()
        service.start()
    words = settle_all(service, asked.json["maintenance"])
    patience.until(lambda: approve(service) == [], lambda: f"SEED={SEED}")

    operations = service.operator.get("/v1/history?limit=1000")["operations"]
    assert {each["status"] for each in operations} == {"Completed"}, f"SEED={SEED}"
    assert judged(operations) == [], f"SEED={SEED}"
    machines = service.operator.get("/v1/fleet/machines")["machines"]
    homes = {m["name"]: m["host"] for m in machines}
    listed = [*SEVERAL["availability_set"][0]["machines"], *SEVERAL["machine"]]
    assert homes == {m["name"]: m["host"] for m in listed}, f"SEED={SEED}"
    assert [reboots(tmp_path, host) for host in DRAINED] == [1, 1], f"SEED={SEED}"
    assert max(words.values(), default=0) <= 1, f"SEED={SEED}"
    assert service.stop() == 0
