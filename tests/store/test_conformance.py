"""What every store must keep: `port.py` as tests. A store's own tests come beside, not in here.

The fixtures `store`, `shared_store`, `new` and `engine` say which store is held to it.
"""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

import forked
import patience
from forewarn.maintenance import model
from forewarn.store.port import JUMP, HistoryQuery, Position, StoreUnusable
from forewarn.store.sql import Store
from forewarn.vocabulary import ErrorCode
from store.engines import Engine
from store.story import (
    WITH_MACHINES,
    StoreStory,
    append,
    append_alone,
    relay,
    replica,
    save,
    seen,
)
from store.values import (
    MINUTE,
    NOW,
    WEB,
    event,
    machine,
    operation,
    tombstone,
    with_maintenances,
)
from stories import stories_beside


class TestValues:
    """What is saved is what is read."""

    def test_more_keys_than_one_statement_takes_are_found(self, store: Store) -> None:
        many = tuple(machine(f"m{n}", host=f"h{n}") for n in range(2500))
        gone = tuple(tombstone(f"Gone-{n}") for n in range(2500))
        made = tuple(operation(f"1.{n}", event(f"E{n}", f"s{n}", f"m{n}")) for n in range(2500))
        changes = with_maintenances(*made)
        save(store, msgspec.structs.replace(changes, scopes=(WEB,), machines=many, tombstones=gone))
        with store.read() as reading:
            assert reading.machines() == {m.key: m for m in many}
            assert len(reading.tombstones()) == 2500
            by_id = {o.id: o for o in made}
            assert reading.operations(list(by_id)) == by_id
            assert reading.live_operations() == by_id
            assert reading.operations_of_events([f"E{n}" for n in range(2500)]) == by_id
        keys = tuple(m.key for m in many)
        save(store, model.Changes(removed_machines=keys, revived=tuple(m.key for m in gone)))
        with store.read() as reading:
            assert reading.machines() == reading.tombstones() == {}

    def test_a_time_of_another_zone_is_the_same_instant(self, store: Store) -> None:
        there = datetime.fromisoformat("2026-03-01T14:30:00.000001+05:30")
        save(store, with_maintenances(operation("1.1", announced_at=there)))
        with store.read() as reading:
            read = reading.operations(["1.1"])["1.1"].announced_at
        assert read == there
        assert read.utcoffset() is not None


class TestStories:
    """Every store answers as store.txt tells."""

    @pytest.mark.parametrize("rows", stories_beside(__file__, "store.txt"))
    def test_the_story_holds(self, store: Store, rows: list[tuple[int, str]]) -> None:
        assert StoreStory(store).play("store.txt", rows)


def all_pages(store: Store, query: HistoryQuery) -> list[str]:
    ids: list[str] = []
    while True:
        with store.read() as reading:
            page = reading.history(query)
        assert len(page.operations) <= query.limit
        assert page.operations or not ids  # the last page that has any has no next
        ids.extend(o.id for o in page.operations)
        if not page.next:
            return ids
        query = msgspec.structs.replace(query, after=page.next)


class TestHistory:
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


class TestOutbox:
    """Changes are numbered in the order of commits, at a time that does not go back."""

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

        def follow() -> None:
            with store.read() as reading:
                new = reading.changes_after(seen[-1] if seen else 0, 7)
            seen.extend(one.sequence for one in new)

        with patience.meanwhile(follow) as faults, ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda n: append_alone(store, f"t{n}"), range(80)))
            append_alone(store, "last")
        assert faults == []
        assert sorted(p.sequence for p in made) == list(range(1, 81))
        assert seen == list(range(1, len(seen) + 1))

    @pytest.mark.parametrize("ahead", [JUMP / 2, timedelta(days=1)])
    def test_the_time_of_a_transaction_goes_back_only_with_a_clock_that_was_set_back(
        self, store: Store, ahead: timedelta
    ) -> None:
        with store.write() as transaction:
            now = transaction.now()
            if now is not None:
                append(transaction, "ahead", now + ahead)
        if now is None:  # the process's own clock counts
            return
        with store.write() as transaction:
            later = transaction.now()
        assert later is not None
        assert now < later
        assert (later > now + ahead) is (ahead < JUMP)


class TestMembers:
    """What replicas say of themselves, and their names."""

    def test_what_a_replica_says_is_read_back(self, store: Store) -> None:
        told = replica(applied=7, serving=False, clock_ahead_ms=-3, addresses=("10.0.0.1:80",))
        at = store.beat(told)
        assert store.shared or at == NOW
        with store.read() as reading:
            assert reading.replicas() == {"r1": told}

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
        save(store, model.Changes(scopes=(WEB,), machines=fleet))
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
        with suppress(model.Refused), shared_store.write() as transaction:
            append(transaction, "b")
            raise model.Refused(ErrorCode.CONFLICT, "no")
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


class TestText:
    """No text has a NUL character (store.txt), but one may look like it."""

    def test_what_looks_like_a_nul_in_json_is_text_as_any(self, store: Store) -> None:
        save(store, model.Changes(scopes=(msgspec.structs.replace(WEB, name="\\u0000"),)))
        with store.read() as reading:
            assert [scope.name for scope in reading.scopes().values()] == ["\\u0000"]


class TestTogether:
    """All or nothing, one after the other, and kept."""

    def test_a_view_is_of_the_instant_at_which_it_was_opened(self, store: Store) -> None:
        save(store, model.Changes(scopes=(WEB,)))
        later = model.Changes(scopes=(msgspec.structs.replace(WEB, incarnation=1),))
        with ThreadPoolExecutor(1) as threads, store.read() as reading:
            threads.submit(save, store, later).result(patience.SECONDS)
            assert reading.scopes() == {"web": WEB}
        with store.read() as reading:
            assert reading.scopes()["web"].incarnation == 1

    def test_any_thread_may_close_the_store(self, engine: Engine, tmp_path: Path) -> None:
        opened = engine.open(tmp_path)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(opened.close).result()
        again = engine.open(tmp_path)
        with again.read() as reading:
            assert reading.scopes() == {}
        again.close()

    def test_what_was_committed_survives_the_death_of_the_process(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        told = 0
        engine.open(tmp_path).close()  # a server that it needs is this process's child
        for _ in range(3):
            child = forked.Forked(
                ["-m", "store.committer", engine.name, str(tmp_path)],
                cwd=Path(__file__).parents[1],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert child.stdout is not None
            with child, child.stdout as lines:
                for _ in range(25):
                    told = int(lines.readline())
                child.send_signal(signal.SIGKILL)
                told = max([told, *(int(line) for line in lines if line.endswith("\n"))])
            assert child.returncode == -signal.SIGKILL
            opened = engine.open(tmp_path)
            with opened.read() as reading:
                kept = reading.scopes()["web"].incarnation
                ids = reading.operations([f"1.{n}" for n in range(kept + 2)])
            opened.close()
            assert kept in {told, told + 1}, "one more may have been committed, but not told"
            assert set(ids) == {f"1.{n}" for n in range(1, kept + 1)}
