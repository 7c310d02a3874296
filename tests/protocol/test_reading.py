"""An answer read as a client must: whatever server wrote it."""

import codecs
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stories
from forewarn.protocol import codec
from forewarn.vocabulary import EventSource, EventStatus, EventType

MOMENT = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC)
EVENT = {"EventId": "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"}


def body(*events: Any, **document: Any) -> bytes:
    return msgspec.json.encode({"DocumentIncarnation": 2, "Events": list(events)} | document)


def only(**facts: Any) -> codec.Listed:
    (event,) = codec.decode_listing(body(EVENT | facts)).events
    return event


def read(kind: str, written: str) -> str:
    """Return what is read of a line of answers.txt."""
    match kind:
        case "date":
            value = msgspec.json.decode(written)
            listing = codec.decode_listing(
                body(EVENT | {"EventId": "B", "NotBefore": value}, EVENT)
            )
            odd, sound = listing.events
            assert (odd.event_id, sound, listing.nameless) == ("B", only(), ())
            if listing.unreadable:
                (fault,) = listing.unreadable
                assert "NotBefore" in fault
                assert odd.not_before is None
                return "fault"
            assert odd.not_before in {MOMENT, None}
            return "none" if odd.not_before is None else "read"
        case "entry":
            listing = codec.decode_listing(body(msgspec.json.decode(written), EVENT))
            assert (listing.events, listing.nameless) == ((only(),), ((),))
            (fault,) = listing.unreadable
            assert "event 1" in fault
            return ""
        case "number":
            value = msgspec.json.decode(written)
            number = only(DurationInSeconds=value).duration_seconds
            assert codec.decode_listing(body(DocumentIncarnation=value)).incarnation == number
            return "none" if number is None else str(number)
        case "names":
            return ",".join(only(Resources=msgspec.json.decode(written)).resources) or "none"
        case "error":
            said, versions = codec.decode_error(written.encode())
            return f"{said} {','.join(versions)}".strip() or "none"
        case "report":
            report = codec.decode_agent_report(written.encode())
            return "none" if report is None else f"{report.status} {report.reason}".strip()
        case "name":
            try:
                return codec.decode_machine_name(written.encode())
            except codec.Malformed as wrong:
                assert "name" in str(wrong)
                return "none"
        case _:
            with pytest.raises(codec.Malformed) as wrong:
                codec.decode_listing(written.encode())
            return str(wrong.value)


def test_an_answer_is_read_however_it_is_written() -> None:
    for told, expected in stories.lines_beside(__file__, "answers.txt"):
        kind, _, written = told.partition(" ")
        found = read(kind, written)
        assert expected in found if kind == "document" else found == expected, told


def test_what_no_line_can_hold_is_read_too() -> None:
    listing = codec.decode_listing(body({"EventId": "A" * (codec.MAX_ID_LENGTH + 1)}, EVENT))
    assert (listing.events, listing.nameless) == ((only(),), ((),))
    longest = "A" * codec.MAX_ID_LENGTH
    assert only(EventId=longest).event_id == longest
    assert only().not_before is None
    for content, wrong in (
        (b" \n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b'{"Events":[\xff]}', "not JSON"),
        (b"[" * 100_000, "nested|not JSON"),
    ):
        with pytest.raises(codec.Malformed, match=wrong):
            codec.decode_listing(content)
    assert codec.decode_listing(b"\xef\xbb\xbf" + body(EVENT)).incarnation == 2
    assert codec.decode_error(b"[" * 100_000) == ("", ())
    name = b"a" * codec.MAX_NAME_LENGTH
    for written in (name, codecs.BOM_UTF8 + name, name + b"\r\n"):
        assert codec.decode_machine_name(written) == name.decode()
    for bad in (name + b"a", b"a\nb", b"\xff", b"web-0\0", b"w\0e\0b\0"):
        with pytest.raises(codec.Malformed, match="name"):
            codec.decode_machine_name(bad)


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


def test_an_event_concerns_the_machines_that_it_names_in_any_case() -> None:
    assert codec.concerns(("web-0", "web-1"), "WEB-1")
    assert not codec.concerns(("web-0", "web-1"), "web-2")


def test_an_event_that_is_listed_twice_is_one() -> None:
    upper, lower = dict(EVENT), {"EventId": EVENT["EventId"].lower(), "EventStatus": "Started"}
    (event,) = codec.decode_listing(body(upper, lower)).events
    assert event.event_id == EVENT["EventId"]
    assert event.key == EVENT["EventId"]


def test_a_document_has_so_many_events_at_most() -> None:
    events = [{"EventId": str(n)} for n in range(codec.MAX_EVENTS + 1)]
    assert len(codec.decode_listing(body(*events[1:])).events) == codec.MAX_EVENTS
    with pytest.raises(codec.Malformed, match="10001 Events"):
        codec.decode_listing(body(*events))


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
