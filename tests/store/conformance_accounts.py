"""What every store must keep of accounts: operators' tokens, and the audit log."""

from datetime import datetime

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance import relays
from forewarn.maintenance.accounts import DONE, AuditRecord, Deed, Token
from forewarn.maintenance.model import Changes, Refused
from forewarn.store.port import AuditQuery
from forewarn.store.sql import Store
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience
from store.conformance import assert_rolled_back, save
from store.engines import NewStore
from store.values import MINUTE, MOMENTS, NOW, every

TOKENS = every(
    Token,
    role=st.sampled_from(AccessRole),
    created_at=MOMENTS,
    expires_at=st.none() | MOMENTS,
    audience=st.sampled_from(TokenAudience),
    used_at=st.none() | MOMENTS,
)
RECORDS = every(
    AuditRecord,
    sequence=st.just(0),
    at=MOMENTS,
    role=st.none() | st.sampled_from(AccessRole),
    outcome=st.sampled_from([DONE, ErrorCode.FORBIDDEN.value]),
)


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

    @settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
    @given(TOKENS, RECORDS)
    def test_tokens_and_records_are_read_back_exactly(
        self,
        new: NewStore,
        made: Token,
        written: AuditRecord,
    ) -> None:
        store = new()
        with store.write() as transaction:
            transaction.save(Changes(tokens=(made,)))
            transaction.record([written])
        with store.read() as reading:
            assert reading.tokens() == {made.name: made}
            assert reading.audit(AuditQuery()) == [msgspec.structs.replace(written, sequence=1)]

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
