"""Plays a fuzzer's program against the guest plane, and judges all that it sees.

The plane is the real one but for its sockets (`guest/room.py`). After every step:

    - nothing has raised, neither in the call nor on the event loop
    - what is kept of a peer is within its limits
    - stage, reading and deadline agree with each other, and the books with both

At the end enough time passes for any connection to be over. Then all of them are, no task is left,
and every answer that was given is well formed: none is 500, none is 503 unless the store was away
or there were too many connections, and none comes after a last one. A program whose first byte is
odd only sends; how it was cut must not matter to what it is answered.
"""

import asyncio
import ipaddress
import itertools
import json
import math
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from forewarn.maintenance.model import Changes, Enablement, Policy
from forewarn.server.guest.connection import (
    REFUSAL_SECONDS,
    UNREAD_BYTES,
    Connection,
    Stage,
)
from forewarn.server.guest.endpoint import Polls
from forewarn.server.guest.http import _Chunks
from forewarn.server.guest.limits import UNLIMITED, Account, Limits, Rate
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.machines import Proxies
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import EventStatus
from fuzz.programs import SECONDS, SECRET, Do, Step, read
from guest import room
from guest.room import ALWAYS_ON, Answer, Behind, Enabling

TIGHT: Final = Limits(
    head_bytes=300,
    body_bytes=200,
    chunked_bytes=400,
    connections=6,
    connections_per_address=3,
    messages_per_turn=3,
    linger_bytes=2000,
    write_buffer_bytes=2000,
)
LARGEST_ANSWER: Final = 4096
"""No answer of the small fleet here is longer: what may lie above the write buffer's limit."""

MAX_SENT: Final = 60_000
"""What one program may send in all, so that SEND_AGAIN does not make a fuzzer slow."""

LOOK_COSTS: Final = 0.001
"""What each look at the clock costs where the loop is costly: a guest has used its share after five
requests."""

MAX_TURNS: Final = 10 * MAX_SENT
"""Of the loop in one step: each byte may come by itself, and takes two."""

MAX_PIPELINED: Final = MAX_SENT // 100
"""Requests that a program can pipeline and that wait, one after the other; each is longer."""

MAX_PEERS: Final = 10
STATUSES: Final = {
    *(100, 200, 304, 400, 403, 404, 405, 408, 413, 417, 429, 431, 501, 503, 505),
}
FIRST_REQUEST: Final = Enabling(
    policy=Policy(enablement=Enablement.FIRST_REQUEST), first_response_delay=2.0
)
PROXIES: Final = Proxies([ipaddress.ip_network("192.0.2.7/32")])
PROXIES.secrets = (SECRET,)
GUESTS: Final = Behind(Listener(address="169.254.169.254"), PROXIES)
PEERS: Final = (
    ("10.0.0.10", GUESTS),
    ("10.0.0.11", GUESTS),
    ("10.9.9.9", GUESTS),
    ("192.0.2.7", GUESTS),
    ("127.0.0.1", Listener(address="127.0.0.1")),
    ("127.0.0.7", Listener(address="127.0.0.1", default_vm="web-1")),
    ("10.0.0.10", Listener(address="169.254.169.254", name="blue")),
)
"""Who connects: two machines, a stranger, a trusted proxy, two by loopback, and one elsewhere."""

BASTION: Final = room.scope("bastion", incarnation=2)
SHOP: Final = room.machine("shop", "10.0.0.10", listener="blue")

LONG_AFTER: Final = 130.0
"""More than any wait of a connection for its peer."""


class Peer(room.Peer):
    """The other end of a connection; it is lost on the loop's next turn, as real ones are."""

    def __init__(
        self, connection: Connection, address: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.loop = loop
        self.under_way: deque[bytes] = deque()
        self.ends = False
        self.largest_part = 0
        super().__init__(connection, address)

    def put(self, data: bytes, cut: int) -> None:
        """Send it in parts of this many bytes, 0 for as a whole."""
        size = cut or max(1, len(data))
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        self.largest_part = max([self.largest_part, *map(len, parts)])
        self.under_way += parts
        self.deliver()

    def deliver(self) -> None:
        """Give the connection what is under way, as long as it reads."""
        while self.under_way and not self.paused and not self.closing:
            self.connection.data_received(self.under_way.popleft())
        if self.ends and not self.under_way and not self.paused and not self.closing:
            self.ends = False
            self.end()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing, "written after the close"
        super().write(data)

    def resume_reading(self) -> None:
        super().resume_reading()
        self.loop.call_soon(self.deliver)

    def lose_soon(self) -> None:
        self.loop.call_soon(self.lose)


class Play:
    """One program's run, on a loop that is used for one after another.

    Args:
        loop: Where it runs.
        tight: Whether the limits are so small that short programs meet them.
        first_request: Whether scopes are off until they are asked for.
        costly: Whether all costs the loop so much that guests use their share of it up.
        rate: Of each machine.
        polls: What remembers polls.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        tight: bool,
        first_request: bool,
        costly: bool = False,
        rate: Rate = UNLIMITED,
        polls: type[Polls] = Polls,
    ) -> None:
        self.loop = loop
        self.limits = TIGHT if tight else Limits()
        self.raised: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: self.raised.append(context))
        enabling = FIRST_REQUEST if first_request else ALWAYS_ON
        self.plane = room.Room(loop, self.limits, enabling, rate, polls)
        self.plane.learn(Changes(scopes=(BASTION,)))
        self.spent = 0.0
        if costly:
            self.plane.connections.monotonic = self.monotonic
        self.peers: list[Peer] = []
        self.gone: list[Peer] = []
        self.cut = 0
        self.sent = 0
        self.last = b""
        self.was_away = False
        self.incarnation = 2
        self.connect(0)

    def monotonic(self) -> float:
        """Tell the time, of which each look at it costs some."""
        self.spent += LOOK_COSTS
        return self.plane.clock.monotonic() + self.spent

    def connect(self, kind: int) -> None:
        """Let another peer connect, or one go on that has."""
        if len(self.peers) == MAX_PEERS and (lost := [each for each in self.peers if each.lost]):
            self.peers.remove(lost[0])
            self.gone.append(lost[0])
        if len(self.peers) < MAX_PEERS:
            address, listener = PEERS[kind % len(PEERS)]
            connection = Connection(self.plane.connections, room.source_of(listener)(address))
            self.peers.append(Peer(connection, address, self.loop))
        else:
            self.peers.append(self.peers.pop(kind % MAX_PEERS))

    def step(self, step: Step) -> None:
        """Take one step and judge what it led to."""
        if step.do <= Do.RESET:
            self.step_of_the_peer(step, self.peers[-1])
        else:
            self.step_around_it(step)
        self.judge()

    def step_of_the_peer(self, step: Step, peer: Peer) -> None:
        match step.do:
            case Do.SEND | Do.SEND_TOKEN:
                self.send(step.data)
            case Do.SEND_AGAIN:
                for _ in range(step.number):
                    self.send(self.last)
            case Do.CUT:
                self.cut = step.number
            case Do.TAKE:
                peer.takes = True
                peer.take()
            case Do.STOP_TAKING:
                peer.takes = False
            case Do.END:
                peer.ends = True
                peer.deliver()
            case Do.RESET:
                peer.lose()

    def step_around_it(self, step: Step) -> None:
        plane = self.plane
        match step.do:
            case Do.PASS_TIME:
                plane.pass_time(SECONDS[step.number % len(SECONDS)])
                self.judge_deadlines()
            case Do.DECIDE:
                plane.approvals.decide_all()
            case Do.HOLD_ANSWERS:
                plane.approvals.waits = not plane.approvals.waits
            case Do.STORE:
                self.was_away = True
                away = plane.approvals.error is not None
                plane.approvals.error = None if away else StoreUnavailable("away")
            case Do.CHANGE:
                self.change(step.number)
            case Do.TURN:
                self.turn()
            case Do.CONNECT:
                self.connect(step.number)
            case Do.RETIRE:
                plane.connections.draining = True
                plane.connections.peers_until = plane.connections.monotonic()
                for each in list(plane.connections._all):
                    each.retire()

    def send(self, data: bytes) -> None:
        self.last = data
        self.sent += len(data)
        if self.sent <= MAX_SENT and not self.peers[-1].ends:
            self.peers[-1].put(data, self.cut)

    def change(self, kind: int) -> None:
        """Let the fleet change in one of nine ways."""
        web = msgspec.structs.replace(room.SCOPES[0], incarnation=self.incarnation + 1)
        shown = room.operation(room.event(), status=EventStatus.STARTED, not_before=None)
        gone = msgspec.structs.replace(shown, status=EventStatus.COMPLETED)
        web_0, web_1, bastion = room.MACHINES
        moved = msgspec.structs.replace(web_0, address="10.0.0.12")
        elsewhere = msgspec.structs.replace(web_0, scope="bastion")
        ways: list[Callable[[], Changes]] = [
            lambda: Changes(scopes=(web,), operations=(gone,)),
            lambda: Changes(scopes=(web,), operations=(shown,)),
            lambda: Changes(machines=(moved,)),
            lambda: Changes(machines=(web_0,)),
            lambda: Changes(removed_machines=("web-1",)),
            lambda: Changes(machines=(web_1,)),
            lambda: Changes(
                machines=(web_0,), removed_machines=("bastion",), removed_scopes=("bastion",)
            ),
            lambda: Changes(machines=(bastion, elsewhere), scopes=(BASTION,)),
            lambda: Changes(machines=(SHOP,), scopes=(room.scope("shop", incarnation=5),)),
        ]
        changes = ways[kind % len(ways)]()
        if changes.operations:
            self.incarnation += 1
        self.plane.learn(changes)

    def turn(self) -> None:
        """Let the loop do all that it has to now."""
        for _ in range(MAX_TURNS):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
            if not self.loop._ready:  # type: ignore[attr-defined] # asyncio's own loop has it
                return
        message = "the loop never comes to rest"
        raise AssertionError(message)

    def judge(self) -> None:
        """Judge what must hold at any time."""
        assert not self.raised, self.raised
        connections = self.plane.connections
        counted: Counter[Account] = Counter()
        for peer in self.peers:
            self.judge_connection(peer)
            if peer.connection in connections._all:
                counted[peer.connection.account] += 1
                assert peer.connection.account.waiters <= len(connections.long_polls)
        assert all(account.connections == count for account, count in counted.items())
        unused = [each for each in connections._accounts.values() if each not in counted]
        assert not any(each.connections or each.waiters for each in unused)
        assert len(connections) <= self.limits.connections
        assert connections._strangers <= self.limits.stranger_connections

    def judge_connection(self, peer: Peer) -> None:
        connection = peer.connection
        stage = connection._stage
        limits = self.limits
        assert (stage is Stage.LOST) == peer.lost
        assert connection._paused == peer.paused
        assert len(connection._unread) <= peer.largest_part + UNREAD_BYTES
        assert peer.buffered <= limits.write_buffer_bytes + LARGEST_ANSWER
        reader = connection._reader
        head = reader.head
        kept = len(head.target) + sum(len(name) + len(value) for name, value in head.headers)
        assert kept <= limits.head_bytes
        body = reader._body
        assert len(body.body if isinstance(body, _Chunks) else body or b"") <= limits.body_bytes
        assert (connection._admitted is not None) <= reader.in_body
        if stage >= Stage.CLOSING:
            assert not connection._unread
            return
        assert connection in self.plane.connections._all
        held = connection._held()
        waiting = connection._long_poll
        assert (stage is Stage.WAITING) == (waiting is not None)
        if waiting is None:
            assert held == peer.paused, (stage, held)
        else:
            assert (len(connection._unread) > UNREAD_BYTES) == peer.paused
        assert held or not connection._unread
        assert (stage is Stage.CHOKED) <= connection._choked
        assert (stage is Stage.APPROVING) == (connection._pending is not None)
        # One that waits for its share of the loop goes on with its head or body.
        assert (stage is Stage.QUEUED) <= connection._yielded
        account, fair_queue = connection.account, self.plane.connections.fair_queue
        queues = (fair_queue._queued, fair_queue._bodies)
        assert connection._yielded == any(connection in each.get(account, {}) for each in queues)
        nobody_waits = connection._yielded or (waiting is not None and waiting.is_over)
        assert nobody_waits or math.isfinite(connection.deadline), stage

    def judge_deadlines(self) -> None:
        """Judge that nobody has more time than his stage gives him, but for what he waits in line.

        That time is not his, and comes back to him with his turn.
        """
        now = self.plane.clock.monotonic()
        for peer in self.peers:
            in_line = peer.closing or peer.connection._yielded
            assert in_line or peer.connection.deadline > now, peer.connection._stage

    def kept(self) -> object:
        """Return what is kept of guests for later, and how each connection stands."""
        plane, callers = self.plane, self.plane.registry._callers.items()
        return (
            {key: (each.full_at, each.last_request, each.agent) for key, each in callers},
            dict(plane.counters.refusals),
            {name: dict(counts) for name, counts in plane.counters.answers.items()},
            [*plane.approvals.book],
            [*plane.approvals.turned],
            len(plane.connections.long_polls),
            [(each.closing, each.ended, each.connection.deadline) for each in self.peers],
        )

    def finish(self) -> int:
        """Let everything come to its end, and judge that it has, and what was answered.

        Returns:
            How many answers were given.
        """
        plane = self.plane
        plane.approvals.waits = False
        plane.approvals.decide_all()
        for times in range(MAX_PIPELINED):
            for peer in self.peers:
                peer.takes = True
                peer.take()
            self.turn()
            self.judge()
            is_over = all(peer.lost for peer in self.peers) and not asyncio.all_tasks(self.loop)
            if times > 3 and is_over:  # who asked is saved a while after the last answer
                break
            plane.pass_time(LONG_AFTER)
            self.turn()
            self.judge()
        assert all(peer.lost for peer in self.peers), [p.connection._stage for p in self.peers]
        assert not len(plane.connections)
        assert not len(plane.connections.long_polls)
        left = asyncio.all_tasks(self.loop)
        assert not left, left
        given = [answers(peer.got) for peer in (*self.gone, *self.peers)]
        for each in given:
            self.judge_answers(each)
        return sum(map(len, given))

    def judge_answers(self, given: list[Answer]) -> None:
        refused = self.plane.counters.refusals.total() > 0
        for number, answer in enumerate(given, 1):
            assert answer.status in STATUSES, answer
            if answer.status == 503:
                assert self.was_away or refused, answer
            if answer.status == 100:
                assert not answer.headers
                continue
            assert "IMDS" in answer.headers["server"]
            assert answer.headers["date"].endswith(" GMT")
            assert len(answer.headers["x-ms-request-id"]) == 36
            if answer.headers.get("connection") == "close":
                assert number == len(given), "an answer after the last one"
            if answer.headers.get("content-type", "").startswith("application/json"):
                assert isinstance(json.loads(answer.body or b"{}"), dict)
            if answer.status == 304:
                assert not answer.body


def answers(got: bytes) -> list[Answer]:
    """Read what a connection sent, where those to HEAD have the length of a body but none."""
    found: list[Answer] = []
    while got:
        head, separator, rest = got.partition(b"\r\n\r\n")
        assert separator, got
        bodiless = not rest or rest.startswith(b"HTTP/1.1 ")
        length = 0
        if not bodiless:
            length = len(rest)
            for line in head.lower().split(b"\r\n"):
                if line.startswith(b"content-length: "):
                    length = int(line[16:])
            assert len(rest) >= length, got
        end = len(head) + 4 + length
        found += room.answers(got[:end], to_head=bodiless)
        got = got[end:]
    return found


def play(program: bytes, loop: asyncio.AbstractEventLoop) -> int:
    """Play one program whole.

    Returns:
        How many answers were given.

    Raises:
        AssertionError: Something does not hold that must, or what the plane itself raised.
    """
    if not program:
        return 0
    chosen, steps = program[0], read(program[1:])
    tight, first_request, costly = bool(chosen & 2), bool(chosen & 4), bool(chosen & 8)
    if chosen & 1:
        cuts = _sent_alone(steps, loop, tight=tight, whole=False)
        whole = _sent_alone(steps, loop, tight=tight, whole=True)
        for one, other in itertools.zip_longest(cuts[0], whole[0]):
            assert one == other, "the cuts matter"
        assert cuts[1] == whole[1], "the cuts matter"
        return len(whole[0])
    run = Play(loop, tight=tight, first_request=first_request, costly=costly)
    try:
        for step in steps:
            run.step(step)
        return run.finish()
    finally:
        _clean(loop)


def _sent_alone(
    steps: list[Step], loop: asyncio.AbstractEventLoop, *, tight: bool, whole: bool
) -> tuple[list[object], object]:
    """Let one peer send all that a program sends, and return what it was answered."""
    run = Play(loop, tight=tight, first_request=False)
    joined = b""
    for step in steps:
        if step.do in {Do.SEND, Do.SEND_TOKEN}:
            joined += step.data
        if not whole and step.do in {Do.SEND, Do.SEND_TOKEN, Do.CUT, Do.TURN}:
            run.step(step)
    try:
        if whole:
            run.step(Step(Do.SEND, data=joined))
        run.turn()
        peer = run.peers[0]
        closes = peer.ended or peer.closing
        run.finish()
        given: list[object] = [answer.lasting for answer in answers(peer.got)]
        # Whether the time of what is unfinished is over when it ends is the same for both.
        return given, (closes, run.plane.approvals.book)
    finally:
        _clean(loop)


def seen(
    program: bytes, loop: room.SkippingLoop, **given: Any
) -> tuple[list[list[object]], list[object]]:
    """Play a program's steps; return what each peer was answered, and all that was kept by then."""
    run = Play(loop, tight=False, **given)
    kept: list[object] = []
    try:
        for step in read(program):
            run.step(step)
            for _ in range(4):
                run.turn()
                loop.ahead += REFUSAL_SECONDS  # a refusal is held back
            kept.append(run.kept())
        run.finish()
        peers = (*run.gone, *run.peers)
        return [[answer.lasting for answer in answers(peer.got)] for peer in peers], kept
    finally:
        _clean(loop)


def _clean(loop: asyncio.AbstractEventLoop) -> None:
    """Leave nothing of a program that failed to the next one."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
