"""What follows from each cause, and what never follows."""

from datetime import timedelta
from functools import partial

import msgspec
import pytest

from builders import MINUTE, NOW, SECOND, Bench, mint
from forewarn.maintenance import commands
from forewarn.maintenance.model import AT_ONCE, Approval, Queueing, Refused, StartCause, Verdict
from forewarn.vocabulary import ApproverKind, ErrorCode, EventStatus, EventType

REBOOT = EventType.REBOOT


def test_an_announcement_moves_its_scope_and_no_other() -> None:
    bench = Bench()
    decision = bench.ask(REBOOT, "web-0")
    assert {scope.key: scope.incarnation for scope in decision.changes.scopes} == {"web": 1}
    assert bench.event("1.1").published == 1
    bench.ask(REBOOT, "web-3", "bastion")
    assert bench.scope("web").incarnation == 2
    assert bench.event("2.1").published == 1
    assert bench.event("2.2").published == 2


def test_events_announced_together_share_one_move() -> None:
    bench = Bench()
    bench.ask(EventType.PREEMPT, scope="batch")
    assert bench.scope("batch").incarnation == 1
    assert [bench.event(f"1.{n}").published for n in (1, 2)] == [1, 1]


def test_nothing_starts_before_its_not_before() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    early = bench.let_pass(15 * MINUTE - timedelta(microseconds=1))
    assert not early.changes
    assert not early.operations
    due = bench.let_pass(timedelta(microseconds=1))
    operation = bench.operation("1.1")
    assert due.operations == (operation,)
    assert operation.status is EventStatus.STARTED
    assert operation.start_cause is StartCause.NOTICE_OVER
    assert operation.started_at == NOW + 15 * MINUTE
    assert bench.scope("web").incarnation == 2
    assert bench.event("1.1").published == 1


def test_an_approval_starts_it_at_once_and_is_kept() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3")
    bench.now += MINUTE
    decision = bench.approve(bench.event("1.1").id.lower(), scope="web")
    operation = bench.operation("1.1")
    assert decision.operations == (operation,)
    assert operation.status is EventStatus.STARTED
    assert operation.start_cause is StartCause.APPROVED
    assert operation.started_at == NOW + MINUTE
    assert bench.event("1.1").approval == Approval(
        kind=ApproverKind.GUEST, by="web-0", address="10.0.0.10", at=NOW + MINUTE
    )


def test_approving_again_is_taken_and_changes_nothing() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    event_id = bench.event("1.1").id
    bench.approve(event_id, event_id, scope="web")
    first = bench.event("1.1").approval
    bench.now += MINUTE
    assert not bench.approve(event_id, scope="web").changes
    bench.finish("1.1")
    assert not bench.approve(event_id, scope="web").changes
    assert bench.event("1.1").approval == first


def test_an_event_that_ended_unapproved_stays_unapproved() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(20 * MINUTE)
    assert not bench.approve(bench.event("1.1").id, scope="web").changes
    assert bench.event("1.1").approval is None


def test_one_unknown_id_and_none_is_approved() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    unknown = mint("f")().upper()
    with pytest.raises(Refused) as refusal:
        bench.approve(bench.event("1.1").id, unknown, scope="web")
    assert refusal.value.code is ErrorCode.NOT_FOUND
    assert refusal.value.facts == {"event_id": unknown}
    assert bench.event("1.1").approval is None


def test_an_event_of_another_scope_is_unknown() -> None:
    bench = Bench()
    bench.ask(REBOOT, "bastion")
    event_id = bench.event("1.1").id
    with pytest.raises(Refused) as refusal:
        bench.approve(event_id, scope="web")
    assert refusal.value.facts == {"event_id": event_id}
    assert bench.approve(event_id, scope=None).operations


def test_one_update_domain_is_down_at_a_time_and_the_next_says_for_what_it_waits() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.let_pass(15 * MINUTE)
    assert [bench.operation(f"{n}.1").status for n in (1, 2, 3)] == [
        EventStatus.STARTED,
        EventStatus.SCHEDULED,
        EventStatus.SCHEDULED,
    ]
    assert [bench.operation(f"{n}.1").waits_for for n in (1, 2, 3)] == ["", "1.1", "1.1"]
    assert bench.scope("web").incarnation == 4
    bench.now += MINUTE
    bench.finish("1.1")
    assert bench.operation("2.1").status is EventStatus.STARTED
    assert bench.operation("2.1").started_at == bench.now
    assert bench.operation("2.1").waits_for == ""
    assert bench.operation("2.1").start_cause is StartCause.NOTICE_OVER
    assert bench.operation("3.1").waits_for == "2.1"
    bench.finish("2.1", succeeded=False)
    assert bench.operation("3.1").status is EventStatus.SCHEDULED
    bench.decide(commands.acknowledge_failures, operations=("2.1",), by="ann", even_if_down=True)
    assert bench.operation("3.1").status is EventStatus.STARTED


def test_what_waits_can_be_approved_and_cancelled() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.approve(bench.event("1.1").id)
    bench.approve(bench.event("2.1").id)
    assert bench.operation("2.1").status is EventStatus.SCHEDULED
    assert bench.operation("2.1").waits_for == "1.1"
    bench.let_pass(15 * MINUTE)
    assert bench.operation("3.1").waits_for == "1.1"
    bench.cancel("2.1")
    assert bench.operation("2.1").waits_for == ""
    bench.finish("1.1")
    assert bench.operation("2.1").status is EventStatus.CANCELED
    assert bench.operation("3.1").status is EventStatus.STARTED


def test_the_same_domain_and_other_scopes_do_not_wait() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "bastion", "batch_1")
    bench.ask(REBOOT, "web-3")
    bench.let_pass(15 * MINUTE)
    started = [o.status for o in bench.snapshot.operations.values()]
    assert started == [EventStatus.STARTED] * 4


def test_what_is_due_starts_in_the_order_of_not_before() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-1", not_before=NOW + 30 * MINUTE)
    bench.ask(REBOOT, "web-0", not_before=NOW + 20 * MINUTE)
    bench.let_pass(40 * MINUTE)
    assert bench.operation("2.1").status is EventStatus.STARTED
    assert bench.operation("1.1").waits_for == "2.1"


def test_a_failure_a_preemption_and_a_deletion_wait_for_nothing() -> None:
    bench = Bench()
    bench.ask(REBOOT, "batch_0")
    bench.approve(bench.event("1.1").id)
    bench.ask(EventType.PREEMPT, "batch_1")
    bench.ask(EventType.TERMINATE, "firm_0")
    bench.let_pass(10 * MINUTE)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(EventType.REDEPLOY, "web-1", no_notice=True)
    assert {o.status for o in bench.snapshot.operations.values()} == {EventStatus.STARTED}


def test_a_machine_has_one_live_event_at_a_time() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3")
    event_id = bench.event("1.1").id
    with pytest.raises(Refused) as refusal:
        bench.ask(EventType.FREEZE, "web-3", "web-1")
    assert refusal.value.code is ErrorCode.CONFLICT
    assert refusal.value.facts == {"machine": "web-3", "event_id": event_id, "operation": "1.1"}
    assert "cancel" in refusal.value.message
    bench.let_pass(15 * MINUTE)
    with pytest.raises(Refused) as refusal:
        bench.ask(REBOOT, "web-3", no_notice=True)
    assert "cancel" not in refusal.value.message
    bench.finish("1.1")
    assert bench.ask(EventType.FREEZE, "web-3").operations


@pytest.mark.parametrize(
    ("event_type", "machines", "more"),
    [
        (EventType.PREEMPT, ("batch_0", "batch_2"), {}),
        (EventType.TERMINATE, ("firm_0",), {}),
        (EventType.REDEPLOY, ("batch_0", "batch_2"), {"no_notice": True}),
    ],
)
def test_what_is_stronger_supersedes_what_is_pending(
    event_type: EventType, machines: tuple[str, ...], more: dict[str, bool]
) -> None:
    bench = Bench()
    bench.ask(REBOOT, *machines)
    decision = bench.ask(event_type, machines[0], **more)
    superseded = bench.operation("1.1")
    assert superseded.status is EventStatus.CANCELED
    assert superseded.outcome == "superseded by 2.1"
    assert superseded.ended_at == NOW
    assert {o.id for o in decision.changes.operations} == {"1.1", "2.1"}
    assert [o.id for o in decision.operations] == ["2.1"]
    assert bench.scope(machines[0].partition("_")[0]).incarnation == 2


def test_a_cancelled_operation_is_gone_and_says_why() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.now += MINUTE
    decision = bench.cancel("1.1")
    operation = bench.operation("1.1")
    assert decision.operations == (operation,)
    assert operation.status is EventStatus.CANCELED
    assert (operation.ended_at, operation.outcome) == (NOW + MINUTE, "not now")
    assert bench.scope("web").incarnation == 2
    assert not bench.let_pass(MINUTE * 30).changes


def test_what_has_started_can_not_be_cancelled() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    with pytest.raises(Refused) as refusal:
        bench.cancel("1.1")
    assert refusal.value.code is ErrorCode.TOO_LATE
    with pytest.raises(Refused) as refusal:
        bench.cancel(maintenance=1)
    assert refusal.value.code is ErrorCode.TOO_LATE


def test_a_strict_cancel_takes_all_or_nothing() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.approve(bench.event("2.1").id)
    with pytest.raises(Refused):
        bench.cancel("1.1", "2.1")
    assert bench.operation("1.1").status is EventStatus.SCHEDULED


def test_an_unknown_operation_is_named() -> None:
    with pytest.raises(Refused) as refusal:
        Bench().cancel("9.1")
    assert refusal.value.code is ErrorCode.NOT_FOUND
    assert refusal.value.facts == {"operation": "9.1"}


def test_a_claim_is_a_lease_with_a_fencing_number() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    (claimed,) = bench.claim("1.1").operations
    assert (claimed.attempt, claimed.executor) == (1, "here")
    assert claimed.lease_until == bench.now + MINUTE
    with pytest.raises(Refused) as refusal:
        bench.claim("1.1")
    assert refusal.value.code is ErrorCode.CONFLICT
    assert refusal.value.facts == {"operation": "1.1"}
    assert "leased to here" in refusal.value.message
    bench.now += MINUTE
    (again,) = bench.claim("1.1").operations
    assert again.attempt == 2
    assert bench.scope("web").incarnation == 2


def test_an_operation_remembers_who_claimed_it_until_an_operator_has_it_repeated() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    for executor in ("here", "there", "here"):
        bench.decide(commands.claim_tasks, operations=["1.1"], executor=executor, lease=MINUTE)
        bench.now += MINUTE
    assert bench.operation("1.1").claimed_by == ("here", "there")
    bench.decide(commands.report_unknown_outcome, operation_id="1.1", attempt=3, message="lost")
    bench.decide(commands.resolve_outcomes, operations=["1.1"], verdict=Verdict.REPEAT, by="ann")
    bench.decide(commands.claim_tasks, operations=["1.1"], executor="there", lease=MINUTE)
    assert bench.operation("1.1").claimed_by == ("there",)


def test_only_what_has_started_can_be_claimed() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    with pytest.raises(Refused) as refusal:
        bench.claim("1.1")
    assert refusal.value.code is ErrorCode.CONFLICT
    assert refusal.value.message.endswith("it is Scheduled")


def test_a_renewal_lengthens_the_lease_and_a_release_ends_it() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    bench.claim("1.1")
    bench.now += 30 * SECOND
    renewed = partial(commands.renew_lease, operation_id="1.1", attempt=1, lease=MINUTE)
    assert bench.decide(renewed).operations == (bench.operation("1.1"),)
    assert bench.operation("1.1").lease_until == bench.now + MINUTE
    released = bench.decide(commands.release_leases, operations=("1.1",))
    assert released.operations[0].lease_until is None
    assert bench.claim("1.1").operations[0].attempt == 2


def test_a_stale_attempt_is_refused_whatever_it_wants() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    bench.claim("1.1")
    bench.now += 2 * MINUTE
    bench.claim("1.1")
    stale = [
        partial(commands.finish_task, operation_id="1.1", attempt=1, succeeded=True, message=""),
        partial(commands.renew_lease, operation_id="1.1", attempt=1, lease=MINUTE),
    ]
    for cause in stale:
        with pytest.raises(Refused) as refusal:
            bench.decide(cause)
        assert refusal.value.code is ErrorCode.STALE
        assert refusal.value.facts == {"operation": "1.1", "attempt": 1}
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_an_operation_has_one_outcome() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(15 * MINUTE)
    bench.now += 2 * MINUTE
    decision = bench.finish("1.1", message="back after 40 s")
    operation = bench.operation("1.1")
    assert decision.operations == (operation,)
    assert operation.status is EventStatus.COMPLETED
    assert operation.outcome == "back after 40 s"
    assert operation.ended_at == NOW + 17 * MINUTE
    assert operation.lease_until is None
    assert bench.scope("web").incarnation == 3
    again = partial(
        commands.finish_task, operation_id="1.1", attempt=1, succeeded=False, message=""
    )
    with pytest.raises(Refused) as refusal:
        bench.decide(again)
    assert refusal.value.code is ErrorCode.STALE


def test_a_failed_operation_keeps_the_end_of_its_complaint() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1", succeeded=False, message="x" * 5000 + "END")
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.FAILED
    assert len(operation.outcome) == 2000
    assert operation.outcome.endswith("xEND")


def test_time_alone_wakes_what_is_scheduled_and_waits_for_nothing() -> None:
    bench = Bench()
    bench.ask_each_domain()
    assert bench.operation("1.1").wakeup_at == NOW + 15 * MINUTE
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").wakeup_at is None
    assert bench.operation("2.1").wakeup_at is None
    approved = msgspec.structs.replace(
        bench.operation("2.1"),
        waits_for="",
        events=(msgspec.structs.replace(bench.event("2.1"), approval=bench.word()),),
    )
    assert approved.wakeup_at == AT_ONCE


def test_of_several_events_in_the_way_the_first_in_turn_is_named() -> None:
    bench = Bench()
    later = bench.now + timedelta(hours=2)
    bench.ask(REBOOT, "web-3", not_before=later)
    bench.ask(REBOOT, "web-0")
    for operations in (["1.1", "2.1"], ["2.1", "1.1"]):
        known = {name: bench.operation(name) for name in operations}
        bench.snapshot = msgspec.structs.replace(bench.snapshot, operations=known)
        with pytest.raises(Refused, match=r"operation 2\.1"):
            bench.ask(REBOOT, "web-3", "web-0")


def test_what_waited_and_is_no_longer_due_by_a_clock_set_back_starts_at_its_not_before() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.let_pass(15 * MINUTE)
    assert bench.operation("2.1").waits_for == "1.1"
    bench.now -= 10 * MINUTE
    bench.finish("1.1")
    freed = bench.operation("2.1")
    assert (freed.status, freed.waits_for) == (EventStatus.SCHEDULED, "")
    assert freed.wakeup_at == NOW + 15 * MINUTE
    bench.let_pass(10 * MINUTE)
    assert bench.operation("2.1").start_cause is StartCause.NOTICE_OVER


def test_what_waited_and_is_approved_starts_whatever_the_clock_says() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.approve(bench.event("2.1").id)
    bench.now -= 10 * MINUTE
    bench.finish("1.1")
    assert bench.operation("2.1").start_cause is StartCause.APPROVED


def test_what_waits_keeps_its_place_when_it_is_postponed_after_the_clock_was_set_back() -> None:
    bench = Bench()
    for name in ("web-0", "web-1", "web-3"):  # domains 0, 1 and 0
        bench.ask(REBOOT, name)
    bench.approve(bench.event("1.1").id)
    assert [bench.operation(f"{n}.1").waits_for for n in (2, 3)] == ["1.1", "2.1"]
    bench.now -= timedelta(hours=1)
    bench.postpone("2.1", to=bench.now + timedelta(hours=2))
    bench.finish("1.1")
    assert bench.operation("2.1").status is EventStatus.SCHEDULED
    assert bench.operation("3.1").waits_for == "2.1"


# One cause that is about several operations: each gets its due, whatever the first was.


def test_a_scope_moves_although_what_changed_before_it_shows_nothing() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.ask(REBOOT, "bastion")
    bench.approve(bench.event("2.1").id, bench.event("3.1").id)
    assert bench.operation("2.1").waits_for == "1.1"
    assert bench.operation("3.1").status is EventStatus.STARTED
    assert (bench.scope("web").incarnation, bench.scope("bastion").incarnation) == (2, 2)


def test_an_approval_reaches_what_is_named_after_one_that_has_started() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "bastion")
    decision = bench.approve(bench.event("1.1").id, bench.event("2.1").id)
    assert [operation.id for operation in decision.operations] == ["1.1", "2.1"]
    assert bench.event("1.1").approval is None
    assert bench.operation("2.1").status is EventStatus.STARTED


def test_time_starts_only_what_is_looked_at() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "bastion")
    bench.now += 15 * MINUTE
    decision = bench.decide(commands.advance_time, ids=("2.1",))
    assert [operation.id for operation in decision.operations] == ["2.1"]
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert bench.operation("2.1").status is EventStatus.STARTED


def test_cancelling_a_maintenance_that_is_not_open_still_takes_what_is_pending() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.snapshot = msgspec.structs.replace(bench.snapshot, maintenances={})
    bench.cancel(maintenance=1)
    assert bench.operation("1.1").status is EventStatus.CANCELED
    with pytest.raises(Refused) as refusal:
        bench.cancel(maintenance=1)
    assert refusal.value.code is ErrorCode.TOO_LATE


def test_a_lapse_that_ends_at_this_instant_leaves_what_waits_waiting() -> None:
    bench = Bench(queue=Queueing.START)
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    bench.let_pass(15 * MINUTE)
    bench.now += 5 * MINUTE
    bench.decide(commands.extend_notices, 5 * MINUTE)
    waiting = bench.operation("2.1")
    assert (waiting.not_before, waiting.waits_for) == (NOW + 20 * MINUTE, "1.1")
