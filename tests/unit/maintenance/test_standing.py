"""What keeps an operation, a maintenance or a host where it is, in words."""

from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from builders import MINUTE, NOW, Bench
from forewarn.maintenance import commands, standing
from forewarn.maintenance.model import Drain, HoldKind, HostState, Sighting, Verdict
from forewarn.maintenance.units import MaintenanceState, Unit, UnitKind, UnitState
from forewarn.vocabulary import EventType

REBOOT = EventType.REBOOT


@pytest.fixture
def bench() -> Bench:
    return Bench()


def detail(bench: Bench, operation: str = "1.1") -> str:
    known = bench.snapshot.operations
    live = {name: one for name, one in known.items() if one.live}
    return standing.of_operation(known[operation], live, bench.snapshot.holds, bench.now)


def has(text: str, *facts: str) -> bool:
    return all(fact in text for fact in facts)


def test_what_is_announced_says_what_starts_it(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0")
    assert has(detail(bench), "approved", " 12:15Z")
    bench.now += timedelta(days=-1)
    assert has(detail(bench), "03-02 12:15Z"), "another day is named"
    bench.now = NOW
    bench.approve(bench.event("1.1").id)
    assert has(detail(bench), "12:00Z")


def test_what_opens_later_says_when(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0", opens_at=NOW + 30 * MINUTE)
    assert has(detail(bench), "12:14Z"), "so long it is queued"
    bench.let_pass(15 * MINUTE)
    assert has(detail(bench), "12:30Z", "or at")
    bench.approve(bench.event("1.1").id)
    assert has(detail(bench), "12:30Z", "approved")
    assert "or at" not in detail(bench)


def test_what_waits_says_for_what_and_what_would_end_that(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.ask(REBOOT, "web-1")
    assert has(detail(bench, "2.1"), "1.1")
    bench.claim("1.1")
    bench.decide(
        commands.report_unknown_outcome,
        operation_id="1.1",
        attempt=bench.operation("1.1").attempt,
        message="the host is gone",
    )
    for operation in ("1.1", "2.1"):
        assert has(detail(bench, operation), "resolve 1.1")
    failed = Verdict.FAILED
    bench.decide(commands.resolve_outcomes, operations=["1.1"], verdict=failed, by="ann")
    assert has(detail(bench), "not acknowledged")
    assert has(detail(bench, "2.1"), "acknowledge 1.1")
    bench.decide(commands.acknowledge_failures, operations=("1.1",), by="ann", even_if_down=True)
    assert detail(bench) == ""


def test_what_is_held_says_by_whom_since_when_and_why(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0")
    bench.hold(HoldKind.SCOPE, "web")
    first = detail(bench)
    assert has(first, "ann", "12:00Z", "scope web", "storm")
    bench.now += MINUTE
    bench.hold(HoldKind.EVERYTHING)
    assert has(detail(bench), first, "1 more")
    bench.snapshot = msgspec.structs.replace(bench.snapshot, holds=())
    assert detail(bench) == "held", "nobody knows the hold any more"


def test_what_comes_back_says_who_is_awaited_and_how_long(bench: Bench) -> None:
    bench.sightings["web-0"] = Sighting(asked_at=NOW, version="2020-07-01")
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1")
    assert has(detail(bench), "web-0", "12:10Z")


def test_what_a_machine_that_came_keeps_from_starting_says_so(bench: Bench) -> None:
    bench.ask(REBOOT, host="h0")
    bench.let_pass(14 * MINUTE)
    bench.move(bastion="h0")
    assert has(detail(bench), "bastion", "h0")


def test_a_host_says_where_it_is_stuck_since_when_and_what_ends_that() -> None:
    drain = Drain(host="h1", state=HostState.UP, requested_at=NOW, changed_at=NOW)
    assert standing.of_host(drain, NOW) == ""
    stuck = replace(drain, state=HostState.STUCK, stuck_in=HostState.DRAINING, reason="db-1 stays")
    assert has(standing.of_host(stuck, NOW), "draining", "db-1 stays", "12:00Z", "retry")
    empty = replace(drain, state=HostState.EMPTY)
    assert has(standing.of_host(empty, NOW), "12:00Z", "undrain")
    reboots = replace(empty, reboot=True, reason="held: everything")
    assert has(standing.of_host(reboots, NOW), "held: everything", "12:00Z")
    assert "undrain" not in standing.of_host(reboots, NOW), "it goes on by itself"


def test_a_maintenance_that_rests_says_since_when_and_how_it_goes_on(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0")
    (asked,) = bench.snapshot.maintenances.values()
    assert standing.of_maintenance(asked, NOW) == ""
    failed = Unit(name="web/0", kind=UnitKind.UPDATE_DOMAIN, state=UnitState.FAILED)
    halted = replace(
        asked,
        state=MaintenanceState.HALTED,
        reason="web/0 failed: 1.1 is Failed\nand more",
        changed_at=NOW,
        units=(failed,),
    )
    text = standing.of_maintenance(halted, NOW)
    assert has(text, "web/0 failed", "12:00Z", "retry or skip web/0", "resume")
    assert "and more" not in text, "one line"
    paused = replace(halted, state=MaintenanceState.PAUSED, reason="paused by ann", units=())
    assert has(standing.of_maintenance(paused, NOW), "by ann", "12:00Z", "resume")
    assert "paused" not in standing.of_maintenance(paused, NOW), "the status says that"
