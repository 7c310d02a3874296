"""Walks: one update domain after another, a host with all its scopes, and what stops them."""

import msgspec
import pytest

from builders import MINUTE, NOW, Bench, applied
from forewarn.maintenance import commands, fleet_file
from forewarn.maintenance.model import (
    Maintenance,
    Queueing,
    Refused,
    RollingState,
    RollingUpdate,
    StartCause,
)
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType, TargetKind

REBOOT = EventType.REBOOT


def walk_of(bench: Bench, number: int = 1) -> RollingUpdate:
    (walk,) = bench.snapshot.maintenances[number].rolling_updates
    return walk


def shown(bench: Bench) -> dict[str, tuple[str, ...]]:
    """The machines of every operation, event by event."""
    return {o.id: o.machines for o in bench.snapshot.operations.values()}


def carry_out(bench: Bench, operation_id: str, *, succeeded: bool = True) -> None:
    bench.approve(*(event.id for event in bench.operation(operation_id).events))
    bench.finish(operation_id, succeeded=succeeded, message="" if succeeded else "no power")


def test_a_scope_is_walked_domain_by_domain_and_each_is_announced_in_its_turn() -> None:
    bench = Bench()
    later = NOW + 60 * MINUTE
    decision = bench.ask(REBOOT, scope="web", not_before=later)
    assert [o.machines for o in decision.operations] == [("web-0", "web-3")]
    assert bench.operation("1.1").not_before == later
    assert decision.maintenance is not None
    assert decision.maintenance.open
    assert decision.maintenance.announced == 1
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
    assert walk_of(bench).state is RollingState.RUNNING
    carry_out(bench, "1.3")
    assert walk_of(bench).state is RollingState.FINISHED
    assert not bench.snapshot.maintenances[1].open
    assert len(bench.snapshot.operations) == 3


def test_the_end_of_one_domain_and_the_announcement_of_the_next_are_one_change() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.approve(bench.event("1.1").id)
    before = bench.scope("web").incarnation
    decision = bench.finish("1.1")
    assert {o.id for o in decision.changes.operations} == {"1.1", "1.2"}
    assert [m.number for m in decision.changes.maintenances] == [1]
    assert bench.scope("web").incarnation == before + 1
    assert bench.event("1.2").published == before + 1


def test_named_machines_of_several_domains_are_walked_too() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-1", "web-0", "web-4", "bastion")
    assert shown(bench) == {"1.1": ("bastion",), "1.2": ("web-0",)}
    carry_out(bench, "1.2")
    assert shown(bench)["1.3"] == ("web-1", "web-4")
    carry_out(bench, "1.3")
    assert len(bench.snapshot.operations) == 3
    assert bench.operation("1.1").rolling_update is None
    assert bench.operation("1.3").rolling_update == 0


def test_what_takes_one_step_is_no_walk() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3")
    bench.ask(EventType.PREEMPT, scope="batch")
    bench.ask(EventType.FREEZE, "web-1", "web-2", no_notice=True)
    assert all(not m.open and m.rolling_updates == () for m in bench.snapshot.maintenances.values())
    assert shown(bench) == {
        "1.1": ("web-0", "web-3"),
        "2.1": ("batch_0", "batch_2"),
        "2.2": ("batch_1", "batch_3"),
        "3.1": ("web-1",),
        "3.2": ("web-2",),
    }


def test_several_scopes_walk_side_by_side() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-1", "batch_0", "batch_1")
    carry_out(bench, "1.2")
    assert shown(bench)["1.3"] == ("web-1",)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    carry_out(bench, "1.1")
    assert shown(bench)["1.4"] == ("batch_1",)


def test_a_scope_that_approves_itself_is_walked_without_notice() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="shop", source=EventSource.USER)
    assert bench.operation("1.1").status is EventStatus.STARTED
    bench.finish("1.1")
    assert bench.operation("1.2").status is EventStatus.STARTED
    assert bench.operation("1.2").start_cause is StartCause.APPROVED


@pytest.mark.parametrize("by", ["failure", "cancel", "supersede"])
def test_a_step_that_does_not_end_well_stops_the_walk(by: str) -> None:
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
    assert walk_of(bench).state is RollingState.PAUSED
    assert walk_of(bench).reason == told
    assert bench.snapshot.maintenances[1].open
    assert "1.2" not in bench.snapshot.operations


def test_a_stopped_walk_is_resumed_with_the_next_domain() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    carry_out(bench, "1.1", succeeded=False)
    decision = bench.decide(commands.resume_rolling, 1)
    assert [o.machines for o in decision.operations] == [("web-1", "web-4")]
    assert decision.maintenance == bench.snapshot.maintenances[1]
    assert walk_of(bench).state is RollingState.RUNNING
    assert walk_of(bench).reason == ""
    for nothing in (1, 7):
        with pytest.raises(Refused) as refusal:
            bench.decide(commands.resume_rolling, nothing)
        assert refusal.value.code is ErrorCode.TOO_LATE
        assert refusal.value.facts == {"maintenance": nothing}


def test_resuming_leaves_a_rolling_update_finished_that_was() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-1", "batch_0", "batch_1")
    everybody = bench.snapshot
    gone = {name: m for name, m in everybody.machines.items() if name != "batch_1"}
    bench.snapshot = msgspec.structs.replace(everybody, machines=gone)
    carry_out(bench, "1.1")
    carry_out(bench, "1.2", succeeded=False)
    bench.snapshot = msgspec.structs.replace(bench.snapshot, machines=everybody.machines)
    decision = bench.decide(commands.resume_rolling, 1)
    assert [o.machines for o in decision.operations] == [("web-1",)]
    assert [rolling.state for rolling in bench.snapshot.maintenances[1].rolling_updates] == [
        RollingState.FINISHED,
        RollingState.RUNNING,
    ]


@pytest.mark.parametrize(
    ("message", "told"), [("", "1.1 is Failed"), ("rack X", "1.1 is Failed: rack X")]
)
def test_a_walk_tells_what_stopped_it_in_whole_words(message: str, told: str) -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.approve(bench.event("1.1").id)
    bench.finish("1.1", succeeded=False, message=message)
    assert walk_of(bench).reason == told


def test_of_two_walks_that_the_same_end_frees_the_first_takes_the_machine() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-1")
    bench.ask(REBOOT, "web-3", "web-1")
    bench.ask(EventType.FREEZE, "web-1")
    carry_out(bench, "1.1")
    carry_out(bench, "2.1")
    assert list(bench.snapshot.operations) == ["1.1", "2.1", "3.1"]
    bench.cancel("3.1")
    assert shown(bench)["1.2"] == ("web-1",)
    assert "2.2" not in bench.snapshot.operations
    carry_out(bench, "1.2")
    assert shown(bench)["2.2"] == ("web-1",)


@pytest.mark.parametrize("stopped", [True, False])
def test_cancelling_the_maintenance_ends_its_walk(stopped: bool) -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    if stopped:
        carry_out(bench, "1.1", succeeded=False)
    bench.cancel(maintenance=1)
    assert walk_of(bench).state is RollingState.FINISHED
    assert walk_of(bench).reason == "not now"
    assert list(bench.snapshot.operations) == ["1.1"]
    with pytest.raises(Refused) as refusal:
        bench.cancel(maintenance=1)
    assert refusal.value.code is ErrorCode.TOO_LATE


def test_cancelling_while_a_domain_is_down_lets_it_end_and_announces_no_other() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.approve(bench.event("1.1").id)
    bench.cancel(maintenance=1)
    assert bench.operation("1.1").status is EventStatus.STARTED
    bench.finish("1.1", succeeded=False)
    assert list(bench.snapshot.operations) == ["1.1"]
    assert walk_of(bench).state is RollingState.FINISHED


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


def test_a_walk_finds_each_step_in_the_fleet_as_it_is_then() -> None:
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
    assert walk_of(bench).state is RollingState.FINISHED


def test_nobody_is_taken_twice() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    carry_out(bench, "1.1")
    bench.cancel("1.2")
    change(bench, {"name": "web-0", "update_domain": 2}, *({"name": f"web-{n}"} for n in (1, 2, 3)))
    bench.decide(commands.resume_rolling, 1)
    assert shown(bench)["1.3"] == ("web-2",)


def test_a_walk_whose_machines_are_all_gone_is_over() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-1")
    change(bench, {"name": "web-0"}, {"name": "web-3"})
    carry_out(bench, "1.1")
    assert walk_of(bench).state is RollingState.FINISHED
    assert list(bench.snapshot.operations) == ["1.1"]


def test_a_step_waits_until_no_machine_of_it_has_another_live_event() -> None:
    bench = Bench()
    bench.ask(REBOOT, scope="web")
    bench.ask(EventType.FREEZE, "web-4")
    carry_out(bench, "1.1")
    assert "1.2" not in bench.snapshot.operations
    assert walk_of(bench).state is RollingState.RUNNING
    bench.cancel("2.1")
    assert shown(bench)["1.2"] == ("web-1", "web-4")


HOSTS = msgspec.convert(
    {
        "availability_set": [
            {"name": "web", "update_domains": 3, "machines": [
                {"name": "web-0", "host": "h1", "update_domain": 0},
                {"name": "web-1", "host": "h1", "update_domain": 1},
                {"name": "web-2", "host": "h2", "update_domain": 1},
            ]},
            {"name": "db", "update_domains": 2, "machines": [
                {"name": "db-0", "host": "h1", "update_domain": 1},
                {"name": "db-1", "host": "h2", "update_domain": 0},
            ]},
        ],
        "cloud_service": [{"name": "shop", "update_domains": 2, "automatically_approve": ["Reboot"],
                           "roles": [{"name": "F", "instances": [{"host": "h1"}]}]}],
        "machine": [{"name": "alone", "host": "h1"}],
    },
    fleet_file.Fleet,
)  # fmt: skip


def hosted(**more: object) -> Bench:
    bench = Bench(HOSTS)
    bench.ask(REBOOT, host="h1", **more)
    return bench


def test_a_host_is_one_operation_with_an_event_in_each_scope() -> None:
    bench = hosted()
    operation = bench.operation("1.1")
    assert [(e.scope, e.update_domain, e.machines) for e in operation.events] == [
        ("alone", 0, ("alone",)),
        ("db", 1, ("db-0",)),
        ("shop", 0, ("F_IN_0",)),
        ("web", 0, ("web-0",)),
    ]
    assert operation.hosts == ("h1",)
    maintenance = bench.snapshot.maintenances[1]
    assert (maintenance.target, maintenance.targets) == (TargetKind.HOST, ("h1",))
    assert bench.snapshot.maintenances[1].targets == ("h1",)
    assert len({event.id for event in operation.events}) == 4
    assert {s.key for s in bench.snapshot.scopes.values() if s.incarnation == 1} == {
        "alone", "db", "shop", "web",
    }  # fmt: skip


def test_it_starts_when_each_event_is_approved_and_not_before() -> None:
    bench = hosted()
    ids = [event.id for event in bench.operation("1.1").events]
    for event_id in ids[:-1]:
        bench.approve(event_id)
        assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.approve(ids[-1])
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.operation("1.1").start_cause is StartCause.APPROVED


def test_what_is_not_approved_waits_for_the_notice() -> None:
    bench = hosted()
    bench.approve(bench.operation("1.1").events[0].id)
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.operation("1.1").start_cause is StartCause.NOTICE_OVER


def test_a_scope_that_approves_itself_does_not_hold_a_host_up() -> None:
    bench = hosted(source=EventSource.USER)
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.SCHEDULED
    assert [e.scope for e in operation.events if e.approval is not None] == ["shop"]
    bench.approve(*(e.id for e in operation.events if e.scope != "shop"))
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_a_host_with_two_domains_of_a_scope_gets_an_operation_for_each() -> None:
    bench = hosted()
    carry_out(bench, "1.1")
    second = bench.operation("1.2")
    assert [(e.scope, e.machines) for e in second.events] == [("web", ("web-1",))]
    carry_out(bench, "1.2")
    assert walk_of(bench).state is RollingState.FINISHED


def test_an_act_that_can_not_be_split_over_two_domains_is_refused_by_name() -> None:
    bench = Bench(HOSTS)
    with pytest.raises(Refused) as refusal:
        bench.ask(REBOOT, host="h1", indivisible=True)
    assert refusal.value.code is ErrorCode.NOT_ELIGIBLE
    assert refusal.value.facts == {"scope": "web", "machine": "web-1"}
    assert bench.ask(REBOOT, host="h2", indivisible=True).operations
    failed = Bench(HOSTS)  # what has happened already is not refused
    assert len(failed.ask(REBOOT, host="h1", indivisible=True, no_notice=True).operations) == 2


def test_only_a_host_is_indivisible() -> None:
    with pytest.raises(Refused) as refusal:
        Bench().ask(REBOOT, "web-0", indivisible=True)
    assert refusal.value.code is ErrorCode.INVALID


def test_two_hosts_with_two_domains_of_one_scope_are_not_down_together() -> None:
    bench = hosted()
    bench.policy = msgspec.structs.replace(bench.policy, queue=Queueing.START)
    bench.ask(REBOOT, host="h2")
    assert shown(bench)["2.1"] == ("db-1", "web-2")
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.operation("2.1").waits_for == "1.1"
    bench.finish("1.1")
    assert bench.operation("2.1").status is EventStatus.STARTED
    assert shown(bench)["1.2"] == ("web-1",)
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.2").status is EventStatus.STARTED


def test_a_machine_that_has_left_the_host_is_no_longer_meant() -> None:
    bench = hosted()
    machines = dict(bench.snapshot.machines)
    machines["web-1"] = msgspec.structs.replace(machines["web-1"], host="h2")
    bench.snapshot = msgspec.structs.replace(bench.snapshot, machines=machines)
    carry_out(bench, "1.1")
    assert walk_of(bench).state is RollingState.FINISHED


def test_a_failed_host_takes_all_its_machines_at_once() -> None:
    bench = hosted(no_notice=True)
    assert {o.status for o in bench.snapshot.operations.values()} == {EventStatus.STARTED}
    assert shown(bench) == {"1.1": ("alone", "db-0", "F_IN_0", "web-0"), "1.2": ("web-1",)}


def test_a_host_that_nobody_is_on_is_named() -> None:
    bench = Bench()
    with pytest.raises(Refused) as refusal:
        bench.ask(REBOOT, host="h9")
    assert refusal.value.code is ErrorCode.NOT_FOUND
    assert refusal.value.facts == {"what": "host", "name": "h9"}
    with pytest.raises(Refused) as refusal:
        bench.ask(REBOOT, "web-0", host="h1")
    assert refusal.value.code is ErrorCode.INVALID


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


def test_a_maintenance_is_open_while_a_walk_is() -> None:
    closed = Maintenance(
        number=1, event_type=REBOOT, source=EventSource.USER, targets=(), requested_by="",
        requested_at=NOW, description="", duration_seconds=-1,
        target=TargetKind.MACHINES, live_migration=False,
    )  # fmt: skip
    assert not closed.open
    for state, is_open in [(RollingState.RUNNING, True), (RollingState.PAUSED, True),
                           (RollingState.FINISHED, False)]:  # fmt: skip
        walks = (RollingUpdate(state=RollingState.FINISHED), RollingUpdate(state=state))
        assert msgspec.structs.replace(closed, rolling_updates=walks).open is is_open


@pytest.mark.parametrize("event_type", [EventType.PREEMPT, EventType.TERMINATE])
def test_a_rolling_update_goes_on_without_a_machine_that_is_deleted(event_type: EventType) -> None:
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
    assert shown(bench)["1.2"] == ("batch_2",)
    assert bench.operation("1.2").status is EventStatus.SCHEDULED


def test_a_rolling_update_that_a_failure_sets_free_does_not_take_the_failed_machines() -> None:
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
    assert "1.2" not in bench.snapshot.operations  # b1 has an event
    bench.ask(REBOOT, "a1", "b2", no_notice=True)
    assert bench.operation("2.1").status is EventStatus.CANCELED
    assert "1.2" not in bench.snapshot.operations  # a1 has one now
