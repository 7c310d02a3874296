"""Which documents a relay takes, and what it never lets happen to what guests read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.relay import cache
from forewarn.relay.cache import DocumentRefused, HostDocuments
from forewarn.server.relay_feed import GuestRules, HostDocument, ScopeDocument
from guest import room

WEB = ScopeDocument(scope=room.SCOPES[0])
BASTION = ScopeDocument(scope=room.SCOPES[1])
HOST = HostDocument(host="h1", machines=tuple(room.MACHINES), scopes=(WEB, BASTION))


def known() -> HostDocuments:
    return cache.take(None, "e5", HOST)


def test_a_document_is_all_there_is() -> None:
    before = known()
    assert set(before.machines) == {"web-0", "web-1", "bastion"}
    rules = GuestRules(rate_per_second=7)
    smaller = HostDocument(
        host="h1", machines=(room.MACHINES[0],), scopes=(WEB,), rules=rules, awaited=("web-0",)
    )
    after = cache.take(before, "e6", smaller)
    assert (after.etag, after.rules, after.awaited) == ("e6", rules, ("web-0",))
    assert (set(after.machines), set(after.documents)) == ({"web-0"}, {"web"})


@pytest.mark.parametrize(
    ("etag", "told"),
    [
        ("e6", msgspec.structs.replace(HOST, host="h2")),
        ("", HOST),
        ("e" * 201, HOST),
        ("\N{REPLACEMENT CHARACTER}", HOST),
        ("e6", msgspec.structs.replace(HOST, scopes=())),
        ("e6", msgspec.structs.replace(HOST, machines=(room.machine("db", scope="nowhere"),))),
    ],
)
def test_a_document_that_does_not_fit_is_refused(etag: str, told: HostDocument) -> None:
    with pytest.raises(DocumentRefused):
        cache.take(known(), etag, told)


def test_more_machines_than_any_host_has_are_refused() -> None:
    crowd = tuple(room.machine(f"m{n}", scope="web") for n in range(cache.MAX_MACHINES + 1))
    with pytest.raises(DocumentRefused):
        cache.take(None, "e5", msgspec.structs.replace(HOST, machines=crowd))


VALUES = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2))


@given(VALUES, VALUES)
def test_a_difference_leads_from_one_to_the_other(
    before: dict[str, int], after: dict[str, int]
) -> None:
    changed, gone = cache.difference(before, after)
    assert set(gone) == before.keys() - after.keys()
    assert sorted(changed) == sorted(
        value for key, value in after.items() if before.get(key) != value
    )
