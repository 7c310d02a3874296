"""The emulator's connections: each request passes here before the guest plane has it.

A connection reads requests one at a time, exactly as the guest plane does, and hands each whole one
to a connection of the guest plane, whose answer it passes on. So every exchange is recorded. A
request that HTTP itself refuses is handed over as it came, and one that took too long as far as it
came: the times of a peer are kept here, for the guest plane sees only whole requests. All of it
runs on the emulator's thread.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Protocol, cast

import msgspec

from forewarn.clock import Clock
from forewarn.maintenance import model
from forewarn.protocol import exchange
from forewarn.protocol.message import HttpRequest
from forewarn.server import sockets
from forewarn.server.guest import machines
from forewarn.server.guest.connection import Connection, Stage
from forewarn.server.guest.http import CONTINUE, RequestReader
from forewarn.server.guest.limits import Limits
from forewarn.server.guest.machines import Source
from forewarn.testing import faults
from forewarn.testing.faults import Concerns, Fault, FaultKind, FaultPlan

HEADER_WARNING: Final = (
    "it sends 'Metadata' with another value than 'true': since February 2026 parts of Azure answer "
    "400 to 'True'"
)
"""The service takes it, and so does the emulator (protocol.md section 3, rule 1)."""

MAX_EXCHANGES: Final = 10_000
"""The exchanges that are kept, the latest ones: hours of a handler that polls once a second."""

_INTERIM: Final = CONTINUE.partition(b"\r\n")[0]

_SECONDS: Final = {Stage.BODY: "body_seconds", Stage.IDLE: "idle_seconds"}
"""The limit for each stage of a peer; else it is `head_seconds`."""
WITHOUT_TIMES: Final = dict.fromkeys(("head_seconds", *_SECONDS.values()), 86_400.0)
"""The limits of a guest plane that gets whole requests only: longer than any test."""


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


class Entrance(Protocol):
    """Returns a connection of the guest plane for a peer."""

    def __call__(self, source: Source, /) -> Connection: ...  # noqa: D102 - as the class says


class Wire:
    """The state that all connections share: the record of their exchanges, and the default machine.

    `enter` returns a connection of the guest plane, which may refuse a request by its head.
    `on_answer` is called when an answer is there, before it goes out; and when a request begins to
    wait for its answer, or gets none.
    """

    observe: Callable[[Exchange], None] | None = None
    """Called with each request before it is answered."""
    default_machine = ""
    """The key of the machine that sends requests whose path names none."""

    def __init__(
        self,
        enter: Entrance,
        refuses: Callable[[HttpRequest, Source], bool],
        clock: Clock,
        limits: Limits,
        *,
        on_answer: Callable[[Exchange], None],
        call_later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self.enter = enter
        self.refuses = refuses
        self.clock = clock
        self.limits = limits
        self.on_answer = on_answer
        self.call_later = call_later
        self.faults = FaultPlan()
        self.replay: Callable[[Exchange], bytes] | None = None
        """The source of answers to requests for events, and approvals, in place of the guest plane.
        """
        self.is_away = False
        self.exchanges: deque[Exchange] = deque(maxlen=MAX_EXCHANGES)
        self.open: set[WireConnection] = set()
        self.pending = 0
        """The number of answers that are about to go out."""

    def later(self, act: Callable[[], None]) -> None:
        """Do something towards a handler after all that the guest plane does now, in this order."""
        self.pending += 1
        asyncio.get_running_loop().call_soon(self._act, act)

    def _act(self, act: Callable[[], None]) -> None:
        self.pending -= 1
        act()

    def go_away(self, seconds: float) -> None:
        """Close every connection, and all that come within so many seconds of the clock."""
        self.is_away = True
        for connection in list(self.open):
            connection.abort()
        self.call_later(seconds, self._come_back)

    def _come_back(self) -> None:
        self.is_away = False

    def source(self, host: str) -> Source:
        """Return where a peer's requests come from."""
        address = machines.normalised(host)
        return Source(
            address=address,
            network=machines.network_of(address),
            vm_paths=True,
            default_vm=self.default_machine,
        )

    def record(self, request: HttpRequest, body: bytes) -> Exchange:
        """Record a request."""
        asked = exchange.read_target(request.target)
        named = None if asked is None else asked.machine
        made = Exchange(
            at=self.clock.now(),
            machine=self.default_machine if named is None else model.key(named),
            method=_text(request.method),
            target=_text(request.target),
            headers=tuple((_text(name), _text(value)) for name, value in request.headers),
            body=body,
        )
        self.exchanges.append(made)
        if self.observe is not None:
            self.observe(made)
        return made


class WireConnection(asyncio.Protocol):
    """One connection of a handler."""

    _outer: asyncio.Transport
    _inner: Connection
    _source: Source

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._reader = RequestReader(wire.limits)
        self._taken = b""
        """The received part of a request that is not complete."""
        self._ahead = b""
        """The bytes received behind it."""
        self._exchange: Exchange | None = None
        """The one that waits for its answer."""
        self._is_broken = False
        """True once bytes came that are not HTTP: the rest is handed over as it comes."""
        self._continued = False
        self._at_end = False
        self._has_ended = False
        """True if the guest plane knows that the peer has ended."""
        self._is_lost = False
        self._fault: Fault | None = None
        """The fault of the answer that is awaited."""
        self._stage: Stage | None = None
        """The stage of the request that the peer is to send; None for nothing."""
        self._late: asyncio.TimerHandle | None = None

    @property
    def is_reading(self) -> bool:
        """Return True if the peer's bytes are read."""
        return self._outer.is_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open a connection of the guest plane for the peer."""
        self._outer = cast("asyncio.Transport", transport)
        self._wire.open.add(self)
        if self._wire.is_away:
            self._outer.abort()
        host = sockets.host_of(self._outer.get_extra_info("peername"))
        self._source = self._wire.source(host)
        self._inner = self._wire.enter(self._source)
        self._inward = _Inward(self._outer, self.take_answer, self._wire.later, self._read_on)
        self._inner.connection_made(self._inward)
        self._await(Stage.FRESH)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self._wire.open.discard(self)
        self._is_lost = True
        self._await(None)
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Read on, unless a request waits for its answer."""
        if self._is_broken:
            self._inner.data_received(data)
            return
        self._ahead += data
        self._read()
        self._read_on()

    def eof_received(self) -> bool:
        """Note that the peer has ended; it still gets its answers."""
        self._at_end = True
        self._end()
        return True

    def _end(self) -> None:
        """Tell the guest plane that the peer has ended, once it has all that came before."""
        waits = self._exchange is not None and not self._exchange.was_read
        if self._has_ended or self._ahead or waits:
            return
        self._has_ended = True
        if self._taken:
            data, self._taken = self._taken, b""
            self._inner.data_received(data)
        if not self._inner.eof_received():
            self._wire.later(self._outer.close)

    def _read(self) -> None:
        reader = self._reader
        while self._ahead and self._exchange is None and not self._is_broken:
            data = self._ahead
            position = reader.read(data, 0)
            self._taken, self._ahead = self._taken + data[:position], data[position:]
            if reader.fault is not None:
                self._is_broken = True
                data, self._taken, self._ahead = self._taken + self._ahead, b"", b""
                self._inner.data_received(data)
            elif reader.body is not None:
                self._hand_over(reader.head.request, reader.body)
            elif reader.head.expects_continue and not self._continued:
                if self._wire.refuses(reader.head.request, self._source):
                    self._hand_over(reader.head.request, b"")
                else:
                    self._continued = True  # the guest plane has the request only with its body
                    self._outer.write(CONTINUE)
        if self._exchange is not None or self._is_broken:
            self._await(None)
        elif reader.started:
            self._await(Stage.BODY if reader.in_body else Stage.HEAD)
        else:
            self._await(Stage.IDLE)
        if self._at_end:
            self._end()

    def _read_on(self) -> None:
        """Read on, unless the guest plane takes no more, or a whole request waits for its turn."""
        limits = self._wire.limits
        if self._inward.is_paused or len(self._ahead) > limits.head_bytes + limits.body_bytes:
            self._outer.pause_reading()
        elif not self._outer.is_closing():
            self._outer.resume_reading()

    def _await(self, stage: Stage | None) -> None:
        """Start the time limit of a stage; the peer gets no more time for bytes under way."""
        if stage is self._stage:
            return
        self._stage = stage
        if self._late is not None:
            self._late.cancel()
        if stage is not None:
            seconds = getattr(self._wire.limits, _SECONDS.get(stage, "head_seconds"))
            self._late = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._is_broken = True
        if self._taken:
            self._inner.data_received(self._taken)
        if not self._inward.has_ended:  # as for a request that is refused by its head
            self._inner.expire()

    def _hand_over(self, request: HttpRequest, body: bytes) -> None:
        data, self._taken = self._taken, b""
        keep = self._reader.head.keeps_alive
        self._reader.next()
        exchange = self._exchange = self._wire.record(request, body)
        fault = self._wire.faults.next(exchange.concerns, exchange.machine)
        if fault is None:
            replay = self._wire.replay
            if replay is None or exchange.concerns is Concerns.INSTANCE:
                self._ask(exchange, data)
            else:
                self._answer_soon(exchange, replay(exchange), keep=keep)
            return
        exchange.fault = fault.kind
        if fault.kind in faults.REWRITTEN:
            self._fault = fault
            self._ask(exchange, faults.as_whole(data))
        elif fault.kind in {FaultKind.HALF_BODY, FaultKind.LOST_ANSWER}:
            self._fault = fault
            self._ask(exchange, data)
        elif fault.kind is FaultKind.DELAY:
            self._wire.call_later(fault.seconds, lambda: self._ask(exchange, data))
            self._wire.on_answer(exchange)
        elif fault.kind in {FaultKind.CUT, FaultKind.UNREACHABLE}:
            self._outer.abort()
            if fault.kind is FaultKind.UNREACHABLE:
                self._wire.go_away(fault.seconds)
            self._wire.on_answer(exchange)
        else:
            self._answer_soon(exchange, faults.made_up(fault, keep=keep), keep=keep)

    def _answer_soon(self, exchange: Exchange, answer: bytes, *, keep: bool) -> None:
        """Answer in place of the guest plane."""

        def give() -> None:
            self._take(exchange, answer)
            self._outer.write(answer)
            if keep:
                self._read()
                self._read_on()
            else:
                self._outer.close()

        self._wire.later(give)

    def _ask(self, exchange: Exchange, data: bytes) -> None:
        if self._is_lost:
            return
        exchange.was_read = True
        self._inner.data_received(data)
        self._wire.later(lambda: self._note_wait(exchange))

    def _take(self, exchange: Exchange, answer: bytes) -> None:
        head, _, exchange.answer = answer.partition(b"\r\n\r\n")
        exchange.status = int(head.split(b" ", 2)[1])
        self._exchange, self._continued = None, False
        self._wire.on_answer(exchange)

    def _note_wait(self, exchange: Exchange) -> None:
        if self._exchange is exchange:
            self._wire.on_answer(exchange)

    def take_answer(self, data: bytes) -> None:
        """Forward an answer of the guest plane, once all its consequences have happened."""
        if data.startswith(_INTERIM):
            if not self._continued:
                self._outer.write(data)
            return
        fault, self._fault = self._fault, None
        if fault is not None and fault.kind in faults.REWRITTEN:
            data = faults.changed(fault, data)
        if self._exchange is not None:
            self._take(self._exchange, data)
        if fault is not None and fault.kind is FaultKind.LOST_ANSWER:
            self._outer.abort()
            return
        if fault is not None and fault.kind is FaultKind.HALF_BODY:
            self._outer.write(faults.half(data))
            self._outer.close()
            return
        self._outer.write(data)
        if not self._outer.is_closing():
            self._read()
            self._read_on()

    def abort(self) -> None:
        """Close now."""
        self._outer.abort()


class _Inward(asyncio.Transport):
    """The transport of a guest plane's connection: its answers go to the wire."""

    def __init__(
        self,
        outer: asyncio.Transport,
        take_answer: Callable[[bytes], None],
        later: Callable[[Callable[[], None]], None],
        read_on: Callable[[], None],
    ) -> None:
        super().__init__()
        self._outer = outer
        self._take_answer = take_answer
        self._later = later
        self._read_on = read_on
        self._is_closing = False
        self.is_paused = False
        self.has_ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        answer = bytes(data)
        self._later(lambda: self._take_answer(answer))

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's
        return self._outer.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._outer.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._outer.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return self._outer.can_write_eof()

    def write_eof(self) -> None:
        self.has_ended = True
        self._later(self._outer.write_eof)

    def pause_reading(self) -> None:
        self.is_paused = True
        self._read_on()

    def resume_reading(self) -> None:
        self.is_paused = False
        self._read_on()

    def is_closing(self) -> bool:
        return self._is_closing or self._outer.is_closing()

    def close(self) -> None:
        self._is_closing = self.has_ended = True
        self._later(self._outer.close)

    def abort(self) -> None:
        self._is_closing = True
        self._outer.abort()


def _text(data: bytes) -> str:
    return data.decode("latin-1")
