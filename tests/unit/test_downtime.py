"""When the event loop ran in, how far notices move out."""

import random

import pytest

from forewarn.maintenance import notice
from forewarn.maintenance.notice import NO_STALLS, OUTAGE_SECONDS, RECENT_SECONDS, Stall


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
