"""What clients in the field do (section 11), as far as one exchange shows it."""

import json
from email.utils import parsedate_to_datetime

import pytest

from forewarn.protocol.message import HttpRequest
from forewarn.protocol.versions import VERSIONS, Version
from protocol import cases, world
from protocol.world import EVENT_ID, World, approval, ask, get, post


def target(version: Version) -> bytes:
    return b"/metadata/scheduledevents?api-version=" + version.name.encode()


@pytest.mark.parametrize("reading", VERSIONS, ids=lambda version: version.name)
@pytest.mark.parametrize("approving", VERSIONS, ids=lambda version: version.name)
def test_a_client_reads_by_one_version_and_approves_by_another(
    reading: Version, approving: Version
) -> None:
    there = World()
    document = json.loads(get(target(reading), world=there).body)
    event_id = document["Events"][0]["EventId"]
    assert post(approval(event_id), target=target(approving), world=there).status == 200
    assert there.approved == [(EVENT_ID,)]


def test_a_client_approves_the_same_event_each_second() -> None:
    there = World()
    assert [post(approval(EVENT_ID), world=there).status for _ in range(3)] == [200, 200, 200]


def test_a_client_approves_every_event_of_the_document_in_one_body() -> None:
    there = World(document_shown=cases.AVAILABILITY_SET)
    document = json.loads(get(world=there).body)
    ids = [event["EventId"] for event in document["Events"]]
    body = {"DocumentIncarnation": document["DocumentIncarnation"], "StartRequests": [
        {"EventId": event_id} for event_id in ids
    ]}  # fmt: skip
    assert post(json.dumps(body, indent=4).encode(), world=there).status == 200
    assert there.approved == [tuple(ids)]


def test_a_client_of_dotnet_sends_the_events_themselves_in_camel_case() -> None:
    there = World()
    (event,) = json.loads(get(world=there).body)["Events"]
    written = {name[0].lower() + name[1:]: value for name, value in event.items()}
    assert post(json.dumps({"startRequests": [written]}).encode(), world=there).status == 200
    assert there.approved == [(EVENT_ID,)]


@pytest.mark.parametrize(
    "content_type",
    [None, b"application/x-www-form-urlencoded", b"text/plain", b"application/json", b"nonsense"],
)
def test_the_body_is_json_whatever_its_type(content_type: bytes | None) -> None:
    headers = () if content_type is None else ((b"Content-Type", content_type),)
    assert post(approval(EVENT_ID), *headers).status == 200


def test_a_client_sends_if_none_match_0_first() -> None:
    tag = (b"If-None-Match", b"0")
    assert get(world.EVENTS, tag).status == 200
    assert get(world.EVENTS, tag, world=World(document_shown=cases.EMPTY)).status == 304


def test_the_previews_published_client_posts_without_the_header() -> None:
    there = World()
    preview = target(VERSIONS[0])
    assert ask(HttpRequest(b"POST", preview, (), approval(EVENT_ID)), there).status == 200
    assert ask(HttpRequest(b"GET", preview), there).status == 400


def test_an_approval_is_answered_without_a_body_that_could_be_read_as_json() -> None:
    reply = post(approval(EVENT_ID))
    assert (reply.body, reply.headers) == (b"", ())


@pytest.mark.parametrize("version", VERSIONS[1:], ids=lambda version: version.name)
def test_not_before_is_read_by_any_parser_of_rfc_1123(version: Version) -> None:
    shown = json.loads(get(target(version)).body)["Events"][0]["NotBefore"]
    assert parsedate_to_datetime(shown) == cases.SECTION_4_EVENT.not_before


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_nothing_is_ever_null(version: Version) -> None:
    for document in cases.DOCUMENTS.values():
        there = World(document_shown=document)
        assert b"null" not in get(target(version), world=there).body
