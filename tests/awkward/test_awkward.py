"""Each awkward server, on a real socket, played against the client."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import patience
from awkward.servers import SERVERS, Host
from awkward.story import OURS, TOLD
from forewarn.client.event import Change, Trouble
from forewarn.client.session import Pace
from forewarn.client.sync import Client

SCALE = 20.0
ENOUGH = 5
"""How often the end must have been told before a test believes that nothing more follows."""

MAX_POURED = 48 * 1024 * 1024
"""What an endless answer may get rid of: the client's limit of 4 MiB, and what Linux lets sockets
hold besides: 32 MiB at the reader, 4 MiB at the writer. A busy machine has filled 10 of them."""

SCALED = Pace(
    first_answer_seconds=150.0 / SCALE,
    answer_seconds=10.0 / SCALE,
    connect_seconds=10.0 / SCALE,
    poll_seconds=0.02,
    backoff_seconds=0.01,
    longest_backoff_seconds=0.1,
    approve_seconds=patience.SECONDS,
)
"""The client's own patience, as much quicker as the servers'; polls and pauses are made short."""

PATIENT = msgspec.structs.replace(
    SCALED,
    first_answer_seconds=patience.SECONDS,
    answer_seconds=4.5,
    connect_seconds=patience.SECONDS,
)
"""For servers that answer in the end: one that a busy machine lets stand still is no trouble."""

QUIET = {
    *("upright", "closes-without-saying-so", "hangs-up-on-the-second-request"),
    *("first-answer-late", "resets-its-incarnation", "wrong-weekdays", "iso-dates"),
    "empty-once",
    *("new-eventid-case", "strange-fields", "refuses-new-versions", "approves-and-dies"),
}
"""The servers that a watch has no trouble with: nobody is to be woken for them."""

SLOW = {"first-answer-late", "slow-bytes"}
"""The servers whose story takes seconds."""


@pytest.fixture
def server(name: str) -> Iterator[Host]:
    with Host(name, SCALE) as host:
        yield host


@pytest.fixture
def client(name: str, server: Host) -> Iterator[Client]:
    with Client(server.address, pace=PATIENT if name in QUIET else SCALED) as made:
        yield made


def names() -> Iterator[Any]:
    """Each server; the slow ones never by default."""
    for name in sorted(SERVERS):
        yield pytest.param(name, marks=[pytest.mark.soak] if name in SLOW else [])


class Handler:
    """What a service does: approves what concerns it, and writes everything down."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.told: list[tuple[str, str, str]] = []
        self.changes: list[Change] = []
        self.troubles: list[Trouble] = []
        self.failure: BaseException | None = None
        self.watch = client.watch(on_trouble=self.troubles.append)

    def run(self) -> None:
        try:
            for change in self.watch:
                event = change.event
                self.changes.append(change)
                self.told.append((change.kind, event.event_id.upper(), event.status))
                if change.appeared and event.concerns_me:
                    self._client.approve(event)
        except BaseException as failure:  # noqa: BLE001 - the test's own thread tells of it
            self.failure = failure


@pytest.mark.parametrize("name", list(names()))
def test_every_change_is_told_once_and_what_is_approved_counts_once(
    name: str, server: Host, client: Client
) -> None:
    handler = Handler(client)
    thread = threading.Thread(target=handler.run)
    thread.start()
    patience.until(lambda: not thread.is_alive() or len(server.noted("over")) >= ENOUGH)
    handler.watch.close()
    thread.join(patience.SECONDS)
    assert not thread.is_alive()
    assert handler.failure is None
    assert handler.told == list(TOLD)
    approvals = server.noted("approved")
    assert all([each.upper() for each in ids] == [OURS] for ids in approvals), approvals
    assert [new for new in server.noted("new") if new] == [[OURS]]
    assert not server.noted("followed")
    assert all(poured < MAX_POURED for poured in server.noted("poured"))
    reasons = [trouble.reason for trouble in handler.troubles]
    assert all(one != other for one, other in itertools.pairwise(reasons))
    assert not reasons or handler.troubles[-1].over
    assert bool(reasons) == (name not in QUIET), reasons
