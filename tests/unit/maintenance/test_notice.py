"""Least notice, and when NotBefore may be (protocol.md section 6)."""

import random
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import MINUTE, NOW, SECOND
from forewarn.maintenance import notice
from forewarn.maintenance.model import Refused
from forewarn.maintenance.notice import NO_STALLS, OUTAGE_SECONDS, RECENT_SECONDS, Stall
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


# Stalls: when the event loop ran in, how far notices move out.


@pytest.mark.parametrize("gap", [0.0, 0.25, 1.0])
def test_a_gap_that_costs_a_client_one_poll_is_no_stall(gap: float) -> None:
    assert notice.end_gap(NO_STALLS, 100, 100 + gap) == (NO_STALLS, 0)


def test_a_stall_of_five_seconds_waits_for_others_and_a_longer_one_moves_notices_at_once() -> None:
    assert notice.end_gap(NO_STALLS, 100, 105) == ((Stall(105, 5),), 0)
    assert notice.end_gap(NO_STALLS, 100, 105.5) == (NO_STALLS, 5.5)


def test_stalls_add_up_and_are_given_back_once() -> None:
    stalls, owed = notice.end_gap(NO_STALLS, 0, 3)
    assert (stalls, owed) == ((Stall(3, 3),), 0)
    stalls, owed = notice.end_gap(stalls, 3, 5)
    assert (stalls, owed) == ((Stall(3, 3), Stall(5, 2)), 0)
    assert notice.end_gap(stalls, 5, 6) == (stalls, 0)
    assert notice.end_gap(stalls, 5, 7) == (NO_STALLS, 7)


def test_a_stall_counts_no_longer_than_a_notice_lasts() -> None:
    stalls = (Stall(10, 4),)
    end = 10 + RECENT_SECONDS
    assert notice.end_gap(stalls, end - 2, end) == (NO_STALLS, 6)
    assert notice.end_gap(stalls, end - 1, end + 1) == ((Stall(end + 1, 2),), 0)


def test_the_gap_that_goes_on_counts_before_its_end() -> None:
    stalls = (Stall(10, 4),)
    assert notice.unread_seconds(stalls, 20, 21) == 4
    assert notice.unread_seconds(stalls, 20, 21.5) == 5.5
    assert notice.unread_seconds(stalls, 20, 20) == 4
    assert notice.unread_seconds(stalls, 2000, 2000) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_notice_loses_more_than_five_seconds_to_any_stalls(seed: int) -> None:
    """Any notice of up to 15 minutes, between any two instants at which the loop ran."""
    chance = random.Random(seed)
    now, stalls = 0.0, NO_STALLS
    ran: list[tuple[float, float, float]] = []
    for _ in range(300):
        gap = chance.choice([0.25, 0.9, 1.1, 2, 4.4, 5, 7, 60, 400])
        stalls, owed = notice.end_gap(stalls, now, now + gap)
        now += gap
        ran.append((now, gap if gap > notice.STALL_SECONDS else 0.0, owed))
        assert sum(each.seconds for each in stalls) <= OUTAGE_SECONDS
        assert len(stalls) <= OUTAGE_SECONDS / notice.STALL_SECONDS
        unread = given_back = 0.0
        for ended, stalled, moved in reversed(ran):
            if now - ended > RECENT_SECONDS:
                break
            unread, given_back = unread + stalled, given_back + moved
            assert unread - given_back <= OUTAGE_SECONDS + 1e-6
    assert sum(moved for _, _, moved in ran) <= sum(stalled for _, stalled, _ in ran) + 1e-6
