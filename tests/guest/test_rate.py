"""How often a machine may ask (protocol.md section 9)."""

from collections.abc import Callable, Iterator

import pytest

from forewarn.maintenance.model import Changes
from forewarn.server.guest.limits import UNLIMITED, Bucket, Limiter, Rate, Reason
from guest import room
from guest.room import Room, answers, get, post, statuses

Opened = tuple[Room, Callable[[], None]]
TEN = Rate(per_second=10, burst=4)


@pytest.fixture
def opened() -> Iterator[Opened]:
    with room.opened(rate=TEN) as made:
        yield made


def test_a_burst_is_answered_and_one_more_is_told_when_to_come_back(opened: Opened) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(get() * 5)
    turn()
    assert statuses(peer) == [200, 200, 200, 200, 429]
    refused = answers(peer.got)[-1]
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["content-type"] == "text/plain; charset=utf-8"
    assert refused.body == b"Too many requests"
    assert "connection" not in refused.headers
    assert plane.counters.refusals[Reason.RATE] == 1


def test_who_comes_back_in_time_is_answered(opened: Opened) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(get() * 5)
    turn()
    plane.pass_time(0.1)
    peer.send(get() * 2)
    turn()
    assert statuses(peer)[5:] == [200, 429]
    plane.pass_time(10)
    peer.send(get() * 5)
    turn()
    assert statuses(peer)[7:] == [200, 200, 200, 200, 429]


def test_whoever_keeps_to_the_rate_is_never_refused(opened: Opened) -> None:
    plane, _ = opened
    peer = plane.connect()
    for _ in range(1000):
        peer.send(get())
        plane.pass_time(0.1)
    assert set(statuses(peer)) == {200}


def test_it_is_the_machines_own_on_all_of_its_connections(opened: Opened) -> None:
    plane, _ = opened
    peers = [plane.connect() for _ in range(5)]
    for peer in peers:
        peer.send(get("/metadata/versions"))
    assert [statuses(peer) for peer in peers] == [[200]] * 4 + [[429]]
    other = plane.connect("10.0.0.11")
    other.send(get())
    assert statuses(other) == [200]


def test_an_approval_is_never_refused_for_it_and_does_not_count() -> None:
    with room.opened(rate=TEN) as (plane, turn):
        peer = plane.connect()
        peer.send(post() * 10 + get() * 5 + post() + get())
        turn()
        assert statuses(peer) == [200] * 10 + [200] * 4 + [429, 200, 429]


def test_what_is_wrong_by_itself_does_not_count_and_is_told_first(opened: Opened) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(get("/nowhere") * 9 + get() * 5 + get("/nowhere"))
    turn()
    assert statuses(peer) == [404] * 9 + [200] * 4 + [429, 404]


def test_a_machine_that_is_removed_is_forgotten(opened: Opened) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(get() * 5)
    turn()
    machine = plane.registry.machines["web-0"]
    plane.learn(Changes(removed_machines=("web-0",)))
    assert plane.registry._callers == {}
    plane.learn(Changes(machines=(machine,)))
    peer.send(get())
    assert statuses(peer)[-1] == 200


def test_without_a_limit_nobody_is_refused() -> None:
    with room.opened(rate=UNLIMITED) as (plane, turn):
        peer = plane.connect()
        peer.send(get() * 400)
        turn()
        turn()
        assert statuses(peer) == [200] * 400


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
