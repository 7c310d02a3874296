"""A fleet as large as a body may be: guests are answered meanwhile, and its memory comes back."""

import http.client
import sys
import threading
import time
from pathlib import Path

import pytest

import patience
from end_to_end.agents import until
from end_to_end.running import Running
from forewarn.maintenance import fleet_file

ENTRIES = 4 * fleet_file.MAX_MACHINES - 1


PACE = 0.03
"""Seconds between two questions: below the rate of its machine."""


class Guest:
    """Asks for its events all the time, and remembers the longest wait."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience.SECONDS)
        self._stop = threading.Event()
        self.answers = 0
        self.longest = 0.0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Guest":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        path = "/vm/web-0/metadata/scheduledevents?api-version=2020-07-01"
        while not self._stop.wait(PACE):
            began = time.monotonic()
            self._connection.request("GET", path, headers={"Metadata": "true"})
            answer = self._connection.getresponse()
            answer.read()
            assert answer.status == 200
            self.answers += 1
            self.longest = max(self.longest, time.monotonic() - began)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_while_a_huge_fleet_is_judged_guests_read_on_and_memory_comes_back(folder: Path) -> None:
    body = b'{"machine":[' + b",".join(b'{"name":"m%06d"}' % n for n in range(ENTRIES)) + b"]}"
    running = Running(folder)
    running.start()
    try:
        running.operator.ask("PUT", "/v1/fleet", {"machine": [{"name": "web-0"}]})
        before = running.resident_mib()

        def longest_share() -> float:
            """Return how much of the request's time a guest has waited at most."""
            with Guest(running.guest_port) as guest:
                began = time.monotonic()
                refused = running.operator.ask("PUT", "/v1/fleet", body)
                took = time.monotonic() - began
            assert (refused.status, refused.error["code"]) == (422, "limit")
            assert refused.error["facts"]["machines"] == ENTRIES  # all of it was decoded
            assert guest.answers
            return guest.longest / took

        # Decoding on the event loop, or in one go elsewhere, takes most of the time each time; a
        # busy machine may stop anything once.
        until(lambda: longest_share() < 0.3)
        until(lambda: running.resident_mib() < before + 60, running.resident_mib)
    finally:
        running.stop()
