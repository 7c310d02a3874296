"""What every store must keep: `port.py` as tests. A store's own tests come beside, not in here.

The fixtures `store`, `new` and `engine` say which store is held to it.
"""

from collections.abc import Callable
from datetime import datetime

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance.model import (
    Approval,
    Changes,
    Drain,
    Hold,
    Machine,
    Maintenance,
    Operation,
    Refused,
    Scope,
    StartCause,
    Tombstone,
)
from forewarn.store.port import HistoryQuery
from forewarn.store.sql import Store, Transaction
from forewarn.vocabulary import ApproverKind, ErrorCode, EventStatus
from store import values
from store.engines import NewStore
from store.values import (
    BATCH,
    GOING,
    MINUTE,
    NOW,
    OVER,
    WEB,
    event,
    machine,
    operation,
    tombstone,
    with_maintenances,
)

STARTED = {
    "status": EventStatus.STARTED,
    "started_at": NOW,
    "start_cause": StartCause.NOTICE_OVER,
}
APPROVAL = Approval(kind=ApproverKind.GUEST, by="Web-0", address="10.0.0.1", at=NOW)


def save(store: Store, changes: Changes) -> None:
    with store.write() as transaction:
        transaction.save(changes)


def assert_rolled_back(store: Store, work: Callable[[Transaction], None]) -> None:
    def refuse() -> None:
        with store.write() as transaction:
            work(transaction)
            raise Refused(ErrorCode.CONFLICT, "no")

    with pytest.raises(Refused):
        refuse()


class Values:
    """What is saved is what is read."""

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(
        values.SCOPES,
        values.MACHINES,
        values.MAINTENANCES,
        values.OPERATIONS,
        st.tuples(values.HOLDS, values.TOMBSTONES, values.DRAINS),
    )
    def test_what_is_saved_is_read_back_exactly(
        self,
        new: NewStore,
        scope: Scope,
        one: Machine,
        maintenance: Maintenance,
        whole: Operation,
        apart: tuple[Hold, Tombstone, Drain],
    ) -> None:
        one = msgspec.structs.replace(one, scope=scope.key)
        whole = msgspec.structs.replace(whole, maintenance=maintenance.number)
        held, gone, drained = apart
        store = new()
        save(
            store,
            Changes(
                scopes=(scope,),
                machines=(one,),
                maintenances=(maintenance,),
                operations=(whole,),
                holds=(held,),
                tombstones=(gone,),
                drains=(drained,),
            ),
        )
        with store.read() as reading:
            assert reading.scopes() == {scope.key: scope}
            assert reading.machines() == {one.key: one}
            assert reading.maintenances([maintenance.number]) == {maintenance.number: maintenance}
            assert reading.operations([whole.id]) == {whole.id: whole}
            assert reading.next_wakeup() == whole.wakeup_at
            assert reading.holds() == (held,)
            assert reading.tombstones() == {gone.key: gone}
            assert reading.drains() == {drained.host: drained}

    def test_the_last_of_several_values_in_one_transaction_counts(self, store: Store) -> None:
        numbers = range(1, 4)
        scopes = tuple(msgspec.structs.replace(WEB, incarnation=n) for n in numbers)
        same = tuple(operation("1.1", outcome=str(n)) for n in numbers)
        moved = tuple(machine("Web-0", host=f"h{3 - n}") for n in numbers)
        with store.write() as transaction:
            transaction.save(Changes(scopes=scopes[:1], machines=moved))
            transaction.save(msgspec.structs.replace(with_maintenances(*same), scopes=scopes[1:]))
            assert transaction.scopes() == {"web": scopes[-1]}
        with store.read() as reading:
            assert reading.scopes() == {"web": scopes[-1]}
            assert reading.machines() == {"web-0": moved[-1]}
            assert reading.operations(["1.1"]) == {"1.1": same[-1]}

    def test_a_machine_moves_to_another_scope_as_its_old_one_goes(self, store: Store) -> None:
        save(store, Changes(scopes=(WEB,), machines=(machine("a"),)))
        there = machine("a", "batch")
        save(store, Changes(scopes=(BATCH,), machines=(there,), removed_scopes=("web",)))
        with store.read() as reading:
            assert reading.machines() == {"a": there}
            assert set(reading.scopes()) == {"batch"}

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
        save(store, Changes(removed_machines=keys, revived=tuple(m.key for m in gone)))
        with store.read() as reading:
            assert reading.machines() == reading.tombstones() == {}

    def test_a_time_of_another_zone_is_the_same_instant(self, store: Store) -> None:
        there = datetime.fromisoformat("2026-03-01T14:30:00.000001+05:30")
        save(store, with_maintenances(operation("1.1", announced_at=there)))
        with store.read() as reading:
            read = reading.operations(["1.1"])["1.1"].announced_at
        assert read == there
        assert read.utcoffset() is not None

    def test_settings_are_kept_by_name(self, store: Store) -> None:
        with store.write() as transaction:
            assert transaction.setting("origin") is None
            transaction.put_setting("origin", "1")
            transaction.put_setting("origin", "2")
            transaction.put_setting("other", "")
        with store.read() as reading:
            assert reading.setting("origin") == "2"
            assert reading.setting("other") == ""


class Questions:
    """What the rules and the people ask."""

    def test_a_maintenance_is_found_by_its_idempotency_key(self, store: Store) -> None:
        keys = {1: "k1", 2: "", 3: "k1", 4: "K1", 5: ""}
        asked = (
            msgspec.structs.replace(values.maintenance(number), idempotency_key=key)
            for number, key in keys.items()
        )
        save(store, Changes(maintenances=tuple(asked)))
        with store.read() as reading:
            found = [reading.maintenance_of_key(key) for key in ("k1", "K1", "k2", "")]
        assert [one and one.number for one in found] == [3, 4, None, None]

    def test_numbers_of_maintenances_are_never_given_twice(self, store: Store) -> None:
        with store.write() as transaction:
            assert [transaction.next_maintenance_number() for _ in range(2)] == [1, 1]
        save(store, Changes(maintenances=(values.maintenance(7),)))
        done = operation("8.1", status=EventStatus.COMPLETED, ended_at=NOW)
        with store.write() as transaction:
            assert transaction.next_maintenance_number() == 8
            transaction.save(with_maintenances(done))
        with store.write() as transaction:
            assert transaction.purge(NOW + MINUTE, 10) == 1
            assert transaction.maintenances([8]) == {}
        with store.write() as transaction:
            assert transaction.next_maintenance_number() == 9

    def test_numbers_of_maintenances_that_were_skipped_are_never_given(self, store: Store) -> None:
        save(store, Changes(maintenances=(values.maintenance(7),)))
        with store.write() as transaction:
            transaction.skip_maintenance_numbers(10)
            assert transaction.next_maintenance_number() == 18
        with store.write() as transaction:
            assert transaction.next_maintenance_number() == 18

    def test_a_maintenance_without_operations_goes_with_those_after_it(self, store: Store) -> None:
        done = operation("8.1", status=EventStatus.COMPLETED, ended_at=NOW)
        several = tuple(values.maintenance(n, *OVER) for n in (7, 9))
        drained = (*several, values.maintenance(6, *GOING), values.maintenance(8))
        save(store, Changes(maintenances=drained, operations=(done,)))
        with store.write() as transaction:
            assert transaction.purge(NOW + MINUTE, 10) == 1
            assert set(transaction.maintenances([6, 7, 8, 9])) == {6, 9}

    def test_purging_forgets_what_ended_before_and_nothing_else(self, store: Store) -> None:
        ended = {"status": EventStatus.COMPLETED}
        first = operation("1.1", event("A", "web", "web-0"), **ended, ended_at=NOW)
        second = operation("1.2", **ended, ended_at=NOW + MINUTE)
        third = operation("2.1", **ended, ended_at=NOW + MINUTE)
        kept = operation("3.1", **ended, ended_at=NOW + 2 * MINUTE)
        save(store, with_maintenances(second, third, first, kept, operation("3.2")))
        with store.write() as transaction:
            assert transaction.purge(NOW + 2 * MINUTE, 1) == 1
        with store.read() as reading:
            assert reading.operations_of_events(["A"]) == reading.operations(["1.1"]) == {}
            assert set(reading.maintenances([1, 2, 3])) == {1, 2, 3}
        with store.write() as transaction:
            assert transaction.purge(NOW + 2 * MINUTE, 10) == 2
            assert transaction.purge(NOW + 2 * MINUTE, 10) == 0
        with store.read() as reading:
            assert set(reading.maintenances([1, 2, 3])) == {3}
            assert set(reading.operations_of_maintenance(3)) == {"3.1", "3.2"}
            assert reading.history(HistoryQuery(machine="web-0")).operations == (
                reading.operations(["3.2"])["3.2"],
                reading.operations(["3.1"])["3.1"],
            )
