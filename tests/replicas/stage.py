"""A few machines of their own on replicas, and what a test does with them from outside."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from kills.cluster import AWAY, Cluster
from kills.processes import Service
from patience import until
from trace_judge import Trace

T = TypeVar("T")

MACHINES: Final = tuple(f"m{number}" for number in range(8))
TWO: Final = ("r1", "r2")
"""Replicas, where two are enough."""

OK: Final = 200
MADE: Final = 201
UNAVAILABLE: Final = 503


def prepare(cluster: Cluster) -> tuple[Service, ...]:
    """Start the replicas, and give them the machines, each a scope of its own."""
    cluster.start()
    cluster.ask("PUT", "/v1/fleet", {"machine": [{"name": name} for name in MACHINES]})
    replicas = tuple(cluster.replicas.values())
    for machine in MACHINES:  # a scope gets no notice before its machines have asked
        for replica in replicas:
            until(lambda: asked(replica, machine))  # noqa: B023 - called at once
    return replicas


def asked(replica: Service, machine: str) -> Any:
    """Return a machine's document; None where the replica does not give it."""
    try:
        return replica.document(machine)
    except AWAY:
        return None


def request(replica: Service, machine: str, event_type: str = "Reboot") -> str:
    """Request maintenance of a machine, and return its operation's id."""
    body = {"machines": [machine], "event_type": event_type}
    (operation,) = replica.ask("POST", "/v1/maintenances", body)["operations"]
    return str(operation["id"])


def announced(replica: Service, machine: str) -> dict[str, Any]:
    """Return the event that a machine reads, once it does."""
    return until(lambda: next(iter((asked(replica, machine) or {"Events": []})["Events"]), None))


def operation(replica: Service, name: str) -> dict[str, Any] | None:
    """Return an operation, live or over; None where there is none."""
    live = replica.ask("GET", "/v1/events")["events"]
    over = replica.ask("GET", "/v1/history?limit=1000")["operations"]
    found: dict[str, Any] | None = next((o for o in live if o["operation"] == name), None) or next(
        (o for o in over if o["id"] == name), None
    )
    return found


def status(replica: Service, name: str) -> str:
    """Return the status of an operation, `""` where there is none."""
    found = operation(replica, name)
    return "" if found is None else str(found["status"])


def complete(replica: Service, machine: str, name: str) -> None:
    """Return when an operation is over, with the machine back."""

    def over() -> bool:
        asked(replica, machine)  # so it is back
        return status(replica, name) in {"Completed", "Failed"}

    until(over)
    found = operation(replica, name)
    assert found is not None
    assert found["status"] == "Completed", found


def carry_out(machine: str, one: Service, two: Service) -> str:
    """Have maintenance of a machine requested at a replica, and approved at another; await its end.

    Returns: The operation's id.
    """
    name = request(one, machine)
    assert two.approve(machine, announced(two, machine)["EventId"]) == OK
    complete(one, machine, name)
    return name


def alerts(replica: Service, kind: str = "") -> list[dict[str, Any]]:
    """Return what a replica's operators are told, all or of one kind."""
    found = replica.ask("GET", "/v1/alerts")["items"]
    return [alert for alert in found if kind in {"", alert["kind"]}]


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call returns, and how many seconds it took."""
    began = time.monotonic()
    found = call()
    return found, time.monotonic() - began


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Make calls at the same time, and return what each returns."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [each.result() for each in [threads.submit(call) for call in calls]]


class Reads:
    """What one guest read at a replica, again and again."""

    def __init__(self) -> None:
        self.slowest = 0.0
        self.refused = 0
        self.documents: list[dict[str, Any]] = []

    def __str__(self) -> str:
        return f"{len(self.documents)} documents read, the slowest in {self.slowest:.1f} s"


def complaints(reads: Mapping[str, Reads]) -> list[str]:
    """Return what no guest may see: a number that goes back, or one of two contents.

    Args:
        reads: Of guests of one scope, by their names.
    """
    trace = Trace()
    for name, read in reads.items():
        for document in read.documents:
            trace.read(name, "", document["DocumentIncarnation"], document["Events"])
    return trace.complaints


@contextmanager
def reading(replica: Service, machine: str) -> Iterator[Reads]:
    """Have a guest read all the time."""
    reads, ending = Reads(), threading.Event()

    def read() -> None:
        while not ending.is_set():
            document, seconds = timed(lambda: asked(replica, machine))
            reads.slowest = max(reads.slowest, seconds)
            if document is None:
                reads.refused += 1
            else:
                reads.documents.append(document)
            ending.wait(0.05)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield reads
    finally:
        ending.set()
        thread.join()
