"""What every store must keep, of history: `port.py` as tests. See `conformance`."""

import msgspec
import pytest

from forewarn.store.port import HistoryQuery, Store
from forewarn.vocabulary import EventStatus, EventType
from store.conformance import save
from store.values import MINUTE, NOW, event, operation, with_maintenances


def all_pages(store: Store, query: HistoryQuery) -> list[str]:
    ids: list[str] = []
    while True:
        with store.read() as reading:
            page = reading.history(query)
        assert len(page.operations) <= query.limit
        ids.extend(o.id for o in page.operations)
        if not page.next:
            return ids
        query = msgspec.structs.replace(query, after=page.next)


class History:
    """Pages of operations, newest announcement first."""

    def test_pages_neither_repeat_nor_skip_while_new_operations_arrive(self, store: Store) -> None:
        # Three are announced at each instant, so that pages end between equal times.
        made = [operation(f"1.{n}", announced_at=NOW + (n // 3) * MINUTE) for n in range(20)]
        save(store, with_maintenances(*made))
        query = HistoryQuery(limit=4)
        seen: list[str] = []
        for turn in range(5):
            with store.read() as reading:
                page = reading.history(query)
            seen.extend(o.id for o in page.operations)
            query = msgspec.structs.replace(query, after=page.next)
            late = operation(f"2.{turn}", announced_at=NOW + 6 * MINUTE)
            save(store, with_maintenances(late))
        assert seen == [o.id for o in reversed(made)]
        assert query.after is None

    def test_a_page_that_ends_with_the_last_operation_has_no_next(self, store: Store) -> None:
        save(store, with_maintenances(*(operation(f"1.{n}") for n in range(4))))
        with store.read() as reading:
            first = reading.history(HistoryQuery(limit=2))
            last = reading.history(HistoryQuery(limit=2, after=first.next))
            assert (len(first.operations), len(last.operations)) == (2, 2)
            assert last.next is None
            assert reading.history(HistoryQuery(limit=4)).next is None

    def test_an_operation_keeps_its_place_when_it_changes(self, store: Store) -> None:
        made = [operation(f"1.{n}") for n in range(3)]
        save(store, with_maintenances(*made))
        save(store, with_maintenances(msgspec.structs.replace(made[0], outcome="done")))
        assert all_pages(store, HistoryQuery(limit=1)) == ["1.2", "1.1", "1.0"]

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({}, ["4.1", "3.1", "2.1", "1.2", "1.1"]),
            ({"machine": "web-1"}, ["2.1", "1.1"]),
            ({"machine": "WEB-1"}, []),
            ({"scope": "batch"}, ["3.1", "2.1"]),
            ({"scope": "batch", "machine": "web-1"}, ["2.1"]),
            ({"maintenance": 1}, ["1.2", "1.1"]),
            ({"event_types": (EventType.FREEZE, EventType.PREEMPT)}, ["3.1", "1.2"]),
            ({"statuses": (EventStatus.CANCELED,)}, ["4.1"]),
            ({"since": NOW + 2 * MINUTE}, ["4.1", "3.1"]),
            ({"until": NOW + 2 * MINUTE}, ["2.1", "1.2", "1.1"]),
            ({"since": NOW + MINUTE, "until": NOW + 3 * MINUTE}, ["3.1", "2.1"]),
            ({"machine": "web-1", "statuses": (EventStatus.CANCELED,)}, []),
        ],
    )
    def test_filters_say_which_and_together_mean_all_of_them(
        self, store: Store, filters: dict[str, object], expected: list[str]
    ) -> None:
        made = (
            operation("1.1", event("A", "web", "Web-1", "Web-2")),
            operation("1.2", event("B", "web", "Web-2"), event_type=EventType.FREEZE),
            operation("2.1", event("C", "batch", "b_0"), event("D", "web", "web-1")),
            operation("3.1", event("E", "batch", "b_0"), event_type=EventType.PREEMPT),
            operation("4.1", event("F", "web", "Web-2"), status=EventStatus.CANCELED),
        )
        later = [NOW, NOW, NOW + MINUTE, NOW + 2 * MINUTE, NOW + 3 * MINUTE]
        announced = (
            msgspec.structs.replace(o, announced_at=at) for o, at in zip(made, later, strict=True)
        )
        save(store, with_maintenances(*announced))
        for limit in (1, 2, 100):
            query = msgspec.convert({**filters, "limit": limit}, HistoryQuery)
            assert all_pages(store, query) == expected

    def test_what_ended_is_listed_by_its_end_and_counted_by_its_status(self, store: Store) -> None:
        ended = {"status": EventStatus.COMPLETED}
        made = [operation(f"1.{n}", ended_at=NOW + n * MINUTE, **ended) for n in (3, 1, 2)]
        made.append(operation("1.4", ended_at=NOW + 2 * MINUTE, status=EventStatus.CANCELED))
        awaited = operation("1.5", ended_at=NOW + 5 * MINUTE, **ended, awaited=("web-0",))
        save(store, with_maintenances(*made, awaited, operation("1.6")))
        with store.read() as reading:
            assert [o.id for o in reading.ended(NOW + 2 * MINUTE, 10)] == ["1.3", "1.4", "1.2"]
            assert [o.id for o in reading.ended(NOW, 1)] == ["1.3"]
            assert reading.ends(NOW + 2 * MINUTE) == {
                EventStatus.COMPLETED: 2,
                EventStatus.CANCELED: 1,
            }
            assert reading.ends(NOW + 9 * MINUTE) == {}
