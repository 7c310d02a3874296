"""The operators' accounts: tokens with a role, and the record of what their holders did.

The rules about maintenance never look at these values. They are here because they are saved and
published together with what a request changes.
"""

from datetime import datetime
from typing import Final

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


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request on the operator plane, and its outcome."""

    sequence: int = 0
    """The number that the store gives it, in the order of the commits; 0 before."""
    at: datetime
    by: str
    """The name of the token, or of the unix socket's user; `""` where nobody was known."""
    role: AccessRole | None
    """None where nobody was known."""
    address: str
    """The address that it came from: an IP address, or `unix:uid=1000`."""
    action: str
    """The method and the path, without the query."""
    detail: str
    """The subject of the request in one line; `""` where it was refused before it was read."""
    outcome: str
    """`done`, or the code of the error."""
    request: str
    """The id of the request, which its answer carries as `X-Request-Id`."""

    @property
    def done(self) -> bool:
        """True if the request was carried out."""
        return self.outcome == DONE


DONE = "done"
"""The outcome of a request that was not refused."""
