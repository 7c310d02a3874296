"""The fast path answers as the long way does, in every byte, and does all else that it does."""

import ipaddress
import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from forewarn.maintenance.model import Changes, Enablement, Policy
from forewarn.protocol import exchange
from forewarn.server.guest.documents import GATHER_SECONDS, SAVE_EVERY
from forewarn.server.guest.endpoint import MAX_KNOWN_POLLS, MAX_POLL_BYTES, Poll, Polls
from forewarn.server.guest.limits import UNLIMITED, Limits, Rate
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.machines import Proxies, Source
from guest import room
from guest.room import Peer, Room, get, post
from seeds import SEED

SECRET = b"a secret of theirs"
PROXY = "10.0.0.50"
PROXIES = Proxies([ipaddress.ip_network(f"{PROXY}/32")])
PROXIES.secrets = (SECRET,)
PLAIN = room.Behind(Listener(address="169.254.169.254"), PROXIES)
BLUE = Listener(address="169.254.169.254", name="blue")
LOOPBACK = Listener(address="127.0.0.1", default_vm="web-1")
PLACES = [
    (PLAIN, "10.0.0.10"),
    (PLAIN, "10.0.0.11"),
    (PLAIN, PROXY),
    (PLAIN, "10.0.0.99"),
    (BLUE, "10.0.0.10"),
    (BLUE, "10.0.0.11"),
    (LOOPBACK, "127.0.0.1"),
    (LOOPBACK, "127.0.0.7"),
]
WEIGHTS = [9, 9, 1, 1, 9, 1, 9, 5] * 2
"""How often each place is asked from, on either of two connections; most are a machine's."""
# None is behind what clients ask with most often: answers that are held come in any order.
SCOPES = [
    room.scope("shop", incarnation=5),
    room.scope("front", incarnation=2),
    room.scope("bastion", incarnation=2),
]
MACHINES = [
    room.machine("shop", "10.0.0.10", listener="blue"),
    room.machine("front", PROXY),
]
FLEET = Changes(scopes=tuple(SCOPES), machines=tuple(MACHINES))
SIGNED = (
    "X-Instance-ID: web-0",
    f"X-Instance-ID-Signature: {exchange.sign(b'web-0', SECRET).decode()}",
)
ANSWER = b"x-ms-request-id: "
REQUEST_ID = re.compile(ANSWER + rb"([0-9a-f-]{36})\r\n")
OLD = room.EVENTS.replace("2020-07-01", "2017-08-01")
COMMON = [
    get(),
    get(OLD),
    get(room.EVENTS, "Accept: */*"),
    get(room.EVENTS, "If-None-Match: 2"),
    get(room.EVENTS, "If-None-Match: 1, 0"),
    get(room.EVENTS, "Connection: close"),
    get(room.EVENTS, "If-None-Match: 1", version="1.0"),
    get(room.EVENTS, "Forewarn-Agent: ready"),
    get(room.EVENTS, 'Forewarn-Agent: held; reason="x"'),
]
RARE = [
    get(room.EVENTS, *SIGNED),
    get(room.EVENTS, *SIGNED, "X-Forwarded-For: 10.0.0.10"),
    get(room.EVENTS, "X-Forwarded-For: 10.0.0.10"),
    get(room.EVENTS, "X-Instance-ID: web-0"),
    get(f"/vm/web-0{room.EVENTS}"),
    get(room.EVENTS, "If-None-Match: 2", "Prefer: wait=1"),
    get(room.EVENTS, "If-None-Match: 7", "Prefer: wait=60"),
    get(room.EVENTS, "If-None-Match: 5"),
    get(room.EVENTS, "Connection: Upgrade", "Upgrade: h2c"),
    get(room.EVENTS, "Connection: Upgrade, close", "Upgrade: h2c"),
    get(room.EVENTS, "Expect: 100-continue"),
    get(room.EVENTS, "Content-Length: 5") + b"hello",
    get(room.EVENTS, "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    get(room.EVENTS, "X: " + "x" * MAX_POLL_BYTES),
    get(version="1.0"),
    get(room.EVENTS, "Connection: keep-alive", version="1.0"),
    get().replace(b"GET", b"HEAD", 1),
    get().replace(b"Metadata: true\r\n", b""),
    get(room.EVENTS + "&api-version=2020-07-01"),
    get("/metadata/versions"),
    get("/metadata/instance?api-version=2021-02-01"),
    get("/nowhere"),
    post(),
    post(b"not json"),
    b"\r\n" + get(),
    b"garbage\r\n\r\n",
]


class Counting(Polls):
    """Counts what it answered."""

    hits = 0

    def answer(self, poll: Poll, now: float) -> bytes | None:
        answer = super().answer(poll, now)
        self.hits += answer is not None
        return answer


class Never(Polls):
    """Remembers nothing: everything goes the long way."""

    def find(self, source: Source, data: bytes) -> Poll | None:
        del source, data


class Pair:
    """The same connections to two rooms: one with the fast path, one without."""

    def __init__(self, fast: Room, slow: Room, turns: list[Callable[[], None]]) -> None:
        self.rooms = (fast, slow)
        self.turns = turns
        self.peers: dict[int, tuple[Peer, Peer]] = {}
        self.gone: list[bytes] = []
        for each in self.rooms:
            each.registry.learn(FLEET)
            each.documents.learn(FLEET)

    def connection(self, number: int) -> tuple[Peer, Peer]:
        if number in self.peers:
            if not self.peers[number][0].closing:
                return self.peers[number]
            self.gone += REQUEST_ID.findall(self.peers[number][0].got)
        listener, address = PLACES[number % len(PLACES)]
        fast, slow = (each.connect(address, listener) for each in self.rooms)
        self.peers[number] = fast, slow
        return fast, slow

    @property
    def answered(self) -> int:
        """Count the answers, each with an id of its own."""
        live = [REQUEST_ID.findall(peer.got) for peer, _ in self.peers.values()]
        ids = [*self.gone, *itertools.chain.from_iterable(live)]
        assert len(set(ids)) == len(ids)
        return len(ids)

    def step(self, chance: random.Random) -> None:
        kind = chance.random()
        if kind < 0.05:
            self.learn(change(chance, self.rooms[1]))
        elif kind < 0.13:
            seconds = chance.choice([0.01, 0.3, 1.0, 5.0, 21.0])
            for each in self.rooms:
                each.pass_time(seconds)
        else:
            peers = self.connection(*chance.choices(range(len(WEIGHTS)), WEIGHTS))
            for part in bytes_of(chance):
                for peer in peers:
                    peer.send(part)
            if chance.random() < 0.02:
                for peer in peers:
                    peer.end()

    def learn(self, changes: Changes) -> None:
        for each in self.rooms:
            each.learn(changes)

    def judge(self) -> None:
        """Compare all that can be told from outside, and what is kept for later."""
        for number, turn in enumerate(self.turns):
            turn()
            accounts = [pair[number].connection.account for pair in self.peers.values()]
            while any(account.is_approving for account in accounts):  # a refusal is held back
                turn()
        fast, slow = (state(each) for each in self.rooms)
        assert fast == slow
        for fast_peer, slow_peer in self.peers.values():
            assert REQUEST_ID.sub(b"", fast_peer.got) == REQUEST_ID.sub(b"", slow_peer.got)
            assert shape(fast_peer) == shape(slow_peer)


def state(plane: Room) -> dict[str, Any]:
    return {
        "asked": {
            key: (caller.full_at, caller.last_request, caller.agent)
            for key, caller in plane.registry._callers.items()
        },
        "refusals": dict(plane.counters.refusals),
        "approved": plane.approvals.book,
        "turned": plane.approvals.turned,
        "answers": plane.counters.answers,
        "waiting": len(plane.connections.long_polls),
    }


def shape(peer: Peer) -> tuple[Any, ...]:
    connection = peer.connection
    return peer.closing, peer.ended, peer.aborted, connection._stage, connection.deadline


def change(chance: random.Random, plane: Room) -> Changes:
    """Something that happens to the fleet."""
    scopes = {key: plane.documents._scopes[key] for key in sorted(plane.documents._scopes)}
    name = chance.choice(list(scopes))
    moved = msgspec.structs.replace(scopes[name], incarnation=scopes[name].incarnation + 1)
    address = chance.choice(["10.0.0.10", "10.0.0.11", PROXY, "127.0.0.1", ""])
    match chance.randrange(6):
        case 0:
            event = room.event(f"E{chance.randrange(3)}", scope=name, published=moved.incarnation)
            return Changes(scopes=(moved,), operations=(room.operation(event, id="7.1"),))
        case 1:
            machine = room.machine(
                chance.choice(["web-0", "web-1", "late"]),
                address,
                scope=name,
                listener=chance.choice(["", "blue"]),
            )
            return Changes(machines=(machine,))
        case 2:
            return Changes(removed_machines=(chance.choice(["web-0", "late"]),))
        case 3:
            machines = [room.machine("web-0", "10.0.0.10", scope="web")]
            return Changes(machines=(*machines, *MACHINES))
        case _:
            return Changes(scopes=(moved,))


def bytes_of(chance: random.Random) -> list[bytes]:
    """What is sent on one connection next: mostly what pollers send."""
    kind = chance.random()
    if kind < 0.92:
        return [chance.choice(COMMON)]
    if kind < 0.95:
        return [chance.choice(RARE)] * 2
    if kind < 0.96:
        whole = chance.choice(COMMON)
        return [whole[: chance.randrange(1, len(whole))], chance.choice(COMMON)]
    data = b"".join(
        chance.choice(RARE if chance.random() < 0.7 else COMMON)
        for _ in range(chance.randrange(1, 4))
    )
    edges = sorted({0, len(data), *(chance.randrange(len(data) + 1) for _ in range(3))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def play(seed: int, enabling: room.Enabling, rate: Rate) -> tuple[int, int]:
    """Play a random story; return how many answers there were, and how many were fast."""
    chance = random.Random(seed)
    limits = Limits(idle_seconds=20.0)
    with (
        room.opened(limits, enabling, rate, Counting) as (fast, turn),
        room.opened(limits, enabling, rate, Never) as (slow, other_turn),
    ):
        pair = Pair(fast, slow, [turn, other_turn])
        for _ in range(300):
            pair.step(chance)
            try:
                pair.judge()
            except AssertionError as error:
                error.add_note(f"play({seed}, ...) repeats it")
                raise
        assert isinstance(fast.polls, Counting)
        return pair.answered, fast.polls.hits


FIRST = room.Enabling(policy=Policy(enablement=Enablement.FIRST_REQUEST))


@pytest.mark.parametrize("enabling", [room.ALWAYS_ON, FIRST], ids=["always on", "first request"])
@pytest.mark.parametrize("rate", [UNLIMITED, Rate(per_second=3, burst=6)], ids=["any", "rated"])
def test_both_ways_answer_and_do_the_same(enabling: room.Enabling, rate: Rate) -> None:
    total = fast = 0
    for seed in range(SEED, SEED + 3):
        answered, hits = play(seed, enabling, rate)
        total += answered
        fast += hits
    # Over the rate all go the long way, and else what an agent says anew: 45 to 60 % are fast.
    least = total * 0.4 if rate is UNLIMITED else 0
    assert fast > least, f"{fast} of {total} answers were fast from seed {SEED} on"


def test_what_is_remembered_has_a_bound_and_keeps_what_is_asked_for() -> None:
    with room.opened(polls=Counting) as (plane, _):
        poller, guest = plane.connect(), plane.connect("10.0.0.11")
        assert isinstance(plane.polls, Counting)
        for number in range(3 * MAX_KNOWN_POLLS):
            guest.send(get(room.EVENTS, f"X: {number}"))
            if number % 1000 == 0:
                poller.send(get())
        remembered = len(plane.polls._known) + len(plane.polls._earlier)
        assert MAX_KNOWN_POLLS <= remembered <= 2 * MAX_KNOWN_POLLS
        before = plane.polls.hits
        other = plane.connect()
        other.send(get())
        assert plane.polls.hits == before + 1


def test_a_long_request_is_answered_and_not_remembered() -> None:
    with room.opened(polls=Counting) as (plane, _):
        peer = plane.connect()
        for _ in range(3):
            peer.send(get(room.EVENTS, "X: " + "x" * MAX_POLL_BYTES))
        assert peer.got.count(ANSWER) == 3
        assert plane.polls._known == {}


def test_who_is_over_the_rate_does_not_keep_its_scope_on() -> None:
    rate = Rate(per_second=0.001, burst=3)
    with room.opened(enabling=FIRST, rate=rate, polls=Counting) as (plane, turn):
        peer = plane.connect()
        for _ in range(3):
            peer.send(get())
            turn()
        assert isinstance(plane.polls, Counting)
        assert plane.polls.hits == 1
        turned = [*plane.approvals.turned]
        plane.pass_time(SAVE_EVERY.total_seconds())
        peer.send(get())
        turn()
        plane.pass_time(GATHER_SECONDS)
        turn()
        assert b" 429 " in peer.got
        assert plane.approvals.turned == turned


def test_a_plane_that_stops_remembers_nothing() -> None:
    with room.opened(polls=Counting) as (plane, _):
        peer = plane.connect()
        for _ in range(3):
            peer.send(get())
        assert isinstance(plane.polls, Counting)
        assert plane.polls.hits == 2
        plane.polls.close()
        peer.send(get())
        assert peer.got.count(ANSWER) == 4
        assert plane.polls.hits == 2


@pytest.mark.parametrize(
    ("data", "where", "address"),
    [
        (get(f"/vm/front{room.EVENTS}"), LOOPBACK, "127.0.0.1"),
        (get(room.EVENTS, *SIGNED), PLAIN, PROXY),
        (get(room.EVENTS, "Connection: keep-alive", version="1.0"), PLAIN, "10.0.0.10"),
    ],
    ids=["by a path", "by a proxy", "by HTTP/1.0"],
)
def test_who_is_named_and_what_is_old_goes_the_long_way_each_time(
    data: bytes, where: Listener, address: str
) -> None:
    with room.opened(polls=Counting) as (plane, _):
        plane.documents.learn(FLEET)
        plane.registry.learn(FLEET)
        peer = plane.connect(address, where)
        for _ in range(3):
            peer.send(data)
        assert peer.got.count(b"HTTP/1.1 200 OK") == 3
        assert plane.polls._known == {}
        assert isinstance(plane.polls, Counting)
        assert plane.polls.hits == 0


def test_what_a_guest_may_ask_no_web_page_may_ask_after_it() -> None:
    page = get().replace(b"Host: 169.254.169.254", b"Host: example.org")
    with room.opened() as (plane, turn):
        for data, status in [(get(), b" 200 "), (page, b" 403 ")]:
            for _ in range(2):
                guest = plane.connect("10.0.0.10", PLAIN)
                guest.send(data)
                desk = plane.connect("127.0.0.1", LOOPBACK)
                desk.send(data)
                turn()
                assert b" 200 " in guest.got
                assert status in desk.got
