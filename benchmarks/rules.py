"""How late operations start, how soon ends are recorded, approvals a second, what waiting costs.

    python benchmarks/rules.py [lateness] [ends] [approvals] [waiting] [--quick]

Prints a table and writes `benchmarks/results/rules.json`. The service is a process of its own on a
real SQLite file (WAL, synchronous=FULL); the load is made by this process.
"""

import asyncio
import json
import statistics
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from service import Service, standalone

RESULTS = Path(__file__).parent / "results" / "rules.json"
CONNECTIONS = 64
CASES = ["lateness", "ends", "approvals", "waiting"]


def lateness(count: int) -> dict[str, Any]:
    """Preempt `count` machines in the same second, and look at when each started."""
    with Service() as service:
        service.ask("PUT", "/v1/fleet", standalone(count, priority="low"))
        names = [f"m{n}" for n in range(count)]
        plan = {"event_type": "Preempt", "machines": names}
        began = time.monotonic()
        service.ask("POST", "/v1/maintenance", plan)
        asked = time.monotonic() - began
        deadline = time.monotonic() + 120
        while service.history(status="Scheduled"):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        late = sorted(
            (moment(o["started_at"]) - moment(o["not_before"])).total_seconds()
            for o in service.history()
        )
    assert len(late) == count
    return {
        "operations": count,
        "request_seconds": round(asked, 3),
        "median_seconds": round(statistics.median(late), 4),
        "p99_seconds": round(late[int(count * 0.99) - 1], 4),
        "last_seconds": round(late[-1], 4),
    }


def ends(count: int, seconds: int) -> dict[str, Any]:
    """Let `count` acts that last alike begin at once, and look at when each end is recorded.

    Times count from the first that was. Acts are claimed a thousand at a time, so they do not end
    at quite the same instant: that is in the times too.
    """
    settings = f"[connector.simulated]\nreboot_seconds = {seconds}\n"
    with Service(settings) as service:
        service.ask("PUT", "/v1/fleet", standalone(count))
        names = [f"m{n}" for n in range(count)]
        plan = {"event_type": "Reboot", "machines": names, "no_notice": True}
        service.ask("POST", "/v1/maintenance", plan)
        before = service.cpu_seconds()
        deadline = time.monotonic() + seconds + 120
        while service.ask("GET", "/v1/history?status=Started&limit=1")["operations"]:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        used = service.cpu_seconds() - before
        ended = sorted(moment(o["ended_at"]) for o in service.history(status="Completed"))
    assert len(ended) == count
    after = [(at - ended[0]).total_seconds() for at in ended]
    return {
        "acts": count,
        "median_seconds": round(statistics.median(after), 3),
        "last_seconds": round(after[-1], 3),
        "processor_seconds": round(used, 2),
    }


def approvals(count: int) -> dict[str, Any]:
    """Approve `count` events, each by its own machine, over 64 kept connections."""
    with Service("[connector.simulated]\nfreeze_seconds = 3600\n") as service:
        service.ask("PUT", "/v1/fleet", standalone(count))
        for first in range(0, count, 10_000):
            names = [f"m{n}" for n in range(first, min(first + 10_000, count))]
            service.ask("POST", "/v1/maintenance", {"event_type": "Freeze", "machines": names})
        events = [
            (operation["events"][0]["machines"][0], operation["events"][0]["id"])
            for operation in service.history()
        ]
        took, slowest = asyncio.run(approve_all(service.port, events))
        approved = sum(
            operation["events"][0]["approval"] is not None for operation in service.history()
        )
    assert approved == count, f"{approved} of {count} are in the store"
    return {
        "approvals": count,
        "connections": CONNECTIONS,
        "per_second": round(count / took),
        "median_ms": round(statistics.median(slowest) * 1000, 1),
        "p99_ms": round(sorted(slowest)[int(count * 0.99) - 1] * 1000, 1),
    }


async def approve_all(port: int, events: list[tuple[str, str]]) -> tuple[float, list[float]]:
    waits: list[float] = []

    async def work(own: list[tuple[str, str]]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for machine, event_id in own:
            body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
            target = f"/vm/{machine}/metadata/scheduledevents?api-version=2020-07-01"
            head = f"POST {target} HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n"
            sent = time.monotonic()
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            waits.append(time.monotonic() - sent)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
        writer.close()

    began = time.monotonic()
    await asyncio.gather(*(work(events[n::CONNECTIONS]) for n in range(CONNECTIONS)))
    return time.monotonic() - began, waits


def waiting(count: int, seconds: float) -> dict[str, Any]:
    """Let `count` events wait, and look at what the service uses meanwhile."""
    with Service() as service:
        service.ask("PUT", "/v1/fleet", standalone(count))
        for first in range(0, count, 10_000):
            names = [f"m{n}" for n in range(first, min(first + 10_000, count))]
            service.ask("POST", "/v1/maintenance", {"event_type": "Freeze", "machines": names})
        time.sleep(min(5.0, seconds))
        before = service.cpu_seconds()
        time.sleep(seconds)
        used = service.cpu_seconds() - before
        memory = service.memory_mib()
    return {
        "events": count,
        "percent_of_a_core": round(100 * used / seconds, 2),
        "memory_mib": round(memory),
    }


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def main(arguments: list[str]) -> None:
    quick = "--quick" in arguments
    chosen = [a for a in arguments if not a.startswith("-")] or CASES
    results: dict[str, Any] = {}
    if "lateness" in chosen:
        counts = [100] if quick else [1000, 10_000]
        results["lateness"] = [lateness(count) for count in counts]
    if "ends" in chosen:
        results["ends"] = [ends(100, 1) if quick else ends(10_000, 15)]
    if "approvals" in chosen:
        results["approvals"] = [approvals(500 if quick else 20_000)]
    if "waiting" in chosen:
        results["waiting"] = [waiting(1000, 1.0) if quick else waiting(100_000, 60.0)]
    for name, rows in results.items():
        print(f"\n{name}")
        print("  ".join(f"{column:>18}" for column in rows[0]))
        for row in rows:
            print("  ".join(f"{value:>18}" for value in row.values()))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
