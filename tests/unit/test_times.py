"""Times and spans, as they are typed and shown."""

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn import times


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("36500d", 36_500 * 86_400),
        ("1d1h1m1s", 90_061),
    ],
)
def test_a_span_is_read_as_it_is_spoken(text: str, seconds: int) -> None:
    assert times.span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("told", "texts"),
    [
        ("30s, 5m or 1h30m", ("", "s", "5 m", "m5", "30s5m", "-5", "1.5h", "٣", "5M")),
        ("hundred years", ("9" * 12, "99999999999d", "36501d", "36500d1s", "9" * 5000 + "s")),
    ],
)
def test_what_is_no_span_or_too_long_is_refused(told: str, texts: tuple[str, ...]) -> None:
    for text in texts:
        with pytest.raises(times.InvalidTime, match=told):
            times.span(text)


@given(st.integers(0, 99_999_999))
def test_a_span_that_is_shown_reads_the_same_again(seconds: int) -> None:
    assert times.span(times.shown_span(seconds).replace(" ", "")) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01t12:00:00z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T13:30:00+01:30", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01 12:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
        ("2026-03-01T12:00:00.5Z", datetime(2026, 3, 1, 12, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_a_time_names_its_zone(text: str, at: datetime) -> None:
    assert times.moment(text) == at


def test_a_span_with_a_sign_is_from_now() -> None:
    assert times.moment("+20m") == timedelta(minutes=20)
    assert times.moment("-2h") == timedelta(hours=-2)


@pytest.mark.parametrize(
    ("told", "texts"),
    [
        ("add Z for UTC", ("2026-03-01T12:00:00",)),
        ("RFC 3339", ("", "tomorrow", "2026-13-01T00:00:00Z", "2026-03-01", "12:00Z")),
        ("UTC", ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")),
    ],
)
def test_what_is_no_time_or_has_no_zone_or_no_date_in_utc_is_refused(
    told: str, texts: tuple[str, ...]
) -> None:
    for text in texts:
        with pytest.raises(times.InvalidTime, match=told):
            times.moment(text)


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        read = times.moment(text)
    except times.InvalidTime:
        return
    assert isinstance(read, timedelta) or read.tzinfo is not None


def test_a_duration_may_be_unknown() -> None:
    assert times.duration_seconds("-1") == -1
    assert times.duration_seconds("unknown") == -1
    assert times.duration_seconds("0") == 0
    assert times.duration_seconds("2m") == 120


def test_times_are_shown_in_utc_whatever_their_zone() -> None:
    at = datetime.fromisoformat("2026-03-01T14:00:00+02:00")
    assert times.shown(at) == "2026-03-01 12:00:00Z"
    assert times.hour(at) == "12:00:00Z"
    assert times.shown(None) == "-"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0s"),
        (9.4, "9s"),
        (60, "1m"),
        (870, "14m 30s"),
        (3600, "1h"),
        (90_060, "1d 1h 1m"),
    ],
)
def test_spans_are_shown_in_the_units_that_they_have(seconds: float | None, shown: str) -> None:
    assert times.shown_span(seconds) == shown


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-11-22T14:05:59Z", "14:05Z"),
        ("2026-11-22T23:30:00+01:00", "22:30Z"),
        ("2026-11-23T00:30:00+01:00", "23:30Z"),
        ("2026-11-21T23:59:59Z", "11-21 23:59Z"),
        ("2025-11-22T14:05:00Z", "2025-11-22 14:05Z"),
    ],
)
def test_a_narrow_table_has_the_day_of_another_day_only(at: str, expected: str) -> None:
    now = datetime.fromisoformat("2026-11-22T12:00:00Z")
    assert times.brief(datetime.fromisoformat(at), now) == expected


@pytest.mark.parametrize("text", ["18:00", "9:05", "09:05"])
def test_a_time_of_day_lies_ahead(text: str) -> None:
    assert times.coming(text) == time(*map(int, text.split(":")))
    assert times.coming("+2h") == timedelta(hours=2)


@pytest.mark.parametrize("text", ["24:00", "18:60", "18", "6pm", "18:00:00"])
def test_what_is_no_time_of_day_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(times.InvalidTime, match="18:00"):
        times.coming(text)


@pytest.mark.parametrize(
    ("now", "at"),
    [
        ("2026-03-01T12:00:00+00:00", "2026-03-01T17:00:00+00:00"),
        ("2026-03-01T17:00:00+00:00", "2026-03-02T17:00:00+00:00"),
        ("2026-03-01T23:30:00+00:00", "2026-03-02T17:00:00+00:00"),
        ("2026-03-28T20:00:00+00:00", "2026-03-29T16:00:00+00:00"),
    ],
)
def test_a_time_of_day_is_the_next_one_of_a_zone_by_the_summer_time_of_its_day(
    now: str, at: str
) -> None:
    found = times.next_time_of_day(time(18), datetime.fromisoformat(now), ZoneInfo("Europe/Berlin"))
    assert found == datetime.fromisoformat(at)


def test_without_a_zone_a_time_of_day_is_the_machines_own() -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    found = times.next_time_of_day(time(18), now)
    assert found.astimezone().time() == time(18)
    assert timedelta(0) < found - now <= timedelta(days=1)
