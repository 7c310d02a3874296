"""The guest plane in memory beside its stories: connections, requests, documents, counts."""

import gc
import itertools
import json
import weakref
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from forewarn.maintenance.model import Changes, Enablement, Policy, Refused
from forewarn.protocol import exchange
from forewarn.protocol.message import HttpRequest
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME, Version
from forewarn.server.guest import documents
from forewarn.server.guest.documents import DocumentCache
from forewarn.server.guest.endpoint import Admitted, Counters, PendingApproval
from forewarn.server.guest.limits import TURNS, Limits, Reason
from forewarn.server.guest.machines import Registry, Source
from forewarn.server.process import MAX_LOGGED
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import ErrorCode, EventStatus, ScopeKind
from guest import room
from guest.room import answers, get, statuses


@pytest.mark.parametrize("at_once", [1, TURNS])
def test_few_connections_at_a_time_have_a_turn_however_many_pipeline(at_once: int) -> None:
    with room.opened() as (plane, _):
        if at_once == 1:  # a round has no time for more
            plane.connections.fair_queue.monotonic = itertools.count().__next__
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


def test_a_head_gets_no_body_and_the_length_of_the_one_that_it_would_get() -> None:
    with room.opened() as (plane, _):
        peer = plane.connect()
        peer.send(get().replace(b"GET", b"HEAD", 1))
        (answer,) = answers(peer.got, to_head=True)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, POST"
    assert int(answer.headers["content-length"]) > 0


def test_a_refused_approval_is_let_go_of_without_the_collector() -> None:
    def decide(future: "Future[None]") -> None:
        assert not future.done()
        raise Refused(ErrorCode.NOT_FOUND, "never published", event_id=room.EVENT_ID)

    def settle(plane: room.Room) -> "weakref.ref[Future[None]]":
        request = HttpRequest(b"POST", room.EVENTS.encode(), ((b"Metadata", b"true"),))
        admitted = plane.endpoint.admit(request, Source(address="10.0.0.11"))
        assert isinstance(admitted, Admitted)
        begun = plane.endpoint.answer(admitted, b"")
        assert isinstance(begun, PendingApproval)
        future: Future[None] = Future()
        try:
            decide(future)
        except Refused as refusal:
            future.set_exception(refusal)
        assert plane.endpoint.settle(future, begun).status == 400
        return weakref.ref(future)

    gc.disable()
    try:
        with room.opened() as (plane, _):
            assert settle(plane)() is None
    finally:
        gc.enable()


def test_a_claim_counts_for_nothing_where_no_proxy_is_trusted() -> None:
    callers = Registry(proxied=True)
    callers.learn(Changes(machines=(room.machine("web-0", "10.0.0.10"),)))
    claim = exchange.Claim(b"web-0", exchange.sign(b"web-0", b"the secret of the proxies"))
    guest = room.source_of(room.BRIDGE)("10.0.0.10")
    assert callers.find(guest, claim) is Reason.WRONG_SIGNATURE


# Documents.


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
    operations = (
        room.operation(room.event("C", published=2), room.event("A", published=2)),
        room.operation(room.event("B", published=1), id="2.1", status=EventStatus.STARTED),
    )
    kept = filled(*operations)
    assert filled(*reversed(operations)).whole("web") == kept.whole("web")
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
    assert [event["EventId"] for event in read(other)] == ["B"]
    kept.learn(Changes(operations=(room.operation(room.event("B"), status=EventStatus.CANCELED),)))
    other.replace([kept.whole("web")])
    assert read(other) == []
    other.replace([], ["web", "never-there"])
    with pytest.raises(KeyError):
        other.page("web", NEWEST)


def test_a_store_that_is_away_is_logged_once_however_many_scopes_it_keeps_off() -> None:
    enabling = room.Enabling(Policy(enablement=Enablement.FIRST_REQUEST))
    with room.opened(enabling=enabling) as (plane, turn), capture_logs() as log:
        plane.approvals.error = StoreUnavailable("the disk is full")
        names = [f"m{number}" for number in range(20)]
        machines = [room.machine(name, f"10.0.1.{number}") for number, name in enumerate(names)]
        plane.learn(Changes(scopes=tuple(map(room.scope, names)), machines=tuple(machines)))
        peers = [plane.connect(machine.address) for machine in machines]
        for peer in peers:
            peer.send(get())
        turn()
        assert [statuses(peer) for peer in peers] == [[200]] * 20
    assert len(log) == 1


def test_a_flood_of_addresses_grows_neither_memory_nor_the_log() -> None:
    counters = Counters()
    with capture_logs() as log:
        for number in range(20_000):
            counters.refuse(Reason.RATE, "", f"fd00::{number:x}", number / 2000)
        assert len(counters._log._logged) == len(log) == MAX_LOGGED
        counters.refuse(Reason.RATE, "", "fd00::0", 120.0)
    assert log[-1]["not_logged_before"] == 20_000 - MAX_LOGGED
    assert len(counters._log._logged) == 1
