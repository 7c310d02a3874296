"""The emulator as tests of handlers use it: real clients, real sockets, a clock that stands."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import requests

import forewarn
import patience
import stories
from forewarn.server.guest.limits import Limits
from forewarn.testing import EmulatedEvent, EmulatedMachine, Emulator, Exchange, NotIdle, Refused
from forewarn.testing.emulated_service import EmulatedService
from forewarn.testing.faults import PLAYBOOKS, Concerns, FaultKind, FaultPlan, named
from forewarn.vocabulary import ErrorCode
from leftovers import check_nothing_left
from testing.conftest import NOON, get

QUICK = forewarn.Pace(poll_seconds=0.05)


class Handler:
    """A handler on a thread of its own, and the changes that it was told of."""

    def __init__(self, machine: EmulatedMachine, *, approves: bool) -> None:
        self.told: list[str] = []
        self._approves = approves
        self._client = forewarn.Client(machine.endpoint, pace=QUICK)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._client.close()
        self._thread.join()

    def _run(self) -> None:
        with self._client, contextlib.suppress(forewarn.Misuse):  # closed while it approves
            for change in self._client.watch():
                self.told.append(change.kind)
                if change.appeared and self._approves:
                    self._client.approve(change.event)


def code_of(error: Exception) -> str:
    match error:
        case Refused():
            return error.code
        case NotIdle():
            return "not-idle"
    return "value"


class EmulatorStory:
    """A story so far: the emulator, the last event, and the last answer."""

    event_: EmulatedEvent

    def __init__(self, emulator: Emulator, web: EmulatedMachine) -> None:
        self.emulator, self.machines = emulator, {"web-0": web}
        self.operators = ""
        self.opened = contextlib.ExitStack()

    def handler(self, approves: str = "") -> None:
        """Have web-0 have a handler from now on."""
        self.handler_ = Handler(self.machines["web-0"], approves=bool(approves))
        self.opened.callback(self.handler_.close)

    def handled(self, *kinds: str) -> None:
        """The handler is told of these changes, and of nothing else so far."""
        self.emulator.until(lambda: self.handler_.told == [*kinds], patience.SECONDS)

    def until_asked(self, machine: str, times: str) -> None:
        self.emulator.until_asked(machine, times=int(times), seconds=patience.SECONDS)

    def until_waiting(self) -> None:
        """The handler waits for news."""
        self.emulator.until(
            lambda: [each.status for each in self.waits()][-1:] == [0], patience.SECONDS
        )

    def waits(self) -> list[Exchange]:
        return [
            each
            for each in self.emulator.requests
            if "wait=" in dict(each.headers).get("Prefer", "")
        ]

    def waited(self, status: str) -> None:
        """Compare the answer to the first request that waited, which shows the last event."""
        first = self.waits()[0]
        assert str(first.status) == status
        assert self.event_.event_id.encode() in first.answer

    def carry_out(self, row: str) -> None:
        line, arrow, follows = row.partition(" ->")
        verb, words, options = stories.split(line)
        if not verb:
            return
        act = verb.replace("-", "_")
        try:
            found = getattr(self if hasattr(self, act) else self.emulator, act)(*words, **options)
        except (Refused, NotIdle, ValueError) as error:
            assert arrow, error
            code, _, said = follows.strip().partition(" ")
            assert code == code_of(error)
            assert said in str(error)
            assert "advance()" not in str(error)
        else:
            assert not arrow or str(found) == follows.strip(), found

    def schedule(self, event_type: str, machine: str, no_notice: str = "", **more: str) -> None:
        given: dict[str, Any] = {**more, **({"no_notice": True} if no_notice else {})}
        self.event_ = self.emulator.schedule(event_type, machine, **given)

    def event(self, **facts: str) -> None:
        for name, expected in facts.items():
            found = self.emulator.now if name == "now" else getattr(self.event_, name)
            moment = isinstance(found, datetime)
            assert found == (NOON + stories.elapsed(expected) if moment else expected), name

    def read(self) -> str:
        with forewarn.Client(self.machines["web-0"].endpoint) as client:
            return " ".join(each.status for each in client.events())

    def approve(self) -> None:
        with forewarn.Client(self.machines["web-0"].endpoint) as client:
            client.approve(self.event_.event_id)

    def approvals(self, *by: str) -> None:
        kept = [(each.event_id, each.by, each.at) for each in self.emulator.approvals]
        assert kept == [(self.event_.event_id, each, NOON) for each in by]

    def advance(self, span: str) -> None:
        self.emulator.advance(int(span) if span.lstrip("-").isdecimal() else span)

    def fail(self, reason: str = "") -> None:
        self.emulator.fail(None, reason)

    def until_idle(self, patiently: str = "") -> None:
        self.emulator.until_idle(patience.SECONDS if patiently else 0)

    def history(self, count: str) -> None:
        assert len(self.emulator.history()) == int(count)

    def machine(self, name: str) -> None:
        self.machines[name] = self.emulator.machine(name)

    def fault(self, name: str, **values: str) -> None:
        given = {key: int(text) if text.isdecimal() else text for key, text in values.items()}
        self.emulator.faults(name, **given)

    def faults_met(self, *names: str) -> None:
        assert [exchange.fault for exchange in self.emulator.requests] == list(names)

    def last_request(self, **facts: str) -> None:
        exchange = self.emulator.requests[-1]
        assert {name: str(getattr(exchange, name)) for name in facts} == facts

    def get(self, header: str = "", of: str = "web-0") -> str:
        name, _, value = header.partition(":")
        return self._status(lambda: get(self.machines[of], **({name: value} if name else {})))

    def post(self) -> str:
        body = {"StartRequests": [{"EventId": self.event_.event_id}]}
        url = f"{self.machines['web-0'].endpoint}/metadata/scheduledevents?api-version=2020-07-01"
        return self._status(
            lambda: requests.post(
                url, json=body, headers={"Metadata": "true"}, timeout=patience.SECONDS
            )
        )

    def order(self, path: str, body: str) -> str:
        self.operators = self.operators or self.emulator.open_operators()
        place = f"{self.operators}/v1/{path}"
        told = requests.post(place, json=json.loads(body), timeout=patience.SECONDS)
        return str(told.status_code)

    def _status(self, ask: Callable[[], requests.Response]) -> str:
        try:
            self.answer = ask()
        except requests.RequestException:
            return "lost"
        return str(self.answer.status_code)

    def answered(self, name: str, expected: str) -> None:
        found = self.answer.text if name == "text" else str(self.answer.headers.get(name))
        assert expected[1:] in found if expected[:1] == "~" else found == expected

    def begin_get(self) -> None:
        """Send a request, and read its answer by `ended-get`."""
        self.connection = self.opened.enter_context(connected(self.emulator))
        self.connection.sendall(GET)
        self.emulator.until(lambda: self.emulator.requests, patience.SECONDS)

    def ended_get(self, status: str) -> None:
        with self.opened:
            assert self.connection.recv(12).decode() == f"HTTP/1.1 {status}"


@pytest.mark.parametrize("rows", stories.stories_beside(__file__, "emulator.txt"))
def test_the_story_holds(emulator: Emulator, web: EmulatedMachine, rows: stories.Rows) -> None:
    story = EmulatorStory(emulator, web)
    with story.opened:
        assert stories.play("emulator.txt", rows, story.carry_out)


def test_the_environment_leads_a_client_here(
    emulator: Emulator, web: EmulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "build.example")
    assert web.environment["NO_PROXY"] == "build.example,127.0.0.1"
    assert web.environment["FOREWARN_ENDPOINT"] == web.endpoint
    assert emulator.environment["FOREWARN_ENDPOINT"] == emulator.endpoint


def test_threads_may_stop_it_together_while_another_asks() -> None:
    """Each stop comes back once all is closed, and a question is answered or refused."""

    def stop(emulator: Emulator, together: threading.Barrier) -> None:
        together.wait(patience.SECONDS)
        emulator.stop()
        assert emulator._thread is not None
        assert not emulator._thread.is_alive()

    def wait(emulator: Emulator, together: threading.Barrier) -> None:
        emulator.until(lambda: together.n_waiting == together.parties - 1, patience.SECONDS)
        together.wait(patience.SECONDS)
        emulator.until(lambda: False, patience.SECONDS)

    def ask(emulator: Emulator, together: threading.Barrier) -> None:
        together.wait(patience.SECONDS)
        while True:
            emulator.events()

    acts = (stop, stop, stop, stop, ask, wait)
    for _ in range(20):
        with Emulator() as emulator, ThreadPoolExecutor(len(acts)) as threads:
            together = threading.Barrier(len(acts))
            begun = [threads.submit(act, emulator, together) for act in acts]
        *stopped, asked, waited = [act.exception() for act in begun]
        assert stopped == [None] * 4
        for refused in (asked, waited):
            assert isinstance(refused, Refused)
            assert refused.code == ErrorCode.UNAVAILABLE


def test_a_port_that_is_taken_is_the_starters_to_know(emulator: Emulator) -> None:
    port = int(emulator.endpoint.rpartition(":")[2])
    with pytest.raises(OSError, match="address"):
        Emulator(port=port).start()


class Interrupting(datetime):
    """A beginning that interrupts the main thread, as Ctrl-C does, once the emulator reads it."""

    def __sub__(self, other: Any) -> Any:
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        return NOON - other


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="this system has none")
def test_one_that_is_interrupted_while_it_begins_ends() -> None:
    with check_nothing_left(), pytest.raises(KeyboardInterrupt):
        Emulator(beginning=Interrupting.fromisoformat(NOON.isoformat())).start()


def test_its_database_is_closed_with_it() -> None:
    """Else Python 3.13 warns when it is collected, in the middle of any other test."""
    with Emulator() as emulator:
        emulator.machine("web-0")
    assert emulator._service.look(lambda reading: reading.machines()) == {}


def test_what_goes_on_at_its_end_finds_its_database() -> None:
    """Another one would be empty, and an error in the log: the database lost its changes."""
    found: list[str] = []

    async def look_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            found.extend(emulator._service.look(lambda reading: reading.machines()))

    with Emulator() as emulator:
        emulator.machine("web-0")
        kept = emulator.read(lambda _: asyncio.ensure_future(look_at_the_end()))
    assert (found, kept.done()) == (["web-0"], True)


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_is_refused_and_keeps_no_connection_open(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    """Otherwise its call waits for ever, and so does a handler whose connection is cut."""
    forked = multiprocessing.get_context("fork")
    refused, is_over = forked.Event(), forked.Event()

    def ask() -> None:
        try:
            emulator.events()
        except Refused:
            refused.set()
        is_over.wait(patience.SECONDS)

    emulator.schedule("Reboot", web.name)
    with connected(emulator) as connection:
        connection.sendall(GET)
        assert connection.recv(65536)
        child = forked.Process(target=ask)
        child.start()
        try:
            assert refused.wait(patience.SECONDS)
            assert len(emulator.events()) == 1
            emulator.faults("cut")
            connection.sendall(GET)
            with contextlib.suppress(ConnectionError):
                assert connection.recv(65536) == b""
            emulator.stop()
            with pytest.raises(ConnectionError), connected(emulator):
                pass
        finally:
            is_over.set()
            child.join()


def test_turning_on_is_delayed_by_the_clock() -> None:
    rules = {"enablement": "first-request", "first_response_delay_seconds": 120.0}
    with Emulator(rules=rules, beginning=NOON) as emulator, connected(emulator) as connection:
        emulator.machine("web-0")
        connection.sendall(GET)
        emulator.until(lambda: emulator.requests, patience.SECONDS)
        emulator.advance("119s")
        assert emulator.requests[0].status == 0
        emulator.advance("1s")
        assert emulator.requests[0].status == 200


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
    assert get(emulator).status_code == 200  # whoever comes later finds that one gone
    emulator.advance(60)
    assert [exchange.was_read for exchange in emulator.requests] == [False, True]


def test_approvals_are_in_the_order_in_which_they_came(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    """Though the clock stands still."""
    machines = [web, emulator.machine("web-1")]
    for machine in machines:
        emulator.schedule("Reboot", machine.name)
    for machine in reversed(machines):
        with forewarn.Client(machine.endpoint) as client:
            client.approve(*client.events())
    assert [each.by for each in emulator.approvals] == ["web-1", "web-0"]


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


def test_an_observer_that_asks_the_emulator_is_refused_and_holds_nothing_up(
    emulator: Emulator, web: EmulatedMachine
) -> None:
    """It is on the thread that would have to answer."""
    refused: list[str] = []
    questions: list[Callable[[], object]] = [
        lambda: emulator.now,
        emulator.end_waits,
        emulator.until_idle,
        lambda: emulator.until(lambda: False),
    ]

    def observe(_: Exchange) -> None:
        for ask in questions:
            with pytest.raises(RuntimeError) as refusal:
                ask()
            refused.append(str(refusal.value))
        assert emulator.requests

    emulator.on_request(observe)
    assert get(web).status_code == 200
    with pytest.raises(RuntimeError):
        emulator.advance(1)
    assert len(set(refused)) == 1
    assert len(refused) == len(questions)


def test_a_condition_of_anything_is_looked_at_though_nothing_happens_here(
    emulator: Emulator,
) -> None:
    looks = iter([False, False, False, True])
    emulator.until(lambda: next(looks), patience.SECONDS)
    assert not emulator.requests


def test_a_condition_is_looked_at_once_more_when_its_time_is_over(emulator: Emulator) -> None:
    looks = 0

    def holds() -> bool:
        nonlocal looks
        looks += 1
        return looks == 2

    emulator.until(holds, 0.001)
    with pytest.raises(NotIdle):
        emulator.until(lambda: False, 0.001)


def test_a_beginning_without_a_zone_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="beginning"):
        Emulator(beginning=datetime(2026, 1, 1))


def test_notice_is_as_long_where_clocks_are_set_back_meanwhile() -> None:
    beginning = datetime(2026, 10, 25, 2, 50, tzinfo=ZoneInfo("Europe/Berlin"))
    with Emulator(beginning=beginning) as emulator:
        endpoint = emulator.machine("web-0").endpoint
        emulator.schedule("Reboot", "web-0", notice="20m")
        with forewarn.Client(endpoint) as client:
            [seen] = client.events()
    assert seen.not_before == beginning.astimezone(UTC) + timedelta(minutes=20)


def test_what_is_no_name_is_refused_by_its_place(emulator: Emulator, web: EmulatedMachine) -> None:
    wrong: Any = web
    with pytest.raises(ValueError, match=r"machines\[0\]"):
        emulator.schedule("Reboot", wrong)
    with pytest.raises(ValueError, match="EmulatedMachine"):
        emulator.until_asked(wrong)


async def test_who_holds_an_event_loop_up_is_told_so(emulator: Emulator) -> None:
    with pytest.raises(NotIdle, match="to_thread"):
        emulator.until(lambda: False, 0.001)


# Faults.

HASTY = forewarn.Pace(
    poll_seconds=0.02,
    backoff_seconds=0.01,
    longest_backoff_seconds=0.02,
    longest_retry_after_seconds=0.02,
)


def test_documents_are_changed_and_come_back(emulator: Emulator, web: EmulatedMachine) -> None:
    emulator.schedule("Reboot", web.name)
    right = get(web)
    document = right.json()
    (event,) = document["Events"]
    number = document["DocumentIncarnation"]
    expected = {
        "without-events": {"DocumentIncarnation": number},
        "incarnation-restarts": {**document, "DocumentIncarnation": 1},
        "incarnation-repeats": {**document, "DocumentIncarnation": number - 1},
        "lower-case": {**document, "Events": [{**event, "EventId": event["EventId"].lower()}]},
        "vanished": {"DocumentIncarnation": number + 1, "Events": []},
        "duplicates": {**document, "Events": [event, event]},
        "text-plain": document,
    }
    for kind, changed in expected.items():
        emulator.faults(kind)
        # A handler that has the document gets the changed one all the same.
        met = get(web, **{"If-None-Match": right.headers["ETag"]})
        assert met.json() == changed
        assert met.headers["Content-Type"].startswith("text/plain") is (kind == "text-plain")
        assert get(web).json() == document


def test_a_bad_day_is_its_seeds_and_lets_a_handler_through_after_three_tries() -> None:
    assert named("azure-bad-day", seed=1) == named("azure-bad-day", seed=1)
    assert named("azure-bad-day", seed=1) != named("azure-bad-day", seed=2)
    for seed in range(20):
        plan = FaultPlan()
        plan.add(named("azure-bad-day", seed=seed))
        met = []
        while plan:
            met.append(plan.next(Concerns.EVENTS, "web-0") is not None)
        assert sum(met) == 20, seed
        assert not any(all(met[start : start + 4]) for start in range(len(met) - 3)), seed


WAITS = {
    name
    for name, playbook in PLAYBOOKS.items()
    if {FaultKind.DELAY, FaultKind.UNREACHABLE} & {fault.kind for fault in playbook(0)}
}
"""Playbooks that go on when the clock is moved: the tests above move it."""


@pytest.mark.parametrize("playbook", sorted(PLAYBOOKS.keys() - WAITS))
def test_forewarns_own_client_gets_through_each_playbook(
    emulator: Emulator, web: EmulatedMachine, playbook: str
) -> None:
    event = emulator.schedule("Reboot", web.name)
    emulator.faults(playbook, seed=4)
    kinds = []
    with forewarn.Client(web.endpoint, pace=HASTY) as client:
        for change in client.watch():
            kinds.append(change.kind)
            if change.appeared and event.status == "Scheduled":
                client.approve(change.event)
                emulator.finish()
            if change.gone and event.status == "Completed":
                break
    assert kinds[0] == "appeared"
    assert event.approved_by == "web-0"
