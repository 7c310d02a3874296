"""The operators' accounts: tokens with a role, and the record of what their holders did.

The rules about maintenance never look at these values. They are here because they are saved and
published together with what a request changes.
"""

from datetime import datetime
from enum import StrEnum
from typing import Final, Self

import msgspec

from forewarn.vocabulary import AccessRole, TokenAudience

TOKEN_FILE: Final = "token-file"  # noqa: S105 - an account's name
"""The account whose token is in `operator.token_file`: the way in of the first start."""


class Token(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The credential of an operator or of a host's relay. Its secret is shown once, never kept."""

    name: str
    """Unique, case and all; history and the audit log show it unless a browser has the token."""
    role: AccessRole
    digest: str
    """The SHA-256 of the secret, in hex (`server.operator.auth` says why that is enough)."""
    audience: TokenAudience = TokenAudience.API
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    """The time from which it is refused; None for never."""
    parent: str = ""
    """Digest of the token that made it, without which it lets nobody in; `""` for none."""
    host: str = ""
    """The host of a relay, as the fleet spells it; `""` for a token of an operator."""
    used_at: datetime | None = None
    """The first use by a relay; None before, and for a token of an operator."""

    @property
    def account(self) -> str:
        """The name that its holder acts under."""
        return self.created_by if self.audience is TokenAudience.PAGE else self.name

    def expired(self, now: datetime) -> bool:
        """Return True if its time is over."""
        return self.expires_at is not None and self.expires_at <= now


class Deed(StrEnum):
    """The kinds of requests that the audit log tells in words.

    A request that is refused before its handler runs has the handler's name as its kind.
    """

    done: str
    """The words for a request that was carried out, before its detail."""
    asked: str
    """The words for one that was refused."""

    APPLY_FLEET = "apply_fleet", "changed the fleet:", "change the fleet"
    REMOVE_MACHINES = "remove_machines", "changed the fleet:", "remove from the fleet:"
    REQUEST = "request_maintenance", "asked for", ""
    ORDER = "order_maintenance", "ordered", ""
    APPROVE = "approve", "approved", "approve"
    CANCEL = "cancel", "cancelled", "cancel"
    POSTPONE = "postpone", "postponed", "postpone"
    HOLD = "hold", "held", "hold"
    RELEASE = "release", "released", "release"
    EXPIRE = "expire", "hold expired:", ""
    ACKNOWLEDGE = "acknowledge", "acknowledged", "acknowledge"
    RESOLVE = "resolve", "resolved", "resolve"
    DRAIN = "drain_hosts", "asked for the drain of", "drain"
    ORDER_DRAIN = "order_drain", "ordered", ""
    CREATE_TOKEN = "create_token", "made the token", "make the token"
    REVOKE_TOKENS = "revoke_tokens", "revoked the token", "revoke the token"
    ADD_WEBHOOK = "add_webhook", "added the webhook", "add the webhook"
    REMOVE_WEBHOOKS = "remove_webhooks", "removed the webhook", "remove the webhook"
    TEST_WEBHOOK = "test_webhook", "tested the webhook", "test the webhook"
    CREATE_RELAY_TOKEN = (
        "create_relay_token",
        "made a token for the relay of",
        "make a token for the relay of",
    )
    REVOKE_RELAY_TOKENS = (
        "revoke_relay_tokens",
        "revoked the tokens of the relay of",
        "revoke the relay's tokens:",
    )
    LOG_IN = "log_in", "logged in:", "log in"
    LOG_IN_LINK = "log_in_link", "made a link to log in:", "make a link to log in"
    LOG_OUT = "log_out", "logged out:", "log out"

    def __new__(cls, name: str, done: str, asked: str) -> Self:
        """Make a kind with its words."""
        member = str.__new__(cls, name)
        member._value_, member.done, member.asked = name, done, asked
        return member


LOGINS: Final = frozenset((Deed.LOG_IN, Deed.LOG_IN_LINK, Deed.LOG_OUT))
"""The kinds that are about logging in and out."""


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request on the operator plane, and its outcome."""

    sequence: int = 0
    """The number that the store gives it, in the order of the commits; 0 before."""
    at: datetime
    by: str
    """The name of the token, or of the unix socket's user; `""` where nobody was known."""
    role: AccessRole | None = None
    """None where nobody was known."""
    address: str = ""
    """The address that it came from: an IP address, or `unix:uid=1000`."""
    action: str = ""
    """The method and the path, without the query."""
    detail: str = ""
    """The subject of the request in one line; `""` where it was refused before it was read."""
    outcome: str
    """`done`, or the code of the error."""
    request: str = ""
    """The id of the request, which its answer carries as `X-Request-Id`."""
    deed: str = ""
    """The kind of request, mostly a `Deed`; `""` where it was refused before that was known."""

    @property
    def done(self) -> bool:
        """True if the request was carried out."""
        return self.outcome == DONE

    @property
    def is_login(self) -> bool:
        """True if somebody logged in to the page, or out."""
        return self.done and self.deed in LOGINS


DONE = "done"
"""The outcome of a request that was not refused."""


def summary(record: AuditRecord) -> str:
    """Return the request in words: `postponed 2 to 14:23Z`, or `refused: Reboot of web-0`."""
    deed = next((deed for deed in Deed if deed == record.deed), None)
    done, asked = (deed.done, deed.asked) if deed else (record.action, record.action)
    if record.done:
        return f"{done} {record.detail}".strip()
    return f"refused: {f'{asked} {record.detail}'.strip() or record.action}"
