"""What is the sync client's alone: threads, signals, and what a process loads."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

import forewarn
import patience
from client.scripted import QUICK, Scripted, Silent, Talk, document, message, serving
from client.world import listed
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import Misuse, Trouble, Unreachable
from forewarn.client.session import FailedAnswer, Session
from forewarn.client.sync import Client
from forewarn.testing import Emulator
from leftovers import FILES, check_nothing_left

LOOK = """
import json, sys
import forewarn
before = sorted(sys.modules)
with forewarn.Client(sys.argv[1], name="web-0") as client:
    client.document()
    client.approve(sys.argv[2])
    next(client.watch())
print(json.dumps([before, sorted(sys.modules)]))
"""

HEAVY = {"asyncio", "starlette", "structlog", "uvicorn", "httptools", "rich", "click"}
ROOMS = {"store", "server", "control", "maintenance", "connectors", "cli"}


def test_a_process_with_a_client_loads_neither_asyncio_nor_the_service(cloud: Emulator) -> None:
    event = cloud.schedule("Freeze", "web-0")
    look = [sys.executable, "-c", LOOK, cloud.endpoint, event.event_id]
    looked = subprocess.run(look, capture_output=True, text=True, check=True)
    before, after = json.loads(looked.stdout)
    assert not set(after) & HEAVY
    assert not set(after) & {f"forewarn.{room}" for room in ROOMS}
    assert not {name for name in before if name.startswith(("forewarn.client", "msgspec", "h11"))}


def test_every_public_name_can_be_had() -> None:
    assert set(forewarn.__all__) <= set(dir(forewarn))
    for name in forewarn.__all__:
        assert getattr(forewarn, name) is not None
    with pytest.raises(AttributeError, match="Klient"):
        getattr(forewarn, "Klient")  # noqa: B009 - a name that there is not


def test_a_signals_handler_may_close_what_its_own_thread_waits_in() -> None:
    with Silent() as server:
        client = Client(server.url, name="web-0", pace=QUICK)
        before = signal.signal(signal.SIGUSR1, lambda *_: client.close())

        def raise_it() -> None:
            server.asked.wait(patience.SECONDS)
            os.kill(os.getpid(), signal.SIGUSR1)

        raiser = threading.Thread(target=raise_it)
        try:
            raiser.start()
            assert list(client.watch()) == []
        finally:
            raiser.join()
            signal.signal(signal.SIGUSR1, before)


def test_an_answer_has_its_time_though_its_chunks_keep_coming() -> None:
    """More chunks are there to be read than fit into one read, and than any answer may have."""
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 25_000

    def script(talk: Talk) -> None:
        if talk.request() is not None:
            talk.send(chunks)
            talk.request()  # until the client hangs up

    pace = msgspec.structs.replace(QUICK, first_answer_seconds=0.02)
    with Scripted(script) as server, Client(server.url, name="web-0", pace=pace) as client:
        with pytest.raises(Unreachable):
            client.document()
        assert server.connections == 1


def test_two_threads_in_one_watch_are_a_mistake_and_nothing_worse() -> None:
    with Silent() as server, Client(server.url, name="web-0") as client:
        watch = client.watch()
        with ThreadPoolExecutor() as pool:
            told = pool.submit(list, watch)
            assert server.asked.wait(patience.SECONDS)
            with pytest.raises(Misuse, match="two threads"):
                next(watch)
            watch.close()
            assert told.result(patience.SECONDS) == []


def in_child(doing: Callable[[], object]) -> None:
    """Run something in a forked process; fail if it raises."""
    child = os.fork()
    if not child:
        status = 1
        try:
            doing()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_ends_no_watch_of_its_parent() -> None:
    asked, forked = threading.Event(), threading.Event()

    def answers(*_: object) -> bytes:
        asked.set()
        forked.wait(patience.SECONDS)
        return message(200, document(listed()))

    with serving(answers) as server, Client(server.url, name="web-0", pace=QUICK) as client:
        with ThreadPoolExecutor() as pool:
            told = pool.submit(next, client.watch())
            assert asked.wait(patience.SECONDS)
            in_child(client.close)
            forked.set()
            assert told.result(patience.SECONDS).appeared
        assert server.connections == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_has_connections_of_its_own() -> None:
    with (
        serving(lambda *_: message(200, document(listed()))) as server,
        Client(server.url, name="web-0") as client,
        client.watch() as watch,
    ):
        client.document()
        next(watch)
        assert server.connections == 2
        held, released = threading.Event(), threading.Event()

        def hold() -> None:
            with client._guard:
                held.set()
                released.wait(patience.SECONDS)

        with ThreadPoolExecutor() as pool:  # no such thread goes on in the child
            pool.submit(hold)
            assert held.wait(patience.SECONDS)
            in_child(client.document)
            released.set()
        in_child(client.watch().__next__)
        assert server.connections == 4
        client.document()
        assert server.connections == 4


def test_a_closed_client_makes_no_watch() -> None:
    client = Client("http://127.0.0.1:1")
    client.close()
    client.close()
    with pytest.raises(Misuse, match="closed"):
        client.watch()
    with pytest.raises(Misuse, match="closed"):
        client.document()


def test_a_watch_lives_through_a_time_without_files() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(lambda *_: message(200, document(listed()))) as server:
        client = Client(server.url, name="web-0", pace=QUICK)
        told: list[str] = []

        def tell(trouble: Trouble) -> None:
            told.append(trouble.reason)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)  # the time is over

        watch = client.watch(on_trouble=tell)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            assert next(watch).appeared
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        client.close()
    assert told == ["no-connection", "over"]


def test_no_address_is_skipped_however_many_threads_find_that_one_does_not_answer() -> None:
    threads = 8
    together = threading.Barrier(threads)

    def none(talk: Talk) -> None:
        if talk.request() is not None:
            together.wait(patience.SECONDS)  # every thread's failure is of this address
            talk.answer(404)

    def good(talk: Talk) -> None:
        while talk.request() is not None:
            talk.answer(200, document(listed()))

    with Scripted(none) as first, Scripted(good) as second, Scripted(none) as third:
        with Client(first.url, name="web-0", pace=QUICK) as client:
            places = [EndpointAddress("127.0.0.1", each.port) for each in (first, second, third)]
            client._session = Session(QUICK, places, "web-0")
            with ThreadPoolExecutor(threads) as pool:
                read = list(pool.map(lambda _: len(client.events()), range(threads)))
            assert read == [1] * threads
            assert client.endpoint == second.url
        assert (first.connections, third.connections) == (threads, 0)


def test_threads_that_meet_one_refusal_step_down_once() -> None:
    refusal = FailedAnswer(reason="status-400", message="", answered=True, status=400)
    session = Session(QUICK, [EndpointAddress("127.0.0.1")])
    question, name = session.question(), session.instance_question()
    with ThreadPoolExecutor(8) as pool:
        again = list(pool.map(lambda _: session.asks_again(refusal, question), range(8)))
        named = list(pool.map(lambda _: session.asks_again(refusal, name), range(8)))
    assert again == named == [True] * 8
    assert session.version == "2019-08-01"


def test_a_failure_that_comes_late_does_not_lead_back_to_an_earlier_address() -> None:
    nobody = FailedAnswer(reason="no-connection", message="")
    session = Session(QUICK, [EndpointAddress("127.0.0.1", port) for port in (1, 2, 3)])
    first = session.question()
    assert session.asks_again(nobody, first)
    assert session.asks_again(nobody, session.question())
    assert session.asks_again(nobody, first)
    assert session.endpoint.port == 3


@pytest.mark.skipif(not FILES.exists(), reason="open files are found by /proc")
def test_nothing_is_left_open() -> None:
    with check_nothing_left(), serving(lambda *_: message(200, document(listed()))) as server:
        for _ in range(5):
            with Client(server.url, name="web-0") as client, client.watch() as watch:
                next(watch)
                client.document()


def test_a_client_finds_its_endpoint_by_itself(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.schedule("Reboot", "web-0")
    monkeypatch.setenv("FOREWARN_ENDPOINT", cloud.environment["FOREWARN_ENDPOINT"])
    with Client(name="web-0") as client:
        assert len(client.events()) == 1
    monkeypatch.setenv("FOREWARN_ENDPOINT", "https://example.com")
    with pytest.raises(Misuse, match="FOREWARN_ENDPOINT"):
        Client()
