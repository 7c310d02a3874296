"""What Now counts of operations, and what the store has of those that are over."""

from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from forewarn.maintenance.model import Approval, Changes, Maintenance, Scope, StartCause, mapped
from forewarn.server.page import maintenance as page
from forewarn.server.page import now, timeline
from forewarn.server.page.fleet_map import Condition
from forewarn.store.sqlite import InMemoryStore
from forewarn.vocabulary import ApproverKind, EventStatus, ScopeKind
from page.operations import NOW, operation

MINUTE = timedelta(minutes=1)


def approved(number: int, kind: ApproverKind, after: timedelta, **more: Any) -> Any:
    announced = NOW - timedelta(hours=1)
    word = Approval(kind=kind, by="m", at=announced + after)
    given = {"announced": announced, "approval": word, "start_cause": StartCause.APPROVED}
    return operation(number, EventStatus.COMPLETED, **given | more)


def test_a_machine_counts_under_what_its_operations_do_and_once_under_each() -> None:
    found = now.conditions(
        (
            operation(1),
            operation(2),
            operation(3, EventStatus.STARTED, machines=("M-1", "m-2")),
            operation(4, EventStatus.FAILED, machines=("m-3",)),
            operation(5, EventStatus.FAILED, machines=("m-4",), acknowledged_by="ann"),
            operation(6, EventStatus.CANCELED, machines=("m-5",)),
        )
    )
    assert {each: set(counted) for each, counted in found.items()} == {
        Condition.NOTICE: {"web-0"},
        Condition.DOWN: {"m-1", "m-2"},
        Condition.FAILED: {"m-3"},
    }
    assert timeline.is_down(operation(1, EventStatus.RETURNING))


def test_the_median_is_of_approvals_that_people_or_guests_gave() -> None:
    operations = (
        *(approved(n, ApproverKind.GUEST, n * MINUTE) for n in (1, 2, 9)),
        approved(4, ApproverKind.AUTOMATIC, timedelta()),
        operation(5, EventStatus.COMPLETED, start_cause=StartCause.NOTICE_OVER),
        approved(6, ApproverKind.GUEST, MINUTE, started_at=NOW - timedelta(hours=25)),
        operation(7),
    )
    found = now.approvals(operations, NOW - now.DAY)
    assert found == now.ApprovalTimes(started=5, approved=3, median=2 * MINUTE)
    assert now.approvals((), NOW).median is None


@pytest.mark.parametrize("most", [now.MAX_PAST, 2])
def test_what_is_over_is_read_of_the_store(most: int) -> None:
    ends = {
        1: (EventStatus.COMPLETED, timedelta(minutes=1)),
        2: (EventStatus.CANCELED, timedelta(hours=23)),
        3: (EventStatus.COMPLETED, timedelta(hours=25)),
        4: (EventStatus.COMPLETED, timedelta(days=8)),
    }
    its = [operation(n, s, ended_at=NOW - ago) for n, (s, ago) in ends.items()]
    its += [operation(5), operation(6, EventStatus.FAILED)]  # both are live
    store = InMemoryStore()
    with store.write() as transaction:
        scope = Scope(name="web", kind=ScopeKind.AVAILABILITY_SET, update_domains=5)
        asked = tuple(
            mapped(
                Maintenance,
                one,
                number=one.maintenance,
                targets=one.machines,
                requested_by="ann",
                requested_at=one.announced_at,
            )
            for one in its
        )
        transaction.save(Changes(scopes=(scope,), maintenances=asked, operations=tuple(its)))
    with store.read() as reading:
        found = now.past(reading, NOW, most)
    assert [one.maintenance for one in found.operations] == [1, 2, 3][:most]
    assert Counter(found.day) == {EventStatus.COMPLETED: 1, EventStatus.CANCELED: 1}


def test_each_machine_of_a_maintenance_counts_once_by_its_latest_operation() -> None:
    ends = (EventStatus.FAILED, EventStatus.CANCELED, EventStatus.COMPLETED)
    its = [
        msgspec.structs.replace(operation(n, status, machines=machines), id=f"1.{n}")
        for n, status, machines in zip(
            (1, 2, 3), ends, (("web-0", "web-3"), ("web-1",), ("web-0", "web-3")), strict=True
        )
    ]
    counts = page._counts({"1.2"}, its, 1)
    assert {name: count for name, count in counts.items() if count} == {"done": 2, "notice": 1}
    failed = page._counts({"1.2"}, its[:1], 0)
    assert {name: count for name, count in failed.items() if count} == {"failed": 2}
