"""Webhooks: what their requests have in them, by format; signs them, sends them, and counts them.

A request is sent by the client's own transport: no proxy, no redirect, a limit on time, and nothing
is read of an answer behind its head. Each runs on a thread of a pool that has one for each webhook,
so a receiver that is slow, or whose name is not found, keeps nobody waiting.

An id is the same at each try, and no other item has it, not even after a backup was restored: it
has the item's time in it. So a receiver can drop what it has had before.
"""

import asyncio
import contextlib
import functools
import hashlib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from standardwebhooks import Webhook as Signer

from forewarn import chat
from forewarn.client import transport
from forewarn.clock import Clock
from forewarn.control.plane import Plane
from forewarn.control.webhooks import Deliveries, Place
from forewarn.maintenance import model, notice
from forewarn.maintenance.news import NewsData, NewsItem, NewsType
from forewarn.maintenance.webhooks import MAX_WEBHOOKS, DeliveryFailure, Webhook
from forewarn.protocol import codec
from forewarn.protocol.message import Reply
from forewarn.server.guest import machines
from forewarn.store.port import Reading, Store, micros
from forewarn.vocabulary import ScopeKind, WebhookFormat

SECONDS: Final = 15.0
"""For a request and its answer, as Standard Webhooks advises 15 to 30."""

CONNECT_SECONDS: Final = 5.0

MAX_RETRY_AFTER: Final = 6
"""The most digits of a Retry-After that is read: eleven days."""

T = TypeVar("T")

TEST: Final = "webhook.test"
"""The type of what `forewarn webhook test` sends."""

EVENT_TYPE: Final = "Microsoft.ResourceNotifications.MaintenanceResources.ScheduledEventEmitted"
VALIDATION: Final = "Microsoft.EventGrid.SubscriptionValidationEvent"
"""How Event Grid tries a receiver."""

RESOURCE_TYPE: Final = "microsoft.maintenance/scheduledEvents"
NO_SUBSCRIPTION: Final = "00000000-0000-0000-0000-000000000000"
"""Of machines whose fleet file names no subscription."""

SHOWN_NAMES: Final = 3
"""The most machines that a line for people spells out."""

STATUS: Final[Mapping[NewsType, str]] = {
    NewsType.OPERATION_SCHEDULED: "Scheduled",
    NewsType.OPERATION_POSTPONED: "Scheduled",
    NewsType.OPERATION_STARTED: "Started",
    NewsType.OPERATION_COMPLETED: "Completed",
    NewsType.OPERATION_FAILED: "Completed",
    NewsType.OPERATION_CANCELED: "Canceled",
}
"""The EventStatus that Event Grid tells; it has none for a failure, and the event is over."""


# What a request has in it: values in, bytes out.


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One request, but for its signature."""

    id: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class EventFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an item does not have of an operation's events: the machines of each."""

    operation: model.Operation | None = None
    """None where history has it no more."""
    scopes: Mapping[str, model.Scope] = {}
    machines: Mapping[str, model.Machine] = {}


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the format `forewarn`: an item as `GET /v1/stream` has it."""

    id: str
    type: str
    at: datetime
    subject: str
    data: NewsData


def message(
    webhook: Webhook, place: tuple[int, int], item: NewsItem, facts: EventFacts
) -> Message | None:
    """Return the request for an item, None where the format has nothing to say about it."""
    sequence, index = place
    number = f"{sequence}-{index}"
    id_ = f"{number}_{micros(item.at)}"
    if webhook.format is WebhookFormat.EVENTGRID:
        events = _grid_events(id_, item, facts)
        if not events:
            return None
        return Message(id=id_, body=msgspec.json.encode(events), headers=_of_grid("Notification"))
    if webhook.format is WebhookFormat.FOREWARN:
        body = model.mapped(_Told, item, id=number)
        return Message(id=id_, body=msgspec.json.encode(body))
    return Message(id=id_, body=_chat(webhook.format, line(item)))


def test_message(webhook: Webhook, now: datetime) -> Message:
    """Return the request by which an operator tries a webhook."""
    id_ = f"test_{micros(now)}"
    if webhook.format is WebhookFormat.EVENTGRID:
        event = {
            "id": _guid(id_),
            "topic": f"/subscriptions/{NO_SUBSCRIPTION}",
            "subject": "",
            "data": {"validationCode": _guid(id_)},
            "eventType": VALIDATION,
            "eventTime": now,
            "metadataVersion": "1",
            "dataVersion": "2",
        }
        headers = _of_grid("SubscriptionValidation")
        return Message(id=id_, body=msgspec.json.encode([event]), headers=headers)
    subject = f"webhook {webhook.name}"
    if webhook.format is WebhookFormat.FOREWARN:
        body = _Told(id=id_, type=TEST, at=now, subject=subject, data=NewsData())
        return Message(id=id_, body=msgspec.json.encode(body))
    return Message(id=id_, body=_chat(webhook.format, f"Forewarn: test of the {subject}"))


def line(item: NewsItem) -> str:
    """Return an item in one line for people: `operation 12.1 scheduled: Reboot of web-0, ...`."""
    data = item.data
    parts = []
    impact = " of ".join(filter(None, (data.event_type or "", _names(data))))
    if impact and not item.subject.startswith(("hold", "fleet")):
        parts.append(impact)
    if data.not_before is not None and item.type in STATUS and STATUS[item.type] == "Scheduled":
        parts.append(f"not before {notice.spoken(data.not_before)}")
    counts = ", ".join(
        f"{n} {what.lower()}" for what, n in {**data.units, **data.operations}.items()
    )
    parts += [
        *([counts] if counts else []),
        *([f"wave {data.wave} of {data.waves}"] if data.wave else []),
        *([f"by {data.by}"] if data.by else []),
        *([data.reason] if data.reason else []),
    ]
    what = item.type.partition(".")[2].replace("_", " ")
    return f"{item.subject} {what}" + (f": {', '.join(parts)}" if parts else "")


def _names(data: NewsData) -> str:
    if data.machine_count > SHOWN_NAMES:
        return f"{data.machine_count} machines"
    if data.machines:
        return ", ".join(data.machines)
    if data.host:
        return f"host {data.host}"
    return ", ".join(f"scope {scope}" for scope in data.scopes[:SHOWN_NAMES])


def _chat(kind: WebhookFormat, text: str) -> bytes:
    return chat.slack(text) if kind is WebhookFormat.SLACK else chat.teams(text)


def _of_grid(kind: str) -> tuple[tuple[str, str], ...]:
    return (("aeg-event-type", kind), ("aeg-metadata-version", "1"))


def _grid_events(id_: str, item: NewsItem, facts: EventFacts) -> list[dict[str, Any]]:
    """Return what Event Grid tells of an item: one event for each event that guests can read."""
    status, operation = STATUS.get(item.type), facts.operation
    if status is None or operation is None:
        return []
    return [
        _grid_event(_guid(f"{id_} {event.id}"), item, event, status, facts)
        for event in operation.events
        if event.published and not event.silent
    ]


def _grid_event(
    id_: str, item: NewsItem, event: model.Event, status: str, facts: EventFacts
) -> dict[str, Any]:
    data = item.data
    subscription, location, resource = _resource(event, facts)
    event_id = event.id.lower()
    subject = f"{resource}/providers/microsoft.maintenance/scheduledevents/{event_id}"
    not_before = data.not_before if status == "Scheduled" else None
    return {
        "id": id_,
        "topic": f"/subscriptions/{subscription}",
        "subject": subject,
        "data": {
            "resourceInfo": {
                "id": subject,
                "name": event_id,
                "type": RESOURCE_TYPE,
                "location": location,
                "properties": {
                    "DurationInSeconds": data.duration_seconds,
                    "Description": data.description,
                    "EventId": event.id,
                    "EventSource": data.source,
                    "EventStatus": status,
                    "EventType": data.event_type,
                    "NotBefore": "" if not_before is None else codec.http_date(not_before).decode(),
                    "Resources": event.machines,
                    "ResourceType": "VirtualMachine",
                },
            },
            "operationalInfo": {"resourceEventTime": item.at},
            "apiVersion": "2024-07-01",
        },
        "eventType": EVENT_TYPE,
        "dataVersion": "1",
        "metadataVersion": "1",
        "eventTime": item.at,
    }


def _resource(event: model.Event, facts: EventFacts) -> tuple[str, str, str]:
    """Return the subscription, the location and the id of what an event is about.

    That is the scale set, as Azure has it, or the first machine.
    """
    scope = facts.scopes.get(event.scope)
    first = facts.machines.get(model.key(event.machines[0]))
    profile = first.profile if first is not None else model.Profile()
    below = f"virtualMachines/{event.machines[0]}"
    if scope is not None and scope.kind is ScopeKind.SCALE_SET:
        below = f"virtualMachineScaleSets/{scope.name}"
    subscription = profile.subscription_id or NO_SUBSCRIPTION
    group = profile.resource_group or machines.DEFAULT_NAME
    resource = f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute"
    return subscription, profile.location or machines.DEFAULT_NAME, f"{resource}/{below}"


def _guid(text: str) -> str:
    """Return a GUID that follows from a text: the same at each try."""
    digits = hashlib.sha256(text.encode()).hexdigest()
    cuts: Sequence[tuple[int, int]] = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    return "-".join(digits[first:last] for first, last in cuts)


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

    async def send(self, webhook: Webhook, place: Place, item: NewsItem) -> DeliveryFailure | bool:
        """Send an item; return True if it was accepted, False if there is nothing to send."""
        facts = EventFacts()
        if webhook.format is WebhookFormat.EVENTGRID and item.type in STATUS:
            operation = item.data.operation
            facts = await self._read(lambda reading: _facts_of(reading, operation))
        made = message(webhook, place, item, facts)
        return False if made is None else await self._post(webhook, made)

    async def test(self, webhook: Webhook) -> DeliveryFailure | bool:
        """Send what an operator tries a webhook with; return True if it was accepted."""
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
