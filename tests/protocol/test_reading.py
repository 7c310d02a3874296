"""An answer read as a client must: whatever server wrote it."""

import codecs
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.protocol import codec
from forewarn.protocol.versions import VERSIONS, EventsDocument, ScheduledEvent, Version
from forewarn.vocabulary import EventSource, EventStatus, EventType

MOMENT = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)
EVENT = {"EventId": "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"}


def body(*events: Any, **document: Any) -> bytes:
    return msgspec.json.encode({"DocumentIncarnation": 2, "Events": list(events)} | document)


def only(**facts: Any) -> codec.Listed:
    (event,) = codec.decode_listing(body(EVENT | facts)).events
    return event


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_every_published_version_is_read(version: Version) -> None:
    event = ScheduledEvent(
        event_id=EVENT["EventId"],
        status=EventStatus.SCHEDULED,
        event_type=EventType.FREEZE,
        resources=("web-0", "web-1"),
        not_before=MOMENT,
        description="why",
        source=EventSource.PLATFORM,
        duration_seconds=9,
    )
    document = EventsDocument(incarnation=7, events=(event,))
    listing = codec.decode_listing(codec.encode_document(document, version))
    (seen,) = listing.events
    assert listing.incarnation == 7
    assert (seen.event_id, seen.status, seen.event_type) == (
        EVENT["EventId"],
        "Scheduled",
        "Freeze",
    )
    assert seen.not_before == MOMENT
    assert codec.concerns(seen.resources, "WEB-1")
    assert not codec.concerns(seen.resources, "web-2")
    shown = version.fields
    assert seen.description == ("why" if "description" in shown else None)
    assert seen.source == ("Platform" if "source" in shown else None)
    assert seen.duration_seconds == (9 if "duration_seconds" in shown else None)


@pytest.mark.parametrize(
    "written",
    [
        "Mon, 19 Sep 2016 18:29:47 GMT",
        "Sun, 19 Sep 2016 18:29:47 GMT",
        "Monday, 19 Sep 2016 18:29:47 GMT",
        "mon, 19 sep 2016 18:29:47 gmt",
        "19 Sep 2016 18:29:47 UTC",
        "19 Sep 2016 18:29:47",
        "Mon, 19-Sep-2016 18:29:47 GMT",
        "2016-09-19T18:29:47Z",
        "2016-09-19t18:29:47z",
        "2016-09-19T18:29:47",
        "2016-09-19 18:29:47Z",
        "2016-09-19T20:29:47+02:00",
        "2016-09-19T18:29:47.0000000Z",
        " 2016-09-19T18:29:47Z ",
    ],
)
def test_a_date_is_read_however_it_is_written(written: str) -> None:
    assert only(NotBefore=written).not_before == MOMENT


@pytest.mark.parametrize("written", ["", " ", None])
def test_no_date_is_none(written: object) -> None:
    assert only(NotBefore=written).not_before is None
    assert only().not_before is None


@pytest.mark.parametrize(
    "written",
    [
        "tomorrow",
        "Mon, 19 Foo 2016 18:29:47 GMT",
        "Mon, 32 Sep 2016 18:29:47 GMT",
        "Mon, 19 Sep 2016 25:29:47 GMT",
        "2016-13-19T18:29:47Z",
        "2016-09-19",
        "0001-01-01T00:00:00+14:00",
        "2016-09-19T18:29:47Z" + " " * 100 + "x",
        1474309787,
        ["2016-09-19T18:29:47Z"],
    ],
)
def test_a_date_that_is_none_is_a_fault_of_its_event_alone(written: object) -> None:
    listing = codec.decode_listing(body(EVENT | {"EventId": "B", "NotBefore": written}, EVENT))
    odd, sound = listing.events
    assert (odd.event_id, odd.not_before) == ("B", None)
    assert sound == only()
    (fault,) = listing.unreadable
    assert "NotBefore" in fault
    assert listing.nameless == ()


@pytest.mark.parametrize(
    "entry",
    [
        *(3, None, [], {}, {"EventId": ""}, {"EventId": 7}, {"EventId": None}),
        {"EventId": "A" * (codec.MAX_ID_LENGTH + 1)},
    ],
)
def test_an_entry_without_an_id_hides_no_other(entry: object) -> None:
    listing = codec.decode_listing(body(entry, EVENT))
    assert listing.events == (only(),)
    assert len(listing.unreadable) == 1
    assert "event 1" in listing.unreadable[0]
    assert listing.nameless == ((),)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"because", b"\\ud83d"), (b"because", b"\\udc00 x"), (b"because", b"\xff\xfe")],
)
def test_a_text_that_is_not_unicode_costs_no_event(before: bytes, after: bytes) -> None:
    content = body(EVENT | {"Description": "because"}).replace(before, after)
    assert content.count(after) == 1
    (event,) = codec.decode_listing(content).events
    assert event.description is not None
    assert event.description.encode()
    assert msgspec.structs.replace(event, description=None) == only()


def test_what_is_missing_is_none_and_what_is_unknown_is_passed_over() -> None:
    event = only(Unknown={"of": ["later", "versions"]})
    assert (event.status, event.event_type, event.resources) == ("", "", ())
    assert (event.description, event.source, event.duration_seconds) == (None, None, None)
    assert event.resource_type == "VirtualMachine"
    assert only(ResourceType="Disk").resource_type == "Disk"
    assert codec.decode_listing(body(Unknown=1)).events == ()


def test_words_are_known_in_any_case_and_kept_where_they_are_not_known() -> None:
    event = only(EventStatus="STARTED", EventType="freeze", EventSource="user")
    assert event.status is EventStatus.STARTED
    assert event.event_type is EventType.FREEZE
    assert event.source is EventSource.USER
    other = only(EventStatus="Paused", EventType="Teleport", EventSource="Weather")
    assert (other.status, other.event_type, other.source) == ("Paused", "Teleport", "Weather")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (5, 5),
        (0, 0),
        ("5", 5),
        ("-1", -1),
        (5.0, 5),
        (5.5, None),
        (True, None),
        ("--5", None),
        ("five", None),
        ("9" * 30, None),
        (None, None),
        ([5], None),
    ],
)
def test_a_number_is_read_where_it_is_one(written: object, read: int | None) -> None:
    assert only(DurationInSeconds=written).duration_seconds == read
    assert codec.decode_listing(body(DocumentIncarnation=written)).incarnation == read


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["a", "b"], ("a", "b")),
        ("a", ("a",)),
        (["a", None, 3, ""], ("a",)),
        (None, ()),
        ({"a": 1}, ()),
    ],
)
def test_names_are_read_where_there_are_some(written: object, read: tuple[str, ...]) -> None:
    assert only(Resources=written).resources == read


def test_an_id_has_so_many_characters_at_most() -> None:
    longest = "A" * codec.MAX_ID_LENGTH
    assert only(EventId=longest).event_id == longest


def test_an_event_that_is_listed_twice_is_one() -> None:
    upper, lower = dict(EVENT), {"EventId": EVENT["EventId"].lower(), "EventStatus": "Started"}
    (event,) = codec.decode_listing(body(upper, lower)).events
    assert event.event_id == EVENT["EventId"]
    assert event.key == EVENT["EventId"]


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"<!DOCTYPE html><title>Sign in</title>", "HTML"),
        (b"OK", "not JSON"),
        (b'{"DocumentIncarnation":2,"Events":[', "not JSON"),
        (b'{"Events":[\xff]}', "not JSON"),
        (b'{"Events":[NaN]}', "not JSON"),
        (b"[]", "not an object"),
        (b"null", "not an object"),
        (b'{"error":"no"}', "no list of Events"),
        (b'{"Events":null}', "no list of Events"),
        (b"[" * 100_000, "nested|not JSON"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_document_says_what_it_is(content: bytes, wrong: str) -> None:
    with pytest.raises(codec.Malformed, match=wrong):
        codec.decode_listing(content)


def test_a_document_has_so_many_events_at_most() -> None:
    events = [{"EventId": str(n)} for n in range(codec.MAX_EVENTS + 1)]
    assert len(codec.decode_listing(body(*events[1:])).events) == codec.MAX_EVENTS
    with pytest.raises(codec.Malformed, match="10001 Events"):
        codec.decode_listing(body(*events))


def test_a_mark_before_the_json_is_passed_over() -> None:
    assert codec.decode_listing(b"\xef\xbb\xbf" + body(EVENT)).incarnation == 2


@given(st.binary(max_size=200) | st.recursive(st.none(), st.lists).map(msgspec.json.encode))
def test_any_bytes_are_a_document_or_none(content: bytes) -> None:
    try:
        listing = codec.decode_listing(content)
    except codec.Malformed:
        return
    assert isinstance(listing.events, tuple)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(list(codec.EVENT_NAMES.values())), json_values), json_values)
def test_any_values_are_a_document_or_none(event: dict[str, Any], incarnation: Any) -> None:
    try:
        content = body(event, DocumentIncarnation=incarnation)
    except (UnicodeEncodeError, OverflowError):  # nothing that JSON could hold
        return
    try:
        listing = codec.decode_listing(content)
    except codec.Malformed:
        return
    assert len(listing.events) + len(listing.nameless) == 1
    assert listing.unreadable or not listing.nameless


@pytest.mark.parametrize(
    "written", [b"web-0", b"web-0\r\n", b" Batch_3 ", b"a", b"a" * codec.MAX_NAME_LENGTH]
)
def test_a_machines_name_is_one_word(written: bytes) -> None:
    assert codec.decode_machine_name(written) == written.decode().strip()
    assert codec.decode_machine_name(codecs.BOM_UTF8 + written) == written.decode().strip()


@pytest.mark.parametrize(
    "written",
    [
        *(b"", b"  ", b"<html>", b"two words", b"a\nb", b"\xff", b"a" * 257, b'{"name":"x"}'),
        *(b"web-0\0", b"w\0e\0b\0", "web\u200b-0".encode()),
    ],
)
def test_what_is_no_machines_name_is_refused(written: bytes) -> None:
    with pytest.raises(codec.Malformed, match="name"):
        codec.decode_machine_name(written)


def test_the_instances_single_values_are_read_by_name() -> None:
    content = msgspec.json.encode({"name": "web-0", "vmId": "1", "tagsList": [], "zone": None})
    assert codec.decode_compute(content) == {"name": "web-0", "vm_id": "1"}
    for wrong, said in (
        (b"", "empty"),
        (b"[]", "object"),
        (b"{}", "name"),
        (b'{"name":""}', "name"),
        (b'{"name":5}', "name"),
        (b"<html>", "HTML"),
    ):
        with pytest.raises(codec.Malformed, match=said):
            codec.decode_compute(wrong)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"error":"no","newest-versions":["b","a"]}', ("no", ("b", "a"))),
        (b'{"error":"no"}', ("no", ())),
        (b'{"error":"no","more":1}', ("no", ())),
        (b'{"error":{"code":"x"}}', ("", ())),
        (b"<html>", ("", ())),
        (b"", ("", ())),
        (b"[" * 100_000, ("", ())),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_an_errors_body_is_read_where_it_is_one(
    content: bytes, said: tuple[str, tuple[str, ...]]
) -> None:
    assert codec.decode_error(content) == said
