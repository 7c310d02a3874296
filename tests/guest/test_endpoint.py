"""A request that was read whole, and its answer in the order of protocol.md section 3."""

import gc
import json
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from forewarn.maintenance.model import Changes, Refused, Sighting
from forewarn.protocol.message import HttpRequest, Reply
from forewarn.server.guest.endpoint import Admitted, PendingApproval
from forewarn.server.guest.machines import Source
from forewarn.vocabulary import ErrorCode
from guest import room

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
