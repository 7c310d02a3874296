"""The plane: each thing asked is decided on the store, saved, and told to the feed."""

from datetime import timedelta

import msgspec
import pytest

from builders import FLEET, MINUTE, NOW
from control.conftest import House, done
from forewarn.connectors.port import Outcome
from forewarn.control import plane
from forewarn.control.plane import Retention
from forewarn.maintenance import fleet_file
from forewarn.maintenance.model import Changes, Refused
from forewarn.maintenance.planner import Request
from forewarn.store.port import HistoryQuery
from forewarn.vocabulary import ApproverKind, ErrorCode, EventSource, EventStatus, EventType

REBOOT = EventType.REBOOT


def test_a_request_is_kept_and_told(house: House) -> None:
    plan = house.ask(EventType.PREEMPT, scope="batch")
    assert plan.maintenance.number == 1
    assert [o.id for o in plan.operations] == ["1.1", "1.2"]
    assert house.operation("1.1") == plan.operations[0]
    assert house.incarnation("batch") == 1
    assert [o.id for o in house.told[-1].operations] == ["1.1", "1.2"]
    with house.store.read() as reading:
        assert reading.maintenances([1]) == {1: plan.maintenance}


def test_a_dry_run_decides_and_changes_nothing(house: House) -> None:
    told = len(house.told)
    request = Request(event_type=REBOOT, machines=("web-0", "bastion"))
    plan = done(house.plane.request(request, dry_run=True))
    assert [o.machines for o in plan.operations] == [("bastion",), ("web-0",)]
    assert plan.operations[0].not_before == NOW + 15 * MINUTE
    assert len(house.told) == told
    assert house.incarnation("web") == 0
    assert house.ask(REBOOT, "web-0").maintenance.number == 1


def test_a_refused_request_takes_no_number_and_tells_nothing(house: House) -> None:
    told = len(house.told)
    with pytest.raises(Refused):
        house.ask(REBOOT, "nobody")
    assert len(house.told) == told
    assert house.ask(REBOOT, "web-0").maintenance.number == 1
    with pytest.raises(Refused):
        house.ask(REBOOT, "web-0")  # it has a live event
    assert house.ask(REBOOT, "bastion").maintenance.number == 2


def test_what_a_request_supersedes_is_told_apart(house: House) -> None:
    house.ask(REBOOT, "batch_0")
    plan = house.ask(EventType.PREEMPT, "batch_0")
    assert [o.id for o in plan.operations] == ["2.1"]
    assert [o.id for o in plan.superseded] == ["1.1"]
    assert house.operation("1.1").status is EventStatus.CANCELED


def test_a_guests_approval_is_durable_and_names_it(house: House) -> None:
    plan = house.ask(REBOOT, "web-0", "web-3")
    event_id = plan.operations[0].events[0].id
    house.clock.advance(MINUTE)
    approved = house.plane.approve("web", [event_id.lower()], by="web-3", address="10.0.0.13")
    (operation,) = done(approved)
    assert operation == house.operation("1.1")
    approval = operation.events[0].approval
    assert approval is not None
    assert (approval.kind, approval.by, approval.address, approval.at) == (
        ApproverKind.GUEST,
        "web-3",
        "10.0.0.13",
        NOW + MINUTE,
    )
    assert operation.status is EventStatus.STARTED


def test_an_operator_approves_by_event_operation_or_maintenance(house: House) -> None:
    first = house.ask(REBOOT, "web-0", "bastion", "batch_1")
    event_id = first.operations[0].events[0].id
    house.ask(REBOOT, "FrontEnd_IN_0")
    references = [event_id.lower(), "1.2", "2"]
    approved = done(house.plane.approve_for_guests(references, by="ann", address="unix"))
    assert [o.id for o in approved] == ["1.1", "1.2", "2.1"]
    approval = house.operation("2.1").events[0].approval
    assert approval is not None
    assert (approval.kind, approval.by, approval.address) == (
        ApproverKind.OPERATOR,
        "ann",
        "unix",
    )
    assert house.operation("1.3").status is EventStatus.SCHEDULED


def test_what_is_due_is_advanced_and_the_next_wakeup_known(house: House) -> None:
    assert done(house.plane.next_wakeup()) is None
    house.ask(REBOOT, "web-0")
    house.ask(REBOOT, "bastion", not_before=NOW + 20 * MINUTE)
    assert done(house.plane.next_wakeup()) == NOW + 15 * MINUTE
    assert done(house.plane.advance()) == 0
    house.clock.advance(15 * MINUTE)
    assert done(house.plane.advance()) == 1
    assert house.operation("1.1").status is EventStatus.STARTED
    assert done(house.plane.next_wakeup()) == NOW + 20 * MINUTE


def test_an_outage_moves_all_notice_in_one_transaction(house: House) -> None:
    house.ask(REBOOT, "web-0", "bastion")
    told = len(house.told)
    house.clock.advance(60 * MINUTE)
    assert done(house.plane.extend_notices(60 * MINUTE)) == 2
    assert len(house.told) == told + 1
    assert done(house.plane.advance()) == 0
    assert house.operation("1.2").not_before == NOW + 75 * MINUTE


def test_a_claim_says_what_is_to_be_done_and_is_held_by_one(house: House) -> None:
    house.ask(REBOOT, "web-3", "web-0", no_notice=True, duration_seconds=40)
    (act,) = done(house.plane.claim("here", MINUTE, 10))
    assert (act.operation, act.attempt, act.event_type) == ("1.1", 1, REBOOT)
    assert (act.machines, act.hosts) == (("web-0", "web-3"), ("h0", "h0"))
    assert (act.duration_seconds, act.started_at) == (40, NOW)
    assert done(house.plane.claim("there", MINUTE, 10)) == ()
    house.clock.advance(MINUTE)
    (again,) = done(house.plane.claim("there", MINUTE, 10))
    assert again.attempt == 2
    with pytest.raises(Refused) as refusal:
        done(house.plane.finish("1.1", 1, Outcome(succeeded=True)))
    assert refusal.value.code is ErrorCode.STALE
    assert done(house.plane.renew({"1.1": 1, "9.1": 1}, MINUTE)) == ()
    (renewed,) = done(house.plane.renew({"1.1": 2, "9.1": 1}, 5 * MINUTE))
    assert renewed.id == "1.1"
    assert house.operation("1.1").lease_until == NOW + 6 * MINUTE


def test_claims_come_in_batches(house: House) -> None:
    house.ask(REBOOT, "web-0", "bastion", "batch_0", no_notice=True)
    assert len(done(house.plane.claim("here", MINUTE, 2))) == 2
    assert len(done(house.plane.claim("here", MINUTE, 2))) == 1


def test_releasing_voids_every_claim_of_a_process_that_is_gone(house: House) -> None:
    assert done(house.plane.release_claims()) == 0
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("here", MINUTE, 10))
    assert done(house.plane.release_claims()) == 1
    (act,) = done(house.plane.claim("there", MINUTE, 10))
    assert act.attempt == 2


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


@pytest.mark.parametrize(
    "changed",
    [
        {"machines": ("web-1",)},
        {"machines": (), "scope": "web"},
        {"machines": (), "host": "web-0"},
        {"event_type": EventType.REDEPLOY},
        {"source": EventSource.USER},
        {"not_before": NOW + 9 * 60 * MINUTE},
        {"notice_seconds": 3600},
        {"opens_at": NOW + 60 * MINUTE},
        {"closes_at": NOW + 60 * MINUTE},
        {"duration_seconds": 60},
        {"description": "another text"},
        {"no_notice": True},
        {"without_notice": True},
    ],
    ids=",".join,
)
def test_a_key_that_was_used_for_another_request_is_refused(
    house: House, changed: dict[str, object]
) -> None:
    house.ask(REBOOT, "web-0", idempotency_key="k1")
    request = Request(event_type=REBOOT, machines=("web-0",), idempotency_key="k1")
    with pytest.raises(Refused) as refusal:
        done(house.plane.request(msgspec.structs.replace(request, **changed)))
    assert refusal.value.code is ErrorCode.CONFLICT
    assert refusal.value.facts == {"maintenance": 1}


def test_a_replicas_start_voids_its_own_claims_alone(house: House) -> None:
    house.ask(REBOOT, "web-0", "bastion", no_notice=True)
    done(house.plane.claim("here", MINUTE, 1))
    done(house.plane.claim("there", MINUTE, 1))
    assert done(house.plane.release_claims("here", alone=False)) == 1
    (task,) = done(house.plane.claim("third", MINUTE, 10))
    assert (task.operation, task.claimed_elsewhere) == ("1.1", ("here",))


def test_a_process_that_is_alone_takes_over_what_it_claimed_under_another_name(
    house: House,
) -> None:
    house.ask(REBOOT, "web-0", no_notice=True)
    done(house.plane.claim("old-name", MINUTE, 1))
    assert done(house.plane.release_claims("new-name")) == 1
    (task,) = done(house.plane.claim("new-name", MINUTE, 10))
    assert (task.attempt, task.claimed_elsewhere) == (2, ())


def test_a_replica_claims_its_share_and_leaves_the_others_theirs(house: House) -> None:
    house.ask(REBOOT, "web-0", "bastion", "batch_0", no_notice=True)
    shares = [len(done(house.plane.claim(name, MINUTE, 10, replicas=2))) for name in "abc"]
    assert shares == [2, 1, 0]


def test_what_everybody_has_read_is_trimmed_from_the_outbox(house: House) -> None:
    house.ask(REBOOT, "web-0")
    house.clock.advance(MINUTE)
    house.ask(REBOOT, "web-1")
    assert not done(house.plane.forget(Retention(outbox=timedelta(0))))
    with house.store.read() as reading:
        assert [row.sequence for row in reading.changes_after(0, 9)] == [3]


def test_history_is_forgotten_when_it_is_old_enough_and_not_before(house: House) -> None:
    event_id = house.ask(REBOOT, "web-0").operations[0].events[0].id
    done(house.plane.cancel(["1"], reason=""))
    house.ask(REBOOT, "web-1")
    keep = timedelta(days=90)
    house.clock.advance(keep)
    done(house.plane.forget(Retention(history=keep)))
    assert house.operation("1.1")
    house.clock.advance(timedelta(seconds=1))
    done(house.plane.forget(Retention(history=keep)))
    with house.store.read() as reading:
        page = reading.history(HistoryQuery())
    assert [o.id for o in page.operations] == ["2.1"]
    with pytest.raises(Refused):
        done(house.plane.approve("web", [event_id], by="web-0", address=""))


def test_a_fleet_is_applied_and_a_dry_run_is_not(house: House) -> None:
    more = fleet_file.Fleet(machine=(fleet_file.StandaloneMachine(name="extra"),))
    told = len(house.told)
    assert done(house.plane.apply_fleet(more, dry_run=True)).added == ("extra",)
    assert len(house.told) == told
    assert done(house.plane.apply_fleet(more)).added == ("extra",)
    assert [m.name for m in house.told[-1].machines] == ["extra"]
    assert done(house.plane.apply_fleet(more)).unchanged == 1
    pruned = done(house.plane.apply_fleet(FLEET, prune=True))
    assert pruned.removed == ("extra",)
    with house.store.read() as reading:
        assert "extra" not in reading.machines()
        assert "extra" not in reading.scopes()


def test_a_batch_of_due_operations_has_a_limit(house: House) -> None:
    names = tuple(
        fleet_file.StandaloneMachine(name=f"m{n}") for n in range(plane.ADVANCE_BATCH + 5)
    )
    done(house.plane.apply_fleet(fleet_file.Fleet(machine=names)))
    house.ask(EventType.FREEZE, *(machine.name for machine in names))
    house.clock.advance(15 * MINUTE)
    assert done(house.plane.advance()) == plane.ADVANCE_BATCH
    assert done(house.plane.advance()) == 5
    assert done(house.plane.advance()) == 0
