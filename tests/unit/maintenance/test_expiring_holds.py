"""Holds with an end: they end at their time, never before, and plans count on it."""

from datetime import datetime, timedelta

import pytest

from builders import MINUTE, NOW, SECOND, Bench
from forewarn.maintenance import alerts, commands, planner, standing, turn_forecast
from forewarn.maintenance.footprints import Footprint
from forewarn.maintenance.model import Changes, HoldKind, Refused
from forewarn.maintenance.news import Before, of_others
from forewarn.maintenance.units import Unit
from forewarn.vocabulary import ErrorCode, EventStatus, EventType
from turn_world import maintenance

END = NOW + 10 * MINUTE


@pytest.fixture
def held() -> Bench:
    """An operation of web-0 whose scope is held for ten minutes, five after its announcement."""
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    bench.let_pass(5 * MINUTE)
    bench.hold(HoldKind.SCOPE, "web", END)
    return bench


def test_a_hold_ends_at_its_time_and_what_it_held_has_the_notice_that_was_left(
    held: Bench,
) -> None:
    held.let_pass(5 * MINUTE - SECOND)
    assert held.decide(commands.expire_holds).changes == Changes()
    assert held.operation("1.1").held_at is not None
    held.now += SECOND
    expired = held.decide(commands.expire_holds)
    assert [hold.name for hold in expired.changes.released] == ["web"]
    assert [operation.id for operation in expired.operations] == ["1.1"]
    assert held.operation("1.1").not_before == END + 10 * MINUTE
    held.let_pass(10 * MINUTE - SECOND)
    assert held.operation("1.1").status is EventStatus.SCHEDULED
    held.let_pass(SECOND)
    assert held.operation("1.1").status is EventStatus.STARTED


def test_the_notice_goes_on_from_the_release_where_nobody_looked_at_the_time(held: Bench) -> None:
    held.let_pass(60 * MINUTE)
    assert held.operation("1.1").not_before == NOW + 75 * MINUTE


def test_another_hold_of_the_same_stays(held: Bench) -> None:
    held.hold(HoldKind.EVERYTHING)
    held.let_pass(20 * MINUTE)
    assert held.operation("1.1").held_at is not None
    assert [hold.kind for hold in held.snapshot.holds] == [HoldKind.EVERYTHING]


@pytest.mark.parametrize("ago", [timedelta(0), SECOND])
def test_an_end_that_has_passed_is_refused(ago: timedelta) -> None:
    bench = Bench()
    with pytest.raises(Refused) as refused:
        bench.hold(HoldKind.EVERYTHING, "", bench.now - ago)
    assert (refused.value.code, refused.value.facts) == (ErrorCode.INVALID, {"where": "until"})
    assert bench.snapshot.holds == ()


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
        before = Before(maintenances={}, drains={})
        (item,) = of_others(before, Changes(released=(hold,)), (), now)
        assert (item.type, item.data.until) == (told, END)


def end(bench: Bench) -> datetime | None:
    """The end of a maintenance of the hosts h0 to h2, by its plan."""

    def takes(unit: Unit) -> Footprint:
        domain = int(unit.name[1:])
        return Footprint(machines=(f"web-{domain}", f"web-{domain + 3}"), domains={"web": domain})

    of, worlds = maintenance("h0", "h1", "h2"), bench.snapshot.world
    return turn_forecast.planned(of, takes, worlds, commands.ALWAYS_ON, bench.now).latest


def test_a_plan_goes_on_when_a_hold_has_ended() -> None:
    bench = Bench()
    free = end(bench)
    bench.hold(HoldKind.SCOPE, "web", END)
    assert free is not None
    assert end(bench) == free + (END - bench.now)
    bench.release(HoldKind.SCOPE, "web")
    bench.hold(HoldKind.SCOPE, "web")
    assert end(bench) is None


def test_a_plan_waits_for_the_end_of_a_hold_on_another_maintenance() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-1")
    bench.hold(HoldKind.MACHINE, "web-1", END)
    ends = end(bench)
    bench.release(HoldKind.MACHINE, "web-1")
    assert ends is not None
    assert end(bench) == ends - (END - bench.now)
