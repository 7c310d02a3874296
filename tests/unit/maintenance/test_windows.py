"""Windows: nothing starts before they open; what has not started when they close is cancelled."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import invariants
from forewarn.maintenance.model import HoldKind, Refused
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType

REBOOT = EventType.REBOOT
HOUR = timedelta(hours=1)
OPENS, CLOSES = NOW + HOUR, NOW + 2 * HOUR
AHEAD = HOUR - 15 * MINUTE - SECOND
"""How long until guests hear of what is asked for now, so that their notice ends at OPENS."""
STARTED, CANCELED, SCHEDULED = EventStatus.STARTED, EventStatus.CANCELED, EventStatus.SCHEDULED


def asked(*machines: str, **more: Any) -> Bench:
    bench = Bench()
    bench.ask(REBOOT, *machines, **({"opens_at": OPENS, "closes_at": CLOSES} | more))
    return bench


def test_machines_hear_of_it_when_their_notice_ends_as_the_window_opens() -> None:
    bench = asked("web-0")
    early = bench.operation("1.1")
    assert (early.status, early.waits_for, early.not_before) == (EventStatus.QUEUED, "", OPENS)
    assert bench.scope("web").incarnation == 0
    assert early.wakeup_at == early.announced_at == NOW + AHEAD
    bench.let_pass(AHEAD - SECOND)
    assert bench.operation("1.1").status is EventStatus.QUEUED
    bench.let_pass(SECOND)
    announced = bench.operation("1.1")
    assert (announced.status, announced.announced_at) == (SCHEDULED, NOW + AHEAD)
    assert announced.not_before == OPENS


def test_a_longer_notice_begins_earlier() -> None:
    bench = asked("web-0", notice_seconds=1800)
    assert bench.operation("1.1").announced_at == OPENS - 30 * MINUTE - SECOND
    late = asked("web-0", notice_seconds=5400)
    assert (late.operation("1.1").status, late.operation("1.1").not_before) == (
        SCHEDULED,
        NOW + 90 * MINUTE,
    )


def test_one_whose_window_lies_ahead_keeps_no_other_domain_waiting() -> None:
    bench = asked("web-0")
    bench.ask(REBOOT, "web-1")
    assert bench.operation("2.1").status is SCHEDULED
    bench.let_pass(50 * MINUTE)
    assert bench.operation("1.1").waits_for == "2.1"
    bench.finish("2.1")
    assert bench.operation("1.1").status is SCHEDULED


def test_an_approved_event_does_not_start_before_its_window_opens() -> None:
    bench = asked("web-0")
    bench.let_pass(AHEAD)
    bench.approve(bench.event("1.1").id)
    assert bench.operation("1.1").not_before == OPENS
    assert bench.operation("1.1").wakeup_at == OPENS
    bench.let_pass(HOUR - AHEAD - SECOND)
    assert bench.operation("1.1").status is SCHEDULED
    bench.let_pass(SECOND)
    assert bench.operation("1.1").status is STARTED


def test_guests_read_a_not_before_that_lies_in_the_window() -> None:
    assert asked("web-0").operation("1.1").not_before == OPENS
    soon = asked("web-0", opens_at=NOW + MINUTE)
    assert soon.operation("1.1").not_before == NOW + 15 * MINUTE
    assert asked("web-0", not_before=NOW + 90 * MINUTE).operation("1.1").not_before == (
        NOW + 90 * MINUTE
    )


def test_what_an_open_window_has_approved_starts_before_its_not_before() -> None:
    bench = asked("web-0", opens_at=NOW + MINUTE)
    bench.let_pass(2 * MINUTE)
    bench.approve(bench.event("1.1").id)
    assert bench.operation("1.1").status is STARTED


def test_an_automatic_approval_waits_for_the_window() -> None:
    bench = Bench()
    bench.ask(REBOOT, "FrontEnd_IN_0", source=EventSource.USER, opens_at=OPENS)
    bench.let_pass(HOUR - 2 * SECOND)
    assert bench.operation("1.1").status is EventStatus.QUEUED
    bench.let_pass(2 * SECOND)
    assert bench.operation("1.1").status is STARTED


def test_what_needs_no_notice_starts_when_its_window_opens_and_not_a_fraction_earlier() -> None:
    bench = Bench()
    opens = OPENS + SECOND / 2
    bench.ask(REBOOT, "FrontEnd_IN_0", source=EventSource.USER, opens_at=opens)
    bench.let_pass(HOUR + SECOND / 4)
    assert bench.operation("1.1").status is EventStatus.QUEUED
    bench.let_pass(SECOND / 4)
    assert bench.operation("1.1").started_at == opens


def test_what_is_postponed_in_its_window_is_announced_so_much_later() -> None:
    bench = asked("web-0")
    before = bench.operation("1.1").wakeup_at
    assert before is not None
    bench.postpone("1.1", to=OPENS + 30 * MINUTE)
    assert bench.operation("1.1").wakeup_at == before + 30 * MINUTE
    bench.let_pass(before + 30 * MINUTE - bench.now)
    assert bench.operation("1.1").status is SCHEDULED
    assert bench.operation("1.1").not_before == OPENS + 30 * MINUTE


def test_the_time_of_the_close_is_too_late_to_start() -> None:
    bench = asked("web-0")
    bench.let_pass(50 * MINUTE)
    bench.now = CLOSES
    bench.approve(bench.event("1.1").id)
    assert bench.operation("1.1").status is SCHEDULED
    bench.let_pass(0 * SECOND)
    assert bench.operation("1.1").status is CANCELED


def test_what_is_queued_is_cancelled_when_its_window_closes() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", not_before=NOW + 3 * HOUR)
    bench.ask(REBOOT, "web-1", opens_at=OPENS, closes_at=CLOSES)
    bench.let_pass(50 * MINUTE)
    assert bench.operation("2.1").waits_for == "1.1"
    assert bench.operation("2.1").wakeup_at == CLOSES
    bench.let_pass(70 * MINUTE)
    assert bench.operation("2.1").status is CANCELED


def test_what_waits_behind_a_window_that_is_too_short_goes_on() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1", closes_at=CLOSES)
    bench.ask(REBOOT, "web-4")
    bench.ask(REBOOT, "web-2")
    assert bench.operation("4.1").waits_for == "1.1"
    bench.let_pass(2 * HOUR - 10 * MINUTE)
    bench.finish("1.1")
    assert bench.operation("3.1").status is SCHEDULED
    assert bench.operation("4.1").waits_for == "3.1"


def test_the_next_unit_has_the_window_that_was_asked_for() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web", opens_at=OPENS, closes_at=CLOSES)
    assert bench.unit("web/0").state is UnitState.RUNNING
    bench.let_pass(AHEAD)
    bench.let_pass(HOUR - AHEAD)
    bench.finish("1.1")
    following = bench.operation("1.2")
    assert following.status is SCHEDULED
    assert (following.closes_at, following.not_before) == (CLOSES, OPENS + 15 * MINUTE)


def test_a_maintenance_is_stopped_with_the_unit_whose_window_closes_before_it_has_started() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web", opens_at=OPENS, closes_at=CLOSES)
    bench.hold(HoldKind.EVERYTHING)
    bench.let_pass(2 * HOUR)
    assert bench.operation("1.1").status is CANCELED
    assert {unit.state for unit in bench.maintenance().units} == {UnitState.SKIPPED}
    assert bench.maintenance().state is MaintenanceState.STOPPED


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"closes_at": NOW}, ErrorCode.INVALID),
        ({"closes_at": OPENS}, ErrorCode.INVALID),
        ({"not_before": OPENS - MINUTE}, ErrorCode.INVALID),
        ({"not_before": CLOSES}, ErrorCode.INVALID),
        ({"opens_at": OPENS.replace(tzinfo=None)}, ErrorCode.INVALID),
        ({"closes_at": CLOSES.replace(tzinfo=None)}, ErrorCode.INVALID),
        ({"no_notice": True}, ErrorCode.INVALID),
        ({"opens_at": None, "closes_at": NOW + 15 * MINUTE}, ErrorCode.NOTICE_TOO_SHORT),
    ],
)
def test_a_window_that_nothing_can_start_in_is_refused(
    more: dict[str, Any], code: ErrorCode
) -> None:
    with pytest.raises(Refused) as refused:
        asked("web-0", **more)
    assert refused.value.code is code


def test_nothing_is_postponed_out_of_its_window() -> None:
    bench = asked("web-0")
    with pytest.raises(Refused) as refused:
        bench.postpone("1.1", to=CLOSES)
    assert refused.value.code is ErrorCode.NOT_ELIGIBLE
    bench.postpone("1.1", to=CLOSES - SECOND)


def test_the_invariants_see_a_start_outside_its_window() -> None:
    bench = asked("web-0")
    bench.let_pass(AHEAD)
    bench.let_pass(HOUR - AHEAD)
    operation = bench.operation("1.1")
    for wrong in (
        {"opens_at": NOW + HOUR + SECOND},
        {"closes_at": NOW + HOUR},
    ):
        with pytest.raises(invariants.InvariantBroken):
            invariants.check_operation(msgspec.structs.replace(operation, **wrong))
    announced = asked("web-0")
    announced.let_pass(AHEAD)
    early = msgspec.structs.replace(announced.operation("1.1"), not_before=OPENS - SECOND)
    with pytest.raises(invariants.InvariantBroken):
        invariants.check_operation(early)
