"""The emulator's tap in its guest plane: each request and each answer passes here.

So every exchange is recorded, and meets its fault. All of it runs on the emulator's thread.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from forewarn.clock import Clock
from forewarn.maintenance import model
from forewarn.protocol import exchange
from forewarn.server import sockets
from forewarn.server.guest import machines
from forewarn.server.guest.connection import Connection
from forewarn.server.guest.http import Head
from forewarn.server.guest.plane import GuestPlane
from forewarn.testing import faults
from forewarn.testing.faults import Concerns, Fault, FaultKind, FaultPlan

HEADER_WARNING: Final = (
    "it sends 'Metadata' with another value than 'true': since February 2026 parts of Azure answer "
    "400 to 'True'"
)
"""The service takes it, and so does the emulator (protocol.md section 3, rule 1)."""

MAX_EXCHANGES: Final = 10_000
"""The exchanges that are kept, the latest ones: hours of a handler that polls once a second."""


class Exchange(msgspec.Struct, kw_only=True):
    """A request of a handler, and its answer."""

    at: datetime
    """When the request was complete, by the emulator's clock."""
    machine: str
    """The key of the machine that the request names or comes from; `""` for none."""
    method: str
    target: str
    """Path and query, as they were sent."""
    headers: tuple[tuple[str, str], ...]
    body: bytes
    status: int = 0
    """The status of the answer; 0 while there is none."""
    answer: bytes = b""
    fault: str = ""
    """The kind of the fault that it met; `""` for none."""
    was_read: bool = False
    """True if the endpoint has read it; False if a fault kept it away."""

    @property
    def concerns(self) -> Concerns:
        """The kind of its request."""
        asked = exchange.read_target(self.target.encode("latin-1"))
        if asked is None or asked.resource is not exchange.Resource.EVENTS:
            return Concerns.INSTANCE
        return Concerns.APPROVALS if self.method == "POST" else Concerns.EVENTS

    @property
    def warning(self) -> str:
        """A fault that Azure may refuse although it is accepted here; `""` for none."""
        said = [value for name, value in self.headers if name.lower() == "metadata"]
        values = [each.strip() for value in said for each in value.split(",")]
        is_taken = any(value.lower() == "true" for value in values)
        return HEADER_WARNING if is_taken and "true" not in values else ""


@dataclass(eq=False, repr=False, kw_only=True)
class Wire:
    """The state that all connections share: the record of their exchanges, and the default machine.

    `tell` is called when an answer is there, before it goes out; and when a request begins to
    wait for its answer, or gets none.
    """

    guests: GuestPlane
    clock: Clock
    tell: Callable[[Exchange], None]
    call_later: Callable[[float, Callable[[], None]], None]
    observe: Callable[[Exchange], None] | None = None
    """Called with each request before it is answered."""
    default_machine: str = ""
    """The key of the machine that sends requests whose path names none."""
    faults: FaultPlan = field(default_factory=FaultPlan)
    replay: Callable[[Exchange], bytes] | None = None
    """The source of answers to requests for events, and approvals, in place of the guest plane."""
    exchanges: deque[Exchange] = field(default_factory=lambda: deque(maxlen=MAX_EXCHANGES))
    pending: int = 0
    """The number of answers that are about to go out."""

    def __post_init__(self) -> None:
        """Meet each request of the guest plane."""
        self.guests.tap(self.meet)

    def bring(self, wanted: list[Fault]) -> None:
        """Add faults that come one after another; ValueError for a machine that does not exist."""
        for name in {fault.machine for fault in wanted} - {""}:
            if model.key(name) not in self.guests.machines:
                raise ValueError(f"no machine named {name!r}: add it before its faults")
        self.faults.add(wanted)

    def later(self, act: Callable[[], None]) -> None:
        """Do something towards a handler after all that the guest plane does now, in this order."""
        self.pending += 1
        asyncio.get_running_loop().call_soon(self._act, act)

    def _act(self, act: Callable[[], None]) -> None:
        self.pending -= 1
        act()

    def connect(self, host: str) -> Connection:
        """Return a connection of the guest plane for a peer."""
        address = machines.normalised(host)
        source = machines.Source(
            address=address,
            vm_paths=True,
            default_vm=self.default_machine,
        )
        return self.guests.connection(source)

    def meet(self, connection: Connection, head: Head, body: bytes) -> "_RecordedRequest":
        """Record a request, and apply its fault."""
        # A connection may be older than the choice of the machine.
        source = connection.source
        connection.source = msgspec.structs.replace(source, default_vm=self.default_machine)
        noted = self._record(head, body)
        fault = self.faults.next(noted.concerns, noted.machine)
        met = _RecordedRequest(self, connection, noted, fault)
        met.begin(head)
        return met

    def _record(self, head: Head, body: bytes) -> Exchange:
        asked = exchange.read_target(head.target)
        named = None if asked is None else asked.machine
        made = Exchange(
            at=self.clock.now(),
            machine=self.default_machine if named is None else model.key(named),
            method=_text(head.method),
            target=_text(head.target),
            headers=tuple((_text(name), _text(value)) for name, value in head.headers),
            body=body,
        )
        self.exchanges.append(made)
        if self.observe is not None:
            self.observe(made)
        return made


@dataclass(eq=False, repr=False)
class _RecordedRequest:
    """A request with its record and the fault that it meets."""

    _wire: Wire
    _connection: Connection
    _exchange: Exchange
    _fault: Fault | None
    is_held: bool = True
    seconds: float = math.inf
    """The emulator's clock ends the wait."""
    _is_answered: bool = False
    """True once the plane has answered it, though the answer may still be on its way."""

    def begin(self, head: Head) -> None:
        """Apply a fault that keeps it from the plane, or hand it over."""
        wire, fault, noted = self._wire, self._fault, self._exchange
        if fault is None:
            if wire.replay is None or noted.concerns is Concerns.INSTANCE:
                self._hand_over()
            else:
                self._answer_soon(wire.replay(noted))
            return
        noted.fault = fault.kind
        if fault.kind in faults.REWRITTEN:
            faults.ask_for_all(head.headers)
        match fault.kind:
            case FaultKind.DELAY:
                wire.call_later(fault.seconds, self._end_delay)
                wire.later(self._tell)
            case FaultKind.CUT:
                self._connection.abort()
                wire.later(self._tell)
            case FaultKind.UNREACHABLE:
                wire.guests.suspend()
                wire.call_later(fault.seconds, wire.guests.resume)
                wire.later(self._tell)
            case FaultKind.EMPTY if noted.concerns is Concerns.APPROVALS:
                self._hand_over()  # 200 with nothing is what confirms one
            case FaultKind.STATUS | FaultKind.HTML | FaultKind.EMPTY:
                self._answer_soon(faults.made_up(fault, keep=head.keeps_alive))
            case _:
                self._hand_over()

    def _hand_over(self) -> None:
        self.is_held = False
        self._exchange.was_read = True
        self._wire.later(self._note_wait)

    def _note_wait(self) -> None:
        if not self._is_answered:
            self._tell()

    def _tell(self) -> None:
        self._wire.tell(self._exchange)

    def _end_delay(self) -> None:
        if self._connection.judge(self):
            self._hand_over()

    def _answer_soon(self, answer: bytes) -> None:
        def give() -> None:
            self._take(answer)
            self._connection.answer(self, answer)

        self._wire.later(give)

    def on_answer(self, give: Callable[[], None]) -> None:
        """Send the answer once all its consequences have happened."""
        self._is_answered = True
        self._wire.later(give)

    def before_write(self, answer: bytes) -> tuple[bytes, bool]:
        """Record the answer, and apply its fault."""
        fault = self._fault
        if fault is not None and fault.kind in faults.REWRITTEN:
            answer = faults.changed(fault, answer)
        self._take(answer)
        if fault is not None and fault.kind is FaultKind.LOST_ANSWER:
            self._connection.abort()
            return b"", True
        if fault is not None and fault.kind is FaultKind.HALF_BODY:
            return faults.half(answer), True
        return answer, False

    def _take(self, answer: bytes) -> None:
        noted = self._exchange
        head, _, noted.answer = answer.partition(b"\r\n\r\n")
        noted.status = int(head.split(b" ", 2)[1])
        self._tell()


class PeerArrival(asyncio.Protocol):
    """A peer, until the plane's connection has it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand the peer over to the guest plane."""
        connection = self._wire.connect(sockets.host_of(transport.get_extra_info("peername")))
        assert isinstance(transport, asyncio.Transport)
        transport.set_protocol(connection)
        connection.connection_made(transport)


def _text(data: bytes) -> str:
    return data.decode("latin-1")
