"""The harness of scenarios: guests that ask and approve, a server that dies, a judge that looks on.

A guest sees the rendered document, decoded as a client decodes it. A server that is killed, also
during a commit, has what was committed when it starts again, and nothing else.
"""

import contextlib
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

import stories
from control.conftest import Counting, nothing, raising
from forewarn.connectors.port import Outcome
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ClockJumped
from forewarn.maintenance import alerts, model, planner
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.invariants import InvariantBroken
from forewarn.maintenance.model import Changes, Machine, Policy, Sighting, StartCause
from forewarn.protocol import codec
from forewarn.protocol.codec import AgentReport, Listing
from forewarn.protocol.versions import NEWEST_VERSION, Version
from forewarn.server.guest.documents import DocumentCache
from forewarn.store.port import Position
from forewarn.testing.harness import CLAIMS, Harness
from trace_judge import Trace

BEGINNING: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
"""The time of day at which every scenario begins."""

Answer = TypeVar("Answer")


class ServerKilled(Exception):  # noqa: N818 - what happened, not a mistake
    """The server died before the commit: nobody got an answer, and nothing changed."""


class Impossible(Exception):  # noqa: N818 - the fault of a line, told with its number
    """A line needs something that does not exist, or a server that is up or down."""


class MortalHouse(Harness):
    """A fleet, a server that can be killed, its guests and the judge."""

    def __init__(self, fleet: Fleet, policy: Policy, *, dies_often: bool = False) -> None:
        self.mortal = Counting()
        self._dies_often = False
        self._position = Position()
        self.up = False
        """Whether the server runs."""
        self._trace = Trace()
        self._operations: dict[str, model.Operation] = {}
        self._sightings: dict[str, Sighting] = {}
        """What the machines' requests told last, by key: as of the last heartbeat in the store."""
        self.audiences: dict[str, alerts.Audience] = {}
        super().__init__(
            fleet, policy, beginning=BEGINNING, store=self.mortal, run=stories.on_a_loop
        )
        self._dies_often = dies_often

    # The server.

    def start(self) -> None:
        """Start the server from what was committed."""
        if self.up:
            raise Impossible("the server is already running")
        now, self._documents = self.clock.now(), DocumentCache()
        for machine, seen in self._sightings.items():  # as `Transaction.set_back`
            asked_at = min(seen.asked_at, now)
            self._sightings[machine] = msgspec.structs.replace(seen, asked_at=asked_at)
        self.up = True
        super().start()

    def kill(self) -> None:
        """End the server at once, in the instant of its last heartbeat: its memory is gone."""
        self.need_server()
        self.mortal.before_commit = nothing
        self.control.heartbeat.stop()
        self._run(self.control.heartbeat.run())
        self.up = False

    def _die(self) -> None:
        """Kill the server that has changed anything since it started; it is back at once."""
        if not self._dies_often or self.look(lambda reading: reading.position()) == self._position:
            return
        self._dies_often = False
        self.kill()
        self.start()
        self._position = self.look(lambda reading: reading.position())
        self._dies_often = True

    def doom(self) -> None:
        """Have the server die just before its next commit."""
        self.mortal.before_commit = raising(ServerKilled())

    def jump(self, by: timedelta) -> None:
        """Set the wall clock; a running server that sees it jump ends, and is started again."""
        self.clock.jump(by)
        if not self.up:
            return
        try:
            self.watch.look()
        except ClockJumped:
            self.kill()
            self.start()
        else:
            self._tick()

    def need_server(self) -> None:
        """Refuse what only a running server can do."""
        if not self.up:
            raise Impossible("the server is down: nobody answers")

    def ask(self, question: Callable[[Plane], "Future[Answer]"]) -> Answer:
        """Ask the plane of a running server, which may die of it."""
        self.need_server()
        try:
            return super().ask(question)
        except ServerKilled:
            self.kill()
            raise

    def _tick(self) -> None:
        with contextlib.suppress(ServerKilled):
            super()._tick()

    def _next_wakeup(self) -> timedelta | None:
        return super()._next_wakeup() if self.up else None

    # The judge.

    def follow_up(self) -> None:
        """Follow up, and end the scenario if the judge has a complaint."""
        self._die()
        super().follow_up()
        self._die()
        if self._trace.complaints:
            raise InvariantBroken(self._trace.complaints[0])

    def learn(self, changes: Changes) -> None:
        """Check what the guests' documents and the operations have become."""
        self._documents.learn(changes)
        for operation in changes.operations:
            self._trace.changed(self._operations.get(operation.id), operation)
            self._operations[operation.id] = operation
        for scope in changes.scopes:
            events = codec.decode_listing(self._documents.page(scope.key, NEWEST_VERSION).body)
            self._trace.read("a guest", scope.key, scope.incarnation, events.events)
            if self.policy.queues(scope):
                ids = {event.event_id for event in events.events}
                self._trace.shown("a guest", scope.key, self._taken(ids))

    def _taken(self, ids: Collection[str]) -> list[tuple[str, int]]:
        """Return the operations of these events that wait for other domains, and their domains."""
        return [
            (operation.id, event.update_domain)
            for operation in self._operations.values()
            if operation.event_type not in planner.ALL_DOMAINS_AT_ONCE
            and operation.start_cause is not StartCause.NO_NOTICE
            for event in operation.events
            if event.id in ids
        ]

    # The guests.

    def sighting(self, machine_key: str) -> Sighting | None:
        return self._sightings.get(machine_key)

    def record_request(self, machine: Machine, report: AgentReport | None = None) -> None:
        """Have a guest ask for its events, which turns its scope on.

        Its agent says a report with it; None leaves its last word as it is.
        """
        self.need_server()
        now = self.watch.now().replace(microsecond=0)
        known = self._sightings.get(model.key(machine.name))
        seen = known or Sighting(asked_at=now, version=NEWEST_VERSION.name)
        if report is not None:
            seen = msgspec.structs.replace(seen, agent=report.status, reason=report.reason)
        self._sightings[model.key(machine.name)] = msgspec.structs.replace(seen, asked_at=now)
        self.ask(lambda plane: plane.record_requests([machine.scope]))

    def approve(self, machine: Machine, operations: Sequence[str]) -> None:
        """Approve as a guest does: by ids, in a request that is decoded."""
        ids: list[str] = []
        for operation_id in operations:
            operation = self.operation(operation_id)
            assert operation is not None, operation_id
            every = (*operation.events, *operation.dropped)
            own = [event.id for event in every if event.scope == machine.scope]
            ids.extend(own or [event.id for event in operation.events])
        if not operations:
            ids = [e.event_id for e in self.document(machine.scope, NEWEST_VERSION).events]
            if not ids:
                raise Impossible(f"{machine.name} sees no event to approve")
        sent = codec.decode_start_requests(codec.encode_start_requests(ids))
        self.ask(lambda plane: plane.approve(machine.scope, sent, by=machine.name, address=""))

    def document(self, scope: str, version: Version) -> Listing:
        """Return the document of a scope as a client of this version reads it."""
        self.need_server()
        return codec.decode_listing(self._documents.page(scope, version).body)

    # What there is to see.

    def machine(self, name: str) -> Machine:
        """Return a machine by its name."""
        return self.look(lambda reading: reading.machines()[model.key(name)])

    def end(self, operation: str, outcome: Outcome, attempt: int | None) -> None:
        """Report a task as the connector does."""
        self.report(operation, outcome, attempt)

    def attempt(self, operation: str) -> int:
        """Return the number of the connector's latest attempt."""
        return self._tasks[operation].attempt

    def alerts(self) -> list[alerts.Alert]:
        """Return the alerts."""
        with self.store.read() as reading:
            failed = reading.unacknowledged_failures(CLAIMS)
            return alerts.items(
                {**reading.live_operations(), **failed}.values(),
                reading.open_maintenances().values(),
                reading.holds(),
                self.audiences,
                self.watch.now(),
                up_since=self.beginning,
            )
