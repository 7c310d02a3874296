"""The fast path answers as the long way does, in every byte, and does all else that it does."""

import random
from typing import Any

import pytest

from forewarn.server.guest.endpoint import MAX_KNOWN_POLLS, MAX_POLL_BYTES, Poll, Polls
from forewarn.server.guest.limits import UNLIMITED, Rate
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.machines import Source
from fuzz import harness, programs
from fuzz.programs import Do
from guest import room
from guest.room import get
from seeds import SEED

LOOPBACK = Listener(address="127.0.0.1", default_vm="web-1")
SIGNED = programs.token('get "X-Instance-ID: web-0" "X-Instance-ID-Signature: SIGNATURE"')
AT_ONCE = [n for n, each in enumerate(programs.TOKENS) if b"Prefer" not in each]
"""Answers that are held come in any order, and so would what is behind them."""
WHOLE = [n for n, each in enumerate(programs.SECONDS) if each * 2 % 1 == 0 and each <= 60]
"""No fraction that adds up to less than a second by one clock, and to a second by the other."""
ANSWER = b"x-ms-request-id: "


class Counting(Polls):
    """Counts what it answered."""

    hits = 0
    """Of all, since a test began."""

    def answer(self, poll: Poll, now: float) -> bytes | None:
        answer = super().answer(poll, now)
        Counting.hits += answer is not None
        return answer


class Never(Polls):
    """Remembers nothing: everything goes the long way."""

    def find(self, source: Source, data: bytes) -> Poll | None:
        del source, data


@pytest.fixture(autouse=True)
def count_from_now_on() -> None:
    Counting.hits = 0


def polling(chance: random.Random) -> bytes:
    """Return a program that mostly polls, while the fleet changes and time passes."""
    written = bytearray()
    for _ in range(programs.MAX_STEPS):
        kind = chance.random()
        if kind < 0.02:
            written += bytes([Do.CHANGE, chance.randrange(256)])
        elif kind < 0.06:
            written += bytes([Do.PASS_TIME, chance.choice(WHOLE)])
        elif kind < 0.2:
            written += bytes([Do.CONNECT, chance.choice([0, 1, 4, 5, 6, chance.randrange(10)])])
        elif kind < 0.98:
            written += bytes([Do.SEND_TOKEN, chance.choice(programs.POLLS)])
        else:
            written += bytes([Do.SEND_TOKEN, chance.choice(AT_ONCE)])
    return bytes(written)


@pytest.mark.parametrize("first_request", [False, True], ids=["always on", "first request"])
@pytest.mark.parametrize("rate", [UNLIMITED, Rate(per_second=3, burst=6)], ids=["any", "rated"])
def test_both_ways_answer_and_do_the_same(first_request: bool, rate: Rate) -> None:
    loop, total = room.SkippingLoop(), 0
    for seed in range(SEED, SEED + 3):
        program = polling(random.Random(seed))
        given: dict[str, Any] = {"first_request": first_request, "rate": rate}
        fast = harness.seen(program, loop, polls=Counting, **given)
        assert fast == harness.seen(program, loop, polls=Never, **given), f"SEED={seed}"
        total += sum(map(len, fast[0]))
    loop.close()
    # Over the rate all go the long way, and else what an agent says anew.
    least = total * 0.2 if rate is UNLIMITED else 0
    assert Counting.hits > least, f"{Counting.hits} of {total} answers were fast from {SEED} on"


def test_what_is_remembered_has_a_bound_and_keeps_what_is_asked_for() -> None:
    with room.opened(polls=Counting) as (plane, _):
        poller, guest = plane.connect(), plane.connect("10.0.0.11")
        for number in range(3 * MAX_KNOWN_POLLS):
            guest.send(get(room.EVENTS, f"X: {number}"))
            if number % 1000 == 0:
                poller.send(get())
        remembered = len(plane.polls._known) + len(plane.polls._earlier)
        assert MAX_KNOWN_POLLS <= remembered <= 2 * MAX_KNOWN_POLLS
        before = Counting.hits
        other = plane.connect()
        other.send(get())
        assert Counting.hits == before + 1


def test_a_plane_that_stops_remembers_nothing() -> None:
    with room.opened(polls=Counting) as (plane, _):
        peer = plane.connect()
        for _ in range(3):
            peer.send(get())
        assert Counting.hits == 2
        plane.polls.close()
        peer.send(get())
        assert peer.got.count(ANSWER) == 4
        assert Counting.hits == 2


@pytest.mark.parametrize(
    ("data", "where", "address"),
    [
        (get(f"/vm/web-0{room.EVENTS}"), LOOPBACK, "127.0.0.1"),
        (SIGNED, harness.GUESTS, "192.0.2.7"),
        (get(room.EVENTS, "X: " + "x" * MAX_POLL_BYTES), harness.GUESTS, "10.0.0.10"),
        (get(room.EVENTS, "Connection: keep-alive", version="1.0"), harness.GUESTS, "10.0.0.10"),
    ],
    ids=["by a path", "by a proxy", "too long", "by HTTP/1.0"],
)
def test_who_is_named_and_what_is_long_or_old_goes_the_long_way_each_time(
    data: bytes, where: Listener, address: str
) -> None:
    with room.opened(polls=Counting) as (plane, _):
        peer = plane.connect(address, where)
        for _ in range(3):
            peer.send(data)
        assert peer.got.count(b"HTTP/1.1 200 OK") == 3
        assert plane.polls._known == {}
        assert Counting.hits == 0
