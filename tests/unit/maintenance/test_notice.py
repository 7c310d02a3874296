"""Least notice, and when NotBefore may be (protocol.md section 6)."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import MINUTE, NOW, SECOND
from forewarn.maintenance import notice
from forewarn.maintenance.model import Refused
from forewarn.vocabulary import ErrorCode, EventType

MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)).map(
    lambda moment: moment.replace(tzinfo=UTC)
)


@pytest.mark.parametrize(
    ("event_type", "minutes", "least"),
    [
        (EventType.FREEZE, None, 15 * MINUTE),
        (EventType.REBOOT, 7, 15 * MINUTE),
        (EventType.REDEPLOY, None, 10 * MINUTE),
        (EventType.PREEMPT, 7, 30 * SECOND),
        (EventType.TERMINATE, 5, 5 * MINUTE),
        (EventType.TERMINATE, None, 15 * MINUTE),  # its scale set has none any more
    ],
)
def test_each_type_has_its_least_notice_and_a_deletion_that_of_its_scale_set(
    event_type: EventType, minutes: int | None, least: timedelta
) -> None:
    assert notice.minimum(event_type, minutes) == least


@given(MOMENTS)
def test_not_before_is_the_least_notice_rounded_up_to_a_second(now: datetime) -> None:
    chosen = notice.not_before(None, 15 * MINUTE, now)
    assert chosen.microsecond == 0
    assert timedelta(0) <= chosen - (now + 15 * MINUTE) < SECOND


def test_a_whole_second_stays_as_it_is() -> None:
    assert notice.whole_seconds(NOW) == NOW
    assert notice.whole_seconds(NOW + timedelta(microseconds=1)) == NOW + SECOND
    assert notice.whole_seconds(NOW + timedelta(microseconds=999_999)) == NOW + SECOND


@pytest.mark.parametrize(
    ("least", "spoken"),
    [
        (15 * MINUTE, "notice of 15 min:"),
        (30 * SECOND, "notice of 30 s:"),
        (90 * SECOND, "notice of 90 s:"),
        (timedelta(0), "past"),
    ],
)
def test_an_earlier_not_before_is_refused_with_the_earliest(least: timedelta, spoken: str) -> None:
    early = NOW + least - timedelta(microseconds=1)
    with pytest.raises(Refused) as refusal:
        notice.not_before(early, least, NOW)
    assert refusal.value.code is ErrorCode.NOTICE_TOO_SHORT
    assert refusal.value.facts == {"earliest": (NOW + least).isoformat()}
    assert spoken in refusal.value.message


def test_a_refusal_says_times_in_utc() -> None:
    early = (NOW + MINUTE).astimezone(timezone(timedelta(hours=5)))
    with pytest.raises(Refused) as refusal:
        notice.not_before(early, 15 * MINUTE, NOW)
    assert f"{NOW + MINUTE:%H:%M:%SZ}" in refusal.value.message
    assert f"{NOW + 15 * MINUTE:%H:%M:%SZ}" in refusal.value.message


def test_a_time_in_another_zone_is_compared_as_the_instant_it_is() -> None:
    zone = timezone(timedelta(hours=2))
    assert notice.not_before(NOW.astimezone(zone) + 20 * MINUTE, 15 * MINUTE, NOW) == (
        NOW + 20 * MINUTE
    )


def test_a_year_ahead_is_the_furthest() -> None:
    furthest = NOW + timedelta(days=366)
    assert notice.not_before(furthest, MINUTE, NOW) == furthest
    with pytest.raises(Refused) as refusal:
        notice.not_before(furthest + SECOND, MINUTE, NOW)
    assert refusal.value.code is ErrorCode.INVALID
    assert refusal.value.facts == {"days": 366}
    with pytest.raises(Refused):
        notice.not_before(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), MINUTE, NOW)
