"""What an operator must know, and the words beside a status, beside the stories of scenarios."""

import re
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from builders import MINUTE, NOW, SECOND, Bench, maintenance
from forewarn.maintenance import alerts, commands, planner, standing, turn_forecast, turns
from forewarn.maintenance.alerts import AlertKind, Audience
from forewarn.maintenance.footprints import Footprint
from forewarn.maintenance.model import (
    Changes,
    Drain,
    HoldKind,
    HostState,
    Maintenance,
    Refused,
)
from forewarn.maintenance.news import of_others
from forewarn.maintenance.units import MaintenanceState, Unit, UnitKind, UnitState
from forewarn.maintenance.world import LiveState
from forewarn.vocabulary import ErrorCode, EventType

REBOOT = EventType.REBOOT


def listed(bench: Bench, **sights: Audience) -> list[tuple[AlertKind, str]]:
    return [(item.kind, item.about) for item in items(bench, **sights)]


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


def test_that_the_store_is_down_comes_first() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0", no_notice=True)
    bench.finish("1.1", succeeded=False)
    down = alerts.store_down("the disk is full", NOW + MINUTE)
    found = alerts.items(
        bench.snapshot.operations.values(), (), (), {}, bench.now, up_since=NOW, observed=(down,)
    )
    assert [item.kind for item in found] == [AlertKind.STORE_DOWN, AlertKind.FAILED]
    assert "the disk is full" in down.message
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


def test_an_event_that_machines_cannot_see_is_listed_until_they_can() -> None:
    bench = Bench()
    bench.ask(EventType.PREEMPT, "batch_0", "batch_2")
    bench.ask(REBOOT, "web-0")
    (item,) = items(bench, **{"1_1": Audience(2, 2, 1), "2_1": Audience(1, 1, 1)})[1:]
    assert (item.kind, item.about, item.since) == (AlertKind.UNSEEN, "1.1", NOW)
    assert "1 of 2 machines" in item.message
    bench.approve(bench.event("1.1").id)
    assert listed(bench, **{"1_1": Audience(2, 2, 0)}) == []


@pytest.mark.parametrize(("up", "silent"), [(119, ""), (120, "2 of 3 machines")])
def test_machines_that_do_not_ask_are_listed_once_they_have_had_the_time_to(
    up: int, silent: str
) -> None:
    bench = Bench()
    bench.ask(EventType.PREEMPT, "batch_0", "batch_2")
    (operation,) = bench.snapshot.operations.values()
    found = alerts.items(
        [operation], (), (), {"1.1": Audience(3, 1, 0)}, NOW, up_since=NOW - up * SECOND
    )
    (message,) = [item.message for item in found if item.kind is AlertKind.UNSEEN]
    assert re.findall(r"\d of \d machines", message) == [
        *([silent] if silent else ()),
        "1 of 3 machines",
    ]


def test_the_oldest_is_first() -> None:
    bench = Bench()
    bench.ask(REBOOT, "web-0")
    bench.now += MINUTE
    bench.hold(HoldKind.MACHINE, "bastion")
    bench.now += 13 * MINUTE
    assert listed(bench) == [(AlertKind.UNAPPROVED, "1.1"), (AlertKind.HELD, "machine bastion")]


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


# Holds with an end: they end at their time, never before, and plans count on it.

END = NOW + 10 * MINUTE


@pytest.fixture
def held() -> Bench:
    """An operation of web-0 whose scope is held for ten minutes, five after its announcement."""
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    bench.let_pass(5 * MINUTE)
    bench.hold(HoldKind.SCOPE, "web", END)
    return bench


def test_whatever_tells_of_a_hold_tells_its_end(held: Bench) -> None:
    operation, (hold,) = held.operation("1.1"), held.snapshot.holds
    assert " until 12:10Z: " in standing.of_operation(operation, {}, [hold], held.now)
    (alert,) = alerts.items([], [], [hold], {}, held.now, up_since=NOW)
    machine = held.snapshot.machines["web-0"]
    for said in (alert.message, planner.on_hold([machine], [hold])):
        assert "2026-03-02 12:10:00Z" in said


def test_the_news_tell_an_end_from_a_release(held: Bench) -> None:
    (hold,) = held.snapshot.holds
    for now, told in ((END - SECOND, "hold.released"), (END, "hold.expired")):
        (item,) = of_others(LiveState(), Changes(released=(hold,)), (), now)
        assert (item.type, item.data.until) == (told, END)


def plan_end(bench: Bench) -> datetime | None:
    """The end of a maintenance of the hosts h0 to h2, by its plan."""

    def takes(unit: Unit) -> Footprint:
        domain = int(unit.name[1:])
        return Footprint(machines=(f"web-{domain}", f"web-{domain + 3}"), domains={"web": domain})

    of, worlds = maintenance("h0", "h1", "h2"), bench.snapshot.world
    return turn_forecast.planned(of, takes, worlds, commands.ALWAYS_ON, bench.now).latest


def test_a_plan_goes_on_when_a_hold_has_ended() -> None:
    bench = Bench()
    free = plan_end(bench)
    bench.hold(HoldKind.SCOPE, "web", END)
    assert free is not None
    assert plan_end(bench) == free + (END - bench.now)
    bench.release(HoldKind.SCOPE, "web")
    bench.hold(HoldKind.SCOPE, "web")
    assert plan_end(bench) is None


def test_a_plan_waits_for_the_end_of_a_hold_on_another_maintenance() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-1")
    bench.hold(HoldKind.MACHINE, "web-1", END)
    ends = plan_end(bench)
    bench.release(HoldKind.MACHINE, "web-1")
    assert ends is not None
    assert plan_end(bench) == ends - (END - bench.now)
