"""What turns a scope on: the first request of one of its machines (protocol.md section 8)."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from forewarn.maintenance.model import Changes, Enablement, Policy
from forewarn.server.guest.documents import GATHER_SECONDS, SAVE_EVERY, TURN_ON_SECONDS
from forewarn.store.port import StoreUnavailable
from guest import room
from guest.room import Enabling, Peer, Room, answers, get, opened, post, statuses

FIRST = Policy(enablement=Enablement.FIRST_REQUEST)
EMPTY_APPROVAL = b'{"StartRequests":[]}'

Opened = tuple[Room, Callable[[], None]]


@pytest.fixture
def first() -> Iterator[Opened]:
    with opened(enabling=Enabling(policy=FIRST)) as made:
        yield made


def ask(plane: Opened, request: bytes, address: str = "10.0.0.10") -> Peer:
    peer = plane[0].connect(address)
    peer.send(request)
    plane[1]()
    return peer


@pytest.mark.parametrize("request_", [get(), post(), post(EMPTY_APPROVAL)])
def test_the_first_request_turns_its_scope_on_before_it_is_answered(
    first: Opened, request_: bytes
) -> None:
    plane, turn = first
    plane.approvals.waits = True
    peer = ask(first, request_)
    other = ask(first, get(), "10.0.0.11")
    assert statuses(peer) == statuses(other) == []
    while plane.approvals.turned == [] or statuses(peer) == []:
        plane.approvals.decide_all()
        turn()
    assert plane.approvals.turned == [("web",)]
    assert statuses(peer) == statuses(other) == [200]


def test_what_is_on_is_answered_at_once_and_saved_once_a_minute(first: Opened) -> None:
    plane, turn = first
    ask(first, get())
    for _ in range(3):
        assert statuses(ask(first, get())) == [200]
    assert plane.approvals.turned == [("web",)]
    plane.pass_time(SAVE_EVERY.total_seconds())
    ask(first, get(), "127.0.0.1")
    plane.approvals.waits = True
    for _ in range(3):
        assert statuses(ask(first, get())) == [200]
    plane.pass_time(GATHER_SECONDS)
    turn()
    assert statuses(ask(first, get())) == [200]
    plane.approvals.decide_all()
    turn()
    assert plane.approvals.turned == [("web",), ("bastion",), ("web",)]
    plane.pass_time(GATHER_SECONDS)
    turn()
    assert len(plane.approvals.turned) == 3
    plane.approvals.waits = False
    plane.pass_time(SAVE_EVERY.total_seconds())
    for address in ("10.0.0.10", "127.0.0.1"):
        ask(first, get(), address)
    plane.pass_time(GATHER_SECONDS)
    turn()
    assert plane.approvals.turned[3:] == [("bastion", "web")]


@pytest.mark.parametrize(
    ("changes", "status", "tag"),
    [
        (Changes(removed_machines=("bastion",), removed_scopes=("bastion",)), 403, None),
        (Changes(machines=(room.machine("bastion", "127.0.0.1", scope="web"),)), 200, "2"),
    ],
    ids=["removed", "moved"],
)
def test_a_machine_that_leaves_its_scope_while_its_request_is_held_reads_nothing_of_it(
    changes: Changes, status: int, tag: str | None
) -> None:
    with opened(enabling=Enabling(policy=FIRST, first_response_delay=5.0)) as plane:
        peer = ask(plane, get(), "127.0.0.1")
        assert statuses(peer) == []
        plane[0].learn(changes)
        plane[0].pass_time(5.0)
        plane[1]()
        (answer,) = answers(peer.got)
        assert (answer.status, answer.headers.get("etag")) == (status, tag)


def test_it_is_turned_on_again_after_a_day_without_a_request(first: Opened) -> None:
    plane, _ = first
    ask(first, get())
    plane.clock.advance(timedelta(hours=24))
    ask(first, get())
    assert plane.approvals.turned == [("web",), ("web",)]


def test_asking_for_other_things_turns_nothing_on(first: Opened) -> None:
    plane, _ = first
    for target in ("/metadata/versions", "/metadata/instance?api-version=2021-02-01"):
        assert statuses(ask(first, get(target))) == [200]
    assert statuses(ask(first, get(room.EVENTS), "10.9.9.9")) == [403]
    assert plane.approvals.turned == []


@pytest.mark.parametrize("problem", [StoreUnavailable("away"), RuntimeError("ours")], ids=repr)
def test_a_guest_is_answered_from_memory_while_the_store_is_away_and_the_next_tries_again(
    first: Opened, problem: Exception
) -> None:
    plane, _ = first
    plane.approvals.error = problem
    assert statuses(ask(first, get())) == [200]
    assert plane.approvals.turned == []
    plane.approvals.error = None
    assert statuses(ask(first, get())) == [200]
    assert plane.approvals.turned == [("web",)]


def test_a_guest_waits_for_a_slow_store_no_longer_than_clients_wait(first: Opened) -> None:
    plane, turn = first
    plane.approvals.waits = True
    peer = ask(first, get())
    assert statuses(peer) == []
    until = plane.connections.loop.time() + 10 * TURN_ON_SECONDS
    while not statuses(peer) and plane.connections.loop.time() < until:
        turn()
    assert statuses(peer) == [200]
    assert plane.approvals.turned == []


def test_the_first_answer_may_be_held_back_and_the_next_is_not() -> None:
    with opened(enabling=Enabling(policy=FIRST, first_response_delay=120.0)) as plane:
        room_, turn = plane
        peer = ask(plane, get())
        assert room_.approvals.turned == [("web",)]
        assert statuses(ask(plane, get())) == [200]
        room_.pass_time(119)
        turn()
        assert statuses(peer) == []
        room_.pass_time(1)
        turn()
        assert statuses(peer) == [200]


def test_where_scopes_are_always_on_nobody_is_noted() -> None:
    with opened() as plane:
        assert statuses(ask(plane, get())) == [200]
        assert plane[0].approvals.turned == []


def test_a_machine_whose_scope_is_gone_meanwhile_is_still_answered(first: Opened) -> None:
    plane, turn = first
    plane.approvals.waits = True
    peer = ask(first, get())
    plane.approvals.learn = lambda _: plane.documents.learn(room.Changes(removed_scopes=("web",)))
    plane.approvals.decide_all()
    turn()
    assert statuses(peer) == [500]
