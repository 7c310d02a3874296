"""Which hosts are held because their relays are away, and which tokens are valid."""

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import MINUTE, NOW, SECOND
from forewarn.maintenance import relays
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.relays import HEARSAY, LATE, Relay, RelayTerms, new_token

TERMS = RelayTerms(
    replica="a",
    began_at=NOW - 101 * MINUTE,
    since=NOW - 100 * MINUTE,
    tokens={"h1": NOW - 90 * MINUTE},
)

SECONDS = st.integers(-300, 300).map(lambda seconds: NOW + seconds * SECOND)


def relay(heard_at: datetime = NOW, waits: timedelta = MINUTE, **fields: object) -> Relay:
    known: dict[str, object] = {
        "host": "h1",
        "replica": "a",
        "version": "1",
        "started_at": NOW - MINUTE,
        "heard_at": heard_at,
        "due_at": heard_at + waits,
        "etag": "e.7.d",
        "machines": 3,
    }
    return msgspec.convert(known | fields, Relay)


def token(digest: str, minutes: int, *, used: bool = False) -> Token:
    made = NOW + minutes * MINUTE
    token = new_token("h1", digest, by="ann", at=made)
    return msgspec.structs.replace(token, used_at=made if used else None)


def held(heard: Relay, now: datetime, terms: RelayTerms = TERMS, *, all_of_it: bool = True) -> str:
    """What is to be done about one relay: `hold SECONDS` before now, `release`, or nothing."""
    hold, release = relays.judge([heard], terms, lambda _: all_of_it, now)
    if hold:
        ((about, since),) = hold
        assert about is heard
        assert release == []
        return f"hold {(now - since).total_seconds():g}"
    return "release" if release else ""


def test_a_relay_is_away_once_its_next_request_is_late_and_since_its_last() -> None:
    due = NOW + MINUTE
    assert held(relay(), due + LATE) == ""
    assert held(relay(), due + LATE + SECOND) == "hold 66"


def test_what_another_replica_heard_may_come_later() -> None:
    heard = relay(replica="b")
    assert held(heard, NOW + MINUTE + LATE + HEARSAY) == ""
    assert held(heard, NOW + MINUTE + LATE + HEARSAY + SECOND) == "hold 72"


@pytest.mark.parametrize(("replica", "patience"), [("a", LATE), ("b", LATE + HEARSAY)])
def test_a_relay_that_lacks_what_changed_is_away_though_its_request_may_wait(
    replica: str, patience: timedelta
) -> None:
    changed = NOW + 10 * SECOND
    behind = msgspec.structs.replace(TERMS, behind={"h1": changed})
    heard = relay(waits=5 * MINUTE, replica=replica)
    assert held(heard, changed + patience, behind) == ""
    away_for = (10 * SECOND + patience + SECOND).total_seconds()
    assert held(heard, changed + patience + SECOND, behind) == f"hold {away_for:g}"
    elsewhere = msgspec.structs.replace(TERMS, behind={"h2": changed})
    assert held(heard, changed + patience + SECOND, elsewhere) == ""


def test_an_absence_that_began_before_this_replica_counts_since_its_start() -> None:
    since = NOW + 10 * MINUTE
    started = msgspec.structs.replace(TERMS, began_at=since - 10 * SECOND, since=since)
    assert held(relay(), since + LATE, started) == ""
    assert held(relay(), since + LATE + SECOND, started) == "hold 16"


def test_an_absence_that_begins_while_relays_come_back_counts_whole() -> None:
    since = NOW + 10 * MINUTE
    started = msgspec.structs.replace(TERMS, began_at=since - 10 * SECOND, since=since)
    heard = relay(since - 8 * SECOND, SECOND)
    assert held(heard, since + LATE, started) == ""
    assert held(heard, since + LATE + SECOND, started) == "hold 14"


def test_each_relay_is_judged_by_itself_to_the_moment() -> None:
    late = NOW + 5 * MINUTE
    on_time, away = relay(late), relay(host="h2")
    back = relay(late, host="h3", held_for=NOW)
    terms = msgspec.structs.replace(TERMS, tokens={"h1": NOW, "h2": NOW, "h3": NOW})
    found = relays.judge([on_time, away, back], terms, lambda _: True, late)
    assert found == ([(away, NOW)], [back])
    edge = NOW + MINUTE + LATE
    assert relays.judge([away], terms, lambda _: True, edge) == ([], [])
    assert relays.judge([away], terms, lambda _: True, edge + SECOND) == ([(away, NOW)], [])


def test_a_host_is_held_once_for_each_absence() -> None:
    late = NOW + 5 * MINUTE
    assert held(relay(held_for=NOW), late) == ""
    assert held(relay(held_for=NOW - MINUTE), late) == "hold 300"


def test_a_replica_with_more_patience_does_not_release_what_another_holds() -> None:
    # Its own replica knows sooner that a relay is late than one that knows it by hearsay.
    for replica in ("a", "b"):
        for late in (LATE + SECOND, LATE + HEARSAY, LATE + HEARSAY + SECOND):
            assert held(relay(replica=replica, held_for=NOW), NOW + MINUTE + late) == ""
    assert held(relay(replica="b", held_for=NOW), NOW + MINUTE + LATE) == ""


def test_a_host_is_released_when_its_relay_is_back_and_has_everything() -> None:
    back = relay(held_for=NOW - MINUTE)
    assert held(back, NOW, all_of_it=False) == ""
    assert held(back, NOW) == "release"
    assert held(relay(), NOW) == ""


def test_a_host_without_a_token_is_not_held_but_released() -> None:
    nobodys = msgspec.structs.replace(TERMS, tokens={})
    late = NOW + 5 * MINUTE
    assert held(relay(), late, nobodys) == ""
    assert held(relay(held_for=NOW), late, nobodys, all_of_it=False) == "release"


def test_what_was_heard_by_an_older_token_holds_nothing() -> None:
    again = msgspec.structs.replace(TERMS, tokens={"h1": NOW + SECOND})
    assert held(relay(), NOW + 5 * MINUTE, again) == ""


@given(
    st.lists(
        st.builds(
            lambda host, replica, heard_at, wait, held_for: relay(
                heard_at, wait * SECOND, host=host, replica=replica, held_for=held_for
            ),
            st.sampled_from(["h1", "h2", "h3"]),
            st.sampled_from(["a", "b"]),
            SECONDS,
            st.integers(0, 60),
            st.none() | SECONDS,
        ),
        max_size=3,
        unique_by=lambda one: one.host,
    ),
    st.dictionaries(st.sampled_from(["h1", "h2", "h3"]), SECONDS),
    SECONDS,
    SECONDS,
    st.booleans(),
)
def test_nobody_is_held_early_or_twice_or_released_while_away(
    heard: list[Relay],
    tokens: dict[str, datetime],
    since: datetime,
    now: datetime,
    all_of_it: bool,
) -> None:
    terms = RelayTerms(replica="a", began_at=since - 3 * SECOND, since=since, tokens=tokens)
    hold, release = relays.judge(heard, terms, lambda _: all_of_it, now)
    assert {one.host for one, _ in hold}.isdisjoint(one.host for one in release)
    for one, from_then in hold:
        assert one.host in tokens
        assert one.held_for != one.heard_at
        assert now - one.due_at > LATE
        assert terms.began_at <= from_then <= now - LATE
        assert from_then >= one.heard_at or from_then == terms.began_at
        # Once it is held for that, nothing is done about it again until it is heard.
        marked = msgspec.structs.replace(one, held_for=one.heard_at)
        assert relays.judge([marked], terms, lambda _: True, now) == ([], [])
    for one in release:
        assert one.held_for is not None
        assert (
            one.host not in tokens
            or (
                all_of_it
                and one.heard_at != one.held_for
                and not (tokens[one.host] <= one.heard_at and relays.is_away(one, terms, now))
            )
            or one.heard_at < tokens[one.host]
        )


@pytest.mark.parametrize(
    ("known", "void"),
    [
        ([], ()),
        ([token("a", 0, used=True)], ()),
        ([token("a", 0)], ()),
        ([token("a", 0, used=True), token("b", 1)], ("b",)),
        ([token("a", 0), token("b", 1)], ("a",)),
        ([token("a", 0, used=True), token("b", 1, used=True)], ("a",)),
    ],
)
def test_a_new_token_leaves_the_one_in_use_valid(known: list[Token], void: tuple[str, ...]) -> None:
    assert tuple(each.digest for each in relays.issue(known)) == void
    assert len(known) - len(void) < relays.MAX_TOKENS


def test_a_token_that_is_used_first_voids_the_older_ones_of_its_host() -> None:
    known = [token("a", 0, used=True), token("b", 1), token("c", 2)]
    found = [[each.digest for each in relays.use(known, used)] for used in known]
    assert found == [[], ["a"], ["a", "b"]]
