"""The demo finds an end that its story does not have, and has a guest in each machine."""

import tomllib
from types import SimpleNamespace
from typing import Any

import msgspec

from forewarn.cli import demo
from forewarn.maintenance import fleet_file
from forewarn.vocabulary import EventStatus, EventType


def operation(status: EventStatus, event_type: EventType = EventType.REBOOT) -> Any:
    """What the demo looks at of an operation that is over."""
    return SimpleNamespace(id="1.1", event_type=event_type, status=status)


def test_an_end_that_the_story_does_not_have_is_found() -> None:
    completed = operation(EventStatus.COMPLETED)
    canceled = operation(EventStatus.CANCELED, EventType.REDEPLOY)
    assert not demo.wrong_end([completed, canceled])
    assert demo.wrong_end([completed, operation(EventStatus.CANCELED)])
    assert demo.wrong_end([operation(EventStatus.FAILED)])


def test_every_machine_of_the_fleet_has_a_guest() -> None:
    wanted = fleet_file.flatten(msgspec.convert(tomllib.loads(demo.FLEET), fleet_file.Fleet))
    named = [member.name for group in wanted for member in group.members]
    assert sorted(named) == sorted(guest.machine for guest in demo.GUESTS)
