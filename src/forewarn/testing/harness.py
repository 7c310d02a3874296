"""A service without sockets: the real plane, store and documents, and a clock that stands still.

It can be killed, also during a commit, and started again: then it has what was committed, and
nothing else. A guest sees the rendered document, decoded as a client decodes it.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome, Task
from forewarn.control.changefeed import Changefeed
from forewarn.control.heartbeat import Heartbeat
from forewarn.control.outbox import everything, known_of
from forewarn.control.plane import Plane
from forewarn.control.service_clock import ClockJumped, ServiceClock
from forewarn.control.ticker import ReturnWatch
from forewarn.control.writer import InlineWriter
from forewarn.maintenance import alerts, model, planner
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.invariants import InvariantBroken
from forewarn.maintenance.model import Changes, Machine, Operation, Policy, Sighting, StartCause
from forewarn.protocol import codec
from forewarn.protocol.codec import AgentReport, Listing
from forewarn.protocol.versions import NEWEST_VERSION, Version
from forewarn.server.guest.documents import Documents
from forewarn.store import memory
from forewarn.store.port import Reading, Transaction
from forewarn.testing.faults import Fault
from forewarn.testing.invariants import Trace
from forewarn.testing.record import RecordedAnswer

BEGINNING: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
"""The time of day at which every scenario begins."""

LEASE: Final = timedelta(days=3650)
"""The connector of a scenario lives as long as its server: its leases do not expire."""

CLAIMS: Final = 1000
"""The most tasks that are claimed at once."""

MAX_WAKEUPS: Final = 100_000
"""The most wake-ups of the ticker between two lines; more is a fault of the rules."""

Answer = TypeVar("Answer")

Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]
"""Runs a coroutine to its end."""


class ServerKilled(Exception):  # noqa: N818 - what happened, not a mistake
    """The server died before the commit: nobody got an answer, and nothing changed."""


class Impossible(Exception):  # noqa: N818 - the fault of a line, told with its number
    """A line needs something that does not exist, or a server that is up or down."""


class _MortalStore(memory.MemoryStore):
    """A store whose process can die just before a commit."""

    doomed = False

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """Open a transaction that is lost if the process is to die."""
        with super().write() as transaction:
            yield transaction
            if self.doomed:
                raise ServerKilled


class Harness:
    """A fleet, its server and the time."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        *,
        beginning: datetime = BEGINNING,
        run: Run = asyncio.run,
    ) -> None:
        self.clock = ManualClock(beginning)
        self.beginning = self.origin = beginning
        """What the times of a scenario count from is the origin."""
        self.elapsed = timedelta()
        self._run = run
        self._tasks: dict[str, Task] = {}
        self._sightings: dict[str, Sighting] = {}
        """What the machines' requests told last, by key: as of the last heartbeat in the store."""
        self._policy = policy
        self._trace = Trace()
        self.store = _MortalStore()
        numbers = itertools.count(1)
        # Letters, too: whoever compares ids with regard to case is to be found out.
        self._mint: Callable[[], str] = lambda: f"{next(numbers):08x}-abcd-4000-8000-000000000000"
        self._doomed = False
        self.up = False
        """Whether the server runs."""
        self.start()
        self.ask(lambda plane: plane.apply_fleet(fleet))

    def start(self) -> None:
        """Start the server from its store, in the order of the real service."""
        if self.up:
            raise Impossible("the server is already running")
        feed = self.feed = Changefeed()
        loop_time = ManualClock(self.beginning)  # it stands still: the loop is never held up
        self._watch = ServiceClock(self.clock, loop=loop_time)
        writer = InlineWriter(self.store, self._watch, feed)
        plane = Plane(
            writer,
            self._mint,
            self._policy,
            may_start=self._watch.may_start,
            listening=self._watch.listening,
            sighting=self.sighting,
        )
        self._returns = ReturnWatch(plane, self._watch, self.sighting, lambda _: None)
        self.heartbeat = Heartbeat(plane, self._watch, loop_time)
        for machine, seen in self._sightings.items():  # as `Transaction.set_back`
            asked_at = min(seen.asked_at, self._watch.now())
            self._sightings[machine] = msgspec.structs.replace(seen, asked_at=asked_at)
        self._run(self.heartbeat.begin())
        plane.release_claims().result()
        self._documents = Documents()
        with self.store.read() as reading:
            known = everything(known_of(reading))
        self._operations = {operation.id: operation for operation in known.operations}
        for learn in (self._documents.learn, self._returns.learn):
            learn(known)
            feed.subscribe(learn)
        self._returns.begin()
        feed.subscribe(self._judge)
        self._watch.open()
        self.plane = plane
        self.up = True
        self._tick()

    def sighting(self, machine_key: str) -> Sighting | None:
        """Return what a machine's requests told last, None if it has not asked."""
        return self._sightings.get(machine_key)

    def _judge(self, changes: Changes) -> None:
        """Check what the guests' documents and the operations have become by a commit."""
        for operation in changes.operations:
            self._trace.changed(self._operations.get(operation.id), operation)
            self._operations[operation.id] = operation
        for scope in changes.scopes:
            page = self._documents.page(scope.key, NEWEST_VERSION)
            events = codec.decode_listing(page.body).events
            self._trace.read("a guest", scope.key, scope.incarnation, events)
            if self._policy.queues(scope):
                ids = {event.event_id for event in events}
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

    def kill(self) -> None:
        """End the server at once, in the instant of its last heartbeat: its memory is gone."""
        if not self.up:
            raise Impossible("the server is already down")
        self._doomed = self.store.doomed = False
        self.heartbeat.stop()
        self._run(self.heartbeat.run())
        self.up = False

    def doom(self) -> None:
        """Let the server die just before its next commit."""
        self._doomed = True

    def ask(self, question: Callable[[Plane], "Future[Answer]"]) -> Answer:
        """Ask the plane, look for machines that are back, and let the connector claim tasks."""
        self._need_server()
        self.store.doomed = self._doomed
        try:
            answer = question(self.plane).result()
        except ServerKilled:
            self.kill()
            raise
        finally:
            self.store.doomed = False
        self.follow_up()
        return answer

    def follow_up(self) -> None:
        """Let the connector claim tasks and look for machines that are back."""
        self._claim()
        if news := self._returns.take_news():
            self.plane.record_returns(news).result()
            self._claim()
        if self._trace.complaints:
            raise InvariantBroken(self._trace.complaints[0])

    def record_request(self, machine: str, report: AgentReport | None = None) -> None:
        """Let a guest ask for its events, which turns its scope on.

        Its agent says a report with it; None leaves its last word as it is.
        """
        scope = self._scope_of(machine)
        self._need_server()
        now = self._watch.now().replace(microsecond=0)
        known = self._sightings.get(model.key(machine))
        seen = known or Sighting(asked_at=now, version=NEWEST_VERSION.name)
        if report is not None:
            seen = msgspec.structs.replace(seen, agent=report.status, reason=report.reason)
        self._sightings[model.key(machine)] = msgspec.structs.replace(seen, asked_at=now)
        self.ask(lambda plane: plane.record_requests([scope]))

    def approve(self, machine: str, operations: Sequence[str]) -> None:
        """Approve as a guest does: by ids, in a request that is decoded."""
        scope = self._scope_of(machine)
        ids: list[str] = []
        for operation_id in operations:
            operation = self.operation(operation_id)
            if operation is None:
                raise Impossible(f"there is no operation {operation_id} to approve")
            own = [event.id for event in operation.events if event.scope == scope]
            ids.extend(own or [event.id for event in operation.events])
        if not operations:
            ids = [event.event_id for event in self.reads(scope, NEWEST_VERSION).events]
            if not ids:
                raise Impossible(f"{machine} sees no event to approve")
        sent = codec.decode_start_requests(codec.encode_start_requests(ids))
        self.ask(lambda plane: plane.approve(scope, sent, by=machine, address=""))

    def report(self, operation: str, outcome: Outcome, attempt: int | None) -> None:
        """Let the connector report a task, the latest attempt unless one is named."""
        task = self._tasks.get(operation)
        if task is None:
            raise Impossible(f"the connector has no task for {operation}")
        number = task.attempt if attempt is None else attempt
        self.ask(lambda plane: plane.finish(operation, number, outcome))

    def _scope_of(self, name: str) -> str:
        machine = self.machine(name)
        if machine is None:
            raise Impossible(f"there is no machine {name}")
        return machine.scope

    def run_until(self, moment: timedelta, *, inclusive: bool) -> Iterator[None]:
        """Let time pass to a moment, and tick in it if inclusive; yield after each turn."""
        for _ in range(MAX_WAKEUPS):
            due = self._next_wakeup()
            if due is None or due > moment or (due == moment and not inclusive):
                self._pass(moment)
                return
            self._pass(max(due, self.elapsed))
            with contextlib.suppress(ServerKilled):
                self._tick()
            yield
        raise AssertionError(f"the ticker is not done with {moment} after {MAX_WAKEUPS} wake-ups")

    def jump(self, by: timedelta) -> None:
        """Set the wall clock; a running server that sees it jump ends, and is started again."""
        self.clock.jump(by)
        if self.up:
            try:
                self._watch.look()
            except ClockJumped:
                self.kill()
                self.start()
            else:
                self._tick()

    def reads(self, scope: str, version: Version) -> Listing:
        """Return the document of a scope as a client of this version reads it."""
        self._need_server()
        return codec.decode_listing(self._documents.page(scope, version).body)

    def look(self, question: Callable[[Reading], Answer]) -> Answer:
        """Return what the store answers, as it was committed."""
        with self.store.read() as reading:
            return question(reading)

    def machine(self, name: str) -> Machine | None:
        """Return a machine by its name, None if there is none."""
        return self.look(lambda reading: reading.machines().get(model.key(name)))

    def operation(self, operation_id: str) -> Operation | None:
        """Return an operation, None if there is none."""
        return self.look(lambda reading: reading.operations([operation_id]).get(operation_id))

    def current_alerts(self) -> list[alerts.Alert]:
        """Return the alerts."""
        with self.store.read() as reading:
            failed = reading.unacknowledged_failures(CLAIMS)
            return alerts.items(
                [*reading.live_operations().values(), *failed.values()],
                reading.open_maintenances().values(),
                reading.holds(),
                {},
                self._watch.now(),
                up_since=self.beginning,
            )

    def replay(self, answer: RecordedAnswer) -> None:
        """Refuse: no handler is there to get it."""
        raise Impossible(f"no handler to get {len(answer.body)} characters: use an emulator")

    def has_read(self, machine: str) -> str:
        """Refuse: no handler is there to read."""
        raise Impossible(f"no handler of {machine} to read anything: use an emulator")

    def add_faults(self, wanted: list[Fault]) -> None:
        """Refuse: nothing is between the guests of a scenario and their server."""
        raise Impossible(f"no network to have faults ({wanted[0].kind}): use an emulator")

    def _need_server(self) -> None:
        if not self.up:
            raise Impossible("the server is down: nobody answers")

    def _next_wakeup(self) -> timedelta | None:
        if not self.up or not self._watch.may_start():
            return None
        wakeup = self.plane.next_wakeup().result()
        return None if wakeup is None else self.elapsed + (wakeup - self._watch.now())

    def _pass(self, until: timedelta) -> None:
        self.clock.advance(until - self.elapsed)
        self.elapsed = until

    def _tick(self) -> None:
        self.ask(lambda plane: plane.advance())

    def _claim(self) -> None:
        while tasks := self.plane.claim("connector", LEASE, CLAIMS).result():
            self._tasks.update({task.operation: task for task in tasks})
