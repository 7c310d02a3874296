"""What the requests of webhooks have in them, by format: values in, bytes out.

An id is the same at each try, and no other item has it, not even after a backup was restored: it
has the item's time in it. So a receiver can drop what it has had before.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from forewarn import chat
from forewarn.maintenance import model, notice
from forewarn.maintenance.news import NewsData, NewsItem, NewsType
from forewarn.maintenance.webhooks import Webhook
from forewarn.protocol import codec
from forewarn.server.guest import machines
from forewarn.store.port import micros
from forewarn.vocabulary import ScopeKind, WebhookFormat

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
    return Message(id=id_, body=_chat(webhook.format, f"Forewarn: a test of the {subject}"))


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
