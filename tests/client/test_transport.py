"""HTTP without the socket: any bytes, in any pieces, are an answer or none."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.scripted import message
from forewarn.client import transport
from forewarn.client.discovery import EndpointAddress
from forewarn.client.session import Question
from forewarn.protocol.message import Reply

HERE = EndpointAddress("169.254.169.254", 80, "/vm/web-0")
ASK = Question(
    endpoint=HERE,
    target="/metadata/scheduledevents?api-version=2020-07-01",
    version="2020-07-01",
    answer_seconds=1,
)
HELD = msgspec.structs.replace(ASK, held=((b"If-None-Match", b"7"),))
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"


def exchange() -> transport.HttpExchange:
    made = transport.HttpExchange(HERE)
    made.ask(ASK)
    return made


def fed(data: bytes, cuts: list[int]) -> Reply | str | None:
    """Feed bytes in pieces and then the end; return the answer, or the reason why there is none."""
    made = exchange()
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    try:
        for piece in [*filter(None, pieces), b""]:
            reply = made.receive(piece)
            if reply is not None:
                return reply
    except transport.ConnectionBroken as broken:
        return broken.failure.reason
    return None


def test_a_question_is_written_as_http() -> None:
    made = transport.HttpExchange(EndpointAddress("::1", 8080, "/vm/web-0"))
    sent = made.ask(ASK)
    assert sent.startswith(
        b"GET /vm/web-0/metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\n"
    )
    assert b"\r\nHost: [::1]:8080\r\n" in sent
    assert b"\r\nMetadata: true\r\n" in sent


def test_what_holds_on_one_connection_is_said_once_an_answer_came_on_it() -> None:
    made = transport.HttpExchange(EndpointAddress("169.254.169.254"))
    assert b"If-None-Match" not in made.ask(HELD)
    assert made.receive(message(200, b"abc")) is not None
    assert made.reuse()
    assert b"\r\nIf-None-Match: 7\r\n" in made.ask(HELD)


@pytest.mark.parametrize("data", [message(200, b"abc"), CHUNKED], ids=["length", "chunked"])
@given(cuts=st.lists(st.integers(0, 200), max_size=8))
def test_the_pieces_do_not_matter(data: bytes, cuts: list[int]) -> None:
    reply = fed(data, cuts)
    assert isinstance(reply, Reply)
    assert (reply.status, reply.body) == (200, b"abc")


@pytest.mark.parametrize("data", [message(200, b"abc"), CHUNKED], ids=["length", "chunked"])
def test_an_answer_that_was_cut_anywhere_is_none(data: bytes) -> None:
    assert {fed(data[:end], []) for end in range(len(data))} == {"cut"}


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_any_bytes_are_an_answer_or_a_failure(data: bytes, cuts: list[int]) -> None:
    assert fed(b"HTTP/1.1 200 OK\r\n" + data, cuts) is not None
    assert fed(data, cuts) is not None


def test_only_an_end_before_any_answer_on_a_used_connection_is_stale() -> None:
    made = exchange()
    with pytest.raises(transport.ConnectionBroken) as first:
        made.receive(b"")
    assert not first.value.stale
    for data, stale in [(b"", True), (b"HTTP/1.1 2", False)]:
        made = exchange()
        made.receive(message(200))
        assert made.reuse()
        made.ask(ASK)
        if data:
            made.receive(data)
        with pytest.raises(transport.ConnectionBroken) as second:
            made.receive(b"")
        assert second.value.stale == stale


def test_a_connection_that_says_more_than_it_was_asked_is_not_used_again() -> None:
    made = exchange()
    assert made.receive(message(200) + b"HTTP/1.1 200 OK\r\n") is not None
    assert not made.reuse()
