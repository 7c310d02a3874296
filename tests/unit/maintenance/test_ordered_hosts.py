"""A host's maintenance concerns the host: who leaves drops out, who arrives keeps it waiting."""

from typing import Any

import pytest

from builders import MINUTE, NOW, Bench
from forewarn.maintenance import alerts
from forewarn.maintenance.alerts import AlertKind
from forewarn.maintenance.model import HoldKind, Operation
from forewarn.vocabulary import EventStatus, EventType

REBOOT = EventType.REBOOT


def bench_of(*moved: str, **more: Any) -> Bench:
    """Maintenance of h0, with web-0 and web-3 of one domain, and these machines besides."""
    bench = Bench()
    bench.move(**dict.fromkeys(moved, "h0"))
    bench.ask(REBOOT, host="h0", **more)
    return bench


def machines(operation: Operation) -> list[tuple[str, ...]]:
    return [event.machines for event in operation.events]


def alerts_of(bench: Bench) -> list[tuple[AlertKind, str]]:
    live = bench.snapshot.operations.values()
    found = alerts.items(live, (), (), {}, bench.now, up_since=NOW)
    return [(alert.kind, alert.about) for alert in found]


def test_a_machine_that_leaves_drops_out_of_its_event_and_guests_see_it() -> None:
    bench = bench_of()
    bench.move(web_3="h9")
    operation = bench.operation("1.1")
    assert (operation.on_host, operation.hosts) == ("h0", ("h0",))
    assert machines(operation) == [("web-0",)]
    assert bench.scope("web").incarnation == 2
    bench.let_pass(15 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.STARTED
    bench.move(web_0="h9")
    assert machines(bench.operation("1.1")) == [("web-0",)]


def test_an_event_without_a_machine_goes_and_may_still_be_approved() -> None:
    bench = bench_of("bastion")
    gone = {event.scope: event.id for event in bench.operation("1.1").events}["bastion"]
    bench.move(bastion="h9")
    operation = bench.operation("1.1")
    assert [event.scope for event in operation.events] == ["web"]
    assert [event.id for event in operation.dropped] == [gone]
    assert (bench.scope("web").incarnation, bench.scope("bastion").incarnation) == (2, 2)
    assert [o.id for o in bench.approve(gone, scope="bastion").operations] == ["1.1"]
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.approve(operation.events[0].id, scope="web")
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert (bench.scope("web").incarnation, bench.scope("bastion").incarnation) == (3, 2)


def test_the_last_approval_that_was_missing_may_leave() -> None:
    bench = bench_of("bastion")
    bench.approve(*[e.id for e in bench.operation("1.1").events if e.scope == "web"])
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.move(bastion="h9")
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_what_all_machines_have_left_is_cancelled() -> None:
    bench = bench_of()
    bench.move(web_0="h9", web_3="h9")
    operation = bench.operation("1.1")
    assert (operation.status, operation.outcome) == (
        EventStatus.CANCELED,
        "its machines have left host h0",
    )
    assert machines(operation) == [("web-0", "web-3")]


def test_a_machine_whose_host_is_not_known_has_not_left() -> None:
    bench = bench_of()
    bench.move(web_3="")
    assert machines(bench.operation("1.1")) == [("web-0", "web-3")]


@pytest.mark.parametrize("approves", [False, True])
def test_a_machine_that_arrives_keeps_it_from_starting_and_is_an_alert(*, approves: bool) -> None:
    bench = bench_of()
    bench.let_pass(MINUTE)
    bench.move(bastion="h0")
    assert bench.operation("1.1").arrived == ("bastion",)
    if approves:
        bench.approve(bench.event("1.1").id)
    assert bench.operation("1.1").wakeup_at is None
    bench.let_pass(20 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert (AlertKind.ARRIVED, "1.1") in alerts_of(bench)
    bench.move(bastion="h9")
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.operation("1.1").arrived == ()


def test_what_is_held_when_the_last_one_leaves_starts_with_its_release() -> None:
    bench = bench_of()
    bench.approve(bench.event("1.1").id) if bench.hold(HoldKind.HOST, "h0").operations else None
    bench.move(bastion="h0")
    bench.release(HoldKind.HOST, "h0")
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    bench.move(bastion="h9")
    assert bench.operation("1.1").status is EventStatus.STARTED


def test_what_closes_before_the_last_one_has_left_is_cancelled() -> None:
    bench = bench_of(closes_at=NOW + 30 * MINUTE)
    bench.move(bastion="h0")
    assert bench.operation("1.1").wakeup_at == NOW + 30 * MINUTE
    bench.let_pass(30 * MINUTE)
    assert bench.operation("1.1").status is EventStatus.CANCELED
    assert bench.operation("1.1").arrived == ()


def test_what_goes_domain_by_domain_announces_who_arrives_and_who_comes_back() -> None:
    bench = bench_of("web-1".replace("-", "_"))
    assert [machines(bench.operation("1.1"))] == [[("web-0", "web-3")]]
    bench.move(bastion="h0", web_3="h9")
    assert bench.operation("1.1").arrived == ()
    bench.let_pass(15 * MINUTE)
    bench.finish("1.1")
    assert machines(bench.operation("1.2")) == [("bastion",), ("web-1",)]
    bench.move(web_3="h0")
    bench.approve(*[event.id for event in bench.operation("1.2").events])
    bench.finish("1.2")
    assert machines(bench.operation("1.3")) == [("web-3",)]


def test_a_turn_whose_machines_have_all_left_makes_way_for_the_next() -> None:
    bench = bench_of("web_1")
    bench.move(web_0="h9", web_3="h9")
    assert bench.operation("1.1").status is EventStatus.CANCELED
    assert machines(bench.operation("1.2")) == [("web-1",)]


def test_a_machine_that_was_asked_for_by_name_takes_its_maintenance_along() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", "web-3")
    bench.move(web_0="h9", bastion="h0")
    operation = bench.operation("1.1")
    assert (operation.on_host, operation.arrived) == ("", ())
    assert machines(operation) == [("web-0", "web-3")]


def test_what_waited_for_a_machine_that_has_left_goes_on() -> None:
    bench = bench_of("batch_0")
    bench.ask(REBOOT, "batch_1")
    assert (bench.operation("2.1").status, bench.operation("2.1").waits_for) == (
        EventStatus.QUEUED,
        "1.1",
    )
    bench.move(batch_0="h9")
    assert bench.operation("1.1").status is EventStatus.SCHEDULED
    assert bench.operation("2.1").status is EventStatus.SCHEDULED


def test_what_waited_for_a_machine_that_has_left_goes_on_though_the_rest_has_started() -> None:
    bench = bench_of("batch_0")
    bench.ask(REBOOT, "batch_1")
    bench.approve(*[e.id for e in bench.operation("1.1").events if e.scope == "web"])
    bench.move(batch_0="h9")
    assert bench.operation("1.1").status is EventStatus.STARTED
    assert bench.operation("2.1").status is EventStatus.SCHEDULED


def test_what_waits_in_a_scope_goes_on_when_its_machine_there_has_left() -> None:
    bench = Bench()
    bench.ask(REBOOT, "batch_1")
    bench.move(batch_0="h0")
    bench.ask(REBOOT, host="h0")
    assert (bench.operation("2.1").status, bench.operation("2.1").waits_for) == (
        EventStatus.QUEUED,
        "1.1",
    )
    bench.move(batch_0="h9")
    assert bench.operation("2.1").status is EventStatus.SCHEDULED
    assert machines(bench.operation("2.1")) == [("web-0", "web-3")]
