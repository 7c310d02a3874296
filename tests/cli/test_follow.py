"""What `forewarn follow` shows: a line for each item of news."""

import json

import pytest

from builders import NOW
from forewarn.cli import follow
from forewarn.cli.follow import StreamEvent
from forewarn.maintenance import news
from forewarn.maintenance.news import NewsData, NewsItem, NewsType


def event(data: NewsData, kind: NewsType = NewsType.OPERATION_STARTED) -> StreamEvent:
    item = NewsItem(type=kind, at=NOW, subject="operation 12.1", data=data)
    (numbered,) = news.numbered(7, news.encode([item]))
    return StreamEvent(numbered.type, numbered.json.decode(), numbered.id)


def lined(data: NewsData, kind: NewsType = NewsType.OPERATION_STARTED) -> str:
    return follow.line(event(data, kind))


def test_a_line_has_the_time_the_type_the_subject_and_the_facts() -> None:
    many = tuple(f"web-{n}" for n in range(20))
    shown = lined(NewsData(machines=many, machine_count=300, reason="no power"))
    assert shown.split()[:4] == ["2026-03-02", "12:00:00Z", "operation.started", "12.1"]
    finished = lined(NewsData(), NewsType.MAINTENANCE_FINISHED)
    assert shown.index("12.1") == finished.index("operation 12.1")
    assert "300 machines" in shown
    assert "no power" in shown
    assert "web-19" not in shown


@pytest.mark.parametrize("kind", NewsType)
def test_every_type_has_a_line_whatever_its_facts(kind: NewsType) -> None:
    assert str(kind) in lined(NewsData(), kind)
    assert "3 done" in lined(NewsData(units={"done": 3}), kind)


def test_escapes_of_a_name_are_not_printed() -> None:
    assert "\x1b" not in lined(NewsData(reason="\x1b[31mred"))


def test_a_gap_says_why() -> None:
    gap = StreamEvent("gap", json.dumps({"reason": "trimmed", "after": "3-0"}), "9")
    assert "3-0" in follow.line(gap)
