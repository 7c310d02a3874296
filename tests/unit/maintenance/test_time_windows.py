"""Windows as people write them: when they open, on days when the clocks change too."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from forewarn.maintenance import time_windows
from forewarn.maintenance.time_windows import Span

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def opens(
    text: str, now: str, zone: str = "UTC", count: int = 1
) -> list[tuple[datetime, datetime]]:
    found = time_windows.following((text,), zone, (), at(now))
    return [(span.opens, span.closes) for span in found[:count]]


@pytest.mark.parametrize(
    ("text", "begins", "ends"),
    [  # 2026-11-22 is a Sunday
        ("Sat,Sun 22:00-04:00", "2026-11-22 22:00", "2026-11-23 04:00"),
        ("Mon-Fri 01:00-05:00", "2026-11-23 01:00", "2026-11-23 05:00"),
        ("fri-mon 01:00-05:00", "2026-11-23 01:00", "2026-11-23 05:00"),
        ("daily 13:00-14:00", "2026-11-22 13:00", "2026-11-22 14:00"),
        ("2nd Tue +9d 01:00-05:00", "2026-12-17 01:00", "2026-12-17 05:00"),
        ("1st Mon 01:00-05:00", "2026-12-07 01:00", "2026-12-07 05:00"),
        ("last Mon 01:00-05:00", "2026-11-30 01:00", "2026-11-30 05:00"),
        ("last Tue 01:00-05:00", "2026-11-24 01:00", "2026-11-24 05:00"),
        ("Sat 20:00-Mon 04:00", "2026-11-21 20:00", "2026-11-23 04:00"),
        ("Mon 08:00-Sun 24:00", "2026-11-16 08:00", "2026-11-23 00:00"),
        ("1st Sat 20:00-Mon 24:00", "2026-12-05 20:00", "2026-12-08 00:00"),
        ("2nd Tue +9d 20:00-Sat 04:00", "2026-12-17 20:00", "2026-12-19 04:00"),
        ("Sat,Sun 00:00-24:00", "2026-11-21 00:00", "2026-11-23 00:00"),
        ("Sun 13:00-24:00", "2026-11-22 13:00", "2026-11-23 00:00"),
        ("Fri 22:00-Sat 04:00", "2026-11-27 22:00", "2026-11-28 04:00"),
    ],
)
def test_a_window_opens_on_its_days(text: str, begins: str, ends: str) -> None:
    assert opens(text, "2026-11-22 12:00") == [(at(begins), at(ends))]


@pytest.mark.parametrize(
    ("text", "zone", "now", "begins", "ends"),
    [
        # One that is open now is the first.
        ("Sat 22:00-04:00", "UTC", "2026-11-22 03:59", "2026-11-21 22:00", "2026-11-22 04:00"),
        ("Sat 22:00-04:00", "UTC", "2026-11-22 04:00", "2026-11-28 22:00", "2026-11-29 04:00"),
        # Times are local to the zone in summer and in winter.
        ("daily 02:00-03:00", BERLIN, "2026-07-01 12:00", "2026-07-02 00:00", "2026-07-02 01:00"),
        ("daily 02:00-03:00", BERLIN, "2026-12-01 12:00", "2026-12-02 01:00", "2026-12-02 02:00"),
        # On 2026-03-29 it is 03:00 in Berlin after 01:59, at 01:00 UTC: what is left out counts as
        # before the change.
        ("Sun 02:15-02:45", BERLIN, "2026-03-28 12:00", "2026-03-29 01:15", "2026-03-29 01:45"),
        ("Sun 01:00-05:00", BERLIN, "2026-03-28 12:00", "2026-03-29 00:00", "2026-03-29 03:00"),
        # On 2026-10-25 it is 02:00 in Berlin at 00:00 and at 01:00 UTC: the first one counts.
        ("Sun 02:15-02:45", BERLIN, "2026-10-24 12:00", "2026-10-25 00:15", "2026-10-25 00:45"),
        ("Sun 01:00-05:00", BERLIN, "2026-10-24 12:00", "2026-10-24 23:00", "2026-10-25 04:00"),
    ],
)
def test_a_window_opens_at_the_times_of_its_zone(
    text: str, zone: str, now: str, begins: str, ends: str
) -> None:
    assert opens(text, now, zone) == [(at(begins), at(ends))]


@pytest.mark.parametrize(
    ("text", "now", "hours"),
    [
        ("Sat 20:00-Mon 04:00", "2026-03-27 12:00", 31),
        ("Sat 20:00-Mon 04:00", "2026-10-23 12:00", 33),
        ("Sun 00:00-24:00", "2026-03-28 12:00", 23),
        ("Sun 00:00-24:00", "2026-10-24 12:00", 25),
    ],
)
def test_a_window_over_days_is_as_long_as_they_are_when_the_clocks_change(
    text: str, now: str, hours: int
) -> None:
    ((begins, ends),) = opens(text, now, BERLIN)
    assert ends - begins == timedelta(hours=hours)


def test_every_day_of_a_year_has_its_window_whatever_the_clocks_do() -> None:
    found = opens("daily 02:30-03:30", "2026-01-01 00:00", BERLIN, 365)
    assert len({begins.date() for begins, _ in found}) == 365
    assert all(begins < ends for begins, ends in found)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))


def test_windows_that_meet_or_overlap_are_one() -> None:
    windows = ("Sat 20:00-00:00", "Sun 00:00-02:00", "Sun 01:00-03:00")
    first, *_ = time_windows.following(windows, "UTC", (), at("2026-11-20 12:00"))
    assert (first.opens, first.closes) == (at("2026-11-21 20:00"), at("2026-11-22 03:00"))


def test_blackouts_cut_windows() -> None:
    blackouts = (
        Span(at("2026-11-21 23:00"), at("2026-11-22 01:00")),
        Span(at("2026-11-28 00:00"), at("2026-11-29 12:00")),
    )
    found = time_windows.following(("Sat 22:00-04:00",), "UTC", blackouts, at("2026-11-21 12:00"))
    assert [(span.opens, span.closes) for span in found[:3]] == [
        (at("2026-11-21 22:00"), at("2026-11-21 23:00")),
        (at("2026-11-22 01:00"), at("2026-11-22 04:00")),
        (at("2026-12-05 22:00"), at("2026-12-06 04:00")),
    ]


@pytest.mark.parametrize(
    ("blackout", "left"),
    [
        (("21:00", "22:00"), [("22:00", "23:00")]),
        (("21:00", "22:01"), [("22:01", "23:00")]),
        (("22:00", "22:30"), [("22:30", "23:00")]),
        (("22:30", "23:00"), [("22:00", "22:30")]),
        (("22:00", "23:00"), []),
        (("23:00", "23:30"), [("22:00", "23:00")]),
    ],
)
def test_a_blackout_cuts_a_window_to_the_minute_and_leaves_no_empty_one(
    blackout: tuple[str, str], left: list[tuple[str, str]]
) -> None:
    def span(begins: str, ends: str) -> Span:
        return Span(at(f"2026-11-22 {begins}"), at(f"2026-11-22 {ends}"))

    now = at("2026-11-22 12:00")
    found = time_windows.following(("daily 22:00-23:00",), "UTC", (span(*blackout),), now)
    today = [each for each in found if each.opens < at("2026-11-23 00:00")]
    assert today == [span(*each) for each in left]


def test_a_window_that_the_clocks_leave_out_is_none() -> None:
    (first,) = opens("daily 02:00-03:00", "2026-03-28 12:00", BERLIN)
    assert first[0] == at("2026-03-30 00:00")  # on the 29th it is 3 o'clock after 2


def test_without_windows_it_is_always_open_but_for_blackouts() -> None:
    blackout = Span(at("2026-11-22 00:00"), at("2026-11-23 00:00"))
    before, after = time_windows.following((), "UTC", (blackout,), at("2026-11-21 12:00"))
    assert before.closes == blackout.opens
    assert (after.opens, after.closes) == (blackout.closes, time_windows.ENDLESS)


@pytest.mark.parametrize(
    "text",
    [
        "", "Sat", "22:00-04:00", "Sat 22-04", "Sat 25:00-04:00", "Sat 04:00-04:00",
        "Foo 01:00-02:00", "5th Tue 01:00-02:00", "2nd Tue +32d 01:00-05:00", "Sat 1:00-2:00",
        "Sat 24:00-04:00", "Sat 01:00-24:01", "Sat 20:00-Sat 22:00", "Sat,Sun 20:00-Mon 04:00",
        "daily 20:00-Mon 04:00", "Sat 20:00-Foo 04:00", "Sat,Sun 00:00-00:00",
    ],
)  # fmt: skip
def test_what_is_not_a_window_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid window"):
        time_windows.check((text,), "UTC")


@pytest.mark.parametrize("zone", ["Nowhere/Land", "../etc/passwd", "", "/etc/passwd"])
def test_what_is_not_a_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        time_windows.check((), zone)


def test_too_many_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        time_windows.check(("daily 01:00-02:00",) * 21, "UTC")


def test_as_many_windows_as_may_be_are_taken() -> None:
    time_windows.check(["daily 01:00-02:00"] * time_windows.MAX_WINDOWS, "UTC")


def test_a_window_that_never_comes_within_the_horizon_is_not_found() -> None:
    day = timedelta(days=1)
    blackout = Span(at("2026-11-01 00:00"), at("2026-11-01 00:00") + 500 * day)
    assert not time_windows.following(
        ("daily 01:00-02:00",), "UTC", (blackout,), at("2026-11-22 12:00")
    )
