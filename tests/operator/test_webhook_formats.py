"""What the requests of webhooks have in them: values in, bytes out."""

import uuid
from typing import Any

import msgspec
import pytest

from builders import NOW, Bench
from forewarn.maintenance import news
from forewarn.maintenance.news import NewsData, NewsItem, NewsType
from forewarn.maintenance.webhooks import Webhook
from forewarn.server.operator import webhook_requests
from forewarn.server.operator.webhook_requests import EventFacts, Message
from forewarn.vocabulary import ApproverKind, EventType, WebhookFormat


def hook(kind: WebhookFormat) -> Webhook:
    return Webhook(
        name="ours",
        url="https://a.example/",
        format=kind,
        secret="whsec_",
        created_by="ann",
        created_at=NOW,
        done_sequence=0,
    )


def item(kind: NewsType, subject: str = "operation 1.1", **data: Any) -> NewsItem:
    return NewsItem(type=kind, at=NOW, subject=subject, data=NewsData(**data))


def sent(kind: WebhookFormat, told: NewsItem, facts: EventFacts | None = None) -> Message | None:
    return webhook_requests.message(hook(kind), (7, 1), told, facts or EventFacts())


def json_of(message: Message | None) -> Any:
    assert message is not None
    return msgspec.json.decode(message.body)


def facts(bench: Bench, operation: str = "1.1") -> EventFacts:
    snapshot = bench.snapshot
    return EventFacts(
        operation=snapshot.operations[operation],
        scopes=snapshot.scopes,
        machines=snapshot.machines,
    )


def told_of(bench: Bench, kind: NewsType, operation: str = "1.1") -> NewsItem:
    known = bench.snapshot.operations[operation]
    return item(
        kind,
        event_type=known.event_type,
        source=known.source,
        description=known.description,
        duration_seconds=known.duration_seconds,
        not_before=known.not_before,
    )


def events(bench: Bench, kind: NewsType, operation: str = "1.1") -> list[dict[str, Any]]:
    told = told_of(bench, kind, operation)
    message = sent(WebhookFormat.EVENTGRID, told, facts(bench, operation))
    return [] if message is None else json_of(message)


def test_an_item_is_told_whole_under_an_id_without_full_stops() -> None:
    told = item(NewsType.OPERATION_FAILED, operation="1.1", machines=("a",), reason="no host")
    message = sent(WebhookFormat.FOREWARN, told)
    assert message is not None
    assert message.id.startswith("7-1_")
    assert "." not in message.id
    assert message.body == news.numbered(7, news.encode([told, told]))[1].json
    assert json_of(message) == {
        "id": "7-1",
        "type": "operation.failed",
        "at": "2026-03-02T12:00:00Z",
        "subject": "operation 1.1",
        "data": {"operation": "1.1", "machines": ["a"], "reason": "no host"},
    }


def test_the_same_number_at_another_time_has_another_id() -> None:
    first = item(NewsType.OPERATION_FAILED)
    later = msgspec.structs.replace(first, at=NOW.replace(microsecond=1))
    ids = {m.id for one in (first, later, first) if (m := sent(WebhookFormat.FOREWARN, one))}
    assert len(ids) == 2


@pytest.mark.parametrize("kind", [WebhookFormat.SLACK, WebhookFormat.TEAMS])
def test_what_people_typed_gives_no_orders_to_a_chat(kind: WebhookFormat) -> None:
    told = item(NewsType.HOLD_PUT, "hold", by="ann", reason="<!channel> & [x](http://y) *now*")
    tree = json_of(sent(kind, told))
    if kind is WebhookFormat.SLACK:
        assert "&lt;!channel&gt; &amp; [x]" in tree["text"]
    else:
        (card,) = tree["attachments"]
        assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
        (block,) = card["content"]["body"]
        assert r"\<!channel\> & \[x\](http://y) \*now\*" in block["text"]


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (
            item(
                NewsType.OPERATION_SCHEDULED,
                event_type=EventType.REBOOT,
                machines=("a", "b"),
                machine_count=2,
                not_before=NOW,
            ),
            "operation 1.1 scheduled: Reboot of a, b, not before 2026-03-02 12:00:00Z",
        ),
        (
            item(
                NewsType.OPERATION_APPROVED,
                event_type=EventType.FREEZE,
                machines=("a", "b", "c", "d"),
                machine_count=60,
                by="a",
                approver=ApproverKind.GUEST,
            ),
            "operation 1.1 approved: Freeze of 60 machines, by a",
        ),
        (
            item(NewsType.MAINTENANCE_SCHEDULED, "maintenance 3", event_type="Reboot", host="h1"),
            "maintenance 3 scheduled: Reboot of host h1",
        ),
        (
            item(
                NewsType.ROLLOUT_HALTED,
                "rollout 2",
                wave=2,
                waves=3,
                units={"done": 4, "failed": 1},
                reason="h4 failed",
            ),
            "rollout 2 halted: 4 done, 1 failed, wave 2 of 3, h4 failed",
        ),
        (item(NewsType.HOLD_PUT, "scope web", by="ann"), "scope web put: by ann"),
        (
            item(NewsType.OPERATION_OUTCOME_UNKNOWN, reason="lost"),
            "operation 1.1 outcome unknown: lost",
        ),
    ],
)
def test_a_line_says_what_happened_to_what(told: NewsItem, line: str) -> None:
    assert webhook_requests.line(told) == line


@pytest.mark.parametrize("kind", NewsType)
def test_every_type_of_news_has_a_line_and_a_request(kind: NewsType) -> None:
    assert webhook_requests.line(item(kind)).startswith("operation 1.1 ")
    for chat in (WebhookFormat.FOREWARN, WebhookFormat.SLACK, WebhookFormat.TEAMS):
        assert sent(chat, item(kind)) is not None


def test_event_grid_is_told_of_each_event_that_guests_can_read() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, host="h1")
    operation = bench.operation("1.1")
    found = events(bench, NewsType.OPERATION_SCHEDULED)
    properties = [event["data"]["resourceInfo"]["properties"] for event in found]
    assert [one["EventId"] for one in properties] == [event.id for event in operation.events]
    assert [one["Resources"] for one in properties] == [
        list(event.machines) for event in operation.events
    ]
    for event, one in zip(found, properties, strict=True):
        assert event["eventType"].endswith("MaintenanceResources.ScheduledEventEmitted")
        assert event["subject"].endswith(f"/scheduledevents/{one['EventId'].lower()}")
        assert one["EventStatus"] == "Scheduled"
        assert one["NotBefore"] == "Mon, 02 Mar 2026 12:15:00 GMT"
        assert str(uuid.UUID(event["id"])) == event["id"]
    assert len({event["id"] for event in found}) == len(found)
    assert events(bench, NewsType.OPERATION_SCHEDULED) == found


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (NewsType.OPERATION_POSTPONED, "Scheduled"),
        (NewsType.OPERATION_STARTED, "Started"),
        (NewsType.OPERATION_COMPLETED, "Completed"),
        (NewsType.OPERATION_FAILED, "Completed"),
        (NewsType.OPERATION_CANCELED, "Canceled"),
    ],
)
def test_event_grid_has_its_own_status_for_each_change(kind: NewsType, status: str) -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    (event,) = events(bench, kind)
    properties = event["data"]["resourceInfo"]["properties"]
    assert properties["EventStatus"] == status
    assert bool(properties["NotBefore"]) is (status == "Scheduled")


def test_event_grid_is_not_told_of_what_guests_cannot_see() -> None:
    bench = Bench()
    bench.ask(EventType.REBOOT, "web-0")
    bench.ask(EventType.REBOOT, "web-1")
    queued = bench.operation("2.1")
    assert not queued.events[0].published
    assert events(bench, NewsType.OPERATION_CANCELED, "2.1") == []
    for kind in (NewsType.OPERATION_QUEUED, NewsType.OPERATION_APPROVED, NewsType.ROLLOUT_DONE):
        assert events(bench, kind) == []
    forgotten = sent(WebhookFormat.EVENTGRID, told_of(bench, NewsType.OPERATION_STARTED))
    assert forgotten is None


def test_a_test_is_told_apart_from_news() -> None:
    for kind in WebhookFormat:
        message = webhook_requests.test_message(hook(kind), NOW)
        assert message.id.startswith("test_")
        text = message.body.decode()
        assert ("test" in text) is (kind is not WebhookFormat.EVENTGRID)
    ((name, value), *_) = webhook_requests.test_message(hook(WebhookFormat.EVENTGRID), NOW).headers
    assert (name, value) == ("aeg-event-type", "SubscriptionValidation")
