"""An emulator's connections speak HTTP as the guest plane does, however the bytes come."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import patience
from forewarn.server.guest.limits import Limits
from forewarn.testing import EmulatedEvent, Emulator
from forewarn.testing.emulated_service import EmulatedService

EVENTS = b"/vm/web-0/metadata/scheduledevents?api-version=2020-07-01"
HEAD = b"HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n"
GET = b"GET " + EVENTS + b" " + HEAD + b"\r\n"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as started:
        started.machine("web-0")
        yield started


@pytest.fixture
def event(emulator: Emulator) -> EmulatedEvent:
    return emulator.schedule("Reboot", "web-0")


@contextmanager
def connected(emulator: Emulator) -> Iterator[socket.socket]:
    port = int(emulator.endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), patience.SECONDS) as connection:
        yield connection


def hurry(emulator: Emulator) -> None:
    """Give peers a tenth of a second, in place of half a minute, for each of their parts."""

    def set_limits(service: EmulatedService) -> None:
        service.guests._connections.limits = Limits(
            head_seconds=0.1, body_seconds=0.1, idle_seconds=0.1, approval_seconds=0.1
        )

    emulator.read(set_limits)


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other end has ended."""
    read = b""
    while part := connection.recv(65536):
        read += part
    return read


def until(connection: socket.socket, ending: bytes) -> bytes:
    read = b""
    while not read.endswith(ending):
        part = connection.recv(65536)
        assert part, read
        read += part
    return read


def statuses(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


def body_of(event: EmulatedEvent) -> bytes:
    return b'{"StartRequests":[{"EventId":"%s"}]}' % event.event_id.encode()


def test_pipelined_requests_are_answered_in_their_order(
    emulator: Emulator, event: EmulatedEvent
) -> None:
    body = body_of(event)
    post = b"POST " + EVENTS + b" " + HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with connected(emulator) as connection:
        connection.sendall(GET + post + GET)
        connection.shutdown(socket.SHUT_WR)
        answers = rest(connection)
    assert statuses(answers) == [200, 200, 200]
    assert answers.index(b'"Scheduled"') < answers.index(b'"Started"')
    assert [exchange.method for exchange in emulator.requests] == ["GET", "POST", "GET"]


def test_a_peer_that_awaits_no_answer_is_read_no_further_than_a_request_ahead(
    emulator: Emulator,
) -> None:
    def is_paused(service: EmulatedService) -> bool:
        return any(each._paused for each in service.guests._connections._all)

    emulator.faults("delay", seconds=60)
    flood, sent = GET * 100, 0
    with connected(emulator) as connection:
        while not emulator.read(is_paused) and sent < 500 * len(flood):
            connection.sendall(flood)
            sent += len(flood)
        assert emulator.read(is_paused)
        emulator.advance(60)
        connection.shutdown(socket.SHUT_WR)
        answers = rest(connection)
    assert len(statuses(answers)) == sent // len(GET)  # most of them are over the machine's rate


def test_a_request_may_come_byte_by_byte(emulator: Emulator, event: EmulatedEvent) -> None:
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body_of(event)), body_of(event))
    post = b"POST " + EVENTS + b" " + HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body
    with connected(emulator) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(post)):
            connection.sendall(post[number : number + 1])
        connection.shutdown(socket.SHUT_WR)
        assert statuses(rest(connection)) == [200]
    assert event.approved_by == "web-0"
    assert [exchange.body for exchange in emulator.requests] == [body_of(event)]


def test_a_client_that_waits_with_its_body_is_told_to_go_on_once(
    emulator: Emulator, event: EmulatedEvent
) -> None:
    body = body_of(event)
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connected(emulator) as connection:
        for _ in range(2):
            connection.sendall(b"POST " + EVENTS + b" " + head)
            assert until(connection, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body)
            assert statuses(until(connection, b"\r\n\r\n")) == [200]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET " + EVENTS + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /elsewhere " + HEAD + b"\r\n", 404),
        (b"DELETE " + EVENTS + b" " + HEAD + b"\r\n", 405),
        (b"POST " + EVENTS + b" " + HEAD + b"Content-Length: 9999999\r\n\r\n", 413),
        (b"GET " + EVENTS + b" " + HEAD + b"X: " + b"x" * 20_000 + b"\r\n\r\n", 431),
        (b"GET " + EVENTS.replace(b"web-0", b"web-9") + b" " + HEAD + b"\r\n", 403),
        (b"GET " + EVENTS + b" HTTP/1.1\r\nHost:", 400),
    ],
)
def test_what_the_service_refuses_is_refused(emulator: Emulator, sent: bytes, status: int) -> None:
    with connected(emulator) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert statuses(rest(connection)) == [status]


def test_a_client_that_ends_its_side_gets_its_answer_at_once(
    emulator: Emulator, event: EmulatedEvent
) -> None:
    waiting = GET.replace(b"\r\n\r\n", b"\r\nIf-None-Match: 1\r\nPrefer: wait=60\r\n\r\n")
    with connected(emulator) as connection:
        connection.sendall(waiting)
        emulator.until(lambda: emulator.requests, patience.SECONDS)
        connection.shutdown(socket.SHUT_WR)
        assert statuses(rest(connection)) == [304]
    assert event.status == "Scheduled"


def test_the_last_answer_of_a_connection_is_whole(emulator: Emulator) -> None:
    with connected(emulator) as connection:
        connection.sendall(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = rest(connection)
    assert answer.endswith(b'{"DocumentIncarnation":0,"Events":[]}')


def test_connections_that_are_cut_off_leave_nothing(emulator: Emulator) -> None:
    for _ in range(20):
        with connected(emulator) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.sendall(GET[:40])
    with connected(emulator) as connection:
        connection.sendall(GET)
        connection.shutdown(socket.SHUT_WR)
        assert statuses(rest(connection)) == [200]
    assert emulator.read(lambda service: service.guests.figures()["guest_connections"]) == 0


@pytest.mark.parametrize(
    ("part", "status"),
    [
        *((GET[:40], 408), (GET + GET[:40], 408)),
        (b"POST " + EVENTS + b" " + HEAD + b"Content-Length: 9\r\n\r\n{}", 408),
        (
            b"POST " + EVENTS + b" " + HEAD + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
            408,
        ),
    ],
)
def test_a_request_that_does_not_come_whole_is_told_so_in_its_time(
    emulator: Emulator, part: bytes, status: int
) -> None:
    hurry(emulator)
    with connected(emulator) as connection:
        connection.sendall(part)
        answers = rest(connection)
    assert statuses(answers)[-1] == status
    assert b"\r\nConnection: close\r\n" in answers


def test_a_connection_without_a_request_is_closed_in_its_time(emulator: Emulator) -> None:
    hurry(emulator)
    with connected(emulator) as connection:
        connection.sendall(GET)
        assert statuses(rest(connection)) == [200]


def test_a_request_may_be_delayed_for_longer_than_a_peer_may_be_silent() -> None:
    with Emulator() as emulator:
        hurry(emulator)
        emulator.machine("web-0")
        emulator.faults("delay", seconds=0.5)
        with connected(emulator) as delayed, connected(emulator) as silent:
            delayed.sendall(GET)
            delayed.shutdown(socket.SHUT_WR)
            emulator.until(lambda: emulator.requests, patience.SECONDS)
            silent.sendall(GET[:40])
            assert statuses(rest(silent)) == [408]  # so the time of silent peers is over
            emulator.advance(0.5)
            assert statuses(rest(delayed)) == [200]


def test_a_delayed_request_whose_client_has_gone_is_never_read(emulator: Emulator) -> None:
    emulator.faults("delay", seconds=60)
    with connected(emulator) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.sendall(GET)
        emulator.until(lambda: emulator.requests, patience.SECONDS)
    with connected(emulator) as connection:  # whoever comes later finds that one gone
        connection.sendall(GET)
        until(connection, b"}")
    emulator.advance(60)
    assert [exchange.was_read for exchange in emulator.requests] == [False, True]
