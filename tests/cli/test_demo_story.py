"""What the demo checks at its end can fail, and what it tells is what happened."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from forewarn.cli.demo import show, story
from forewarn.maintenance import fleet
from forewarn.maintenance.model import StartCause
from forewarn.server.operator import schemas
from forewarn.vocabulary import ApproverKind, EventSource, EventStatus, EventType

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTICE = timedelta(minutes=15)


def operation(**changes: object) -> schemas.OperationView:
    """A Reboot that is announced at T0 and neither approved nor started."""
    announced = schemas.OperationView(
        id="1.1",
        maintenance=1,
        event_type=EventType.REBOOT,
        source=EventSource.PLATFORM,
        description="",
        duration_seconds=-1,
        status=EventStatus.SCHEDULED,
        announced_at=T0,
        not_before=T0 + NOTICE,
        notice_left_seconds=900,
        start_cause=None,
        started_at=None,
        ended_at=None,
        took_seconds=None,
        waits_for="",
        held_at=None,
        hosts=(),
        rolling_update=None,
        outcome_unknown="",
        outcome="",
        acknowledged_by="",
        attempt=0,
        interventions=(),
        events=(
            schemas.EventView(
                id="E",
                scope="web",
                update_domain=0,
                machines=("web-0", "web-3"),
                approval=None,
                silent=False,
            ),
        ),
    )
    return msgspec.structs.replace(announced, **changes)


def approved(at: datetime) -> tuple[schemas.EventView, ...]:
    approval = schemas.Approval(kind=ApproverKind.GUEST, by="web-0", address="", at=at)
    (event,) = operation().events
    return (msgspec.structs.replace(event, approval=approval),)


def started(at: datetime, **changes: object) -> schemas.OperationView:
    values: dict[str, object] = {"status": EventStatus.STARTED, "started_at": at, **changes}
    return operation(**values)


def test_a_start_before_its_time_without_approval_is_found() -> None:
    story.judge_nothing_early([operation(), started(T0 + NOTICE)])
    story.judge_nothing_early([started(T0 + NOTICE / 2, events=approved(T0 + NOTICE / 3))])
    with pytest.raises(story.DemoFailed):
        story.judge_nothing_early([started(T0 + NOTICE - timedelta(seconds=1))])
    with pytest.raises(story.DemoFailed):
        story.judge_nothing_early([started(T0 + NOTICE / 3, events=approved(T0 + NOTICE / 2))])


def test_two_domains_down_at_once_are_found() -> None:
    one = started(T0, ended_at=T0 + timedelta(minutes=3))
    (event,) = one.events
    other = (msgspec.structs.replace(event, update_domain=1),)
    end = T0 + timedelta(minutes=6)
    after = started(T0 + timedelta(minutes=3), id="2.1", ended_at=end, events=other)
    within = started(T0 + timedelta(minutes=2), id="2.1", ended_at=end, events=other)
    story.judge_one_domain_at_a_time([after, one])
    with pytest.raises(story.DemoFailed, match=r"1\.1 and 2\.1"):
        story.judge_one_domain_at_a_time([within, one])


def test_two_operations_in_one_domain_may_be_down_at_once() -> None:
    one = started(T0, ended_at=T0 + timedelta(minutes=3))
    beside = started(T0 + timedelta(minutes=1), id="2.1", ended_at=T0 + timedelta(minutes=2))
    (event,) = one.events
    third = started(
        T0 + timedelta(minutes=2),
        id="3.1",
        ended_at=T0 + timedelta(minutes=5),
        events=(msgspec.structs.replace(event, update_domain=1),),
    )
    story.judge_one_domain_at_a_time([one, beside])
    with pytest.raises(story.DemoFailed, match=r"1\.1 and 3\.1"):
        story.judge_one_domain_at_a_time([one, beside, third])


def test_a_step_that_is_announced_too_soon_is_found() -> None:
    end = T0 + timedelta(minutes=3)
    first = started(T0, status=EventStatus.COMPLETED, ended_at=end)
    story.judge_announcements([operation(id="1.2", announced_at=end), first])
    with pytest.raises(story.DemoFailed, match=r"1\.2"):
        story.judge_announcements(
            [first, operation(id="1.2", announced_at=end - timedelta(seconds=1))]
        )
    failed = started(T0, status=EventStatus.FAILED, ended_at=end)
    with pytest.raises(story.DemoFailed, match=r"1\.2"):
        story.judge_announcements([failed, operation(id="1.2", announced_at=end)])


def test_what_happens_to_an_operation_is_told_once() -> None:
    announced = operation()
    assert len(show.news(None, announced)) == 1
    assert show.news(announced, announced) == []
    begun = started(T0, events=approved(T0), start_cause=StartCause.APPROVED)
    by, starts = show.news(announced, begun)
    assert by.endswith("approved by web-0")
    late = started(T0 + NOTICE, start_cause=StartCause.NOTICE_OVER)
    assert show.news(announced, late) != [starts]
    done = started(T0, status=EventStatus.COMPLETED, took_seconds=180.0)
    assert len(show.news(begun, done)) == 1


def test_every_machine_of_the_fleet_has_a_guest() -> None:
    wanted = fleet.flatten(msgspec.convert(story.fleet(), fleet.Fleet))
    named = [member.name for group in wanted for member in group.members]
    assert sorted(named) == sorted(guest.machine for guest in story.GUESTS)
    on_host = {m.name for group in wanted for m in group.members if m.entry.host == story.HOST}
    assert on_host == story.HOST_LEADERS
