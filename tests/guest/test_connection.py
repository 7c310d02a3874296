"""One connection over a transport in memory: order, answers, what RFC 9112 asks for."""

import itertools

import pytest

from forewarn.server.guest.limits import TURNS, Limits
from guest import room
from guest.room import answers, chunked, get, post, statuses


def test_a_plane_that_stops_closes_a_peer_once_it_has_taken_its_answers() -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.takes = False
        while not peer.paused:
            peer.send(get() * 10)
            turn()
        peer.connection._unread = b""
        plane.connections.draining = plane.connections.retiring = True
        peer.take()
        assert peer.closing
        assert not peer.aborted


@pytest.mark.parametrize("at_once", [1, TURNS])
def test_few_connections_at_a_time_have_a_turn_however_many_pipeline(at_once: int) -> None:
    with room.opened() as (plane, _):
        if at_once == 1:  # a round has no time for more
            plane.connections.fair_queue._monotonic = itertools.count().__next__
        loop = plane.connections.loop
        peers = [plane.connect() for _ in range(32)]
        for peer in peers:
            peer.send(get() * 50)
        answered = [len(answers(peer.got)) for peer in peers]
        assert answered == [1] * 32
        for turns in range(at_once, 33, at_once):
            loop.call_soon(loop.stop)
            loop.run_forever()
            answered = [len(answers(peer.got)) for peer in peers]
            assert sum(answered) == 32 + turns * Limits().messages_per_turn
            other = plane.connect("10.0.0.11")
            other.send(get())
            assert statuses(other.got) == [200]
        assert set(answered) == {1 + Limits().messages_per_turn}


def test_a_plane_that_stops_answers_once_more_whoever_waits_for_a_turn() -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.send(get() * 3)
        plane.connections.draining = plane.connections.retiring = True
        peer.connection.retire()
        turn()
        assert [answer.headers.get("connection") for answer in answers(peer.got)] == [None, "close"]


def test_a_peer_that_does_not_take_its_answers_is_read_no_further() -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.takes = False
        for _ in range(1000):
            if peer.paused:
                break
            peer.send(get() * 50)
            turn()
        assert peer.paused
        assert peer.buffered <= Limits().write_buffer_bytes + 1000
        assert len(peer.connection._unread) <= 50 * len(get())
        peer.takes = True
        peer.take()
        turn()
        assert not peer.paused
        assert len(answers(peer.got)) % 50 == 0


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_chunked_body_is_read_with_extensions_and_trailers(size: int) -> None:
    body = chunked(room.APPROVAL, size).replace(
        b"0\r\n\r\n", b"0;a=b\r\nX-Forwarded-For: a\r\n\r\n"
    )
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.send(post(body, "Transfer-Encoding: chunked") + get())
        turn()
        assert statuses(peer.got) == [200, 200]
        assert plane.approvals.book == [("web", (room.EVENT_ID,), "web-0", "10.0.0.10")]


def test_a_head_gets_no_body_and_the_length_of_the_one_that_it_would_get() -> None:
    with room.opened() as (plane, _):
        peer = plane.connect()
        peer.send(get().replace(b"GET", b"HEAD", 1))
        (answer,) = answers(peer.got, to_head=True)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, POST"
    assert int(answer.headers["content-length"]) > 0


CODED = "Transfer-Encoding: chunked"
