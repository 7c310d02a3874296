"""Signs the requests of webhooks, sends them, and counts them.

A request is sent by the client's own transport: no proxy, no redirect, a limit on time, and nothing
is read of an answer behind its head. Each runs on a thread of a pool that has one for each webhook,
so a receiver that is slow, or whose name is not found, keeps nobody waiting.
"""

import asyncio
import contextlib
import functools
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from standardwebhooks import Webhook as Signer

from forewarn.client import transport
from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.control.webhooks import Deliveries, Place
from forewarn.maintenance import model
from forewarn.maintenance.news import NewsItem
from forewarn.maintenance.webhooks import MAX_WEBHOOKS, DeliveryFailure, Webhook
from forewarn.protocol.message import Reply
from forewarn.server.operator import webhook_formats
from forewarn.server.operator.webhook_formats import EventFacts, Message
from forewarn.store.port import Reading, Store
from forewarn.vocabulary import WebhookFormat

SECONDS: Final = 15.0
"""For a request and its answer, as Standard Webhooks advises 15 to 30."""

CONNECT_SECONDS: Final = 5.0

MAX_RETRY_AFTER: Final = 6
"""The most digits of a Retry-After that is read: eleven days."""

T = TypeVar("T")


class Webhooks:
    """Sends news to webhooks, and counts that. On the event loop's thread.

    Args:
        plane: Writes how far each is.
        store: Is read, on other threads.
        clock: The service's time.
        real: Whose time receivers compare with theirs.
        replica: This one's name.
        mint: Returns a GUID that nobody has.
        ca_file: The certificates that receivers are verified by; `""` for the system's.
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

    async def send(self, webhook: Webhook, place: Place, item: NewsItem) -> DeliveryFailure | bool:
        """Send an item; return True if it was accepted, False if there is nothing to send."""
        facts = EventFacts()
        if webhook.format is WebhookFormat.EVENTGRID and item.type in webhook_formats.STATUS:
            operation = item.data.operation
            facts = await self._read(lambda reading: _facts_of(reading, operation))
        message = webhook_formats.message(webhook, place, item, facts)
        return False if message is None else await self._post(webhook, message)

    async def test(self, webhook: Webhook) -> DeliveryFailure | bool:
        """Send what an operator tries a webhook with; return True if it was accepted."""
        message = webhook_formats.test_message(webhook, self._clock.now())
        return await self._post(webhook, message)

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

    async def _post(self, webhook: Webhook, message: Message) -> DeliveryFailure | bool:
        now = self._real.now()
        body = message.body.decode()
        headers = [
            ("Content-Type", "application/json"),
            ("webhook-id", message.id),
            ("webhook-timestamp", str(int(now.timestamp()))),
            ("webhook-signature", Signer(webhook.secret).sign(message.id, now, body)),
            *message.headers,
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
    ) -> DeliveryFailure | bool:
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
            return True
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


def _facts_of(reading: Reading, operation: str) -> EventFacts:
    found = reading.operations([operation]).get(operation)
    if found is None:
        return EventFacts()
    first = [model.key(event.machines[0]) for event in found.events]
    return EventFacts(
        operation=found,
        scopes=reading.scopes([event.scope for event in found.events]),
        machines=reading.machines(first),
    )
