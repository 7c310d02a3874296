"""What `forewarn follow` shows: a line for each item, and a board that fits its terminal."""

import io
import json

import pytest
from rich.console import Console

from builders import NOW
from forewarn import times
from forewarn.cli import follow
from forewarn.cli.follow import StreamEvent
from forewarn.maintenance import news
from forewarn.maintenance.news import NewsData, NewsItem, NewsType
from forewarn.server.operator import rollout_schemas, schemas

EVENT = {
    "id": "AAAAAAAA-0000-4000-8000-000000000000",
    "operation": "12.1",
    "maintenance": 12,
    "event_type": "Reboot",
    "source": "Platform",
    "description": "Host server is undergoing maintenance.",
    "duration_seconds": -1,
    "target": "machines",
    "live_migration": False,
}


def event(data: NewsData, kind: NewsType = NewsType.OPERATION_STARTED) -> StreamEvent:
    item = NewsItem(type=kind, at=NOW, subject="operation 12.1", data=data)
    (numbered,) = news.numbered(7, news.encode([item]))
    return StreamEvent(numbered.type, numbered.json.decode(), numbered.id)


def lined(data: NewsData, kind: NewsType = NewsType.OPERATION_STARTED) -> str:
    return follow.line(event(data, kind), shown_at=times.shown)


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
    assert "3-0" in follow.line(gap, shown_at=times.shown)


def board(events: int, rollouts: int) -> follow.Board:
    shown = follow.Board()
    fields = dict.fromkeys(schemas.LiveEvent.__struct_fields__)
    shown.events = [
        schemas.LiveEvent(
            **{
                **fields,
                **EVENT,
                "status": "Scheduled",
                "scope": "a-scope-with-quite-a-long-name",
                "update_domain": n,
                "machines": (f"a-machine-with-a-long-name-{n}",) * 3,
                "not_before": NOW,
            }
        )
        for n in range(events)
    ]
    units = rollout_schemas.RolloutUnits(
        **dict.fromkeys(rollout_schemas.RolloutUnits.__struct_fields__, 3)
    )
    view = dict.fromkeys(rollout_schemas.RolloutView.__struct_fields__)
    view |= {"number": 123, "state": "running", "wave": 2, "waves": 10, "units": units}
    detail = dict.fromkeys(rollout_schemas.RolloutDetail.__struct_fields__)
    detail["rollout"] = rollout_schemas.RolloutView(**view)
    shown.rollouts = [rollout_schemas.RolloutDetail(**detail) for _ in range(rollouts)]
    shown.lines.extend(["a line of news " * 20] * 100)
    shown.trouble = "the service is away " * 10
    return shown


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("lines", [10, 24, 50])
@pytest.mark.parametrize(("events", "rollouts"), [(0, 0), (3, 1), (200, 3)])
def test_the_board_fits_its_terminal(columns: int, lines: int, events: int, rollouts: int) -> None:
    written = io.StringIO()
    console = Console(file=written, width=columns, height=lines, force_terminal=False)
    console.print(board(events, rollouts).drawn(columns, lines))
    shown = written.getvalue().splitlines()
    assert max(map(len, shown)) <= columns
    assert len(shown) <= lines
    assert any("a line of news" in each for each in shown)
    assert any("12.1" in each for each in shown) is (events > 0)
