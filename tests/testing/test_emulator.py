"""The emulator as tests of handlers use it: real clients, real sockets, a clock that stands."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import requests

import forewarn
import patience
from forewarn.server.guest.limits import Limits
from forewarn.testing import EmulatedMachine, Emulator, Exchange, NotIdle, Refused
from forewarn.testing.emulated_service import EmulatedService
from forewarn.vocabulary import ErrorCode
from leftovers import check_nothing_left
from testing.conftest import NOON, get

QUICK = forewarn.Pace(poll_seconds=0.05)


Handle = Callable[[forewarn.Client, forewarn.Change], None]


def approve(client: forewarn.Client, change: forewarn.Change) -> None:
    if change.appeared and not change.event.started:
        client.approve(change.event)


class Handler:
    """A handler on a thread of its own, and the changes that it was told of."""

    def __init__(self, machine: EmulatedMachine, handle: Handle = approve) -> None:
        self.told: list[str] = []
        self._handle = handle
        self._client = forewarn.Client(machine.endpoint, pace=QUICK)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Handler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._thread.join()

    def _run(self) -> None:
        with self._client, contextlib.suppress(forewarn.Misuse):  # closed while it approves
            for change in self._client.watch():
                self.told.append(change.kind)
                self._handle(self._client, change)


def test_the_clock_stands_until_it_is_told(emulator: Emulator, web: EmulatedMachine) -> None:
    event = emulator.schedule("Reboot", "web-0")
    with forewarn.Client(web.endpoint) as client:
        (read,) = client.events()
        told = (read.event_id, read.event_type, read.status)
        assert told == (event.event_id, "Reboot", "Scheduled")
        assert (read.not_before, read.concerns_me) == (NOON + timedelta(minutes=15), True)
        emulator.advance("14m59s")
        assert (event.status, emulator.now) == ("Scheduled", NOON + timedelta(seconds=899))
        emulator.advance(1)
        assert (event.status, event.start_cause) == ("Started", "notice-over")
        emulator.finish()
        assert event.status == "Returning"
        assert [each.started for each in client.events()] == [True]
        assert event.status == "Completed"
        assert client.events() == ()


def test_an_approval_starts_the_event_and_is_kept(emulator: Emulator, web: EmulatedMachine) -> None:
    event = emulator.schedule("Reboot", "web-0")
    with forewarn.Client(web.endpoint) as client:
        client.approve(event.event_id)
    assert (event.status, event.start_cause, event.approved_by) == ("Started", "approved", "web-0")
    kept = [(each.event_id, each.by, each.at) for each in emulator.approvals]
    assert kept == [(event.event_id, "web-0", NOON)]


def test_maintenance_ends_by_itself_and_waits_for_no_machine_that_never_asked(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    event = emulator.schedule("Freeze", web.name, notice="20m")
    assert event.not_before == NOON + timedelta(minutes=20)
    emulator.advance("20m")
    assert event.status == "Started"
    emulator.advance("9s")
    assert event.status == "Completed"
    emulator.until_idle(0)


def test_what_fails_is_gone_and_says_why(emulator: Emulator, web: EmulatedMachine) -> None:
    event = emulator.schedule("Redeploy", web.name, no_notice=True)
    assert event.status == "Started"
    emulator.fail(event, "no such host")
    assert (event.status, event.outcome) == ("Failed", "no such host")
    assert emulator.events() == []
    assert [each.event_id for each in emulator.history()] == [event.event_id]


@pytest.mark.parametrize("end", [Emulator.finish, Emulator.fail])
def test_nothing_is_ended_before_it_has_started_or_twice(
    emulator: Emulator, web: EmulatedMachine, end: Callable[..., None]
) -> None:
    with pytest.raises(Refused) as nothing:
        end(emulator)
    event = emulator.schedule("Reboot", web.name)
    with pytest.raises(Refused) as too_early:
        end(emulator, event)
    emulator.advance("15m")
    end(emulator, event)
    with pytest.raises(Refused, match=event.status) as too_late:
        end(emulator)
    for refused in (nothing, too_early, too_late):
        assert refused.value.code is ErrorCode.CONFLICT
        assert "advance()" not in refused.value.message


def test_a_handler_is_driven_until_nothing_is_left(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    with Handler(web) as handler:
        event = emulator.schedule("Reboot", web.name)
        emulator.until_idle(patience.SECONDS)
        assert event.status == "Completed"
        emulator.until(lambda: handler.told[-1:] == ["gone"], patience.SECONDS)
    assert handler.told == ["appeared", "started", "gone"]
    assert emulator.now == NOON + timedelta(seconds=90)


def test_what_a_handler_leaves_undone_is_named(emulator: Emulator, web: EmulatedMachine) -> None:
    event = emulator.schedule("Reboot", web.name)
    with pytest.raises(NotIdle) as not_idle:
        emulator.until_idle(0)
    assert event.operation in str(not_idle.value)
    assert event.status == "Scheduled"


def test_who_waits_is_refused_when_the_emulator_stops() -> None:
    with Emulator() as emulator:
        waits, refused = threading.Event(), threading.Event()

        def wait() -> None:
            with pytest.raises(Refused):
                emulator.until(waits.set, 2 * patience.SECONDS)
            refused.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(patience.SECONDS)
        emulator.stop()
        assert refused.wait(patience.SECONDS)
        thread.join()
    with pytest.raises(Refused) as stopped:
        emulator.advance("1m")
    assert stopped.value.code is ErrorCode.UNAVAILABLE


def test_a_handler_that_asks_again_has_decided_and_a_fault_shows_it_no_event(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    decided: list[str] = []
    emulator.faults("status")
    event = emulator.schedule("Reboot", "web-0")
    with Handler(web, lambda _, change: decided.append(change.event.event_id)):
        emulator.until_asked("WEB-0", times=2, seconds=patience.SECONDS)
        assert decided == [event.event_id]
        assert event.approved_by == ""
    assert [each.status for each in asked(emulator)][:2] == [503, 200]


def test_waiting_requests_are_answered_when_the_clock_has_moved(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    event = emulator.schedule("Reboot", web.name)
    answered = threading.Event()

    def handle(_: forewarn.Client, change: forewarn.Change) -> None:
        if change.started:
            answered.set()

    with Handler(web, handle):
        emulator.until(lambda: asked(emulator, prefer="wait="), patience.SECONDS)
        emulator.advance("15m")
        waited = asked(emulator, prefer="wait=")[0]
        assert waited.status == 200
        assert event.event_id.encode() in waited.answer
        assert answered.wait(patience.SECONDS)


def test_a_machine_that_waits_for_news_is_asked_whether_it_is_back(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    event = emulator.schedule("Reboot", web.name)
    with Handler(web, lambda *_: None):
        emulator.until(lambda: asked(emulator, prefer="wait="), patience.SECONDS)
        emulator.advance("15m")
        emulator.until(lambda: asked(emulator, prefer="wait=")[-1].status == 0, patience.SECONDS)
        emulator.finish()  # its request would wait for a minute: the document has not changed
        emulator.until_idle(patience.SECONDS)
    assert event.status == "Completed"


def asked(emulator: Emulator, **headers: str) -> list[Exchange]:
    """Return the requests for events that have these headers."""
    return [
        exchange
        for exchange in emulator.requests
        if "scheduledevents" in exchange.target
        and all(
            value in dict(exchange.headers).get(name.capitalize(), "")
            for name, value in headers.items()
        )
    ]


def test_the_environment_leads_a_client_here(emulator: Emulator, web: EmulatedMachine) -> None:
    assert web.environment["FOREWARN_ENDPOINT"] == web.endpoint
    assert emulator.environment["FOREWARN_ENDPOINT"] == emulator.endpoint


def test_turning_on_is_delayed_by_the_clock(web: EmulatedMachine) -> None:
    del web
    rules = {"enablement": "first-request", "first_response_delay_seconds": 120.0}
    with Emulator(rules=rules, beginning=NOON) as emulator:
        machine = emulator.machine("web-0")
        with Handler(machine):
            emulator.until(lambda: asked(emulator), patience.SECONDS)
            emulator.advance("119s")
            assert asked(emulator)[0].status == 0
            emulator.advance("1s")
            assert asked(emulator)[0].status == 200


def test_threads_may_stop_it_together_while_another_asks() -> None:
    """Each stop comes back once all is closed, and a question is answered or refused."""
    stopping = 4
    ended: list[BaseException | str] = []

    def stop(emulator: Emulator, together: threading.Barrier) -> None:
        together.wait(patience.SECONDS)
        try:
            emulator.stop()
            assert emulator._thread is not None
            assert not emulator._thread.is_alive()
        except BaseException as error:  # noqa: BLE001 - the test's thread looks
            ended.append(error)
        else:
            ended.append("stopped")

    def ask(emulator: Emulator, together: threading.Barrier) -> None:
        together.wait(patience.SECONDS)
        try:
            while True:
                emulator.events()
        except BaseException as error:  # noqa: BLE001 - the test's thread looks
            ended.append(error)

    for _ in range(20):
        ended.clear()
        with Emulator() as emulator:
            together = threading.Barrier(stopping + 1)
            threads = [
                threading.Thread(target=act, args=(emulator, together))
                for act in (*[stop] * stopping, ask)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(patience.SECONDS)
        refused = [each for each in ended if isinstance(each, Refused)]
        assert [each.code for each in refused] == [ErrorCode.UNAVAILABLE]
        assert [each for each in ended if each not in refused] == ["stopped"] * stopping


def test_a_port_that_is_taken_is_the_starters_to_know(emulator: Emulator) -> None:
    port = int(emulator.endpoint.rpartition(":")[2])
    with pytest.raises(OSError, match="address"):
        Emulator(port=port).start()


def test_the_clock_does_not_go_back(emulator: Emulator) -> None:
    for length in ("yesterday", "", -1, timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="span"):
            emulator.advance(length)


def test_forty_leave_nothing_behind() -> None:
    with Emulator() as emulator:
        emulator.machine("web-0")
    with check_nothing_left():
        for number in range(40):
            with Emulator() as emulator:
                machine = emulator.machine("web-0")
                if number % 10 == 0:
                    client = forewarn.Client(machine.endpoint)
                    client.document()
            if number % 10 == 0:
                client.close()


def test_a_machine_whose_request_is_refused_has_not_asked_again(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    get(web)
    event = emulator.schedule("Reboot", "web-0", no_notice=True)
    emulator.finish()
    assert get(web, Metadata="").status_code == 400
    assert event.status == "Returning"
    get(web)
    assert event.status == "Completed"


EVENTS = b"/vm/web-0/metadata/scheduledevents?api-version=2020-07-01"
HEAD = b"HTTP/1.1\r\nHost: 127.0.0.1\r\nMetadata: true\r\n"
GET = b"GET " + EVENTS + b" " + HEAD + b"\r\n"


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
            assert rest(silent).startswith(b"HTTP/1.1 408 ")  # so the time of silent peers is over
            emulator.advance(0.5)
            assert rest(delayed).startswith(b"HTTP/1.1 200 ")


@pytest.mark.usefixtures("web")
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


def test_machines_are_in_the_order_of_the_fleet_and_need_no_listener(
    emulator: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["web-1", "batch-10", "batch-2"]
    emulator.fleet({"machine": [{"name": name} for name in names]})
    machines = emulator.fleet({"machine": [{"name": "a"}]})
    assert [machine.name for machine in machines] == [*names, "a"]
    get(emulator)
    assert emulator.requests[-1].machine == "web-1"
    of_the_real_fleet = emulator.machine("web-0", address="10.0.0.10", listener="blue")
    assert get(of_the_real_fleet).status_code == 200
    assert capsys.readouterr() == ("", "")


def test_a_connection_asks_as_the_machine_that_is_the_default_by_now(emulator: Emulator) -> None:
    name = f"{emulator.endpoint}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    emulator.machine("web-0")
    with requests.Session() as session:
        session.headers["Metadata"] = "true"
        assert session.get(name, timeout=patience.SECONDS).text == "web-0"
        emulator.default(emulator.machine("web-1"))
        assert session.get(name, timeout=patience.SECONDS).text == "web-1"
    assert [each.machine for each in emulator.requests] == ["web-0", "web-1"]


def test_what_an_observer_of_requests_raises_comes_with_the_next_call(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    def observe(exchange: Exchange) -> None:
        raise AssertionError(exchange.method)

    emulator.on_request(observe)
    assert get(web).status_code == 200
    with pytest.raises(AssertionError, match="GET"):
        emulator.advance(1)
