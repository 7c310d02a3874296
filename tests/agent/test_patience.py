"""What the agent puts up with: slow peers, slow probes, a system that gives no more threads."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import patience
from agent import workplace
from agent.bench import begin, event, rule
from forewarn import status_port
from forewarn.agent.actions.action import ActionRunner
from forewarn.agent.daemon import Poller
from forewarn.agent.decider import (
    ActionFinished,
    ApprovalAnswered,
    ApproveEvent,
    AskPeers,
    Input,
    PeersAnswered,
)
from forewarn.agent.rules import ActionOutcome
from forewarn.agent.status import Peers
from forewarn.status_port import CONNECTIONS, SECONDS, StatusServer

READY = b"ok\n"


class Told:
    """What was told, and when there is some of it."""

    def __init__(self) -> None:
        self.causes: list[Input] = []
        self._some = threading.Event()

    def __call__(self, cause: Input) -> None:
        self.causes.append(cause)
        self._some.set()

    def first(self) -> Input:
        assert self._some.wait(patience.SECONDS)
        return self.causes[0]


class Drip:
    """A peer that answers every question without end, one byte after the other."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.over = threading.Event()
        self.ended = threading.Event()
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listens.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connected, _ = self._listens.accept()
        with connected, contextlib.suppress(OSError):
            connected.sendall(self._head)
            while not self.over.wait(patience.PAUSE_SECONDS):
                connected.sendall(b"x")
        self.ended.set()

    def close(self) -> None:
        self.over.set()
        self._thread.join()
        self._listens.close()


@contextlib.contextmanager
def dripping(head: bytes) -> Iterator[Drip]:
    peer = Drip(head)
    try:
        yield peer
    finally:
        peer.close()


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"],
    ids=["status line", "headers", "body"],
)
def test_a_peer_that_drips_is_hung_up_on_when_its_time_is_over(head: bytes) -> None:
    """Otherwise each round would leave a thread and a connection behind, for hours."""
    told = Told()
    with dripping(head) as peer:
        Peers([peer.address], told).ask(AskPeers(1, "E1", ("web-1",)))
        assert told.first() == PeersAnswered(1, frozenset())
        assert peer.ended.wait(patience.SECONDS)


def test_a_peer_without_an_address_that_can_be_is_not_prepared() -> None:
    told = Told()
    Peers("http://{machine}:8171", told).ask(AskPeers(1, "E1", ("a..b", "c:d", "x" * 100)))
    assert told.first() == PeersAnswered(1, frozenset())


def shown(path: str, own: bool) -> status_port.Page:
    del path, own
    return 200, "text/plain", READY


def test_probes_are_answered_however_many_others_drip() -> None:
    port = StatusServer(("127.0.0.1", 0), shown, name="forewarn-agent")
    over = threading.Event()
    slow = [socket.create_connection(("127.0.0.1", port.number)) for _ in range(CONNECTIONS)]

    def drip() -> None:
        while not over.wait(SECONDS / 20):
            for each in slow:
                with contextlib.suppress(OSError):
                    each.sendall(b"G")

    dripper = threading.Thread(target=drip)
    dripper.start()

    def answered() -> bytes:
        probe = http.client.HTTPConnection("127.0.0.1", port.number, timeout=patience.SECONDS)
        with contextlib.closing(probe), contextlib.suppress(OSError):
            probe.request("GET", "/healthz")
            return probe.getresponse().read()
        return b""

    try:
        assert patience.until(answered) == READY
    finally:
        over.set()
        dripper.join()
        for each in slow:
            each.close()
        port.close()


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """Let no thread begin: each asks for more memory than there is."""
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            threading.Thread(target=int).start()
        yield
    finally:
        threading.stack_size(before)


@pytest.fixture
def no_threads() -> Iterator[None]:
    with without_threads():
        yield


@pytest.mark.usefixtures("no_threads")
def test_an_action_that_gets_no_thread_has_failed() -> None:
    told = Told()
    step = rule({"log": {}}).prepare[0]
    seen = event()
    ActionRunner(told).begin(begin(step, seen), "web-0", 0.0)
    assert told.first() == ActionFinished(1, ActionOutcome.FAILED, "can't start new thread")


@pytest.mark.usefixtures("no_threads")
def test_an_approval_that_gets_no_thread_is_one_that_nobody_knows_the_fate_of() -> None:
    told = Told()
    Poller("http://127.0.0.1:9", "web-0", told).approve(ApproveEvent(1, event()))
    assert told.first() == ApprovalAnswered(1, None)


@pytest.mark.usefixtures("no_threads")
def test_peers_that_get_no_thread_are_not_prepared() -> None:
    told = Told()
    Peers(["http://127.0.0.1:9"], told).ask(AskPeers(1, "E1", ("web-1",)))
    assert told.causes == [PeersAnswered(1, frozenset())]


def test_a_program_ends_though_its_stop_gets_no_thread(tmp_path: Path) -> None:
    """It ends at once: nobody would be there to end it ten seconds later."""
    begun = tmp_path / "begun"
    stubborn = "import pathlib, signal, sys\nsignal.alarm(30)\nsignal.signal(15, signal.SIG_IGN)\n"
    stubborn += "pathlib.Path(sys.argv[1]).touch()\nsignal.pause()\n"
    program = workplace.python(tmp_path, "stubborn", stubborn)
    action = workplace.Done(command={"run": [program, str(begun)]}).begin()
    patience.until(begun.exists)
    with without_threads():
        action.run.stop()
    assert action.end() == "cut"
