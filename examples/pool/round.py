"""One round: the pool under load while its machines are rebooted, one update domain at a time."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from pool import place
from pool.place import Place
from pool.results import Change, DemoFailed, Event, Round, State
from pool.world import World

LOOK_EVERY: Final = 0.2
"""Seconds between two looks."""

COUNT_EVERY: Final = 5.0
"""Seconds between two lines with the number of requests."""

START_LIMIT: Final = 40.0
"""Seconds in which everything must have started; it takes about four, on a busy machine ten."""

STEP_LIMIT: Final = 120.0
"""Seconds in which anything else must happen; the longest takes about fifteen."""

BEFORE_SECONDS: Final = 2.5
"""How long there are requests before anything happens."""

AFTER_SECONDS: Final = 2.5
"""How long there are requests after all machines serve again: more than the longest one lasts."""

APPROVALS_TAKEN: Final = re.compile(
    r'(?m)^forewarn_guest_requests_total\{code="200",resource="approvals"\} (\S+)'
)
"""The metric of the service that counts the approvals of guests."""


class Rolling:
    """One round, in an empty folder; without agents the operator approves."""

    def __init__(self, folder: Path, *, agents: bool, story: TextIO) -> None:
        self._place = Place(folder, agents=agents)
        self._agents = agents
        self._story = story
        self._world = World(self._place)
        self._operations: dict[str, dict[str, Any]] = {}
        self._announced: dict[str, float] = {}
        self._states: dict[str, State | None] = {}
        self._counted_at = 0.0

    def play(self) -> Round:
        """Play it, and return what came of it; DemoFailed if it has no end."""
        world = self._world
        self._start()
        world.start_traffic()
        self._pause(BEFORE_SECONDS)
        self._tell(f"> forewarn schedule reboot --scope {place.SCOPE}")
        plan = world.operate("schedule", "reboot", "--scope", place.SCOPE)
        number = plan["maintenance"]["number"]
        self._until(lambda: self._over(number), "the rolling reboot was not over")
        self._until(lambda: world.whole, "the pool was not whole again")
        self._pause(AFTER_SECONDS)
        world.end_traffic()
        self._until(lambda: world.traffic_over, "the last request did not end")
        return self._result()

    def close(self) -> None:
        """End every process that was started."""
        self._world.close()

    def _start(self) -> None:
        world = self._world
        self._place.write()
        world.start_service()
        deadline = time.monotonic() + START_LIMIT
        while not self._ready():
            if time.monotonic() > deadline:
                raise DemoFailed(f"the service was not ready after {START_LIMIT:g} s")
            time.sleep(0.05)
        world.operate("fleet", "apply", "-", given=json.dumps(place.fleet()))
        world.start_pool()
        try:
            self._until(lambda: world.whole, "the pool did not begin to serve", START_LIMIT)
        except DemoFailed as failed:
            logs = "\n".join(f"{name}: {world.tail(name)}" for name in place.MACHINES)
            raise DemoFailed(f"{failed}\n{logs}") from failed
        self._tell(f"  {len(place.MACHINES)} machines serve")

    def _ready(self) -> bool:
        self._world.judge()
        try:
            return self._place.operator.exists() and bool(self._world.ask("/readyz"))
        except DemoFailed:
            self._world.judge()
            return False

    def _over(self, number: int) -> bool:
        """Tell whether the whole set was rebooted; where nobody approves, approve."""
        for reference, operation in self._operations.items():
            waits = operation["status"] == "Scheduled" and not operation["events"][0]["approval"]
            if waits and not self._agents and self._world.whole:
                self._tell(f"> forewarn approve {reference}")
                self._world.operate("approve", reference)
        known = [one for one in self._operations.values() if one["maintenance"] == number]
        machines = [name for one in known for name in one["events"][0]["machines"]]
        over = all(one["status"] in {"Completed", "Failed", "Canceled"} for one in known)
        return over and (len(machines) == len(place.MACHINES) or _failed(known))

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= until, "time stood still")

    def _until(self, true: Callable[[], bool], otherwise: str, limit: float = STEP_LIMIT) -> None:
        deadline = time.monotonic() + limit
        while not true():
            if time.monotonic() > deadline:
                raise DemoFailed(f"{otherwise} after {limit:g} s")
            time.sleep(LOOK_EVERY)
            self._look()

    def _look(self) -> None:
        """Look at everything, and tell what is new."""
        self._world.look()
        history = json.loads(self._world.ask("/v1/history?limit=100"))["operations"]
        for operation in reversed(history):
            before = self._operations.get(operation["id"])
            if before is None:
                self._announced[operation["id"]] = time.monotonic()
            self._operations[operation["id"]] = operation
            if before is None or line(before) != line(operation):
                self._tell(line(operation))
        if self._world.began is not None:
            self._tell_states()
            self._tell_count()

    def _tell_states(self) -> None:
        for name, seen in self._world.seen.items():
            if seen.state is not None and seen.state is not self._states.get(name, State.SERVING):
                self._tell(f"  {name} is {seen.state}")
            self._states[name] = seen.state

    def _tell_count(self) -> None:
        world, now = self._world, time.monotonic()
        if now >= self._counted_at + COUNT_EVERY:
            self._counted_at = now
            self._tell(
                f"  {world.rate:.0f} requests/s   {sum(world.answered.values()):,} answered"
                f"   {len(world.failures):,} failed"
            )

    def _tell(self, line: str) -> None:
        began = self._world.began
        when = "" if began is None else f"{time.monotonic() - began:5.1f} s  "
        print(f"{when}{line}", file=self._story, flush=True)

    def _result(self) -> Round:
        world = self._world
        machines = [seen.machine for seen in world.seen.values()]
        for machine in machines:
            machine.changes = [
                Change(round(world.since(change.at), 3), change.state) for change in machine.changes
            ]
        taken = APPROVALS_TAKEN.search(world.ask("/metrics").decode())
        return Round(
            agents=self._agents,
            seconds=round(world.since(world.heard_at), 3),
            asking_seconds=round(world.since(world.asked_until), 3),
            answered=dict(world.answered),
            failures=world.failures,
            slowest={kind: round(seconds, 3) for kind, seconds in world.slowest.items()},
            approvals=round(float(taken[1])) if taken else 0,
            events=[self._event(operation) for operation in self._operations.values()],
            machines=machines,
        )

    def _event(self, operation: dict[str, Any]) -> Event:
        (event,) = operation["events"]
        approval = event["approval"] or {"by": "", "kind": ""}
        return Event(
            operation=operation["id"],
            machines=tuple(event["machines"]),
            approved_by=approval["by"],
            by_guest=approval["kind"] == "guest",
            status=operation["status"],
            at=round(self._world.since(self._announced[operation["id"]]), 3),
        )


def line(operation: dict[str, Any]) -> str:
    """Return how an operation is, in one line."""
    (event,) = operation["events"]
    told = f"{operation['event_type']} of {', '.join(event['machines'])}: {operation['status']}"
    if operation["status"] == "Scheduled":
        told += f", not before {operation['not_before'][11:19]}Z"
    return told + (f", approved by {event['approval']['by']}" if event["approval"] else "")


def _failed(operations: list[dict[str, Any]]) -> bool:
    return any(one["status"] in {"Failed", "Canceled"} for one in operations)
