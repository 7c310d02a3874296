"""The checks of rollouts, run for real: programs on their runners, and URLs of a small server."""

import asyncio
import contextlib
import json
import os
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import patience
from forewarn.connectors.command import KEPT
from forewarn.maintenance.rollout_check import CheckResult, CheckRun
from forewarn.server.rollout_checks import RolloutChecks
from forewarn.server.settings import RolloutCheck, RolloutSettings
from forewarn.settings import FieldError
from store.values import NOW

LONG = 2 * patience.SECONDS
"""Seconds that no check takes unless something is wrong."""

SHORT = 0.3
"""Seconds that a check which never ends may take."""

PROGRAMS = {
    "good": "exit 0",
    "bad": "echo not yet >&2; exit 3",
    "loud": "yes out | head -c 300000; yes err | head -c 300000 >&2; exit 1",
    "hangs": "trap '' TERM; echo $$ > pid; sleep 1000 & wait; sleep 1000",
    "tells": "cat > told; env | grep FOREWARN_ | sort > variables",
}


@pytest.fixture
def checks(tmp_path: Path) -> RolloutChecks:
    made = [
        RolloutCheck(name=name, program=("/bin/sh", "-c", f"cd {tmp_path}; {script}"))
        for name, script in PROGRAMS.items()
    ]
    made.append(RolloutCheck(name="absent", program=("/does/not/exist",)))
    environment = {"PATH": os.environ["PATH"], "FOREWARN_SET_X": "secret"}
    return RolloutChecks(made, tmp_path / "runs", environment)


def ran(checks: RolloutChecks, name: str, seconds: float = LONG, number: int = 1) -> CheckResult:
    run = CheckRun(rollout=7, number=number, name=name, wave=2, began_at=NOW, seconds=seconds)
    return asyncio.run(checks.run(run))


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_program_passes_by_its_exit_status(checks: RolloutChecks) -> None:
    assert ran(checks, "good").passed
    bad = ran(checks, "bad", number=2)
    assert not bad.passed
    assert "3" in bad.message
    assert "not yet" in bad.message


def test_a_program_is_told_what_it_checks_and_nothing_of_the_service(
    checks: RolloutChecks, tmp_path: Path
) -> None:
    assert ran(checks, "tells").passed
    told = json.loads((tmp_path / "told").read_text())
    assert told == {"rollout": 7, "check": "tells", "wave": 2}
    assert (tmp_path / "variables").read_text().splitlines() == [
        "FOREWARN_CHECK=tells",
        "FOREWARN_ROLLOUT=7",
        "FOREWARN_WAVE=2",
    ]


def test_what_a_program_says_is_bounded(checks: RolloutChecks) -> None:
    said = ran(checks, "loud")
    assert not said.passed
    assert "err" in said.message
    assert len(said.message) < 300


def test_a_program_that_does_not_end_is_killed_with_all_that_it_started(
    checks: RolloutChecks, tmp_path: Path
) -> None:
    written = tmp_path / "pid"

    def killed_after_it_began() -> str:
        assert not ran(checks, "hangs", SHORT).passed
        return written.read_text() if written.exists() else ""

    group = int(patience.until(killed_after_it_began))
    patience.until(lambda: not is_alive(group))  # what was killed may not be reaped yet


def test_nothing_of_a_run_is_left(checks: RolloutChecks, tmp_path: Path) -> None:
    ran(checks, "good")
    ran(checks, "bad", number=2)
    assert [place.name for place in (tmp_path / "runs").iterdir()] == [KEPT]


def test_what_cannot_be_run_has_failed(checks: RolloutChecks, tmp_path: Path) -> None:
    assert not ran(checks, "absent").passed
    assert not ran(checks, "nobody knows it").passed
    (tmp_path / "runs").write_text("a file where the folder should be")
    assert not ran(checks, "good").passed


# URLs.


class Pages(socketserver.ThreadingTCPServer):
    """Answers each path as the test says; `hang` answers nothing."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OnePage)
        self.asked: list[bytes] = []
        self.ended = threading.Event()


class OnePage(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        pages = cast("Pages", self.server)
        line = self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        pages.asked.append(line)
        path = line.split()[1].decode().strip("/")
        if path.startswith("hang"):
            pages.ended.wait()
        elif path.startswith("large"):
            self.send(200, b"x" * 1_000_000)
        elif path.startswith("garbage"):
            self.wfile.write(b"hello there\r\n\r\n")
        elif path:
            self.send(int(path[:3]), b"cache is cold")

    def send(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\nLocation: /200\r\n\r\n"
        with contextlib.suppress(OSError):
            self.wfile.write(head.encode() + body)


@pytest.fixture
def pages() -> Iterator[Pages]:
    with Pages() as pages:
        thread = threading.Thread(target=pages.serve_forever, daemon=True)
        thread.start()
        yield pages
        pages.ended.set()
        pages.shutdown()
        thread.join()


def asked(pages: Pages, path: str, seconds: float = LONG, scale: float = 1.0) -> CheckResult:
    url = f"http://127.0.0.1:{pages.server_address[1]}{path}"
    checks = RolloutChecks([RolloutCheck(name="page", url=url)], Path(), {}, scale)
    return ran(checks, "page", seconds)


@pytest.mark.parametrize(
    ("path", "passed"),
    [("/200", True), ("/204?deep=1", True), ("/302", False), ("/404", False), ("/503", False)],
)
def test_a_url_passes_by_its_status(pages: Pages, path: str, passed: bool) -> None:
    result = asked(pages, path)
    assert result.passed is passed
    assert pages.asked == [f"GET {path} HTTP/1.1\r\n".encode()]
    assert passed or path[1:4] in result.message


@pytest.mark.parametrize("path", ["/large", "/garbage", "/"])
def test_an_answer_that_is_none_has_failed(pages: Pages, path: str) -> None:
    result = asked(pages, path)
    assert not result.passed
    assert result.message


def test_a_url_that_does_not_answer_has_failed_when_its_time_is_over(pages: Pages) -> None:
    assert not asked(pages, "/hang", SHORT).passed
    assert not asked(pages, "/hang", SHORT * 100, scale=100).passed


def test_a_url_that_nobody_listens_at_has_failed(pages: Pages) -> None:
    pages.server_close()
    assert not asked(pages, "/200").passed


# The settings.


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"program": ("x",), "url": "http://x/"},
        {"program": ("./x",)},
        {"url": "ftp://x/"},
        {"url": "http://"},
        {"url": "http://x:99999/"},
        {"url": "http://x/ä"},
    ],
)
def test_a_check_is_either_a_program_or_a_url(given: dict[str, Any]) -> None:
    with pytest.raises(FieldError):
        RolloutCheck(name="x", **given)


def test_two_checks_have_two_names() -> None:
    one = RolloutCheck(name="x", url="http://x/")
    with pytest.raises(FieldError):
        RolloutSettings(check=(one, one))
