"""What the agent shows: the metrics to the letter, its port, and lines that a terminal takes."""

import io
import logging
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import patience
import programs
import web
from agent.bench import Bench, command, event, rule
from forewarn import logs, status_port
from forewarn.agent import activity, status
from forewarn.agent.activity import PREFIX, Activity
from forewarn.agent.decider import ApprovalAnswered
from forewarn.agent.state import RuleMatched
from forewarn.settings import Log
from forewarn.status_port import StatusServer
from leftovers import check_nothing_left


def page(
    counted: Activity, bench: Bench, last_look: float | None = 1763751958.1239, looks: int = 1
) -> str:
    live = activity.live_page(
        healthy=True,
        endpoint_up=last_look is not None,
        name_known=True,
        last_look=last_look,
        looks=looks,
    )
    return (counted.page(bench.decider, bench.now) + live).decode()


@pytest.fixture
def bench() -> Bench:
    made = Bench(rule(command("drain")))
    made.see(event())
    return made


def test_numbers_are_told_to_the_last_digit_times_to_the_millisecond(bench: Bench) -> None:
    last_look = f"\n{PREFIX}last_look_timestamp_seconds "
    text = page(Activity(), bench, looks=12_345_678)
    assert f"\n{PREFIX}looks_total 12345678\n" in text
    assert f"{last_look}1763751958.124\n" in text
    text = page(Activity(), bench, last_look=None)
    assert last_look not in text
    assert f"\n{PREFIX}endpoint_up 0\n" in text


def test_an_approval_that_is_not_taken_is_counted_by_reason(bench: Bench) -> None:
    counted = Activity()
    told = []
    for taken in (True, False, None):
        counted.heard(ApprovalAnswered(1, taken), bench.decider, 0.0)
        told.append(re.findall(r'failed_total{reason="\w+"} (\d)', page(counted, bench)))
    assert told == [["0", "0"], ["1", "0"], ["1", "1"]]


def test_a_type_that_nobody_knows_is_no_value_of_a_label(bench: Bench) -> None:
    counted = Activity()
    for number in range(3):
        odd = event(event_type=f"Odd{number}")
        counted.heard(RuleMatched(event=odd, rule=bench.rules[0]), bench.decider, 0.0)
    assert re.findall(r'taken_total{type="(\w+)"} (\d)', page(counted, bench)) == [("other", "3")]


def test_what_a_labels_value_must_not_hold_is_escaped() -> None:
    assert status_port._labels([("a", 'b"\\\n')]) == '{a="b\\"\\\\\\n"}'


# the port


def shown(path: str, host: bytes | None) -> status_port.Page | None:
    whose = b"another" if host is None else b"own"
    return (200, "text/plain", whose) if path == "/here" else None


@pytest.fixture
def port() -> Iterator[StatusServer]:
    made = StatusServer(("127.0.0.1", 0), shown, name="forewarn-agent")
    yield made
    made.close()


def test_it_answers_one_after_another_until_it_is_closed() -> None:
    with check_nothing_left():
        port = StatusServer(("127.0.0.1", 0), shown, name="forewarn-agent")
        answers = [web.ask(port.number, path).status for path in ("/here", "/there", "/here")]
        assert answers == [200, 404, 200]
        port.close()
        assert not port._thread.is_alive()
        with pytest.raises(ConnectionRefusedError):
            web.ask(port.number, "/here")


@pytest.mark.parametrize("connected", [False, True])
def test_it_closes_at_once_though_nobody_has_asked_yet(connected: bool) -> None:
    port = StatusServer(("127.0.0.1", 0), shown, name="forewarn-agent")
    with ExitStack() as open_:
        if connected:
            open_.enter_context(socket.create_connection(("127.0.0.1", port.number)))
        port.close()
        assert not port._thread.is_alive()


def test_who_connects_and_is_silent_ends_no_connection_of_another_address(
    port: StatusServer,
) -> None:
    where = ("127.0.0.1", port.number)
    with ExitStack() as open_:
        slow = open_.enter_context(
            socket.create_connection(where, patience.SECONDS, source_address=("127.0.0.3", 0))
        )
        crowd = []
        for number in range(2 * status_port.CONNECTIONS):
            made = socket.create_connection(
                where, patience.SECONDS, source_address=("127.0.0.2", 0)
            )
            crowd.append(open_.enter_context(made))
            if number == status_port.SHARE:
                assert crowd[0].recv(1) == b""
        assert web.ask(port.number, "/here", source="127.0.0.4").status == 200
        slow.sendall(b"GET /here HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(64).startswith(b"HTTP/1.1 200")


LARGE = bytes(2**22)
"""More than a system keeps for a caller that does not read."""


def large(path: str, host: bytes | None) -> status_port.Page | None:
    return shown(path, host) if path == "/here" else (200, "text/plain", LARGE)


@pytest.mark.parametrize("addresses", [1, 5])
def test_who_asks_and_does_not_read_keeps_no_other_address_out(addresses: int) -> None:
    port = StatusServer(("127.0.0.1", 0), large, name="forewarn-agent")
    with ExitStack() as greedy:
        for number in range(status_port.CONNECTIONS + addresses):
            made = greedy.enter_context(socket.socket())
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.settimeout(patience.SECONDS)
            made.bind((f"127.0.1.{1 + number % addresses}", 0))
            made.connect(("127.0.0.1", port.number))
            made.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            made.recv(1)  # its answer has begun
        assert web.ask(port.number, "/here", source="127.0.0.4").status == 200
    port.close()


def test_whoever_asks_from_the_address_that_is_asked_is_this_machine(port: StatusServer) -> None:
    assert web.ask(port.number, "/here").body == "own"
    assert web.ask(port.number, "/here", source="127.0.0.2").body == "another"


def test_a_balancer_may_ask_for_the_head_alone(port: StatusServer) -> None:
    with socket.create_connection(("127.0.0.1", port.number), patience.SECONDS) as connection:
        connection.sendall(b"HEAD /here HTTP/1.1\r\nHost: x\r\n\r\n")
        with connection.makefile("rb") as answer:
            head = answer.read()  # until the port closes the connection
    assert head.startswith(b"HTTP/1.1 200")
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status_code"),
    [
        (b"GET /here?x=1 HTTP/1.0\r\n\r\n", 200),
        (b"POST /here HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"\x16\x03\x01 no http\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * status_port.HEAD_BYTES, 400),
    ],
)
def test_what_is_not_a_get_is_refused(port: StatusServer, sent: bytes, status_code: int) -> None:
    with socket.create_connection(("127.0.0.1", port.number), patience.SECONDS) as connection:
        connection.sendall(sent)
        assert connection.recv(64).startswith(b"HTTP/1.1 %d" % status_code)


def test_a_port_that_the_system_refuses_for_any_reason_is_tried_again_later() -> None:
    server = StatusServer(
        ("fe80::1%gone", 0), lambda _path, _own: None, name="test", when_free=lambda: None
    )
    assert server.waits_for
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds to an address in advance")
def test_a_socket_is_lost_with_its_interface_and_once_that_has_another_index() -> None:
    opened, is_late = status_port.listening(("fe80::a9fe:a9fe%lo", 0), 1)
    with opened:
        assert is_late
        assert not status_port.is_lost(opened, "fe80::a9fe:a9fe%lo")
        assert not status_port.is_lost(opened, f"fe80::a9fe:a9fe%{socket.if_nametoindex('lo')}")
        assert status_port.is_lost(opened, "fe80::a9fe:a9fe%br-none")
        assert status_port.is_lost(opened, "fe80::a9fe:a9fe%9999")
    for address in ("127.0.0.1", "::1"):
        with status_port.listening((address, 0), 1)[0] as elsewhere:
            assert not status_port.is_lost(elsewhere, address)


AT_A_BRIDGE = """
import threading
from forewarn import status_port
import patience, ports


opened = threading.Event()
server = status_port.StatusServer(
    (AT, 8080), lambda path, own: None, name="test", when_free=opened.set
)
for _ in range(2):  # it has another index each time
    assert not ports.answers(8080, AT)
    make_bridge()
    assert opened.wait(patience.SECONDS)
    patience.until(lambda: ports.answers(8080, AT))
    opened.clear()
    delete_bridge()
server.close()
"""


def test_a_port_at_a_bridge_that_is_made_later_or_again_is_open_then() -> None:
    assert programs.run_in_a_network(programs.BRIDGE + AT_A_BRIDGE) == 0


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """A log that a test may send elsewhere."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = before


@pytest.mark.usefixtures("root_logger")
def test_no_control_character_of_an_event_reaches_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    logs.set_up(Log(), terminal)
    logging.getLogger("forewarn.agent").info("%s", "\x1b]0;mine\x07 \x9b2J \r é")
    (line,) = terminal.getvalue().splitlines()
    assert line.removesuffix("\n").isprintable()
    assert "é" in line


def test_to_journald_each_line_begins_with_its_priority(
    root_logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        logs.set_up(Log(), stream)
        root_logger.info("one")
        root_logger.warning("two")
        stream.seek(0)
        assert [line[:4] for line in stream] == ["<6>{", "<4>{"]


def test_the_first_line_says_what_is_held_or_stuck_beside_what_a_balancer_reads() -> None:
    def first(phases: tuple[str, ...], *, stuck: bool, ready: bool) -> str:
        events = [
            {"event_id": "E", "event_type": "Reboot", "event_status": "Scheduled", "phase": phase}
            | {"notice_left_seconds": None, "rule": "r", "stays_held": "", "actions": []}
            for phase in phases
        ]
        effect = {"tells": False, "stuck": stuck, "undoing": False, "effect": "ready"}
        told = {"machine": "w", "ready": ready, "dry_run": False, "trouble": "", "events": events}
        told |= {"endpoint": {"answers": True}, "standing": [effect]}
        return next(status.lines(told))

    assert first((), stuck=False, ready=True) == "w: ready"
    held = first(("Held", "Preparing", "Held"), stuck=True, ready=False)
    assert held == "w: 2 held, 1 stuck, draining"
