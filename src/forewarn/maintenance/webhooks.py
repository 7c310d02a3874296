"""Webhooks: the receivers of news by HTTP, the progress of each, and the times of its retries.

A webhook gets news in order, one item at a time, at least once. Its row has a cursor: the first
item that it has not accepted. An item that is refused is tried again, later each time, until the
webhook is removed. Items after it wait: a receiver never hears that an operation has ended before
it hears that it has started.

The same row is the lock that keeps two replicas from sending at the same time: a replica that is
about to send writes first that no other may try for a while. If it dies, that time passes.
"""

import ipaddress
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final, TypeAlias

import msgspec

from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.model import Refused
from forewarn.vocabulary import ErrorCode

MAX_WEBHOOKS: Final = 20
"""The most webhooks: each may have a request under way, on a thread of its own."""

MAX_URL: Final = 2000
"""The most characters of a URL: those of chat services have some 300."""

HOST: Final = re.compile(r"(?!.{255})([a-z0-9_-]{1,63}(\.|\Z))+|[0-9a-f.]*:[0-9a-f:.]+(%(?!25).+)?")
"""A name that DNS may have, or an IPv6 address: to other hosts no request could be sent."""

TURN: Final = timedelta(seconds=30)
"""The time for which the other replicas leave an item to the one that sends it: twice its longest
request."""

FIRST_PAUSE: Final = timedelta(seconds=5)
"""The pause before the second try; twice as long before each one after that."""

LONGEST_PAUSE: Final = timedelta(minutes=10)
"""The longest pause between two tries: a receiver that is repaired gets its news within this."""

BEHIND: Final = timedelta(minutes=10)
"""The age of an item that is still to be accepted, from which on there is an alert."""

MISSED_SHOWN: Final = timedelta(days=1)
"""The duration of the alert about a webhook that has missed news: nothing brings it back."""

MAX_TROUBLE: Final = 300
"""The most characters of the reason of a failed delivery."""

Place: TypeAlias = tuple[int, int]
"""The transaction of an item, and its place there."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of news, and its progress."""

    name: str
    url: str
    """Whole; chat services put a secret into it, so only `shown_url` is ever shown."""
    types: tuple[str, ...] = ()
    """The types that it gets, for `news.chosen`; empty for all."""
    secret: str
    """The secret that signs its requests, as Standard Webhooks writes it: `whsec_` and Base64."""
    cursor: Place
    """The first item that it has not accepted."""
    waiting_since: datetime | None = None
    """When the item at the cursor happened, never later than now; None while no item is known to
    wait."""
    next_try_at: datetime | None = None
    """No replica tries before this: one is sending, or the last try has failed."""
    tries: int = 0
    """The number of times that the item at the cursor was refused."""
    trouble: str = ""
    missed_at: datetime | None = None
    """When its cursor last met news that was deleted, and went on at the oldest that was left."""

    @property
    def shown_url(self) -> str:
        """The URL without the parts that may be secret."""
        parts = urllib.parse.urlsplit(self.url)
        hidden = parts.path not in {"", "/"} or parts.query
        return f"{parts.scheme}://{parts.netloc}/{'...' if hidden else ''}"

    def free(self, now: datetime) -> bool:
        """Return True if any replica may try now."""
        return self.next_try_at is None or self.next_try_at <= now


def judge_url(url: str, *, insecure: bool) -> None:
    """Refuse (INVALID) a URL that a webhook may not have.

    Without `insecure` it is https, or http to this machine itself: what is sent tells who is down
    and when.
    """

    def refuse(why: str) -> None:
        raise Refused(ErrorCode.INVALID, f"at url: {why}", where="url")

    if len(url) > MAX_URL:
        refuse(f"longer than {MAX_URL} characters")
    if not url.isascii() or not url.isprintable() or " " in url:
        refuse("expected printable ASCII characters without blanks: encode the others as %XX")
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Refused(ErrorCode.INVALID, f"at url: {error}", where="url") from error
    if parts.scheme not in {"http", "https"} or not HOST.fullmatch(host or "") or port == 0:
        refuse("expected a URL such as https://example.com/hook")
    if parts.username is not None or parts.fragment:
        refuse("a user name, a password or a fragment in it would not be sent")
    if parts.scheme == "http" and not insecure and not _is_loopback(str(host)):
        message = "at insecure: needed for http to another machine: others can read what is sent"
        raise Refused(ErrorCode.INVALID, message, where="insecure")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def passed(webhook: Webhook, place: Place) -> Webhook:
    """Return a webhook that is done with everything before a place; any replica may try next."""
    refusals = {} if place == webhook.cursor else {"tries": 0, "trouble": ""}
    return msgspec.structs.replace(
        webhook, cursor=place, waiting_since=None, next_try_at=None, **refusals
    )


def sending(webhook: Webhook, place: Place, at: datetime, now: datetime) -> Webhook:
    """Return a webhook whose next item, at this place and of that time, one replica is to send."""
    known = webhook.waiting_since if place == webhook.cursor else None
    since = min(known or at, at, now)  # it may have happened before the clock was set back
    moved = passed(webhook, place)
    return msgspec.structs.replace(moved, waiting_since=since, next_try_at=now + TURN)


def refused(webhook: Webhook, trouble: str, now: datetime) -> Webhook:
    """Return a webhook that has not accepted its next item."""
    pause = min(FIRST_PAUSE * 2 ** min(webhook.tries, 30), LONGEST_PAUSE)
    return msgspec.structs.replace(
        webhook,
        tries=webhook.tries + 1,
        next_try_at=now + pause,
        trouble=trouble[:MAX_TROUBLE],
    )


def missed(webhook: Webhook, oldest: int, now: datetime) -> Webhook:
    """Return a webhook that goes on at the oldest transaction whose news is kept."""
    return msgspec.structs.replace(passed(webhook, (oldest, 0)), missed_at=now)


def alerts_of(webhooks: Iterable[Webhook], now: datetime) -> Iterator[Alert]:
    """Yield an alert for each webhook that is behind, or has missed news lately."""
    for webhook in webhooks:
        since, said = webhook.missed_at, []
        if webhook.waiting_since is not None and now - webhook.waiting_since >= BEHIND:
            since = webhook.waiting_since
            why = f": {webhook.trouble}" if webhook.trouble else ""
            said.append(f"{webhook.shown_url} has not accepted news for ten minutes{why}")
        if webhook.missed_at is not None and now - webhook.missed_at < MISSED_SHOWN:
            said.append("news was deleted by its age before it was accepted: read the state again")
        if since is not None and said:
            about = f"webhook {webhook.name}"
            yield Alert(AlertKind.WEBHOOK_BEHIND, about, "; ".join(said), since)
