"""What outsiders are told of each change: of which type it is, and every fact of it."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from builders import MINUTE, NOW, Bench
from forewarn.maintenance import news
from forewarn.maintenance.model import (
    Changes,
    Drain,
    DrainGuest,
    Hold,
    HoldKind,
    HostState,
    Maintenance,
    Operation,
)
from forewarn.maintenance.news import MAX_ITEMS, NewsData, NewsItem, NewsType
from forewarn.maintenance.units import MaintenanceState, Unit, UnitKind, UnitState
from forewarn.maintenance.world import LiveState
from forewarn.vocabulary import EventSource, EventStatus, EventType, TargetKind

replace = msgspec.structs.replace

Told = list[tuple[str, str, dict[str, Any]]]


def told(items: Iterable[NewsItem]) -> Told:
    """The type, the subject and the facts of each."""
    found = []
    for item in items:
        assert item.at == NOW
        found.append(
            (str(item.type), item.subject, msgspec.json.decode(msgspec.json.encode(item.data)))
        )
    return found


def of(
    *changed: Operation, known: Mapping[str, Operation | None] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """The types of the news of operations, and the facts of the last of them."""
    items = told(news.of_operations(known or {}, changed, NOW))
    return [kind for kind, _, _ in items], items[-1][2] if items else {}


def others(changes: Changes, new: Iterable[int] = (), **before: Any) -> Told:
    known: dict[str, Any] = {"maintenances": {}, "drains": {}}
    return told(news.of_others(LiveState(**known | before), changes, {*new}, NOW))


def announced(*machines: str) -> tuple[Bench, Operation]:
    bench = Bench()
    bench.ask(EventType.REBOOT, *machines, description="a patch")
    return bench, bench.operation("1.1")


def test_every_status_and_state_has_its_type() -> None:
    kinds = {f"operation.{status.lower()}" for status in EventStatus}
    kinds |= {f"host.{state}" for state in HostState}
    assert kinds <= set(NewsType)


def test_a_new_operation_is_told_with_its_facts() -> None:
    _, operation = announced("web-0", "web-3")
    (found,) = told(news.of_operations({"1.1": None}, [operation], NOW))
    assert found == (
        "operation.scheduled",
        "operation 1.1",
        {
            "maintenance": 1,
            "operation": "1.1",
            "status": "Scheduled",
            "event_type": "Reboot",
            "source": "Platform",
            "target": str(operation.target),
            "description": "a patch",
            "duration_seconds": operation.duration_seconds,
            "not_before": msgspec.to_builtins(operation.not_before),
            "scopes": ["web"],
            "machines": ["web-0", "web-3"],
            "machine_count": 2,
            "event_ids": [operation.events[0].id],
        },
    )


def test_an_operation_is_approved_with_the_last_approval_that_was_missing() -> None:
    bench, one = announced("web-0")
    (first,) = one.events
    second = replace(first, id="second", scope="batch", machines=("batch_0",))
    before = replace(one, events=(first, second))
    half = replace(before, events=(replace(first, approval=bench.word()), second))
    assert of(half, known={"1.1": before})[0] == []
    by = replace(bench.word("batch_0"), at=NOW + MINUTE)
    whole = replace(half, events=(half.events[0], replace(second, approval=by)))
    kinds, facts = of(whole, known={"1.1": half})
    assert kinds == ["operation.approved"]
    assert (facts["by"], facts["approver"]) == ("batch_0", "guest")
    assert facts["scopes"] == [first.scope, second.scope]
    assert facts["event_ids"] == [first.id, second.id]
    assert (facts["machines"], facts["machine_count"]) == (["web-0", "batch_0"], 2)
    assert of(replace(whole, outcome=""), known={"1.1": whole})[0] == []


def test_one_event_that_is_approved_and_starts_at_once_is_two_news() -> None:
    bench, before = announced("web-0")
    bench.approve(before.events[0].id)
    after = bench.operation("1.1")
    assert after.status is EventStatus.STARTED
    kinds, facts = of(after, known={"1.1": before})
    assert kinds == ["operation.approved", "operation.started"]
    assert (facts["by"], facts["approver"]) == ("web-0", "guest")
    again = replace(after, events=tuple(replace(each) for each in after.events))
    later = replace(after, not_before=after.not_before + MINUTE)  # it is no postponement
    assert of(again, known={"1.1": after})[0] == of(later, known={"1.1": after})[0] == []


@pytest.mark.parametrize(
    ("fields", "kinds", "by", "reason"),
    [
        ({}, [], None, None),
        ({"not_before": NOW + 60 * MINUTE}, ["operation.postponed"], None, None),
        ({"not_before": NOW}, [], None, None),
        ({"status": EventStatus.CANCELED, "outcome": "so"}, ["operation.canceled"], None, "so"),
        ({"outcome_unknown": "lost"}, ["operation.outcome_unknown"], None, "lost"),
        ({"acknowledged_by": "ann"}, ["operation.acknowledged"], "ann", None),
    ],
)
def test_what_changed_of_an_operation_is_told_and_nothing_else(
    fields: dict[str, Any], kinds: list[str], by: str | None, reason: str | None
) -> None:
    _, before = announced("web-0")
    after = replace(before, **fields)
    found, facts = of(after, known={"1.1": before})
    assert found == kinds
    assert (facts.get("by"), facts.get("reason")) == (by, reason)
    if "not_before" not in fields:  # a fact that stays is no news
        assert of(after, known={"1.1": after})[0] == []


MAINTENANCE = Maintenance(
    number=7,
    event_type=EventType.REBOOT,
    source=EventSource.USER,
    description="a patch",
    duration_seconds=60,
    target=TargetKind.MACHINES,
    live_migration=False,
    targets=("web-0", "web-1"),
    requested_by="ann",
    requested_at=NOW,
)
FACTS = {
    "maintenance": 7,
    "event_type": "Reboot",
    "source": "User",
    "description": "a patch",
    "duration_seconds": 60,
}


@pytest.mark.parametrize(
    ("target", "targets", "facts"),
    [
        (
            TargetKind.MACHINES,
            ("web-0", "web-1"),
            {"machines": ["web-0", "web-1"], "machine_count": 2},
        ),
        (TargetKind.SCOPE, ("Web",), {"scopes": ["web"]}),
        (TargetKind.HOST, ("H1",), {"host": "H1"}),
    ],
)
def test_a_new_maintenance_is_told_with_what_it_is_for(
    target: TargetKind, targets: tuple[str, ...], facts: dict[str, Any]
) -> None:
    asked = replace(MAINTENANCE, target=target, targets=targets)
    asked_for = {"target": str(target), "targets": list(targets)}
    expected = FACTS | facts | asked_for | {"status": "announced", "by": "ann"}
    assert others(Changes(maintenances=(asked,)), new=[7]) == [
        ("maintenance.scheduled", "maintenance 7", expected)
    ]
    assert others(Changes(maintenances=(asked,))) == []
    assert others(Changes(maintenances=(asked,)), new=[7], maintenances={7: asked}) == []


def test_one_that_halts_in_its_first_decision_says_so() -> None:
    halted = replace(MAINTENANCE, state=MaintenanceState.HALTED, reason="web is off")
    told = [kind for kind, _, _ in others(Changes(maintenances=(halted,)), new=[7])]
    assert told == ["maintenance.scheduled", "maintenance.halted"]


def test_a_maintenance_is_closed_when_nothing_of_it_is_left() -> None:
    running = replace(MAINTENANCE, state=MaintenanceState.RUNNING)
    over = replace(MAINTENANCE, state=MaintenanceState.DONE)
    assert news.closed({7: running, 8: running}, [over]) == {7}
    assert news.closed({}, [over]) == news.closed({7: running}, [running]) == set()


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        (HoldKind.EVERYTHING, {}),
        (HoldKind.HOST, {"host": "x"}),
        (HoldKind.SCOPE, {"scopes": ["x"]}),
        (HoldKind.MACHINE, {"machines": ["x"], "machine_count": 1}),
    ],
)
def test_a_hold_is_told_with_what_it_is_on(kind: HoldKind, facts: dict[str, Any]) -> None:
    name = "" if kind is HoldKind.EVERYTHING else "x"
    hold = Hold(kind=kind, name=name, reason="storm", by="ann", at=NOW)
    facts |= {"by": "ann", "reason": "storm"}
    assert others(Changes(holds=(hold,))) == [("hold.put", str(hold), facts)]
    assert others(Changes(released=(hold,))) == [("hold.released", str(hold), facts)]


def test_each_state_of_a_host_is_told_once() -> None:
    guests = tuple(DrainGuest(name=f"web-{n}", vm_id="") for n in range(21))
    draining = Drain(
        host="h1",
        state=HostState.DRAINING,
        requested_by="ann",
        requested_at=NOW,
        changed_at=NOW,
        guests=guests,
        reason="now",
    )
    facts = {
        "host": "h1",
        "status": "draining",
        "machines": [guest.name for guest in guests[:20]],
        "machine_count": 21,
        "by": "ann",
        "reason": "now",
    }
    expected = [("host.draining", "host h1", facts)]
    changes = Changes(drains=(draining,))
    assert others(changes) == expected
    assert others(changes, drains={"h1": replace(draining, state=HostState.UP)}) == expected
    assert others(changes, drains={"h1": draining}) == []


def of_units() -> Maintenance:
    """The maintenance of four hosts in two waves."""
    units = tuple(Unit(name=f"h{n}", kind=UnitKind.HOST, wave=n // 2) for n in range(4))
    return replace(
        MAINTENANCE,
        target=TargetKind.HOST,
        targets=("h0", "h1", "h2", "h3"),
        units=units,
        state=MaintenanceState.RUNNING,
        changed_at=NOW,
        reason="because",
    )


OF_UNITS = FACTS | {
    "target": "host",
    "targets": ["h0", "h1", "h2", "h3"],
    "status": "running",
    "wave": 1,
    "waves": 2,
    "units": {"waiting": 4},
    "by": "ann",
    "reason": "because",
}


def test_a_maintenance_tells_its_progress_its_waves_and_its_state_each_once() -> None:
    begun = of_units()
    assert others(Changes(maintenances=(begun,)), new=[7]) == [
        ("maintenance.scheduled", "maintenance 7", OF_UNITS)
    ]
    further = replace(
        begun,
        units=(replace(begun.units[0], state=UnitState.DONE), *begun.units[1:]),
        wave=1,
        state=MaintenanceState.PAUSED,
        changed_by="bob",
    )
    found = others(Changes(maintenances=(further,)), maintenances={7: begun})
    assert [kind for kind, _, _ in found] == [
        "maintenance.progressed",
        "maintenance.wave",
        "maintenance.paused",
    ]
    changed = {"status": "paused", "wave": 2, "units": {"done": 1, "waiting": 3}, "by": "bob"}
    assert [told for _, _, told in found] == [OF_UNITS | changed] * 3
    assert others(Changes(maintenances=(further,)), maintenances={7: further}) == []


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (MaintenanceState.RUNNING, MaintenanceState.PAUSED, ["maintenance.paused"]),
        (MaintenanceState.RUNNING, MaintenanceState.HALTED, ["maintenance.halted"]),
        (MaintenanceState.HALTED, MaintenanceState.RUNNING, ["maintenance.resumed"]),
        (MaintenanceState.PAUSED, MaintenanceState.STOPPED, ["maintenance.stopped"]),
        (MaintenanceState.RUNNING, MaintenanceState.DONE, []),  # told when all of it is over
    ],
)
def test_a_state_that_a_maintenance_has_now_is_told(
    before: MaintenanceState, after: MaintenanceState, kinds: list[str]
) -> None:
    known = replace(of_units(), state=before)
    found = others(Changes(maintenances=(replace(known, state=after),)), maintenances={7: known})
    assert [kind for kind, _, _ in found] == kinds
    assert all(facts["status"] == str(after) for _, _, facts in found)


def test_a_fleet_that_changes_is_one_item() -> None:
    machines = tuple(Bench().snapshot.machines.values())
    names = [machine.name for machine in machines]
    assert others(Changes(machines=machines, removed_machines=("old",))) == [
        ("fleet.changed", "fleet", {"machines": names, "machine_count": 15, "count": 1})
    ]
    assert others(Changes(removed_machines=("a", "b"))) == [
        ("fleet.changed", "fleet", {"machines": ["a", "b"], "count": 2})
    ]
    assert others(Changes()) == []


def test_a_maintenance_is_finished_when_each_of_its_operations_is_over() -> None:
    _, operation = announced("web-0")
    over = [
        *news.of_operations({}, [replace(operation, status=EventStatus.FAILED)], NOW),
        *news.of_operations({}, [replace(operation, maintenance=2)], NOW),
    ]
    assert news.ended(over) == {1}
    outcomes = {
        2: {EventStatus.COMPLETED: 3, EventStatus.FAILED: 1},
        1: {EventStatus.CANCELED: 1},
        3: {EventStatus.COMPLETED: 1, EventStatus.STARTED: 1},
    }
    assert told(news.finished({4, 3, 2, 1}, outcomes, NOW)) == [
        (
            "maintenance.finished",
            "maintenance 1",
            {"maintenance": 1, "operations": {"Canceled": 1}},
        ),
        (
            "maintenance.finished",
            "maintenance 2",
            {"maintenance": 2, "operations": {"Completed": 3, "Failed": 1}},
        ),
        ("maintenance.finished", "maintenance 4", {"maintenance": 4}),  # its hosts were drained
    ]


def test_a_transaction_keeps_so_many_items_and_counts_the_others() -> None:
    items = [
        NewsItem(NewsType.HOST_UP, NOW, f"host h{n}", NewsData()) for n in range(MAX_ITEMS + 2)
    ]
    assert news.encode([]) == b""
    assert news.decode(news.encode(items[:MAX_ITEMS])) == items[:MAX_ITEMS]
    *kept, last = news.decode(news.encode(items))
    assert kept == items[: MAX_ITEMS - 1]
    assert last == NewsItem(NewsType.OMITTED, NOW, "news", NewsData(count=3))
    assert told([news.lost(4, "a", NOW)]) == [
        ("store.changes_lost", "store", {"count": 4, "by": "a"})
    ]


def test_items_are_numbered_as_they_are_stored() -> None:
    stored = news.encode([news.lost(4, "a", NOW), news.lost(5, "a", NOW)])
    first, second = news.numbered(9, stored)
    assert (first.id, first.index, second.id, second.index) == ("9-0", 0, "9-1", 1)
    assert second.type == NewsType.CHANGES_LOST
    assert msgspec.json.decode(second.json) == {
        "id": "9-1",
        **msgspec.to_builtins(news.lost(5, "a", NOW)),
    }
