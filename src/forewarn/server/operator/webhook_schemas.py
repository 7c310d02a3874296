"""The JSON of webhooks: the shapes of requests and answers, as `schemas` has the others."""

from datetime import datetime
from typing import Annotated

import msgspec

from forewarn.maintenance.webhooks import MAX_URL
from forewarn.server.operator.schemas import Body, ShortText, TokenName, Value

MAX_TYPES = 40
"""The most types of news that a webhook names: there are some 35."""


class WebhookRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks for a new webhook."""

    name: TokenName
    url: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_URL)]
    types: Annotated[tuple[ShortText, ...], msgspec.Meta(max_length=MAX_TYPES)] = ()
    """Types of news such as `operation.failed`, or kinds such as `maintenance`; empty for all."""
    insecure: bool = False
    """True to allow http to another machine."""


class WebhookTestRequest(Body, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Asks to try a webhook."""


class WebhookView(Value, frozen=True, kw_only=True):
    """A webhook, without what is secret of it."""

    name: str
    url: str
    """Without its path and query: those of chat services are secrets."""
    types: tuple[str, ...]
    next: str
    """Its cursor: the number of the first item that it has not accepted, or would be next."""
    waiting_since: datetime | None
    """When that item happened; null while none waits."""
    tries: int
    """The number of times that item was refused."""
    next_try_at: datetime | None
    trouble: str
    """Why it was refused last."""
    missed_at: datetime | None
    """When it last went on after news that was deleted before it was accepted."""


class NewWebhook(Value, frozen=True, kw_only=True):
    """A new webhook, with its secret, which is shown this once."""

    webhook: WebhookView
    secret: str


class WebhookList(Value, frozen=True, kw_only=True):
    """Webhooks in the order of their names."""

    webhooks: tuple[WebhookView, ...]


class WebhookTest(Value, frozen=True, kw_only=True):
    """The result of a test."""

    accepted: bool
    trouble: str
    """Why it was not accepted; `""` if it was."""
