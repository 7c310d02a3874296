"""One connection over a transport in memory: order, answers, what RFC 9112 asks for."""

import itertools
import uuid

import pytest

from forewarn.server.guest.limits import TURNS, Limits
from guest import room
from guest.room import answers, chunked, get, post, statuses


def one(data: bytes) -> tuple[room.Answer, room.Peer]:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.send(data)
        turn()
        (answer,) = answers(peer.got)
        return answer, peer


def test_every_answer_has_an_id_of_its_own_and_the_date_of_its_second() -> None:
    with room.opened() as (plane, _):
        peer = plane.connect()
        peer.send(get())
        plane.pass_time(1.5)
        peer.send(get())
        first, second = answers(peer.got)
    for request_id in (first.headers["x-ms-request-id"], second.headers["x-ms-request-id"]):
        assert str(uuid.UUID(request_id)) == request_id
    assert first.headers["x-ms-request-id"] != second.headers["x-ms-request-id"]
    assert second.headers["date"] == "Thu, 01 Jan 2026 12:00:01 GMT"


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
FAULTS = {
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 400),
    "no Host": (get().replace(b"Host: 169.254.169.254\r\n", b""), 400),
    "two Hosts": (get(room.EVENTS, "Host: b"), 400),
    "a folded header": (get(room.EVENTS, "X: a\r\n b"), 400),
    "a space before the colon": (get(room.EVENTS, "X : a"), 400),
    "bare line feeds": (get().replace(b"\r\n", b"\n"), 400),
    "length and coding": (post(b"0\r\n\r\n", CODED, "Content-Length: 5"), 400),
    "two lengths": (post(b"{}", "Content-Length: 2"), 400),
    "a length that is none": (get(room.EVENTS, "Content-Length: 1x"), 400),
    "an unknown coding": (post(b"0\r\n\r\n", "Transfer-Encoding: gzip, chunked"), 501),
    "coding in HTTP/1.0": (
        post(chunked(room.APPROVAL, 99), CODED).replace(b"HTTP/1.1", b"HTTP/1.0"),
        400,
    ),
    "HTTP/0.9": (b"GET /\r\n\r\n", 505),
    "HTTP/2": (b"GET / HTTP/2.0\r\n\r\n", 505),
    "HTTP/3": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505),
    "a bad chunk": (post(b"x\r\n", CODED), 400),
}


@pytest.mark.parametrize(("data", "status"), FAULTS.values(), ids=FAULTS)
def test_what_rfc_9112_does_not_allow_is_refused_and_the_connection_closed(
    data: bytes, status: int
) -> None:
    answer, peer = one(data + get())
    assert answer.status == status
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert peer.ended


@pytest.mark.parametrize("coding", [False, True], ids=["by length", "chunked"])
def test_an_upgrade_is_not_taken_and_its_body_is_read_as_ever(coding: bool) -> None:
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEA")
    if coding:
        data = post(chunked(room.APPROVAL, 9), *upgrade, CODED)
    else:
        data = post(room.APPROVAL, *upgrade)
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.send(data + get(room.EVENTS, *upgrade) + get())
        turn()
        assert statuses(peer.got) == [200, 200, 200]
        assert len(plane.approvals.book) == 1
