"""Whatever a peer sends, and however it is cut: no exception, a bound on memory, one answer."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forewarn.server.guest.limits import Limits
from guest import room
from guest.room import answers, chunked, get, post

TIGHT = Limits(
    head_bytes=300,
    body_bytes=200,
    chunked_bytes=400,
    messages_per_turn=3,
    linger_bytes=2000,
    write_buffer_bytes=2000,
)
CODED = "Transfer-Encoding: chunked"
UPGRADE = ("Connection: Upgrade", "Upgrade: h2c")

WHOLE = st.sampled_from(
    [
        get(),
        get("/metadata/versions"),
        get("/metadata/instance?api-version=2021-02-01"),
        get("/nowhere", "Connection: close"),
        get(version="1.0"),
        get(room.EVENTS, "Connection: keep-alive", version="1.0"),
        get(room.EVENTS, *UPGRADE),
        get(room.EVENTS, "Content-Length: 5") + b"hello",
        post(),
        post(room.APPROVAL, "Expect: 100-continue"),
        post(room.APPROVAL, "Expect: 100-continue", target="/nowhere"),
        post(b"{}", "Expect: 200-ok"),
        post(b"not json"),
        post(room.APPROVAL + b" " * 200),
        post(chunked(room.APPROVAL, 5), CODED),
        post(chunked(room.APPROVAL, 5), CODED, "Expect: 100-continue"),
        post(chunked(room.APPROVAL, 60), CODED, *UPGRADE),
        post(room.APPROVAL, *UPGRADE),
        post(chunked(room.APPROVAL + b" " * 200, 7), CODED),
        post(chunked(b"\r\n\r\n" * 9, 36), CODED),
        post(b"0\r\nA: b\r\n\r\n", CODED),
        post(b"0;" + b"e" * 400 + b"\r\n\r\n", CODED),
        get(room.EVENTS, "X: " + "x" * 200),
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
)
PIECES = st.sampled_from(
    [b"\r\n", b"\n", b"\r", b" ", b":", b"\x00", b"\xff", b"GET / HTTP/1.1", b"Host: a", b"0\r\n"]
)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A request in which something was put, or something left out."""
    data = draw(WHOLE)
    at = draw(st.integers(0, len(data)))
    until = draw(st.integers(at, min(len(data), at + 6)))
    return data[:at] + draw(st.one_of(PIECES, st.binary(max_size=8))) + data[until:]


STREAMS = st.lists(
    st.one_of(WHOLE, WHOLE, broken(), PIECES, st.binary(max_size=400)), max_size=8
).map(b"".join)


def cut(data: bytes, places: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    for start, stop in itertools.pairwise(edges):
        yield data[start:stop]


def exchange(data: bytes, places: list[int], *, ends: bool) -> tuple[list[object], object]:
    """Send it cut so, and return what was answered and what became of the connection."""
    with room.opened(TIGHT) as (plane, turn):
        peer = plane.connect()
        for part in cut(data, places):
            peer.send(part)
            assert len(peer.connection._unread) <= len(data)
            while peer.paused and not peer.closing:
                turn()
        if ends:
            peer.end()
        turn()
        assert peer.paused is False or peer.closing
        got = [] if b"HEAD" in data else answers(peer.got)
        lasting: list[object] = [answer.lasting for answer in got]
        # How soon a peer is cut off that sends on after its last answer does depend on the cuts.
        return lasting, (peer.ended or peer.closing, plane.approvals.book)


@settings(max_examples=300)
@given(data=STREAMS, places=st.lists(st.integers(0, 4000), max_size=12), ends=st.booleans())
@example(data=post(chunked(b"\r\n\r\n\r\n", 6), CODED) + get(), places=list(range(400)), ends=True)
@example(data=b"\r\n\r\n\r\n" + get(), places=list(range(200)), ends=False)
def test_the_answers_do_not_depend_on_where_the_bytes_were_cut(
    data: bytes, places: list[int], ends: bool
) -> None:
    assert exchange(data, places, ends=ends) == exchange(data, [], ends=ends)


@settings(max_examples=100)
@given(data=STREAMS)
def test_the_answers_are_those_to_the_bytes_one_by_one(data: bytes) -> None:
    every = list(range(len(data)))
    assert exchange(data, every, ends=True) == exchange(data, [], ends=True)


@settings(max_examples=200)
@given(data=st.binary(max_size=2000), places=st.lists(st.integers(0, 2000), max_size=5))
def test_any_bytes_at_all_get_answers_or_silence(data: bytes, places: list[int]) -> None:
    got, _ = exchange(data, places, ends=True)
    assert all(answer[0] != 500 for answer in got if isinstance(answer, tuple))


@pytest.mark.parametrize("data", [get() * 5000, post() * 2000], ids=["GETs", "POSTs"])
def test_a_flood_that_takes_no_answers_is_held_in_little_memory(data: bytes) -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.takes = False
        limits = Limits()
        peer.send(data)
        for _ in range(100):
            turn()
        assert peer.paused
        assert peer.buffered < limits.write_buffer_bytes + 2000
        assert len(peer.connection._unread) <= len(data)
