"""HTTP without the socket: any bytes, in any pieces, are an answer or none; and one request."""

import itertools
import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import patience
from client.scripted import Scripted, Talk, losing, message, serving
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


def request(method: str, url: str, **options: Any) -> Reply:
    return transport.request(method, url, **{"seconds": patience.SECONDS, **options})


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
    except transport.RequestFailed as broken:
        return broken.failure.reason
    return None


def test_a_question_is_written_as_http() -> None:
    made = transport.HttpExchange(EndpointAddress("fe80::1%eth0", 8080, "/vm/web-0"))
    sent = made.ask(msgspec.structs.replace(ASK, report="back"))
    assert sent.startswith(
        b"GET /vm/web-0/metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\n"
    )
    assert b"\r\nHost: [fe80::1]:8080\r\n" in sent
    other, _ = transport.prepared("GET", f"{made.endpoint}/status")  # as messages write it
    assert other.endpoint.host == made.endpoint.host
    for header in (b"Metadata: true", b"Forewarn-Agent: back", b"User-Agent: Forewarn/"):
        assert b"\r\n" + header in sent


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


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.0 200 OK\r\n\r\nabc",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + message(200, b"abc"),
        message(200, b"abc", Connection="close"),
        message(200, b"abc") + b"and more",
    ],
    ids=["http 1.0", "interim", "close", "more than asked"],
)
def test_answers_of_every_form_are_read(data: bytes) -> None:
    reply = fed(data, [])
    assert isinstance(reply, Reply)
    assert (reply.status, reply.body) == (200, b"abc")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "no-http"),
        (b"HTTP/1.1 200 OK\r\nContent-", "cut"),
        (b"", "cut"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (transport.MAX_HEAD_BYTES + 1), "too-large"),
        (message(200, b" " * (transport.MAX_BODY_BYTES + 1)), "too-large"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * (transport.MAX_INTERIM + 1), "no-http"),
    ],
    ids=["no http", "cut in the head", "closed", "long head", "long body", "interim answers"],
)
def test_what_is_no_answer_has_its_reason(data: bytes, reason: str) -> None:
    assert fed(data, []) == reason


def test_only_an_end_before_any_answer_on_a_used_connection_is_stale() -> None:
    made = exchange()
    with pytest.raises(transport.RequestFailed) as first:
        made.receive(b"")
    assert not first.value.stale
    for data, stale in [(b"", True), (b"HTTP/1.1 2", False)]:
        made = exchange()
        made.receive(message(200))
        assert made.reuse()
        made.ask(ASK)
        if data:
            made.receive(data)
        with pytest.raises(transport.RequestFailed) as second:
            made.receive(b"")
        assert second.value.stale == stale


def test_a_connection_that_says_more_than_it_was_asked_is_not_used_again() -> None:
    made = exchange()
    assert made.receive(message(200) + b"HTTP/1.1 200 OK\r\n") is not None
    assert not made.reuse()


def test_a_body_in_countless_pieces_is_refused_before_it_costs_seconds() -> None:
    made = exchange()
    assert made.receive(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") is None
    pieces = b"1\r\nx\r\n" * 5000
    for _ in range(transport.MAX_PIECES // 5000):
        assert made.receive(pieces) is None
    with pytest.raises(transport.RequestFailed) as broken:
        made.receive(pieces)
    assert broken.value.failure.reason == "too-large"


def test_a_request_is_sent_as_it_is_asked_for_and_any_status_is_an_answer() -> None:
    with serving(lambda asked, _: message(418, asked.body, X_Target=asked.target)) as server:
        url = f"{server.url}/a/b?c=d"
        reply = request(
            "PUT",
            url,
            seconds=patience.SECONDS,
            headers=[("Authorization", "Bearer x")],
            body=b"{}",
        )
    assert (reply.status, reply.body) == (418, b"{}")
    assert (b"x-target", b"/a/b?c=d") in reply.headers


def test_a_request_may_replace_the_headers_that_every_request_has() -> None:
    given = {"host": "other", "Accept": "text/plain", "User-Agent": "me", "Content-Length": "9"}
    with serving(lambda asked, _: message(200, msgspec.json.encode(asked.headers))) as server:
        reply = request("POST", server.url, headers=given.items(), body=b"12")
    given_lower = {name.lower(): value for name, value in given.items()}
    assert msgspec.json.decode(reply.body) == {
        **given_lower,
        "content-length": "2",
        "connection": "close",
    }


def failed(url: str, **options: Any) -> transport.RequestFailed:
    with pytest.raises(transport.RequestFailed) as caught:
        request("GET", url, **options)
    return caught.value


def test_a_request_that_fails_says_why_and_carries_the_systems_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    refused = failed(f"http://127.0.0.1:{port}")
    assert (refused.reason, type(refused.__cause__)) == ("no-connection", ConnectionRefusedError)
    absent = failed("http://service/", unix_socket=str(tmp_path / "none"))
    assert (absent.reason, type(absent.__cause__)) == ("no-connection", FileNotFoundError)
    with serving(lambda *_: message(200, b"x" * 100)) as server:
        assert failed(server.url, max_body=99).reason == "too-large"
        assert request("GET", server.url, max_body=100).status == 200
    with serving(lambda *_: b"") as server:
        assert failed(server.url).reason == "cut"
    for url in ("ftp://x", "http://", "x", "http://a:b", "http://a:99999", "http://a/b c"):
        assert failed(url).reason == "invalid-request"
    for headers in ([("A\nB", "c")], [("A", "b\r\nC: d")], [("A", "\u0455")]):
        assert failed("http://a", headers=headers).reason == "invalid-request"


def test_a_request_has_one_deadline_however_the_answer_trickles_in() -> None:
    stop = threading.Event()

    def script(talk: Talk) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not stop.wait(patience.PAUSE_SECONDS):
            talk.send(b" ")

    with Scripted(script) as server:
        assert failed(server.url, seconds=0.3).reason == "no-answer"
        stop.set()


def test_a_request_can_be_ended_in_the_middle_of_its_handshake() -> None:
    opened: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        asked = pool.submit(failed, url, seconds=1e6, opened=opened.put)
        with server.accept()[0] as peer:
            assert peer.recv(1)
            latest = [opened.get(timeout=patience.SECONDS) for _ in range(2)][1]
            latest.shutdown(socket.SHUT_RDWR)
            assert asked.result(patience.SECONDS).reason == "no-connection"


def test_an_address_that_loses_packets_leaves_time_for_the_next_one() -> None:
    with losing() as lost, socket.create_server(("127.0.0.1", 0)) as answers:
        places = [(socket.AF_INET, each) for each in (lost, answers.getsockname())]
        tried: list[socket.socket] = []
        with transport.connect(("", 0), 1, tried.append, places) as found:
            assert found.getpeername() == answers.getsockname()
    assert (tried[0].gettimeout() or 1) <= 0.5


def test_a_resolver_that_does_not_answer_is_left_behind_once_and_its_answer_counts() -> None:
    answers, asked = threading.Event(), []

    def resolve(host: str, port: int, *, type: int, flags: int = 0) -> list[Any]:  # noqa: A002
        if flags:
            raise socket.gaierror(socket.EAI_NONAME, "not an address")
        asked.append(host)
        answers.wait()
        return [(socket.AF_INET, type, 0, "", (host, port))]

    found: transport.Places = queue.SimpleQueue()
    try:
        for _ in range(3):
            with pytest.raises(TimeoutError, match=r"chat\.example"):
                transport.look_up(("chat.example", 443), 0.01, resolve)
        threading.Thread(
            target=lambda: found.put(transport.look_up(("chat.example", 443), 60, resolve))
        ).start()
        patience.until(lambda: any(each for _, each in transport._look_ups._latest.values()))
    finally:
        answers.set()
    assert found.get(timeout=patience.SECONDS) == [(socket.AF_INET, ("chat.example", 443))]
    assert asked == ["chat.example"]
    assert not transport._look_ups._latest


def test_a_resolver_that_never_ends_holds_up_no_later_look_up() -> None:
    ends, asked = threading.Event(), []

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        if len(asked) == 1:
            ends.wait()
        return [(socket.AF_INET, 0, 0, "", (host, port))]

    look_ups, wanted = transport._LookUps(0.0), (("chat.example", 443), resolve)
    answers: list[transport.Places] = [queue.SimpleQueue(), queue.SimpleQueue()]
    try:
        look_ups.join(wanted, answers[0])
        patience.until(lambda: asked)
        look_ups.join(wanted, answers[1])
        found = answers[1].get(timeout=patience.SECONDS)
    finally:
        ends.set()
    assert found == [(socket.AF_INET, ("chat.example", 443))]


@pytest.mark.parametrize("error", [socket.gaierror(socket.EAI_NONAME, "unknown"), UnicodeError()])
def test_a_resolvers_error_is_the_callers(error: Exception) -> None:
    def resolve(_host: str, _port: int, *, type: int, flags: int = 0) -> list[Any]:  # noqa: A002
        raise socket.gaierror if flags else error

    with pytest.raises(type(error)):
        transport.look_up(("chat.example", 443), patience.SECONDS, resolve)


def test_an_address_needs_no_resolver() -> None:
    assert transport.look_up(("127.0.0.1", 80), 0.0) == [(socket.AF_INET, ("127.0.0.1", 80))]
    assert transport.look_up(("::1", 80), 0.0)[0][0] == socket.AF_INET6
    assert transport.look_up(("localhost", 80), patience.SECONDS)
