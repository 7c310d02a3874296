"""Holds with an end: they end at their time, never before, and plans count on it."""

from datetime import datetime

import pytest

from builders import MINUTE, NOW, SECOND, Bench, maintenance
from forewarn.maintenance import alerts, commands, planner, standing, turn_forecast
from forewarn.maintenance.footprints import Footprint
from forewarn.maintenance.model import Changes, HoldKind
from forewarn.maintenance.news import of_others
from forewarn.maintenance.units import Unit
from forewarn.maintenance.world import LiveState
from forewarn.vocabulary import EventType

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
