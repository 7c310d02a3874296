"""Which hosts are held because their relays are away, and which tokens are valid."""

from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import MINUTE, NOW, SECOND
from forewarn.maintenance import relays
from forewarn.maintenance.accounts import Token
from forewarn.maintenance.relays import LATE, Relay, RelayTerms, new_token
from forewarn.vocabulary import AccessRole
from store import story
from stories import Told, elapsed, stories_beside

TERMS = RelayTerms(
    replica="a",
    began_at=NOW - 101 * MINUTE,
    since=NOW - 100 * MINUTE,
    tokens={"h1": NOW - 90 * MINUTE},
)

SECONDS = st.integers(-300, 300).map(lambda seconds: NOW + seconds * SECOND)


def relay(heard_at: datetime = NOW, waits: timedelta = MINUTE, **fields: object) -> Relay:
    made = {"heard_at": heard_at, "due_at": heard_at + waits, "started_at": NOW - MINUTE}
    return story.relay(**made | fields)


def token(digest: str, minutes: int, *, used: bool = False) -> Token:
    made = NOW + minutes * MINUTE
    token = new_token("h1", digest, by="ann", at=made)
    return msgspec.structs.replace(token, used_at=made if used else None)


class JudgedStory(Told):
    """A relay as it was heard, and the terms by which it is judged."""

    def __init__(self) -> None:
        self.terms_of = TERMS
        self.relay()

    def relay(self, heard: str = "0s", waits: str = "1m", by: str = "a", held: str = "") -> None:
        held_for = self.moment(held) if held else None
        self.heard = relay(self.moment(heard), elapsed(waits), replica=by, held_for=held_for)

    def terms(
        self, began: str = "-101m", since: str = "-100m", token: str = "-90m", behind: str = ""
    ) -> None:
        host, _, at = behind.partition(":")
        self.terms_of = RelayTerms(
            replica="a",
            began_at=self.moment(began),
            since=self.moment(since),
            tokens={} if token == "none" else {"h1": self.moment(token)},
            behind={host: self.moment(at)} if behind else {},
        )

    def judged(self, what: str = "", lacks: str = "") -> None:
        hold, release = relays.judge([self.heard], self.terms_of, lambda _: not lacks, self.now)
        told = [f"hold {(self.now - since).total_seconds():g}" for _, since in hold]
        assert all(about is self.heard for about in (*(one for one, _ in hold), *release))
        assert told + ["release"] * len(release) == ([what] if what else [])


@pytest.mark.parametrize("rows", stories_beside(__file__, "relays.txt"))
def test_the_story_holds(rows: list[tuple[int, str]]) -> None:
    assert JudgedStory().play("relays.txt", rows)


def test_each_relay_is_judged_by_itself() -> None:
    late = NOW + 5 * MINUTE
    on_time, away = relay(late), relay(host="h2")
    back = relay(late, host="h3", held_for=NOW)
    terms = msgspec.structs.replace(TERMS, tokens={"h1": NOW, "h2": NOW, "h3": NOW})
    found = relays.judge([on_time, away, back], terms, lambda _: True, late)
    assert found == ([(away, NOW)], [back])


HOST = st.sampled_from(["h1", "h2", "h3"])
RELAYS = st.builds(
    relay,
    host=HOST,
    replica=st.sampled_from(["a", "b"]),
    heard_at=SECONDS,
    waits=st.integers(0, 60).map(lambda seconds: seconds * SECOND),
    held_for=st.none() | SECONDS,
)


@given(
    st.lists(RELAYS, max_size=3, unique_by=lambda one: one.host),
    st.dictionaries(HOST, SECONDS),
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
    assert len(known) - len(void) <= 1  # and the new one


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
