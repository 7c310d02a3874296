"""What every store must keep of relays: what was heard of each."""

from datetime import datetime

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.maintenance.model import Refused
from forewarn.maintenance.relays import Relay
from forewarn.store.sql import Store
from store.engines import NewStore
from store.values import MINUTE, MOMENTS, NOW, every

RELAYS = every(
    Relay,
    started_at=MOMENTS,
    heard_at=MOMENTS,
    due_at=MOMENTS,
    machines=st.integers(0, 10**6),
    held_for=st.none() | MOMENTS,
)


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

    @settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
    @given(RELAYS)
    def test_relays_are_read_back_exactly(self, new: NewStore, heard: Relay) -> None:
        store = new()
        store.hear([heard])
        with store.read() as reading:
            assert reading.relays() == {heard.host: heard}

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
