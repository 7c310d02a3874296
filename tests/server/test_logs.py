"""The log: one object a line for programs, one line for people, and never a secret's value."""

import io
import json
import logging
import os
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from forewarn import logs
from forewarn.server import process
from forewarn.settings import Log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    yield
    root.handlers[:] = handlers


def test_away_from_a_terminal_it_is_one_json_object_a_line_with_its_level_and_part() -> None:
    stream = io.StringIO()
    process.set_up_logs(Log(), stream)
    structlog.get_logger("forewarn.test").info("ready", guests=["http://127.0.0.1:1"], count=3)
    line = json.loads(stream.getvalue())
    assert line["event"] == "ready"
    assert line["level"] == "info"
    assert line["guests"] == ["http://127.0.0.1:1"]
    assert line["count"] == 3
    assert line["timestamp"].endswith("Z")
    facts = {"guests": ["http://127.0.0.1:1"], "count": 3}
    logging.getLogger("forewarn.agent").info("ready", extra={"facts": facts})  # as the agent does
    same = json.loads(stream.getvalue().splitlines()[1])
    assert list(same) == list(line) == ["timestamp", "level", "event", "guests", "count", "logger"]
    assert len(same["timestamp"]) == len(line["timestamp"])
    process.set_up_logs(Log(level="debug"), stream)
    log = structlog.get_logger("forewarn.test")
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(log, level)("said %s", level)
    told = [json.loads(line) for line in stream.getvalue().splitlines()[2:]]
    assert [line["event"].split()[1] for line in told] == [line["level"] for line in told]
    assert {line["logger"] for line in told} == {"forewarn.test"}


def test_a_failure_is_told_with_its_place_and_without_local_values() -> None:
    def fail(password: str) -> None:
        message = f"no access for {len(password)} letters"
        raise RuntimeError(message)

    for stream in (io.StringIO(), Terminal()):
        process.set_up_logs(Log(), stream)
        try:
            fail("hunter" + "2")  # the line itself is shown, its values must not be
        except RuntimeError:
            structlog.get_logger("forewarn.test").exception("it failed")
        assert "no access for 7 letters" in stream.getvalue()
        assert "hunter2" not in stream.getvalue()


def test_a_callers_text_makes_no_entry_of_its_own_and_commands_no_terminal() -> None:
    stream, text = Terminal(), "a\nit stopped\x1b[2J"
    process.set_up_logs(Log(), stream)
    structlog.get_logger("forewarn.test").warning("refused", name=text)
    logging.getLogger("forewarn.test").warning("refused: %s", text, exc_info=ValueError(text))
    assert sum(line[0] != " " for line in stream.getvalue().splitlines()) == 2
    assert "\x1b[2J" not in stream.getvalue()


def test_what_is_below_the_level_is_not_said_and_libraries_only_when_something_goes_wrong() -> None:
    stream = io.StringIO()
    process.set_up_logs(Log(level="warning"), stream)
    structlog.get_logger("forewarn.test").info("chatter")
    structlog.get_logger("forewarn.test").warning("trouble")
    logging.getLogger("uvicorn.error").info("Started server process")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").error("no sockets left")
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"]) for line in told] == [
        ("trouble", "warning"),
        ("no sockets left", "error"),
    ]


def test_strangers_by_the_thousand_keep_no_other_reason_out_of_the_log() -> None:
    limited = process.LimitLog()
    with capture_logs() as told:
        for number in range(process.MAX_LOGGED + 9):
            limited.warn("refused", ("a", number), 0.0, reason="a", address=number)
        limited.warn("refused", ("b", 1), 1.0, reason="b", address=1)
        limited.warn("refused", ("b", 2), 2.0, reason="b", address=2)
    assert [line["reason"] for line in told] == [*(process.MAX_LOGGED * ["a"]), "b"]
    assert told[-1]["not_logged_before"] == 9


def test_a_line_that_cannot_be_written_stops_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", encoding="utf-8")
    process.set_up_logs(Log(), stream)
    structlog.get_logger("forewarn.test").info("ready")
    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.skipif(os.name == "nt", reason="no poll")
def test_nobody_who_logs_hangs_on_a_reader_that_does() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0) as reader, os.fdopen(write, "w") as stream:
        log = logs.PatientStream(stream, logs.LineFormatter(Log(format="json"), stream))
        line = "x" * 70_000 + "\n"  # longer than any pipe is at first
        for _ in range(3):
            log.write(line)
        assert set(reader.read(70_000)) == set(b"x")
        log.write("here\n")
        rest, told, last = reader.read(70_000).splitlines()
    assert rest == b""
    assert json.loads(told)["event"].endswith(" 3")
    assert last == b"here"
