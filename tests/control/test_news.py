"""News: what is written down for outsiders with each change, as each decision makes it."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, maintenance
from control.conftest import House, done
from forewarn.connectors.port import Outcome
from forewarn.control import maintenances
from forewarn.control.maintenances import Asked, UnitTargets
from forewarn.control.plane import Retention
from forewarn.maintenance import news
from forewarn.maintenance.model import Changes, HoldKind, Maintenance, Refused
from forewarn.maintenance.news import NewsItem, NewsType
from forewarn.maintenance.planner import Request
from forewarn.maintenance.turn_orders import MaintenanceOrder
from forewarn.maintenance.units import CheckProgress, UnitKind
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import ApproverKind, EventStatus, EventType, TargetKind

replace = msgspec.structs.replace

REBOOT = EventType.REBOOT
HOUR = timedelta(hours=1)


class Reader:
    """Reads the news of a house from where it read last."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.seen = 0

    def __call__(self) -> list[NewsItem]:
        with self.house.store.read() as reading:
            rows = reading.news_after(self.seen, 1000)
            self.seen = reading.position().sequence
        return [one for row in rows for one in news.decode(row.items)]

    def types(self) -> list[str]:
        return [one.type for one in self()]


@pytest.fixture
def reader(house: House) -> Reader:
    reads = Reader(house)
    (first,) = reads()
    assert (first.type, first.subject) == (NewsType.FLEET_CHANGED, "fleet")
    assert first.data.machine_count == len(first.data.machines) > 3
    return reads


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
    done(house.plane.renew({"1.1": task.attempt}, MINUTE))
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


def test_what_is_refused_and_a_commit_that_fails_are_no_news(house: House, reader: Reader) -> None:
    with pytest.raises(Refused):
        house.ask(REBOOT, "nobody")
    house.store.away = True
    with pytest.raises(StoreUnavailable):
        done(house.plane.hold(HoldKind.EVERYTHING, "", reason="", by="ann"))
    assert reader() == []


def two_waves(**policy: Any) -> Maintenance:
    """Two machines, one after the other."""
    of = maintenance("bastion", "web-0", **policy)
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


def test_a_maintenance_tells_its_progress_its_waves_and_its_end(
    house: House, reader: Reader
) -> None:
    def order(kind: MaintenanceOrder) -> None:
        done(house.plane.order(maintenances.order, 1, kind, "", by="bob"))

    start(house, two_waves())
    scheduled, announced = reader()
    assert (scheduled.type, scheduled.subject) == (NewsType.MAINTENANCE_SCHEDULED, "maintenance 1")
    assert scheduled.data.units == {"running": 1, "waiting": 1}
    assert (scheduled.data.wave, scheduled.data.waves) == (1, 2)
    assert (announced.type, announced.data.machines) == (NewsType.OPERATION_SCHEDULED, ("bastion",))
    order(MaintenanceOrder.PAUSE)
    (paused,) = reader()
    assert (paused.type, paused.data.by) == (NewsType.MAINTENANCE_PAUSED, "bob")
    order(MaintenanceOrder.RESUME)
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
    order(MaintenanceOrder.STOP)
    stopped, finished = reader()
    assert (stopped.type, stopped.data.by) == (NewsType.MAINTENANCE_STOPPED, "bob")
    assert finished.type is NewsType.MAINTENANCE_FINISHED
    assert finished.data.operations == {"Completed": 1, "Canceled": 1}


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
