"""How late operations start, how soon ends are recorded, approvals a second, what pending costs.

The service is a process of its own on a real SQLite file (WAL, synchronous=FULL).
"""

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from datetime import datetime

from service import Service, standalone
from tables import Row, percentile, show

CONNECTIONS = 64


def lateness(count: int, scale: int = 1) -> Row:
    """Preempt `count` machines in the same second, and look at when each started.

    Args:
        scale: Of the clock: their notice of 30 s need not be waited for where nobody judges time.
    """
    with Service(f"[clock]\nscale = {scale}\n") as service:
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
        "p99_seconds": round(percentile(late, 0.99), 4),
        "last_seconds": round(late[-1], 4),
    }


def ends(count: int, seconds: int) -> Row:
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


def approvals(count: int) -> Row:
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
        took, slowest = asyncio.run(approve_all([service.port], events, CONNECTIONS))
        approved = sum(
            operation["events"][0]["approval"] is not None for operation in service.history()
        )
    assert approved == count, f"{approved} of {count} are in the store"
    return {
        "approvals": count,
        "connections": CONNECTIONS,
        "per_second": round(count / took),
        "median_ms": round(statistics.median(slowest) * 1000, 1),
        "p99_ms": round(percentile(slowest, 0.99) * 1000, 1),
    }


async def approve_all(
    ports: Sequence[int], events: list[tuple[str, str]], connections: int
) -> tuple[float, list[float]]:
    """Approve each event by its machine, over so many connections to these ports in turns.

    Returns:
        The seconds that all of it took, and those of each approval.
    """
    waits: list[float] = []

    async def work(port: int, own: list[tuple[str, str]]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for machine, event_id in own:
            body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
            target = f"/vm/{machine}/metadata/scheduledevents?api-version=2020-07-01"
            head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n"
            sent = time.monotonic()
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            waits.append(time.monotonic() - sent)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
        writer.close()

    began = time.monotonic()
    places = ((ports[n % len(ports)], events[n::connections]) for n in range(connections))
    await asyncio.gather(*(work(port, own) for port, own in places))
    return time.monotonic() - began, waits


def pending(count: int, seconds: float) -> Row:
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


def missing() -> list[str]:
    return []


def run(*, quick: bool) -> dict[str, list[Row]]:
    found = {
        "lateness": [lateness(100, 20)] if quick else [lateness(1000), lateness(10_000)],
        "ends": [ends(100, 1) if quick else ends(10_000, 15)],
        "approvals": [approvals(500 if quick else 20_000)],
        "pending": [pending(1000, 1.0) if quick else pending(100_000, 60.0)],
    }
    show("operations that are due in the same second, and how late each started", found["lateness"])
    show("acts that end together, and how soon that is written down", found["ends"])
    show("approvals that are in the store when they are answered", found["approvals"])
    show("events that wait for their time", found["pending"])
    return found
