"""The agent's shell: signals, its journal, crowds of events, slow peers, no more threads."""

import contextlib
import errno
import math
import os
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

import patience
import web
from agent import workplace
from agent.bench import Bench, begin, command, event, rule
from client.scripted import (
    Asked,
    Scripted,
    Talk,
    document,
    message,
    serving,
    without_files,
    without_threads,
)
from client.world import EVENT_ID, listed
from forewarn import clock
from forewarn.agent import approvals, decider
from forewarn.agent.actions.runner import ActionRunner
from forewarn.agent.daemon import RETRY_SECONDS, Daemon, Poller
from forewarn.agent.journal import NAME, Journal, JournalError
from forewarn.agent.rules import ActionOutcome, ReadySettings, Rule, RuleAction
from forewarn.agent.state import ActionBegun, AnyRecord, Checkpoint, MachineBooted, RuleMatched
from forewarn.agent.status import Peers
from forewarn.settings import SettingsError


class Odd(Journal):
    """A journal on a disk that is full as often as it is told so, or slow; it counts its syncs."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.full = 0.0
        """How many more records find the disk full."""
        self.shortens = True
        """Whether it has room to be made short."""
        self.syncs = 0
        self.slow_until = 0.0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def append(self, *records: AnyRecord) -> None:
        self.goes_on.wait()
        patience.until(lambda: clock.monotonic() >= self.slow_until)
        if self.full > 0 or (isinstance(records[0], Checkpoint) and not self.shortens):
            self.full -= 1
            message = "no space"
            raise JournalError(message)
        super().append(*records)
        self.syncs += 1


RULE = Rule(name="pool", prepare=(RuleAction(ready=ReadySettings()),), approve="when-prepared")


def answers(folder: Path) -> dict[str, int]:
    """Return what the status port answers, by page, before the agent has begun to run."""
    journal = Journal(folder)
    daemon = workplace.daemon(journal, listen="127.0.0.1:0")
    daemon.listen()
    assert daemon._server is not None
    assert daemon.port is not None
    found = {}
    try:
        for path in ("/healthz", "/readyz", "/status", "/metrics", "/nothing"):
            found[path] = web.ask(daemon.port, path).status
    finally:
        daemon._server.close()
        journal.close()
    return found


def test_a_probe_finds_its_pages_from_the_first_moment_on(tmp_path: Path) -> None:
    assert answers(tmp_path) == {
        "/healthz": 200,
        "/readyz": 200,
        "/status": 200,
        "/metrics": 200,
        "/nothing": 404,
    }


def test_an_agent_that_comes_back_in_the_middle_is_never_ready_for_a_moment(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for record in (
        MachineBooted(boot="b"),
        RuleMatched(event=event(), rule=RULE),
        ActionBegun(effect="ready", undo=False, event_id="E1", index=0, attempt=1),
    ):
        journal.append(record)
    journal.close()
    assert answers(tmp_path)["/readyz"] == 503


def test_a_signal_to_end_comes_before_what_was_told_before_it(tmp_path: Path) -> None:
    """An action's end that waits already, and would begin the next, is only written down."""
    journal = Journal(tmp_path)
    daemon = workplace.daemon(journal, rule(command("true"), command("false")))
    seen = event(starts_by=clock.monotonic() + 900)
    daemon._handle(decider.DocumentSeen((seen,), "web-0"))
    patience.until(lambda: not daemon._inputs.empty())  # the first action has ended
    daemon.signal(signal.SIGTERM)
    while not daemon._over():
        daemon._turn()
    journal.close()
    again = Journal(tmp_path)
    begun = [record.index for record in again.records if isinstance(record, ActionBegun)]
    again.close()
    assert begun == [0]


def test_a_name_without_text_ends_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is text, and a folder on the PATH may have any bytes for its name."""
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    (folder / "drain").write_bytes(b"\0")
    (folder / "drain").chmod(0o700)
    monkeypatch.setenv("PATH", str(folder))
    journal = Journal(tmp_path)
    daemon = workplace.daemon(journal, rule(command("drain")))
    daemon._handle(decider.DocumentSeen((event(starts_by=clock.monotonic() + 900),), "web-0"))
    while daemon._decider.busy:
        daemon._turn()
    (reason,) = daemon._decider.state.cases["E1"].reasons.values()
    journal.close()
    assert "?/drain: Exec format error" in reason


@pytest.mark.parametrize("way", ["folder", "file", "replaced", "full"])
def test_a_journal_that_somebody_removed_is_made_again_with_all_that_was_in_it(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever kills the agent next, what it did to the machine is undone."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    monkeypatch.setenv("WATCHDOG_USEC", "2000")  # it waits for a millisecond between its tries
    folder = tmp_path / "state"
    journal = Odd(folder)
    daemon = workplace.daemon(journal, rule(command("true")))
    daemon._handle(decider.DocumentSeen((event(starts_by=clock.monotonic() + 900),), "web-0"))
    if way == "folder":
        shutil.rmtree(folder)
    else:
        (folder / NAME).unlink()
    if way == "replaced":
        other = Journal(tmp_path / "other")
        other.append(MachineBooted(boot="long ago"))
        other.close()
        (tmp_path / "other" / NAME).rename(folder / NAME)
    journal.full = way == "full"
    daemon._handle(decider.TimePassed())
    known = daemon._decider.state.checkpoint()
    journal.close()
    again = Journal(folder)
    again.close()
    assert list(again.records) == [known]
    assert (len(known.cases), len(known.effects)) == (1, 1)


def test_one_empty_document_after_a_restart_ends_no_event(tmp_path: Path) -> None:
    """It may come from a proxy that is just starting: the event may hold on."""
    journal = Journal(tmp_path)
    journal.append(RuleMatched(event=event(EVENT_ID), rule=RULE))
    journal.close()
    again = Journal(tmp_path)
    contents = [document(), document(listed())]
    with serving(lambda _, number: message(200, contents[min(number, 2) - 1])) as server:
        daemon = workplace.daemon(again, endpoint=server.url)
        daemon._poller.start()
        told = daemon._inputs.get(timeout=patience.SECONDS)
        daemon._poller.close()
    again.close()
    assert isinstance(told, decider.DocumentSeen)
    assert [each.event_id for each in told.events] == [EVENT_ID]


@pytest.mark.parametrize(("given", "wrong"), [("old-name", True), ("_WEB-0", False)])
def test_a_name_that_the_endpoint_does_not_know_is_a_trouble(given: str, *, wrong: bool) -> None:
    """Otherwise every event of this machine would count as another's, and nobody would know."""
    targets = []

    def answers(asked: Asked, _: int) -> bytes:
        targets.append(asked.target)
        return message(200, b"web-0" if "compute" in asked.target else document())

    with serving(answers) as server:
        poller = workplace.daemon(None, endpoint=server.url, machine=given)._poller
        poller.start()
        patience.until(lambda: any("compute" in each for each in targets))
        patience.until(lambda: bool(poller.misnamed) or "compute" not in targets[-1])
        poller.close()
        assert (given in poller.misnamed) is wrong


def trouble(daemon: Daemon, host: bytes | None = b"127.0.0.1:8171") -> str:
    """Return what the status port says is wrong."""
    page = daemon.page("/status", host)
    assert page is not None
    told = msgspec.json.decode(page[2])["trouble"]
    assert isinstance(told, str)
    return told


def gauge(daemon: Daemon, name: str) -> str:
    page = daemon.page("/metrics", None)
    assert page is not None
    (value,) = re.findall(rf"^forewarn_agent_{name} (\S+)$", page[2].decode(), re.MULTILINE)
    return str(value)


def test_an_event_that_cannot_be_read_is_a_trouble_while_it_is_listed() -> None:
    """It may be this machine's, and nothing is done for it."""
    is_whole = threading.Event()

    def answers(asked: Asked, _: int) -> bytes:
        events = [listed(), listed(EVENT_ID[::-1] if is_whole.is_set() else None)]
        return message(404 if "compute" in asked.target else 200, document(*events))

    with serving(answers) as server:
        daemon = workplace.daemon(None, endpoint=server.url)
        daemon._poller.start()
        daemon._inputs.get(timeout=patience.SECONDS)
        assert trouble(daemon)
        assert gauge(daemon, "endpoint_up") == "0"
        is_whole.set()
        daemon._inputs.get(timeout=patience.SECONDS)
        assert not trouble(daemon)
        assert gauge(daemon, "endpoint_up") == "1"
        daemon._poller.close()


def test_a_machine_whose_name_nobody_tells_is_a_trouble_until_somebody_does() -> None:
    """No event is its own until then."""
    is_named = threading.Event()

    def answers(asked: Asked, _: int) -> bytes:
        if "compute" in asked.target:
            return message(200, b"web-0") if is_named.is_set() else message(404)
        return message(200, document(*([listed()] if is_named.is_set() else [])))

    with serving(answers) as server:
        daemon = workplace.daemon(None, endpoint=server.url, machine="")
        daemon._poller.start()
        daemon._inputs.get(timeout=patience.SECONDS)
        assert "client.machine" in trouble(daemon)
        assert (gauge(daemon, "endpoint_up"), gauge(daemon, "name_known")) == ("1", "0")
        is_named.set()
        patience.until(lambda: not trouble(daemon))
        assert gauge(daemon, "name_known") == "1"
        daemon._poller.close()


def test_a_watch_that_gets_no_file_to_begin_again_is_tried_again() -> None:
    """Otherwise the agent would see nothing any more, and the watchdog would find it well."""
    files, told, has_failed = contextlib.ExitStack(), Told(), threading.Event()

    def tell(cause: decider.Input) -> None:
        if not has_failed.is_set():
            has_failed.set()
            files.enter_context(without_files())
            message = "a fault of our own"
            raise ValueError(message)
        told(cause)

    with serving(lambda _asked, _number: message(200, document())) as server:
        poller = Poller(server.url, "web-0", tell)
        with files:
            poller.start()
            patience.until(lambda: os.strerror(errno.EMFILE) in poller.trouble)
            assert not poller.is_answered
        assert isinstance(told.first(), decider.DocumentSeen)
        patience.until(lambda: not poller.trouble)
        poller.close()


def test_a_crowd_of_events_costs_one_sync_and_one_page(tmp_path: Path) -> None:
    journal = Odd(tmp_path)
    daemon = workplace.daemon(journal, rule({"log": {}}))
    crowd = [event(f"E{number}", starts_by=clock.monotonic() + 900) for number in range(50)]
    daemon._handle(decider.DocumentSeen(tuple(crowd), "web-0"))
    assert journal.syncs == 1
    assert len(daemon._decider.state.cases) == 50
    patience.until(lambda: daemon._inputs.qsize() == 50)
    daemon._publish()
    daemon._publish_at = math.inf
    shown = daemon._told
    daemon._turn()
    assert daemon._told is shown, "another input follows"
    journal.close()


def test_no_action_is_charged_for_the_disk(tmp_path: Path) -> None:
    journal = Odd(tmp_path)
    daemon = workplace.daemon(journal, rule({"ready": {"wait_seconds": 50}}))
    began = clock.monotonic()
    journal.slow_until = began + 0.2
    ended = event(starts_by=began + 900)
    daemon._handle(decider.DocumentSeen((ended,), "web-0"))
    (run,) = daemon._decider._runs.values()
    daemon._runner.stop(run.number)
    journal.close()
    assert run.limit > began + 60.15
    assert daemon._decider.delay(run.number, 3000) == run.deadline, "the notice is not longer"


@pytest.mark.parametrize("over", [True, False])
def test_what_a_full_disk_kept_waiting_is_decided_again(tmp_path: Path, *, over: bool) -> None:
    """No database is failed over for an event that came and went meanwhile."""
    done = tmp_path / "done"
    failover = {"command": {"run": ["touch", str(done)]}}
    daemon = workplace.daemon(None, rule(failover, approve="never"))
    daemon._runner = ActionRunner(daemon._inputs.put)
    seen = decider.DocumentSeen((event(starts_by=clock.monotonic() + 900),), "web-0")
    outputs = daemon._decider.handle(seen, clock.monotonic())
    daemon._inputs.put(decider.DocumentSeen((), "web-0") if over else seen)
    for output in outputs:
        daemon._carry_out(output, took=600.0)
    while daemon._decider.busy:
        daemon._turn()
    assert done.exists() is not over


def test_an_approval_that_the_disk_kept_waiting_is_decided_again(tmp_path: Path) -> None:
    journal = Odd(tmp_path)
    daemon = workplace.daemon(journal)
    daemon._carry_out(approvals.ApproveEvent(request=1, event=event()), took=600.0)
    journal.close()
    assert daemon._inputs.get_nowait() == approvals.ApprovalAnswered(1, None)


@pytest.mark.parametrize("fault", [SettingsError("agent.toml"), TypeError("agent.toml")])
def test_a_file_that_cannot_be_read_again_is_a_trouble_until_it_can(fault: Exception) -> None:
    daemon = workplace.daemon(None)

    def spoilt() -> tuple[Rule, ...]:
        raise fault

    daemon._reload = spoilt
    daemon._read_rules()
    daemon._publish()
    assert "agent.toml" in trouble(daemon)
    assert trouble(daemon, b"localhost")
    assert trouble(daemon, b"")
    # From elsewhere, and by a website that has pointed its name at this machine's browser.
    assert trouble(daemon, None) == ""
    assert trouble(daemon, b"a-website.example:8171") == ""
    daemon._reload = tuple
    daemon._read_rules()
    assert trouble(daemon) == ""


def test_an_agent_that_was_paused_tells_the_watchdog_as_soon_as_it_is_awake() -> None:
    waits = []

    class Ended(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            daemon._heard_at = clock.monotonic()
            return len(waits) > 1

    daemon = workplace.daemon(None)
    daemon._heard_at = -math.inf
    daemon._ended = Ended()
    daemon._beat(600.0)
    assert waits == [RETRY_SECONDS, 600.0]


@pytest.mark.parametrize("length", [0, 2], ids=["record", "made-short"])
def test_the_watchdog_is_told_while_a_slow_disk_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    beats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    beats.bind(str(tmp_path / "notify"))
    beats.settimeout(patience.SECONDS)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    journal = Odd(tmp_path)
    daemon = workplace.daemon(journal, rule({"log": {}}))
    thread = threading.Thread(target=daemon.run, daemon=True)
    thread.start()
    try:
        while b"READY=1" not in beats.recv(1000):
            pass
        journal.goes_on.clear()
        journal.length = length  # with nothing in hand it is made short
        daemon._inputs.put(decider.DocumentSeen(() if length else (event(),), "web-0"))
        patience.until(lambda: daemon._is_writing)
        daemon._heard_at = -math.inf
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as marking:
            marking.sendto(b"from here on", str(tmp_path / "notify"))
        while beats.recv(1000) != b"from here on":
            pass
        for _ in range(3):
            while b"WATCHDOG=1" not in beats.recv(1000):
                pass
        assert daemon._is_writing
    finally:
        journal.goes_on.set()
        daemon.signal(signal.SIGTERM)
        thread.join(patience.SECONDS)
        journal.close()
        beats.close()


@pytest.mark.parametrize("line", range(1, 60))
def test_a_signal_at_any_moment_ends_an_agent_that_waits_for_room(
    line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler runs between two lines of the thread that it interrupts: here at each.

    One that wanted a lock which its own thread holds, as an Event does, would never return.
    """
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    monkeypatch.setenv("WATCHDOG_USEC", "2000")  # it waits for a millisecond between its tries
    journal = Odd(tmp_path)
    journal.full = math.inf
    daemon = workplace.daemon(journal)
    daemon._trouble = "no space"  # it was logged before
    seen = 0

    def trace(frame: FrameType, what: str, _: object) -> Any:
        nonlocal seen
        seen += what == "line" and frame.f_code.co_filename != __file__
        if seen == line:
            sys.settrace(None)
            daemon.signal(signal.SIGTERM)
            daemon.signal(signal.SIGTERM)
        return trace

    def write() -> None:
        sys.settrace(trace)
        with contextlib.suppress(JournalError):
            daemon._append(journal, [MachineBooted(boot="b")])

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(patience.SECONDS)
    journal.close()
    assert not thread.is_alive()


def test_a_journal_that_cannot_be_shortened_stops_nothing(tmp_path: Path) -> None:
    journal = Odd(tmp_path)
    journal.shortens = False
    daemon = workplace.daemon(journal, rule({"log": {}}))
    daemon._handle(decider.DocumentSeen((event(),), "web-0"))
    daemon._turn()
    daemon._handle(decider.DocumentSeen((), "web-0"))
    while not daemon._decider.state.idle:
        daemon._turn()
    assert journal.length > 4
    journal.shortens, daemon._shorten_at = True, 0.0
    daemon._handle(decider.DocumentSeen((), "web-0"))
    assert journal.length == 1
    journal.close()


def calls_of_one_end(number: int) -> int:
    """Count the calls of Python's functions that the end of one of so many actions leads to."""
    crowd = Bench(rule(command("a", shared=False), approve="when-prepared"))
    crowd.see(*(event(f"E{each}") for each in range(number)))
    crowd.end("a")
    calls = 0

    def count(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal calls
        calls += what == "call"

    sys.setprofile(count)
    try:
        crowd.end("a")
    finally:
        sys.setprofile(None)
    return calls


def test_the_end_of_an_action_costs_no_more_for_each_event_of_a_larger_crowd() -> None:
    assert calls_of_one_end(200) < 3 * calls_of_one_end(100)


class Told:
    """What was told, and when there is some of it."""

    def __init__(self) -> None:
        self.causes: list[decider.Input] = []
        self._some = threading.Event()

    def __call__(self, cause: decider.Input) -> None:
        self.causes.append(cause)
        self._some.set()

    def first(self) -> decider.Input:
        assert self._some.wait(patience.SECONDS)
        return self.causes[0]


@pytest.mark.parametrize(
    "head",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"],
    ids=["status line", "headers", "body"],
)
def test_a_peer_that_drips_is_hung_up_on_when_its_time_is_over(head: bytes) -> None:
    """Otherwise each round would leave a thread and a connection behind, for hours."""
    told, ended = Told(), threading.Event()

    def drip(talk: Talk) -> None:
        with contextlib.suppress(OSError):
            talk.connection.sendall(head)
            while not ended.wait(patience.PAUSE_SECONDS):
                talk.connection.sendall(b"x")
        ended.set()

    with Scripted(drip) as peer:
        Peers([peer.url], told).ask(approvals.AskPeers(1, "E1", ("web-1",)))
        assert told.first() == approvals.PeersAnswered(1, frozenset())
        assert ended.wait(patience.SECONDS)


def test_every_peer_of_a_list_is_asked_whatever_the_others_are() -> None:
    told, agreed = Told(), [{"event_id": "E1", "agrees": True}]
    with (
        Scripted(lambda talk: talk.answer(body=b'{"":' + 100_000 * b"[")) as deep,
        Scripted(lambda talk: talk.answer(body={"machine": "web-1", "events": agreed})) as peer,
    ):
        odd = (f"http://{name}:8171" for name in ("a..b", "c:d", "x" * 100))
        peers = Peers([*odd, *["http://127.0.0.1:9"] * 1000, deep.url, peer.url], told)
        peers.ask(approvals.AskPeers(1, "E1", ("web-1",)))
        assert told.first() == approvals.PeersAnswered(1, frozenset({"web-1"}))


WITHOUT_THREADS: dict[str, tuple[Callable[[Told], None], decider.Input]] = {
    "an action has failed": (
        lambda told: ActionRunner(told).begin(
            begin(rule({"log": {}}).prepare[0], event()), "web-0", 0.0
        ),
        decider.ActionFinished(1, ActionOutcome.FAILED, "can't start new thread"),
    ),
    "an approval may have been taken": (
        lambda told: Poller("http://127.0.0.1:9", "web-0", told).approve(
            approvals.ApproveEvent(1, event())
        ),
        approvals.ApprovalAnswered(1, None),
    ),
    "peers are not prepared": (
        lambda told: Peers(["http://127.0.0.1:9"], told).ask(
            approvals.AskPeers(1, "E1", ("web-1",))
        ),
        approvals.PeersAnswered(1, frozenset()),
    ),
}


@pytest.mark.parametrize(("ask", "answer"), WITHOUT_THREADS.values(), ids=WITHOUT_THREADS)
def test_what_gets_no_thread_has_an_answer(
    ask: Callable[[Told], None], answer: decider.Input
) -> None:
    told = Told()
    with without_threads():
        ask(told)
    assert told.first() == answer


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
