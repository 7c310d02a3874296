"""The service of an emulator: the harness's rules, with the guest plane in front of them.

Maintenance that has started lasts as long as the simulated connector's, unless a test ends it
before. A machine that has asked once counts as asking on while the clock is moved: in real time it
polls a few times at most while fifteen minutes pass. Used on the emulator's thread alone.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from forewarn.connectors import simulated
from forewarn.connectors.port import Outcome
from forewarn.maintenance.fleet_file import Fleet
from forewarn.maintenance.model import (
    Approval,
    Changes,
    Enablement,
    Operation,
    Refused,
    Sighting,
    key,
)
from forewarn.protocol import codec
from forewarn.server.guest.plane import GuestPlane
from forewarn.server.settings import RulesSettings, Settings
from forewarn.server.sockets import HandedOver
from forewarn.store.port import HistoryQuery
from forewarn.store.sqlite import InMemoryStore
from forewarn.testing.faults import MAX_SECONDS, Concerns
from forewarn.testing.harness import Harness, Run
from forewarn.testing.record import RecordedAnswer
from forewarn.testing.wire import Exchange, PeerArrival, Wire
from forewarn.vocabulary import ErrorCode, EventStatus

BACK: Final = timedelta(days=3650)
"""The time for a machine to ask again: a test's clock says nothing about a real handler's."""

EVERY: Final = 10**9
"""More operations than an emulator has."""

INSTANT: Final = timedelta(microseconds=1)

FORWARD_BYTES: Final = 64 * 1024

MAX_STEPS: Final = 100_000
"""The most ends of maintenance that one wait passes; more is a fault of the rules."""

_NOT_ENDED: Final = {
    EventStatus.QUEUED: "it waits for maintenance that comes before it",
    EventStatus.SCHEDULED: "it starts once a machine approves it, or at its NotBefore",
    EventStatus.RETURNING: "it has ended already, and is gone once its machines ask for events",
}
"""Why maintenance that has not started, or has ended, cannot be ended."""

DELAYED_TURNS: Final = 10
"""Turns of the loop from the end of a first answer's delay to the answer: six, and some to spare.
Everything else happens in the turn that it is due in."""


class EmulatedService(Harness):
    """A fleet, its rules and its guest plane on a loopback port."""

    def __init__(
        self,
        rules: RulesSettings,
        beginning: datetime,
        store: InMemoryStore,
        run: Run,
        on_news: Callable[[], None],
    ) -> None:
        self._guests: GuestPlane | None = None
        self._calls: list[tuple[timedelta, Callable[[], None]]] = []
        self.times_read = 0
        """The number of times that handlers have read the document that is replayed."""
        self.approved: dict[str, Approval] = {}
        """The first approvals by the event's id, in the order in which they came."""
        self._asked: dict[str, datetime] = {}
        """Times of the latest requests, by the machine's key."""
        self._ends: dict[str, timedelta] = {}
        """Times at which started operations end by themselves, by operation."""
        self._listening: dict[str, datetime] = {}
        """Times until which machines count as asking on, by key."""
        self._on_news = on_news
        self._is_following = False
        self._servers: list[asyncio.Server] = []
        self.fault: BaseException | None = None
        """An error where nobody waits for an answer."""
        rules = msgspec.structs.replace(rules, back_seconds=BACK.total_seconds())
        self.settings = Settings(rules=rules)
        self._chain = 0 if rules.enablement == Enablement.ALWAYS.value else DELAYED_TURNS
        super().__init__(Fleet(), rules.policy, beginning=beginning, store=store, run=run)

    async def open(self, port: int) -> int:
        """Open the port, 0 for any free one; return its number."""
        settings = self.settings
        guests = self._guests = GuestPlane(
            listeners=(),
            limits=settings.guest,
            rules=settings.guest_rules,
            backend=self.plane,
            time=self.clock,
            wall=self.clock,
            request_time=self.clock,
            on_turn=lambda _: None,  # a test may stop in a debugger: that is no outage
            mint=self._mint,
            handed_over=HandedOver(),
        )
        self.control.feed.subscribe(guests.learn)
        self.control.feed.subscribe(self._learn)
        await guests.open()
        self.wire = Wire(
            guests=guests,
            clock=self.clock,
            tell=self._note_answer,
            call_later=self._call_later,
        )
        try:
            opened = socket.create_server(("127.0.0.1", port))
        except OSError:
            await self.close()
            raise
        number: int = opened.getsockname()[1]
        await self.listen(opened)
        return number

    async def listen(self, opened: socket.socket) -> None:
        """Serve the connections to a listening socket."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: PeerArrival(self.wire), sock=opened)
        self._servers.append(server)

    async def forward(self, opened: socket.socket, port: int) -> None:
        """Forward the connections of a listening socket to a port of 127.0.0.1."""

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(FORWARD_BYTES):
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                back, onward = await asyncio.open_connection("127.0.0.1", port)
            except OSError:  # nobody listens there: the handler finds that out
                writer.close()
                return
            await asyncio.gather(pump(reader, onward), pump(back, writer))

        self._servers.append(await asyncio.start_server(connect, sock=opened))

    async def close(self) -> None:
        """Close the port and every connection."""
        for server in self._servers:
            server.close()
        self.guests.suspend()
        await self.guests.close()

    async def settle(self) -> None:
        """Wait until all changes have reached the clients that wait for them."""
        quiet = 0
        while quiet <= self._chain:
            busy = self.guests.is_waking or self._is_following or self.wire.pending
            quiet = 0 if busy else quiet + 1
            await asyncio.sleep(0)  # the loop's next turns are what is waited for
        if self.fault is not None:
            raise self.fault

    # What follows from a request or a change.

    def _learn(self, changes: Changes) -> None:
        for operation in changes.operations:
            for event in operation.events:
                if event.approval is not None:
                    self.approved.setdefault(event.id, event.approval)
            if operation.status is EventStatus.RETURNING:
                # It need not wait for the end of its waiting request to ask again.
                asyncio.get_running_loop().call_soon(self.guests.ask_again, operation)
        self._follow_soon()

    def end_waits(self) -> None:
        """Answer every waiting request, as at the end of its wait."""
        self.guests.end_waits([*self.guests.machines])

    def _follow_soon(self) -> None:
        if not self._is_following:
            self._is_following = True
            asyncio.get_running_loop().call_soon(self._follow)

    def _follow(self) -> None:
        self._is_following = False
        with self._kept_fault():
            self.follow_up()
        self._on_news()

    @contextlib.contextmanager
    def _kept_fault(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - the next call of the test raises it
            self.fault = self.fault or error

    def observe(self, observe: Callable[[Exchange], None]) -> None:
        """Call `observe` with each request before it is answered."""

        def observe_safely(exchange: Exchange) -> None:
            with self._kept_fault():
                observe(exchange)

        self.wire.observe = observe_safely

    def _note_answer(self, exchange: Exchange) -> None:
        is_polling = exchange.was_read and exchange.concerns is not Concerns.INSTANCE
        if is_polling and exchange.status in {0, 200, 304}:
            self._asked[exchange.machine] = exchange.at
        self._follow()

    def sighting(self, machine_key: str) -> Sighting | None:
        """Return the latest requests of a machine.

        A request in the very instant in which maintenance ended came after that: maintenance always
        lasts for a while.
        """
        seen = self._guests.seen(machine_key) if self._guests is not None else None
        asked_at = self._asked.get(machine_key)
        if seen is None or asked_at is None:
            return None
        latest = max(asked_at + INSTANT, self._listening.get(machine_key, asked_at))
        return msgspec.structs.replace(seen, asked_at=latest)

    # Time.

    def _call_later(self, seconds: float, act: Callable[[], None]) -> None:
        self._calls.append((self.elapsed + timedelta(seconds=seconds), act))

    def _next_wakeup(self) -> timedelta | None:
        known = super()._next_wakeup()
        ends = [*self._ends.values(), *(at for at, _ in self._calls)]
        return min([*ends, *([known] if known is not None else [])], default=None)

    def _pass(self, until: timedelta) -> None:
        super()._pass(until)
        if self._guests is None:
            return
        self._guests.note_jump()
        down = {
            key(name)
            for operation in self.live()
            if operation.status in {EventStatus.STARTED, EventStatus.RETURNING}
            for name in operation.machines
        }
        now = self.clock.now()
        for machine in self._guests.machines:
            if machine not in down and self._guests.seen(machine) is not None:
                self._listening[machine] = now

    def _tick(self) -> None:
        for operation in [name for name, end in self._ends.items() if end <= self.elapsed]:
            self.end(operation, Outcome(succeeded=True))
        super()._tick()
        due = [act for at, act in self._calls if at <= self.elapsed]
        self._calls = [call for call in self._calls if call[0] > self.elapsed]
        for act in due:
            act()

    def _claim(self) -> None:
        super()._claim()
        started = {o.id: o for o in self.live() if o.status is EventStatus.STARTED}
        for name in started.keys() - self._ends.keys():
            operation = started[name]
            assert operation.started_at is not None
            lasts = simulated.DURATIONS[operation.event_type]
            self._ends[name] = operation.started_at + lasts - self.beginning

    def end(self, operation: str, outcome: Outcome) -> None:
        """End an operation that has started, with an outcome."""
        self._ends.pop(operation, None)
        self.report(operation, outcome)

    @staticmethod
    def length(seconds: float) -> timedelta:
        """Return a span by which the clock may go on; ValueError if it would go back."""
        if not 0 <= seconds <= MAX_SECONDS:
            raise ValueError(f"invalid span {seconds!r}: expected 0 to {MAX_SECONDS} seconds")
        return timedelta(seconds=seconds)

    # What a test asks for.

    @property
    def guests(self) -> GuestPlane:
        """The guest plane, once it is open."""
        assert self._guests is not None
        return self._guests

    @property
    def tasks_running(self) -> int:
        """The number of operations that are being carried out."""
        return len(self._ends)

    def live(self) -> list[Operation]:
        """Return the operations that are not over."""
        return list(self.look(lambda reading: reading.live_operations()).values())

    def operations(self) -> list[Operation]:
        """Return every operation that there ever was, in the order of their announcement."""
        page = self.look(lambda reading: reading.history(HistoryQuery(limit=EVERY)))
        return list(reversed(page.operations))

    def started(self, operation: str) -> list[str]:
        """Return an operation that has started and has not ended; `""` is for all of them.

        Raises:
            Refused: It is not so, or there is none.
        """
        found = [name for name in self._ends if operation in {"", name}]
        if found:
            return found
        known = [each for each in self.operations() if operation in {"", each.id}]
        if not known:
            message = f"no operation {operation!r}" if operation else "no maintenance was scheduled"
        else:
            latest = next((each for each in reversed(known) if not each.status.over), known[-1])
            hint = _NOT_ENDED.get(latest.status, "it is over")
            message = f"nothing to end: {latest.id} is {latest.status}: {hint}"
        raise Refused(ErrorCode.CONFLICT, message, operation=operation)

    def finish(self, operation: str) -> None:
        """Advance the clock to an operation's successful end; `""` for all that have started."""
        for name in self.started(operation):
            self.run_until(max(self.elapsed, self._ends.get(name, self.elapsed)))

    def fail(self, operation: str, reason: str) -> None:
        """Fail an operation now; `""` for all that have started."""
        for name in self.started(operation):
            self.end(name, Outcome(succeeded=False, message=reason))

    def replay(self, answer: RecordedAnswer) -> None:
        """Answer requests for events with a recorded document from now on, and take approvals."""
        began, date = self.clock.now(), answer.date
        self.times_read = 0

        def give(exchange: Exchange) -> bytes:
            if exchange.concerns is Concerns.APPROVALS:
                return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
            self.times_read += 1
            now = self.clock.now() if date is None else date + (self.clock.now() - began)
            return answer.message(codec.http_date(now).decode())

        self.wire.replay = give

    def work_off(self) -> list[str]:
        """Carry out the started operations as far as possible; return what is awaited then."""
        for _ in range(MAX_STEPS):
            # A failed one is over for handlers: only operators have something to do.
            live = [o for o in self.live() if o.status is not EventStatus.FAILED]
            if not live:
                return []
            if self._ends:
                self.run_until(max(self.elapsed, min(self._ends.values())))
            elif all(o.status is EventStatus.QUEUED for o in live):
                due = self._next_wakeup()
                if due is None:
                    return [_awaited(o) for o in live]
                self.run_until(max(self.elapsed, due))
            else:
                return [_awaited(o) for o in live]
        raise AssertionError(f"maintenance is still going on after {MAX_STEPS} steps")


def _awaited(operation: Operation) -> str:
    what = f"{operation.event_type} of {', '.join(operation.machines)} ({operation.id})"
    if operation.status is EventStatus.SCHEDULED:
        if operation.held_at is not None:
            return f"{what} is held"
        return f"{what} waits for {operation.waits_for or 'an approval'}"
    if operation.status is EventStatus.RETURNING:
        return f"{what} waits until {', '.join(operation.awaited)} asks for events again"
    return f"{what} is {operation.status}"
