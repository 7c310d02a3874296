"""Turned on by the first request, over real sockets and a real kill."""

import signal
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from end_to_end.test_process import SETTINGS, Process, as_guest
from server.running import fleet

FIRST_REQUEST = f'{SETTINGS}[rules]\nenablement = "first-request"\n'


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.close()


def start(started: list[Process], folder: Path, text: str = FIRST_REQUEST) -> tuple[Process, str]:
    process = Process(folder, text)
    started.append(process)
    (address,) = process.until("ready")["guests"]
    return process, address


def reboot(process: Process, machine: str, **more: object) -> tuple[int, str]:
    body = {"event_type": "Reboot", "machines": [machine], **more}
    answer = process.client().ask("POST", "/v1/maintenances", body)
    return answer.status, "" if answer.status == 201 else answer.error["code"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_scope_is_on_after_a_kill_right_after_the_answer_that_turned_it_on(
    started: list[Process], tmp_path: Path, method: str
) -> None:
    first, address = start(started, tmp_path)
    first.client().ask("PUT", "/v1/fleet", fleet())
    assert reboot(first, "web-1") == (422, "not-eligible")
    body = '{"StartRequests":[]}' if method == "POST" else None
    assert as_guest(address, "web-0", method, body)[0] == 200
    first.stop(signal.SIGKILL)
    again, _ = start(started, tmp_path)
    assert reboot(again, "web-1") == (201, "")
    assert reboot(again, "Bastion") == (422, "not-eligible")
    assert reboot(again, "Bastion", without_notice=True) == (201, "")


@pytest.mark.soak
def test_the_first_answer_is_held_back_as_long_as_the_settings_say(
    started: list[Process], tmp_path: Path
) -> None:
    text = FIRST_REQUEST + "first_response_delay_seconds = 120\n[clock]\nscale = 100\n"
    process, address = start(started, tmp_path, text)
    process.client().ask("PUT", "/v1/fleet", fleet())
    before = process.client().get("/v1/clock")["now"]
    assert as_guest(address, "web-0", "GET")[0] == 200
    times = [process.client().get("/v1/clock")["now"]]
    for _ in range(5):  # one of them is quick on any machine, unless each is held back
        assert as_guest(address, "web-1", "GET")[0] == 200
        times.append(process.client().get("/v1/clock")["now"])
    assert seconds(before, times[0]) >= 120
    assert min(seconds(earlier, later) for earlier, later in pairwise(times)) < 120


def seconds(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
