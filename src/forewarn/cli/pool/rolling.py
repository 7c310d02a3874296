"""A round: the pool under load while its machines are restarted, domain after domain."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from forewarn import clock
from forewarn.cli import output
from forewarn.cli.demo import processes, stage
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.pool import place
from forewarn.cli.pool.display import Display
from forewarn.cli.pool.place import Place
from forewarn.cli.pool.results import Change, Event, Round, State
from forewarn.cli.pool.world import World
from forewarn.maintenance.model import RollingState
from forewarn.server.operator import schemas
from forewarn.vocabulary import ApproverKind, EventStatus, EventType

LOOK_EVERY: Final = 0.2
"""Seconds between two looks."""

START_LIMIT: Final = 40.0
"""Seconds in which everything must have started; it takes about four, on a busy machine ten."""

STEP_LIMIT: Final = 120.0
"""Seconds in which anything else must come; the longest takes about fifteen."""

BEFORE_SECONDS: Final = 2.5
"""How long there are requests before anything happens."""

AFTER_SECONDS: Final = 2.5
"""How long there still are when all machines serve again: longer than the longest request lasts."""

BY: Final = "demo-pool"
"""Who asks for maintenance, in the history."""

HISTORY: Final = 100
"""Operations that are read at once; there are three."""

APPROVALS_TAKEN: Final = re.compile(
    r'(?m)^forewarn_guest_requests_total\{code="200",resource="approvals"\} (\S+)'
)
"""The line of the service's metrics that counts what guests have approved."""


class Rolling:
    """One round.

    Args:
        folder: Its own.
        agents: Whether there are agents; without them the operator approves.
        shown: Shows how it goes.
    """

    def __init__(self, folder: Path, *, agents: bool, shown: Display) -> None:
        self._place = Place(folder, agents=agents)
        self._agents = agents
        self._shown = shown
        self._world = World(self._place)
        self._nap = threading.Event()  # never set: waiting for it is a pause that Ctrl-C ends
        self._operations: dict[str, schemas.Operation] = {}
        self._announced: dict[str, float] = {}
        self._told: dict[str, State | None] = {}

    def play(self) -> Round:
        """Play it, and return what came of it.

        Raises:
            Failed: It could not be played to its end.
        """
        world = self._world
        self._start()
        world.start_traffic()
        self._pause(BEFORE_SECONDS)
        number = self._ask_for_reboot()
        self._until(lambda: self._over(number), "the rolling reboot was not over")
        self._until(lambda: world.whole, "the pool was not whole again")
        self._pause(AFTER_SECONDS)
        world.end_traffic()
        self._until(lambda: world.traffic_over, "the client's last request did not end")
        return self._result()

    def close(self) -> None:
        """End every process that was started."""
        self._world.close()

    def _start(self) -> None:
        world = self._world
        self._place.write()
        world.start_service()
        deadline = clock.monotonic() + START_LIMIT
        while not world.ready:
            world.judge()
            if clock.monotonic() > deadline:
                raise self._failed(f"the service was not ready after {START_LIMIT:g} s")
            self._nap.wait(0.05)
        world.operator.ask("PUT", "/v1/fleet", body=place.fleet())
        world.start_pool()
        try:
            self._until(lambda: world.whole, "the pool did not begin to serve", START_LIMIT)
        except Failed:
            for name in place.MACHINES:
                output.note(f"{name}: {processes.tail(self._place.log(name))}")
            raise
        self._shown.tell(f"  {len(place.MACHINES)} machines serve")

    def _ask_for_reboot(self) -> int:
        self._shown.tell(f"> forewarn schedule reboot --scope {place.SCOPE}")
        body = {"event_type": EventType.REBOOT, "scope": place.SCOPE, "by": BY}
        answer = self._world.operator.ask("POST", "/v1/maintenance", body=body)
        return answer.read(schemas.Plan).maintenance.number

    def _over(self, number: int) -> bool:
        """Tell whether the whole set has had its turn; where nobody approves, approve."""
        for operation in self._operations.values():
            waits = operation.status is EventStatus.SCHEDULED and not operation.events[0].approval
            if waits and not self._agents and self._world.whole:
                self._shown.tell(f"> forewarn approve {operation.id}")
                body = {"references": [operation.id], "by": BY}
                self._world.operator.ask("POST", "/v1/approvals", body=body)
        detail = self._world.operator.get(f"/v1/maintenance/{number}")
        told = detail.read(schemas.MaintenanceDetail)
        going = any(walk.state is not RollingState.OVER for walk in told.maintenance.walks)
        known = [self._operations.get(operation.id) for operation in told.operations]
        return not going and all(one is not None and one.status.over for one in known)

    def _pause(self, seconds: float) -> None:
        until = clock.monotonic() + seconds
        self._until(lambda: clock.monotonic() >= until, "time stood still")

    def _until(self, true: Callable[[], bool], otherwise: str, limit: float = STEP_LIMIT) -> None:
        deadline = clock.monotonic() + limit
        while not true():
            if clock.monotonic() > deadline:
                raise self._failed(f"{otherwise} after {limit:g} s")
            self._nap.wait(LOOK_EVERY)
            self._look()

    def _look(self) -> None:
        """Look at everything, and tell what is new."""
        self._world.look()
        page = self._world.operator.get("/v1/history", limit=HISTORY).read(schemas.HistoryPage)
        for operation in reversed(page.operations):
            before = self._operations.get(operation.id)
            if before is None:
                self._announced[operation.id] = clock.monotonic()
            self._operations[operation.id] = operation
            for line in stage.news(before, operation):
                self._shown.tell(line)
        self._tell_states()
        self._shown.paint(self._world)

    def _tell_states(self) -> None:
        """Tell which machines are something else now; not yet while everything starts."""
        if self._world.began is None:
            return
        for name, seen in self._world.seen.items():
            if seen.state is not None and seen.state is not self._told.get(name, State.SERVING):
                self._shown.tell(f"  {name} is {seen.state}")
            self._told[name] = seen.state

    def _result(self) -> Round:
        world = self._world
        machines = [seen.machine for seen in world.seen.values()]
        for machine in machines:
            machine.changes = [
                Change(round(world.since(change.at), 3), change.state) for change in machine.changes
            ]
        page = world.operator.get("/metrics").body.decode()
        taken = APPROVALS_TAKEN.search(page)
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

    def _event(self, operation: schemas.Operation) -> Event:
        (event,) = operation.events
        return Event(
            operation=operation.id,
            machines=event.machines,
            approved_by=event.approval.by if event.approval else "",
            guests_word=bool(event.approval and event.approval.kind is ApproverKind.GUEST),
            status=operation.status,
            at=round(self._world.since(self._announced[operation.id]), 3),
        )

    def _failed(self, what: str) -> Failed:
        return Failed(ExitStatus.DEMO_FAILED, f"the demo went wrong: {what}")
