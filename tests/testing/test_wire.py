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
