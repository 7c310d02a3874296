"""A GET that waits for its document to change (protocol.md section 10)."""

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta

import msgspec
import pytest

from forewarn.maintenance.model import Changes, Enablement, Policy
from forewarn.protocol.versions import NEWEST_VERSION
from forewarn.server.guest.connection import UNREAD_BYTES
from forewarn.server.guest.endpoint import SLICE
from forewarn.server.guest.limits import Limits, Reason
from forewarn.vocabulary import EventType
from guest import room
from guest.room import Enabling, Peer, Room, answers, get, post, statuses

Opened = tuple[Room, Callable[[], None]]
CHANGED = room.operation(room.event("D"), id="2.1")


@pytest.fixture
def opened() -> Iterator[Opened]:
    with room.opened() as made:
        yield made


def waits(tag: str = "2", seconds: int = 60, *headers: str, target: str = room.EVENTS) -> bytes:
    return get(target, f"If-None-Match: {tag}", f"Prefer: wait={seconds}", *headers)


def waiting(plane: Room, data: bytes | None = None, address: str = "10.0.0.10") -> Peer:
    peer = plane.connect(address)
    peer.send(waits() if data is None else data)
    assert peer.got == b""
    return peer


def test_a_waiting_get_is_answered_with_the_change_when_it_comes(opened: Opened) -> None:
    plane, _ = opened
    peer = waiting(plane)
    assert len(plane.connections.long_polls) == 1
    plane.pass_time(59)
    plane.publish(3, "web", CHANGED)
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["etag"]) == (200, "3")
    assert answer.headers["preference-applied"] == "wait=60"
    assert b'"EventId":"D"' in answer.body
    assert len(plane.connections.long_polls) == 0


@pytest.mark.parametrize(("asked", "applied"), [(1, 1), (60, 60), (120, 120), (3600, 120)])
def test_its_end_is_304_never_before_and_within_a_sweep(
    opened: Opened, asked: int, applied: int
) -> None:
    plane, turn = opened
    peer = waiting(plane, waits(seconds=asked))
    plane.pass_time(applied - 0.01)
    turn()
    assert peer.got == b""
    plane.pass_time(0.01)
    turn()
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["etag"]) == (304, "2")
    assert answer.headers["preference-applied"] == f"wait={applied}"
    assert not peer.closing
    assert len(plane.connections.long_polls) == 0


@pytest.mark.parametrize("headers", [(), ("Prefer: wait=60",)])
def test_a_client_that_has_read_a_later_document_gets_that_once_it_is_here(
    opened: Opened, headers: tuple[str, ...]
) -> None:
    plane, turn = opened
    peer = waiting(plane, get(room.EVENTS, "If-None-Match: 4", *headers))
    plane.publish(3, "web", CHANGED)
    turn()
    assert peer.got == b""
    plane.publish(4)
    plane.pass_time(1)
    turn()
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["etag"]) == (304, "4")


def test_a_client_whose_later_document_does_not_come_gets_the_older_one(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane, get(room.EVENTS, "If-None-Match: 4"))
    plane.pass_time(0.99)
    turn()
    assert peer.got == b""
    plane.pass_time(0.01)
    turn()
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["etag"]) == (200, "2")


def test_while_what_is_known_is_too_old_nobody_gets_an_answer_and_all_are_let_go(
    opened: Opened,
) -> None:
    """An error in JSON would not do: one client takes any for "no events"."""
    plane, turn = opened
    held, idle = waiting(plane), plane.connect()
    plane.connections.suspend()
    turn()
    late = plane.connect()
    assert [peer.aborted for peer in (held, idle, late)] == [True] * 3
    assert [peer.got for peer in (held, idle, late)] == [b""] * 3
    plane.connections.resume()
    again = plane.connect()
    again.send(get())
    turn()
    assert statuses(again) == [200]


def test_what_is_news_to_the_client_is_answered_at_once(opened: Opened) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(waits("1") + waits('"0", W/"1"'))
    turn()
    first, second = answers(peer.got)
    assert (first.status, second.status) == (200, 200)
    assert first.headers["preference-applied"] == "wait=60"


def test_a_request_that_waits_keeps_nothing_of_what_it_said_but_its_answers_form(
    opened: Opened,
) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(waits("2").replace(b"HTTP/1.1", b"HTTP/1.0\r\nConnection: keep-alive"))
    reader = peer.connection._reader
    assert len(plane.connections.long_polls) == 1
    assert (reader.head.headers, reader.head.target) == ([], b"")
    assert reader.head._parser is None
    plane.publish(3)
    turn()
    (answer,) = answers(peer.got)
    assert answer.headers["connection"] == "keep-alive"


def test_a_peer_that_takes_no_answers_is_cut_off_though_the_last_one_had_waited(
    opened: Opened,
) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.takes = False
    peer.send(get("/metadata/instance/compute/name?api-version=2021-02-01&format=text"))
    assert not peer.paused
    peer.high = len(peer.got)
    peer.send(waits("2"))
    plane.publish(3)
    turn()
    plane.pass_time(30.1)
    assert peer.aborted
    assert plane.counters.refusals[Reason.SLOW_READER] == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get(room.EVENTS, "Prefer: wait=60"), 200),
        (get(room.EVENTS, "Prefer: wait=60", "If-None-Match: *"), 304),
        (get(room.EVENTS, "Prefer: wait=0", "If-None-Match: 2"), 304),
        (get(room.EVENTS, "Prefer: wait=soon", "If-None-Match: 2"), 304),
        (get(room.EVENTS, "If-None-Match: 2"), 304),
    ],
)
def test_who_does_not_ask_to_wait_for_news_is_answered_at_once_and_told_of_no_wait(
    opened: Opened, data: bytes, status: int
) -> None:
    peer = opened[0].connect()
    peer.send(data)
    (answer,) = answers(peer.got)
    assert answer.status == status
    assert "preference-applied" not in answer.headers


def test_an_approval_does_not_wait(opened: Opened) -> None:
    plane, turn = opened
    peer = plane.connect()
    peer.send(post(room.APPROVAL, "If-None-Match: 2", "Prefer: wait=60"))
    turn()
    assert statuses(peer) == [200]


def test_a_change_that_its_version_cannot_show_is_answered_too(opened: Opened) -> None:
    plane, _ = opened
    old = room.EVENTS.replace(NEWEST_VERSION.name, "2017-08-01")
    peer = waiting(plane, waits(target=old))
    terminate = room.operation(room.event("D"), id="2.1", event_type=EventType.TERMINATE)
    plane.publish(3, "web", terminate)
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["etag"]) == (200, "3")
    assert b'"EventId":"D"' not in answer.body


def test_only_those_of_the_scope_are_woken_and_all_of_them(opened: Opened) -> None:
    plane, turn = opened
    of_web = [waiting(plane, address=address) for address in ("10.0.0.10", "10.0.0.11")]
    other = waiting(plane, waits("0"), "127.0.0.1")
    plane.publish(3)
    turn()
    assert [statuses(peer) for peer in of_web] == [[200], [200]]
    assert other.got == b""


def test_a_scope_that_only_was_asked_for_wakes_nobody(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    scope = msgspec.structs.replace(plane.documents.scope("web"), asked_at=room.START)
    plane.learn(Changes(scopes=(scope,)))
    turn()
    assert peer.got == b""
    assert len(plane.connections.long_polls) == 1


def test_a_client_that_named_the_next_document_too_waits_on(opened: Opened) -> None:
    plane, _ = opened
    peer = waiting(plane, waits("2, 3"))
    plane.publish(3)
    assert peer.got == b""
    plane.publish(4)
    assert statuses(peer) == [200]


def test_many_are_woken_in_slices_and_others_are_answered_in_between() -> None:
    loopback = room.Listener(address="127.0.0.1", default_vm="web-0")
    with room.opened(Limits(connections_per_address=SLICE * 3)) as (plane, turn):
        peers = [plane.connect("127.1.1.1", loopback) for _ in range(SLICE * 3)]
        for peer in peers:
            peer.send(waits())
        plane.publish(3)
        assert sum(bool(peer.got) for peer in peers) == SLICE
        peer = plane.connect()
        peer.send(get())
        assert statuses(peer) == [200]
        turn()
        assert {tuple(statuses(peer)) for peer in peers} == {(200,)}


def test_a_change_in_the_instant_of_the_end_is_not_missed(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    plane.pass_time(60)
    plane.publish(3)
    turn()
    assert statuses(peer) == [200]


def test_one_that_goes_between_the_wake_and_its_slice_is_passed_over(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    plane.pass_time(60)
    peer.abort()
    turn()
    assert peer.got == b""
    assert len(plane.connections.long_polls) == 0


def test_what_is_pipelined_behind_a_waiting_request_waits_its_turn(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane, waits() + post() + get())
    peer.send(waits("3"))
    assert plane.approvals.book == []
    plane.publish(3)
    turn()
    assert statuses(peer) == [200, 200, 200]
    assert len(plane.connections.long_polls) == 1
    peer.end()
    turn()
    assert statuses(peer) == [200, 200, 200, 304]
    assert peer.closing


def test_little_is_read_behind_a_waiting_request_and_the_rest_after_it(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    count = UNREAD_BYTES // len(get()) + 1
    for _ in range(count):
        assert not peer.paused
        peer.send(get())
    assert peer.paused
    plane.publish(3)
    turn()
    assert not peer.paused
    assert statuses(peer) == [200] * (count + 1)


def test_one_that_does_not_take_its_answer_is_cut_off_as_any_slow_reader(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    peer.takes, peer.high = False, 100
    plane.publish(3)
    assert peer.buffered > peer.high
    plane.pass_time(29.9)
    turn()
    assert not peer.closing
    plane.pass_time(0.2)
    assert peer.aborted
    assert plane.counters.refusals[Reason.SLOW_READER] == 1


def test_a_machine_that_is_removed_is_refused_and_its_neighbour_waits_on(opened: Opened) -> None:
    plane, turn = opened
    peer, neighbour = waiting(plane), waiting(plane, address="10.0.0.11")
    plane.learn(Changes(removed_machines=("web-0",)))
    turn()
    assert statuses(peer) == [403]
    assert neighbour.got == b""


def test_a_scope_that_is_removed_takes_its_machines_with_it(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    removed = Changes(removed_scopes=("web",), removed_machines=("web-0", "web-1"))
    plane.learn(removed)
    turn()
    assert statuses(peer) == [403]
    assert len(plane.connections.long_polls) == 0


def test_a_machine_that_moves_reads_its_new_scope(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    moved = room.machine("web-0", "10.0.0.10", scope="shop")
    plane.learn(Changes(scopes=(room.scope("shop", incarnation=7),), machines=(moved,)))
    turn()
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["etag"]) == (200, "7")


def test_a_machine_that_moves_to_an_equal_document_waits_on_for_the_new_scope(
    opened: Opened,
) -> None:
    plane, turn = opened
    peer = waiting(plane, waits("0"), "127.0.0.1")
    moved = room.machine("bastion", "127.0.0.1", scope="shop")
    plane.learn(Changes(scopes=(room.scope("shop"),), machines=(moved,)))
    turn()
    plane.publish(1, "bastion")
    turn()
    assert peer.got == b""
    plane.publish(2, "shop")
    turn()
    assert statuses(peer) == [200]
    assert len(plane.connections.long_polls) == 0


def test_an_address_that_goes_to_another_machine_takes_no_answer_with_it(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    moved = (
        room.machine("web-0", "10.0.0.99", scope="web"),
        room.machine("bastion", "10.0.0.10"),
    )
    plane.learn(Changes(machines=moved))
    plane.publish(3)
    turn()
    (answer,) = answers(peer.got)
    assert answer.headers["etag"] == "3"
    peer.send(get())
    assert answers(peer.got)[1].headers["etag"] == "0"


def test_above_the_limit_a_client_is_answered_at_once_and_so_polls() -> None:
    with room.opened(Limits(waiters=1)) as (plane, _):
        first = waiting(plane)
        second = plane.connect()
        second.send(waits())
        (answer,) = answers(second.got)
        assert answer.status == 304
        assert "preference-applied" not in answer.headers
        assert plane.counters.refusals[Reason.WAITERS] == 1
        first.abort()
        second.send(waits())
        assert len(answers(second.got)) == 1
        assert len(plane.connections.long_polls) == 1


def test_a_request_that_turns_its_scope_on_waits_afterwards() -> None:
    first = Enabling(policy=Policy(enablement=Enablement.FIRST_REQUEST))
    with room.opened(enabling=first) as (plane, turn):
        plane.approvals.waits = True
        peer = plane.connect()
        peer.send(waits() + get("/nowhere"))
        turn()
        assert len(plane.connections.long_polls) == 0
        plane.approvals.decide_all()
        turn()
        assert plane.approvals.turned == [("web",)]
        assert len(plane.connections.long_polls) == 1
        assert not peer.paused
        plane.clock.advance(timedelta(seconds=1))
        plane.publish(3)
        turn()
        assert statuses(peer) == [200, 404]


def test_http_1_0_may_wait_too(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane, waits().replace(b"HTTP/1.1", b"HTTP/1.0"))
    plane.publish(3)
    turn()
    assert statuses(peer) == [200]
    assert peer.closing


def test_a_plane_that_stops_answers_them_first(opened: Opened) -> None:
    plane, turn = opened
    peer = waiting(plane)
    stopping = asyncio.ensure_future(plane.connections.retire(20), loop=plane.connections.loop)
    turn()
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["connection"]) == (304, "close")
    peer.close()
    turn()
    assert stopping.result() == 0


def test_nobody_begins_to_wait_while_the_plane_stops(opened: Opened) -> None:
    plane, turn = opened
    peer = plane.connect()
    data = waits()
    peer.send(data[:20])
    stopping = asyncio.ensure_future(plane.connections.retire(20), loop=plane.connections.loop)
    turn()
    peer.send(data[20:])
    (answer,) = answers(peer.got)
    assert (answer.status, answer.headers["connection"]) == (304, "close")
    peer.close()
    turn()
    assert stopping.result() == 0
