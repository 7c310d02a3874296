"""Webhooks: what their requests have in them; signs them, sends them, and counts them.

A request is sent by the client's own transport: no proxy, no redirect, a limit on time, and nothing
is read of an answer behind its head. Each runs on a thread of a pool that has one for each webhook,
so a receiver that is slow, or whose name is not found, keeps nobody waiting.

An id is the same at each try, and no other item has it, not even after a backup was restored: it
has the item's time in it. So a receiver can drop what it has had before.
"""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from standardwebhooks import Webhook as Signer

from forewarn.client import transport
from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.control.webhooks import Deliveries, Place
from forewarn.maintenance import model
from forewarn.maintenance.news import NewsData, NewsItem
from forewarn.maintenance.webhooks import MAX_WEBHOOKS, DeliveryFailure, Webhook
from forewarn.protocol.message import Reply
from forewarn.store.port import Reading, Store, micros

SECONDS: Final = 15.0
"""For a request and its answer, as Standard Webhooks advises 15 to 30."""

CONNECT_SECONDS: Final = 5.0

MAX_RETRY_AFTER: Final = 6
"""The most digits of a Retry-After that is read: eleven days."""

T = TypeVar("T")

TEST: Final = "webhook.test"
"""The type of what `forewarn webhook test` sends."""


# What a request has in it: values in, bytes out.


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One request, but for its signature."""

    id: str
    body: bytes


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """The body: an item as `GET /v1/stream` has it."""

    id: str
    type: str
    at: datetime
    subject: str
    data: NewsData


def message(place: tuple[int, int], item: NewsItem) -> Message:
    """Return the request for an item."""
    sequence, index = place
    number = f"{sequence}-{index}"
    body = model.mapped(_Told, item, id=number)
    return Message(id=f"{number}_{micros(item.at)}", body=msgspec.json.encode(body))


def test_message(webhook: Webhook, now: datetime) -> Message:
    """Return the request by which an operator tries a webhook."""
    id_ = f"test_{micros(now)}"
    subject = f"webhook {webhook.name}"
    body = _Told(id=id_, type=TEST, at=now, subject=subject, data=NewsData())
    return Message(id=id_, body=msgspec.json.encode(body))


# How it is sent.


class Webhooks:
    """Sends news to webhooks, and counts that. On the event loop's thread.

    The store is read on other threads. `real` is the time that receivers compare with theirs, and
    `ca_file` has the certificates by which they are verified; `""` for the system's.
    """

    def __init__(
        self,
        plane: Plane,
        store: Store,
        clock: Clock,
        real: Clock,
        *,
        replica: str,
        mint: Callable[[], str],
        ca_file: str,
    ) -> None:
        self._store = store
        self._clock = clock
        self._real = real
        self._ca_file = ca_file
        self._pool = ThreadPoolExecutor(MAX_WEBHOOKS, "webhook")
        self._open: set[socket.socket] = set()
        """Of the requests under way."""
        self.deliveries = Deliveries(
            plane=plane,
            read=self._read,
            clock=clock,
            real=real,
            replica=replica,
            send=self.send,
            chance=lambda: int(mint()[:8], 16) / 2**32,
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this replica's deliveries, for Prometheus."""
        counted = CounterMetricFamily(
            "forewarn_webhook_deliveries", "Items sent to webhooks.", labels=("webhook", "result")
        )
        for result, counts in (
            ("accepted", self.deliveries.accepted),
            ("refused", self.deliveries.refused),
        ):
            for name, count in sorted(counts.copy().items()):
                counted.add_metric((name, result), count)
        waiting = GaugeMetricFamily(
            "forewarn_webhook_waiting_seconds",
            "Age of the item that a webhook has not accepted yet; 0 for none.",
            labels=("webhook",),
        )
        for name, seconds in sorted(self.deliveries.waiting_seconds().items()):
            waiting.add_metric((name,), seconds)
        yield counted
        yield waiting

    async def _read(self, question: Callable[[Reading], T]) -> T:
        def ask() -> T:
            with self._store.read() as reading:
                return question(reading)

        return await asyncio.to_thread(ask)

    async def send(self, webhook: Webhook, place: Place, item: NewsItem) -> DeliveryFailure | None:
        """Send an item; return why it was not accepted, None if it was."""
        return await self._post(webhook, message(place, item))

    async def test(self, webhook: Webhook) -> DeliveryFailure | None:
        """Send what an operator tries a webhook with; return why it was not accepted, or None."""
        made = test_message(webhook, self._clock.now())
        return await self._post(webhook, made)

    async def run(self) -> None:
        """Deliver until `stop`."""
        await self.deliveries.run()

    def stop(self) -> None:
        """Make `run` return."""
        self.deliveries.stop()

    def close(self) -> None:
        """Let no further request begin, and end those under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for each in self._open.copy():
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        """Made once: to read the system's certificates takes 20 ms."""
        return ssl.create_default_context(cafile=self._ca_file or None)

    async def _post(self, webhook: Webhook, message: Message) -> DeliveryFailure | None:
        now = self._real.now()
        body = message.body.decode()
        headers = [
            ("Content-Type", "application/json"),
            ("webhook-id", message.id),
            ("webhook-timestamp", str(int(now.timestamp()))),
            ("webhook-signature", Signer(webhook.secret).sign(message.id, now, body)),
        ]
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                self._pool, self._asked, webhook.url, headers, message.body
            )
        except RuntimeError:  # the pool is closed: the service stops
            return DeliveryFailure(reason="the service is stopping")

    def _asked(
        self, url: str, headers: list[tuple[str, str]], body: bytes
    ) -> DeliveryFailure | None:
        opened: list[socket.socket] = []

        def remember(made: socket.socket) -> None:
            opened.append(made)
            self._open.add(made)

        try:
            reply = transport.request(
                "POST",
                url,
                seconds=SECONDS,
                connect_seconds=CONNECT_SECONDS,
                headers=headers,
                body=body,
                tls=self._tls if url.startswith("https:") else None,
                head_only=True,
                opened=remember,
            )
        except transport.RequestFailed as failed:
            return DeliveryFailure(reason=str(failed))
        finally:
            self._open.difference_update(opened)
        if 200 <= reply.status < 300:
            return None
        return _refused(reply)


def _refused(reply: Reply) -> DeliveryFailure:
    reason = f"it answered with status {reply.status}"
    if 300 <= reply.status < 400:
        reason += ", and redirects are not followed: give the new URL"
    found: dict[bytes, Any] = {name.lower(): value for name, value in reply.headers}
    after = found.get(b"retry-after", b"").decode("latin-1")
    wait = None
    if after.isascii() and after.isdigit() and len(after) <= MAX_RETRY_AFTER:
        wait = timedelta(seconds=int(after))
    return DeliveryFailure(reason=reason, status=reply.status, retry_after=wait)
