"""Who may use the operator plane.

The unix socket needs no authentication: its file mode decides who can connect. On TCP every
request needs the bearer token, except `/healthz` and `/readyz`, which tell a probe nothing about
the fleet. Only listed Host names are answered, so that a page that a browser loaded from a name
that was pointed at this address cannot reach it (DNS rebinding).

Litestar's own `AllowedHosts` and guards do not fit: a guard is not asked about unknown paths, and
`AllowedHosts` matches the header with its port and cannot differ between our two sockets.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec

from forewarn.server.operator.schemas import ErrorBody, ErrorDetail
from forewarn.vocabulary import ErrorCode

DISCARD_BYTES: Final = 128 * 1024 * 1024
"""The most bytes of a refused body that are still read: twice the longest that is accepted."""

DISCARD_SECONDS: Final = 5.0
"""How long a refused body is still read: local clients send it in less."""

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
PROBES: Final = frozenset({"/healthz", "/readyz"})
ADMITTED: Final = "forewarn.admitted"
"""The key in a request's ASGI scope that tells whether its sender had a right: the token, or the
unix socket."""

WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


class ClientLeftError(Exception):
    """The client closed the connection in the middle of its body: nobody is left to answer."""


class Gate:
    """Refuses requests that are not allowed, before the application sees them.

    It accepts `hosts` beside the loopback names. The unix socket, which no browser reaches, has
    None for any host, and None for no token.
    """

    def __init__(
        self, application: Application, token: str | None, hosts: tuple[str, ...] | None
    ) -> None:
        self._application = application
        self._token = None if token is None else token.encode("ascii")
        self._hosts = None if hosts is None else {h.lower() for h in (*LOOPBACK_NAMES, *hosts)}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Judge a request by its head, and pass it on or refuse it."""
        if scope["type"] != "http":
            return  # neither websockets nor a lifespan are served
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
            await send(message)

        refusal = self._judge(scope)
        if refusal is None:
            scope[ADMITTED] = scope["path"] not in PROBES
            await self._application(scope, receive_body, send_once_read)
            return
        status, code, message = refusal
        told = msgspec.json.encode(ErrorBody(error=ErrorDetail(code=code, message=message)))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(told)).encode("ascii")),
        ]
        if status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="forewarn"'))
        await send_once_read({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": told})

    def _judge(self, scope: Message) -> tuple[int, ErrorCode, str] | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None and _name_of(host) not in self._hosts:
            message = (
                f"Host {host!r} is not allowed: use one of {', '.join(sorted(self._hosts))}, "
                "or add the name to operator.hosts"
            )
            return 421, ErrorCode.UNAUTHORIZED, message
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() != f"http://{host}":
            message = "requests from pages of other origins are not allowed"
            return 403, ErrorCode.UNAUTHORIZED, message
        if not self._known(headers.get(b"authorization", b""), scope["path"]):
            message = (
                "expected 'Authorization: Bearer TOKEN', with the token in the file "
                "operator.token_file"
            )
            return 401, ErrorCode.UNAUTHORIZED, message
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if scope["method"] in WITH_BODY and kind != b"application/json":
            message = "expected 'Content-Type: application/json'"
            return 415, ErrorCode.INVALID, message
        return None

    def _known(self, authorization: bytes, path: str) -> bool:
        if self._token is None or path in PROBES:
            return True
        kind, _, shown = authorization.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self._token)


def _name_of(host: str) -> str:
    """Return a Host header's name without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
