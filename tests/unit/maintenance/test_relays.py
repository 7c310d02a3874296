"""Which hosts are held because their relays are away, and which tokens are valid."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import MINUTE, NOW, SECOND
from forewarn.maintenance import relays
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.relays import HEARSAY, LATE, Relay, RelayTerms, new_token
from forewarn.vocabulary import AccessRole

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


SINCE = NOW + 10 * MINUTE
STARTED = {"began_at": SINCE - 10 * SECOND, "since": SINCE}
BEHIND = {"behind": {"h1": NOW + 10 * SECOND}}
"""Something changed 10 s after the relay was heard."""


@pytest.mark.parametrize(
    ("fields", "terms", "is_late", "held_for"),
    [
        # Once its next request is late, since its last; what another heard may come later.
        ({}, {}, NOW + MINUTE + LATE, 66),
        ({"replica": "b"}, {}, NOW + MINUTE + LATE + HEARSAY, 72),
        # One that lacks what changed is away though its request may wait.
        ({"waits": 5 * MINUTE}, BEHIND, NOW + 10 * SECOND + LATE, 16),
        ({"waits": 5 * MINUTE, "replica": "b"}, BEHIND, NOW + 10 * SECOND + LATE + HEARSAY, 22),
        # An absence from before this replica's start counts since that, a later one whole.
        ({}, STARTED, SINCE + LATE, 16),
        ({"heard_at": SINCE - 8 * SECOND, "waits": SECOND}, STARTED, SINCE + LATE, 14),
    ],
)
def test_a_relay_is_away_from_its_moment_on_and_not_before(
    fields: dict[str, Any], terms: dict[str, Any], is_late: datetime, held_for: float
) -> None:
    known = msgspec.structs.replace(TERMS, **terms)
    assert held(relay(**fields), is_late, known) == ""
    assert held(relay(**fields), is_late + SECOND, known) == f"hold {held_for:g}"


def test_what_changed_on_another_host_makes_no_relay_late() -> None:
    elsewhere = msgspec.structs.replace(TERMS, behind={"h2": NOW})
    assert held(relay(waits=5 * MINUTE), NOW + 5 * MINUTE, elsewhere) == ""


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


AWAY = NOW + 5 * MINUTE
NOBODYS, NEWER = {"tokens": {}}, {"tokens": {"h1": NOW + SECOND}}


@pytest.mark.parametrize(
    ("fields", "terms", "now", "all_of_it", "what"),
    [
        # It is held once for each absence, whoever has more patience.
        ({"held_for": NOW}, {}, AWAY, True, ""),
        ({"held_for": NOW - MINUTE}, {}, AWAY, True, "hold 300"),
        *(
            ({"held_for": NOW, "replica": replica}, {}, NOW + MINUTE + late, True, "")
            for replica in ("a", "b")
            for late in (LATE, LATE + SECOND, LATE + HEARSAY, LATE + HEARSAY + SECOND)
        ),
        # It is released when its relay is back and has everything.
        ({"held_for": NOW - MINUTE}, {}, NOW, False, ""),
        ({"held_for": NOW - MINUTE}, {}, NOW, True, "release"),
        ({}, {}, NOW, True, ""),
        # Without a token it is not held but released; an older token's word holds nothing.
        ({}, NOBODYS, AWAY, True, ""),
        ({"held_for": NOW}, NOBODYS, AWAY, False, "release"),
        ({}, NEWER, AWAY, True, ""),
    ],
)
def test_a_host_is_held_once_for_each_absence_and_released_when_its_relay_has_everything(
    fields: dict[str, Any], terms: dict[str, Any], now: datetime, all_of_it: bool, what: str
) -> None:
    known = msgspec.structs.replace(TERMS, **terms)
    assert held(relay(**fields), now, known, all_of_it=all_of_it) == what


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


@pytest.mark.parametrize(("seconds", "expired"), [(1, False), (0, True), (-1, True)])
def test_a_token_has_expired_from_its_last_instant_on(seconds: int, *, expired: bool) -> None:
    token = Token(
        name="ann",
        role=AccessRole.VIEWER,
        digest="",
        created_by="root",
        created_at=NOW - SECOND,
        expires_at=NOW + seconds * SECOND,
    )
    assert token.expired(NOW) is expired
