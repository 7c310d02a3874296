"""Every limit and rate at its value and one beyond it; every time just before and at its end."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from forewarn.protocol import refusals
from forewarn.server.guest.http import Head
from forewarn.server.guest.limits import (
    MAX_APPROVALS_IN_FLIGHT,
    Account,
    Bucket,
    FairQueue,
    Limiter,
    Limits,
    Rate,
)
from guest import room
from guest.room import chunked, get, post, statuses

CODED = "Transfer-Encoding: chunked"


def sent(data: bytes, cut: int = 1 << 20) -> room.Peer:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        for at in range(0, len(data), cut):
            peer.send(data[at : at + cut])
        turn()
        return peer


def padded_head(size: int) -> bytes:
    request = get(room.EVENTS, "X: ")
    return request[:-4] + b"x" * (size - len(request)) + request[-4:]


def headers(count: int) -> bytes:
    return get(room.EVENTS, *(f"A{number}: b" for number in range(count - 2)))


def chunks(count: int) -> bytes:
    body = room.APPROVAL.ljust(count)
    sizes = [len(body) - count + 1, *[1] * (count - 1)]
    ends = list(itertools.accumulate(sizes))
    parts = [body[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def trailers(count: int) -> bytes:
    told = b"".join(b"A: %d\r\n" % number for number in range(count))
    return chunked(room.APPROVAL, 1000)[:-2] + told + b"\r\n"


def padded_body(size: int) -> bytes:
    return room.APPROVAL[:-1] + b" " * (size - len(room.APPROVAL)) + b"}"


def extended(size: int) -> bytes:
    """Return an approval in a chunk with an extension, which takes this much on the wire."""
    length, end, rest = chunked(room.APPROVAL, 1000).partition(b"\r\n")
    return length + b";" + b"x" * (size - len(length + end + rest) - 1) + end + rest


BOUNDED: dict[str, tuple[int, int, Callable[[int], bytes]]] = {
    "a head": (16384, 431, padded_head),
    "a second head": (16384, 431, lambda size: get() + padded_head(size)),
    "headers": (refusals.MAX_HEADERS, 431, headers),
    "a body": (65536, 413, lambda size: post(padded_body(size))),
    "a body in chunks": (65536, 413, lambda size: post(chunked(padded_body(size), 4096), CODED)),
    "a body in a chunk": (65536, 413, lambda size: post(chunked(padded_body(size), size), CODED)),
    "chunks": (refusals.MAX_CHUNKS, 413, lambda count: post(chunks(count), CODED)),
    "trailers": (refusals.MAX_CHUNKS - 1, 413, lambda count: post(trailers(count), CODED)),
    "a wire": (Limits().chunked_bytes, 413, lambda size: post(extended(size), CODED)),
}
"""The limit of each, how one more is answered, and a request with so much of it."""


@pytest.mark.parametrize("cut", [1 << 20, 61], ids=["whole", "in pieces"])
@pytest.mark.parametrize("what", BOUNDED)
def test_a_request_has_its_limits_to_the_byte(what: str, cut: int) -> None:
    limit, status, made = BOUNDED[what]
    at, beyond = sent(made(limit), cut), sent(made(limit + 1), cut)
    assert (statuses(at.got)[-1], at.ended) == (200, False)
    assert (statuses(beyond.got)[-1], beyond.ended) == (status, True)


def test_a_head_of_thousands_of_headers_is_parsed_no_further_than_its_limit() -> None:
    head = Head(Limits())
    head.feed(headers(3000))
    assert head.fault is not None
    assert len(head.headers) == refusals.MAX_HEADERS


@pytest.mark.parametrize("cut", [1 << 20, 777])
def test_a_body_that_is_too_long_is_told_before_what_is_malformed_behind(cut: int) -> None:
    body = chunked(padded_body(65537), 70000).replace(b"\r\n0\r\n", b"\r\nmalformed\r\n")
    assert statuses(sent(post(body, CODED), cut).got) == [413]


class CountedAccount(Account):
    """An account that counts how often anybody looks at what it has approved."""

    looks = 0

    @property
    def is_approving(self) -> bool:
        CountedAccount.looks += 1
        return False

    @is_approving.setter
    def is_approving(self, value: bool) -> None:
        pass

    @property
    def approved_until(self) -> float:
        CountedAccount.looks += 1
        return 0.0

    @approved_until.setter
    def approved_until(self, value: float) -> None:
        pass


class Approving:
    """A connection whose approval waits, or whose request does."""

    def __init__(self, account: Account, name: str, order: list[str]) -> None:
        self.account = account
        self.submit = self.have_turn = lambda: order.append(name)


class Line:
    """A queue whose calls wait to be made, and who has gone."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.order: list[str] = []
        self.queue = FairQueue(self.calls.append, lambda: 0.0)

    def come(self, name: str, account: Account, size: int = 0) -> None:
        """Wait for a turn, or to approve with a body of this size."""
        each: Any = Approving(account, name, self.order)
        if size:
            self.queue.wait_to_approve(each, size)
        else:
            self.queue.queue(each)

    def call(self, most: int = 1_000_000) -> None:
        while self.calls and most:
            self.calls.pop(0)()
            most -= 1


@pytest.mark.parametrize("count", [100, 2000])
def test_an_approval_takes_no_look_at_all_others_that_wait(count: int) -> None:
    line = Line()
    for number in range(count):
        line.come(f"{number}", CountedAccount(), 60)
    CountedAccount.looks = 0
    line.call()
    assert len(line.order) == count
    assert CountedAccount.looks <= 20 * count


@pytest.mark.parametrize("size", [0, 60], ids=["turns", "approvals"])
def test_who_comes_behind_a_crowd_goes_soon_and_nobody_waits_for_all_later(size: int) -> None:
    line = Line()
    order = line.order
    for number in range(100):
        line.come(f"crowd{number}", Account(), size)
    while "crowd0" not in order:
        line.call(1)
    order.clear()
    for number in range(40):
        line.come(f"late{number}", Account(), size)
        line.call(1)
    assert order.index("late0") < 2
    line.call()
    assert len(order) == len(set(order))
    assert [name for name in order if name.startswith("crowd")][:3] != []
    gone = order[: len(order) // 2]
    assert sum(name.startswith("crowd") for name in gone) >= len(gone) // 2 - 1


def test_who_is_within_its_share_has_its_turn_before_those_who_are_not() -> None:
    line, all_guests = Line(), Account(share=0.5)
    strangers = Account(all_guests, share=0.1)
    greedy, stranger, modest = Account(all_guests), Account(strangers), Account(all_guests)
    greedy.charge(1.0, 0.0)
    strangers.charge(1.0, 0.0)
    for name, account in {"greedy": greedy, "stranger": stranger, "modest": modest}.items():
        assert account.must_wait(0.0)  # together they used too much
        line.come(name, account)
    line.call()
    assert line.order == ["modest", "greedy", "stranger"]


def test_a_guest_that_has_just_had_its_turn_does_not_come_last_to_have_the_next() -> None:
    line, many = Line(), Account()
    for number in range(10):
        line.come(f"one{number}", Account())
    for number in range(10):
        line.come(f"many{number}", many)
    line.call()
    assert sum(name.startswith("many") for name in line.order[:11]) == 1


def test_large_approvals_and_small_ones_do_not_keep_each_other_out() -> None:
    line = Line()
    for number in range(3):
        line.come(f"small{number}", Account(), 60)
        line.come(f"large{number}", Account(), 60_000)
    line.queue.submitted(Account(), 1000, 60_000)
    line.call()
    assert {name[:5] for name in line.order} == {"small"}
    line.queue.submitted(Account(), MAX_APPROVALS_IN_FLIGHT, 4000)
    line.queue.decided(1000, 60_000)
    line.call()
    assert [name[:5] for name in line.order] == ["small"] * 3 + ["large"] * 3


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [
        (Rate(per_second=0.1, burst=1), 10),
        (Rate(per_second=0.1, burst=3), 10),
        (Rate(per_second=1, burst=1), 1),
        (Rate(per_second=1000, burst=1), 1),
    ],
)
def test_the_seconds_to_stay_away_are_whole_ones(rate: Rate, seconds: int) -> None:
    limiter, bucket = Limiter(rate), Bucket()
    assert all(limiter.allows(bucket, 7.0) for _ in range(rate.burst))
    assert not limiter.allows(bucket, 7.0)
    assert limiter.retry_after_seconds(bucket, 7.0) == seconds
    assert limiter.allows(bucket, 7.0 + seconds)
