"""Who may ask: on TCP whoever has the token, and nobody's web page on either socket.

The unix socket's file mode decides who can connect to it. On TCP the bearer token is wanted for
all but `/healthz` and `/readyz`, which tell a probe nothing about the fleet; and the service
answers only to names that it knows to be its own, so that a page that a browser loaded from a
name that was pointed at this address cannot reach it.
"""

import asyncio
import contextlib
import hmac
import os
import secrets  # noqa: TID251 - the one file that makes a secret
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

import msgspec

from forewarn.server import secret_files
from forewarn.server.operator import schemas
from forewarn.vocabulary import ErrorCode

TOKEN_BYTES: Final = 32
"""256 bits of chance: nobody guesses it."""

DISCARD_BYTES: Final = 128 * 1024 * 1024
"""The most bytes of a refused body that are still read: twice the longest that is ever taken."""

DISCARD_SECONDS: Final = 5.0
"""How long a refused body is still read: what is on this machine sends in less."""

LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
PROBES: Final = frozenset({"/healthz", "/readyz"})
WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]


class TokenUnusable(Exception):  # noqa: N818 - a state of the file, not a mistake of the caller's
    """The token's file cannot be used; the message is one line for the operator."""


def token(path: Path) -> str:
    """Return the operators' token, made at the first call and kept in a file of mode 0600.

    Args:
        path: The file; its folder exists, and only one process at a time asks.

    Raises:
        TokenUnusable: Others may read the file, it holds no token, or cannot be read or made.
    """
    try:
        if not path.exists():
            _make(path)
        mode, text = secret_files.read(path)
    except OSError as error:
        message = (
            f"the token's file {path} cannot be used: {error.strerror}: name a place that the "
            "service's user may read and write, as operator.token_file"
        )
        raise TokenUnusable(message) from error
    if os.name == "posix" and mode & 0o077:
        message = (
            f"the token's file {path} has mode {mode:04o}, so others may read it: remove it for a "
            "new token at the next start, or give it mode 0600 if nobody has"
        )
        raise TokenUnusable(message)
    if len(text) < 16 or not text.isascii() or not text.isprintable():
        message = (
            f"the token's file {path} holds no token of at least 16 printable characters: "
            "remove it for a new one at the next start"
        )
        raise TokenUnusable(message)
    return text


def _make(path: Path) -> None:
    """Write a new token beside its place, and move it there whole."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


class Gate:
    """Turns away what may not ask, before the application sees it.

    Args:
        application: What is behind it.
        token: What a caller has to show; None on the unix socket.
        hosts: The names that it answers to, beside the loopback ones; None for any (the unix
            socket, which no browser reaches).
    """

    def __init__(
        self, application: Application, token: str | None, hosts: tuple[str, ...] | None
    ) -> None:
        self._application = application
        self._token = None if token is None else token.encode("ascii")
        self._hosts = None if hosts is None else {h.lower() for h in (*LOOPBACK_NAMES, *hosts)}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Judge a request by its head, and pass it on or answer it."""
        if scope["type"] != "http":
            return  # neither websockets nor a lifespan are served
        body = _Body(receive)

        async def send_once_read(message: Message) -> None:
            if message.get("status", 0) >= 400:
                await body.discard()
            await send(message)

        refusal = self._judge(scope)
        if refusal is None:
            await self._application(scope, body.receive, send_once_read)
            return
        status, code, message = refusal
        failure = schemas.Failure(error=schemas.Error(code=code, message=message))
        told = msgspec.json.encode(failure)
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
                f"this is not {host or 'a host without a name'}: ask by one of "
                f"{', '.join(sorted(self._hosts))}, or list the name in operator.hosts"
            )
            return 421, ErrorCode.UNAUTHORIZED, message
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() != f"http://{host}":
            message = "a page of another origin may not ask here"
            return 403, ErrorCode.UNAUTHORIZED, message
        if not self._known(headers.get(b"authorization", b""), scope["path"]):
            message = (
                "this wants 'Authorization: Bearer TOKEN' with the token in the file that "
                "operator.token_file names"
            )
            return 401, ErrorCode.UNAUTHORIZED, message
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if scope["method"] in WITH_BODY and kind != b"application/json":
            message = "this takes 'Content-Type: application/json' only"
            return 415, ErrorCode.INVALID, message
        return None

    def _known(self, authorization: bytes, path: str) -> bool:
        if self._token is None or path in PROBES:
            return True
        kind, _, shown = authorization.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self._token)


class _Body:
    """A request's body, which has to be read to its end before a refusal is sent.

    A client that is still sending when the connection closes never reads why.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ended = False

    async def receive(self) -> Message:
        """Return the next part."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._ended = True
        return message

    async def discard(self) -> None:
        """Read what is left and throw it away, within its bounds."""
        left = DISCARD_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self._ended and left > 0:
                    message = await self.receive()
                    left -= len(message.get("body", b""))


def _name_of(host: str) -> str:
    """Return a Host header's name without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
