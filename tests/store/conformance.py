"""What every store must keep: `port.py` as tests. A store's own tests come beside, not in here.

The fixtures `store`, `new` and `engine` say which store is held to it.
"""

from collections.abc import Callable
from datetime import datetime

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance import relays
from forewarn.maintenance.accounts import DONE, AuditRecord, Deed, Token
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
from forewarn.maintenance.relays import Relay
from forewarn.maintenance.webhooks import Webhook
from forewarn.store.port import AuditQuery, HistoryQuery
from forewarn.store.sql import Store, Transaction
from forewarn.vocabulary import AccessRole, ApproverKind, ErrorCode, EventStatus
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
        st.tuples(values.HOLDS, values.TOMBSTONES, values.DRAINS, values.TOKENS),
        st.tuples(values.RECORDS, values.WEBHOOKS, values.RELAYS),
    )
    def test_what_is_saved_is_read_back_exactly(
        self,
        new: NewStore,
        scope: Scope,
        one: Machine,
        maintenance: Maintenance,
        whole: Operation,
        apart: tuple[Hold, Tombstone, Drain, Token],
        beside: tuple[AuditRecord, Webhook, Relay],
    ) -> None:
        one = msgspec.structs.replace(one, scope=scope.key)
        whole = msgspec.structs.replace(whole, maintenance=maintenance.number)
        held, gone, drained, made = apart
        written, hook, heard = beside
        changes = Changes(
            scopes=(scope,),
            machines=(one,),
            maintenances=(maintenance,),
            operations=(whole,),
            holds=(held,),
            tombstones=(gone,),
            drains=(drained,),
            tokens=(made,),
        )
        store = new()
        with store.write() as transaction:
            transaction.save(changes)
            transaction.record([written])
            transaction.put_webhooks([hook])
        store.hear([heard])
        with store.read() as reading:
            assert reading.scopes() == {scope.key: scope}
            assert reading.machines() == {one.key: one}
            assert reading.maintenances([maintenance.number]) == {maintenance.number: maintenance}
            assert reading.operations([whole.id]) == {whole.id: whole}
            assert reading.next_wakeup() == whole.wakeup_at
            assert reading.holds() == (held,)
            assert reading.tombstones() == {gone.key: gone}
            assert reading.drains() == {drained.host: drained}
            assert reading.tokens() == {made.name: made}
            assert reading.audit(AuditQuery()) == [written]
            assert reading.webhooks() == {hook.name: hook}
            assert reading.relays() == {heard.host: heard}

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


def token(name: str, **fields: object) -> Token:
    known = {
        "role": AccessRole.VIEWER,
        "digest": f"of {name}",
        "created_by": "root",
        "created_at": NOW,
        "expires_at": None,
    }
    return msgspec.convert(known | fields | {"name": name}, Token)


def record(
    by: str = "ann", *, outcome: str = DONE, at: datetime = NOW, deed: str = ""
) -> AuditRecord:
    return AuditRecord(
        at=at,
        by=by,
        role=AccessRole.OPERATOR,
        address="10.0.0.1",
        action="POST /v1/approvals",
        deed=deed,
        detail="1.1",
        outcome=outcome,
        request=f"of {by}",
    )


def write(store: Store, *records: AuditRecord) -> None:
    with store.write() as transaction:
        transaction.record(records)


def found(store: Store, query: AuditQuery | None = None) -> list[int]:
    with store.read() as reading:
        return [one.sequence for one in reading.audit(query or AuditQuery())]


def purge(store: Store, before: datetime, limit: int = 100, refusals: int = 100) -> int:
    with store.write() as transaction:
        return transaction.purge_audit(before, limit, refusals=refusals)


class Accounts:
    """Tokens come and go; records are numbered, and forgotten by age."""

    def test_tokens_are_in_the_order_of_their_names_and_go_when_revoked(self, store: Store) -> None:
        bob, ann = token("bob"), token("ann", expires_at=NOW + MINUTE)
        save(store, Changes(tokens=(bob, ann)))
        with store.read() as reading:
            assert list(reading.tokens().values()) == [ann, bob]
        save(store, Changes(revoked_tokens=("bob", "nobody")))
        with store.read() as reading:
            assert reading.tokens() == {"ann": ann}

    def test_a_token_may_replace_the_one_that_is_revoked_with_it(self, store: Store) -> None:
        save(store, Changes(tokens=(token("ann"),)))
        again = token("ann", role=AccessRole.ADMIN)
        save(store, Changes(tokens=(again,), revoked_tokens=("ann",)))
        with store.read() as reading:
            assert reading.tokens() == {"ann": again}

    def test_a_token_of_a_relay_that_was_used_replaces_itself(self, store: Store) -> None:
        made = relays.new_token("h1", "0123456789", by="ann", at=NOW)
        used = msgspec.structs.replace(made, used_at=NOW)
        for each in (made, used):
            save(store, Changes(tokens=(each,)))
            with store.read() as reading:
                assert reading.tokens() == {"relay/h1/01234567": each}

    def test_log_ins_are_left_out_if_asked_for_but_no_refused_one(self, store: Store) -> None:
        deeds = ("approve", Deed.LOG_IN, Deed.LOG_IN_LINK, Deed.LOG_OUT)
        write(store, *(record("ann", deed=deed) for deed in deeds))
        write(store, record("", outcome="unauthorized", deed=Deed.LOG_IN))
        assert found(store, AuditQuery(logins=False)) == [5, 1]
        assert found(store) == [5, 4, 3, 2, 1]

    def test_records_are_numbered_in_the_order_of_commits(self, store: Store) -> None:
        write(store, record("ann"), record("bob"))
        assert_rolled_back(store, lambda transaction: transaction.record([record("cid")]))
        write(store)
        write(store, record("dan"))
        with store.read() as reading:
            written = reading.audit(AuditQuery())
        assert [(one.sequence, one.by) for one in written] == [(3, "dan"), (2, "bob"), (1, "ann")]

    def test_a_transaction_sees_its_own_records_and_tokens(self, store: Store) -> None:
        with store.write() as transaction:
            transaction.record([record()])
            transaction.save(Changes(tokens=(token("ann"),)))
            assert [one.sequence for one in transaction.audit(AuditQuery())] == [1]
            assert list(transaction.tokens()) == ["ann"]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            (AuditQuery(), [4, 3, 2, 1]),
            (AuditQuery(by="ann"), [3, 1]),
            (AuditQuery(by="Ann"), []),
            (AuditQuery(since=NOW + MINUTE), [4, 3, 2]),
            (AuditQuery(until=NOW + MINUTE), [1]),
            (AuditQuery(since=NOW + MINUTE, until=NOW + 3 * MINUTE), [3, 2]),
            (AuditQuery(before=3), [2, 1]),
            (AuditQuery(before=3, by="ann", limit=1), [1]),
            (AuditQuery(limit=2), [4, 3]),
            (AuditQuery(by="nobody"), []),
            (AuditQuery(by="\0"), []),
        ],
    )
    def test_a_query_finds_its_records_newest_first(
        self, store: Store, query: AuditQuery, expected: list[int]
    ) -> None:
        names = ("ann", "bob", "ann", "bob")
        write(store, *(record(by, at=NOW + n * MINUTE) for n, by in enumerate(names)))
        assert found(store, query) == expected

    def test_what_is_older_is_forgotten_the_oldest_first(self, store: Store) -> None:
        write(store, *(record(at=NOW + n * MINUTE) for n in range(5)))
        assert purge(store, NOW + 3 * MINUTE, limit=2) == 2
        assert found(store) == [5, 4, 3]
        assert purge(store, NOW + 3 * MINUTE) == 1
        assert found(store) == [5, 4]
        assert purge(store, NOW + 3 * MINUTE) == 0
        write(store, record())
        assert found(store)[0] == 6

    def test_of_refusals_only_the_latest_are_kept_and_of_changes_all(self, store: Store) -> None:
        code = ErrorCode.UNAUTHORIZED.value
        outcomes = (code, DONE, code, code, DONE, code)
        write(store, *(record(outcome=outcome) for outcome in outcomes))
        assert purge(store, NOW, refusals=2) == 2
        assert found(store) == [6, 5, 4, 2]
        assert purge(store, NOW, refusals=2) == 0

    def test_a_record_with_a_nul_is_refused(self, store: Store) -> None:
        with pytest.raises(Refused):
            write(store, record("a\0b"))
        assert found(store) == []


def webhook(name: str, url: str = "https://a.example/") -> Webhook:
    return Webhook(name=name, url=url, secret="whsec_", cursor=(0, 0))


def put(store: Store, *webhooks: Webhook) -> None:
    with store.write() as transaction:
        transaction.put_webhooks(webhooks)


class Webhooks:
    """Webhooks are kept by name, beside the outbox."""

    def test_webhooks_are_in_the_order_of_their_names_and_replaced_by_them(
        self, store: Store
    ) -> None:
        put(store, webhook("b"), webhook("a"))
        put(store, webhook("b", "https://b.example/"))
        put(store)
        with store.read() as reading:
            found = reading.webhooks()
        assert list(found) == ["a", "b"]
        assert found["b"].url == "https://b.example/"

    def test_what_is_removed_is_gone_and_what_is_not_there_does_no_harm(self, store: Store) -> None:
        put(store, webhook("a"), webhook("b"))
        with store.write() as transaction:
            transaction.remove_webhooks(["a", "nobody"])
            assert list(transaction.webhooks()) == ["b"]
            assert transaction.position().sequence == 0
        with store.read() as reading:
            assert list(reading.webhooks()) == ["b"]

    def test_a_nul_character_is_refused(self, store: Store) -> None:
        with pytest.raises(Refused) as refusal:
            put(store, webhook("a\0b"))
        assert refusal.value.code is ErrorCode.INVALID


def relay(host: str = "h1", heard_at: datetime = NOW, **fields: object) -> Relay:
    known: dict[str, object] = {
        "replica": "a",
        "version": "1",
        "started_at": NOW,
        "due_at": heard_at + MINUTE,
        "etag": "e.7.d",
        "machines": 3,
    }
    return msgspec.convert(known | fields | {"host": host, "heard_at": heard_at}, Relay)


def known(store: Store) -> dict[str, Relay]:
    with store.read() as reading:
        return reading.relays()


class Relays:
    """Of a relay the latest that was heard counts."""

    def test_of_a_relay_the_latest_that_anybody_heard_counts(self, store: Store) -> None:
        store.hear([relay("h2"), relay("h1", NOW + MINUTE)])
        store.hear([relay("h1", NOW, replica="b"), relay("h2", NOW + MINUTE, replica="b")])
        assert known(store) == {
            "h1": relay("h1", NOW + MINUTE),
            "h2": relay("h2", NOW + MINUTE, replica="b"),
        }

    def test_relays_are_found_by_their_hosts_and_by_when_they_were_heard(
        self, store: Store
    ) -> None:
        store.hear([relay("h1"), relay("h2", NOW + MINUTE), relay("h3", NOW + 2 * MINUTE)])
        with store.read() as reading:
            assert set(reading.relays(["h2", "h1", "h9"])) == {"h1", "h2"}
            assert set(reading.relays(since=NOW + MINUTE)) == {"h2", "h3"}
            assert set(reading.relays(["h1", "h2"], NOW + MINUTE)) == {"h2"}

    def test_what_is_heard_leaves_alone_for_which_absence_a_host_is_held(
        self, store: Store
    ) -> None:
        store.hear([relay()])
        with store.write() as transaction:
            transaction.mark_relay("h1", NOW)
            transaction.mark_relay("unknown", NOW)
            assert transaction.relays()["h1"].held_for == NOW
        store.hear([relay("h1", NOW + MINUTE)])
        assert known(store) == {"h1": relay("h1", NOW + MINUTE, held_for=NOW)}
        with store.write() as transaction:
            transaction.mark_relay("h1", None)
        assert known(store)["h1"].held_for is None

    def test_a_relay_that_is_forgotten_is_gone(self, store: Store) -> None:
        store.hear([relay("h1"), relay("h2")])
        with store.write() as transaction:
            transaction.forget_relay("h1")
        assert list(known(store)) == ["h2"]

    def test_a_relay_that_says_a_nul_is_refused(self, store: Store) -> None:
        with pytest.raises(Refused):
            store.hear([relay(version="a\0b")])
        assert known(store) == {}
