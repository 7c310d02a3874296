"""Every limit and rate at its value and one beyond it; every time just before and at its end."""

from collections.abc import Callable, Iterator

import pytest

from forewarn.server.guest.limits import (
    MAX_APPROVALS_IN_FLIGHT,
    Account,
    Bucket,
    FairQueue,
    Limiter,
    Limits,
    Rate,
    Reason,
)
from guest import room
from guest.room import Room, chunked, get, post, statuses


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


@pytest.mark.parametrize("before", [b"", get()], ids=["first", "second"])
@pytest.mark.parametrize("cut", [1 << 20, 1000, 1], ids=["whole", "in pieces", "in bytes"])
@pytest.mark.parametrize(("size", "status"), [(16384, 200), (16385, 431)])
def test_a_head_has_its_limit_to_the_byte(size: int, status: int, cut: int, before: bytes) -> None:
    peer = sent(before + padded_head(size), cut)
    assert statuses(peer.got)[-1] == status
    assert peer.ended == (status == 431)


def test_empty_lines_before_a_head_count_for_its_limit() -> None:
    assert statuses(sent(b"\r\n" * 9000).got) == [431]


def padded_body(size: int) -> bytes:
    return room.APPROVAL[:-1] + b" " * (size - len(room.APPROVAL)) + b"}"


@pytest.mark.parametrize(("size", "status"), [(65536, 200), (65537, 413)])
def test_a_body_has_its_limit_to_the_byte(size: int, status: int) -> None:
    peer = sent(post(padded_body(size)))
    assert statuses(peer.got) == [status]
    assert peer.ended == (status == 413)


def test_a_body_over_the_limit_is_refused_before_it_comes() -> None:
    head = post(b"").replace(b"Content-Length: 0", b"Content-Length: 65537")
    peer = sent(head)
    assert statuses(peer.got) == [413]
    assert peer.ended


@pytest.mark.parametrize("cut", [1 << 20, 777])
@pytest.mark.parametrize("coded", [4096, 65537])
@pytest.mark.parametrize(("size", "status"), [(65536, 200), (65537, 413)])
def test_a_chunked_body_has_the_same_limit(size: int, status: int, coded: int, cut: int) -> None:
    data = post(chunked(padded_body(size), coded), "Transfer-Encoding: chunked")
    peer = sent(data, cut)
    assert statuses(peer.got) == [status]
    assert peer.ended == (status == 413)


@pytest.mark.parametrize("cut", [1 << 20, 777])
def test_a_body_that_is_too_long_is_told_before_what_is_malformed_behind(cut: int) -> None:
    body = chunked(padded_body(65537), 70000).replace(b"\r\n0\r\n", b"\r\nmalformed\r\n")
    assert statuses(sent(post(body, "Transfer-Encoding: chunked"), cut).got) == [413]


@pytest.mark.parametrize("cut", [1 << 20, 777, 1])
@pytest.mark.parametrize(("over", "status"), [(0, 200), (1, 413)])
def test_what_a_chunked_body_takes_on_the_wire_has_a_limit_too(
    over: int, status: int, cut: int
) -> None:
    limit = Limits().chunked_bytes
    plain = chunked(room.APPROVAL, 1000)
    at = plain.index(b"\r\n")
    extension = b";" + b"x" * (limit - len(plain) - 1 + over)
    coded = plain[:at] + extension + plain[at:]
    assert len(coded) == limit + over
    assert statuses(sent(post(coded, "Transfer-Encoding: chunked"), cut).got) == [status]


def test_a_dripping_body_has_no_longer_than_any_other() -> None:
    with room.opened() as (plane, _):
        peer = plane.connect()
        peer.send(post()[:-20])
        for byte in post()[-20:]:
            plane.pass_time(0.9)
            peer.send(bytes([byte]))
        assert statuses(peer.got) == [408]


def test_a_peer_that_approves_and_takes_no_answers_is_not_blamed_on_the_plane() -> None:
    with room.opened(Limits(write_buffer_bytes=2000)) as (plane, turn):
        peer = plane.connect()
        peer.takes = False
        plane.approvals.waits = True
        while peer.buffered <= 2000:
            peer.send(post())
            plane.approvals.decide_all()
            turn()
        plane.pass_time(30.1)
        assert peer.aborted
        assert plane.counters.refusals[Reason.SLOW_READER] == 1
        assert plane.counters.refusals[Reason.APPROVAL_TIMEOUT] == 0


def test_the_rest_of_a_refused_request_is_thrown_away_up_to_a_limit() -> None:
    with room.opened() as (plane, _):
        peer = plane.connect()
        peer.send(b"garbage\r\n\r\n")
        assert peer.ended
        got = peer.got
        peer.send(b"x" * Limits().linger_bytes)
        assert not peer.closing
        peer.send(b"x")
        assert peer.aborted
        assert peer.got == got


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


def everything(calls: list[Callable[[], None]]) -> None:
    while calls:
        calls.pop(0)()


@pytest.mark.parametrize("count", [100, 2000])
def test_an_approval_takes_no_look_at_all_others_that_wait(count: int) -> None:
    calls: list[Callable[[], None]] = []
    order: list[str] = []
    queue = FairQueue(calls.append, lambda: 0.0)
    for number in range(count):
        each = Approving(CountedAccount(), f"{number}", order)
        queue.wait_to_approve(each, 60)  # type: ignore[arg-type]
    CountedAccount.looks = 0
    everything(calls)
    assert len(order) == count
    assert CountedAccount.looks <= 20 * count


@pytest.mark.parametrize("what", ["turns", "approvals"])
def test_who_comes_behind_a_crowd_goes_soon_and_nobody_in_it_waits_for_all_who_come_later(
    what: str,
) -> None:
    calls: list[Callable[[], None]] = []
    order: list[str] = []
    queue = FairQueue(calls.append, lambda: 0.0)

    def come(name: str, account: Account) -> None:
        each = Approving(account, name, order)
        if what == "turns":
            queue.queue(each)  # type: ignore[arg-type]
        else:
            queue.wait_to_approve(each, 60)  # type: ignore[arg-type]

    for number in range(100):
        come(f"crowd{number}", Account())
    while "crowd0" not in order:
        calls.pop(0)()
    order.clear()
    for number in range(40):
        come(f"late{number}", Account())
        everything(calls[:1])
        del calls[:1]
    assert order.index("late0") < 2
    everything(calls)
    assert len(order) == len(set(order))
    assert [name for name in order if name.startswith("crowd")][:3] != []
    gone = order[: len(order) // 2]
    assert sum(name.startswith("crowd") for name in gone) >= len(gone) // 2 - 1


def test_a_guest_that_has_just_had_its_turn_does_not_come_last_to_have_the_next() -> None:
    calls: list[Callable[[], None]] = []
    order: list[str] = []
    queue = FairQueue(calls.append, lambda: 0.0)
    many = Account()
    for number in range(10):
        queue.queue(Approving(Account(), f"one{number}", order))  # type: ignore[arg-type]
    for number in range(10):
        queue.queue(Approving(many, f"many{number}", order))  # type: ignore[arg-type]
    everything(calls)
    assert sum(name.startswith("many") for name in order[:11]) == 1


def test_large_approvals_and_small_ones_do_not_keep_each_other_out() -> None:
    calls: list[Callable[[], None]] = []
    order: list[str] = []
    queue = FairQueue(calls.append, lambda: 0.0)
    for number in range(3):
        each = Approving(Account(), f"small{number}", order)
        queue.wait_to_approve(each, 60)  # type: ignore[arg-type]
        each = Approving(Account(), f"large{number}", order)
        queue.wait_to_approve(each, 60_000)  # type: ignore[arg-type]
    queue.submitted(Account(), 1000, 60_000)
    everything(calls)
    assert {name[:5] for name in order} == {"small"}
    queue.submitted(Account(), MAX_APPROVALS_IN_FLIGHT, 4000)
    queue.decided(1000, 60_000)
    everything(calls)
    assert [name[:5] for name in order] == ["small"] * 3 + ["large"] * 3


Opened = tuple[Room, Callable[[], None]]
TEN = Rate(per_second=10, burst=4)


@pytest.fixture
def opened() -> Iterator[Opened]:
    with room.opened(rate=TEN) as made:
        yield made


def test_whoever_keeps_to_the_rate_is_never_refused(opened: Opened) -> None:
    plane, _ = opened
    peer = plane.connect()
    for _ in range(1000):
        peer.send(get())
        plane.pass_time(0.1)
    assert set(statuses(peer)) == {200}


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
