"""Documents to bytes and back, and the dates in them."""

import locale
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from forewarn.protocol import codec, versions
from forewarn.protocol.codec import Malformed
from forewarn.protocol.document import Document
from protocol import cases

PREVIEW = versions.BY_NAME["2017-03-01"]
PLAIN = versions.BY_NAME["2017-08-01"]
NEWEST = versions.NEWEST
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


@pytest.mark.parametrize("month", range(1, 13))
def test_a_date_has_an_english_name_and_two_digits_in_each_month(month: int) -> None:
    moment = datetime(2026, month, 5, 4, 3, 2, tzinfo=UTC)
    written = codec.http_date(moment)
    assert written[5:] == f"05 {MONTHS[month - 1]} 2026 04:03:02 GMT".encode()


@pytest.mark.parametrize(
    ("day", "name"),
    [(2, "Mon"), (3, "Tue"), (4, "Wed"), (5, "Thu"), (6, "Fri"), (7, "Sat"), (8, "Sun")],
)
def test_a_date_names_its_day_of_the_week(day: int, name: str) -> None:
    written = codec.http_date(datetime(2026, 11, day, tzinfo=UTC))
    assert written == f"{name}, 0{day} Nov 2026 00:00:00 GMT".encode()


def test_a_date_is_the_same_moment_in_utc_without_its_fraction() -> None:
    moment = datetime(2027, 1, 1, 1, 30, 59, 999_999, tzinfo=timezone(timedelta(hours=2)))
    assert codec.http_date(moment) == b"Thu, 31 Dec 2026 23:30:59 GMT"


def test_an_early_year_has_four_digits_still() -> None:
    assert codec.http_date(datetime(33, 4, 3, tzinfo=UTC)) == b"Sun, 03 Apr 0033 00:00:00 GMT"


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
    assert codec.http_date(datetime(2026, 1, 1, tzinfo=UTC)) == b"Thu, 01 Jan 2026 00:00:00 GMT"


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no time zone"):
        codec.http_date(datetime(2026, 1, 1))


@pytest.mark.parametrize("version", [PREVIEW, PLAIN, NEWEST], ids=lambda version: version.name)
def test_not_before_of_another_zone_is_written_in_utc(version: versions.Version) -> None:
    there = cases.at(2016, 9, 19, "18:29:47").astimezone(timezone(-timedelta(hours=7)))
    event = msgspec.structs.replace(cases.SECTION_4_EVENT, not_before=there)
    document = msgspec.structs.replace(cases.SECTION_4, events=(event,))
    assert codec.encode_document(document, version) == codec.encode_document(
        cases.SECTION_4, version
    )


@pytest.mark.parametrize("version", versions.VERSIONS, ids=lambda version: version.name)
def test_an_event_that_does_not_know_its_source_is_shown_only_where_none_is_wanted(
    version: versions.Version,
) -> None:
    event = msgspec.structs.replace(cases.SECTION_4_EVENT, source=None)
    document = Document(incarnation=1, events=(event,))
    if "source" in version.fields:
        with pytest.raises(ValueError, match=rf"has no source, and {version.name} shows one$"):
            codec.encode_document(document, version)
    else:
        assert b"EventSource" not in codec.encode_document(document, version)


def newest(changed: str, by: str) -> bytes:
    body = cases.golden("section_4.json").decode()
    assert body.count(changed) == 1, changed
    return body.replace(changed, by).encode()


@pytest.mark.parametrize(
    ("changed", "by"),
    [
        ('"DocumentIncarnation":2', '"DocumentIncarnation":"2"'),
        ('"DocumentIncarnation":2', '"DocumentIncarnation":null'),
        ('"DocumentIncarnation":2,', ""),
        ('"Scheduled"', '"Completed"'),
        ('"Scheduled"', '"Started"'),
        ('"Scheduled"', '"scheduled"'),
        ('"Reboot"', '"Restart"'),
        ('"VirtualMachine"', '"Host"'),
        ('"Mon, 19 Sep 2016 18:29:47 GMT"', '""'),
        ('"Mon, 19 Sep 2016 18:29:47 GMT"', "null"),
        ("Mon, 19", "Tue, 19"),
        ("19 Sep", "9 Sep"),
        ("19 Sep", "31 Sep"),
        ("19 Sep", "19 Sex"),
        ("18:29:47", "18:29:61"),
        ("18:29:47 GMT", "18:29:47 UTC"),
        ("Mon, 19 Sep 2016 18:29:47 GMT", "2016-09-19T18:29:47Z"),
        ('"User"', '"Guest"'),
        (',"EventSource":"User"', ""),
        (',"DurationInSeconds":-1', ""),
        ('"DurationInSeconds":-1', '"DurationInSeconds":"-1"'),
        ('"DurationInSeconds":-1', '"DurationInSeconds":-1,"Extra":1'),
        ('"Events":[', '"Events":[[],'),
    ],
)
def test_what_is_not_a_document_of_the_version_is_refused(changed: str, by: str) -> None:
    with pytest.raises(Malformed, match=r"is not a document of 2020-07-01: "):
        codec.decode_document(newest(changed, by), NEWEST)


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[" * 100_000, b"null", b"{}", b'{"DocumentIncarnation":0,"Events":[]']
)
def test_what_is_no_document_at_all_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match=r"is not a document of 2020-07-01: "):
        codec.decode_document(body, NEWEST)


def test_a_document_is_read_by_its_own_version_only() -> None:
    for written in versions.VERSIONS:
        body = codec.encode_document(cases.AVAILABILITY_SET, written)
        for read in versions.VERSIONS:
            same = read.fields == written.fields and read.iso_dates == written.iso_dates
            if same and read.event_types >= written.event_types:
                assert codec.decode_document(body, read).incarnation == 31
            else:
                with pytest.raises(Malformed, match=rf"is not a document of {read.name}: "):
                    codec.decode_document(body, read)


def test_a_refusal_names_the_event_and_what_is_wrong_with_it() -> None:
    with pytest.raises(Malformed, match=r"shows another version's duration_seconds, or lacks"):
        codec.decode_document(newest(',"DurationInSeconds":-1', ""), NEWEST)
    with pytest.raises(Malformed, match=r"event C1BF8322.* is a Reboot of a Host$"):
        codec.decode_document(newest('"VirtualMachine"', '"Host"'), NEWEST)
    with pytest.raises(Malformed, match=r"'Tue, 19 Sep 2016 18:29:47 GMT' is not a date as 2020-"):
        codec.decode_document(newest("Mon, 19", "Tue, 19"), NEWEST)


def test_the_previews_underscore_is_taken_off_and_tells_of_a_cloud_service() -> None:
    for expected in (cases.AVAILABILITY_SET, cases.CLOUD_SERVICE):
        read = codec.decode_document(codec.encode_document(expected, PREVIEW), PREVIEW)
        assert read.cloud_service is expected.cloud_service
        shown = [event.resources for event in expected.events[:6]]
        assert [event.resources for event in read.events] == shown
    later = codec.decode_document(codec.encode_document(cases.CLOUD_SERVICE, PLAIN), PLAIN)
    assert not later.cloud_service


def test_only_the_preview_takes_an_underscore_off() -> None:
    event = msgspec.structs.replace(cases.SECTION_4_EVENT, resources=("_web-0",))
    body = codec.encode_document(Document(incarnation=1, events=(event,)), NEWEST)
    assert codec.decode_document(body, NEWEST).events[0].resources == ("_web-0",)


def test_the_previews_date_is_iso_and_nothing_else() -> None:
    body = codec.encode_document(cases.SECTION_4, PREVIEW)
    assert codec.decode_document(body, PREVIEW).events[0].not_before == cases.at(
        2016, 9, 19, "18:29:47"
    )
    for wrong in (b"2016-09-19T18:29:47", b"2016-9-19T18:29:47Z", b"2016-09-31T18:29:47Z"):
        with pytest.raises(Malformed, match=r"is not a document of 2017-03-01: "):
            codec.decode_document(body.replace(b"2016-09-19T18:29:47Z", wrong), PREVIEW)
