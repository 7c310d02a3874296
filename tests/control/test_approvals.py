"""Approvals that wait together share a reading and a commit, and are answered one by one."""

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import patience
from builders import FLEET
from control.busy import Busy
from control.conftest import done
from forewarn.control.unit_of_work import UnitOfWork, Work
from forewarn.control.writer import MAX_BATCH
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Refused
from forewarn.maintenance.planner import Request
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import EventStatus, EventType

UNKNOWN = "FFFFFFFF-0000-4000-8000-000000000001"


class Fleet(Busy):
    """A busy plane with a fleet, and what its guests and operators ask of it."""

    def __init__(self) -> None:
        super().__init__()
        done(self.plane.apply_fleet(FLEET))

    def ask(self, *machines: str) -> list[str]:
        request = Request(event_type=EventType.REBOOT, machines=machines)
        plan = done(self.plane.request(request))
        return [event.id for operation in plan.operations for event in operation.events]

    def approve(self, scope: str, *ids: str, by: str = "web-0") -> "Future[Any]":
        return self.plane.approve(scope, ids, by=by, address="10.0.0.10")


@pytest.fixture
def busy() -> Iterator[Fleet]:
    built = Fleet()
    yield built
    built.close()


def test_all_that_wait_share_one_commit_and_each_has_its_own_answer(busy: Fleet) -> None:
    web, bastion = busy.ask("web-0", "web-3"), busy.ask("bastion")
    before = busy.store.commits
    busy.hold()
    good = busy.approve("web", *web, by="web-3")
    unknown = busy.approve("web", UNKNOWN)
    foreign = busy.approve("web", *bastion)
    mixed = busy.approve("bastion", *bastion, UNKNOWN)
    again = busy.approve("web", *web, by="web-0")
    last = busy.approve("bastion", *bastion, by="bastion")
    busy.release()
    assert [o.id for o in good.result(patience.SECONDS)] == ["1.1"]
    assert again.result(patience.SECONDS)[0].events[0].approval.by == "web-3"
    assert last.result(patience.SECONDS)[0].status is EventStatus.STARTED
    for refused, event_id in ((unknown, UNKNOWN), (foreign, bastion[0]), (mixed, UNKNOWN)):
        with pytest.raises(Refused) as refusal:
            refused.result(patience.SECONDS)
        assert refusal.value.facts == {"event_id": event_id}
    assert busy.store.commits == before + 2


def test_each_is_decided_on_what_the_ones_before_it_led_to(busy: Fleet) -> None:
    events = [busy.ask(f"web-{n}")[0] for n in range(3)]
    busy.hold()
    futures = [busy.approve("web", event_id) for event_id in events]
    busy.release()
    operations = [future.result(patience.SECONDS)[0] for future in futures]
    assert [o.status for o in operations] == [
        EventStatus.STARTED,
        EventStatus.SCHEDULED,
        EventStatus.SCHEDULED,
    ]
    assert [o.waits_for for o in operations] == ["", "1.1", "1.1"]


def test_a_turn_has_a_limit_and_nobody_is_left_out(busy: Fleet) -> None:
    count = MAX_BATCH + 7
    machines = tuple(fleet_file.StandaloneMachine(name=f"m{n}") for n in range(count))
    done(busy.plane.apply_fleet(fleet_file.Fleet(machine=machines)))
    events = busy.ask(*(machine.name for machine in machines))
    with busy.store.read() as reading:
        scopes = {
            event.id: event.scope
            for operation in reading.live_operations().values()
            for event in operation.events
        }
    before = busy.store.commits
    busy.hold()
    futures = [busy.approve(scopes[event_id], event_id) for event_id in events]
    busy.release()
    assert {future.result(patience.SECONDS)[0].status for future in futures} == {
        EventStatus.STARTED
    }
    assert busy.store.commits == before + 3


def test_a_store_that_is_away_answers_all_of_them_and_the_next_is_taken(busy: Fleet) -> None:
    (event_id,) = busy.ask("web-0")
    busy.hold()
    busy.store.away = True
    futures = [busy.approve("web", event_id) for _ in range(3)]
    busy.release()
    for future in futures:
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            future.result(patience.SECONDS)
    busy.store.away = False
    assert busy.approve("web", event_id).result(patience.SECONDS)[0].status is EventStatus.STARTED


def test_a_defect_beside_them_costs_no_approval(busy: Fleet) -> None:
    def fail(_: UnitOfWork) -> Work:
        raise ZeroDivisionError("a defect")

    (event_id,) = busy.ask("web-0")
    busy.hold()
    approval = busy.approve("web", event_id)
    failed = busy.writer.submit(fail)
    busy.release()
    assert approval.result(patience.SECONDS)[0].status is EventStatus.STARTED
    with pytest.raises(ZeroDivisionError):
        failed.result(patience.SECONDS)


def test_when_the_service_stops_whoever_waits_is_told(busy: Fleet) -> None:
    (event_id,) = busy.ask("web-0")
    busy.writer.close()
    with pytest.raises(StoreUnavailable, match="the service is stopping"):
        busy.approve("web", event_id).result(patience.SECONDS)


def test_requests_of_one_batch_have_numbers_of_their_own_and_a_refused_one_has_none(
    busy: Busy,
) -> None:
    def ask(machine: str) -> "Future[Any]":
        return busy.plane.request(Request(event_type=EventType.REBOOT, machines=(machine,)))

    commits = busy.store.commits
    busy.hold()
    asked = [ask(machine) for machine in ("web-0", "nobody", "web-0", "bastion")]
    busy.release()
    assert done(asked[0]).maintenance.number == 1
    for refused in asked[1:3]:
        with pytest.raises(Refused):
            done(refused)
    assert done(asked[3]).maintenance.number == 2
    assert busy.store.commits == commits + 2
