"""Signs the requests of webhooks by Standard Webhooks, and sends them.

A request is sent by the client's own transport: through the proxy that the environment names, with
no redirect and a limit on time, and nothing is read of an answer behind its head. Each runs on a
thread of a pool that has two for each webhook, for its news and for a test, so a receiver that is
slow, or whose name is not found, keeps nobody waiting.

Every answer but a success is a refusal, 410 (Gone) too: the standard lets a sender disable such a
receiver, but a proxy may say it by mistake, and only an operator removes a webhook.
"""

import asyncio
import contextlib
import functools
import os
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Final

import msgspec
from standardwebhooks import Webhook as Signer

from forewarn.client import proxies, transport
from forewarn.clock import Clock
from forewarn.maintenance.model import Refused
from forewarn.maintenance.webhooks import MAX_WEBHOOKS, Webhook
from forewarn.store.port import micros
from forewarn.vocabulary import ErrorCode

SECONDS: Final = 15.0
"""For a request and its answer, as Standard Webhooks advises 15 to 30."""

CONNECT_SECONDS: Final = 5.0

TEST: Final = "webhook.test"
"""The type of the item that `forewarn webhook test` sends."""


class Sender:
    """Sends requests to webhooks. On the event loop's thread.

    `real` is the time that receivers compare with theirs, and `ca_file` has the certificates by
    which they are verified; `""` for the system's.
    """

    def __init__(self, real: Clock, ca_file: str) -> None:
        self._real = real
        self._ca_file = ca_file
        self._pool = ThreadPoolExecutor(2 * MAX_WEBHOOKS, "webhook")
        self._tested: set[str] = set()
        """The webhooks that a test is under way to."""
        self._open: set[socket.socket] = set()
        """The sockets of the requests under way."""

    async def test(self, webhook: Webhook, now: datetime) -> str:
        """Send a test; return why it was not accepted, `""` if it was.

        Refused (CONFLICT) while another test of this webhook is under way.
        """
        if webhook.name in self._tested:
            message = f"a test of the webhook {webhook.name} is under way: await its end"
            raise Refused(ErrorCode.CONFLICT, message, name=webhook.name)
        id_ = f"test_{micros(now)}"
        item = {"id": id_, "type": TEST, "at": now, "subject": f"webhook {webhook.name}"}
        self._tested.add(webhook.name)
        try:
            return await self.send(webhook, id_, msgspec.json.encode({**item, "data": {}}))
        finally:
            self._tested.discard(webhook.name)

    async def send(self, webhook: Webhook, id_: str, body: bytes) -> str:
        """Send a body under an id; return why it was not accepted, `""` if it was."""
        now = self._real.now()
        headers = [
            ("Content-Type", "application/json"),
            ("webhook-id", id_),
            ("webhook-timestamp", str(int(now.timestamp()))),
            ("webhook-signature", Signer(webhook.secret).sign(id_, now, body.decode())),
        ]
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._ask, webhook.url, headers, body)

    def close(self) -> None:
        """End the requests under way, and start no further ones."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for each in self._open.copy():
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        """Made once: to read the system's certificates takes 20 ms."""
        return ssl.create_default_context(cafile=self._ca_file or None)

    def _ask(self, url: str, headers: list[tuple[str, str]], body: bytes) -> str:
        opened: list[socket.socket] = []

        def remember(made: socket.socket) -> None:
            opened.append(made)
            self._open.add(made)

        try:
            tls = self._tls if url.startswith("https:") else None
        except OSError as error:  # TLS's own errors are of this kind, too
            return f"webhooks.tls_ca: cannot use {self._ca_file}: {error.strerror or error}"
        try:
            proxy = proxies.chosen(url, os.environ)
            status = transport.request(
                "POST",
                url,
                seconds=SECONDS,
                connect_seconds=CONNECT_SECONDS,
                headers=headers,
                body=body,
                tls=tls,
                head_only=True,
                opened=remember,
                proxy=proxy,
            ).status
        except (proxies.BadProxy, transport.RequestFailed) as failed:
            return str(failed)
        finally:
            self._open.difference_update(opened)
        if 200 <= status < 300:
            return ""
        moved = ", and redirects are not followed: give the new URL" if status // 100 == 3 else ""
        return f"it answered with status {status}{moved}"
