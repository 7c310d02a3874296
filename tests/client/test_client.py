"""What a client does, on real sockets: against the emulator, and servers that say anything."""

import contextlib
import errno
import gc
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

import forewarn
import patience
from client.scripted import (
    QUICK,
    Scripted,
    Silent,
    Talk,
    document,
    message,
    serving,
    without_files,
)
from client.world import EVENT_ID, listed
from forewarn import testing
from forewarn.client.discovery import EndpointAddress
from forewarn.client.event import Misuse, Trouble, Unreachable
from forewarn.client.session import FailedAnswer, Session
from forewarn.client.sync import Client
from forewarn.client.watch_file import WatchFile
from forewarn.testing import Emulator
from leftovers import FILES, check_nothing_left
from ports import free_port

Connect = Callable[..., Client]


def connections(cloud: Emulator) -> int:
    """How many clients are connected."""
    return cloud.read(lambda service: service.wire.guests.figures()["guest_connections"])


def test_a_watch_tells_what_happens_and_approves_meanwhile(
    connect: Connect, cloud: Emulator
) -> None:
    cloud.schedule("Reboot", "web-0")
    client = connect(cloud.endpoint)
    watch = client.watch()
    change = next(watch)
    assert change.appeared
    assert change.event.concerns_me
    client.approve(change.event)
    assert next(watch).started
    cloud.finish()
    assert next(watch).gone
    assert connections(cloud) == 2  # the watch's own, and one for the rest


def test_a_watch_goes_on_elsewhere(connect: Connect, cloud: Emulator, tmp_path: Path) -> None:
    file = tmp_path / "state"
    event = cloud.schedule("Reboot", "web-0")
    watch = connect(cloud.endpoint).watch(since=file)
    assert next(watch).appeared
    assert [*json.loads(file.read_text())["known"]] == [event.event_id]
    again = connect(cloud.endpoint).watch(since=str(file))
    assert next(again).appeared, "nobody was done with it"
    again.done()
    cloud.cancel(event)
    last = connect(cloud.endpoint).watch(since=file)
    assert next(last).gone
    last.done()
    assert json.loads(file.read_text())["known"] == {}
    assert list(tmp_path.iterdir()) == [file]


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="/dev/full is Linux's")
def test_a_watch_goes_on_by_a_full_disk(connect: Connect, cloud: Emulator, tmp_path: Path) -> None:
    file, draft = tmp_path / "state", tmp_path / "state.new"
    draft.symlink_to(FULL)
    troubles: list[str] = []
    client = connect(cloud.endpoint)

    def told(trouble: Trouble) -> None:
        troubles.append(trouble.reason)

    watch = client.watch(since=file, on_trouble=told)
    assert not file.exists()
    draft.symlink_to(FULL)
    cloud.schedule("Reboot", "web-0")
    assert next(watch).appeared
    assert troubles == ["not-saved", "saved"]
    draft.mkdir()
    cloud.schedule("Reboot", "web-1")
    assert next(watch).appeared, "though it cannot be saved"
    assert troubles == ["not-saved", "saved", "not-saved"]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EMFILE, errno.ENOSPC, errno.ENOENT])
def test_only_a_path_that_somebody_has_to_mend_ends_a_watch(code: int, tmp_path: Path) -> None:
    class Sick(WatchFile):
        def _write(self, text: str) -> OSError | None:
            del text
            return OSError(code, os.strerror(code))

    ends = pytest.raises(Misuse) if code == errno.ENOENT else contextlib.nullcontext()
    with ends:
        Sick(tmp_path / "state").check("{}")


@pytest.mark.parametrize("resets", [False, True])
def test_a_connection_that_the_server_closed_meanwhile_is_replaced_in_silence(
    connect: Connect, resets: bool
) -> None:
    def script(talk: Talk) -> None:
        asked = talk.request()
        if asked is not None:  # the watch may end between its connection and its question
            talk.answer(200, document() if asked.method == "GET" else b"")
        if resets and talk.request() is not None:
            talk.reset()

    with Scripted(script) as server:
        client = connect(server.url, name="web-0")
        troubles: list[str] = []
        for _ in range(5):
            assert client.document().events == ()
        client.approve(EVENT_ID)
        watch = client.watch(on_trouble=lambda trouble: troubles.append(trouble.reason))
        closer = threading.Timer(0.2, watch.close)
        closer.start()
        assert list(watch) == []
        closer.join()
        assert troubles == []


def test_what_holds_for_one_connection_only_is_not_said_on_the_next(connect: Connect) -> None:
    tags: list[str | None] = []
    enough = threading.Event()

    def script(talk: Talk) -> None:
        for _ in range(2):
            asked = talk.request()
            if asked is not None and "compute" in asked.target:
                talk.answer(200, b"web-0")
                asked = talk.request()
            if asked is None:
                return
            tags.append(asked.headers.get("if-none-match"))
            if len(tags) == 5:
                enough.set()
            talk.answer(200, document())

    with Scripted(script) as server:
        watch = connect(server.url, name="web-0").watch()
        with ThreadPoolExecutor() as pool:
            told = pool.submit(list, watch)
            assert enough.wait(patience.SECONDS)
            watch.close()
            assert told.result(patience.SECONDS) == []
    assert tags[:5] == [None, "1", None, None, None]  # once it is known not to wait, never again


FAULTS = {
    "503": message(503, b"no", Retry_After="Thu, 01 Jan 2026 12:00:00 GMT"),
    "cut": message(200, document())[:-3],
    "reset": b"",
}
"""All that may be wrong with an answer is in test_transport and the stories."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_watch_lives_through_anything_and_says_so_once(connect: Connect, fault: str) -> None:
    troubles: list[str] = []
    numbers = itertools.count(1)

    def script(talk: Talk) -> None:
        while (asked := talk.request()) is not None:
            if "compute" in asked.target:
                talk.answer(200, b"web-0")
                continue
            number = next(numbers)
            if number in {2, 3, 4}:
                if fault == "reset":
                    talk.reset()
                talk.send(FAULTS[fault])
                return
            talk.answer(200, document(*[listed()] * (number < 6)))

    with Scripted(script) as server:
        client = connect(server.url, name="web-0")
        watch = client.watch(on_trouble=lambda trouble: troubles.append(trouble.reason))
        assert [next(watch).kind, next(watch).kind] == ["appeared", "gone"]
    assert len(troubles) == 2
    assert troubles[1] == "over"


def test_nobody_there_and_names_that_nobody_has_or_can_have_are_unreachable(
    connect: Connect,
) -> None:
    with pytest.raises(
        Unreachable, match=r"no connection to http://127\.0\.0\.1.*FOREWARN_ENDPOINT"
    ):
        connect(f"http://127.0.0.1:{free_port()}").document()
    for host in ("no-such-machine.invalid", "a" * 70, "a..b"):
        with pytest.raises(Unreachable, match="no connection"):
            connect(f"http://{host}", name="web-0").document()


@pytest.mark.parametrize("said", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_a_server_that_falls_silent_in_mid_answer_is_unreachable_after_its_time(
    connect: Connect, said: bytes
) -> None:
    pace = msgspec.structs.replace(QUICK, first_answer_seconds=0.2)

    def script(talk: Talk) -> None:
        talk.request()
        talk.send(said)
        talk.request()  # until the client hangs up

    with Scripted(script) as server:
        with pytest.raises(Unreachable, match="no answer"):
            connect(server.url, name="web-0", pace=pace).document()
        assert server.connections == 1
        assert server.everyone_left()


def test_no_proxy_has_a_say(
    connect: Connect, cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert connect(cloud.endpoint, name="web-0").events() == ()


def test_closing_a_client_ends_its_watch_and_what_waits_for_an_answer(connect: Connect) -> None:
    with Silent() as server, ThreadPoolExecutor() as pool:
        client = connect(server.url, name="web-0")
        watch = client.watch()
        told = pool.submit(list, watch)
        assert server.asked.wait(patience.SECONDS)
        server.asked.clear()
        asked = pool.submit(client.document)
        assert server.asked.wait(patience.SECONDS)
        client.close()
        assert told.result(patience.SECONDS) == list(watch) == []
        with pytest.raises(Misuse, match="closed"):
            asked.result(patience.SECONDS)


def test_a_watch_that_is_forgotten_has_hung_up(connect: Connect) -> None:
    with serving(lambda *_: message(200, document(listed()))) as server:
        client = connect(server.url, name="web-0")
        watch = client.watch()
        next(watch)
        del watch
        gc.collect()
        assert server.everyone_left()


def test_what_is_no_state_or_no_event_is_a_mistake(connect: Connect, tmp_path: Path) -> None:
    client, file, binary = connect("http://127.0.0.1:1"), tmp_path / "state", tmp_path / "binary"
    file.write_text('{"format":99}')
    binary.write_bytes(b"\xff")
    for path in (file, binary, tmp_path, tmp_path / "no" / "state", binary / "state"):
        with pytest.raises(Misuse, match="since") as raised:
            client.watch(since=path)
        assert str(path) in str(raised.value)
    assert file.read_text() == '{"format":99}'
    for events in ((), ("",), (None,), (3,), tuple(map(str, range(1001)))):
        with pytest.raises(Misuse):
            client.approve(*events)


def test_a_reason_is_logged_once_and_its_end_too(
    connect: Connect, cloud: Emulator, caplog: pytest.LogCaptureFixture
) -> None:
    cloud.schedule("Reboot", "web-0")
    cloud.faults("status", status=503, times=5)
    with caplog.at_level(logging.INFO, "forewarn.client"):
        assert next(connect(cloud.endpoint, name="web-0").watch()).appeared
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in logged if level != "DEBUG"] == ["WARNING", "INFO"]
    assert f"{cloud.endpoint}: the server answered 503" in logged[0][1]
    assert logged[0][1].endswith("(status-503)")
    assert "the endpoint answers again (over)" in logged[1][1]


# Threads, signals, and what a process loads.


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


@pytest.mark.parametrize("package", [forewarn, testing])
def test_every_public_name_can_be_had(package: ModuleType) -> None:
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="Klient"):
        getattr(package, "Klient")  # noqa: B009 - a name that there is not


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
    files = contextlib.ExitStack()
    with files, serving(lambda *_: message(200, document(listed()))) as server:
        client = Client(server.url, name="web-0", pace=QUICK)
        told: list[str] = []

        def tell(trouble: Trouble) -> None:
            told.append(trouble.reason)
            files.close()  # the time is over

        watch = client.watch(on_trouble=tell)
        files.enter_context(without_files())
        assert next(watch).appeared
        client.close()
    assert told == ["no-connection", "over"]


def test_a_call_without_files_fails_as_one_without_an_answer() -> None:
    with serving(lambda *_: message(200, document(listed()))) as server:
        client = Client(server.url, name="web-0", pace=QUICK)
        with without_files():
            for call in (lambda: client.approve(EVENT_ID), client.document, client.watch):
                with pytest.raises(Unreachable, match="files"):
                    call()
        assert client.document().events
        client.close()


def test_threads_that_meet_one_refusal_step_down_once() -> None:
    refusal = FailedAnswer(reason="status-400", message="", answered=True, status=400)
    nobody = FailedAnswer(reason="no-connection", message="")
    session = Session(QUICK, [EndpointAddress("127.0.0.1", port) for port in (1, 2, 3)])
    first = session.question()
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: session.asks_again(nobody, first), range(8)))
        assert session.endpoint.port == 2
        question, name = session.question(), session.instance_question()
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
            with Client(server.url, name="web-0") as client:
                watch = client.watch()  # which the client closes
                next(watch)
                client.document()


def test_a_client_finds_its_endpoint_itself(
    cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.schedule("Reboot", "web-0")
    monkeypatch.setenv("FOREWARN_ENDPOINT", cloud.environment["FOREWARN_ENDPOINT"])
    with Client(name="web-0") as client:
        assert len(client.events()) == 1
    monkeypatch.setenv("FOREWARN_ENDPOINT", "https://example.com")
    with pytest.raises(Misuse, match="FOREWARN_ENDPOINT"):
        Client()
