"""The relays on hosts: their tokens, the latest report of each, and the holds of their hosts.

Notice is time in which guests can read and approve. On a host with a relay they can while the relay
reaches the service, so a host whose relay is away is held: nothing of it starts, and NotBefore of
its operations moves later by the time that the relay was away (docs/internals/decisions/0020).

A relay asks for its host all the time, and each request says what it has. It is *away* once its
next request is late; it is *back* once it asks again and has everything that concerns its host.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from forewarn.maintenance.accounts import Token
from forewarn.vocabulary import AccessRole, TokenAudience

BY: Final = "(relay)"
"""The author of these holds and releases, as history shows it; no account can have the name."""

LATE: Final = timedelta(seconds=5)
"""The greatest delay of a relay's next request: as long as guests may miss anything at all
(`notice.OUTAGE_SECONDS`)."""

HEARSAY: Final = timedelta(seconds=6)
"""The additional delay where another replica heard the relay last: that one writes it down within
two seconds and this one reads it within two, if both have their turns."""


class Relay(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The latest report of a host's relay, from whichever replica heard it."""

    host: str
    replica: str
    version: str
    started_at: datetime
    heard_at: datetime
    """When its last request for the host came."""
    due_at: datetime
    """By when its next request is expected: the end of that one's wait, or its answer."""
    etag: str
    """The ETag of its copy of its host's document; `""` for none."""
    machines: int
    held_for: datetime | None = None
    """The `heard_at` of the absence for which its host was held last; None once that is over."""


class RelayTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms by which a replica judges relays."""

    replica: str
    began_at: datetime
    """The time when it started, or reached the store again: an absence counts from here at the
    earliest, for an outage of the service moves all notices itself."""
    since: datetime
    """The time from which a relay may be judged away: relays have had time to be heard again after
    `began_at`."""
    tokens: Mapping[str, datetime] = {}
    """The hosts whose relays have a token: when the oldest valid one was made."""
    behind: Mapping[str, datetime] = {}
    """Hosts with a change that their relay does not have: since when, or when the relay asked last
    since then. The replica that has its request may be frozen."""


# The tokens.


def new_token(host: str, digest: str, *, by: str, at: datetime) -> Token:
    """Return the token of a host's relay, from the digest of its secret."""
    return Token(
        name=f"relay/{host}/{digest[:8]}",
        role=AccessRole.RELAY,
        digest=digest,
        audience=TokenAudience.RELAY,
        created_by=by,
        created_at=at,
        expires_at=None,
        host=host,
    )


def issue(own: Iterable[Token]) -> tuple[Token, ...]:
    """Return the tokens of a host that become void when it is given a new one.

    The one that its relay uses stays valid, so that the new one can be brought there; of those
    that were never used, the newest does.
    """
    own = [*own]
    used = [token for token in own if token.used_at is not None]
    keep = max(used or own, key=lambda token: (token.created_at, token.name), default=None)
    return tuple(token for token in own if token is not keep)


def use(own: Iterable[Token], used: Token) -> tuple[Token, ...]:
    """Return the tokens of a host that become void when one is used first: the older ones."""
    return tuple(
        token for token in own if token.name != used.name and token.created_at <= used.created_at
    )


# Who is away.


def is_away(relay: Relay, terms: RelayTerms, now: datetime) -> bool:
    """Return True if a relay should have asked again by now."""
    patience = LATE if relay.replica == terms.replica else LATE + HEARSAY
    due_at = min(relay.due_at, terms.behind.get(relay.host, relay.due_at))
    return now - max(due_at, terms.since) > patience


def is_guarded(relay: Relay, made: datetime | None) -> bool:
    """Tell whether the absence of a relay holds its host: it was heard with a valid token.

    The oldest one was made then; None for no token.
    """
    return made is not None and relay.heard_at >= made


def is_awaited(relay: Relay, terms: RelayTerms, now: datetime) -> bool:
    """Return True if it is too early to judge a relay: it has time to ask after the start."""
    return (
        relay.due_at <= terms.began_at
        and is_guarded(relay, terms.tokens.get(relay.host))
        and relay.held_for != relay.heard_at
        and not is_away(relay, terms, now)
    )


def judge(
    relays: Iterable[Relay], terms: RelayTerms, has_all: Callable[[Relay], bool], now: datetime
) -> tuple[list[tuple[Relay, datetime]], list[Relay]]:
    """Decide which hosts to hold because their relay is away, since when, and which to release.

    A host is held once for each absence: an operator may release it. `has_all` tells whether a
    relay has everything that concerns its host. A host stays held until its relay asks again: that
    this replica has more patience, or has just started, does not say that it is back.
    """

    def back(relay: Relay) -> bool:
        return relay.heard_at != relay.held_for and has_all(relay)

    hold, release = [], []
    due_before = now - LATE
    for relay in relays:
        is_due = relay.due_at < due_before or relay.host in terms.behind
        if not is_due and relay.held_for is None:
            continue  # nearly all of them, ten thousand a second
        guarded = is_guarded(relay, terms.tokens.get(relay.host))
        away = guarded and is_away(relay, terms, now)
        if away and relay.held_for != relay.heard_at:
            hold.append((relay, max(relay.heard_at, terms.began_at)))
        elif relay.held_for is not None and not away and (not guarded or back(relay)):
            release.append(relay)
    return hold, release
