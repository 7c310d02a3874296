"""Documents to bytes and back, and the dates in them."""

import locale
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from forewarn.protocol import codec
from forewarn.protocol.versions import NEWEST_VERSION, VERSION_BY_NAME, Version
from protocol import cases

PREVIEW = VERSION_BY_NAME["2017-03-01"]
PLAIN = VERSION_BY_NAME["2017-08-01"]
NEWEST = NEWEST_VERSION
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


@pytest.mark.usefixtures("far_from_utc")
@pytest.mark.parametrize(
    "written",
    ["Thu, 01 Jan 2026 00:00:00", "2026-01-01T00:00:00", "2026-01-01T02:00:00+02:00"],
)
def test_a_date_is_read_in_utc_whatever_the_machines_zone(written: str) -> None:
    read = codec.any_date(written)
    assert read == datetime(2026, 1, 1, tzinfo=UTC)
    assert read.utcoffset() == timedelta(0)


def test_a_date_has_so_many_characters_and_all_of_ascii() -> None:
    written = "Thu, 01 Jan 2026 00:00:00 GMT ("
    longest = written.ljust(codec.MAX_DATE_LENGTH - 1, "x") + ")"
    assert codec.any_date(f" {longest} ") == datetime(2026, 1, 1, tzinfo=UTC)
    for wrong in (longest[:-1] + "x)", "Thu, \u0660\u0661 Jan 2026 00:00:00 GMT"):
        with pytest.raises(ValueError, match="Jan 2026"):
            codec.any_date(wrong)


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has no time zone"):
        codec.http_date(datetime(2026, 1, 1))


@pytest.mark.parametrize("version", [PREVIEW, PLAIN, NEWEST], ids=lambda version: version.name)
def test_not_before_of_another_zone_is_written_in_utc(version: Version) -> None:
    there = datetime(2016, 9, 19, 18, 29, 47, tzinfo=UTC).astimezone(timezone(-timedelta(hours=7)))
    event = msgspec.structs.replace(cases.SECTION_4_EVENT, not_before=there)
    document = msgspec.structs.replace(cases.SECTION_4, events=(event,))
    assert codec.encode_document(document, version) == codec.encode_document(
        cases.SECTION_4, version
    )
