"""What the requests of webhooks have in them: values in, bytes out."""

from typing import Any

import msgspec

from builders import NOW
from forewarn.maintenance import news
from forewarn.maintenance.news import NewsData, NewsItem, NewsType
from forewarn.maintenance.webhooks import Webhook
from forewarn.server.operator import webhook_requests


def item(kind: NewsType, subject: str = "operation 1.1", **data: Any) -> NewsItem:
    return NewsItem(type=kind, at=NOW, subject=subject, data=NewsData(**data))


def test_an_item_is_told_whole_under_an_id_without_full_stops() -> None:
    told = item(NewsType.OPERATION_FAILED, operation="1.1", machines=("a",), reason="no host")
    message = webhook_requests.message((7, 1), told)
    assert message.id.startswith("7-1_")
    assert "." not in message.id
    assert message.body == news.numbered(7, news.encode([told, told]))[1].json
    assert msgspec.json.decode(message.body) == {
        "id": "7-1",
        "type": "operation.failed",
        "at": "2026-03-02T12:00:00Z",
        "subject": "operation 1.1",
        "data": {"operation": "1.1", "machines": ["a"], "reason": "no host"},
    }


def test_the_same_number_at_another_time_has_another_id() -> None:
    first = item(NewsType.OPERATION_FAILED)
    later = msgspec.structs.replace(first, at=NOW.replace(microsecond=1))
    ids = {webhook_requests.message((7, 1), one).id for one in (first, later, first)}
    assert len(ids) == 2


def test_a_test_is_told_apart_from_news() -> None:
    hook = Webhook(
        name="ours",
        url="https://a.example/",
        secret="whsec_",
        created_by="ann",
        created_at=NOW,
        done_sequence=0,
    )
    message = webhook_requests.test_message(hook, NOW)
    assert message.id.startswith("test_")
    assert msgspec.json.decode(message.body)["type"] == "webhook.test"
