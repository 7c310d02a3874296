"""How old what a relay knows is, and whether guests are answered from it. Times are monotonic.

The documents are as the service has them while a replica holds the relay's request for news: it
would have answered. When that request ends without an answer they were so until the path was seen
to work last: `DARK_SECONDS` before, if the system's probes found it dead, else when the request was
sent, for a replica that froze answers those probes as well.
"""

from typing import Final

import msgspec

SHOWN_SECONDS: Final = 5.0
"""Guests are told of an age above this: a change of the replica is over by then."""

DARK_SECONDS: Final = 5.0
"""How long a path that is dead may go unnoticed: the system's probes take as long."""

REVOKED_SECONDS: Final = 5.0
"""How long every replica must have refused the token before guests are not answered any more: a
replica may hear of a new token a moment after the others."""

replace = msgspec.structs.replace


class Freshness(msgspec.Struct, frozen=True):
    """What is known of the age of the documents."""

    true_until: float
    """When they were as the service has them for certain; the past while `is_true`."""
    is_true: bool = False
    """Whether a replica holds a request for news, or has just answered one."""
    refused_since: float | None = None
    """Since when every replica that answers refuses the token; None while none does."""

    def age(self, now: float) -> float:
        """Return for how long the documents may have been out of date."""
        return 0.0 if self.is_true else max(0.0, now - self.true_until)

    def shown_age(self, now: float) -> int:
        """Return the age that guests are told in whole seconds; 0 for none."""
        age = self.age(now)
        return int(age) if age > SHOWN_SECONDS else 0

    def is_revoked(self, now: float) -> bool:
        """Tell whether the host is no more trusted to know its documents."""
        return self.refused_since is not None and now - self.refused_since >= REVOKED_SECONDS

    def serves(self, now: float, max_stale_seconds: float) -> bool:
        """Tell whether guests are answered; `max_stale_seconds` of 0 is no limit."""
        if self.is_revoked(now):
            return False
        return not max_stale_seconds or self.age(now) <= max_stale_seconds


def heard(known: Freshness, now: float) -> Freshness:
    """Return what is known once a replica has answered, or has taken a request for news."""
    return replace(known, true_until=now, is_true=True, refused_since=None)


def lost(known: Freshness, now: float, asked_at: float, *, is_dark: bool) -> Freshness:
    """Return what is known once a request that was sent at `asked_at` ends without an answer.

    `is_dark` says that the system ended the connection; otherwise the time for the answer was over.
    """
    if not known.is_true:
        return known
    until = max(asked_at, now - DARK_SECONDS) if is_dark else asked_at
    return replace(known, true_until=max(known.true_until, until), is_true=False)


def is_dark(error: Exception) -> bool:
    """Tell whether the system ended the connection, and not our own limit for the answer.

    Both may be a TimeoutError: the system's has an errno, ETIMEDOUT.
    """
    return not isinstance(error, TimeoutError) or error.errno is not None


def refused(known: Freshness, now: float) -> Freshness:
    """Return what is known once every replica that answers has refused the token."""
    since = now if known.refused_since is None else known.refused_since
    until = now if known.is_true else known.true_until
    return replace(known, true_until=until, is_true=False, refused_since=since)
