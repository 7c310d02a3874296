"""The demo finds an end that its story does not have, and has a guest in each machine."""

import tomllib
from datetime import UTC, datetime, timedelta

import msgspec

from forewarn.cli import demo
from forewarn.maintenance import fleet_file
from forewarn.server.operator import schemas
from forewarn.vocabulary import EventSource, EventStatus, EventType, TargetKind

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
        status_detail="",
        carried_out_at=None,
        awaited=(),
        back_by=None,
        up_at=None,
        held_at=None,
        hosts=(),
        unit=None,
        outcome_unknown="",
        outcome="",
        acknowledged_by="",
        attempt=0,
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


def test_an_end_that_the_story_does_not_have_is_found() -> None:
    completed = operation(status=EventStatus.COMPLETED)
    canceled = operation(event_type=EventType.REDEPLOY, status=EventStatus.CANCELED)
    assert not demo.wrong_end([completed, canceled])
    assert demo.wrong_end([completed, operation(status=EventStatus.CANCELED)])
    assert demo.wrong_end([operation(status=EventStatus.FAILED)])


def test_every_machine_of_the_fleet_has_a_guest() -> None:
    wanted = fleet_file.flatten(msgspec.convert(tomllib.loads(demo.FLEET), fleet_file.Fleet))
    named = [member.name for group in wanted for member in group.members]
    assert sorted(named) == sorted(guest.machine for guest in demo.GUESTS)
