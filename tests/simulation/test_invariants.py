"""The trace is silent about a sound story, and red about each fault."""

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from forewarn.maintenance.model import Drain, DrainGuest, HostState
from kills.judge import ServiceTrace
from trace_judge import Trace

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


def drain(state: HostState, **more: Any) -> Drain:
    if state is HostState.STUCK:
        more = {"stuck_in": HostState.DRAINING, "reason": "no route"} | more
    return Drain(host="h1", state=state, requested_at=NOON, changed_at=NOON, **more)


def drained(*states: HostState, ordered: bool = False, **more: Any) -> list[str]:
    """Let a drain go through these states; what follows a stuck one is ordered, or not."""
    trace, before = Trace(), drain(states[0])
    for state in states[1:]:
        after = drain(state, **more)
        trace.drained(before, after, ordered=ordered and before.state is HostState.STUCK)
        before = after
    return trace.complaints


TO_REBOOT = (HostState.DRAINING, HostState.EMPTY, HostState.REBOOTING)


def test_a_drain_may_do_again_what_an_operator_orders() -> None:
    assert drained(*TO_REBOOT, HostState.STUCK, *TO_REBOOT, ordered=True) == []
    home = (HostState.BACK, HostState.RETURNING, HostState.UP, *TO_REBOOT)
    assert drained(*TO_REBOOT, *home) == []


def test_a_drain_that_goes_on_skips_a_state_or_asks_again_unordered_is_a_complaint() -> None:
    unordered = drained(*TO_REBOOT, HostState.STUCK, *TO_REBOOT)
    assert ["without an order" in complaint for complaint in unordered] == [True]
    assert drained(HostState.DRAINING, HostState.REBOOTING)
    asked = drain(HostState.DRAINING, guests=(DrainGuest(name="web-0", vm_id="1", leaves_by=7),))
    again = drain(HostState.DRAINING, guests=(DrainGuest(name="web-0", vm_id="1", leaves_by=8),))
    for ordered in (False, True):
        trace = Trace()
        trace.drained(asked, again, ordered=ordered)
        assert bool(trace.complaints) != ordered


def test_a_host_that_is_rebooted_again_without_an_order_is_a_complaint() -> None:
    trace = Trace()
    for before, after in itertools.pairwise((*TO_REBOOT, HostState.EMPTY, HostState.REBOOTING)):
        trace.drained(drain(before), drain(after), ordered=False)
    assert any("reboots it again" in complaint for complaint in trace.complaints)
