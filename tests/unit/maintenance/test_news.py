"""What outsiders are told of each change, beside the stories of scenarios/rules/news.txt."""

from collections.abc import Iterable
from typing import Any

import msgspec

from builders import MINUTE, NOW, Bench, maintenance
from forewarn.maintenance import news
from forewarn.maintenance.model import Changes, DrainGuest, HostState, Maintenance
from forewarn.maintenance.news import MAX_ITEMS, NewsData, NewsItem, NewsType
from forewarn.maintenance.units import MaintenanceState
from forewarn.maintenance.world import LiveState
from forewarn.vocabulary import EventStatus, EventType
from store.values import drain

replace = msgspec.structs.replace


def told(items: Iterable[NewsItem]) -> list[tuple[str, str, dict[str, Any]]]:
    """The type, the subject and the facts of each."""
    every = [*items]
    assert {item.at for item in every} <= {NOW}
    return [
        (str(item.type), item.subject, msgspec.json.decode(msgspec.json.encode(item.data)))
        for item in every
    ]


def others(changes: Changes, new: Iterable[int] = (), **before: Any) -> Any:
    known: dict[str, Any] = {"maintenances": {}, "drains": {}}
    return told(news.of_others(LiveState(**known | before), changes, {*new}, NOW))


def test_every_status_and_state_has_its_type() -> None:
    kinds = {f"operation.{status.lower()}" for status in EventStatus}
    kinds |= {f"host.{state}" for state in HostState}
    assert kinds <= set(NewsType)


def test_a_fact_that_stays_or_moves_back_is_no_news() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    announced = bench.operation("1.1")
    bench.approve(announced.events[0].id)
    started = bench.operation("1.1")
    doubted = replace(started, outcome_unknown="lost")
    failed = replace(started, status=EventStatus.FAILED, acknowledged_by="ann")
    for before, after in (
        (announced, replace(announced, not_before=NOW)),
        (started, replace(started, events=tuple(replace(one) for one in started.events))),
        (started, replace(started, not_before=started.not_before + MINUTE)),
        (doubted, replace(doubted, outcome="")),
        (failed, replace(failed, outcome="")),
    ):
        assert news.of_operations({"1.1": before}, [after], NOW) == []


def in_state(state: MaintenanceState, **more: Any) -> Maintenance:
    return replace(maintenance(), state=state, **more)


def test_a_new_maintenance_is_told_once_and_one_that_halts_at_once_says_so() -> None:
    halted = in_state(MaintenanceState.HALTED, reason="web is off")
    of = Changes(maintenances=(halted,))
    kinds = [kind for kind, _, _ in others(of, new=[1])]
    assert kinds == ["maintenance.scheduled", "maintenance.halted"]
    assert others(of) == others(of, new=[1], maintenances={1: halted}) == []


def test_a_maintenance_that_is_done_is_told_when_all_of_it_is_over() -> None:
    running, over = in_state(MaintenanceState.RUNNING, units=()), in_state(MaintenanceState.DONE)
    done = replace(running, state=MaintenanceState.DONE)
    assert others(Changes(maintenances=(done,)), maintenances={1: running}) == []
    assert news.closed({1: running, 8: running}, [done]) == {1}
    assert news.closed({}, [done]) == news.closed({1: running}, [running]) == set()
    ended = replace(over, units=(replace(over.units[0], state="done"),))
    assert news.closed({}, [ended], {1}) == {1}


def test_each_state_of_a_host_is_told_once() -> None:
    guests = tuple(DrainGuest(name=f"web-{n}", vm_id="") for n in range(21))
    draining = drain("h1", guests=guests, requested_by="ann", reason="now")
    facts = {
        "host": "h1",
        "status": "draining",
        "status_detail": "now (since 03-01 12:00Z)",
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


def test_a_maintenance_is_finished_when_each_of_its_operations_is_over() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    operation = bench.operation("1.1")
    over = [
        *news.of_operations({}, [replace(operation, status=EventStatus.FAILED)], NOW),
        *news.of_operations({}, [replace(operation, maintenance=2)], NOW),
    ]
    assert news.ended(over) == {1}
    outcomes = {
        2: {EventStatus.COMPLETED: 3, EventStatus.FAILED: 1},
        3: {EventStatus.COMPLETED: 1, EventStatus.STARTED: 1},
    }
    found = [facts for _, _, facts in told(news.finished({4, 3, 2}, outcomes, NOW))]
    assert found == [
        {"maintenance": 2, "operations": {"Completed": 3, "Failed": 1}},
        {"maintenance": 4},  # its hosts were drained
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


def test_items_are_numbered_as_they_are_stored() -> None:
    stored = news.encode([news.lost(4, "a", NOW), news.lost(5, "a", NOW)])
    first, second = news.numbered(9, stored)
    assert (first.id, first.index, second.id, second.index) == ("9-0", 0, "9-1", 1)
    assert second.type == NewsType.CHANGES_LOST
    found = msgspec.json.decode(second.json)
    at = msgspec.to_builtins(NOW)
    told = {"type": "store.changes_lost", "at": at, "subject": "store"}
    assert found == {"id": "9-1", **told, "data": {"count": 5, "by": "a"}}
