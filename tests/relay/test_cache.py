"""Which news a relay takes, and what it never lets happen to what guests read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.relay import cache
from forewarn.relay.cache import HostDocuments, NewsFault, NewsRefused
from forewarn.server.relay_feed import GuestRules, News, ScopeDocument
from guest import room

WEB = ScopeDocument(scope=room.SCOPES[0])
BASTION = ScopeDocument(scope=room.SCOPES[1])
SNAPSHOT = News(
    host="h1",
    position="e.5",
    snapshot=True,
    machines=tuple(room.MACHINES),
    scopes=(WEB, BASTION),
    rules=GuestRules(),
)


def known() -> HostDocuments:
    return cache.take(None, SNAPSHOT)[0]


def test_a_snapshot_is_all_there_is() -> None:
    after, change = cache.take(None, SNAPSHOT)
    assert set(after.machines) == {"web-0", "web-1", "bastion"}
    assert (len(change.machines), len(change.scopes)) == (3, 2)
    smaller = msgspec.structs.replace(
        SNAPSHOT, position="e.6", machines=(room.MACHINES[0],), scopes=(WEB,)
    )
    last, change = cache.take(after, smaller)
    assert set(last.machines) == {"web-0"}
    assert set(change.removed_machines) == {"web-1", "bastion"}
    assert change.removed_scopes == ("bastion",)
    assert (change.machines, change.scopes) == ((), ())


def test_news_that_is_taken_twice_changes_nothing_more() -> None:
    after, change = cache.take(known(), SNAPSHOT)
    assert after == known()
    assert change == News(host="h1", position="e.5")


@pytest.mark.parametrize(
    ("news", "fault"),
    [
        (News(host="h2", position="e.9"), NewsFault.OTHER_HOST),
        (msgspec.structs.replace(SNAPSHOT, host="h2"), NewsFault.OTHER_HOST),
        (News(host="h1", position="e.4"), NewsFault.BACKWARDS),
        (msgspec.structs.replace(SNAPSHOT, position="e.4"), NewsFault.BACKWARDS),
        (News(host="h1", position="f.9"), NewsFault.NO_BASE),
        (News(host="h1", position="e." + "9" * 200), NewsFault.LIMIT),
        (News(host="h1", position="e.6", removed_scopes=("web",)), NewsFault.INCOMPLETE),
        (
            News(host="h1", position="e.6", machines=(room.machine("db", scope="nowhere"),)),
            NewsFault.INCOMPLETE,
        ),
        (msgspec.structs.replace(SNAPSHOT, scopes=()), NewsFault.INCOMPLETE),
    ],
)
def test_news_that_does_not_fit_is_refused(news: News, fault: NewsFault) -> None:
    with pytest.raises(NewsRefused) as refused:
        cache.take(known(), news)
    assert refused.value.fault is fault


def test_more_machines_than_any_host_has_are_refused() -> None:
    crowd = tuple(room.machine(f"m{n}", scope="web") for n in range(cache.MAX_MACHINES + 1))
    with pytest.raises(NewsRefused) as refused:
        cache.take(None, msgspec.structs.replace(SNAPSHOT, machines=crowd))
    assert refused.value.fault is NewsFault.LIMIT


def test_before_the_first_snapshot_nothing_else_is_taken() -> None:
    with pytest.raises(NewsRefused) as refused:
        cache.take(None, News(host="h1", position="e.5"))
    assert refused.value.fault is NewsFault.NO_BASE


def test_a_snapshot_of_another_epoch_is_taken_whatever_its_number() -> None:
    after, _ = cache.take(known(), msgspec.structs.replace(SNAPSHOT, position="f.1"))
    assert after.position == "f.1"


def test_rules_stay_where_news_has_none() -> None:
    rules = GuestRules(rate_per_second=7)
    before, _ = cache.take(None, msgspec.structs.replace(SNAPSHOT, rules=rules))
    after, change = cache.take(before, News(host="h1", position="e.6"))
    assert (after.rules, change.rules) == (rules, None)


NAMES = st.sampled_from(["a", "b", "c"])


@st.composite
def any_news(draw: st.DrawFn) -> News:
    scopes = draw(st.lists(NAMES, unique=True))
    return News(
        host=draw(st.sampled_from(["h1", "h1", "h1", "h2"])),
        position=f"{draw(st.sampled_from(['e', 'e', 'f']))}.{draw(st.integers(0, 9))}",
        snapshot=draw(st.booleans()),
        machines=tuple(
            room.machine(name, scope=draw(NAMES)) for name in draw(st.lists(NAMES, unique=True))
        ),
        removed_machines=tuple(draw(st.lists(NAMES, unique=True))),
        scopes=tuple(
            ScopeDocument(scope=room.scope(name, incarnation=draw(st.integers(0, 5))))
            for name in scopes
        ),
        removed_scopes=tuple(draw(st.lists(NAMES, unique=True))),
    )


@given(st.lists(any_news(), max_size=12))
def test_whatever_comes_each_machine_has_its_document_and_changes_add_up(
    told: list[News],
) -> None:
    have: HostDocuments | None = None
    machines: dict[str, object] = {}
    documents: dict[str, object] = {}
    for news in told:
        before = have
        try:
            have, change = cache.take(have, news)
        except NewsRefused:
            assert have is before
            continue
        for key in change.removed_machines:
            del machines[key]
        for key in change.removed_scopes:
            del documents[key]
        machines |= {each.key: each for each in change.machines}
        documents |= {each.scope.key: each for each in change.scopes}
        assert (machines, documents) == (have.machines, have.documents)
        assert cache.take(None, cache.snapshot(have))[0] == have
        assert {each.scope for each in have.machines.values()} <= documents.keys()
        assert news.snapshot or before is not None
        if before is not None and cache.epoch(before.position) == cache.epoch(have.position):
            assert int(have.position.partition(".")[2]) >= int(before.position.partition(".")[2])
