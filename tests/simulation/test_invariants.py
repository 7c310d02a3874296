"""The trace is silent about a sound drain, and red about each fault; and so are units of hosts.

Its other faults are told by kills/faults.txt.
"""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from builders import maintenance
from forewarn.maintenance.model import Changes, Drain, DrainGuest, HostState
from forewarn.maintenance.units import UnitState
from simulation.turn_judge import TurnJudge, Wrong
from store.model import Model
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


@pytest.mark.parametrize("reboots", [False, True])
def test_a_unit_that_drains_its_host_again_after_the_reboot_is_wrong(reboots: bool) -> None:
    memory = Model()
    judge = TurnJudge(memory)

    def see(unit: UnitState, state: HostState, requested: timedelta = timedelta()) -> None:
        of = maintenance("h1")
        its = msgspec.structs.replace(of.units[0], drain=True, state=unit)
        after = msgspec.structs.replace(drain(state), requested_at=NOON + requested)
        of = msgspec.structs.replace(of, units=(its,))
        changes = Changes(maintenances=(of,), drains=(after,))
        judge.see(changes, NOON)
        memory.save(changes)

    see(UnitState.RUNNING, HostState.DRAINING)
    for state in (HostState.EMPTY, HostState.REBOOTING, HostState.BACK)[: 3 if reboots else 1]:
        see(UnitState.RUNNING, state)
    see(UnitState.FAILED, HostState.UP)
    with judge.ordering(1):
        see(UnitState.WAITING, HostState.UP)
    if not reboots:
        see(UnitState.RUNNING, HostState.DRAINING, timedelta(hours=1))
        return
    with pytest.raises(Wrong):
        see(UnitState.RUNNING, HostState.DRAINING, timedelta(hours=1))
