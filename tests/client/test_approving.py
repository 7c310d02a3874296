"""Approving: what is confirmed, tried again, refused and given up."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from client.scripted import Asked, document, message, serving
from client.world import EVENT_ID, listed
from forewarn.client.event import BadAnswer, Misuse, RequestRefused
from forewarn.client.sync import Client
from forewarn.testing import Emulator

Connect = Callable[..., Client]


@contextmanager
def answering(
    *answers: bytes, shows: Callable[[int], bytes] = lambda _: document(listed())
) -> Iterator[tuple[str, list[Asked]]]:
    """A server that answers approvals so in turn, and shows this after so many; they are kept."""
    posts: list[Asked] = []

    def answer(asked: Asked, _: int) -> bytes:
        if asked.method == "GET":
            return message(200, shows(len(posts)))
        posts.append(asked)
        return answers[min(len(posts), len(answers)) - 1]

    with serving(answer) as server:
        yield server.url, posts


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
    looks = itertools.count()

    def shows(_: int) -> bytes:  # it twice, and then no more
        return document(*[listed()] * (next(looks) < 2))

    with (
        answering(message(503), shows=shows) as (url, posts),
        pytest.raises(BadAnswer, match="ended"),
    ):
        connect(url, name="web-0").approve(EVENT_ID)
    assert len(posts) == 2


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
    with answering(page, message(200)) as (url, posts):
        connect(url, name="web-0").approve(EVENT_ID)
    assert len(posts) == 2


def test_an_approval_of_several_goes_on_with_those_that_are_left(connect: Connect) -> None:
    both = [listed(), listed("B")]
    with answering(
        message(503), message(200), shows=lambda approved: document(*both[: 2 - approved])
    ) as (url, posts):
        connect(url, name="web-0").approve(EVENT_ID, "b", EVENT_ID.lower())
    asked = [msgspec.json.decode(each.body)["StartRequests"] for each in posts]
    assert [[each["EventId"] for each in some] for some in asked] == [[EVENT_ID, "b"], [EVENT_ID]]


def test_one_document_without_one_of_several_drops_none_of_them(connect: Connect) -> None:
    looks = itertools.count()

    def shows(_: int) -> bytes:  # the second look is at a replica that has not heard of one yet
        return document(listed(), *[listed("B")] * (next(looks) != 1))

    with answering(message(503), message(200), shows=shows) as (url, posts):
        connect(url, name="web-0").approve(EVENT_ID, "B")
    asked = [msgspec.json.decode(each.body)["StartRequests"] for each in posts]
    assert [[each["EventId"] for each in some] for some in asked] == [[EVENT_ID, "B"]] * 2


def test_an_approval_is_tried_for_so_long_and_no_longer(connect: Connect, cloud: Emulator) -> None:
    event = cloud.schedule("Reboot", "web-0")
    cloud.faults("status", concerns="approvals", status=500, times=10_000)
    with pytest.raises(BadAnswer, match="500"):
        connect(cloud.endpoint, name="web-0").approve(event.event_id, within_seconds=0.3)


@pytest.mark.parametrize("status", [400, 403])
def test_an_approval_that_is_refused_is_not_tried_again(connect: Connect, status: int) -> None:
    with answering(message(status, b'{"error":"never published"}')) as (url, posts):
        with pytest.raises(RequestRefused, match="never published") as caught:
            connect(url, name="web-0").approve(EVENT_ID)
        assert (caught.value.status, caught.value.text) == (status, "never published")
    assert len(posts) == 1


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
