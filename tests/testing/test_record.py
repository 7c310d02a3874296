"""What is recorded of an endpoint, and that it is replayed to the byte."""

import threading
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import requests

import forewarn
import patience
from forewarn.testing import Emulator, NotIdle, record
from forewarn.testing.record import Recording
from testing.conftest import NOON, get

EVENT_ID = "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E"
HEADERS = (
    ("Content-Type", "application/json; charset=utf-8"),
    ("Server", "IMDS/150.870.65.1854"),
    ("Date", "Sun, 01 Mar 2026 12:00:00 GMT"),
    ("x-ms-request-id", "3b6d3a8e-0000-4000-8000-000000000000"),
)
NOTHING = b'{"DocumentIncarnation":1,"Events":[]}'
# The blanks are the server's own: they come back as they were.
DOCUMENT = (
    b'{ "DocumentIncarnation": 2, "Events":[{"EventId":"%s","EventStatus":"Scheduled",'
    b'"EventType":"Reboot","ResourceType":"VirtualMachine","Resources":["shop-db-1","shop-db-2"],'
    b'"NotBefore":"Sun, 01 Mar 2026 12:15:00 GMT","Description":"shop-db-1 \\"is\\" restarted.",'
    b'"EventSource":"Platform","DurationInSeconds":-1}]}' % EVENT_ID.encode()
)


def recorded(*, keep_names: bool) -> bytes:
    recording = Recording("shop-db-2", keep_names=keep_names)
    text = recording.beginning()
    for minutes, body in enumerate((NOTHING, DOCUMENT, DOCUMENT, NOTHING)):
        text += recording.answer(body, HEADERS, NOON + timedelta(minutes=minutes))
    return text


def write(folder: Path, text: bytes) -> Path:
    path = folder / "recorded.jsonl"
    path.write_bytes(text)
    return path


def test_a_document_is_recorded_once_and_with_its_time() -> None:
    name, answers = record.read(recorded(keep_names=True))
    assert name == "shop-db-2"
    assert [answer.after_seconds for answer in answers] == [0, 60, 180]
    assert [answer.body.encode() for answer in answers] == [NOTHING, DOCUMENT, NOTHING]


def test_names_and_ids_are_made_up_unless_they_are_to_be_kept() -> None:
    for secret in (b"shop", b"db", EVENT_ID.encode(), b"3b6d3a8e"):
        assert secret not in recorded(keep_names=False)
    assert EVENT_ID.encode() in recorded(keep_names=True)


def test_made_up_names_are_not_mixed_up_with_real_ones() -> None:
    recording = Recording("VM-2")  # as the machine writes it, not as the events do
    written = '"EventId":"%s","Resources":["%s","_%s"],"Description":"%s and %s"'
    body = f'{{"Events":[{{{written}}}]}}' % ("a", "vm-0", "vm-2", "vm-2", "vm-0")
    text = recording.beginning() + recording.answer(body.encode(), HEADERS, NOON)
    _, [answer] = record.read(text)
    made_up = "00000001-0000-4000-8000-000000000000"
    names = (made_up, "vm-1", "vm-0", "vm-0", "vm-1")
    assert answer.body == f'{{"Events":[{{{written}}}]}}' % names


def test_a_name_that_is_a_word_of_the_protocol_is_replaced_as_a_name_alone() -> None:
    written = '{"Events":[{"EventId":"a","Resources":["%s","%s"],"EventSource":"Platform"}]}'
    body = written % ("Platform", "né")
    text = Recording("events").answer(body.encode(), HEADERS, NOON)
    shown = msgspec.json.decode(text, type=record.RecordedAnswer).body
    assert shown == (written % ("vm-1", "vm-2")).replace(
        '"a"', '"00000001-0000-4000-8000-000000000000"'
    )


def test_an_event_whose_id_changes_its_case_stays_one() -> None:
    recording = Recording("vm-0")
    bodies = [b'{"Events":[{"EventId":"%s"}]}' % each for each in (b"AB", b"ab")]
    answers = [recording.answer(each, HEADERS, NOON) for each in bodies]
    assert answers[0] == answers[1]


def test_what_is_no_document_is_not_recorded() -> None:
    escaped = b'{"Events":[{"EventId":"a","Resources":["\\u0064b-1"]}]}'
    for body in (b"<html>", b"{}", b'{"Events":[{}]}', b"\xff", escaped):
        with pytest.raises(ValueError, match="document"):
            Recording("").answer(body, HEADERS, NOON)


def test_documents_come_back_to_the_byte(tmp_path: Path) -> None:
    seen: list[requests.Response] = []
    with Emulator(beginning=NOON + timedelta(days=400)) as emulator:
        emulator.machine("other")  # before the recording's own fleet
        with patience.meanwhile(lambda: seen.append(get(emulator))):
            emulator.replay(write(tmp_path, recorded(keep_names=True)), patience.SECONDS)
    told = [answer for answer in seen if answer.headers["Server"] == HEADERS[1][1]]
    bodies = [answer.content for answer in told]
    assert list(dict.fromkeys(bodies)) == [NOTHING, DOCUMENT]
    assert bodies[-1] == NOTHING
    # The server's date goes on with the emulator's clock, from what it was.
    dates = {answer.headers["Date"] for answer in told}
    assert HEADERS[2][1] in dates
    assert dates <= {f"Sun, 01 Mar 2026 12:0{minutes}:00 GMT" for minutes in range(3)}


def test_a_handler_meets_a_recorded_event(tmp_path: Path) -> None:
    told: list[str] = []
    with Emulator() as emulator:
        machine = emulator.machine("vm-0")

        def handle() -> None:
            pace = forewarn.Pace(poll_seconds=0.05)
            with forewarn.Client(machine.endpoint, pace=pace) as client:
                for change in client.watch(mine=True):
                    told.append(change.kind)
                    if change.appeared:
                        client.approve(change.event)
                    if change.gone:
                        return

        thread = threading.Thread(target=handle)
        thread.start()
        emulator.replay(write(tmp_path, recorded(keep_names=False)), patience.SECONDS)
        thread.join()
        approvals = [e for e in emulator.requests if e.method == "POST"]
    assert told == ["appeared", "gone"]
    assert [exchange.status for exchange in approvals] == [200]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", 1),
        (b"fleet\n", 1),
        (b'{"machine": 7}\n', 1),
        (b'{"machine": "vm-0"}\n{"after_seconds": -1, "body": ""}\n', 2),
        (b'{"machine": "vm-0"}\n{"after_seconds": 0, "body": "", "status": 200}\n', 2),
        (b'{"machine": "vm-0"}\n\xff\n', 2),
    ],
)
def test_a_file_that_is_not_a_recording_is_refused_with_its_line(text: bytes, line: int) -> None:
    with pytest.raises(ValueError, match=rf"line {line}: "):
        record.read(text)


def test_a_recording_that_nobody_reads_ends_the_wait(tmp_path: Path) -> None:
    with Emulator() as emulator, pytest.raises(NotIdle, match="document 1 "):
        emulator.replay(write(tmp_path, recorded(keep_names=False)), 0)
