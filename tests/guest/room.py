"""What the guest plane's tests stand on: a fleet, approvals, a transport, all real code."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from forewarn import vocabulary
from forewarn.clock import ManualClock
from forewarn.control.service_clock import ServiceClock
from forewarn.maintenance import model
from forewarn.protocol.exchange import Rules
from forewarn.server.guest import listener
from forewarn.server.guest.connection import REFUSAL_SECONDS, Connection
from forewarn.server.guest.connections import Connections
from forewarn.server.guest.documents import DocumentCache, Enabler
from forewarn.server.guest.endpoint import Counters, GuestEndpoint, Polls
from forewarn.server.guest.http import AnswerWriter
from forewarn.server.guest.limits import UNLIMITED, Limiter, Limits, Rate
from forewarn.server.guest.listener import Listener, SourceOf
from forewarn.server.guest.machines import Proxies, Registry
from store import values

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENT_ID = "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
APPROVAL = b'{"StartRequests":[{"EventId":"%s"}]}' % EVENT_ID.encode()


def machine(name: str, address: str = "", **facts: Any) -> model.Machine:
    known = {"scope": name.lower(), "vm_id": "02aab8a4-74ef-476e-8182-f6d2ba4166a6"}
    return values.machine(name, **({"address": address} | known | facts))


def scope(name: str, **facts: Any) -> model.Scope:
    known: dict[str, Any] = {"kind": vocabulary.ScopeKind.MACHINE, "update_domains": 1}
    return model.Scope(name=name, **(known | facts))


def operation(*events: model.OperationEvent, **facts: Any) -> model.Operation:
    known: dict[str, Any] = {
        "description": "Virtual machine is going to be restarted as requested by authorized user.",
        "announced_at": START,
        "not_before": START + timedelta(minutes=15),
    }
    return values.operation(facts.pop("id", "1.1"), *events, **(known | facts))


def event(
    event_id: str = EVENT_ID,
    scope: str = "web",
    machines: Collection[str] = ("web-0",),
    **facts: Any,
) -> model.OperationEvent:
    return values.event(event_id, scope, *machines, **({"published": 2} | facts))


SCOPES = [
    scope("web", kind=vocabulary.ScopeKind.AVAILABILITY_SET, update_domains=3, incarnation=2),
    scope("bastion"),
]
MACHINES = [
    machine("web-0", "10.0.0.10", scope="web"),
    machine("web-1", "10.0.0.11", scope="web"),
    machine("bastion", "127.0.0.1"),
]


class BookedApprovals:
    """Approves what was published, at once or when told; keeps a book of what it approved."""

    def __init__(self, published: dict[str, set[str]] | None = None) -> None:
        self.published = {"web": {EVENT_ID}} if published is None else published
        self.book: list[tuple[str, tuple[str, ...], str, str]] = []
        self.waits = False
        self.error: Exception | None = None
        self.closed = False
        self._waiting: list[Callable[[], None]] = []
        self.asked = asyncio.Event()
        self.turned: list[tuple[str, ...]] = []
        self.learn: Callable[[Collection[str]], object] = lambda _: None

    def approve(
        self, scope: str, event_ids: tuple[str, ...], *, by: str, address: str
    ) -> Future[Any]:
        if self.closed:
            raise RuntimeError

        def book() -> None:
            unknown = [each for each in event_ids if each not in self.published.get(scope, ())]
            if unknown:
                message = f"{unknown[0]} was never published in {scope}"
                raise model.Refused(vocabulary.ErrorCode.NOT_FOUND, message, event_id=unknown[0])
            self.book.append((scope, event_ids, by, address))

        self.asked.set()
        return self._decided(book)

    def answer_turning(self, scopes: Collection[str]) -> Future[Any]:
        """Take note that scopes were asked for."""

        def note() -> None:
            self.turned.append(tuple(sorted(scopes)))
            self.learn(scopes)

        return self._decided(note)

    def _decided(self, act: Callable[[], None]) -> Future[Any]:
        future: Future[Any] = Future()

        def decide() -> None:
            error = self.error
            try:
                if error is None:
                    act()
            except model.Refused as refusal:
                error = refusal
            if isinstance(error, CancelledError):
                future.cancel()
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)

        if self.waits:
            self._waiting.append(decide)
        else:
            decide()
        return future

    def decide_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for decide in waiting:
            decide()


BRIDGE = Listener(address="169.254.169.254")


class Enabling(NamedTuple):
    """What the settings say of turning scopes on."""

    policy: model.Policy = model.Policy()
    first_response_delay: float = 0.0


ALWAYS_ON = Enabling()


class Behind(NamedTuple):
    """A listener, and the proxies that it trusts."""

    listener: Listener
    proxies: Proxies


def source_of(place: Listener | Behind) -> SourceOf:
    return listener.source_of(*place) if isinstance(place, Behind) else listener.source_of(place)


class Room:
    """The whole plane but its sockets, on a manual clock."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits | None = None,
        enabling: Enabling = ALWAYS_ON,
        rate: Rate = UNLIMITED,
        polls: type[Polls] = Polls,
    ) -> None:
        self.clock = ManualClock(START)
        self.watch = ServiceClock(self.clock)
        self.counters = Counters()
        self.registry = Registry(proxied=True)
        self.documents = DocumentCache()
        self.approvals = BookedApprovals()
        known = model.Changes(
            scopes=tuple(SCOPES), machines=tuple(MACHINES), operations=(operation(event()),)
        )
        self.registry.learn(known)
        self.documents.learn(known)
        # By the changefeed, in a turn of its own.
        self.approvals.learn = lambda scopes: loop.call_soon(self.turn_on, scopes)
        limiter = Limiter(rate)
        enabler = None
        if enabling.policy.enablement is not model.Enablement.ALWAYS:
            enabler = Enabler(
                self.documents,
                self.approvals.answer_turning,
                enabling.policy,
                delay_seconds=enabling.first_response_delay,
                clock=self.clock,
                loop=loop,
            )
        self.endpoint = GuestEndpoint(
            self.registry,
            self.documents,
            self.approvals,
            rules=Rules(),
            clock=self.clock,
            limiter=limiter,
            monotonic=self.clock.monotonic,
            counters=self.counters,
            enabler=enabler,
        )
        self.age = 0
        writer = AnswerWriter(
            self.clock, self.clock, "00000000-0000-4000-8000-a3c5e7091b2d", age=lambda: self.age
        )
        self.polls = polls(
            self.registry, self.documents, limiter=limiter, writer=writer, enabler=enabler
        )
        self.connections = Connections(
            self.endpoint,
            writer,
            limits=limits or Limits(),
            counters=self.counters,
            loop=loop,
            polls=self.polls,
            on_turn=self.watch.turn,
            monotonic=self.clock.monotonic,
        )

    def turn_on(self, scopes: Collection[str]) -> None:
        now = self.clock.now()
        known = [self.documents.scope(key) for key in scopes if key in self.documents._scopes]
        changed = tuple(msgspec.structs.replace(each, asked_at=now) for each in known)
        self.learn(model.Changes(scopes=changed))

    def learn(self, changes: model.Changes) -> None:
        self.registry.learn(changes)
        self.documents.learn(changes)
        self.polls.learn()
        self.connections.long_polls.learn(changes)

    def publish(self, incarnation: int, key: str = "web", *operations: model.Operation) -> None:
        """Let a scope have a new document."""
        scope = msgspec.structs.replace(self.documents.scope(key), incarnation=incarnation)
        self.learn(model.Changes(scopes=(scope,), operations=operations))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))
        self.connections.sweep(self.connections.monotonic())

    def connect(self, address: str = "10.0.0.10", place: Listener | Behind = BRIDGE) -> "Peer":
        connection = Connection(self.connections, source_of(place)(address))
        return Peer(connection, address)


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time can be moved ahead, so that no test waits for a timer."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class Peer(asyncio.Transport):
    """The other end of a connection, in memory: what it was sent, and whether it is open."""

    def __init__(self, connection: Connection, address: str) -> None:
        super().__init__({"peername": (address, 40000)})
        self.connection = connection
        self._parts: list[bytes] = []
        self.closing = self.ended = self.aborted = self.lost = False
        self.paused = False
        self.takes = True
        self.high = 65536
        self.buffered = 0
        connection.connection_made(self)

    @property
    def got(self) -> bytes:
        """All that it was sent."""
        self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def send(self, data: bytes) -> None:
        if not self.closing:
            self.connection.data_received(data)

    def end(self) -> None:
        if not self.closing and not self.connection.eof_received():
            self.close()

    def take(self) -> None:
        """Take all that was buffered for it."""
        before, self.buffered = self.buffered, 0
        if self.lost or self.aborted:
            return
        if before > self.high:
            self.connection.resume_writing()
        if self.closing:
            self.lose_soon()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended, "written after the end"
        self._parts.append(bytes(data))
        if not self.takes:
            before = self.buffered
            self.buffered += len(data)
            if before <= self.high < self.buffered:
                self.connection.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = self.high if high is None else high

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            if not self.buffered:
                self.lose_soon()

    def abort(self) -> None:
        if not self.aborted:
            self.closing = self.aborted = True
            self.lose_soon()

    def lose_soon(self) -> None:
        self.lose()

    def lose(self) -> None:
        if not self.lost:
            self.lost = self.closing = True
            self.buffered = 0
            self.connection.connection_lost(None)


class Answer:
    """One answer, read by RFC 9112 and nothing more lenient."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"{self.status} {self.headers} {self.body!r}"

    @property
    def lasting(self) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
        """All of it but what is new in every answer."""
        kept = {n: v for n, v in self.headers.items() if n not in {"date", "x-ms-request-id"}}
        return self.status, tuple(kept.items()), self.body


def answers(got: bytes, *, to_head: bool = False) -> list[Answer]:
    """Read all of what a connection sent."""
    found = []
    while got:
        head, separator, got = got.partition(b"\r\n\r\n")
        assert separator, head
        status_line, *lines = head.decode().split("\r\n")
        version, status, reason = status_line.split(" ", 2)
        assert version == "HTTP/1.1"
        assert reason
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value
        length = int(headers.get("content-length", 0))
        if int(status) in {100, 304}:
            assert "content-length" not in headers
        elif to_head:
            length = 0
        assert len(got) >= length
        found.append(Answer(int(status), headers, got[:length]))
        got = got[length:]
    return found


def statuses(came: "Peer | bytes") -> list[int]:
    """Return the statuses of all that a connection sent."""
    return [each.status for each in answers(came.got if isinstance(came, Peer) else came)]


def get(target: str = EVENTS, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"GET {target} HTTP/{version}", "Host: 169.254.169.254", "Metadata: true", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def post(body: bytes = APPROVAL, *headers: str, target: str = EVENTS) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: 169.254.169.254", "Metadata: true", *headers]
    if not any(header.lower().startswith("transfer-encoding") for header in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@contextmanager
def opened(
    limits: Limits | None = None,
    enabling: Enabling = ALWAYS_ON,
    rate: Rate = UNLIMITED,
    polls: type[Polls] = Polls,
) -> Iterator[tuple[Room, Callable[[], None]]]:
    """A room on an event loop of its own, and what lets that loop do all that it has to."""
    loop = SkippingLoop()

    def turn() -> None:
        loop.ahead += REFUSAL_SECONDS
        for _ in range(30):
            loop.call_soon(loop.stop)
            loop.run_forever()
            if not loop._ready:  # type: ignore[attr-defined]
                break

    try:
        yield Room(loop, limits, enabling, rate, polls), turn
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        turn()
        loop.close()
