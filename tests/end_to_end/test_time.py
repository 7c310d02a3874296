"""Notice is time in which guests could read: real processes that were killed, or stood still."""

import json
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import patience
from end_to_end.test_process import SETTINGS, Process, as_guest
from forewarn.clock import SystemClock
from forewarn.control import service_clock
from forewarn.server import service
from forewarn.store import sqlite
from server.running import fleet, request_reboot

HOUR = timedelta(hours=1)


def scaled(scale: float) -> str:
    return f"{SETTINGS}[clock]\nscale = {scale}\n"


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.close()


def start(started: list[Process], folder: Path, text: str) -> tuple[Process, str]:
    process = Process(folder, text)
    started.append(process)
    (address,) = process.until("ready")["guests"]
    return process, address


def operation(process: Process) -> dict[str, Any]:
    (found,) = process.client().get("/v1/history")["operations"]
    assert isinstance(found, dict)
    return found


def when(text: str) -> datetime:
    return datetime.fromisoformat(text)


def an_hour_passes(folder: Path, scale: float) -> None:
    """Let the clock of a service that does not run go on by an hour, and then at a scale."""
    now = SystemClock().now()
    origin = service_clock.ClockScale(scale=scale, origin=now + HOUR, real_origin=now)
    store = sqlite.open_store(folder / "forewarn.db")
    with store.write() as transaction:
        transaction.put_setting(service.CLOCK_SETTING, msgspec.json.encode(origin).decode())
    store.close()


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_a_restart_after_notbefore_passed_gives_the_outage_back_before_anything_starts(
    started: list[Process], tmp_path: Path, number: signal.Signals
) -> None:
    scale = 300.0  # 15 minutes are 3 s
    first, _ = start(started, tmp_path, SETTINGS)
    first.client().ask("PUT", "/v1/fleet", fleet())
    promised = when(request_reboot(first.client())["operations"][0]["not_before"])
    first.stop(number)
    an_hour_passes(tmp_path, scale)
    again, address = start(started, tmp_path, scaled(scale))
    found = operation(again)
    moved = when(found["not_before"]) - promised
    assert moved >= HOUR
    told = [line for line in again.log if line["event"].startswith("guests could not read")]
    assert [line["operations"] for line in told] == [1]
    assert told[0]["seconds"] >= HOUR.total_seconds()
    status, document = as_guest(address, "web-0", "GET")
    assert status == 200
    assert json.loads(document)["DocumentIncarnation"] >= 2
    found = patience.until(lambda: one if (one := operation(again))["started_at"] else None)
    assert when(found["started_at"]) >= when(found["not_before"]) >= promised + moved
