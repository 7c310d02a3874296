"""The trace is silent about a sound story, and red about each fault."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from kills.judge import ServiceTrace

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def sound() -> ServiceTrace:
    trace = ServiceTrace()
    trace.read("guest", "web", 0, ())
    trace.read("guest", "web", 1, ("reboot",))
    trace.read("other", "web", 1, ("reboot",))
    trace.started("1.1", NOON, NOON, approved=False)
    trace.started("2.1", NOON - MINUTE, NOON, approved=True)
    trace.carried_out("1.1", "web-0", 1)
    trace.down("1.1", "web", 0, NOON, NOON + 2 * MINUTE)
    trace.down("2.1", "web", 0, NOON + MINUTE, NOON + 3 * MINUTE)
    trace.down("3.1", "web", 1, NOON + 3 * MINUTE, NOON + 4 * MINUTE)
    trace.down("4.1", "batch", 1, NOON, NOON + MINUTE)
    trace.shown("guest", "web", [("1.1", 0), ("2.1", 0)])
    trace.ended("1.1", "Completed")
    trace.ended("1.1", "Completed")
    trace.at_last("web", 2)
    return trace


def test_a_sound_story_has_no_complaints() -> None:
    assert sound().complaints == []


@pytest.mark.parametrize(
    "fault",
    [
        lambda trace: trace.read("guest", "web", 0, ()),
        lambda trace: trace.read("third", "web", 1, ()),
        lambda trace: trace.at_last("web", 0),
        lambda trace: trace.started("3.1", NOON - MINUTE, NOON, approved=False),
        lambda trace: trace.carried_out("1.1", "web-0", 2),
        lambda trace: trace.down("5.1", "web", 2, NOON + 2 * MINUTE, NOON + 3 * MINUTE),
        lambda trace: trace.shown("guest", "web", [("1.1", 0), ("2.1", 1)]),
        lambda trace: trace.ended("1.1", "Failed"),
    ],
)
def test_each_fault_is_a_complaint(fault: Callable[[ServiceTrace], None]) -> None:
    trace = sound()
    fault(trace)
    assert trace.complaints
