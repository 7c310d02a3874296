"""What every store must keep of webhooks."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance.model import Refused
from forewarn.maintenance.webhooks import Webhook
from forewarn.store.sql import Store
from forewarn.vocabulary import ErrorCode
from store.engines import NewStore
from store.values import MOMENTS, SOME, every

NUMBERS = st.integers(0, 2**53)
WEBHOOKS = every(
    Webhook,
    types=st.lists(SOME).map(tuple),
    cursor=st.tuples(NUMBERS, NUMBERS),
    waiting_since=st.none() | MOMENTS,
    next_try_at=st.none() | MOMENTS,
    tries=NUMBERS,
    missed_at=st.none() | MOMENTS,
)


def webhook(name: str, url: str = "https://a.example/") -> Webhook:
    return Webhook(name=name, url=url, secret="whsec_", cursor=(0, 0))


def put(store: Store, *webhooks: Webhook) -> None:
    with store.write() as transaction:
        transaction.put_webhooks(webhooks)


class Webhooks:
    """Webhooks are kept by name, beside the outbox."""

    @settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
    @given(WEBHOOKS)
    def test_webhooks_are_read_back_exactly(self, new: NewStore, written: Webhook) -> None:
        store = new()
        put(store, written)
        with store.read() as reading:
            assert reading.webhooks() == {written.name: written}

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
