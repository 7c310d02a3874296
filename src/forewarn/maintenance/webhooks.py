"""Webhooks: who is told of news by HTTP, how far each has come, and when to try again.

News is delivered to a webhook in its order, one item at a time, at least once. An item that is not
accepted is tried again, later each time, for a day; then the webhook is disabled. Items after it
wait: a receiver never hears that an operation has ended before it hears that it has started.
"""

import ipaddress
import urllib.parse
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from forewarn.maintenance.alerts import Alert, AlertKind
from forewarn.maintenance.model import Refused
from forewarn.maintenance.news import MAX_ITEMS, NewsType
from forewarn.vocabulary import ErrorCode

MAX_WEBHOOKS: Final = 20
"""The most webhooks: each may have a request under way, on a thread of its own."""

MAX_URL: Final = 2000
"""The most characters of a URL: those of chat services have some 300."""

FIRST_DELAY: Final = timedelta(seconds=5)
"""Before the second try; twice as long before each one after that."""

LONGEST_DELAY: Final = timedelta(hours=1)
"""Between two tries: a receiver that is back hears of it within this."""

JITTER: Final = 0.25
"""The part of a delay by which it varies: receivers behind one proxy are not asked all at once."""

GIVE_UP: Final = timedelta(days=1)
"""How long an item is tried before the webhook is disabled: a weekend's outage of a chat service is
rare, and after a day nobody wants to read what was scheduled."""

LEASE: Final = timedelta(seconds=60)
"""How long a replica may deliver to a webhook unless it renews that."""

MAX_TROUBLE: Final = 300
"""The most characters of why a delivery failed."""

GONE: Final = 410
"""The status by which a receiver says that it will never take another (Standard Webhooks)."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of news, and how far it has come."""

    name: str
    url: str
    """Whole; chat services put a secret into it, so only `shown_url` is ever shown."""
    types: tuple[str, ...] = ()
    """The types that it is told of, such as `operation.failed` or `rollout.*`; empty for all."""
    secret: str
    """What its requests are signed with, as Standard Webhooks writes it: `whsec_` and Base64."""
    created_by: str
    created_at: datetime
    done_sequence: int
    """The transaction of the last item that it was told of, or that it is not told of."""
    done_index: int = MAX_ITEMS
    """The place of that item in its transaction."""
    failing_since: datetime | None = None
    """When the next item was refused first; None where it was not."""
    tries: int = 0
    """How often it was refused."""
    next_try_at: datetime | None = None
    trouble: str = ""
    """Why it was refused last."""
    disabled_at: datetime | None = None
    delivered: int = 0
    delivered_at: datetime | None = None
    holder: str = ""
    """The replica that delivers; `""` for none."""
    lease_until: datetime | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The last item that it is done with."""
        return self.done_sequence, self.done_index

    @property
    def shown_url(self) -> str:
        """The URL without what may be secret in it."""
        parts = urllib.parse.urlsplit(self.url)
        hidden = parts.path not in {"", "/"} or parts.query
        return f"{parts.scheme}://{parts.netloc}/{'...' if hidden else ''}"

    def wants(self, kind: str) -> bool:
        """Return whether it is told of news of this type."""
        return not self.types or any(
            kind == one or (one.endswith(".*") and kind.startswith(one[:-1])) for one in self.types
        )

    def held_by(self, replica: str, now: datetime) -> bool:
        """Return whether this replica delivers to it now."""
        leased = self.lease_until is not None and now < self.lease_until
        return leased and self.holder == replica

    def free_for(self, replica: str, now: datetime) -> bool:
        """Return whether this replica may deliver to it."""
        leased = self.lease_until is not None and now < self.lease_until
        return self.disabled_at is None and (not leased or self.holder == replica)


class DeliveryFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not accepted."""

    reason: str
    status: int = 0
    """Of the answer; 0 where there was none."""
    retry_after: timedelta | None = None
    """How long the receiver asked to wait."""


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
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        refuse("expected a URL such as https://example.com/hook")
    if parts.username is not None or parts.fragment:
        refuse("a user name, a password or a fragment in it would not be sent")
    if parts.scheme == "http" and not insecure and not _is_loopback(str(host)):
        refuse("expected https: with http anybody on the way can read it (insecure allows it)")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def judge_types(types: Iterable[str]) -> None:
    """Refuse (INVALID) what is neither a type of news nor a group of types."""
    groups = {f"{kind.partition('.')[0]}.*" for kind in NewsType}
    for kind in types:
        if kind not in groups and kind not in list(NewsType):
            message = (
                f"at types: unknown type of news {kind!r}: expected one such as "
                "'operation.failed', or a group such as 'rollout.*' (docs/reference/news.md)"
            )
            raise Refused(ErrorCode.INVALID, message, where="types")


def delivered(webhook: Webhook, place: tuple[int, int], now: datetime) -> Webhook:
    """Return a webhook that has accepted the item at this place."""
    count = webhook.delivered + 1
    return passed(enabled(webhook), place, delivered=count, delivered_at=now)


def passed(webhook: Webhook, place: tuple[int, int], **more: object) -> Webhook:
    """Return a webhook that is done with the item at this place, which it was not told of."""
    sequence, index = place
    return msgspec.structs.replace(webhook, done_sequence=sequence, done_index=index, **more)


def enabled(webhook: Webhook) -> Webhook:
    """Return a webhook that has accepted a request: nothing of it fails any more."""
    return msgspec.structs.replace(
        webhook, failing_since=None, tries=0, next_try_at=None, trouble="", disabled_at=None
    )


def failed(webhook: Webhook, failure: DeliveryFailure, now: datetime, chance: float) -> Webhook:
    """Return a webhook that has not accepted its next item; `chance` is from 0 to below 1."""
    since = webhook.failing_since or now
    given_up = now - since >= GIVE_UP or failure.status == GONE
    wait = min(FIRST_DELAY * 2 ** min(webhook.tries, 30), LONGEST_DELAY)
    wait *= 1 + JITTER * (2 * chance - 1)
    if failure.retry_after is not None:
        wait = max(wait, min(failure.retry_after, LONGEST_DELAY))
    return msgspec.structs.replace(
        webhook,
        failing_since=since,
        tries=webhook.tries + 1,
        next_try_at=None if given_up else now + wait,
        trouble=failure.reason[:MAX_TROUBLE],
        disabled_at=now if given_up else None,
    )


def alerts_of(webhooks: Iterable[Webhook]) -> Iterator[Alert]:
    """Yield an alert for each webhook that is disabled."""
    for webhook in webhooks:
        if webhook.disabled_at is not None:
            message = (
                f"the webhook {webhook.name} is disabled, because {webhook.shown_url} accepts "
                f"nothing: {webhook.trouble}; news since then waits for up to a week; once "
                f"'forewarn webhook test {webhook.name}' succeeds, it goes on"
            )
            about = f"webhook {webhook.name}"
            yield Alert(AlertKind.WEBHOOK_DISABLED, about, message, webhook.disabled_at)
