"""What the demo checks at its end can fail, and what it tells is what happened."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from forewarn.cli.demo import cast, stage, story
from forewarn.maintenance import fleet
from forewarn.maintenance.model import StartCause
from forewarn.server.operator import schemas
from forewarn.vocabulary import ApproverKind, EventSource, EventStatus, EventType

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTICE = timedelta(minutes=15)


def operation(**changes: object) -> schemas.Operation:
    """A Reboot that is announced at T0 and neither approved nor started."""
    announced = schemas.Operation(
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
            schemas.Event(
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


def approved(at: datetime) -> tuple[schemas.Event, ...]:
    approval = schemas.Approval(kind=ApproverKind.GUEST, by="web-0", address="", at=at)
    (event,) = operation().events
    return (msgspec.structs.replace(event, approval=approval),)


def started(at: datetime, **changes: object) -> schemas.Operation:
    values: dict[str, object] = {"status": EventStatus.STARTED, "started_at": at, **changes}
    return operation(**values)


def test_a_start_before_its_time_without_approval_is_found() -> None:
    story.judge_nothing_early([operation(), started(T0 + NOTICE)])
    story.judge_nothing_early([started(T0 + NOTICE / 2, events=approved(T0 + NOTICE / 3))])
    with pytest.raises(story.DemoFailed, match="before its time"):
        story.judge_nothing_early([started(T0 + NOTICE - timedelta(seconds=1))])
    with pytest.raises(story.DemoFailed, match="before its time"):
        story.judge_nothing_early([started(T0 + NOTICE / 3, events=approved(T0 + NOTICE / 2))])


def test_two_domains_down_at_once_are_found() -> None:
    one = started(T0, ended_at=T0 + timedelta(minutes=3))
    (event,) = one.events
    other = (msgspec.structs.replace(event, update_domain=1),)
    end = T0 + timedelta(minutes=6)
    after = started(T0 + timedelta(minutes=3), id="2.1", ended_at=end, events=other)
    within = started(T0 + timedelta(minutes=2), id="2.1", ended_at=end, events=other)
    story.judge_one_domain_at_a_time([after, one])
    with pytest.raises(story.DemoFailed, match=r"1\.1 and 2\.1 were down at once"):
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
    with pytest.raises(story.DemoFailed, match=r"1\.1 and 3\.1 were down at once"):
        story.judge_one_domain_at_a_time([one, beside, third])


def test_a_step_that_is_announced_too_soon_is_found() -> None:
    end = T0 + timedelta(minutes=3)
    first = started(T0, status=EventStatus.COMPLETED, ended_at=end)
    story.judge_walk([operation(id="1.2", announced_at=end), first])
    with pytest.raises(story.DemoFailed, match=r"1\.2 was announced before 1\.1 had ended well"):
        story.judge_walk([first, operation(id="1.2", announced_at=end - timedelta(seconds=1))])
    failed = started(T0, status=EventStatus.FAILED, ended_at=end)
    with pytest.raises(story.DemoFailed, match=r"1\.2 was announced before 1\.1 had ended well"):
        story.judge_walk([failed, operation(id="1.2", announced_at=end)])


def test_what_happens_to_an_operation_is_told_once() -> None:
    announced = operation()
    what = "Reboot of web-0, web-3"
    assert stage.news(None, announced) == [
        f"{what} is announced: starts by 12:15:00Z (notice 15m), sooner if approved"
    ]
    assert stage.news(announced, announced) == []
    begun = started(T0, events=approved(T0), start_cause=StartCause.APPROVED)
    assert stage.news(announced, begun) == [
        f"{what} is approved by web-0",
        f"{what} starts: all approved",
    ]
    late = started(T0 + NOTICE, start_cause=StartCause.NOTICE_OVER)
    assert stage.news(announced, late) == [f"{what} starts: nobody approved, the notice is over"]
    done = started(T0, status=EventStatus.COMPLETED, took_seconds=180.0)
    assert stage.news(begun, done) == [f"{what} is completed after 3m"]


def test_acts_are_played_side_by_side_until_the_last_is_over() -> None:
    played = []

    def act(name: str, turns: int) -> story.Act:
        for _ in range(turns):
            played.append(name)
            yield

    turns = sum(1 for _ in story.together(act("a", 1), act("b", 3)))
    assert played == ["a", "b", "b", "b"]
    assert turns == 4


def test_the_cast_is_the_fleet() -> None:
    wanted = fleet.flatten(msgspec.convert(cast.fleet(), fleet.Fleet))
    named = [member.name for group in wanted for member in group.members]
    assert sorted(named) == sorted(guest.machine for guest in cast.GUESTS)
    assert {name for domain in cast.WEB_DOMAINS for name in domain} <= set(named)
    on_host = {m.name for group in wanted for m in group.members if m.placed.host == cast.HOST}
    assert on_host == set(cast.HOST_LEADERS)
