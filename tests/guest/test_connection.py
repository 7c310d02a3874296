"""The guest plane in memory beside its stories: connections, requests, documents, counts."""

import gc
import ipaddress
import itertools
import json
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from forewarn.maintenance.model import Changes, Refused, Sighting
from forewarn.protocol import exchange
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME, Version
from forewarn.server.guest import documents
from forewarn.server.guest.documents import DocumentCache
from forewarn.server.guest.endpoint import Admitted, Counters, PendingApproval
from forewarn.server.guest.limits import TURNS, Limits, Reason
from forewarn.server.guest.listener import Listener
from forewarn.server.guest.machines import Proxies, Source
from forewarn.server.process import LOG_SECONDS, MAX_LOGGED
from forewarn.vocabulary import ErrorCode, EventStatus, ScopeKind
from guest import room
from guest.room import Behind, answers, chunked, get, post, statuses


@pytest.mark.parametrize("at_once", [1, TURNS])
def test_few_connections_at_a_time_have_a_turn_however_many_pipeline(at_once: int) -> None:
    with room.opened() as (plane, _):
        if at_once == 1:  # a round has no time for more
            plane.connections.fair_queue._monotonic = itertools.count().__next__
        loop = plane.connections.loop
        peers = [plane.connect() for _ in range(32)]
        for peer in peers:
            peer.send(get() * 50)
        answered = [len(answers(peer.got)) for peer in peers]
        assert answered == [1] * 32
        for turns in range(at_once, 33, at_once):
            loop.call_soon(loop.stop)
            loop.run_forever()
            answered = [len(answers(peer.got)) for peer in peers]
            assert sum(answered) == 32 + turns * Limits().messages_per_turn
            other = plane.connect("10.0.0.11")
            other.send(get())
            assert statuses(other.got) == [200]
        assert set(answered) == {1 + Limits().messages_per_turn}


def test_a_plane_that_stops_answers_once_more_whoever_waits_for_a_turn() -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.send(get() * 3)
        plane.connections.draining = plane.connections.retiring = True
        peer.connection.retire()
        turn()
        assert [answer.headers.get("connection") for answer in answers(peer.got)] == [None, "close"]


def test_a_peer_that_does_not_take_its_answers_is_read_no_further() -> None:
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.takes = False
        for _ in range(1000):
            if peer.paused:
                break
            peer.send(get() * 50)
            turn()
        assert peer.paused
        assert peer.buffered <= Limits().write_buffer_bytes + 1000
        assert len(peer.connection._unread) <= 50 * len(get())
        peer.takes = True
        peer.take()
        turn()
        assert not peer.paused
        assert len(answers(peer.got)) % 50 == 0


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_chunked_body_is_read_with_extensions_and_trailers(size: int) -> None:
    body = chunked(room.APPROVAL, size).replace(
        b"0\r\n\r\n", b"0;a=b\r\nX-Forwarded-For: a\r\n\r\n"
    )
    with room.opened() as (plane, turn):
        peer = plane.connect()
        peer.send(post(body, "Transfer-Encoding: chunked") + get())
        turn()
        assert statuses(peer.got) == [200, 200]
        assert plane.approvals.book == [("web", (room.EVENT_ID,), "web-0", "10.0.0.10")]


def test_a_head_gets_no_body_and_the_length_of_the_one_that_it_would_get() -> None:
    with room.opened() as (plane, _):
        peer = plane.connect()
        peer.send(get().replace(b"GET", b"HEAD", 1))
        (answer,) = answers(peer.got, to_head=True)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, POST"
    assert int(answer.headers["content-length"]) > 0


CODED = "Transfer-Encoding: chunked"


# A request that was read whole, in the order of protocol.md section 3.


METADATA = (b"Metadata", b"true")
WEB = Source(address="10.0.0.11")


@pytest.fixture
def plane() -> Iterator[room.Room]:
    with room.opened() as (opened, _):
        yield opened


def begun(plane: room.Room) -> PendingApproval:
    """Return an approval that waits for its turn."""
    admitted = plane.endpoint.admit(HttpRequest(b"POST", room.EVENTS.encode(), (METADATA,)), WEB)
    assert isinstance(admitted, Admitted)
    outcome = plane.endpoint.answer(admitted, b"")
    assert isinstance(outcome, PendingApproval)
    return outcome


def ask(
    plane: room.Room,
    target: str = room.EVENTS,
    source: Source = WEB,
    method: bytes = b"GET",
    body: bytes = b"",
) -> Reply:
    request = HttpRequest(method, target.encode(), (METADATA,), body)
    admitted = plane.endpoint.admit(request, source)
    if isinstance(admitted, Reply):
        return admitted
    outcome = plane.endpoint.answer(admitted, body)
    if isinstance(outcome, PendingApproval):
        submitted = plane.endpoint.approve(outcome)
        if isinstance(submitted, Reply):
            return submitted
        return plane.endpoint.settle(submitted, outcome)
    assert isinstance(outcome, Reply)
    return outcome


def approve(plane: room.Room, *event_ids: object, source: Source = WEB) -> Reply:
    body = json.dumps({"StartRequests": [{"EventId": each} for each in event_ids]}).encode()
    return ask(plane, source=source, method=b"POST", body=body)


def error(reply: Reply) -> str:
    return str(json.loads(reply.body)["error"])


def test_an_event_of_another_scope_is_as_unknown_as_one_that_never_was(plane: room.Room) -> None:
    stranger = Source(address="127.0.0.1")
    elsewhere = approve(plane, room.EVENT_ID, source=stranger)
    never = approve(plane, "A" * 36, source=stranger)
    assert elsewhere.status == never.status == 400
    assert error(elsewhere) == error(never).replace("A" * 36, room.EVENT_ID)
    assert plane.approvals.book == []


def test_an_approval_that_was_withdrawn_is_to_be_sent_again(plane: room.Room) -> None:
    future: Future[Any] = Future()
    future.cancel()
    assert plane.endpoint.settle(future, begun(plane)).status == 503


def test_asking_for_events_is_seen_and_asking_for_other_things_is_not(plane: room.Room) -> None:
    ask(plane, "/metadata/versions")
    ask(plane, "/metadata/instance?api-version=2021-02-01")
    assert plane.registry.seen("web-1") is None
    ask(plane, "/metadata/scheduledevents?api-version=2017-03-01")
    assert plane.registry.seen("web-1") == Sighting(asked_at=room.START, version="2017-03-01")
    plane.clock.advance(room.timedelta(seconds=2.5))
    approve(plane, room.EVENT_ID)
    assert plane.registry.seen("web-1") == Sighting(
        asked_at=room.START + room.timedelta(seconds=2), version="2020-07-01"
    )


def test_a_fault_of_ours_is_answered_as_one(plane: room.Room) -> None:
    plane.documents.learn(Changes(removed_scopes=("web",)))
    assert ask(plane).status == 500


def test_a_refused_approval_is_let_go_of_without_the_collector(plane: room.Room) -> None:
    def decide(future: "Future[None]") -> None:
        assert not future.done()
        raise Refused(ErrorCode.NOT_FOUND, "never published", event_id=room.EVENT_ID)

    def settle() -> "weakref.ref[Future[None]]":
        future: Future[None] = Future()
        try:
            decide(future)
        except Refused as refusal:
            future.set_exception(refusal)
        assert plane.endpoint.settle(future, begun(plane)).status == 400
        return weakref.ref(future)

    gc.disable()
    try:
        assert settle()() is None
    finally:
        gc.enable()


# Documents.


PREVIEW = VERSION_BY_NAME["2017-03-01"]
NEWEST = NEWEST_VERSION


def filled(*operations: Any, **facts: Any) -> DocumentCache:
    kept = DocumentCache()
    scope = room.scope("web", kind=ScopeKind.AVAILABILITY_SET, incarnation=2)
    scopes = (msgspec.structs.replace(scope, **facts), room.scope("bastion"))
    kept.learn(Changes(scopes=scopes, operations=operations))
    return kept


def read(kept: DocumentCache, version: Version = NEWEST, scope: str = "web") -> Any:
    page = kept.page(scope, version)
    incarnation, body = page.incarnation, page.body
    content = json.loads(body)
    assert content["DocumentIncarnation"] == incarnation
    return content["Events"]


def ids(kept: DocumentCache) -> list[str]:
    return [event["EventId"] for event in read(kept)]


def test_a_document_is_rendered_once_until_it_changes() -> None:
    kept = filled(room.operation(room.event()))
    before = kept.page("web", NEWEST)
    assert kept.page("web", NEWEST) is before
    moved = room.scope("web", kind=ScopeKind.AVAILABILITY_SET, incarnation=7)
    kept.learn(Changes(scopes=(moved,)))
    assert kept.page("web", NEWEST).incarnation == 7
    assert kept.page("web", NEWEST).body == before.body.replace(b'ation":2', b'ation":7')


def test_scopes_without_events_share_their_bytes_and_keep_none_of_their_own() -> None:
    kept = DocumentCache()
    kept.learn(Changes(scopes=(room.scope("a"), room.scope("b"))))
    assert kept.page("a", NEWEST) is kept.page("b", NEWEST)
    for incarnation in range(documents.MAX_EMPTY + 10):
        kept.learn(Changes(scopes=(room.scope("a", incarnation=incarnation),)))
        assert read(kept, scope="a") == []
    assert len(kept._empty) <= documents.MAX_EMPTY
    assert kept._live == {}


@pytest.mark.parametrize("version", VERSION_BY_NAME.values(), ids=lambda each: each.name)
def test_a_whole_document_reads_elsewhere_as_it_does_here(version: Version) -> None:
    kept = filled(
        room.operation(room.event("C", published=2), room.event("A", published=2)),
        room.operation(room.event("B", published=1), id="2.1", status=EventStatus.STARTED),
    )
    other = DocumentCache()
    for _ in range(2):  # taken twice it changes nothing
        other.replace([kept.whole("web"), kept.whole("bastion")])
        for scope in ("web", "bastion"):
            assert other.page(scope, version).body == kept.page(scope, version).body
    assert other.whole("web") == kept.whole("web")


def test_a_whole_document_takes_the_place_of_the_one_before() -> None:
    kept = filled(room.operation(room.event("A")))
    other = DocumentCache()
    other.replace([kept.whole("web")])
    kept.learn(Changes(operations=(room.operation(room.event("A"), status=EventStatus.CANCELED),)))
    kept.learn(Changes(operations=(room.operation(room.event("B"), id="2.1"),)))
    other.replace([kept.whole("web")])
    assert ids(other) == ["B"]
    kept.learn(Changes(operations=(room.operation(room.event("B"), status=EventStatus.CANCELED),)))
    other.replace([kept.whole("web")])
    assert read(other) == []
    other.replace([], ["web", "never-there"])
    with pytest.raises(KeyError):
        other.page("web", NEWEST)


def test_a_whole_document_is_the_same_in_whatever_order_its_events_came() -> None:
    events = [room.event(f"{n}" * 8, published=2 + n % 2) for n in range(4)]
    operations = [room.operation(each, id=f"1.{each.id}") for each in events]
    one, other = DocumentCache(), DocumentCache()
    for kept, learned in ((one, operations), (other, [*reversed(operations)])):
        kept.learn(Changes(scopes=tuple(room.SCOPES), operations=tuple(learned)))
    assert one.whole("web") == other.whole("web")


# What is counted, and told the log.


@pytest.fixture
def log() -> Iterator[list[EventDict]]:
    with capture_logs() as told:
        yield told


def refuse(counters: Counters, address: str, now: float, listener: str = "") -> None:
    counters.refuse(Reason.RATE, listener, address, now)


def test_an_address_is_logged_once_a_minute_with_how_many_were_not(log: list[EventDict]) -> None:
    counters = Counters()
    for second in range(60):
        refuse(counters, "10.9.9.9", float(second))
    refuse(counters, "10.9.9.9", LOG_SECONDS)
    refuse(counters, "10.9.9.9", LOG_SECONDS + 59)
    assert [(line["address"], line["not_logged_before"]) for line in log] == [
        ("10.9.9.9", 0),
        ("10.9.9.9", 59),
    ]
    assert log[0]["log_level"] == "warning"
    assert log[0]["reason"] == "rate"
    assert counters.refusals == {Reason.RATE: 62}


def test_two_listeners_and_two_reasons_are_logged_apart(log: list[EventDict]) -> None:
    counters = Counters()
    refuse(counters, "10.9.9.9", 0.0, "blue")
    refuse(counters, "10.9.9.9", 0.0, "green")
    counters.refuse(Reason.WAITERS, "green", "10.9.9.9", 0.0)
    assert [(line["listener"], line["reason"]) for line in log] == [
        ("blue", "rate"),
        ("green", "rate"),
        ("green", "waiters"),
    ]


def test_a_flood_of_addresses_grows_neither_memory_nor_the_log(log: list[EventDict]) -> None:
    counters = Counters()
    for number in range(20_000):
        refuse(counters, f"fd00::{number:x}", number / 2000)
    assert len(counters._log._logged) == len(log) == MAX_LOGGED
    refuse(counters, "fd00::0", 120.0)
    assert log[-1]["not_logged_before"] == 20_000 - MAX_LOGGED
    assert len(counters._log._logged) == 1


def test_a_refused_request_is_counted_each_time_and_told_of_once(log: list[EventDict]) -> None:
    with room.opened() as (plane, _):
        for _ in range(3):
            stranger = plane.connect("10.9.9.9")
            stranger.send(get())
            assert [each.status for each in answers(stranger.got)] == [403]
        assert plane.counters.refusals == {Reason.UNKNOWN_ADDRESS: 3}
        plane.pass_time(61)
        again = plane.connect("10.9.9.9")
        again.send(get())
    told = [line for line in log if "reason" in line]  # the loop's own stall is told beside it
    assert [(line["reason"], line["not_logged_before"]) for line in told] == [
        ("unknown-address", 0),
        ("unknown-address", 2),
    ]


def test_the_log_says_what_a_proxys_guest_is_not_told(log: list[EventDict]) -> None:
    proxies = Proxies([ipaddress.ip_network("192.0.2.0/24")])
    proxies.secrets = (b"0123456789abcdef",)
    listener = Behind(Listener(address="169.254.169.254", name="blue"), proxies)

    def signed(id_: str, secret: bytes) -> bytes:
        signature = exchange.sign(id_.encode(), secret).decode()
        return get(room.EVENTS, f"X-Instance-ID: {id_}", f"X-Instance-ID-Signature: {signature}")

    with room.opened() as (plane, _):
        first = plane.connect("192.0.2.7", listener)
        first.send(signed("web-0", proxies.secrets[0]))
        first.send(signed("web-0", b"another secret!!"))
        second = plane.connect("192.0.2.8", listener)
        second.send(signed("web-9" * 40, proxies.secrets[0]))
        good, wrong = answers(first.got)
        (unknown,) = answers(second.got)
    assert (good.status, wrong.status, unknown.status) == (200, 403, 403)
    assert wrong.body == unknown.body
    assert [(line["address"], line["reason"]) for line in log] == [
        ("192.0.2.7", "wrong-signature"),
        ("192.0.2.8", "unknown-instance"),
    ]
    assert log[1]["instance_id"] == ("web-9" * 20) + "..."
    assert "another secret" not in str(log)
