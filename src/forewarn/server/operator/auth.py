"""Who may use the operator plane: each request is judged by its head, before any of its body.

On the unix socket the kernel says who the peer is, and the file's mode decides who can connect. On
TCP every request needs the bearer token of an account, except `/healthz` and `/readyz`, which tell
a probe nothing about the fleet. Only listed Host names are answered, so that a page that a browser
loaded from a name that was pointed at this address cannot reach it (DNS rebinding). What a known
account may do is its role's to say (`roles`).

Litestar's own `AllowedHosts` and guards do not fit: a guard is not asked about unknown paths, and
`AllowedHosts` matches the header with its port and cannot differ between our two sockets.
"""

import asyncio
import contextlib
import ssl
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from prometheus_client.registry import Collector

from forewarn.clock import Clock
from forewarn.control.accounts import OperatorRequest
from forewarn.server.operator.accounts import (
    Accounts,
    FailedLogin,
    FailedLogins,
    OperatorAccount,
    UnixPeer,
    UserNames,
)
from forewarn.server.operator.audit_log import AuditLog
from forewarn.server.operator.schemas import ErrorBody, ErrorDetail
from forewarn.server.page import logins
from forewarn.vocabulary import ErrorCode

DISCARD_BYTES: Final = 128 * 1024 * 1024
"""The most bytes of a refused body that are still read: twice the longest that is accepted."""

DISCARD_SECONDS: Final = 5.0
"""How long a refused body is still read: local clients send it in less."""

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
PROBES: Final = frozenset({"/healthz", "/readyz"})
PROGRAMS: Final = PROBES | {"/metrics"}
"""The paths outside `/v1/` that are for programs; all others are the page's."""

OPEN: Final = ("/login", "/page/static/")
"""What of the page a browser needs to log in."""

JSON: Final = b"application/json"
FORM: Final = b"application/x-www-form-urlencoded"
ADMITTED: Final = "forewarn.admitted"
"""The key in a request's ASGI scope that tells whether its sender is known."""

REQUEST: Final = "forewarn.request"
"""The key in a request's ASGI scope of its `OperatorRequest`."""

PEER: Final = "forewarn.peer"
"""The key in the state of a connection of its `UnixPeer`, where it came by the unix socket."""

LOST: Final = "forewarn.lost"
"""The key in the state of a connection of a future that is done once it is lost."""

CERTIFICATE: Final = "forewarn.certificate"
"""The key in the state of a connection of its `ShownCertificate`, if there was one."""

CUT: Final = "forewarn.cut"
"""The key in the state of a connection of what closes it at once."""

REQUEST_ID: Final = b"x-request-id"
"""The header of each answer with the id that the audit log has."""

WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
CHANGING: Final = WITH_BODY | {"DELETE"}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]
Refusal = tuple[int, ErrorCode, str]


class ClientLeftError(Exception):
    """The client closed the connection in the middle of its body: nobody is left to answer."""


class ShownCertificate(NamedTuple):
    """A client's certificate, which TLS has verified."""

    told: Mapping[str, Any]
    """As `ssl.SSLSocket.getpeercert` tells it."""
    context: ssl.SSLContext
    """What it was verified by."""


class Door(msgspec.Struct, frozen=True):
    """What all gates of a service share."""

    audit: AuditLog
    clock: Clock
    """The service's, which tokens expire by."""
    real: Clock
    """The machine's own, which failed log-ins wait by."""
    mint: Callable[[], str]
    """Makes the ids of requests."""
    has_page: bool = False
    """Whether browsers may ask."""
    accounts: Accounts = msgspec.field(default_factory=Accounts)
    users: UserNames = msgspec.field(default_factory=UserNames)
    failures: FailedLogins = msgspec.field(default_factory=FailedLogins)

    async def delay(self, reason: FailedLogin, address: str) -> None:
        """Count a failed log-in, and wait before it is answered, if it is not the first."""
        delay = self.failures.delay_seconds(reason, address, self.real.monotonic())
        if delay:
            await self.real.wait(delay, asyncio.Event())

    @property
    def collectors(self) -> tuple[Collector, ...]:
        """What Prometheus reads of it."""
        return self.failures.counter, self.audit.dropped


class Gate:
    """Refuses requests that are not allowed, before the application sees them.

    It accepts `hosts` beside the loopback names, and forms from those that are addresses of proxies
    (`https://ops.example`). With `anyone` nobody needs a token: that is whose each request is. The
    unix socket, which no browser reaches, has None for any host, and its users need no token.
    """

    def __init__(
        self,
        application: Application,
        door: Door,
        hosts: tuple[str, ...] | None,
        *,
        anyone: OperatorAccount | None = None,
    ) -> None:
        self._application = application
        self._anyone = anyone
        self._door = door
        self._hosts = None
        if hosts is not None:
            self._hosts = {urlsplit(h).hostname or h.lower() for h in (*LOOPBACK_NAMES, *hosts)}
        self._origins = {urlsplit(h).netloc.lower(): h.lower() for h in hosts or () if "://" in h}
        """The addresses of proxies, by their names and ports."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Judge a request by its head, and pass it on or refuse it."""
        if scope["type"] != "http":
            return  # neither websockets nor a lifespan are served
        account: OperatorAccount | FailedLogin | None = None
        refusal = self._judge(scope)
        if refusal is None:
            account = await self._account(scope)
            refusal = await self._refused(scope, account)
        known = account if isinstance(account, OperatorAccount) else None
        request = OperatorRequest(
            by=known.name if known else "",
            role=known.role if known else None,
            address=_address_of(scope),
            action=f"{scope['method']} {scope['path']}",
            request=self._door.mint(),
            token=known.token if known else "",
        )
        receive, send = self._followed(scope, request, receive, send)
        if refusal is None:
            scope[ADMITTED], scope[REQUEST] = known is not None, request
            await self._application(scope, receive, send)
            return
        status, code, message = refusal
        request.outcome = code
        told = msgspec.json.encode(ErrorBody(error=ErrorDetail(code=code, message=message)))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(told)).encode("ascii")),
        ]
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="forewarn"'))
            if self._is_of_page(scope) and (led := _sent_to_log_in(scope)) is not None:
                status, more = led
                headers += more
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": told})

    def _followed(
        self, scope: Message, request: OperatorRequest, receive: Receive, send: Send
    ) -> tuple[Receive, Send]:
        """Return what reads the body, and what answers once that is read, and records it."""
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
            self._door.audit.record(request, request.outcome)

    def _judge(self, scope: Message) -> Refusal | None:
        """Return why a request is refused, whoever sends it."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None and _name_of(host) not in self._hosts:
            message = (
                f"Host {host!r} is not allowed: use one of {', '.join(sorted(self._hosts))}, "
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
            return peer.account(await self._door.users.of(peer.user_id))
        headers: dict[bytes, bytes] = dict(scope["headers"])
        kind, _, shown = headers.get(b"authorization", b"").partition(b" ")
        shown = shown.strip() if kind.lower() == b"bearer" else b""
        if is_of_page and not shown:
            shown = logins.session_key(scope)
        return self._door.accounts.of_token(shown, self._door.clock.now())

    async def _refused(
        self, scope: Message, account: OperatorAccount | FailedLogin | None
    ) -> Refusal | None:
        """Return why a request of this account is refused; a failed log-in waits for that."""
        if isinstance(account, FailedLogin):
            # A browser that has no session yet has not failed.
            if account is not FailedLogin.MISSING or not self._is_of_page(scope):
                await self._door.delay(account, _address_of(scope))
            return 401, ErrorCode.UNAUTHORIZED, MISTAKES[account]
        kind = dict(scope["headers"]).get(b"content-type", b"").split(b";")[0].strip().lower()
        expected = FORM if self._is_of_page(scope) else JSON
        if scope["method"] in WITH_BODY and kind != expected:
            message = f"expected 'Content-Type: {expected.decode()}'"
            return 415, ErrorCode.INVALID, message
        return None

    def _is_own(self, origin: bytes, own: str, host: str) -> bool:
        """Return whether an Origin is ours: a proxy's, or what the request itself was sent to.

        A proxy may replace the Host by ours. Its own name by plain HTTP is not its origin.
        """
        told = origin.decode("latin-1").lower()
        return told in self._origins.values() or told == self._origins.get(host, own)

    def _is_of_page(self, scope: Message) -> bool:
        return self._door.has_page and is_of_page(scope["path"])


MISTAKES: Final = {
    FailedLogin.MISSING: "expected 'Authorization: Bearer TOKEN', with a token of 'forewarn token "
    "create' or the one in the file operator.token_file",
    FailedLogin.UNKNOWN: "the token is not known: it was revoked, or is another service's",
    FailedLogin.EXPIRED: "the token has expired: ask an admin for a new one ('forewarn token "
    "create')",
}
"""What to do about each failed log-in."""


def is_of_page(path: str) -> bool:
    """Return whether a path is the page's, where there is one, and not the API's."""
    return not path.startswith("/v1/") and path not in PROGRAMS


def _sent_to_log_in(scope: Message) -> tuple[int, list[tuple[bytes, bytes]]] | None:
    """Return the status and the headers that lead a browser to where it logs in.

    None for what is no browser. A script's request for a part of the page leads the whole page.
    """
    headers = dict(scope["headers"])
    if b"hx-request" in headers:
        return 401, [(b"hx-redirect", b"/login")]
    if scope["method"] == "GET" and b"text/html" in headers.get(b"accept", b""):
        return 303, [(b"location", b"/login")]
    return None


def request_of(connection: Mapping[str, Any]) -> OperatorRequest:
    """Return the request of an ASGI scope that a gate let through."""
    request: OperatorRequest = connection[REQUEST]
    return request


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
