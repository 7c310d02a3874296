"""What an operator must know, and the words beside a status, beside the stories of scenarios."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from builders import MINUTE, NOW, Bench, maintenance
from forewarn.maintenance import alerts, standing, turns
from forewarn.maintenance.alerts import AlertKind, Audience
from forewarn.maintenance.model import (
    Drain,
    HoldKind,
    HostState,
    Maintenance,
    Refused,
)
from forewarn.maintenance.units import MaintenanceState, Unit, UnitKind, UnitState
from forewarn.vocabulary import ErrorCode, EventType

REBOOT = EventType.REBOOT


def items(bench: Bench, **sights: Audience) -> list[alerts.Alert]:
    snapshot = bench.snapshot
    return alerts.items(
        snapshot.operations.values(),
        snapshot.maintenances.values(),
        snapshot.holds,
        {name.replace("_", "."): sight for name, sight in sights.items()},
        bench.now,
        up_since=NOW - 60 * MINUTE,
    )


def test_that_the_store_is_down_comes_first_then_the_oldest() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1", succeeded=False)
    down = alerts.store_down("the disk is full", NOW + MINUTE)
    found = alerts.items(
        bench.snapshot.operations.values(), (), (), {}, bench.now, up_since=NOW, observed=(down,)
    )
    assert [item.kind for item in found] == [AlertKind.STORE_DOWN, AlertKind.FAILED]
    assert "the disk is full" in down.message
    failed = [alerts.Alert(AlertKind.FAILED, about, "", NOW) for about in ("1.10", "1.2")]
    found = alerts.items((), (), (), {}, bench.now, up_since=NOW, observed=failed)
    assert [item.about for item in found] == ["1.2", "1.10"]
    assert alerts.remedy(down) == ""


def test_units_that_the_rules_refuse_are_listed_after_ten_minutes_until_they_go() -> None:
    refusal = Refused(ErrorCode.LIMIT, "no room")
    of = maintenance("h0", "h1")
    first = turns.refused(of, {0: refusal, 1: refusal}, NOW)
    again = turns.refused(first, {0: refusal, 1: refusal}, NOW + 9 * MINUTE)

    def found(of: Maintenance, after: timedelta) -> list[alerts.Alert]:
        return alerts.items([], [of], [], {}, NOW + after, up_since=NOW)

    assert found(again, 9 * MINUTE) == []
    (item,) = found(again, 10 * MINUTE)
    assert (item.kind, item.about, item.since) == (AlertKind.REFUSED, "1", NOW)
    assert "h0, h1: no room" in item.message
    assert alerts.remedy(item) == "maintenance show 1"
    assert found(turns.asked(again, {0: 1, 1: 2}, NOW + 10 * MINUTE), 20 * MINUTE) == []


@pytest.fixture
def bench() -> Bench:
    return Bench()


def has(text: str, *facts: str) -> bool:
    return all(fact in text for fact in facts)


def test_what_is_held_by_a_hold_that_is_not_known_any_more_says_so(bench: Bench) -> None:
    bench.ask(REBOOT, "web-0")
    bench.hold(HoldKind.SCOPE, "web")
    assert standing.of_operation(bench.operation("1.1"), {}, (), bench.now) == "held"


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
