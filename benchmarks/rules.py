"""How late operations start, how soon ends are recorded, approvals a second, what pending costs.

The service is a process of its own on a real SQLite file (WAL, synchronous=FULL).
"""

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import select
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from multiprocessing.connection import Connection

from guests import EVENTS, Guests, connected, get
from service import Service, address_of, placed, standalone
from tables import Row, percentile, show

CONNECTIONS = 64

OTHERS = 20
"""Neighbours of a crowd: each reads 20 times a second, half of them by new connections."""

OWN = 2000
"""Machines beside a crowd that approve an event of their own, one after another."""

PATIENT_SECONDS = 300.0
"""When a crowd of patient clients gives up, and the row with it."""

AGAIN_SECONDS = 1.0
"""Between a client's giving up and its next attempt: the next poll of one that polls."""

Approver = tuple[str, str]
"""An address, and the event that it approves."""


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
        service.ask("POST", "/v1/maintenances", plan)
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
        service.ask("POST", "/v1/maintenances", plan)
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
            service.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "machines": names})
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


def approval(event: str) -> bytes:
    """Return the request that approves an event."""
    body = json.dumps({"StartRequests": [{"EventId": event}]})
    head = f"POST {EVENTS} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


class Crowd:
    """Machines that approve in the same moment over kept connections.

    Args:
        port: Where the service listens.
        approvers: The machines.
        patience: After how many seconds without an answer a client closes its connection, and
            approves again by a new one a second later.
    """

    def __init__(self, port: int, approvers: Sequence[Approver], patience: float) -> None:
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        """Of each approval, until its 200."""
        self._port = port
        self._patience = patience
        self._epoll = select.epoll()
        self._clients: dict[int, tuple[socket.socket, Approver, float]] = {}
        self._later: list[tuple[float, Approver]] = []
        for approver in approvers:
            made = self._connect(approver, waits=True)
            made.send(get())
            assert made.recv(65536).startswith(b"HTTP/1.1 200 ")
            self._epoll.register(made, select.EPOLLIN)
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()
        for file in list(self._clients):
            self._approve(file)

    def finish(self) -> None:
        """Wait for all answers."""
        while (self._clients or self._later) and time.monotonic() < self._began + PATIENT_SECONDS:
            for file, found in self._epoll.poll(0.1):
                if found & select.EPOLLOUT:
                    self._approve(file)
                else:
                    self._hear(file)
            now = time.monotonic()
            for file in [f for f, (_, _, at) in self._clients.items() if now - at > self._patience]:
                self._end(file, "given up")
            while self._later and self._later[0][0] <= now:
                made = self._connect(self._later.pop(0)[1], waits=False)
                self._epoll.register(made, select.EPOLLOUT)

    def _connect(self, approver: Approver, *, waits: bool) -> socket.socket:
        made = connected(self._port, approver[0], waits=waits)
        self._clients[made.fileno()] = made, approver, time.monotonic()
        return made

    def _approve(self, file: int) -> None:
        made, approver, _ = self._clients[file]
        self._clients[file] = made, approver, time.monotonic()
        made.send(approval(approver[1]))
        self._epoll.modify(file, select.EPOLLIN)

    def _hear(self, file: int) -> None:
        try:
            answer = self._clients[file][0].recv(65536)
        except OSError:
            answer = b""
        if answer.startswith(b"HTTP/1.1 100 "):
            answer = answer.partition(b"\r\n\r\n")[2]
            if not answer:
                return
        self._end(file, answer[9:12].decode() or "closed")

    def _end(self, file: int, status: str) -> None:
        made, approver, _ = self._clients.pop(file)
        made.close()
        self.statuses[status] += 1
        if status == "200":
            self.seconds.append(time.monotonic() - self._began)
        else:
            self._later.append((time.monotonic() + AGAIN_SECONDS, approver))


def play_crowd(port: int, approvers: Sequence[Approver], patience: float, told: Connection) -> None:
    """Be a crowd, in a process of its own."""
    played = Crowd(port, approvers, patience)
    told.send(None)
    told.recv()
    played.begin()
    told.send(None)
    played.finish()
    told.send((dict(played.statuses), played.seconds))


class Neighbours:
    """What machines beside a crowd notice of it: two threads, until `is_over`."""

    def __init__(self, port: int, readers: Sequence[str], approvers: Sequence[Approver]) -> None:
        self.new: list[float] = []
        """Seconds of each read by a new connection."""
        self.approvals: list[float] = []
        """Seconds of each approval, its connection included."""
        self.is_over = threading.Event()
        self._port = port
        self._readers = readers
        self._approvers = approvers
        self._threads = [threading.Thread(target=each) for each in (self._read, self._approve)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, address: str, request: bytes) -> float:
        began = time.monotonic()
        with contextlib.closing(Guests(self._port, [address])) as guest:
            guest.ask(1, request=request)
        assert guest.statuses == {"200": 1}, guest.statuses
        return time.monotonic() - began

    def _read(self) -> None:
        for address in itertools.cycle(self._readers):
            if self.is_over.wait(0.01):
                break
            self.new.append(self._ask(address, get()))

    def _approve(self) -> None:
        for address, event in self._approvers:
            if self.is_over.wait(0.05):
                break
            self.approvals.append(self._ask(address, approval(event)))


def announced(service: Service, count: int, machines: int) -> list[Approver]:
    """Announce a freeze to a crowd, and to OWN machines beside it; return who approves what."""
    fleet = placed(count, of_scope=machines if machines > 1 else 0)
    others = [{"name": f"o{n}", "address": address_of(count + n)} for n in range(OTHERS + OWN)]
    fleet["machine"] = [*fleet.get("machine", ()), *others]
    service.ask("PUT", "/v1/fleet", fleet)
    names = [f"o{OTHERS + n}" for n in range(OWN)]
    if machines > 1:
        for first in range(0, count, machines):
            plan = {"event_type": "Freeze", "scopes": [f"s{first}"]}
            service.ask("POST", "/v1/maintenances", plan)
    else:
        crowd_names = [f"m{n}" for n in range(count)]
        service.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "machines": crowd_names})
    service.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "machines": names})
    event_of = {
        name: event["id"]
        for operation in service.history()
        for event in operation["events"]
        for name in event["machines"]
    }
    approvers = [(address_of(n), event_of[f"m{n}"]) for n in range(count)]
    return approvers + [
        (address_of(count + OTHERS + n), event_of[f"o{OTHERS + n}"]) for n in range(OWN)
    ]


def crowd(count: int, *, machines: int = 1, patience: float = PATIENT_SECONDS) -> Row:
    """Let `count` machines approve in the same moment, and look at them and their neighbours.

    Args:
        count: Machines that approve.
        machines: How many of them share a document, and each operation.
        patience: After how many seconds each client of the crowd gives up, and approves again.
    """
    with Service("[connector.simulated]\nfreeze_seconds = 3600\n", address="0.0.0.0") as service:
        approvers = announced(service, count, machines)
        here, there = multiprocessing.Pipe()
        given = service.port, approvers[:count], patience, there
        process = multiprocessing.Process(target=play_crowd, args=given)
        process.start()
        here.recv()
        readers = [address_of(count + n) for n in range(OTHERS)]
        kept = Guests(service.port, readers[: OTHERS // 2])
        neighbours = Neighbours(service.port, readers[OTHERS // 2 :], approvers[count:])
        before = service.cpu_seconds()
        here.send(None)
        here.recv()
        while not here.poll():
            kept.ask(OTHERS // 2, each_seconds=0.05)
        statuses, seconds = here.recv()
        used = service.cpu_seconds() - before
        neighbours.end()
        process.join()
    return {
        "machines": count,
        "of an operation": machines,
        "give up after s": round(patience) if patience < PATIENT_SECONDS else "",
        "answers": ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items())),
        "median s": round(statistics.median(seconds), 2),
        "last s": round(max(seconds), 2),
        "processor s": round(used, 1),
        "GET p99 ms": round(percentile(kept.seconds, 0.99) * 1000, 1),
        "new GET p99 ms": round(percentile(neighbours.new, 0.99) * 1000, 1),
        "approve p50 ms": round(statistics.median(neighbours.approvals) * 1000, 1),
        "approve p99 ms": round(percentile(neighbours.approvals, 0.99) * 1000, 1),
    }


def pending(count: int, seconds: float) -> Row:
    """Let `count` events wait, and look at what the service uses meanwhile."""
    with Service() as service:
        service.ask("PUT", "/v1/fleet", standalone(count))
        for first in range(0, count, 10_000):
            names = [f"m{n}" for n in range(first, min(first + 10_000, count))]
            service.ask("POST", "/v1/maintenances", {"event_type": "Freeze", "machines": names})
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
        "crowd": [crowd(200)]
        if quick
        else [crowd(9900), crowd(9900, machines=10), crowd(9900, patience=5.0)],
        "pending": [pending(1000, 1.0) if quick else pending(100_000, 60.0)],
    }
    show("operations that are due in the same second, and how late each started", found["lateness"])
    show("acts that end together, and how soon that is written down", found["ends"])
    show("approvals that are in the store when they are answered", found["approvals"])
    show("approvals in the same moment, and what neighbours notice of them", found["crowd"])
    show("events that wait for their time", found["pending"])
    return found
