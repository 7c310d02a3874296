"""The trace is silent about a sound drain, and red about each fault.

Its other faults are told by kills/faults.txt.
"""

import itertools
from datetime import UTC, datetime
from typing import Any

from forewarn.maintenance.model import Drain, DrainGuest, HostState
from trace_judge import Trace

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


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
