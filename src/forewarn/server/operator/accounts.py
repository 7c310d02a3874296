"""Who asks the operator plane: the holder of a token, or a user of this machine.

A token is 256 bits of chance, so its SHA-256 is enough to keep: whoever reads the database would
have to try 2^255 tokens, and a slow hash, which makes the few guesses at a person's password dear,
would only make each request dear. Digests are compared in constant time.
"""

import asyncio
import hmac
import os
import struct
from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec
from prometheus_client import Counter

from forewarn.maintenance.accounts import Token
from forewarn.maintenance.model import Changes
from forewarn.server import secret_files
from forewarn.server.guest.machines import network_of
from forewarn.vocabulary import AccessRole

TOKEN_FILE: Final = "token-file"  # noqa: S105 - an account's name
"""The name of the account whose token is in `operator.token_file`: the way in of the first start.
"""

MAX_SHOWN_TOKEN: Final = 512
"""The most bytes of a token that is looked at: ours have 46, those of files at most this."""

MAX_ADDRESSES: Final = 1024
"""The most addresses whose failed log-ins are remembered; the one that failed longest ago goes."""

MAX_USERS: Final = 1024
"""The most users whose names are remembered."""

FREE_FAILURES: Final = 5
"""Failed log-ins that are answered at once: a person may paste the wrong token."""

FIRST_DELAY_SECONDS: Final = 0.25
"""How long the next one waits for its answer; each further one waits twice as long."""

LONGEST_DELAY_SECONDS: Final = 4.0
"""The longest of these waits: the service stops within five seconds."""

FORGET_SECONDS: Final = 300.0
"""How long an address must not fail until its failures are forgotten."""


class FailedLogin(StrEnum):
    """Why a token was refused: a metric's label."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    """None of ours, or revoked."""
    EXPIRED = "expired"


class OperatorAccount(msgspec.Struct, frozen=True):
    """Who asks."""

    name: str
    role: AccessRole
    token: str = ""
    """The name of the stored token; `""` for the token's file and the unix socket."""


class UnixPeer(msgspec.Struct, frozen=True):
    """Who opened a connection to the unix socket, as the kernel says."""

    user_id: int

    @property
    def address(self) -> str:
        """Where it is, for the audit log."""
        return f"unix:uid={self.user_id}"

    def account(self, name: str) -> OperatorAccount:
        """Return the account of this user, by his name.

        Root and the service's own user could change the database itself. Others are there because
        `operator.socket_group` lets them in, to do maintenance.
        """
        is_owner = self.user_id in {0, os.geteuid()}
        role = AccessRole.ADMIN if is_owner else AccessRole.OPERATOR
        return OperatorAccount(name, role)


def peer_of(credentials: bytes) -> UnixPeer:
    """Return the peer that SO_PEERCRED tells of."""
    _, user_id, _ = struct.unpack("3i", credentials)
    return UnixPeer(user_id)


class Accounts:
    """The tokens that are valid now, as the store has them; on the event loop's thread."""

    def __init__(self) -> None:
        self.tokens: dict[str, Token] = {}
        """By name."""
        self._by_digest: dict[str, Token] = {}
        self._of_file = ""

    def fill(self, tokens: Iterable[Token]) -> None:
        """Learn of all tokens."""
        self.learn(Changes(tokens=tuple(tokens)))

    def learn(self, changes: Changes) -> None:
        """Learn of new tokens and of revoked ones."""
        for name in changes.revoked_tokens:
            if (token := self.tokens.pop(name, None)) is not None:
                del self._by_digest[token.digest]
        for token in changes.tokens:
            self.tokens[token.name] = self._by_digest[token.digest] = token

    def let_in_by_file(self, token: str) -> None:
        """Let in whoever has the token of the token's file."""
        self._of_file = secret_files.digest(token.encode())

    def of_token(self, shown: bytes, now: datetime) -> OperatorAccount | FailedLogin:
        """Return whose token this is, or why it lets nobody in."""
        if not shown:
            return FailedLogin.MISSING
        of_shown = secret_files.digest(shown[:MAX_SHOWN_TOKEN])
        if hmac.compare_digest(of_shown, self._of_file):
            return OperatorAccount(TOKEN_FILE, AccessRole.ADMIN)
        # Looking up takes a time that tells of the digest alone, which tells nothing of the token.
        token = self._by_digest.get(of_shown)
        if token is None or token.link or not hmac.compare_digest(of_shown, token.digest):
            return FailedLogin.UNKNOWN
        if token.expired(now):
            return FailedLogin.EXPIRED
        return OperatorAccount(token.account, token.role, token.name)


class FailedLogins:
    """Counts failed log-ins, and slows the addresses that they come from.

    A valid token is never slowed, so nobody locks out others behind his address.
    """

    def __init__(self) -> None:
        self.counter = Counter(
            "forewarn_operator_failed_logins",
            "Requests to the operators' TCP socket without a valid token.",
            ("reason",),
            registry=None,
        )
        for reason in FailedLogin:
            self.counter.labels(reason)
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """How often each address failed, and when last, the latest last."""

    def delay_seconds(self, reason: FailedLogin, address: str, now: float) -> float:
        """Count one, and return how long its answer is to wait; `now` is monotonic."""
        self.counter.labels(reason).inc()
        place = network_of(address.partition("%")[0])  # a subscriber has all of a /64
        count, last = self._failures.pop(place, (0, now))
        count = 1 if now - last > FORGET_SECONDS else count + 1
        self._failures[place] = count, now
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        if count <= FREE_FAILURES:
            return 0.0
        doublings = min(count - FREE_FAILURES - 1, 10)
        return min(FIRST_DELAY_SECONDS * float(2**doublings), LONGEST_DELAY_SECONDS)


class UserNames:
    """The names of this machine's users, as far as they were asked for."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    async def of(self, user_id: int) -> str:
        """Return a user's name; it is asked for on another thread, as a directory may be slow."""
        if (name := self._known.get(user_id)) is None:
            name = await asyncio.to_thread(_user_name, user_id)
            if len(self._known) >= MAX_USERS:
                self._known.clear()
            self._known[user_id] = name
        return name


def _user_name(user_id: int) -> str:
    import pwd  # noqa: PLC0415 - there is none on Windows, nor a unix socket

    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"uid-{user_id}"
