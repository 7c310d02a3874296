"""How a browser gets in: a one-time link, and the session that it begins.

`forewarn page` asks for a link with the rights that it has already: those of the unix socket's
user, or of a token. The link is good once and for two minutes. It and the session are each a
`Token` in the database, so they are good at every replica, and end with the token of whoever asked.
The browser has the session in a cookie that scripts cannot read and that other sites' requests do
not carry.
"""

import hmac
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from forewarn.maintenance.accounts import Token
from forewarn.server import secret_files
from forewarn.vocabulary import AccessRole

LINK_LASTS: Final = timedelta(minutes=2)
"""How long a link is good: to copy it from a terminal into a browser."""

SESSION_LASTS: Final = timedelta(hours=12)
"""How long a session is good, by the browser's clock: a day's work."""

COOKIE: Final = "forewarn"
"""What the cookie's name begins with. The port follows, as browsers keep cookies by host alone."""


def new_link(account: str, role: AccessRole, key: str, now: datetime, scale: float) -> Token:
    """Return a link for an account.

    Args:
        account: Whose session it begins.
        role: What that may do.
        key: What the link has.
        now: The service's time.
        scale: How many times as fast that goes as the browser's.
    """
    return _made(account, role, key, now, LINK_LASTS * scale, link=True)


def link_of(key: str, tokens: Iterable[Token], now: datetime) -> Token | None:
    """Return the link that has a key; None if there is none, or its time is over."""
    digest = secret_files.digest(key.encode())
    for token in tokens:
        if token.link and hmac.compare_digest(token.digest, digest):
            return None if token.expired(now) else token
    return None


def session_of(link: Token, key: str, now: datetime, scale: float) -> Token:
    """Return the session that a link begins; the browser is given its key."""
    return _made(link.account, link.role, key, now, SESSION_LASTS * scale)


def _made(
    account: str, role: AccessRole, key: str, now: datetime, lasts: timedelta, *, link: bool = False
) -> Token:
    digest = secret_files.digest(key.encode())
    return Token(
        name=f"{account}/{digest[:8]}",
        role=role,
        digest=digest,
        created_by=account,
        created_at=now,
        expires_at=now + lasts,
        session=True,
        link=link,
    )


def cookie_name(scope: Mapping[str, Any]) -> str:
    """Return the name of the cookie of the service that a request, by its ASGI scope, is for.

    The port is the one that the browser knows: replicas behind a proxy may have other ones.
    """
    host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
    port = host.rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdecimal() else COOKIE


def session_key(scope: Mapping[str, Any]) -> bytes:
    """Return what a request's cookie has; `b""` where there is none."""
    wanted = cookie_name(scope).encode()
    for name, value in scope["headers"]:
        if name == b"cookie":
            for cookie in value.split(b";"):
                found, _, content = cookie.strip().partition(b"=")
                if found == wanted:
                    return bytes(content)
    return b""
