"""A GET that waits for its document to change (protocol.md section 10)."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from forewarn.maintenance.model import Changes
from forewarn.server.guest.connection import UNREAD_BYTES
from forewarn.server.guest.endpoint import SLICE
from forewarn.server.guest.limits import Limits, Reason
from guest import room
from guest.room import Peer, Room, answers, get, statuses

Opened = tuple[Room, Callable[[], None]]


@pytest.fixture
def opened() -> Iterator[Opened]:
    with room.opened() as made:
        yield made


def waits(tag: str = "2", seconds: int = 60, *headers: str, target: str = room.EVENTS) -> bytes:
    return get(target, f"If-None-Match: {tag}", f"Prefer: wait={seconds}", *headers)


def waiting(plane: Room, data: bytes | None = None, address: str = "10.0.0.10") -> Peer:
    peer = plane.connect(address)
    peer.send(waits() if data is None else data)
    assert peer.got == b""
    return peer


@pytest.mark.parametrize(("asked", "applied"), [(1, 1), (60, 60), (120, 120), (3600, 120)])
def test_its_end_is_304_never_before_and_within_a_sweep(
    opened: Opened, asked: int, applied: int
) -> None:
    plane, turn = opened
    peer = waiting(plane, waits(seconds=asked))
    plane.pass_time(applied - 0.01)
    turn()
    assert peer.got == b""
    plane.pass_time(0.01)
    turn()
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["etag"]) == (304, "2")
    assert answer.headers["preference-applied"] == f"wait={applied}"
    assert not peer.closing
    assert len(plane.connections.long_polls) == 0


def test_a_request_that_waits_keeps_nothing_of_what_it_said_but_its_answers_form(
    opened: Opened,
) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(waits("2").replace(b"HTTP/1.1", b"HTTP/1.0\r\nConnection: keep-alive"))
    reader = peer.connection._reader
    assert len(plane.connections.long_polls) == 1
    assert (reader.head.headers, reader.head.target) == ([], b"")
    assert reader.head._parser is None
    plane.publish(3)
    turn()
    (answer,) = answers(peer.got)
    assert answer.headers["connection"] == "keep-alive"


def test_a_peer_that_takes_no_answers_is_cut_off_though_the_last_one_had_waited(
    opened: Opened,
) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.takes = False
    peer.send(get("/metadata/instance/compute/name?api-version=2021-02-01&format=text"))
    assert not peer.paused
    peer.high = len(peer.got)
    peer.send(waits("2"))
    plane.publish(3)
    turn()
    plane.pass_time(30.1)
    assert peer.aborted
    assert plane.counters.refusals[Reason.SLOW_READER] == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get(room.EVENTS, "Prefer: wait=60"), 200),
        (get(room.EVENTS, "Prefer: wait=60", "If-None-Match: *"), 304),
        (get(room.EVENTS, "Prefer: wait=0", "If-None-Match: 2"), 304),
        (get(room.EVENTS, "Prefer: wait=soon", "If-None-Match: 2"), 304),
        (get(room.EVENTS, "If-None-Match: 2"), 304),
    ],
)
def test_who_does_not_ask_to_wait_for_news_is_answered_at_once_and_told_of_no_wait(
    opened: Opened, data: bytes, status: int
) -> None:
    peer = opened[0].connect()
    peer.send(data)
    (answer,) = answers(peer.got)
    assert answer.status == status
    assert "preference-applied" not in answer.headers


def test_a_scope_that_only_was_asked_for_wakes_nobody(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    scope = msgspec.structs.replace(plane.documents.scope("web"), asked_at=room.START)
    plane.learn(Changes(scopes=(scope,)))
    turn()
    assert peer.got == b""
    assert len(plane.connections.long_polls) == 1


def test_many_are_woken_in_slices_and_others_are_answered_in_between() -> None:
    loopback = room.Listener(address="127.0.0.1", default_vm="web-0")
    with room.opened(Limits(connections_per_address=SLICE * 3)) as (plane, turn):
        peers = [plane.connect("127.1.1.1", loopback) for _ in range(SLICE * 3)]
        for peer in peers:
            peer.send(waits())
        plane.publish(3)
        assert sum(bool(peer.got) for peer in peers) == SLICE
        peer = plane.connect()
        peer.send(get())
        assert statuses(peer) == [200]
        turn()
        assert {tuple(statuses(peer)) for peer in peers} == {(200,)}


def test_little_is_read_behind_a_waiting_request_and_the_rest_after_it(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    count = UNREAD_BYTES // len(get()) + 1
    for _ in range(count):
        assert not peer.paused
        peer.send(get())
    assert peer.paused
    plane.publish(3)
    turn()
    assert not peer.paused
    assert statuses(peer) == [200] * (count + 1)


def test_one_that_does_not_take_its_answer_is_cut_off_as_any_slow_reader(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    peer.takes, peer.high = False, 100
    plane.publish(3)
    assert peer.buffered > peer.high
    plane.pass_time(29.9)
    turn()
    assert not peer.closing
    plane.pass_time(0.2)
    assert peer.aborted
    assert plane.counters.refusals[Reason.SLOW_READER] == 1
