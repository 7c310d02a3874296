"""Units of a maintenance: one update domain after another, a host, and what stops them."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import turn_world
from builders import MINUTE, NOW, SECOND, Bench, applied
from forewarn.maintenance import commands, fleet_file, planner, turns, units
from forewarn.maintenance.model import Changes, HoldKind, Maintenance, Refused, StartCause
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, TurnPolicy, Unit, UnitKind, UnitState
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType, TargetKind
from unit.maintenance.unit_bench import carry_out, shown, states

REBOOT = EventType.REBOOT
DONE, WAITING, RUNNING = UnitState.DONE, UnitState.WAITING, UnitState.RUNNING
FAILED, SKIPPED = UnitState.FAILED, UnitState.SKIPPED


def test_each_domain_of_a_scope_is_a_unit_and_is_announced_in_its_turn() -> None:
    bench = Bench()
    later = NOW + 60 * MINUTE
    decision = bench.ask(REBOOT, scope="web", not_before=later)
    assert [o.machines for o in decision.operations] == [("web-0", "web-3")]
    assert bench.operation("1.1").not_before == later
    assert decision.maintenance is not None
    assert decision.maintenance.open
    assert decision.maintenance.announced == 1
    assert decision.maintenance.units == (
        Unit(
            name="web/0",
            kind=UnitKind.UPDATE_DOMAIN,
            scope="web",
            state=RUNNING,
            operation=1,
            changed_at=NOW,
        ),
        *(
            Unit(
                name=f"web/{domain}",
                kind=UnitKind.UPDATE_DOMAIN,
                scope="web",
                update_domain=domain,
                reason="web/0 has another update domain of web",
            )
            for domain in (1, 2)
        ),
    )
    bench.let_pass(60 * MINUTE)
    bench.now += 2 * MINUTE
    bench.finish("1.1")
    second = bench.operation("1.2")
    assert second.machines == ("web-1", "web-4")
    assert second.status is EventStatus.SCHEDULED
    assert second.announced_at == bench.now
    assert second.not_before == bench.now + 15 * MINUTE
    carry_out(bench, "1.2")
    assert shown(bench)["1.3"] == ("web-2", "web-5")
    assert [bench.operation(f"1.{n}").unit for n in (1, 2, 3)] == [0, 1, 2]
    assert bench.maintenance().state is MaintenanceState.RUNNING
    carry_out(bench, "1.3")
    assert bench.maintenance().state is MaintenanceState.DONE
    assert bench.maintenance().changed_at == bench.now
    assert set(states(bench).values()) == {DONE}
    assert not bench.maintenance().open
    assert len(bench.snapshot.operations) == 3


def test_the_end_of_one_domain_and_the_announcement_of_the_next_are_one_change() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.approve(bench.event("1.1").id)
    before = bench.scope("web").incarnation
    decision = bench.finish("1.1")
    assert {o.id for o in decision.changes.operations} == {"1.1", "1.2"}
    (maintenance,) = decision.changes.maintenances
    assert [unit.state for unit in maintenance.units] == [DONE, RUNNING, WAITING]
    assert maintenance.units[0].done == ("web-0", "web-3")
    assert bench.scope("web").incarnation == before + 1
    assert bench.event("1.2").published == before + 1


def test_each_domain_has_the_longer_notice_that_was_asked_for() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web", notice_seconds=3600)
    assert bench.operation("1.1").not_before == NOW + 60 * MINUTE
    bench.approve(bench.event("1.1").id)
    bench.now += 5 * MINUTE
    bench.finish("1.1")
    notice = bench.operation("1.2").not_before - bench.now
    assert 60 * MINUTE <= notice <= 60 * MINUTE + SECOND


def test_named_machines_of_several_domains_are_units_by_name_or_domain() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-1", "web-0", "web-4", "bastion")
    assert shown(bench) == {"1.1": ("bastion",), "1.2": ("web-0",)}
    assert [(unit.name, unit.kind, unit.machines) for unit in bench.maintenance().units] == [
        ("bastion", UnitKind.MACHINES, ("bastion",)),
        ("web-0", UnitKind.MACHINES, ("web-0",)),
        ("web/1", UnitKind.MACHINES, ("web-1", "web-4")),
    ]
    carry_out(bench, "1.2")
    assert shown(bench)["1.3"] == ("web-1", "web-4")
    carry_out(bench, "1.3")
    assert len(bench.snapshot.operations) == 3
    assert [bench.operation(f"1.{n}").unit for n in (1, 2, 3)] == [0, 1, 2]
    carry_out(bench, "1.1")
    assert bench.maintenance().state is MaintenanceState.DONE


def test_what_is_announced_all_at_once_has_no_units() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3")
    bench.ask(EventType.PREEMPT, scope="batch")
    bench.ask(EventType.FREEZE, "web-1", "web-2", no_notice=True)
    for maintenance in bench.snapshot.maintenances.values():
        assert (maintenance.units, maintenance.state) == ((), MaintenanceState.ANNOUNCED)
        assert (maintenance.open, maintenance.changed_at) == (False, None)
    assert {operation.unit for operation in bench.snapshot.operations.values()} == {None}
    assert shown(bench) == {
        "1.1": ("web-0", "web-3"),
        "2.1": ("batch_0", "batch_2"),
        "2.2": ("batch_1", "batch_3"),
        "3.1": ("web-1",),
        "3.2": ("web-2",),
    }


def of_scopes(bench: Bench, *names: str, **policy: str) -> None:
    """Start a maintenance of whole scopes by a policy."""
    of = msgspec.structs.replace(
        turn_world.maintenance(),
        target=TargetKind.SCOPE,
        targets=names,
        units=tuple(
            Unit(name=f"{name}/{n}", kind=UnitKind.UPDATE_DOMAIN, scope=name, update_domain=n)
            for name in names
            for n in range(bench.scope(name).update_domains)
        ),
        policy=TurnPolicy(**policy),
    )
    bench.decide(commands.start_maintenance, of, next(bench.numbers))


@pytest.mark.parametrize("count", [1, 2])
def test_a_maintenance_over_many_scopes_announces_one_domain_of_each_that_its_policy_allows(
    count: int,
) -> None:
    bench = Bench()
    of_scopes(bench, "batch", "web", at_once=str(count))
    first = [("batch_0", "batch_2"), ("web-0", "web-3")]
    assert [o.machines for o in bench.snapshot.operations.values()] == first[:count]
    carry_out(bench, "1.1")
    assert bench.unit("batch/0").state is DONE
    running = [name for name, state in states(bench).items() if state is RUNNING]
    assert running == ["batch/1", "web/0"][:count]


def test_a_scope_that_approves_itself_goes_domain_by_domain_without_notice() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="shop", source=EventSource.USER)
    assert bench.operation("1.1").status is EventStatus.STARTED
    bench.finish("1.1")
    assert bench.operation("1.2").status is EventStatus.STARTED
    assert bench.operation("1.2").start_cause is StartCause.APPROVED


def test_no_more_maintenances_with_units_are_open_than_the_limit_and_others_are_not_counted() -> (
    None
):
    bench = Bench()
    bench.ask(REBOOT, scope="batch")
    one = bench.maintenance()
    many = {n: msgspec.structs.replace(one, number=n) for n in range(1, units.MAX_OPEN + 1)}
    bench.snapshot = msgspec.structs.replace(bench.snapshot, maintenances=many)
    with pytest.raises(Refused) as refusal:
        bench.ask(REBOOT, scope="web")
    assert refusal.value.code is ErrorCode.LIMIT
    assert refusal.value.facts == {"most": units.MAX_OPEN}
    number = units.MAX_OPEN + 7
    request = planner.Request(event_type=REBOOT, machines=("web-0",))
    decision = bench.decide(commands.request_maintenance, request, number)
    assert [operation.machines for operation in decision.operations] == [("web-0",)]


# What stops them, and what an operator orders.


@pytest.mark.parametrize("by", ["failure", "cancel", "supersede"])
def test_a_unit_that_does_not_end_well_halts_the_maintenance(by: str) -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    if by == "failure":
        carry_out(bench, "1.1", succeeded=False)
        told = "1.1 is Failed: no power"
    elif by == "cancel":
        bench.cancel("1.1")
        told = "1.1 is Canceled: not now"
    else:
        bench.ask(EventType.REDEPLOY, "web-3", no_notice=True)
        told = "1.1 is Canceled: superseded by 2.1"
    unit = bench.unit("web/0")
    assert (unit.state, unit.reason, unit.changed_at) == (FAILED, told, NOW)
    assert bench.maintenance().state is MaintenanceState.HALTED
    assert "web/0" in bench.maintenance().reason
    assert told in bench.maintenance().reason
    assert bench.maintenance().open
    assert "1.2" not in bench.snapshot.operations


def test_a_halt_recalls_what_has_not_started_in_the_same_change_and_leaves_the_rest() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-1", "batch_0", "batch_1", "FrontEnd_IN_0", "FrontEnd_IN_1")
    by_unit = {bench.maintenance().units[o.unit or 0].name: o.id
               for o in bench.snapshot.operations.values()}  # fmt: skip
    failing, started, pending = (by_unit[name] for name in ("web-0", "batch_0", "FrontEnd_IN_0"))
    bench.approve(bench.event(started).id, bench.event(failing).id)
    decision = bench.finish(failing, succeeded=False)
    assert {o.id for o in decision.changes.operations} == {failing, pending}
    assert bench.operation(pending).status is EventStatus.CANCELED
    assert "halted" in bench.operation(pending).outcome
    assert bench.operation(started).status is EventStatus.STARTED
    recalled = bench.unit("FrontEnd_IN_0")
    assert (recalled.state, recalled.recalled) == (WAITING, True)
    assert bench.unit("batch_0").state is RUNNING
    bench.finish(started)
    assert bench.unit("batch_0").state is DONE
    assert bench.unit("batch_1").state is WAITING
    bench.order(MaintenanceOrder.RESUME)
    assert bench.unit("FrontEnd_IN_0").state is RUNNING
    assert bench.unit("batch_1").state is RUNNING
    assert bench.unit("web-1").state is WAITING  # the domain of web-0 is down


def test_a_resumed_maintenance_goes_on_with_the_next_unit() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.cancel("1.1")
    decision = bench.order(MaintenanceOrder.RESUME)
    assert [o.machines for o in decision.operations] == [("web-1", "web-4")]
    assert decision.maintenance == bench.maintenance()
    after = bench.maintenance()
    assert (after.state, after.reason, after.changed_by) == (MaintenanceState.RUNNING, "", "bob")
    assert bench.unit("web/0").state is FAILED
    carry_out(bench, "1.2")
    carry_out(bench, "1.3")
    assert bench.maintenance().state is MaintenanceState.DONE


def test_a_failed_unit_that_is_skipped_lets_the_others_go_when_it_is_resumed() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.cancel("1.1")
    bench.order(MaintenanceOrder.SKIP, "web/0")
    assert bench.maintenance().state is MaintenanceState.HALTED
    bench.order(MaintenanceOrder.RESUME)
    assert shown(bench)["1.2"] == ("web-1", "web-4")
    assert bench.unit("web/0").state is SKIPPED


def test_a_skipped_last_unit_ends_the_maintenance() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-1")
    carry_out(bench, "1.1")
    with pytest.raises(Refused) as refusal:
        bench.order(MaintenanceOrder.SKIP, "web-1")
    assert refusal.value.facts == {"maintenance": 1, "unit": "web-1"}
    bench.order(MaintenanceOrder.PAUSE)
    bench.cancel("1.2")
    bench.order(MaintenanceOrder.SKIP, "web-1")
    assert bench.maintenance().open
    bench.order(MaintenanceOrder.RESUME)
    assert bench.maintenance().state is MaintenanceState.DONE


def test_an_order_for_what_has_no_units_comes_too_late_and_for_what_is_unknown_is_refused() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    for number, code in ((1, ErrorCode.TOO_LATE), (7, ErrorCode.NOT_FOUND)):
        with pytest.raises(Refused) as refusal:
            bench.order(MaintenanceOrder.PAUSE, number=number)
        assert (refusal.value.code, refusal.value.facts) == (code, {"maintenance": number})


@pytest.mark.parametrize("halted", [True, False])
def test_cancelling_a_maintenance_stops_it(halted: bool) -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    if halted:
        carry_out(bench, "1.1", succeeded=False)
    bench.cancel(maintenance=1)
    after = bench.maintenance()
    assert (after.state, after.reason) == (MaintenanceState.STOPPED, "not now")
    assert not after.open
    assert list(bench.snapshot.operations) == ["1.1"]
    assert bench.operation("1.1").status is (EventStatus.FAILED if halted else EventStatus.CANCELED)
    with pytest.raises(Refused) as refusal:
        bench.cancel(maintenance=1)
    assert refusal.value.code is ErrorCode.TOO_LATE


@pytest.mark.parametrize(("succeeded", "state"), [(True, DONE), (False, FAILED)])
def test_cancelling_while_a_domain_is_down_lets_it_end_and_announces_no_other(
    succeeded: bool, state: UnitState
) -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.approve(bench.event("1.1").id)
    bench.cancel(maintenance=1)
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.maintenance().open
    bench.finish("1.1", succeeded=succeeded)
    assert list(bench.snapshot.operations) == ["1.1"]
    assert bench.unit("web/0").state is state
    assert bench.maintenance().state is MaintenanceState.STOPPED
    assert not bench.maintenance().open


# What else is in the way.


def test_of_two_maintenances_that_the_same_end_frees_the_first_takes_the_machine() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-1")
    bench.ask(REBOOT, "web-3", "web-1")
    bench.ask(EventType.FREEZE, "web-1")
    carry_out(bench, "1.1")
    carry_out(bench, "2.1")
    bench.take_turns()
    assert list(bench.snapshot.operations) == ["1.1", "2.1", "3.1"]
    assert "3.1" in bench.unit("web-1").reason
    bench.cancel("3.1")
    bench.take_turns()
    assert shown(bench)["1.2"] == ("web-1",)
    assert "2.2" not in bench.snapshot.operations
    assert "1.2" in bench.unit("web-1", 2).reason
    carry_out(bench, "1.2")
    bench.take_turns()
    assert shown(bench)["2.2"] == ("web-1",)


def test_a_unit_that_is_held_waits_and_keeps_no_other_from_going() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.hold(HoldKind.MACHINE, "web-4")
    carry_out(bench, "1.1")
    assert shown(bench)["1.2"] == ("web-2", "web-5")
    carry_out(bench, "1.2")
    assert "ann" in bench.unit("web/1").reason
    bench.release(HoldKind.MACHINE, "web-4")
    bench.take_turns()
    assert shown(bench)["1.3"] == ("web-1", "web-4")


def test_a_unit_that_is_retried_goes_ahead_of_what_waits_for_its_failure() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.ask(REBOOT, "web-1")
    carry_out(bench, "1.1", succeeded=False)
    assert bench.operation("2.1").waits_for == "1.1"
    bench.order(MaintenanceOrder.RETRY, "web/0")
    bench.order(MaintenanceOrder.RESUME)
    bench.take_turns()
    assert shown(bench)["1.2"] == ("web-0", "web-3")
    carry_out(bench, "1.2")
    bench.take_turns()
    assert bench.operation("2.1").status is EventStatus.SCHEDULED


def test_a_pause_recalls_what_is_queued_for_it_is_not_announced() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-1", "web-4")
    bench.ask(REBOOT, scope="web")
    assert bench.operation("2.1").status is EventStatus.QUEUED
    bench.order(MaintenanceOrder.PAUSE, number=2)
    assert bench.operation("2.1").status is EventStatus.CANCELED
    assert states(bench, 2)["web/0"] is WAITING
    carry_out(bench, "1.1")
    bench.take_turns()
    assert "2.2" not in bench.snapshot.operations
    bench.order(MaintenanceOrder.RESUME, number=2)
    assert bench.operation("2.2").machines == ("web-0", "web-3")


def test_a_unit_whose_operation_is_held_lets_others_of_its_scope_go() -> None:
    bench = Bench()
    for host in ("h0", "h1", "h2"):
        bench.hold(HoldKind.HOST, host)
    bench.ask(REBOOT, scope="web")
    assert bench.operation("1.1").held_at is not None
    bench.release(HoldKind.HOST, "h1")
    bench.take_turns()
    assert bench.operation("1.2").machines == ("web-1", "web-4")
    assert bench.operation("1.2").status is EventStatus.SCHEDULED


def test_what_needs_no_notice_goes_until_its_window_closes() -> None:
    bench = Bench()
    closes_at = NOW + 10 * MINUTE  # less than the notice of a Reboot
    bench.ask(REBOOT, scope="shop", source=EventSource.USER, closes_at=closes_at)
    bench.finish("1.1")
    assert bench.operation("1.2").status is EventStatus.STARTED


def test_what_does_not_fit_into_its_window_any_more_is_left_out_at_once() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web", closes_at=NOW + 20 * MINUTE)
    bench.now += 10 * MINUTE
    carry_out(bench, "1.1")
    assert states(bench) == {"web/0": DONE, "web/1": SKIPPED, "web/2": SKIPPED}
    assert bench.maintenance().state is MaintenanceState.STOPPED
    assert bench.maintenance().reason == bench.unit("web/2").reason


def test_a_maintenance_that_was_halted_elsewhere_recalls_what_has_not_started() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    halted = turns.recalled(
        msgspec.structs.replace(
            bench.maintenance(), state=MaintenanceState.HALTED, reason="the tail is lost"
        )
    )
    bench.snapshot = applied(bench.snapshot, Changes(maintenances=(halted,)))
    bench.take_turns()
    assert bench.operation("1.1").status is EventStatus.CANCELED
    assert set(states(bench).values()) == {WAITING}


# The fleet changes.


def change(bench: Bench, *machines: dict[str, object]) -> None:
    """Apply a fleet in which `web` has just these machines, and forget the others of it."""
    wanted = {"availability_set": [{"name": "web", "update_domains": 3, "machines": machines}]}
    outcome = fleet_file.apply(
        bench.snapshot.world(),
        msgspec.convert(wanted, fleet_file.Fleet),
        prune=True,
        mint=bench.mint,
    )
    bench.snapshot = applied(bench.snapshot, outcome.changes)


def test_each_unit_has_the_machines_that_it_has_in_its_turn() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    added = {"name": "web-9", "update_domain": 2}
    moved = {"name": "web-4", "update_domain": 2}
    kept = [{"name": f"web-{n}"} for n in (0, 3, 1, 2)]  # web-5 is removed
    change(bench, *kept, added, moved)
    carry_out(bench, "1.1")
    carry_out(bench, "1.2")
    carry_out(bench, "1.3")
    assert shown(bench) == {
        "1.1": ("web-0", "web-3"),
        "1.2": ("web-1",),
        "1.3": ("web-2", "web-4", "web-9"),
    }
    assert bench.maintenance().state is MaintenanceState.DONE


def test_a_machine_added_to_a_domain_that_is_under_way_follows_in_another_operation() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    kept = [{"name": f"web-{n}"} for n in range(6)]
    change(bench, *kept, {"name": "web-9", "update_domain": 0})
    carry_out(bench, "1.1")
    assert shown(bench)["1.2"] == ("web-9",)
    assert bench.operation("1.2").unit == 0
    assert states(bench) == {"web/0": RUNNING, "web/1": WAITING, "web/2": WAITING}
    carry_out(bench, "1.2")
    assert bench.unit("web/0").done == ("web-0", "web-3", "web-9")
    assert shown(bench)["1.3"] == ("web-1", "web-4")


def test_a_machine_moved_into_a_domain_that_is_done_has_its_turn_before_the_end() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    carry_out(bench, "1.1")
    moved = {"name": "web-2", "update_domain": 0}
    change(bench, moved, *({"name": f"web-{n}"} for n in (0, 1, 3, 4, 5)))
    carry_out(bench, "1.2")
    assert shown(bench)["1.3"] == ("web-5",)
    carry_out(bench, "1.3")
    assert bench.maintenance().state is MaintenanceState.RUNNING
    assert (shown(bench)["1.4"], bench.operation("1.4").unit) == (("web-2",), 0)
    carry_out(bench, "1.4")
    assert bench.maintenance().state is MaintenanceState.DONE
    assert bench.unit("web/0").done == ("web-0", "web-3", "web-2")


def test_a_machine_added_in_a_domain_that_there_was_not_has_its_turn_before_the_end() -> None:
    bench = Bench()
    change(bench, {"name": "web-0"}, {"name": "web-1"})
    bench.ask(REBOOT, scope="web")
    assert list(states(bench)) == ["web/0", "web/1"]
    added = {"name": "web-9", "update_domain": 2}
    change(bench, {"name": "web-0"}, {"name": "web-1"}, added)
    carry_out(bench, "1.1")
    carry_out(bench, "1.2")
    assert states(bench) == {"web/0": DONE, "web/1": DONE, "web/2": RUNNING}
    assert (shown(bench)["1.3"], bench.operation("1.3").unit) == (("web-9",), 2)
    carry_out(bench, "1.3")
    assert bench.maintenance().state is MaintenanceState.DONE


def test_a_machine_that_comes_to_a_domain_which_was_empty_has_its_turn() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    left: list[dict[str, object]] = [
        {"name": f"web-{n}", "host": f"h{n % 3}"} for n in (0, 2, 3, 5)
    ]
    change(bench, *left)
    bench.take_turns()
    assert states(bench) == {"web/0": RUNNING, "web/1": SKIPPED, "web/2": WAITING}
    left[1]["update_domain"] = 1
    change(bench, *left)
    carry_out(bench, "1.1")
    assert states(bench) == {"web/0": DONE, "web/1": RUNNING, "web/2": WAITING}
    assert shown(bench)["1.2"] == ("web-2",)
    carry_out(bench, "1.2")
    carry_out(bench, "1.3")
    assert bench.maintenance().state is MaintenanceState.DONE


def test_a_stopped_maintenance_gets_no_units_any_more() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    carry_out(bench, "1.1")
    carry_out(bench, "1.2")
    bench.approve(bench.event("1.3").id)
    bench.order(MaintenanceOrder.STOP)
    change(bench, *({"name": f"web-{n}"} for n in range(7)))
    bench.finish("1.3")
    assert set(states(bench).values()) == {DONE}
    assert not bench.maintenance().open


def test_a_unit_that_was_skipped_stays_so_when_its_scope_gets_machines() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.order(MaintenanceOrder.SKIP, "web/2")
    kept = [{"name": f"web-{n}"} for n in range(6)]
    change(bench, *kept, {"name": "web-9", "update_domain": 2})
    carry_out(bench, "1.1")
    carry_out(bench, "1.2")
    assert states(bench) == {"web/0": DONE, "web/1": DONE, "web/2": SKIPPED}
    assert bench.maintenance().state is MaintenanceState.DONE


def test_nobody_is_taken_twice() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    carry_out(bench, "1.1")
    moved = {"name": "web-0", "update_domain": 2}
    change(bench, moved, *({"name": f"web-{n}"} for n in (1, 2, 3, 4)))
    carry_out(bench, "1.2")
    assert shown(bench)["1.3"] == ("web-2",)
    carry_out(bench, "1.3")
    assert bench.maintenance().state is MaintenanceState.DONE


def test_a_unit_whose_machines_are_all_gone_is_left_out() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-1")
    change(bench, {"name": "web-0"}, {"name": "web-3"})
    carry_out(bench, "1.1")
    assert states(bench) == {"web-0": DONE, "web-1": SKIPPED}
    assert bench.maintenance().state is MaintenanceState.DONE
    assert list(bench.snapshot.operations) == ["1.1"]


@pytest.mark.parametrize(
    ("event_type", "machines"),
    [(EventType.PREEMPT, ("batch_0", "batch_2")), (EventType.TERMINATE, ("firm_0",))],
)
def test_a_machine_that_is_deleted_leaves_the_fleet_when_that_has_succeeded(
    event_type: EventType, machines: tuple[str, ...]
) -> None:
    for succeeded, gone in ((True, machines), (False, ())):
        bench = Bench()
        bench.ask(event_type, *machines)
        bench.let_pass(15 * MINUTE)
        assert bench.finish("1.1", succeeded=succeeded).changes.removed_machines == gone
    bench.ask(REBOOT, "web-0", no_notice=True)
    assert bench.finish("2.1").changes.removed_machines == ()


def test_a_maintenance_is_open_until_its_state_and_each_unit_are_over() -> None:
    closed = Maintenance(
        number=1, event_type=REBOOT, source=EventSource.USER, targets=(), requested_by="",
        requested_at=NOW, description="", duration_seconds=-1,
        target=TargetKind.MACHINES, live_migration=False,
    )  # fmt: skip
    assert not closed.open
    under_way = (Unit(name="h1", kind=UnitKind.HOST, state=RUNNING),)
    over = {MaintenanceState.ANNOUNCED, MaintenanceState.STOPPED, MaintenanceState.DONE}
    for state in MaintenanceState:
        of = msgspec.structs.replace(closed, state=state)
        assert of.open is (state not in over)
        assert msgspec.structs.replace(of, units=under_way).open


@pytest.mark.parametrize("event_type", [EventType.PREEMPT, EventType.TERMINATE])
def test_a_maintenance_goes_on_without_a_machine_that_is_deleted(event_type: EventType) -> None:
    """The deletion is what it waits for: its end removes the machine, and sets it free."""
    lasting = {"priority": "low"} if event_type is EventType.PREEMPT else {
        "terminate_notice_minutes": 5}  # fmt: skip
    machines = [{"index": index, "update_domain": index} for index in range(3)]
    batch = {"name": "batch", "update_domains": 3, "machines": machines, **lasting}
    bench = Bench(msgspec.convert({"scale_set": [batch]}, fleet_file.Fleet))
    bench.ask(REBOOT, scope="batch")
    bench.ask(event_type, "batch_1")
    carry_out(bench, "1.1")
    assert shown(bench) == {"1.1": ("batch_0",), "2.1": ("batch_1",)}
    carry_out(bench, "2.1")
    assert "batch_1" not in bench.snapshot.machines
    bench.take_turns()
    assert states(bench) == {"batch/0": DONE, "batch/1": SKIPPED, "batch/2": RUNNING}
    assert shown(bench)["1.2"] == ("batch_2",)
    assert bench.operation("1.2").status is EventStatus.SCHEDULED


def test_a_unit_that_a_failure_sets_free_does_not_take_the_failed_machines() -> None:
    wanted = msgspec.convert(
        {
            "availability_set": [
                {
                    "name": scope,
                    "machines": [
                        {"name": f"{scope}0", "host": "h1", "update_domain": 0},
                        {"name": f"{scope}1", "host": "h1", "update_domain": 1},
                        {"name": f"{scope}2", "host": "h2", "update_domain": 1},
                    ],
                }
                for scope in "ab"
            ]
        },
        fleet_file.Fleet,
    )
    bench = Bench(wanted)
    bench.ask(REBOOT, host="h1")
    bench.ask(REBOOT, "b1", "b2")
    carry_out(bench, "1.1")
    bench.take_turns()
    assert "1.2" not in bench.snapshot.operations  # b1 has an event
    bench.ask(REBOOT, "a1", "b2", no_notice=True)
    assert bench.operation("2.1").status is EventStatus.CANCELED
    bench.take_turns()
    assert "1.2" not in bench.snapshot.operations  # a1 has one now
    assert "3.1" in bench.unit("h1").reason


@pytest.mark.parametrize(
    ("read", "right", "wrong"),
    [
        (units.read_amount, ("1", "99999", "1%", "10%", "100%"), ("", "0", "0%", "101%", "rest")),
        (units.read_spread, ("", "host", "tag:rack"), ("tag:", "Host", "rack")),
        (
            units.read_waves,
            ([], ["rest"], ["1", "10%", "rest"], ["1", "2"]),
            (["0"], ["0", "rest"], ["rest", "1"], ["1", "0"]),
        ),
    ],
)
def test_amounts_waves_and_places_are_read_as_people_write_them(
    read: Callable[[Any], Any], right: tuple[Any, ...], wrong: tuple[Any, ...]
) -> None:
    for each in right:
        assert read(each) == each
    for each in wrong:
        with pytest.raises(ValueError, match="expected"):
            read(each)
