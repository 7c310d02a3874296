"""What every store must keep, of history: `port.py` as tests. See `conformance`."""

import msgspec

from forewarn.store.port import HistoryQuery
from forewarn.store.sql import Store
from forewarn.vocabulary import EventStatus
from store.conformance import save
from store.values import MINUTE, NOW, operation, with_maintenances


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
