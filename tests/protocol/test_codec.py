"""Documents, dates, versions and agents' reports: what may be written, and how it is read again."""

import email.utils
import locale
import time
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.protocol import codec
from forewarn.protocol.codec import MAX_AGENT_REASON, AgentReport
from forewarn.protocol.instance import INSTANCE_VERSIONS
from forewarn.protocol.versions import NEWEST_VERSION, VERSIONS, EventsDocument, ScheduledEvent
from forewarn.vocabulary import AgentStatus, EventSource, EventStatus, EventType
from protocol import cases

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_date_is_that_of_rfc_1123_on_each_day() -> None:
    for days in range(400):
        moment = datetime(2026, 1, 1, 4, 3, 2, tzinfo=UTC) + timedelta(days=days)
        assert codec.http_date(moment).decode() == email.utils.format_datetime(moment, usegmt=True)
    assert codec.http_date(datetime(33, 4, 3, tzinfo=UTC)) == b"Sun, 03 Apr 0033 00:00:00 GMT"
    elsewhere = datetime(2027, 1, 1, 1, 30, 59, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert codec.http_date(elsewhere) == b"Thu, 31 Dec 2026 23:30:59 GMT"
    with pytest.raises(ValueError, match=r"has no time zone"):
        codec.http_date(datetime(2026, 1, 1))


def test_a_date_knows_no_locale() -> None:
    before = locale.setlocale(locale.LC_TIME)
    for other in ("de_DE.UTF-8", "fr_FR.UTF-8", "C"):
        try:
            locale.setlocale(locale.LC_TIME, other)
        except locale.Error:
            continue
        assert codec.http_date(datetime(2026, 5, 5, tzinfo=UTC))[:11] == b"Tue, 05 May"
    locale.setlocale(locale.LC_TIME, before)


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set this process's own time zone five hours behind UTC."""
    if not hasattr(time, "tzset"):
        pytest.skip("this system has no tzset")
    monkeypatch.setenv("TZ", "FAR5")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_from_utc")
def test_a_date_knows_no_time_zone_of_the_machine() -> None:
    assert codec.http_date(MOMENT) == b"Thu, 01 Jan 2026 00:00:00 GMT"
    for written in (
        "Thu, 01 Jan 2026 00:00:00",
        "2026-01-01T00:00:00",
        "2026-01-01T02:00:00+02:00",
    ):
        read = codec.any_date(written)
        assert read == MOMENT
        assert read.utcoffset() == timedelta(0)


def test_a_date_has_so_many_characters_and_all_of_ascii() -> None:
    written = "Thu, 01 Jan 2026 00:00:00 GMT ("
    longest = written.ljust(codec.MAX_DATE_LENGTH - 1, "x") + ")"
    assert codec.any_date(f" {longest} ") == MOMENT
    for wrong in (longest[:-1] + "x)", "Thu, \u0660\u0661 Jan 2026 00:00:00 GMT"):
        with pytest.raises(ValueError, match="Jan 2026"):
            codec.any_date(wrong)


def test_not_before_of_another_zone_is_written_in_utc() -> None:
    there = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC).astimezone(timezone(-timedelta(hours=7)))
    event = msgspec.structs.replace(cases.SECTION_4_EVENT, not_before=there)
    document = msgspec.structs.replace(cases.SECTION_4, events=(event,))
    for version in VERSIONS:
        written = codec.encode_document(document, version)
        assert written == codec.encode_document(cases.SECTION_4, version)


# Documents.


def event(status: EventStatus, not_before: datetime | None) -> ScheduledEvent:
    return ScheduledEvent(
        event_id="E",
        status=status,
        event_type=EventType.FREEZE,
        resources=("web-0",),
        not_before=not_before,
        source=EventSource.PLATFORM,
    )


def test_an_event_and_a_document_say_nothing_more_than_they_were_given() -> None:
    plain = event(EventStatus.SCHEDULED, MOMENT)
    assert (plain.description, plain.duration_seconds) == ("", -1)
    assert (plain.resource_type, plain.not_before) == ("VirtualMachine", MOMENT)
    assert event(EventStatus.STARTED, None).not_before is None
    document = EventsDocument(incarnation=0)
    assert (document.events, document.cloud_service) == ((), False)


@pytest.mark.parametrize(
    ("status", "not_before"),
    [
        (EventStatus.COMPLETED, None),
        (EventStatus.FAILED, MOMENT),
        (EventStatus.CANCELED, MOMENT),
        (EventStatus.SCHEDULED, None),
        (EventStatus.STARTED, MOMENT),
        (EventStatus.SCHEDULED, MOMENT.replace(tzinfo=None)),
        (EventStatus.SCHEDULED, MOMENT + timedelta(microseconds=1)),
    ],
)
def test_what_no_guest_may_see_is_never_an_event_of_a_document(
    status: EventStatus, not_before: datetime | None
) -> None:
    with pytest.raises(ValueError, match=r"ScheduledEvent\(event_id='E', "):
        event(status, not_before)


def test_the_versions_are_those_of_section_2_in_their_order() -> None:
    assert [version.name for version in VERSIONS] == [
        *("2017-03-01", "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01"),
        "2020-07-01",
    ]
    assert NEWEST_VERSION is VERSIONS[-1]
    assert [version.name for version in VERSIONS if version.prefixed_names] == ["2017-03-01"]
    assert len(INSTANCE_VERSIONS) == 35
    assert list(INSTANCE_VERSIONS) == sorted(set(INSTANCE_VERSIONS))
    assert "2020-07-01" not in INSTANCE_VERSIONS


# The header by which an agent says how its machine fares (protocol.md section 10).


@pytest.mark.parametrize(
    "value",
    [
        *(b'ready; reason="\x1b[31mred"', b'ready; reason="line\nbreak"', b'ready; reason="\xff"'),
        b'ready; reason="%s"' % (b"x" * (MAX_AGENT_REASON + 1)),
    ],
)
def test_malformed_values_are_ignored_and_the_longest_is_read(value: bytes) -> None:
    assert codec.decode_agent_report(value) is None
    longest = b'held; reason="%s"' % (rb"\"" * MAX_AGENT_REASON)
    report = AgentReport(AgentStatus.HELD, '"' * MAX_AGENT_REASON)
    assert codec.decode_agent_report(longest) == report


@pytest.mark.parametrize(
    ("reason", "written"),
    [
        ("", "held"),
        ("the drain failed", 'held; reason="the drain failed"'),
        (r'say "no" \ twice', r'held; reason="say \"no\" \\ twice"'),
        ("two\nlines\x1b[31m", 'held; reason="two lines [31m"'),
        ("half a character \ud83d", 'held; reason="half a character  "'),
        ("a" * (MAX_AGENT_REASON + 1), f'held; reason="{"a" * MAX_AGENT_REASON}"'),
        ("a" * (MAX_AGENT_REASON - 1) + "é", f'held; reason="{"a" * (MAX_AGENT_REASON - 1)}"'),
    ],
)
def test_a_reason_is_written_in_a_quoted_line_of_bounded_length(reason: str, written: str) -> None:
    assert codec.encode_agent_report(AgentReport(AgentStatus.HELD, reason)) == written


@given(st.sampled_from(AgentStatus), st.text(max_size=300))
def test_what_is_written_is_read_again(state: AgentStatus, reason: str) -> None:
    written = codec.encode_agent_report(AgentReport(state, reason)).encode()
    read = codec.decode_agent_report(written)
    assert read is not None
    assert read.status is state
    assert len(read.reason.encode()) <= MAX_AGENT_REASON
    if reason.isprintable() and len(reason.encode("utf-8", "replace")) <= MAX_AGENT_REASON:
        assert read.reason == reason


@pytest.mark.parametrize(
    "value", [b"a" * 512, b'held; reason="' + b"\\a" * 240, b"held;" + b" " * 500]
)
def test_a_value_on_which_a_careless_pattern_never_ends_is_no_report(value: bytes) -> None:
    assert codec._agent_report.__wrapped__(value) is None


def test_long_values_of_strangers_are_not_remembered() -> None:
    tracemalloc.start()
    try:
        for number in range(1024):
            codec.decode_agent_report(b"%16384d" % number)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1024 * 1024
