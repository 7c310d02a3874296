"""What the demo checks at its end can fail, and what it tells is what happened."""

import tomllib
from datetime import UTC, datetime, timedelta

import msgspec

from forewarn.cli import demo
from forewarn.maintenance import fleet_file, model
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
    approval = model.Approval(kind=ApproverKind.GUEST, by="web-0", address="", at=at)
    (event,) = operation().events
    return (msgspec.structs.replace(event, approval=approval),)


def started(at: datetime, **changes: object) -> schemas.OperationView:
    values: dict[str, object] = {"status": EventStatus.STARTED, "started_at": at, **changes}
    return operation(**values)


END = T0 + timedelta(minutes=40)


def completed(at: datetime, **changes: object) -> schemas.OperationView:
    return started(at, **{"status": EventStatus.COMPLETED, "ended_at": END, **changes})


def test_a_start_before_its_time_without_approval_is_found() -> None:
    early = T0 + NOTICE / 2
    assert not demo.judge([completed(T0 + NOTICE)])
    assert not demo.judge([completed(early, events=approved(early))])
    assert demo.judge([completed(T0 + NOTICE - timedelta(seconds=1))])
    assert demo.judge([completed(T0 + NOTICE / 3, events=approved(early))])


def test_two_domains_down_at_once_are_found_unless_one_is_preempted() -> None:
    (event,) = operation().events
    batch = (msgspec.structs.replace(event, scope="batch"),)
    other = (msgspec.structs.replace(event, scope="batch", update_domain=1),)
    one = completed(T0 + NOTICE, events=batch)
    within = completed(END - timedelta(minutes=1), id="2.1", events=other)
    after = completed(END, id="2.1", ended_at=END + NOTICE, events=other)
    beside = completed(END - timedelta(minutes=1), id="2.1", events=batch)
    preempted = msgspec.structs.replace(within, event_type=EventType.PREEMPT)
    assert not demo.judge([after, one])
    assert not demo.judge([one, beside])
    assert not demo.judge([one, preempted])
    assert demo.judge([within, one])


def test_a_step_that_is_announced_too_soon_is_found() -> None:
    first = completed(T0 + NOTICE)
    times = {"not_before": END + NOTICE, "ended_at": END + 2 * NOTICE, "announced_at": END}
    following = completed(END + NOTICE, id="1.2", **times)
    assert not demo.judge([following, first])
    soon = msgspec.structs.replace(following, announced_at=END - timedelta(seconds=1))
    assert demo.judge([soon, first])


def test_an_end_that_the_story_does_not_have_is_found() -> None:
    canceled = operation(event_type=EventType.REDEPLOY, status=EventStatus.CANCELED, ended_at=END)
    assert not demo.judge([canceled])
    assert demo.judge([msgspec.structs.replace(canceled, event_type=EventType.FREEZE)])
    assert demo.judge([completed(T0 + NOTICE, status=EventStatus.FAILED)])


def test_every_machine_of_the_fleet_has_a_guest() -> None:
    wanted = fleet_file.flatten(msgspec.convert(tomllib.loads(demo.FLEET), fleet_file.Fleet))
    named = [member.name for group in wanted for member in group.members]
    assert sorted(named) == sorted(guest.machine for guest in demo.GUESTS)
