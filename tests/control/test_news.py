"""News: what is written down for outsiders with each change, as each decision makes it."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

import turn_world
from builders import FLEET, MINUTE, NOW, mint
from control.conftest import Counting, House, done
from forewarn.clock import ManualClock
from forewarn.connectors.port import Outcome
from forewarn.control import maintenances
from forewarn.control.changefeed import Changefeed
from forewarn.control.maintenances import Asked, UnitTargets
from forewarn.control.plane import Plane, Retention
from forewarn.control.writer import InlineWriter
from forewarn.maintenance import news
from forewarn.maintenance.model import (
    Changes,
    Drain,
    HoldKind,
    HostState,
    Maintenance,
    Refused,
)
from forewarn.maintenance.news import NewsItem, NewsType
from forewarn.maintenance.planner import Request
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import CheckProgress, UnitKind
from forewarn.store.port import Store
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import ApproverKind, EventStatus, EventType, TargetKind

replace = msgspec.structs.replace

REBOOT = EventType.REBOOT
HOUR = timedelta(hours=1)


def told(store: Store, since: int = 0) -> list[NewsItem]:
    """Return all news after this transaction."""
    with store.read() as reading:
        return [one for row in reading.news_after(since, 1000) for one in news.decode(row.items)]


class Reader:
    """Reads the news of a house from where it read last."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.seen = 0
        self()

    def __call__(self) -> list[NewsItem]:
        found = told(self.house.store, self.seen)
        with self.house.store.read() as reading:
            self.seen = reading.position().sequence
        return found

    def types(self) -> list[str]:
        return [one.type for one in self()]


@pytest.fixture
def reader(house: House) -> Reader:
    return Reader(house)


def test_a_maintenance_is_told_from_its_request_to_its_end(house: House, reader: Reader) -> None:
    plan = house.ask(REBOOT, "web-0", "web-3", requested_by="ann")
    scheduled, announced = reader()
    assert scheduled.type is NewsType.MAINTENANCE_SCHEDULED
    assert scheduled.subject == "maintenance 1"
    assert (scheduled.data.by, scheduled.data.machines) == ("ann", ("web-0", "web-3"))
    (operation,) = plan.operations
    (event,) = operation.events
    data = announced.data
    assert (announced.type, announced.at) == (NewsType.OPERATION_SCHEDULED, NOW)
    assert announced.subject == "operation 1.1"
    assert (data.maintenance, data.operation, data.status) == (1, "1.1", EventStatus.SCHEDULED)
    assert (data.event_type, data.not_before) == (REBOOT, operation.not_before)
    assert (data.machines, data.machine_count) == (("web-0", "web-3"), 2)
    assert (data.scopes, data.event_ids) == (("web",), (event.id,))
    done(house.plane.approve("web", [event.id], by="web-3", address="10.0.0.13"))
    approved, started = reader()
    assert (approved.type, approved.data.by) == (NewsType.OPERATION_APPROVED, "web-3")
    assert approved.data.approver is ApproverKind.GUEST
    assert (started.type, started.data.status) == (NewsType.OPERATION_STARTED, EventStatus.STARTED)
    (task,) = done(house.plane.claim("a", MINUTE, 10))
    done(house.plane.renew("1.1", task.attempt, MINUTE))
    assert reader() == []
    done(house.plane.finish("1.1", task.attempt, Outcome(succeeded=True)))
    completed, finished = reader()
    assert completed.type is NewsType.OPERATION_COMPLETED
    assert finished.type is NewsType.MAINTENANCE_FINISHED
    assert finished.data.operations == {"Completed": 1}


def test_a_change_of_an_operation_that_was_never_read_tells_only_what_changed(
    house: House, reader: Reader
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    assert reader.types()[-1] == NewsType.OPERATION_STARTED
    done(house.plane.claim("a", MINUTE, 10))
    done(house.plane.release_claims("b"))
    done(house.plane.extend_notices(HOUR))
    assert reader() == []


def test_an_outage_and_an_operator_postpone(house: House, reader: Reader) -> None:
    before = house.ask(REBOOT, "web-0").operations[0].not_before
    reader()
    house.clock.advance(HOUR)
    done(house.plane.extend_notices(HOUR))
    done(house.plane.postpone(["1"], before + 3 * HOUR))
    found = reader()
    assert [one.type for one in found] == [NewsType.OPERATION_POSTPONED] * 2
    assert [one.data.not_before for one in found] == [before + HOUR, before + 3 * HOUR]


def test_what_is_approved_before_its_window_is_approved_and_not_started(
    house: House, reader: Reader
) -> None:
    plan = house.ask(REBOOT, "web-0", "bastion", opens_at=NOW + 2 * HOUR)
    house.clock.advance(2 * HOUR - MINUTE)
    done(house.plane.advance())
    reader()
    ids = {o.events[0].scope: o.events[0].id for o in plan.operations}
    done(house.plane.approve("web", [ids["web"]], by="web-0", address=""))
    assert reader.types() == [NewsType.OPERATION_APPROVED]


def test_a_cancelled_maintenance_is_finished(house: House, reader: Reader) -> None:
    house.ask(REBOOT, "web-0", "bastion")
    reader()
    done(house.plane.cancel(["1.1"], reason="not today"))
    (canceled,) = reader()
    assert (canceled.type, canceled.data.reason) == (NewsType.OPERATION_CANCELED, "not today")
    done(house.plane.cancel(["1"], reason=""))
    assert reader.types() == [NewsType.OPERATION_CANCELED, NewsType.MAINTENANCE_FINISHED]


def test_a_failure_halts_a_maintenance_until_it_is_resumed(house: House, reader: Reader) -> None:
    house.ask(REBOOT, scope="web", no_notice=False)
    assert reader.types() == [NewsType.MAINTENANCE_SCHEDULED, NewsType.OPERATION_SCHEDULED]
    house.clock.advance(HOUR)
    done(house.plane.advance())
    (task,) = done(house.plane.claim("a", MINUTE, 10))
    done(house.plane.finish("1.1", task.attempt, Outcome(succeeded=False, message="no power")))
    found = reader()
    assert [one.type for one in found] == [
        NewsType.OPERATION_STARTED,
        NewsType.MAINTENANCE_PROGRESSED,
        NewsType.MAINTENANCE_HALTED,
        NewsType.OPERATION_FAILED,
    ]
    assert found[-1].data.reason == "no power"
    assert "1.1" in found[2].data.reason
    done(house.plane.acknowledge(["1.1"], "ann", even_if_down=True))
    (acknowledged,) = reader()
    assert (acknowledged.type, acknowledged.data.by) == (NewsType.OPERATION_ACKNOWLEDGED, "ann")
    order(house, MaintenanceOrder.RESUME)
    progressed, resumed, announced = reader()
    assert progressed.data.units == {"failed": 1, "running": 1, "waiting": 1}
    assert (resumed.type, resumed.data.by) == (NewsType.MAINTENANCE_RESUMED, "bob")
    assert announced.type is NewsType.OPERATION_SCHEDULED
    done(house.plane.cancel(["1"], reason="enough"))
    progressed, stopped, canceled, finished = reader()
    assert progressed.type is NewsType.MAINTENANCE_PROGRESSED
    assert (stopped.type, stopped.data.reason) == (NewsType.MAINTENANCE_STOPPED, "enough")
    assert canceled.type is NewsType.OPERATION_CANCELED
    assert finished.type is NewsType.MAINTENANCE_FINISHED


def test_what_waits_for_another_domain_is_queued(reader: Reader) -> None:
    store = InMemoryStore()
    clock = ManualClock(NOW)
    plane = Plane(InlineWriter(store, clock, Changefeed()), mint("b"))
    done(plane.apply_fleet(FLEET))
    ask = reader.house.ask.__func__  # type: ignore[attr-defined]
    house = type("Simple", (), {"plane": plane})()
    ask(house, REBOOT, "web-0")
    ask(house, REBOOT, "web-1")
    assert [one.type for one in told(store)][-2:] == [
        NewsType.MAINTENANCE_SCHEDULED,
        NewsType.OPERATION_QUEUED,
    ]
    done(plane.cancel(["1"], reason=""))
    assert [one.type for one in told(store)][-3:] == [
        NewsType.OPERATION_CANCELED,
        NewsType.OPERATION_SCHEDULED,
        NewsType.MAINTENANCE_FINISHED,
    ]


def test_an_unknown_outcome_is_told_once(house: House, reader: Reader) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    (task,) = done(house.plane.claim("a", MINUTE, 10))
    reader()
    done(house.plane.report_unknown("1.1", task.attempt, "who knows"))
    (unknown,) = reader()
    assert (unknown.type, unknown.data.reason) == (NewsType.OPERATION_OUTCOME_UNKNOWN, "who knows")


def test_a_hold_is_told_when_it_is_put_and_when_it_is_released(
    house: House, reader: Reader
) -> None:
    house.ask(REBOOT, "web-0")
    reader()
    done(house.plane.hold(HoldKind.SCOPE, "WEB", reason="a release", by="ann"))
    house.clock.advance(MINUTE)
    done(house.plane.release(HoldKind.SCOPE, "web"))
    put, released, postponed = reader()
    assert (put.type, put.subject) == (NewsType.HOLD_PUT, "scope web")
    assert (put.data.scopes, put.data.reason, put.data.by) == (("web",), "a release", "ann")
    assert postponed.type is NewsType.OPERATION_POSTPONED
    assert (released.type, released.subject) == (NewsType.HOLD_RELEASED, "scope web")


def test_a_refused_request_is_no_news(house: House, reader: Reader) -> None:
    with pytest.raises(Refused):
        house.ask(REBOOT, "nobody")
    assert reader() == []


def test_a_commit_that_fails_leaves_no_news(reader: Reader) -> None:
    del reader
    store = Counting()
    plane = Plane(InlineWriter(store, ManualClock(NOW), Changefeed()), mint("b"))
    done(plane.apply_fleet(FLEET))
    before = told(store)
    assert [one.type for one in before] == [NewsType.FLEET_CHANGED]
    store.away = True
    assert plane.hold(HoldKind.EVERYTHING, "", reason="", by="ann").exception() is not None
    assert told(store) == before


def test_the_fleets_changes_are_told_in_one_item(house: House, reader: Reader) -> None:
    first = told(house.store)[0]
    assert (first.type, first.subject) == (NewsType.FLEET_CHANGED, "fleet")
    assert first.data.machine_count == len(first.data.machines) > 3
    done(house.plane.remove_machines(["bastion"]))
    (removed,) = reader()
    assert (removed.data.count, removed.data.machines) == (1, ("bastion",))
    done(house.plane.record_hosts({"web-0": "h9"}))
    (moved,) = reader()
    assert (moved.data.count, moved.data.machines) == (0, ("web-0",))


def two_waves(**policy: Any) -> Maintenance:
    """Two machines, one after the other."""
    of = turn_world.maintenance("bastion", "web-0", **policy)
    units = tuple(
        replace(unit, kind=UnitKind.MACHINES, machines=(unit.name,), wave=wave)
        for wave, unit in enumerate(of.units)
    )
    return replace(of, target=TargetKind.MACHINES, units=units)


def start(house: House, wanted: Maintenance) -> Maintenance:
    asked = Asked(
        request=Request(event_type=wanted.event_type),
        targets=UnitTargets(machines=wanted.targets),
        policy=wanted.policy,
    )
    return done(house.plane.order(maintenances.start, wanted, asked))


def order(house: House, kind: MaintenanceOrder) -> None:
    done(house.plane.order(maintenances.order, 1, kind, "", by="bob"))


def test_a_maintenance_tells_its_progress_its_waves_and_its_end(
    house: House, reader: Reader
) -> None:
    start(house, two_waves())
    scheduled, announced = reader()
    assert (scheduled.type, scheduled.subject) == (NewsType.MAINTENANCE_SCHEDULED, "maintenance 1")
    assert scheduled.data.units == {"running": 1, "waiting": 1}
    assert (scheduled.data.wave, scheduled.data.waves) == (1, 2)
    assert (announced.type, announced.data.machines) == (NewsType.OPERATION_SCHEDULED, ("bastion",))
    order(house, MaintenanceOrder.PAUSE)
    (paused,) = reader()
    assert (paused.type, paused.data.by) == (NewsType.MAINTENANCE_PAUSED, "bob")
    order(house, MaintenanceOrder.RESUME)
    assert reader.types() == [NewsType.MAINTENANCE_RESUMED]
    house.clock.advance(HOUR)
    done(house.plane.advance())
    (task,) = done(house.plane.claim("a", MINUTE, 10))
    reader()
    done(house.plane.finish("1.1", task.attempt, Outcome(succeeded=True)))
    progressed, wave, *operations = reader()
    assert progressed.type is NewsType.MAINTENANCE_PROGRESSED
    assert progressed.data.units == {"done": 1, "running": 1}
    assert (wave.type, wave.data.wave) == (NewsType.MAINTENANCE_WAVE, 2)
    assert [one.type for one in operations] == [
        NewsType.OPERATION_COMPLETED,
        NewsType.OPERATION_SCHEDULED,
    ]
    done(house.plane.cancel(["1.2"], reason=""))
    assert NewsType.MAINTENANCE_HALTED in reader.types()
    order(house, MaintenanceOrder.STOP)
    stopped, finished = reader()
    assert (stopped.type, stopped.data.by) == (NewsType.MAINTENANCE_STOPPED, "bob")
    assert finished.type is NewsType.MAINTENANCE_FINISHED
    assert finished.data.operations == {"Completed": 1, "Canceled": 1}


def test_each_state_of_a_drain_is_news_of_its_host() -> None:
    before = Drain(host="h1", state=HostState.UP, requested_at=NOW, changed_at=NOW)
    known = news.Before(maintenances={}, drains={"h1": before})
    found = []
    for state in HostState:
        drain = Drain(host="h1", state=state, requested_at=NOW, changed_at=NOW)
        changes = news.Changes(drains=(drain,))
        found += [one.type for one in news.of_others(known, changes, (), NOW)]
    assert found == [NewsType(f"host.{state}") for state in HostState if state is not HostState.UP]


def test_more_news_than_a_transaction_may_have_is_counted() -> None:
    one = news.lost(1, "r1", NOW)
    full = news.decode(news.encode([one] * news.MAX_ITEMS))
    assert full == [one] * news.MAX_ITEMS
    items = news.decode(news.encode([one] * (news.MAX_ITEMS + 7)))
    assert len(items) == news.MAX_ITEMS
    assert (items[-1].type, items[-1].data.count) == (NewsType.OMITTED, 8)
    assert news.encode([]) == b""


def test_every_status_has_its_type() -> None:
    kinds = {f"operation.{status.lower()}" for status in EventStatus}
    kinds |= {f"host.{state}" for state in HostState}
    assert kinds <= set(NewsType)


def test_news_is_trimmed_when_it_is_old_enough(house: House, reader: Reader) -> None:
    house.ask(REBOOT, "web-0")
    house.clock.advance(2 * HOUR)
    house.ask(REBOOT, "bastion")
    done(house.plane.forget(Retention(news=HOUR)))
    assert reader.types() == [NewsType.MAINTENANCE_SCHEDULED, NewsType.OPERATION_SCHEDULED]


def test_a_start_that_takes_a_check_back_tells_no_new_maintenance(
    house: House, reader: Reader
) -> None:
    begun = start(house, two_waves(check="smoke"))
    run = CheckProgress(run=1, began_at=NOW, lease_until=NOW + HOUR)
    house.put(Changes(maintenances=(replace(begun, check=run),)))
    reader()
    done(house.plane.release_claims("here"))
    with house.store.read() as reading:
        assert reading.maintenances([1])[1].check.due
    assert reader.types() == []
