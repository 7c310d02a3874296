"""Authentication of the operator plane: tokens, users of this machine, and the middleware.

Each request is judged by its head, before any of its body. On the unix socket the kernel says who
the peer is, and the file's mode decides who can connect. On TCP every request needs the bearer
token of an account. Only listed Host names are answered, so that a page that a browser loaded from
a name that was pointed at this address cannot reach it (DNS rebinding). `/healthz` and `/readyz`
need neither: they tell a probe, which may know an address alone, nothing about the fleet. What a
known account may do depends on its role: each route names the role that it needs (`table`).

A token is 256 bits of chance, so its SHA-256 is enough to keep: a reader of the database would
have to try 2^255 tokens, and a slow hash, which makes the few guesses at a person's password dear,
would only make each request dear. To look a digest up takes a time that tells nothing of the token.

A browser has a token too, whose audience is the page. `forewarn page` makes it with the rights that
it has already: those of the unix socket's user, or of a token, its parent, without which it lets
nobody in. Its secret is in the fragment of a link, which browsers send to nobody. The page's script
posts it, once, for another secret in a cookie that scripts cannot read and that other sites'
requests do not carry.

What changes something is recorded with its change (`control.accounts`). A refusal is written to the
audit log as it is answered, and not each: strangers must neither fill the disk nor keep the writer
busy.
"""

import asyncio
import collections
import contextlib
import os
import re
import urllib.parse
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

import msgspec
import structlog
from prometheus_client import Counter
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Send

from forewarn.clock import Clock
from forewarn.control.accounts import OperatorRequest
from forewarn.control.plane import Plane
from forewarn.maintenance.accounts import TOKEN_FILE, Token
from forewarn.maintenance.model import Changes, Refused
from forewarn.server import secret_files
from forewarn.server.guest.limits import Bucket, Limiter, Rate
from forewarn.server.guest.machines import network_of
from forewarn.server.operator.schemas import ErrorBody, ErrorDetail
from forewarn.store.port import EPOCH
from forewarn.vocabulary import AccessRole, ErrorCode, TokenAudience

DISCARD_BYTES: Final = 128 * 1024 * 1024
"""The most bytes of a refused body that are still read: twice the longest that is accepted."""

DISCARD_SECONDS: Final = 5.0
"""The time for which a refused body is still read: local clients send it in less."""

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
PROBES: Final = frozenset({"/healthz", "/readyz"})
PROGRAMS: Final = PROBES | {"/metrics"}
"""The paths outside `/v1/` that are for programs, by HEAD, too; all others are the page's."""

SLASH: Final = "\0"
"""Stands in a path for an encoded slash: a part of a name, and no border between two."""

OPEN: Final = ("/login", "/page/static/")
"""The prefixes of the page's paths that a browser needs to log in."""

ADMITTED: Final = "forewarn.admitted"
"""The key in a request's ASGI scope that tells whether its sender is known."""

REQUEST: Final = "forewarn.request"
"""The key in a request's ASGI scope of its `OperatorRequest`."""

PEER: Final = "forewarn.peer"
"""The key in the state of a connection of its `UnixPeer`, where it came by the unix socket."""

LOST: Final = "forewarn.lost"
"""The key in the state of a connection of a future that is done once it is lost."""

REQUEST_ID: Final = b"x-request-id"
"""The header of each answer with the id that the audit log has."""

WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
CHANGING: Final = WITH_BODY | {"DELETE"}

OF_KNOWN: Final = Rate(per_second=10.0, burst=100)
"""The most records of known accounts in the audit log, beside their changes: a script that is
refused in a loop still shows often enough."""

OF_STRANGERS: Final = Rate(per_second=0.2, burst=20)
"""The most records of unknown callers in the audit log: some 17,000 a day."""

MAX_SHOWN_TOKEN: Final = 512
"""The most bytes of a token that is looked at: ours have 46, those of files at most this."""

MAX_ADDRESSES: Final = 1024
"""The most addresses whose failed log-ins are remembered; the one that failed longest ago goes."""

MAX_USERS: Final = 1024
"""The most users whose names are remembered."""

FREE_FAILURES: Final = 5
"""Failed log-ins that are answered at once: a person may paste the wrong token."""

FIRST_DELAY_SECONDS: Final = 0.25
"""The delay of the answer to the next one; it doubles with each further failure."""

LONGEST_DELAY_SECONDS: Final = 4.0
"""The longest of these waits: the service stops within five seconds."""

FORGET_SECONDS: Final = 300.0
"""The time without a failure after which an address's failures are forgotten."""

COOKIE: Final = "forewarn"
"""The prefix of the cookie's name. The port follows, as browsers keep cookies by host alone."""

_log = structlog.get_logger(__name__)

Refusal = tuple[int, ErrorCode, str]

Large = Literal["body", "answer"]
"""The things that an account has in memory one at a time: a large body until it is read and used,
and a large answer until that is read."""


# Accounts.


class FailedLogin(StrEnum):
    """Why a token was refused: a metric's label."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    """None of ours, or revoked."""
    EXPIRED = "expired"


class OperatorAccount(msgspec.Struct, frozen=True):
    """The account that sent a request."""

    name: str
    role: AccessRole
    token: Token | None = None
    """None on the unix socket."""


class UnixPeer(msgspec.Struct, frozen=True):
    """The peer of a connection to the unix socket, as the kernel reports it."""

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


class Accounts:
    """The tokens that are valid now, as the store has them; on the event loop's thread."""

    def __init__(self) -> None:
        self.tokens: dict[str, Token] = {}
        """By name."""
        self._by_digest: dict[str, Token] = {}
        self._of_file: Token | None = None
        self.following: collections.Counter[tuple[str, int]] = collections.Counter()
        """The number of streams that each account reads, by its name and its limit."""
        self._locks: weakref.WeakValueDictionary[tuple[str, Large], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        """Those that somebody has or awaits: names of accounts come and go for ever."""

    def lock(self, account: str, large: Large) -> asyncio.Lock:
        """Return the lock that is held for the only large thing of an account, by its name."""
        return self._locks.setdefault((account, large), asyncio.Lock())

    def learn(self, changes: Changes) -> None:
        """Learn of new tokens and of revoked ones."""
        for name in (*changes.revoked_tokens, *(token.name for token in changes.tokens)):
            if (token := self.tokens.pop(name, None)) is not None:
                del self._by_digest[token.digest]
        for token in changes.tokens:
            self.tokens[token.name] = self._by_digest[token.digest] = token

    def let_in_by_file(self, token: str) -> None:
        """Accept the token of the token file, in place of the previous one."""
        self._of_file = Token(
            name=TOKEN_FILE,
            role=AccessRole.ADMIN,
            digest=secret_files.digest(token.encode()),
            created_by="",
            created_at=EPOCH,
            expires_at=None,
        )

    def of_token(
        self, shown: bytes, audience: TokenAudience, now: datetime
    ) -> OperatorAccount | FailedLogin:
        """Return whose token this is, or why it lets nobody in there."""
        if not shown:
            return FailedLogin.MISSING
        token = self.find(secret_files.digest(shown[:MAX_SHOWN_TOKEN]))
        if token is None or token.audience is not audience:
            return FailedLogin.UNKNOWN
        if token.expired(now):
            return FailedLogin.EXPIRED
        if not self.admits(token, now):
            return FailedLogin.UNKNOWN
        return OperatorAccount(token.account, token.role, token)

    def admits(self, token: Token | None, now: datetime) -> bool:
        """Tell whether a token still lets its holder in; None is the unix socket, which does."""
        if token is None:
            return True
        return self.find(token.digest) == token and not self.has_ended(token, now)

    def has_ended(self, token: Token, now: datetime) -> bool:
        """Tell whether a token's time is over, or the token that made it has ended."""
        is_orphan = bool(token.parent) and self.find(token.parent) is None
        return is_orphan or token.expired(now)

    def find(self, digest: str) -> Token | None:
        """Return the token with this digest, of whatever audience; None if there is none."""
        of_file = self._of_file
        return of_file if of_file and of_file.digest == digest else self._by_digest.get(digest)


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
        """The count and the time of the last failure by address, the latest last."""

    def delay_seconds(self, reason: FailedLogin, address: str, now: float) -> float:
        """Count one, and return how long its answer is to wait; `now` is monotonic."""
        self.counter.labels(reason).inc()
        place = network_of(address)  # a subscriber has all of a /64
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
    """The names of this machine's users, as far as they were asked for lately."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, float]] = {}
        """With the time, by the loop's clock, at which a name is asked for again."""
        self._thread = ThreadPoolExecutor(1, "users")

    async def of(self, user_id: int) -> str:
        """Return a user's name; it is asked for on a thread of its own: a directory may be slow."""
        loop = asyncio.get_running_loop()
        known, until = self._known.get(user_id, ("", 0.0))
        if loop.time() < until:
            return known
        name = await loop.run_in_executor(self._thread, _user_name, user_id)
        if name is None:  # a directory may be away
            return known or f"uid-{user_id}"
        if len(self._known) >= MAX_USERS:
            self._known.clear()
        self._known[user_id] = name, loop.time() + FORGET_SECONDS
        return name


def _user_name(user_id: int) -> str | None:
    import pwd  # noqa: PLC0415 - there is none on Windows, nor a unix socket

    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return None


# The cookie.


def cookie_name(scope: Mapping[str, Any]) -> str:
    """Return the name of the cookie of the service that a request, by its ASGI scope, is for.

    The port is the one that the browser knows: replicas behind a proxy may have other ones.
    """
    host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
    port = host.rpartition(":")[2]
    return f"{COOKIE}-{port}" if port.isdecimal() else COOKIE


def cookie_token(scope: Mapping[str, Any]) -> bytes:
    """Return the value of a request's cookie; `b""` if it has none."""
    wanted = cookie_name(scope).encode()
    lines = (value for name, value in scope["headers"] if name == b"cookie")
    cookies = (each.strip().partition(b"=") for line in lines for each in line.split(b";"))
    return next((bytes(content) for name, _, content in cookies if name == wanted), b"")


# The middleware.


class ClientLeftError(Exception):
    """The client closed the connection in the middle of its body: nobody is left to answer."""


class AuditLog:
    """Has the plane record requests; used on the event loop's thread."""

    def __init__(self, plane: Plane, clock: Clock) -> None:
        self._plane = plane
        self._clock = clock
        self._known = Limiter(OF_KNOWN), Bucket()
        self._strangers = Limiter(OF_STRANGERS), Bucket()
        self.dropped = Counter(
            "forewarn_audit_dropped",
            "Requests that were left out of the audit log: too many, or the store was away.",
            registry=None,
        )

    def record(self, request: OperatorRequest, outcome: str) -> None:
        """Write a request down, unless too many were a moment ago."""
        limiter, bucket = self._known if request.by else self._strangers
        if limiter.allows(bucket, self._clock.monotonic()):
            self._plane.record(request, outcome).add_done_callback(self._note)
        else:
            self.dropped.inc()

    def _note(self, written: "Future[None]") -> None:
        if (error := written.exception()) is not None:
            self.dropped.inc()
            _log.warning("the audit log could not be written", why=str(error))


class Turns:
    """Lets one request of known accounts begin in each of the loop's rounds, by turns of accounts.

    The loop answers guests in each round, so they wait for one request's beginning and not for all
    that operators have sent; and who sends hundreds at once keeps no other operator waiting. Used
    on the event loop's thread.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, collections.deque[asyncio.Future[None]]] = OrderedDict()

    async def take(self, account: str) -> None:
        """Wait for the turn of an account's request."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next, loop)
        self._waiting.setdefault(account, collections.deque()).append(turn)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        account, turns = self._waiting.popitem(last=False)
        turn = turns.popleft()
        if turns:
            self._waiting[account] = turns
        if self._waiting:
            loop.call_soon(self._next, loop)
        if not turn.done():  # its client may have gone
            turn.set_result(None)


class AuthContext(msgspec.Struct, frozen=True):
    """The state that all gates of a service share."""

    audit: AuditLog
    clock: Clock
    """The service's, which tokens expire by."""
    real: Clock
    """The machine's own, which failed log-ins wait by."""
    mint: Callable[[], str]
    """Makes the ids of requests."""
    has_page: bool = False
    accounts: Accounts = msgspec.field(default_factory=Accounts)
    users: UserNames = msgspec.field(default_factory=UserNames)
    failures: FailedLogins = msgspec.field(default_factory=FailedLogins)
    turns: Turns = msgspec.field(default_factory=Turns)

    async def delay(self, reason: FailedLogin, address: str) -> None:
        """Count a failed log-in, and wait before it is answered, if it is not the first."""
        delay = self.failures.delay_seconds(reason, address, self.real.monotonic())
        if delay:
            await self.real.wait(delay)

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """Its metrics, for Prometheus."""
        return self.failures.counter, self.audit.dropped


class AuthMiddleware:
    """Refuses requests that are not allowed, before the application sees them.

    It accepts `hosts` beside the loopback names, and forms from those that are addresses of proxies
    (`https://ops.example`). With `anyone` nobody needs a token: that is whose each request is. The
    unix socket, which no browser reaches, has None for any host, and its users need no token.
    """

    def __init__(
        self,
        application: ASGIApp,
        auth_context: AuthContext,
        hosts: tuple[str, ...] | None,
        *,
        anyone: OperatorAccount | None = None,
    ) -> None:
        self._application = application
        self._anyone = anyone
        self._auth_context = auth_context
        self._hosts = None
        if hosts is not None:
            self._hosts = {urlsplit(h).hostname or h.lower() for h in (*LOOPBACK_NAMES, *hosts)}
        self._origins = {urlsplit(h).netloc.lower(): h.lower() for h in hosts or () if "://" in h}
        """The addresses of proxies, by their names and ports."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Judge a request by its head, and pass it on or refuse it."""
        if scope["type"] != "http":
            return  # neither websockets nor a lifespan are served
        action = f"{scope['method']} {scope['path']}"
        raw = re.split("%2f", scope["raw_path"].decode("ascii"), flags=re.IGNORECASE)
        # A NUL in a name is no slash.
        path = SLASH.join(urllib.parse.unquote(part).replace(SLASH, "\ufffd") for part in raw)
        # In the spelling that routes go by: it is judged as what it leads to.
        scope["path"] = "/" + "/".join(filter(None, path.split("/")))
        request = OperatorRequest(
            by="",
            role=None,
            address=_address_of(scope),
            action=action,
            request=self._auth_context.mint(),
        )
        refusal = self._judge(scope) or await self._identify(scope, request)
        receive, send = self._followed(scope, request, receive, send)
        if refusal is None:
            scope[ADMITTED], scope[REQUEST] = request.role is not None, request
            await self._auth_context.turns.take(request.by)
            if scope["method"] == "HEAD" and scope["path"] in PROGRAMS:
                scope = {**scope, "method": "GET"}  # the connection leaves the body out
            await self._application(scope, receive, send)
            return
        status, code, message = refusal
        request.outcome = code
        told = msgspec.json.encode(ErrorBody(error=ErrorDetail(code=code, message=message)))
        headers = {}
        if status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="forewarn"'
            if self._is_of_page(scope):
                status, led = _sent_to_log_in(scope)
                headers |= led
        await Response(told, status, headers, "application/json")(scope, receive, send)

    def _followed(
        self, scope: Message, request: OperatorRequest, receive: Receive, send: Send
    ) -> tuple[Receive, Send]:
        """Return a `receive`, and a `send` that answers once the body is read, and records it."""
        ended = False

        async def receive_body() -> Message:
            nonlocal ended
            message = await receive()
            has_left = message["type"] == "http.disconnect" and not ended
            ended = ended or not message.get("more_body", False)
            if has_left:
                raise ClientLeftError
            return message

        async def send_once_read(message: Message) -> None:
            # A client that is still sending when the connection closes never reads the refusal.
            if message.get("status", 0) >= 400:
                left = DISCARD_BYTES
                with contextlib.suppress(TimeoutError, ClientLeftError):
                    async with asyncio.timeout(DISCARD_SECONDS):
                        while not ended and left > 0:
                            left -= len((await receive_body()).get("body", b""))
            if message["type"] == "http.response.start":
                self._record(scope, request, message["status"])
                headers = [*message.get("headers", ()), (REQUEST_ID, request.request.encode())]
                message = {**message, "headers": headers}
            await send(message)

        return receive_body, send_once_read

    def _record(self, scope: Message, request: OperatorRequest, status: int) -> None:
        """Write down a refusal, or a change that no transaction of its own has recorded."""
        is_change = scope["method"] in CHANGING and not _is_dry_run(scope)
        if not request.recorded and (is_change or status in {401, 403, 421}):
            self._auth_context.audit.record(request, request.outcome)

    def _judge(self, scope: Message) -> Refusal | None:
        """Return the refusal of a request that no account may send; None if there is none."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        is_listed = self._hosts is None or _name_of(host) in self._hosts
        if not is_listed and scope["path"] not in PROBES:
            message = (
                f"Host {host!r} is not allowed: use one of {', '.join(sorted(self._hosts or ()))}, "
                "or add the name to operator.hosts"
            )
            return 421, ErrorCode.UNAUTHORIZED, message
        origin = headers.get(b"origin")
        if origin is not None and not self._is_own(origin, f"{scope['scheme']}://{host}", host):
            message = "requests from pages of other origins are not allowed"
            return 403, ErrorCode.UNAUTHORIZED, message
        is_form = scope["method"] in WITH_BODY and self._is_of_page(scope)
        if is_form and origin is None and self._hosts is not None:
            return 403, ErrorCode.UNAUTHORIZED, "expected the Origin that browsers send with forms"
        return None

    async def _account(self, scope: Message) -> OperatorAccount | FailedLogin | None:
        """Return whose request it is; None for a probe, which needs no account."""
        is_of_page = self._is_of_page(scope)
        if scope["path"] in PROBES or (is_of_page and scope["path"].startswith(OPEN)):
            return None
        if self._anyone is not None:
            return self._anyone
        if self._hosts is None:
            peer: UnixPeer = scope["state"][PEER]
            return peer.account(await self._auth_context.users.of(peer.user_id))
        headers: dict[bytes, bytes] = dict(scope["headers"])
        kind, _, shown = headers.get(b"authorization", b"").partition(b" ")
        shown = shown.strip() if kind.lower() == b"bearer" else b""
        audience = TokenAudience.API
        if is_of_page and not shown:
            shown, audience = cookie_token(scope), TokenAudience.PAGE
        return self._auth_context.accounts.of_token(shown, audience, self._auth_context.clock.now())

    async def _identify(self, scope: Message, request: OperatorRequest) -> Refusal | None:
        """Note whose request it is; a failed log-in waits for its refusal."""
        account = await self._account(scope)
        if isinstance(account, FailedLogin):
            # A browser that is not logged in yet has not failed.
            if account is not FailedLogin.MISSING or not self._is_of_page(scope):
                await self._auth_context.delay(account, request.address)
            return 401, ErrorCode.UNAUTHORIZED, MISTAKES[account]
        if account is not None:
            request.by, request.role, request.token = account.name, account.role, account.token
        return None

    def _is_own(self, origin: bytes, own: str, host: str) -> bool:
        """Return whether an Origin is ours: a proxy's, or what the request itself was sent to.

        A proxy may replace the Host by ours. Its own name by plain HTTP is not its origin.
        """
        told = origin.decode("latin-1").lower()
        return told in self._origins.values() or told == self._origins.get(host, own)

    def _is_of_page(self, scope: Message) -> bool:
        return self._auth_context.has_page and is_of_page(scope["path"])


MISTAKES: Final = {
    FailedLogin.MISSING: "expected 'Authorization: Bearer TOKEN', with a token of 'forewarn token "
    "create' or the one in the file operator.token_file",
    FailedLogin.UNKNOWN: "the token is not known: it was revoked, or is another service's",
    FailedLogin.EXPIRED: "the token has expired: ask an admin for a new one ('forewarn token "
    "create')",
}
"""The advice for each failed log-in."""


def is_of_page(path: str) -> bool:
    """Return whether a path is the page's, where there is one, and not the API's."""
    return not path.startswith("/v1/") and path not in PROGRAMS


def require(request: OperatorRequest, needed: AccessRole) -> None:
    """Refuse (FORBIDDEN) a request whose account's role does not allow what needs this one."""
    role = request.role
    if role is not None and role.allows(needed):
        return
    message = (
        f"{request.by} has the role {role}, and this needs {needed}: ask an admin for a token "
        f"with it ('forewarn token create NAME --role {needed}')"
    )
    if role is AccessRole.VIEWER and needed is AccessRole.OPERATOR:
        message += "; a viewer may plan by dry runs, which change nothing"
    raise Refused(ErrorCode.FORBIDDEN, message, role=str(role), needed=needed.value)


def _sent_to_log_in(scope: Message) -> tuple[int, dict[str, str]]:
    """Return the status and the headers that lead a browser to where it logs in.

    A script's request for a part of the page leads the whole page.
    """
    headers = dict(scope["headers"])
    if b"hx-request" in headers:
        return 401, {"HX-Redirect": "/login"}
    if b"text/html" in headers.get(b"accept", b""):  # 303 also turns a form into a GET
        return 303, {"Location": "/login"}
    return 401, {}


def request_of(scope: Mapping[str, object]) -> OperatorRequest:
    """Return the request of an ASGI scope that the middleware let through."""
    return cast("OperatorRequest", scope[REQUEST])


def _address_of(scope: Message) -> str:
    peer: UnixPeer | None = scope["state"].get(PEER)
    if peer is not None:
        return peer.address
    return str(scope["client"][0]) if scope.get("client") else ""


def _is_dry_run(scope: Message) -> bool:
    values = urllib.parse.parse_qs(scope["query_string"].decode("latin-1")).get("dry_run", [])
    return any(value.lower() in {"true", "1"} for value in values)


def _name_of(host: str) -> str:
    """Return a Host header's name without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
