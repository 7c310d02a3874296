"""What every store must keep for replicas: changes in order, names, what each says of itself."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

import patience
from forewarn.maintenance.model import Changes, HoldKind, Refused, Sighting
from forewarn.store.port import (
    JUMP,
    ChangeRecord,
    HistoryQuery,
    NewsRecord,
    Page,
    Position,
    Replica,
    StoreUnusable,
)
from forewarn.store.sql import Store, Transaction
from forewarn.vocabulary import ErrorCode, EventStatus
from store.conformance import assert_rolled_back, relay, save
from store.values import MINUTE, NOW, WEB, drain, hold, machine, operation, with_maintenances

FORMAT = 1


def append(transaction: Transaction, token: str, at: datetime = NOW) -> Position:
    return transaction.append(
        new_change(token, f'["body of {token}", "\\u0000"]'.encode(), at, FORMAT)
    )


def new_change(token: str, body: bytes = b"", at: datetime = NOW, form: int = 0) -> ChangeRecord:
    return ChangeRecord(token=token, replica="r1", at=at, format=form, body=body)


def append_alone(store: Store, token: str, at: datetime = NOW) -> Position:
    with store.write() as transaction:
        return append(transaction, token, at)


def change(sequence: int, token: str, at: datetime = NOW) -> ChangeRecord:
    body = f'["body of {token}", "\\u0000"]'.encode()
    return ChangeRecord(
        sequence=sequence, token=token, replica="r1", at=at, format=FORMAT, body=body
    )


def replica(name: str = "r1", **fields: object) -> Replica:
    known = {"process": "p1", "version": "1.0", "started_at": NOW, "beat_at": NOW}
    return msgspec.convert(known | fields | {"name": name}, Replica)


def seen(machine_key: str, **fields: object) -> dict[str, Sighting]:
    known = {"asked_at": NOW, "version": "2020-07-01"}
    return {machine_key: msgspec.convert(known | fields, Sighting)}


WITH_MACHINES = Changes(scopes=(WEB,), machines=(machine("web-0"), machine("web-1")))


class Outbox:
    """Changes are numbered without gaps, in the order of commits."""

    def test_an_empty_outbox_has_a_place_before_the_first_change(self, store: Store) -> None:
        with store.read() as reading:
            assert reading.position() == Position(0, "")
            assert reading.changes_after(0, 10) == []

    def test_changes_are_read_back_exactly_and_in_order(self, store: Store) -> None:
        assert append_alone(store, "a") == Position(1, "a")
        assert append_alone(store, "b", NOW + MINUTE) == Position(2, "b")
        first, second = change(1, "a"), change(2, "b", NOW + MINUTE)
        with store.read() as reading:
            assert reading.changes_after(0, 10) == [first, second]
            assert reading.changes_after(0, 1) == [first]
            assert reading.changes_after(1, 10) == [second]
            assert reading.changes_after(2, 10) == reading.changes_after(9, 10) == []
            assert reading.position() == second.position == Position(2, "b")

    def test_a_transaction_sees_the_changes_before_it_and_its_own(self, store: Store) -> None:
        append_alone(store, "a")
        with store.write() as transaction:
            assert transaction.position() == Position(1, "a")
            assert append(transaction, "b") == transaction.position() == Position(2, "b")
            assert [c.token for c in transaction.changes_after(0, 10)] == ["a", "b"]

    def test_a_second_change_in_a_transaction_is_a_mistake(self, store: Store) -> None:
        def twice() -> None:
            with store.write() as transaction:
                append(transaction, "a")
                append(transaction, "b")

        with pytest.raises(AssertionError):
            twice()
        assert append_alone(store, "c") == Position(1, "c")

    def test_numbers_have_no_gaps_and_follow_the_order_of_commits(self, store: Store) -> None:
        seen: list[int] = []
        stop = threading.Event()

        def follow() -> None:
            while not stop.wait(patience.PAUSE_SECONDS):
                with store.read() as reading:
                    new = reading.changes_after(seen[-1] if seen else 0, 7)
                seen.extend(one.sequence for one in new)

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            with ThreadPoolExecutor(8) as threads:
                made = list(threads.map(lambda n: append_alone(store, f"t{n}"), range(80)))
            append_alone(store, "last")
        finally:
            stop.set()
            follower.join()
        assert sorted(p.sequence for p in made) == list(range(1, 81))
        assert seen == list(range(1, len(seen) + 1))

    def test_old_changes_are_trimmed_in_order_but_never_the_last(self, store: Store) -> None:
        for number in range(5):
            append_alone(store, f"t{number}", NOW + number * MINUTE)

        def trim(before: datetime, limit: int) -> int:
            with store.write() as transaction:
                return transaction.trim(before, limit)

        assert trim(NOW, 10) == 0
        assert trim(NOW + 3 * MINUTE, 2) == 2
        assert trim(NOW + 3 * MINUTE, 2) == 1
        with store.read() as reading:
            assert [c.sequence for c in reading.changes_after(0, 10)] == [4, 5]
        assert trim(NOW + 99 * MINUTE, 10) == 1
        assert trim(NOW + 99 * MINUTE, 10) == 0
        with store.read() as reading:
            assert reading.position() == Position(5, "t4")
        assert append_alone(store, "next", NOW + 99 * MINUTE) == Position(6, "next")

    def test_a_change_made_before_an_older_one_keeps_what_is_behind_it(self, store: Store) -> None:
        for token, at in (("a", NOW), ("b", NOW + 9 * MINUTE), ("c", NOW), ("d", NOW)):
            append_alone(store, token, at)
        with store.write() as transaction:
            assert transaction.trim(NOW + MINUTE, 10) == 1
            assert [c.token for c in transaction.changes_after(0, 10)] == ["b", "c", "d"]

    def test_the_time_of_a_transaction_never_goes_back(self, store: Store) -> None:
        with store.write() as transaction:
            now = transaction.now()
            if now is not None:
                append(transaction, "ahead", now + JUMP / 2)
        if now is None:  # the process's own clock counts
            return
        with store.write() as transaction:
            later = transaction.now()
        assert later is not None
        assert later > now + JUMP / 2

    def test_the_time_of_a_transaction_is_the_clocks_once_that_was_set_back(
        self, store: Store
    ) -> None:
        with store.write() as transaction:
            now = transaction.now()
            if now is not None:
                append(transaction, "before", now + timedelta(days=1))
        if now is None:  # the process's own clock counts
            return
        with store.write() as transaction:
            later = transaction.now()
        assert later is not None
        assert now < later < now + timedelta(days=1)


def tell(store: Store, token: str, items: bytes, at: datetime = NOW) -> Position:
    with store.write() as transaction:
        return transaction.append(new_change(token, at=at), items)


class News:
    """What outsiders are told, beside the changes and by their numbers."""

    def test_news_is_read_back_exactly_and_in_order(self, store: Store) -> None:
        tell(store, "a", b'["a"]')
        append_alone(store, "b")
        tell(store, "c", b'["c \\u0000"]', NOW + MINUTE)
        first = NewsRecord(sequence=1, at=NOW, items=b'["a"]')
        third = NewsRecord(sequence=3, at=NOW + MINUTE, items=b'["c \\u0000"]')
        with store.read() as reading:
            assert reading.news_after(0, 10) == [first, third]
            assert reading.news_after(0, 1) == [first]
            assert reading.news_after(1, 10) == reading.news_after(2, 10) == [third]
            assert reading.news_after(3, 10) == reading.news_after(9, 10) == []
            assert [one.sequence for one in reading.changes_after(0, 10)] == [1, 2, 3]

    def test_numbers_that_lost_changes_may_have_had_are_left_out(self, store: Store) -> None:
        tell(store, "a", b"[1]")
        with store.write() as transaction:
            left = transaction.append(new_change("b"), b"[2]", 1000)
            assert left == transaction.position() == Position(1002, "b")
        assert tell(store, "c", b"[3]") == Position(1003, "c")
        with store.read() as reading:
            assert [one.sequence for one in reading.news_after(1, 10)] == [1002, 1003]
            assert [one.sequence for one in reading.changes_after(0, 2)] == [1, 1002]
            assert [one.sequence for one in reading.changes_after(1002, 2)] == [1003]

    def test_news_outlives_its_change_and_is_trimmed_by_its_own_age(self, store: Store) -> None:
        for minute in range(5):
            tell(store, f"t{minute}", b"[1]", NOW + minute * MINUTE)
        with store.write() as transaction:
            assert transaction.trim(NOW + 9 * MINUTE, 10) == 4
            assert transaction.trim_news(NOW, 10) == 0
            assert transaction.news_trimmed() == 0
        with store.read() as reading:
            assert [one.sequence for one in reading.news_after(0, 10)] == [1, 2, 3, 4, 5]
        with store.write() as transaction:
            assert transaction.trim_news(NOW + 3 * MINUTE, 2) == 2
            assert transaction.trim_news(NOW + 3 * MINUTE, 2) == 1
            assert transaction.trim_news(NOW + 3 * MINUTE, 2) == 0
        with store.read() as reading:
            assert [one.sequence for one in reading.news_after(0, 10)] == [4, 5]
            assert reading.news_trimmed() == 3
        with store.write() as transaction:
            assert transaction.trim_news(NOW + 9 * MINUTE, 10) == 2
            assert transaction.news_trimmed() == 5
            assert transaction.news_after(0, 10) == []
        assert tell(store, "next", b"[1]") == Position(6, "next")

    def test_the_outcomes_of_maintenances_are_counted(self, store: Store) -> None:
        over = {"ended_at": NOW + MINUTE}
        save(
            store,
            with_maintenances(
                operation("1.1", status=EventStatus.COMPLETED, **over),
                operation("1.2", status=EventStatus.FAILED, **over),
                operation("1.3", status=EventStatus.COMPLETED, **over),
                operation("2.1"),
                operation("3.1"),
            ),
        )
        with store.read() as reading:
            found = reading.outcomes([1, 2, 9])
            assert reading.outcomes([]) == {}
        assert found == {
            1: {EventStatus.COMPLETED: 2, EventStatus.FAILED: 1},
            2: {EventStatus.SCHEDULED: 1},
        }


class Members:
    """What replicas say of themselves, and their names."""

    def test_what_a_replica_says_is_read_back(self, store: Store) -> None:
        told = replica(applied=7, serving=False, clock_ahead_ms=-3, addresses=("10.0.0.1:80",))
        at = store.beat(told)
        assert store.shared or at == NOW
        with store.read() as reading:
            assert reading.replicas() == {"r1": told}

    def test_the_last_of_what_each_said_counts(self, store: Store) -> None:
        store.beat(replica("r1"))
        store.beat(replica("r2"))
        store.beat(replica("r1", applied=9))
        with store.read() as reading:
            assert {n: r.applied for n, r in reading.replicas().items()} == {"r1": 9, "r2": 0}

    def test_a_beat_is_no_change(self, store: Store) -> None:
        store.beat(replica())
        with store.read() as reading:
            assert reading.position() == Position()

    def test_of_a_machine_the_latest_counts_that_any_replica_saw(self, store: Store) -> None:
        save(store, WITH_MACHINES)
        early, late = seen("web-0"), seen("web-0", asked_at=NOW + MINUTE, agent="held", reason="x")
        store.beat(replica("r1"), early | seen("web-1"))
        store.beat(replica("r2", beat_at=NOW + MINUTE), late)
        store.beat(replica("r1", beat_at=NOW + MINUTE), early)
        with store.read() as reading:
            assert reading.sightings() == late | seen("web-1")

    def test_once_the_clock_is_set_back_nothing_was_seen_later_than_now(self, store: Store) -> None:
        save(store, WITH_MACHINES)
        late = NOW + MINUTE
        store.beat(replica("r1", beat_at=late), seen("web-0", asked_at=late) | seen("web-1"))
        store.hear([relay("h1", late), relay("h2", NOW, due_at=NOW)])
        with store.write() as transaction:
            transaction.mark_relay("h1", late)
            transaction.set_back(NOW, NOW)
        with store.read() as reading:
            assert reading.sightings() == seen("web-0") | seen("web-1")
            assert reading.replicas()["r1"].beat_at == NOW
            relays = reading.relays()
            assert (relays["h1"].heard_at, relays["h1"].due_at) == (NOW, NOW)
            assert relays["h1"].held_for == NOW
            assert relays["h2"] == relay("h2", NOW, due_at=NOW)

    def test_a_process_that_does_not_know_that_the_clock_was_set_back_writes_nothing(
        self, store: Store
    ) -> None:
        if not store.shared:
            return  # the process's own clock counts
        save(store, WITH_MACHINES)
        future = datetime(9000, 1, 1, tzinfo=UTC)
        told = store.beat(replica("r1", beat_at=future), seen("web-0", asked_at=future))
        store.hear([relay("h1", future)], future)
        with store.read() as reading:
            assert reading.sightings() == {}
            assert reading.relays() == {}
            assert reading.replicas()["r1"].beat_at <= told

    def test_what_is_seen_by_a_process_that_is_alone_needs_no_row(self, store: Store) -> None:
        save(store, WITH_MACHINES)
        store.see(seen("web-0"), NOW)
        with store.read() as reading:
            assert reading.sightings() == seen("web-0")
            assert reading.replicas() == {}

    def test_what_an_agent_said_stays_until_it_says_something_else(self, store: Store) -> None:
        save(store, WITH_MACHINES)
        store.beat(replica("r1"), seen("web-0", agent="held", reason="x"))
        later = NOW + MINUTE
        store.beat(replica("r2"), seen("web-0", asked_at=later))
        with store.read() as reading:
            told = seen("web-0", asked_at=later, agent="held", reason="x")
            assert reading.sightings() == told
        store.beat(replica("r2"), seen("web-0", asked_at=later, agent="back"))
        with store.read() as reading:
            told = seen("web-0", asked_at=later, agent="back")
            assert reading.sightings() == told

    def test_a_machine_that_leaves_the_fleet_takes_along_what_was_seen(self, store: Store) -> None:
        save(store, WITH_MACHINES)
        store.beat(replica(), seen("web-0") | seen("web-1"))
        save(store, Changes(removed_machines=("web-0",)))
        store.beat(replica(), seen("web-0") | seen("web-1"))  # who saw it may not know yet
        with store.read() as reading:
            assert list(reading.sightings()) == ["web-1"]

    def test_what_was_seen_is_told_to_who_has_read_before(self, store: Store) -> None:
        save(store, WITH_MACHINES)
        store.beat(replica("r1"), seen("web-0"))
        since = store.beat(replica("r2", beat_at=NOW + MINUTE), seen("web-1"))
        with store.read() as reading:
            assert list(reading.sightings(since)) == ["web-1"]
            assert reading.sightings(since + MINUTE) == {}

    def test_replicas_that_saw_the_same_machines_do_not_wait_for_each_other(
        self, store: Store
    ) -> None:
        names = [f"m{n}" for n in range(200)]
        fleet = tuple(map(machine, names))
        save(store, Changes(scopes=(WEB,), machines=fleet))
        with ThreadPoolExecutor(4) as threads:
            orders = [
                {name: one for key in names[::way] for name, one in seen(key).items()}
                for way in (1, -1) * 8
            ]
            for done in [
                threads.submit(store.beat, replica(f"r{n}"), o) for n, o in enumerate(orders)
            ]:
                done.result()
        with store.read() as reading:
            assert len(reading.sightings()) == len(names)

    def test_a_name_is_one_replicas_until_it_is_given_back(self, shared_store: Store) -> None:
        member = shared_store.join("r1")
        other = shared_store.join("r2")
        with pytest.raises(StoreUnusable) as refused:
            shared_store.join("r1")
        assert "r1" in str(refused.value)
        assert "\n" not in str(refused.value)
        member.close()
        shared_store.join("r1").close()
        other.close()

    def test_a_member_is_told_of_changes_alone(self, shared_store: Store) -> None:
        member = shared_store.join("r1")
        assert member.wait(patience.PAUSE_SECONDS) == 0
        append_alone(shared_store, "a")
        append_alone(shared_store, "b")
        told = [member.wait(patience.SECONDS)]
        if told == [1]:
            told.append(member.wait(patience.SECONDS))
        assert told in ([2], [1, 2])
        with shared_store.write() as transaction:
            transaction.put_setting("a", "b")
        assert_rolled_back(shared_store, lambda transaction: append(transaction, "b") and None)
        append_alone(shared_store, "c")
        assert member.wait(patience.SECONDS) == 3  # it is the next that the member is told of
        member.close()

    def test_every_member_that_waits_is_woken(self, shared_store: Store) -> None:
        members = [shared_store.join(f"r{n}") for n in range(3)]
        with ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(member.wait, patience.SECONDS) for member in members]
            append_alone(shared_store, "a")
            assert [w.result() for w in waiting] == [1] * 3
        for member in members:
            member.close()


class Text:
    """No text has a NUL character: not every database can store it."""

    @pytest.mark.parametrize(
        "changes",
        [
            Changes(scopes=(msgspec.structs.replace(WEB, name="a\0b"),)),
            Changes(scopes=(WEB,), machines=(machine("a", tags=(("role", "\0"),)),)),
            with_maintenances(operation("1.1", description="\0")),
            Changes(holds=(hold(HoldKind.EVERYTHING, reason="a\0"),)),
            Changes(drains=(drain("\0h1"),)),
        ],
    )
    def test_a_nul_is_refused_and_nothing_changes(self, store: Store, changes: Changes) -> None:
        with pytest.raises(Refused) as refused:
            save(store, changes)
        assert refused.value.code is ErrorCode.INVALID
        with pytest.raises(Refused), store.write() as transaction:
            transaction.put_setting("a", "\0")
        with store.read() as reading:
            assert reading.scopes() == {}

    def test_what_looks_like_a_nul_in_json_is_text_as_any(self, store: Store) -> None:
        save(store, Changes(scopes=(msgspec.structs.replace(WEB, name="\\u0000"),)))
        with store.read() as reading:
            assert [scope.name for scope in reading.scopes().values()] == ["\\u0000"]

    def test_a_question_with_a_nul_finds_nothing(self, store: Store) -> None:
        save(store, Changes(scopes=(WEB,)))
        with store.read() as reading:
            assert reading.operations_of_events(["\0"]) == {}
            assert reading.maintenance_of_key("\0") is None
            for query in (HistoryQuery(machine="a\0"), HistoryQuery(scope="\0")):
                assert reading.history(query) == Page(operations=())
