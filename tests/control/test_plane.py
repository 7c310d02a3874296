"""The plane: what stories do not tell of the way from a question to the store and the feed."""

import weakref
from datetime import timedelta

import msgspec
import pytest

from builders import FLEET, MINUTE, NOW, maintenance
from control.conftest import House, done
from forewarn.control import maintenances, plane, tombstones
from forewarn.control.outbox import state_of
from forewarn.control.plane import Retention
from forewarn.maintenance import fleet_file, news
from forewarn.maintenance.model import Changes, HoldKind, Tombstone
from forewarn.maintenance.planner import Request
from forewarn.maintenance.units import CheckProgress
from forewarn.store.port import StoreUnavailable
from forewarn.vocabulary import ApproverKind, EventType

REBOOT = EventType.REBOOT


def test_a_dry_run_decides_and_changes_nothing_and_a_request_is_told_with_what_it_supersedes(
    house: House,
) -> None:
    told = len(house.told)
    request = Request(event_type=REBOOT, machines=("batch_0", "bastion"))
    with house.store.read() as reading:
        plan = maintenances.supposed(house.plane, state_of(reading), request, NOW)
    assert [o.machines for o in plan.operations] == [("bastion",), ("batch_0",)]
    assert plan.operations[0].not_before == NOW + 15 * MINUTE
    assert (len(house.told), house.incarnation("batch")) == (told, 0)
    asked = done(house.plane.request(request))
    assert [o.machines for o in asked.operations] == [o.machines for o in plan.operations]
    assert house.told[-1].operations == asked.operations
    assert house.operation("1.2") == asked.operations[1]
    preempted = house.ask(EventType.PREEMPT, "batch_0")
    assert [o.id for o in preempted.operations] == ["2.1"]
    assert [o.id for o in preempted.superseded] == ["1.2"]


def test_an_approval_is_durable_and_names_who_gave_it(house: House) -> None:
    first = house.ask(REBOOT, "web-0", "bastion", "batch_1")
    (event,) = first.operations[0].events
    house.ask(REBOOT, "FrontEnd_IN_0")
    house.clock.advance(MINUTE)
    (one,) = done(house.plane.approve("bastion", [event.id.lower()], by="bastion", address="a"))
    references = [first.operations[1].events[0].id.lower(), "1.3", "2"]
    others = done(house.plane.approve_for_guests(references, by="ann", address="unix"))
    assert [o.id for o in (one, *others)] == ["1.1", "1.2", "1.3", "2.1"]
    for found, kind, by, address in (
        (one, ApproverKind.GUEST, "bastion", "a"),
        (others[2], ApproverKind.OPERATOR, "ann", "unix"),
    ):
        assert found == house.operation(found.id)
        given = found.events[0].approval
        assert (given.kind, given.by, given.address) == (kind, by, address)
        assert given.at == NOW + MINUTE


def test_a_key_is_known_as_long_as_history_has_its_maintenance(house: House) -> None:
    first = house.ask(REBOOT, "bastion", idempotency_key="k1")
    later = (
        msgspec.structs.replace(first.maintenance, number=number, idempotency_key="")
        for number in range(2, 1002)
    )
    with house.store.write() as transaction:
        transaction.save(Changes(maintenances=tuple(later)))
    assert house.ask(REBOOT, "bastion", idempotency_key="k1").maintenance == first.maintenance
    done(house.plane.cancel(["1"], reason=""))
    house.clock.advance(2 * MINUTE)
    done(house.plane.forget(Retention(history=MINUTE)))
    assert house.ask(REBOOT, "bastion", idempotency_key="k1").maintenance.number == 1002


def test_a_start_voids_the_claims_of_its_replica_and_where_it_is_alone_all_others(
    house: House,
) -> None:
    house.ask(REBOOT, "web-0", "bastion", no_notice=True)
    done(house.plane.claim("here", MINUTE, 1))
    done(house.plane.claim("there", MINUTE, 1))
    assert done(house.plane.release_claims("here", alone=False)) == 1
    (task,) = done(house.plane.claim("third", MINUTE, 10))
    assert (task.operation, task.claimed_elsewhere) == ("1.1", ("here",))
    assert done(house.plane.release_claims("there")) == 2
    (_, task) = done(house.plane.claim("there", MINUTE, 10))
    assert (task.attempt, task.claimed_elsewhere) == (2, ())


def test_a_transaction_is_let_go_of_without_the_collector(house: House) -> None:
    assert done(house.plane.order(weakref.ref))() is None


def test_what_everybody_has_read_is_trimmed_from_the_outbox(house: House) -> None:
    house.ask(REBOOT, "web-0")
    house.clock.advance(MINUTE)
    house.ask(REBOOT, "web-1")
    assert not done(house.plane.forget(Retention(outbox=timedelta(0))))
    with house.store.read() as reading:
        assert [row.sequence for row in reading.changes_after(0, 9)] == [3]


def test_a_batch_of_due_operations_has_a_limit(house: House) -> None:
    names = tuple(
        fleet_file.StandaloneMachine(name=f"m{n}") for n in range(plane.ADVANCE_BATCH + 5)
    )
    done(house.plane.apply_fleet(fleet_file.Fleet(machine=names)))
    house.ask(EventType.FREEZE, *(machine.name for machine in names))
    house.clock.advance(15 * MINUTE)
    assert [done(house.plane.advance()) for _ in range(3)] == [plane.ADVANCE_BATCH, 5, 0]


# What was removed, and a store that is restored.


def test_the_latest_machines_that_have_left_are_remembered(house: House) -> None:
    before = house.clock.now() - MINUTE
    kinds = ((tombstones.MAX_REMOVED, None), (tombstones.MAX_DELETED + 2, EventType.PREEMPT))
    old = [
        Tombstone(name=f"{event_type}-{n:06}", scope="web", at=before, event_type=event_type)
        for most, event_type in kinds
        for n in range(most)
    ]
    house.put(Changes(tombstones=tuple(old)))
    done(house.plane.remove_machines(["bastion"]))  # which never had an event to read
    house.ask(REBOOT, "web-0")
    done(house.plane.cancel(["1"], reason=""))
    done(house.plane.remove_machines(["web-1"]))  # which has met incarnation 2 of web
    assert not done(house.plane.forget(plane.Retention()))
    gone = {"none-000000", "preempt-000000", "preempt-000001"}
    with house.store.read() as reading:
        assert set(reading.tombstones()) == {*(t.key for t in old), "web-1"} - gone


def test_a_removed_scope_is_raised_with_a_restored_store(house: House) -> None:
    house.ask(REBOOT, "bastion")
    done(house.plane.cancel(["1"], reason=""))
    with house.store.read() as reading:
        everything = [*reading.machines()]
    done(house.plane.remove_machines(everything))
    done(house.plane.order(lambda unit: tombstones.lift(unit.world, 100)))
    with house.store.read() as reading:
        assert reading.retired() == {"bastion": 102}
    done(house.plane.apply_fleet(FLEET))
    assert house.incarnation("bastion") == 103


# News: what is written down for outsiders with each change; scenarios/rules/news.txt has the types.


def news_of(house: House, after: int = 0) -> list[str]:
    with house.store.read() as reading:
        rows = reading.news_after(after, 1000)
    return [item.type for row in rows for item in news.decode(row.items)]


def test_a_commit_that_fails_is_no_news_and_old_news_is_trimmed(house: House) -> None:
    house.store.away = True
    with pytest.raises(StoreUnavailable):
        done(house.plane.hold(HoldKind.EVERYTHING, "", reason="", by="ann"))
    house.store.away = False
    assert news_of(house) == ["fleet.changed"]
    house.clock.advance(2 * timedelta(hours=1))
    house.ask(REBOOT, "bastion")
    done(house.plane.forget(Retention(news=timedelta(hours=1))))
    assert news_of(house) == ["maintenance.scheduled", "operation.scheduled"]


def test_a_start_that_takes_a_check_back_tells_no_new_maintenance(house: House) -> None:
    run = CheckProgress(run=1, began_at=NOW, lease_until=NOW + timedelta(hours=1))
    checked = msgspec.structs.replace(maintenance("h0", check="smoke"), check=run)
    house.put(Changes(maintenances=(checked,)))
    with house.store.read() as reading:
        before = reading.position().sequence
    done(house.plane.release_claims("here"))
    with house.store.read() as reading:
        assert reading.maintenances([1])[1].check.due
    assert news_of(house, before) == []
