"""Approving: what is confirmed, tried again, refused and given up."""

import itertools
from collections.abc import Callable

import msgspec
import pytest

from client.scripted import Asked, document, message, serving
from client.world import EVENT_ID, listed
from forewarn.client.event import BadAnswer, Misuse, RequestRefused
from forewarn.client.sync import Client
from forewarn.testing import Emulator

Connect = Callable[..., Client]


def test_an_approval_returns_only_after_it_was_confirmed(connect: Connect, cloud: Emulator) -> None:
    event = cloud.schedule("Reboot", "web-0")
    for kind in ("cut", "lost-answer"):
        cloud.faults(kind, concerns="approvals")
    for status in (503, 429, 404):
        cloud.faults("status", concerns="approvals", status=status)
    connect(cloud.endpoint, name="web-0").approve(event.event_id.lower())
    posts = [each for each in cloud.requests if each.method == "POST"]
    met = ["cut", "lost-answer", "status", "status", "status", ""]
    assert [each.fault for each in posts] == met
    assert len({each.body for each in posts}) == 1
    assert event.approved_by == "web-0"


def test_an_approval_is_not_tried_past_the_events_end(connect: Connect) -> None:
    posts = itertools.count()

    def answers(asked: Asked, _: int) -> bytes:
        if asked.method == "POST":
            next(posts)
            return message(503)
        return message(200, document(*[listed()] * (next(copies) < 2)))

    copies = itertools.count()  # a document that lists it, and then two that do not
    with serving(answers) as server, pytest.raises(BadAnswer, match="ended"):
        connect(server.url, name="web-0").approve(EVENT_ID)
    assert next(posts) == 2


def test_one_document_without_the_event_does_not_end_its_approval(
    connect: Connect, cloud: Emulator
) -> None:
    event = cloud.schedule("Reboot", "web-0")
    cloud.faults("status", concerns="approvals", status=503)
    cloud.faults("vanished", after=1)
    connect(cloud.endpoint, name="web-0").approve(event.event_id)
    assert [each.method for each in cloud.requests] == ["GET", "POST", "GET", "GET", "POST"]
    assert event.approved_by == "web-0"


@pytest.mark.parametrize(
    "page",
    [message(200, b"<html>"), message(200, b"\x1f\x8b", Content_Encoding="gzip")],
    ids=["html", "gzip"],
)
def test_a_proxys_page_confirms_no_approval(connect: Connect, page: bytes) -> None:
    posts = itertools.count(1)

    def answers(asked: Asked, _: int) -> bytes:
        if asked.method == "GET":
            return message(200, document(listed()))
        return page if next(posts) == 1 else message(200)

    with serving(answers) as server:
        connect(server.url, name="web-0").approve(EVENT_ID)
    assert next(posts) == 3


def test_an_approval_of_several_goes_on_with_those_that_are_left(connect: Connect) -> None:
    posts: list[list[str]] = []

    def answers(asked: Asked, _: int) -> bytes:
        if asked.method == "GET":
            return message(200, document(*[listed(), listed("B")][: 2 - len(posts)]))
        content = msgspec.json.decode(asked.body)
        posts.append([request["EventId"] for request in content["StartRequests"]])
        return message(503 if len(posts) == 1 else 200)

    with serving(answers) as server:
        connect(server.url, name="web-0").approve(EVENT_ID, "b", EVENT_ID.lower())
    assert posts == [[EVENT_ID, "b"], [EVENT_ID]]


def test_an_approval_is_tried_for_so_long_and_no_longer(connect: Connect, cloud: Emulator) -> None:
    event = cloud.schedule("Reboot", "web-0")
    cloud.faults("status", concerns="approvals", status=500, times=10_000)
    with pytest.raises(BadAnswer, match="500"):
        connect(cloud.endpoint, name="web-0").approve(event.event_id, within_seconds=0.3)


@pytest.mark.parametrize("status", [400, 403])
def test_an_approval_that_is_refused_is_not_tried_again(connect: Connect, status: int) -> None:
    posts = itertools.count()

    def answers(asked: Asked, _: int) -> bytes:
        if asked.method == "GET":
            return message(200, document(listed()))
        next(posts)
        return message(status, b'{"error":"never published"}')

    with serving(answers) as server:
        with pytest.raises(RequestRefused, match="never published") as caught:
            connect(server.url, name="web-0").approve(EVENT_ID)
        assert (caught.value.status, caught.value.text) == (status, "never published")
    assert next(posts) == 1


def test_an_approval_by_a_version_that_is_refused_steps_down(connect: Connect) -> None:
    targets: list[str] = []
    refusal = message(400, b'{"error":"no","newest-versions":["2019-08-01","2019-04-01"]}')

    def answers(asked: Asked, _: int) -> bytes:
        targets.append(f"{asked.method} {asked.target[-10:]}")
        if asked.target.endswith("2020-07-01"):
            return refusal
        return message(200, document(listed()) if asked.method == "GET" else b"")

    with serving(answers) as server:
        connect(server.url, name="web-0").approve(EVENT_ID)
    assert targets == ["GET 2020-07-01", "GET 2019-08-01", "POST 2019-08-01"]


@pytest.mark.parametrize("events", [(), ("",), (None,), (3,), tuple(map(str, range(1001)))])
def test_what_cannot_be_approved_is_the_callers_mistake(
    connect: Connect, events: tuple[str, ...]
) -> None:
    with pytest.raises(Misuse):
        connect("http://127.0.0.1:1").approve(*events)
