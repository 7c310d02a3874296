"""Hold, release and postpone: nothing starts, NotBefore moves later and never back."""

from datetime import timedelta

import pytest

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import commands
from forewarn.maintenance.model import (
    Hold,
    HoldKind,
    Refused,
)
from forewarn.maintenance.units import UnitState
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType

REBOOT = EventType.REBOOT
COVERING = [
    (HoldKind.EVERYTHING, ""),
    (HoldKind.SCOPE, "web"),
    (HoldKind.HOST, "h0"),
    (HoldKind.MACHINE, "web-3"),
]
PASSING = [
    (HoldKind.SCOPE, "batch"),
    (HoldKind.HOST, "h1"),
    (HoldKind.MACHINE, "web-1"),
]


@pytest.mark.parametrize(("kind", "name"), COVERING)
def test_what_is_held_does_not_start_and_goes_on_with_the_notice_it_had(
    kind: HoldKind, name: str
) -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3")
    bench.let_pass(10 * MINUTE)
    held = bench.hold(kind, name)
    assert [o.id for o in held.operations] == ["1.1"]
    assert [h.kind for h in held.changes.holds] == [kind]
    assert bench.operation("1.1").held_at == NOW + 10 * MINUTE
    assert bench.operation("1.1").notice_left_seconds == 300
    assert bench.scope("web").incarnation == 1
    bench.let_pass(2 * MINUTE)
    released = bench.release(kind, name)
    assert [o.id for o in released.operations] == ["1.1"]
    assert [h.name for h in released.changes.released] == [name]
    operation = bench.operation("1.1")
    assert (operation.held_at, operation.notice_left_seconds) == (None, 0)
    assert operation.not_before == NOW + 17 * MINUTE
    assert bench.scope("web").incarnation == 2
    bench.let_pass(5 * MINUTE - SECOND)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.let_pass(SECOND)
    assert bench.operation("1.1").status is EventStatus.STARTED


@pytest.mark.parametrize(("kind", "name"), PASSING)
def test_a_hold_covers_nothing_else(kind: HoldKind, name: str) -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3")
    assert bench.hold(kind, name).operations == ()
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_a_held_not_before_moves_on_before_it_lies_in_the_past() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(14 * MINUTE)
    bench.hold(HoldKind.EVERYTHING)
    assert bench.operation("1.1").wakeup_at == NOW + 15 * MINUTE
    bench.let_pass(MINUTE)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert bench.operation("1.1").not_before == NOW + 30 * MINUTE
    assert bench.scope("web").incarnation == 2
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").not_before == NOW + 45 * MINUTE
    bench.release(HoldKind.EVERYTHING)
    assert bench.operation("1.1").not_before == NOW + 45 * MINUTE


def test_a_held_one_can_be_approved_and_starts_with_the_release() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.hold(HoldKind.SCOPE, "web")
    bench.approve(bench.event("1.1").id, scope="web")
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert bench.operation("1.1").wakeup_at == NOW + 15 * MINUTE
    bench.let_pass(20 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.release(HoldKind.SCOPE, "web")
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.operation("1.1").start_cause == "approved"


def test_what_two_holds_cover_is_released_by_the_last() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.hold(HoldKind.EVERYTHING)
    bench.hold(HoldKind.MACHINE, "web-0")
    bench.release(HoldKind.EVERYTHING)
    assert bench.operation("1.1").held_at is not None
    bench.let_pass(20 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.release(HoldKind.MACHINE, "web-0")
    assert bench.operation("1.1").held_at is None


def test_a_second_hold_leaves_the_notice_that_the_first_found() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.let_pass(5 * MINUTE)
    bench.hold(HoldKind.EVERYTHING)
    bench.let_pass(5 * MINUTE)
    bench.hold(HoldKind.MACHINE, "web-0")
    operation = bench.operation("1.1")
    assert (operation.held_at, operation.notice_left_seconds) == (NOW + 5 * MINUTE, 600)


def test_what_is_left_of_a_notice_is_rounded_up_to_whole_seconds() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.now += 5 * MINUTE + timedelta(microseconds=1)
    bench.hold(HoldKind.EVERYTHING)
    assert bench.operation("1.1").notice_left_seconds == 600
    bench.postpone("1.1", to=NOW + 65 * MINUTE)
    assert bench.operation("1.1").notice_left_seconds == 3600


def test_a_hold_needs_no_reason_and_no_name() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    unsigned = Hold(kind=HoldKind.SCOPE, name="web", reason="", by="", at=NOW)
    bench.decide(commands.place_hold, unsigned)
    with pytest.raises(Refused, match=r"scope web .* by somebody since"):
        bench.decide(commands.place_hold, unsigned)


def test_what_a_hold_covers_is_announced_at_its_release_with_all_of_its_notice() -> None:
    bench = Bench()
    bench.hold(HoldKind.EVERYTHING)
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "FrontEnd_IN_0", source=EventSource.USER)
    for operation_id in ("1.1", "2.1"):
        operation = bench.operation(operation_id)
        assert operation.status is EventStatus.QUEUED
        assert operation.held_at == NOW
        assert operation.wakeup_at is None
    assert bench.scope("web").incarnation == 0
    bench.now += 60 * MINUTE
    bench.release(HoldKind.EVERYTHING)
    announced = bench.operation("1.1")
    assert (announced.status, announced.held_at) == (EventStatus.SCHEDULED, None)
    assert announced.not_before == NOW + 75 * MINUTE
    assert bench.operation("2.1").status is EventStatus.STARTED


def test_what_is_queued_and_held_gives_its_place_to_others_and_has_it_again_after_that() -> None:
    bench = Bench()
    for machine in ("bastion", "web-0", "web-1", "web-2"):
        bench.ask(REBOOT, machine)
    assert [bench.operation(f"{n}.1").waits_for for n in (3, 4)] == ["2.1", "2.1"]
    bench.hold(HoldKind.MACHINE, "web-1")
    assert (bench.operation("3.1").held_at, bench.operation("3.1").waits_for) == (NOW, "")
    bench.cancel("2.1")
    assert bench.operation("4.1").status is EventStatus.SCHEDULED
    bench.release(HoldKind.MACHINE, "web-1")
    assert bench.operation("3.1").waits_for == "4.1"
    bench.ask(REBOOT, "web-0")
    bench.cancel("4.1")
    assert bench.operation("3.1").status is EventStatus.SCHEDULED
    assert bench.operation("5.1").waits_for == "3.1"


def test_what_waits_for_one_that_is_held_then_goes() -> None:
    bench = Bench()
    bench.hold(HoldKind.SCOPE, "batch")
    bench.ask(REBOOT, "web-0", not_before=NOW + 60 * MINUTE)
    bench.ask(REBOOT, "web-1")
    bench.ask(REBOOT, "web-2")
    bench.hold(HoldKind.MACHINE, "web-1")
    bench.cancel("1.1")
    assert [bench.operation(f"{n}.1").status for n in (2, 3)] == [
        EventStatus.QUEUED,
        EventStatus.SCHEDULED,
    ]


def test_the_units_that_are_not_held_go_first() -> None:
    bench = Bench()
    bench.hold(HoldKind.MACHINE, "web-3")
    bench.ask(REBOOT, scope="web")
    for step, machines in (("1.1", ("web-1", "web-4")), ("1.2", ("web-2", "web-5"))):
        assert bench.operation(step).machines == machines
        bench.approve(bench.event(step).id)
        bench.finish(step)
    assert "1.3" not in bench.snapshot.operations
    assert bench.unit("web/0").state is UnitState.WAITING
    assert "web-3" in bench.unit("web/0").reason
    bench.release(HoldKind.MACHINE, "web-3")
    bench.take_turns()
    last = bench.operation("1.3")
    assert (last.machines, last.status) == (("web-0", "web-3"), EventStatus.SCHEDULED)


def test_what_is_asked_for_under_a_hold_is_queued() -> None:
    bench = Bench()
    bench.hold(HoldKind.EVERYTHING)
    bench.ask(REBOOT, scope="web")
    assert bench.operation("1.1").status is EventStatus.QUEUED
    assert bench.unit("web/0").state is UnitState.RUNNING
    bench.release(HoldKind.EVERYTHING)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED


def test_a_failure_has_happened_whatever_is_held() -> None:
    bench = Bench()
    bench.hold(HoldKind.EVERYTHING)
    bench.ask(REBOOT, "web-0", no_notice=True)
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.operation("1.1").held_at is None


def test_what_has_started_goes_on_under_a_hold_and_what_waited_for_it_stays() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.let_pass(15 * MINUTE)
    assert bench.operation("2.1").waits_for == "1.1"
    bench.hold(HoldKind.SCOPE, "web")
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.operation("2.1").waits_for == ""
    bench.finish("1.1")
    assert bench.operation("2.1").status is EventStatus.SCHEDULED
    bench.release(HoldKind.SCOPE, "web")
    assert bench.operation("2.1").status is EventStatus.STARTED
    assert bench.operation("3.1").waits_for == "2.1"


def test_the_next_unit_is_not_announced_into_a_hold() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.approve(bench.event("1.1").id)
    bench.hold(HoldKind.SCOPE, "web")
    assert bench.operation("1.1").status is EventStatus.STARTED
    bench.finish("1.1")
    bench.take_turns()
    assert list(bench.snapshot.operations) == ["1.1"]
    assert bench.unit("web/1").state is UnitState.WAITING
    assert "scope web" in bench.unit("web/1").reason
    bench.release(HoldKind.SCOPE, "web")
    bench.take_turns()
    assert bench.operation("1.2").machines == ("web-1", "web-4")
    assert bench.operation("1.2").status is EventStatus.SCHEDULED


def test_a_held_one_can_be_cancelled() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.hold(HoldKind.EVERYTHING)
    bench.cancel("1.1")
    assert bench.operation("1.1").held_at is None
    assert bench.release(HoldKind.EVERYTHING).operations == ()


def test_the_same_thing_is_held_once_and_only_what_is_held_is_released() -> None:
    bench = Bench()
    bench.hold(HoldKind.SCOPE, "web")
    with pytest.raises(Refused) as refusal:
        bench.hold(HoldKind.SCOPE, "web")
    assert refusal.value.code is ErrorCode.CONFLICT
    bench.hold(HoldKind.MACHINE, "web")
    with pytest.raises(Refused) as refusal:
        bench.release(HoldKind.EVERYTHING)
    assert refusal.value.code is ErrorCode.NOT_FOUND


def test_a_postponed_event_moves_later_and_guests_see_it() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    later = NOW + timedelta(hours=2, microseconds=1)
    decision = bench.postpone("1.1", to=later)
    assert decision.operations == (bench.operation("1.1"),)
    assert bench.operation("1.1").not_before == NOW + timedelta(hours=2, seconds=1)
    assert bench.scope("web").incarnation == 2
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.let_pass(timedelta(hours=2))
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_what_waits_for_another_domain_can_be_postponed() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.let_pass(15 * MINUTE)
    bench.postpone("2.1", to=bench.now + 5 * MINUTE)
    assert bench.operation("2.1").waits_for == ""
    bench.finish("1.1")
    assert bench.operation("2.1").status is EventStatus.SCHEDULED
    assert bench.operation("3.1").status is EventStatus.STARTED
    bench.let_pass(5 * MINUTE)
    assert bench.operation("2.1").waits_for == "3.1"


def test_an_event_is_never_brought_forward() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    shown = NOW + 15 * MINUTE
    for moment in (shown, shown - SECOND):
        with pytest.raises(Refused) as refusal:
            bench.postpone("1.1", to=moment)
        assert refusal.value.code is ErrorCode.NOTICE_TOO_SHORT
        assert refusal.value.facts == {"earliest": shown.isoformat()}
    with pytest.raises(Refused) as refusal:
        bench.postpone("1.1", to=NOW + timedelta(days=367))
    assert refusal.value.code is ErrorCode.INVALID


def test_what_is_approved_started_or_over_can_not_be_postponed() -> None:
    bench = Bench()
    bench.ask_each_domain()
    bench.approve(bench.event("1.1").id)
    bench.approve(bench.event("2.1").id)
    bench.cancel("3.1")
    for operation_id, state in (("1.1", "Started"), ("2.1", "approved"), ("3.1", "Canceled")):
        with pytest.raises(Refused) as refusal:
            bench.postpone(operation_id, to=NOW + timedelta(hours=1))
        assert refusal.value.code is ErrorCode.TOO_LATE
        assert refusal.value.facts == {"operation": operation_id}
        assert f"is {state}:" in refusal.value.message


def test_what_is_held_and_postponed_has_the_longer_notice() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.hold(HoldKind.EVERYTHING)
    bench.postpone("1.1", to=NOW + 60 * MINUTE)
    assert bench.operation("1.1").notice_left_seconds == 3600
    bench.let_pass(10 * MINUTE)
    bench.release(HoldKind.EVERYTHING)
    assert bench.operation("1.1").not_before == NOW + 70 * MINUTE


def test_several_are_postponed_all_or_none() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "bastion", no_notice=True)
    with pytest.raises(Refused):
        bench.postpone("1.1", "2.1", to=NOW + timedelta(hours=1))
    assert bench.operation("1.1").not_before == NOW + 15 * MINUTE


def test_what_comes_to_a_held_host_keeps_the_notice_that_it_had_then() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3")
    bench.hold(HoldKind.HOST, "h9")
    bench.let_pass(10 * MINUTE)
    bench.move(web_0="h9")
    operation = bench.operation("1.1")
    assert operation.hosts == ("h0", "h9")
    assert (operation.held_at, operation.notice_left_seconds) == (NOW + 10 * MINUTE, 300)
    bench.move(web_3="h9")
    assert bench.operation("1.1").held_at == NOW + 10 * MINUTE
    bench.let_pass(MINUTE)
    bench.move(web_0="h0", web_3="h0")
    operation = bench.operation("1.1")
    assert (operation.held_at, operation.not_before) == (None, NOW + 16 * MINUTE)


def test_what_leaves_one_of_two_holds_stays_held_and_what_is_approved_starts_when_free() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.hold(HoldKind.HOST, "h0")
    bench.hold(HoldKind.MACHINE, "web-0")
    bench.approve(bench.event("1.1").id)
    bench.move(web_0="h1")
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.release(HoldKind.MACHINE, "web-0")
    assert bench.operation("1.1").status is EventStatus.STARTED
    bench.move(web_0="h2")
    assert bench.operation("1.1").hosts == ("h1",)


def test_what_is_queued_is_where_its_machines_are_when_it_is_announced() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.ask(REBOOT, "web-1")
    bench.hold(HoldKind.HOST, "h9")
    bench.move(web_1="h9")
    assert bench.operation("2.1").status is EventStatus.QUEUED
    assert bench.operation("2.1").held_at == NOW
    bench.cancel("1.1")
    assert bench.operation("2.1").status is EventStatus.QUEUED
    bench.move(web_1="h1")
    assert (bench.operation("2.1").status, bench.operation("2.1").held_at) == (
        EventStatus.SCHEDULED,
        None,
    )
