"""What the demo checks at its end can fail, and what it tells is what happened."""

from datetime import UTC, datetime, timedelta

import msgspec

from forewarn.cli.demo import show, story
from forewarn.maintenance import fleet
from forewarn.maintenance.model import StartCause
from forewarn.server.operator import schemas
from forewarn.vocabulary import ApproverKind, EventSource, EventStatus, EventType, TargetKind

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
        target=TargetKind.MACHINES,
        live_migration=False,
        waits_for="",
        waits_for_machines=(),
        carried_out_at=None,
        awaited=(),
        back_by=None,
        up_at=None,
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


END = T0 + timedelta(minutes=40)


def test_a_start_before_its_time_without_approval_is_found() -> None:
    early = T0 + NOTICE / 2
    assert not story.judge([operation(), started(T0 + NOTICE, ended_at=END)])
    assert not story.judge([started(early, ended_at=END, events=approved(early))])
    assert story.judge([started(T0 + NOTICE - timedelta(seconds=1), ended_at=END)])
    assert story.judge([started(T0 + NOTICE / 3, ended_at=END, events=approved(early))])


def test_two_domains_down_at_once_are_found_unless_one_is_preempted() -> None:
    one = started(T0 + NOTICE, ended_at=END)
    (event,) = one.events
    other = (msgspec.structs.replace(event, update_domain=1),)
    within = started(END - timedelta(minutes=1), id="2.1", ended_at=END, events=other)
    after = started(END, id="2.1", ended_at=END + NOTICE, events=other)
    beside = started(END - timedelta(minutes=1), id="2.1", ended_at=END)
    preempted = msgspec.structs.replace(within, event_type=EventType.PREEMPT)
    assert not story.judge([after, one])
    assert not story.judge([one, beside])
    assert not story.judge([one, preempted])
    assert story.judge([within, one])


def test_a_step_that_is_announced_too_soon_is_found() -> None:
    end = T0 + timedelta(minutes=3)
    first = started(T0, status=EventStatus.COMPLETED, ended_at=end)
    following = operation(id="1.2", announced_at=end)
    assert not story.judge_steps([first, following])
    soon = operation(id="1.2", announced_at=end - timedelta(seconds=1))
    assert story.judge_steps([first, soon])
    failed = started(T0, status=EventStatus.FAILED, ended_at=end)
    assert story.judge_steps([failed, following])


def test_what_happens_to_an_operation_is_told() -> None:
    announced = show.facts(operation())
    assert len(announced) == 1
    begun = show.facts(started(T0, events=approved(T0), start_cause=StartCause.APPROVED))
    assert begun[:1] == announced
    assert begun[1].endswith("approved by web-0")
    late = show.facts(started(T0 + NOTICE, start_cause=StartCause.NOTICE_OVER))
    assert late[:1] == announced
    assert len(late) == 2
    assert late[1] != begun[2]
    (queued,) = show.facts(operation(status=EventStatus.QUEUED, waits_for="7.1"))
    assert queued != announced[0]
    assert "7.1" in queued
    back = started(T0, status=EventStatus.RETURNING)
    assert len(show.facts(back)) == 3
    done = started(T0, status=EventStatus.COMPLETED, took_seconds=180.0)
    assert len(show.facts(done)) == 3


def test_every_machine_of_the_fleet_has_a_guest() -> None:
    wanted = fleet.flatten(msgspec.convert(story.fleet(), fleet.Fleet))
    named = [member.name for group in wanted for member in group.members]
    assert sorted(named) == sorted(guest.machine for guest in story.GUESTS)
    on_host = {m.name for group in wanted for m in group.members if m.entry.host == story.HOST}
    assert on_host == story.HOST_LEADERS
