"""A host is one unit: its machines go down together, or one update domain after another."""

import msgspec
import pytest

from builders import Bench
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Refused
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import MaintenanceState, UnitKind, UnitState
from forewarn.vocabulary import ErrorCode, EventSource, EventStatus, EventType, TargetKind
from unit.maintenance.unit_bench import carry_out, shown

REBOOT = EventType.REBOOT
DONE, WAITING, RUNNING = UnitState.DONE, UnitState.WAITING, UnitState.RUNNING
FAILED, SKIPPED = UnitState.FAILED, UnitState.SKIPPED


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
    assert len({event.id for event in operation.events}) == 4
    assert {s.key for s in bench.snapshot.scopes.values() if s.incarnation == 1} == {
        "alone", "db", "shop", "web",
    }  # fmt: skip


def test_a_scope_that_approves_itself_does_not_hold_a_host_up() -> None:
    bench = hosted(source=EventSource.USER)
    operation = bench.operation("1.1")
    assert operation.status is EventStatus.SCHEDULED
    assert [e.scope for e in operation.events if e.approval is not None] == ["shop"]
    bench.approve(*(e.id for e in operation.events if e.scope != "shop"))
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_a_host_with_two_domains_of_a_scope_goes_domain_by_domain_as_one_unit() -> None:
    bench = hosted()
    (unit,) = bench.maintenance().units
    assert (unit.name, unit.kind, unit.state) == ("h1", UnitKind.HOST, RUNNING)
    carry_out(bench, "1.1")
    second = bench.operation("1.2")
    assert [(e.scope, e.machines) for e in second.events] == [("web", ("web-1",))]
    assert (second.unit, second.on_host, second.target) == (0, "h1", TargetKind.HOST)
    assert second.status is EventStatus.SCHEDULED
    carry_out(bench, "1.2")
    assert bench.unit("h1").done == ("alone", "db-0", "f_in_0", "web-0", "web-1")
    assert bench.maintenance().state is MaintenanceState.DONE


def test_a_paused_maintenance_stops_between_two_domains_of_a_host() -> None:
    bench = hosted()
    bench.order(MaintenanceOrder.PAUSE)
    carry_out(bench, "1.1")
    assert bench.unit("h1").state is WAITING
    assert list(bench.snapshot.operations) == ["1.1"]
    bench.order(MaintenanceOrder.RESUME)
    assert shown(bench)["1.2"] == ("web-1",)


def test_a_host_with_one_domain_of_each_scope_has_no_units() -> None:
    bench = Bench(HOSTS)
    bench.ask(REBOOT, host="h2")
    assert shown(bench) == {"1.1": ("db-1", "web-2")}
    assert (bench.maintenance().units, bench.operation("1.1").on_host) == ((), "h2")


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


def test_a_machine_that_has_left_the_host_is_no_longer_meant() -> None:
    bench = hosted()
    machines = dict(bench.snapshot.machines)
    machines["web-1"] = msgspec.structs.replace(machines["web-1"], host="h2")
    bench.snapshot = msgspec.structs.replace(bench.snapshot, machines=machines)
    carry_out(bench, "1.1")
    assert bench.maintenance().state is MaintenanceState.DONE
    assert list(bench.snapshot.operations) == ["1.1"]


def test_a_machine_that_has_come_to_the_host_has_its_turn_too() -> None:
    bench = hosted()
    bench.move(web_2="h1")
    carry_out(bench, "1.1")
    assert shown(bench)["1.2"] == ("web-1", "web-2")


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
