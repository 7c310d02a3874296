"""How a browser gets in: a one-time link, and the session that it begins.

`forewarn page` asks for a link with the rights that it has already: those of the unix socket's
user, or of a token. The link is good once and for two minutes, at the replica that made it, and
nothing keeps its key. The session is a `Token` in the database, so it ends with the token of
whoever opened it, at every replica. The browser has it in a cookie that scripts cannot read and
that other sites' requests do not carry.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from forewarn.maintenance.accounts import Token
from forewarn.maintenance.model import Refused
from forewarn.server import secret_files
from forewarn.vocabulary import AccessRole, ErrorCode

LINK_SECONDS: Final = 120
"""How long a link is good: to copy it from a terminal into a browser."""

SESSION_LASTS: Final = timedelta(hours=12)
"""How long a session is good, by the browser's clock: a day's work."""

MAX_LINKS: Final = 100
"""The most links that nobody has used; the oldest goes for one more."""

COOKIE: Final = "forewarn"
"""What the cookie's name begins with. The port follows, as browsers keep cookies by host alone."""


class Link(msgspec.Struct, frozen=True):
    """A link that nobody has used."""

    account: str
    role: AccessRole
    until: float
    """In seconds of the machine's own clock: the service's may run faster."""


class Links:
    """The links that this process has made; used on the event loop's thread."""

    def __init__(self, make_key: Callable[[], str]) -> None:
        self._make_key = make_key
        self._links: dict[str, Link] = {}
        """By the digests of their keys, the oldest first."""

    def make(self, account: str, role: AccessRole, now: float) -> str:
        """Return the key of a new link for an account; `now` is monotonic."""
        key = self._make_key()
        self._links[secret_files.digest(key.encode())] = Link(account, role, now + LINK_SECONDS)
        while len(self._links) > MAX_LINKS:
            del self._links[next(iter(self._links))]
        return key

    def use(self, key: str, now: float) -> Link:
        """Return the link of a key, which is good for nothing from now on.

        Refused (UNAUTHORIZED) if there is none.
        """
        link = self._links.pop(secret_files.digest(key.encode()), None)
        if link is None or link.until <= now:
            message = "the link was used already, or is too old: run 'forewarn page' for another"
            raise Refused(ErrorCode.UNAUTHORIZED, message)
        return link


def session_of(link: Link, key: str, now: datetime, scale: float) -> Token:
    """Return the session that a link begins.

    Args:
        link: The link.
        key: What the browser is given.
        now: The service's time.
        scale: How many times as fast that goes as the browser's.
    """
    digest = secret_files.digest(key.encode())
    return Token(
        name=f"{link.account}/{digest[:8]}",
        role=link.role,
        digest=digest,
        created_by=link.account,
        created_at=now,
        expires_at=now + SESSION_LASTS * scale,
        session=True,
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
