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
from forewarn.store.port import OutcomeUnknown, StoreUnavailable
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


def test_every_machine_of_a_scope_reads_its_document_and_no_other_does(plane: room.Room) -> None:
    other = ask(plane, source=Source(address="127.0.0.1"))
    assert json.loads(ask(plane).body)["Events"][0]["EventId"] == room.EVENT_ID
    assert json.loads(other.body) == {"DocumentIncarnation": 0, "Events": []}


def test_an_approval_is_recorded_with_the_machine_and_its_address(plane: room.Room) -> None:
    assert approve(plane, room.EVENT_ID.lower()) == Reply(200)
    assert plane.approvals.book == [("web", (room.EVENT_ID,), "web-1", "10.0.0.11")]


def test_approving_nothing_asks_the_plane_nothing(plane: room.Room) -> None:
    plane.approvals.error = StoreUnavailable("away")
    assert approve(plane) == Reply(200)


def test_an_event_of_another_scope_is_as_unknown_as_one_that_never_was(plane: room.Room) -> None:
    stranger = Source(address="127.0.0.1")
    elsewhere = approve(plane, room.EVENT_ID, source=stranger)
    never = approve(plane, "A" * 36, source=stranger)
    assert elsewhere.status == never.status == 400
    assert error(elsewhere) == error(never).replace("A" * 36, room.EVENT_ID)
    assert plane.approvals.book == []


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (StoreUnavailable("the disk is full"), 503),
        (OutcomeUnknown("no answer to the commit"), 503),
        (Refused(ErrorCode.TOO_LATE, "too late"), 500),
        (Refused(ErrorCode.NOT_ELIGIBLE, "it is on another host"), 403),
        (RuntimeError("a fault of ours"), 500),
    ],
    ids=repr,
)
def test_an_approval_that_was_not_stored_is_never_answered_with_200(
    plane: room.Room, problem: Exception, status: int
) -> None:
    plane.approvals.error = problem
    assert approve(plane, room.EVENT_ID).status == status


def test_a_lost_answer_to_a_commit_is_never_told_as_nothing_approved(plane: room.Room) -> None:
    plane.approvals.error = OutcomeUnknown("no answer to the commit")
    unknown = approve(plane, room.EVENT_ID)
    plane.approvals.error = StoreUnavailable("the disk is full")
    away = approve(plane, room.EVENT_ID)
    assert "Nothing was approved" in error(away)
    assert "Nothing was approved" not in error(unknown)
    assert dict(unknown.headers)[b"Retry-After"] == dict(away.headers)[b"Retry-After"]


def test_an_approval_that_was_withdrawn_is_to_be_sent_again(plane: room.Room) -> None:
    future: Future[Any] = Future()
    future.cancel()
    assert plane.endpoint.settle(future, begun(plane)).status == 503


def test_a_machine_that_is_served_no_more_is_called_as_it_asked(plane: room.Room) -> None:
    plane.approvals.error = Refused(ErrorCode.NOT_ELIGIBLE, "it is on another host")
    named = Source(address="127.0.0.1", vm_paths=True)
    body = json.dumps({"StartRequests": [{"EventId": room.EVENT_ID}]}).encode()
    reply = ask(plane, f"/vm/web-1{room.EVENTS}", named, b"POST", body)
    assert (reply.status, "'web-1'" in error(reply)) == (403, True)


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
