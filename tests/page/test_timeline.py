"""The timeline: every operation once, nothing over another, and places that say when."""

import itertools
import random
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forewarn.maintenance.model import Approval, Operation
from forewarn.server.page import timeline
from forewarn.server.page.timeline import Bar, Form, Range, Side, Timeline
from forewarn.vocabulary import ApproverKind, EventStatus
from page.operations import NOW, operation, operations

RANGES = st.sampled_from(Range)
EDGE = 0.02
"""Places are rounded to a hundredth of a per cent."""


def bars(drawn: Timeline) -> list[Bar]:
    return [bar for scope in drawn.scopes for lane in scope.lanes for bar in lane.bars]


def only(*found: Operation, shown: Range = Range.TWO_HOURS) -> Bar:
    (bar,) = bars(timeline.drawn(found, NOW, shown))
    return bar


@given(operations(), RANGES, st.integers())
def test_any_operations_are_drawn_once_inside_and_apart_in_whichever_order_they_come(
    found: list[Operation], shown: Range, seed: int
) -> None:
    drawn = timeline.drawn(found, NOW, shown)
    for bar in bars(drawn):
        lies_inside(bar)
    nothing_overlaps(drawn)
    each_is_drawn_once_or_counted(found, drawn, shown)
    shuffled = random.Random(seed).sample(found, len(found))
    assert timeline.drawn(shuffled, NOW, shown) == drawn


def lies_inside(bar: Bar) -> None:
    assert -EDGE <= bar.x <= bar.x + bar.width <= 100 + EDGE
    for part in (bar.notice, bar.down, bar.expected):
        if part is not None:
            assert bar.x - EDGE <= part.x
            assert part.x + part.width <= bar.x + bar.width + EDGE
    for mark in (bar.not_before, bar.approved, bar.cross):
        assert mark is None or 0 <= mark <= 100
    assert (bar.cross is not None) is (bar.form is Form.FAILED)
    assert bar.side is not Side.WITHIN or bar.x < bar.label_x < bar.x + bar.width
    assert bar.operation in bar.title
    begin, end = bar.extent
    assert -EDGE <= begin < end <= 100 + EDGE


def nothing_overlaps(drawn: Timeline) -> None:
    """Check the bars of each row, with their labels."""
    for scope in drawn.scopes:
        for lane in scope.lanes:
            for row in range(lane.rows):
                extents = sorted(bar.extent for bar in lane.bars if bar.row == row)
                assert extents, "no row is empty"
                for (_, end), (begin, _) in itertools.pairwise(extents):
                    assert end + timeline.GAP <= begin + EDGE


def each_is_drawn_once_or_counted(found: list[Operation], drawn: Timeline, shown: Range) -> None:
    counts = Counter(bar.operation for bar in bars(drawn))
    assert set(counts.values()) <= {1}
    begin = NOW - shown.length * 2 / 3
    expected = {
        each.id
        for each in found
        if each.ended_at is None or each.ended_at >= begin  # what is live ends now at the earliest
    }
    assert set(counts) <= expected
    if not drawn.further:
        assert len(counts) + sum(scope.more for scope in drawn.scopes) == len(expected)
    else:
        assert len(drawn.scopes) == timeline.MAX_SCOPES


@settings(max_examples=20)
@given(operations(most=20), RANGES, st.integers(1, 1000))
def test_scopes_keep_their_order_while_only_time_passes(
    found: list[Operation], shown: Range, seconds: int
) -> None:
    before = timeline.drawn(found, NOW, shown)
    after = timeline.drawn(found, NOW + timedelta(seconds=seconds), shown)
    kept = {scope.key for scope in before.scopes} & {scope.key for scope in after.scopes}
    order = [[s.key for s in drawn.scopes if s.key in kept] for drawn in (before, after)]
    assert order[0] == order[1]


def test_a_bar_says_when_it_was_announced_started_and_ended() -> None:
    announced = NOW - timedelta(minutes=40)
    bar = only(
        operation(
            status=EventStatus.COMPLETED,
            announced=announced,
            started_at=announced + timedelta(minutes=12),
            ended_at=announced + timedelta(minutes=18),
            approval=Approval(
                kind=ApproverKind.GUEST, by="web-0", at=announced + timedelta(minutes=6)
            ),
        )
    )
    # 120 minutes are 100 per cent; now is at 80 of them.
    assert bar.form is Form.DONE
    assert bar.notice == timeline.Part(pytest.approx(33.33), pytest.approx(10.0))
    assert bar.down == timeline.Part(pytest.approx(43.33), pytest.approx(5.0))
    assert bar.approved == pytest.approx(38.33)
    assert bar.expected is None
    assert bar.not_before is None
    for told in ("Reboot", "web-0", f"{announced + timedelta(minutes=6):%H:%M}", "Completed"):
        assert told in bar.title
    next_year = only(operation(not_before=NOW + timedelta(days=365)))
    assert f"{NOW + timedelta(days=365):%Y-%m-%d}" in next_year.title


@pytest.mark.parametrize(
    ("status", "form"),
    [
        (EventStatus.QUEUED, Form.QUEUED),
        (EventStatus.SCHEDULED, Form.NOTICE),
        (EventStatus.STARTED, Form.DOWN),
        (EventStatus.RETURNING, Form.DOWN),
        (EventStatus.COMPLETED, Form.DONE),
        (EventStatus.FAILED, Form.FAILED),
        (EventStatus.CANCELED, Form.CANCELLED),
    ],
)
def test_each_state_has_a_form_of_its_own(status: EventStatus, form: Form) -> None:
    assert only(operation(status=status)).form is form
    assert only(operation(held_at=NOW)).form is Form.HELD


def test_a_scope_that_is_down_comes_before_one_that_is_pending_and_one_that_is_over() -> None:
    drawn = timeline.drawn(
        [
            operation(1, EventStatus.COMPLETED, scope="a"),
            operation(2, EventStatus.SCHEDULED, scope="b", domain=3),
            operation(3, EventStatus.STARTED, scope="c", machines=("x", "y")),
        ],
        NOW,
        Range.TWO_HOURS,
        str.upper,
    )
    assert [scope.name for scope in drawn.scopes] == ["C", "B", "A"]
    assert [scope.down for scope in drawn.scopes] == [2, 0, 0]
    assert [scope.noticed for scope in drawn.scopes] == [0, 1, 0]
    assert drawn.scopes[1].lanes[0].update_domain == 3


def test_a_lane_has_no_more_rows_than_it_may_and_live_bars_go_first() -> None:
    past = [operation(n, EventStatus.COMPLETED) for n in range(1, 60)]
    live = [operation(n) for n in range(60, 66)]
    (scope,) = timeline.drawn([*past, *live], NOW, Range.TWO_HOURS).scopes
    (lane,) = scope.lanes
    assert lane.rows == timeline.MAX_ROWS
    assert {each.id for each in live} <= {bar.operation for bar in lane.bars}
    assert len(lane.bars) + scope.more == 65


def test_no_more_bars_are_drawn_than_may_be() -> None:
    found = [
        operation(
            n,
            EventStatus.COMPLETED,
            scope=f"s{n % 10}",
            domain=n // 10 % 20,
            announced=NOW - timedelta(seconds=60 * (n // 200)),
            started_at=NOW - timedelta(seconds=60 * (n // 200)),
            ended_at=NOW - timedelta(seconds=60 * (n // 200)),
        )
        for n in range(2000)
    ]
    drawn = timeline.drawn(found, NOW, Range.WEEK)
    assert len(bars(drawn)) <= timeline.MAX_BARS
    assert len(bars(drawn)) + sum(scope.more for scope in drawn.scopes) == 2000


def test_the_scale_has_no_label_at_the_edges_or_over_now() -> None:
    for shown in Range:
        drawn = timeline.drawn((), NOW, shown)
        assert 5 <= len(drawn.ticks) <= 13
        places = [tick.x for tick in drawn.ticks if tick.label]
        assert all(2 <= x <= 98 and abs(x - drawn.now) > 4 for x in places)
        assert places == sorted(places)


def test_over_longer_ranges_only_what_is_live_or_failed_has_a_label() -> None:
    for status in (EventStatus.COMPLETED, EventStatus.CANCELED):
        done = operation(status=status)
        assert only(done).side is not Side.NOWHERE
        assert only(done, shown=Range.DAY).side is Side.NOWHERE
    for status in (EventStatus.STARTED, EventStatus.SCHEDULED, EventStatus.FAILED):
        assert only(operation(status=status), shown=Range.DAY).side is not Side.NOWHERE
