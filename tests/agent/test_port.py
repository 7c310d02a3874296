"""The status port's own thread: it ends when it is told, and costs nothing while nobody asks."""

import http.client
import socket
import threading

import pytest

from forewarn.agent.port import Port


class Page:
    def page(self, path: str, *, own: bool) -> tuple[int, str, bytes] | None:
        whose = b"own" if own else b"another"
        return (200, "text/plain", whose) if path == "/here" else None


def ask(port: int, path: str, *, by: str = "127.0.0.1") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10, source_address=(by, 0))
    connection.request("GET", path)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_it_answers_one_after_another_until_it_is_closed() -> None:
    before = set(threading.enumerate())
    port = Port(("127.0.0.1", 0), Page())
    assert [ask(port.number, path)[0] for path in ("/here", "/there", "/here")] == [200, 404, 200]
    port.close()
    assert not port._thread.is_alive()
    with pytest.raises(ConnectionRefusedError):
        ask(port.number, "/here")
    for thread in set(threading.enumerate()) - before:  # a request's own may be about to end
        thread.join(10)
        assert not thread.is_alive()


def test_a_port_that_nobody_has_asked_closes_as_soon() -> None:
    port = Port(("127.0.0.1", 0), Page())
    port.close()
    assert not port._thread.is_alive()


def test_it_closes_although_somebody_is_connected_and_says_nothing() -> None:
    port = Port(("127.0.0.1", 0), Page())
    with socket.create_connection(("127.0.0.1", port.number)):
        port.close()
        assert not port._thread.is_alive()


def test_whoever_asks_from_the_address_that_is_asked_is_this_machine() -> None:
    port = Port(("127.0.0.1", 0), Page())
    assert ask(port.number, "/here") == (200, b"own")
    assert ask(port.number, "/here", by="127.0.0.2") == (200, b"another")
    port.close()
