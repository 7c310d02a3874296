"""Scopes on and off, silent events, users' limit, outages, and failures that are noted."""

from datetime import timedelta
from functools import partial

import pytest

from builders import FLEET, MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import commands, fleet_file
from forewarn.maintenance.model import (
    Enablement,
    HoldKind,
    Policy,
    Refused,
    StartCause,
)
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, UnitState
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType

REBOOT = EventType.REBOOT
FIRST_REQUEST = Policy(enablement=Enablement.FIRST_REQUEST)
HOUR = timedelta(hours=1)


def off() -> Bench:
    bench = Bench()
    bench.policy = FIRST_REQUEST
    return bench


def test_a_scope_is_always_on_unless_the_settings_say_otherwise() -> None:
    assert Policy().is_on(Bench().scope("web"), NOW)
    assert not FIRST_REQUEST.is_on(Bench().scope("web"), NOW)


def test_a_scope_is_on_from_its_first_request_for_24_hours() -> None:
    bench = off()
    decision = bench.decide(commands.record_requests, ("web",))
    assert [s.key for s in decision.changes.scopes] == ["web"]
    web = bench.scope("web")
    assert web.asked_at == NOW
    assert web.incarnation == 0
    assert FIRST_REQUEST.is_on(web, NOW + 24 * HOUR - SECOND)
    assert not FIRST_REQUEST.is_on(web, NOW + 24 * HOUR)


def test_a_clock_that_was_set_back_makes_a_request_for_events_no_older() -> None:
    bench = off()
    bench.decide(commands.record_requests, ("web",))
    bench.now -= HOUR
    assert not bench.decide(commands.record_requests, ("web",)).changes
    assert bench.scope("web").asked_at == NOW
    bench.now += HOUR + SECOND
    bench.decide(commands.record_requests, ("web",))
    assert bench.scope("web").asked_at == NOW + SECOND


def test_what_is_off_is_not_stopped_unless_the_operator_says_so() -> None:
    bench = off()
    bench.decide(commands.record_requests, ("bastion",))
    with pytest.raises(Refused) as refusal:
        bench.ask(REBOOT, "web-0", "bastion")
    assert refusal.value.code is ErrorCode.NOT_ELIGIBLE
    assert refusal.value.facts == {"scope": "web"}
    assert bench.ask(REBOOT, "bastion").operations[0].status is EventStatus.SCHEDULED


def test_a_silent_operation_starts_at_once_and_no_guest_sees_it() -> None:
    bench = off()
    decision = bench.ask(REBOOT, "web-0", without_notice=True)
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.STARTED
    assert operation.start_cause is StartCause.SILENT
    assert operation.events[0].silent
    assert operation.events[0].published == 0
    assert decision.changes.scopes == ()
    with pytest.raises(Refused):
        bench.approve(operation.events[0].id, scope="web")
    assert bench.finish("1.1").changes.scopes == ()


def test_what_is_silent_waits_for_the_other_domain_all_the_same() -> None:
    bench = off()
    bench.ask(REBOOT, "web-0", without_notice=True)
    bench.ask(REBOOT, "web-1", without_notice=True)
    assert bench.operation("2.1").waits_for == "1.1"
    bench.finish("1.1")
    assert bench.operation("2.1").start_cause is StartCause.SILENT


def test_an_event_once_announced_keeps_its_notice_though_its_scope_turns_off() -> None:
    bench = off()
    bench.decide(commands.record_requests, ("web",))
    bench.ask(REBOOT, "web-0", not_before=NOW + 30 * HOUR)
    bench.let_pass(29 * HOUR)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.let_pass(HOUR)
    assert bench.operation("1.1").start_cause is StartCause.NOTICE_OVER


def queued(*, on: bool) -> Bench:
    """A reboot of web-1 queued behind one of web-0, in a scope that was on or off then."""
    bench = off()
    if on:
        bench.decide(commands.record_requests, ("web",))
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1", without_notice=True)
    assert bench.operation("2.1").status is EventStatus.QUEUED
    return bench


def test_an_event_that_was_queued_has_its_notice_though_its_scope_turns_off() -> None:
    bench = queued(on=True)
    bench.now += 25 * HOUR
    bench.finish("1.1")
    announced = bench.operation("2.1")
    assert announced.status is EventStatus.SCHEDULED
    assert not announced.silent
    assert announced.not_before == bench.now + 15 * MINUTE


def test_an_event_that_was_queued_has_its_notice_when_its_scope_turns_on() -> None:
    bench = queued(on=False)
    bench.decide(commands.record_requests, ("web",))
    bench.finish("1.1")
    announced = bench.operation("2.1")
    assert announced.status is EventStatus.SCHEDULED
    assert not announced.silent
    assert bench.event("2.1").published == bench.scope("web").incarnation


def test_an_event_that_was_queued_starts_without_notice_where_its_scope_is_still_off() -> None:
    bench = queued(on=False)
    bench.finish("1.1")
    assert bench.operation("2.1").start_cause is StartCause.SILENT


@pytest.mark.parametrize("without_notice", [True, False])
def test_the_next_unit_of_a_scope_that_has_turned_off(without_notice: bool) -> None:
    bench = off()
    bench.decide(commands.record_requests, ("web",))
    bench.ask(REBOOT, scope="web", without_notice=without_notice)
    bench.approve(bench.event("1.1").id)
    bench.now += 25 * HOUR
    bench.finish("1.1")
    if without_notice:
        assert bench.operation("1.2").start_cause is StartCause.SILENT
        return
    assert "1.2" not in bench.snapshot.operations
    assert bench.maintenance().state is MaintenanceState.HALTED
    assert bench.unit("web/1").state is UnitState.FAILED
    assert "web is off" in bench.unit("web/1").reason
    bench.decide(commands.record_requests, ("web",))
    bench.order(MaintenanceOrder.RETRY, "web/1")
    bench.order(MaintenanceOrder.RESUME)
    assert bench.operation("1.2").status is EventStatus.SCHEDULED
    assert bench.unit("web/1").reason == ""


def test_a_failure_needs_nobodys_leave() -> None:
    bench = off()
    bench.ask(REBOOT, "web-0", no_notice=True)
    assert bench.operation("1.1").start_cause is StartCause.NO_NOTICE


def test_users_have_a_limit_of_pending_events_and_the_platform_has_none() -> None:
    bench = Bench()
    bench.policy = Policy(user_initiated_limit=2)
    bench.ask(REBOOT, "firm_0", source=EventSource.USER)
    with pytest.raises(Refused) as refusal:
        bench.ask(REBOOT, "web-0", "bastion", source=EventSource.USER)
    assert refusal.value.code is ErrorCode.LIMIT
    assert refusal.value.facts == {"pending": 1, "limit": 2}
    assert bench.ask(REBOOT, "web-0", source=EventSource.USER).operations
    assert bench.ask(REBOOT, "bastion", "web-3", "batch_0").operations


def test_an_outage_moves_every_notice_by_its_length_and_starts_nothing() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "bastion")
    bench.ask(REBOOT, "batch_0", no_notice=True)
    bench.decide(commands.record_requests, ("web",))
    bench.now += 2 * HOUR
    length = 2 * HOUR - timedelta(milliseconds=500)
    decision = bench.decide(commands.extend_notices, length)
    assert [o.id for o in decision.operations] == ["1.1", "1.2"]
    assert bench.operation("1.2").not_before == NOW + 2 * HOUR + 15 * MINUTE
    assert bench.scope("web").incarnation == 2
    assert bench.scope("batch").incarnation == 1
    assert bench.scope("web").asked_at == NOW + length
    assert not bench.decide(commands.advance_time).operations
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.2").start_cause is StartCause.NOTICE_OVER


def test_after_an_outage_what_waited_has_its_notice_back_but_for_what_is_approved() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.approve(bench.event("1.1").id)
    bench.approve(bench.event("2.1").id)
    bench.let_pass(15 * MINUTE)
    bench.decide(commands.extend_notices, HOUR)
    assert bench.operation("2.1").waits_for == "1.1"
    assert bench.operation("3.1").waits_for == ""
    bench.finish("1.1")
    assert bench.operation("2.1").status is EventStatus.STARTED
    assert bench.operation("3.1").status is EventStatus.SCHEDULED


def test_a_failure_is_noted_once_and_nothing_else_is() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "bastion", no_notice=True)
    bench.finish("1.1", succeeded=False)
    noted = partial(commands.acknowledge_failures, operations=("1.1",), even_if_down=True)
    assert bench.decide(noted, by="ann").operations[0].acknowledged_by == "ann"
    bench.decide(noted, by="bob")
    assert bench.operation("1.1").acknowledged_by == "ann"
    with pytest.raises(Refused) as refusal:
        bench.decide(commands.acknowledge_failures, operations=("1.2",), by="ann")
    assert refusal.value.code is ErrorCode.CONFLICT
    assert refusal.value.facts == {"operation": "1.2"}


def test_a_fleet_file_does_not_turn_a_scope_off() -> None:
    bench = off()
    bench.decide(commands.record_requests, ("web",))
    bench.now += MINUTE
    applied = fleet_file.apply(bench.snapshot.world(), FLEET, prune=False, mint=bench.mint)
    assert not [scope for scope in applied.changes.scopes if scope.key == "web"]


HALTED = Policy(starts=False)


def test_while_nothing_may_start_what_gets_ready_stays_due() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "bastion")
    bench.policy = HALTED
    bench.approve(bench.event("1.2").id, scope="web")
    assert bench.operation("1.2").approved
    assert bench.operation("1.2").status is EventStatus.SCHEDULED
    assert not bench.let_pass(20 * MINUTE).changes
    bench.policy = Policy()
    bench.let_pass(SECOND)
    assert bench.operation("1.1").start_cause is StartCause.NOTICE_OVER
    assert bench.operation("1.2").start_cause is StartCause.APPROVED


def test_while_nothing_may_start_what_approves_itself_is_only_announced() -> None:
    bench = Bench()
    bench.policy = HALTED
    bench.ask(REBOOT, "FrontEnd_IN_0", source=EventSource.USER)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert bench.operation("1.1").approved
    bench.ask(REBOOT, "web-0", no_notice=True)
    assert bench.operation("2.1").status is EventStatus.STARTED
    bench.policy = Policy()
    bench.let_pass(SECOND)
    assert bench.operation("1.1").start_cause is StartCause.APPROVED


def test_while_nothing_may_start_the_end_of_one_frees_the_next_and_starts_it_later() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.let_pass(15 * MINUTE)
    bench.policy = HALTED
    bench.finish("1.1")
    assert bench.operation("2.1").waits_for == ""
    assert bench.operation("2.1").status is EventStatus.SCHEDULED
    bench.policy = Policy()
    bench.let_pass(SECOND)
    assert bench.operation("2.1").status is EventStatus.STARTED
    assert bench.operation("3.1").waits_for == "2.1"


# What starts at once, and a NotBefore that is asked for all the same.


def test_a_silent_operation_waits_for_the_not_before_that_was_asked_for() -> None:
    bench = off()
    bench.ask(REBOOT, "web-0", without_notice=True, not_before=NOW + HOUR)
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.SCHEDULED
    assert operation.not_before == NOW + HOUR
    assert operation.wakeup_at == NOW + HOUR
    bench.let_pass(HOUR - SECOND)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.let_pass(SECOND)
    assert bench.operation("1.1").start_cause is StartCause.SILENT


def test_an_operator_may_start_a_silent_operation_before_its_not_before() -> None:
    bench = off()
    bench.ask(REBOOT, "web-0", without_notice=True, not_before=NOW + HOUR)
    bench.approve(bench.operation("1.1").events[0].id)
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_a_held_silent_operation_keeps_its_not_before() -> None:
    bench = off()
    bench.hold(HoldKind.EVERYTHING)
    bench.ask(REBOOT, "web-0", without_notice=True)
    bench.let_pass(HOUR)
    assert bench.operation("1.1").not_before == NOW
    bench.release(HoldKind.EVERYTHING)
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_a_users_own_maintenance_waits_for_the_not_before_that_was_asked_for() -> None:
    bench = Bench()
    asked = NOW + 5 * MINUTE
    bench.ask(REBOOT, "FrontEnd_IN_0", source=EventSource.USER, not_before=asked)
    operation = bench.operation("1.1")
    assert (operation.status, operation.not_before) == (EventStatus.SCHEDULED, asked)
    assert operation.events[0].approval is None
    bench.let_pass(5 * MINUTE)
    assert bench.operation("1.1").start_cause is StartCause.NOTICE_OVER


@pytest.mark.parametrize("late", [SECOND, HOUR, 400 * 24 * HOUR])
def test_a_not_before_in_the_past_is_refused_where_an_operation_starts_at_once(
    late: timedelta,
) -> None:
    for bench, name, more in (
        (off(), "web-0", {"without_notice": True}),
        (Bench(), "FrontEnd_IN_0", {"source": EventSource.USER}),
    ):
        with pytest.raises(Refused) as refusal:
            bench.ask(REBOOT, name, not_before=NOW - late, **more)
        assert refusal.value.code is ErrorCode.NOTICE_TOO_SHORT
        assert refusal.value.facts == {"earliest": NOW.isoformat()}
        bench.ask(REBOOT, name, not_before=NOW, **more)
        assert [o.status for o in bench.snapshot.operations.values()] == [EventStatus.STARTED]


def test_a_not_before_years_off_is_refused_where_an_operation_starts_at_once() -> None:
    with pytest.raises(Refused) as refusal:
        off().ask(REBOOT, "web-0", without_notice=True, not_before=NOW + 400 * 24 * HOUR)
    assert refusal.value.code is ErrorCode.INVALID
