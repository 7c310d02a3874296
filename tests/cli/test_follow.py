"""What `forewarn follow` shows: a line for each item of news."""

import json
from collections.abc import Iterator
from typing import Literal

import pytest

from builders import NOW
from forewarn.cli import follow
from forewarn.cli.exits import ExitStatus, Failed
from forewarn.cli.follow import EventParser, StreamEvent
from forewarn.cli.operator_client import Answer, OperatorClient
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
    queued = NewsData(status="Queued", status_detail="waits for 1.1")
    assert "waits for 1.1" in lined(queued, NewsType.OPERATION_QUEUED)


def test_every_type_has_a_line_whatever_its_facts() -> None:
    for kind in NewsType:
        assert str(kind) in lined(NewsData(), kind)
        assert "3 done" in lined(NewsData(units={"done": 3}), kind)


def test_escapes_of_a_name_are_not_printed() -> None:
    assert "\x1b" not in lined(NewsData(reason="\x1b[31mred"))


def test_a_gap_says_why() -> None:
    gap = StreamEvent("gap", json.dumps({"reason": "trimmed", "after": "3-0"}), "9")
    assert "3-0" in follow.line(gap)


PIECES = (
    b"retry: 1000\n: alive\nid: 7\n\n"
    b'id: 8-0\nevent: operation.started\ndata: {"a":\ndata: 1}\n\n'
    b": alive\nid: 9\n\nevent: gap\ndata: \xc3\xa4\nid: 12\n\nid: 13-0\ndata: unfinished"
)
EVENTS = [
    StreamEvent("operation.started", '{"a":\n1}', "8-0"),
    StreamEvent("gap", "ä", "12"),
]


def test_events_are_read_however_the_stream_is_cut_into_pieces() -> None:
    for size in (1, 2, 7, len(PIECES)):
        parser = EventParser()
        found: list[StreamEvent] = []
        for at in range(0, len(PIECES), size):
            found += parser.feed(PIECES[at : at + size])
        assert (found, parser.last_id) == (EVENTS, "12"), size


def test_a_place_without_an_event_counts_for_the_next_connection() -> None:
    parser = EventParser("3")
    assert list(parser.feed(b": alive\nid: 7\n\nid: 8-0\n")) == []
    assert parser.last_id == "7"


class Scripted(OperatorClient):
    """A service that answers each connection with what the test says."""

    def __init__(self, *answers: bytes | Failed | tuple[bytes, ...]) -> None:
        super().__init__()
        self.answers = list(answers)
        self.asked: list[str] = []

    def stream(
        self, path: str, silence_seconds: float, last_id: str, **query: object
    ) -> Iterator[bytes]:
        del path, silence_seconds, query
        self.asked.append(last_id)
        answer = self.answers.pop(0)
        if isinstance(answer, Failed):
            raise answer
        yield from answer if isinstance(answer, tuple) else (answer,)


AWAY = Failed(ExitStatus.UNREACHABLE, "nothing listens")


def test_after_a_cut_it_goes_on_after_the_last_event_with_growing_pauses() -> None:
    service = Scripted(b"id: 4\n\nid: 5-0\ndata: a\n\n", AWAY, AWAY, b"id: 6-0\ndata: b\n\n")
    pauses: list[float] = []
    why: list[str] = []
    found = follow.events(service, trouble=why.append, pause=pauses.append)
    names = [next(found) for _ in range(4)]
    assert [one.name for one in names] == [follow.OPEN, "message"] * 2
    assert [one.data for one in names[1::2]] == ["a", "b"]
    assert service.asked == ["", "5-0", "5-0", "5-0"]
    assert pauses == [0.5, 1.0, 2.0]
    assert len(why) == 1  # not once for each try


@pytest.mark.parametrize(
    "answers", [(AWAY,), (b"id: 4\n\n", Failed(ExitStatus.UNAUTHORIZED, "revoked"))]
)
def test_it_ends_where_it_was_never_connected_or_is_refused(
    answers: tuple[bytes | Failed, ...],
) -> None:
    found = follow.events(Scripted(*answers), pause=lambda _: None)
    with pytest.raises(Failed) as failed:
        list(found)
    assert failed.value is answers[-1]


def test_waiting_goes_on_without_a_stream_and_where_the_service_restarts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    taken = Failed(ExitStatus.REFUSED, "ann already has 8 streams open", {"most": 8})
    service = Scripted(taken, taken, AWAY, AWAY, b"id: 4\n\n")
    looks: list[bool] = []

    def look() -> follow.Progress:
        looks.append(bool(looks))
        return follow.Progress(looks[-1], "", dict)

    follow.wait(service, look, types=(), shown_by="")
    assert looks == [False, True]
    follow.wait(service, look, types=(), shown_by="")
    assert service.asked == [""] * 5
    assert capsys.readouterr().err.count(AWAY.message) == 1
    with pytest.raises(Failed):
        list(follow.events(Scripted(taken)))


def test_waiting_prints_what_changes_once_and_ends_with_what_an_operator_has_to_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    states = [{"web/0": "running"}, {"web/0": "running", "web/1": "waiting"}, {"web/0": "failed"}]
    looks = iter(states)

    def look() -> follow.Progress:
        facts = next(looks)
        why = "web/0 failed" if facts == states[-1] else ""
        return follow.Progress(False, why, dict, facts)

    with pytest.raises(Failed) as failed:
        follow.wait(Scripted((b": alive\n\n",) * 3), look, types=(), shown_by="")
    assert (failed.value.status, failed.value.message) == (ExitStatus.ALERTS, "web/0 failed")
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed == [["web/0", "running"], ["web/1", "waiting"], ["web/0", "failed"]]


@pytest.mark.parametrize("word", ["expired", "unreadable"])
def test_what_can_never_be_read_ends_the_waiting_alone(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> follow.Progress:
        if word == "expired":
            raise Failed(ExitStatus.UNAUTHORIZED, "the token has expired")
        answer = Answer(b'{"status": "a later release\'s"}', as_json=False)
        return follow.Progress(False, answer.read(Literal["done"]), dict)

    with pytest.raises(Failed):
        follow.wait(Scripted((b": alive\n\n",)), look, types=(), shown_by="forewarn x")
    assert "forewarn x" in capsys.readouterr().err
